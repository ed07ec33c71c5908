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
    open: Option<Rc<Descriptor>>,
    checked: Option<Instant>,
    /// Whether its absence was told.
    told: bool,
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
            })
        });
        Self { directories: directories.collect(), revalidate: config.cache.revalidate }
    }

    /// The directory of a site's variants, if it is there.
    pub fn find<R: Ring>(&mut self, site: SiteId, now: Instant, ring: &mut R) -> Option<Rc<Descriptor>> {
        let directory = self.directories.get_mut(usize::from(site))?;
        if directory.checked.is_none_or(|checked| checked + self.revalidate <= now) {
            directory.checked = Some(now);
            directory.look(ring);
        }
        directory.open.clone()
    }
}

impl Directory {
    fn look<R: Ring>(&mut self, ring: &mut R) {
        let was_open = self.open.is_some();
        match ring.open_root(&self.path) {
            Ok(directory) => {
                if self.told {
                    tracing::info!(directory = %self.path.display(), "compressed variants are there again");
                }
                (self.open, self.told) = (Some(Rc::new(directory)), false);
            }
            Err(errno) => {
                self.open = None;
                // That it is not there yet is nothing to tell: the precompressor makes it.
                if !self.told && (was_open || errno != Errno::NOENT) {
                    let directory = self.path.display();
                    tracing::warn!(%directory, %errno, "no compressed variants: files are served as they are");
                    self.told = true;
                }
            }
        }
    }
}
