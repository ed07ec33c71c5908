//! Replacing the program by another version of itself, without closing a listener and without a moment
//! in which nobody serves.
//!
//! The process stays the same, and so do its children: the workers of the old program go on serving
//! while the new one reads its configuration and makes its own first generation, which then takes over
//! as after a reload. Listeners and the workers' channels stay open across exec; one variable of the
//! environment says which numbers they have, and what was counted so far. What the old workers count from
//! then on is lost to the new program: their pages have no name by which it could map them.

use std::ffi::{CString, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Supervisor;
use super::children::Process;
use super::companions::{CompanionId, Kind};
use super::listeners::{Adopted, Origin};
use super::machine::{Role, WorkerId};
use crate::observe::health::Health;
use crate::observe::names::Counters;
use crate::observe::status::Carried;
use crate::sys::process::Pid;
use crate::sys::{process, sockets};

/// Where the inheritance is announced.
const VARIABLE: &str = "HTTPD_INHERITANCE";

/// How long the new program may check the configuration. Meanwhile nothing is supervised.
const CHECK_LIMIT: Duration = Duration::from_secs(20);

/// How often is looked whether the check has ended.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// What one program leaves to the next.
#[derive(Debug, Serialize, Deserialize)]
pub struct Inheritance {
    /// For whom it is; anybody else has only inherited the variable.
    pid: u32,
    listeners: Vec<Listener>,
    workers: Vec<Worker>,
    #[serde(default)]
    companions: Vec<Companion>,
    drain: Duration,
    /// What all processes have counted so far.
    #[serde(default)]
    counted: Carried,
    /// A file with the ticket keys.
    tickets: Option<i32>,
    /// Whether those are from files.
    #[serde(default)]
    tickets_from_files: bool,
    /// The page on which stands whether the server serves: the process that answers for it reads on there.
    #[serde(default)]
    health: Option<i32>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Listener {
    fd: i32,
    from_activation: bool,
    file: Option<(u64, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Worker {
    generation: u64,
    index: u32,
    pid: i32,
    channel: Option<i32>,
    is_leaving: bool,
    core: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Companion {
    generation: u64,
    /// Its name, since the other program may have kinds that this one has not.
    kind: String,
    pid: i32,
    channel: Option<i32>,
}

/// What the program before this one has left, if there was one.
pub fn inherit() -> Option<Inheritance> {
    let announced: Inheritance = serde_json::from_str(&std::env::var(VARIABLE).ok()?).ok()?;
    (announced.pid == std::process::id()).then_some(announced)
}

impl Supervisor {
    /// Takes over the workers, and returns the listeners.
    pub(super) fn take_over(
        &mut self,
        inheritance: Option<Inheritance>,
        now: Instant,
    ) -> Result<Vec<Adopted>, String> {
        let Some(inheritance) = inheritance else { return Ok(Vec::new()) };
        let adopt = |fd: Option<i32>| sockets::adopt(fd).pop().flatten();
        if let Some(file) = adopt(inheritance.tickets) {
            self.secure.import(file, inheritance.tickets_from_files);
        }
        if let Some(file) = adopt(inheritance.health)
            && let Ok(health) = Health::of(&file)
        {
            (self.health, self.health_file) = (health, file);
        }
        self.gone.carry(&inheritance.counted);
        let mut inherited = Vec::new();
        for worker in inheritance.workers {
            let Some(pid) = Pid::from_raw(worker.pid) else { continue };
            let id = WorkerId { generation: worker.generation, index: worker.index };
            let counters = Counters::new().map_err(|error| error.to_string())?;
            let channel = adopt(worker.channel);
            self.processes.insert(id, Process::new(pid, channel, counters, worker.core));
            inherited.push((id, if worker.is_leaving { Role::Leaving } else { Role::Current }));
        }
        self.machine.inherit(&inherited, inheritance.drain, now);
        for Companion { generation, kind, pid, channel } in inheritance.companions {
            let channel = adopt(channel);
            // The end of its channel dismisses one of which nothing is known here.
            let (Some(kind), Some(pid)) = (Kind::of_name(&kind), Pid::from_raw(pid)) else { continue };
            let id = CompanionId { generation, kind };
            let counters = Counters::new().map_err(|error| error.to_string())?;
            self.attending.insert(id, Process::new(pid, channel, counters, None));
            self.companions.inherit(id, now);
        }
        let mut adopted = Vec::new();
        for Listener { fd, from_activation, file } in inheritance.listeners {
            let Some(fd) = adopt(Some(fd)) else { continue };
            let Ok(Some(place)) = sockets::place(&fd) else { continue };
            let origin = if from_activation { Origin::Activation } else { Origin::Predecessor };
            adopted.push(Adopted { place, fd, origin, file });
        }
        Ok(adopted)
    }

    /// Replaces the program. Returns when that cannot be done; then nothing has changed.
    pub(super) fn replace(&mut self) {
        if !self.machine.may_begin() {
            tracing::warn!("not replacing the program while generations come and go: try again later");
            return;
        }
        let Some(program) = self.program.clone() else {
            tracing::error!("not replacing the program: its path is not known");
            return;
        };
        tracing::info!("replacing the program by {}", program.display());
        if let Err(reason) = check(&program) {
            tracing::error!("not replacing the program: {reason}");
            return;
        }
        self.notify.reloading(crate::sys::wait::monotonic());
        let tickets = self.secure.export();
        let reason = self.execute(&program, tickets.as_ref());
        for fd in self.lasting() {
            // Workers never execute anything, so that an error here would do no harm.
            let _ = sockets::keep_across_exec(fd, false);
        }
        self.reload_failed(reason);
    }

    /// What stays open across exec.
    fn lasting(&self) -> impl Iterator<Item = &OwnedFd> {
        let children = self.processes.values().chain(self.attending.values());
        let channels = children.filter_map(|process| process.channel.as_ref());
        let metrics = self.current_metrics().map(|listener| &listener.fd);
        let listeners = self.listeners.all().map(|(fd, ..)| fd);
        listeners.chain(metrics).chain(channels).chain([&self.health_file])
    }

    /// Returns why it failed.
    fn execute(&self, program: &Path, tickets: Option<&OwnedFd>) -> String {
        let prepared = self.inheritance(tickets).and_then(|inheritance| {
            let program = CString::new(program.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
            let text = serde_json::to_string(&inheritance).map_err(|error| error.to_string())?;
            // What was announced to this program stands at other numbers by now, if at all.
            let stale = [VARIABLE, "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];
            let others = std::env::vars_os().filter(|(name, _)| stale.iter().all(|stale| name != stale));
            let variables = others.chain([(VARIABLE.into(), text.into())]);
            let environment = variables.map(|(mut name, value): (OsString, OsString)| {
                name.push("=");
                name.push(value);
                name
            });
            Ok((program, strings(std::env::args_os())?, strings(environment)?))
        });
        match prepared {
            Ok((program, arguments, environment)) => {
                process::replace(&program, &arguments, &environment).to_string()
            }
            Err(reason) => reason,
        }
    }

    fn inheritance(&self, tickets: Option<&OwnedFd>) -> Result<Inheritance, String> {
        let keep = |fd| sockets::keep_across_exec(fd, true).map_err(|errno| errno.to_string());
        let mut listeners = Vec::new();
        for (fd, origin, file) in self.listeners.all() {
            listeners.push(Listener { fd: keep(fd)?, from_activation: origin == Origin::Activation, file });
        }
        if let Some(metrics) = self.current_metrics() {
            let from_activation = metrics.origin == Origin::Activation;
            listeners.push(Listener { fd: keep(&metrics.fd)?, from_activation, file: metrics.file });
        }
        let current = self.machine.current().map(|generation| generation.id);
        let mut workers = Vec::new();
        for (id, process) in &self.processes {
            workers.push(Worker {
                generation: id.generation,
                index: id.index,
                pid: process.pid.as_raw_nonzero().get(),
                channel: process.channel.as_ref().map(keep).transpose()?,
                is_leaving: Some(id.generation) != current,
                core: process.core,
            });
        }
        let mut companions = Vec::new();
        for (id, process) in &self.attending {
            companions.push(Companion {
                generation: id.generation,
                kind: id.kind.name().to_owned(),
                pid: process.pid.as_raw_nonzero().get(),
                channel: process.channel.as_ref().map(keep).transpose()?,
            });
        }
        let drain = self.current_config().map(|config| config.server.drain).unwrap_or_default();
        let tickets = tickets.map(keep).transpose()?;
        let health = Some(keep(&self.health_file)?);
        Ok(Inheritance {
            pid: std::process::id(),
            listeners,
            workers,
            companions,
            drain,
            counted: self.sums().carried(),
            tickets,
            tickets_from_files: self.secure.is_from_files(),
            health,
        })
    }
}

/// Has the new program check the configuration: a program that cannot even do that must not replace one
/// that serves.
fn check(program: &Path) -> Result<(), String> {
    let mut command = Command::new(program);
    command.arg("-t").args(std::env::args_os().skip(1)).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("it does not take the configuration ({status})")),
            Ok(None) if begun.elapsed() < CHECK_LIMIT => std::thread::sleep(CHECK_EVERY),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err("it could not check the configuration in time".to_owned());
            }
        }
    }
}

fn strings(strings: impl Iterator<Item = OsString>) -> Result<Vec<CString>, String> {
    strings.map(|string| CString::new(string.into_vec()).map_err(|error| error.to_string())).collect()
}
