//! `httpd status` as a person and a program see it, and what is said at start.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Output, Stdio};

use crate::kit::{Server, Site};
use crate::processes::until;

fn command(server: &Server, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_httpd"));
    command.arg("status").arg("-c").arg(server.folder().join("httpd.toml")).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(server: &Server, words: &[&str]) -> Output {
    command(server, words).output().expect("the command runs")
}

#[test]
fn the_table_tells_what_runs() {
    let server = Site::new().start();
    for _ in 0..3 {
        server.get("/");
    }
    until("responses are timed", || server.status()["latency"]["2xx"]["count"] == 3);
    let output = run(&server, &[]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success() && output.stderr.is_empty());
    for expected in [
        &format!("httpd {} serving (pid {})", env!("CARGO_PKG_VERSION"), server.pid()),
        "requests/s",
        "responses     2xx 3  3xx 0  4xx 0  5xx 0\n",
        "took          2xx half within ",
        "entries, ",
        server.urls[0].trim_end_matches('/'),
    ] {
        assert!(text.contains(expected), "{expected:?} is not in\n{text}");
    }
    assert!(!text.contains('\x1b'));
}

#[test]
fn json_has_what_the_table_has() {
    let server = Site::new().start();
    server.get("/");
    until("the response is timed", || server.status()["latency"]["2xx"]["count"] == 1);
    let status = server.status();
    for key in [
        "version",
        "pid",
        "uptime",
        "started",
        "state",
        "generation",
        "last_reload",
        "listeners",
        "workers",
        "companions",
        "restarts",
        "counters",
        "latency",
        "cache_memory",
        "ring_features",
    ] {
        assert!(status.get(key).is_some(), "{key}");
    }
    for key in ["generation", "index", "pid", "state", "uptime", "connections", "requests", "bytes_sent"] {
        assert!(status["workers"][0].get(key).is_some(), "{key}");
    }
    assert_eq!(status["latency"]["2xx"]["count"], 1);
    assert!(status.get("rates").is_none());
}

/// A watcher that is ended by its own number, however the test ends.
struct Watcher(Child);

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_watcher_tells_rates_until_interrupted() {
    let server = Site::new().start();
    let mut watcher = Watcher(command(&server, &["--watch", "--json"]).spawn().expect("it runs"));
    let stdout = watcher.0.stdout.take().expect("piped");
    let mut lines = BufReader::new(stdout).lines();
    server.get("/");
    let mut gained = 0.0;
    while gained == 0.0 {
        let line = lines.next().expect("another line").expect("text");
        let status: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert!(status["rates"]["seconds"].as_f64().expect("a number") > 0.0);
        gained = status["rates"]["counters"]["requests"].as_f64().expect("a rate");
        if gained == 0.0 {
            server.get("/");
        }
    }
    crate::kit::signal(watcher.0.id(), "INT");
    assert!(watcher.0.wait().expect("it ends").success());
}

#[test]
fn a_watcher_without_terminal_is_plain_and_ends_with_the_server() {
    let mut server = Site::new().start();
    let mut watcher = Watcher(command(&server, &["--watch"]).spawn().expect("it runs"));
    let mut stdout = BufReader::new(watcher.0.stdout.take().expect("piped"));
    let mut first = String::new();
    stdout.read_line(&mut first).expect("a line");
    assert!(first.starts_with("httpd "), "{first:?}");
    server.signal("TERM");
    assert!(server.ended().success());
    assert_eq!(watcher.0.wait().expect("it ends").code(), Some(1));
    let mut said = String::new();
    watcher.0.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    assert!(said.contains("no server is running"), "{said}");
}

/// script(1) gives it a terminal; it is essential in Debian (bsdutils).
#[test]
fn a_terminal_is_given_back_as_it_was() {
    let server = Site::new().start();
    let folder = server.folder().display().to_string();
    let status = format!("{} status -w -c {folder}/httpd.toml", env!("CARGO_BIN_EXE_httpd"));
    let line = format!("stty rows 12 cols 80; timeout -s INT 3 {status}");
    let run = Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output();
    let Ok(output) = run else {
        eprintln!("SKIPPED: no script(1)");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (shown, restored) = (text.find("\x1b[?1049h"), text.rfind("\x1b[?1049l"));
    assert!(shown.is_some() && restored > shown, "{text:?}");
    assert!(text.contains("more lines"), "{text:?}");
    assert!(text.trim_end().ends_with("\x1b[?1049l"), "{text:?}");
}

#[test]
fn nobody_answers_and_why() {
    let mut server = Site::new().start();
    let socket = server.folder().join("control.sock");
    let fails = |server: &Server, expected: &str| {
        let output = run(server, &["--json"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty() && said.contains(expected), "{said}");
    };
    server.signal("TERM");
    assert!(server.ended().success());
    fails(&server, "no server is running: there is no ");
    // Bound, and then left behind, as by a server that was killed.
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));
    fails(&server, "did not end in good order");
    std::fs::remove_file(&socket).expect("removed");
    let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let other = std::thread::spawn(move || {
        use std::io::Write as _;
        let (mut stream, _) = listener.accept().expect("a client");
        let mut line = [0; 7];
        stream.read_exact(&mut line).expect("a question");
        stream.write_all(b"{\"error\":\"what?\"}\n").expect("an answer");
    });
    fails(&server, "not as httpd does");
    other.join().expect("it answered");
}

#[test]
fn a_start_is_introduced_once() {
    let mut server = Site::new().with("[metrics]\nlisten = \"unix:FOLDER/m.sock\"\n").start();
    let said = server.said.join("\n");
    let root = server.root().display().to_string();
    for expected in [
        &format!("httpd {} on Linux ", env!("CARGO_PKG_VERSION")),
        &format!("sites: all other hosts from {root}\n"),
        "metrics: unix:",
        "of the kernel: ring with ",
    ] {
        assert!(said.contains(expected), "{expected:?} is not in\n{said}");
    }
    let before = server.said.len();
    server.signal("HUP");
    server.wait_for("serving");
    assert!(
        !server.said[before..].iter().any(|line| line.contains("sites: ")),
        "{:?}",
        &server.said[before..]
    );
}

/// systemd names the device and inode of the stream it reads in JOURNAL_STREAM; a file does for a stream.
#[test]
fn the_journal_is_given_priorities() {
    use std::os::unix::fs::MetadataExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().display();
    let config = format!(
        "[server]\ncontrol = \"{place}/control.sock\"\nworkers = 1\n[log]\naccess = \"off\"\n\
         [[listen]]\naddress = \"unix:{place}/http.sock\"\n[[site]]\nroot = \"{place}\"\n"
    );
    std::fs::write(folder.path().join("httpd.toml"), config).expect("written");
    let journal = std::fs::File::create(folder.path().join("journal")).expect("a file");
    let facts = journal.metadata().expect("facts");
    let mut server = Watcher(
        Command::new(env!("CARGO_BIN_EXE_httpd"))
            .arg("-c")
            .arg(folder.path().join("httpd.toml"))
            .env("JOURNAL_STREAM", format!("{}:{}", facts.dev(), facts.ino()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(journal)
            .spawn()
            .expect("the server starts"),
    );
    let said = || std::fs::read_to_string(folder.path().join("journal")).expect("what it said");
    until("it serves", || said().contains(" serving "));
    crate::kit::signal(server.0.id(), "TERM");
    assert!(server.0.wait().expect("it ends").success());
    let said = said();
    assert!(said.lines().all(|line| line.starts_with("<6>") || line.starts_with("<4>")), "{said}");
    assert!(said.contains("<6>httpd "), "{said}");
}
