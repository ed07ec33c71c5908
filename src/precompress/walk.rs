//! Which files a site serves: its tree, walked by the rules by which requests are answered. Symlinks are
//! followed as the site says, hidden names are left out, nothing is visited twice.

use std::collections::{BTreeSet, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::files::compressible::Compressible;
use crate::files::variants;
use crate::sys::Errno;
use crate::sys::file::{Facts, Kind, Symlinks};
use crate::sys::tree::{self, Named};

/// Deeper trees hold a loop that no inode gives away, as some network file systems have them.
const DEPTH_MAX: usize = 256;

/// What a site says of the files of its root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// How symlinks are treated.
    pub symlinks: Symlinks,
    /// Whether names that begin with a dot are served.
    pub hidden: bool,
}

/// A directory that sites serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Root {
    /// As it is configured.
    pub path: PathBuf,
    /// The name of its directory in the cache.
    pub name: String,
    /// What its sites say, each once.
    pub policies: Vec<Policy>,
}

/// The roots of all sites, each once.
pub fn roots(config: &Config) -> Vec<Root> {
    use std::os::unix::ffi::OsStrExt as _;
    let mut roots: Vec<Root> = Vec::new();
    for site in &config.sites {
        let name = variants::root_name(site.root.as_os_str().as_bytes());
        let policy = Policy { symlinks: site.symlinks, hidden: site.hidden };
        match roots.iter_mut().find(|root| root.name == name) {
            Some(root) if root.policies.contains(&policy) => {}
            Some(root) => root.policies.push(policy),
            None => roots.push(Root { path: site.root.clone(), name, policies: vec![policy] }),
        }
    }
    roots
}

/// A file that is worth compressing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// Beneath the root.
    pub path: Vec<u8>,
    /// How it is opened.
    pub symlinks: Symlinks,
    /// As they were when it was met.
    pub facts: Facts,
}

/// What a walk meets.
pub trait Visitor {
    /// A directory is open and about to be listed; `false`: leave it out.
    fn enter(&mut self, path: &[u8], directory: BorrowedFd<'_>) -> bool;
    /// A file that is worth compressing.
    fn meet(&mut self, source: Source);
    /// Something could not be looked at.
    fn miss(&mut self, path: &[u8], errno: Errno);
}

/// What is walked.
#[derive(Clone, Copy, Debug)]
pub struct Walk<'a> {
    /// The root, open.
    pub root: BorrowedFd<'a>,
    /// What its site says.
    pub policy: Policy,
    /// What is worth compressing.
    pub compressible: &'a Compressible,
    /// Directories that are not walked, by device and inode: the cache itself may lie beneath a root.
    pub barred: &'a BTreeSet<(u64, u64)>,
}

/// Opens a root.
///
/// # Errors
/// Those of open(2).
pub fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    tree::open_root(path)
}

/// Where the roots lead now, by device and inode; `None`: nowhere.
pub fn places(roots: &[Root]) -> Vec<Option<(u64, u64)>> {
    let place = |root: &Root| {
        let facts = tree::facts(open_root(&root.path).ok()?).ok()?;
        Some((facts.device, facts.inode))
    };
    roots.iter().map(place).collect()
}

impl Walk<'_> {
    /// Walks what lies beneath a directory, "" being the root; directories in it only if `deep`.
    pub fn run(&self, from: &[u8], deep: bool, visitor: &mut dyn Visitor) {
        let mut visited = HashSet::new();
        let mut pending = vec![from.to_vec()];
        while let Some(path) = pending.pop() {
            let (directory, facts) = match tree::open_beneath(self.root, &path, self.policy.symlinks) {
                Ok(opened) => opened,
                Err(errno) => {
                    visitor.miss(&path, errno);
                    continue;
                }
            };
            let place = (facts.device, facts.inode);
            if facts.kind != Kind::Directory || self.barred.contains(&place) || !visited.insert(place) {
                continue;
            }
            if !visitor.enter(&path, directory.as_fd()) {
                continue;
            }
            let mut below = Vec::new();
            self.list(&path, directory.as_fd(), &mut below, visitor);
            let is_deeper = deep && path.iter().filter(|byte| **byte == b'/').count() < DEPTH_MAX;
            if is_deeper {
                pending.append(&mut below);
            }
        }
    }

    fn list(
        &self,
        path: &[u8],
        directory: BorrowedFd<'_>,
        below: &mut Vec<Vec<u8>>,
        visitor: &mut dyn Visitor,
    ) {
        let mut links = Vec::new();
        let listed = tree::names(directory, |name, named| {
            if self.is_hidden(path, name) {
                return;
            }
            let own = if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() };
            match named {
                Named::Directory => below.push(own),
                Named::File if !self.compressible.holds(name) => {}
                Named::File => match tree::look_at(directory, name) {
                    Ok(facts) if facts.kind == Kind::File => {
                        visitor.meet(Source { path: own, symlinks: self.policy.symlinks, facts });
                    }
                    // It went, or became something else.
                    Ok(_) | Err(Errno::NOENT) => {}
                    Err(errno) => visitor.miss(&own, errno),
                },
                Named::Symlink if self.policy.symlinks == Symlinks::Never => {}
                Named::Symlink | Named::Unknown => links.push(own),
                Named::Special => {}
            }
        });
        if let Err(errno) = listed {
            visitor.miss(path, errno);
        }
        for path in links {
            match tree::look_beneath(self.root, &path, self.policy.symlinks) {
                Ok(facts) if facts.kind == Kind::Directory => below.push(path),
                Ok(facts) if facts.kind == Kind::File && self.compressible.holds(&path) => {
                    visitor.meet(Source { path, symlinks: self.policy.symlinks, facts });
                }
                // Links that lead nowhere, or out of the root, answer no request either.
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// As requests are answered: `/.well-known/` is served whatever the site says of hidden names (RFC 8615).
    fn is_hidden(&self, directory: &[u8], name: &[u8]) -> bool {
        let is_well_known = directory.is_empty() && name == b".well-known";
        !self.policy.hidden && name.first() == Some(&b'.') && !is_well_known
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[derive(Default)]
    struct Found {
        files: BTreeSet<String>,
        directories: usize,
        missed: usize,
    }

    impl Visitor for Found {
        fn enter(&mut self, _: &[u8], _: BorrowedFd<'_>) -> bool {
            self.directories += 1;
            true
        }
        fn meet(&mut self, source: Source) {
            let path = String::from_utf8(source.path).expect("the tests' names are text");
            assert!(self.files.insert(path.clone()), "{path} was met twice");
        }
        fn miss(&mut self, _: &[u8], _: Errno) {
            self.missed += 1;
        }
    }

    #[test]
    fn what_is_walked_is_what_is_served() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        for name in [".git", ".well-known", ".well-known/.x", "a/b", "cache"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        fs::create_dir(directory.path().join("outside")).unwrap();
        fs::write(directory.path().join("outside/o.html"), "").unwrap();
        for name in [
            "index.html",
            "x.png",
            ".hidden.html",
            ".git/g.txt",
            ".well-known/w.txt",
            ".well-known/.x/y.txt",
            "a/b/c.css",
            "cache/k.js",
        ] {
            fs::write(root.join(name), name).unwrap();
        }
        for (to, link) in [
            ("index.html", "link.html"),
            ("..", "a/loop"),
            ("../outside", "away"),
            (".git", "shown"),
            ("nowhere", "dangling.html"),
            ("x.png", "picture.txt"),
        ] {
            symlink(to, root.join(link)).unwrap();
        }
        let cache = fs::metadata(root.join("cache")).unwrap();
        let barred = BTreeSet::from([{
            use std::os::unix::fs::MetadataExt as _;
            (cache.dev(), cache.ino())
        }]);
        let walked = |symlinks, hidden, from: &[u8], deep| {
            let open = open_root(&root).unwrap();
            let policy = Policy { symlinks, hidden };
            let compressible = Compressible::default();
            let walk = Walk { root: open.as_fd(), policy, compressible: &compressible, barred: &barred };
            let mut found = Found::default();
            walk.run(from, deep, &mut found);
            found.files.into_iter().collect::<Vec<_>>().join(" ")
        };
        let plain = ".well-known/w.txt a/b/c.css index.html";
        assert_eq!(walked(Symlinks::Never, false, b"", true), plain);
        assert_eq!(
            walked(Symlinks::Beneath, false, b"", true),
            format!("{plain} link.html picture.txt shown/g.txt")
        );
        assert_eq!(
            walked(Symlinks::Anywhere, false, b"", true),
            format!(
                "{} away/o.html index.html link.html picture.txt shown/g.txt",
                ".well-known/w.txt a/b/c.css"
            )
        );
        assert_eq!(
            walked(Symlinks::Never, true, b"", true),
            ".git/g.txt .hidden.html .well-known/.x/y.txt .well-known/w.txt a/b/c.css index.html"
        );
        assert_eq!(walked(Symlinks::Never, false, b"", false), "index.html");
        assert_eq!(walked(Symlinks::Never, false, b"a/b", true), "a/b/c.css");
        assert_eq!(walked(Symlinks::Never, false, b"gone", true), "");
    }

    #[test]
    fn roots_are_taken_once() {
        let site = |root: &str, hidden| crate::config::Site {
            root: root.into(),
            hidden,
            ..crate::files::testing::site()
        };
        let sites = [("/srv/a", false), ("/srv//a/", true), ("/srv/a", false), ("/srv/b", false)];
        let sites = sites.map(|(root, hidden)| site(root, hidden)).to_vec();
        let roots = roots(&crate::files::testing::config(sites));
        assert_eq!(roots.iter().map(|root| root.policies.len()).collect::<Vec<_>>(), [2, 1]);
    }
}
