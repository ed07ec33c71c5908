//! The control socket: a client writes one line, is answered with one line of JSON, and is gone.
//! Only the user who runs the supervisor may connect. No client can hold the supervisor up.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::observe::status::Status;
use crate::sys::wait::For;
use crate::sys::{Error, sockets};

/// Clients at a time; more wait in the backlog.
const CLIENTS_MAX: usize = 16;

/// How long a client may take, both ways.
const CLIENT_LIMIT: Duration = Duration::from_secs(5);

/// The longest line that makes sense.
const LINE_BYTES_MAX: usize = 256;

/// The one thing that can be asked.
const STATUS: &[u8] = b"status";

/// The socket, and who is connected.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    listener: UnixListener,
    file: Option<(u64, u64)>,
    clients: Vec<Client>,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    line: Vec<u8>,
    /// What is still to be written; `None` while the line is not complete.
    answer: Option<Vec<u8>>,
    until: Instant,
}

impl Control {
    /// Opens the socket, and makes its directory where there is none.
    ///
    /// # Errors
    /// When it cannot be listened on, as when another server uses it.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if let Some(directory) = path.parent() {
            // If that fails, so does what follows, with a better reason.
            let _ = std::fs::create_dir_all(directory);
        }
        let listener = UnixListener::from(sockets::listen_unix(path, 0o600)?);
        let file = sockets::socket_file(path);
        Ok(Self { path: path.to_owned(), listener, file, clients: Vec::new() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What to wait for.
    pub fn fds(&self) -> Vec<(BorrowedFd<'_>, For)> {
        let listener = (self.clients.len() < CLIENTS_MAX).then_some((self.listener.as_fd(), For::Reading));
        let clients = self.clients.iter().map(|client| {
            let wanted = if client.answer.is_none() { For::Reading } else { For::Writing };
            (client.stream.as_fd(), wanted)
        });
        listener.into_iter().chain(clients).collect()
    }

    /// When the slowest client is to be dropped.
    pub fn deadline(&self) -> Option<Instant> {
        self.clients.iter().map(|client| client.until).min()
    }

    /// Does what can be done now, for all clients.
    pub fn turn(&mut self, now: Instant, status: impl Fn() -> Status) {
        while self.clients.len() < CLIENTS_MAX
            && let Ok((stream, _)) = self.listener.accept()
        {
            if stream.set_nonblocking(true).is_ok() {
                let until = now + CLIENT_LIMIT;
                self.clients.push(Client { stream, line: Vec::new(), answer: None, until });
            }
        }
        self.clients.retain_mut(|client| client.until > now && client.turn(&status));
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(file) = self.file {
            sockets::remove_socket_file(&self.path, file);
        }
    }
}

impl Client {
    /// Goes on; says whether there is more to do.
    fn turn(&mut self, status: &impl Fn() -> Status) -> bool {
        if self.answer.is_none() {
            match self.read_line() {
                Some(false) => return true,
                Some(true) => self.answer = Some(answer(&self.line, status)),
                None => return false,
            }
        }
        let Some(answer) = &mut self.answer else { return true };
        while !answer.is_empty() {
            match self.stream.write(answer) {
                Ok(0) => return false,
                Ok(length) => drop(answer.drain(..length)),
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        false
    }

    /// Whether the line is complete; `None` when it never will be.
    fn read_line(&mut self) -> Option<bool> {
        let mut buffer = [0; LINE_BYTES_MAX];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(length) => self.line.extend_from_slice(buffer.get(..length)?),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Some(false),
                Err(_) => return None,
            }
            if let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
                self.line.truncate(end);
                return Some(true);
            }
            if self.line.len() >= LINE_BYTES_MAX {
                return None;
            }
        }
    }
}

fn answer(line: &[u8], status: &impl Fn() -> Status) -> Vec<u8> {
    let mut answer = if line.trim_ascii() == STATUS {
        serde_json::to_vec(&status()).unwrap_or_default()
    } else {
        br#"{"error":"the only request is: status"}"#.to_vec()
    };
    answer.push(b'\n');
    answer
}

/// Asks a running server. The answer is JSON.
///
/// # Errors
/// When nobody answers.
pub fn ask(path: &Path) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(CLIENT_LIMIT))?;
    stream.set_write_timeout(Some(CLIENT_LIMIT))?;
    stream.write_all(STATUS)?;
    stream.write_all(b"\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::wait::wait;

    fn status() -> Status {
        Status { pid: 42, version: "x".repeat(1 << 20), ..Status::default() }
    }

    fn serve_until_idle(control: &mut Control) {
        loop {
            wait(&control.fds(), None).unwrap();
            control.turn(Instant::now(), status);
            if control.clients.is_empty() {
                return;
            }
        }
    }

    #[test]
    fn who_asks_is_answered_and_who_asks_otherwise_is_told_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("made/control.sock");
        let mut control = Control::open(&path).unwrap();
        let asked = path.clone();
        let client = std::thread::spawn(move || ask(&asked).unwrap());
        serve_until_idle(&mut control);
        let status: Status = serde_json::from_str(&client.join().unwrap()).unwrap();
        assert_eq!(status.pid, 42);
        let mut other = UnixStream::connect(&path).unwrap();
        other.write_all(b"reboot\n").unwrap();
        serve_until_idle(&mut control);
        let mut text = String::new();
        other.read_to_string(&mut text).unwrap();
        assert!(text.contains("error"), "{text}");
        drop(control);
        assert!(!path.exists());
    }

    #[test]
    fn who_says_nothing_or_too_much_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let mut control = Control::open(&path).unwrap();
        let _silent = UnixStream::connect(&path).unwrap();
        let mut loud = UnixStream::connect(&path).unwrap();
        loud.write_all(&[b'x'; 1000]).unwrap();
        let now = Instant::now();
        control.turn(now, status);
        assert_eq!(control.clients.len(), 1);
        assert_eq!(control.deadline(), Some(now + CLIENT_LIMIT));
        control.turn(now + CLIENT_LIMIT, status);
        assert!(control.clients.is_empty());
    }
}
