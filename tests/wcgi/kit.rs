//! A host in a thread, a folder with modules and a cache, and the worker's side of the socket.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::sync::{Mutex, OnceLock};
use std::thread::JoinHandle;

use httpd::config::{self, Config, Environment};
use httpd::gateway::messages::{Message, MountId, Refusal, StartWriter, ToRunner, ToWorker, Why};
use httpd::gateway::start::{self, Start};
use httpd::gateway::wcgi;
use httpd::observe::names::Counters;
use httpd::sys::pass;
use httpd::sys::process::Ended;
use httpd::sys::wait::{self, For};

/// What the host said first of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Started,
    Refused(Refusal),
}

/// A folder, and a host that serves its modules at /wasm/.
pub struct Case {
    folder: tempfile::TempDir,
    config: Config,
    worker: OwnedFd,
    /// The supervisor's end of the channel.
    channel: OwnedFd,
    host: Option<JoinHandle<()>>,
    next: Cell<u64>,
    /// The worker's epoch.
    from: Cell<u64>,
    /// Messages on runs other than the one that was waited for.
    heard: RefCell<HashMap<u64, Vec<ToWorker>>>,
}

/// A run that was asked for.
pub struct Run<'c> {
    case: &'c Case,
    id: u64,
    pub output: Option<PipeReader>,
    said: Option<Said>,
}

const FROM: u64 = 11;
const TO: u64 = 12;
const GENERATION: u64 = 3;

impl Case {
    pub fn new(settings: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["modules", "cache", "data", "scratch"] {
            fs::create_dir(folder.path().join(name)).expect("made");
        }
        let text = format!(
            "[server]\nworkers = 1\n[cache]\ndir = \"cache\"\n[[listen]]\naddress = \"127.0.0.1:8080\"\n[[site]]\nroot = \"data\"\n[[site.wcgi]]\npath = \"/wasm/\"\n\
             dir = \"modules\"\nread = {{ \"/data\" = \"data\" }}\nwrite = {{ \"/scratch\" = \"scratch\" }}\n\
             env = {{ FROM_MOUNT = \"yes\" }}\n{settings}\n"
        );
        let file = folder.path().join("config.toml");
        fs::write(&file, text).expect("written");
        let config =
            config::load(&file, &Environment::of_this_process()).unwrap_or_else(|report| panic!("{report}"));
        let (worker, channel, host) = serve(&config);
        let (next, from, heard) = (Cell::new(1), Cell::new(FROM), RefCell::default());
        Self { folder, config, worker, channel, host: Some(host), next, from, heard }
    }

    /// Another host, which knows nothing of what the first one did.
    pub fn restart(&mut self) {
        let (worker, channel, host) = serve(&self.config);
        (self.worker, self.channel) = (worker, channel);
        let before = self.host.replace(host).expect("it ran");
        before.join().expect("it ended well");
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn root(&self) -> String {
        self.folder.path().display().to_string()
    }

    /// Puts a module in its place, as deploys do.
    pub fn place(&self, name: &str, bytes: &[u8]) {
        let (new, path) = (self.path("new"), self.path("modules").join(name));
        fs::write(&new, bytes).and_then(|()| fs::rename(&new, path)).expect("put in place");
    }

    /// The compiled modules in the cache.
    pub fn kept(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("cache/wcgi")).expect("a directory");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }

    /// The body of the probe's answer.
    pub fn ask(&self, query: &str) -> String {
        let mut run = self.start("/wasm/probe.wasm", &[&format!("QUERY_STRING={query}")], None);
        let text = run.text();
        assert_eq!(run.exited(), (Ended::Exited(0), false), "{text}");
        text.strip_prefix("Content-Type: text/plain\n\n").expect("a head").to_owned()
    }

    /// A run with its whole input, which must fit into a pipe.
    pub fn start(&self, path: &str, variables: &[&str], input: Option<&[u8]>) -> Run<'_> {
        let input = input.map(|bytes| {
            let (reader, mut writer) = std::io::pipe().expect("a pipe");
            writer.write_all(bytes).expect("it fits");
            OwnedFd::from(reader)
        });
        self.send(path, variables, input)
    }

    /// A run whose input comes later.
    pub fn start_open(&self, path: &str, variables: &[&str]) -> (Run<'_>, PipeWriter) {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        (self.send(path, variables, Some(OwnedFd::from(reader))), writer)
    }

    fn send(&self, path: &str, variables: &[&str], input: Option<OwnedFd>) -> Run<'_> {
        let id = self.next.replace(self.next.get() + 1);
        let (output, far) = std::io::pipe().expect("a pipe");
        let (mut buffer, mount) = (Vec::new(), MountId { site: 0, mount: 0 });
        let mut writer =
            StartWriter::new(&mut buffer, (self.from.get(), TO), id, mount, input.is_some(), path.as_bytes())
                .expect("it fits");
        for variable in variables {
            let (name, value) = variable.split_once('=').expect("a variable");
            writer.variable(name.as_bytes(), value.as_bytes()).expect("it fits");
        }
        let far = OwnedFd::from(far);
        let descriptors: Vec<_> = [Some(&far), input.as_ref()].into_iter().flatten().collect();
        kit_send(&self.worker, writer.finish(), &descriptors);
        Run { case: self, id, output: Some(output), said: None }
    }

    /// Tells the run to end that is started next. Until the first is, messages are heard in order.
    pub fn end_next(&self) {
        self.say(ToRunner::End { id: self.next.get(), why: Why::Gone });
    }

    /// Goes on as a worker forked anew.
    pub fn begin_another_life(&self) {
        self.from.set(self.from.get() + 1);
    }

    fn say(&self, what: ToRunner<'_>) {
        let mut bytes = Vec::new();
        Message { from: self.from.get(), to: TO, what }.encode(&mut bytes);
        kit_send(&self.worker, &bytes, &[]);
    }

    /// The next message on a run.
    fn hear(&self, id: u64) -> ToWorker {
        loop {
            if let Some(heard) = self.heard.borrow_mut().get_mut(&id)
                && !heard.is_empty()
            {
                return heard.remove(0);
            }
            wait::wait(&[(std::os::fd::AsFd::as_fd(&self.worker), For::Reading)], None).expect("waited");
            let mut bytes = [0; 256];
            let Ok((length, _)) = pass::receive(&self.worker, &mut bytes) else { continue };
            assert!(length > 0, "the host is gone");
            let message = Message::<ToWorker>::decode(&bytes[..length]).expect("a message");
            assert_eq!(message.from, TO);
            if message.what == ToWorker::Hello {
                continue;
            }
            if message.to < self.from.get() {
                continue;
            }
            assert_eq!(message.to, self.from.get(), "the answer goes back where the request came from");
            let (id, said) = match message.what {
                ToWorker::Started { id, .. } | ToWorker::Refused { id, .. } | ToWorker::Exited { id, .. } => {
                    (id, vec![message.what])
                }
                ToWorker::Ran { id, pid, how, cpu, overran } => {
                    let started = ToWorker::Started { id, pid, nph: false };
                    (id, vec![started, ToWorker::Exited { id, how, cpu, overran }])
                }
                ToWorker::Hello => continue,
            };
            self.heard.borrow_mut().entry(id).or_default().extend(said);
        }
    }
}

impl Run<'_> {
    /// The first word on it.
    pub fn said(&mut self) -> Said {
        let said = self.said.unwrap_or_else(|| match self.case.hear(self.id) {
            ToWorker::Started { .. } => Said::Started,
            ToWorker::Refused { why, .. } => Said::Refused(why),
            other => panic!("neither started nor refused: {other:?}"),
        });
        self.said = Some(said);
        said
    }

    /// All of its output.
    pub fn text(&mut self) -> String {
        let mut text = Vec::new();
        self.output.take().expect("not read before").read_to_end(&mut text).expect("read");
        String::from_utf8(text).expect("text")
    }

    /// How it ended, and whether that was for taking too long.
    pub fn exited(&mut self) -> (Ended, bool) {
        assert_eq!(self.said(), Said::Started);
        match self.case.hear(self.id) {
            ToWorker::Exited { how, overran, .. } => (how, overran),
            other => panic!("not its end: {other:?}"),
        }
    }

    pub fn end(&self) {
        self.case.say(ToRunner::End { id: self.id, why: Why::Gone });
    }
}

fn serve(config: &Config) -> (OwnedFd, OwnedFd, JoinHandle<()>) {
    let (worker, far) = pass::channel().expect("a mailbox");
    let (channel, theirs) = pass::channel().expect("a channel");
    let start = Start {
        generation: GENERATION,
        epoch: TO,
        config: Rc::new(config.clone()),
        channel: theirs,
        workers: vec![far],
        user: None,
        counters: Counters::new().expect("a page"),
    };
    let host = wcgi::host(start).unwrap_or_else(|error| panic!("{error:#}"));
    (worker, channel, std::thread::spawn(move || host.serve().expect("it serves")))
}

/// How every UNIQUE_ID begins.
pub fn prefix() -> String {
    start::unique_prefix(GENERATION)
}

/// A note with several descriptors.
fn kit_send(channel: &OwnedFd, note: &[u8], descriptors: &[&OwnedFd]) {
    let borrowed: Vec<_> = descriptors.iter().map(|fd| std::os::fd::AsFd::as_fd(*fd)).collect();
    pass::send_all(channel, note, &borrowed).expect("sent");
}

/// A module of the examples or of these tests, built once.
pub fn module(name: &str) -> Vec<u8> {
    static BUILT: OnceLock<Mutex<HashMap<String, Vec<u8>>>> = OnceLock::new();
    let source = match name {
        "echo" => "examples/wcgi/echo.c",
        other => &format!("tests/wcgi/{other}.c"),
    };
    let mut built = BUILT.get_or_init(Mutex::default).lock().expect("no test panics in between");
    built.entry(name.to_owned()).or_insert_with(|| build(source, &[])).clone()
}

/// Builds a program for WASI.
pub fn build(source: &str, flags: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("module.wasm");
    let run = Command::new("examples/wcgi/build")
        .args([source, path.to_str().expect("text")])
        .args(flags)
        .output()
        .expect("examples/wcgi/build runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let mut bytes = Vec::new();
    File::open(&path).and_then(|mut file| file.read_to_end(&mut bytes)).expect("a module");
    bytes
}
