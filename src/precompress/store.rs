//! The cache directory: which variants there are, publishing one, and taking away what nothing needs.
//!
//! ```text
//! <root name>/<2 hex>/<fingerprint>.br               a variant
//! <root name>/<2 hex>/<fingerprint>.br.larger        empty: the coding makes this source no smaller
//! <root name>/<2 hex>/<fingerprint>.br.<writer>.tmp  being written, or left by a process that was killed
//! ```
//!
//! Other servers may work in the same directory at the same time: every step is one system call that
//! leaves a state anybody may find, and a variant that nobody needs stays for a while, since somebody else
//! may. When a variant was last needed is its modification time.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use xxhash_rust::xxh3::xxh3_128;

use super::drafts::{Draft, Drafts};
use crate::files::entry::Coding;
use crate::files::variants::{FOOTER_BYTES, Fingerprint, Footer};
use crate::sys::lock;

const LARGER: &[u8] = b".larger";
const TEMPORARY: &[u8] = b".tmp";

/// Processes that were killed while they wrote a variant leave their file behind. So many of them say that
/// it is the source that kills: one that was there when it happened is tried again with nothing beside it
/// ([`Kept::is_suspect`]), so that it pays for nobody else.
const ATTEMPTS_MAX: u8 = 3;

/// Nothing is written for longer than this: an older temporary file is left over.
const TEMPORARY_AFTER: Duration = Duration::from_secs(86_400);

/// The cache directory.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    writer: String,
    written: AtomicU64,
    drafts: Drafts,
}

/// What there is of one source.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Kept {
    present: u8,
    larger: u8,
    attempts: [u8; 3],
    /// Whether a source was met that needs it.
    pub is_needed: bool,
}

impl Kept {
    /// Whether the variant is there.
    pub fn has(&self, coding: Coding) -> bool {
        self.present & bit(coding) != 0
    }

    /// Whether there is nothing to be done: it is there, is known to be no smaller, or has killed too often.
    pub fn settles(&self, coding: Coding) -> bool {
        (self.present | self.larger) & bit(coding) != 0 || self.is_deadly(coding)
    }

    /// Whether making it has killed too often.
    pub fn is_deadly(&self, coding: Coding) -> bool {
        self.attempts[index(coding)] >= ATTEMPTS_MAX
    }

    /// Whether a process was killed while it made it.
    pub fn is_suspect(&self, coding: Coding) -> bool {
        self.attempts[index(coding)] > 0
    }

    /// The variant is not there after all.
    pub fn forget(&mut self, coding: Coding) {
        self.present &= !bit(coding);
    }
}

/// What there is of all sources of a root.
pub type Inventory = HashMap<Fingerprint, Kept>;

/// What was taken away.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Collected {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Store {
    /// The cache in this directory.
    pub fn new(directory: &Path) -> Self {
        let moment = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let writer = format!("{:x}-{:x}", std::process::id(), moment.as_nanos());
        let directory = directory.to_owned();
        Self { directory, writer, written: AtomicU64::new(0), drafts: Drafts::default() }
    }

    /// What is being written to it by this process.
    pub fn drafts(&self) -> &Drafts {
        &self.drafts
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes sure that a root's directory is there, and that it says to people whose it is.
    ///
    /// # Errors
    /// When it cannot be made or not be written to.
    pub fn open_root(&self, name: &str) -> io::Result<()> {
        make_directories(&self.directory.join(name))
    }

    /// What there is of the sources of a root. Nothing where its directory is not there yet.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn inventory(&self, name: &str) -> io::Result<Inventory> {
        let mut inventory = Inventory::new();
        self.each_file(name, |directory, file| take_stock(directory, file, &mut inventory))?;
        Ok(inventory)
    }

    /// What there is of those sources of a root that lie in one directory of the cache with this one.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn inventory_beside(
        &self,
        name: &str,
        fingerprint: &Fingerprint,
        inventory: &mut Inventory,
    ) -> io::Result<()> {
        let part = self.directory.join(name).join(Self::part(fingerprint));
        each_file_in(&part, &mut |directory, file| take_stock(directory, file, inventory))
    }

    /// The directory of the cache, beneath that of the root, in which the variants of a source lie.
    pub fn part(fingerprint: &Fingerprint) -> PathBuf {
        let path = PathBuf::from(fingerprint.path(Coding::Gzip));
        path.parent().map(Path::to_owned).unwrap_or_default()
    }

    /// The footer of a variant and when it was last needed; `None` where it is not there or not right.
    pub fn footer(
        &self,
        name: &str,
        fingerprint: &Fingerprint,
        coding: Coding,
    ) -> Option<(Footer, SystemTime)> {
        let file = File::open(self.path(name, fingerprint, coding)).ok()?;
        let facts = file.metadata().ok()?;
        let mut bytes = [0; FOOTER_BYTES];
        let start = facts.len().checked_sub(FOOTER_BYTES as u64)?;
        file.read_exact_at(&mut bytes, start).ok()?;
        let footer = Footer::decode(&bytes, facts.len(), fingerprint, coding)?;
        Some((footer, facts.modified().ok()?))
    }

    /// Notes that a variant is needed still.
    pub fn renew(&self, name: &str, fingerprint: &Fingerprint, coding: Coding) {
        // One that just went is made anew, and one of another user's is that user's to renew.
        let file = File::open(self.path(name, fingerprint, coding));
        let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// The coded bytes of a variant, if they are what its footer says.
    pub fn coded(
        &self,
        name: &str,
        fingerprint: &Fingerprint,
        coding: Coding,
        footer: &Footer,
    ) -> Option<Vec<u8>> {
        let mut bytes = fs::read(self.path(name, fingerprint, coding)).ok()?;
        let length = usize::try_from(footer.coded_length).ok()?;
        (bytes.len() == length + FOOTER_BYTES).then(|| bytes.truncate(length))?;
        (xxh3_128(&bytes) == footer.coded_hash).then_some(bytes)
    }

    /// Begins to write a variant. That it was begun can be seen, should it end this process.
    ///
    /// # Errors
    /// Those of open(2) and mkdir(2).
    pub fn draft(&self, name: &str, fingerprint: &Fingerprint, coding: Coding) -> io::Result<Draft> {
        let path = self.path(name, fingerprint, coding);
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let mut temporary = path.clone().into_os_string();
        temporary.push(format!(".{}-{number:x}.tmp", self.writer));
        self.drafts.begin(temporary.into(), path)
    }

    /// Notes that a coding makes a source no smaller.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn note_larger(&self, name: &str, fingerprint: &Fingerprint, coding: Coding) -> io::Result<()> {
        let mut path = self.path(name, fingerprint, coding).into_os_string();
        path.push(".larger");
        match OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(path) {
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes away what no source of a root needs and none has needed for `keep`, and what was left by
    /// processes that were killed.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn collect(
        &self,
        name: &str,
        keep: Duration,
        is_needed: impl Fn(&Fingerprint) -> bool,
    ) -> io::Result<Collected> {
        let mut collected = Collected::default();
        let now = SystemTime::now();
        self.each_file(name, |directory, file| {
            let stem = file.strip_suffix(LARGER).unwrap_or(file);
            let age_max = match Fingerprint::from_name(stem) {
                Some((fingerprint, _)) if is_needed(&fingerprint) => return,
                Some(_) => keep,
                None if temporary_of(file).is_some() => TEMPORARY_AFTER,
                // Whatever else lies there is not ours.
                None => return,
            };
            let path = directory.join(std::ffi::OsStr::from_bytes(file));
            let Ok(facts) = fs::symlink_metadata(&path) else { return };
            // A time to come says that the clock was set back, and nothing of the age.
            let age = facts.modified().ok().and_then(|needed| now.duration_since(needed).ok());
            if age.is_some_and(|age| age >= age_max) && fs::remove_file(&path).is_ok() {
                collected.files += 1;
                collected.bytes += facts.len();
            }
        })?;
        Ok(collected)
    }

    fn path(&self, name: &str, fingerprint: &Fingerprint, coding: Coding) -> PathBuf {
        self.directory.join(name).join(fingerprint.path(coding))
    }

    fn each_file(&self, name: &str, mut each: impl FnMut(&Path, &[u8])) -> io::Result<()> {
        let parts = match fs::read_dir(self.directory.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        for part in parts {
            let part = part?;
            if part.file_name().len() != 2 {
                continue;
            }
            each_file_in(&part.path(), &mut each)?;
        }
        Ok(())
    }
}

fn each_file_in(directory: &Path, each: &mut impl FnMut(&Path, &[u8])) -> io::Result<()> {
    let files = match fs::read_dir(directory) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(());
        }
        other => other?,
    };
    for file in files {
        each(directory, file?.file_name().as_bytes());
    }
    Ok(())
}

fn take_stock(directory: &Path, file: &[u8], inventory: &mut Inventory) {
    if let Some((fingerprint, coding)) = Fingerprint::from_name(file) {
        inventory.entry(fingerprint).or_default().present |= bit(coding);
    } else if let Some((fingerprint, coding)) = file.strip_suffix(LARGER).and_then(Fingerprint::from_name) {
        inventory.entry(fingerprint).or_default().larger |= bit(coding);
    } else if let Some((fingerprint, coding)) = temporary_of(file)
        && is_left_over(&directory.join(std::ffi::OsStr::from_bytes(file)))
    {
        let attempts = &mut inventory.entry(fingerprint).or_default().attempts[index(coding)];
        *attempts = attempts.saturating_add(1);
    }
}

/// Whether whoever wrote a temporary file is gone; another server may be at it.
fn is_left_over(temporary: &Path) -> bool {
    File::open(temporary).is_ok_and(|file| !lock::is_held(file))
}

/// Makes a directory and those above it, for all to read.
///
/// # Errors
/// Those of mkdir(2).
pub fn make_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Which variant a temporary name is for.
fn temporary_of(name: &[u8]) -> Option<(Fingerprint, Coding)> {
    let stem = name.strip_suffix(TEMPORARY)?;
    let dot = stem.iter().rposition(|byte| *byte == b'.')?;
    Fingerprint::from_name(stem.get(..dot)?)
}

fn index(coding: Coding) -> usize {
    match coding {
        Coding::Brotli => 0,
        Coding::Zstd => 1,
        Coding::Gzip => 2,
    }
}

fn bit(coding: Coding) -> u8 {
    1 << index(coding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::file::Stamp;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    const NAME: &str = "html-0123456789abcdef";

    fn fingerprint(inode: u64) -> Fingerprint {
        let stamp = Stamp { seconds: 1_700_000_000, nanoseconds: 5 };
        Fingerprint { inode, size: 100, modified: stamp, changed: stamp }
    }

    fn publish(store: &Store, print: &Fingerprint, coding: Coding, coded: &[u8]) {
        let footer = Footer { coded_length: coded.len() as u64, source_hash: 1, coded_hash: xxh3_128(coded) };
        let mut draft = store.draft(NAME, print, coding).expect("a draft");
        draft.file().write_all(coded).expect("room");
        draft.publish(&footer.encode(print, coding)).expect("published");
    }

    fn make_old(store: &Store, age: Duration) {
        store
            .each_file(NAME, |directory, name| {
                let file =
                    File::open(directory.join(std::ffi::OsStr::from_bytes(name))).expect("it is there");
                file.set_modified(SystemTime::now() - age).expect("a time can be set");
            })
            .expect("it can be read");
    }

    #[test]
    fn what_is_published_is_found_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(&directory.path().join("not/yet"));
        assert_eq!(store.inventory(NAME).unwrap().len(), 0);
        let (one, two) = (fingerprint(1), fingerprint(2));
        publish(&store, &one, Coding::Brotli, b"coded");
        drop(store.draft(NAME, &one, Coding::Zstd).unwrap());
        store.note_larger(NAME, &one, Coding::Gzip).unwrap();
        let left: Vec<Draft> = (0..3).map(|_| store.draft(NAME, &two, Coding::Zstd).unwrap()).collect();
        left.into_iter().for_each(Draft::leave);
        let _at_work: Vec<Draft> = (0..3).map(|_| store.draft(NAME, &one, Coding::Zstd).unwrap()).collect();
        fs::write(store.directory().join(NAME).join("01/README"), "").unwrap();

        let inventory = store.inventory(NAME).unwrap();
        assert_eq!(inventory.len(), 2);
        let (kept, deadly) = (inventory[&one], inventory[&two]);
        assert_eq!(Coding::ALL.map(|coding| kept.has(coding)), [true, false, false]);
        assert_eq!(Coding::ALL.map(|coding| kept.settles(coding)), [true, false, true]);
        assert_eq!(Coding::ALL.map(|coding| deadly.is_deadly(coding)), [false, true, false]);
        assert_eq!(Coding::ALL.map(|coding| deadly.is_suspect(coding)), [false, true, false]);
        assert!(!kept.is_suspect(Coding::Zstd), "somebody is at it");
        let mut beside = Inventory::new();
        store.inventory_beside(NAME, &one, &mut beside).unwrap();
        store.inventory_beside(NAME, &two, &mut beside).unwrap();
        store.inventory_beside("elsewhere", &two, &mut beside).unwrap();

        let (footer, _) = store.footer(NAME, &one, Coding::Brotli).expect("it is whole");
        assert_eq!(store.coded(NAME, &one, Coding::Brotli, &footer).as_deref(), Some(&b"coded"[..]));
        assert_eq!(store.footer(NAME, &one, Coding::Zstd), None);
        let path = store.path(NAME, &one, Coding::Brotli);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        let mut bytes = fs::read(&path).unwrap();
        bytes[0] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(store.coded(NAME, &one, Coding::Brotli, &footer), None, "a flipped bit");
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(store.footer(NAME, &one, Coding::Brotli), None, "cut short");
    }

    #[test]
    fn what_nobody_needs_goes_after_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        let (needed, orphan) = (fingerprint(1), fingerprint(2));
        for print in [&needed, &orphan] {
            publish(&store, print, Coding::Brotli, b"coded");
            store.note_larger(NAME, print, Coding::Gzip).unwrap();
        }
        store.draft(NAME, &needed, Coding::Zstd).unwrap().leave();
        let foreign = store.directory().join(NAME).join("01/foreign");
        fs::write(&foreign, "").unwrap();
        let hour = Duration::from_secs(3600);
        let collect = || store.collect(NAME, hour, |print| *print == needed).unwrap().files;
        assert_eq!(collect(), 0, "all are young");
        make_old(&store, hour);
        store.renew(NAME, &orphan, Coding::Brotli);
        assert_eq!(collect(), 1, "the note about the orphan; the orphan was needed by somebody just now");
        make_old(&store, 2 * TEMPORARY_AFTER);
        assert_eq!(collect(), 2, "the orphan, and what a killed process left");
        assert!(foreign.exists(), "what is not ours stays");
        let inventory = store.inventory(NAME).unwrap();
        assert!(inventory.contains_key(&needed) && !inventory.contains_key(&orphan));
    }

    #[test]
    fn a_clock_that_was_set_back_takes_nothing_away() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        publish(&store, &fingerprint(1), Coding::Zstd, b"coded");
        let file = File::open(store.path(NAME, &fingerprint(1), Coding::Zstd)).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(999_999)).unwrap();
        assert_eq!(store.collect(NAME, Duration::ZERO, |_| false).unwrap().files, 0);
    }
}
