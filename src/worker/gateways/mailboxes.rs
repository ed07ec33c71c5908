//! What is said to runners, and what they say: [`crate::gateway::messages`] over mailboxes that may be full, and
//! whose other end may be another process from one message to the next.

use std::collections::VecDeque;

use super::{Key, State, Worker};
use crate::conn::Event;
use crate::conn::program::{Exit, Start};
use crate::gateway::messages::{Message, StartWriter, ToRunner, ToWorker, Unfit, Why};
use crate::gateway::start::Runner;
use crate::observe::names::Counter;
use crate::ring::{Op, Ring};
use crate::sys::Errno;
use crate::sys::fds::Fd;
use crate::sys::process::Ended;
use crate::worker::tokens::Kind;

/// So many messages of a runner are taken at a time. What is left has the next wait return at once, with everybody
/// else being heard in between: a runner is no more to be trusted than what it runs.
const MESSAGES_A_TURN: usize = 64;

/// More than any message of a runner's.
const HEARD_BYTES_MAX: usize = 64;

/// A worker's end of its connection with a runner.
#[derive(Debug)]
pub(super) struct Mailbox {
    fd: Fd,
    peer: Peer,
    /// Runs whose start found no room.
    unasked: VecDeque<Key>,
    /// Other messages that found none.
    unsaid: VecDeque<Vec<u8>>,
    /// Room is waited for.
    blocked: bool,
}

/// Who is at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Peer {
    /// Somebody who has said nothing so far: what is to be asked waits.
    Awaited,
    /// A runner of this epoch.
    Here(u64),
    /// Nobody: what is to be asked is refused.
    Gone,
}

/// A run that a runner was asked for.
struct Asked {
    key: Key,
    connection: Option<Key>,
    /// Whether it was said to run.
    started: bool,
}

impl Mailbox {
    pub(super) fn new(fd: Fd) -> Self {
        let (unasked, unsaid) = (VecDeque::new(), VecDeque::new());
        Self { fd, peer: Peer::Awaited, unasked, unsaid, blocked: false }
    }

    /// A run is not to be asked for any more.
    pub(super) fn forget(&mut self, run: Key) {
        self.unasked.retain(|other| *other != run);
    }

    fn say(&mut self, message: &Message<ToRunner<'_>>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.unsaid.push_back(bytes);
    }

    /// Whether a request would find room and a reader, for all that is known.
    fn is_open(&self) -> bool {
        !self.blocked && matches!(self.peer, Peer::Here(_))
    }
}

impl<R: Ring> Worker<R> {
    /// Says hello, and listens.
    pub(in crate::worker) fn greet_runners(&mut self) {
        let Some(gateways) = &mut self.gateways else { return };
        let hello = Message { from: gateways.epoch, to: 0, what: ToRunner::Hello };
        gateways.mailboxes.iter_mut().flatten().for_each(|mailbox| mailbox.say(&hello));
        for runner in Runner::ALL {
            self.hear_of(runner);
            self.post(runner);
        }
    }

    /// A runner has said something.
    pub(in crate::worker) fn runner_says(&mut self, number: u32) {
        let Some(&runner) = Runner::ALL.get(number as usize) else { return };
        let Some(fd) = self.mailbox(runner).map(|mailbox| mailbox.fd) else { return };
        let mut bytes = [0; HEARD_BYTES_MAX];
        for _ in 0..MESSAGES_A_TURN {
            match self.ring.note(fd, &mut bytes) {
                // The supervisor keeps the other end too, unless it has become another program since: it kept
                // only what its new generation needs. An empty packet looks the same, and says nothing.
                Ok((0, _)) if self.ring.has_ended(fd) => return self.runner_is_gone(runner),
                Ok((length, _)) => match Message::<ToWorker>::decode(&bytes[..length]) {
                    Some(message) => self.heard(runner, message),
                    None if self.may_complain() => {
                        tracing::warn!("the {} said something unknown", runner.name());
                    }
                    None => {}
                },
                Err(_) => break,
            }
        }
        self.hear_of(runner);
    }

    /// A mailbox may have room again.
    pub(in crate::worker) fn runner_hears(&mut self, number: u32) {
        let Some(&runner) = Runner::ALL.get(number as usize) else { return };
        if let Some(mailbox) = self.mailbox(runner) {
            mailbox.blocked = false;
        }
        self.post(runner);
    }

    /// Asks for a run, at once or when there is room. Where that cannot be, the status to answer with: the run
    /// is to be forgotten.
    pub(super) fn ask(&mut self, key: Key) -> Result<(), u16> {
        let Some(gateways) = &mut self.gateways else { return Ok(()) };
        let Some(runner) = gateways.run(key).map(|run| run.runner) else { return Ok(()) };
        let Some(mailbox) = gateways.mailbox(runner) else { return Err(500) };
        if mailbox.peer == Peer::Gone {
            return Err(503);
        }
        if !mailbox.is_open() || !mailbox.unsaid.is_empty() {
            mailbox.unasked.push_back(key);
            return Ok(());
        }
        match self.send_start(key) {
            Ok(()) => Ok(()),
            Err(Errno::AGAIN) => {
                if let Some(mailbox) = self.mailbox(runner) {
                    mailbox.unasked.push_back(key);
                }
                self.await_room(runner);
                Ok(())
            }
            Err(errno) => {
                if self.may_complain() {
                    tracing::warn!(%errno, "cannot ask the {} for a program", runner.name());
                }
                Err(if errno == Errno::MSGSIZE { 431 } else { 500 })
            }
        }
    }

    /// Has a program ended.
    pub(super) fn say_end(&mut self, runner: Runner, number: u64, why: Why) {
        let Some(from) = self.gateways.as_ref().map(|gateways| gateways.epoch) else { return };
        let Some(mailbox) = self.mailbox(runner) else { return };
        let Peer::Here(to) = mailbox.peer else { return };
        mailbox.say(&Message { from, to, what: ToRunner::End { id: number, why } });
        self.post(runner);
    }

    fn mailbox(&mut self, runner: Runner) -> Option<&mut Mailbox> {
        self.gateways.as_mut()?.mailbox(runner)
    }

    fn hear_of(&mut self, runner: Runner) {
        if let Some(fd) = self.mailbox(runner).map(|mailbox| mailbox.fd) {
            self.ring.push(Kind::RunnerSays.token(key_of(runner)), Op::Readable { fd });
        }
    }

    fn await_room(&mut self, runner: Runner) {
        if let Some(mailbox) = self.mailbox(runner).filter(|mailbox| !mailbox.blocked) {
            mailbox.blocked = true;
            let socket = mailbox.fd;
            self.ring.push(Kind::RunnerHears.token(key_of(runner)), Op::Writable { socket });
        }
    }

    /// Says what waits to be said, as long as there is room.
    fn post(&mut self, runner: Runner) {
        while let Some(mailbox) = self.gateways.as_mut().and_then(|own| own.mailbox(runner))
            && !mailbox.blocked
            && let Some(message) = mailbox.unsaid.front()
        {
            match self.ring.send_note(mailbox.fd, message, &[]) {
                Err(Errno::AGAIN) => return self.await_room(runner),
                // Nobody reads: what follows from it is noticed elsewhere.
                Ok(()) | Err(_) => drop(mailbox.unsaid.pop_front()),
            }
        }
        while let Some(gateways) = self.gateways.as_mut()
            && let Some(mailbox) = gateways.mailbox(runner)
            && mailbox.is_open()
            && let Some(key) = mailbox.unasked.pop_front()
        {
            let connection = gateways.run(key).and_then(|run| run.connection);
            if let Err(status) = self.ask(key) {
                self.forget_run(key);
                self.refuse_later(connection, status);
            }
        }
    }

    fn send_start(&mut self, key: Key) -> Result<(), Errno> {
        let Some(gateways) = &mut self.gateways else { return Ok(()) };
        let mut memory = std::mem::take(&mut gateways.message);
        let sent = self.write_and_send(key, &mut memory);
        if let Some(gateways) = &mut self.gateways {
            gateways.message = memory;
        }
        sent
    }

    fn write_and_send(&mut self, key: Key, memory: &mut Vec<u8>) -> Result<(), Errno> {
        let Some(gateways) = &mut self.gateways else { return Ok(()) };
        let epoch = gateways.epoch;
        let Some(runner) = gateways.run(key).map(|run| run.runner) else { return Ok(()) };
        let Some(&mut Mailbox { fd, peer: Peer::Here(peer), .. }) = gateways.mailbox(runner) else {
            return Ok(());
        };
        let Some(run) = gateways.run(key) else { return Ok(()) };
        let State::Admitted(start) = &run.state else { return Ok(()) };
        write_start(memory, (epoch, peer), run.number, start).map_err(|_| Errno::MSGSIZE)?;
        let theirs: Vec<Fd> = run.theirs.iter().map(|end| end.fd()).collect();
        self.ring.send_note(fd, memory, &theirs)?;
        run.state = State::Asked;
        run.theirs.clear();
        self.shared.counters.add(Counter::ProgramsAsked, 1);
        Ok(())
    }

    fn heard(&mut self, runner: Runner, message: Message<ToWorker>) {
        let Some(gateways) = &mut self.gateways else { return };
        if message.what != ToWorker::Hello && message.to != gateways.epoch {
            return;
        }
        let Some(mailbox) = gateways.mailbox(runner) else { return };
        let before = std::mem::replace(&mut mailbox.peer, Peer::Here(message.from));
        if before != Peer::Here(message.from) {
            if matches!(before, Peer::Here(_)) {
                self.lose_runs(runner);
            }
            self.post(runner);
        }
        let (ToWorker::Started { id, .. }
        | ToWorker::Refused { id, .. }
        | ToWorker::Exited { id, .. }
        | ToWorker::Ran { id, .. }) = message.what
        else {
            return;
        };
        let Some(Asked { key, connection, started }) = self.asked(runner, id) else { return };
        match message.what {
            ToWorker::Started { pid, nph, .. } if !started => {
                self.is_started(key, pid);
                self.deliver_to(connection, Event::ProgramStarted { unparsed: nph });
                self.await_output(key);
            }
            ToWorker::Refused { why, .. } if !started => {
                self.deliver_to(connection, Event::ProgramRefused(why.status()));
                self.forget_run(key);
                self.count_programs();
            }
            ToWorker::Exited { how, overran, .. } => self.run_exited(key, exit(how, overran)),
            ToWorker::Ran { pid, how, overran, .. } if !started => {
                // Its output is read with its end.
                self.deliver_to(connection, Event::ProgramStarted { unparsed: false });
                self.is_started(key, pid);
                self.run_exited(key, exit(how, overran));
            }
            _ => {}
        }
    }

    /// Nobody answers any more.
    fn runner_is_gone(&mut self, runner: Runner) {
        let Some(mailbox) = self.mailbox(runner) else { return };
        mailbox.peer = Peer::Gone;
        let unasked = std::mem::take(&mut mailbox.unasked);
        self.lose_runs(runner);
        for key in unasked {
            let connection = self.gateways.as_mut().and_then(|own| own.run(key)?.connection);
            self.forget_run(key);
            self.refuse_later(connection, 503);
        }
    }

    /// What a runner that is no more was asked for has ended with it.
    fn lose_runs(&mut self, runner: Runner) {
        let Some(asked) = self.gateways.as_ref().map(|gateways| gateways.asked(runner)) else { return };
        if self.may_complain() {
            tracing::warn!("the {} has died, with {} that it ran", runner.name(), asked.len());
        }
        asked.into_iter().for_each(|key| self.run_exited(key, Exit::Lost));
    }

    /// The run that a runner was asked for by this number, until it has said the last word on it.
    fn asked(&mut self, runner: Runner, number: u64) -> Option<Asked> {
        let gateways = self.gateways.as_mut()?;
        let key = *gateways.by_number.get(&number)?;
        let run = gateways.run(key)?;
        let is_its = run.runner == runner && matches!(run.state, State::Asked);
        is_its.then_some(Asked { key, connection: run.connection, started: run.pid.is_some() })
    }

    fn is_started(&mut self, key: Key, pid: u32) {
        if let Some(run) = self.gateways.as_mut().and_then(|gateways| gateways.run(key)) {
            run.pid = Some(pid);
        }
    }

    fn deliver_to(&mut self, connection: Option<Key>, event: Event) {
        if let Some(connection) = connection {
            self.deliver(connection, event);
        }
    }
}

/// Tokens of a mailbox belong to no run.
fn key_of(runner: Runner) -> Key {
    Key { slot: runner as u32, reuse: 0 }
}

fn exit(how: Ended, overran: bool) -> Exit {
    match how {
        _ if overran => Exit::Overran,
        Ended::Exited(code) => Exit::Code(code),
        Ended::Killed(signal) => Exit::Signal(signal),
    }
}

fn write_start(into: &mut Vec<u8>, epochs: (u64, u64), number: u64, start: &Start) -> Result<(), Unfit> {
    let mut writer = StartWriter::new(into, epochs, number, start.mount, start.input, &start.path)?;
    for word in &start.arguments {
        writer.argument(word)?;
    }
    for (name, value) in start.variables.iter() {
        writer.variable(name, value)?;
    }
    writer.finish();
    Ok(())
}
