//! The configuration: TOML in, a checked [`Config`] or a [`Report`] of every mistake out.
//!
//! `file` mirrors the TOML with positions, `resolve` applies defaults, units and cross checks,
//! `report` renders problems. What the rest of the program sees are the plain values below:
//! nothing in them needs checking again. Only this file touches the disk and the environment.

pub mod file;
mod flags;
pub mod glob;
mod hosts;
mod htpasswd;
mod listeners;
mod mounts;
pub mod report;
mod resolve;
mod rules;
mod sites;
mod suggest;
mod units;

use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::report::{Problems, Text};
use self::resolve::{Context, Disk};

pub use self::mounts::{Chunked, Directory, Module, Mount, MountKind, Process, Programs};
pub use self::report::{Problem, Report};
pub use crate::sys::file::Symlinks;

/// Where a configuration comes from; kept by the supervisor, which reads it again on every reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `-c FILE`
    File(PathBuf),
    /// `--root DIR` and its companions.
    Flags(Flags),
}

impl Source {
    /// Reads and checks all of it anew.
    ///
    /// # Errors
    /// Every mistake at once.
    pub fn load(&self, environment: &Environment) -> Result<Config, Report> {
        match self {
            Source::File(path) => load(path, environment),
            Source::Flags(flags) => from_flags(flags, environment),
        }
    }
}

/// What the command line says when there is no file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The directory served.
    pub root: PathBuf,
    /// Where compressed variants are kept; `None`: nowhere.
    pub cache: Option<PathBuf>,
    /// Where the certificate is; `None`: no https.
    pub cert: Option<CertificateFlag>,
    /// Port for http.
    pub http_port: u16,
    /// Port for https.
    pub https_port: u16,
    /// Number of workers; 0: one per core.
    pub workers: u32,
    /// Scripts answered under /cgi-bin/.
    pub cgi_bin: Option<PathBuf>,
}

/// `--cert`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateFlag {
    /// A directory that holds `cert.pem` and `key.pem`.
    Directory(PathBuf),
    /// `self-signed`: made at start.
    SelfSigned,
}

/// What defaults depend on besides the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// Whether the process runs as root.
    pub root: bool,
    /// How many cores it may use; never 0.
    pub cores: u32,
    /// `XDG_RUNTIME_DIR`, where a plain user's sockets belong.
    pub runtime_dir: Option<PathBuf>,
    /// `CACHE_DIRECTORY`, which a service manager that made one sets (systemd.exec(5)).
    pub cache_dir: Option<PathBuf>,
    /// Whether WebAssembly modules can be run: a feature of the build.
    pub modules: bool,
}

impl Environment {
    /// That of this process.
    pub fn of_this_process() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let directory = |name| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
        Self {
            root: crate::sys::user::is_root(),
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
            runtime_dir: directory("XDG_RUNTIME_DIR"),
            cache_dir: directory("CACHE_DIRECTORY"),
            modules: cfg!(feature = "wcgi"),
        }
    }
}

/// Reads and checks a configuration file. Relative paths in it count from its directory.
///
/// # Errors
/// Every mistake at once.
pub fn load(path: &Path, environment: &Environment) -> Result<Config, Report> {
    let (config, problems) = read(path, environment)?;
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        _ => Err(Report { problems }),
    }
}

/// The same configuration from flags. Relative paths count from the working directory.
///
/// # Errors
/// Every mistake at once.
pub fn from_flags(flags: &Flags, environment: &Environment) -> Result<Config, Report> {
    let base = std::env::current_dir().unwrap_or_default();
    let (file, names) = flags::file(flags);
    let text = Text::Flags(names);
    let context = Context { environment, disk: &ThisDisk, base: &base, base_as_named: Path::new(""), text };
    let mut problems = Problems::default();
    let mut config = resolve::resolve(&file, &context, &mut problems);
    let (problems, warnings) = problems.finish(&text);
    config.warnings = warnings;
    if problems.is_empty() { Ok(config) } else { Err(Report { problems }) }
}

/// As much of a configuration as can be understood, mistakes or not: for commands that only need to know
/// where a running server is to be found, which may well have been started before the mistake was made.
/// Without a file: the defaults, with neither listeners nor sites.
///
/// # Errors
/// When the file cannot be read, or not even its structure be understood.
pub fn glimpse(path: Option<&Path>, environment: &Environment) -> Result<Config, Report> {
    if let Some(path) = path {
        let (config, problems) = read(path, environment)?;
        return config.ok_or(Report { problems });
    }
    let (base, text) = (Path::new("/"), Text::Flags(&[]));
    let context = Context { environment, disk: &ThisDisk, base, base_as_named: base, text };
    Ok(resolve::resolve(&file::File::default(), &context, &mut Problems::default()))
}

/// What a file says, as far as it can be understood, and what is wrong with it.
fn read(path: &Path, environment: &Environment) -> Result<(Option<Config>, Vec<Problem>), Report> {
    let source = ThisDisk.read(path).map_err(|error| {
        let (what, help) = match error.kind() {
            io::ErrorKind::NotFound => {
                ("the configuration does not exist", "name another file with -c".to_owned())
            }
            io::ErrorKind::InvalidData => ("the configuration is not a text file", error.to_string()),
            _ => ("the configuration cannot be read", error.to_string()),
        };
        Report::of(Problem::of_file(path, what, help))
    })?;
    let base_as_named = path.parent().unwrap_or(Path::new(""));
    let base = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let base = base.parent().unwrap_or(Path::new("/"));
    let text = Text::File { file: path, source: &source };
    let context = Context { environment, disk: &ThisDisk, base, base_as_named, text };
    let mut problems = Problems::default();
    let config =
        file::parse(&source, &mut problems).map(|file| resolve::resolve(&file, &context, &mut problems));
    let (problems, warnings) = problems.finish(&text);
    Ok((config.map(|config| Config { warnings, ..config }), problems))
}

/// The disk of this machine.
struct ThisDisk;

/// Longest text file that is read; far beyond what people write, and short of what a device might give.
const TEXT_MAX: u64 = 16 << 20;

impl Disk for ThisDisk {
    fn is_directory(&self, path: &Path) -> io::Result<bool> {
        std::fs::metadata(path).map(|facts| facts.is_dir())
    }

    fn is_readable(&self, path: &Path) -> io::Result<()> {
        // Opening a fifo would wait for its other end.
        match std::fs::metadata(path)? {
            facts if facts.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            facts if facts.is_file() => std::fs::File::open(path).map(drop),
            _ => Err(io::Error::other("it is not a regular file")),
        }
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        let mut text = String::new();
        std::fs::File::open(path)?.take(TEXT_MAX).read_to_string(&mut text)?;
        Ok(text)
    }

    fn is_executable(&self, path: &Path) -> io::Result<bool> {
        match std::fs::metadata(path)? {
            facts if facts.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            facts => Ok(facts.is_file() && facts.permissions().mode() & 0o111 != 0),
        }
    }

    fn canonical(&self, path: &Path) -> Option<PathBuf> {
        path.canonicalize().ok()
    }

    fn has_user(&self, name: &str) -> bool {
        // A user database that cannot be read says nothing against the name.
        !matches!(crate::sys::user::User::find(name), Ok(None))
    }
}

/// Everything the operator decided, with defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Process-wide settings.
    pub server: Server,
    /// Logs.
    pub log: Log,
    /// Deadlines.
    pub timeouts: Timeouts,
    /// Bounds on what a client may ask.
    pub limits: Limits,
    /// TLS settings common to all listeners.
    pub tls: Tls,
    /// Where metrics are to be had; `None`: nowhere.
    pub metrics: Option<Address>,
    /// The in-memory cache.
    pub cache: Cache,
    /// Where to listen; never empty.
    pub listen: Vec<Listen>,
    /// What to serve; never empty.
    pub sites: Vec<Site>,
    /// What should be put right, though it keeps nothing from being served.
    pub warnings: Vec<Problem>,
}

/// `[server]`
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Number of workers; never 0 (0 in the file means one per core).
    pub workers: u32,
    /// Whether worker i runs on core i only.
    pub pin: bool,
    /// The user workers become when started as root; `None`: stay.
    pub user: Option<String>,
    /// The control socket; `None`: no control socket.
    pub control: Option<PathBuf>,
    /// Connections per worker, beyond which accept pauses.
    pub max_connections: u32,
    /// How long a retiring worker may finish what is in flight.
    pub drain: Duration,
    /// The `Server` field of responses; `None`: absent.
    pub name: Option<String>,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// Least severe level that is written.
    pub level: Level,
    /// Where access log lines go.
    pub access: AccessLog,
    /// Form of access log lines.
    pub format: LogFormat,
}

/// Severity of diagnostics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Someone must act.
    Error,
    /// Degraded, still serving.
    Warn,
    /// Lifecycle.
    Info,
    /// One line per ended connection.
    Debug,
    /// Operations; absent from release builds.
    Trace,
}

/// Where access log lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Nowhere.
    Off,
    /// Standard output.
    Stdout,
    /// A file, opened for appending.
    File(PathBuf),
}

/// Form of access log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// The "combined" form of NCSA servers.
    Combined,
    /// One JSON object a line.
    Json,
}

/// `[timeouts]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Whole TLS handshake.
    pub handshake: Duration,
    /// From the first byte of a request head to its last.
    pub head: Duration,
    /// Between two pieces of a request body.
    pub body: Duration,
    /// Sending without any progress.
    pub send: Duration,
    /// Between exchanges.
    pub idle: Duration,
}

/// `[limits]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request head.
    pub head: u32,
    /// Bytes of a request body.
    pub body: u64,
    /// Requests on one connection; 0: no limit.
    pub requests_per_connection: u32,
    /// Connections from one address, per worker; 0: no limit.
    pub connections_per_address: u32,
    /// Whether a bare LF ends a line of a request head (RFC 9112 section 2.2 allows a server that).
    pub lenient_line_ends: bool,
}

/// `[tls]`
#[derive(Clone, Debug, PartialEq)]
pub struct Tls {
    /// Use of kernel TLS.
    pub kernel: KernelTls,
    /// How often ticket keys rotate; `None`: no tickets.
    pub tickets: Option<Duration>,
    /// Ticket keys shared among hosts; the first encrypts, all decrypt.
    pub ticket_keys: Vec<PathBuf>,
}

/// `tls.kernel`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelTls {
    /// Where the kernel can.
    Auto,
    /// Never.
    Off,
    /// Refuse to start without.
    Require,
}

/// `[cache]`
#[derive(Clone, Debug, PartialEq)]
pub struct Cache {
    /// Where compressed variants of files are kept, if at all. Absolute.
    pub dir: Option<PathBuf>,
    /// Bytes of bodies and heads kept in RAM, all workers together.
    pub memory: u64,
    /// Larger files are never kept in RAM.
    pub max_file: u64,
    /// A changed file is seen after at most this long.
    pub revalidate: Duration,
    /// When variants are made.
    pub precompress: Precompress,
    /// Which variants are made.
    pub encodings: Vec<Encoding>,
    /// Smaller files are not compressed.
    pub min_size: u64,
    /// Larger files are not compressed.
    pub max_size: u64,
    /// Media types that are compressed besides the usual ones: "application/pdf", "model/*".
    pub types: Vec<String>,
    /// How long a variant stays that no file needs any more.
    pub keep: Duration,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            memory: 256 << 20,
            max_file: 1 << 20,
            revalidate: Duration::from_secs(1),
            dir: None,
            precompress: Precompress::Background,
            encodings: vec![Encoding::Brotli, Encoding::Zstd, Encoding::Gzip],
            min_size: 512,
            max_size: 1 << 30,
            types: Vec::new(),
            keep: Duration::from_secs(86_400),
        }
    }
}

/// `cache.precompress`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precompress {
    /// While serving.
    Background,
    /// The first time before serving, then while serving.
    Startup,
    /// By `httpd compress` only.
    Off,
}

/// A content coding in which variants are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// br
    Brotli,
    /// zstd
    Zstd,
    /// gzip
    Gzip,
}

/// `[[listen]]`
#[derive(Clone, Debug, PartialEq)]
pub struct Listen {
    /// Where.
    pub address: Address,
    /// Whether connections speak TLS.
    pub tls: bool,
    /// Whether connections from `trusted` begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// Peers whose PROXY header, `Forwarded` and `X-Forwarded-For` fields are believed.
    pub trusted: Vec<ipnet::IpNet>,
    /// Permission bits of a unix socket.
    pub mode: u32,
}

/// A place to listen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A unix stream socket.
    Unix(PathBuf),
}

/// `[[site]]`
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// Names served: lower case, exact or `*.` and a suffix; empty: the default site.
    pub hosts: Vec<String>,
    /// The directory served; may be a symlink that deploys flip.
    pub root: PathBuf,
    /// Files that answer for a directory, in order of preference.
    pub index: Vec<String>,
    /// How symlinks below the root are treated.
    pub symlinks: Symlinks,
    /// Whether names that begin with a dot are served.
    pub hidden: bool,
    /// Whether a directory without index is listed.
    pub listing: bool,
    /// The path served, with 200, where nothing was found.
    pub fallback: Option<String>,
    /// Whether `/a` serves `/a.html`.
    pub clean_urls: bool,
    /// Whether plain HTTP is answered with a redirect to https, and the port named there
    /// (`None`: no redirect).
    pub https_redirect: Option<u16>,
    /// `Strict-Transport-Security` of https responses.
    pub hsts: Option<String>,
    /// Paths of bodies for error statuses.
    pub error_pages: Vec<(u16, String)>,
    /// Certificates, in order of preference.
    pub certificates: Vec<Certificate>,
    /// First match wins, per kind.
    pub rules: Vec<Rule>,
    /// Paths that programs answer; of several that match, the longest.
    pub mounts: Vec<Mount>,
    /// `cache.types`, which every site goes by.
    pub types: Vec<String>,
    /// Where in the configuration the site stands, for messages.
    pub line: u32,
}

/// `[[site.certificate]]`
#[derive(Clone, Debug, PartialEq)]
pub enum Certificate {
    /// PEM files.
    Files {
        /// The chain, leaf first.
        cert: PathBuf,
        /// The private key.
        key: PathBuf,
    },
    /// Made at start, for development.
    SelfSigned,
}

/// `[[site.rule]]`
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// A glob on the decoded path.
    pub pattern: String,
    /// Response fields set on what matches.
    pub headers: Vec<(String, String)>,
    /// Where to send the client instead.
    pub redirect: Option<Redirect>,
    /// Who may see it.
    pub auth: Option<Auth>,
    /// Addresses that may see it; empty: all.
    pub allow: Vec<ipnet::IpNet>,
    /// Addresses that may not.
    pub deny: Vec<ipnet::IpNet>,
}

/// A redirect of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Redirect {
    /// Target; `{path}`, `{query}` and `{host}` are replaced.
    pub to: String,
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// Password protection of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Auth {
    /// Shown by clients.
    pub realm: String,
    /// User name and bcrypt hash, read from the htpasswd file when the configuration was loaded.
    pub users: Vec<(String, String)>,
}

/// Whether `address` is in any of `nets`; an IPv4 address mapped into IPv6 counts as IPv4.
pub fn contains(nets: &[ipnet::IpNet], address: IpAddr) -> bool {
    let address = address.to_canonical();
    nets.iter().any(|net| net.contains(&address))
}
