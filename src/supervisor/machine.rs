//! The policy of supervision: what happened and when, in; what to do, out. Pure: processes, signals and
//! the clock are the business of the loop around it.
//!
//! A **generation** is one set of workers made from one reading of the configuration:
//!
//! ```text
//!            all ready               a younger one took over, or stop
//!   Coming ------------> Current ----------------------------------> Leaving ----> gone
//!      |                                                                ^  all its workers ended
//!      +----------------------------------------------------------------+
//!        one cannot serve, or stop
//! ```
//!
//! A **worker** of it, and what its death means (the columns are the role of its generation):
//!
//! ```text
//!   state      left by                     Coming             Current      Leaving
//!   Waiting    the back-off is over        Starting           Starting     -
//!   Starting   it is ready                 Serving            Serving      -
//!              it died                     discard (1)        again        gone
//!              it is not ready in time     discard            kill         -
//!   Serving    it died                     again              again        -
//!   Draining   it died                     -                  -            gone
//!              its time is over            -                  -            kill
//!   Killed     it died                     -                  again        gone
//!
//!   again: Waiting, at once the first time, then longer and longer.
//!   discard: the generation leaves, and the one before goes on; where there is none, we give up.
//!   (1) unless by SIGKILL, which is somebody's hand and says nothing of the generation: again.
//! ```

use std::time::{Duration, Instant};

use super::lives::Lives;
use crate::sys::process::Ended;

/// A worker that did not say that it is ready for so long never will.
pub const READY_WITHIN: Duration = Duration::from_secs(30);

/// A worker ends by itself when its drain is over; one that has not by this much later hangs.
pub const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// The longest back-off: connections wait in the listener meanwhile, and clients wait a few seconds.
const BACK_OFF_MAX: Duration = Duration::from_secs(3);

/// Generations that may be draining at a time. Reloads beyond wait, so that somebody who reloads in a
/// loop while long downloads run does not fill the machine with processes.
const LEAVING_MAX: usize = 8;

/// Names a worker: there is at most one process of this name at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct WorkerId {
    /// Its generation.
    pub generation: u64,
    /// Its index in there.
    pub index: u32,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A configuration was read, checked, and its listeners are open: begin a generation. Only when
    /// [`Machine::may_begin`].
    Begin {
        /// How many workers.
        workers: u32,
        /// How long they may drain.
        drain: Duration,
    },
    /// A worker said that it serves.
    Ready(WorkerId),
    /// A worker's process ended, or could not be made.
    Died {
        /// Which.
        worker: WorkerId,
        /// How it ended; `None` when it could not be forked.
        ended: Option<Ended>,
        /// What it said before, or why it could not be forked.
        reason: Option<String>,
    },
    /// Somebody wants us to stop; a second time: at once.
    Stop,
    /// Time went by.
    Tick,
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Fork this worker.
    Fork(WorkerId),
    /// Tell this worker to drain: another generation serves.
    Drain(WorkerId),
    /// Tell this worker to stop: nobody else will serve.
    Stop(WorkerId),
    /// Kill this worker.
    Kill(WorkerId),
    /// Say that a worker died, the how-manieth time in this generation, and when it is forked again.
    Mourn {
        /// Which.
        worker: WorkerId,
        /// How, in words.
        how: String,
        /// How often.
        times: u32,
        /// `None`: not at all.
        again_in: Option<Duration>,
    },
    /// All workers of the generation serve: it is the current one now.
    Promoted(u64),
    /// The generation will not serve.
    Discarded {
        /// Which.
        generation: u64,
        /// Why.
        reason: String,
    },
    /// No process of the generation is left.
    Gone(u64),
    /// No process at all is left, and none will be: end. `Err`: why we gave up.
    Exit(Result<(), String>),
}

/// What a generation is to the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Not all of its workers were ready yet.
    Coming,
    /// It serves.
    Current,
    /// Its workers drain.
    Leaving,
}

/// Where a worker is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// To be forked then.
    Waiting(Instant),
    /// Forked then, and not ready yet.
    Starting(Instant),
    /// Ready.
    Serving,
    /// Told to drain; killed then.
    Draining(Instant),
    /// Killed, but not dead yet.
    Killed,
    /// Ended for good.
    Gone,
}

/// One set of workers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Generation {
    /// Its number.
    pub id: u64,
    /// What it is to the others.
    pub role: Role,
    /// Its workers, by index.
    pub workers: Vec<Worker>,
    drain: Duration,
}

/// A worker, whatever process it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Worker {
    /// Where it is in its life.
    pub state: State,
    /// Its processes so far.
    pub lives: Lives,
}

/// All generations there are.
#[derive(Debug, Default)]
pub struct Machine {
    generations: Vec<Generation>,
    begun: u64,
    stopping: bool,
    gave_up: Option<String>,
    exited: bool,
    restarts: u64,
}

impl Machine {
    /// Takes in what happened and appends what to do.
    pub fn handle(&mut self, event: Event, now: Instant, actions: &mut Vec<Action>) {
        match event {
            Event::Begin { workers, drain } => self.begin(workers, drain, now, actions),
            Event::Ready(worker) => self.ready(worker, now, actions),
            Event::Died { worker, ended, reason } => self.died(worker, ended, reason, now, actions),
            Event::Stop => self.stop(now, actions),
            Event::Tick => self.tick(now, actions),
        }
        self.bury(actions);
    }

    /// When a [`Event::Tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let workers = self.generations.iter().flat_map(|generation| &generation.workers);
        workers.filter_map(|worker| worker.state.deadline()).min()
    }

    /// Whether a generation may begin now; if not, ask again after any event.
    pub fn may_begin(&self) -> bool {
        let count = |role| self.generations.iter().filter(|generation| generation.role == role).count();
        !self.stopping && count(Role::Coming) == 0 && count(Role::Leaving) < LEAVING_MAX
    }

    /// The number of the generation that would begin next.
    pub fn next(&self) -> u64 {
        self.begun + 1
    }

    /// Takes over the living workers of the program that this one has replaced, before anything else.
    /// Those of its current generation serve until one of ours does.
    pub fn inherit(&mut self, workers: &[(WorkerId, Role)], drain: Duration, now: Instant) {
        for &(id, role) in workers {
            self.begun = self.begun.max(id.generation);
            let position = self.generations.iter().position(|generation| generation.id == id.generation);
            let position = position.unwrap_or_else(|| {
                self.generations.push(Generation { id: id.generation, role, workers: Vec::new(), drain });
                self.generations.len() - 1
            });
            let workers = &mut self.generations[position].workers;
            let gone = Worker { state: State::Gone, lives: Lives::new(now) };
            workers.resize(workers.len().max(id.index as usize + 1), gone);
            workers[id.index as usize].state = match role {
                Role::Leaving => State::Draining(now + drain + DRAIN_GRACE),
                Role::Coming | Role::Current => State::Serving,
            };
        }
    }

    /// All generations, oldest first.
    pub fn generations(&self) -> &[Generation] {
        &self.generations
    }

    /// The generation that serves.
    pub fn current(&self) -> Option<&Generation> {
        self.generations.iter().find(|generation| generation.role == Role::Current)
    }

    /// Whether we are on the way out.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// How many workers died and were forked again, in all generations.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    fn begin(&mut self, workers: u32, drain: Duration, now: Instant, actions: &mut Vec<Action>) {
        assert!(self.may_begin() && workers > 0, "a generation begins when it may, and not empty");
        self.begun += 1;
        let worker = Worker { state: State::Starting(now), lives: Lives::new(now) };
        let id = self.begun;
        let workers: Vec<_> = (0..workers).map(|_| worker.clone()).collect();
        actions
            .extend((0..).zip(&workers).map(|(index, _)| Action::Fork(WorkerId { generation: id, index })));
        self.generations.push(Generation { id, role: Role::Coming, workers, drain });
    }

    fn ready(&mut self, id: WorkerId, now: Instant, actions: &mut Vec<Action>) {
        let Some(generation) = self.generation(id.generation) else { return };
        let role = generation.role;
        let Some(worker) = generation.workers.get_mut(id.index as usize) else { return };
        if !matches!((role, worker.state), (Role::Coming | Role::Current, State::Starting(_))) {
            return;
        }
        worker.state = State::Serving;
        let all_serve = generation.workers.iter().all(|worker| worker.state == State::Serving);
        if role == Role::Coming && all_serve {
            for generation in &mut self.generations {
                match generation.role {
                    Role::Current => generation.leave(now, actions),
                    Role::Coming => {
                        generation.role = Role::Current;
                        actions.push(Action::Promoted(generation.id));
                    }
                    Role::Leaving => {}
                }
            }
        }
    }

    fn died(
        &mut self,
        id: WorkerId,
        ended: Option<Ended>,
        reason: Option<String>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let Some(generation) = self.generation(id.generation) else { return };
        let role = generation.role;
        let Some(worker) = generation.workers.get_mut(id.index as usize) else { return };
        let by_kill = ended.is_some_and(Ended::is_by_kill);
        let how = in_words(ended, reason.as_deref());
        match (role, worker.state) {
            (_, State::Gone | State::Waiting(_)) => {}
            (Role::Leaving, _) => {
                worker.state = State::Gone;
                if ended != Some(Ended::Exited(0)) {
                    let times = worker.lives.restarts + 1;
                    actions.push(Action::Mourn { worker: id, how, times, again_in: None });
                }
            }
            (Role::Coming, State::Starting(_)) if !by_kill => {
                worker.state = State::Gone;
                let reason = reason.unwrap_or_else(|| format!("worker {} died: {how}", id.index));
                self.discard(id.generation, reason, now, actions);
            }
            (Role::Coming | Role::Current, _) => {
                let delay = worker.back_off(by_kill, now);
                let times = worker.lives.restarts;
                actions.push(Action::Mourn { worker: id, how, times, again_in: Some(delay) });
                if delay.is_zero() {
                    worker.be_born(now);
                    actions.push(Action::Fork(id));
                }
                self.restarts += 1;
            }
        }
    }

    fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let mut late = None;
        for generation in &mut self.generations {
            let (role, number) = (generation.role, generation.id);
            for (index, worker) in (0..).zip(&mut generation.workers) {
                let id = WorkerId { generation: number, index };
                if worker.state.deadline().is_none_or(|deadline| deadline > now) {
                    continue;
                }
                match worker.state {
                    State::Waiting(_) => {
                        worker.be_born(now);
                        actions.push(Action::Fork(id));
                    }
                    State::Starting(_) if role == Role::Coming => late = Some(id),
                    _ => {
                        worker.state = State::Killed;
                        actions.push(Action::Kill(id));
                    }
                }
            }
        }
        if let Some(worker) = late {
            let reason = format!("worker {} was not ready within {READY_WITHIN:?}", worker.index);
            self.discard(worker.generation, reason, now, actions);
        }
    }

    fn stop(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let is_second = std::mem::replace(&mut self.stopping, true);
        for generation in &mut self.generations {
            if is_second {
                generation.kill(actions);
            } else {
                generation.stop(now, actions);
            }
        }
    }

    /// Has a generation leave that never served; gives up where no other does.
    fn discard(&mut self, id: u64, reason: String, now: Instant, actions: &mut Vec<Action>) {
        let gives_up = self.current().is_none();
        if gives_up {
            self.stopping = true;
            self.gave_up = Some(reason.clone());
        }
        if let Some(generation) = self.generation(id) {
            actions.push(Action::Discarded { generation: id, reason });
            if gives_up {
                generation.stop(now, actions);
            } else {
                generation.leave(now, actions);
            }
        }
    }

    /// Forgets generations without workers; ends where none is left.
    fn bury(&mut self, actions: &mut Vec<Action>) {
        self.generations.retain(|generation| {
            let is_gone = generation.workers.iter().all(|worker| worker.state == State::Gone);
            if is_gone {
                actions.push(Action::Gone(generation.id));
            }
            !is_gone
        });
        if self.stopping && self.generations.is_empty() && !self.exited {
            self.exited = true;
            actions.push(Action::Exit(self.gave_up.take().map_or(Ok(()), Err)));
        }
    }

    fn generation(&mut self, id: u64) -> Option<&mut Generation> {
        self.generations.iter_mut().find(|generation| generation.id == id)
    }
}

impl Generation {
    /// From now on its workers drain, while another generation serves.
    fn leave(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.role = Role::Leaving;
        let until = now + self.drain + DRAIN_GRACE;
        for (index, worker) in (0..).zip(&mut self.workers) {
            match worker.state {
                State::Waiting(_) => worker.state = State::Gone,
                State::Starting(_) | State::Serving => {
                    worker.state = State::Draining(until);
                    actions.push(Action::Drain(WorkerId { generation: self.id, index }));
                }
                State::Draining(_) | State::Killed | State::Gone => {}
            }
        }
    }

    /// From now on its workers drain, and nobody else serves. Those that drain already have the rest of
    /// their time.
    fn stop(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.role = Role::Leaving;
        let until = now + self.drain + DRAIN_GRACE;
        for (index, worker) in (0..).zip(&mut self.workers) {
            match worker.state {
                State::Waiting(_) => worker.state = State::Gone,
                State::Starting(_) | State::Serving => worker.state = State::Draining(until),
                State::Draining(_) | State::Killed | State::Gone => {}
            }
            if let State::Draining(_) = worker.state {
                actions.push(Action::Stop(WorkerId { generation: self.id, index }));
            }
        }
    }

    fn kill(&mut self, actions: &mut Vec<Action>) {
        for (index, worker) in (0..).zip(&mut self.workers) {
            if let State::Draining(_) = worker.state {
                worker.state = State::Killed;
                actions.push(Action::Kill(WorkerId { generation: self.id, index }));
            }
        }
    }
}

impl Worker {
    /// Counts a death, and says how long to wait before the next birth.
    fn back_off(&mut self, by_kill: bool, now: Instant) -> Duration {
        let delay = self.lives.death(by_kill, BACK_OFF_MAX, now);
        self.state = State::Waiting(now + delay);
        delay
    }

    fn be_born(&mut self, now: Instant) {
        self.lives.born = now;
        self.state = State::Starting(now);
    }
}

impl State {
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Waiting(until) | Self::Draining(until) => Some(until),
            Self::Starting(since) => Some(since + READY_WITHIN),
            Self::Serving | Self::Killed | Self::Gone => None,
        }
    }

    /// The state's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting(_) => "waiting",
            Self::Starting(_) => "starting",
            Self::Serving => "serving",
            Self::Draining(_) => "draining",
            Self::Killed => "killed",
            Self::Gone => "gone",
        }
    }
}

/// How a process ended, and what it said.
pub fn in_words(ended: Option<Ended>, reason: Option<&str>) -> String {
    match (ended, reason) {
        (Some(ended), None) => ended.to_string(),
        (Some(ended), Some(reason)) => format!("{ended}, {reason}"),
        (None, reason) => reason.unwrap_or("it could not be forked").to_owned(),
    }
}

#[cfg(test)]
mod tests;
