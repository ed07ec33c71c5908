//! Starts the real binary on a temporary site and talks to it. Every server listens on a port the
//! kernel chose, is ended by its own process id, and takes its files with it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long anything may take before the test gives up. Generous: machines are shared.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A running server and its site.
pub struct Server {
    child: Child,
    /// Lines of its diagnostics.
    lines: Receiver<String>,
    /// Everything it said so far.
    pub said: Vec<String>,
    /// Where it listens, in the order of the configuration.
    pub urls: Vec<String>,
    folder: tempfile::TempDir,
}

/// A site before its server is started.
pub struct Site {
    folder: tempfile::TempDir,
    extra: String,
    listen: String,
    site: String,
}

impl Default for Site {
    fn default() -> Self {
        Self::new()
    }
}

impl Site {
    /// A site with an index page.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let site = Self {
            folder,
            extra: String::new(),
            listen: "[[listen]]\naddress = \"127.0.0.1:0\"\n".into(),
            site: String::new(),
        };
        std::fs::create_dir(site.root()).expect("a root");
        site.file("index.html", b"<h1>index</h1>\n")
    }

    /// The folder served.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// Writes a file beneath the root.
    pub fn file(self, name: &str, bytes: &[u8]) -> Self {
        let path = self.root().join(name);
        std::fs::create_dir_all(path.parent().expect("beneath the root")).expect("folders");
        std::fs::write(path, bytes).expect("a file");
        self
    }

    /// Adds sections before the listeners.
    pub fn with(mut self, sections: &str) -> Self {
        self.extra.push_str(sections);
        self
    }

    /// Replaces the listeners.
    pub fn listening(mut self, sections: &str) -> Self {
        self.listen = sections.replace("FOLDER", &self.folder.path().display().to_string());
        self
    }

    /// Adds keys to the site.
    pub fn keys(mut self, keys: &str) -> Self {
        self.site.push_str(keys);
        self
    }

    /// Starts the server and waits until it serves.
    pub fn start(self) -> Server {
        let mut server = self.spawn();
        let line = server.wait_for("serving");
        let urls = line.split([' ', ',']).filter(|word| word.contains("://") || word.starts_with("unix:"));
        server.urls = urls.map(str::to_owned).collect();
        server
    }

    /// Starts a server that is not going to serve; what it says, when it has failed.
    pub fn refused(self) -> String {
        let mut server = self.spawn();
        assert!(!server.ended().success(), "it does not serve");
        server.said.extend(server.lines.iter());
        server.said.join("\n")
    }

    fn spawn(self) -> Server {
        let config = self.folder.path().join("httpd.toml");
        std::fs::write(&config, self.configuration()).expect("a configuration");
        let mut child = Command::new(env!("CARGO_BIN_EXE_httpd"))
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Server { child, lines, said: Vec::new(), urls: Vec::new(), folder: self.folder }
    }

    fn configuration(&self) -> String {
        let folder = self.folder.path().display().to_string();
        let Self { extra, listen, site, .. } = self;
        let server = if extra.contains("[server]") { "" } else { "[server]\nworkers = 2\n" };
        let log = if extra.contains("[log]") { "" } else { "[log]\naccess = \"off\"\n" };
        let cache =
            if extra.contains("[cache]") { "" } else { "[cache]\nrevalidate = \"50ms\"\ndir = \"\"\n" };
        format!("{server}{log}{cache}{extra}\n{listen}\n[[site]]\nroot = \"root\"\n{site}\n")
            .replace("[server]\n", &format!("[server]\ncontrol = \"{folder}/control.sock\"\n"))
            .replace("FOLDER", &folder)
    }
}

impl Server {
    /// The folder served.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// The folder of configuration, control socket and root.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The supervisor's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Process ids of the workers of all generations, without what runs beside them.
    pub fn workers(&self) -> Vec<u32> {
        let is_worker = |pid: &u32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.starts_with("httpd worker")
        };
        self.children().into_iter().filter(is_worker).collect()
    }

    /// Process ids of the supervisor's children.
    pub fn children(&self) -> Vec<u32> {
        let path = format!("/proc/{0}/task/{0}/children", self.pid());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    }

    /// The first address it listens at.
    pub fn address(&self) -> SocketAddr {
        let url = &self.urls[0];
        let authority = url.split("://").nth(1).expect("a URL").trim_end_matches('/');
        authority.parse().expect("an address")
    }

    /// What `httpd status --json` says.
    pub fn status(&self) -> serde_json::Value {
        let asked = Command::new(env!("CARGO_BIN_EXE_httpd"))
            .args(["status", "--json", "-c"])
            .arg(self.folder().join("httpd.toml"))
            .output()
            .expect("the command starts");
        serde_json::from_slice(&asked.stdout).expect("a status")
    }

    /// The value of a counter.
    pub fn counter(&self, name: &str) -> u64 {
        self.status()["counters"][name].as_u64().unwrap_or_else(|| panic!("a counter {name}"))
    }

    /// Sends a signal to the supervisor.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits until the server says a line that contains `text`.
    pub fn wait_for(&mut self, text: &str) -> String {
        loop {
            let Ok(line) = self.lines.recv_timeout(PATIENCE) else {
                panic!("the server did not say {text:?}, but:\n{}", self.said.join("\n"));
            };
            self.said.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Opens a connection.
    pub fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.address()).expect("a connection"))
    }

    /// One request on a connection of its own.
    pub fn get(&self, path: &str) -> Response {
        self.connect().get(path)
    }

    /// Sends bytes on a connection of its own; all that comes until the server closes.
    pub fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        let mut client = self.connect();
        client.send(bytes);
        client.rest()
    }

    /// Waits for the server to end by itself.
    pub fn ended(&mut self) -> std::process::ExitStatus {
        let begun = std::time::Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the server did not end");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.try_wait().ok().flatten().is_none() {
            // Twice: at once.
            self.signal("TERM");
            self.signal("TERM");
            let begun = std::time::Instant::now();
            while self.child.try_wait().ok().flatten().is_none() {
                if begun.elapsed() > Duration::from_secs(10) {
                    let _ = self.child.kill();
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        if std::thread::panicking() {
            while let Ok(line) = self.lines.try_recv() {
                self.said.push(line);
            }
            eprintln!("the server said:\n{}", self.said.join("\n"));
        }
    }
}

/// Sends a signal to a process.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill -s {name} {pid}");
}

/// A client connection.
pub struct Client<S = TcpStream> {
    stream: BufReader<S>,
}

/// A response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Fields, names in lower case.
    pub fields: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Response {
    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }
}

impl Client {
    /// Over a connected stream.
    pub fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        Self::over(stream)
    }

    /// Says that nothing more will be sent.
    pub fn half_close(&mut self) {
        self.stream.get_ref().shutdown(std::net::Shutdown::Write).expect("half closed");
    }
}

impl<S: Read + Write> Client<S> {
    /// Over anything that bytes go through.
    pub fn over(stream: S) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    /// What the bytes go through.
    pub fn stream(&mut self) -> &mut S {
        self.stream.get_mut()
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        // The server may have closed; what it answered then is still to be read.
        let _ = self.stream.get_mut().write_all(bytes);
    }

    /// GET with keep-alive.
    pub fn get(&mut self, path: &str) -> Response {
        self.request("GET", path, "")
    }

    /// A request with further field lines, each ended by CRLF.
    pub fn request(&mut self, method: &str, path: &str, fields: &str) -> Response {
        self.send(format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n").as_bytes());
        self.response(method != "HEAD")
    }

    /// Reads a response.
    pub fn response(&mut self, with_body: bool) -> Response {
        let (status, fields) = self.head();
        let mut response = Response { status, fields, body: Vec::new() };
        if with_body && status >= 200 && status != 204 && status != 304 {
            let length = response.field("content-length").expect("a length").parse().expect("a number");
            response.body.resize(length, 0);
            self.stream.read_exact(&mut response.body).expect("the whole body");
        }
        response
    }

    /// Reads the head of a response.
    pub fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let status_line = self.line();
        let status = status_line.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.unwrap_or_else(|| panic!("a status line, not {status_line:?}"));
        let mut fields = Vec::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                return (status, fields);
            }
            let (name, value) = line.split_once(": ").expect("a field line");
            fields.push((name.to_ascii_lowercase(), value.to_owned()));
        }
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).expect("a line");
        let line = line.strip_suffix(b"\r\n").unwrap_or_else(|| panic!("a line end after {line:?}"));
        String::from_utf8(line.to_vec()).expect("a line of text")
    }

    /// At most `length` bytes.
    pub fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let read = self.stream.read(&mut bytes).expect("something to read");
        bytes.truncate(read);
        bytes
    }

    /// Everything until the server closes, in whatever way.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut piece = [0; 65536];
        while let Ok(length @ 1..) = self.stream.read(&mut piece) {
            bytes.extend_from_slice(&piece[..length]);
        }
        bytes
    }

    /// Everything until the server closes, and how it closed.
    pub fn until_end(&mut self) -> (Vec<u8>, std::io::Result<()>) {
        let mut bytes = Vec::new();
        let ended = self.stream.read_to_end(&mut bytes);
        (bytes, ended.map(drop))
    }

    /// At most `length` bytes, fewer when the server closes before.
    pub fn rest_of(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut piece = [0; 65536];
        while bytes.len() < length {
            let wanted = piece.len().min(length - bytes.len());
            match self.stream.read(&mut piece[..wanted]) {
                Ok(read @ 1..) => bytes.extend_from_slice(&piece[..read]),
                _ => break,
            }
        }
        bytes
    }
}
