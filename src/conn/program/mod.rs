//! An exchange whose response comes from a program (RFC 3875): its request's body goes to the program, what
//! the program prints goes to the client, each by one piece at a time.
//!
//! ```text
//!  body kept (only without length)     start      started       head        ended
//!  --------------------------------> Starting ---------> Head --------> Document ----> done, or the
//!                                       | refused          | bad: 502      | cut        connection goes
//! ```
//!
//! * Input and output are independent: a program may answer before it has read anything.
//! * A document without length is complete when the program has closed its output and has not been killed:
//!   until that is known, which takes the time of a process's end, the last chunk waits.
//! * Whoever ends its side of the connection while a program runs is taken to be gone, and the program is
//!   ended. A client that only half-closes cannot be told from one that left; the work would mostly be for
//!   nobody.

mod answer;
mod input;
mod output;

pub use answer::Fault;
pub use input::Spooled;
pub use output::CHUNK_ROOM;

use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::action::Action;
use super::exchange::Logged;
use super::outcome::Outcome;
use super::respond::Noted;
use super::{Connection, Ending, Scope};
use crate::config::{Chunked, Mount};
use crate::files::Mounted;
use crate::gateway::cgi::arguments::arguments;
use crate::gateway::cgi::variables::{About, Variables};
use crate::gateway::messages::{MountId, Why};
use crate::http::expect::Expectation;
use crate::http::request::{Method, Request, Target, Version};
use crate::http1::framing::Framing;
use crate::http1::persistence::Persistence;
use crate::http1::write;
use crate::observe::names::Counter;
use input::{Input, Next, NotTaken};
use output::Output;

/// How long after the end of its output the end of a program is waited for. A process that ends closes its
/// output some microseconds before; one that goes on without output is not meant to be waited for.
const EXIT_GRACE: Duration = Duration::from_millis(100);

/// Bytes of further requests that are read while a program runs, so that a client's leaving is noticed.
const PIPELINED_BYTES_MAX: usize = 16 * 1024;

/// How often a response may send us to another place of our own (RFC 3875 section 6.2.2 leaves it open).
const REDIRECTS_MAX: u8 = 10;

/// A program to be started.
#[derive(Debug)]
pub struct Start {
    /// Where the path is mounted.
    pub mount: MountId,
    /// The whole path, normalised.
    pub path: Vec<u8>,
    /// What the program is told, but for the ends of the connection.
    pub variables: Variables,
    /// Words of the query, where they are arguments.
    pub arguments: Vec<Vec<u8>>,
    /// Whether there is a body.
    pub input: bool,
    /// Who asks.
    pub client: Option<IpAddr>,
    /// Whether the connection is secure.
    pub secure: bool,
    /// The number under which the request is logged.
    pub request_id: u64,
}

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// By itself, with this code. What codes mean is between the program and its operator: for a shell it is
    /// whatever the last command had.
    Code(i32),
    /// By a signal, so that it hardly said all it wanted.
    Signal(i32),
    /// It was ended for it ran too long.
    Overran,
    /// Nobody knows: whoever started it is gone.
    Lost,
}

/// A program that answers the request at hand.
#[derive(Debug)]
pub(super) struct Program {
    timeout: Duration,
    wall_at: Instant,
    /// Not asked for yet, while its input is kept back.
    start: Option<Box<Start>>,
    /// Once it runs: whether its output passes unparsed.
    started: Option<bool>,
    input: Input,
    output: Output,
    /// More of its output was asked for.
    reading: bool,
    /// Its output has ended.
    ended: bool,
    exit: Option<Exit>,
    /// Its exit was waited for long enough.
    exit_overdue: bool,
    /// It printed more than it had promised.
    surplus: bool,
    asked: Asked,
}

/// What of the request outlives its bytes.
#[derive(Debug)]
struct Asked {
    is_head: bool,
    version: Version,
    persistence: Persistence,
    /// Nothing that follows it can be understood.
    ends: bool,
    /// The client waits for "100 Continue".
    continue_due: bool,
    /// Its field lines, for a local redirect.
    section: Vec<u8>,
    /// Fields the operator's rules add.
    fields: Vec<u8>,
    /// Fields of all of the site's responses.
    site: Option<Rc<[u8]>>,
    logged: Option<Box<Logged>>,
    request_id: u64,
    redirects: u8,
}

/// A local redirect being followed: what stays from the request that the client made.
#[derive(Debug)]
pub(super) struct Detour {
    pub(super) logged: Option<Box<Logged>>,
    /// What is left of its body cannot be told from what follows, so that the connection ends.
    pub(super) ends: bool,
    request_id: u64,
    redirects: u8,
}

/// What a program waits for, and for how long.
pub(super) enum Wait {
    Client,
    Exit(Duration),
    Program(Duration),
}

impl Program {
    /// What is waited for when nothing is being sent.
    pub(super) fn waits(&self) -> Wait {
        if self.ended {
            return Wait::Exit(EXIT_GRACE);
        }
        let running = self.started.is_some() || self.input.is_spooling();
        if running && self.input.wants_more() { Wait::Client } else { Wait::Program(self.timeout) }
    }

    /// Whether some of a document has been passed on, and more may come.
    pub(super) fn is_within_document(&self) -> bool {
        matches!(self.output, Output::Chunked | Output::Counted(_) | Output::UntilClose)
    }

    /// When it must be over.
    pub(super) fn wall_at(&self) -> Instant {
        self.wall_at
    }

    /// Whether more of the request's body is to be read.
    pub(super) fn wants_body(&self) -> bool {
        self.input.wants_more()
    }

    /// Whether to listen for the client, to whom `waiting` bytes of further requests belong.
    pub(super) fn wants_input(&self, waiting: usize) -> bool {
        self.input.wants_more() || (self.input.is_complete() && waiting < PIPELINED_BYTES_MAX)
    }
}

impl Connection {
    /// Has a program answer a request.
    pub(super) fn begin_program(
        &mut self,
        request: &Request,
        (framing, persistence, expectation): (Framing, Persistence, Expectation),
        mounted: Mounted,
        scope: &mut Scope,
    ) {
        let settings = scope.settings;
        let mount = &settings.programs[usize::from(mounted.site)].mounts[usize::from(mounted.mount)];
        if matches!(framing, Framing::Length(length) if length > mount.body) {
            let explanation = "The request body is larger than is taken here.";
            return self.refuse_request(request, 413, explanation, scope);
        }
        let detour = self.detour.take();
        let ends = detour.as_ref().is_some_and(|detour| detour.ends);
        let (request_id, redirects, logged) = match detour {
            Some(detour) => (detour.request_id, detour.redirects, detour.logged),
            None => {
                let request_id = scope.log.number();
                (request_id, 0, self.keep_record(request, request_id, scope))
            }
        };
        let spooled = (mount.chunked == Chunked::Spool).then_some(&settings.spooled);
        let input = Input::new(framing, mount.body, spooled);
        let start = self.start_of(request, framing, &mounted, mount, request_id, scope);
        self.timing.asked(scope.clock.now);
        let mut program = Program {
            timeout: mount.timeout,
            wall_at: scope.clock.now + mount.wall,
            start: Some(Box::new(start)),
            started: None,
            input,
            output: Output::Head(Vec::new()),
            reading: false,
            ended: false,
            exit: None,
            exit_overdue: false,
            surplus: false,
            asked: Asked {
                is_head: request.method == Method::Head,
                version: request.version,
                persistence,
                ends,
                continue_due: expectation == Expectation::Continue,
                section: request.fields.section().to_vec(),
                fields: mounted.fields,
                site: mounted.secure_fields,
                logged,
                request_id,
                redirects,
            },
        };
        if program.input.is_spooling() {
            self.invite(&mut program, scope);
        }
        self.program = Some(Box::new(program));
    }

    fn start_of(
        &self,
        request: &Request,
        framing: Framing,
        mounted: &Mounted,
        mount: &Mount,
        request_id: u64,
        scope: &Scope,
    ) -> Start {
        let site = &scope.settings.programs[usize::from(mounted.site)];
        let client = self.client(Some(request));
        let mut variables = Variables::of(&About {
            request,
            client,
            secure: self.peer.secure,
            user: mounted.user.as_deref(),
            passes_authorization: mount.pass_authorization,
            site_name: site.name.as_deref(),
            request_id,
        });
        if let Framing::Length(length) = framing {
            variables.content_length(length);
        }
        let query = match request.target {
            Target::Path { query, .. } => query.filter(|_| mount.arguments),
            _ => None,
        };
        let asks = matches!(request.method, Method::Get | Method::Head);
        Start {
            mount: MountId { site: mounted.site, mount: mounted.mount },
            path: mounted.path.clone(),
            variables,
            arguments: query.filter(|_| asks).map(arguments).unwrap_or_default(),
            input: !matches!(framing, Framing::None | Framing::Length(0)),
            client,
            secure: self.peer.secure,
            request_id,
        }
    }

    /// Invites the body, if the client waits for that (RFC 9110 section 10.1.1).
    fn invite(&mut self, program: &mut Program, scope: &mut Scope) {
        if std::mem::take(&mut program.asked.continue_due) && !program.input.has_begun() {
            self.outgoing.head(scope.buffers).extend_from_slice(write::interim_continue());
            scope.counters.add(Counter::Responses1xx, 1);
        }
    }

    /// Takes a part of the request's body; how much of `bytes` it was.
    pub(super) fn take_body(&mut self, bytes: &[u8], scope: &mut Scope) -> usize {
        let Some(program) = &mut self.program else { return 0 };
        let taken = program.input.take(bytes, || scope.buffers.large());
        self.renew_deadline();
        match taken {
            Ok(count) => count,
            Err(reason) => {
                let (status, explanation) = match reason {
                    NotTaken::TooLong => (413, "The request body is larger than is taken here."),
                    NotTaken::LengthRequired => {
                        (411, "The request body is too large to be sent without its length.")
                    }
                    NotTaken::Malformed(refusal) => (refusal.status(), refusal.explanation()),
                };
                self.refuse_program(status, explanation, scope);
                bytes.len()
            }
        }
    }

    /// A program runs.
    pub(super) fn program_started(&mut self, unparsed: bool, scope: &mut Scope) {
        self.renew_deadline();
        let Some(mut program) = self.program.take() else { return };
        program.started = Some(unparsed);
        if !program.input.is_complete() {
            self.invite(&mut program, scope);
        }
        self.program = Some(program);
        self.understand_answer(scope);
    }

    /// A piece of the body arrived; or, when the program is deaf, will never.
    pub(super) fn relayed(&mut self, buffer: Vec<u8>, deaf: bool, scope: &mut Scope) {
        scope.buffers.give(buffer);
        self.renew_deadline();
        if let Some(program) = &mut self.program {
            program.input.relayed(deaf);
        }
    }

    /// The program printed something, behind [`CHUNK_ROOM`], or will print no more.
    pub(super) fn printed(&mut self, bytes: Vec<u8>, ended: bool, scope: &mut Scope) {
        self.renew_deadline();
        let Some(program) = &mut self.program else { return scope.buffers.give(bytes) };
        program.reading = false;
        program.ended |= ended;
        match &mut program.output {
            Output::Head(collected) if collected.is_empty() => *collected = bytes,
            Output::Head(collected) => {
                collected.extend_from_slice(&bytes[CHUNK_ROOM..]);
                scope.buffers.give(bytes);
            }
            _ => return self.pass(bytes, CHUNK_ROOM, scope),
        }
        self.understand_answer(scope);
    }

    /// The program has ended.
    pub(super) fn program_exited(&mut self, exit: Exit, scope: &mut Scope) {
        let Some(program) = &mut self.program else { return };
        program.exit = Some(exit);
        match exit {
            Exit::Overran => self.fail(Fault::Overran, scope),
            Exit::Lost => self.fail(Fault::Lost, scope),
            Exit::Code(_) | Exit::Signal(_) => self.understand_answer(scope),
        }
    }

    /// Nothing came of the program for its `timeout`.
    pub(super) fn program_idle(&mut self, scope: &mut Scope) {
        let runs = self.program.as_ref().is_some_and(|program| program.started.is_some());
        self.fail(if runs { Fault::Idle } else { Fault::Queued }, scope);
    }

    /// The program's exit was waited for long enough.
    pub(super) fn exit_overdue(&mut self, scope: &mut Scope) {
        if let Some(program) = &mut self.program {
            program.exit_overdue = true;
        }
        self.understand_answer(scope);
    }

    /// Asks for whatever the program is ready to be given or to give.
    pub(super) fn pump(&mut self, scope: &mut Scope) {
        let Some(program) = &mut self.program else { return };
        if let Some(start) =
            program.start.take_if(|_| !program.input.is_spooling() || program.input.is_complete())
        {
            let mut start = start;
            if program.input.is_spooling() {
                start.variables.content_length(program.input.spooled());
            }
            scope.actions.push(Action::StartProgram(start));
        }
        if program.started.is_some() {
            match program.input.next() {
                Next::Nothing => {}
                Next::Relay(bytes) => scope.actions.push(Action::Relay(bytes)),
                Next::End => scope.actions.push(Action::EndInput),
            }
        }
        let idle = self.sending.is_idle() && self.outgoing.is_empty();
        if program.start.is_none() && !program.reading && !program.ended && idle {
            program.reading = true;
            scope.actions.push(Action::ReadOutput);
        }
    }

    /// Refuses a request whose program is running or about to, for what the client did.
    pub(super) fn refuse_program(&mut self, status: u16, explanation: &str, scope: &mut Scope) {
        let Some(program) = self.program.take() else { return };
        self.leave_program(&program, Some(Why::Gone), None, scope);
        if !program.output.is_unsent() {
            self.logged = program.asked.logged;
            return self.close(Outcome::PeerAborted, scope);
        }
        let ending = Ending::After { outcome: Outcome::Refused, linger: true };
        self.respond_in_place(*program, status, explanation, ending, scope);
    }

    /// Drops the program with the connection.
    pub(super) fn drop_program(&mut self, why: Why, scope: &mut Scope) {
        let Some(program) = self.program.take() else { return };
        self.leave_program(&program, Some(why), None, scope);
        if !program.output.is_unsent() {
            self.logged = program.asked.logged;
            return;
        }
        // 499 is what servers have come to write when nobody was left to be answered.
        self.count_response(499, scope);
        self.logged = program.asked.logged.map(|mut logged| {
            logged.answered(499, None);
            logged
        });
    }

    fn leave_program(&self, program: &Program, why: Option<Why>, fault: Option<Fault>, scope: &mut Scope) {
        // Where it was never asked for, there is nothing to leave.
        if program.start.is_none() {
            scope.actions.push(Action::LeaveProgram { why, fault });
        }
    }

    /// Answers in place of the program with a page of our own.
    fn respond_in_place(
        &mut self,
        program: Program,
        status: u16,
        explanation: &str,
        ending: Ending,
        scope: &mut Scope,
    ) {
        let asked = program.asked;
        let plan = answer::refusal(status, explanation, asked.is_head, asked.site);
        self.respond_as(asked.version, Noted::Kept(asked.logged), plan, ending, scope);
    }
}
