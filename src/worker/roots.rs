//! The root directories of the sites, open.
//!
//! A root may be a symlink that deploys flip, so its path is opened anew as often as entries are
//! revalidated; when it leads elsewhere, what was known of the old root is forgotten. When it leads to where
//! the sandbox lets nothing be read, the last one goes on serving, and the supervisor is asked for workers
//! that may.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::files::entry::SiteId;
use crate::ring::Ring;
use crate::sys::fds::Descriptor;

/// The roots of all sites.
#[derive(Debug)]
pub struct Roots {
    roots: Vec<Root>,
    revalidate: Duration,
}

#[derive(Debug)]
struct Root {
    path: PathBuf,
    open: Option<Open>,
    checked: Instant,
    /// The root for which other workers have been asked.
    barred: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Open {
    directory: Rc<Descriptor>,
    device: u64,
    inode: u64,
}

/// A root, and whether it is another than last time.
#[derive(Debug)]
pub struct Found {
    /// The open directory; `None`: it cannot be opened and never could.
    pub directory: Option<Rc<Descriptor>>,
    /// Whether it leads elsewhere than before.
    pub flipped: bool,
    /// Whether it leads, since just now, to where this worker may not read.
    pub barred: bool,
    /// When that was looked at.
    pub checked: Instant,
}

impl Roots {
    /// Opens the roots of all sites.
    pub fn new<R: Ring>(config: &Config, ring: &mut R) -> Self {
        let checked = ring.clock().now;
        let roots = config.sites.iter().map(|site| {
            let path = site.root.clone();
            let open = open(&path, ring);
            Root { path, open, checked, barred: None }
        });
        Self { roots: roots.collect(), revalidate: config.cache.revalidate }
    }

    /// The root of a site. While its path cannot be opened, as between the two halves of a careless
    /// flip, the last one serves.
    pub fn find<R: Ring>(&mut self, site: SiteId, now: Instant, ring: &mut R) -> Found {
        let root = &mut self.roots[usize::from(site)];
        let (mut flipped, mut barred) = (false, false);
        if root.checked + self.revalidate <= now {
            root.checked = now;
            match open(&root.path, ring) {
                Some(new) if root.open.as_ref().is_some_and(|old| old.place() == new.place()) => {}
                Some(new) if ring.may_read(new.directory.fd()) => {
                    flipped = true;
                    root.open = Some(new);
                }
                Some(new) => barred = root.barred.replace(new.place()) != Some(new.place()),
                None => tracing::warn!(root = %root.path.display(), "cannot open the root of a site"),
            }
        }
        let directory = root.open.as_ref().map(|open| Rc::clone(&open.directory));
        Found { directory, flipped, barred, checked: root.checked }
    }
}

impl Open {
    fn place(&self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

fn open<R: Ring>(path: &std::path::Path, ring: &mut R) -> Option<Open> {
    let directory = ring.open_root(path).ok()?;
    let facts = ring.facts(directory.fd()).ok()?;
    Some(Open { directory: Rc::new(directory), device: facts.device, inode: facts.inode })
}
