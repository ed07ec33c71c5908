//! What can be learnt of a file without reading it. Plain values: pure rooms may hold them.

/// Facts of an open file, from fstat(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// What it is.
    pub kind: Kind,
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Last change of the contents.
    pub modified: Stamp,
    /// Last change of the inode: contents, mode, links.
    pub changed: Stamp,
}

/// What a directory entry leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A fifo, device or socket: never served.
    Special,
}

/// How symlinks below the root are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symlinks {
    /// Followed while they stay beneath the root.
    Beneath,
    /// Never followed.
    Never,
    /// Followed wherever they lead.
    Anywhere,
}

/// A file time: seconds and nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stamp {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanoseconds: u32,
}

/// One name in a directory, for listings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    /// The name's bytes, whatever their encoding.
    pub name: Vec<u8>,
    /// What it leads to, symlinks followed; `None` where it could not be looked at.
    pub facts: Option<Facts>,
}
