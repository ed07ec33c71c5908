//! The module host, as the spawner keeps it: begun when there are mounts of modules, begun anew when it dies,
//! and handed the requests of workers as they came.
//!
//! The host answers through the spawner, and knows requests as workers do, so messages pass unchanged both
//! ways. What the spawner notes is which requests are under way: the workers hear of their end even when the
//! host dies.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::config::{Config, MountKind};
use crate::gateway::messages::{Message, MountId, Refusal, Start, ToSpawner, ToWorker, Why};
use crate::observe::log;
use crate::sys::process::{self, Ended, Fork, Pid, User};
use crate::sys::{Errno, Error, pass};

/// The first pause after a death; each further one doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Who lived for so long died of something new.
const LONG_LIFE: Duration = Duration::from_secs(60);

/// Messages taken before others have a turn.
const MESSAGES_A_TURN: usize = 64;

/// How soon ends that found no room are said again: the host takes them as often.
const ENDS_AGAIN: Duration = Duration::from_millis(10);

/// The longest message of the host is far shorter.
const MESSAGE_BYTES_MAX: usize = 256;

/// The module host, alive or not.
#[cfg_attr(not(feature = "wcgi"), expect(dead_code, reason = "only a host asks who it is"))]
pub struct Guests {
    config: Rc<Config>,
    user: Option<User>,
    /// How every UNIQUE_ID of this generation begins.
    prefix: String,
    life: Life,
    /// The pause after the next death.
    pause: Duration,
    /// Requests under way, by the epoch of their worker and its number for them.
    runs: HashMap<(u64, u64), Run>,
    /// Ends that found no room.
    unsaid: VecDeque<Vec<u8>>,
    /// When they are said again.
    say_at: Option<Instant>,
}

/// A state of the host.
enum Life {
    /// There are no modules to run, or it was told to stop.
    Over,
    /// It is to be begun at this time.
    Pause(Instant),
    /// It runs.
    Lives { pid: Pid, channels: Channels, since: Instant },
}

/// Our ends of the connections with the host.
struct Channels {
    /// Requests, and what it says of them.
    requests: OwnedFd,
    /// Ends of requests, which must not wait behind requests that wait themselves.
    ends: OwnedFd,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Its worker, by index.
    mailbox: usize,
    /// The spawner's epoch that it was asked of.
    to: u64,
    mount: MountId,
    /// Whether the worker was told that it runs.
    is_started: bool,
}

/// Something to tell a worker: its index, and what.
pub type Told = (usize, Message<ToWorker>);

impl Guests {
    /// A host that is begun as soon as [`Guests::keep`] is called, if the configuration has modules.
    pub fn new(config: Rc<Config>, user: Option<User>, prefix: &str) -> Self {
        let mut mounts = config.sites.iter().flat_map(|site| &site.mounts);
        let is_wanted = mounts.any(|mount| matches!(mount.kind, MountKind::Module(_)));
        let life = if is_wanted { Life::Pause(Instant::now()) } else { Life::Over };
        let (runs, unsaid) = (HashMap::new(), VecDeque::new());
        let prefix = prefix.to_owned();
        Self { config, user, prefix, life, pause: PAUSE_MIN, runs, unsaid, say_at: None }
    }

    /// Whether a mount is one of modules.
    pub fn answers(&self, mount: MountId) -> bool {
        let site = self.config.sites.get(usize::from(mount.site));
        let mount = site.and_then(|site| site.mounts.get(usize::from(mount.mount)));
        mount.is_some_and(|mount| matches!(mount.kind, MountKind::Module(_)))
    }

    /// What is to be read when there is something to read.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.life {
            Life::Lives { channels, .. } => Some(channels.requests.as_fd()),
            Life::Over | Life::Pause(_) => None,
        }
    }

    /// The process of the host, while it runs.
    pub fn host(&self) -> Option<Pid> {
        match self.life {
            Life::Lives { pid, .. } => Some(pid),
            Life::Over | Life::Pause(_) => None,
        }
    }

    /// When [`Guests::keep`] is to be called next.
    pub fn deadline(&self) -> Option<Instant> {
        match self.life {
            Life::Pause(until) => Some(until),
            Life::Over | Life::Lives { .. } => self.say_at,
        }
    }

    /// Begins the host when its time has come, and says again what found no room.
    pub fn keep(&mut self, now: Instant) {
        if self.say_at.is_some_and(|at| at <= now) {
            self.say_ends(now);
        }
        if !matches!(self.life, Life::Pause(until) if until <= now) {
            return;
        }
        self.life = match self.fork() {
            Ok((pid, channels)) => Life::Lives { pid, channels, since: now },
            Err(error) => {
                tracing::error!("the module host cannot be begun: {error}");
                Life::Pause(now + self.next_pause())
            }
        };
    }

    /// Hands a request on, as it came.
    ///
    /// # Errors
    /// When there is no host, it has too much to do, or the worker gave the number of one that runs.
    pub fn start(
        &mut self,
        mailbox: usize,
        (from, to): (u64, u64),
        &Start { id, mount, .. }: &Start,
        bytes: &[u8],
        descriptors: &[OwnedFd],
    ) -> Result<(), Refusal> {
        let Life::Lives { channels, .. } = &self.life else { return Err(Refusal::Busy) };
        if self.runs.contains_key(&(from, id)) {
            return Err(Refusal::Broken);
        }
        let borrowed: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
        pass::send_all(&channels.requests, bytes, &borrowed).map_err(|errno| {
            // That it is gone, its death will say.
            if errno != Errno::AGAIN && errno != Errno::PIPE {
                tracing::error!("the module host cannot be sent a request: {errno}");
            }
            Refusal::Busy
        })?;
        self.runs.insert((from, id), Run { mailbox, to, mount, is_started: false });
        Ok(())
    }

    /// Requests under way: their worker by index and by epoch, and their mount.
    pub fn running(&self) -> impl Iterator<Item = (usize, u64, MountId)> {
        self.runs.iter().map(|((from, _), run)| (run.mailbox, *from, run.mount))
    }

    /// Has a request ended, if it is one of ours.
    pub fn end(&mut self, from: u64, id: u64, why: Why) {
        if self.runs.contains_key(&(from, id)) {
            self.send_end(from, id, why);
        }
    }

    /// Has all requests ended that earlier lives of a worker made.
    pub fn end_all_but(&mut self, mailbox: usize, living: u64) {
        let dead = self.runs.iter().filter(|((from, _), run)| run.mailbox == mailbox && *from != living);
        let dead: Vec<_> = dead.map(|(asked, _)| *asked).collect();
        for (from, id) in dead {
            self.send_end(from, id, Why::Gone);
        }
    }

    /// Takes what the host says.
    pub fn hear(&mut self, told: &mut Vec<Told>) {
        let Life::Lives { channels, .. } = &self.life else { return };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        for _ in 0..MESSAGES_A_TURN {
            let length = match pass::receive(&channels.requests, &mut bytes) {
                Ok((0, _)) | Err(Errno::AGAIN) => return,
                Ok((length, _)) => length,
                Err(errno) => {
                    tracing::error!("the connection with the module host is broken: {errno}");
                    return;
                }
            };
            match Message::<ToWorker>::decode(&bytes[..length]) {
                Some(message) => told.extend(note(&mut self.runs, message)),
                None => tracing::error!("the module host sent a message that is none"),
            }
        }
    }

    /// Takes note of an ended child; whether it was the host. What it had begun has ended with it.
    pub fn ended(&mut self, child: Pid, how: Ended, now: Instant, told: &mut Vec<Told>) -> bool {
        let Life::Lives { pid, since, .. } = self.life else { return false };
        if pid != child {
            return false;
        }
        // Its last words.
        self.hear(told);
        if now.saturating_duration_since(since) > LONG_LIFE {
            self.pause = PAUSE_MIN;
        }
        let pause = self.next_pause();
        tracing::error!(
            "the module host ended: {how}; {} requests with it; another begins in {} ms",
            self.runs.len(),
            pause.as_millis()
        );
        self.life = Life::Pause(now + pause);
        self.bury(pid, how, told);
        true
    }

    /// Has it stop, and all that it runs.
    pub fn stop(&mut self, told: &mut Vec<Told>) {
        if let Life::Lives { pid, .. } = self.life {
            const TERM: i32 = 15;
            // The end of its channels is its order to stop.
            self.life = Life::Over;
            self.bury(pid, Ended::Killed(TERM), told);
        }
        self.life = Life::Over;
    }

    fn bury(&mut self, pid: Pid, how: Ended, told: &mut Vec<Told>) {
        self.unsaid.clear();
        self.say_at = None;
        for ((from, id), run) in self.runs.drain() {
            let pid = pid.as_raw_nonzero().get().unsigned_abs();
            let started = (!run.is_started).then_some(ToWorker::Started { id, pid, nph: false });
            let exited = ToWorker::Exited { id, how, cpu: Duration::ZERO, overran: false };
            let all = started.into_iter().chain([exited]);
            told.extend(all.map(|what| (run.mailbox, Message { from: run.to, to: from, what })));
        }
    }

    fn send_end(&mut self, from: u64, id: u64, why: Why) {
        let mut bytes = Vec::new();
        Message { from, to: 0, what: ToSpawner::End { id, why } }.encode(&mut bytes);
        self.unsaid.push_back(bytes);
        self.say_ends(Instant::now());
    }

    fn say_ends(&mut self, now: Instant) {
        self.say_at = None;
        let Life::Lives { channels, .. } = &self.life else { return self.unsaid.clear() };
        while let Some(message) = self.unsaid.front() {
            match pass::send(&channels.ends, message, None) {
                Err(Errno::AGAIN) => {
                    self.say_at = Some(now + ENDS_AGAIN);
                    return;
                }
                // A host that is gone has ended all it ran.
                Ok(()) | Err(_) => drop(self.unsaid.pop_front()),
            }
        }
    }

    fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE_MAX);
        pause
    }

    fn fork(&self) -> Result<(Pid, Channels), Error> {
        let (requests, their_requests) = pass::channel()?;
        let (ends, their_ends) = pass::channel()?;
        let theirs = Channels { requests: their_requests, ends: their_ends };
        match process::fork()? {
            Fork::Parent(pid) => Ok((pid, Channels { requests, ends })),
            Fork::Child => {
                // Unwinding out of here would have the spawner's values dropped in the child.
                let live = AssertUnwindSafe(|| i32::from(self.live(theirs) != ExitCode::SUCCESS));
                match std::panic::catch_unwind(live) {
                    Ok(code) => std::process::exit(code),
                    Err(_) => std::process::abort(),
                }
            }
        }
    }

    /// The host's whole life, in its own process.
    fn live(&self, Channels { requests, ends }: Channels) -> ExitCode {
        log::speak_as("modules");
        if let Err(error) = process::close_all_but([requests.as_raw_fd(), ends.as_raw_fd()]) {
            tracing::error!("{error}");
            return ExitCode::FAILURE;
        }
        #[cfg(feature = "wcgi")]
        return crate::gateway::wcgi::run(crate::gateway::wcgi::Start {
            config: &self.config,
            channel: requests,
            ends,
            user: self.user.as_ref(),
            prefix: &self.prefix,
        });
        // No configuration with modules gets past its check in such a build.
        #[cfg(not(feature = "wcgi"))]
        return ExitCode::FAILURE;
    }
}

/// Which worker a message is for; `None` where nobody waits for it any more.
fn note(runs: &mut HashMap<(u64, u64), Run>, message: Message<ToWorker>) -> Option<Told> {
    let (id, is_last) = match message.what {
        ToWorker::Hello => return None,
        ToWorker::Started { id, .. } => (id, false),
        ToWorker::Refused { id, .. } | ToWorker::Exited { id, .. } => (id, true),
    };
    let run = runs.get_mut(&(message.to, id))?;
    run.is_started = true;
    let mailbox = run.mailbox;
    if is_last {
        runs.remove(&(message.to, id));
    }
    Some((mailbox, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Environment};
    use crate::gateway::messages::StartWriter;

    const MOUNT: MountId = MountId { site: 0, mount: 0 };
    const STARTED: ToWorker = ToWorker::Started { id: 5, pid: 3, nph: false };

    fn guests() -> Guests {
        let environment = Environment::of_this_process();
        let config = config::glimpse(None, &environment).expect("the defaults");
        Guests::new(Rc::new(config), None, "test-")
    }

    fn exited(how: Ended) -> ToWorker {
        ToWorker::Exited { id: 5, how, cpu: Duration::ZERO, overran: false }
    }

    #[test]
    fn without_modules_there_is_no_host() {
        let mut guests = guests();
        guests.keep(Instant::now());
        assert!(guests.fd().is_none() && guests.deadline().is_none());
        assert!(!guests.answers(MOUNT));
        let mut buffer = Vec::new();
        StartWriter::new(&mut buffer, (1, 2), 3, MOUNT, false, b"/").expect("it fits").finish();
        let message = Message::<ToSpawner>::decode(&buffer).expect("a message");
        let ToSpawner::Start(start) = message.what else { panic!("a start") };
        assert_eq!(guests.start(0, (1, 2), &start, &buffer, &[]), Err(Refusal::Busy));
    }

    #[test]
    fn answers_find_their_worker_until_the_last_one() {
        let run = Run { mailbox: 4, to: 2, mount: MOUNT, is_started: false };
        let mut runs = HashMap::from([((1, 5), run)]);
        let message = |to, what| Message { from: 2, to, what };
        let last = exited(Ended::Exited(0));
        assert_eq!(note(&mut runs, message(9, STARTED)), None, "another worker's");
        assert_eq!(note(&mut runs, message(1, STARTED)), Some((4, message(1, STARTED))));
        assert!(runs[&(1, 5)].is_started);
        assert_eq!(note(&mut runs, message(1, last)), Some((4, message(1, last))));
        assert_eq!(note(&mut runs, message(1, last)), None, "twice");
    }

    #[test]
    fn what_a_dead_host_had_begun_has_ended() {
        let mut guests = guests();
        let killed = Ended::Killed(11);
        let pid = Pid::from_raw(3).expect("a number");
        for (is_started, expected) in [(true, vec![exited(killed)]), (false, vec![STARTED, exited(killed)])] {
            guests.runs.insert((1, 5), Run { mailbox: 4, to: 2, mount: MOUNT, is_started });
            let mut told = Vec::new();
            guests.bury(pid, killed, &mut told);
            let all = expected.into_iter().map(|what| (4, Message { from: 2, to: 1, what }));
            assert_eq!(told, all.collect::<Vec<_>>());
            assert!(guests.runs.is_empty());
        }
    }

    #[test]
    fn ends_that_find_no_room_are_said_again() {
        let mut guests = guests();
        let (requests, _theirs) = pass::channel().expect("a channel");
        let (ends, host) = pass::channel().expect("a channel");
        let (pid, since) = (Pid::from_raw(3).expect("a number"), Instant::now());
        guests.life = Life::Lives { pid, channels: Channels { requests, ends }, since };
        let mut said = 0;
        while guests.deadline().is_none() {
            guests.send_end(1, said, Why::Gone);
            said += 1;
        }
        guests.send_end(1, said, Why::Gone);
        let mut heard = Vec::new();
        loop {
            let mut bytes = [0; MESSAGE_BYTES_MAX];
            while let Ok((length, _)) = pass::receive(&host, &mut bytes) {
                match Message::<ToSpawner>::decode(&bytes[..length]).expect("a message").what {
                    ToSpawner::End { id, .. } => heard.push(id),
                    other => panic!("{other:?}"),
                }
            }
            let Some(again) = guests.deadline() else { break };
            guests.keep(again);
        }
        assert!(heard.into_iter().eq(0..=said), "each once, in order");
    }

    #[test]
    fn pauses_grow_to_a_bound() {
        let mut guests = guests();
        let pauses: Vec<_> = (0..9).map(|_| guests.next_pause().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    }
}
