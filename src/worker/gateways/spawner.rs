//! What is said to the spawner, and what it says: [`crate::gateway::messages`] over a mailbox that may be
//! full, and whose other end may be another process from one message to the next.

use super::{Gateways, Key, State, Worker};
use crate::conn::Event;
use crate::conn::program::{Exit, Start};
use crate::gateway::messages::{Message, StartWriter, ToSpawner, ToWorker, Unfit, Why};
use crate::observe::names::Counter;
use crate::ring::{Op, Ring};
use crate::sys::Errno;
use crate::sys::fds::Fd;
use crate::sys::process::Ended;
use crate::worker::tokens::Kind;

/// More than any message of the spawner's.
const HEARD_BYTES_MAX: usize = 64;

/// Tokens of the mailbox belong to no run.
const MAILBOX: Key = Key { slot: 0, reuse: 0 };

impl<R: Ring> Worker<R> {
    /// Says hello, and listens.
    pub(in crate::worker) fn greet_spawner(&mut self) {
        let Some(gateways) = &mut self.gateways else { return };
        let hello = Message { from: gateways.epoch, to: 0, what: ToSpawner::Hello };
        gateways.say(&hello);
        self.hear_of_spawner();
        self.post();
    }

    /// The spawner has said something.
    pub(in crate::worker) fn spawner_says(&mut self) {
        let mut bytes = [0; HEARD_BYTES_MAX];
        while let Some(mailbox) = self.gateways.as_ref().map(|gateways| gateways.mailbox) {
            match self.ring.note(mailbox, &mut bytes) {
                // The supervisor keeps the other end: it is gone, which its own channel says as well.
                Ok((0, _)) => return,
                Ok((length, _)) => match Message::<ToWorker>::decode(&bytes[..length]) {
                    Some(message) => self.heard(message),
                    None => tracing::warn!("the spawner said something unknown"),
                },
                Err(_) => break,
            }
        }
        self.hear_of_spawner();
    }

    /// The mailbox may have room again.
    pub(in crate::worker) fn spawner_hears(&mut self) {
        if let Some(gateways) = &mut self.gateways {
            gateways.blocked = false;
        }
        self.post();
    }

    /// Asks for a run, at once or when there is room. Where that cannot be, the status to answer with: the run
    /// is to be forgotten.
    pub(super) fn ask(&mut self, key: Key) -> Result<(), u16> {
        let Some(gateways) = &mut self.gateways else { return Ok(()) };
        if gateways.blocked || gateways.spawner.is_none() || !gateways.unsaid.is_empty() {
            gateways.unasked.push_back(key);
            return Ok(());
        }
        match self.send_start(key) {
            Ok(()) => Ok(()),
            Err(Errno::AGAIN) => {
                self.gateways.iter_mut().for_each(|gateways| gateways.unasked.push_back(key));
                self.await_room();
                Ok(())
            }
            Err(errno) => {
                if self.may_complain() {
                    tracing::warn!(%errno, "cannot ask the spawner for a program");
                }
                Err(if errno == Errno::MSGSIZE { 431 } else { 500 })
            }
        }
    }

    /// Has a program ended.
    pub(super) fn say_end(&mut self, number: u64, why: Why) {
        let Some(gateways) = &mut self.gateways else { return };
        let Some(to) = gateways.spawner else { return };
        let end = Message { from: gateways.epoch, to, what: ToSpawner::End { id: number, why } };
        gateways.say(&end);
        self.post();
    }

    fn hear_of_spawner(&mut self) {
        if let Some(gateways) = &self.gateways {
            self.ring.push(Kind::SpawnerSays.token(MAILBOX), Op::Readable { fd: gateways.mailbox });
        }
    }

    fn await_room(&mut self) {
        if let Some(gateways) = self.gateways.as_mut().filter(|gateways| !gateways.blocked) {
            gateways.blocked = true;
            let socket = gateways.mailbox;
            self.ring.push(Kind::SpawnerHears.token(MAILBOX), Op::Writable { socket });
        }
    }

    /// Says what waits to be said, as long as there is room.
    fn post(&mut self) {
        while let Some(gateways) = self.gateways.as_mut().filter(|gateways| !gateways.blocked) {
            let Some(message) = gateways.unsaid.front() else { break };
            match self.ring.send_note(gateways.mailbox, message, &[]) {
                Err(Errno::AGAIN) => return self.await_room(),
                // Nobody reads: what follows from it is noticed elsewhere.
                Ok(()) | Err(_) => drop(gateways.unsaid.pop_front()),
            }
        }
        loop {
            let Some(gateways) = self.gateways.as_mut() else { return };
            if gateways.blocked || gateways.spawner.is_none() {
                return;
            }
            let Some(key) = gateways.unasked.pop_front() else { return };
            let connection = gateways.run(key).and_then(|run| run.connection);
            if let Err(status) = self.ask(key) {
                self.forget_run(key);
                self.refuse_later(connection, status);
            }
        }
    }

    fn send_start(&mut self, key: Key) -> Result<(), Errno> {
        let Some(gateways) = &mut self.gateways else { return Ok(()) };
        let (epoch, spawner, mailbox) = (gateways.epoch, gateways.spawner, gateways.mailbox);
        let mut memory = std::mem::take(&mut gateways.message);
        let Some(run) = gateways.run(key) else { return Ok(()) };
        let (number, theirs) = (run.number, run.theirs.iter().map(|end| end.fd()).collect::<Vec<Fd>>());
        let State::Admitted(start) = &run.state else { return Ok(()) };
        let written = write_start(&mut memory, (epoch, spawner.unwrap_or_default()), number, start);
        let sent = match written {
            Ok(()) => self.ring.send_note(mailbox, &memory, &theirs),
            Err(_) => Err(Errno::MSGSIZE),
        };
        if sent.is_ok() {
            run.state = State::Asked;
            run.theirs.clear();
            self.shared.counters.add(Counter::ProgramsAsked, 1);
        }
        if let Some(gateways) = &mut self.gateways {
            gateways.message = memory;
        }
        sent
    }

    fn heard(&mut self, message: Message<ToWorker>) {
        let Some(gateways) = &mut self.gateways else { return };
        if message.what != ToWorker::Hello && message.to != gateways.epoch {
            return;
        }
        let before = gateways.spawner.replace(message.from);
        if before != Some(message.from) {
            if before.is_some() {
                tracing::warn!("the spawner is another: what it ran has ended");
                for key in gateways.asked() {
                    self.run_exited(key, Exit::Lost);
                }
            }
            self.post();
        }
        let (ToWorker::Started { id, .. } | ToWorker::Refused { id, .. } | ToWorker::Exited { id, .. }) =
            message.what
        else {
            return;
        };
        let Some(gateways) = &mut self.gateways else { return };
        let Some(&key) = gateways.by_number.get(&id) else { return };
        let Some(run) = gateways.run(key) else { return };
        let connection = run.connection;
        match message.what {
            ToWorker::Started { pid, nph, .. } => {
                run.pid = Some(pid);
                if let Some(connection) = connection {
                    self.deliver(connection, Event::ProgramStarted { unparsed: nph });
                }
            }
            ToWorker::Refused { why, .. } => {
                if let Some(connection) = connection {
                    self.deliver(connection, Event::ProgramRefused(why.status()));
                }
                self.forget_run(key);
                self.count_programs();
            }
            ToWorker::Exited { how, overran, .. } => {
                let exit = match how {
                    _ if overran => Exit::Overran,
                    Ended::Exited(code) => Exit::Code(code),
                    Ended::Killed(signal) => Exit::Signal(signal),
                };
                self.run_exited(key, exit);
            }
            ToWorker::Hello => {}
        }
    }
}

impl Gateways {
    fn say(&mut self, message: &Message<ToSpawner<'_>>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.unsaid.push_back(bytes);
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
