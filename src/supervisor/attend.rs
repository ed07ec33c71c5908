//! Doing what [`super::companions`] decides: forking, telling and burying the processes beside the workers.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use super::Supervisor;
use super::children::Process;
use super::companions::{Action, CompanionId, Event, Kind};
use super::launch::{self, Confined, Launched};
use crate::config::Config;
use crate::gateway::start::{self as gateway, Runner};
use crate::metrics::start as metrics;
use crate::observe::status;
use crate::precompress::start as precompressor;
use crate::sys::wait::For;
use crate::sys::{Error, pass, process};
use crate::worker::start;

/// What runs in the supervisor's children.
#[derive(Debug)]
pub struct Programs {
    /// The life of a worker.
    pub worker: fn(start::Start) -> ExitCode,
    /// The life of a spawner.
    pub spawner: Program<gateway::Start>,
    /// The life of a module host.
    pub modules: Program<gateway::Start>,
    /// The life of a precompressor.
    pub precompressor: Program<precompressor::Start>,
    /// The life of the process that serves metrics.
    pub metrics: Program<metrics::Start>,
}

/// What runs in a companion.
#[derive(Debug)]
pub struct Program<S> {
    /// Whether a configuration needs it.
    pub is_wanted: fn(&Config) -> bool,
    /// Its life.
    pub live: fn(S) -> ExitCode,
}

impl Programs {
    fn are_wanted(&self, kind: Kind, config: &Config) -> bool {
        match kind {
            Kind::Spawner => (self.spawner.is_wanted)(config),
            Kind::Modules => (self.modules.is_wanted)(config),
            Kind::Precompressor => (self.precompressor.is_wanted)(config),
            Kind::Metrics => (self.metrics.is_wanted)(config),
        }
    }
}

/// The connections between the workers of a generation and one of its runners: the ends of both, by the worker's
/// index. Both are kept, so that whoever dies can be forked anew on the same one.
type Ends = Vec<(OwnedFd, OwnedFd)>;

/// Those with all its runners, in the order of [`Runner::ALL`]; none where there is nothing to run.
#[derive(Debug, Default)]
pub(super) struct Mailboxes([Ends; 2]);

/// What a runner is as a companion.
fn kind_of(runner: Runner) -> Kind {
    match runner {
        Runner::Spawner => Kind::Spawner,
        Runner::ModuleHost => Kind::Modules,
    }
}

impl Supervisor {
    /// The mailboxes a generation of this configuration needs.
    pub(super) fn mailboxes(&self, config: &Config) -> Result<Mailboxes, Error> {
        let mut mailboxes = Mailboxes::default();
        for (ends, runner) in mailboxes.0.iter_mut().zip(Runner::ALL) {
            if self.programs.are_wanted(kind_of(runner), config) {
                *ends = (0..config.server.workers).map(|_| pass::channel()).collect::<Result<_, _>>()?;
            }
        }
        Ok(mailboxes)
    }

    /// A worker's ends of its mailboxes, for a new life.
    pub(super) fn mailboxes_of(
        &mut self,
        generation: u64,
        index: u32,
    ) -> Result<Option<gateway::Mailboxes>, Error> {
        let Some(generation) = self.generations.get(&generation) else { return Ok(None) };
        let mut fds = [None, None];
        for (fd, ends) in fds.iter_mut().zip(&generation.mailboxes.0) {
            *fd = ends.get(index as usize).map(|(ours, _)| duplicate(ours)).transpose()?;
        }
        if fds.iter().all(Option::is_none) {
            return Ok(None);
        }
        let workers = generation.config.server.workers as usize;
        self.epoch = gateway::epoch_after(self.epoch, index, workers);
        Ok(Some(gateway::Mailboxes { fds, epoch: self.epoch }))
    }

    /// Begins or goes on to have a companion, where the configuration of its generation needs one.
    pub(super) fn want(&mut self, kind: Kind, generation: u64) {
        let config = self.generations.get(&generation).map(|generation| &generation.config);
        if config.is_some_and(|config| self.programs.are_wanted(kind, config)) {
            self.attend(Event::Wanted(CompanionId { generation, kind }));
        }
    }

    /// Stops the companions that are for nothing any more.
    pub(super) fn dismiss(&mut self, is_for_nothing: impl Fn(CompanionId) -> bool) {
        let ids: Vec<_> = self.companions.all().iter().map(|companion| companion.id).collect();
        ids.into_iter().filter(|id| is_for_nothing(*id)).for_each(|id| self.attend(Event::Unwanted(id)));
    }

    /// Has the policy decide, and does what it says; what follows from that, likewise.
    pub(super) fn attend(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut actions = Vec::new();
            self.companions.handle(event, Instant::now(), &mut actions);
            for action in actions {
                match action {
                    Action::Fork(id) => {
                        if let Err(reason) = self.accompany(id) {
                            events.push(Event::Died { id, ended: None, reason: Some(reason) });
                        }
                    }
                    Action::Stop(id) => self.stop_companion(id),
                    Action::Kill(id) => {
                        if let Some(process) = self.attending.get(&id) {
                            process::kill(process.pid);
                        }
                    }
                    Action::Mourn { id, how, times, again_in } => {
                        let (name, generation) = (id.kind.name(), id.generation);
                        let again = super::again(times, again_in, "it is not wanted any more");
                        tracing::warn!("the {name} of generation {generation} ended: {how}; {again}");
                        self.waits_no_longer(id);
                    }
                }
            }
        }
    }

    /// The channels of companions, to be waited for.
    pub(super) fn companions_channels(&self) -> (Vec<CompanionId>, Vec<(BorrowedFd<'_>, For)>) {
        let open = self.attending.iter().filter_map(|(id, process)| Some((*id, process.channel.as_ref()?)));
        open.map(|(id, channel)| (id, (channel.as_fd(), For::Reading))).unzip()
    }

    /// The companions, for the status.
    pub(super) fn companions_status(&self) -> Vec<status::Companion> {
        let tell = |companion: &super::companions::Companion| {
            let process = self.attending.get(&companion.id);
            status::Companion {
                name: companion.id.kind.name().to_owned(),
                generation: companion.id.generation,
                pid: process.map(|process| process.pid.as_raw_nonzero().get().unsigned_abs()),
                state: companion.state.name().to_owned(),
                uptime: process.map(|_| companion.lives.born.elapsed().as_secs()).unwrap_or_default(),
                restarts: companion.lives.restarts,
            }
        };
        self.companions.all().iter().map(tell).collect()
    }

    fn accompany(&mut self, id: CompanionId) -> Result<(), String> {
        let Some(generation) = self.generations.get(&id.generation) else {
            return Err("the program it was part of has been replaced".to_owned());
        };
        let config = Rc::clone(&generation.config);
        let user = generation.user.clone();
        let launched = match id.kind {
            Kind::Spawner | Kind::Modules => {
                let (runner, live) = match id.kind {
                    Kind::Modules => (Runner::ModuleHost, self.programs.modules.live),
                    _ => (Runner::Spawner, self.programs.spawner.live),
                };
                self.epoch += 1;
                let (epoch, ends) = (self.epoch, &generation.mailboxes.0[runner as usize]);
                launch::accompany(
                    id.kind.name(),
                    // What programs may gain is for their mount to say; the module host first looks into itself.
                    Confined::No,
                    live,
                    |channel, counters| {
                        let workers = ends.iter().map(|(_, theirs)| duplicate(theirs));
                        let workers = workers.collect::<Result<_, _>>()?;
                        let generation = id.generation;
                        Ok(gateway::Start { generation, epoch, config, channel, workers, user, counters })
                    },
                    |start| start.workers.iter().chain([&start.channel]).map(|fd| fd.as_raw_fd()).collect(),
                )
            }
            Kind::Precompressor => launch::accompany(
                id.kind.name(),
                Confined::Yes,
                self.programs.precompressor.live,
                |channel, counters| {
                    let generation = id.generation;
                    Ok(precompressor::Start { generation, config, channel, user, counters })
                },
                |start| vec![start.channel.as_raw_fd()],
            ),
            Kind::Metrics => {
                let Some(listener) = generation.metrics.clone() else {
                    return Err("the listener of the metrics is closed".to_owned());
                };
                let health = self.health.clone();
                launch::accompany(
                    id.kind.name(),
                    Confined::Yes,
                    self.programs.metrics.live,
                    |channel, _| {
                        let listener = duplicate(&listener.fd)?;
                        let server_name = config.server.name.clone();
                        Ok(metrics::Start { listener, channel, health, server_name, user })
                    },
                    |start| vec![start.channel.as_raw_fd(), start.listener.as_raw_fd()],
                )
            }
        };
        let Launched { pid, channel, counters } = launched.map_err(|error| error.to_string())?;
        self.attending.insert(id, Process::new(pid, Some(channel), counters, None));
        Ok(())
    }

    fn stop_companion(&self, id: CompanionId) {
        let channel = self.attending.get(&id).and_then(|process| process.channel.as_ref());
        let Some(channel) = channel else { return };
        let order = match id.kind {
            Kind::Spawner | Kind::Modules => gateway::STOP,
            Kind::Precompressor => precompressor::STOP,
            Kind::Metrics => metrics::STOP,
        };
        // One that is just dying needs no order; one whose channel is full is killed soon.
        let _ = pass::send(channel, order, None);
    }
}

fn duplicate(fd: &OwnedFd) -> Result<OwnedFd, Error> {
    fd.try_clone().map_err(|error| Error::from_io("hand on", "a connection between processes", &error))
}
