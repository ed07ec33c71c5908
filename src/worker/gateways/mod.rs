//! Programs that answer requests, as a worker sees them: runs. A run has a number in the messages to its runner,
//! the spawner or the module host, two pipes, and a connection while somebody wants its answer.
//!
//! ```text
//! start -> Waiting -> Admitted -> Asked -> (started) -> exited
//!            full: 503    no room in the mailbox: later      '-> the next of those who wait
//! ```
//!
//! A run outlives its connection until its runner says that it has ended: so long it counts among those
//! that run at once.

mod mailboxes;
mod pipes;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Worker;
use super::slots::Key;
use crate::config::Config;
use crate::conn::Event;
use crate::conn::program::{Exit, Fault, Start};
use crate::gateway::admission::{Admission, Verdict, share};
use crate::gateway::messages::{MountId, Why};
use crate::gateway::start::Runner;
use crate::observe::names::Counter;
use crate::ring::{Ring, Stream};
use crate::sys::Errno;
use crate::sys::fds::{Descriptor, Fd};
use mailboxes::Mailbox;

/// Lines about failing programs in one second; clients can provoke as many as they like.
const FAULTS_LOGGED_MAX: u32 = 10;

/// A worker's mailboxes as the ring knows them.
#[derive(Clone, Copy, Debug)]
pub struct Mailboxes {
    /// In the order of [`Runner::ALL`]; `None` where no site has anything for it to run.
    pub fds: [Option<Fd>; 2],
    /// The number of this worker's life.
    pub epoch: u64,
}

/// All runs of a worker.
#[derive(Debug)]
pub(super) struct Gateways {
    /// In the order of [`Runner::ALL`]; `None` where no site has anything for it to run.
    mailboxes: [Option<Mailbox>; 2],
    /// Our own life's number.
    epoch: u64,
    runs: Vec<Slot>,
    free: Vec<u32>,
    by_number: HashMap<u64, Key>,
    last_number: u64,
    /// By site, by mount.
    admissions: Vec<Vec<Admission<Key>>>,
    /// Who runs what the mounts name.
    runners: Vec<Vec<Runner>>,
    /// The paths of the mounts, for messages.
    paths: Vec<Vec<String>>,
    /// What connections are to be told, once none of them is being served: their actions share memory.
    untold: Vec<(Key, Event<'static>)>,
    /// Where messages are written.
    message: Vec<u8>,
    faults: Faults,
}

/// What went wrong within a second.
#[derive(Debug, Default)]
struct Faults {
    since: Option<Instant>,
    count: u32,
}

#[derive(Debug, Default)]
struct Slot {
    reuse: u32,
    run: Option<Run>,
}

/// One program, wanted or running.
#[derive(Debug)]
struct Run {
    number: u64,
    mount: MountId,
    runner: Runner,
    request_id: u64,
    /// Who wants its answer.
    connection: Option<Key>,
    state: State,
    input: Option<Descriptor>,
    output: Option<Descriptor>,
    /// The program's ends, until they are on their way.
    theirs: Vec<Descriptor>,
    /// A piece of the input, of which so much went.
    relay: Option<(Vec<u8>, usize)>,
    input_awaited: bool,
    output_awaited: bool,
    output_wanted: bool,
    /// Once it is said to run. Until then nobody knows how its output is to be understood, and it is not read.
    pid: Option<u32>,
}

#[derive(Debug)]
enum State {
    /// Others run; its turn comes.
    Waiting(Box<Start>),
    /// Its runner is to be asked.
    Admitted(Box<Start>),
    /// Its runner was asked.
    Asked,
    /// It is over; so many bytes of what it printed are still in the pipe.
    Exited { unread: usize },
}

impl Gateways {
    /// For the mounts of a configuration; `None` where it has none.
    pub(super) fn new(config: &Config, mailboxes: Option<Mailboxes>) -> Option<Box<Self>> {
        let Mailboxes { fds, epoch } = mailboxes?;
        let admission = |mount: &crate::config::Mount| {
            let workers = config.server.workers;
            let queue = if mount.queue == 0 { 0 } else { share(mount.queue, workers) };
            Admission::new(share(mount.concurrency, workers), queue)
        };
        let sites = &config.sites;
        let own = Self {
            mailboxes: fds.map(|fd| fd.map(Mailbox::new)),
            epoch,
            runs: Vec::new(),
            free: Vec::new(),
            by_number: HashMap::new(),
            last_number: 0,
            admissions: sites.iter().map(|site| site.mounts.iter().map(admission).collect()).collect(),
            runners: sites.iter().map(|site| site.mounts.iter().map(Runner::of).collect()).collect(),
            paths: sites
                .iter()
                .map(|site| site.mounts.iter().map(|mount| mount.path.clone()).collect())
                .collect(),
            untold: Vec::new(),
            message: Vec::new(),
            faults: Faults::default(),
        };
        Some(Box::new(own))
    }

    fn admission(&mut self, mount: MountId) -> &mut Admission<Key> {
        &mut self.admissions[usize::from(mount.site)][usize::from(mount.mount)]
    }

    fn store(&mut self, run: Run) -> Key {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.runs.push(Slot::default());
            self.runs.len() as u32 - 1
        });
        let place = &mut self.runs[slot as usize];
        let key = Key { slot, reuse: place.reuse };
        self.by_number.insert(run.number, key);
        place.run = Some(run);
        key
    }

    fn run(&mut self, key: Key) -> Option<&mut Run> {
        let place = self.runs.get_mut(key.slot as usize).filter(|place| place.reuse == key.reuse)?;
        place.run.as_mut()
    }

    fn take(&mut self, key: Key) -> Option<Run> {
        let place = self.runs.get_mut(key.slot as usize).filter(|place| place.reuse == key.reuse)?;
        let run = place.run.take()?;
        place.reuse = place.reuse.wrapping_add(1);
        self.free.push(key.slot);
        self.by_number.remove(&run.number);
        Some(run)
    }

    /// Who runs what a mount names, if it can be asked.
    fn runner(&self, mount: MountId) -> Option<Runner> {
        let runner = self.runners[usize::from(mount.site)][usize::from(mount.mount)];
        self.mailboxes[runner as usize].is_some().then_some(runner)
    }

    fn mailbox(&mut self, runner: Runner) -> Option<&mut Mailbox> {
        self.mailboxes[runner as usize].as_mut()
    }

    /// Keys of the runs that a runner was asked for.
    fn asked(&self, runner: Runner) -> Vec<Key> {
        let is_it = |run: &Run| run.runner == runner && matches!(run.state, State::Asked);
        let is_asked = |slot: &Slot| slot.run.as_ref().is_some_and(is_it);
        let slots = self.runs.iter().zip(0..).filter(|(slot, _)| is_asked(slot));
        slots.map(|(place, slot)| Key { slot, reuse: place.reuse }).collect()
    }

    /// How many wait for their turn.
    fn waiting(&self) -> u64 {
        self.admissions.iter().flatten().map(|admission| admission.waiting() as u64).sum()
    }
}

impl Faults {
    /// Counts one more; whether it is to be logged.
    fn may_log(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now > since + Duration::from_secs(1)) {
            if self.count > FAULTS_LOGGED_MAX {
                tracing::warn!("{} more programs failed", self.count - FAULTS_LOGGED_MAX);
            }
            *self = Self { since: Some(now), count: 0 };
        }
        self.count += 1;
        self.count <= FAULTS_LOGGED_MAX
    }
}

impl<R: Ring> Worker<R> {
    /// A connection wants a program.
    pub(super) fn start_program(&mut self, key: Key, mut start: Box<Start>) -> Option<Event<'static>> {
        let socket = self.slots.get(key)?.socket.fd();
        let (remote, local) = (self.ring.peer(socket), self.ring.local(socket));
        start.variables.connection(remote, local, start.client, start.secure);
        let mount = start.mount;
        let gateways = self.gateways.as_mut().and_then(|own| Some((own.runner(mount)?, own)));
        // Mounts without a runner: a mistake of ours, which the supervisor has logged.
        let Some((runner, gateways)) = gateways else { return Some(Event::ProgramRefused(500)) };
        gateways.last_number += 1;
        let run = Run {
            number: gateways.last_number,
            mount,
            runner,
            request_id: start.request_id,
            connection: Some(key),
            state: State::Waiting(start),
            input: None,
            output: None,
            theirs: Vec::new(),
            relay: None,
            input_awaited: false,
            output_awaited: false,
            output_wanted: false,
            pid: None,
        };
        let run = gateways.store(run);
        let refused = match gateways.admission(mount).enter(run) {
            Verdict::Full => {
                gateways.take(run);
                self.shared.counters.add(Counter::ProgramsTurnedAway, 1);
                Some(Event::ProgramRefused(503))
            }
            verdict => {
                if let Some(live) = self.slots.get(key) {
                    live.run = Some(run);
                }
                let launched = if verdict == Verdict::Run { self.launch(run) } else { Ok(()) };
                launched.err().map(|status| {
                    self.forget_run(run);
                    Event::ProgramRefused(status)
                })
            }
        };
        self.count_programs();
        refused
    }

    /// Makes the pipes of a run whose turn it is, and asks its runner. Where that cannot be, the status to
    /// answer with: the run is to be forgotten.
    fn launch(&mut self, key: Key) -> Result<(), u16> {
        let Some(run) = self.gateways.as_mut().and_then(|gateways| gateways.run(key)) else { return Ok(()) };
        let State::Waiting(start) = std::mem::replace(&mut run.state, State::Asked) else {
            unreachable!("who is launched was waiting")
        };
        let input = start.input;
        run.state = State::Admitted(start);
        if let Err(errno) = self.connect_pipes(key, input) {
            if self.may_complain() {
                tracing::warn!(%errno, "cannot make pipes for a program");
            }
            return Err(503);
        }
        self.ask(key)
    }

    fn connect_pipes(&mut self, key: Key, input: bool) -> Result<(), Errno> {
        let output = self.ring.pipe(Stream::Output)?;
        let input = if input { Some(self.ring.pipe(Stream::Input)?) } else { None };
        let Some(run) = self.gateways.as_mut().and_then(|gateways| gateways.run(key)) else { return Ok(()) };
        run.output = Some(output.ours);
        run.theirs.push(output.theirs);
        if let Some(input) = input {
            run.input = Some(input.ours);
            run.theirs.push(input.theirs);
        }
        Ok(())
    }

    /// A connection lets go of its program. Nothing of it is heard any more.
    pub(super) fn leave_program(&mut self, key: Key, why: Option<Why>, fault: Option<Fault>) {
        let Some(run) = self.slots.get(key).and_then(|live| live.run.take()) else { return };
        self.log_fault(run, fault);
        let Some(gateways) = &mut self.gateways else { return };
        let Some(found) = gateways.run(run) else { return };
        found.connection = None;
        match found.state {
            State::Waiting(_) => {
                let mount = found.mount;
                gateways.admission(mount).give_up(&run);
                gateways.take(run);
            }
            State::Admitted(_) => {
                let runner = found.runner;
                if let Some(mailbox) = gateways.mailbox(runner) {
                    mailbox.forget(run);
                }
                self.forget_run(run);
            }
            State::Exited { .. } => {
                self.close_pipes(run);
                self.gateways.as_mut().and_then(|gateways| gateways.take(run));
            }
            State::Asked => {
                let (runner, number) = (found.runner, found.number);
                self.close_pipes(run);
                if let Some(why) = why {
                    self.say_end(runner, number, why);
                }
            }
        }
        self.count_programs();
    }

    /// Ends a run that its runner knows nothing of, or nothing any more, and that nobody listens to.
    fn forget_run(&mut self, key: Key) {
        if let Some(run) = self.remove_run(key) {
            self.let_next(run.mount);
        }
    }

    fn remove_run(&mut self, key: Key) -> Option<Run> {
        self.close_pipes(key);
        let run = self.gateways.as_mut()?.take(key)?;
        if let Some(live) = run.connection.and_then(|connection| self.slots.get(connection)) {
            live.run = None;
        }
        Some(run)
    }

    /// One of a mount's programs is over: the longest waiting comes next, or who waits behind it where that
    /// cannot be.
    fn let_next(&mut self, mount: MountId) {
        while let Some(next) = self.gateways.as_mut().and_then(|own| own.admission(mount).leave()) {
            let Err(status) = self.launch(next) else { return };
            let connection = self.remove_run(next).and_then(|run| run.connection);
            self.refuse_later(connection, status);
        }
    }

    fn refuse_later(&mut self, connection: Option<Key>, status: u16) {
        if let (Some(gateways), Some(connection)) = (&mut self.gateways, connection) {
            gateways.untold.push((connection, Event::ProgramRefused(status)));
        }
    }

    /// Tells connections what they are still to be told.
    pub(super) fn tell_of_programs(&mut self) {
        while let Some((connection, event)) = self.gateways.as_mut().and_then(|own| own.untold.pop()) {
            self.deliver(connection, event);
        }
    }

    /// A program is over.
    fn run_exited(&mut self, key: Key, exit: Exit) {
        let unread = self.unread(key);
        let Some(run) = self.gateways.as_mut().and_then(|gateways| gateways.run(key)) else { return };
        run.state = State::Exited { unread };
        let (mount, connection) = (run.mount, run.connection);
        match connection {
            Some(connection) => {
                self.deliver(connection, Event::ProgramExited(exit));
                // The poll that waits for more of its output may wait in vain.
                self.read_last(key);
            }
            None => {
                self.close_pipes(key);
                self.gateways.as_mut().and_then(|gateways| gateways.take(key));
            }
        }
        self.let_next(mount);
        self.count_programs();
    }

    fn log_fault(&mut self, key: Key, fault: Option<Fault>) {
        let (Some(fault), Some(gateways)) = (fault, &mut self.gateways) else { return };
        let Some(run) = gateways.run(key) else { return };
        let (mount, pid, request_id) = (run.mount, run.pid, run.request_id);
        let path = &gateways.paths[usize::from(mount.site)][usize::from(mount.mount)];
        let request = format!("{request_id:016x}");
        if matches!(fault, Fault::Refused(_)) {
            // The runner says why, where that is the operator's business.
            return tracing::debug!(request, "no program below {path}: {fault}");
        }
        self.shared.counters.add(Counter::ProgramsFailed, 1);
        if gateways.faults.may_log(self.shared.clock.now) {
            tracing::warn!(pid, request, "a program below {path} failed: {fault}");
        }
    }

    /// Whether a line about what went wrong may be logged.
    fn may_complain(&mut self) -> bool {
        let now = self.shared.clock.now;
        self.gateways.as_mut().is_some_and(|gateways| gateways.faults.may_log(now))
    }

    fn count_programs(&self) {
        if let Some(gateways) = &self.gateways {
            self.shared.counters.set(Counter::ProgramsWaiting, gateways.waiting());
        }
    }
}
