//! Files in memory without a name, to hand a text of any length to another process.

use std::io::Write as _;
use std::os::fd::OwnedFd;

use rustix::fs::MemfdFlags;

use super::{Errno, Error};

/// A file that holds `bytes` and can be passed on. Its reader rewinds it: all who hold it share one position.
///
/// # Errors
/// Those of memfd_create(2) and write(2).
pub fn holding(bytes: &[u8]) -> Result<OwnedFd, Error> {
    let refused = |errno| Error::new("make", "a file in memory", errno);
    let create = |flags| rustix::fs::memfd_create(c"httpd", flags | MemfdFlags::CLOEXEC);
    // Where vm.memfd_noexec asks for it; Linux before 6.3 does not know it.
    let created = match create(MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => create(MemfdFlags::empty()),
        created => created,
    };
    let mut file = std::fs::File::from(created.map_err(refused)?);
    file.write_all(bytes).map_err(|error| Error::from_io("fill", "a file in memory", &error))?;
    Ok(file.into())
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
