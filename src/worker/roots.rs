//! The root directories of the sites, open.
//!
//! A root may be a symlink that deploys flip, so its path is opened anew as often as entries are
//! revalidated; when it leads elsewhere, what was known of the old root is forgotten. When it leads to where
//! the sandbox lets nothing be read, the last one goes on serving, and the supervisor is asked for workers
//! that may.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::watched::{Look, Watched};
use crate::config::Config;
use crate::files::entry::SiteId;
use crate::ring::Ring;
use crate::sys::fds::Descriptor;

/// The roots of all sites.
#[derive(Debug)]
pub struct Roots {
    roots: Vec<Watched>,
    revalidate: Duration,
}

/// A root, and whether it is another than last time.
#[derive(Debug)]
pub struct Found {
    /// The open directory; `None`: it cannot be opened and never could.
    pub directory: Option<Rc<Descriptor>>,
    /// Whether it leads elsewhere than before.
    pub flipped: bool,
    /// Whether other workers are to be asked for, because it leads to where this one may not read.
    pub barred: bool,
    /// When that was looked at.
    pub checked: Instant,
}

impl Roots {
    /// Opens the roots of all sites.
    pub fn new<R: Ring>(config: &Config, ring: &mut R) -> Self {
        let now = ring.clock().now;
        let roots = config.sites.iter().map(|site| Watched::opened(site.root.clone(), now, ring));
        Self { roots: roots.collect(), revalidate: config.cache.revalidate }
    }

    /// The root of a site. While its path cannot be opened, as between the two halves of a careless
    /// flip, the last one serves.
    pub fn find<R: Ring>(&mut self, site: SiteId, now: Instant, ring: &mut R) -> Found {
        let root = &mut self.roots[usize::from(site)];
        let look = root.look(now, self.revalidate, ring);
        if let Look::Gone(errno) = look {
            tracing::warn!(root = %root.path().display(), %errno, "cannot open the root of a site");
        }
        let (flipped, barred) = (look == Look::Moved, look == Look::Barred);
        let checked = root.checked().unwrap_or(now);
        Found { directory: root.directory(), flipped, barred, checked }
    }
}
