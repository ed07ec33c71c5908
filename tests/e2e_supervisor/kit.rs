//! Starts this program as a supervisor, talks to it, and ends it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use httpd::observe::status::Status;
use rustix::process::{Pid, Signal};

/// How long anything may take before a test gives up. Generous: machines are shared.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct Server {
    pub child: Child,
    pub lines: Receiver<String>,
    pub folder: PathBuf,
    pub address: SocketAddr,
    pub _temporary: Option<tempfile::TempDir>,
}

/// What a toy says of itself.
#[derive(Debug)]
pub struct Toy {
    pub pid: u32,
    pub generation: u64,
    /// Those of the spawner and of the module host; 0: there is none.
    pub epochs: [u64; 2],
    pub uid: u32,
    pub surplus: i32,
    pub no_new_privileges: bool,
}

impl Toy {
    pub fn read(mut stream: impl std::io::Read) -> Option<Self> {
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let words: Vec<i64> = text.split_whitespace().map(|word| word.parse().unwrap_or(-1)).collect();
        let &[pid, generation, _, spawner, modules, uid, surplus, rights] = words.as_slice() else {
            return None;
        };
        Some(Self {
            pid: pid as u32,
            generation: generation as u64,
            epochs: [spawner, modules].map(|epoch| epoch as u64),
            uid: uid as u32,
            surplus: surplus as i32,
            no_new_privileges: rights == 1,
        })
    }
}

/// Writes a configuration with two workers; `server` and `rest` are further lines.
pub fn configure(folder: &Path, server: &str, rest: &str) {
    fs::create_dir_all(folder.join("root")).expect("a folder");
    let workers = if server.contains("workers") { "" } else { "workers = 2\n" };
    let log = if rest.contains("[log]") { "" } else { "[log]\naccess = \"off\"\n" };
    let listen = if rest.contains("[[listen]]") { "" } else { "[[listen]]\naddress = \"127.0.0.1:0\"\n" };
    let text = format!(
        "[server]\ncontrol = \"{0}/control.sock\"\n{workers}{server}\n{log}{rest}\n{listen}\n\
         [[site]]\nroot = \"{0}/root\"\n",
        folder.display()
    );
    fs::write(folder.join("new.toml"), text).expect("written");
    // A reload must not see half of it.
    fs::rename(folder.join("new.toml"), folder.join("toy.toml")).expect("renamed");
}

pub fn command(folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.arg("serve").arg(folder.join("toy.toml"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

impl Server {
    pub fn start(server: &str, rest: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        configure(folder.path(), server, rest);
        let mut server = Self::spawn(folder.path(), command(folder.path()));
        server._temporary = Some(folder);
        server
    }

    pub fn spawn(folder: &Path, mut command: Command) -> Self {
        let mut child = command.spawn().expect("a supervisor");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let (send, lines) = channel();
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        let any = "0.0.0.0:0".parse().expect("an address");
        let folder = folder.to_owned();
        let mut server = Self { child, lines, folder, address: any, _temporary: None };
        let line = server.wait_for("serving");
        let url = line.split([' ', ',']).find_map(|word| word.strip_prefix("http://"));
        server.address = url.map_or(any, |url| url.parse().expect("an address"));
        server
    }

    /// Reads its diagnostics until a line contains `text`.
    pub fn wait_for(&mut self, text: &str) -> String {
        let mut said = Vec::new();
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("it did not say {text:?}, but:\n{}", said.join("\n")));
            if line.contains(text) {
                return line;
            }
            said.push(line);
        }
    }

    pub fn ask(&self) -> Toy {
        let stream = TcpStream::connect(self.address).expect("a connection");
        Toy::read(stream).expect("an answer")
    }

    pub fn signal(&self, name: Signal) {
        signal(self.child.id(), name);
    }

    /// Reloads, and waits until all of the old generation is gone.
    pub fn reload(&mut self) {
        let old = self.status().generation;
        self.signal(Signal::HUP);
        self.until("a new generation alone", |status| {
            status.generation > old && status.workers.iter().all(|worker| worker.generation > old)
        });
    }

    pub fn status(&self) -> Status {
        let mut stream = UnixStream::connect(self.folder.join("control.sock")).expect("a control socket");
        stream.write_all(b"status\n").expect("asked");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        serde_json::from_str(&text).expect("a status")
    }

    pub fn until(&self, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
        let begun = Instant::now();
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: {status:#?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn ended(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it lives").count()
    }

    /// Children of any kind, those that ended and wait to be buried included.
    pub fn children(&self) -> usize {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        fs::read_to_string(path).expect("it lives").split_whitespace().count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its workers notice and end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process number");
    rustix::process::kill_process(pid, signal).expect("it lives");
}
