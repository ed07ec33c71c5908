//! One script or module, run as the server would run it, by the same code: for `httpd cgi`.

use std::fs::File;
use std::io::{PipeReader, Read as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
#[cfg(feature = "wcgi")]
use std::thread;
use std::time::{Duration, Instant};

use super::cgi::head::{self, Answer};
use super::cgi::variables::{About, Variables};
#[cfg(feature = "wcgi")]
use super::messages::ToWorker;
use super::messages::{Message, MountId, Refusal, StartWriter, ToRunner};
use super::spawner::programs::Programs;
#[cfg(feature = "wcgi")]
use super::{start::Start, wcgi};
use crate::config::{self, Config, Environment, Flags, Module, MountKind};
use crate::http::fields::Fields;
use crate::http::request::{Method, Request, Target, Version};
use crate::http::{status, target};
#[cfg(feature = "wcgi")]
use crate::observe::{log, names::Counters};
#[cfg(feature = "wcgi")]
use crate::sys::pass;
use crate::sys::process::{self, Ended, Kill, User};
use crate::sys::signals::{self, Children};
use crate::sys::wait::{self, For};

/// What is to be tried.
#[derive(Debug)]
pub struct Trial {
    /// The script, or the module.
    pub script: PathBuf,
    /// The method of the request.
    pub method: String,
    /// What of the path follows the script, with the query.
    pub path: String,
    /// Fields, `Name: value` each.
    pub fields: Vec<String>,
    /// The body.
    pub body: Option<PathBuf>,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Finding {
    /// Status and fields as a client would see them, then the document; as much as was understood.
    pub answer: Vec<u8>,
    /// What it wrote to standard error.
    pub messages: Vec<u8>,
    /// What was wrong, and what would help.
    pub problems: Vec<String>,
    /// How it ended, and what it took.
    pub summary: String,
}

/// What a mount of modules allows unless it says otherwise.
const MODULE_MEMORY: u64 = 64 << 20;
const MODULE_TIMEOUT: Duration = Duration::from_secs(5);

/// From whom to whom the request is.
const EPOCHS: (u64, u64) = (1, 1);

/// Who prints so much has been seen enough of.
const OUTPUT_MAX: usize = 64 << 20;

/// How often it is looked whether the script has ended while something else keeps its pipe open.
const TICK: Duration = Duration::from_millis(2);

/// Runs it.
///
/// # Errors
/// What kept it from being run.
pub fn run(trial: &Trial) -> Result<Finding, String> {
    let named = trial.script.display();
    let script = trial.script.canonicalize().map_err(|error| format!("`{named}`: {error}"))?;
    let (Some(directory), Some(name)) = (script.parent(), script.file_name()) else {
        return Err(format!("`{named}` is not a file"));
    };
    let is_module = script.extension().is_some_and(|extension| extension == "wasm");
    let mut config = configuration(directory)?;
    let mount = &mut config.sites[0].mounts[0];
    if is_module {
        mount.kind = MountKind::Module(Module { memory: MODULE_MEMORY, directories: Vec::new() });
        mount.timeout = MODULE_TIMEOUT;
    }
    let limits = (mount.timeout, mount.wall);
    let (info, query) = match trial.path.split_once('?') {
        Some((info, query)) => (info, Some(query)),
        None => (trial.path.as_str(), None),
    };
    let path = format!("{}{}{info}", mount.path, target::encode_path(name.as_bytes()));
    let message = message(trial, &path, query)?;
    let input =
        trial.body.as_ref().map(File::open).transpose().map_err(|error| format!("the body: {error}"))?;
    let (output, theirs) = std::io::pipe().map_err(|error| error.to_string())?;
    let mut descriptors = vec![OwnedFd::from(theirs)];
    descriptors.extend(input.map(OwnedFd::from));
    let run = Run::new(output, limits);
    if is_module {
        run_module(trial, config, &message, descriptors, run)
    } else {
        run_script(trial, config, &message, descriptors, run)
    }
}

/// That of a server whose programs are in this directory.
fn configuration(directory: &Path) -> Result<Config, String> {
    let flags = Flags {
        root: directory.to_owned(),
        cgi_bin: Some(directory.to_owned()),
        workers: 1,
        ..Flags::default()
    };
    config::from_flags(&flags, &Environment::of_this_process()).map_err(|report| report.to_string())
}

fn run_script(
    trial: &Trial,
    config: Config,
    message: &[u8],
    descriptors: Vec<OwnedFd>,
    mut run: Run,
) -> Result<Finding, String> {
    let Some(Message { what: ToRunner::Start(start), .. }) = Message::<ToRunner>::decode(message) else {
        return Err("the request cannot be told to a script".to_owned());
    };
    let user = match config.server.user.as_deref() {
        None => None,
        Some(user) => Some(
            User::find(user)
                .map_err(|error| error.to_string())?
                .ok_or_else(|| format!("there is no user {user}"))?,
        ),
    };
    let mut programs = Programs::new(Rc::new(config), user, 0).map_err(|error| error.to_string())?;
    let _children = Children::block_all().map_err(|error| error.to_string())?;
    let started = programs.start(0, &start, descriptors);
    // From here on it can be interrupted, and takes the script along.
    signals::unblock();
    let started = started.map_err(|refusal| {
        let help = match refusal {
            Refusal::NotFound => "its name must not begin with a dot",
            Refusal::Forbidden => "chmod +x, and let its user enter the directories above it",
            Refusal::Busy => "",
            Refusal::Broken => "its first line is `#!` and the path of an interpreter",
        };
        refused(trial, refusal, help)
    })?;
    run.messages = Some(File::from(started.stderr));
    let reaped = run.follow(|| process::reap_any().map(|(_, how, cpu)| Ok((how, cpu))));
    process::end_group(started.pid, Kill::Surely);
    reaped.map_err(|refusal| refused(trial, refusal, ""))?;
    Ok(run.finding(&trial.method, started.script.nph))
}

/// In this process, with the rights of whoever tries it: a module reaches nothing that it is not given, and here it is
/// given nothing. What it writes to standard error, and why it fails, are lines of the log as they are in the server.
#[cfg(feature = "wcgi")]
fn run_module(
    trial: &Trial,
    config: Config,
    message: &[u8],
    descriptors: Vec<OwnedFd>,
    mut run: Run,
) -> Result<Finding, String> {
    log::start(tracing::Level::WARN);
    let (mailbox, worker) = pass::channel().map_err(|error| error.to_string())?;
    // The host ends with the process, and is told nothing.
    let (_supervisor, channel) = pass::channel().map_err(|error| error.to_string())?;
    let host = wcgi::host(Start {
        generation: 0,
        epoch: EPOCHS.1,
        config: Rc::new(config),
        channel,
        workers: vec![worker],
        user: None,
        counters: Counters::new().map_err(|error| error.to_string())?,
    });
    let host = host.map_err(|error| format!("modules cannot be run here: {error:#}"))?;
    thread::spawn(move || host.serve());
    let borrowed: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
    pass::send_all(&mailbox, message, &borrowed).map_err(|errno| errno.to_string())?;
    drop(descriptors);
    let mut said = [0; 64];
    let followed = run.follow(|| {
        let (length, _) = pass::receive(&mailbox, &mut said).ok()?;
        match Message::<ToWorker>::decode(&said[..length])?.what {
            ToWorker::Refused { why, .. } => Some(Err(why)),
            ToWorker::Exited { how, cpu, .. } | ToWorker::Ran { how, cpu, .. } => Some(Ok((how, cpu))),
            ToWorker::Started { .. } | ToWorker::Hello => None,
        }
    });
    followed.map_err(|refusal| refused(trial, refusal, "the log says why"))?;
    Ok(run.finding(&trial.method, false))
}

#[cfg(not(feature = "wcgi"))]
fn run_module(trial: &Trial, _: Config, _: &[u8], _: Vec<OwnedFd>, _: Run) -> Result<Finding, String> {
    Err(format!(
        "`{}` is a module, and this httpd was built without WebAssembly\n    = build with `cargo build --release \
         --features wcgi`",
        trial.script.display()
    ))
}

fn message(trial: &Trial, path: &str, query: Option<&str>) -> Result<Vec<u8>, String> {
    let mut section = String::from("Host: localhost\r\n");
    for field in &trial.fields {
        section.push_str(field);
        section.push_str("\r\n");
    }
    let fields = Fields::of_section(section.as_bytes())
        .ok_or("a field is not `Name: value`: write -H 'Accept: text/html'")?;
    let request = Request {
        method: match trial.method.as_str() {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "OPTIONS" => Method::Options,
            _ => Method::Known,
        },
        method_name: trial.method.as_bytes(),
        version: Version::Http11,
        target_text: path.as_bytes(),
        target: Target::Path { path: path.as_bytes(), query: query.map(str::as_bytes) },
        host: b"localhost",
        fields,
    };
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut variables = Variables::of(&About {
        request: &request,
        client: Some(here),
        secure: false,
        user: None,
        passes_authorization: false,
        site_name: None,
        request_id: 1,
    });
    variables.connection(None, Some(SocketAddr::new(here, 8080)), Some(here), false);
    if let Some(body) = &trial.body {
        let length = std::fs::metadata(body).map_err(|error| format!("`{}`: {error}", body.display()))?.len();
        variables.content_length(length);
    }
    let (mut buffer, mut normal) = (Vec::new(), Vec::new());
    let normal =
        target::normalise(path.as_bytes(), &mut normal).map_err(|bad| bad.explanation().to_owned())?;
    let mount = MountId { site: 0, mount: 0 };
    let unfit = |_| "the request is too long to be told to a script".to_owned();
    let mut writer =
        StartWriter::new(&mut buffer, EPOCHS, 1, mount, trial.body.is_some(), normal).map_err(unfit)?;
    for (name, value) in variables.iter() {
        writer.variable(name, value).map_err(unfit)?;
    }
    writer.finish();
    Ok(buffer)
}

fn refused(trial: &Trial, refusal: Refusal, help: &str) -> String {
    let why = match refusal {
        Refusal::NotFound => "it is not found",
        Refusal::Forbidden => "it may not be run",
        Refusal::Busy => "there is no room for another process",
        Refusal::Broken => "it cannot be run",
    };
    let (script, status) = (trial.script.display(), refusal.status());
    format!("`{script}` would be answered with {status}: {why}\n    = {help}")
}

struct Run {
    output: File,
    /// Its standard error, where that is a pipe.
    messages: Option<File>,
    printed: Vec<u8>,
    said: Vec<u8>,
    began: Instant,
    /// How long it may be silent.
    timeout: Duration,
    /// How long it may run.
    wall: Duration,
    ended: Option<(Ended, Duration)>,
    stopped: Option<Stopped>,
}

/// Why a run was not waited for.
#[derive(Clone, Copy)]
enum Stopped {
    Silent,
    Wall,
    Enough,
}

impl Stopped {
    fn explanation(self) -> &'static str {
        match self {
            Self::Silent => "it was silent for too long, and would be answered with 504",
            Self::Wall => "it ran for longer than `wall`, and would be ended there",
            Self::Enough => {
                "it printed more than 64 MiB, and was not waited for; a client would get all of it"
            }
        }
    }
}

/// How a run ended and what it took of a processor, or why there was none.
type Over = Result<(Ended, Duration), Refusal>;

impl Run {
    fn new(output: PipeReader, (timeout, wall): (Duration, Duration)) -> Self {
        Self {
            output: File::from(OwnedFd::from(output)),
            messages: None,
            printed: Vec::new(),
            said: Vec::new(),
            began: Instant::now(),
            timeout,
            wall,
            ended: None,
            stopped: None,
        }
    }

    /// Reads until it has ended and what it left in the pipes is read, or it is silent for too long. Whatever it left
    /// running may print on and on, which is no part of its answer. `over` is asked again and again.
    fn follow(&mut self, mut over: impl FnMut() -> Option<Over>) -> Result<(), Refusal> {
        let mut heard = Instant::now();
        // How much of output and messages is still to be read; nothing once they are at their end.
        let mut left = [usize::MAX, if self.messages.is_some() { usize::MAX } else { 0 }];
        while self.ended.is_none() || left != [0, 0] {
            if self.ended.is_none()
                && let Some(over) = over()
            {
                self.ended = Some(over?);
                left[0] = left[0].min(wait::unread(&self.output));
                left[1] = left[1].min(self.messages.as_ref().map_or(0, wait::unread));
                continue;
            }
            let fds = [Some(&self.output), self.messages.as_ref()];
            // Whoever is at its end is not asked again.
            let asked: Vec<_> = (0..2).filter(|which| left[*which] > 0).collect();
            let polled: Vec<_> =
                asked.iter().filter_map(|which| Some((fds[*which]?.as_fd(), For::Reading))).collect();
            let happened = wait::wait(&polled, Some(TICK)).unwrap_or_default();
            for (which, _) in asked.into_iter().zip(happened).filter(|(_, happened)| *happened) {
                heard = Instant::now();
                left[which] = self.read(which == 0, left[which]);
            }
            self.stopped = self.verdict(heard);
            if self.stopped.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Why it is not waited for any more.
    fn verdict(&self, heard: Instant) -> Option<Stopped> {
        let printed = self.printed.len().max(self.said.len());
        if printed >= OUTPUT_MAX {
            Some(Stopped::Enough)
        } else if self.began.elapsed() > self.wall {
            Some(Stopped::Wall)
        } else if heard.elapsed() > self.timeout {
            Some(Stopped::Silent)
        } else {
            None
        }
    }

    /// Reads some, at most so much; how much is left then.
    fn read(&mut self, output: bool, left: usize) -> usize {
        let (file, into) = match (&mut self.messages, output) {
            (Some(messages), false) => (messages, &mut self.said),
            _ => (&mut self.output, &mut self.printed),
        };
        let mut buffer = [0; 16 << 10];
        let most = left.min(buffer.len());
        let Ok(length @ 1..) = file.read(&mut buffer[..most]) else { return 0 };
        into.extend_from_slice(&buffer[..length]);
        if left == usize::MAX { left } else { left - length }
    }

    fn finding(self, method: &str, nph: bool) -> Finding {
        let took = self.began.elapsed();
        let mut found = Finding { messages: self.said, ..Finding::default() };
        found.problems.extend(self.stopped.map(|stopped| stopped.explanation().to_owned()));
        match head::parse(&self.printed, true, nph) {
            Err(bad) => {
                found.problems.push(format!("{}: a client would be answered with 502", bad.explanation()));
                found.answer = self.printed;
            }
            Ok(None) => found.answer = self.printed,
            Ok(Some(head)) => answer(&mut found, &head, &self.printed, method),
        }
        match self.ended {
            Some((Ended::Exited(0), _)) | None => {}
            Some((how, _)) => found.problems.push(format!("it ended with {how}")),
        }
        let how = self.ended.map_or("it did not end".to_owned(), |(how, _)| how.to_string());
        let cpu = self.ended.map_or(Duration::ZERO, |(_, cpu)| cpu);
        found.summary = format!("{how}, {took:.1?}, of which {cpu:.1?} on a processor");
        found
    }
}

/// As a client would see it.
fn answer(found: &mut Finding, head: &head::Head, printed: &[u8], method: &str) {
    let document = printed.get(head.length..).unwrap_or_default();
    match &head.answer {
        Answer::Unparsed { .. } => found.answer = printed.to_vec(),
        Answer::LocalRedirect(to) => {
            let to = String::from_utf8_lossy(to);
            found.answer =
                format!("(the client would be answered as if it had asked for {to})\n").into_bytes();
            if !document.is_empty() {
                found
                    .problems
                    .push("a local redirect has no document: what it printed is dropped".to_owned());
            }
        }
        Answer::Response { status, content_length, fields } => {
            found.answer = format!("HTTP/1.1 {status}\r\n").into_bytes();
            found.answer.extend_from_slice(fields);
            match content_length {
                Some(_) if status::has_no_content(*status) => found
                    .problems
                    .push(format!("a {status} has no content: the Content-Length it said is left out")),
                Some(length) => {
                    found.answer.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
                }
                None => {}
            }
            found.answer.extend_from_slice(b"\r\n");
            let drops = head::drops_content(method == "HEAD", *status);
            if !drops {
                found.answer.extend_from_slice(document);
            }
            let length = document.len() as u64;
            if let Some(said) = content_length.filter(|said| *said != length && !drops) {
                found.problems.push(format!("it said Content-Length: {said}, and printed {length} bytes"));
            }
        }
    }
}
