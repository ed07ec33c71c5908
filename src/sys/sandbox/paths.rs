//! Files and network by landlock: what lies beneath given directories, and no TCP of one's own.
//!
//! A rule names the directory's inode: a directory that takes the place of another under the same name is
//! not covered. Looking (stat, O_PATH) is not limited, only opening, and what is already open stays open.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::fs::{Mode, OFlags};

use super::{Lack, Reads};
use crate::sys::Errno;
use crate::sys::file::Symlinks;

/// The newest version whose rights were tried here. What a kernel knows beyond it is not asked for.
const KNOWN: ABI = ABI::V7;

/// A directory, whatever it is called: device and inode.
pub type Place = (u64, u64);

/// More levels than any path has (PATH_MAX / 2).
const DEPTH_MAX: usize = 2048;

/// Limits this thread. Returns the directories that may be read, `None` where nothing limits reading.
pub(super) fn restrict(reads: &Reads, writes: &[PathBuf]) -> Result<Option<Vec<Place>>, String> {
    if try_handle(|ruleset| ruleset.handle_access(AccessFs::from_all(ABI::V1))).is_err() {
        return Ok(None);
    }
    let mut readable = Vec::new();
    let all = [PathBuf::from("/")];
    let reads = match reads {
        Reads::All => &all[..],
        Reads::Beneath(directories) => directories,
    };
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = read
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::Refer
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir;
    let mut rules = Vec::new();
    for (paths, access) in [(reads, read), (writes, write)] {
        for path in paths {
            // What is not there cannot be opened either.
            let Ok(directory) = PathFd::new(path) else { continue };
            if let Ok(place) = place(directory.as_fd()) {
                readable.push(place);
                rules.push((directory, access));
            }
        }
    }
    install(rules).map_err(|error| error.to_string())?;
    Ok((reads != all).then_some(readable))
}

fn install(rules: Vec<(PathFd, BitFlags<AccessFs>)>) -> Result<(), RulesetError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    let rules = rules.into_iter().map(|(directory, access)| PathBeneath::new(directory, access));
    ruleset.add_rules(rules.map(Ok::<_, RulesetError>))?.restrict_self()?;
    Ok(())
}

/// What this kernel's landlock lacks. Asked by trying: /proc and the version of the kernel do not tell
/// what a distribution took in or left out.
pub(super) fn lacking() -> Option<Lack> {
    let lack = |feature, effect| Some(Lack { feature, effect });
    if try_handle(|ruleset| ruleset.handle_access(AccessFs::from_all(ABI::V1))).is_err() {
        lack("landlock (Linux 5.13, lsm=landlock)", "workers may open every file their user may")
    } else if try_handle(|ruleset| ruleset.handle_access(AccessNet::from_all(ABI::V4))).is_err() {
        lack(
            "landlock's network rules (Linux 6.7) and scopes (6.12)",
            "sockets and signals are left to seccomp alone to refuse",
        )
    } else if try_handle(|ruleset| ruleset.scope(Scope::from_all(ABI::V6))).is_err() {
        lack("landlock's scopes (Linux 6.12)", "signals are left to seccomp alone to refuse")
    } else {
        None
    }
}

fn try_handle(ask: impl FnOnce(Ruleset) -> Result<Ruleset, RulesetError>) -> Result<Ruleset, RulesetError> {
    ask(Ruleset::default().set_compatibility(CompatLevel::HardRequirement))
}

/// Whether a directory is one of `places` or lies beneath one: the way landlock itself looks at it, upwards.
/// `false` also where the way up is barred.
pub fn lies_beneath(directory: BorrowedFd<'_>, places: &[Place]) -> bool {
    let Ok(mut here) = place(directory) else { return false };
    let mut above: Option<OwnedFd> = None;
    for _ in 0..DEPTH_MAX {
        if places.contains(&here) {
            return true;
        }
        let from = above.as_ref().map_or(directory, AsFd::as_fd);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(parent) = rustix::fs::openat(from, c"..", flags, Mode::empty()) else { return false };
        let Ok(there) = place(parent.as_fd()) else { return false };
        if there == here {
            return false;
        }
        here = there;
        above = Some(parent);
    }
    false
}

#[allow(clippy::unnecessary_cast)]
fn place(directory: BorrowedFd<'_>) -> Result<Place, Errno> {
    let facts = rustix::fs::fstat(directory)?;
    Ok((facts.st_dev as u64, facts.st_ino as u64))
}

impl Reads {
    /// What serving these roots takes. Where a symlink stands in a root's path, deploys flip it, mostly to a
    /// neighbour of what it leads to now; so it is the directory of those neighbours that may be read.
    pub fn of_roots<'a>(roots: impl IntoIterator<Item = (&'a Path, Symlinks)>) -> Self {
        let mut directories = Vec::new();
        for (root, symlinks) in roots {
            if symlinks == Symlinks::Anywhere {
                return Self::All;
            }
            directories.push(root.to_path_buf());
            directories.extend(neighbours(root));
        }
        Self::Beneath(directories)
    }

    /// The same with one more directory.
    #[must_use]
    pub fn and(mut self, directory: &Path) -> Self {
        if let Self::Beneath(directories) = &mut self {
            directories.push(directory.to_path_buf());
        }
        self
    }
}

/// The directory that holds what the last symlink in a path leads to. None for the root of all: a rule that wide
/// would be none.
pub fn neighbours(path: &Path) -> Option<PathBuf> {
    let link = path.ancestors().find(|part| part.is_symlink())?;
    let parent = link.canonicalize().ok()?.parent()?.to_path_buf();
    parent.parent().is_some().then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn neighbours_are_found_where_a_link_stands_in_the_path() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("releases/1/public")).unwrap();
        symlink("releases/1", top.join("current")).unwrap();
        symlink("current", top.join("stable")).unwrap();
        symlink("/usr", top.join("system")).unwrap();
        let check = |path: &str, expected: Option<&str>| {
            assert_eq!(neighbours(&top.join(path)), expected.map(|path| top.join(path)), "{path}");
        };
        check("releases/1", None);
        check("current", Some("releases"));
        check("current/public", Some("releases"));
        check("stable/public", Some("releases"));
        // Its neighbours would be everything.
        check("system", None);
        check("missing", None);
    }

    #[test]
    fn one_site_that_follows_links_anywhere_opens_everything() {
        let roots =
            |symlinks| Reads::of_roots([(Path::new("/a"), Symlinks::Never), (Path::new("/b"), symlinks)]);
        let both = vec![PathBuf::from("/a"), PathBuf::from("/b")];
        assert_eq!(roots(Symlinks::Beneath), Reads::Beneath(both));
        assert_eq!(roots(Symlinks::Anywhere).and(Path::new("/c")), Reads::All);
    }

    #[test]
    fn what_lies_beneath_is_found_upwards() {
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        let open = |path: &Path| std::fs::File::open(path).unwrap();
        let place_of = |path: &Path| place(open(path).as_fd()).unwrap();
        let beneath = |places: &[Place]| lies_beneath(open(&deep).as_fd(), places);
        assert!(beneath(&[place_of(&deep)]));
        assert!(beneath(&[(0, 0), place_of(directory.path())]));
        assert!(beneath(&[place_of(Path::new("/"))]));
        assert!(!beneath(&[place_of(Path::new("/etc"))]));
        assert!(!beneath(&[]));
    }
}
