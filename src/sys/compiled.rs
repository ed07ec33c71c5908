//! Compiled WebAssembly on disk. It is machine code: whoever writes it decides what the process that loads it
//! does. Therefore only what this user wrote is loaded, from a directory nobody else can write to, and only
//! if it is whole.
//!
//! A file is the code and, behind it, its SHA-256. That guards against torn and rotten files; against
//! forgery by other users guards the owner. Nothing guards against processes of the same user: the
//! precompressor, whose sandbox has all of the cache, and scripts that run as nobody else.

use std::fs::{DirBuilder, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use rustix::fs::{AtFlags, Mode, OFlags};
use wasmtime::{Engine, Module};

use super::beneath::{self, How, Kind, Time};
use super::{Errno, Error};

/// Why a file was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum Distrust {
    /// The system refused.
    #[error("it cannot be read: {0}")]
    System(Errno),
    /// Somebody else could have written it.
    #[error("it belongs to user {owner} with mode {mode:04o}, so others may have written it")]
    Foreign {
        /// Its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// It is not what was written.
    #[error("it is damaged")]
    Damaged,
    /// The engine does not want it.
    #[error("{0:#}")]
    Engine(wasmtime::Error),
}

/// The directory of compiled modules.
#[derive(Debug)]
pub struct Compiled {
    directory: OwnedFd,
}

/// Beyond what any module compiles to.
const BYTES_MAX: u64 = 1 << 30;

impl Compiled {
    /// Opens the directory, making it if there is none.
    ///
    /// # Errors
    /// Those of mkdir(2) and open(2); EPERM where others may write to it.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let refused = |errno| Error::new("keep compiled modules in", path.display().to_string(), errno);
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(Error::from_io("make", path.display().to_string(), &error));
            }
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(refused)?;
        let look = beneath::look(&directory).map_err(refused)?;
        match is_own(&look) {
            true => Ok(Self { directory }),
            false => Err(refused(Errno::PERM)),
        }
    }

    /// Loads what `save` wrote under this name; `None` if it wrote nothing.
    ///
    /// # Errors
    /// Why it is not to be used.
    pub fn load(&self, name: &str, engine: &Engine) -> Result<Option<Module>, Distrust> {
        let how = How { read: true, ..How::default() };
        let (mut file, look) = match beneath::open(&self.directory, name.as_bytes(), how) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(Distrust::System(errno)),
        };
        if look.kind != Kind::File || !is_own(&look) {
            return Err(Distrust::Foreign { owner: look.owner, mode: look.mode });
        }
        let mut bytes = Vec::new();
        (&mut file)
            .take(BYTES_MAX)
            .read_to_end(&mut bytes)
            .map_err(|error| Distrust::System(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        let code_length = bytes.len().checked_sub(SHA256_OUTPUT_LEN).ok_or(Distrust::Damaged)?;
        let (code, sum) = bytes.split_at(code_length);
        if digest(&SHA256, code).as_ref() != sum {
            return Err(Distrust::Damaged);
        }
        // Says when it was last of use; for housekeeping only.
        let _ = beneath::set_times(&file, Time::Same, Time::Now);
        // SAFETY: only this user can have written these bytes, to a directory only this user may write to;
        // what the host writes here is what an engine serialised, and other processes of the user are trusted
        // not to write here: one that does could be this host anyway, in all but its sandbox. That they are
        // still what was written was checked by their sum. Bytes of another version of the engine are refused
        // by it.
        let module = unsafe { Module::deserialize(engine, code) };
        module.map(Some).map_err(Distrust::Engine)
    }

    /// Writes a compiled module. Until it is complete, it has another name.
    ///
    /// # Errors
    /// Those of open(2), write(2) and rename(2).
    pub fn save(&self, name: &str, module: &Module) -> Result<(), wasmtime::Error> {
        let code = module.serialize()?;
        let sum = digest(&SHA256, &code);
        // Two threads may compile the same contents.
        let temporary = format!(".{name}.{}.{:?}", std::process::id(), std::thread::current().id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let mut file = File::from(rustix::fs::openat(&self.directory, &temporary, flags, mode)?);
        let written = file.write_all(&code).and_then(|()| file.write_all(sum.as_ref()));
        let published = written.and_then(|()| {
            rustix::fs::renameat(&self.directory, &temporary, &self.directory, name).map_err(Into::into)
        });
        if published.is_err() {
            let _ = rustix::fs::unlinkat(&self.directory, &temporary, AtFlags::empty());
        }
        Ok(published?)
    }

    /// Removes what has not been used since `seconds` (of the Unix epoch).
    ///
    /// # Errors
    /// Those of getdents64(2).
    pub fn forget_before(&self, seconds: i64) -> Result<(), Errno> {
        for entry in beneath::names(&self.directory)? {
            let Ok(look) = beneath::look_at(&self.directory, &entry.name, false) else { continue };
            if look.kind == Kind::File && look.modified.seconds < seconds {
                rustix::fs::unlinkat(self.directory.as_fd(), &entry.name, AtFlags::empty())?;
            }
        }
        Ok(())
    }
}

/// Whether it belongs to the user of this process and nobody else may write to it.
fn is_own(look: &beneath::Look) -> bool {
    look.owner == rustix::process::geteuid().as_raw() && look.mode & 0o022 == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, chown};

    #[test]
    fn only_what_was_saved_is_loaded() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("compiled");
        let compiled = Compiled::open(&path).expect("made");
        let engine = Engine::default();
        // The smallest module: its magic number and version.
        let module = Module::new(&engine, b"\0asm\x01\0\0\0").expect("compiled");
        assert!(compiled.load("a", &engine).expect("asked").is_none());
        compiled.save("a", &module).expect("saved");
        assert!(compiled.load("a", &engine).expect("asked").is_some());
        let file = path.join("a");
        let sound = std::fs::read(&file).expect("read");
        assert_eq!(std::fs::read_dir(&path).expect("read").count(), 1, "nothing temporary is left");

        let damaged = |bytes: &[u8]| {
            std::fs::write(&file, bytes).expect("written");
            assert!(matches!(compiled.load("a", &engine), Err(Distrust::Damaged)));
        };
        damaged(b"");
        damaged(&sound[..sound.len() - 1]);
        let mut other = sound.clone();
        other[sound.len() / 2] ^= 1;
        damaged(&other);

        std::fs::write(&file, &sound).expect("written");
        let mode =
            |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("set");
        mode(0o622);
        assert!(matches!(compiled.load("a", &engine), Err(Distrust::Foreign { .. })));
        mode(0o600);
        assert!(compiled.load("a", &engine).expect("asked").is_some());
        if rustix::process::geteuid().is_root() {
            chown(&file, Some(65534), None).expect("given away");
            assert!(matches!(compiled.load("a", &engine), Err(Distrust::Foreign { owner: 65534, .. })));
        }
        compiled.forget_before(1).expect("asked");
        assert!(file.exists());
        compiled.forget_before(i64::MAX).expect("asked");
        assert!(!file.exists());
    }

    #[test]
    fn a_directory_of_others_is_refused() {
        let place = tempfile::tempdir().expect("a directory");
        let open = place.path().join("open");
        std::fs::create_dir(&open).expect("made");
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).expect("set");
        assert_eq!(Compiled::open(&open).expect_err("others may write").errno, Errno::PERM);
        std::os::unix::fs::symlink(place.path(), place.path().join("link")).expect("made");
        assert!(Compiled::open(&place.path().join("link")).is_err(), "a symlink");
        assert!(Compiled::open(&place.path().join("no/parent")).is_err(), "no parent");
    }
}
