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
fn usage_is_explained() {
    check("", 2, "", "Examples:");
    check("-t", 2, "", "name a configuration with -c");
    check("--colour", 2, "", "unexpected argument");
    check("--help", 0, "Examples:", "");
    check("version", 0, &format!("httpd {}\n", env!("CARGO_PKG_VERSION")), "");
}

#[test]
fn what_is_not_built_says_so() {
    check("cgi a", 2, "", "is not built yet");
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
