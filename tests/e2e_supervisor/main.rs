//! The real supervisor with toy workers: they answer one line on each connection, and fail on demand.
//!
//! This program is its own test harness: supervisors fork and must be single-threaded, so each test
//! starts this very program again as a supervisor (`serve FILE`), talks to it, and ends it by its
//! own process number. What the toy does is said in `server.name` of the configuration.

mod kit;
mod toy;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use httpd::observe::status::{Companion, Status};
use httpd::sys::{sockets, user};
use rustix::process::Signal;

use kit::{PATIENCE, Server, Toy, command, configure, signal};
use toy::{load, serve};

const TESTS: &[(&str, fn())] = &[
    ("serves_and_ends_well", serves_and_ends_well),
    ("a_worker_holds_nothing_but_its_own", a_worker_holds_nothing_but_its_own),
    ("a_start_that_fails_says_why", a_start_that_fails_says_why),
    ("a_taken_port_is_refused", a_taken_port_is_refused),
    ("a_reload_that_fails_leaves_the_old_generation", a_reload_that_fails_leaves_the_old_generation),
    ("a_worker_that_keeps_dying_is_forked_again", a_worker_that_keeps_dying_is_forked_again),
    ("who_talks_without_end_holds_up_nobody", who_talks_without_end_holds_up_nobody),
    ("process_1_loses_no_child", process_1_loses_no_child),
    ("who_does_not_drain_is_killed_by_a_second_stop", who_does_not_drain_is_killed_by_a_second_stop),
    ("the_number_of_workers_changes_without_a_refused_connection", the_number_of_workers_changes),
    ("listeners_come_and_go", listeners_come_and_go),
    ("a_unix_socket_has_its_mode_and_is_removed", a_unix_socket_has_its_mode_and_is_removed),
    ("an_activated_socket_is_used", an_activated_socket_is_used),
    ("the_service_manager_is_told", the_service_manager_is_told),
    ("the_access_log_is_reopened", the_access_log_is_reopened),
    ("a_successor_takes_over", a_successor_takes_over),
    ("a_successor_that_cannot_start_changes_nothing", a_successor_that_cannot_start_changes_nothing),
    ("what_a_failed_successor_was_handed_is_kept", what_a_failed_successor_was_handed_is_kept),
    ("companions_live_as_long_as_they_are_wanted", companions_live_as_long_as_they_are_wanted),
    ("companions_outlive_the_program", companions_outlive_the_program),
    ("workers_become_somebody_else", workers_become_somebody_else),
    (
        "a_silent_reader_of_diagnostics_stops_nobody",
        a_reader_of_diagnostics_that_stopped_reading_stops_nobody,
    ),
    ("many_generations_leak_nothing", many_generations_leak_nothing),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve", file] => serve(Path::new(file)),
        // How a successor is asked whether it takes the configuration.
        ["-t", "serve", file] => match load(Path::new(file)) {
            Ok(config) if config.server.name.as_deref() != Some("refused") => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        },
        others => test(others),
    }
}

fn test(arguments: &[&str]) -> ExitCode {
    if arguments.contains(&"--list") {
        TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let filters: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(**filter));
    let mut failures = 0;
    for (name, test) in TESTS.iter().filter(|(name, _)| is_wanted(name)) {
        let is_fine = std::panic::catch_unwind(AssertUnwindSafe(test)).is_ok();
        println!("test {name} ... {}", if is_fine { "ok" } else { "FAILED" });
        failures += u32::from(!is_fine);
    }
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn serves_and_ends_well() {
    let mut server = Server::start("", "");
    let toy = server.ask();
    assert_eq!(toy.generation, 1);
    let status = server.status();
    assert_eq!((status.pid, status.state.as_str()), (server.child.id(), "serving"));
    assert_eq!(status.listeners[0].address, server.address.to_string());
    assert_eq!(status.workers.iter().filter(|worker| worker.pid == Some(toy.pid)).count(), 1);
    server.signal(Signal::TERM);
    assert!(server.ended().success());
    assert!(TcpStream::connect(server.address).is_err());
    assert!(!server.folder.join("control.sock").exists());
}

fn a_worker_holds_nothing_but_its_own() {
    let log = "[log]\naccess = \"stdout\"\n";
    let mut server = Server::start("workers = 3\n", log);
    for _ in 0..3 {
        for _ in 0..9 {
            let toy = server.ask();
            assert_eq!(toy.surplus, 0, "{toy:?}");
            assert!(toy.no_new_privileges);
        }
        server.reload();
    }
}

fn a_start_that_fails_says_why() {
    for (behaviour, reason) in [("fail", "the toy is broken"), ("abort", "SIGABRT")] {
        let folder = tempfile::tempdir().expect("a folder");
        configure(folder.path(), &format!("name = \"{behaviour}\"\n"), "");
        let output = command(folder.path()).output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(reason), "{said}");
    }
}

fn a_taken_port_is_refused() {
    let server = Server::start("", "");
    let folder = tempfile::tempdir().expect("a folder");
    configure(folder.path(), "", &format!("[[listen]]\naddress = \"{}\"\n", server.address));
    let output = command(folder.path()).output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("in use"), "{said}");
}

fn a_reload_that_fails_leaves_the_old_generation() {
    let mut server = Server::start("", "");
    let descriptors = server.descriptors();
    let cases = [
        ("wokers = 3\n", "", "wokers"),
        ("name = \"fail\"\nworkers = 5\n", "", "the toy is broken"),
        ("name = \"abort\"\n", "", "SIGABRT"),
        (
            "",
            "[[listen]]\naddress = \"127.0.0.1:0\"\n[[listen]]\naddress = \"unix:/nonexistent/a\"\n",
            "/nonexistent/a",
        ),
        ("", "[log]\naccess = \"/nonexistent/log\"\n", "/nonexistent/log"),
    ];
    for (keys, rest, reason) in cases {
        configure(&server.folder, keys, rest);
        server.signal(Signal::HUP);
        server.wait_for("reload failed");
        let status = server.until("only the old generation", |status| {
            status.state == "serving" && status.workers.len() == 2
        });
        assert_eq!(status.generation, 1);
        let reload = status.last_reload.expect("there was one");
        assert!(
            !reload.succeeded && reload.reason.as_ref().is_some_and(|why| why.contains(reason)),
            "{reload:?}"
        );
        assert_eq!(server.ask().generation, 1);
        assert_eq!(server.descriptors(), descriptors, "{reason}");
        assert_eq!(status.listeners[0].sockets, 2);
    }
    configure(&server.folder, "", "");
    server.reload();
    assert!(server.status().last_reload.expect("there was one").succeeded);
}

fn a_worker_that_keeps_dying_is_forked_again() {
    let server = Server::start("workers = 1\n", "");
    let mut last = 0;
    for death in 1..=4 {
        let toy = server.ask();
        assert_ne!(toy.pid, last);
        last = toy.pid;
        signal(toy.pid, Signal::ABORT);
        server.until("forked again", |status| {
            let worker = &status.workers[0];
            worker.restarts == death && worker.state == "serving"
        });
    }
    assert_eq!(server.status().restarts, 4);
    assert_eq!(server.children(), 1);
}

fn who_talks_without_end_holds_up_nobody() {
    let mut server = Server::start("name = \"chatter\"\n", "");
    assert_eq!(server.status().restarts, 0);
    server.signal(Signal::TERM);
    assert!(server.ended().success());

    // What is no note at all is not listened to for long.
    let mut server = Server::start("name = \"babble\"\n", "");
    server.ask();
    server.wait_for("a note that is none");
    server.until("who babbles is ended", |status| status.restarts > 0);
    server.signal(Signal::TERM);
    assert!(server.ended().success());
}

/// Process 1 is given the orphans of all others, and must not take one of its own for such.
fn process_1_loses_no_child() {
    let own_namespace = ["--fork", "--pid", "--kill-child", "--mount-proc"];
    let tried = Command::new("unshare").args(own_namespace).arg("true").output();
    if !tried.is_ok_and(|output| output.status.success()) {
        return;
    }
    let children = |pid: u32| -> Vec<u32> {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    let folder = tempfile::tempdir().expect("a folder");
    configure(folder.path(), "", "");
    for round in 0..24 {
        let own = command(folder.path());
        let mut inside = Command::new("unshare");
        inside.args(own_namespace).arg(own.get_program()).args(own.get_args());
        inside.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let server = Server::spawn(folder.path(), inside);
        let workers = children(children(server.child.id())[0]);
        assert_eq!(workers.len(), 2);
        // The second is buried and forked anew when the first, which was alive a moment ago, dies too.
        signal(workers[1], Signal::KILL);
        std::thread::sleep(Duration::from_micros(60 * round));
        signal(workers[0], Signal::KILL);
        server.until("both are there again", |status| {
            status.restarts == 2 && status.workers.iter().all(|worker| worker.pid.is_some())
        });
    }
}

fn who_does_not_drain_is_killed_by_a_second_stop() {
    let mut server = Server::start("name = \"stubborn\"\n", "");
    // Meant for the supervisor; a worker ignores what a terminal sends to all.
    let toy = server.ask();
    for name in [Signal::INT, Signal::TERM, Signal::HUP, Signal::USR1, Signal::USR2] {
        signal(toy.pid, name);
    }
    server.signal(Signal::TERM);
    server.until("draining", |status| {
        status.state == "stopping" && status.workers.iter().all(|worker| worker.state == "draining")
    });
    assert_eq!(server.status().restarts, 0);
    server.signal(Signal::INT);
    assert!(server.ended().success());
}

fn the_number_of_workers_changes() {
    let server = Server::start("workers = 1\n", "");
    for workers in [4, 2, 3, 1, 2] {
        configure(&server.folder, &format!("workers = {workers}\n"), "");
        let old = server.status().generation;
        server.signal(Signal::HUP);
        let begun = Instant::now();
        // Whoever connects at any moment of it is answered.
        while server.ask().generation == old {
            assert!(begun.elapsed() < PATIENCE);
        }
        server.until("the old generation is gone", |status| status.workers.len() == workers);
        let mut seen = BTreeMap::<u32, u32>::new();
        for _ in 0..60 {
            *seen.entry(server.ask().pid).or_default() += 1;
        }
        assert_eq!(seen.len(), workers, "all workers serve: {seen:?}");
    }
}

fn listeners_come_and_go() {
    let mut server = Server::start("", "");
    let first = server.address;
    let listen = |addresses: &[String]| -> String {
        addresses.iter().map(|address| format!("[[listen]]\naddress = \"{address}\"\n")).collect()
    };
    let socket = server.folder.join("http.sock");
    let unix = format!("unix:{}", socket.display());
    configure(&server.folder, "", &listen(&["127.0.0.1:0".into(), unix, "[::1]:0".into()]));
    server.reload();
    let status = server.status();
    assert_eq!(status.listeners.len(), 3);
    assert_eq!(status.listeners[0].address, first.to_string(), "what stays keeps its port");
    assert_eq!(server.ask().generation, 2);
    Toy::read(UnixStream::connect(&socket).expect("it listens")).expect("an answer");
    let second: SocketAddr = status.listeners[2].address.parse().expect("an address");
    Toy::read(TcpStream::connect(second).expect("it listens")).expect("an answer");
    configure(&server.folder, "", &listen(&["[::1]:0".into()]));
    server.reload();
    assert!(TcpStream::connect(first).is_err(), "what is not configured is closed");
    assert!(!socket.exists());
    Toy::read(TcpStream::connect(second).expect("it listens")).expect("an answer");
}

fn a_unix_socket_has_its_mode_and_is_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("http.sock");
    let listen = format!("[[listen]]\naddress = \"unix:{}\"\nmode = \"0622\"\n", socket.display());
    // A dead one is in the way.
    drop(UnixListener::bind(&socket).expect("bound"));
    configure(folder.path(), "", &listen);
    let mut server = Server::spawn(folder.path(), command(folder.path()));
    assert_eq!(fs::metadata(&socket).expect("a socket").permissions().mode() & 0o777, 0o622);
    let mut seen = BTreeMap::<u32, u32>::new();
    for _ in 0..200 {
        let stream = UnixStream::connect(&socket).expect("it listens");
        *seen.entry(Toy::read(stream).expect("an answer").pid).or_default() += 1;
    }
    server.signal(Signal::TERM);
    assert!(server.ended().success());
    assert!(!socket.exists());
}

fn an_activated_socket_is_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let handed = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = handed.local_addr().expect("an address");
    configure(folder.path(), "", &format!("[[listen]]\naddress = \"{address}\"\n"));
    let fd = OwnedFd::from(handed).try_clone().expect("descriptors are left");
    sockets::keep_across_exec(&fd, true).expect("kept");
    // The shell puts it where the protocol wants it, and says for whom it is.
    let script =
        format!("LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=http exec \"$0\" \"$@\" 3<&{}", fd.as_raw_fd());
    let plain = command(folder.path());
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).arg(plain.get_program()).args(plain.get_args());
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut server = Server::spawn(folder.path(), shell);
    drop(fd);
    assert_eq!(server.address, address);
    let status = server.status();
    assert_eq!((status.listeners[0].origin.as_str(), status.listeners[0].sockets), ("activation", 1));
    server.ask();
    server.reload();
    assert_eq!(server.ask().generation, 2);
    // A successor is given it once, and not announced again as well.
    server.signal(Signal::USR2);
    server.wait_for("replacing the program");
    server.wait_for("serving");
    let status = server.until("the successor's workers alone", |status| status.generation == 3);
    assert_eq!((status.listeners[0].origin.as_str(), status.listeners[0].sockets), ("activation", 1));
    server.until("the old workers are gone", |status| status.workers.len() == 2);
    assert_eq!(server.ask().surplus, 0);
    server.reload();
    server.ask();
    server.signal(Signal::TERM);
    assert!(server.ended().success());
}

fn the_service_manager_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = UnixDatagram::bind(folder.path().join("notify")).expect("bound");
    manager.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let heard = || {
        let mut buffer = [0; 4096];
        let length = manager.recv(&mut buffer).expect("a message");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    configure(folder.path(), "", "");
    let mut command = command(folder.path());
    command.env("NOTIFY_SOCKET", folder.path().join("notify"));
    let mut server = Server::spawn(folder.path(), command);
    let kept = heard();
    assert!(kept.starts_with("FDSTORE=1\nFDNAME=httpd-listener-127.0.0.1_"), "{kept}");
    let ready = heard();
    assert!(ready.starts_with("READY=1\nSTATUS=httpd "), "{ready}");
    server.signal(Signal::HUP);
    assert!(heard().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert!(heard().starts_with("READY=1\n"));
    configure(folder.path(), "name = \"fail\"\n", "");
    server.signal(Signal::HUP);
    assert!(heard().starts_with("RELOADING=1\n"));
    let failed = heard();
    assert!(failed.starts_with("READY=1\nSTATUS=reload failed") && failed.contains("broken"), "{failed}");
    server.signal(Signal::TERM);
    assert!(heard().starts_with("STOPPING=1\n"));
    assert!(server.ended().success());
}

fn the_access_log_is_reopened() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    configure(folder.path(), "", &format!("[log]\naccess = \"{}\"\n", log.display()));
    let mut server = Server::spawn(folder.path(), command(folder.path()));
    fs::rename(&log, folder.path().join("access.log.1")).expect("rotated");
    server.signal(Signal::USR1);
    server.wait_for("reopened");
    let begun = Instant::now();
    while fs::read_to_string(&log).unwrap_or_default().lines().count() < 2 {
        assert!(begun.elapsed() < PATIENCE, "each worker writes to the new log");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn a_successor_takes_over() {
    let mut server = Server::start("", "");
    let address = server.address;
    let old = server.ask();
    server.signal(Signal::USR2);
    server.wait_for("replacing the program");
    let begun = Instant::now();
    // Whoever connects at any moment of it is answered.
    while server.ask().generation == 1 {
        assert!(begun.elapsed() < PATIENCE);
    }
    server.wait_for("serving");
    let status = server.until("the old workers are gone", |status| status.workers.len() == 2);
    assert_eq!((status.pid, status.generation), (server.child.id(), 2));
    assert_eq!(status.listeners[0].address, address.to_string());
    assert_eq!(status.listeners[0].sockets, 2);
    assert!(status.workers.iter().all(|worker| worker.pid != Some(old.pid)));
    assert_eq!(server.children(), 2);
    assert_eq!(server.ask().surplus, 0);
    server.reload();
    server.signal(Signal::TERM);
    assert!(server.ended().success());
    assert!(!server.folder.join("control.sock").exists());
}

fn companions_live_as_long_as_they_are_wanted() {
    let mut server = Server::start("name = \"companions\"\n", "");
    let first = ["spawner 1 running", "modules 1 running", "precompressor 1 running"];
    let all = |status: &Status| names(status) == first;
    let status = server.until("all run", all);
    assert_eq!(server.children(), 5);
    let toy = server.ask();
    assert_eq!(toy.surplus, 0, "{toy:?}");
    for companion in &status.companions {
        signal(companion.pid.expect("it runs"), Signal::KILL);
    }
    server.until("all run again", |status| {
        all(status) && status.companions.iter().all(|companion| companion.restarts == 1)
    });
    let has_risen = |before: [u64; 2], after: [u64; 2]| {
        let each = before.into_iter().zip(after).all(|(before, after)| before > 0 && after > before);
        assert!(each, "{before:?} {after:?}");
    };
    let after = server.ask().epochs;
    has_risen(toy.epochs, after);
    assert_eq!(server.status().restarts, 0);
    // A worker forked anew reaches the runners that are there.
    signal(server.ask().pid, Signal::KILL);
    server.until("a worker is back", |status| status.restarts == 1);
    for _ in 0..9 {
        assert_eq!(server.ask().epochs, after);
    }
    server.reload();
    let second = ["spawner 2 running", "modules 2 running", "precompressor 2 running"];
    server.until("those of the new generation alone", |status| names(status) == second);
    has_risen(after, server.ask().epochs);
    configure(&server.folder, "", "");
    server.reload();
    server.until("no companions", |status| status.companions.is_empty());
    assert_eq!((server.children(), server.ask().epochs), (2, [0, 0]));
    server.signal(Signal::TERM);
    assert!(server.ended().success());
}

fn companions_outlive_the_program() {
    let mut server = Server::start("name = \"companions\"\n", "");
    server.signal(Signal::USR2);
    server.wait_for("serving");
    let second = ["spawner 2 running", "modules 2 running", "precompressor 2 running"];
    server.until("those of the new program alone", |status| names(status) == second);
    assert_eq!(server.children(), 5);
    assert_eq!(server.ask().surplus, 0);
    server.signal(Signal::TERM);
    assert!(server.ended().success());
}

/// The companions, each with its generation and state.
fn names(status: &Status) -> Vec<String> {
    let tell = |one: &Companion| format!("{} {} {}", one.name, one.generation, one.state);
    status.companions.iter().map(tell).collect()
}

fn a_successor_that_cannot_start_changes_nothing() {
    let mut server = Server::start("", "");
    // Does not take the configuration: the program is not even replaced.
    configure(&server.folder, "name = \"refused\"\n", "");
    server.signal(Signal::USR2);
    server.wait_for("does not take the configuration");
    assert_eq!(server.ask().generation, 1);
    // Takes it, but cannot serve: the workers of the program before go on.
    configure(&server.folder, "name = \"fail\"\n", "");
    server.signal(Signal::USR2);
    server.wait_for("reload failed");
    let status = server.until("the old generation alone", |status| status.workers.len() == 2);
    assert_eq!((status.generation, status.state.as_str()), (1, "serving"));
    assert_eq!(server.ask().generation, 1);
    configure(&server.folder, "", "");
    server.reload();
    assert_eq!(server.children(), 2);
    server.ask();
}

fn what_a_failed_successor_was_handed_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| format!("{}/{name}", folder.path().display());
    let listen = |address: &str| format!("[[listen]]\naddress = \"{address}\"\n");
    let both = listen("127.0.0.1:0") + &listen(&format!("unix:{}", at("http")));
    let metrics = format!("[metrics]\nlisten = \"unix:{}\"\n", at("metrics"));
    let good = metrics.clone() + &both;
    let health = || {
        let mut stream = UnixStream::connect(at("metrics")).expect("somebody listens");
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").expect("asked");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("an answer");
        line
    };
    configure(folder.path(), "", &good);
    let mut server = Server::spawn(folder.path(), command(folder.path()));
    server._temporary = None;
    // Once before its listeners are open, once after, when its workers cannot serve.
    for (server_keys, rest) in
        [("", good.clone() + &listen("unix:/nonexistent/a")), ("name = \"fail\"\n", good.clone())]
    {
        configure(folder.path(), server_keys, &rest);
        server.signal(Signal::USR2);
        server.wait_for("reload failed");
        let status = server.until("the old workers alone", |status| status.workers.len() == 2);
        assert_eq!(status.generation, 1);
        // A second try fails likewise, and not for want of what the first one had.
        server.signal(Signal::HUP);
        let line = server.wait_for("reload failed");
        assert!(line.contains("/nonexistent/a") || line.contains("the toy is broken"), "{line}");
        server.until("the old workers alone", |status| status.workers.len() == 2);
        assert!(health().contains("200"), "{}", health());
    }
    // The page that is read is the one that is written.
    configure(folder.path(), "name = \"stubborn\"\n", &good);
    server.reload();
    let status = server.status();
    assert_eq!(status.listeners[0].address, server.address.to_string());
    assert_eq!(status.listeners[0].origin, "predecessor");
    assert!(Toy::read(UnixStream::connect(at("http")).expect("somebody listens")).is_some());
    assert!(health().contains("200"));
    server.signal(Signal::TERM);
    server.wait_for("draining");
    server.signal(Signal::TERM);
    assert!(server.ended().success());
    assert!(!Path::new(&at("http")).exists() && !Path::new(&at("metrics")).exists());
}

fn workers_become_somebody_else() {
    if !user::is_root() {
        return;
    }
    let nobody = user::User::find("nobody").expect("a user database");
    let Some(nobody) = nobody else { return };
    let server = Server::start("user = \"nobody\"\n", "");
    let toy = server.ask();
    assert_eq!((toy.uid, toy.pid == server.child.id()), (nobody.uid, false));
}

fn a_reader_of_diagnostics_that_stopped_reading_stops_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    configure(folder.path(), "", "");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = command(folder.path());
    command.stderr(writer);
    let child = command.spawn().expect("a supervisor");
    drop(command);
    let mut text = BufReader::new(reader);
    let url = loop {
        let mut line = String::new();
        assert_ne!(text.read_line(&mut line).expect("a line"), 0, "it serves");
        if let Some(url) = line.split([' ', ',']).find_map(|word| word.strip_prefix("http://")) {
            break url.to_owned();
        }
    };
    let address = url.trim_end().parse().expect("an address");
    let (_, lines) = channel();
    let mut server = Server { child, lines, folder: folder.path().to_owned(), address, _temporary: None };
    // Each reload fails with many lines, and a pipe holds 64 KiB.
    configure(folder.path(), "wrong = 1\n", "[wrong]\n");
    for _ in 0..600 {
        server.signal(Signal::HUP);
        server.status();
    }
    configure(folder.path(), "", "");
    server.reload();
    server.ask();
    drop(text);
    server.reload();
    server.signal(Signal::TERM);
    assert!(server.ended().success());
}

fn many_generations_leak_nothing() {
    // HTTPD_GENERATIONS=1000 for the whole truth.
    let variable = std::env::var("HTTPD_GENERATIONS").ok().and_then(|text| text.parse().ok());
    let count: u64 = variable.unwrap_or(100);
    let mut server = Server::start("", "");
    server.reload();
    let descriptors = server.descriptors();
    let mut generation = server.status().generation;
    let target = generation + count;
    while generation < target {
        server.signal(Signal::HUP);
        let status = server.until("the next generation", |status| status.generation > generation);
        generation = status.generation;
        if generation.is_multiple_of(100) {
            server.ask();
        }
    }
    server.until("two workers are left", |status| status.workers.len() == 2);
    assert_eq!(server.children(), 2, "children");
    assert_eq!(server.descriptors(), descriptors, "descriptors");
    assert_eq!(server.ask().surplus, 0);
}
