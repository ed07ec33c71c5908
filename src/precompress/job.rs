//! One source: read once, coded as often as wanted, published only if it stayed what it was meanwhile.
//!
//! Contents that were coded before, under another name or in an earlier release of the site, are not coded
//! again: their variants are taken over. Not so those that are too large to be held in memory: what they are is
//! known when they have been read, and by then they are coded.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::codings::{self, Encoders, WHOLE_BYTES_MAX};
use super::drafts::Draft;
use super::store::Store;
use super::walk::Source;
use crate::files::entry::Coding;
use crate::files::variants::{Fingerprint, Footer};
use crate::sys::file::{Facts, Kind};
use crate::sys::{Errno, tree, wait};

/// How often a source that changes while it is coded is tried again.
const TRIES: u8 = 3;

/// A change older than this shows in the facts when another follows: the coarsest time of a file system.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Job {
    /// Which root the source lies beneath.
    pub root: usize,
    /// The source.
    pub source: Source,
    /// Which variants are missing.
    pub missing: Vec<Coding>,
    /// Whether a process was killed while it did this: it is done with nothing beside it, so that should it
    /// happen again, it is clear who it was.
    pub is_suspect: bool,
}

/// What came of one coding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Made {
    /// Which.
    pub coding: Coding,
    /// How many coded bytes; `None`: no fewer than the source has.
    pub bytes: Option<u64>,
    /// Whether an earlier variant of the same contents was taken over.
    pub is_reused: bool,
    /// Time of the processor.
    pub time: Duration,
}

/// Why it came to nothing.
#[derive(Debug)]
pub enum Failure {
    /// The source changed all the time, or is no file any more: it will be met again.
    Changed,
    /// The source cannot be read.
    Source(io::Error),
    /// The cache cannot be written to.
    Cache(io::Error),
}

/// What came of a job.
#[derive(Debug)]
pub struct Done {
    /// As in the job.
    pub root: usize,
    /// The source's path beneath the root.
    pub path: Vec<u8>,
    /// Its size.
    pub size: u64,
    /// What was made, until something failed.
    pub made: Vec<Made>,
    /// What failed.
    pub failure: Option<Failure>,
}

/// Which variants hold which contents.
#[derive(Debug, Default)]
pub struct Contents(Mutex<HashMap<(u128, Coding), (String, Fingerprint)>>);

impl Contents {
    /// Notes where the variant of some contents lies.
    pub fn note(&self, source_hash: u128, coding: Coding, root: &str, fingerprint: Fingerprint) {
        let mut known = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.entry((source_hash, coding)).or_insert_with(|| (root.to_owned(), fingerprint));
    }

    fn find(&self, source_hash: u128, coding: Coding) -> Option<(String, Fingerprint)> {
        let known = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.get(&(source_hash, coding)).cloned()
    }

    fn forget(&self, source_hash: u128, coding: Coding) {
        let mut known = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.remove(&(source_hash, coding));
    }
}

/// Where jobs are done.
#[derive(Clone, Copy, Debug)]
pub struct Workshop<'a> {
    /// The cache.
    pub store: &'a Store,
    /// What is known of contents; `None`: everything is coded anew.
    pub contents: Option<&'a Contents>,
    /// The roots: open, and their names in the cache.
    pub roots: &'a [Option<(OwnedFd, String)>],
    /// Larger sources are left alone.
    pub max_size: u64,
}

/// How much memory a job takes.
pub fn memory(job: &Job) -> u64 {
    codings::memory(job.source.facts.size)
}

impl Workshop<'_> {
    /// Does a job.
    pub fn work(&self, job: &Job, encoders: &mut Encoders) -> Done {
        let size = job.source.facts.size;
        let mut done =
            Done { root: job.root, path: job.source.path.clone(), size, made: Vec::new(), failure: None };
        let Some((root, name)) = self.roots.get(job.root).and_then(Option::as_ref) else { return done };
        for _ in 0..TRIES {
            match self.attempt(job, root, name, encoders, &mut done) {
                Err(Failure::Changed) => done.made.clear(),
                ended => {
                    done.failure = ended.err();
                    return done;
                }
            }
        }
        done.failure = Some(Failure::Changed);
        done
    }

    fn attempt(
        &self,
        job: &Job,
        root: &OwnedFd,
        name: &str,
        encoders: &mut Encoders,
        done: &mut Done,
    ) -> Result<(), Failure> {
        let opened = tree::open_beneath(root, &job.source.path, job.source.symlinks);
        let (file, facts) = opened.map_err(|errno| match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::XDEV | Errno::LOOP => Failure::Changed,
            errno => Failure::Source(errno.into()),
        })?;
        let fits = codings::memory(facts.size) <= memory(job) && facts.size <= self.max_size;
        if facts.kind != Kind::File || !fits {
            return Err(Failure::Changed);
        }
        settle(&facts);
        let mut open = Open { file: File::from(file), facts };
        done.size = facts.size;
        let fingerprint = Fingerprint::of(&facts);
        // What it was when it was met may have been another file, of which nothing is missing.
        let is_same = fingerprint == Fingerprint::of(&job.source.facts);
        let missing = job.missing.iter().copied();
        let missing: Vec<Coding> = missing
            .filter(|coding| is_same || self.store.footer(name, &fingerprint, *coding).is_none())
            .collect();
        if facts.size <= WHOLE_BYTES_MAX {
            let source = open.read()?;
            let source = Whole { hash: xxh3_128(&source), bytes: source, name, fingerprint };
            missing.into_iter().try_for_each(|coding| {
                self.code(&source, coding, &open, encoders).map(|made| done.made.push(made))
            })
        } else {
            missing.into_iter().try_for_each(|coding| {
                self.stream(name, fingerprint, coding, &mut open).map(|made| done.made.push(made))
            })
        }
    }

    fn code(
        &self,
        source: &Whole,
        coding: Coding,
        open: &Open,
        encoders: &mut Encoders,
    ) -> Result<Made, Failure> {
        let Whole { bytes, hash, name, fingerprint } = source;
        let began = wait::thread_time();
        let mut draft = self.store.draft(name, fingerprint, coding).map_err(Failure::Cache)?;
        let earlier = self.earlier(*hash, coding, bytes.len() as u64);
        let is_reused = earlier.is_some();
        let coded = match earlier {
            Some(coded) => Some(coded),
            None => encoders.code(coding, bytes).map_err(Failure::Source)?,
        };
        open.is_as_it_was()?;
        let footer = |coded: &[u8]| Footer {
            coded_length: coded.len() as u64,
            source_hash: *hash,
            coded_hash: xxh3_128(coded),
        };
        if let Some(coded) = &coded {
            draft.file().write_all(coded).map_err(Failure::Cache)?;
            draft.publish(&footer(coded).encode(fingerprint, coding)).map_err(Failure::Cache)?;
            self.note(*hash, coding, name, *fingerprint);
        } else {
            self.store.note_larger(name, fingerprint, coding).map_err(Failure::Cache)?;
        }
        let time = wait::thread_time().saturating_sub(began);
        Ok(Made { coding, bytes: coded.map(|coded| coded.len() as u64), is_reused, time })
    }

    /// The same for a source too large to be held.
    fn stream(
        &self,
        name: &str,
        fingerprint: Fingerprint,
        coding: Coding,
        open: &mut Open,
    ) -> Result<Made, Failure> {
        let began = wait::thread_time();
        let mut draft = self.store.draft(name, &fingerprint, coding).map_err(Failure::Cache)?;
        io::Seek::rewind(&mut open.file).map_err(Failure::Source)?;
        let mut source = Reading { file: &mut open.file, hash: Xxh3::new(), length: 0, failed: None };
        let mut coded = Writing { draft: &mut draft, hash: Xxh3::new(), length: 0, failed: None };
        let ended = codings::stream(coding, &mut source, fingerprint.size, &mut coded);
        let Reading { hash: source_hash, length: source_length, failed: unread, .. } = source;
        let source_hash = source_hash.digest128();
        let Writing { hash, length: coded_length, failed, .. } = coded;
        if let Some(error) = failed {
            return Err(Failure::Cache(error));
        }
        if let Some(error) = unread {
            return Err(Failure::Source(error));
        }
        // Before what the encoder says: to be told a wrong size is an error to some.
        if source_length != fingerprint.size {
            return Err(Failure::Changed);
        }
        ended.map_err(Failure::Source)?;
        open.is_as_it_was()?;
        let is_smaller = coded_length < fingerprint.size;
        if is_smaller {
            let footer = Footer { coded_length, source_hash, coded_hash: hash.digest128() };
            draft.publish(&footer.encode(&fingerprint, coding)).map_err(Failure::Cache)?;
        } else {
            self.store.note_larger(name, &fingerprint, coding).map_err(Failure::Cache)?;
        }
        let time = wait::thread_time().saturating_sub(began);
        Ok(Made { coding, bytes: is_smaller.then_some(coded_length), is_reused: false, time })
    }

    /// The coded bytes of the same contents, made before.
    fn earlier(&self, hash: u128, coding: Coding, size: u64) -> Option<Vec<u8>> {
        let contents = self.contents?;
        let (name, fingerprint) = contents.find(hash, coding)?;
        let footer = self.store.footer(&name, &fingerprint, coding);
        let coded = footer
            .filter(|(footer, _)| footer.source_hash == hash && fingerprint.size == size)
            .and_then(|(footer, _)| self.store.coded(&name, &fingerprint, coding, &footer));
        if coded.is_none() {
            contents.forget(hash, coding);
        }
        coded
    }

    fn note(&self, hash: u128, coding: Coding, name: &str, fingerprint: Fingerprint) {
        if let Some(contents) = self.contents {
            contents.note(hash, coding, name, fingerprint);
        }
    }
}

/// A source in memory.
struct Whole<'a> {
    bytes: Vec<u8>,
    hash: u128,
    name: &'a str,
    fingerprint: Fingerprint,
}

/// A source, open.
struct Open {
    file: File,
    facts: Facts,
}

impl Open {
    fn read(&mut self) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::with_capacity(usize::try_from(self.facts.size).unwrap_or_default() + 1);
        let limit = self.facts.size.saturating_add(1);
        (&mut self.file).take(limit).read_to_end(&mut bytes).map_err(Failure::Source)?;
        self.is_as_it_was()?;
        if bytes.len() as u64 == self.facts.size { Ok(bytes) } else { Err(Failure::Changed) }
    }

    /// A file that was replaced by rename lost its name, which is a change of the inode too.
    fn is_as_it_was(&self) -> Result<(), Failure> {
        match tree::facts(&self.file) {
            Ok(facts) if facts == self.facts => Ok(()),
            _ => Err(Failure::Changed),
        }
    }
}

/// Waits until a later change of a file must show in its facts.
fn settle(facts: &Facts) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let changed = u64::try_from(facts.changed.seconds).unwrap_or_default();
    let changed = Duration::new(changed, facts.changed.nanoseconds.min(999_999_999));
    // A change in the future was made before the clock was set back: the next one will differ.
    if let Some(age) = now.checked_sub(changed)
        && let Some(rest) = SETTLED_AFTER.checked_sub(age)
    {
        std::thread::sleep(rest);
    }
}

struct Reading<'a> {
    file: &'a mut File,
    hash: Xxh3,
    length: u64,
    failed: Option<io::Error>,
}

impl Read for Reading<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = match self.file.read(into) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                // Kept, since it is not the encoder's.
                let kind = error.kind();
                self.failed.get_or_insert(error);
                Err(kind.into())
            }
            other => other,
        }?;
        self.hash.update(into.get(..length).unwrap_or_default());
        self.length += length as u64;
        Ok(length)
    }
}

struct Writing<'a> {
    draft: &'a mut Draft,
    hash: Xxh3,
    length: u64,
    failed: Option<io::Error>,
}

impl Write for Writing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.draft.file().write(bytes) {
            Ok(length) => {
                self.hash.update(bytes.get(..length).unwrap_or_default());
                self.length += length as u64;
                Ok(length)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                // Kept, since an encoder that is dropped tells nobody.
                let kind = error.kind();
                self.failed.get_or_insert(error);
                Err(kind.into())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_source_that_cannot_be_read_is_no_change() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(&directory.path().join("cache"));
        let workshop = Workshop { store: &store, contents: None, roots: &[], max_size: u64::MAX };
        // A directory opens as a file does, and reading it fails.
        let file = File::open(directory.path()).unwrap();
        let facts = Facts { size: WHOLE_BYTES_MAX + 1, ..tree::facts(&file).unwrap() };
        let mut open = Open { file, facts };
        for coding in Coding::ALL {
            let made = workshop.stream("html-0123456789abcdef", Fingerprint::of(&facts), coding, &mut open);
            assert!(matches!(made, Err(Failure::Source(_))), "{coding:?}: {made:?}");
        }
    }
}
