//! Files that are only ever appended to: logs.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::Error;

/// Opens a log, making it where there is none, readable by its owner and group.
///
/// # Errors
/// Those of open(2); ENXIO for a fifo that nobody reads, which would otherwise be waited for.
pub fn open(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::CLOEXEC
        | OFlags::NONBLOCK
        | OFlags::NOCTTY;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o640))
        .map_err(|errno| Error::new("open the log", path.display().to_string(), errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_log_is_made_and_appended_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        for line in ["one\n", "two\n"] {
            std::fs::File::from(open(&path).unwrap()).write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o137, 0);
        assert!(open(&directory.path().join("missing/access.log")).is_err());
    }
}
