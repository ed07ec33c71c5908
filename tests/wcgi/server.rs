//! Modules through the whole server, and tried without one.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use crate::e2e_kit::{PATIENCE, Server, Site, signal};
use crate::kit::module;

/// Puts a module in its place, as deploys do.
fn place(directory: &Path, bytes: &[u8]) {
    let new = directory.join("new");
    fs::write(&new, bytes).and_then(|()| fs::rename(new, directory.join("app.wasm"))).expect("put in place");
}

/// The status and the body of an answer; by HTTP/1.0, so that the body is as the module printed it.
fn ask(server: &Server, target: &str) -> (u16, String) {
    let answer = server.raw(format!("GET {target} HTTP/1.0\r\nX-Own: kept\r\n\r\n").as_bytes());
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    (status.unwrap_or_else(|| panic!("{head}")), body.to_owned())
}

/// The module host.
fn host(server: &Server) -> Option<u32> {
    let is_host = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "httpd modules\n")
    };
    server.children().into_iter().find(is_host)
}

/// A server with a module at /wasm/app.wasm, and where that is.
fn serving(name: &str) -> (Server, PathBuf) {
    let site = Site::new().keys("[[site.wcgi]]\npath = \"/wasm/\"\ndir = \"modules\"\n");
    let directory = site.root().with_file_name("modules");
    fs::create_dir(&directory).expect("made");
    for folder in [Path::new("."), Path::new("..")] {
        // The host runs as the user of the workers.
        fs::set_permissions(directory.join(folder), fs::Permissions::from_mode(0o755)).expect("set");
    }
    place(&directory, &module(name));
    (site.start(), directory)
}

#[test]
fn modules_answer_are_replaced_and_outlive_their_host() {
    let (server, directory) = serving("echo");
    let (status, text) = ask(&server, "/wasm/app.wasm/more?a=b");
    assert_eq!(status, 200, "{text}");
    for line in ["method: GET", "PATH_INFO=/more", "QUERY_STRING=a=b", "HTTP_X_OWN=kept"] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    assert_eq!(ask(&server, "/wasm/none.wasm").0, 404);

    place(&directory, &module("probe"));
    let version = || ask(&server, "/wasm/app.wasm?version");
    let expected = (200, "version 1\n".to_owned());
    assert_eq!(version(), expected);
    assert_eq!(ask(&server, "/wasm/app.wasm?wild").0, 502);

    signal(host(&server).expect("a host"), "KILL");
    let begun = Instant::now();
    loop {
        let (status, text) = version();
        if status == 200 {
            break assert_eq!((status, text), expected);
        }
        // Until it is there again.
        assert!(matches!(status, 502 | 503) && begun.elapsed() < PATIENCE, "{status} {text}");
    }
}

#[test]
fn what_runs_outlives_the_program_of_the_server() {
    let (mut server, _) = serving("echo");
    let mut client = server.connect();
    client.send(b"POST /wasm/app.wasm HTTP/1.0\r\nContent-Length: 8\r\n\r\nthe ");
    let begun = Instant::now();
    while server.counter("programs_running") == 0 {
        assert!(begun.elapsed() < PATIENCE, "it does not begin");
    }
    server.signal("USR2");
    server.wait_for("serving");
    client.send(b"body");
    let answer = client.rest();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\nthe body"), "{answer}");
}

#[test]
fn a_module_is_tried() {
    let folder = tempfile::tempdir().expect("a folder");
    let body = folder.path().join("body");
    fs::write(&body, "the body").expect("written");
    for name in ["echo", "probe"] {
        fs::write(folder.path().join(format!("{name}.wasm")), module(name)).expect("written");
    }
    fs::write(folder.path().join("bad.wasm"), "no module").expect("written");
    let tried = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_httpd"));
        let run = command.arg("cgi").arg(folder.path().join(name)).args(arguments).output().expect("it runs");
        let Output { status, stdout, stderr } = run;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (status.code(), text(stdout), text(stderr))
    };
    let body = body.to_str().expect("text");
    let (code, answer, said) = tried("echo.wasm", &["--path", "/more", "-X", "POST", "--body", body]);
    assert_eq!(code, Some(0), "{said}");
    assert!(answer.starts_with("HTTP/1.1 200\r\n") && answer.ends_with("\nthe body"), "{answer}");
    assert!(answer.contains("\nPATH_INFO=/more\n") && said.contains("--- exit code 0, "), "{answer}{said}");

    let (code, _, said) = tried("probe.wasm", &["--path", "?stderr"]);
    assert!(code == Some(0) && said.contains(": a complaint\n"), "{said}");
    let (code, answer, said) = tried("probe.wasm", &["--path", "?trap"]);
    assert!(code == Some(1) && answer.starts_with("HTTP/1.1 200\r\n"), "{answer}");
    assert!(said.contains("unreachable") && said.contains("--- wrong: it ended with"), "{said}");
    let (code, _, said) = tried("bad.wasm", &[]);
    assert!(code == Some(1) && said.contains("would be answered with 500"), "{said}");
}
