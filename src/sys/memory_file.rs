//! Files in memory without a name, to hand a text of any length to another process, or a page to share with it.

use std::io::Write as _;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags};

use super::{Errno, Error, shared};

/// A file that holds `bytes` and can be passed on. Its reader rewinds it: all who hold it share one position.
///
/// # Errors
/// Those of memfd_create(2) and write(2).
pub fn holding(bytes: &[u8]) -> Result<OwnedFd, Error> {
    let mut file = std::fs::File::from(create().map_err(refused)?);
    file.write_all(bytes).map_err(|error| Error::from_io("fill", "a file in memory", &error))?;
    Ok(file.into())
}

/// A file of one page, all zeros, whose size is fixed: mapped memory of it stays memory.
///
/// # Errors
/// Those of memfd_create(2), ftruncate(2) and fcntl(2).
pub fn page() -> Result<OwnedFd, Error> {
    let file = create().map_err(refused)?;
    rustix::fs::ftruncate(&file, shared::BYTES as u64).map_err(refused)?;
    rustix::fs::fcntl_add_seals(&file, FIXED).map_err(refused)?;
    Ok(file)
}

/// Whether a file is one that [`page`] made.
pub(super) fn is_page(file: &OwnedFd) -> bool {
    let size = rustix::fs::fstat(file).map(|facts| facts.st_size);
    let seals = rustix::fs::fcntl_get_seals(file);
    size == Ok(shared::BYTES as i64) && seals.is_ok_and(|seals| seals.contains(FIXED))
}

const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

fn create() -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Where vm.memfd_noexec asks for it; Linux before 6.3 does not know it.
    match rustix::fs::memfd_create(c"httpd", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(c"httpd", flags),
        created => created,
    }
}

fn refused(errno: Errno) -> Error {
    Error::new("make", "a file in memory", errno)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Seek as _};

    #[test]
    fn what_is_put_in_comes_out() {
        let mut file = std::fs::File::from(holding(b"some text").expect("a file"));
        let mut text = String::new();
        file.rewind().expect("back at the start");
        file.read_to_string(&mut text).expect("text");
        assert_eq!(text, "some text");
    }
}
