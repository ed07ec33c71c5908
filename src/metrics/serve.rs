//! The process itself: one loop over the listener, the channel and a few clients, none of whom can hold up
//! another or stay for long.

use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::net::{Shutdown, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use super::answer::{self, Wanted};
use super::start::{STATUS, STATUS_EVERY, STOP, Start};
use super::text;
use crate::http::date::DateLine;
use crate::observe::health::Health;
use crate::observe::status::Status;
use crate::sys::sandbox::Sandbox;
use crate::sys::sockets::{self, Place};
use crate::sys::wait::{For, wait};
use crate::sys::{Errno, Error, pass};

/// Clients at a time. Beyond it, whoever is done and does not close makes room, then whoever has been longest
/// without saying what he wants, then whoever does not read.
const CLIENTS_MAX: usize = 32;

/// How long a client may take, from its connection to the end of its answer.
const CLIENT_LIMIT: Duration = Duration::from_secs(5);

/// How long the supervisor may take to answer; it is busy for longer only while it replaces its program.
const STATUS_LIMIT: Duration = Duration::from_secs(2);

/// How long accepting pauses when the system has no room for another connection.
const PAUSE: Duration = Duration::from_millis(100);

/// How long clients have that are being answered when the process is told to stop.
const STOP_LIMIT: Duration = Duration::from_secs(1);

/// Lives as the process described by `start`. Called in a process of its own.
pub fn run(start: Start) -> ExitCode {
    let served = Sandbox::metrics().enter(start.user.as_ref()).and_then(|entered| {
        for reason in entered.failed {
            tracing::warn!("a layer of the sandbox is missing: {reason}");
        }
        Server::new(start)?.serve()
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

struct Server {
    listener: Listener,
    channel: OwnedFd,
    health: Health,
    common: DateLine,
    clients: Vec<Client>,
    /// The metrics, and as of when.
    text: Option<(Instant, String)>,
    /// Since when the supervisor owes an answer.
    asked: Option<Instant>,
    accepts_at: Option<Instant>,
    is_stopping: bool,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn accept(&self) -> std::io::Result<OwnedFd> {
        match self {
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| stream.into()),
            Self::Unix(listener) => listener.accept().map(|(stream, _)| stream.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

impl Server {
    fn new(start: Start) -> Result<Self, Error> {
        let place = sockets::place(&start.listener)
            .map_err(|errno| Error::new("ask for the address of", "the metrics' listener", errno))?;
        let listener = match place {
            Some(Place::Tcp(_)) => Listener::Tcp(start.listener.into()),
            _ => Listener::Unix(start.listener.into()),
        };
        Ok(Self {
            listener,
            channel: start.channel,
            health: start.health,
            common: DateLine::new(start.server_name.as_deref()),
            clients: Vec::new(),
            text: None,
            asked: None,
            accepts_at: None,
            is_stopping: false,
        })
    }

    fn serve(&mut self) -> Result<(), Error> {
        while !(self.is_stopping && self.clients.is_empty()) {
            let asked = self.asked.map(|asked| asked + STATUS_LIMIT);
            let clients = self.clients.iter().map(Client::deadline);
            let limit = clients.chain(asked).chain(self.accepts_at).min();
            let limit = limit.map(|until| until.saturating_duration_since(Instant::now()));
            wait(&self.fds(), limit)?;
            if self.listen_to_supervisor() {
                return Ok(());
            }
            let now = Instant::now();
            self.accept(now);
            self.advance(now);
        }
        Ok(())
    }

    fn fds(&self) -> Vec<(BorrowedFd<'_>, For)> {
        let mut fds = vec![(self.channel.as_fd(), For::Reading)];
        if self.accepts_at.is_none() && !self.is_stopping {
            fds.push((self.listener.as_fd(), For::Reading));
        }
        fds.extend(self.clients.iter().filter_map(|client| {
            let wanted = match client.stage {
                Stage::Reading(_) | Stage::Leaving => For::Reading,
                Stage::Writing { .. } => For::Writing,
                Stage::Waiting { .. } => return None,
            };
            Some((client.stream.as_fd(), wanted))
        }));
        fds
    }

    /// Takes the supervisor's notes; whether it is gone.
    fn listen_to_supervisor(&mut self) -> bool {
        let mut note = [0; 16];
        loop {
            match pass::receive(&self.channel, &mut note) {
                Ok((0, _)) => return true,
                Ok((length, Some(file))) if note.get(..length) == Some(STATUS) => self.told(file),
                Ok((length, _)) if note.get(..length) == Some(STOP) => self.stop(),
                Ok(_) => tracing::warn!("the supervisor said something unknown"),
                Err(errno) => return errno != Errno::AGAIN,
            }
        }
    }

    fn told(&mut self, file: OwnedFd) {
        self.asked = None;
        let mut bytes = Vec::new();
        let mut file = std::fs::File::from(file);
        let read = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
        let status = read
            .map_err(|error| error.to_string())
            .and_then(|_| serde_json::from_slice::<Status>(&bytes).map_err(|error| error.to_string()));
        match status {
            Ok(status) => self.text = Some((Instant::now(), text::render(&status))),
            Err(error) => tracing::warn!("the supervisor's status cannot be read: {error}"),
        }
    }

    fn stop(&mut self) {
        self.is_stopping = true;
        let until = Instant::now() + STOP_LIMIT;
        self.clients.iter_mut().for_each(|client| client.until = client.until.min(until));
    }

    fn accept(&mut self, now: Instant) {
        if self.accepts_at.is_some_and(|at| at > now) || self.is_stopping {
            return;
        }
        self.accepts_at = None;
        // Not without end: those who are here have their turn too.
        for _ in 0..CLIENTS_MAX {
            match self.listener.accept() {
                Ok(socket) => self.welcome(socket, now),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!("cannot accept who asks for metrics: {error}; trying again soon");
                    self.accepts_at = Some(now + PAUSE);
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, socket: OwnedFd, now: Instant) {
        if self.clients.len() >= CLIENTS_MAX {
            // The oldest of those that are missed least.
            let all = self.clients.iter().enumerate();
            let leaver = all.filter_map(|(at, client)| Some((client.stage.missed()?, at))).min();
            let Some((_, leaver)) = leaver else { return };
            self.clients.remove(leaver);
        }
        // What is done to it, read, write and shutdown, does not ask what kind of socket it is.
        let stream = UnixStream::from(socket);
        if stream.set_nonblocking(true).is_ok() {
            self.clients.push(Client {
                stream,
                stage: Stage::Reading(Vec::new()),
                until: now + CLIENT_LIMIT,
            });
        }
    }

    /// Goes on with every client as far as that is possible now.
    fn advance(&mut self, now: Instant) {
        let mut clients = std::mem::take(&mut self.clients);
        clients.retain_mut(|client| client.until > now && self.go_on(client, now));
        self.clients = clients;
        if self.asked.is_some_and(|asked| now >= asked + STATUS_LIMIT) {
            self.asked = None;
        }
    }

    /// Whether there is more to do for this client.
    fn go_on(&mut self, client: &mut Client, now: Instant) -> bool {
        loop {
            match &mut client.stage {
                Stage::Reading(input) => {
                    let is_open = read(&mut client.stream, input);
                    match answer::wanted(input) {
                        Wanted::More => return is_open,
                        Wanted::Metrics { head_only } => {
                            client.stage = Stage::Waiting { head_only, since: now };
                        }
                        Wanted::Health { head_only } => {
                            let common = self.common.at(SystemTime::now());
                            client.answer(answer::health(self.health.verdict(), head_only, common));
                        }
                        Wanted::Refused(status) => {
                            client.answer(answer::refused(status, self.common.at(SystemTime::now())));
                        }
                    }
                }
                Stage::Waiting { head_only, since } => {
                    let (head_only, since) = (*head_only, *since);
                    let common = self.common.at(SystemTime::now());
                    match &self.text {
                        Some((at, text)) if *at + STATUS_EVERY >= since => {
                            client.answer(answer::metrics(text, head_only, common));
                        }
                        _ if now >= since + STATUS_LIMIT => client.answer(answer::refused(503, common)),
                        _ => {
                            self.ask(now);
                            return true;
                        }
                    }
                }
                Stage::Writing { bytes, at } => {
                    match client.stream.write(bytes.get(*at..).unwrap_or_default()) {
                        Ok(written) => {
                            *at += written;
                            if *at == bytes.len() {
                                client.stage = Stage::Leaving;
                                // What has come and was not read would have the answer reset: the rest is read.
                                let _ = client.stream.shutdown(Shutdown::Write);
                            }
                        }
                        Err(error) => return error.kind() == ErrorKind::WouldBlock,
                    }
                }
                Stage::Leaving => return read(&mut client.stream, &mut Vec::new()),
            }
        }
    }

    /// Asks the supervisor, unless it owes an answer already.
    fn ask(&mut self, now: Instant) {
        if self.asked.is_none() && pass::send(&self.channel, STATUS, None).is_ok() {
            self.asked = Some(now);
        }
    }
}

struct Client {
    stream: UnixStream,
    stage: Stage,
    until: Instant,
}

enum Stage {
    /// It has not said what it wants.
    Reading(Vec<u8>),
    /// It wants metrics, and the supervisor is being asked.
    Waiting { head_only: bool, since: Instant },
    /// It is being answered.
    Writing { bytes: Vec<u8>, at: usize },
    /// It has its answer.
    Leaving,
}

impl Stage {
    /// How much a client is missed that has to make room, from the least on; `None`: it is kept, for the time
    /// that the supervisor takes to answer.
    fn missed(&self) -> Option<u8> {
        match self {
            Self::Leaving => Some(0),
            Self::Reading(_) => Some(1),
            // One that reads at all is soon done.
            Self::Writing { .. } => Some(2),
            Self::Waiting { .. } => None,
        }
    }
}

impl Client {
    fn deadline(&self) -> Instant {
        match self.stage {
            Stage::Waiting { since, .. } => self.until.min(since + STATUS_LIMIT),
            _ => self.until,
        }
    }

    fn answer(&mut self, bytes: Vec<u8>) {
        self.stage = Stage::Writing { bytes, at: 0 };
    }
}

/// Reads once what has come; whether more may come.
fn read(stream: &mut UnixStream, into: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    match stream.read(&mut buffer) {
        Ok(0) => false,
        Ok(length) => {
            into.extend_from_slice(buffer.get(..length).unwrap_or_default());
            true
        }
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}
