//! The directories of compressed variants, one for each root, open.
//!
//! Each is opened anew as often as entries are revalidated, because it may come, go, or be another one after
//! somebody emptied the cache. Without it files are served as they are; that costs no client an answer, so
//! it is told once and not with every look.

use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::watched::{Look, Watched};
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
    watched: Watched,
    /// Whether its absence was told.
    told: bool,
}

/// What was found.
#[derive(Debug)]
pub struct Found {
    /// The open directory, if it is there.
    pub directory: Option<Rc<Descriptor>>,
    /// Whether other workers are to be asked for, because it lies where the sandbox lets nothing be read:
    /// somebody made the cache directory anew.
    pub barred: bool,
}

impl Variants {
    /// Opens nothing yet.
    pub fn new(config: &Config) -> Self {
        let directories = config.cache.dir.iter().flat_map(|cache| {
            let paths =
                config.sites.iter().map(|site| cache.join(root_name(site.root.as_os_str().as_bytes())));
            paths.map(|path| Directory { watched: Watched::new(path), told: false })
        });
        Self { directories: directories.collect(), revalidate: config.cache.revalidate }
    }

    /// The directory of a site's variants.
    pub fn find<R: Ring>(&mut self, site: SiteId, now: Instant, ring: &mut R) -> Found {
        let Some(directory) = self.directories.get_mut(usize::from(site)) else {
            return Found { directory: None, barred: false };
        };
        let look = directory.watched.look(now, self.revalidate, ring);
        directory.follow(look);
        Found { directory: directory.watched.directory(), barred: look == Look::Barred }
    }
}

impl Directory {
    fn follow(&mut self, look: Look) {
        match look {
            Look::Same => {}
            Look::Moved => {
                if std::mem::take(&mut self.told) {
                    let directory = self.watched.path().display();
                    tracing::info!(%directory, "compressed variants are there again");
                }
            }
            // What was open lies in a cache directory that is out of use: nobody keeps it in order.
            Look::Barred => {
                self.watched.close();
            }
            Look::Gone(errno) => {
                let was_open = self.watched.close();
                // That it is not there yet is nothing to tell: the precompressor makes it.
                if !self.told && (was_open || errno != Errno::NOENT) {
                    let directory = self.watched.path().display();
                    tracing::warn!(%directory, %errno, "no compressed variants: files are served as they are");
                    self.told = true;
                }
            }
        }
    }
}
