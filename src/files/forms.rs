//! The forms of one file: which fact is wanted next, until all of them are known.
//!
//! ```text
//! source ─ read ─┬▶ per coding: variant in the cache ─ read, or its footer ──┬▶ Done
//!                │                └ none, or not right: sidecar ─ read ──────┘
//! no source ─────┴▶ sidecars ── plain is wanted: read, decode ──────────────── Done
//! ```
//!
//! A variant in the cache comes before a sidecar, because its footer says which contents it was made of;
//! and one that is in RAM is not looked at again while its source is what it was, because its name cannot
//! come to mean other contents. So a revalidation costs one open for a file all of whose variants are in RAM,
//! and for each coding that is missing two names that are not there, which the kernel remembers.
//!
//! Pure: no I/O, no clock.

use std::ffi::CString;
use std::rc::Rc;

use xxhash_rust::xxh3::xxh3_128;

use super::cache::Reservation;
use super::compress::Undecoded;
use super::entry::{Body, Coding, File, Origin, Representation, Target};
use super::errors::status_of;
use super::lookup::{Beneath, Fact, Given, Step};
use super::represent::Piece;
use super::variants::{FOOTER_BYTES, Fingerprint, Footer};
use crate::http::date;
use crate::sys::Errno;
use crate::sys::bytes::Bytes;
use crate::sys::fds::Descriptor;
use crate::sys::file::{Facts, Kind, Symlinks};

/// A change older than this shows in the facts when it is followed by another. Two seconds is the
/// coarsest time any file system keeps (FAT); NFS and ext3 have one second.
const SETTLED_AFTER_SECONDS: i64 = 2;

/// What to set aside at first for decoding: so many times the coded length. Text gets to a tenth at best.
const DECODED_TIMES: u64 = 10;

/// What is wanted, or what came of it.
#[derive(Debug)]
pub(super) enum Next {
    /// This fact.
    Ask(Step),
    /// Nothing more: these are the forms.
    Done(Found),
    /// The source changed while it was read; these are its facts by now.
    Moved(Rc<Descriptor>, Facts),
    /// It changed under our eyes, or an open raced with a rename: to be opened by name again, while there
    /// is patience.
    Again,
    /// There is an answer, but not this file.
    Refused(u16),
}

/// The forms of a file. Without any, there is no such file.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub pieces: Vec<Piece>,
    /// How many are as they were.
    pub reused: usize,
    /// Whether plain was wanted and cannot be had.
    pub undecodable: bool,
}

/// Finds out the forms of one file.
#[derive(Debug)]
pub(super) struct Forms {
    /// The name of the file itself.
    path: Vec<u8>,
    source: Option<Source>,
    found: Found,
    state: State,
    /// What decoding may take at this try.
    decoded_max: u64,
}

/// What is known of the file itself.
#[derive(Debug)]
struct Source {
    facts: Facts,
    hash: Option<u128>,
    /// Whether variants with these facts can only be of these contents.
    known: bool,
    /// Whether it is as it was.
    reused: bool,
}

/// What is being waited for.
#[derive(Debug)]
enum State {
    Source(Reading),
    /// The variant in the how-manieth coding.
    Variant(usize),
    VariantContents(usize, Reading),
    /// Its footer; with what the variant was when its source was last looked at, where it may still be that.
    VariantFooter(usize, Rc<Descriptor>, Facts, Option<Piece>),
    /// The sidecar in the how-manieth coding.
    Sidecar(usize),
    SidecarContents(usize, Reading),
    /// A sidecar's bytes, to be decoded.
    Coded(Reading),
    Decoded(Reservation),
    Over,
}

/// A file whose bytes are being read.
#[derive(Debug)]
struct Reading {
    file: Rc<Descriptor>,
    facts: Facts,
    reservation: Reservation,
}

/// How a file is to be kept.
enum Keep {
    /// As it was.
    Again(Piece),
    /// In RAM, once read.
    Read(Reservation),
    /// Open.
    Open,
}

impl Forms {
    /// The forms of an open file.
    pub fn of_source(given: &Given, path: Vec<u8>, file: Rc<Descriptor>, facts: Facts) -> (Self, Next) {
        let mut own = Self::new(path);
        let next = match (keep(given, None, Origin::Itself, &facts, facts.size), read(&file, &facts)) {
            (Keep::Again(piece), _) => own.source_found(given, piece, true),
            (Keep::Read(reservation), Some(step)) => {
                own.state = State::Source(Reading { file, facts, reservation });
                Next::Ask(step)
            }
            (Keep::Read(_), None) if facts.size == 0 => {
                let piece = piece(given, None, facts, Body::Memory(memory(given, Vec::new())));
                own.source_found(given, piece, false)
            }
            _ => own.source_is(given, file, facts),
        };
        (own, next)
    }

    /// The forms of a file that is not there, but perhaps in coded form.
    pub fn of_sidecars(given: &Given, path: Vec<u8>) -> (Self, Next) {
        let mut own = Self::new(path);
        let next = own.try_sidecar(given, 0);
        (own, next)
    }

    fn new(path: Vec<u8>) -> Self {
        Self { path, source: None, found: Found::default(), state: State::Over, decoded_max: 0 }
    }

    /// The name of the file itself.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Takes the fact that was asked for, and says what is wanted next.
    pub fn next(&mut self, given: &Given, fact: Fact) -> Next {
        match (std::mem::replace(&mut self.state, State::Over), fact) {
            (State::Source(reading), Fact::Contents { bytes, facts_after }) => {
                let Reading { file, facts, reservation } = reading;
                if bytes.len() as u64 != facts.size || facts_after != facts {
                    return Next::Moved(file, facts_after);
                }
                let piece = piece(given, None, facts, Body::Memory(memory(given, bytes)));
                drop(reservation);
                self.source_found(given, piece, false)
            }
            (State::Source(_), Fact::Refused(errno)) => Next::Refused(status_of(errno)),
            (State::Variant(index), Fact::Opened(file, facts)) => {
                self.variant_opened(given, index, file, facts)
            }
            (State::VariantContents(index, reading), Fact::Contents { bytes, .. }) => {
                self.variant_read(given, index, reading, bytes)
            }
            (State::VariantFooter(index, file, facts, old), Fact::Contents { bytes, facts_after }) => {
                match (self.footer(index, &bytes, facts.size).filter(|_| facts_after == facts), old) {
                    (Some(footer), Some(old)) if old.hash == Some(footer.coded_hash) => {
                        self.take_again(given, index, old)
                    }
                    (Some(footer), _) => {
                        let piece = Piece::variant(coding_of(index), facts, &footer, Body::File(file));
                        self.take(given, index, piece)
                    }
                    (None, _) => self.try_sidecar(given, index),
                }
            }
            (
                State::Variant(index) | State::VariantContents(index, _) | State::VariantFooter(index, ..),
                Fact::Refused(_),
            ) => self.try_sidecar(given, index),
            (State::Sidecar(index), Fact::Opened(file, facts)) => {
                self.sidecar_opened(given, index, file, facts)
            }
            (State::SidecarContents(index, reading), Fact::Contents { bytes, facts_after }) => {
                let Reading { facts, reservation, .. } = reading;
                if bytes.len() as u64 != facts.size || facts_after != facts {
                    return self.sidecar_missed(given, index, Errno::AGAIN);
                }
                let body = Body::Memory(memory(given, bytes));
                drop(reservation);
                let piece = piece(given, Some(coding_of(index)), facts, body);
                self.take(given, index, piece)
            }
            (State::Sidecar(index) | State::SidecarContents(index, _), Fact::Refused(errno)) => {
                self.sidecar_missed(given, index, errno)
            }
            (State::Coded(reading), Fact::Contents { bytes, facts_after }) => {
                if bytes.len() as u64 != reading.facts.size || facts_after != reading.facts {
                    return Next::Again;
                }
                self.ask_to_decode(bytes, reading.reservation)
            }
            (State::Coded(_) | State::Decoded(_), Fact::Refused(errno)) => Next::Refused(status_of(errno)),
            (State::Decoded(reservation), Fact::Decoded(result)) => {
                drop(reservation);
                self.decoded(given, result)
            }
            (state, fact) => unreachable!("forms that wait in {state:?} were told {fact:?}"),
        }
    }

    /// Takes the file as it is now, kept open.
    pub fn source_is(&mut self, given: &Given, file: Rc<Descriptor>, facts: Facts) -> Next {
        let piece = piece(given, None, facts, Body::File(file));
        self.source_found(given, piece, false)
    }

    fn source_found(&mut self, given: &Given, piece: Piece, reused: bool) -> Next {
        // The hash in a variant's footer tells a source that changed without a trace. Where the source's own
        // is not known, its facts have to be beyond doubt.
        let known = piece.hash.is_some() || piece.settled;
        self.source = Some(Source { facts: piece.facts, hash: piece.hash, known, reused });
        self.found.reused += usize::from(reused);
        self.found.pieces.push(piece);
        // A sidecar of something that does not compress is a download of its own.
        if given.site.compressible.holds(&self.path) { self.try_coding(given, 0) } else { self.finish(given) }
    }

    fn try_coding(&mut self, given: &Given, index: usize) -> Next {
        let Some(&coding) = Coding::ALL.get(index) else { return self.finish(given) };
        let Some(source) = &self.source else { return self.try_sidecar(given, index) };
        let made = given.variants.as_ref().is_some_and(|variants| variants.may_have(coding, &source.facts));
        if !made || !source.known {
            return self.try_sidecar(given, index);
        }
        let previous = previous(given, Some(coding)).filter(|form| form.origin == Origin::Cache);
        if source.reused
            && let Some(form) = previous
            && let Body::Memory(_) = form.body
        {
            return self.take_again(given, index, Piece::again(form));
        }
        let Ok(path) = CString::new(Fingerprint::of(&source.facts).path(coding)) else {
            return self.try_sidecar(given, index);
        };
        self.state = State::Variant(index);
        Next::Ask(Step::Open { beneath: Beneath::Cache, path, symlinks: Symlinks::Never })
    }

    fn variant_opened(&mut self, given: &Given, index: usize, file: Rc<Descriptor>, facts: Facts) -> Next {
        let source_bytes = self.source.as_ref().map_or(0, |source| source.facts.size);
        let coded = facts.size.checked_sub(FOOTER_BYTES as u64).filter(|coded| *coded < source_bytes);
        let Some(coded) = coded.filter(|coded| *coded > 0 && facts.kind == Kind::File) else {
            return self.try_sidecar(given, index);
        };
        let reused = self.source.as_ref().is_some_and(|source| source.reused);
        let footer = Step::Contents { file: Rc::clone(&file), offset: coded, length: FOOTER_BYTES };
        match (keep(given, Some(coding_of(index)), Origin::Cache, &facts, coded), read(&file, &facts)) {
            (Keep::Again(piece), _) if reused => self.take_again(given, index, piece),
            (Keep::Read(reservation), Some(whole)) => {
                self.state = State::VariantContents(index, Reading { file, facts, reservation });
                Next::Ask(whole)
            }
            (kept, _) => {
                // The source was read again, and may be another with the same facts: its variant's footer
                // tells, and if it is the same, what is in RAM need not be read again.
                let old = if let Keep::Again(piece) = kept { Some(piece) } else { None };
                self.state = State::VariantFooter(index, file, facts, old);
                Next::Ask(footer)
            }
        }
    }

    fn variant_read(&mut self, given: &Given, index: usize, reading: Reading, mut bytes: Vec<u8>) -> Next {
        let Reading { facts, reservation, .. } = reading;
        let coded = bytes.len().saturating_sub(FOOTER_BYTES);
        let is_whole = bytes.len() as u64 == facts.size;
        let footer = bytes.get(coded..).and_then(|end| self.footer(index, end, facts.size));
        bytes.truncate(coded);
        match footer.filter(|footer| is_whole && xxh3_128(&bytes) == footer.coded_hash) {
            Some(footer) => {
                let body = Body::Memory(memory(given, bytes));
                drop(reservation);
                self.take(given, index, Piece::variant(coding_of(index), facts, &footer, body))
            }
            None => self.try_sidecar(given, index),
        }
    }

    /// The footer of a variant of this very source.
    fn footer(&self, index: usize, bytes: &[u8], file_bytes: u64) -> Option<Footer> {
        let source = self.source.as_ref()?;
        let footer = Footer::decode(bytes, file_bytes, &Fingerprint::of(&source.facts), coding_of(index))?;
        source.hash.is_none_or(|hash| hash == footer.source_hash).then_some(footer)
    }

    fn try_sidecar(&mut self, given: &Given, index: usize) -> Next {
        let relative = self.path.strip_prefix(b"/").unwrap_or(&self.path);
        // Decoding refuses NUL; and what holds one was not found in the first place.
        let path = CString::new([relative, coding_of(index).suffix().as_bytes()].concat());
        self.state = State::Sidecar(index);
        Next::Ask(Step::Open {
            beneath: Beneath::Root,
            path: path.unwrap_or_default(),
            symlinks: given.site.symlinks,
        })
    }

    fn sidecar_opened(&mut self, given: &Given, index: usize, file: Rc<Descriptor>, facts: Facts) -> Next {
        let helps = self
            .source
            .as_ref()
            .is_none_or(|source| facts.modified >= source.facts.modified && facts.size < source.facts.size);
        if facts.kind != Kind::File || facts.size == 0 || !helps {
            return self.try_coding(given, index + 1);
        }
        let coding = Some(coding_of(index));
        match (keep(given, coding, Origin::Sidecar, &facts, facts.size), read(&file, &facts)) {
            (Keep::Again(piece), _) => self.take_again(given, index, piece),
            (Keep::Read(reservation), Some(step)) => {
                self.state = State::SidecarContents(index, Reading { file, facts, reservation });
                Next::Ask(step)
            }
            _ => {
                let piece = piece(given, coding, facts, Body::File(file));
                self.take(given, index, piece)
            }
        }
    }

    /// A form less; but where there is no source, a sidecar that cannot be had now is the answer.
    fn sidecar_missed(&mut self, given: &Given, index: usize, errno: Errno) -> Next {
        match status_of(errno) {
            _ if self.source.is_none() && is_passing(errno) => Next::Again,
            status @ 500.. if self.source.is_none() => Next::Refused(status),
            _ => self.try_coding(given, index + 1),
        }
    }

    fn take_again(&mut self, given: &Given, index: usize, piece: Piece) -> Next {
        self.found.reused += 1;
        self.take(given, index, piece)
    }

    fn take(&mut self, given: &Given, index: usize, piece: Piece) -> Next {
        self.found.pieces.push(piece);
        self.try_coding(given, index + 1)
    }

    fn finish(&mut self, given: &Given) -> Next {
        // The last coding is gzip, which everyone has who has only one.
        if self.source.is_none()
            && let Some(coded) = self.found.pieces.last()
        {
            let old = previous_file(given).filter(|file| {
                let same = |form: &&Representation| form.coding == coded.coding && form.facts == coded.facts;
                coded.settled && file.representations.iter().any(|form| same(&form))
            });
            let decoded = previous(given, None).filter(|form| form.origin == Origin::Decoded);
            match (old, decoded) {
                (Some(_), Some(form)) => {
                    self.found.reused += 1;
                    self.found.pieces.insert(0, Piece::again(form));
                }
                (Some(file), None) if file.undecodable => self.found.undecodable = true,
                _ if given.plain => return self.decode(given, coded.length * DECODED_TIMES),
                _ => {}
            }
        }
        Next::Done(std::mem::take(&mut self.found))
    }

    /// Has the last form decoded, to at most so many bytes.
    fn decode(&mut self, given: &Given, bytes_max: u64) -> Next {
        let budget = &given.memory.budget;
        let Some(coded) = self.found.pieces.last() else { return self.undecodable() };
        let most = budget.decoded_max().saturating_sub(coded.length);
        self.decoded_max = bytes_max.min(most);
        if self.decoded_max == 0 {
            return self.undecodable();
        }
        let Some(reservation) = budget.reserve(coded.length + self.decoded_max) else {
            // Memory is in use, by other lookups or by clients that read slowly.
            return Next::Refused(503);
        };
        match &coded.body {
            Body::Memory(bytes) => {
                let bytes = bytes.to_vec();
                self.ask_to_decode(bytes, reservation)
            }
            Body::File(file) => match read(file, &coded.facts) {
                Some(step) => {
                    let (file, facts) = (Rc::clone(file), coded.facts);
                    self.state = State::Coded(Reading { file, facts, reservation });
                    Next::Ask(step)
                }
                None => self.undecodable(),
            },
        }
    }

    fn ask_to_decode(&mut self, bytes: Vec<u8>, reservation: Reservation) -> Next {
        let coding = self.found.pieces.last().and_then(|piece| piece.coding);
        let (Some(coding), Ok(bytes_max)) = (coding, usize::try_from(self.decoded_max)) else {
            return self.undecodable();
        };
        self.state = State::Decoded(reservation);
        Next::Ask(Step::Decode { bytes, coding, bytes_max })
    }

    fn decoded(&mut self, given: &Given, result: Result<Vec<u8>, Undecoded>) -> Next {
        let Some(coded) = self.found.pieces.last() else { return self.undecodable() };
        match result {
            Ok(bytes) => {
                let (facts, settled) = (coded.facts, coded.settled);
                let body = Body::Memory(memory(given, bytes));
                self.found.pieces.insert(0, Piece::new(None, Origin::Decoded, facts, settled, body));
                Next::Done(std::mem::take(&mut self.found))
            }
            Err(Undecoded::TooLarge)
                if self.decoded_max + coded.length < given.memory.budget.decoded_max() =>
            {
                self.decode(given, u64::MAX)
            }
            Err(_) => self.undecodable(),
        }
    }

    fn undecodable(&mut self) -> Next {
        self.found.undecodable = true;
        Next::Done(std::mem::take(&mut self.found))
    }
}

/// Whether trying again helps: a lookup raced with a rename, or was interrupted.
pub(super) fn is_passing(errno: Errno) -> bool {
    matches!(errno, Errno::AGAIN | Errno::INTR | Errno::STALE)
}

fn keep(given: &Given, coding: Option<Coding>, origin: Origin, facts: &Facts, length: u64) -> Keep {
    let wanted = length <= given.memory.file_max;
    let reserve = || given.memory.budget.reserve(facts.size);
    let old = previous(given, coding);
    match old.filter(|form| form.origin == origin && form.settled && form.facts == *facts) {
        // A body that had to stay in the file for want of memory may fit now.
        Some(form) => match &form.body {
            Body::File(_) if wanted => reserve().map_or_else(|| Keep::Again(Piece::again(form)), Keep::Read),
            _ => Keep::Again(Piece::again(form)),
        },
        None if wanted => reserve().map_or(Keep::Open, Keep::Read),
        None => Keep::Open,
    }
}

/// The file as it was found at the last look.
fn previous_file(given: &Given) -> Option<&File> {
    match &given.previous.as_ref()?.target {
        Target::File(file) => Some(file),
        _ => None,
    }
}

fn previous(given: &Given, coding: Option<Coding>) -> Option<&Representation> {
    previous_file(given)?.representations.iter().find(|form| form.coding == coding)
}

fn piece(given: &Given, coding: Option<Coding>, facts: Facts, body: Body) -> Piece {
    // Every write sets this time too, and unlike the other nobody can set it at will.
    let changed = facts.changed.seconds;
    let settled = changed.saturating_add(SETTLED_AFTER_SECONDS) < date::seconds(given.clock.wall);
    let origin = if coding.is_some() { Origin::Sidecar } else { Origin::Itself };
    Piece::new(coding, origin, facts, settled, body)
}

fn memory(given: &Given, bytes: Vec<u8>) -> Bytes {
    Bytes::new(bytes, &given.memory.budget.gauge)
}

/// A step that reads all of a file, unless there is nothing to read or too much.
fn read(file: &Rc<Descriptor>, facts: &Facts) -> Option<Step> {
    let length = usize::try_from(facts.size).ok().filter(|length| *length > 0)?;
    Some(Step::Contents { file: Rc::clone(file), offset: 0, length })
}

fn coding_of(index: usize) -> Coding {
    Coding::ALL[index]
}
