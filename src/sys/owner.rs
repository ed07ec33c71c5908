//! Giving a directory to another user. Whoever may change a directory on the way to it could have root give
//! away something else; so every step of the path is taken by hand, symlinks included, and each must be one
//! that root alone could have laid.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Gid, Mode, OFlags, Stat, Uid};

use super::tree;
use super::user::User;
use super::{Errno, Error};

/// As many symlinks as the kernel follows in one path.
const SYMLINKS_MAX: usize = 40;

/// Makes a directory where there is none, and gives it to `user` if it holds nothing. One that holds something
/// is left as it is: it may be anything.
///
/// # Errors
/// When it cannot be made or not be given. EPERM where others than root may change a directory on the way.
pub fn provide(path: &Path, user: &User) -> Result<(), Error> {
    let refused = |errno| Error::new("make the cache directory", path.display().to_string(), errno);
    // What is in use needs no gift, wherever it lies.
    if rustix::fs::stat(path).is_ok_and(|facts| is_directory(&facts) && facts.st_uid == user.uid) {
        return Ok(());
    }
    let directory = reach(path)?;
    let mut is_empty = true;
    tree::names(&directory, |_, _| is_empty = false).map_err(refused)?;
    if is_empty {
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        rustix::fs::fchown(&directory, Some(uid), Some(gid)).map_err(refused)?;
    }
    Ok(())
}

/// Opens a directory step by step, making what is missing.
fn reach(path: &Path) -> Result<OwnedFd, Error> {
    let refused = |errno| Error::new("make the cache directory", path.display().to_string(), errno);
    let step = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = || rustix::fs::openat(CWD, "/", step, Mode::empty());
    let mut here = rustix::fs::openat(CWD, ".", step, Mode::empty()).map_err(refused)?;
    let mut ahead = steps(path);
    let mut symlinks = 0;
    while let Some(name) = ahead.pop_front() {
        if name.as_bytes() == b"/" {
            here = root().map_err(refused)?;
            continue;
        }
        let safety = safety(here.as_fd()).map_err(refused)?;
        if safety == Safety::None {
            return Err(unsafe_way(path));
        }
        let next = match rustix::fs::openat(&here, &name, step, Mode::empty()) {
            Err(Errno::NOENT) => {
                // Another process may make it at the same time.
                match rustix::fs::mkdirat(&here, &name, Mode::from_raw_mode(0o755)) {
                    Err(Errno::EXIST) | Ok(()) => {}
                    Err(errno) => return Err(refused(errno)),
                }
                rustix::fs::openat(&here, &name, step, Mode::empty())
            }
            other => other,
        }
        .map_err(refused)?;
        let facts = rustix::fs::fstat(&next).map_err(refused)?;
        if safety == Safety::OfOwners && !is_own(&facts) {
            return Err(unsafe_way(path));
        }
        match FileType::from_raw_mode(facts.st_mode) {
            FileType::Directory => here = next,
            FileType::Symlink if symlinks < SYMLINKS_MAX => {
                symlinks += 1;
                let target = rustix::fs::readlinkat(&next, "", Vec::new()).map_err(refused)?;
                let mut further = steps(Path::new(OsStr::from_bytes(target.to_bytes())));
                further.append(&mut ahead);
                ahead = further;
            }
            FileType::Symlink => return Err(refused(Errno::LOOP)),
            _ => return Err(refused(Errno::NOTDIR)),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(&here, ".", flags, Mode::empty()).map_err(refused)
}

fn steps(path: &Path) -> VecDeque<OsString> {
    let steps = path.components().filter(|step| *step != Component::CurDir);
    steps.map(|step| step.as_os_str().to_owned()).collect()
}

/// Whose names in a directory can be relied upon: those nobody can have put there, or can replace, but root
/// and ourselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Safety {
    All,
    /// Those that belong to us: the directory is sticky, as /tmp is.
    OfOwners,
    None,
}

fn safety(directory: BorrowedFd<'_>) -> Result<Safety, Errno> {
    let facts = rustix::fs::fstat(directory)?;
    let is_for_others = facts.st_mode & 0o002 != 0 || (facts.st_mode & 0o020 != 0 && facts.st_gid != 0);
    let is_sticky = facts.st_mode & 0o1000 != 0;
    Ok(match (is_own(&facts), is_for_others) {
        (true, false) => Safety::All,
        (true, true) if is_sticky => Safety::OfOwners,
        _ => Safety::None,
    })
}

fn is_own(facts: &Stat) -> bool {
    facts.st_uid == 0 || facts.st_uid == rustix::process::geteuid().as_raw()
}

fn unsafe_way(path: &Path) -> Error {
    let object = format!("{}, since others than root may change what leads to it", path.display());
    Error::new("make the cache directory", object, Errno::PERM)
}

fn is_directory(facts: &Stat) -> bool {
    FileType::from_raw_mode(facts.st_mode) == FileType::Directory
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};

    fn nobody() -> User {
        User { name: c"nobody".into(), uid: 65_534, gid: 65_534, groups: Vec::new() }
    }

    #[test]
    fn an_empty_directory_is_given_and_another_left() {
        if !crate::sys::user::is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let owner = |path: &Path| fs::metadata(path).unwrap().uid();
        let new = place.path().join("a/b/cache");
        provide(&new, &nobody()).unwrap();
        assert_eq!((owner(&new), owner(new.parent().unwrap())), (65_534, 0));
        provide(&new, &nobody()).unwrap();

        let full = place.path().join("full");
        fs::create_dir_all(full.join("something")).unwrap();
        provide(&full, &nobody()).unwrap();
        assert_eq!(owner(&full), 0);

        // The operator's own symlinks are followed, relative, absolute and the last one.
        fs::create_dir(place.path().join("disk")).unwrap();
        symlink("a/../disk", place.path().join("relative")).unwrap();
        symlink(place.path().join("disk"), place.path().join("absolute")).unwrap();
        for path in ["relative/one", "absolute/two"] {
            provide(&place.path().join(path), &nobody()).unwrap();
        }
        symlink("three", place.path().join("disk/last")).unwrap();
        provide(&place.path().join("disk/last"), &nobody()).unwrap();
        for name in ["one", "two", "three"] {
            assert_eq!(owner(&place.path().join("disk").join(name)), 65_534, "{name}");
        }
        fs::write(place.path().join("file"), "").unwrap();
        let refused = provide(&place.path().join("file/cache"), &nobody()).unwrap_err();
        assert_eq!(refused.errno, Errno::NOTDIR);
        symlink("loop", place.path().join("loop")).unwrap();
        assert_eq!(provide(&place.path().join("loop"), &nobody()).unwrap_err().errno, Errno::LOOP);
    }

    #[test]
    fn nothing_is_given_where_others_lead_to() {
        if !crate::sys::user::is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let [theirs, sticky, treasure] = ["theirs", "sticky", "treasure"].map(|name| place.path().join(name));
        for directory in [&theirs, &sticky, &treasure] {
            fs::create_dir(directory).unwrap();
        }
        fs::set_permissions(&sticky, fs::Permissions::from_mode(0o1777)).unwrap();
        for link in [theirs.join("link"), sticky.join("link")] {
            symlink(&treasure, &link).unwrap();
            std::os::unix::fs::lchown(&link, Some(1), Some(1)).unwrap();
        }
        chown(&theirs, Some(1), Some(1)).unwrap();
        for path in ["theirs/cache", "theirs/link", "theirs/link/cache", "sticky/link", "sticky/link/cache"] {
            let refused = provide(&place.path().join(path), &nobody()).unwrap_err();
            assert_eq!(refused.errno, Errno::PERM, "{path}");
        }
        assert!(!theirs.join("cache").exists());
        assert_eq!(fs::metadata(&treasure).unwrap().uid(), 0);
        assert!(fs::read_dir(&treasure).unwrap().next().is_none());
        provide(&sticky.join("own"), &nobody()).unwrap();
        assert_eq!(fs::metadata(sticky.join("own")).unwrap().uid(), 65_534);
    }
}
