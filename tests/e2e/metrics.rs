//! What monitoring is told: metrics and health, while workers come and go.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::kit::{Client, Response, Server, Site, signal};
use crate::processes::until;

/// A port nobody listens on now. Metrics need one by number, since nothing tells which one the kernel chose.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

fn section(port: u16) -> String {
    format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n")
}

fn ask(port: u16, path: &str) -> Response {
    Client::new(TcpStream::connect(("127.0.0.1", port)).expect("a connection")).get(path)
}

fn metrics(port: u16) -> String {
    let response = ask(port, "/metrics");
    assert_eq!(response.status, 200);
    assert_eq!(response.field("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    String::from_utf8(response.body).expect("text")
}

/// The value of one series.
fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{series} is not in\n{text}")).parse().expect("a number")
}

/// Waits until a series has a value.
fn becomes(port: u16, series: &str, expected: f64) {
    until(series, || value(&metrics(port), series) == expected);
}

#[test]
fn traffic_is_counted_and_outlives_the_worker_that_served_it() {
    let port = free_port();
    let server = Site::new().with("[server]\nworkers = 1\n").with(&section(port)).start();
    assert_eq!(ask(port, "/health").body, b"serving with 1 worker\n");
    let mut client = server.connect();
    for path in ["/", "/", "/missing"] {
        client.get(path);
    }
    // The last to be counted: a response is timed when its send has ended, one turn later.
    becomes(port, "httpd_response_duration_seconds_bucket{class=\"4xx\",le=\"+Inf\"}", 1.0);
    let text = metrics(port);
    assert_eq!(value(&text, "httpd_requests_total"), 3.0);
    assert_eq!(value(&text, "httpd_responses_total{class=\"2xx\"}"), 2.0);
    assert_eq!(value(&text, "httpd_connections_active"), 1.0);
    assert_eq!(value(&text, "httpd_workers{state=\"serving\"}"), 1.0);
    let version = format!("httpd_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    assert_eq!(value(&text, &version), 1.0);
    assert!(value(&text, "httpd_sent_bytes_total") > 100.0);

    let old = server.workers();
    signal(old[0], "KILL");
    until("the worker is replaced", || {
        let now = server.workers();
        now.len() == 1 && now != old
    });
    becomes(port, "httpd_worker_restarts_total", 1.0);
    becomes(port, "httpd_workers{state=\"serving\"}", 1.0);
    let text = metrics(port);
    assert_eq!(value(&text, "httpd_requests_total"), 3.0);
    assert_eq!(value(&text, "httpd_response_duration_seconds_count{class=\"2xx\"}"), 2.0);
    assert_eq!(value(&text, "httpd_connections_active"), 0.0);
    server.get("/");
    becomes(port, "httpd_requests_total", 4.0);
    check_by_promtool(&metrics(port));
}

/// promtool comes with Debian's package prometheus. Where it is missing CI says so, and installs it.
fn check_by_promtool(text: &str) {
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        assert!(std::env::var_os("HTTPD_PROMTOOL_STRICT").is_none(), "there is no promtool");
        eprintln!("SKIPPED: no promtool (Debian: prometheus): the form of the metrics is not checked by it");
        return;
    };
    promtool.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    let said = promtool.wait_with_output().expect("it ends");
    let complaints = [said.stdout, said.stderr].concat();
    assert!(said.status.success() && complaints.is_empty(), "{}", String::from_utf8_lossy(&complaints));
}

#[test]
fn a_draining_server_is_not_healthy() {
    let port = free_port();
    let content = vec![b'x'; 64 << 20];
    let mut server = Site::new().with(&section(port)).file("large.bin", &content).start();
    assert_eq!(ask(port, "/health").status, 200);
    // Somebody who reads slowly keeps a worker.
    let mut client = server.connect();
    client.send(b"GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n");
    let (status, _) = client.head();
    assert_eq!(status, 200);
    server.signal("TERM");
    until("it says that it drains", || ask(port, "/health").body == b"draining\n");
    assert_eq!(ask(port, "/health").status, 503);
    assert_eq!(value(&metrics(port), "httpd_draining"), 1.0);
    assert_eq!(client.rest_of(content.len()).len(), content.len());
    drop(client);
    assert!(server.ended().success());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn a_reload_moves_the_metrics_or_leaves_them() {
    let (port, other) = (free_port(), free_port());
    let server = Site::new().with(&section(port)).start();
    let file = server.folder().join("httpd.toml");
    let text = std::fs::read_to_string(&file).expect("the configuration");
    server.get("/");
    let reload = |text: String| {
        let old = server.workers();
        std::fs::write(&file, text).expect("written");
        server.signal("HUP");
        until("a new generation", || {
            let now = server.workers();
            now.len() == old.len() && now.iter().all(|pid| !old.contains(pid))
        });
    };
    reload(text.clone());
    becomes(port, "httpd_generation", 2.0);
    becomes(port, "httpd_companions{name=\"metrics\"}", 1.0);
    assert_eq!(value(&metrics(port), "httpd_requests_total"), 1.0);
    reload(text.replace(&section(port), &section(other)));
    becomes(other, "httpd_generation", 3.0);
    assert_eq!(value(&metrics(other), "httpd_last_reload_successful"), 1.0);
    until("the old address is left", || TcpStream::connect(("127.0.0.1", port)).is_err());
    reload(text.replace(&section(port), ""));
    until("metrics are off", || TcpStream::connect(("127.0.0.1", other)).is_err());

    // A reload that fails is told, and takes nothing away.
    reload(text.clone());
    becomes(port, "httpd_generation", 5.0);
    std::fs::write(&file, text.replace("[metrics]", "[matrix]")).expect("written");
    server.signal("HUP");
    becomes(port, "httpd_last_reload_successful", 0.0);
    assert_eq!(ask(port, "/health").status, 200);
}

#[test]
fn a_taken_port_refuses_the_start() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let said = Site::new().with(&section(port)).refused();
    assert!(said.contains("in use") && said.contains(&port.to_string()), "{said}");
}

#[test]
fn nobody_holds_up_the_metrics_or_the_supervisor() {
    let port = free_port();
    let server = Site::new().with(&section(port)).start();
    let old = server.workers();
    // More than there is room for, silent.
    let silent: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("a connection")).collect();
    until("it is healthy", || ask(port, "/health").status == 200);
    becomes(port, "httpd_generation", 1.0);
    // More than there is room for, who have their answers and stay.
    let staying: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
            stream.write_all(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
            let mut begin = [0; 12];
            stream.read_exact(&mut begin).expect("an answer");
            assert_eq!(&begin, b"HTTP/1.1 200");
            stream
        })
        .collect();
    for (bytes, status) in [
        (&b"GET /metrics HTTP/1.1\nHost: a\n\n"[..], "400"),
        (b"\x16\x03\x01\x02\x00\x01", "400"),
        (b"POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "405"),
        (b"GET /../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
        (&[b'A'; 20_000], "414"),
    ] {
        let mut client = Client::new(TcpStream::connect(("127.0.0.1", port)).expect("a connection"));
        client.send(bytes);
        let answer = String::from_utf8_lossy(&client.rest()).into_owned();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    // Whoever asks and does not read.
    let mut deaf = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    deaf.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
    assert_eq!(ask(port, "/health").status, 200);
    // Supervision goes on: a worker that dies is replaced, and so is the process of the metrics itself.
    signal(old[0], "KILL");
    until("a worker is replaced", || !server.workers().contains(&old[0]));
    becomes(port, "httpd_worker_restarts_total", 1.0);
    // By its name: a worker just forked has none of its own yet.
    let named = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let companions: Vec<u32> =
        server.children().into_iter().filter(|pid| named(pid) == "httpd metrics\n").collect();
    assert_eq!(companions.len(), 1);
    signal(companions[0], "KILL");
    becomes(port, "httpd_companion_restarts_total{name=\"metrics\"}", 1.0);
    drop((silent, staying, deaf));
}

#[test]
fn a_unix_socket_serves_them_too() {
    let server = Site::new().with("[metrics]\nlisten = \"unix:FOLDER/metrics.sock\"\n").start();
    let path = server.folder().join("metrics.sock");
    let mut stream = UnixStream::connect(&path).expect("a socket");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    assert!(text.contains("\nhttpd_workers{state=\"serving\"} 2\n"), "{text}");
    drop(server);
    assert!(!path.exists());
}

#[test]
fn what_is_counted_survives_a_reload() {
    let port = free_port();
    let server = Site::new().with(&section(port)).start();
    for _ in 0..5 {
        assert_eq!(server.get("/").status, 200);
    }
    let old = server.workers();
    server.signal("HUP");
    replaced(&server, &old);
    becomes(port, "httpd_requests_total", 5.0);
    becomes(port, "httpd_responses_total{class=\"2xx\"}", 5.0);
}

fn replaced(server: &Server, old: &[u32]) {
    until("the old workers end", || {
        let now = server.workers();
        now.len() == old.len() && now.iter().all(|pid| !old.contains(pid))
    });
}

#[test]
fn what_is_counted_survives_another_program() {
    let port = free_port();
    let mut server = Site::new().with(&section(port)).start();
    for _ in 0..5 {
        assert_eq!(server.get("/").status, 200);
    }
    becomes(port, "httpd_response_duration_seconds_count{class=\"2xx\"}", 5.0);
    let old = server.workers();
    server.signal("USR2");
    server.wait_for("serving");
    replaced(&server, &old);
    becomes(port, "httpd_generation", 2.0);
    let text = metrics(port);
    assert_eq!(value(&text, "httpd_requests_total"), 5.0);
    assert_eq!(value(&text, "httpd_response_duration_seconds_count{class=\"2xx\"}"), 5.0);
    assert_eq!(ask(port, "/health").status, 200);
    becomes(port, "httpd_companions{name=\"metrics\"}", 1.0);
    server.get("/");
    becomes(port, "httpd_requests_total", 6.0);
}
