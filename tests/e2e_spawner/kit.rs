//! Starts this program as a spawner or a module host, plays its supervisor and a worker, and ends it.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use httpd::config::{self, Environment};
use httpd::gateway::messages::{Message, MountId, StartWriter, ToRunner, ToWorker, Why};
use httpd::gateway::start::Start;
use httpd::observe::log;
use httpd::observe::names::Counters;
use httpd::sys::process::{Ended, User};
use httpd::sys::wait::{self, For};
use httpd::sys::{pass, user};

/// How long anything may take before a test gives up. Generous: machines are shared.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What the tests' worker calls itself.
pub const WORKER: u64 = 77;

/// Remains of another spawner are known by their generation, so no two tests may have the same.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// The life of a runner that was started as `NAME FOLDER GENERATION EPOCH`: its standard input is the channel, its
/// standard output the mailbox.
pub fn live(run: fn(Start) -> ExitCode, folder: &Path, generation: u64, epoch: u64) -> ExitCode {
    log::start(tracing::Level::DEBUG);
    let environment = Environment {
        root: user::is_root(),
        cores: 1,
        runtime_dir: None,
        cache_dir: None,
        modules: cfg!(feature = "wcgi"),
    };
    let config =
        config::load(&folder.join("test.toml"), &environment).unwrap_or_else(|report| panic!("{report}"));
    let own = |fd: std::os::fd::BorrowedFd| fd.try_clone_to_owned().expect("a descriptor");
    let channel = own(std::io::stdin().as_fd());
    let workers = vec![own(std::io::stdout().as_fd())];
    let user = config.server.user.as_ref().map(|name| User::find(name).expect("users").expect("such a user"));
    let counters = Counters::new().expect("a page");
    run(Start { generation, epoch, config: Rc::new(config), channel, workers, user, counters })
}

pub struct Spawner {
    /// What this program is started as.
    name: &'static str,
    pub child: Child,
    pub channel: Option<OwnedFd>,
    pub folder: PathBuf,
    pub epoch: u64,
    generation: u64,
    pub mailbox: OwnedFd,
    theirs: OwnedFd,
    pub worker: u64,
    pub next: u64,
    /// What was said in one word with what came before.
    unheard: Option<ToWorker>,
    _temporary: Rc<tempfile::TempDir>,
}

/// A request for a program.
pub struct Request {
    pub id: u64,
    pub output: File,
}

impl Spawner {
    /// With `keys` in the table of its mount, /cgi-bin/.
    pub fn start(keys: &str) -> Self {
        Self::start_as("spawn", keys)
    }

    /// The same, and who runs it goes by a name.
    pub fn start_as(name: &'static str, keys: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_owned();
        // Programs that run as somebody else look for themselves in there.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
        for name in ["root", "cgi"] {
            fs::create_dir(path.join(name)).expect("a folder");
        }
        let user = if keys.contains("user =") { "root" } else { "nobody" };
        let user = if user::is_root() && keys.contains("#as-root") { "root" } else { user };
        let text = format!(
            "[server]\nuser = \"{user}\"\ncontrol = \"\"\n[[listen]]\naddress = \"127.0.0.1:0\"\n[[site]]\nroot = \"root\"\n\
             [[site.cgi]]\npath = \"/cgi-bin/\"\ndir = \"cgi\"\n{keys}\n"
        );
        fs::write(path.join("test.toml"), text).expect("written");
        let (mailbox, theirs) = pass::channel().expect("a channel");
        let generation = GENERATION.fetch_add(1, Ordering::Relaxed);
        let (child, channel) = spawn(name, &path, generation, 1, &theirs);
        let mut spawner = Self {
            name,
            child,
            channel: Some(channel),
            folder: path,
            epoch: 1,
            generation,
            mailbox,
            theirs,
            worker: WORKER,
            next: 0,
            unheard: None,
            _temporary: Rc::new(folder),
        };
        assert_eq!(spawner.hear(), ToWorker::Hello);
        spawner
    }

    /// Another one, in place of one that died.
    pub fn again(&mut self) {
        self.epoch += 1;
        let (child, channel) = spawn(self.name, &self.folder, self.generation, self.epoch, &self.theirs);
        (self.child, self.channel) = (child, Some(channel));
    }

    /// Writes a program; what it writes to `$DIR` the test finds in the folder `out`.
    pub fn script(&self, name: &str, text: &str) {
        let path = self.folder.join("cgi").join(name);
        let out = self.folder.join("out");
        fs::create_dir_all(&out).expect("a folder");
        fs::set_permissions(&out, fs::Permissions::from_mode(0o777)).expect("a mode");
        fs::write(&path, text.replace("$DIR", &out.display().to_string())).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }

    pub fn shell(&self, name: &str, text: &str) {
        self.script(name, &format!("#!/bin/sh\n{text}\n"));
    }

    /// What a program wrote to `$DIR`; waits until it is there.
    pub fn written(&self, name: &str) -> String {
        let path = self.folder.join("out").join(name);
        until("a file is written", || {
            fs::read_to_string(&path)
                .ok()
                .filter(|text| text.ends_with('\n'))
                .map(|text| text.trim().to_owned())
        })
    }

    pub fn ask(&mut self, path: &str) -> Request {
        self.ask_with(path, None, &[], &[])
    }

    pub fn ask_with(
        &mut self,
        path: &str,
        input: Option<OwnedFd>,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Request {
        self.next += 1;
        let id = self.next;
        let mut buffer = Vec::new();
        let ends = (self.worker, self.epoch);
        let mount = MountId { site: 0, mount: u16::from(path.starts_with("/wasm/")) };
        let mut writer = StartWriter::new(&mut buffer, ends, id, mount, input.is_some(), path.as_bytes())
            .expect("it fits");
        arguments.iter().for_each(|argument| writer.argument(argument.as_bytes()).expect("it fits"));
        variables.iter().for_each(|(name, value)| {
            writer.variable(name.as_bytes(), value.as_bytes()).expect("it fits");
        });
        let (output, theirs) = std::io::pipe().expect("a pipe");
        let descriptors: Vec<_> =
            [Some(theirs.as_fd()), input.as_ref().map(|fd| fd.as_fd())].into_iter().flatten().collect();
        let bytes = writer.finish();
        until("there is room", || pass::send_all(&self.mailbox, bytes, &descriptors).ok());
        Request { id, output: File::from(OwnedFd::from(output)) }
    }

    /// A program that runs: its process.
    pub fn started(&mut self, request: &Request) -> u32 {
        match self.hear() {
            ToWorker::Started { id, pid, .. } if id == request.id => pid,
            other => panic!("not started: {other:?}"),
        }
    }

    /// How a program that ended did so.
    pub fn exited(&mut self, request: &Request) -> Ended {
        match self.hear() {
            ToWorker::Exited { id, how, .. } if id == request.id => how,
            other => panic!("not exited: {other:?}"),
        }
    }

    /// Runs a program to its end; what it wrote.
    pub fn run(&mut self, path: &str) -> String {
        let request = self.ask(path);
        self.started(&request);
        let text = self.output(&request);
        assert_eq!(self.exited(&request), Ended::Exited(0), "{path}: {text}");
        text
    }

    pub fn output(&self, request: &Request) -> String {
        let mut text = Vec::new();
        (&request.output).read_to_end(&mut text).expect("it can be read");
        String::from_utf8(text).expect("text")
    }

    pub fn end(&mut self, request: &Request, why: Why) {
        self.say(ToRunner::End { id: request.id, why });
    }

    pub fn say(&mut self, what: ToRunner) {
        let mut bytes = Vec::new();
        Message { from: self.worker, to: self.epoch, what }.encode(&mut bytes);
        until("there is room", || pass::send(&self.mailbox, &bytes, None).ok());
    }

    /// The next message for this worker from this spawner.
    pub fn hear(&mut self) -> ToWorker {
        if let Some(unheard) = self.unheard.take() {
            return unheard;
        }
        loop {
            let waits = wait::wait(&[(self.mailbox.as_fd(), For::Reading)], Some(PATIENCE));
            assert_eq!(waits.expect("poll"), [true], "silence; it logged:\n{}", self.logged());
            let mut buffer = [0; 256];
            let (length, _) = pass::receive(&self.mailbox, &mut buffer).expect("a message");
            let message = Message::<ToWorker>::decode(&buffer[..length]).expect("it decodes");
            assert_eq!(message.from, self.epoch);
            if message.to != self.worker && message.what != ToWorker::Hello {
                continue;
            }
            let ToWorker::Ran { id, pid, how, cpu, overran } = message.what else { return message.what };
            self.unheard = Some(ToWorker::Exited { id, how, cpu, overran });
            return ToWorker::Started { id, pid, nph: false };
        }
    }

    pub fn is_silent(&self) -> bool {
        let waits = wait::wait(&[(self.mailbox.as_fd(), For::Reading)], Some(Duration::from_millis(100)));
        waits.expect("poll") == [false]
    }

    pub fn logged(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    pub fn until_logged(&self, text: &str) -> String {
        until(&format!("it logs {text:?}"), || Some(self.logged()).filter(|log| log.contains(text)))
    }

    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("a process").count()
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        // The end of its channel stops it; what hangs is killed.
        self.channel = None;
        let began = Instant::now();
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            if began.elapsed() > PATIENCE {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        if std::thread::panicking() {
            eprintln!("the spawner logged:\n{}", self.logged());
        }
    }
}

fn spawn(name: &str, folder: &Path, generation: u64, epoch: u64, theirs: &OwnedFd) -> (Child, OwnedFd) {
    let (channel, far) = pass::channel().expect("a channel");
    let log = File::options().create(true).append(true).open(folder.join("log")).expect("a log");
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.arg(name).arg(folder).args([generation.to_string(), epoch.to_string()]);
    command.env("SECRET", "of the server").stdin(far).stderr(log);
    command.stdout(Stdio::from(theirs.try_clone().expect("a descriptor")));
    (command.spawn().expect("a spawner"), channel)
}

pub fn until<T>(what: &str, mut try_it: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = try_it() {
            return value;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a process is there and not dead.
pub fn lives(pid: impl std::fmt::Display) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub fn until_gone(pid: impl std::fmt::Display) {
    until(&format!("process {pid} is gone"), || (!lives(&pid)).then_some(()));
}
