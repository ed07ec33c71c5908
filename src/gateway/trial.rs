//! One script, run as the server would run it, by the same code: for `httpd cgi`.

use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::cgi::head::{self, Answer};
use super::cgi::variables::{About, Variables};
use super::messages::{Message, MountId, Refusal, StartWriter, ToSpawner};
use super::spawner::programs::Programs;
use crate::config::{self, Environment, Flags};
use crate::http::fields::Fields;
use crate::http::request::{Method, Request, Target, Version};
use crate::http::target;
use crate::sys::process::{self, Ended, Kill, User};
use crate::sys::signals::{self, Children};
use crate::sys::wait::{self, For};

/// What is to be tried.
#[derive(Debug)]
pub struct Trial {
    /// The script.
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

/// Output beyond this is not kept.
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
    if script.extension().is_some_and(|extension| extension == "wasm") {
        return Err(format!(
            "`{named}` is a module, and here only scripts are run\n    = name its directory in a [[site.wcgi]] and ask \
             the server for it; what goes wrong in it is in the log"
        ));
    }
    let flags = Flags {
        root: directory.to_owned(),
        cgi_bin: Some(directory.to_owned()),
        workers: 1,
        ..Flags::default()
    };
    let config =
        config::from_flags(&flags, &Environment::of_this_process()).map_err(|report| report.to_string())?;
    let user = match config.server.user.as_deref() {
        None => None,
        Some(user) => Some(
            User::find(user)
                .map_err(|error| error.to_string())?
                .ok_or_else(|| format!("there is no user {user}"))?,
        ),
    };
    let timeout = config.sites[0].mounts[0].timeout;
    let (info, query) = match trial.path.split_once('?') {
        Some((info, query)) => (info, Some(query)),
        None => (trial.path.as_str(), None),
    };
    let path = format!("/cgi-bin/{}{info}", target::encode_path(name.as_bytes()));
    let message = message(trial, &path, query)?;
    let Some(Message { what: ToSpawner::Start(start), .. }) = Message::<ToSpawner>::decode(&message) else {
        return Err("the request cannot be told to a script".to_owned());
    };
    let input =
        trial.body.as_ref().map(File::open).transpose().map_err(|error| format!("the body: {error}"))?;
    let (output, theirs) = std::io::pipe().map_err(|error| error.to_string())?;
    let mut descriptors = vec![OwnedFd::from(theirs)];
    descriptors.extend(input.map(OwnedFd::from));

    let mut programs = Programs::new(Rc::new(config), user, 0).map_err(|error| error.to_string())?;
    let _children = Children::block_all().map_err(|error| error.to_string())?;
    let began = Instant::now();
    let started = programs.start(0, &start, descriptors);
    // From here on it can be interrupted, and takes the script along.
    signals::unblock();
    let started = started.map_err(|refusal| refused(&trial.script.display().to_string(), refusal))?;
    let mut run = Run {
        output: File::from(OwnedFd::from(output)),
        messages: File::from(started.stderr),
        printed: Vec::new(),
        said: Vec::new(),
        ended: None,
        silent: false,
    };
    run.follow(timeout);
    process::end_group(started.pid, Kill::Surely);
    Ok(run.finding(&trial.method, started.script.nph, began.elapsed()))
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
        StartWriter::new(&mut buffer, (0, 0), 1, mount, trial.body.is_some(), normal).map_err(unfit)?;
    for (name, value) in variables.iter() {
        writer.variable(name, value).map_err(unfit)?;
    }
    writer.finish();
    Ok(buffer)
}

fn refused(script: &str, refusal: Refusal) -> String {
    let (why, help) = match refusal {
        Refusal::NotFound => ("it is not found", "its name must not begin with a dot"),
        Refusal::Forbidden => {
            ("it may not be run", "chmod +x, and let its user enter the directories above it")
        }
        Refusal::Busy => ("there is no room for another process", ""),
        Refusal::Broken => ("it cannot be run", "its first line is `#!` and the path of an interpreter"),
    };
    let status = refusal.status();
    format!("`{script}` would be answered with {status}: {why}\n    = {help}")
}

struct Run {
    output: File,
    messages: File,
    printed: Vec<u8>,
    said: Vec<u8>,
    ended: Option<(Ended, Duration)>,
    silent: bool,
}

impl Run {
    /// Reads until the script has ended and nothing is left in the pipes, or it is silent for too long.
    fn follow(&mut self, timeout: Duration) {
        let mut heard = Instant::now();
        let mut open = [true, true];
        loop {
            if self.ended.is_none() {
                self.ended = process::reap_any().map(|(_, how, cpu)| (how, cpu));
            }
            let fds = [(self.output.as_fd(), For::Reading), (self.messages.as_fd(), For::Reading)];
            // Whoever is at its end is not asked again.
            let asked: Vec<_> =
                fds.into_iter().zip(open).filter(|(_, open)| *open).map(|(fd, _)| fd).collect();
            let happened = wait::wait(&asked, Some(TICK)).unwrap_or_default();
            let mut happened = happened.into_iter();
            let mut quiet = true;
            for (which, is_open) in open.iter_mut().enumerate() {
                if *is_open && happened.next() == Some(true) {
                    quiet = false;
                    heard = Instant::now();
                    *is_open = self.read(which == 0);
                }
            }
            if self.ended.is_some() && quiet {
                return;
            }
            if heard.elapsed() > timeout {
                self.silent = true;
                return;
            }
        }
    }

    fn read(&mut self, output: bool) -> bool {
        let (file, into) =
            if output { (&mut self.output, &mut self.printed) } else { (&mut self.messages, &mut self.said) };
        let mut buffer = [0; 16 << 10];
        let Ok(length) = file.read(&mut buffer) else { return false };
        if into.len() < OUTPUT_MAX {
            into.extend_from_slice(&buffer[..length]);
        }
        length > 0
    }

    fn finding(self, method: &str, nph: bool, took: Duration) -> Finding {
        let mut found = Finding { messages: self.said, ..Finding::default() };
        if self.silent {
            found.problems.push("it was silent for too long, and would be answered with 504".to_owned());
        }
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
            if let Some(length) = content_length {
                found.answer.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
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
