//! Locks on open files, which say of a file that somebody who lives has it open: the kernel lets go of them
//! when the holder ends, however it ends.

use std::os::fd::AsFd;

use rustix::fs::FlockOperation;

use super::Errno;

/// Locks an open file until it is closed. A file system that knows no locks lets nobody hold one, and the
/// file looks abandoned.
pub fn hold(file: impl AsFd) {
    let _ = rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
}

/// Whether somebody else holds an open file.
pub fn is_held(file: impl AsFd) -> bool {
    let held = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
    if held.is_ok() {
        // Others may ask at the same moment, and are not to take this one for a holder.
        let _ = rustix::fs::flock(&file, FlockOperation::Unlock);
    }
    held == Err(Errno::WOULDBLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_file_is_held_until_it_is_closed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let file = File::create(&path).expect("made");
        let other = File::open(&path).expect("opened");
        assert!(!is_held(&other));
        hold(&file);
        assert!(is_held(&other) && is_held(&other));
        drop(file);
        assert!(!is_held(&other));
    }
}
