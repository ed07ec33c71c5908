//! Files in memory: directories, symlinks, open files that outlive their names, and what each path
//! led to at which time.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use httpd::sys::Errno;
use httpd::sys::file::{Facts, Kind, Name, Stamp, Symlinks};

/// Index of a node: its inode number.
pub type Inode = usize;

#[derive(Debug)]
enum Content {
    File(Rc<Vec<u8>>),
    Directory { entries: BTreeMap<String, Inode>, parent: Inode },
    Symlink(String),
    Fifo,
}

#[derive(Debug)]
struct Node {
    content: Content,
    modified: Duration,
    changed: Duration,
}

/// What a path led to from some time on.
#[derive(Clone, Debug)]
pub struct Version {
    pub since: Duration,
    /// `None`: there was nothing.
    pub bytes: Option<Rc<Vec<u8>>>,
    /// Whether the file itself was changed, also for who had it open.
    pub in_place: bool,
}

#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    /// Per path from the top, without leading slash.
    histories: BTreeMap<String, Vec<Version>>,
    now: Duration,
    granularity: Duration,
}

const TOP: Inode = 0;
/// Seconds since 1970 at which a run begins.
pub const EPOCH_SECONDS: u64 = 1_760_000_000;

impl Tree {
    pub fn new(granularity: Duration) -> Self {
        let top = Node {
            content: Content::Directory { entries: BTreeMap::new(), parent: TOP },
            modified: Duration::ZERO,
            changed: Duration::ZERO,
        };
        Self { nodes: vec![top], histories: BTreeMap::new(), now: Duration::ZERO, granularity }
    }

    /// Tells the time.
    pub fn at(&mut self, now: Duration) -> &mut Self {
        self.now = now;
        self
    }

    /// Makes a file, or puts a new one in its place, as by rename.
    pub fn replace(&mut self, path: &str, bytes: Vec<u8>) {
        let bytes = Rc::new(bytes);
        let inode = self.node(Content::File(Rc::clone(&bytes)));
        self.link(path, inode);
        self.note(path, Some(bytes), false);
    }

    /// Changes the file that is there.
    pub fn rewrite(&mut self, path: &str, bytes: Vec<u8>) {
        let Ok(inode) = self.resolve(TOP, path, Symlinks::Anywhere) else {
            return self.replace(path, bytes);
        };
        let bytes = Rc::new(bytes);
        let stamp = self.stamp();
        let node = &mut self.nodes[inode];
        node.content = Content::File(Rc::clone(&bytes));
        (node.modified, node.changed) = (stamp, stamp);
        self.note(path, Some(bytes), true);
    }

    pub fn remove(&mut self, path: &str) {
        let (directory, name) = self.parent_of(path);
        if let Content::Directory { entries, .. } = &mut self.nodes[directory].content {
            entries.remove(name);
        }
        self.note(path, None, false);
    }

    pub fn symlink(&mut self, path: &str, target: &str) {
        let inode = self.node(Content::Symlink(target.into()));
        self.link(path, inode);
    }

    pub fn fifo(&mut self, path: &str) {
        let inode = self.node(Content::Fifo);
        self.link(path, inode);
    }

    /// What a path leads to now.
    pub fn bytes(&self, path: &str) -> Option<Rc<Vec<u8>>> {
        match &self.nodes[self.resolve(TOP, path, Symlinks::Anywhere).ok()?].content {
            Content::File(bytes) => Some(Rc::clone(bytes)),
            _ => None,
        }
    }

    /// Facts of what a path leads to now.
    pub fn facts_of(&self, path: &str) -> Option<Facts> {
        Some(self.facts(self.resolve(TOP, path, Symlinks::Anywhere).ok()?))
    }

    /// Whether a file was last changed so long ago.
    pub fn is_settled(&self, path: &str, after: Duration) -> bool {
        let inode = self.resolve(TOP, path, Symlinks::Anywhere);
        inode.is_ok_and(|inode| self.nodes[inode].changed + after < self.now)
    }

    /// All versions that a path may have had at some time from `from` on.
    pub fn versions(&self, path: &str, from: Duration) -> Vec<Version> {
        let Some(history) = self.histories.get(path) else {
            return vec![Version { since: Duration::ZERO, bytes: None, in_place: false }];
        };
        let first = history.iter().rposition(|version| version.since <= from);
        let mut versions = history[first.unwrap_or(0)..].to_vec();
        if first.is_none() {
            versions.push(Version { since: Duration::ZERO, bytes: None, in_place: false });
        }
        versions
    }

    /// Opens: the node that a path beneath `dir` leads to.
    pub fn resolve(&self, dir: Inode, path: &str, symlinks: Symlinks) -> Result<Inode, Errno> {
        let mut at = dir;
        let mut rest: Vec<String> = path.split('/').rev().map(str::to_string).collect();
        let mut depth = 0;
        let mut follows = 0;
        if path.starts_with('/') {
            at = TOP;
        }
        while let Some(part) = rest.pop() {
            let Content::Directory { entries, parent } = &self.nodes[at].content else {
                return Err(Errno::NOTDIR);
            };
            match part.as_str() {
                "" | "." => continue,
                ".." if depth == 0 && symlinks != Symlinks::Anywhere => return Err(Errno::XDEV),
                ".." => {
                    depth -= 1;
                    at = *parent;
                    continue;
                }
                _ => {}
            }
            let next = *entries.get(&part).ok_or(Errno::NOENT)?;
            if let Content::Symlink(target) = &self.nodes[next].content {
                follows += 1;
                match symlinks {
                    Symlinks::Never => return Err(Errno::LOOP),
                    Symlinks::Beneath if target.starts_with('/') => return Err(Errno::XDEV),
                    _ if follows > 40 => return Err(Errno::LOOP),
                    _ => {}
                }
                if target.starts_with('/') {
                    (at, depth) = (TOP, 0);
                }
                rest.extend(target.split('/').rev().map(str::to_string));
                continue;
            }
            at = next;
            depth += 1;
        }
        Ok(at)
    }

    /// The same from the top, following everything.
    pub fn resolve_root(&self, path: &str) -> Result<Inode, Errno> {
        let inode = self.resolve(TOP, path, Symlinks::Anywhere)?;
        match self.nodes[inode].content {
            Content::Directory { .. } => Ok(inode),
            _ => Err(Errno::NOTDIR),
        }
    }

    pub fn facts(&self, inode: Inode) -> Facts {
        let node = &self.nodes[inode];
        let (kind, size) = match &node.content {
            Content::File(bytes) => (Kind::File, bytes.len() as u64),
            Content::Directory { .. } => (Kind::Directory, 4096),
            Content::Symlink(_) | Content::Fifo => (Kind::Special, 0),
        };
        let stamp = |at: Duration| Stamp {
            seconds: (EPOCH_SECONDS + at.as_secs()) as i64,
            nanoseconds: at.subsec_nanos(),
        };
        let (modified, changed) = (stamp(node.modified), stamp(node.changed));
        Facts { kind, device: 1, inode: inode as u64, size, modified, changed }
    }

    /// Reads from an open file.
    pub fn read(&self, inode: Inode, offset: u64, length: usize) -> Result<&[u8], Errno> {
        match &self.nodes[inode].content {
            Content::File(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                Ok(&bytes[start..bytes.len().min(start.saturating_add(length))])
            }
            Content::Directory { .. } => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    pub fn list(&self, dir: Inode, symlinks: Symlinks, names_max: usize) -> Result<(Vec<Name>, bool), Errno> {
        let Content::Directory { entries, .. } = &self.nodes[dir].content else { return Err(Errno::NOTDIR) };
        let name = |name: &String| {
            let facts = self.resolve(dir, name, symlinks).ok().map(|inode| self.facts(inode));
            Name { name: name.clone().into_bytes(), facts }
        };
        Ok((entries.keys().take(names_max).map(name).collect(), entries.len() > names_max))
    }

    fn node(&mut self, content: Content) -> Inode {
        let stamp = self.stamp();
        self.nodes.push(Node { content, modified: stamp, changed: stamp });
        self.nodes.len() - 1
    }

    fn stamp(&self) -> Duration {
        let nanoseconds = self.now.as_nanos() / self.granularity.as_nanos() * self.granularity.as_nanos();
        Duration::from_nanos(nanoseconds as u64)
    }

    fn link(&mut self, path: &str, inode: Inode) {
        let (directory, name) = self.parent_of(path);
        if let Content::Directory { entries, .. } = &mut self.nodes[directory].content {
            entries.insert(name.into(), inode);
        }
    }

    /// The directory of a path, made if need be, and the last name.
    fn parent_of<'a>(&mut self, path: &'a str) -> (Inode, &'a str) {
        let (directories, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut at = TOP;
        for part in directories.split('/').filter(|part| !part.is_empty()) {
            let found = match &self.nodes[at].content {
                Content::Directory { entries, .. } => entries.get(part).copied(),
                _ => panic!("{path} goes through what is no directory"),
            };
            at = found.unwrap_or_else(|| {
                let new = self.node(Content::Directory { entries: BTreeMap::new(), parent: at });
                if let Content::Directory { entries, .. } = &mut self.nodes[at].content {
                    entries.insert(part.into(), new);
                }
                new
            });
        }
        (at, name)
    }

    /// Takes note of what a path leads to from now on.
    pub fn note(&mut self, path: &str, bytes: Option<Rc<Vec<u8>>>, in_place: bool) {
        let version = Version { since: self.now, bytes, in_place };
        self.histories.entry(path.into()).or_default().push(version);
    }
}
