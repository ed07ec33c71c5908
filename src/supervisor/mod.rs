//! The supervisor: makes workers from a configuration, keeps them alive, replaces them as a whole when
//! the configuration changes, and ends when they have ended.
//!
//! One loop waits for signals, notes of workers, clients of the control socket and deadlines. What they
//! mean is decided in [`machine`]; here it is done. The supervisor forks without exec and therefore stays
//! single-threaded for life; it serves nobody itself and never waits for anybody but the kernel.

mod activation;
mod ask;
mod attend;
mod children;
mod companions;
mod confinement;
mod control;
mod launch;
mod listeners;
mod lives;
mod machine;
mod monitor;
mod notify;
mod secure;
mod store;
mod succession;
mod view;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::config::{AccessLog, Config, Environment, Level, Precompress, Source};
use crate::observe::health::Health;
use crate::observe::log;
use crate::observe::names::Counter;
use crate::observe::status::{Reload, Sums};
use crate::sys::process;
use crate::sys::signals::{Signal, Signals};
use crate::sys::user::User;
use crate::sys::wait::{self, For};
use crate::sys::{Errno, Error, append, pass, user};
use crate::worker::start::{Order, Start};

use attend::Mailboxes;
use children::Process;
use companions::{CompanionId, Companions, Kind};
use control::Control;
use launch::Launched;
use listeners::Listeners;
use machine::{Action, Event, Machine, WorkerId};
use notify::Notify;
use secure::{Secure, Secured};
use store::Store;

pub use ask::{Show, status};
pub use attend::{Program, Programs};

/// Serves `config` until told to stop; reads `source` anew on every reload.
pub fn run(source: Source, config: Config) -> ExitCode {
    let environment = Environment::of_this_process();
    let load = move || source.load(&environment).map_err(|report| report.to_string());
    let programs = Programs {
        worker: crate::worker::run,
        spawner: Program {
            is_wanted: crate::gateway::spawner::is_wanted,
            live: crate::gateway::spawner::run,
        },
        modules: Program { is_wanted: crate::gateway::wcgi::is_wanted, live: crate::gateway::wcgi::run },
        precompressor: Program { is_wanted: crate::precompress::is_wanted, live: crate::precompress::run },
        metrics: Program { is_wanted: |config| config.metrics.is_some(), live: crate::metrics::run },
    };
    run_with(load, config, programs)
}

/// [`run`] with children and a way to read the configuration that tests may choose.
///
/// Must be called while the process is single-threaded and has opened nothing yet.
pub fn run_with(
    load: impl Fn() -> Result<Config, String> + 'static,
    config: Config,
    programs: Programs,
) -> ExitCode {
    log::start(level(config.log.level));
    let ended = Supervisor::new(Box::new(load), programs).and_then(|mut supervisor| supervisor.serve(config));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            complain(&reason);
            ExitCode::FAILURE
        }
    }
}

/// How often a service manager hears that files are compressed before serving.
const WAITING_EVERY: Duration = Duration::from_secs(5);

struct Supervisor {
    load: Box<dyn Fn() -> Result<Config, String>>,
    programs: Programs,
    program: Option<PathBuf>,
    machine: Machine,
    companions: Companions,
    signals: Signals,
    listeners: Listeners,
    generations: BTreeMap<u64, Generation>,
    processes: BTreeMap<WorkerId, Process>,
    /// The processes of the companions.
    attending: BTreeMap<CompanionId, Process>,
    /// The number of the latest life of a process that has, or is at the end of, a mailbox.
    epoch: u64,
    control: Option<Control>,
    notify: Notify,
    store: Store,
    secure: Secure,
    /// When the service manager next expects a sign of life.
    alive_at: Option<Instant>,
    reload_wanted: bool,
    /// Whether a root has moved to where the current workers may not read.
    renewal_wanted: bool,
    last_reload: Option<Reload>,
    /// What processes did that are gone.
    gone: Sums,
    health: Health,
    /// The file its page is of, for a successor.
    health_file: OwnedFd,
    /// Whether it was said what runs here.
    introduced: bool,
    cores: Vec<u32>,
    began: Instant,
    /// The same, in seconds since 1970.
    started: u64,
    /// The first generation, which begins when its precompressor has made its first pass.
    awaited: Option<(CompanionId, Event)>,
    awaited_told: Instant,
    ended: Option<Result<(), String>>,
}

/// What the workers of one generation have in common.
struct Generation {
    config: Rc<Config>,
    access_log: Option<OwnedFd>,
    user: Option<User>,
    tls: Secured,
    mailboxes: Mailboxes,
    metrics: Option<Rc<monitor::Listener>>,
}

impl Supervisor {
    fn new(load: Box<dyn Fn() -> Result<Config, String>>, programs: Programs) -> Result<Self, String> {
        // First, while the numbers of inherited descriptors can mean nothing else.
        let activated = activation::adopt();
        let inheritance = succession::inherit();
        let signals = Signals::block().map_err(|error| error.to_string())?;
        if let Err(error) = process::raise_descriptor_limit() {
            tracing::warn!("{error}");
        }
        confinement::tell_lacks();
        let now = Instant::now();
        let (health, health_file) = Health::new().map_err(|error| error.to_string())?;
        let notify = Notify::from_environment();
        let mut supervisor = Self {
            load,
            programs,
            program: std::env::current_exe().ok(),
            machine: Machine::default(),
            companions: Companions::default(),
            signals,
            listeners: Listeners::default(),
            generations: BTreeMap::new(),
            processes: BTreeMap::new(),
            attending: BTreeMap::new(),
            epoch: 0,
            control: None,
            alive_at: notify.watchdog_every().map(|every| now + every),
            notify,
            store: Store::from_environment(),
            secure: Secure::default(),
            reload_wanted: false,
            renewal_wanted: false,
            last_reload: None,
            gone: Sums::default(),
            health,
            health_file,
            introduced: false,
            cores: process::cores(),
            began: now,
            started: now_in_seconds(),
            awaited: None,
            awaited_told: now,
            ended: None,
        };
        let adopted = supervisor.take_over(inheritance, now)?;
        supervisor.listeners = Listeners::new(activated.into_iter().chain(adopted).collect());
        Ok(supervisor)
    }

    fn serve(&mut self, config: Config) -> Result<(), String> {
        self.open_control(&config);
        tell_warnings(&config);
        if let Err(reason) = self.begin_afresh(config) {
            match self.machine.current() {
                Some(_) => self.reload_failed(reason),
                None => return Err(reason),
            }
        }
        loop {
            if self.companions.all().is_empty()
                && let Some(ended) = self.ended.take()
            {
                return ended;
            }
            self.turn().map_err(|error| error.to_string())?;
        }
    }

    /// Waits for something to happen, and does what is to be done about it.
    fn turn(&mut self) -> Result<(), Error> {
        let control = self.control.as_ref().and_then(Control::deadline);
        let processes = [self.machine.deadline(), self.companions.deadline()];
        let deadlines = processes.into_iter().chain([self.alive_at, self.secure.deadline(), control]);
        let waiting = self.awaited.as_ref().map(|_| self.awaited_told + WAITING_EVERY);
        let limit = deadlines.chain([waiting]).flatten().min();
        let limit = limit.map(|until| until.saturating_duration_since(Instant::now()));
        let mut fds = vec![(self.signals.as_fd(), For::Reading)];
        let mut speakers = Vec::new();
        for (id, process) in &self.processes {
            if let Some(channel) = &process.channel {
                fds.push((channel.as_fd(), For::Reading));
                speakers.push(*id);
            }
        }
        let (companions, channels) = self.companions_channels();
        fds.extend(channels);
        fds.extend(self.control.iter().flat_map(Control::fds));
        let happened = wait::wait(&fds, limit)?;
        let (of_workers, rest) = happened[1..].split_at(speakers.len());
        for (id, _) in speakers.iter().zip(of_workers).filter(|(_, happened)| **happened) {
            self.listen_to(*id);
        }
        for (id, _) in companions.iter().zip(rest).filter(|(_, happened)| **happened) {
            self.listen_to_companion(*id);
        }
        while let Some(signal) = self.signals.take() {
            self.obey(signal);
        }
        self.handle(Event::Tick);
        self.attend(companions::Event::Tick);
        self.sign_of_life();
        self.tell_of_waiting();
        self.watch_certificates();
        if self.reload_wanted && self.awaited.is_none() && self.machine.may_begin() {
            self.reload_wanted = false;
            self.reload();
        }
        if self.renewal_wanted && self.awaited.is_none() && self.machine.may_begin() {
            self.renewal_wanted = false;
            self.renew();
        }
        self.say_health();
        // Last, so that an answer tells what this turn has done.
        if let Some(mut control) = self.control.take() {
            control.turn(Instant::now(), || self.status());
            self.control = Some(control);
        }
        Ok(())
    }

    fn obey(&mut self, signal: Signal) {
        match signal {
            Signal::Child => self.reap(),
            Signal::Stop => {
                tracing::info!("{}", if self.machine.is_stopping() { "stopping now" } else { "draining" });
                self.notify.stopping();
                self.awaited = None;
                if self.machine.is_stopping() {
                    self.attend(companions::Event::Hurry);
                }
                self.handle(Event::Stop);
                self.dismiss(|id| id.kind == Kind::Precompressor);
            }
            Signal::Reload => self.reload_wanted = true,
            Signal::Reopen => self.reopen_access_logs(),
            Signal::Replace if self.awaited.is_some() => {
                tracing::warn!("not replaced: nothing serves before its files are compressed");
            }
            Signal::Replace => self.replace(),
        }
    }

    fn sign_of_life(&mut self) {
        let now = Instant::now();
        if self.alive_at.is_some_and(|at| at <= now) {
            self.notify.alive();
            self.alive_at = self.notify.watchdog_every().map(|every| now + every);
        }
    }

    /// Has the machine decide, and does what it says; what follows from that, likewise.
    fn handle(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut actions = Vec::new();
            self.machine.handle(event, Instant::now(), &mut actions);
            for action in actions {
                if let Err(event) = self.perform(action) {
                    events.push_back(event);
                }
            }
        }
    }

    /// Does one thing; `Err` is what came of it where it could not be done.
    fn perform(&mut self, action: Action) -> Result<(), Event> {
        match action {
            Action::Fork(worker) => self.fork(worker).map_err(|reason| Event::Died {
                worker,
                ended: None,
                reason: Some(reason),
            })?,
            Action::Drain(worker) => self.tell(worker, Order::Drain),
            Action::Stop(worker) => self.tell(worker, Order::Stop),
            Action::Kill(worker) => {
                if let Some(process) = self.processes.get(&worker) {
                    process::kill(process.pid);
                }
            }
            Action::Mourn { worker, how, times, again_in } => {
                let WorkerId { generation, index } = worker;
                let again = again(times, again_in, "its generation is leaving");
                tracing::warn!("worker {index} of generation {generation} ended: {how}; {again}");
            }
            Action::Promoted(id) => self.promoted(id),
            Action::Discarded { generation, reason } => self.discarded(generation, reason),
            Action::Gone(id) => {
                self.generations.remove(&id);
                self.dismiss(|companion| companion.generation == id);
            }
            Action::Exit(ended) => {
                self.ended = Some(ended);
                self.dismiss(|_| true);
            }
        }
        Ok(())
    }

    fn fork(&mut self, id: WorkerId) -> Result<(), String> {
        let mailboxes = self.mailboxes_of(id.generation, id.index).map_err(|error| error.to_string())?;
        let Some(generation) = self.generations.get(&id.generation) else {
            return Err("the program it was part of has been replaced".to_owned());
        };
        let config = &generation.config;
        let core = match self.cores.as_slice() {
            cores if config.server.pin && !cores.is_empty() => Some(cores[id.index as usize % cores.len()]),
            _ => None,
        };
        let listeners = &self.listeners;
        let Launched { pid, channel, counters } =
            launch::launch(self.programs.worker, |channel, counters| {
                let access_log = generation.access_log.as_ref().map(OwnedFd::try_clone).transpose();
                Ok(Start {
                    index: id.index,
                    workers: config.server.workers,
                    generation: id.generation,
                    core,
                    config: Rc::clone(config),
                    listeners: listeners.of_worker(config, id.index)?,
                    channel,
                    counters,
                    access_log: access_log
                        .map_err(|error| Error::from_io("hand on", "the access log", &error))?,
                    user: generation.user.clone(),
                    tls: generation.tls.endpoint.clone(),
                    mailboxes,
                })
            })
            .map_err(|error| error.to_string())?;
        self.processes.insert(id, Process::new(pid, Some(channel), counters, core));
        Ok(())
    }

    fn tell(&self, id: WorkerId, order: Order) {
        let Some(process) = self.processes.get(&id) else { return };
        let Some(channel) = &process.channel else { return };
        let log = self.generations.get(&id.generation).and_then(|generation| generation.access_log.as_ref());
        let descriptor = if order == Order::Log { log.map(OwnedFd::as_fd) } else { None };
        if order == Order::Log && descriptor.is_none() {
            return;
        }
        match pass::send(channel, order.note(), descriptor) {
            // A worker that is just dying is mourned soon.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(errno) => tracing::warn!("telling worker {} to {order:?}: {errno}", id.index),
        }
    }

    /// Makes a generation from a configuration, and from certificates and keys as their files are now.
    fn begin_afresh(&mut self, config: Config) -> Result<(), String> {
        let tls = self.secure.read(&config, SystemTime::now())?;
        self.begin(config, tls)
    }

    /// Makes a generation.
    fn begin(&mut self, config: Config, tls: Secured) -> Result<(), String> {
        let mut generation = Generation {
            access_log: open_access_log(&config)?,
            user: find_user(&config)?,
            tls,
            mailboxes: self.mailboxes(&config).map_err(|error| error.to_string())?,
            metrics: None,
            config: Rc::new(config),
        };
        prepare_cache(&generation);
        self.listeners.open(&generation.config).map_err(|error| error.to_string())?;
        // Last of what can fail: it may take a listener that was handed to us.
        generation.metrics = self.metrics_listener(&generation.config).map_err(|error| {
            self.listeners.revert(self.current_config().as_deref());
            error.to_string()
        })?;
        confinement::tell_readable(&generation.config);
        let event =
            Event::Begin { workers: generation.config.server.workers, drain: generation.config.server.drain };
        let id = self.machine.next();
        self.generations.insert(id, generation);
        // Before the workers, so that it is small, and there when they first ask.
        self.want(Kind::Spawner, id);
        self.want(Kind::Modules, id);
        if self.is_to_wait(id) {
            tracing::info!("compressing before serving");
            let precompressor = CompanionId { generation: id, kind: Kind::Precompressor };
            self.awaited = Some((precompressor, event));
            self.want(Kind::Precompressor, id);
        } else {
            self.handle(event);
        }
        Ok(())
    }

    /// Only the first generation waits until files are compressed: later ones have one that serves meanwhile.
    fn is_to_wait(&self, id: u64) -> bool {
        let config = self.generations.get(&id).map(|generation| &generation.config);
        self.machine.current().is_none()
            && config.is_some_and(|config| {
                config.cache.precompress == Precompress::Startup && crate::precompress::is_wanted(config)
            })
    }

    /// Begins what waited for this companion; also when it died, since nothing must wait for ever.
    fn waits_no_longer(&mut self, id: CompanionId) {
        if self.awaited.as_ref().is_some_and(|(awaited, _)| *awaited == id)
            && let Some((_, event)) = self.awaited.take()
        {
            self.handle(event);
        }
    }

    /// A service manager gives up on what is not ready soon, unless it hears that there is progress.
    fn tell_of_waiting(&mut self) {
        let Some((id, _)) = &self.awaited else { return };
        if self.awaited_told.elapsed() < WAITING_EVERY {
            return;
        }
        self.awaited_told = Instant::now();
        let left = self.attending.get(id).map(|process| process.counters.get(Counter::PrecompressPending));
        self.notify.waiting(&format!("{} files to compress before serving", left.unwrap_or_default()));
    }

    fn reload(&mut self) {
        tracing::info!("reloading");
        self.notify.reloading(wait::monotonic());
        let begun = (self.load)().and_then(|config| {
            tell_warnings(&config);
            self.begin_afresh(config)
        });
        if let Err(reason) = begun {
            self.reload_failed(reason);
        }
    }

    /// Makes a generation with the same configuration whose workers may read where roots lead now. It has the
    /// certificates of the one before: those that cannot be used now are no reason to keep its roots.
    fn renew(&mut self) {
        let Some(config) = self.current_config() else { return };
        let tls = Secured::unchanged(self.endpoint().cloned());
        match self.begin(Config::clone(&config), tls) {
            Ok(()) => {
                tracing::info!("a root or the cache is now where workers may not read: beginning others")
            }
            Err(reason) => complain(&format!("a site's root has moved, the one before is served: {reason}")),
        }
    }

    fn is_current(&self, id: WorkerId) -> bool {
        self.machine.current().is_some_and(|current| current.id == id.generation)
    }

    fn promoted(&mut self, id: u64) {
        self.renewal_wanted = false;
        let Some(generation) = self.generations.get_mut(&id) else { return };
        self.secure.accept(&mut generation.tls, Instant::now());
        let config = Rc::clone(&generation.config);
        self.settle_metrics(id);
        for kind in [Kind::Precompressor, Kind::Metrics] {
            self.dismiss(|companion| companion.kind == kind && companion.generation != id);
            self.want(kind, id);
        }
        self.listeners.settle(&config);
        self.store.keep(&self.listeners, &self.notify);
        if self.control.as_ref().map(Control::path) != config.server.control.as_deref() {
            self.open_control(&config);
        }
        log::start(level(config.log.level));
        if id > 1 {
            self.last_reload = Some(Reload { succeeded: true, at: now_in_seconds(), reason: None });
        }
        if !std::mem::replace(&mut self.introduced, true) {
            self.introduction(&config).iter().for_each(|line| tracing::info!("{line}"));
        }
        let line = self.serving_line(&config);
        tracing::info!("{line}");
        self.notify.ready(&line);
    }

    fn discarded(&mut self, id: u64, reason: String) {
        self.revert_metrics(id);
        match self.machine.current() {
            Some(_) => {
                self.listeners.revert(self.current_config().as_deref());
                self.reload_failed(reason);
            }
            // The reason is told when the last worker is gone.
            None => tracing::debug!("generation {id} cannot serve: {reason}"),
        }
    }

    fn reload_failed(&mut self, reason: String) {
        let text = format!("reload failed, the generation before goes on: {reason}");
        complain(&text);
        self.notify.ready(&text);
        self.last_reload = Some(Reload { succeeded: false, at: now_in_seconds(), reason: Some(reason) });
    }

    fn current_config(&self) -> Option<Rc<Config>> {
        let current = self.machine.current()?;
        self.generations.get(&current.id).map(|generation| Rc::clone(&generation.config))
    }

    fn reopen_access_logs(&mut self) {
        for generation in self.generations.values_mut() {
            match open_access_log(&generation.config) {
                Ok(log) => generation.access_log = log,
                Err(reason) => tracing::error!("the access log stays as it was: {reason}"),
            }
        }
        for id in self.processes.keys() {
            self.tell(*id, Order::Log);
        }
        tracing::info!("reopened the access log");
    }

    fn open_control(&mut self, config: &Config) {
        // The old one goes first: the new one may be at the same place by another name.
        self.control = None;
        let Some(path) = &config.server.control else { return };
        match Control::open(path) {
            Ok(control) => self.control = Some(control),
            Err(error) => tracing::warn!("`httpd status` will not work: {error}"),
        }
    }
}

/// What becomes of a process that died.
fn again(times: u32, again_in: Option<Duration>, why_not: &str) -> String {
    match again_in {
        None => format!("not forked again: {why_not}"),
        Some(delay) if delay.is_zero() => format!("death {times}, forked again at once"),
        Some(delay) => format!("death {times}, to be forked again in {delay:?}"),
    }
}

/// Says what a configuration that was just read would better say otherwise.
fn tell_warnings(config: &Config) {
    for warning in &config.warnings {
        tracing::warn!("{}; {}", warning.headline(), warning.help);
    }
}

/// Logs a report of several lines as such.
fn complain(report: &str) {
    report.lines().for_each(|line| tracing::error!("{line}"));
}

fn find_user(config: &Config) -> Result<Option<User>, String> {
    let Some(name) = config.server.user.as_deref().filter(|_| user::is_root()) else { return Ok(None) };
    match User::find(name) {
        Ok(Some(user)) => Ok(Some(user)),
        Ok(None) => Err(format!("there is no user {name}, whom workers are to become (server.user)")),
        Err(error) => Err(error.to_string()),
    }
}

/// Gives the precompressor a place to write to. Without one, files are served as they are.
fn prepare_cache(generation: &Generation) {
    if let Some(directory) = &generation.config.cache.dir
        && crate::precompress::is_wanted(&generation.config)
        && let Err(error) = crate::precompress::start::prepare(directory, generation.user.as_ref())
    {
        tracing::warn!("{error}; files are served as they are");
    }
}

fn open_access_log(config: &Config) -> Result<Option<OwnedFd>, String> {
    let opened = match &config.log.access {
        AccessLog::Off => return Ok(None),
        AccessLog::Stdout => std::io::stdout()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| Error::from_io("duplicate", "standard output", &error)),
        AccessLog::File(path) => append::open(path),
    };
    opened.map(Some).map_err(|error| error.to_string())
}

fn level(level: Level) -> tracing::Level {
    match level {
        Level::Error => tracing::Level::ERROR,
        Level::Warn => tracing::Level::WARN,
        Level::Info => tracing::Level::INFO,
        Level::Debug => tracing::Level::DEBUG,
        Level::Trace => tracing::Level::TRACE,
    }
}

fn now_in_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
