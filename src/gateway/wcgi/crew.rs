//! The threads of the host, and what they do with a message.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::complaints::Shared;
use super::engine::Engine;
use super::modules::Modules;
use super::run::{Ending, Limits, Remains, Run};
use super::stop::{Announce, Stop};
use super::wasi::{Preopened, Strings};
use crate::config::{Mount, Programs};
use crate::gateway::environment;
use crate::gateway::lines::Allowance;
use crate::gateway::messages::{MESSAGE_BYTES_MAX, Message, MountId, Refusal, Start, ToSpawner, ToWorker};
use crate::gateway::script::{self, Found};
use crate::sys::beneath::{self, Kind, Look};
use crate::sys::compiled::Compiled;
use crate::sys::process::Ended;
use crate::sys::wait::{self, For};
use crate::sys::{self, Errno, pass};

/// How much later a module is stopped than its mount says. A worker counts silence itself; it has to be first, or
/// the pipe that is closed here looks like an answer of nothing, which is 502 instead of 504.
const SLACK: Duration = Duration::from_millis(500);

/// How often modules that compute are looked after. Their deadlines are as exact as this.
const TICK: Duration = Duration::from_millis(10);

/// More than any message that ends a run.
const END_BYTES_MAX: usize = 64;

/// Ticks without any run after which ticking stops: waking it costs the next request a change of context.
const QUIET_TICKS: u32 = 100;

/// What the threads of a host share.
pub struct Host {
    channel: OwnedFd,
    /// A thread that runs a module reads no messages, and all may run one: so ends come by another way, to the
    /// thread that makes time pass.
    ends_channel: OwnedFd,
    engine: Engine,
    modules: Modules,
    mounts: HashMap<MountId, Mounted>,
    /// How every UNIQUE_ID of the generation begins.
    prefix: String,
    /// Its process.
    pid: u32,
    threads: AtomicU32,
    idle: AtomicUsize,
    running: AtomicUsize,
    dozing: AtomicBool,
    over: AtomicBool,
    ends: Mutex<Ends>,
    complaints: Shared,
}

/// A mount of modules.
pub struct Mounted {
    /// As configured.
    pub mount: Mount,
    /// The root of its site.
    pub root: PathBuf,
    /// Bytes of memory of each run.
    pub memory: u64,
    /// Directories its modules are given.
    pub directories: Vec<Arc<Preopened>>,
}

/// The runs that can be told to end.
#[derive(Default)]
struct Ends {
    runs: HashMap<Asked, Arc<AtomicBool>>,
    /// Told to end before their thread had begun with them.
    early: VecDeque<Asked>,
}

/// What a request is known by: the epoch of the worker that asked, and its number for it.
type Asked = (u64, u64);

impl Host {
    /// A host of some mounts, which keeps compiled modules in a directory if it is given one.
    ///
    /// # Errors
    /// Never: no call is defined twice.
    pub fn new(
        (channel, ends_channel): (OwnedFd, OwnedFd),
        engine: Engine,
        mounts: HashMap<MountId, Mounted>,
        compiled: Option<Compiled>,
        prefix: &str,
    ) -> wasmtime::Result<Arc<Self>> {
        let modules = Modules::new(&engine.engine, compiled)?;
        Ok(Arc::new(Self {
            channel,
            ends_channel,
            engine,
            modules,
            mounts,
            prefix: prefix.to_owned(),
            pid: std::process::id(),
            threads: AtomicU32::new(0),
            idle: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            dozing: AtomicBool::new(false),
            over: AtomicBool::new(false),
            ends: Mutex::default(),
            complaints: Arc::new(Mutex::new(Allowance::of_all(Instant::now()))),
        }))
    }

    /// Answers until the other end of the channel is closed; returns while runs may still be at it. The thread
    /// that calls makes time pass and runs no module, so that nothing keeps it from returning.
    ///
    /// # Errors
    /// When the channel or a thread cannot be had.
    pub fn serve(self: &Arc<Self>) -> Result<(), sys::Error> {
        wait::set_blocking(&self.channel, true)
            .map_err(|errno| sys::Error::new("wait on", "the channel of the spawner", errno))?;
        self.hire(&thread::current()).map_err(|error| sys::Error::from_io("start", "a thread", &error))?;
        self.tick();
        Ok(())
    }

    /// One thread: takes messages, and runs what they ask for.
    fn work(self: &Arc<Self>, ticker: &thread::Thread) {
        let mut message = vec![0; MESSAGE_BYTES_MAX];
        let mut buffer = Vec::new();
        while !self.over.load(Ordering::Relaxed) {
            self.idle.fetch_add(1, Ordering::SeqCst);
            let received = pass::receive_all(&self.channel, &mut message);
            let nobody_waits = self.idle.fetch_sub(1, Ordering::SeqCst) == 1;
            let (length, descriptors) = match received {
                Ok((0, _)) => break,
                Ok(received) => received,
                Err(errno) => {
                    tracing::error!("the channel of the spawner: {errno}");
                    break;
                }
            };
            match Message::<ToSpawner<'_>>::decode(message.get(..length).unwrap_or_default()) {
                Some(Message { from, to, what: ToSpawner::Start(start) }) => {
                    // Without another thread, requests wait for one that is there.
                    if nobody_waits && let Err(error) = self.hire(ticker) {
                        tracing::warn!("cannot start another thread for modules: {error}");
                    }
                    self.running.fetch_add(1, Ordering::SeqCst);
                    if self.dozing.load(Ordering::SeqCst) {
                        ticker.unpark();
                    }
                    self.start((from, to), &start, descriptors, &mut buffer);
                    self.running.fetch_sub(1, Ordering::SeqCst);
                }
                _ => tracing::warn!("the spawner sent a message that asks for no run"),
            }
        }
        self.over.store(true, Ordering::Relaxed);
        ticker.unpark();
    }

    /// Starts another thread, if there may be one.
    fn hire(self: &Arc<Self>, ticker: &thread::Thread) -> io::Result<()> {
        let more = |threads| (threads < self.engine.runs).then_some(threads + 1);
        if self.threads.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_err() {
            return Ok(());
        }
        let (host, ticker) = (Arc::clone(self), ticker.clone());
        let thread = thread::Builder::new().name("module".to_owned());
        let hired = thread.spawn(move || host.work(&ticker));
        if hired.is_err() {
            self.threads.fetch_sub(1, Ordering::SeqCst);
        }
        hired.map(drop)
    }

    /// Makes the engine's time pass.
    fn tick(&self) {
        let mut quiet = 0;
        while !self.over.load(Ordering::Relaxed) {
            quiet = if self.running.load(Ordering::SeqCst) == 0 { quiet + 1 } else { 0 };
            if quiet > QUIET_TICKS {
                // Who begins a run counts it first and looks at the flag then; so one of both sees the other.
                self.dozing.store(true, Ordering::SeqCst);
                if self.running.load(Ordering::SeqCst) == 0 {
                    thread::park();
                }
                self.dozing.store(false, Ordering::SeqCst);
                quiet = 0;
            }
            thread::sleep(TICK);
            self.take_ends();
            self.engine.engine.increment_epoch();
        }
    }

    /// Takes note of the runs that are to end.
    fn take_ends(&self) {
        let mut message = [0; END_BYTES_MAX];
        loop {
            match pass::receive(&self.ends_channel, &mut message) {
                // The spawner is gone, which whoever runs a module would learn late.
                Ok((0, _)) => return self.over.store(true, Ordering::Relaxed),
                Ok((length, _)) => match Message::<ToSpawner<'_>>::decode(&message[..length]) {
                    Some(Message { from, what: ToSpawner::End { id, .. }, .. }) => {
                        self.ends().end((from, id));
                    }
                    _ => tracing::warn!("the spawner sent a message that ends no run"),
                },
                Err(_) => return,
            }
        }
    }

    fn start(
        self: &Arc<Self>,
        (from, to): (u64, u64),
        start: &Start<'_>,
        descriptors: Vec<OwnedFd>,
        buffer: &mut Vec<u8>,
    ) {
        let id = start.id;
        let ended = self.ends().begin((from, id));
        let run = match self.prepare((from, to), start, descriptors, ended) {
            Ok(run) => run,
            Err(why) => {
                self.ends().runs.remove(&(from, id));
                return self.say(from, to, ToWorker::Refused { id, why });
            }
        };
        let (label, began) = (run.label.clone(), Instant::now());
        let Remains { ending, cpu, buffer: used, store } = run.go(std::mem::take(buffer));
        self.ends().runs.remove(&(from, id));
        let (how, overran) = judge(&ending, |fault| self.warn(&label, fault));
        let (all, used_up) = (began.elapsed().as_millis(), cpu.as_millis());
        tracing::debug!("{label} ended: {how}; it took {all} ms, of the processor {used_up} ms");
        self.say(from, to, ToWorker::Exited { id, how, cpu, overran });
        *buffer = used;
        drop(store);
    }

    /// Everything up to the first instruction.
    fn prepare(
        self: &Arc<Self>,
        (from, to): (u64, u64),
        start: &Start<'_>,
        descriptors: Vec<OwnedFd>,
        ended: Arc<AtomicBool>,
    ) -> Result<Run<'_>, Refusal> {
        let mounted = self.mounts.get(&start.mount).ok_or(Refusal::NotFound)?;
        let mut descriptors = descriptors.into_iter();
        let output = descriptors.next().ok_or(Refusal::Broken)?;
        let input = descriptors.next().filter(|_| start.input);
        // What was found on the way down is looked at again at the end.
        let (mut last, mut seen) = (Vec::new(), None);
        let script = script::resolve(&mounted.mount, &mounted.root, start.path, |path| {
            if seen.is_none() || last != path {
                seen = beneath::look_anywhere(Path::new(OsStr::from_bytes(path))).ok();
                last = path.to_vec();
            }
            found(seen.as_ref())
        })?;
        let look = seen.ok_or(Refusal::NotFound)?;
        // In a directory of modules, other files are their data.
        if matches!(mounted.mount.programs, Programs::Directory(_)) && !script.file.ends_with(b".wasm") {
            return Err(Refusal::Forbidden);
        }
        let shown = String::from_utf8_lossy(&script.file);
        let program = self.modules.find(&script.file, &look).map_err(|why| {
            self.warn(&shown, &why);
            Refusal::Broken
        })?;
        let mut arguments = Strings::default();
        let (root, mount) = (&mounted.root, &mounted.mount);
        environment::arguments(mount, &script, start, |parts| arguments.push(parts));
        let unique = format!("{}{from}-{}", self.prefix, start.id);
        let mut variables = Strings::default();
        environment::environment((root, mount), &script, &unique, start, |parts| variables.push(parts));
        let request = environment::request_id(start);
        let request = request.map_or(unique.into(), String::from_utf8_lossy);
        Ok(Run {
            program,
            limits: Limits {
                memory: mounted.memory,
                timeout: mount.timeout + SLACK,
                wall: mount.wall + SLACK,
            },
            directories: &mounted.directories,
            label: format!("{shown} (request {request})"),
            complaints: Arc::clone(&self.complaints),
            arguments,
            variables,
            input,
            output,
            ended,
            announce: self.announcement(from, to, start.id),
        })
    }

    fn announcement(self: &Arc<Self>, from: u64, to: u64, id: u64) -> Announce {
        let host = Arc::clone(self);
        // What the number of a process is good for, telling who is who, the number of the host is not.
        let pid = self.pid;
        Box::new(move || host.say(from, to, ToWorker::Started { id, pid, nph: false }))
    }

    /// Logs a fault of a module, as far as there is room among what all of them may log.
    fn warn(&self, label: &str, fault: &dyn Display) {
        let room = self.complaints.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
        if room.is_some() {
            tracing::warn!("{label}: {fault}");
        }
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, from: u64, to: u64, what: ToWorker) {
        let mut bytes = Vec::with_capacity(64);
        // The answer goes to whom the request came from.
        Message { from: to, to: from, what }.encode(&mut bytes);
        loop {
            match pass::send(&self.channel, &bytes, None) {
                Err(Errno::AGAIN) => {
                    let room = wait::wait(&[(self.channel.as_fd(), For::Writing)], None);
                    if room.is_err() {
                        return;
                    }
                }
                // A spawner that is gone needs no answer.
                _ => return,
            }
        }
    }
}

impl Ends {
    /// Ends that came early and whose requests never came are of no use for long.
    const EARLY_MAX: usize = 64;

    fn begin(&mut self, id: Asked) -> Arc<AtomicBool> {
        let early = self.early.iter().position(|other| *other == id);
        let ended = Arc::new(AtomicBool::new(early.is_some()));
        if let Some(at) = early {
            self.early.remove(at);
        }
        self.runs.insert(id, Arc::clone(&ended));
        ended
    }

    fn end(&mut self, id: Asked) {
        if let Some(ended) = self.runs.get(&id) {
            ended.store(true, Ordering::Relaxed);
            return;
        }
        if self.early.len() == Self::EARLY_MAX {
            self.early.pop_front();
        }
        self.early.push_back(id);
    }
}

fn found(look: Option<&Look>) -> Found {
    match look.map(|look| look.kind) {
        Some(Kind::File) => Found::File { executable: true },
        Some(Kind::Directory) => Found::Directory,
        Some(Kind::Special | Kind::Symlink) => Found::Special,
        None => Found::Nothing,
    }
}

/// What the worker is told of an ending, in the words for processes: by their own fault they abort, others
/// terminate them, and who takes too long is killed.
fn judge(ending: &Ending, warn: impl FnOnce(&dyn Display)) -> (Ended, bool) {
    const ABORT: i32 = 6;
    const KILL: i32 = 9;
    const TERM: i32 = 15;
    match ending {
        Ending::Exited(code) => (Ended::Exited(*code), false),
        Ending::Stopped(stop @ (Stop::Timeout | Stop::Wall)) => {
            warn(stop);
            (Ended::Killed(KILL), true)
        }
        Ending::Stopped(Stop::Gone | Stop::Ended | Stop::Exit(_)) => (Ended::Killed(TERM), false),
        Ending::Stopped(stop @ Stop::NoMemory) => {
            warn(stop);
            (Ended::Killed(ABORT), false)
        }
        Ending::Failed(why) => {
            warn(why);
            (Ended::Killed(ABORT), false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_comes_first_still_counts() {
        let mut ends = Ends::default();
        ends.end((1, 7));
        assert!(!ends.begin((2, 7)).load(Ordering::Relaxed), "another worker's");
        assert!(ends.begin((1, 7)).load(Ordering::Relaxed));
        let ended = ends.begin((1, 9));
        ends.end((1, 9));
        assert!(ended.load(Ordering::Relaxed));
        for id in 100..300 {
            ends.end((1, id));
        }
        assert_eq!(ends.early.len(), Ends::EARLY_MAX);
        assert!(
            ends.begin((1, 299)).load(Ordering::Relaxed) && !ends.begin((1, 100)).load(Ordering::Relaxed)
        );
    }

    #[test]
    fn endings_are_told_in_the_words_for_processes() {
        let check = |ending: Ending, expected| assert_eq!(judge(&ending, |_| ()), expected, "{ending:?}");
        check(Ending::Exited(3), (Ended::Exited(3), false));
        check(Ending::Stopped(Stop::Timeout), (Ended::Killed(9), true));
        check(Ending::Stopped(Stop::Wall), (Ended::Killed(9), true));
        check(Ending::Stopped(Stop::Gone), (Ended::Killed(15), false));
        check(Ending::Failed("trap".to_owned()), (Ended::Killed(6), false));
    }
}
