//! The spawner: a process that starts programs for the workers of its generation, hears of their end, and
//! sees to it that they do end. It touches no client's bytes; pipe ends come from a worker and go to a program.
//!
//! ```text
//!            Start                     ended by itself
//!   worker --------> running ----------------------------> Exited; what it left may go on, where the
//!                       |                                   mount says so
//!                       | End, `wall` is over, stop, a new worker
//!                       v
//!                    ending: SIGTERM to its group, SIGKILL after `grace`
//!                       | it ended                Exited
//!                       v
//!                    remains: looked for and ended until there are none
//! ```
//!
//! One thread, one poll, no io_uring: a program costs a hundred times what a better loop would save. Every
//! signal is blocked; SIGCHLD is read. Programs begin with none blocked and all at their default.
//!
//! When the spawner dies, the kernel kills the programs it had started, its successor ends what they had
//! started in turn, and workers hear of it by the new epoch.

mod mailbox;
pub(super) mod programs;
mod remains;
mod voices;

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::admission;
use super::faults::Faults;
use super::messages::{self, MESSAGE_BYTES_MAX, Message, MountId, Refusal, ToRunner, ToWorker, Why};
use super::start::{Runner, STOP, Start, is_epoch_of};
use crate::config::{Config, Mount};
use crate::observe::names::{Counter, Counters};
use crate::sys::process::{self, Ended, Kill, Pid};
use crate::sys::sandbox::Sandbox;
use crate::sys::signals::Children;
use crate::sys::wait::{self, For};
use crate::sys::{Errno, Error, pass};

use mailbox::{Mailbox, Received};
use programs::{Programs, Started};
use remains::{Remain, Remains};
use voices::Voices;

/// How long programs may take to end when the spawner stops; the supervisor kills the spawner after three
/// seconds.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// How much longer the spawner waits for what was killed then.
const STOP_PATIENCE: Duration = Duration::from_millis(1500);

/// Messages taken from one worker before others have a turn.
const MESSAGES_A_TURN: usize = 32;

/// Whether a configuration has programs to start.
pub fn is_wanted(config: &Config) -> bool {
    config.sites.iter().flat_map(|site| &site.mounts).any(|mount| Runner::of(mount) == Runner::Spawner)
}

/// Starts programs until told to stop.
pub fn run(start: Start) -> ExitCode {
    match Spawner::new(start).and_then(|mut spawner| spawner.serve()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

struct Spawner {
    epoch: u64,
    /// `None` once the supervisor is gone.
    channel: Option<OwnedFd>,
    children: Children,
    mailboxes: Vec<Mailbox>,
    programs: Programs,
    running: HashMap<Pid, Running>,
    remains: Remains,
    voices: Voices,
    faults: Faults,
    counters: Counters,
    /// Of each mount of each site, how many programs a worker may have run at once: its share of `concurrency`.
    shares: Vec<Vec<usize>>,
    /// When it began to stop.
    stopping: Option<Instant>,
}

/// A program that runs.
#[derive(Debug)]
struct Running {
    /// Which worker asked for it, by index and by epoch.
    mailbox: usize,
    worker: u64,
    /// The worker's number for the request.
    id: u64,
    mount: MountId,
    /// What it is called in the log.
    name: String,
    /// UNIQUE_ID.
    unique: String,
    /// How the log names the request.
    request: String,
    began: Instant,
    /// When it has run for too long.
    wall_at: Instant,
    overran: bool,
    grace: Duration,
    background: bool,
    /// When it is killed, once it was told to end.
    kill_at: Option<Instant>,
    killed: bool,
}

impl Running {
    fn deadline(&self) -> Option<Instant> {
        match self.kill_at {
            None => Some(self.wall_at),
            Some(at) => (!self.killed).then_some(at),
        }
    }
}

impl Spawner {
    fn new(start: Start) -> Result<Self, Error> {
        let Start { generation, epoch, config, channel, workers, user, counters } = start;
        let children = Children::block_all()?;
        process::adopt_orphans()?;
        process::keep_capabilities_from_programs();
        let programs = Programs::new(Rc::clone(&config), user.clone(), generation)?;
        let share = |mount: &Mount| admission::share(mount.concurrency, config.server.workers);
        let shares = config.sites.iter().map(|site| site.mounts.iter().map(share).collect()).collect();
        // What seccomp and the rights of a process hold for, they hold for all it starts; set-user-ID
        // programs would gain nothing.
        if !programs.may_gain_privileges() {
            let entered = Sandbox::spawner().enter(None)?;
            entered.failed.iter().for_each(|failed| tracing::warn!("the spawner runs without {failed}"));
        }
        remains::end_abandoned(programs.unique_prefix());
        let mut spawner = Self {
            epoch,
            channel: Some(channel),
            children,
            mailboxes: workers.into_iter().map(Mailbox::new).collect(),
            programs,
            running: HashMap::new(),
            remains: Remains::default(),
            voices: Voices::default(),
            faults: Faults::default(),
            counters,
            shares,
            stopping: None,
        };
        (0..spawner.mailboxes.len()).for_each(|index| spawner.tell(index, 0, ToWorker::Hello));
        Ok(spawner)
    }

    fn serve(&mut self) -> Result<(), Error> {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        while !self.is_over() {
            self.turn(&mut buffer)?;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let idle = self.running.is_empty() && self.remains.is_empty();
        self.stopping.is_some_and(|since| idle || since.elapsed() > STOP_GRACE + STOP_PATIENCE)
    }

    /// Waits for something to happen, and does what is to be done about it.
    fn turn(&mut self, buffer: &mut [u8]) -> Result<(), Error> {
        let limit = self.deadline().map(|until| until.saturating_duration_since(Instant::now()));
        let mut fds = vec![(self.children.as_fd(), For::Reading)];
        fds.extend(self.channel.iter().map(|channel| (channel.as_fd(), For::Reading)));
        let mailboxes_at = fds.len();
        let which = |is: fn(&Mailbox) -> bool| {
            let mailboxes = self.mailboxes.iter().enumerate();
            mailboxes.filter(|(_, mailbox)| is(mailbox)).map(|(index, _)| index).collect::<Vec<_>>()
        };
        let heard = which(Mailbox::is_heard);
        fds.extend(heard.iter().map(|index| (self.mailboxes[*index].fd(), For::Reading)));
        let voices_at = fds.len();
        fds.extend(self.voices.fds().map(|fd| (fd, For::Reading)));
        let full_at = fds.len();
        let full = which(Mailbox::is_full);
        fds.extend(full.iter().map(|index| (self.mailboxes[*index].fd(), For::Writing)));
        let happened = wait::wait(&fds, limit)?;

        self.voices.hear(&happened[voices_at..full_at]);
        if happened[0] && self.children.take() {
            self.reap();
        }
        if mailboxes_at == 2 && happened[1] {
            self.obey();
        }
        for (at, index) in heard.into_iter().enumerate() {
            if happened[mailboxes_at + at] {
                self.listen(index, buffer);
            }
        }
        self.mailboxes.iter_mut().for_each(Mailbox::flush);
        self.keep_deadlines();
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        let running = self.running.values().filter_map(Running::deadline).min();
        let patience = self.stopping.map(|since| since + STOP_GRACE + STOP_PATIENCE);
        [running, self.remains.deadline(), patience].into_iter().flatten().min()
    }

    /// Takes an order of the supervisor; that it is gone is one.
    fn obey(&mut self) {
        let Some(channel) = &self.channel else { return };
        let mut note = [0; 16];
        match pass::receive(channel, &mut note) {
            Err(Errno::AGAIN) => {}
            Ok((length, _)) if length > 0 && &note[..length] != STOP => {
                tracing::warn!("the supervisor sent a note that is none");
            }
            Ok((0, _)) | Err(_) => {
                self.channel = None;
                self.stop();
            }
            Ok(_) => self.stop(),
        }
    }

    fn stop(&mut self) {
        if self.stopping.is_none() {
            self.stopping = Some(Instant::now());
            let all: Vec<Pid> = self.running.keys().copied().collect();
            all.into_iter().for_each(|pid| self.end(pid, Why::Stop.text()));
        }
    }

    /// Takes the messages of a worker, as long as it takes the answers.
    fn listen(&mut self, index: usize, buffer: &mut [u8]) {
        for _ in 0..MESSAGES_A_TURN {
            if !self.mailboxes[index].is_heard() {
                return;
            }
            let (length, descriptors) = match self.mailboxes[index].receive(buffer) {
                Ok(Received::Message(length, descriptors)) => (length, descriptors),
                Ok(Received::Nothing) => return,
                // The supervisor holds the other end too: either it is gone, or done with us, and says so on its
                // channel, or the worker has ended what all its lives share.
                Ok(Received::End) => {
                    tracing::debug!("worker {index} will say nothing more");
                    return;
                }
                Err(errno) => {
                    tracing::error!("the connection with worker {index} is broken: {errno}");
                    return;
                }
            };
            let Some(message) = Message::<ToRunner>::decode(&buffer[..length]) else {
                self.faults.log(&format!("worker {index} sent a message that is none"));
                continue;
            };
            self.handle(index, message, descriptors);
        }
    }

    fn handle(&mut self, index: usize, message: Message<ToRunner>, descriptors: Vec<OwnedFd>) {
        let Message { from, to, what } = message;
        if !is_epoch_of(from, index, self.mailboxes.len()) {
            self.faults.log(&format!("worker {index} speaks as if it were another"));
            return;
        }
        if self.mailboxes[index].is_new(from) {
            let dead = self.running.iter().filter(|(_, one)| one.mailbox == index && one.worker != from);
            let dead: Vec<Pid> = dead.map(|(pid, _)| *pid).collect();
            dead.into_iter().for_each(|pid| self.end(pid, "its worker is gone"));
        }
        if to != self.epoch && what != ToRunner::Hello {
            return;
        }
        match what {
            ToRunner::Hello => self.tell(index, from, ToWorker::Hello),
            ToRunner::Start(start) => {
                let started = match self.has_room(index, from, start.mount) {
                    false => Err(Refusal::Busy),
                    true => self.start(index, from, &start, descriptors),
                };
                if let Err(why) = started {
                    self.counters.add(Counter::ProgramsRefused, 1);
                    self.tell(index, from, ToWorker::Refused { id: start.id, why });
                }
            }
            ToRunner::End { id, why } => {
                let is_it = |one: &Running| (one.mailbox, one.worker, one.id) == (index, from, id);
                let found = self.running.iter().find(|(_, one)| is_it(one)).map(|(pid, _)| *pid);
                if let Some(pid) = found {
                    self.end(pid, why.text());
                }
            }
        }
    }

    /// Whether one more may run. A worker asks for no more than its share, so this is for one that was taken over.
    /// What its earlier lives began does not keep a new one from working, but neither is that forgotten while it
    /// runs: it may be as many again.
    fn has_room(&self, index: usize, from: u64, mount: MountId) -> bool {
        let mounts = self.shares.get(usize::from(mount.site));
        let Some(share) = mounts.and_then(|mounts| mounts.get(usize::from(mount.mount))) else { return true };
        let (mut now, mut ever) = (0, 0);
        for one in self.running.values().filter(|one| (one.mailbox, one.mount) == (index, mount)) {
            ever += 1;
            now += usize::from(one.worker == from);
        }
        self.stopping.is_none() && now < *share && ever < 2 * *share
    }

    fn start(
        &mut self,
        index: usize,
        from: u64,
        start: &messages::Start,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        let id = start.id;
        let Started { pid, script, unique, request, wall, grace, background, stderr } =
            self.programs.start(from, start, descriptors)?;
        let (began, name) = (Instant::now(), String::from_utf8_lossy(&script.file).into_owned());
        self.voices.add(stderr, pid, &name, &request);
        let running = Running {
            mailbox: index,
            worker: from,
            id,
            mount: start.mount,
            name,
            unique,
            request,
            began,
            wall_at: began + wall,
            overran: false,
            grace,
            background,
            kill_at: None,
            killed: false,
        };
        self.running.insert(pid, running);
        self.counters.add(Counter::ProgramsStarted, 1);
        self.counters.add(Counter::ProgramsRunning, 1);
        let pid = pid.as_raw_nonzero().get().unsigned_abs();
        self.tell(index, from, ToWorker::Started { id, pid, nph: script.nph });
        Ok(())
    }

    /// Tells a program to end, for a reason that the log gives.
    fn end(&mut self, pid: Pid, why: &str) {
        let Some(running) = self.running.get_mut(&pid).filter(|running| running.kill_at.is_none()) else {
            return;
        };
        let most = if self.stopping.is_some() { STOP_GRACE } else { Duration::MAX };
        running.kill_at = Some(Instant::now() + running.grace.min(most));
        let Running { name, request, .. } = running;
        tracing::debug!(
            "{name} (pid {pid}, request {request}) is told to end: {why}",
            pid = pid.as_raw_nonzero()
        );
        process::end_group(pid, Kill::Gently);
        self.counters.add(Counter::ProgramsEnded, 1);
    }

    /// Takes the endings of programs, and of orphans that became ours.
    fn reap(&mut self) {
        while let Some((pid, how, cpu)) = process::reap_any() {
            if let Some(running) = self.running.remove(&pid) {
                self.ended(pid, &running, how, cpu);
            }
        }
    }

    fn ended(&mut self, pid: Pid, running: &Running, how: Ended, cpu: Duration) {
        self.counters.sub(Counter::ProgramsRunning, 1);
        let Running { mailbox, worker, id, overran, .. } = *running;
        self.tell(mailbox, worker, ToWorker::Exited { id, how, cpu, overran });
        self.voices.last_words(pid);
        let Running { name, request, began, .. } = running;
        let (took, used) = (began.elapsed().as_millis(), cpu.as_millis());
        let pid_shown = pid.as_raw_nonzero();
        let what = format_args!(
            "{name} (pid {pid_shown}, request {request}) ended: {how}; it took {took} ms, of the processor {used} ms"
        );
        match (how, running.kill_at) {
            (Ended::Killed(_), None) => self.faults.log(&what.to_string()),
            _ => tracing::debug!("{what}"),
        }
        // A program that was told to end takes all with it that it started; one that ended well may have
        // left something on purpose, as git does with its housekeeping.
        if running.kill_at.is_some() || !running.background {
            let kill_at = running.kill_at.unwrap_or_else(|| Instant::now() + running.grace);
            self.remains.add(Remain::new(pid, running.unique.clone(), kill_at));
        }
    }

    fn keep_deadlines(&mut self) {
        let now = Instant::now();
        let due = self.running.iter().filter(|(_, one)| one.deadline().is_some_and(|at| at <= now));
        let due: Vec<Pid> = due.map(|(pid, _)| *pid).collect();
        for pid in due {
            let Some(running) = self.running.get_mut(&pid) else { continue };
            if running.kill_at.is_some() {
                running.killed = true;
                process::end_group(pid, Kill::Surely);
            } else {
                running.overran = true;
                let (name, request) = (&running.name, &running.request);
                let pid_shown = pid.as_raw_nonzero();
                self.faults.log(&format!("{name} (pid {pid_shown}, request {request}) ran for too long"));
                self.end(pid, "it ran for too long");
            }
        }
        let running = &self.running;
        self.remains.sweep(now, |pid| running.contains_key(&pid));
    }

    fn tell(&mut self, index: usize, to: u64, what: ToWorker) {
        self.mailboxes[index].send(&Message { from: self.epoch, to, what });
    }
}
