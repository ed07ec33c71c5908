//! Walking a tree of files beneath a directory, by the same rules by which files of it are opened to be
//! served: what a path leads to is decided by one openat2(2), and nothing is looked at by a path twice.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};

use super::Errno;
use super::file::{Facts, Kind, Stamp, Symlinks};

/// A lookup that is crossed so often is crossed on purpose.
const TRIES_MAX: u32 = 8;

/// What a name in a directory is, as the directory says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// Leads elsewhere.
    Symlink,
    /// A fifo, device or socket.
    Special,
    /// Some file systems do not say.
    Unknown,
}

/// Opens the root of a tree, which takes no right to list it.
///
/// # Errors
/// Those of open(2).
pub fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

/// Opens what a path beneath a root leads to, for reading.
///
/// # Errors
/// Those of openat2(2).
pub fn open_beneath(root: impl AsFd, path: &[u8], symlinks: Symlinks) -> Result<(OwnedFd, Facts), Errno> {
    // NONBLOCK: opening a fifo would wait for its other end.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    open(root.as_fd(), path, flags, symlinks)
}

/// Facts of what a path beneath a root leads to.
///
/// # Errors
/// Those of openat2(2).
pub fn look_beneath(root: impl AsFd, path: &[u8], symlinks: Symlinks) -> Result<Facts, Errno> {
    open(root.as_fd(), path, OFlags::PATH | OFlags::CLOEXEC, symlinks).map(|(_, facts)| facts)
}

/// Facts of a name in an open directory; a symlink is not followed, and counts as special.
///
/// # Errors
/// Those of fstatat(2).
pub fn look_at(directory: impl AsFd, name: &[u8]) -> Result<Facts, Errno> {
    Ok(facts_of(&rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?))
}

/// Facts of an open file.
///
/// # Errors
/// Those of fstat(2).
pub fn facts(file: impl AsFd) -> Result<Facts, Errno> {
    Ok(facts_of(&rustix::fs::fstat(file)?))
}

/// Calls `each` for every name in an open directory, but for the two every directory has.
///
/// # Errors
/// Those of getdents64(2).
pub fn names(directory: impl AsFd, mut each: impl FnMut(&[u8], Named)) -> Result<(), Errno> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let named = match entry.file_type() {
            FileType::RegularFile => Named::File,
            FileType::Directory => Named::Directory,
            FileType::Symlink => Named::Symlink,
            FileType::Unknown => Named::Unknown,
            _ => Named::Special,
        };
        each(name.to_bytes(), named);
    }
    Ok(())
}

fn open(
    root: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    symlinks: Symlinks,
) -> Result<(OwnedFd, Facts), Errno> {
    let path = if path.is_empty() { b"." } else { path };
    let file = resolve(root, path, flags, Mode::empty(), resolve_flags(symlinks))?;
    let facts = facts(&file)?;
    Ok((file, facts))
}

/// openat2(2), once more where a rename somewhere in the tree crossed the lookup of a path beneath.
pub(super) fn resolve(
    root: impl AsFd,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    how: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mut tries = 0;
    loop {
        match rustix::fs::openat2(&root, path, flags, mode, how) {
            Err(Errno::AGAIN | Errno::INTR) if tries < TRIES_MAX => tries += 1,
            other => return other,
        }
    }
}

/// How openat2(2) is to treat symlinks. Magic links of /proc lead out of any tree and are refused throughout.
pub const fn resolve_flags(symlinks: Symlinks) -> ResolveFlags {
    match symlinks {
        Symlinks::Beneath => ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS),
        Symlinks::Never => {
            ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_SYMLINKS)
        }
        Symlinks::Anywhere => ResolveFlags::NO_MAGICLINKS,
    }
}

/// The part of fstat(2) that matters. Types of the fields differ among architectures.
#[allow(clippy::unnecessary_cast, clippy::useless_conversion)]
pub fn facts_of(stat: &Stat) -> Facts {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        _ => Kind::Special,
    };
    let stamp =
        |seconds, nanoseconds| Stamp { seconds, nanoseconds: u32::try_from(nanoseconds).unwrap_or_default() };
    Facts {
        kind,
        device: stat.st_dev as u64,
        inode: stat.st_ino as u64,
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        modified: stamp(stat.st_mtime as i64, stat.st_mtime_nsec as u64),
        changed: stamp(stat.st_ctime as i64, stat.st_ctime_nsec as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn paths_are_judged_by_the_policy() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("d")).unwrap();
        fs::write(directory.path().join("out"), "outside").unwrap();
        fs::write(root.join("d/file"), "inside").unwrap();
        symlink("d/file", root.join("in")).unwrap();
        symlink("../out", root.join("out")).unwrap();
        let open = open_root(&root).unwrap();
        let size = |path: &[u8], symlinks| look_beneath(&open, path, symlinks).map(|facts| facts.size);
        for symlinks in [Symlinks::Beneath, Symlinks::Never, Symlinks::Anywhere] {
            assert_eq!(size(b"d/file", symlinks), Ok(6));
        }
        assert_eq!(size(b"in", Symlinks::Beneath), Ok(6));
        assert_eq!(size(b"in", Symlinks::Never), Err(Errno::LOOP));
        assert_eq!(size(b"out", Symlinks::Beneath), Err(Errno::XDEV));
        assert_eq!(size(b"out", Symlinks::Anywhere), Ok(7));

        let (own, facts) = open_beneath(&open, b"", Symlinks::Never).unwrap();
        assert_eq!(facts.kind, Kind::Directory);
        let mut found = Vec::new();
        names(&own, |name, named| found.push((name.to_vec(), named))).unwrap();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let expected = [
            (b"d".to_vec(), Named::Directory),
            (b"in".to_vec(), Named::Symlink),
            (b"out".to_vec(), Named::Symlink),
        ];
        assert_eq!(found, expected);
        assert_eq!(look_at(&own, b"in").unwrap().kind, Kind::Special);
    }
}
