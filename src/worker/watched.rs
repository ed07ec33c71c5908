//! A directory whose path may come to lead elsewhere, open: the root of a site, or its directory of variants.
//!
//! ```text
//! look ─┬ not due ────────────────────────────────────────── Same
//!       └ open by its path ─┬ refused ────────────────────── Gone
//!                           ├ the one that is open ───────── Same
//!                           ├ another, and may be read ───── Moved
//!                           └ another, beyond the sandbox ─┬ Barred, when first seen and every ASK_AGAIN_AFTER
//!                                                          └ Same, meanwhile
//! ```
//!
//! Decides nothing about what goes on being served: that differs.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::ring::Ring;
use crate::sys::Errno;
use crate::sys::fds::Descriptor;

/// How long the supervisor has to bring workers that may read a directory before it is asked again. What kept
/// it from that may have passed; and where it has not, a set of workers begun in vain this often costs little.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// A directory that is opened anew from time to time.
#[derive(Debug)]
pub struct Watched {
    path: PathBuf,
    open: Option<Open>,
    checked: Option<Instant>,
    /// The directory for which other workers have been asked, and when.
    asked: Option<(Place, Instant)>,
}

/// What came of a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// Nothing new.
    Same,
    /// It leads to another directory than the one that was open, which is open now.
    Moved,
    /// It leads to where the sandbox lets nothing be read, and other workers are to be asked for. What was open
    /// still is.
    Barred,
    /// It cannot be opened. What was open still is.
    Gone(Errno),
}

/// Device and inode.
type Place = (u64, u64);

#[derive(Debug)]
struct Open {
    directory: Rc<Descriptor>,
    place: Place,
}

impl Watched {
    /// Not looked at yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: None, checked: None, asked: None }
    }

    /// Open at once, if it is there and may be read. What is wrong else is for the first look to say.
    pub fn opened<R: Ring>(path: PathBuf, now: Instant, ring: &mut R) -> Self {
        let mut own = Self::new(path);
        match own.look(now, Duration::ZERO, ring) {
            Look::Moved => own,
            _ => Self::new(own.path),
        }
    }

    /// Opens it anew, if that was last done `revalidate` ago.
    pub fn look<R: Ring>(&mut self, now: Instant, revalidate: Duration, ring: &mut R) -> Look {
        if self.checked.is_some_and(|checked| now < checked + revalidate) {
            return Look::Same;
        }
        self.checked = Some(now);
        let new = match open(&self.path, ring) {
            Ok(new) => new,
            Err(errno) => return Look::Gone(errno),
        };
        if self.open.as_ref().is_some_and(|old| old.place == new.place) {
            self.asked = None;
            return Look::Same;
        }
        if ring.may_read(new.directory.fd()) {
            (self.open, self.asked) = (Some(new), None);
            return Look::Moved;
        }
        match self.asked {
            Some((place, at)) if place == new.place && now < at + ASK_AGAIN_AFTER => Look::Same,
            _ => {
                self.asked = Some((new.place, now));
                Look::Barred
            }
        }
    }

    /// Its path, for the log.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory that is open.
    pub fn directory(&self) -> Option<Rc<Descriptor>> {
        self.open.as_ref().map(|open| Rc::clone(&open.directory))
    }

    /// When it was looked at last; `None`: not yet.
    pub fn checked(&self) -> Option<Instant> {
        self.checked
    }

    /// Lets go of what is open, and says whether there was anything.
    pub fn close(&mut self) -> bool {
        self.open.take().is_some()
    }
}

fn open<R: Ring>(path: &Path, ring: &mut R) -> Result<Open, Errno> {
    let directory = ring.open_root(path)?;
    let facts = ring.facts(directory.fd())?;
    Ok(Open { directory: Rc::new(directory), place: (facts.device, facts.inode) })
}
