//! The module host as a process of its own. The modules are those of tests/wcgi, built from C.

use std::fs;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;

use httpd::gateway::messages::{Refusal, ToRunner, ToWorker, Why};
use httpd::sys::process::Ended;
use httpd::sys::{pass, user};

use crate::kit::{Request, Spawner, until};

pub const TESTS: &[(&str, fn())] = &[
    ("modules_run_confined", modules_run_confined),
    ("a_host_that_dies_takes_its_runs_along", a_host_that_dies_takes_its_runs_along),
    ("hosts_and_workers_are_told_from_those_before", hosts_and_workers_are_told_from_those_before),
    ("runs_end_with_their_request_and_their_worker", runs_end_with_their_request_and_their_worker),
    ("a_reader_that_leaves_ends_its_run_only", a_reader_that_leaves_ends_its_run_only),
    ("stopping_ends_the_host", stopping_ends_the_host),
];

fn start() -> Spawner {
    let spawner = Spawner::start_as(
        "host",
        "[[site.wcgi]]\npath = \"/wasm/\"\ndir = \"cgi\"\n[cache]\ndir = \"cache\"",
    );
    for (name, source) in [("echo", "examples/wcgi/echo.c"), ("probe", "tests/wcgi/probe.c")] {
        let module = spawner.folder.join(format!("cgi/{name}.wasm"));
        let built = Command::new("examples/wcgi/build").arg(source).arg(module).status();
        assert!(built.expect("examples/wcgi/build runs").success());
    }
    spawner
}

/// A run that waits for its input, the host it runs in, and the other end of the input.
fn waiting(spawner: &mut Spawner) -> (Request, u32, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let request = spawner.ask_with("/wasm/echo.wasm", Some(OwnedFd::from(reader)), &[], &[]);
    let host = spawner.started(&request);
    (request, host, writer)
}

fn modules_run_confined() {
    let mut spawner = start();
    let (request, host, mut input) = waiting(&mut spawner);
    assert_eq!(host, spawner.child.id());
    let status = fs::read_to_string(format!("/proc/{host}/status")).expect("a process");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().unwrap_or_default().to_owned()
    };
    assert_eq!((field("NoNewPrivs:"), field("CapEff:")), ("1".to_owned(), "0".repeat(16)), "{status}");
    assert_eq!(field("Seccomp:"), "2");
    if user::is_root() {
        assert_eq!((field("Uid:"), field("Gid:")), ("65534".to_owned(), "65534".to_owned()));
    }
    input.write_all(b"through one process").expect("written");
    drop(input);
    let text = spawner.output(&request);
    assert!(text.ends_with("\nthrough one process"), "{text}");
    assert_eq!(spawner.exited(&request), Ended::Exited(0));
    assert!(text.contains(&format!("\nUNIQUE_ID={}-", std::process::id())), "{text}");
    // A number is that of one run.
    let (request, _, input) = waiting(&mut spawner);
    spawner.next -= 1;
    drop(spawner.ask("/wasm/echo.wasm"));
    assert_eq!(spawner.hear(), ToWorker::Refused { id: request.id, why: Refusal::Broken });
    drop(input);
    assert_eq!(spawner.exited(&request), Ended::Exited(0));
    // Scripts are not its business.
    spawner.shell("hello", "echo hello");
    let request = spawner.ask("/cgi-bin/hello");
    assert_eq!(spawner.hear(), ToWorker::Refused { id: request.id, why: Refusal::NotFound });
    let request = spawner.ask("/wasm/missing.wasm");
    assert_eq!(spawner.hear(), ToWorker::Refused { id: request.id, why: Refusal::NotFound });
}

fn a_host_that_dies_takes_its_runs_along() {
    let mut spawner = start();
    let (request, _, _input) = waiting(&mut spawner);
    spawner.child.kill().expect("it can be killed");
    spawner.child.wait().expect("it ended");
    // Its pipe is closed.
    spawner.output(&request);
    spawner.again();
    assert_eq!(spawner.hear(), ToWorker::Hello);
    assert!(version(&mut spawner).ends_with("version 1\n"));
}

fn version(spawner: &mut Spawner) -> String {
    let request = spawner.ask_with("/wasm/probe.wasm", None, &[], &[("QUERY_STRING", "version")]);
    spawner.started(&request);
    let text = spawner.output(&request);
    assert_eq!(spawner.exited(&request), Ended::Exited(0));
    text
}

fn hosts_and_workers_are_told_from_those_before() {
    let mut spawner = start();
    // What was meant for the host before this one.
    spawner.epoch -= 1;
    let request = spawner.ask("/wasm/probe.wasm");
    assert_eq!(spawner.output(&request), "");
    spawner.epoch += 1;
    spawner.say(ToRunner::Hello);
    assert_eq!(spawner.hear(), ToWorker::Hello);
    // What the worker before this one still had to say.
    spawner.worker -= 1;
    let request = spawner.ask("/wasm/probe.wasm");
    assert_eq!(spawner.output(&request), "");
    spawner.worker += 1;
    // An empty packet is not the end.
    pass::send(&spawner.mailbox, b"", None).expect("sent");
    assert!(version(&mut spawner).ends_with("version 1\n"));
    assert!(spawner.is_silent());
}

fn runs_end_with_their_request_and_their_worker() {
    let mut spawner = start();
    let run = |spawner: &mut Spawner| {
        let request = spawner.ask_with("/wasm/probe.wasm", None, &[], &[("QUERY_STRING", "loop")]);
        (spawner.started(&request), request)
    };
    let (host, request) = run(&mut spawner);
    spawner.end(&request, Why::Gone);
    assert_eq!(spawner.exited(&request), Ended::Killed(15));
    // The loop of a worker that is gone ends long before its `timeout`.
    let (_, request) = run(&mut spawner);
    spawner.worker += 1;
    spawner.say(ToRunner::Hello);
    assert_eq!(spawner.hear(), ToWorker::Hello);
    assert_eq!(spawner.output(&request), "");
    let (request, same, input) = waiting(&mut spawner);
    assert_eq!(same, host);
    drop(input);
    assert_eq!(spawner.exited(&request), Ended::Exited(0));
}

fn a_reader_that_leaves_ends_its_run_only() {
    let mut spawner = start();
    let request = spawner.ask_with("/wasm/probe.wasm", None, &[], &[("QUERY_STRING", "flood")]);
    let host = spawner.started(&request);
    // Not even by SIGPIPE, which is fatal unless a process says otherwise.
    let Request { id, output } = request;
    drop(output);
    let ToWorker::Exited { id: ended, how, .. } = spawner.hear() else { panic!("it ended") };
    assert_eq!((ended, how), (id, Ended::Killed(15)));
    let (request, same, input) = waiting(&mut spawner);
    assert_eq!(same, host);
    drop(input);
    assert_eq!(spawner.exited(&request), Ended::Exited(0));
}

fn stopping_ends_the_host() {
    let mut spawner = start();
    let cache = spawner.folder.join("cache");
    fs::create_dir_all(&cache).expect("made");
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).expect("set");
    // What the host finds when it begins, counts.
    let _ = spawner.child.kill();
    spawner.child.wait().expect("it ended");
    spawner.again();
    assert_eq!(spawner.hear(), ToWorker::Hello);
    let (_request, _, _input) = waiting(&mut spawner);
    let kept = fs::metadata(cache.join("wcgi")).expect("compiled modules are kept");
    assert_eq!(kept.permissions().mode() & 0o777, 0o700);
    assert!(!user::is_root() || kept.uid() == 65534);
    spawner.channel = None;
    assert!(until("it ends", || spawner.child.try_wait().expect("a child")).success());
}
