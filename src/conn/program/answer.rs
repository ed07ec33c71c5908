//! From what a program prints to the response: its head understood, its document passed on, and what is done
//! when either is not as it should be.

use std::rc::Rc;

use super::output::Output;
use super::{CHUNK_ROOM, Connection, Detour, Ending, Exit, Program, REDIRECTS_MAX, Scope};
use crate::conn::outcome::Outcome;
use crate::files::{Plan, PlanBody, errors};
use crate::gateway::cgi::head::{self, Answer, Bad, Head};
use crate::gateway::messages::Why;
use crate::http::fields::{Fields, Known};
use crate::http::request::Version;
use crate::http::status;
use crate::http1;
use crate::http1::head::Parsed;

/// Why a program's answer is none, for the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It was not started; this is the status of the answer.
    Refused(u16),
    /// Its head is bad.
    Head(Bad),
    /// Its document is so many bytes shorter than it said.
    Short(u64),
    /// Its document is longer than it said.
    Long,
    /// It was killed by a signal before it had said all.
    Killed(i32),
    /// It was silent for too long.
    Idle,
    /// Its turn did not come in time.
    Queued,
    /// It ran for too long.
    Overran,
    /// Whoever started it is gone.
    Lost,
    /// Its local redirect leads to no address.
    Redirect,
    /// Too many local redirects followed each other.
    Redirects,
}

impl Fault {
    /// The status of a response that has not begun.
    fn status(self) -> u16 {
        match self {
            Fault::Refused(status) => status,
            Fault::Queued => 503,
            Fault::Idle | Fault::Overran => 504,
            _ => 502,
        }
    }

    fn why(self) -> Why {
        match self {
            Fault::Idle | Fault::Overran => Why::Idle,
            _ => Why::Answer,
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Refused(status) => write!(f, "it was not started: answered {status}"),
            Fault::Head(bad) => f.write_str(bad.explanation()),
            Fault::Short(bytes) => write!(f, "its document is {bytes} bytes shorter than its Content-Length"),
            Fault::Long => {
                f.write_str("its document is longer than its Content-Length; the rest was dropped")
            }
            Fault::Killed(signal) => write!(f, "it was killed by signal {signal} before it had answered"),
            Fault::Idle => f.write_str("it was silent for longer than `timeout`"),
            Fault::Queued => f.write_str(
                "its turn did not come within `timeout`: `concurrency` is too low, or nobody is there to run it",
            ),
            Fault::Overran => f.write_str("it ran for longer than `wall`"),
            Fault::Lost => f.write_str("whoever started it is gone"),
            Fault::Redirect => f.write_str("its local redirect leads to no valid address"),
            Fault::Redirects => f.write_str("more than 10 local redirects followed each other"),
        }
    }
}

impl Connection {
    /// Looks whether what was printed makes a head, or what followed a whole answer.
    pub(super) fn understand_answer(&mut self, scope: &mut Scope) {
        let Some(program) = &self.program else { return };
        let Output::Head(collected) = &program.output else { return self.conclude(scope) };
        // Whether it is named nph- is known once it runs.
        let Some(unparsed) = program.started else { return };
        let printed = collected.get(CHUNK_ROOM..).unwrap_or_default();
        let Head { length, answer } = match head::parse(printed, program.ended, unparsed) {
            Ok(Some(head)) => head,
            Ok(None) => return,
            Err(_) if matches!(program.exit, Some(Exit::Signal(_))) => return self.conclude(scope),
            Err(bad) => return self.fail(Fault::Head(bad), scope),
        };
        match answer {
            Answer::LocalRedirect(location) => self.redirect_locally(&location, scope),
            Answer::Unparsed { status } => self.begin_unparsed(status, scope),
            Answer::Response { status, content_length, fields } => {
                let whole = printed.len() as u64 - length as u64;
                // Asked by HEAD, many print no document: that tells nothing of the one GET would be sent.
                let told = program.ended && !(program.asked.is_head && whole == 0);
                let length_known = content_length.or(told.then_some(whole));
                if content_length.is_none() && program.ended && !program.is_over() {
                    return;
                }
                if program.ended && content_length.is_none() && program.is_killed() {
                    return self.conclude(scope);
                }
                if let Some(rest) = content_length.and_then(|length| length.checked_sub(whole))
                    && program.ended
                    && rest > 0
                    && !head::drops_content(program.asked.is_head, status)
                {
                    return self.fail(Fault::Short(rest), scope);
                }
                self.begin_document(length, status, length_known, &fields, scope);
            }
        }
    }

    fn begin_document(
        &mut self,
        head_length: usize,
        status: u16,
        length: Option<u64>,
        printed_fields: &[u8],
        scope: &mut Scope,
    ) {
        let Some(mut program) = self.program.take() else { return };
        let asked = &program.asked;
        let mut ending = self.ending_of(&program, scope);
        let mut fields = Vec::with_capacity(printed_fields.len() + asked.fields.len() + 32);
        fields.extend_from_slice(printed_fields);
        push_missing(&mut fields, &asked.fields, printed_fields);
        let dropped = head::drops_content(asked.is_head, status);
        let output = match (length, asked.version) {
            _ if status::has_no_content(status) => Output::Dropped,
            (Some(length), _) => {
                fields.extend_from_slice(b"Content-Length: ");
                fields.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
                fields.extend_from_slice(b"\r\n");
                if dropped { Output::Dropped } else { Output::Counted(length) }
            }
            (None, Version::Http11) => {
                fields.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
                if dropped { Output::Dropped } else { Output::Chunked }
            }
            (None, Version::Http10) => {
                ending = Ending::After { outcome: Outcome::Complete, linger: true };
                if dropped { Output::Dropped } else { Output::UntilClose }
            }
        };
        let site = asked.site.clone();
        let lines: [&[u8]; 3] = [&fields, site.as_deref().unwrap_or_default(), b""];
        self.write_head(asked.version, status, lines, ending, scope);
        self.begin_passing(program.as_mut(), status, output, head_length, scope);
        self.program = Some(program);
        self.conclude(scope);
    }

    /// A program that frames its own response: it ends with the connection.
    fn begin_unparsed(&mut self, status: u16, scope: &mut Scope) {
        let Some(mut program) = self.program.take() else { return };
        self.ending = Ending::After { outcome: Outcome::Complete, linger: true };
        self.count_response(status, scope);
        self.begin_passing(program.as_mut(), status, Output::UntilClose, 0, scope);
        self.program = Some(program);
        self.conclude(scope);
    }

    /// Passes on what was collected behind the head.
    fn begin_passing(
        &mut self,
        program: &mut Program,
        status: u16,
        output: Output,
        head_length: usize,
        scope: &mut Scope,
    ) {
        if let Some(logged) = &mut program.asked.logged {
            logged.answered(status, None);
        }
        if let Output::Head(collected) = std::mem::replace(&mut program.output, output) {
            self.pass_on(program, collected, CHUNK_ROOM + head_length, scope);
        }
    }

    /// Passes on what was printed.
    pub(super) fn pass(&mut self, bytes: Vec<u8>, from: usize, scope: &mut Scope) {
        let Some(mut program) = self.program.take() else { return };
        self.pass_on(&mut program, bytes, from, scope);
        self.program = Some(program);
        self.conclude(scope);
    }

    fn pass_on(&mut self, program: &mut Program, bytes: Vec<u8>, from: usize, scope: &mut Scope) {
        let passed = program.output.pass(bytes, from, &mut self.outgoing);
        scope.buffers.give(passed.spare);
        if let Some(logged) = &mut program.asked.logged {
            logged.add_bytes(passed.sent);
        }
        program.surplus |= passed.surplus > 0;
    }

    /// Ends the exchange, if all of the answer is there or all that will ever be.
    fn conclude(&mut self, scope: &mut Scope) {
        let Some(program) = &self.program else { return };
        let fault = match program.output {
            Output::Counted(0) if program.surplus => return self.finish_program(Some(Fault::Long), scope),
            Output::Counted(0) => return self.finish_program(None, scope),
            Output::Dropped if program.ended => return self.finish_program(None, scope),
            Output::Counted(rest) if program.ended => Fault::Short(rest),
            _ if !program.ended || !program.is_over() => return,
            _ => match program.exit {
                Some(Exit::Signal(signal)) => Fault::Killed(signal),
                _ => return self.finish_program(None, scope),
            },
        };
        self.fail(fault, scope);
    }

    /// The answer is complete. The program may go on, but nobody listens any more.
    fn finish_program(&mut self, fault: Option<Fault>, scope: &mut Scope) {
        let Some(program) = self.program.take() else { return };
        self.leave_program(&program, None, fault, scope);
        program.output.end(&mut self.outgoing);
        self.logged = program.asked.logged;
        self.forget_body(program.input, program.asked.continue_due, scope);
    }

    /// Lets go of a program whose response is complete without what it still prints.
    pub(in crate::conn) fn leave_answered(&mut self, scope: &mut Scope) {
        if self.program.as_ref().is_some_and(|program| matches!(program.output, Output::Dropped)) {
            self.finish_program(None, scope);
        }
    }

    /// The answer is none, or not whole.
    pub(in crate::conn) fn fail(&mut self, fault: Fault, scope: &mut Scope) {
        let Some(program) = self.program.take() else { return };
        // What has ended, or never began, is not to be ended.
        let why = (program.exit.is_none() && !matches!(fault, Fault::Refused(_))).then(|| fault.why());
        self.leave_program(&program, why, Some(fault), scope);
        if matches!(program.output, Output::Dropped) {
            // The response is complete, and the client may be sending its next request.
            self.logged = program.asked.logged;
            return self.forget_body(program.input, program.asked.continue_due, scope);
        }
        if !program.output.is_unsent() {
            self.logged = program.asked.logged;
            return self.close(Outcome::ProgramFailed, scope);
        }
        let ending = match self.ending_of(&program, scope) {
            Ending::No if !program.input.is_complete() => {
                Ending::After { outcome: Outcome::Complete, linger: true }
            }
            ending => ending,
        };
        self.respond_in_place(*program, fault.status(), "", ending, scope);
    }

    /// Whether the connection can go on after this program's answer.
    fn ending_of(&self, program: &Program, scope: &Scope) -> Ending {
        let input = &program.input;
        let stays = (input.is_complete() || !program.asked.continue_due) && !program.asked.ends;
        match self.ending_after(program.asked.persistence, scope) {
            Ending::No if !stays => Ending::After { outcome: Outcome::Complete, linger: true },
            Ending::After { outcome, .. } if !input.is_complete() => Ending::After { outcome, linger: true },
            ending => ending,
        }
    }

    /// Drops what is left of a body that nobody reads, or else the connection.
    fn forget_body(&mut self, input: super::Input, continue_due: bool, scope: &mut Scope) {
        let (rest, memory) = input.into_rest();
        scope.buffers.give(memory);
        match rest {
            Some(_) if continue_due && self.ending == Ending::No => {
                self.ending = Ending::After { outcome: Outcome::Complete, linger: true };
            }
            rest => self.body = rest,
        }
    }

    /// Goes on as if the client had asked for another place (RFC 3875 section 6.2.2): a request for it is put
    /// before what the client sent since.
    fn redirect_locally(&mut self, location: &[u8], scope: &mut Scope) {
        let Some(program) = &self.program else { return };
        if program.asked.redirects == REDIRECTS_MAX {
            return self.fail(Fault::Redirects, scope);
        }
        let request = request_for(location, program);
        let parsed = http1::head::parse(&request, scope.settings.head_limits);
        if !matches!(parsed, Ok(Parsed::Complete { length, .. }) if length == request.len()) {
            return self.fail(Fault::Redirect, scope);
        }
        let Some(program) = self.program.take() else { return };
        self.leave_program(&program, None, None, scope);
        let ends = program.asked.ends || !program.input.is_complete();
        let Program { asked, .. } = *program;
        let (request_id, redirects) = (asked.request_id, asked.redirects + 1);
        self.detour = Some(Detour { logged: asked.logged, ends, request_id, redirects });
        let later = std::mem::replace(&mut self.input, request);
        if !ends {
            self.input.extend_from_slice(&later);
        }
        scope.buffers.give(later);
    }
}

impl Program {
    /// Whether nothing more is to be learnt of it.
    fn is_over(&self) -> bool {
        self.exit.is_some() || self.exit_overdue
    }

    fn is_killed(&self) -> bool {
        matches!(self.exit, Some(Exit::Signal(_)))
    }
}

/// A page of our own in place of an answer.
pub(super) fn refusal(status: u16, explanation: &str, is_head: bool, site: Option<Rc<[u8]>>) -> Plan {
    let mut refusal = errors::Refusal { explanation: explanation.into(), ..errors::Refusal::new(status) };
    if status == 503 {
        refusal = refusal.with("Retry-After", b"1");
    }
    let plan = refusal.page();
    let body = if is_head { PlanBody::Empty } else { plan.body };
    Plan { body, site, ..plan }
}

/// A request for another place, with the fields of the one that led here but for those about its body and
/// about what the client has already.
fn request_for(location: &[u8], program: &Program) -> Vec<u8> {
    let method: &[u8] = if program.asked.is_head { b"HEAD " } else { b"GET " };
    let version = program.asked.version.name().as_bytes();
    // Fragments are for the client alone.
    let end = location.iter().position(|&byte| byte == b'#').unwrap_or(location.len());
    let mut request = [method, &location[..end], b" ", version, b"\r\n"].concat();
    let fields = Fields::of_section(&program.asked.section).unwrap_or_default();
    for (name, value) in fields.iter() {
        use Known::{
            ContentEncoding, ContentLength, ContentType, Expect, IfMatch, IfModifiedSince, IfNoneMatch,
            IfRange, IfUnmodifiedSince, Range, Trailer, TransferEncoding,
        };
        let left_out = [
            ContentEncoding,
            ContentLength,
            ContentType,
            Expect,
            IfMatch,
            IfModifiedSince,
            IfNoneMatch,
            IfRange,
            IfUnmodifiedSince,
            Range,
            Trailer,
            TransferEncoding,
        ];
        if !Known::of(name).is_some_and(|known| left_out.contains(&known)) {
            [name, b": ", value, b"\r\n"].iter().for_each(|part| request.extend_from_slice(part));
        }
    }
    request.extend_from_slice(b"\r\n");
    request
}

/// Adds those of the operator's fields that the program has not set itself: it knows its documents better.
fn push_missing(into: &mut Vec<u8>, lines: &[u8], printed: &[u8]) {
    let printed = Fields::of_section(printed);
    let Some(lines) = Fields::of_section(lines) else { return };
    for (name, value) in lines.iter() {
        let same = |(other, _): (&[u8], &[u8])| other.eq_ignore_ascii_case(name);
        if !printed.as_ref().is_some_and(|printed| printed.iter().any(same)) {
            [name, b": ", value, b"\r\n"].iter().for_each(|part| into.extend_from_slice(part));
        }
    }
}
