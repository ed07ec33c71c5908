//! Which directories changed, as the kernel tells it. What it does not tell (changes by another host on a
//! network file system, those it had no room for, directories beyond the user's limit) a rescan finds.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd};

use crate::sys::Errno;
use crate::sys::inotify::{Happened, Inotify};

/// A root and a path beneath it.
pub type Place = (usize, Vec<u8>);

/// The directories of all roots, watched as far as the kernel allows.
#[derive(Debug)]
pub struct Watches {
    inotify: Option<Inotify>,
    /// One directory may lie beneath several roots, or go by several names.
    places: HashMap<i32, BTreeSet<Place>>,
    limit: usize,
    refused: Option<Errno>,
}

/// What changed.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Changes {
    /// Directories in which something is new or different, by root.
    pub directories: BTreeSet<Place>,
    /// Whether more changed than is told: everything is to be walked.
    pub everything: bool,
}

impl Watches {
    /// Watches nothing yet, and no more than `limit` directories.
    pub fn new(limit: usize) -> Self {
        let (inotify, refused) = match Inotify::new() {
            Ok(inotify) => (Some(inotify), None),
            Err(errno) => (None, Some(errno)),
        };
        Self { inotify, places: HashMap::new(), limit, refused }
    }

    /// Why not everything is watched.
    pub fn refused(&self) -> Option<Errno> {
        self.refused
    }

    /// What is readable when something changed.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// Watches the directories of a root no longer.
    pub fn forget_root(&mut self, index: usize) {
        let Some(inotify) = &self.inotify else { return };
        self.places.retain(|watch, places| {
            places.retain(|(root, _)| *root != index);
            if places.is_empty() {
                inotify.forget(*watch);
            }
            !places.is_empty()
        });
    }

    /// Watches an open directory; whether it was not watched by this name before, as far as that is known.
    pub fn add(&mut self, root: usize, path: &[u8], directory: BorrowedFd<'_>) -> bool {
        let Some(inotify) = &self.inotify else { return true };
        let watch = if self.places.len() < self.limit { inotify.watch(directory) } else { Err(Errno::NOSPC) };
        match watch {
            Ok(watch) => self.places.entry(watch).or_default().insert((root, path.to_vec())),
            Err(errno) => {
                self.refused.get_or_insert(errno);
                true
            }
        }
    }

    /// Takes what has changed.
    pub fn take(&mut self, changes: &mut Changes) {
        let Some(inotify) = &self.inotify else { return };
        let mut gone = Vec::new();
        let taken = inotify.take(|happened| match happened {
            Happened::Changed(watch, _) => {
                changes.directories.extend(self.places.get(&watch).into_iter().flatten().cloned());
            }
            Happened::Left(watch) => {
                // Of a root: it was exchanged. Of another: the directory above tells where it is now.
                let places = self.places.get(&watch).into_iter().flatten();
                if places.into_iter().any(|(_, path)| path.is_empty()) {
                    changes.everything = true;
                }
                gone.push(watch);
            }
            Happened::Gone(watch) => gone.push(watch),
            Happened::Lost => changes.everything = true,
        });
        if let Err(errno) = taken {
            changes.everything = true;
            self.refused.get_or_insert(errno);
        }
        for watch in gone {
            if self.places.remove(&watch).is_some() {
                inotify.forget(watch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn beyond_the_limit_directories_are_left_unwatched_and_what_is_watched_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let mut watches = Watches::new(2);
        for name in ["a", "b", "c"] {
            fs::create_dir(directory.path().join(name)).unwrap();
            let open = File::open(directory.path().join(name)).unwrap();
            assert!(watches.add(0, name.as_bytes(), open.as_fd()), "{name} is new");
        }
        assert_eq!(watches.refused(), Some(Errno::NOSPC));
        for name in ["a", "b", "c"] {
            fs::write(directory.path().join(name).join("file"), "").unwrap();
        }
        let mut changes = Changes::default();
        watches.take(&mut changes);
        let told: Vec<Place> = changes.directories.into_iter().collect();
        assert_eq!(told, [(0, b"a".to_vec()), (0, b"b".to_vec())]);
        assert!(!changes.everything);
    }

    #[test]
    fn a_directory_is_known_by_each_of_its_names_and_forgotten_with_its_root() {
        let directory = tempfile::tempdir().unwrap();
        let open = File::open(directory.path()).unwrap();
        let mut watches = Watches::new(9);
        assert!(watches.add(0, b"", open.as_fd()));
        assert!(!watches.add(0, b"", open.as_fd()));
        assert!(watches.add(1, b"below", open.as_fd()));
        watches.forget_root(0);
        fs::write(directory.path().join("file"), "").unwrap();
        let mut changes = Changes::default();
        watches.take(&mut changes);
        assert_eq!(changes.directories.into_iter().collect::<Vec<_>>(), [(1, b"below".to_vec())]);
    }
}
