//! The directories of compressed variants, one for each root, open.
//!
//! Each is opened anew as often as entries are revalidated, because it may come, go, or be another one after
//! somebody emptied the cache. Without it files are served as they are; that costs no client an answer, so
//! it is told once and not with every look.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::files::entry::SiteId;
use crate::files::variants::root_name;
use crate::ring::Ring;
use crate::sys::Errno;
use crate::sys::fds::Descriptor;

/// The directories of all sites; none without a cache directory.
#[derive(Debug)]
pub struct Variants {
    directories: Vec<Directory>,
    revalidate: Duration,
}

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    open: Option<Open>,
    checked: Option<Instant>,
    /// Whether its absence was told.
    told: bool,
    /// The directory for which other workers have been asked.
    barred: Option<Place>,
}

/// Device and inode.
type Place = (u64, u64);

#[derive(Debug)]
struct Open {
    directory: Rc<Descriptor>,
    place: Place,
}

/// What was found.
#[derive(Debug)]
pub struct Found {
    /// The open directory, if it is there.
    pub directory: Option<Rc<Descriptor>>,
    /// Whether it lies, since just now, where the sandbox lets nothing be read: somebody made the cache
    /// directory anew.
    pub barred: bool,
}

impl Variants {
    /// Opens nothing yet.
    pub fn new(config: &Config) -> Self {
        let directories = config.cache.dir.iter().flat_map(|cache| {
            config.sites.iter().map(|site| Directory {
                path: cache.join(root_name(site.root.as_os_str().as_bytes())),
                open: None,
                checked: None,
                told: false,
                barred: None,
            })
        });
        Self { directories: directories.collect(), revalidate: config.cache.revalidate }
    }

    /// The directory of a site's variants.
    pub fn find<R: Ring>(&mut self, site: SiteId, now: Instant, ring: &mut R) -> Found {
        let Some(directory) = self.directories.get_mut(usize::from(site)) else {
            return Found { directory: None, barred: false };
        };
        let mut barred = false;
        if directory.checked.is_none_or(|checked| checked + self.revalidate <= now) {
            directory.checked = Some(now);
            barred = directory.look(ring);
        }
        Found { directory: directory.open.as_ref().map(|open| Rc::clone(&open.directory)), barred }
    }
}

impl Directory {
    /// Opens it anew, and says whether other workers are needed to read it.
    fn look<R: Ring>(&mut self, ring: &mut R) -> bool {
        let found = ring.open_root(&self.path).and_then(|directory| {
            let facts = ring.facts(directory.fd())?;
            Ok(Open { directory: Rc::new(directory), place: (facts.device, facts.inode) })
        });
        match found {
            Ok(new) if self.open.as_ref().is_some_and(|old| old.place == new.place) => false,
            Ok(new) if ring.may_read(new.directory.fd()) => {
                if self.told {
                    tracing::info!(directory = %self.path.display(), "compressed variants are there again");
                }
                (self.open, self.told) = (Some(new), false);
                false
            }
            Ok(new) => {
                self.open = None;
                self.barred.replace(new.place) != Some(new.place)
            }
            Err(errno) => {
                let was_open = self.open.take().is_some();
                // That it is not there yet is nothing to tell: the precompressor makes it.
                if !self.told && (was_open || errno != Errno::NOENT) {
                    let directory = self.path.display();
                    tracing::warn!(%directory, %errno, "no compressed variants: files are served as they are");
                    self.told = true;
                }
                false
            }
        }
    }
}
