//! Numbers and layouts of `wasi_snapshot_preview1`, and the guest's memory seen through them. Pure.
//!
//! The interface is little-endian; offsets are those of its C header.

use crate::sys;
use crate::sys::beneath::{Kind, Look, Time};
use crate::sys::file::Stamp;

/// Why a call was refused, in the interface's own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    pub const BADF: Self = Self(8);
    pub const FAULT: Self = Self(21);
    pub const INVAL: Self = Self(28);
    pub const IO: Self = Self(29);
    pub const ISDIR: Self = Self(31);
    pub const MFILE: Self = Self(33);
    pub const NAMETOOLONG: Self = Self(37);
    pub const NOSYS: Self = Self(52);
    pub const NOTDIR: Self = Self(54);
    pub const NOTSUP: Self = Self(58);
    pub const OVERFLOW: Self = Self(61);
    pub const ROFS: Self = Self(69);
    pub const SPIPE: Self = Self(70);
    /// The path leads out of what the guest was given.
    pub const NOTCAPABLE: Self = Self(76);
}

impl From<sys::Errno> for Errno {
    fn from(errno: sys::Errno) -> Self {
        use sys::Errno as E;
        const TABLE: &[(E, i32)] = &[
            (E::ACCESS, 2),
            (E::AGAIN, 6),
            (E::BADF, 8),
            (E::BUSY, 10),
            (E::DQUOT, 19),
            (E::EXIST, 20),
            (E::FBIG, 22),
            (E::ILSEQ, 25),
            (E::INTR, 27),
            (E::INVAL, 28),
            (E::ISDIR, 31),
            (E::LOOP, 32),
            (E::MFILE, 33),
            (E::MLINK, 34),
            (E::NAMETOOLONG, 37),
            (E::NFILE, 41),
            (E::NODEV, 43),
            (E::NOENT, 44),
            (E::NOMEM, 48),
            (E::NOSPC, 51),
            (E::NOTDIR, 54),
            (E::NOTEMPTY, 55),
            (E::NOTSUP, 58),
            (E::NXIO, 60),
            (E::OVERFLOW, 61),
            (E::PERM, 63),
            (E::PIPE, 64),
            (E::ROFS, 69),
            (E::SPIPE, 70),
            (E::TXTBSY, 74),
            // Resolution beneath a directory says EXDEV where the path leads out of it.
            (E::XDEV, 76),
        ];
        TABLE.iter().find(|(known, _)| *known == errno).map_or(Self::IO, |(_, number)| Self(*number))
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        sys::Errno::from_io_error(&error).map_or(Self::IO, Self::from)
    }
}

/// `filetype`
pub mod filetype {
    pub const UNKNOWN: u8 = 0;
    pub const DIRECTORY: u8 = 3;
    pub const REGULAR: u8 = 4;
    pub const SYMLINK: u8 = 7;
}

/// `rights`, of which two are used: what a program wants to do with a file it opens.
pub mod rights {
    pub const FD_READ: u64 = 1 << 1;
    pub const FD_WRITE: u64 = 1 << 6;
    pub const FD_READDIR: u64 = 1 << 14;
    /// For directories. What may not be done is refused when it is tried, with a reason; a program that
    /// were told of fewer rights would ask for less than it needs and be puzzled later.
    pub const ALL: u64 = (1 << 29) - 1;
    /// For pipes: no seeking. C libraries take a character device that can seek for no terminal.
    pub const STREAM: u64 = FD_READ | FD_WRITE | 1 << 21 | 1 << 27;
}

/// `oflags`
pub mod oflags {
    pub const CREAT: u32 = 1;
    pub const DIRECTORY: u32 = 2;
    pub const EXCL: u32 = 4;
    pub const TRUNC: u32 = 8;
}

/// `fdflags`
pub mod fdflags {
    pub const APPEND: u16 = 1;
    pub const NONBLOCK: u16 = 4;
}

/// `lookupflags`
pub const SYMLINK_FOLLOW: u32 = 1;

/// `filestat`, 64 bytes.
pub fn filestat(look: &Look) -> [u8; 64] {
    let mut out = [0; 64];
    let mut put = |at: usize, value: u64| out[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(0, look.device);
    put(8, look.inode);
    put(16, u64::from(filetype(look.kind)));
    put(24, look.links);
    put(32, look.size);
    put(40, nanoseconds(look.accessed));
    put(48, nanoseconds(look.modified));
    put(56, nanoseconds(look.changed));
    out
}

/// `fdstat`, 24 bytes.
pub fn fdstat(filetype: u8, flags: u16, rights: u64) -> [u8; 24] {
    let mut out = [0; 24];
    out[0] = filetype;
    out[2..4].copy_from_slice(&flags.to_le_bytes());
    out[8..16].copy_from_slice(&rights.to_le_bytes());
    out[16..24].copy_from_slice(&rights.to_le_bytes());
    out
}

/// `dirent`, 24 bytes; the name follows it.
pub fn dirent(next: u64, inode: u64, length: u32, kind: Option<Kind>) -> [u8; 24] {
    let mut out = [0; 24];
    out[0..8].copy_from_slice(&next.to_le_bytes());
    out[8..16].copy_from_slice(&inode.to_le_bytes());
    out[16..20].copy_from_slice(&length.to_le_bytes());
    out[20] = kind.map_or(filetype::UNKNOWN, filetype);
    out
}

/// `event`, 32 bytes.
pub fn event(userdata: u64, error: i32, tag: u8, bytes: u64) -> [u8; 32] {
    let mut out = [0; 32];
    out[0..8].copy_from_slice(&userdata.to_le_bytes());
    out[8..10].copy_from_slice(&u16::try_from(error).unwrap_or_default().to_le_bytes());
    out[10] = tag;
    out[16..24].copy_from_slice(&bytes.to_le_bytes());
    out
}

/// `filetype` of a kind.
pub fn filetype(kind: Kind) -> u8 {
    match kind {
        Kind::File => filetype::REGULAR,
        Kind::Directory => filetype::DIRECTORY,
        Kind::Symlink => filetype::SYMLINK,
        Kind::Special => filetype::UNKNOWN,
    }
}

/// `fstflags` and a `timestamp` each, for the time of access and that of modification.
///
/// # Errors
/// INVAL where a time is both given and to be the present.
pub fn times(accessed: u64, modified: u64, flags: u32) -> Result<(Time, Time), Errno> {
    let one = |given: bool, now: bool, time: u64| match (given, now) {
        (true, true) => Err(Errno::INVAL),
        (true, false) => Ok(Time::At(Stamp {
            seconds: i64::try_from(time / NANOSECONDS).map_err(|_| Errno::INVAL)?,
            nanoseconds: u32::try_from(time % NANOSECONDS).map_err(|_| Errno::INVAL)?,
        })),
        (false, true) => Ok(Time::Now),
        (false, false) => Ok(Time::Same),
    };
    Ok((one(flags & 1 != 0, flags & 2 != 0, accessed)?, one(flags & 4 != 0, flags & 8 != 0, modified)?))
}

const NANOSECONDS: u64 = 1_000_000_000;

fn nanoseconds(stamp: Stamp) -> u64 {
    let seconds = u64::try_from(stamp.seconds).unwrap_or_default();
    seconds.saturating_mul(NANOSECONDS).saturating_add(stamp.nanoseconds.into())
}

/// The guest's memory. Every place comes from the guest and is checked.
pub struct Guest<'m>(pub &'m mut [u8]);

impl Guest<'_> {
    /// Some bytes of it.
    ///
    /// # Errors
    /// FAULT where they are not all inside.
    pub fn bytes(&mut self, at: u32, length: u32) -> Result<&mut [u8], Errno> {
        let start = at as usize;
        let end = start.checked_add(length as usize).ok_or(Errno::FAULT)?;
        self.0.get_mut(start..end).ok_or(Errno::FAULT)
    }

    /// A path: what follows a NUL byte would be unseen by the kernel.
    ///
    /// # Errors
    /// FAULT, and INVAL for a path with a NUL.
    pub fn path(&mut self, at: u32, length: u32) -> Result<Vec<u8>, Errno> {
        /// PATH_MAX of Linux, so that no guest has megabytes copied.
        const PATH_MAX: u32 = 4096;
        if length >= PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let path = self.bytes(at, length)?.to_vec();
        if path.contains(&0) { Err(Errno::INVAL) } else { Ok(path) }
    }

    /// Writes some bytes.
    ///
    /// # Errors
    /// FAULT.
    pub fn put(&mut self, at: u32, bytes: &[u8]) -> Result<(), Errno> {
        let length = u32::try_from(bytes.len()).map_err(|_| Errno::FAULT)?;
        self.bytes(at, length)?.copy_from_slice(bytes);
        Ok(())
    }

    /// Writes a `size` or a descriptor.
    ///
    /// # Errors
    /// FAULT.
    pub fn put_u32(&mut self, at: u32, value: u32) -> Result<(), Errno> {
        self.put(at, &value.to_le_bytes())
    }

    /// Writes a `filesize` or a `timestamp`.
    ///
    /// # Errors
    /// FAULT.
    pub fn put_u64(&mut self, at: u32, value: u64) -> Result<(), Errno> {
        self.put(at, &value.to_le_bytes())
    }

    /// Reads some bytes.
    ///
    /// # Errors
    /// FAULT.
    pub fn array<const N: usize>(&mut self, at: u32) -> Result<[u8; N], Errno> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(at, u32::try_from(N).map_err(|_| Errno::FAULT)?)?);
        Ok(out)
    }

    /// Entry `index` of a list of `iovec`: place and length.
    ///
    /// # Errors
    /// FAULT.
    pub fn piece(&mut self, list: u32, index: u32) -> Result<(u32, u32), Errno> {
        let at = index.checked_mul(8).and_then(|offset| list.checked_add(offset)).ok_or(Errno::FAULT)?;
        let [a, b, c, d, e, f, g, h] = self.array(at)?;
        Ok((u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_reaches_its_own_memory_only() {
        let mut memory = [0_u8; 16];
        let mut guest = Guest(&mut memory);
        assert!(guest.bytes(0, 16).is_ok() && guest.bytes(16, 0).is_ok());
        for (at, length) in [(0, 17), (16, 1), (17, 0), (u32::MAX, u32::MAX), (8, u32::MAX)] {
            assert_eq!(guest.bytes(at, length).err(), Some(Errno::FAULT), "{at} {length}");
        }
        assert_eq!(guest.piece(u32::MAX - 8, 2).err(), Some(Errno::FAULT));
        assert_eq!(guest.piece(0, u32::MAX).err(), Some(Errno::FAULT));
        guest.put(0, &[1, 0, 0, 0, 2, 0, 0, 0]).expect("inside");
        assert_eq!(guest.piece(0, 0), Ok((1, 2)));
        assert_eq!(guest.path(0, 1), Ok(vec![1]));
        assert_eq!(guest.path(0, 2), Err(Errno::INVAL));
        assert_eq!(guest.path(0, 1 << 20), Err(Errno::NAMETOOLONG));
    }

    #[test]
    fn layouts_are_those_of_the_header() {
        let stamp = Stamp { seconds: 1, nanoseconds: 5 };
        let look = Look {
            kind: Kind::File,
            device: 1,
            inode: 2,
            links: 3,
            size: 4,
            owner: 0,
            mode: 0,
            accessed: stamp,
            modified: stamp,
            changed: Stamp { seconds: -1, nanoseconds: 0 },
        };
        let stat = filestat(&look);
        assert_eq!((stat[0], stat[8], stat[16], stat[24], stat[32]), (1, 2, filetype::REGULAR, 3, 4));
        assert_eq!(stat[48..56], 1_000_000_005_u64.to_le_bytes());
        assert_eq!(stat[56..], [0; 8], "a time before 1970 has no number");
        assert_eq!(fdstat(4, 1, 7)[..9], [4, 0, 1, 0, 0, 0, 0, 0, 7]);
        assert_eq!(dirent(9, 8, 7, Some(Kind::Directory))[16..21], [7, 0, 0, 0, 3]);
        assert_eq!(event(1, 28, 2, 6)[8..17], [28, 0, 2, 0, 0, 0, 0, 0, 6]);
    }

    #[test]
    fn times_are_given_or_now_or_left() {
        assert_eq!(times(0, 0, 0), Ok((Time::Same, Time::Same)));
        let second = Stamp { seconds: 2, nanoseconds: 1 };
        assert_eq!(times(2_000_000_001, 0, 1 | 8), Ok((Time::At(second), Time::Now)));
        assert_eq!(times(0, 0, 3), Err(Errno::INVAL));
    }
}
