//! A supervisor whose workers are toys: they answer one line on each connection, and fail on demand.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use httpd::config::{Config, Environment, Source};
use httpd::gateway::start::Mailboxes;
use httpd::supervisor::{Program, Programs};
use httpd::sys::wait::{For, wait};
use httpd::sys::{Errno, pass};
use httpd::worker::start::{Order, READY, Start, failed};
use httpd::{gateway, precompress};

pub fn load(file: &Path) -> Result<Config, String> {
    let environment = Environment::of_this_process();
    Source::File(file.to_owned()).load(&environment).map_err(|report| report.to_string())
}

pub fn serve(file: &Path) -> ExitCode {
    match load(file) {
        Ok(config) => {
            let file = file.to_owned();
            httpd::supervisor::run_with(move || load(&file), config, programs())
        }
        Err(report) => {
            eprintln!("{report}");
            ExitCode::from(78)
        }
    }
}

/// Companions are wanted where `server.name` is `companions`.
fn programs() -> Programs {
    let wanted: fn(&Config) -> bool = |config| config.server.name.as_deref() == Some("companions");
    let spawner = Program { is_wanted: wanted, live: runner };
    let modules = Program { is_wanted: wanted, live: runner };
    let precompressor = Program { is_wanted: wanted, live: precompressor };
    let metrics = Program { is_wanted: |config| config.metrics.is_some(), live: httpd::metrics::run };
    Programs { worker: toy, spawner, modules, precompressor, metrics }
}

/// Answers each note in a mailbox with its epoch, until told to stop.
fn runner(start: gateway::start::Start) -> ExitCode {
    loop {
        let mut fds = vec![(start.channel.as_fd(), For::Reading)];
        fds.extend(start.workers.iter().map(|mailbox| (mailbox.as_fd(), For::Reading)));
        wait(&fds, None).expect("a toy can wait");
        let mut note = [0; 16];
        for mailbox in &start.workers {
            while pass::receive(mailbox, &mut note).is_ok() {
                pass::send(mailbox, start.epoch.to_string().as_bytes(), None).expect("room for an answer");
            }
        }
        if let Ok((length, _)) = pass::receive(&start.channel, &mut note) {
            assert!([&b""[..], gateway::start::STOP].contains(&&note[..length]));
            return ExitCode::SUCCESS;
        }
    }
}

/// Does nothing until told to stop.
fn precompressor(start: precompress::start::Start) -> ExitCode {
    let mut note = [0; 16];
    loop {
        wait(&[(start.channel.as_fd(), For::Reading)], None).expect("a toy can wait");
        if let Ok((length, _)) = pass::receive(&start.channel, &mut note) {
            assert!([&b""[..], precompress::start::STOP].contains(&&note[..length]));
            return ExitCode::SUCCESS;
        }
    }
}

/// Asks the spawner and the module host for their epochs; 0: there is none.
fn epochs(start: &Start) -> String {
    let ask = |fd: &OwnedFd| {
        pass::send(fd, b"?", None).expect("room for a question");
        wait(&[(fd.as_fd(), For::Reading)], None).expect("a toy can wait");
        let mut note = [0; 16];
        let (length, _) = pass::receive(fd, &mut note).expect("an answer");
        String::from_utf8_lossy(&note[..length]).parse::<u64>().expect("a number")
    };
    let mut epochs = mailboxes(start).map(ask);
    let [spawner, modules] = [epochs.next(), epochs.next()].map(Option::unwrap_or_default);
    format!("{spawner} {modules}")
}

fn mailboxes(start: &Start) -> impl Iterator<Item = &OwnedFd> {
    start.mailboxes.iter().flat_map(|Mailboxes { fds, .. }| fds.iter().flatten())
}

fn toy(start: Start) -> ExitCode {
    let name = start.config.server.name.clone().unwrap_or_default();
    match name.as_str() {
        "fail" => {
            let _ = pass::send(&start.channel, &failed("the toy is broken"), None);
            return ExitCode::FAILURE;
        }
        "abort" => std::process::abort(),
        _ => {}
    }
    let who = format!("{} {} {}", std::process::id(), start.generation, start.index);
    if start.user.as_ref().is_some_and(|user| user.become_it().is_err()) {
        return ExitCode::FAILURE;
    }
    let tcp = start.listeners.iter().filter(|listener| listener.tcp().is_some());
    let unix = start.listeners.iter().filter(|listener| listener.tcp().is_none());
    let tcp: Vec<TcpListener> = tcp.map(|listener| duplicate(&listener.fd).into()).collect();
    let unix: Vec<UnixListener> = unix.map(|listener| duplicate(&listener.fd).into()).collect();
    let held =
        start.listeners.len() + 1 + usize::from(start.access_log.is_some()) + mailboxes(&start).count();
    pass::send(&start.channel, READY, None).expect("the supervisor listens");
    if name == "chatter" {
        talk(&start.channel, READY);
    }
    loop {
        let mut fds = vec![(start.channel.as_fd(), For::Reading)];
        fds.extend(tcp.iter().map(|listener| (listener.as_fd(), For::Reading)));
        fds.extend(unix.iter().map(|listener| (listener.as_fd(), For::Reading)));
        wait(&fds, None).expect("a toy can wait");
        for listener in &tcp {
            while let Ok((stream, _)) = listener.accept() {
                answer(stream, &format!("{who} {}", epochs(&start)), held + tcp.len() + unix.len());
                if name == "babble" {
                    talk(&start.channel, b"?!");
                }
            }
        }
        for listener in &unix {
            while let Ok((stream, _)) = listener.accept() {
                answer(stream, &format!("{who} {}", epochs(&start)), held + tcp.len() + unix.len());
            }
        }
        match take_order(&start.channel) {
            Some((Order::Log, Some(log))) => {
                let _ = fs::File::from(log).write_all(format!("{who}\n").as_bytes());
            }
            Some((Order::Drain | Order::Stop, _)) if name != "stubborn" => return ExitCode::SUCCESS,
            _ => {}
        }
    }
}

/// Says one thing as fast as it can, until nobody listens any more or the supervisor wants something.
fn talk(channel: &OwnedFd, note: &[u8]) {
    while !matches!(pass::send(channel, note, None), Err(Errno::PIPE | Errno::CONNRESET))
        && wait(&[(channel.as_fd(), For::Reading)], Some(Duration::ZERO)).is_ok_and(|said| said == [false])
    {
    }
}

fn duplicate(fd: &OwnedFd) -> OwnedFd {
    fd.try_clone().expect("descriptors are left")
}

fn take_order(channel: &OwnedFd) -> Option<(Order, Option<OwnedFd>)> {
    let mut note = [0; 16];
    match pass::receive(channel, &mut note) {
        Ok((0, _)) => Some((Order::Stop, None)),
        Ok((length, fd)) => Some((Order::from_note(&note[..length]).expect("a known order"), fd)),
        Err(_) => None,
    }
}

/// One line: the process, its generation and index, the runners' epochs, its user, its descriptors beyond those it knows of.
fn answer(mut stream: impl std::io::Read + std::io::Write, who: &str, known: usize) {
    let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    // Standard input, output and error; this connection; the directory being read.
    let surplus = open.cast_signed() - (known + 5).cast_signed();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().nth(1).unwrap_or_default().to_owned()
    };
    let (uid, rights) = (line("Uid:"), line("NoNewPrivs:"));
    let _ = writeln!(stream, "{who} {uid} {surplus} {rights}");
}
