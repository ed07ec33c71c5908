//! What the help text and the manual page httpd(8) have in common, each said once: examples, signals, exit codes.
//! The page's options and commands are read off the definitions that parse the command line.

use std::io;

use clap::{Arg, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

const EXAMPLES: &[(&str, &str)] = &[
    ("httpd --root ~/public", "serve a directory on http://0.0.0.0:8080/"),
    ("httpd --root ~/public --cert self-signed", "the same on https, port 8443, too"),
    ("httpd -t -c config.toml", "check a configuration"),
    ("httpd -c config.toml", "run it in the foreground"),
    ("httpd status -c config.toml", "see what runs"),
];

const SIGNALS: &[(&str, &str)] = &[
    ("TERM, INT", "finish what is in flight and stop; a second one stops at once"),
    ("HUP", "read the configuration and certificates anew; with a mistake in them, go on as before"),
    ("USR1", "reopen the log files"),
    ("USR2", "start the program anew, a newer version perhaps, on the same listeners"),
];

const EXIT_CODES: &[(&str, &str)] = &[
    ("0", "all went well"),
    ("1", "failure while running or checking"),
    ("2", "wrong usage"),
    ("78", "bad configuration"),
];

const FILES: &[(&str, &str)] = &[
    ("/etc/httpd/config.toml", "The configuration of the system service; httpd.toml(5) explains its keys."),
    ("/var/www/html", "The site that is served unless configured otherwise."),
    ("/var/log/httpd/access.log", "The access log of the system service."),
    ("/var/cache/httpd", "Compressed variants of files; it may be removed at any time."),
    ("/run/httpd/control.sock", "Where httpd status asks the server."),
    (
        "/usr/share/doc/httpd-uring/examples",
        "A configuration with every key, drop-ins for systemd, a certbot hook.",
    ),
];

const DESCRIPTION: &str = "httpd hosts files: documentation sites, single-page apps, package and release \
    mirrors. A supervisor keeps the listening sockets and one worker per core; each worker serves its \
    connections through one io_uring. The supervisor restarts workers that end unexpectedly and replaces all \
    of them when the configuration is read anew. It stays in the foreground and logs to standard error. \
    Linux 6.1 or later is needed.";

/// What follows the options in `--help`.
pub fn after_help() -> String {
    let mut text = String::from("Examples:\n");
    table(&mut text, EXAMPLES, 50);
    text.push_str("\nSignals:\n");
    table(&mut text, SIGNALS, 11);
    text.push_str("\nExit codes:\n");
    table(&mut text, EXIT_CODES, 11);
    text.trim_end().to_owned()
}

/// The manual page httpd(8), in roff.
pub fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut command = command.clone();
    command.build();
    let version = format!("httpd {}", command.get_version().unwrap_or_default());
    let mut top = Roff::new();
    top.control("TH", ["httpd", "8", "", version.as_str(), "System Administration"]);
    top.control("SH", ["NAME"]).text([roman(format!("httpd - {}", about(&command)))]);
    top.control("SH", ["SYNOPSIS"]);
    synopsis(&mut top, "httpd", &[("-c", "FILE", true), ("-t", "", false)], &[]);
    synopsis(&mut top, "httpd", &[("--root", "DIR", true)], &["options"]);
    for sub in commands(&command) {
        let more: &[&str] = if sub.get_arguments().all(is_common) { &[] } else { &["options"] };
        synopsis(&mut top, &format!("httpd {}", sub.get_name()), &[], more);
    }
    top.control("SH", ["DESCRIPTION"]).text([roman(DESCRIPTION)]);

    let mut rest = Roff::new();
    rest.control("SH", ["COMMANDS"]);
    for sub in commands(&command) {
        rest.control("SS", [format!("httpd {}", sub.get_name()).as_str()]);
        rest.text([roman(format!("{}.", about(sub)))]);
        sub.get_arguments().filter(|arg| !is_common(arg)).for_each(|arg| argument(&mut rest, arg));
    }
    section(&mut rest, "EXAMPLES", EXAMPLES, bold);
    section(&mut rest, "SIGNALS", SIGNALS, bold);
    section(&mut rest, "EXIT STATUS", EXIT_CODES, bold);
    section(&mut rest, "FILES", FILES, italic);
    rest.control("SH", ["SEE ALSO"]);
    rest.text([
        bold("httpd.toml"),
        roman("(5), "),
        bold("systemctl"),
        roman("(1), "),
        bold("io_uring"),
        roman("(7)"),
    ]);

    let mut out = Vec::new();
    top.to_writer(&mut out)?;
    Man::new(command).render_options_section(&mut out)?;
    rest.to_writer(&mut out)?;
    Ok(out)
}

fn table(text: &mut String, rows: &[(&str, &str)], width: usize) {
    rows.iter().for_each(|(name, what)| text.push_str(&format!("  {name:<width$} {what}\n")));
}

fn section(roff: &mut Roff, name: &str, rows: &[(&str, &str)], font: impl Fn(String) -> Inline) {
    roff.control("SH", [name]);
    for (name, what) in rows {
        roff.control("TP", []).text([font((*name).to_owned())]).text([roman(*what)]);
    }
}

fn synopsis(roff: &mut Roff, name: &str, options: &[(&str, &str, bool)], more: &[&str]) {
    let mut line = vec![bold(name)];
    for (flag, value, required) in options {
        let [open, close] = if *required { ["", ""] } else { ["[", "]"] };
        line.extend([roman(format!(" {open}")), bold(*flag)]);
        if !value.is_empty() {
            line.extend([roman(" "), italic(*value)]);
        }
        line.push(roman(close));
    }
    more.iter().for_each(|word| line.extend([roman(" ["), italic(*word), roman("]")]));
    roff.text(line).control("br", []);
}

fn commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set())
}

fn argument(roff: &mut Roff, arg: &Arg) {
    let mut flags = Vec::new();
    flags.extend(arg.get_short().map(|short| format!("-{short}")));
    flags.extend(arg.get_long().map(|long| format!("--{long}")));
    let mut line = vec![bold(flags.join(", "))];
    if arg.get_action().takes_values() {
        let names = arg.get_value_names().unwrap_or_default();
        line.push(roman(if flags.is_empty() { "" } else { " " }));
        line.push(italic(names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ")));
    }
    roff.control("TP", [])
        .text(line)
        .text([roman(arg.get_help().map(ToString::to_string).unwrap_or_default())]);
}

fn is_common(arg: &Arg) -> bool {
    arg.is_hide_set() || arg.get_id() == "help"
}

fn about(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    about.trim_end_matches('.').trim_start_matches("A ").to_owned()
}
