//! What the tests of this room share: sites and rules to start from, and a tree in memory over which
//! lookups run as the worker would run them.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use xxhash_rust::xxh3::xxh3_128;

use super::compress;
use super::entry::{Coding, Entry};
use super::lookup::{Beneath, Fact, Lookup, Step};
use super::variants::{Fingerprint, Footer};
use super::{Answer, Files, Peer, Plan, PlanBody, Share};
use crate::config::{self, Config};
use crate::http::fields::Fields;
use crate::http::method;
use crate::http::request::{Request, Target, Version};
use crate::ring::Clock;
use crate::sys::Errno;
use crate::sys::fds::{Descriptor, Fd, Graveyard};
use crate::sys::file::{Facts, Kind, Name, Stamp, Symlinks};

/// A site with nothing special.
pub fn site() -> config::Site {
    config::Site {
        hosts: Vec::new(),
        root: "/srv".into(),
        index: vec!["index.html".into()],
        symlinks: Symlinks::Beneath,
        hidden: false,
        listing: false,
        fallback: None,
        clean_urls: false,
        https_redirect: None,
        hsts: None,
        error_pages: Vec::new(),
        certificates: Vec::new(),
        rules: Vec::new(),
        mounts: Vec::new(),
        types: Vec::new(),
        line: 1,
    }
}

/// A rule that does nothing.
pub fn rule(pattern: &str) -> config::Rule {
    config::Rule {
        pattern: pattern.into(),
        headers: Vec::new(),
        redirect: None,
        auth: None,
        allow: Vec::new(),
        deny: Vec::new(),
    }
}

/// A configuration of these sites.
pub fn config(sites: Vec<config::Site>) -> Config {
    let minute = Duration::from_secs(60);
    Config {
        server: config::Server {
            workers: 1,
            pin: false,
            user: None,
            control: None,
            max_connections: 1,
            drain: minute,
            name: None,
        },
        log: config::Log {
            level: config::Level::Info,
            access: config::AccessLog::Off,
            format: config::LogFormat::Combined,
        },
        timeouts: config::Timeouts {
            handshake: minute,
            head: minute,
            body: minute,
            send: minute,
            idle: minute,
        },
        limits: config::Limits {
            head: 16384,
            body: 0,
            requests_per_connection: 0,
            connections_per_address: 0,
            lenient_line_ends: false,
        },
        tls: config::Tls { kernel: config::KernelTls::Off, tickets: None, ticket_keys: Vec::new() },
        metrics: None,
        cache: config::Cache { memory: 1 << 20, max_file: 1000, min_size: 20, ..config::Cache::default() },
        listen: Vec::new(),
        sites,
        warnings: Vec::new(),
    }
}

/// Sites over a tree, and one client.
pub struct Bench {
    /// What is tested.
    pub files: Files,
    /// What the sites see.
    pub tree: Tree,
    /// The time.
    pub clock: Clock,
    /// The client.
    pub peer: Peer,
    /// The host it asks for.
    pub host: &'static str,
    /// Verdict on whatever password is to be verified.
    pub right: bool,
    /// Passwords that had to be verified.
    pub verified: u32,
    /// Whether the site's directory of variants is there.
    pub has_cache: bool,
}

#[cfg(test)]
impl Bench {
    /// One site, not secure, the client on a loopback address.
    pub fn new(site: config::Site, tree: &[(&str, &str)]) -> Self {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000);
        Self {
            files: Files::new(&config(vec![site]), Share { memory: 1 << 20, descriptors: 10 }, [7; 32]),
            tree: Tree::of(tree),
            clock: Clock { now: Instant::now(), wall },
            peer: Peer { address: Some([127, 0, 0, 1].into()), secure: false },
            host: "h",
            right: false,
            verified: 0,
            has_cache: false,
        }
    }

    /// Answers a request, looking up and verifying as a worker does. `target` may have a query;
    /// `fields` are lines.
    pub fn ask(&mut self, method: &str, target: &str, fields: &str) -> Plan {
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query.as_bytes())),
            None => (target, None),
        };
        let request = Request {
            method: method::of(method.as_bytes()),
            method_name: method.as_bytes(),
            version: Version::Http11,
            target_text: target.as_bytes(),
            target: match path {
                "*" => Target::Asterisk,
                path => Target::Path { path: path.as_bytes(), query },
            },
            host: self.host.as_bytes(),
            fields: Fields::of_section(fields.as_bytes()).expect("fields"),
        };
        self.tree.asked.clear();
        let mut found = Vec::new();
        for _ in 0..10 {
            match self.files.answer(&request, &self.peer, self.clock, &found) {
                Answer::Ready(plan) => return plan,
                Answer::Lookup(question) => {
                    let lookup = self.files.lookup(&question, self.clock, self.has_cache);
                    let entry = self.tree.run(lookup);
                    self.files.found(&question, &entry);
                    assert!(!found.iter().any(|(known, _)| *known == question), "asked twice");
                    found.push((question, entry));
                }
                Answer::Program(mounted) => panic!("nothing is mounted here: {mounted:?}"),
                Answer::Verify(credential) => {
                    self.verified += 1;
                    self.files.verified(credential.key, self.right, self.clock);
                }
            }
        }
        panic!("an answer comes in the end");
    }

    /// The same for GET, shown as status, fields and content.
    pub fn get(&mut self, target: &str, fields: &str) -> Shown {
        Shown::of(&self.ask("GET", target, fields))
    }
}

/// A plan in readable form.
#[derive(Debug, PartialEq)]
pub struct Shown {
    /// The status.
    pub status: u16,
    /// All field lines.
    pub fields: String,
    /// The content; parts of files as "file 1..2".
    pub content: String,
}

impl Shown {
    /// Shows a plan, and checks that its length is told, once, and right.
    pub fn of(plan: &Plan) -> Self {
        let parts = [plan.prepared.as_deref(), Some(&plan.extra), plan.site.as_deref()];
        let fields = parts.into_iter().flatten().map(String::from_utf8_lossy).collect::<String>();
        assert!(fields.is_empty() || fields.ends_with("\r\n"), "{fields:?}");
        let shown = Self { status: plan.status, fields, content: content(&plan.body) };
        let lengths: Vec<_> = shown.all("Content-Length").collect();
        match plan.status {
            204 | 304 => assert!(lengths.is_empty() && matches!(plan.body, PlanBody::Empty)),
            _ if matches!(plan.body, PlanBody::Empty) => assert_eq!(lengths.len(), 1, "{}", shown.fields),
            _ => assert_eq!(lengths, [length(&plan.body).to_string()], "{}", shown.fields),
        }
        for name in ["Content-Type", "ETag", "Last-Modified", "Vary", "Content-Encoding", "Location"] {
            assert!(shown.all(name).count() <= 1, "{name} once: {}", shown.fields);
        }
        shown
    }

    fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let name = format!("{name}: ");
        self.fields.split("\r\n").filter_map(move |line| line.strip_prefix(&name))
    }

    /// The value of a field, or nothing.
    pub fn field(&self, name: &str) -> &str {
        self.all(name).next().unwrap_or("")
    }
}

fn content(body: &PlanBody) -> String {
    match body {
        PlanBody::Empty => String::new(),
        PlanBody::Memory(bytes, range) => String::from_utf8_lossy(&bytes[range.clone()]).into_owned(),
        PlanBody::Text(text) => String::from_utf8_lossy(text).into_owned(),
        PlanBody::File { range, .. } => format!("file {range:?}"),
        PlanBody::Parts(parts) => parts
            .iter()
            .map(|(head, body)| String::from_utf8_lossy(head).into_owned() + &content(body))
            .collect(),
    }
}

fn length(body: &PlanBody) -> u64 {
    match body {
        PlanBody::Empty => 0,
        PlanBody::Memory(_, range) => range.len() as u64,
        PlanBody::Text(text) => text.len() as u64,
        PlanBody::File { range, .. } => range.end - range.start,
        PlanBody::Parts(parts) => parts.iter().map(|(head, body)| head.len() as u64 + length(body)).sum(),
    }
}

/// Of an empty file, long unchanged.
pub fn facts() -> Facts {
    let stamp = Stamp { seconds: 1_000_000, nanoseconds: 5 };
    Facts { kind: Kind::File, device: 1, inode: 1, size: 0, modified: stamp, changed: stamp }
}

/// What a name in the tree leads to.
pub enum Node {
    /// A regular file.
    File(Vec<u8>, Facts),
    /// A directory, fifo and the like.
    Other(Facts),
    /// What opening it says.
    Refuses(Errno),
}

/// What paths in the cache directory begin with here.
pub const CACHE: &str = "cache:";

/// A tree beneath a root.
#[derive(Default)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
    open: Vec<(Rc<Descriptor>, String)>,
    graveyard: Graveyard,
    inodes: u64,
    /// What lookups asked for, in order.
    pub asked: Vec<String>,
    /// Called after each read with the path read; may change the tree.
    pub after_read: Option<fn(&mut Tree, &str)>,
}

#[cfg(test)]
impl Tree {
    /// A tree of files with their contents; a path that ends in a slash is a directory.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        tree.put("./", "");
        for (path, contents) in files {
            tree.put(path, contents);
        }
        tree
    }

    /// Puts a variant of a file where the precompressor would.
    pub fn put_variant(&mut self, path: &str, coding: Coding, coded: &[u8]) -> String {
        let Some(Node::File(contents, facts)) = self.nodes.get(path) else { panic!("{path} is there") };
        let print = Fingerprint::of(facts);
        let footer = Footer {
            coded_length: coded.len() as u64,
            source_hash: xxh3_128(contents),
            coded_hash: xxh3_128(coded),
        };
        let name = format!("{CACHE}{}", print.path(coding));
        self.put(&name, [coded, &footer.encode(&print, coding)].concat());
        name
    }

    /// Writes over a file and leaves its facts as they were.
    pub fn falsify(&mut self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let Some(Node::File(contents, _)) = self.nodes.get_mut(path) else { panic!("{path} is there") };
        change(contents);
    }

    /// Puts a new inode in a place, and directories above it.
    pub fn put(&mut self, path: &str, contents: impl AsRef<[u8]>) {
        let contents = contents.as_ref();
        self.inodes += 1;
        let base = Facts { inode: self.inodes, ..facts() };
        for (end, _) in path.match_indices('/') {
            let directory = Facts { kind: Kind::Directory, ..base };
            self.nodes.entry(path[..end].to_owned()).or_insert(Node::Other(directory));
        }
        if !path.ends_with('/') {
            let facts = Facts { size: contents.len() as u64, ..base };
            self.nodes.insert(path.into(), Node::File(contents.to_vec(), facts));
        }
    }

    /// Writes over a file, at a time in whole seconds, and says whether it is there.
    pub fn overwrite(&mut self, path: &str, contents: &str, seconds: i64) -> bool {
        let Some(Node::File(own, facts)) = self.nodes.get_mut(path) else { return false };
        *own = contents.into();
        let stamp = Stamp { seconds, nanoseconds: 0 };
        (facts.size, facts.modified, facts.changed) = (own.len() as u64, stamp, stamp);
        true
    }

    /// Puts something else in a place.
    pub fn put_node(&mut self, path: &str, node: Node) {
        self.nodes.insert(path.into(), node);
    }

    /// Puts something else in a place, and says what was there.
    pub fn replace_node(&mut self, path: &str, node: Node) -> Node {
        self.nodes.insert(path.into(), node).expect("something is there")
    }

    /// Removes a name.
    pub fn remove(&mut self, path: &str) {
        self.nodes.remove(path);
    }

    /// The facts of a file, to be changed.
    pub fn facts_mut(&mut self, path: &str) -> &mut Facts {
        match self.nodes.get_mut(path) {
            Some(Node::File(_, facts) | Node::Other(facts)) => facts,
            _ => panic!("{path} is there"),
        }
    }

    /// Runs a lookup to its end.
    pub fn run(&mut self, mut lookup: Lookup) -> Rc<Entry> {
        let mut fact = Fact::Begin;
        for _ in 0..100 {
            fact = match lookup.next(fact) {
                Step::Finished(entry) => return entry,
                Step::Open { beneath, path, .. } => {
                    let path = path.to_str().expect("UTF-8 paths in tests");
                    match beneath {
                        Beneath::Root => self.open(path),
                        Beneath::Cache => self.open(&format!("{CACHE}{path}")),
                    }
                }
                Step::Contents { file, offset, length } => self.read(&file, offset, length),
                Step::Decode { bytes, coding, bytes_max } => {
                    self.asked.push(format!("decode {}", coding.name()));
                    Fact::Decoded(compress::decode(&bytes, coding, bytes_max))
                }
                Step::List { directory, .. } => self.list(&directory),
            };
        }
        panic!("a lookup ends: {:?}", self.asked);
    }

    fn open(&mut self, path: &str) -> Fact {
        self.asked.push(format!("open {path}"));
        let above_is_file = path
            .match_indices('/')
            .any(|(end, _)| matches!(self.nodes.get(&path[..end]), Some(Node::File(..))));
        let facts = match self.nodes.get(path) {
            None if above_is_file => return Fact::Refused(Errno::NOTDIR),
            None => return Fact::Refused(Errno::NOENT),
            Some(Node::Refuses(errno)) => return Fact::Refused(*errno),
            Some(Node::File(_, facts) | Node::Other(facts)) => *facts,
        };
        let file = Rc::new(Descriptor::new(Fd(-1), &self.graveyard));
        self.open.push((Rc::clone(&file), path.into()));
        Fact::Opened(file, facts)
    }

    fn path_of(&self, file: &Rc<Descriptor>) -> String {
        let (_, path) = self.open.iter().find(|(open, _)| Rc::ptr_eq(open, file)).expect("it was opened");
        path.clone()
    }

    fn read(&mut self, file: &Rc<Descriptor>, offset: u64, length: usize) -> Fact {
        let path = self.path_of(file);
        self.asked.push(format!("read {path}"));
        let Some(Node::File(contents, _)) = self.nodes.get(&path) else { return Fact::Refused(Errno::IO) };
        let rest = &contents[contents.len().min(offset as usize)..];
        let bytes = rest[..length.min(rest.len())].to_vec();
        if let Some(change) = self.after_read {
            change(self, &path);
        }
        match self.nodes.get(&path) {
            Some(Node::File(_, facts)) => Fact::Contents { bytes, facts_after: *facts },
            _ => Fact::Refused(Errno::IO),
        }
    }

    fn list(&mut self, directory: &Rc<Descriptor>) -> Fact {
        let path = self.path_of(directory);
        self.asked.push(format!("list {path}"));
        let prefix = if path == "." { String::new() } else { format!("{path}/") };
        let names = self.nodes.iter().filter_map(|(path, node)| {
            let name = path.strip_prefix(&prefix).filter(|name| !name.contains('/') && *name != ".")?;
            let facts = match node {
                Node::File(_, facts) | Node::Other(facts) => Some(*facts),
                Node::Refuses(_) => None,
            };
            Some(Name { name: name.into(), facts })
        });
        Fact::Listed { names: names.collect(), truncated: false }
    }
}
