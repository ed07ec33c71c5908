//! What the tests of this room share: sites and rules to start from, and a tree in memory over which
//! lookups run as the worker would run them.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::entry::Entry;
use super::lookup::{Fact, Lookup, Step};
use crate::config;
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

    /// Puts a new inode in a place, and directories above it.
    pub fn put(&mut self, path: &str, contents: &str) {
        self.inodes += 1;
        let base = Facts { inode: self.inodes, ..facts() };
        for (end, _) in path.match_indices('/') {
            let directory = Facts { kind: Kind::Directory, ..base };
            self.nodes.entry(path[..end].to_owned()).or_insert(Node::Other(directory));
        }
        if !path.ends_with('/') {
            let facts = Facts { size: contents.len() as u64, ..base };
            self.nodes.insert(path.into(), Node::File(contents.into(), facts));
        }
    }

    /// Puts something else in a place.
    pub fn put_node(&mut self, path: &str, node: Node) {
        self.nodes.insert(path.into(), node);
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
                Step::Open { path, .. } => self.open(path.to_str().expect("UTF-8 paths in tests")),
                Step::Contents { file, length } => self.read(&file, length),
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

    fn read(&mut self, file: &Rc<Descriptor>, length: usize) -> Fact {
        let path = self.path_of(file);
        self.asked.push(format!("read {path}"));
        let Some(Node::File(contents, _)) = self.nodes.get(&path) else { return Fact::Refused(Errno::IO) };
        let bytes = contents[..length.min(contents.len())].to_vec();
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
