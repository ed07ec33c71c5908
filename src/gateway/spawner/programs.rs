//! From a message to a process: the script, its environment, its user and limits.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::config::{Config, Mount, MountKind, Process};
use crate::gateway::environment;
use crate::gateway::faults::Faults;
use crate::gateway::messages::{MountId, Refusal, Start};
use crate::gateway::script::{self, Found, Script};
use crate::gateway::start;
use crate::sys::process::{Pid, User};
use crate::sys::spawn::{self, Failed, Limits, Program, Stack, Strings};
use crate::sys::{Errno, Error, user};

/// All that can be started.
pub struct Programs {
    config: Rc<Config>,
    /// Whom programs become unless their mount names another.
    user: Option<User>,
    /// The users that mounts name; `None`: there is none of that name.
    users: HashMap<String, Option<User>>,
    /// How every UNIQUE_ID of this generation begins.
    prefix: String,
    /// Standard input of programs that get none.
    nothing: File,
    stack: Stack,
    arguments: Strings,
    environment: Strings,
    faults: Faults,
}

/// A program that was started.
#[derive(Debug)]
pub struct Started {
    /// Its process, which leads its session and group.
    pub pid: Pid,
    /// Which it is.
    pub script: Script,
    /// UNIQUE_ID.
    pub unique: String,
    /// How the log names the request: as the worker's does, where it said how.
    pub request: String,
    /// How long it may run.
    pub wall: Duration,
    /// How long after SIGTERM follows SIGKILL.
    pub grace: Duration,
    /// Whether what it leaves when it ended well may go on.
    pub background: bool,
    /// Where its standard error comes out.
    pub stderr: OwnedFd,
}

impl Programs {
    /// Those of a configuration.
    ///
    /// # Errors
    /// When there is no /dev/null.
    pub fn new(config: Rc<Config>, user: Option<User>, generation: u64) -> Result<Self, Error> {
        let nothing = File::open("/dev/null").map_err(|error| Error::from_io("open", "/dev/null", &error))?;
        let mut users = HashMap::new();
        for (_, process) in processes(&config) {
            let Some(name) = &process.user else { continue };
            let found = User::find(name).unwrap_or_else(|error| {
                tracing::error!("{error}");
                None
            });
            if found.is_none() {
                tracing::error!("there is no user {name}: programs that should run as it are refused");
            }
            users.insert(name.clone(), found);
        }
        Ok(Self {
            prefix: start::unique_prefix(generation),
            config,
            user,
            users,
            nothing,
            stack: Stack::default(),
            arguments: Strings::default(),
            environment: Strings::default(),
            faults: Faults::default(),
        })
    }

    /// How every UNIQUE_ID of this generation begins.
    pub fn unique_prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether some program may gain privileges by its file.
    pub fn may_gain_privileges(&self) -> bool {
        processes(&self.config).any(|(_, process)| process.gain_privileges)
    }

    /// Starts what a worker asks for; with the message came `descriptors`.
    ///
    /// # Errors
    /// What the worker is told; for the log it is said here.
    pub fn start(
        &mut self,
        worker: u64,
        start: &Start,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Started, Refusal> {
        let config = Rc::clone(&self.config);
        let (root, mount) = mounted(&config, start.mount).ok_or_else(|| {
            self.faults.log("a worker named a mount that is not there");
            Refusal::Broken
        })?;
        let MountKind::Process(process) = &mount.kind else {
            return Err(Refusal::Broken);
        };
        let mut descriptors = descriptors.into_iter();
        let (output, input) = (descriptors.next(), descriptors.next());
        let Some(output) = output.filter(|_| input.is_some() == start.input) else {
            // The kernel drops them where this process may open no more.
            self.faults.log("a request came without its pipes: are there too few descriptors?");
            return Err(Refusal::Busy);
        };
        let script = script::resolve(mount, root, start.path, look)?;
        let user = match &process.user {
            None => self.user.as_ref(),
            Some(name) => Some(self.users.get(name).and_then(Option::as_ref).ok_or(Refusal::Broken)?),
        };
        let unique = format!("{}{worker}-{}", self.prefix, start.id);
        self.arguments.clear();
        environment::arguments(mount, &script, start, |parts| self.arguments.push(parts));
        self.environment.clear();
        let push = |parts: &[&[u8]]| self.environment.push(parts);
        environment::environment((root, mount), &script, &unique, start, push);
        // Opened by name, as /dev/stderr, a pipe is its owner's.
        let pipe = || match user {
            Some(user) => user::as_owner(user.uid, user.gid, std::io::pipe),
            None => std::io::pipe(),
        };
        let (stderr, voice) = pipe().map_err(|error| {
            self.faults.log(&format!("cannot open a pipe for messages of {}: {error}", name_of(&script)));
            Refusal::Busy
        })?;
        // A name with a zero byte cannot be found; the configuration has none.
        let c_string = |bytes: &[u8]| CString::new(bytes).map_err(|_| Refusal::NotFound);
        let program = Program {
            file: &c_string(&script.file)?,
            directory: &c_string(directory_of(&script.file))?,
            arguments: &self.arguments,
            environment: &self.environment,
            stdio: [
                input.as_ref().map_or(self.nothing.as_fd(), OwnedFd::as_fd),
                output.as_fd(),
                voice.as_fd(),
            ],
            user,
            umask: process.umask,
            limits: &limits(process),
            gain_privileges: process.gain_privileges,
        };
        let started = spawn::start(&program, &mut self.stack);
        let pid = started.map_err(|failed| {
            let (refusal, why) = refusal(&script, failed);
            self.faults.log(&why);
            refusal
        })?;
        let (wall, grace, background) = (mount.wall, process.grace, process.background);
        let request = environment::request_id(start);
        let request = request.map_or(unique.clone(), |id| String::from_utf8_lossy(id).into_owned());
        Ok(Started { pid, script, unique, request, wall, grace, background, stderr: stderr.into() })
    }
}

fn processes(config: &Config) -> impl Iterator<Item = (&Mount, &Process)> {
    config.sites.iter().flat_map(|site| &site.mounts).filter_map(|mount| match &mount.kind {
        MountKind::Process(process) => Some((mount, process)),
        MountKind::Module(_) => None,
    })
}

fn mounted(config: &Config, id: MountId) -> Option<(&Path, &Mount)> {
    let site = config.sites.get(usize::from(id.site))?;
    Some((&site.root, site.mounts.get(usize::from(id.mount))?))
}

fn look(path: &[u8]) -> Found {
    match std::fs::metadata(OsStr::from_bytes(path)) {
        Err(_) => Found::Nothing,
        Ok(facts) if facts.is_dir() => Found::Directory,
        Ok(facts) if facts.is_file() => Found::File { executable: facts.permissions().mode() & 0o111 != 0 },
        Ok(_) => Found::Special,
    }
}

fn limits(process: &Process) -> Limits {
    Limits {
        // A part of a second counts as one.
        cpu: process.cpu.map(|cpu| cpu.as_secs() + u64::from(cpu.subsec_nanos() > 0)),
        memory: process.memory,
        files: process.files.map(u64::from),
        processes: process.processes.map(u64::from),
    }
}

fn directory_of(file: &[u8]) -> &[u8] {
    match file.iter().rposition(|byte| *byte == b'/') {
        None => b".",
        Some(0) => b"/",
        Some(at) => &file[..at],
    }
}

fn name_of(script: &Script) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(&script.file)
}

/// What the worker is told, and what the log.
fn refusal(script: &Script, failed: Failed) -> (Refusal, String) {
    let Failed { step, errno } = failed;
    let (refusal, hint) = match errno {
        Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE => (Refusal::Busy, ""),
        Errno::ACCESS | Errno::PERM if step == "execute" || step == "enter its directory" => {
            (Refusal::Forbidden, " (may its user read it, and enter the directories above it?)")
        }
        Errno::NOENT if step == "execute" => {
            (Refusal::Broken, " (is the interpreter of its first line there?)")
        }
        Errno::NOEXEC => (Refusal::Broken, " (a script begins with #! and its interpreter)"),
        _ => (Refusal::Broken, ""),
    };
    (refusal, format!("cannot start {}: cannot {step}: {errno}{hint}", name_of(script)))
}
