//! Commands and flags: what was typed, what it means, and the exit codes. Starts what serves, and serves nothing.

mod generate;
mod manual;
pub mod reference;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand};

use crate::config::{
    self, Certificate, CertificateFlag, Config, Environment, Flags, KernelTls, Problem, Report, Source,
};
use crate::gateway::trial::{self, Trial};
use crate::supervisor::{self, Show};
use crate::sys::tls_probe;
use crate::{precompress, tls};

/// How the program ends; nothing else chooses an exit code, but what serves and what asks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Fine = 0,
    Failure = 1,
    Usage = 2,
    /// EX_CONFIG of sysexits.h: a service manager need not try again.
    Config = 78,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// A web server for Linux: static sites and downloads.
#[derive(Debug, Parser)]
#[command(name = "httpd", version, after_help = manual::after_help(), args_conflicts_with_subcommands = true)]
#[command(disable_help_subcommand = true, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Serve,
}

/// Without a command: serve.
#[derive(Args, Debug)]
struct Serve {
    /// The configuration
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only check: print every problem of the configuration, its certificates and roots
    #[arg(short = 't', long = "test")]
    test: bool,
    /// Serve this directory without a configuration, on all IPv4 addresses
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    root: Option<PathBuf>,
    /// Keep compressed variants in this directory
    #[arg(long, value_name = "DIR", requires = "root")]
    cache: Option<PathBuf>,
    /// Serve https too, with cert.pem and key.pem of this directory, or with a certificate made at start
    #[arg(long, value_name = "DIR|self-signed", requires = "root", value_parser = certificate_flag)]
    cert: Option<CertificateFlag>,
    /// Port for http [default: 8080]
    #[arg(long, value_name = "PORT", requires = "root")]
    http_port: Option<u16>,
    /// Port for https [default: 8443]
    #[arg(long, value_name = "PORT", requires = "cert")]
    https_port: Option<u16>,
    /// How many workers serve; 0: one per core [default: 0]
    #[arg(long, value_name = "N", requires = "root")]
    workers: Option<u32>,
    /// Run the scripts of this directory under /cgi-bin/
    #[arg(long, value_name = "DIR", requires = "root")]
    cgi_bin: Option<PathBuf>,
}

/// What is compressed, and how.
#[derive(Args, Debug)]
struct Compress {
    /// The configuration
    #[arg(short, long, value_name = "FILE", required_unless_present = "root")]
    config: Option<PathBuf>,
    /// The directory to compress the files of
    #[arg(long, value_name = "DIR", conflicts_with = "config", requires = "cache")]
    root: Option<PathBuf>,
    /// The directory to keep the variants in
    #[arg(long, value_name = "DIR", requires = "root")]
    cache: Option<PathBuf>,
    /// How many files are compressed at a time [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
    /// Only say how many files lack variants
    #[arg(long)]
    dry_run: bool,
    /// Make all variants anew
    #[arg(long)]
    force: bool,
    /// For programs
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bring the cache of compressed variants up to date now
    Compress(Compress),
    /// Run one script or module as the server would, and print its answer and what is wrong with it
    Cgi {
        /// The script, or the module: its name ends in `.wasm`
        script: PathBuf,
        /// The method of the request
        #[arg(short = 'X', value_name = "METHOD", default_value = "GET")]
        method: String,
        /// What of the path follows the script, with the query
        #[arg(long, value_name = "PATH", default_value = "")]
        path: String,
        /// A header field of the request; any number of these
        #[arg(short = 'H', value_name = "NAME: VALUE")]
        header: Vec<String>,
        /// The body of the request
        #[arg(long, value_name = "FILE")]
        body: Option<PathBuf>,
    },
    /// What runs: generations, workers, connections, certificates and their expiry, features of the kernel
    Status {
        /// The configuration, which says where the running server is asked
        #[arg(short, long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// For programs: one line of JSON
        #[arg(long)]
        json: bool,
        /// Look again every second, until interrupted
        #[arg(short, long)]
        watch: bool,
    },
    /// Print the version
    Version,
    /// Write manual pages and completions for shells, for packagers
    #[command(hide = true)]
    Generate {
        /// The directory to write to
        directory: PathBuf,
    },
}

/// Parses the command line, runs the command, and says how it ended.
pub fn main() -> ExitCode {
    match parse(std::env::args_os()) {
        Ok(arguments) => run(arguments),
        Err(error) => {
            // A closed pipe is no reason to complain.
            let _ = error.print();
            match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Fine.into(),
                _ => Exit::Usage.into(),
            }
        }
    }
}

fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    let arguments = Arguments::try_parse_from(words)?;
    if arguments.command.is_none() && arguments.serve.config.is_none() && arguments.serve.root.is_none() {
        let what = "name a configuration with -c, or a directory with --root";
        let message = format!("{what}\n\n{}", Arguments::command().render_help());
        return Err(clap::Error::raw(ErrorKind::MissingRequiredArgument, message));
    }
    Ok(arguments)
}

fn certificate_flag(word: &str) -> Result<CertificateFlag, std::convert::Infallible> {
    Ok(match word {
        "self-signed" => CertificateFlag::SelfSigned,
        directory => CertificateFlag::Directory(directory.into()),
    })
}

fn run(arguments: Arguments) -> ExitCode {
    match arguments.command {
        None => serve(arguments.serve),
        Some(Command::Status { config, json, watch }) => status(config.as_deref(), Show { json, watch }),
        Some(Command::Generate { directory }) => generate(&directory),
        Some(Command::Version) => say(&format!("httpd {}", env!("CARGO_PKG_VERSION"))),
        Some(Command::Compress(compress)) => self::compress(compress),
        Some(Command::Cgi { script, method, path, header, body }) => {
            cgi(&Trial { script, method, path, fields: header, body })
        }
    }
}

fn serve(serve: Serve) -> ExitCode {
    let environment = Environment::of_this_process();
    let (source, name) = source(&serve);
    let loaded = source.load(&environment).map_err(|mut report| {
        if serve.test {
            report.problems.extend(further(&source, &environment));
        }
        report
    });
    let loaded = loaded.and_then(|config| {
        let of_tls = check_tls(&config, serve.test)?;
        let warnings = config.warnings.iter().cloned().chain(of_tls).collect();
        Ok((config, warnings))
    });
    match loaded {
        Ok((config, warnings)) if serve.test => {
            let warnings: Vec<Problem> = warnings;
            warnings.iter().for_each(|warning| complain(&format!("warning: {warning}")));
            let (sites, listeners) = (config.sites.len(), config.listen.len());
            let (sites, listeners) = (counted(sites, "site"), counted(listeners, "listener"));
            say(&format!("configuration is fine: {sites}, {listeners}"))
        }
        // What serves repeats the warnings in its log.
        Ok((config, _)) => supervisor::run(source, config),
        Err(report) => {
            let problems = counted(report.problems.len(), "problem");
            complain(&format!("{report}\n{name}: {problems}"));
            if serve.test { Exit::Failure.into() } else { Exit::Config.into() }
        }
    }
}

/// What is wrong with the TLS of a configuration that has other mistakes, so that a check tells all at once. Files
/// that do not exist are among those mistakes; and where nothing of certificates is left, that there is none
/// would only follow from them.
fn further(source: &Source, environment: &Environment) -> Vec<Problem> {
    let Source::File(path) = source else { return Vec::new() };
    let Ok(mut config) = config::glimpse(Some(path), environment) else { return Vec::new() };
    for site in &mut config.sites {
        site.certificates.retain(|certificate| match certificate {
            Certificate::Files { cert, key } => cert.exists() && key.exists(),
            Certificate::SelfSigned => true,
        });
    }
    config.tls.ticket_keys.retain(|path| path.exists());
    if config.sites.iter().all(|site| site.certificates.is_empty()) {
        return Vec::new();
    }
    check_tls(&config, true).err().map_or(Vec::new(), |report| report.problems)
}

/// Where the configuration comes from, and how to speak of it.
fn source(serve: &Serve) -> (Source, String) {
    if let Some(path) = &serve.config {
        return (Source::File(path.clone()), path.display().to_string());
    }
    let flags = Flags {
        root: serve.root.clone().unwrap_or_default(),
        cache: serve.cache.clone(),
        cert: serve.cert.clone(),
        http_port: serve.http_port.unwrap_or(8080),
        https_port: serve.https_port.unwrap_or(8443),
        workers: serve.workers.unwrap_or(0),
        cgi_bin: serve.cgi_bin.clone(),
    };
    (Source::Flags(flags), "command line".to_owned())
}

fn compress(compress: Compress) -> ExitCode {
    let Compress { config, root, cache, jobs, dry_run, force, json } = compress;
    let source = match (config, root) {
        (Some(path), _) => Source::File(path),
        (None, root) => {
            let root = root.unwrap_or_default();
            Source::Flags(Flags { root, cache, http_port: 8080, https_port: 8443, ..Flags::default() })
        }
    };
    match source.load(&Environment::of_this_process()) {
        Ok(config) => {
            let jobs = jobs.and_then(|jobs| usize::try_from(jobs).ok());
            let options = precompress::command::Options { jobs, dry_run, force, json };
            precompress::command::run(&config, options)
        }
        Err(report) => {
            complain(&report.to_string());
            Exit::Config.into()
        }
    }
}

/// What is wrong with certificates and ticket keys, which are read here only to know. The supervisor reads
/// them again when it serves: what it holds must be what it checked. `try_kernel`: what is wrong with the
/// kernel, too. A start leaves that to the supervisor, because it is no mistake of the configuration: a
/// service manager may try again.
fn check_tls(config: &Config, try_kernel: bool) -> Result<Vec<Problem>, Report> {
    if !config.listen.iter().any(|listen| listen.tls) {
        return Ok(Vec::new());
    }
    let problem = |problem: &tls::Problem| {
        Problem::of_file(Path::new(&problem.place), problem.what.as_str(), problem.help.as_str())
    };
    let now = SystemTime::now();
    let mut problems = Vec::new();
    let built = tls::Endpoint::build(config, now, None, false);
    if let Err(found) = &built {
        problems.extend(found.iter().map(problem));
    }
    if let Err(found) = tls::read_ticket_keys(config) {
        problems.extend(found.iter().map(problem));
    }
    if try_kernel && config.tls.kernel == KernelTls::Require {
        let probed = tls::probe(tls_probe::try_install);
        let help = "load what is missing, or let httpd encrypt: \"auto\"";
        let lacking =
            || Problem::of_file(Path::new("tls.kernel"), format!("\"require\", but {}", probed.text), help);
        problems.extend((!probed.usable).then(lacking));
    }
    match built {
        Ok(endpoint) if problems.is_empty() => Ok(endpoint.warnings().iter().map(problem).collect()),
        _ => Err(Report { problems }),
    }
}

fn status(path: Option<&Path>, show: Show) -> ExitCode {
    match config::glimpse(path, &Environment::of_this_process()) {
        Ok(config) => supervisor::status(&config, show),
        Err(report) => {
            complain(&report.to_string());
            Exit::Config.into()
        }
    }
}

fn generate(directory: &Path) -> ExitCode {
    match generate::into(directory, &mut Arguments::command()) {
        Ok(()) => Exit::Fine.into(),
        Err(error) => {
            complain(&format!("{}: {error}", directory.display()));
            Exit::Failure.into()
        }
    }
}

fn cgi(trial: &Trial) -> ExitCode {
    let found = match trial::run(trial) {
        Ok(found) => found,
        Err(reason) => {
            complain(&reason);
            return Exit::Failure.into();
        }
    };
    // Whoever does not read it all, as head(1), needs no complaint.
    let _ = std::io::stdout().write_all(&found.answer).and_then(|()| std::io::stdout().flush());
    let mut text = String::new();
    if !found.messages.is_empty() {
        text.push_str("--- what it wrote to standard error:\n");
        text.push_str(String::from_utf8_lossy(&found.messages).trim_end());
        text.push('\n');
    }
    found.problems.iter().for_each(|problem| text.push_str(&format!("--- wrong: {problem}\n")));
    text.push_str(&format!("--- {}", found.summary));
    complain(&text);
    if found.problems.is_empty() { Exit::Fine.into() } else { Exit::Failure.into() }
}

fn counted(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

fn say(line: &str) -> ExitCode {
    match writeln!(std::io::stdout(), "{line}") {
        Ok(()) => Exit::Fine.into(),
        Err(_) => Exit::Failure.into(),
    }
}

/// To stderr; where that is closed, nobody reads.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Arguments, ErrorKind> {
        let words = std::iter::once("httpd").chain(line.split_whitespace());
        parse(words.map(OsString::from)).map_err(|error| error.kind())
    }

    #[test]
    fn the_definitions_agree_with_each_other() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_is_allowed() {
        for line in [
            "-c config.toml",
            "--config config.toml",
            "-t -c config.toml",
            "-tc config.toml",
            "--root .",
            "-t --root .",
            "--root . --cert certs --http-port 80 --https-port 443 --workers 2",
            "--root . --cache c --cgi-bin d",
            "compress -c config.toml",
            "compress --root . --cache c",
            "compress -c config.toml --jobs 3 --dry-run --force --json",
            "cgi script -X POST --path /a?b -H A:b -H C:d --body file",
            "status",
            "status -c config.toml --json",
            "status --watch",
            "status -w --json",
            "version",
        ] {
            assert!(parsed(line).is_ok(), "{line}");
        }
    }

    #[test]
    fn what_is_refused() {
        use ErrorKind::{
            ArgumentConflict, DisplayHelp, DisplayVersion, InvalidSubcommand, MissingRequiredArgument,
            UnknownArgument, ValueValidation,
        };
        for (line, kind) in [
            ("", MissingRequiredArgument),
            ("-t", MissingRequiredArgument),
            ("--http-port 80", MissingRequiredArgument),
            ("--root . --https-port 443", MissingRequiredArgument),
            ("-c a --root .", ArgumentConflict),
            ("--root . status", ArgumentConflict),
            ("--root . --http-port 99999", ValueValidation),
            ("serve", InvalidSubcommand),
            ("-c a --daemon", UnknownArgument),
            ("cgi", MissingRequiredArgument),
            ("compress", MissingRequiredArgument),
            ("compress --root .", MissingRequiredArgument),
            ("compress -c a --jobs 0", ValueValidation),
            ("--help", DisplayHelp),
            ("--version", DisplayVersion),
        ] {
            assert_eq!(parsed(line).map(drop), Err(kind), "{line}");
        }
    }

    #[test]
    fn flags_have_defaults() {
        let source = |line: &str| super::source(&parsed(line).expect("the line is right").serve).0;
        let Source::Flags(flags) = source("--root a") else { panic!("flags") };
        assert_eq!((flags.http_port, flags.https_port, flags.workers), (8080, 8443, 0));
        assert_eq!(flags.cert, None);
        let Source::Flags(flags) = source("--root a --cert self-signed") else { panic!("flags") };
        assert_eq!(flags.cert, Some(CertificateFlag::SelfSigned));
        let Source::Flags(flags) = source("--root a --cert b") else { panic!("flags") };
        assert_eq!(flags.cert, Some(CertificateFlag::Directory("b".into())));
        assert_eq!(source("-c a"), Source::File("a".into()));
    }

    #[test]
    fn exit_codes_are_those_of_the_manual() {
        let codes = [Exit::Fine, Exit::Failure, Exit::Usage, Exit::Config].map(|exit| exit as u8);
        assert_eq!(codes, [0, 1, 2, 78]);
    }
}
