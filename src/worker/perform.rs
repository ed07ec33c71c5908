//! Carrying out what a connection wants done.

use super::Worker;
use super::slots::Key;
use super::tokens::Kind;
use crate::conn::outcome::Outcome;
use crate::conn::{Action, Event};
use crate::observe::names::Counter;
use crate::ring::{Done, Job, Op, Payload, Ring};

/// Passwords that may wait for the helper thread. Each takes some tens of milliseconds, so that the
/// last one waits for seconds; guessing must not make it longer.
const VERIFYING_MAX: u32 = 64;

impl<R: Ring> Worker<R> {
    /// Carries out the actions left by the last event, and those their results lead to.
    pub(super) fn perform(&mut self, key: Key) {
        let mut batch = std::mem::take(&mut self.actions);
        while !batch.is_empty() {
            for action in batch.drain(..) {
                if let Some(event) = self.act(key, action)
                    && let Some(live) = self.slots.get(key)
                {
                    live.connection.handle(event, &mut self.shared.scope(&mut self.actions));
                }
            }
            std::mem::swap(&mut batch, &mut self.actions);
        }
        self.actions = batch;
        let deadline = self.slots.get(key).and_then(|live| live.connection.deadline());
        if self.slots.get(key).is_some() {
            self.timers.set(key.slot, deadline.map(|deadline| deadline.at));
        }
    }

    /// Carries out one action; an event where its result is known at once.
    fn act(&mut self, key: Key, action: Action) -> Option<Event<'static>> {
        let live = self.slots.get(key)?;
        let socket = live.socket.fd();
        match action {
            Action::Receive => self.arm_receive(key),
            Action::Send { head, from, body, more } => {
                live.in_flight += 1;
                self.ring.push(Kind::Send.token(key), Op::Send { socket, head, from, body, more });
            }
            Action::AwaitWritable => {
                live.in_flight += 1;
                self.ring.push(Kind::Writable.token(key), Op::Writable { socket });
            }
            Action::Transfer { file, range, facts, direct, last } => {
                return self.transfer(key, file, range, facts, direct, last);
            }
            Action::Lookup(question) => {
                return self.look_up(question, key).map(|(question, entry)| Event::Found(question, entry));
            }
            Action::Verify(_) if self.verifying >= VERIFYING_MAX => return Some(Event::Overloaded),
            Action::Verify(credential) => {
                self.verifying += 1;
                let job = Job::VerifyPassword {
                    password: credential.password.clone(),
                    hash: credential.hash.clone(),
                };
                live.verifying = Some(credential);
                self.ring.push(Kind::Verify.token(key), Op::Delegate(job));
            }
            Action::StartProgram(start) => return self.start_program(key, start),
            Action::Relay(bytes) => return self.relay(key, bytes),
            Action::EndInput => self.end_input(key),
            Action::ReadOutput => return self.read_output(key),
            Action::LeaveProgram { why, fault } => self.leave_program(key, why, fault),
            Action::InstallTls(info) => {
                let result = self.ring.install_tls(socket, &info);
                if let Err(errno) = result {
                    tracing::debug!(%errno, "the kernel does not take over TLS");
                }
                return Some(Event::KernelTls(result));
            }
            Action::SendRecord { content_type, payload } => {
                return Some(Event::RecordSent(self.ring.send_record(socket, content_type, &payload)));
            }
            Action::ShutdownSend => self.ring.shutdown(socket, false),
            Action::Close(outcome) => self.close(key, outcome),
        }
        None
    }

    pub(super) fn arm_receive(&mut self, key: Key) {
        let Some(live) = self.slots.get(key) else { return };
        live.in_flight += 1;
        let socket = live.socket.fd();
        self.ring.push(Kind::Receive.token(key), Op::Receive { socket });
    }

    pub(super) fn verified(&mut self, key: Key, payload: Payload) {
        self.verifying -= 1;
        let Payload::Done(Done::Verified(right)) = payload else { return };
        let Some(credential) = self.slots.get(key).and_then(|live| live.verifying.take()) else { return };
        self.shared.files.verified(credential.key, right, self.shared.clock);
        self.deliver(key, Event::Verified);
    }

    /// Ends a connection. Operations still with the kernel hold the socket open, so it is shut down
    /// first; their completions find nobody.
    fn close(&mut self, key: Key, outcome: Outcome) {
        let Some(live) = self.slots.remove(key) else { return };
        debug_assert!(live.run.is_none(), "a connection lets go of its program before it closes");
        if live.in_flight > 0 {
            self.ring.shutdown(live.socket.fd(), true);
        }
        self.timers.set(key.slot, None);
        self.listening.forget(live.counted);
        self.shared.counters.set(Counter::Active, self.slots.count() as u64);
        if outcome.is_truncation() {
            self.shared.counters.add(Counter::Cut, 1);
        }
        if outcome.is_timeout() {
            self.shared.counters.add(Counter::TimedOut, 1);
        }
        tracing::debug!(slot = key.slot, ?outcome, "connection ended");
    }
}
