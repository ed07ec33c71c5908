//! `[[site.cgi]]` and `[[site.wcgi]]`: which paths programs answer, which programs, and what they may use.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::file::{self, At, Pairs, Quantity};
use super::listeners::octal;
use super::report::{Span, Text};
use super::resolve::{DEADLINE_MAX, KIB, MIB, Resolver, is_set};
use super::sites::url_path;

/// Mounts of a site are numbered with sixteen bits.
const MOUNTS_MAX: usize = u16::MAX as usize;

/// What a program needs of address space to begin at all, and more than any machine has.
const MEMORY_MIN: u64 = MIB;
const MEMORY_MAX: u64 = 1 << 46;

/// What WebAssembly of 32 bits can address.
const MODULE_MEMORY_MAX: u64 = 4 << 30;

/// Standard input, output, error, and what a loader opens besides.
const FILES_MIN: u32 = 8;

/// Others may read what scripts write, and not change it.
const UMASK: u32 = 0o022;

/// Paths that programs answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Mount {
    /// The paths: all below this one, which begins and ends with a slash; decoded.
    pub path: String,
    /// The programs.
    pub programs: Programs,
    /// What runs them.
    pub kind: MountKind,
    /// How long a program may be silent.
    pub timeout: Duration,
    /// How long it may run.
    pub wall: Duration,
    /// How many run at once, all workers together; never 0.
    pub concurrency: u32,
    /// How many more requests wait, before 503.
    pub queue: u32,
    /// Bytes of a request body, 413 beyond; never more than `limits.body`.
    pub body: u64,
    /// What becomes of a request body whose length is not known beforehand.
    pub chunked: Chunked,
    /// Variables given to every program, before all others.
    pub env: Vec<(String, String)>,
    /// Whether programs see the Authorization field.
    pub pass_authorization: bool,
    /// Whether the words of a query without `=` are arguments (RFC 3875 section 4.4).
    pub arguments: bool,
    /// Where in the configuration it stands, for messages.
    pub line: u32,
}

/// Which programs a mount has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Programs {
    /// Those in this directory, by the names that follow the path of the mount.
    Directory(PathBuf),
    /// This one, whatever follows.
    One(PathBuf),
}

/// What runs the programs of a mount.
#[derive(Clone, Debug, PartialEq)]
pub enum MountKind {
    /// The system: `[[site.cgi]]`.
    Process(Process),
    /// The module host: `[[site.wcgi]]`.
    Module(Module),
}

/// How a process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// As whom, when started as root; `None`: as the user of the workers.
    pub user: Option<String>,
    /// Its file mode mask.
    pub umask: u32,
    /// Processor time of each process; `None`: no limit.
    pub cpu: Option<Duration>,
    /// Address space of each process.
    pub memory: Option<u64>,
    /// Open descriptors of each process.
    pub files: Option<u32>,
    /// Processes of its user.
    pub processes: Option<u32>,
    /// How long after SIGTERM follows SIGKILL.
    pub grace: Duration,
    /// Whether what a script leaves running when it ends well may go on.
    pub background: bool,
    /// Whether programs with the set-user-ID bit gain privileges.
    pub gain_privileges: bool,
}

/// How a module runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Linear memory.
    pub memory: u64,
    /// What it sees of the file system.
    pub directories: Vec<Directory>,
}

/// A directory that modules are given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// What they call it: absolute.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Whether they may change what is beneath.
    pub writable: bool,
}

/// What becomes of a request body whose length is not known beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunked {
    /// It is kept until it is complete, so that CONTENT_LENGTH can be told.
    Spool,
    /// It is passed on as it comes, without CONTENT_LENGTH.
    Stream,
}

/// What `[[site.cgi]]` and `[[site.wcgi]]` have in common.
struct Common<'a> {
    /// `site.cgi`
    table: &'static str,
    at: &'a Span,
    path: &'a Option<At<String>>,
    dir: &'a Option<At<String>>,
    script: &'a Option<At<String>>,
    timeout: &'a Option<At<Quantity>>,
    wall: &'a Option<At<Quantity>>,
    concurrency: &'a Option<At<i64>>,
    queue: &'a Option<At<i64>>,
    body: &'a Option<At<Quantity>>,
    chunked: &'a Option<At<String>>,
    env: &'a Option<At<Pairs>>,
    pass_authorization: &'a Option<At<bool>>,
    arguments: &'a Option<At<bool>>,
}

macro_rules! common {
    ($name:literal, $table:ident) => {
        Common {
            table: $name,
            at: &$table.at,
            path: &$table.path,
            dir: &$table.dir,
            script: &$table.script,
            timeout: &$table.timeout,
            wall: &$table.wall,
            concurrency: &$table.concurrency,
            queue: &$table.queue,
            body: &$table.body,
            chunked: &$table.chunked,
            env: &$table.env,
            pass_authorization: &$table.pass_authorization,
            arguments: &$table.arguments,
        }
    };
}

/// Resolves the mounts of a site, in the order of the file but CGI first. No request body is larger than
/// `body`.
pub fn resolve(site: &file::Site, body: u64, own: &mut Resolver) -> Vec<Mount> {
    let mut mounts = Vec::new();
    let mut taken = Vec::new();
    for table in site.cgi.iter().flat_map(|list| &list.value) {
        let process = process(table, own);
        let common = common!("site.cgi", table);
        mounts.extend(one(&common, MountKind::Process(process), 60, body, &mut taken, own));
    }
    for table in site.wcgi.iter().flat_map(|list| &list.value) {
        let module = module(table, own);
        let common = common!("site.wcgi", table);
        mounts.extend(one(&common, MountKind::Module(module), 5, body, &mut taken, own));
    }
    if mounts.len() > MOUNTS_MAX {
        own.problems.at(&site.at, format!("the site has more than {MOUNTS_MAX} mounts of programs"), "");
    }
    mounts
}

/// Warns of programs whose sources could be fetched as files: beneath the root of a site, at a path that none
/// of its mounts answers.
pub fn warn_of_sources(sites: &[super::Site], own: &mut Resolver) {
    let mounted = std::mem::take(&mut own.mounted);
    let roots: Vec<_> = match mounted.is_empty() {
        true => Vec::new(),
        false => sites.iter().map(|site| (site, own.context.disk.canonical(&site.root))).collect(),
    };
    for (programs, span) in mounted {
        let Some(place) = own.context.disk.canonical(&programs) else { continue };
        let exposing = roots.iter().find(|(site, root)| {
            let beneath = root.as_ref().and_then(|root| place.strip_prefix(root).ok());
            beneath.is_some_and(|beneath| {
                let path = format!("/{}/", beneath.display());
                !site.mounts.iter().any(|mount| path.starts_with(&mount.path))
            })
        });
        if let Some((site, _)) = exposing {
            let root = match own.context.text {
                Text::File { .. } => format!("the root of the site on line {}", site.line),
                Text::Flags(_) => "--root".to_owned(),
            };
            let what = format!("`{}` lies beneath {root} and is served as a file too", programs.display());
            own.problems.warn(&span, what, "keep programs outside of all roots");
        }
    }
}

fn one(
    table: &Common,
    kind: MountKind,
    timeout: u64,
    body: u64,
    taken: &mut Vec<(String, u32)>,
    own: &mut Resolver,
) -> Option<Mount> {
    let name = |key: &str| format!("{}.{key}", table.table);
    let line = own.context.text.line(table.at);
    let least = Duration::from_millis(1);
    let timeout = own.time(table.timeout, timeout, &name("timeout"), least, DEADLINE_MAX);
    let wall = own.time(table.wall, 600.max(timeout.as_secs()), &name("wall"), least, DEADLINE_MAX);
    if let Some(written) = table.wall.as_ref().filter(|_| wall < timeout) {
        let what = format!("`{}` is shorter than `timeout`, which then has no effect", name("wall"));
        own.problems.at(&written.span, what, "raise `wall`, or lower `timeout`");
    }
    const CHUNKED: [(&str, Chunked); 2] = [("spool", Chunked::Spool), ("stream", Chunked::Stream)];
    let programs = programs(table, matches!(kind, MountKind::Process(_)), own);
    let mount = Mount {
        path: path(table, taken, own)?,
        programs: programs?,
        kind,
        timeout,
        wall,
        concurrency: own.count(table.concurrency, 32, &name("concurrency"), 1, 65_536),
        queue: own.count(table.queue, 128, &name("queue"), 0, 65_536),
        body: own.size(table.body, body, &name("body"), 0, u64::MAX),
        chunked: own.word(table.chunked, &name("chunked"), &CHUNKED, Chunked::Spool),
        env: env(table, own),
        pass_authorization: is_set(table.pass_authorization),
        arguments: is_set(table.arguments),
        line,
    };
    if let Some(written) = table.body.as_ref().filter(|_| mount.body > body) {
        let what = format!("`{}` is larger than `limits.body`, which holds for all requests", name("body"));
        own.problems.at(&written.span, what, "raise `body` in [limits], or lower this one");
    }
    Some(mount)
}

fn path(table: &Common, taken: &mut Vec<(String, u32)>, own: &mut Resolver) -> Option<String> {
    let name = format!("{}.path", table.table);
    let Some(written) = table.path else {
        let what = format!("[[{}]] lacks its `path`", table.table);
        own.problems.missing(table.at, &name, what, "add path = \"/cgi-bin/\"");
        return None;
    };
    let mut path = url_path(written, &name, own);
    if !path.ends_with('/') {
        path.push('/');
    }
    if path.contains("//") {
        own.problems.at(&written.span, format!("`{name}` holds an empty segment"), "write one slash");
    }
    if path.contains(['%', '?', '#']) {
        let what = format!("`{name}` holds a `%`, `?` or `#`");
        own.problems.at(&written.span, what, "write the path decoded, and without query");
    }
    let line = own.context.text.line(table.at);
    if let Some((_, other)) = taken.iter().find(|(other, _)| *other == path) {
        let what = format!("`{path}` already has programs, by the table on line {other}");
        own.problems.at(&written.span, what, "keep one: of several mounts the longest path counts");
    }
    taken.push((path.clone(), line));
    Some(path)
}

fn programs(table: &Common, native: bool, own: &mut Resolver) -> Option<Programs> {
    match (table.dir, table.script) {
        (Some(dir), None) => {
            let path = own.path(dir);
            if !dir.value.is_empty() {
                match own.context.disk.is_directory(&path) {
                    Ok(true) => own.mounted.push((path.clone(), dir.span.clone())),
                    Ok(false) => {
                        let help = "for a single program, write `script` instead of `dir`";
                        own.problems.at(&dir.span, format!("`{}` is not a directory", dir.value), help);
                    }
                    Err(error) => own.refused(dir, &error),
                }
            }
            Some(Programs::Directory(path))
        }
        (None, Some(script)) => {
            let path = if native { executable(script, own) } else { own.readable(script) };
            own.mounted.push((path.clone(), script.span.clone()));
            Some(Programs::One(path))
        }
        (Some(_), Some(script)) => {
            let what = format!("`{}` has both `dir` and `script`", table.table);
            let help = "keep `dir` for programs found by name, or `script` for one that answers all paths";
            own.problems.at(&script.span, what, help);
            None
        }
        (None, None) => {
            let meant = |key: &str| own.problems.is_meant(table.at, &format!("{}.{key}", table.table));
            if !meant("dir") && !meant("script") {
                let what = format!("[[{}]] has neither `dir` nor `script`", table.table);
                own.problems.at(
                    table.at,
                    what,
                    "add dir = \"/usr/lib/cgi-bin\", or script = with one program",
                );
            }
            None
        }
    }
}

/// A program that could be executed by somebody; by whom it will be is for the spawner to find out.
fn executable(script: &At<String>, own: &mut Resolver) -> PathBuf {
    let path = own.path(script);
    if script.value.is_empty() {
        return path;
    }
    match own.context.disk.is_executable(&path) {
        Ok(true) => {}
        Ok(false) => {
            let what = format!("`{}` is not executable", script.value);
            let named = own.context.base_as_named.join(&script.value);
            own.problems.at(&script.span, what, format!("chmod +x {}", named.display()));
        }
        Err(error) => own.refused(script, &error),
    }
    path
}

/// Of the variables, those that say what the request is; another value would be a lie. What a script leaves
/// behind is known by UNIQUE_ID.
const NOT_SETTABLE: [&str; 12] = [
    "CONTENT_LENGTH",
    "CONTENT_TYPE",
    "GATEWAY_INTERFACE",
    "PATH_INFO",
    "PATH_TRANSLATED",
    "QUERY_STRING",
    "REQUEST_METHOD",
    "REQUEST_URI",
    "SCRIPT_FILENAME",
    "SCRIPT_NAME",
    "SERVER_PROTOCOL",
    "UNIQUE_ID",
];

fn env(table: &Common, own: &mut Resolver) -> Vec<(String, String)> {
    let pairs = table.env.as_ref().map_or(&[][..], |pairs| &pairs.value.0);
    for (name, value) in pairs {
        let shown = &name.value;
        if shown.is_empty() || shown.contains(['=', '\0']) {
            own.problems.at(&name.span, format!("`{shown}` is not the name of a variable"), "");
        } else if NOT_SETTABLE.contains(&shown.as_str()) || shown.starts_with("HTTP_") {
            let help = "remove it: it says what the request was";
            own.problems.at(&name.span, format!("`{shown}` is set by the server"), help);
        }
        if value.value.contains('\0') {
            own.problems.at(&value.span, format!("the value of `{shown}` holds a zero byte"), "");
        }
    }
    pairs.iter().map(|(name, value)| (name.value.clone(), value.value.clone())).collect()
}

fn process(table: &file::Cgi, own: &mut Resolver) -> Process {
    let second = Duration::from_secs(1);
    // The kernel counts whole seconds.
    let cpu = own.time(&table.cpu, 1, "site.cgi.cpu", Duration::ZERO, DEADLINE_MAX).max(second);
    let memory = own.size(&table.memory, MEMORY_MIN, "site.cgi.memory", MEMORY_MIN, MEMORY_MAX);
    let files = own.count(&table.files, FILES_MIN, "site.cgi.files", FILES_MIN, 1 << 20);
    let processes = own.count(&table.processes, 1, "site.cgi.processes", 1, 1 << 22);
    if let Some(written) = table.gain_privileges.as_ref().filter(|gain| gain.value) {
        let what = "`site.cgi.gain_privileges` leaves the programs of all mounts without a sandbox";
        let help = "what programs are started by keeps the rights of root then; better let a service of its own do \
                    what takes privileges";
        own.problems.warn(&written.span, what, help);
    }
    Process {
        user: user(&table.user, own),
        umask: table.umask.as_ref().and_then(|umask| octal(umask, own)).unwrap_or(UMASK),
        cpu: table.cpu.as_ref().map(|_| cpu),
        memory: table.memory.as_ref().map(|_| memory),
        files: table.files.as_ref().map(|_| files),
        processes: table.processes.as_ref().map(|_| processes),
        grace: own.time(&table.grace, 5, "site.cgi.grace", Duration::ZERO, DEADLINE_MAX),
        background: table.background.as_ref().is_none_or(|background| background.value),
        gain_privileges: is_set(&table.gain_privileges),
    }
}

fn module(table: &file::Wcgi, own: &mut Resolver) -> Module {
    if !own.context.environment.modules {
        let what = "this httpd was built without WebAssembly";
        let help = "remove [[site.wcgi]], or build with `cargo build --release --features wcgi`";
        own.problems.at(&table.at, what, help);
    }
    let memory = own.size(&table.memory, 64 * MIB, "site.wcgi.memory", 64 * KIB, MODULE_MEMORY_MAX);
    let mut directories = Vec::new();
    for (pairs, key, writable) in [(&table.read, "read", false), (&table.write, "write", true)] {
        for (name, path) in pairs.iter().flat_map(|pairs| &pairs.value.0) {
            directories.extend(directory(name, path, key, writable, own));
        }
    }
    directories.sort_by(|one, other| one.name.cmp(&other.name));
    if let Some(twice) =
        directories.windows(2).find(|pair| matches!(pair, [one, other] if one.name == other.name))
    {
        let what = format!("`{}` is given twice, to be read and to be written", twice[0].name);
        own.problems.at(&table.at, what, "keep it in `write`: what may be written may be read");
    }
    Module { memory, directories }
}

fn directory(
    name: &At<String>,
    path: &At<String>,
    key: &str,
    writable: bool,
    own: &mut Resolver,
) -> Option<Directory> {
    let shown = &name.value;
    if !shown.starts_with('/')
        || shown.split('/').any(|part| matches!(part, "." | ".."))
        || shown.contains('\0')
    {
        let what = format!("`{shown}` is not an absolute path");
        let help = format!("`site.wcgi.{key}` says what modules call a directory: \"/data\" = \"/srv/data\"");
        own.problems.at(&name.span, what, help);
        return None;
    }
    let place = own.path(path);
    if path.value.is_empty() {
        return None;
    }
    match own.context.disk.is_directory(&place) {
        Ok(true) => Some(Directory { name: shown.clone(), path: place, writable }),
        Ok(false) => {
            own.problems.at(&path.span, format!("`{}` is not a directory", path.value), "");
            None
        }
        Err(error) => {
            own.refused(path, &error);
            None
        }
    }
}

/// Of no effect for a plain user, like `server.user`.
fn user(user: &Option<At<String>>, own: &mut Resolver) -> Option<String> {
    let user = user.as_ref()?;
    if user.value == "root" {
        let help = "name a user who may do no more than the scripts need";
        own.problems.at(&user.span, "scripts do not run as root", help);
    } else if user.value.is_empty() || user.value.contains([':', '/', '\n', '\0']) {
        own.problems.at(&user.span, format!("`{}` is not a user name", user.value), "");
    } else if own.context.environment.root && !own.context.disk.has_user(&user.value) {
        let help = format!("make it with `adduser --system {}`, or name another", user.value);
        own.problems.at(&user.span, format!("there is no user `{}`", user.value), help);
    }
    own.context.environment.root.then(|| user.value.clone())
}

impl Mount {
    /// Where its programs are.
    pub fn place(&self) -> &Path {
        match &self.programs {
            Programs::Directory(path) | Programs::One(path) => path,
        }
    }
}
