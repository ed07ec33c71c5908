//! Certificates that change while the server runs.

use std::path::Path;

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

fn server() -> Server {
    let site = Site::new()
        .listening("[[listen]]\naddress = \"127.0.0.1:0\"\ntls = true\n")
        .keys("[[site.certificate]]\ncert = \"cert.pem\"\nkey = \"key.pem\"\n");
    write_certificate(site.root().parent().expect("a folder"));
    site.start()
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
