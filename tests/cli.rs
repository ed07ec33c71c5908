//! What the command says and with which code it ends, for everything that needs no running server.

use std::process::{Command, Output};

fn httpd(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_httpd")).args(line.split_whitespace()).output().expect("the binary runs")
}

/// Runs it, and looks for the code and for what must be said on stdout and stderr.
fn check(line: &str, code: i32, stdout: &str, stderr: &str) {
    let output = httpd(line);
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert_eq!(output.status.code(), Some(code), "{line}: {said:?}");
    assert!(said[0].contains(stdout), "{line}: {said:?}");
    assert!(said[1].contains(stderr), "{line}: {said:?}");
}

#[test]
fn a_fine_configuration_is_counted() {
    check("-t -c config.example.toml", 0, "configuration is fine: 1 site, 2 listeners\n", "");
    check("-t --root examples/site", 0, "configuration is fine: 1 site, 1 listener\n", "");
    let programs = "-t --root tests/golden/config --cgi-bin tests/golden/config/programs";
    check(programs, 0, "configuration is fine", "programs` lies beneath --root and is");
}

#[test]
fn a_broken_configuration_is_told_from_a_failed_check() {
    let report = include_str!("golden/config/negative.report");
    check("-t -c tests/golden/config/negative.toml", 1, "", report);
    check("-c tests/golden/config/negative.toml", 78, "", report);
    check("-c no/such/file.toml", 78, "", "does not exist");
    check("--root no/such/directory", 78, "", "--root: `no/such/directory` does not exist");
}

#[test]
fn certificates_are_checked_too() {
    check("-t -c tests/golden/config/valid_full.toml", 1, "", "cert.pem");
}

#[test]
fn certificates_are_checked_beside_other_mistakes() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("httpd.toml");
    let text =
        "[server]\nwrokers = 1\n[[listen]]\naddress = \"127.0.0.1:0\"\ntls = true\n[[site]]\nroot = \".\"\n";
    let certificate = "[[site.certificate]]\ncert = \"no.pem\"\nkey = \"no.key\"\n";
    let line = format!("-t -c {}", config.display());
    let told = |text: &str, problems: &str| {
        std::fs::write(&config, text).expect("written");
        check(&line, 1, "", "wrokers");
        check(&line, 1, "", problems);
        String::from_utf8_lossy(&httpd(&line).stderr).into_owned()
    };
    let whole = format!("{text}{certificate}");
    told(&whole, "3 problems");
    for file in ["no.pem", "no.key"] {
        std::fs::write(folder.path().join(file), "nonsense\n").expect("written");
    }
    let said = told(&whole, "3 problems");
    assert!(
        said.contains("there is no certificate in the file") && said.contains("no private key"),
        "{said}"
    );
    // That there is none follows from what could not be understood.
    let said = told(&whole.replace("key =", "kye ="), "problems");
    assert!(!said.contains("no site has a certificate"), "{said}");
}

#[test]
fn a_kernel_that_is_required_is_tried() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("httpd.toml");
    let text = "[tls]\nkernel = \"require\"\n[[listen]]\naddress = \"127.0.0.1:0\"\ntls = true\n\
                [[site]]\nroot = \".\"\n[[site.certificate]]\nself_signed = true\n";
    std::fs::write(&config, text).expect("written");
    let line = format!("-t -c {}", config.display());
    let probed = httpd::tls::probe(httpd::sys::tls_probe::try_install);
    if probed.usable {
        check(&line, 0, "configuration is fine", "");
    } else {
        check(&line, 1, "", &format!("tls.kernel: \"require\", but {}", probed.text));
    }
}

#[test]
fn usage_is_explained() {
    check("", 2, "", "Examples:");
    check("-t", 2, "", "name a configuration with -c");
    check("--colour", 2, "", "unexpected argument");
    check("--help", 0, "Examples:", "");
    check("version", 0, &format!("httpd {}\n", env!("CARGO_PKG_VERSION")), "");
}

#[test]
fn what_packages_ship_is_generated() {
    let folder = tempfile::tempdir().expect("a folder");
    let into = folder.path().join("package");
    check(&format!("generate {}", into.display()), 0, "", "");
    for (name, holds) in [
        ("man/httpd.8", ".SH COMMANDS\n.SS \"httpd compress\""),
        ("man/httpd.toml.5", ".SH [[site.rule]]"),
        ("completions/httpd.bash", "--http-port"),
        ("completions/_httpd", "#compdef httpd"),
        ("completions/httpd.fish", "complete -c httpd"),
    ] {
        let text = std::fs::read_to_string(into.join(name)).expect("it is written");
        assert!(text.contains(holds), "{name}:\n{text}");
    }
    check("generate /proc/no/such", 1, "", "/proc/no/such: ");
    // Packagers know it; others are not shown it.
    let help = httpd("--help").stdout;
    assert!(!String::from_utf8_lossy(&help).contains("generate"));
}

#[test]
fn a_script_is_tried() {
    check("cgi examples/cgi-bin/hello", 0, "Hello from /cgi-bin/hello, 127.0.0.1.\n", "--- exit code 0, ");
    check("cgi examples/cgi-bin/env --path /a%20b?c=d -X PUT", 0, "PATH_INFO=/a b\n", "");
    check("cgi examples/cgi-bin/env --path ?c=d -H Accept:x", 0, "HTTP_ACCEPT=x\n", "");
    let body = "cgi examples/cgi-bin/echo -X POST --body Cargo.toml -H Content-Type:text/plain";
    check(body, 0, &format!("\r\n\r\n{}", include_str!("../Cargo.toml")), "");
    check("cgi examples/cgi-bin/redirect", 0, "asked for /cgi-bin/hello", "");
    check("cgi examples/cgi-bin/redirect --path /away", 0, "HTTP/1.1 303", "");
}

#[test]
fn a_trial_ends_with_its_script_whatever_that_left_running() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("a mode");
    let path = folder.path().join("script");
    let text = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nfirst\\n'\nyes &\nyes >&2 &\nexit 0\n";
    std::fs::write(&path, text).expect("written");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
    check(&format!("cgi {}", path.display()), 0, "\r\n\r\nfirst\n", "--- exit code 0, ");
}

#[test]
fn what_is_wrong_with_a_script_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    // Programs run as somebody else where this is tried as root.
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("a mode");
    let tried = |text: &str, mode: u32, stderr: &str| {
        let path = folder.path().join("script");
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("a mode");
        check(&format!("cgi {}", path.display()), 1, "", stderr);
    };
    tried("#!/bin/sh\n", 0o644, "would be answered with 403: it may not be run\n    = chmod +x");
    tried("#!/no/interpreter\n", 0o755, "would be answered with 500");
    let forever = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\nyes\n";
    tried(forever, 0o755, "--- wrong: it printed more than 64 MiB");
    tried("#!/bin/sh\n", 0o755, "--- wrong: it printed nothing: a client would be answered with 502");
    tried("#!/bin/sh\necho hello\n", 0o755, "--- wrong: a line of its head is not");
    tried("#!/bin/sh\necho oh >&2; exit 3\n", 0o755, "--- what it wrote to standard error:\noh\n");
    tried("#!/bin/sh\necho Status: 200; echo; exit 3\n", 0o755, "--- wrong: it ended with exit code 3");
    let short = "#!/bin/sh\nprintf 'Content-Type: text/plain\\nContent-Length: 9\\n\\nshort'\n";
    tried(short, 0o755, "it said Content-Length: 9, and printed 5 bytes");
    tried("#!/bin/sh\nprintf 'Status: 204\\nContent-Length: 0\\n\\n'\n", 0o755, "a 204 has no content");
    if !cfg!(feature = "wcgi") {
        let module = folder.path().join("module.wasm");
        std::fs::write(&module, "").expect("written");
        check(&format!("cgi {}", module.display()), 1, "", "--features wcgi");
    }
    check("cgi no/such", 1, "", "`no/such`: No such file");
    check("cgi examples/cgi-bin/env -H nonsense", 1, "", "a field is not `Name: value`");
}
