//! Being told when something in a directory changes, by inotify(7).

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use super::Errno;

/// Directories that are watched.
#[derive(Debug)]
pub struct Inotify(OwnedFd);

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Happened {
    /// A name in the directory of this watch is new, or what it leads to has changed.
    Changed(i32, Vec<u8>),
    /// The directory of this watch was moved or removed, and is no longer where it was.
    Left(i32),
    /// The watch is gone; its number may be given to another.
    Gone(i32),
    /// More happened than the kernel kept.
    Lost,
}

/// Room for some hundred events.
const BUFFER_BYTES: usize = 16 << 10;

impl Inotify {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// EMFILE when the user has too many of these.
    pub fn new() -> Result<Self, Errno> {
        inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map(Self)
    }

    /// Watches an open directory. By its descriptor, so that it is the one that was looked at, and no path
    /// is longer than the kernel takes.
    ///
    /// # Errors
    /// ENOSPC when the user has too many watches.
    pub fn watch(&self, directory: impl AsFd) -> Result<i32, Errno> {
        // A file counts when whoever wrote it has closed it: one that is being written changes all the time.
        // CREATE is for directories and links, which nobody closes; ATTRIB for times, which name variants.
        let flags = WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::CREATE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR
            | WatchFlags::EXCL_UNLINK;
        inotify::add_watch(&self.0, format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd()), flags)
    }

    /// Watches it no longer.
    pub fn forget(&self, watch: i32) {
        // Fails when the directory is gone, and the watch with it.
        let _ = inotify::remove_watch(&self.0, watch);
    }

    /// Takes what has happened, without waiting.
    ///
    /// # Errors
    /// Those of read(2).
    pub fn take(&self, mut each: impl FnMut(Happened)) -> Result<(), Errno> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(&self.0, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            let (watch, what) = (event.wd(), event.events());
            if what.contains(ReadFlags::QUEUE_OVERFLOW) {
                each(Happened::Lost);
            } else if what.contains(ReadFlags::IGNORED) {
                each(Happened::Gone(watch));
            } else if what.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT) {
                each(Happened::Left(watch));
            } else {
                let name = event.file_name().map(|name| name.to_bytes().to_vec());
                each(Happened::Changed(watch, name.unwrap_or_default()));
            }
        }
    }
}

impl AsFd for Inotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn what_happens_in_a_directory_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let inotify = Inotify::new().unwrap();
        let path = directory.path().join("watched");
        fs::create_dir(&path).unwrap();
        let watch = inotify.watch(File::open(&path).unwrap()).unwrap();
        let take = || {
            let mut happened = Vec::new();
            inotify.take(|what| happened.push(what)).unwrap();
            happened.dedup();
            happened
        };
        assert_eq!(take(), []);
        fs::write(path.join("a"), "text").unwrap();
        assert_eq!(take(), [Happened::Changed(watch, b"a".to_vec())]);
        fs::rename(path.join("a"), path.join("b")).unwrap();
        assert_eq!(take(), [Happened::Changed(watch, b"b".to_vec())]);
        fs::rename(&path, directory.path().join("moved")).unwrap();
        assert_eq!(take(), [Happened::Left(watch)]);
        inotify.forget(watch);
        assert_eq!(take(), [Happened::Gone(watch)]);
        assert_eq!(inotify.watch(File::open(directory.path().join("moved/b")).unwrap()), Err(Errno::NOTDIR));
    }
}
