//! Workers that come and go.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::kit::{Client, PATIENCE, Server, Site, signal};

/// Waits until `done` says so.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a process has ended, be it buried or not.
fn is_dead(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.is_empty() || status.contains(") Z ")
}

pub fn replace_workers(server: &Server, old: &[u32]) {
    until("the old workers end", || {
        let now = server.workers();
        now.len() == old.len() && now.iter().all(|pid| !old.contains(pid))
    });
}

#[test]
fn a_killed_worker_is_replaced_and_its_queue_served() {
    let mut server = Site::new().with("[server]\nworkers = 1\n").start();
    for _ in 0..3 {
        let old = server.workers();
        signal(old[0], "KILL");
        // A dying worker may still take a connection with it. Once it is dead, the connection waits in
        // the listener's queue if need be.
        until("the worker dies", || is_dead(old[0]));
        assert_eq!(server.get("/").status, 200);
        replace_workers(&server, &old);
    }
    server.wait_for("signal");
}

#[test]
fn hangup_makes_a_new_generation_and_loses_nothing() {
    let server = Site::new().file("a.txt", b"text").start();
    let address = server.address();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut count = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let mut client = Client::new(TcpStream::connect(address).expect("a connection"));
                // The last generation keeps the connection.
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let response = client.get("/a.txt");
                    assert_eq!(response.body, b"text");
                    count += 1;
                    // Also once nobody will reload any more.
                    let is_over = stop.load(std::sync::atomic::Ordering::Relaxed);
                    if is_over || response.field("connection") == Some("close") {
                        break;
                    }
                }
            }
            count
        });
        for _ in 0..20 {
            let old = server.workers();
            server.signal("HUP");
            until("a new generation", || server.workers().iter().all(|pid| !old.contains(pid)));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(load.join().expect("no request failed") > 0);
    });
}

#[test]
fn a_broken_configuration_leaves_the_old_one_serving() {
    let mut server = Site::new().start();
    let old = server.workers();
    let config = server.folder().join("httpd.toml");
    let text = std::fs::read_to_string(&config).expect("the configuration");
    std::fs::write(&config, text.replace("root = ", "rot = ")).expect("broken");
    server.signal("HUP");
    server.wait_for("root");
    assert_eq!(server.workers(), old);
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn a_running_download_outlives_its_generation() {
    let body = vec![b'L'; 30_000_000];
    let server = Site::new().file("large", &body).start();
    let mut client = server.connect();
    client.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    client.head();
    let old = server.workers();
    server.signal("HUP");
    until("a new generation", || server.workers().iter().any(|pid| !old.contains(pid)));
    assert!(client.rest_of(body.len()) == body);
    drop(client);
    replace_workers(&server, &old);
}

#[test]
fn terminate_drains_and_ends_well() {
    let body = vec![b'L'; 30_000_000];
    let mut server = Site::new().file("large", &body).start();
    let mut idle = server.connect();
    assert_eq!(idle.get("/").status, 200);
    let mut client = server.connect();
    client.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    client.head();
    server.signal("TERM");
    assert!(idle.rest().is_empty(), "an idle connection is closed");
    assert!(client.rest_of(body.len()) == body, "a download is finished");
    assert!(server.ended().success());
}

#[test]
fn a_second_terminate_stops_at_once() {
    let mut server = Site::new().file("large", &vec![b'L'; 30_000_000]).start();
    let mut client = server.connect();
    client.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    client.head();
    server.signal("TERM");
    server.signal("TERM");
    server.ended();
}

#[test]
fn workers_stop_when_the_supervisor_is_gone() {
    let server = Site::new().start();
    let workers = server.workers();
    signal(server.pid(), "KILL");
    until("the workers end", || workers.iter().all(|pid| is_dead(*pid)));
}

#[test]
fn many_generations_leak_nothing() {
    let server = Site::new().start();
    let count = || std::fs::read_dir(format!("/proc/{}/fd", server.pid())).map_or(0, Iterator::count);
    let reload = || {
        let old = server.workers();
        server.signal("HUP");
        replace_workers(&server, &old);
    };
    reload();
    let before = count();
    for _ in 0..30 {
        reload();
    }
    assert_eq!(count(), before, "descriptors of the supervisor");
    assert_eq!(server.workers().len(), 2);
    assert_eq!(server.get("/").status, 200);
}
