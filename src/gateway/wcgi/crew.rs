//! The threads of the host, and what they do with a request.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::complaints::Shared;
use super::mailbox::{Asked, Book, Job, Mailbox};
use super::modules::Modules;
use super::run::{Ending, Limits, Run};
use super::stop::{Announce, Stop};
use super::wasi::{Preopened, Strings};
use crate::config::{Config, Mount, Programs};
use crate::gateway::faults::Faults;
use crate::gateway::lines::Allowance;
use crate::gateway::messages::{MESSAGE_BYTES_MAX, Message, MountId, Refusal, Start, ToRunner, ToWorker};
use crate::gateway::script::{self, Found};
use crate::gateway::start::{self, STOP};
use crate::gateway::{admission, environment};
use crate::sys::beneath::{self, Kind, Look};
use crate::sys::compiled::Compiled;
use crate::sys::process::Ended;
use crate::sys::wait::{self, For};
use crate::sys::{self, Errno, pass};

/// How much later a module is stopped than its mount says. A worker counts silence itself; it has to be first, or
/// the pipe that is closed here looks like an answer of nothing, which is 502 instead of 504.
const SLACK: Duration = Duration::from_millis(500);

/// Modules that run at once, whatever the mounts allow together: each has a thread, and 4 GiB of address space.
const RUNS_MAX: usize = 512;

/// How often modules that compute are looked after. Their deadlines are as exact as this.
const TICK: Duration = Duration::from_millis(10);

/// Ticks without any run after which ticking stops: waking it costs the next request a change of context.
const QUIET_TICKS: u32 = 100;

/// What the threads of a host share.
pub struct Host {
    channel: OwnedFd,
    mailboxes: Vec<Arc<Mailbox>>,
    engine: wasmtime::Engine,
    modules: Modules,
    mounts: HashMap<MountId, Mounted>,
    /// How every UNIQUE_ID of the generation begins.
    prefix: String,
    /// Its process.
    pid: u32,
    running: AtomicUsize,
    dozing: AtomicBool,
    over: AtomicBool,
    /// The thread that makes time pass.
    ticker: OnceLock<thread::Thread>,
    complaints: Shared,
    /// What clients and workers can provoke.
    faults: Arc<Mutex<Faults>>,
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

impl Host {
    /// A host of some mounts, which keeps compiled modules in a directory if it is given one.
    ///
    /// # Errors
    /// When a mailbox is none. Otherwise never: no call is defined twice.
    pub fn new(
        start: start::Start,
        engine: wasmtime::Engine,
        mounts: HashMap<MountId, Mounted>,
        compiled: Option<Compiled>,
    ) -> wasmtime::Result<Arc<Self>> {
        let prefix = start::unique_prefix(start.generation);
        let (workers, share) = (start.workers.len(), start.config.server.workers);
        let shares = mounts.iter().map(|(id, one)| (*id, admission::share(one.mount.concurrency, share)));
        let shares: Arc<HashMap<_, _>> = Arc::new(shares.collect());
        let threads = threads_of_one(&start.config, workers);
        let counters = Arc::new(Mutex::new(start.counters));
        let faults = Arc::default();
        let mailbox = |(index, fd)| {
            let book = Book::new(Arc::clone(&shares), threads);
            let (counters, faults) = (Arc::clone(&counters), Arc::clone(&faults));
            Mailbox::new(fd, (index, workers), start.epoch, book, counters, faults).map(Arc::new)
        };
        let mailboxes = start.workers.into_iter().enumerate().map(mailbox).collect::<Result<_, _>>()?;
        Ok(Arc::new(Self {
            channel: start.channel,
            mailboxes,
            modules: Modules::new(&engine, compiled)?,
            engine,
            mounts,
            prefix,
            pid: std::process::id(),
            running: AtomicUsize::new(0),
            dozing: AtomicBool::new(false),
            over: AtomicBool::new(false),
            ticker: OnceLock::new(),
            complaints: Arc::new(Mutex::new(Allowance::of_all(Instant::now()))),
            faults,
        }))
    }

    /// Answers until told to stop; returns while runs may still be at it. The thread that calls only listens to
    /// the supervisor, so that nothing keeps it from returning.
    ///
    /// # Errors
    /// When a thread cannot be had, or the supervisor not be listened to.
    pub fn serve(self: &Arc<Self>) -> Result<(), sys::Error> {
        let cannot = |error: io::Error| sys::Error::from_io("start", "a thread", &error);
        let host = Arc::clone(self);
        let ticker = thread::Builder::new().name("ticker".to_owned());
        let ticker = ticker.spawn(move || host.tick()).map_err(cannot)?.thread().clone();
        self.ticker.get_or_init(|| ticker);
        for mailbox in &self.mailboxes {
            self.hire(mailbox, Mailbox::greet).map_err(cannot)?;
        }
        let obeyed = self.obey();
        self.over.store(true, Ordering::Relaxed);
        self.wake_ticker();
        obeyed
    }

    /// Waits for the order to stop; that the supervisor is gone is one.
    fn obey(&self) -> Result<(), sys::Error> {
        let mut note = [0; 16];
        loop {
            wait::wait(&[(self.channel.as_fd(), For::Reading)], None)?;
            match pass::receive(&self.channel, &mut note) {
                Err(Errno::AGAIN) => {}
                Ok((length, _)) if length > 0 && &note[..length] != STOP => {
                    tracing::warn!("the supervisor sent a note that is none");
                }
                Ok(_) | Err(_) => return Ok(()),
            }
        }
    }

    /// Starts a thread for a mailbox, which does something `first`.
    fn hire(self: &Arc<Self>, mailbox: &Arc<Mailbox>, first: fn(&Mailbox)) -> io::Result<()> {
        let (host, mailbox) = (Arc::clone(self), Arc::clone(mailbox));
        let thread = thread::Builder::new().name("module".to_owned());
        let work = move || {
            first(&mailbox);
            host.work(&mailbox);
        };
        thread.spawn(work).map(drop)
    }

    /// One thread: takes requests, and runs what they ask for.
    fn work(self: &Arc<Self>, mailbox: &Arc<Mailbox>) {
        let mut message = vec![0; MESSAGE_BYTES_MAX];
        let mut buffer = Vec::new();
        while let Some(job) = mailbox.next(&mut message) {
            if job.hires
                && let Err(error) = self.hire(mailbox, |_| ())
            {
                self.fault(&format!("cannot start another thread for modules: {error}"));
                mailbox.lose_thread();
                mailbox.finish(job.asked);
                mailbox.say(job.asked.0, ToWorker::Refused { id: job.asked.1, why: Refusal::Busy });
                continue;
            }
            let bytes = message.get(..job.length).unwrap_or_default();
            let Some(Message { what: ToRunner::Start(start), .. }) = Message::<ToRunner<'_>>::decode(bytes)
            else {
                continue;
            };
            self.running.fetch_add(1, Ordering::SeqCst);
            if self.dozing.load(Ordering::SeqCst) {
                self.wake_ticker();
            }
            self.run(mailbox, &start, job, &mut buffer);
            self.running.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn wake_ticker(&self) {
        self.ticker.get().inspect(|ticker| ticker.unpark());
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
            self.engine.increment_epoch();
        }
    }

    fn run(&self, mailbox: &Arc<Mailbox>, start: &Start<'_>, job: Job, buffer: &mut Vec<u8>) {
        let (to, id) = job.asked;
        // It waited for a thread, or the order came first. Nobody needs it compiled, let alone begun.
        if job.ended.load(Ordering::Relaxed) {
            mailbox.finish((to, id));
            let how = judge(&Ending::Stopped(Stop::Ended), |_| ()).0;
            let ran = ToWorker::Ran { id, pid: self.pid, how, cpu: Duration::ZERO, overran: false };
            return mailbox.say(to, ran);
        }
        let run = match self.prepare(mailbox, start, job) {
            Ok(run) => run,
            Err(why) => {
                mailbox.finish((to, id));
                return mailbox.say(to, ToWorker::Refused { id, why });
            }
        };
        let (label, began) = (run.label.clone(), Instant::now());
        let remains = run.go(std::mem::take(buffer));
        let (how, overran) = judge(&remains.ending, |fault| self.warn(&label, fault));
        mailbox.finish((to, id));
        let (pid, cpu) = (self.pid, remains.cpu);
        let (all, used_up) = (began.elapsed().as_millis(), cpu.as_millis());
        tracing::debug!("{label} ended: {how}; it took {all} ms, of the processor {used_up} ms");
        // One word where that is all there is to say: it wakes the worker once.
        mailbox.say(
            to,
            match remains.announced {
                true => ToWorker::Exited { id, how, cpu, overran },
                false => ToWorker::Ran { id, pid, how, cpu, overran },
            },
        );
        *buffer = remains.close();
    }

    /// Everything up to the first instruction.
    fn prepare(
        &self,
        mailbox: &Arc<Mailbox>,
        start: &Start<'_>,
        Job { asked, ended, descriptors, .. }: Job,
    ) -> Result<Run<'_>, Refusal> {
        let mounted = self.mounts.get(&start.mount).ok_or(Refusal::NotFound)?;
        let mut descriptors = descriptors.into_iter();
        let (output, input) = (descriptors.next(), descriptors.next());
        let Some(output) = output.filter(|_| input.is_some() == start.input) else {
            // The kernel drops them where this process may open no more.
            self.fault("a request came without its pipes: are there too few descriptors?");
            return Err(Refusal::Busy);
        };
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
        let unique = format!("{}{}-{}", self.prefix, asked.0, asked.1);
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
            announce: self.announcement(mailbox, asked),
        })
    }

    fn announcement(&self, mailbox: &Arc<Mailbox>, (to, id): Asked) -> Announce {
        let mailbox = Arc::clone(mailbox);
        // What the number of a process is good for, telling who is who, the number of the host is not.
        let pid = self.pid;
        Box::new(move || mailbox.say(to, ToWorker::Started { id, pid, nph: false }))
    }

    fn fault(&self, what: &str) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).log(what);
    }

    /// Logs a fault of a module, as far as there is room among what all of them may log.
    fn warn(&self, label: &str, fault: &dyn Display) {
        let room = self.complaints.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
        if room.is_some() {
            tracing::warn!("{label}: {fault}");
        }
    }
}

/// How many threads a worker may keep busy at most, and one that listens to it. A thread has an instance of the
/// engine's pool as long as it runs something.
pub fn threads_of_one(config: &Config, workers: usize) -> usize {
    let mounts = super::mounts(config).map(|(_, _, mount, _)| mount.concurrency);
    let runs: usize = mounts.map(|count| admission::share(count, config.server.workers)).sum();
    runs.min(RUNS_MAX / workers.max(1)).max(1) + 1
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
    fn endings_are_told_in_the_words_for_processes() {
        let check = |ending: Ending, expected| assert_eq!(judge(&ending, |_| ()), expected, "{ending:?}");
        check(Ending::Exited(3), (Ended::Exited(3), false));
        check(Ending::Stopped(Stop::Timeout), (Ended::Killed(9), true));
        check(Ending::Stopped(Stop::Wall), (Ended::Killed(9), true));
        check(Ending::Stopped(Stop::Gone), (Ended::Killed(15), false));
        check(Ending::Failed("trap".to_owned()), (Ended::Killed(6), false));
    }
}
