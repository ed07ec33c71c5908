//! Programs that answer requests, through the whole server.

use std::os::unix::fs::PermissionsExt as _;

use crate::kit::Site;

/// Puts a script beside the root, and mounts its directory.
fn with_script(site: Site, name: &str, text: &str) -> Site {
    let directory = site.root().with_file_name("programs");
    std::fs::create_dir_all(&directory).expect("a directory");
    let script = directory.join(name);
    std::fs::write(&script, text).expect("written");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("set");
    site.keys("[[site.cgi]]\npath = \"/cgi-bin/\"\ndir = \"programs\"\n")
}

#[test]
fn an_answer_ends_with_its_script_though_a_child_prints_on() {
    let text = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nfirst\\n'\nyes &\nexit 0\n";
    let server = with_script(Site::new(), "script", text).start();
    // Whoever speaks HTTP/1.0 is sent the document until the connection ends.
    let answer = server.raw(b"GET /cgi-bin/script HTTP/1.0\r\n\r\n");
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let rest = body.strip_prefix("first\n").unwrap_or_else(|| panic!("{body:.100}"));
    assert!(rest.bytes().all(|byte| matches!(byte, b'y' | b'\n')));
}
