//! The policy for processes beside the workers: what happened and when, in; what to do, out. Pure, as
//! [`super::machine`] is for workers, which it follows: a companion serves nobody itself, so nothing waits
//! for it to be ready, and its death is no reason to refuse a generation.
//!
//! ```text
//!   state      left by                 to
//!   Waiting    the back-off is over    Running
//!              it is not wanted        gone
//!   Running    it died                 Waiting, at once the first time, then longer and longer
//!              it ended well           gone: it has done all it was there for
//!              it is not wanted        Stopping
//!   Stopping   it died                 gone
//!              its time is over        Killed
//!   Killed     it died                 gone
//! ```

use std::time::{Duration, Instant};

use super::lives::Lives;
use crate::sys::process::Ended;

/// What a companion is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Starts programs for the workers of its generation, and lives as long as the last of them.
    Spawner,
    /// Runs modules for the workers of its generation, and lives as long as the last of them.
    Modules,
    /// Keeps compressed variants ready while its generation is the current one.
    Precompressor,
    /// Serves metrics while its generation is the current one, and until the last worker is gone.
    Metrics,
}

impl Kind {
    /// As many as there are numbers up to the last one's, so that none is left out.
    const ALL: [Self; Self::Metrics as usize + 1] =
        [Self::Spawner, Self::Modules, Self::Precompressor, Self::Metrics];

    /// The one of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// As logs, the status and ps(1) name it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Spawner => "spawner",
            Kind::Modules => "modules",
            Kind::Precompressor => "precompressor",
            Kind::Metrics => "metrics",
        }
    }
}

/// Names a companion: there is at most one process of this name at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CompanionId {
    /// Its generation.
    pub generation: u64,
    /// What it is for.
    pub kind: Kind,
}

/// How long after the order to stop it is killed. The spawner gives programs one second to end by
/// themselves.
pub const STOP_GRACE: Duration = Duration::from_secs(3);

/// The longest back-off. Nobody waits for a precompressor. Workers do not know that their spawner or module host is
/// gone before they hear of the next one: what they ask meanwhile gets 502 then, or 503 after `timeout`.
const BACK_OFF_MAX: Duration = Duration::from_secs(30);

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// There is work for it.
    Wanted(CompanionId),
    /// There is no more.
    Unwanted(CompanionId),
    /// Its process ended, or could not be made.
    Died {
        /// Which.
        id: CompanionId,
        /// How it ended; `None` when it could not be forked.
        ended: Option<Ended>,
        /// What it said before, or why it could not be forked.
        reason: Option<String>,
    },
    /// Nobody waits any more: those that are stopping are killed.
    Hurry,
    /// Time went by.
    Tick,
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Fork it.
    Fork(CompanionId),
    /// Tell it to stop.
    Stop(CompanionId),
    /// Kill it.
    Kill(CompanionId),
    /// Say that it died, the how-manieth time, and when it is forked again.
    Mourn {
        /// Which.
        id: CompanionId,
        /// How, in words.
        how: String,
        /// How often.
        times: u32,
        /// `None`: not at all.
        again_in: Option<Duration>,
    },
}

/// Where a companion is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// To be forked then.
    Waiting(Instant),
    /// Forked.
    Running,
    /// Told to stop; killed then.
    Stopping(Instant),
    /// Killed, but not dead yet.
    Killed,
}

impl State {
    /// The state's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting(_) => "waiting",
            Self::Running => "running",
            Self::Stopping(_) => "stopping",
            Self::Killed => "killed",
        }
    }

    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Waiting(until) | Self::Stopping(until) => Some(until),
            Self::Running | Self::Killed => None,
        }
    }
}

/// A companion, whatever process it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Companion {
    /// Which.
    pub id: CompanionId,
    /// Where it is in its life.
    pub state: State,
    /// Its processes so far.
    pub lives: Lives,
}

/// All companions there are.
#[derive(Debug, Default)]
pub struct Companions(Vec<Companion>);

impl Companions {
    /// Takes in what happened and appends what to do.
    pub fn handle(&mut self, event: Event, now: Instant, actions: &mut Vec<Action>) {
        match event {
            Event::Wanted(id) => {
                if self.find(id).is_none() {
                    self.0.push(Companion { id, state: State::Running, lives: Lives::new(now) });
                    actions.push(Action::Fork(id));
                }
            }
            Event::Unwanted(id) => self.unwanted(id, now, actions),
            Event::Died { id, ended, reason } => self.died(id, ended, reason, now, actions),
            Event::Hurry => {
                let stopping = self.0.iter_mut().filter(|one| matches!(one.state, State::Stopping(_)));
                stopping.for_each(|one| one.kill(actions));
            }
            Event::Tick => self.tick(now, actions),
        }
    }

    /// When a [`Event::Tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.iter().filter_map(|companion| companion.state.deadline()).min()
    }

    /// Takes over a living companion of the program that this one has replaced.
    pub fn inherit(&mut self, id: CompanionId, now: Instant) {
        self.0.push(Companion { id, state: State::Running, lives: Lives::new(now) });
    }

    /// All companions, in the order in which they were wanted.
    pub fn all(&self) -> &[Companion] {
        &self.0
    }

    fn unwanted(&mut self, id: CompanionId, now: Instant, actions: &mut Vec<Action>) {
        let Some(position) = self.find(id) else { return };
        match self.0[position].state {
            State::Waiting(_) => {
                self.0.remove(position);
            }
            State::Running => {
                self.0[position].state = State::Stopping(now + STOP_GRACE);
                actions.push(Action::Stop(id));
            }
            State::Stopping(_) | State::Killed => {}
        }
    }

    fn died(
        &mut self,
        id: CompanionId,
        ended: Option<Ended>,
        reason: Option<String>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let Some(position) = self.find(id) else { return };
        let companion = &mut self.0[position];
        let went_well = ended == Some(Ended::Exited(0));
        let how = super::machine::in_words(ended, reason.as_deref());
        match companion.state {
            State::Running if !went_well => {
                let by_kill = ended.is_some_and(Ended::is_by_kill);
                let delay = companion.lives.death(by_kill, BACK_OFF_MAX, now);
                let times = companion.lives.restarts;
                // A process that could not be made is not asked for again within the same moment.
                let delay = if ended.is_none() { delay.max(Duration::from_millis(100)) } else { delay };
                companion.state = State::Waiting(now + delay);
                actions.push(Action::Mourn { id, how, times, again_in: Some(delay) });
                if delay.is_zero() {
                    companion.be_born(now, actions);
                }
            }
            State::Waiting(_) => {}
            state => {
                let was_killed_by_us = state == State::Killed;
                let times = companion.lives.restarts + 1;
                self.0.remove(position);
                if !went_well && !was_killed_by_us {
                    actions.push(Action::Mourn { id, how, times, again_in: None });
                }
            }
        }
    }

    fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        for companion in &mut self.0 {
            if companion.state.deadline().is_none_or(|deadline| deadline > now) {
                continue;
            }
            match companion.state {
                State::Waiting(_) => companion.be_born(now, actions),
                _ => companion.kill(actions),
            }
        }
    }

    fn find(&self, id: CompanionId) -> Option<usize> {
        self.0.iter().position(|companion| companion.id == id)
    }
}

impl Companion {
    fn be_born(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.lives.born = now;
        self.state = State::Running;
        actions.push(Action::Fork(self.id));
    }

    fn kill(&mut self, actions: &mut Vec<Action>) {
        self.state = State::Killed;
        actions.push(Action::Kill(self.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: CompanionId = CompanionId { generation: 1, kind: Kind::Spawner };
    const ABORT: Ended = Ended::Killed(6);

    struct Play {
        companions: Companions,
        now: Instant,
    }

    impl Play {
        fn running() -> Self {
            let mut play = Self { companions: Companions::default(), now: Instant::now() };
            assert_eq!(play.handle(Event::Wanted(ID)), [Action::Fork(ID)]);
            play
        }

        fn handle(&mut self, event: Event) -> Vec<Action> {
            let mut actions = Vec::new();
            self.companions.handle(event, self.now, &mut actions);
            actions
        }

        fn died(&mut self, ended: Ended) -> Vec<Action> {
            self.handle(Event::Died { id: ID, ended: Some(ended), reason: None })
        }

        fn wait(&mut self) -> Vec<Action> {
            self.now = self.companions.deadline().expect("something to wait for");
            self.handle(Event::Tick)
        }
    }

    fn mourned(how: &str, times: u32, again_in: Option<Duration>) -> Action {
        Action::Mourn { id: ID, how: how.into(), times, again_in }
    }

    #[test]
    fn it_is_forked_once_however_often_it_is_wanted() {
        let mut play = Play::running();
        assert_eq!(play.handle(Event::Wanted(ID)), []);
        assert_eq!(play.companions.deadline(), None);
    }

    #[test]
    fn a_death_is_followed_by_another_life_sooner_or_later() {
        let mut play = Play::running();
        let first = [mourned("signal 6 (SIGABRT)", 1, Some(Duration::ZERO)), Action::Fork(ID)];
        assert_eq!(play.died(ABORT), first);
        let mut waits = Vec::new();
        for _ in 0..12 {
            let [Action::Mourn { again_in: Some(delay), .. }] = play.died(ABORT)[..] else {
                panic!("mourned, and not forked at once")
            };
            waits.push(delay.as_millis());
            assert_eq!(play.wait(), [Action::Fork(ID)]);
        }
        assert_eq!(waits[..4], [100, 200, 400, 800]);
        assert_eq!(waits[11], BACK_OFF_MAX.as_millis());
        play.now += Duration::from_secs(2);
        assert_eq!(play.died(ABORT).len(), 2, "a long life is forgiven");
    }

    #[test]
    fn what_cannot_be_forked_is_not_tried_again_at_once() {
        let mut play = Play::running();
        let refused = Event::Died { id: ID, ended: None, reason: Some("no room".into()) };
        assert_eq!(play.handle(refused), [mourned("no room", 1, Some(Duration::from_millis(100)))]);
    }

    #[test]
    fn who_has_done_all_is_not_forked_again() {
        let mut play = Play::running();
        assert_eq!(play.died(Ended::Exited(0)), []);
        assert!(play.companions.all().is_empty());
    }

    #[test]
    fn who_is_not_wanted_stops_or_is_killed() {
        let mut play = Play::running();
        assert_eq!(play.handle(Event::Unwanted(ID)), [Action::Stop(ID)]);
        assert_eq!(play.handle(Event::Unwanted(ID)), []);
        assert_eq!(play.wait(), [Action::Kill(ID)]);
        assert_eq!(play.died(Ended::Killed(9)), []);
        assert!(play.companions.all().is_empty());

        let mut play = Play::running();
        play.handle(Event::Unwanted(ID));
        assert_eq!(play.died(ABORT), [mourned("signal 6 (SIGABRT)", 1, None)]);
        assert!(play.companions.all().is_empty());

        let mut play = Play::running();
        play.handle(Event::Unwanted(ID));
        assert_eq!(play.handle(Event::Hurry), [Action::Kill(ID)]);
    }

    #[test]
    fn who_waits_for_another_life_and_is_not_wanted_is_forgotten() {
        let mut play = Play::running();
        play.died(ABORT);
        play.died(ABORT);
        assert_eq!(play.handle(Event::Unwanted(ID)), []);
        assert!(play.companions.all().is_empty());
    }
}
