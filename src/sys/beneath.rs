//! Files beneath a directory, for code that must not get out of it: the kernel resolves each path beneath
//! the directory and refuses `..`, symlinks and magic links that lead away (openat2(2), Linux 5.6).
//!
//! Calls that create, remove or rename know no such flag. For them the directory that holds the name is
//! opened this way first, and the call is made on the bare name.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps};

use super::file::{Stamp, Symlinks};
use super::{Errno, Error, tree};

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// To be read; a directory always is.
    pub read: bool,
    /// To be written.
    pub write: bool,
    /// Every write goes to the end.
    pub append: bool,
    /// Made if there is none.
    pub create: bool,
    /// Refused if there is one.
    pub exclusive: bool,
    /// Emptied.
    pub truncate: bool,
    /// Refused unless it is a directory.
    pub directory: bool,
    /// A symlink in the last place is followed.
    pub follow: bool,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symlink, looked at itself.
    Symlink,
    /// A fifo, device or socket.
    Special,
}

/// What can be learnt of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// What it is.
    pub kind: Kind,
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Names it has.
    pub links: u64,
    /// Size in bytes.
    pub size: u64,
    /// Who owns it.
    pub owner: u32,
    /// Its permission bits.
    pub mode: u32,
    /// Last read.
    pub accessed: Stamp,
    /// Last change of the contents.
    pub modified: Stamp,
    /// Last change of the inode.
    pub changed: Stamp,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Its bytes.
    pub name: Vec<u8>,
    /// The inode it leads to.
    pub inode: u64,
    /// What it is; `None` where the file system does not say.
    pub kind: Option<Kind>,
}

/// A time to set on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// Leave it.
    Same,
    /// The present.
    Now,
    /// This one.
    At(Stamp),
}

/// Opens a directory by the path an operator gave.
///
/// # Errors
/// Those of open(2).
pub fn directory(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| Error::new("open", path.display().to_string(), errno))
}

/// Opens a regular file or a directory.
///
/// # Errors
/// EXDEV where the path leads out, EACCES for what is neither, and those of openat2(2).
pub fn open(beneath: impl AsFd, path: &[u8], how: How) -> Result<(File, Look), Errno> {
    let mut flags = match (how.read, how.write) {
        (_, false) => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
        (true, true) => OFlags::RDWR,
    };
    // A fifo must not make the opener wait, a terminal not become its own.
    flags |= OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    flags.set(OFlags::APPEND, how.append);
    flags.set(OFlags::CREATE, how.create);
    flags.set(OFlags::EXCL, how.exclusive);
    flags.set(OFlags::TRUNC, how.truncate);
    flags.set(OFlags::DIRECTORY, how.directory);
    flags.set(OFlags::NOFOLLOW, !how.follow);
    let mode = if how.create { Mode::from_raw_mode(0o666) } else { Mode::empty() };
    let file = tree::resolve(beneath, path, flags, mode, BENEATH)?;
    let look = self::look(&file)?;
    match look.kind {
        Kind::File | Kind::Directory => Ok((File::from(file), look)),
        Kind::Symlink | Kind::Special => Err(Errno::ACCESS),
    }
}

/// Looks at an open file.
///
/// # Errors
/// Those of fstat(2).
pub fn look(file: impl AsFd) -> Result<Look, Errno> {
    Ok(seen(&rustix::fs::fstat(file)?))
}

/// Looks at a name.
///
/// # Errors
/// Those of openat2(2) and fstat(2).
pub fn look_at(beneath: impl AsFd, path: &[u8], follow: bool) -> Result<Look, Errno> {
    let mut flags = OFlags::PATH | OFlags::CLOEXEC;
    flags.set(OFlags::NOFOLLOW, !follow);
    look(tree::resolve(beneath, path, flags, Mode::empty(), BENEATH)?)
}

/// Looks at a file by a path that is not confined.
///
/// # Errors
/// Those of stat(2).
pub fn look_anywhere(path: &Path) -> Result<Look, Errno> {
    Ok(seen(&rustix::fs::stat(path)?))
}

/// Makes a directory.
///
/// # Errors
/// Those of mkdirat(2).
pub fn make_directory(beneath: impl AsFd, path: &[u8]) -> Result<(), Errno> {
    let (parent, name) = holder(beneath.as_fd(), path)?;
    rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o777))
}

/// Removes a name; with `directory`, that of an empty directory.
///
/// # Errors
/// Those of unlinkat(2).
pub fn remove(beneath: impl AsFd, path: &[u8], directory: bool) -> Result<(), Errno> {
    let (parent, name) = holder(beneath.as_fd(), path)?;
    let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    rustix::fs::unlinkat(parent, name, flags)
}

/// Renames.
///
/// # Errors
/// Those of renameat(2).
pub fn rename(from: impl AsFd, path: &[u8], to: impl AsFd, new: &[u8]) -> Result<(), Errno> {
    let (parent, name) = holder(from.as_fd(), path)?;
    let (new_parent, new_name) = holder(to.as_fd(), new)?;
    rustix::fs::renameat(parent, name, new_parent, new_name)
}

/// Gives a file another name; of a symlink, the symlink itself.
///
/// # Errors
/// Those of linkat(2).
pub fn link(from: impl AsFd, path: &[u8], to: impl AsFd, new: &[u8]) -> Result<(), Errno> {
    let (parent, name) = holder(from.as_fd(), path)?;
    let (new_parent, new_name) = holder(to.as_fd(), new)?;
    rustix::fs::linkat(parent, name, new_parent, new_name, AtFlags::empty())
}

/// Makes a symlink. Where it leads is checked when it is followed, not here.
///
/// # Errors
/// Those of symlinkat(2).
pub fn make_symlink(target: &[u8], beneath: impl AsFd, path: &[u8]) -> Result<(), Errno> {
    let (parent, name) = holder(beneath.as_fd(), path)?;
    rustix::fs::symlinkat(target, parent, name)
}

/// Where a symlink leads.
///
/// # Errors
/// Those of readlinkat(2).
pub fn read_symlink(beneath: impl AsFd, path: &[u8]) -> Result<Vec<u8>, Errno> {
    let (parent, name) = holder(beneath.as_fd(), path)?;
    Ok(rustix::fs::readlinkat(parent, name, Vec::new())?.into_bytes())
}

/// Sets the times of an open file.
///
/// # Errors
/// Those of futimens(3).
pub fn set_times(file: impl AsFd, accessed: Time, modified: Time) -> Result<(), Errno> {
    let timestamps = Timestamps { last_access: timespec(accessed), last_modification: timespec(modified) };
    rustix::fs::futimens(file, &timestamps)
}

/// The names of an open directory, from its beginning.
///
/// # Errors
/// Those of getdents64(2).
pub fn names(directory: impl AsFd) -> Result<Vec<Name>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let kind = match entry.file_type() {
            FileType::Unknown => None,
            other => Some(kind(other)),
        };
        names.push(Name { name: entry.file_name().to_bytes().to_vec(), inode: entry.ino(), kind });
    }
    Ok(names)
}

/// The directory that holds a name, and the name itself.
fn holder<'p>(beneath: BorrowedFd<'_>, path: &'p [u8]) -> Result<(OwnedFd, &'p [u8]), Errno> {
    let trimmed = path.len() - path.iter().rev().take_while(|byte| **byte == b'/').count();
    let path = path.get(..trimmed).unwrap_or_default();
    let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
        // A path that begins with a slash is refused by RESOLVE_BENEATH, so it must reach it.
        Some(0) => return Err(Errno::XDEV),
        Some(at) => path.split_at(at),
        None => (b".".as_slice(), path),
    };
    let name = name.strip_prefix(b"/").unwrap_or(name);
    match name {
        b"" => Err(Errno::NOENT),
        b"." | b".." => Err(Errno::INVAL),
        _ => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Ok((tree::resolve(beneath, parent, flags, Mode::empty(), BENEATH)?, name))
        }
    }
}

const BENEATH: ResolveFlags = tree::resolve_flags(Symlinks::Beneath);

fn timespec(time: Time) -> Timespec {
    let special = |nanoseconds| Timespec { tv_sec: 0, tv_nsec: nanoseconds };
    match time {
        Time::Same => special(rustix::fs::UTIME_OMIT),
        Time::Now => special(rustix::fs::UTIME_NOW),
        Time::At(stamp) => Timespec { tv_sec: stamp.seconds, tv_nsec: stamp.nanoseconds.into() },
    }
}

fn seen(stat: &rustix::fs::Stat) -> Look {
    let stamp = |seconds: i64, nanoseconds: u64| Stamp {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or_default(),
    };
    Look {
        kind: kind(FileType::from_raw_mode(stat.st_mode)),
        device: stat.st_dev,
        inode: stat.st_ino,
        links: stat.st_nlink,
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        owner: stat.st_uid,
        mode: stat.st_mode & 0o7777,
        accessed: stamp(stat.st_atime, stat.st_atime_nsec),
        modified: stamp(stat.st_mtime, stat.st_mtime_nsec),
        changed: stamp(stat.st_ctime, stat.st_ctime_nsec),
    }
}

fn kind(kind: FileType) -> Kind {
    match kind {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        _ => Kind::Special,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    const READ: How = How {
        read: true,
        write: false,
        append: false,
        create: false,
        exclusive: false,
        truncate: false,
        directory: false,
        follow: true,
    };

    #[test]
    fn nothing_leads_out() {
        let outside = tempfile::tempdir().expect("a directory");
        std::fs::write(outside.path().join("secret"), "secret").expect("written");
        let inside = outside.path().join("inside");
        std::fs::create_dir_all(inside.join("deep")).expect("made");
        symlink("../secret", inside.join("relative")).expect("made");
        symlink(outside.path().join("secret"), inside.join("absolute")).expect("made");
        symlink("..", inside.join("up")).expect("made");
        symlink("/proc/self/cwd", inside.join("magic")).expect("made");
        let beneath = directory(&inside).expect("opened");
        for path in
            ["../secret", "/etc/passwd", "relative", "absolute", "up/secret", "deep/../../secret", "magic/x"]
        {
            let errno = open(&beneath, path.as_bytes(), READ).expect_err(path);
            assert_eq!(errno, Errno::XDEV, "{path}");
            assert!(look_at(&beneath, path.as_bytes(), true).is_err(), "{path}");
        }
        for path in ["../new", "up/new", "/tmp/new", "deep/../../new"] {
            assert_eq!(make_directory(&beneath, path.as_bytes()), Err(Errno::XDEV), "{path}");
            assert_eq!(remove(&beneath, path.as_bytes(), false), Err(Errno::XDEV), "{path}");
            assert_eq!(make_symlink(b"x", &beneath, path.as_bytes()), Err(Errno::XDEV), "{path}");
            assert_eq!(rename(&beneath, b"deep", &beneath, path.as_bytes()), Err(Errno::XDEV), "{path}");
            assert_eq!(link(&beneath, b"relative", &beneath, path.as_bytes()), Err(Errno::XDEV), "{path}");
        }
        assert_eq!(remove(&beneath, b"deep/..", true), Err(Errno::INVAL));
        assert_eq!(remove(&beneath, b"", true), Err(Errno::NOENT));
    }

    #[test]
    fn what_is_inside_is_reached() {
        let place = tempfile::tempdir().expect("a directory");
        let beneath = directory(place.path()).expect("opened");
        make_directory(&beneath, b"a/").expect("made");
        std::fs::write(place.path().join("a/text"), "inside").expect("written");
        make_symlink(b"a/text", &beneath, b"link").expect("made");
        assert_eq!(read_symlink(&beneath, b"link").expect("read"), b"a/text");
        let (mut file, look) = open(&beneath, b"link", READ).expect("opened");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        assert_eq!((text.as_str(), look.size, look.kind), ("inside", 6, Kind::File));
        assert_eq!(open(&beneath, b"link", How { follow: false, ..READ }).err(), Some(Errno::LOOP));
        assert_eq!(look_at(&beneath, b"link", false).expect("seen").kind, Kind::Symlink);
        rename(&beneath, b"a/text", &beneath, b"text").expect("renamed");
        link(&beneath, b"text", &beneath, b"a/again").expect("linked");
        assert_eq!(look_at(&beneath, b"a/again", false).expect("seen").links, 2);
        let mut found: Vec<Vec<u8>> =
            names(&beneath).expect("read").into_iter().map(|name| name.name).collect();
        found.sort();
        assert_eq!(found, [b".".as_slice(), b"..", b"a", b"link", b"text"]);
        let (file, _) = open(&beneath, b"text", READ).expect("opened");
        let stamp = Stamp { seconds: 12, nanoseconds: 34 };
        set_times(&file, Time::Same, Time::At(stamp)).expect("set");
        assert_eq!(super::look(&file).expect("seen").modified, stamp);
    }

    #[test]
    fn a_fifo_is_refused_without_waiting() {
        let place = tempfile::tempdir().expect("a directory");
        let beneath = directory(place.path()).expect("opened");
        rustix::fs::mknodat(&beneath, "fifo", FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("made");
        assert_eq!(open(&beneath, b"fifo", READ).err(), Some(Errno::ACCESS));
    }
}
