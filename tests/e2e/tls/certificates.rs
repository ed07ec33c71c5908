//! Certificates that change while the server runs.

use std::path::Path;

use super::client::Secure;
use super::shown;
use crate::kit::{Server, Site};
use crate::processes::{replace_workers, until};

/// Writes a new certificate, and its key.
fn write_certificate(folder: &Path) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("parameters");
    let certificate = parameters.self_signed(&key).expect("a certificate");
    std::fs::write(folder.join("key.pem"), key.serialize_pem()).expect("written");
    std::fs::write(folder.join("cert.pem"), certificate.pem()).expect("written");
}

fn site() -> Site {
    let site = Site::new()
        .listening("[[listen]]\naddress = \"127.0.0.1:0\"\ntls = true\n")
        .keys("[[site.certificate]]\ncert = \"cert.pem\"\nkey = \"key.pem\"\n");
    write_certificate(site.root().parent().expect("a folder"));
    site
}

fn server() -> Server {
    site().start()
}

#[test]
fn hangup_brings_a_new_one() {
    let server = server();
    let before = shown(&server);
    assert_eq!(shown(&server), before);
    write_certificate(server.folder());
    let old = server.workers();
    server.signal("HUP");
    replace_workers(&server, &old);
    assert_ne!(shown(&server), before);
}

#[test]
fn a_change_that_nobody_tells_is_noticed() {
    // Something to warn of.
    let programs = "[[site.cgi]]\npath = \"/cgi-bin/\"\ndir = \"root/programs\"\n";
    let mut server = site().file("programs/a", b"#!/bin/sh\n").keys(programs).start();
    let before = shown(&server);
    let old = server.workers();
    std::fs::write(server.folder().join("cert.pem"), "no certificate\n").expect("broken");
    server.wait_for("those before go on being used");
    let refused = server.status()["certificates_refused"].as_str().unwrap_or_default().to_owned();
    assert!(refused.contains("cert.pem"), "{refused}");
    assert_eq!(server.workers(), old);
    assert_eq!(shown(&server), before);
    write_certificate(server.folder());
    replace_workers(&server, &old);
    assert_ne!(shown(&server), before);
    assert_eq!(server.status()["certificates_refused"], serde_json::Value::Null);
    server.wait_for("serving");
    let warnings = server.said.iter().filter(|line| line.contains("lies beneath the root")).count();
    assert_eq!(warnings, 1, "the configuration was read once");
}

#[test]
fn a_broken_one_does_not_keep_a_root_from_moving() {
    let site = site();
    let link = site.root();
    let folder = link.parent().expect("a folder").to_owned();
    std::fs::rename(&link, folder.join("first")).expect("moved");
    std::os::unix::fs::symlink(folder.join("first"), &link).expect("a link");
    let server = site.start();
    let before = shown(&server);
    for file in ["cert.pem", "key.pem"] {
        std::fs::write(folder.join(file), "nonsense\n").expect("broken");
    }
    // Where workers may not read, so that it takes another generation.
    let elsewhere = tempfile::tempdir().expect("a folder");
    std::fs::write(elsewhere.path().join("index.html"), "second").expect("a file");
    std::os::unix::fs::symlink(elsewhere.path(), folder.join("next")).expect("a link");
    std::fs::rename(folder.join("next"), &link).expect("flipped");
    until("the new root is served", || Secure::new(&server).connect().get("/").body == b"second");
    assert_eq!(shown(&server), before);
}

#[test]
fn a_broken_one_leaves_the_old_in_use() {
    let server = server();
    let before = shown(&server);
    for (file, text) in [("cert.pem", "no certificate\n"), ("key.pem", "no key\n")] {
        write_certificate(server.folder());
        std::fs::write(server.folder().join(file), text).expect("broken");
        let old = server.workers();
        server.signal("HUP");
        until("the reload fails, and status says why", || {
            let status = server.status();
            let reason = status["last_reload"]["reason"].as_str().unwrap_or_default().to_owned();
            status["last_reload"]["succeeded"] == false && reason.contains(file)
        });
        assert_eq!(server.workers(), old, "{file}");
        assert_eq!(shown(&server), before, "{file}");
    }
    write_certificate(server.folder());
    let old = server.workers();
    server.signal("HUP");
    replace_workers(&server, &old);
    assert_ne!(shown(&server), before);
    assert_eq!(server.status()["last_reload"]["succeeded"], true);
}
