//! Each row of the tables in `machine`, played.

use super::*;

const DRAIN: Duration = Duration::from_secs(30);
const KILL: Ended = Ended::Killed(9);
const ABORT: Ended = Ended::Killed(6);

struct Play {
    machine: Machine,
    now: Instant,
}

impl Play {
    fn new() -> Self {
        Self { machine: Machine::default(), now: Instant::now() }
    }

    /// A current generation of `workers`.
    fn serving(workers: u32) -> Self {
        let mut play = Self::new();
        play.begin(workers);
        play.all_ready(1, workers);
        play
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.machine.handle(event, self.now, &mut actions);
        actions
    }

    fn begin(&mut self, workers: u32) -> Vec<Action> {
        self.handle(Event::Begin { workers, drain: DRAIN })
    }

    fn all_ready(&mut self, generation: u64, workers: u32) -> Vec<Action> {
        (0..workers).flat_map(|index| self.handle(Event::Ready(id(generation, index)))).collect()
    }

    fn died(&mut self, worker: WorkerId, ended: Ended) -> Vec<Action> {
        self.handle(Event::Died { worker, ended: Some(ended), reason: None })
    }

    /// Lets the time of the next deadline come.
    fn wait(&mut self) -> Vec<Action> {
        self.now = self.machine.deadline().expect("something to wait for");
        self.handle(Event::Tick)
    }

    fn roles(&self) -> Vec<(u64, Role)> {
        self.machine.generations().iter().map(|generation| (generation.id, generation.role)).collect()
    }
}

fn id(generation: u64, index: u32) -> WorkerId {
    WorkerId { generation, index }
}

fn mourned(worker: WorkerId, how: &str, times: u32, again_in: Option<Duration>) -> Action {
    Action::Mourn { worker, how: how.into(), times, again_in }
}

#[test]
fn the_first_generation_serves_when_all_its_workers_do() {
    let mut play = Play::new();
    assert!(play.machine.may_begin());
    assert_eq!(play.begin(2), [Action::Fork(id(1, 0)), Action::Fork(id(1, 1))]);
    assert!(!play.machine.may_begin());
    assert_eq!(play.handle(Event::Ready(id(1, 1))), []);
    assert_eq!(play.handle(Event::Ready(id(1, 1))), []);
    assert_eq!(play.handle(Event::Ready(id(1, 0))), [Action::Promoted(1)]);
    assert_eq!(play.machine.deadline(), None);
    assert!(play.machine.may_begin());
}

#[test]
fn a_reload_promotes_the_new_and_drains_the_old() {
    let mut play = Play::serving(2);
    play.begin(1);
    assert_eq!(
        play.handle(Event::Ready(id(2, 0))),
        [Action::Drain(id(1, 0)), Action::Drain(id(1, 1)), Action::Promoted(2)]
    );
    assert_eq!(play.roles(), [(1, Role::Leaving), (2, Role::Current)]);
    assert_eq!(play.died(id(1, 0), Ended::Exited(0)), []);
    assert_eq!(play.died(id(1, 1), Ended::Exited(0)), [Action::Gone(1)]);
    assert_eq!(play.roles(), [(2, Role::Current)]);
}

#[test]
fn who_drains_too_long_is_killed() {
    let mut play = Play::serving(1);
    play.begin(1);
    play.all_ready(2, 1);
    let told = play.now;
    assert_eq!(play.wait(), [Action::Kill(id(1, 0))]);
    assert_eq!(play.now - told, DRAIN + DRAIN_GRACE);
    assert_eq!(
        play.died(id(1, 0), KILL),
        [mourned(id(1, 0), "signal 9 (SIGKILL)", 1, None), Action::Gone(1)]
    );
}

#[test]
fn a_first_generation_that_cannot_serve_gives_up() {
    let mut play = Play::new();
    play.begin(2);
    play.handle(Event::Ready(id(1, 0)));
    let actions = play.handle(Event::Died {
        worker: id(1, 1),
        ended: Some(Ended::Exited(1)),
        reason: Some("no io_uring".into()),
    });
    assert_eq!(
        actions,
        [Action::Discarded { generation: 1, reason: "no io_uring".into() }, Action::Stop(id(1, 0))]
    );
    assert_eq!(
        play.died(id(1, 0), Ended::Exited(0)),
        [Action::Gone(1), Action::Exit(Err("no io_uring".into()))]
    );
}

#[test]
fn a_later_generation_that_cannot_serve_is_discarded_and_the_one_before_goes_on() {
    for (ended, reason) in
        [(ABORT, "worker 0 died: signal 6 (SIGABRT)"), (Ended::Exited(1), "worker 0 died: exit code 1")]
    {
        let mut play = Play::serving(1);
        play.begin(1);
        assert_eq!(
            play.died(id(2, 0), ended),
            [Action::Discarded { generation: 2, reason: reason.into() }, Action::Gone(2)]
        );
        assert_eq!(play.roles(), [(1, Role::Current)]);
        assert!(play.machine.may_begin() && !play.machine.is_stopping());
    }
}

#[test]
fn a_generation_that_is_not_ready_in_time_is_discarded() {
    let mut play = Play::serving(1);
    play.begin(2);
    play.handle(Event::Ready(id(2, 1)));
    assert_eq!(
        play.wait(),
        [
            Action::Discarded { generation: 2, reason: "worker 0 was not ready within 30s".into() },
            Action::Drain(id(2, 0)),
            Action::Drain(id(2, 1)),
        ]
    );
    assert_eq!(play.roles(), [(1, Role::Current), (2, Role::Leaving)]);
}

#[test]
fn a_coming_worker_killed_by_hand_or_dead_after_it_was_ready_is_forked_again() {
    let mut play = Play::serving(1);
    play.begin(2);
    let at_once = Some(Duration::ZERO);
    assert_eq!(
        play.died(id(2, 0), KILL),
        [mourned(id(2, 0), "signal 9 (SIGKILL)", 1, at_once), Action::Fork(id(2, 0))]
    );
    play.handle(Event::Ready(id(2, 1)));
    assert_eq!(
        play.died(id(2, 1), ABORT),
        [mourned(id(2, 1), "signal 6 (SIGABRT)", 1, at_once), Action::Fork(id(2, 1))]
    );
    play.handle(Event::Ready(id(2, 0)));
    assert!(play.handle(Event::Ready(id(2, 1))).contains(&Action::Promoted(2)));
}

#[test]
fn who_keeps_dying_waits_longer_and_is_forgiven_after_a_while() {
    let mut play = Play::serving(1);
    let worker = id(1, 0);
    let mut waited = Vec::new();
    for _ in 0..8 {
        let died = play.now;
        if !play.died(worker, ABORT).contains(&Action::Fork(worker)) {
            assert_eq!(play.wait(), [Action::Fork(worker)]);
        }
        waited.push((play.now - died).as_millis());
        play.handle(Event::Ready(worker));
    }
    assert_eq!(waited, [0, 100, 200, 400, 800, 1600, 3000, 3000]);
    play.now += Duration::from_secs(1);
    assert_eq!(
        play.died(worker, ABORT),
        [mourned(worker, "signal 6 (SIGABRT)", 9, Some(Duration::ZERO)), Action::Fork(worker)]
    );
    assert_eq!(play.machine.restarts(), 9);
}

#[test]
fn deaths_by_hand_do_not_add_up() {
    let mut play = Play::serving(1);
    let worker = id(1, 0);
    play.died(worker, KILL);
    for _ in 0..5 {
        play.handle(Event::Ready(worker));
        let died = play.now;
        play.died(worker, KILL);
        play.wait();
        assert_eq!(play.now - died, Duration::from_millis(100));
    }
}

#[test]
fn a_current_worker_that_does_not_get_ready_is_killed_and_forked_again() {
    let mut play = Play::serving(1);
    let worker = id(1, 0);
    play.died(worker, ABORT);
    assert_eq!(play.wait(), [Action::Kill(worker)]);
    assert!(play.died(worker, KILL).contains(&Action::Fork(worker)));
}

#[test]
fn a_worker_that_cannot_be_forked_is_tried_again() {
    let mut play = Play::serving(1);
    let worker = id(1, 0);
    play.died(worker, ABORT);
    let actions = play.handle(Event::Died { worker, ended: None, reason: Some("cannot fork".into()) });
    assert_eq!(actions, [mourned(worker, "cannot fork", 2, Some(Duration::from_millis(100)))]);
    assert_eq!(play.wait(), [Action::Fork(worker)]);
}

#[test]
fn stop_drains_all_and_ends_well() {
    let mut play = Play::serving(2);
    play.died(id(1, 1), ABORT);
    play.died(id(1, 1), ABORT);
    play.begin(1);
    assert_eq!(play.handle(Event::Stop), [Action::Stop(id(1, 0)), Action::Stop(id(2, 0))]);
    assert!(!play.machine.may_begin());
    assert_eq!(play.handle(Event::Ready(id(2, 0))), []);
    assert_eq!(play.died(id(2, 0), Ended::Exited(0)), [Action::Gone(2)]);
    assert_eq!(play.died(id(1, 0), Ended::Exited(0)), [Action::Gone(1), Action::Exit(Ok(()))]);
}

#[test]
fn a_second_stop_kills() {
    let mut play = Play::serving(1);
    play.begin(1);
    play.all_ready(2, 1);
    assert_eq!(play.handle(Event::Stop), [Action::Stop(id(1, 0)), Action::Stop(id(2, 0))]);
    assert_eq!(play.handle(Event::Stop), [Action::Kill(id(1, 0)), Action::Kill(id(2, 0))]);
    assert_eq!(play.handle(Event::Stop), []);
    play.died(id(1, 0), KILL);
    assert!(play.died(id(2, 0), KILL).contains(&Action::Exit(Ok(()))));
}

#[test]
fn reloads_wait_while_many_generations_drain() {
    let mut play = Play::serving(1);
    let mut generation = 1;
    while play.machine.may_begin() {
        generation += 1;
        play.begin(1);
        play.all_ready(generation, 1);
    }
    assert_eq!(play.roles().len(), LEAVING_MAX + 1);
    play.died(id(3, 0), Ended::Exited(0));
    assert!(play.machine.may_begin());
}

#[test]
fn news_of_the_unknown_change_nothing() {
    let mut play = Play::serving(1);
    for worker in [id(1, 9), id(7, 0)] {
        assert_eq!(play.handle(Event::Ready(worker)), []);
        assert_eq!(play.died(worker, KILL), []);
    }
    assert_eq!(play.roles(), [(1, Role::Current)]);
}

#[test]
fn a_successor_takes_over_and_numbers_on() {
    let mut play = Play::new();
    let inherited = [(id(4, 1), Role::Leaving), (id(5, 0), Role::Current), (id(5, 1), Role::Current)];
    play.machine.inherit(&inherited, DRAIN, play.now);
    assert_eq!(play.roles(), [(4, Role::Leaving), (5, Role::Current)]);
    assert_eq!(play.machine.next(), 6);
    play.begin(1);
    assert_eq!(
        play.handle(Event::Ready(id(6, 0))),
        [Action::Drain(id(5, 0)), Action::Drain(id(5, 1)), Action::Promoted(6)]
    );
    assert_eq!(play.died(id(4, 1), Ended::Exited(0)), [Action::Gone(4)]);
}

#[test]
fn a_successor_that_cannot_serve_leaves_its_predecessors_workers_at_work() {
    let mut play = Play::new();
    play.machine.inherit(&[(id(1, 0), Role::Current)], DRAIN, play.now);
    play.begin(1);
    assert!(play.died(id(2, 0), ABORT).iter().any(|action| matches!(action, Action::Discarded { .. })));
    assert_eq!(play.roles(), [(1, Role::Current)]);
    assert!(!play.machine.is_stopping());
}
