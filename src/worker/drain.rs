//! Retiring: a successor serves what comes, this worker finishes what it has.
//!
//! A client may send its next request in the very moment an idle connection is closed, and would see
//! a failure. So a retiring worker answers one more request on each connection, with
//! `Connection: close`, and closes only those that stay idle for a while. A worker that stops without
//! a successor waits a shorter while: who asked in that moment is answered, and a restart is not held up.

use std::time::{Duration, Instant};

use super::slots::Key;
use super::tokens::Kind;
use super::{Life, Worker};
use crate::conn::Event;
use crate::ring::{Op, Ring};
use crate::worker::start::Order;

/// How long an idle connection may stay with a retiring worker.
const IDLE_GRACE: Duration = Duration::from_secs(5);

/// The same for a worker that has no successor; and how often connections that have become idle since are
/// closed then.
const SWEEP_EVERY: Duration = Duration::from_millis(250);

/// How far retiring has got.
#[derive(Debug)]
pub struct Retirement {
    drain: Duration,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Serving,
    Retiring { idle_until: Instant, until: Instant },
    Over,
}

impl Retirement {
    /// A worker that serves, and will be given `drain` to finish.
    pub fn new(drain: Duration) -> Self {
        Self { drain, state: State::Serving }
    }

    /// When something is to be done about it.
    pub fn wakes_at(&self) -> Option<Instant> {
        match self.state {
            State::Retiring { idle_until, until } => Some(idle_until.min(until)),
            _ => None,
        }
    }
}

impl<R: Ring> Worker<R> {
    /// Asks to be told when the supervisor says something.
    pub(super) fn watch_channel(&mut self) {
        let key = Key { slot: 0, reuse: 0 };
        self.ring.push(Kind::Channel.token(key), Op::Readable { fd: self.channel });
    }

    /// Reads what the supervisor says.
    pub(super) fn notes(&mut self) {
        let mut note = [0; 64];
        while let Ok((length, descriptor)) = self.ring.note(self.channel, &mut note) {
            match Order::from_note(&note[..length]) {
                Some(Order::Drain) => self.retire(false),
                Some(Order::Stop) => self.retire(true),
                Some(Order::Log) => self.log.reopen(descriptor),
                None if length == 0 => {
                    if !matches!(self.retirement.state, State::Retiring { .. }) {
                        tracing::error!("the supervisor is gone; stopping");
                    }
                    return self.retire(true);
                }
                None => tracing::warn!("the supervisor said something unknown"),
            }
        }
        self.watch_channel();
    }

    /// Begins to retire. `now`: nobody succeeds this worker.
    fn retire(&mut self, now: bool) {
        let clock = self.shared.clock.now;
        let grace = if now { SWEEP_EVERY } else { IDLE_GRACE.min(self.retirement.drain / 2) };
        let idle_until = clock + grace;
        let until = match self.retirement.state {
            State::Retiring { until, .. } => until,
            _ => clock + self.retirement.drain,
        };
        self.retirement.state = State::Retiring { idle_until, until };
        self.listening.close();
        self.listen();
        for key in self.slots.keys() {
            self.deliver(key, Event::Drain { now: false });
        }
    }

    /// Closes what stayed idle, and in the end everything.
    pub(super) fn retire_idle(&mut self) {
        let State::Retiring { idle_until, until } = &mut self.retirement.state else { return };
        let now = self.shared.clock.now;
        if *until <= now {
            if self.slots.count() > 0 {
                tracing::warn!(connections = self.slots.count(), "drain time is over; closing what is left");
            }
            self.retirement.state = State::Over;
            for key in self.slots.keys() {
                self.deliver(key, Event::Stop);
            }
        } else if *idle_until <= now {
            *idle_until = now + SWEEP_EVERY;
            for key in self.slots.keys() {
                self.deliver(key, Event::Drain { now: true });
            }
        }
    }

    pub(super) fn life(&mut self) -> Life {
        let finished = match self.retirement.state {
            State::Serving => false,
            State::Retiring { .. } => self.slots.count() == 0 && self.listening.is_over(),
            State::Over => true,
        };
        if finished && self.log_is_written() { Life::Over } else { Life::On }
    }
}
