//! From what was written to what is meant: defaults, units, bounds, and what must agree. Every mistake is
//! reported and replaced by the default, so that one reading finds all of them.
//!
//! The disk is asked through [`Disk`] only, so that all of this runs in memory too.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::file::{self, At, Quantity, Strings};
use super::report::{Problem, Problems, Span, Text};
use super::units::{self, Complaint};
use super::{
    AccessLog, Cache, Config, Encoding, Environment, KernelTls, Level, Limits, Log, LogFormat, Precompress,
    Server, Timeouts, Tls, listeners, sites, suggest,
};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// More workers than any machine has cores: a slip of the finger.
const WORKERS_MAX: u32 = 1024;

/// A request head has to fit into memory for every connection at once.
const HEAD_MAX: u64 = MIB;

/// The file descriptor limit that Linux allows at most by default (fs.nr_open).
const CONNECTIONS_MAX: u32 = 1 << 20;

/// Deadlines longer than this protect from nothing.
pub const DEADLINE_MAX: Duration = Duration::from_secs(86_400);

/// A variant that nothing needed for a year is needed by nobody.
const KEEP_MAX: Duration = Duration::from_secs(366 * 86_400);

/// RFC 8446 section 4.6.1: no ticket is valid for longer than seven days.
const TICKETS_MAX: Duration = Duration::from_secs(7 * 86_400);

/// What is asked of the disk.
pub trait Disk {
    /// Whether something is a directory, symlinks followed.
    ///
    /// # Errors
    /// Those of stat(2).
    fn is_directory(&self, path: &Path) -> io::Result<bool>;

    /// Whether a file could be opened for reading.
    ///
    /// # Errors
    /// Those of open(2).
    fn is_readable(&self, path: &Path) -> io::Result<()>;

    /// A small text file.
    ///
    /// # Errors
    /// Those of open(2) and read(2), and text that is not UTF-8.
    fn read(&self, path: &Path) -> io::Result<String>;

    /// Whether something is a regular file that somebody may execute.
    ///
    /// # Errors
    /// Those of stat(2), and a directory.
    fn is_executable(&self, path: &Path) -> io::Result<bool>;

    /// Without symlinks and dots; `None` where that cannot be found out.
    fn canonical(&self, path: &Path) -> Option<PathBuf>;

    /// Whether the system knows a user.
    fn has_user(&self, name: &str) -> bool;
}

/// What the answer depends on besides the file.
pub struct Context<'a> {
    /// The process.
    pub environment: &'a Environment,
    /// The disk.
    pub disk: &'a dyn Disk,
    /// Where relative paths begin; absolute.
    pub base: &'a Path,
    /// The same directory as the operator named it, for messages.
    pub base_as_named: &'a Path,
    /// What positions refer to.
    pub text: Text<'a>,
}

/// Makes a configuration of a file. It is fit for use only if no problem was found.
pub fn resolve(file: &file::File, context: &Context, problems: &mut Problems) -> Config {
    let mut own = Resolver { context, problems, mounted: Vec::new() };
    let server = own.server(&get(&file.server));
    let (log, timeouts) = (own.log(&get(&file.log)), own.timeouts(&get(&file.timeouts)));
    let (limits, tls) = (own.limits(&get(&file.limits)), own.tls(&get(&file.tls)));
    let cache = own.cache(&get(&file.cache));
    let listen = listeners::resolve(file, &mut own);
    let metrics = listeners::metrics(file, &listen, &mut own);
    let mut sites = sites::resolve(file, &listen, limits.body, &mut own);
    sites.iter_mut().for_each(|site| site.types.clone_from(&cache.types));
    let warnings = Vec::new();
    Config { server, log, timeouts, limits, tls, metrics, cache, listen, sites, warnings }
}

/// The value of a table, or one in which nothing is set.
fn get<T: Clone + Default>(table: &Option<At<T>>) -> T {
    table.as_ref().map(|table| table.value.clone()).unwrap_or_default()
}

/// Resolves values one by one.
pub struct Resolver<'a> {
    /// What the answers depend on.
    pub context: &'a Context<'a>,
    /// Where mistakes go.
    pub problems: &'a mut Problems,
    /// Where programs are, to be compared with the roots of all sites.
    pub mounted: Vec<(PathBuf, Span)>,
}

impl Resolver<'_> {
    fn server(&mut self, table: &file::Server) -> Server {
        let environment = self.context.environment;
        let workers = match self.count(&table.workers, 0, "server.workers", 0, WORKERS_MAX) {
            0 => environment.cores.clamp(1, WORKERS_MAX),
            workers => workers,
        };
        Server {
            workers,
            pin: table.pin.as_ref().is_none_or(|pin| pin.value),
            user: self.user(&table.user),
            control: self.control(&table.control),
            max_connections: self.count(
                &table.max_connections,
                16_384,
                "server.max_connections",
                1,
                CONNECTIONS_MAX,
            ),
            drain: self.time(&table.drain, 30, "server.drain", Duration::ZERO, DEADLINE_MAX),
            name: self.server_name(&table.name),
        }
    }

    /// A plain user cannot become another; the key is then of no effect, so that one file serves both.
    fn user(&mut self, user: &Option<At<String>>) -> Option<String> {
        if let Some(user) = user
            && (user.value.is_empty() || user.value.contains([':', '/', '\n', '\0']))
        {
            let help = "name a user, such as \"www-data\"; \"root\" keeps all rights";
            self.problems.at(&user.span, format!("`{}` is not a user name", user.value), help);
        }
        let name = user.as_ref().map_or("www-data", |user| user.value.as_str());
        self.context.environment.root.then(|| name.to_owned())
    }

    fn control(&mut self, control: &Option<At<String>>) -> Option<PathBuf> {
        let Some(control) = control else { return default_control(self.context.environment) };
        if control.value.is_empty() {
            return None;
        }
        let path = self.path(control);
        if path.as_os_str().len() > super::hosts::SOCKET_PATH_MAX {
            let what =
                format!("the path of the socket is longer than {} bytes", super::hosts::SOCKET_PATH_MAX);
            self.problems.at(&control.span, what, "the kernel allows no more");
        }
        Some(path)
    }

    fn server_name(&mut self, name: &Option<At<String>>) -> Option<String> {
        let Some(name) = name else { return Some("httpd".to_owned()) };
        if name.value.chars().any(char::is_control) {
            let what = "`server.name` holds a control character, which no field value may";
            self.problems.at(&name.span, what, "");
        }
        (!name.value.is_empty()).then(|| name.value.clone())
    }

    fn log(&mut self, table: &file::Log) -> Log {
        const LEVELS: [(&str, Level); 5] = [
            ("error", Level::Error),
            ("warn", Level::Warn),
            ("info", Level::Info),
            ("debug", Level::Debug),
            ("trace", Level::Trace),
        ];
        const FORMATS: [(&str, LogFormat); 2] =
            [("combined", LogFormat::Combined), ("json", LogFormat::Json)];
        Log {
            level: self.word(&table.level, "log.level", &LEVELS, Level::Info),
            access: self.access(&table.access),
            format: self.word(&table.format, "log.format", &FORMATS, LogFormat::Combined),
        }
    }

    fn access(&mut self, access: &Option<At<String>>) -> AccessLog {
        match access.as_ref().map(|access| access.value.as_str()) {
            None | Some("stdout") => AccessLog::Stdout,
            Some("off") => AccessLog::Off,
            Some(path) if path.contains('/') => {
                AccessLog::File(access.as_ref().map(|path| self.path(path)).unwrap_or_default())
            }
            // A word would silently become a file of that name.
            Some(word) => {
                let help = match suggest::nearest(word, ["off", "stdout"]) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None => format!("write \"off\", \"stdout\", or a path: \"./{word}\""),
                };
                if let Some(access) = access {
                    self.problems.at(&access.span, format!("`log.access` cannot be `{word}`"), help);
                }
                AccessLog::Stdout
            }
        }
    }

    fn timeouts(&mut self, table: &file::Timeouts) -> Timeouts {
        let mut time = |value, seconds, name: &str| {
            self.time(value, seconds, &format!("timeouts.{name}"), Duration::from_millis(1), DEADLINE_MAX)
        };
        Timeouts {
            handshake: time(&table.handshake, 10, "handshake"),
            head: time(&table.head, 10, "head"),
            body: time(&table.body, 30, "body"),
            send: time(&table.send, 30, "send"),
            idle: time(&table.idle, 60, "idle"),
        }
    }

    fn limits(&mut self, table: &file::Limits) -> Limits {
        let head = self.size(&table.head, 16 * KIB, "limits.head", KIB, HEAD_MAX);
        let mut count = |value, name: &str| self.count(value, 0, &format!("limits.{name}"), 0, u32::MAX);
        Limits {
            head: u32::try_from(head).unwrap_or(u32::MAX),
            requests_per_connection: count(&table.requests_per_connection, "requests_per_connection"),
            connections_per_address: count(&table.connections_per_address, "connections_per_address"),
            body: self.size(&table.body, GIB, "limits.body", 0, u64::MAX),
            lenient_line_ends: is_set(&table.lenient_line_ends),
        }
    }

    fn tls(&mut self, table: &file::Tls) -> Tls {
        const KERNEL: [(&str, KernelTls); 3] =
            [("auto", KernelTls::Auto), ("off", KernelTls::Off), ("require", KernelTls::Require)];
        let kernel = self.word(&table.kernel, "tls.kernel", &KERNEL, KernelTls::Auto);
        let tickets = self.time(&table.tickets, 8 * 3600, "tls.tickets", Duration::ZERO, TICKETS_MAX);
        let keys: &[At<String>] = table.ticket_keys.as_ref().map_or(&[], |keys| &keys.value);
        Tls {
            kernel,
            tickets: (!tickets.is_zero()).then_some(tickets),
            ticket_keys: keys.iter().map(|key| self.readable(key)).collect(),
        }
    }

    fn cache(&mut self, table: &file::Cache) -> Cache {
        const PRECOMPRESS: [(&str, Precompress); 3] = [
            ("background", Precompress::Background),
            ("startup", Precompress::Startup),
            ("off", Precompress::Off),
        ];
        let memory = self.size(&table.memory, 256 * MIB, "cache.memory", 0, u64::MAX);
        let max_file = self.size(&table.max_file, MIB.min(memory), "cache.max_file", 0, u64::MAX);
        if let Some(written) = &table.max_file
            && max_file > memory
        {
            let what = "`cache.max_file` is larger than `cache.memory`, so that such a file would never fit";
            self.problems.at(&written.span, what, "raise `memory` or lower `max_file`");
        }
        let min_size = self.size(&table.min_size, 512, "cache.min_size", 0, u64::MAX);
        let max_size = self.size(&table.max_size, GIB.max(min_size), "cache.max_size", 0, u64::MAX);
        if let Some(written) = &table.max_size
            && max_size < min_size
        {
            let what =
                "`cache.max_size` is smaller than `cache.min_size`, so that no file is ever compressed";
            let help = "to make no variants, write precompress = \"off\"";
            self.problems.at(&written.span, what, help);
        }
        Cache {
            memory,
            max_file,
            revalidate: self.time(&table.revalidate, 1, "cache.revalidate", Duration::ZERO, DEADLINE_MAX),
            dir: self.cache_dir(&table.dir),
            precompress: self.word(
                &table.precompress,
                "cache.precompress",
                &PRECOMPRESS,
                Precompress::Background,
            ),
            encodings: self.encodings(&table.encodings),
            min_size,
            max_size,
            types: self.media_types(&table.types),
            keep: self.time(&table.keep, 86_400, "cache.keep", Duration::ZERO, KEEP_MAX),
        }
    }

    /// Without a file, nothing is written that was not asked for by name; and a plain user has no directory
    /// that is sure to be meant for this, unless a service manager made one.
    fn cache_dir(&mut self, dir: &Option<At<String>>) -> Option<PathBuf> {
        match (dir, self.context.text) {
            (Some(dir), _) if dir.value.is_empty() => None,
            (Some(dir), _) => Some(self.path(dir)),
            (None, Text::Flags(_)) => None,
            (None, Text::File { .. }) if self.context.environment.root => {
                Some(PathBuf::from("/var/cache/httpd"))
            }
            (None, Text::File { .. }) => self.context.environment.cache_dir.clone(),
        }
    }

    fn encodings(&mut self, list: &Option<At<file::Strings>>) -> Vec<Encoding> {
        const WORDS: [(&str, Encoding); 3] =
            [("br", Encoding::Brotli), ("zstd", Encoding::Zstd), ("gzip", Encoding::Gzip)];
        let Some(list) = list else { return WORDS.map(|(_, encoding)| encoding).to_vec() };
        let mut encodings = Vec::new();
        for word in &list.value {
            let encoding = self.word(&Some(word.clone()), "cache.encodings", &WORDS, Encoding::Gzip);
            if !encodings.contains(&encoding) {
                encodings.push(encoding);
            }
        }
        encodings
    }

    fn media_types(&mut self, list: &Option<At<Strings>>) -> Vec<String> {
        let names: &[At<String>] = list.as_ref().map_or(&[], |list| &list.value);
        for name in names {
            let is_part = |part: &str| !part.is_empty() && !part.contains([' ', ';', ',', '/']);
            if !name.value.split_once('/').is_some_and(|(main, sub)| is_part(main) && is_part(sub)) {
                let what = format!("`{}` is not a media type", name.value);
                self.problems.at(
                    &name.span,
                    what,
                    "write \"application/pdf\", or \"model/*\" for all of a kind",
                );
            }
        }
        names.iter().map(|name| name.value.to_ascii_lowercase()).collect()
    }

    /// Reports that a table is missing from the whole file.
    pub fn absent(&mut self, table: &str, what: &str, help: &str) {
        if let Text::File { file, .. } = self.context.text
            && !self.problems.is_meant(&(0..0), table)
        {
            self.problems.elsewhere(&(0..0), Problem::of_file(file, what, help));
        }
    }

    /// Reports what a parser of single values has to say.
    pub fn complain(&mut self, span: &Span, complaint: Complaint) {
        self.problems.at(span, complaint.0, complaint.1);
    }

    /// One of several words.
    pub fn word<T: Copy>(&mut self, value: &Option<At<String>>, name: &str, words: &[(&str, T)], or: T) -> T {
        let Some(value) = value else { return or };
        if let Some((_, meaning)) = words.iter().find(|(word, _)| *word == value.value) {
            return *meaning;
        }
        let all: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let help = match suggest::nearest(&value.value, words.iter().map(|(word, _)| *word)) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("it is one of {}", all.join(", ")),
        };
        self.problems.at(&value.span, format!("`{name}` cannot be `{}`", value.value), help);
        or
    }

    /// A number, within bounds.
    pub fn count(&mut self, value: &Option<At<i64>>, or: u32, name: &str, least: u32, most: u32) -> u32 {
        let Some(value) = value else { return or };
        match u32::try_from(value.value) {
            Ok(number) if (least..=most).contains(&number) => number,
            _ => {
                let what = format!("`{name}` must be between {least} and {most}");
                self.problems.at(&value.span, what, "");
                or
            }
        }
    }

    /// A size, within bounds.
    pub fn size(&mut self, value: &Option<At<Quantity>>, or: u64, name: &str, least: u64, most: u64) -> u64 {
        let Some(value) = value else { return or };
        let size = match &value.value {
            Quantity::Text(text) => units::size(text),
            Quantity::Number(number) => units::size(&number.to_string()),
        };
        match size {
            Ok(size) if (least..=most).contains(&size) => size,
            Ok(_) => {
                let bound = |size: u64| match size {
                    size if size % MIB == 0 && size > 0 => format!("{}MiB", size / MIB),
                    size => format!("{}KiB", size / KIB),
                };
                let what = format!("`{name}` must be between {} and {}", bound(least), bound(most));
                self.problems.at(&value.span, what, "");
                or
            }
            Err(complaint) => {
                self.complain(&value.span, complaint);
                or
            }
        }
    }

    /// A time, within bounds; `or` is in seconds.
    pub fn time(
        &mut self,
        value: &Option<At<Quantity>>,
        or: u64,
        name: &str,
        least: Duration,
        most: Duration,
    ) -> Duration {
        let or = Duration::from_secs(or);
        let Some(value) = value else { return or };
        let time = match &value.value {
            Quantity::Text(text) => units::time(text),
            Quantity::Number(number) => units::time(&number.to_string()),
        };
        match time {
            Ok(time) if time < least => {
                self.problems.at(
                    &value.span,
                    format!("`{name}` cannot be 0"),
                    "without a deadline a slow peer holds a connection for ever",
                );
                or
            }
            Ok(time) if time > most => {
                let days = most.as_secs() / 86_400;
                let plural = if days == 1 { "day" } else { "days" };
                self.problems.at(&value.span, format!("`{name}` cannot be longer than {days} {plural}"), "");
                or
            }
            Ok(time) => time,
            Err(complaint) => {
                self.complain(&value.span, complaint);
                or
            }
        }
    }

    /// A path, from the directory of the file where it is relative.
    pub fn path(&mut self, path: &At<String>) -> PathBuf {
        if path.value.is_empty() {
            self.problems.at(&path.span, "the path is empty", "");
        }
        self.context.base.join(&path.value)
    }

    /// A path of a file that has to be there.
    pub fn readable(&mut self, path: &At<String>) -> PathBuf {
        let full = self.path(path);
        if !path.value.is_empty()
            && let Err(error) = self.context.disk.is_readable(&full)
        {
            self.refused(path, &error);
        }
        full
    }

    /// Reports that a file or directory cannot be had.
    pub fn refused(&mut self, path: &At<String>, error: &io::Error) {
        let named = self.context.base_as_named.join(&path.value);
        let what = match error.kind() {
            io::ErrorKind::NotFound => format!("`{}` does not exist", path.value),
            io::ErrorKind::PermissionDenied => format!("`{}` may not be read by this user", path.value),
            io::ErrorKind::IsADirectory => format!("`{}` is a directory, not a file", path.value),
            io::ErrorKind::InvalidData => format!("`{}` is not a text file", path.value),
            _ => format!("`{}` cannot be read: {error}", path.value),
        };
        let help = match self.context.text {
            Text::File { .. } if Path::new(&path.value).is_relative() => {
                format!(
                    "it was looked for at {}: paths count from the directory of this file",
                    named.display()
                )
            }
            _ => String::new(),
        };
        self.problems.at(&path.span, what, help);
    }
}

/// Whether a switch is there and on.
pub fn is_set(value: &Option<At<bool>>) -> bool {
    value.as_ref().is_some_and(|value| value.value)
}

fn default_control(environment: &Environment) -> Option<PathBuf> {
    match environment.root {
        true => Some(PathBuf::from("/run/httpd/control.sock")),
        false => environment.runtime_dir.as_ref().map(|dir| dir.join("httpd/control.sock")),
    }
}
