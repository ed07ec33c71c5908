//! Variants that are being written. A draft is there, under a name of its own, before the first byte is coded:
//! what is left of it when the process was ended tells the next one which source it was at.
//!
//! ```text
//! begin -> locked file -> publish    renamed
//!               |-------> dropped    removed
//!               |-------> give_up    removed, whoever is at it
//!               '-------> killed     left behind, and its lock is gone
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::store::make_directories;
use crate::files::variants::FOOTER_BYTES;
use crate::sys::lock;

/// The drafts that this process has open. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Drafts(Arc<Mutex<BTreeSet<PathBuf>>>);

/// A variant being written. Dropped without being published, it is gone.
#[derive(Debug)]
pub struct Draft {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    is_published: bool,
    all: Drafts,
}

/// Nobody can begin a draft while this is there.
#[derive(Debug)]
pub struct GivenUp<'a>(#[expect(dead_code, reason = "held")] MutexGuard<'a, BTreeSet<PathBuf>>);

impl Drafts {
    /// Begins a variant that is to be published at `path`.
    ///
    /// # Errors
    /// Those of open(2) and mkdir(2).
    pub fn begin(&self, temporary: PathBuf, path: PathBuf) -> io::Result<Draft> {
        // Until it is noted: what is given up are all that are there.
        let mut open = self.open();
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o644);
        let file = match options.open(&temporary) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_directories(path.parent().unwrap_or(Path::new(".")))?;
                options.open(&temporary)
            }
            other => other,
        }?;
        lock::hold(&file);
        open.insert(temporary.clone());
        Ok(Draft { file, temporary, path, is_published: false, all: self.clone() })
    }

    /// Removes all drafts, for a process that ends now, whatever its threads are at: nothing that is left of
    /// it must look as if a source had ended it.
    pub fn give_up(&self) -> GivenUp<'_> {
        let mut open = self.open();
        for temporary in std::mem::take(&mut *open) {
            // One that was just published has this name no more.
            let _ = fs::remove_file(temporary);
        }
        GivenUp(open)
    }

    fn open(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Draft {
    /// Where the coded bytes go.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Ends it with the footer and puts it in its place.
    ///
    /// # Errors
    /// Those of write(2) and rename(2).
    pub fn publish(mut self, footer: &[u8; FOOTER_BYTES]) -> io::Result<()> {
        self.file.write_all(footer)?;
        // Whatever the umask says: workers of another user may share the cache.
        self.file.set_permissions(Permissions::from_mode(0o644))?;
        // Without fsync(2): what a crash of the machine cuts short has no footer.
        fs::rename(&self.temporary, &self.path)?;
        self.is_published = true;
        Ok(())
    }

    /// Leaves behind what a process leaves that is killed.
    #[cfg(test)]
    pub fn leave(mut self) {
        self.is_published = true;
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_published {
            // What cannot be removed is collected some day.
            let _ = fs::remove_file(&self.temporary);
        }
        self.all.open().remove(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_up_is_gone_and_cannot_be_published() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join("new").join(name);
        let drafts = Drafts::default();
        let published = drafts.begin(at("a.tmp"), at("a")).unwrap();
        published.publish(&[0; FOOTER_BYTES]).unwrap();
        let open = drafts.begin(at("b.tmp"), at("b")).unwrap();
        assert!(at("a").exists() && at("b.tmp").exists());
        let given_up = drafts.give_up();
        assert!(at("a").exists() && !at("b.tmp").exists());
        drop(given_up);
        assert!(open.publish(&[0; FOOTER_BYTES]).is_err());
        assert_eq!(fs::read_dir(directory.path().join("new")).unwrap().count(), 1);
    }
}
