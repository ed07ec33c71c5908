//! Finding out what a path leads to: which fact is wanted next, until an entry can be made of them.
//!
//! The worker opens, reads and lists; this machine only says what. Every path is opened by its name
//! beneath the site's root and judged by what was opened: nothing is looked at first and opened
//! afterwards, so no exchange of files in between can mislead it.
//!
//! ```text
//! /a      open a ── file ──────────────┬─ read ── sidecars a.br a.zst a.gz ── File
//!            │ missing or directory    │
//!            └─ clean_urls: open a.html┘ else ── Directory (301) or Refused
//! /d/     open d/index.html … as above, else listing: open d ── list ── Listing, or Refused
//! ```
//!
//! A body read into RAM must be whole: as long as the file, whose facts must be the same after as
//! before. The same facts as at an earlier look mean the same contents, so nothing is read again.
//!
//! Pure: no I/O, no clock.

use std::collections::VecDeque;
use std::ffi::CString;
use std::rc::Rc;

use super::cache::{Memory, Reservation};
use super::compressible::is_compressible;
use super::entry::{Body, Coding, Entry, Listing, Target};
use super::errors::status_of;
use super::listing;
use super::represent::{self, Piece};
use super::route::Site;
use crate::http::date;
use crate::ring::Clock;
use crate::sys::Errno;
use crate::sys::bytes::Bytes;
use crate::sys::fds::Descriptor;
use crate::sys::file::{Facts, Kind, Name, Symlinks};

/// How often a file that changes while it is read, or an open that raced with a rename, is tried
/// again. Deploys write a file once; what still changes then is a log or a database.
const TRIES: u8 = 3;

/// Names read of one directory. Beyond it a listing is of no use to a person, and takes long.
const NAMES_MAX: usize = 10_000;

/// A change older than this shows in the facts when it is followed by another. Two seconds is the
/// coarsest time any file system keeps (FAT); NFS and ext3 have one second.
const SETTLED_AFTER_SECONDS: i64 = 2;

/// What the machine wants.
#[derive(Debug)]
pub enum Step {
    /// Open this beneath the site's root, and take its facts: [`Fact::Opened`] or [`Fact::Refused`].
    Open {
        /// Without leading slash; "." is the root itself.
        path: CString,
        /// How symlinks are treated.
        symlinks: Symlinks,
    },
    /// Read the first `length` bytes, fewer if it ends before, then take its facts again.
    Contents {
        /// What was opened.
        file: Rc<Descriptor>,
        /// Never 0.
        length: usize,
    },
    /// Read the names in a directory and what they lead to.
    List {
        /// What was opened.
        directory: Rc<Descriptor>,
        /// How symlinks are treated.
        symlinks: Symlinks,
        /// At most so many.
        names_max: usize,
    },
    /// Done. The machine is not to be asked again.
    Finished(Rc<Entry>),
}

/// What the worker found.
#[derive(Debug)]
pub enum Fact {
    /// Nothing yet: the first call.
    Begin,
    /// It was opened.
    Opened(Rc<Descriptor>, Facts),
    /// The system refused what was asked for last.
    Refused(Errno),
    /// It was read.
    Contents {
        /// What was read.
        bytes: Vec<u8>,
        /// The facts as they were after the last byte had been read.
        facts_after: Facts,
    },
    /// It was listed.
    Listed {
        /// In no order.
        names: Vec<Name>,
        /// Whether there were more.
        truncated: bool,
    },
}

/// Finds out what one path leads to.
#[derive(Debug)]
pub struct Lookup {
    site: Rc<Site>,
    memory: Memory,
    clock: Clock,
    /// As asked for.
    path: Vec<u8>,
    previous: Option<Rc<Entry>>,
    state: State,
    /// Paths that may answer, best first, without the one being tried.
    candidates: VecDeque<Vec<u8>>,
    is_directory: bool,
    tries: u8,
    lasting: bool,
    /// The file that answers.
    found: Vec<u8>,
    pieces: Vec<Piece>,
    reused: usize,
}

/// What is being waited for.
#[derive(Debug)]
enum State {
    Begin,
    /// A candidate to be opened.
    Candidate(Vec<u8>),
    /// The file's bytes.
    Contents(Reading),
    /// The sidecar of the how-manieth coding to be opened.
    Sidecar(usize),
    /// The directory to be opened.
    Directory,
    /// Its names.
    Names,
    Finished,
}

/// A file whose bytes are being read.
#[derive(Debug)]
struct Reading {
    coding: Option<Coding>,
    file: Rc<Descriptor>,
    facts: Facts,
    reservation: Reservation,
}

impl Lookup {
    /// A lookup of `path`, decoded and normalised, beginning with a slash. `previous` is what it
    /// led to when it was last looked at; `clock` is now.
    pub fn new(
        site: Rc<Site>,
        memory: Memory,
        path: Vec<u8>,
        previous: Option<Rc<Entry>>,
        clock: Clock,
    ) -> Self {
        let candidates = candidates(&site, &path);
        Self {
            site,
            memory,
            clock,
            path,
            previous,
            state: State::Begin,
            candidates,
            is_directory: false,
            tries: 0,
            lasting: true,
            found: Vec::new(),
            pieces: Vec::new(),
            reused: 0,
        }
    }

    /// Takes the fact that the last step asked for, and says what is wanted next.
    pub fn next(&mut self, fact: Fact) -> Step {
        match (std::mem::replace(&mut self.state, State::Finished), fact) {
            (State::Begin, Fact::Begin) => self.try_candidate(),
            (State::Candidate(path), Fact::Opened(file, facts)) => self.candidate_opened(path, file, facts),
            (State::Candidate(path), Fact::Refused(errno)) => self.candidate_refused(path, errno),
            (State::Contents(reading), Fact::Contents { bytes, facts_after }) => {
                self.contents_read(reading, bytes, facts_after)
            }
            (State::Contents(reading), Fact::Refused(errno)) => match reading.coding {
                None => self.refuse(status_of(errno)),
                Some(coding) => self.try_sidecar(index_of(coding) + 1),
            },
            (State::Sidecar(index), Fact::Opened(file, facts)) => self.sidecar_opened(index, file, facts),
            (State::Sidecar(index), Fact::Refused(_)) => self.try_sidecar(index + 1),
            (State::Directory, Fact::Opened(directory, facts)) => {
                if facts.kind != Kind::Directory {
                    return self.refuse(404);
                }
                self.state = State::Names;
                Step::List { directory, symlinks: self.site.symlinks, names_max: NAMES_MAX }
            }
            (State::Names, Fact::Listed { names, truncated }) => self.listed(names, truncated),
            (State::Directory | State::Names, Fact::Refused(errno)) => self.refuse(status_of(errno)),
            (state, fact) => unreachable!("a lookup that waits in {state:?} was told {fact:?}"),
        }
    }

    fn try_candidate(&mut self) -> Step {
        match self.candidates.pop_front() {
            Some(path) => self.open(path),
            None if self.is_directory => self.finish(Target::Directory),
            // Without a listing, a directory without an index is nothing that can be served: 404,
            // which says less about the tree than 403, and lets a fallback answer.
            None if self.site.listing && self.path.ends_with(b"/") => {
                self.state = State::Directory;
                let path = self.path.clone();
                self.step_open(&path)
            }
            None => self.refuse(404),
        }
    }

    fn open(&mut self, path: Vec<u8>) -> Step {
        let step = self.step_open(&path);
        if !matches!(step, Step::Finished(_)) {
            self.state = State::Candidate(path);
        }
        step
    }

    fn step_open(&mut self, path: &[u8]) -> Step {
        let relative = path.strip_prefix(b"/").unwrap_or(path);
        let relative = relative.strip_suffix(b"/").unwrap_or(relative);
        let relative = if relative.is_empty() { b"." } else { relative };
        match CString::new(relative) {
            Ok(path) => Step::Open { path, symlinks: self.site.symlinks },
            // Decoding refuses NUL; an index or error page of the configuration might hold one.
            Err(_) => self.refuse(404),
        }
    }

    fn candidate_opened(&mut self, path: Vec<u8>, file: Rc<Descriptor>, facts: Facts) -> Step {
        match facts.kind {
            Kind::File => {
                self.found = path;
                self.take(None, file, facts)
            }
            Kind::Directory => {
                self.is_directory |= path == self.path;
                self.try_candidate()
            }
            Kind::Special => self.try_candidate(),
        }
    }

    fn candidate_refused(&mut self, path: Vec<u8>, errno: Errno) -> Step {
        match errno {
            Errno::AGAIN | Errno::INTR | Errno::STALE if self.tries < TRIES => {
                self.tries += 1;
                self.open(path)
            }
            _ => match status_of(errno) {
                404 => self.try_candidate(),
                status => self.refuse(status),
            },
        }
    }

    /// Takes an open regular file as the representation in `coding`.
    fn take(&mut self, coding: Option<Coding>, file: Rc<Descriptor>, facts: Facts) -> Step {
        let wanted = facts.size <= self.memory.file_max;
        if let Some(form) = self.unchanged(coding, &facts) {
            // A body that had to stay in the file for want of memory may fit now.
            let reservation = match form.body {
                Body::File(_) if wanted => self.memory.budget.reserve(facts.size),
                _ => None,
            };
            match reservation {
                None => {
                    let piece = Piece::again(form);
                    self.reused += 1;
                    return self.taken(piece);
                }
                Some(reservation) => return self.read(coding, file, facts, Some(reservation)),
            }
        }
        let reservation = if wanted { self.memory.budget.reserve(facts.size) } else { None };
        self.read(coding, file, facts, reservation)
    }

    /// The representation of the last look, if nothing says that it changed.
    fn unchanged(&self, coding: Option<Coding>, facts: &Facts) -> Option<&super::entry::Representation> {
        let Target::File(file) = &self.previous.as_ref()?.target else { return None };
        file.representations.iter().find(|form| form.coding == coding && form.settled && form.facts == *facts)
    }

    fn read(
        &mut self,
        coding: Option<Coding>,
        file: Rc<Descriptor>,
        facts: Facts,
        reservation: Option<Reservation>,
    ) -> Step {
        let Some(reservation) = reservation else {
            return self.taken(self.piece(coding, facts, Body::File(file)));
        };
        if facts.size == 0 {
            let body = Body::Memory(Bytes::new(Vec::new(), &self.memory.budget.gauge));
            return self.taken(self.piece(coding, facts, body));
        }
        let Ok(length) = usize::try_from(facts.size) else {
            return self.taken(self.piece(coding, facts, Body::File(file)));
        };
        self.state = State::Contents(Reading { coding, file: Rc::clone(&file), facts, reservation });
        Step::Contents { file, length }
    }

    fn contents_read(&mut self, reading: Reading, bytes: Vec<u8>, facts_after: Facts) -> Step {
        let Reading { coding, file, facts, reservation } = reading;
        if bytes.len() as u64 == facts.size && facts_after == facts {
            let body = Body::Memory(Bytes::new(bytes, &self.memory.budget.gauge));
            drop(reservation);
            return self.taken(self.piece(coding, facts, body));
        }
        drop(reservation);
        self.tries += 1;
        match coding {
            // By name again: what a rename put in its place is whole.
            None if self.tries < TRIES => {
                let path = std::mem::take(&mut self.found);
                self.open(path)
            }
            // Sent from the file as it is now; should it change meanwhile, the response ends short.
            None => {
                self.lasting = false;
                self.taken(self.piece(None, facts_after, Body::File(file)))
            }
            Some(coding) => self.try_sidecar(index_of(coding) + 1),
        }
    }

    fn piece(&self, coding: Option<Coding>, facts: Facts, body: Body) -> Piece {
        // Every write sets this time too, and unlike the other nobody can set it at will.
        let changed = facts.changed.seconds;
        let settled = changed.saturating_add(SETTLED_AFTER_SECONDS) < seconds(&self.clock);
        Piece::new(coding, facts, settled, body)
    }

    fn taken(&mut self, piece: Piece) -> Step {
        let coding = piece.coding;
        self.pieces.push(piece);
        match coding {
            // A sidecar of something that does not compress is a download of its own.
            None if !is_compressible(&self.found) => self.finish_file(),
            None => self.try_sidecar(0),
            Some(coding) => self.try_sidecar(index_of(coding) + 1),
        }
    }

    fn try_sidecar(&mut self, index: usize) -> Step {
        let Some(coding) = Coding::ALL.get(index) else { return self.finish_file() };
        let path = [&self.found, coding.suffix().as_bytes()].concat();
        let step = self.step_open(&path);
        self.state = State::Sidecar(index);
        step
    }

    fn sidecar_opened(&mut self, index: usize, file: Rc<Descriptor>, facts: Facts) -> Step {
        let source = &self.pieces[0].facts;
        let is_fresh = facts.modified >= source.modified;
        let is_smaller = facts.size > 0 && facts.size < source.size;
        if facts.kind == Kind::File && is_fresh && is_smaller {
            self.take(Some(Coding::ALL[index]), file, facts)
        } else {
            self.try_sidecar(index + 1)
        }
    }

    fn finish_file(&mut self) -> Step {
        let own_path = if self.found == self.path { None } else { Some(&self.found) };
        if let Some(previous) = &self.previous
            && let Target::File(file) = &previous.target
            && file.representations.len() == self.pieces.len()
            && self.reused == self.pieces.len()
            && file.path.as_deref() == own_path.map(Vec::as_slice)
        {
            previous.checked.set(self.clock.now);
            return Step::Finished(Rc::clone(previous));
        }
        let pieces = std::mem::take(&mut self.pieces);
        let file = represent::file(
            &self.site,
            &self.path,
            own_path.map(Vec::as_slice),
            pieces,
            seconds(&self.clock),
        );
        self.finish(Target::File(file))
    }

    fn listed(&mut self, mut names: Vec<Name>, truncated: bool) -> Step {
        listing::arrange(&mut names, self.site.hidden, self.path == b"/");
        self.finish(Target::Listing(Listing::new(names, truncated)))
    }

    fn refuse(&mut self, status: u16) -> Step {
        self.lasting &= status < 500;
        self.finish(Target::Refused(status))
    }

    fn finish(&mut self, target: Target) -> Step {
        self.state = State::Finished;
        let checked = std::cell::Cell::new(self.clock.now);
        Step::Finished(Rc::new(Entry { checked, lasting: self.lasting, target }))
    }
}

/// The files that may answer for a path, best first.
fn candidates(site: &Site, path: &[u8]) -> VecDeque<Vec<u8>> {
    let join = |end: &[u8]| [path, end].concat();
    if path.ends_with(b"/") {
        // The index is opened at once; whether the directory is there shows by that.
        return site.index.iter().map(|name| join(name)).collect();
    }
    let mut candidates = VecDeque::from([path.to_vec()]);
    if site.clean_urls {
        candidates.push_back(join(b".html"));
    }
    candidates
}

fn index_of(coding: Coding) -> usize {
    Coding::ALL.iter().position(|other| *other == coding).expect("ALL holds every coding")
}

fn seconds(clock: &Clock) -> i64 {
    date::seconds(clock.wall)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant, SystemTime};

    use super::*;
    use crate::config;
    use crate::files::cache::Budget;
    use crate::files::entry::{File, Representation};
    use crate::files::route::Sites;
    use crate::files::testing::{Node, Tree, facts, site};
    use crate::sys::file::Stamp;

    struct Bench {
        tree: Tree,
        site: Rc<Site>,
        memory: Memory,
        clock: Clock,
    }

    impl Bench {
        fn new(site: config::Site, files: &[(&str, &str)]) -> Self {
            let memory = Memory { budget: Budget::new(1 << 20), file_max: 1000 };
            let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000);
            let clock = Clock { now: Instant::now(), wall };
            Self { tree: Tree::of(files), site: Rc::clone(Sites::new(&[site]).site(0)), memory, clock }
        }

        fn look(&mut self, path: &str) -> Rc<Entry> {
            self.again(path, None)
        }

        fn again(&mut self, path: &str, previous: Option<&Rc<Entry>>) -> Rc<Entry> {
            self.tree.asked.clear();
            let site = Rc::clone(&self.site);
            let path = path.as_bytes().to_vec();
            let lookup = Lookup::new(site, self.memory.clone(), path, previous.cloned(), self.clock);
            self.tree.run(lookup)
        }

        fn target(&mut self, path: &str) -> String {
            let entry = self.look(path);
            match &entry.target {
                Target::File(file) => {
                    let own = file.path.as_deref().map(|path| String::from_utf8_lossy(path).into_owned());
                    format!("file {}", own.unwrap_or_else(|| "itself".into()))
                }
                Target::Listing(listing) => {
                    let names = listing.names.iter().map(|name| String::from_utf8_lossy(&name.name));
                    format!("names {}", names.collect::<Vec<_>>().join(" "))
                }
                Target::Directory => "directory".into(),
                Target::Refused(status) => format!("{status}{}", if entry.lasting { "" } else { " for now" }),
            }
        }
    }

    fn file(entry: &Entry) -> &File {
        match &entry.target {
            Target::File(file) => file,
            other => panic!("a file, not {other:?}"),
        }
    }

    fn bytes(form: &Representation) -> Option<&[u8]> {
        match &form.body {
            Body::Memory(bytes) => Some(bytes),
            Body::File(_) => None,
        }
    }

    #[test]
    fn paths_lead_to_files_and_directories() {
        let tree = [
            ("index.html", "root"),
            ("a.html", "a"),
            ("d/index.html", "d"),
            ("e/b.txt", "b"),
            ("e/.x", "x"),
            ("both/x", ""),
            ("both.html", ""),
            ("empty", ""),
        ];
        let plain = site();
        let clean = config::Site { clean_urls: true, ..site() };
        let listing = config::Site { listing: true, ..site() };
        let check = |site: &config::Site, path: &str, expected: &str| {
            assert_eq!(Bench::new(site.clone(), &tree).target(path), expected, "{path}");
        };
        check(&plain, "/", "file /index.html");
        check(&plain, "/a.html", "file itself");
        check(&plain, "/a", "404");
        check(&plain, "/d", "directory");
        check(&plain, "/d/", "file /d/index.html");
        check(&plain, "/e/", "404");
        check(&plain, "/e", "directory");
        check(&plain, "/a.html/", "404");
        check(&plain, "/a.html/x", "404");
        check(&plain, "/empty", "file itself");
        check(&clean, "/a", "file /a.html");
        check(&clean, "/both", "file /both.html");
        check(&clean, "/d", "directory");
        check(&clean, "/none", "404");
        check(&listing, "/e/", "names b.txt");
        check(&listing, "/d/", "file /d/index.html");
        check(&listing, "/a.html/", "404");
        check(&listing, "/none/", "404");
        check(&config::Site { hidden: true, ..listing.clone() }, "/e/", "names .x b.txt");
    }

    #[test]
    fn refusals_have_their_status() {
        let special = Facts { kind: Kind::Special, ..facts() };
        for (node, expected) in [
            (Node::Refuses(Errno::ACCESS), "403"),
            (Node::Refuses(Errno::PERM), "403"),
            (Node::Refuses(Errno::NOENT), "404"),
            (Node::Refuses(Errno::LOOP), "404"),
            (Node::Refuses(Errno::XDEV), "404"),
            (Node::Refuses(Errno::NXIO), "404"),
            (Node::Refuses(Errno::NAMETOOLONG), "404"),
            (Node::Refuses(Errno::MFILE), "503 for now"),
            (Node::Refuses(Errno::AGAIN), "503 for now"),
            (Node::Refuses(Errno::IO), "500 for now"),
            (Node::Other(special), "404"),
        ] {
            let mut bench = Bench::new(site(), &[]);
            bench.tree.put_node("x", node);
            assert_eq!(bench.target("/x"), expected, "{expected}");
        }
    }

    #[test]
    fn small_files_are_read_once() {
        let mut bench = Bench::new(site(), &[("a.png", "picture"), ("empty", "")]);
        let entry = bench.look("/a.png");
        assert_eq!(bench.tree.asked, ["open a.png", "read a.png"]);
        let form = file(&entry).identity();
        assert_eq!((bytes(form), form.length), (Some(b"picture".as_slice()), 7));
        assert_eq!(
            String::from_utf8_lossy(&form.fields[..form.length_end]),
            "Content-Type: image/png\r\nContent-Length: 7\r\n"
        );
        bench.clock.now += Duration::from_secs(5);
        let again = bench.again("/a.png", Some(&entry));
        assert_eq!(bench.tree.asked, ["open a.png"]);
        assert!(Rc::ptr_eq(&entry, &again) && entry.checked.get() == bench.clock.now);

        bench.tree.put("a.png", "another");
        let changed = bench.again("/a.png", Some(&entry));
        assert_eq!(bytes(file(&changed).identity()), Some(b"another".as_slice()));
        bench.tree.remove("a.png");
        assert!(matches!(bench.again("/a.png", Some(&changed)).target, Target::Refused(404)));
        let entry = bench.look("/empty");
        assert_eq!(bytes(file(&entry).identity()), Some(b"".as_slice()));
        assert_eq!(bench.tree.asked, ["open empty"]);
    }

    #[test]
    fn a_young_file_is_read_again() {
        let mut bench = Bench::new(site(), &[("a.png", "one")]);
        bench.tree.facts_mut("a.png").changed = Stamp { seconds: 1_999_999, nanoseconds: 0 };
        let entry = bench.look("/a.png");
        assert!(!file(&entry).identity().settled);
        let again = bench.again("/a.png", Some(&entry));
        assert_eq!(bench.tree.asked, ["open a.png", "read a.png"]);
        bench.clock.wall += Duration::from_secs(3);
        let settled = bench.again("/a.png", Some(&again));
        assert!(file(&settled).identity().settled);
        assert_eq!(file(&settled).identity().etag, file(&entry).identity().etag, "the same contents");
    }

    #[test]
    fn large_files_stay_files_and_small_ones_when_memory_is_short() {
        let large = "x".repeat(1001);
        let mut bench = Bench::new(site(), &[("l.iso", &large), ("s.png", "small")]);
        let entry = bench.look("/l.iso");
        assert_eq!(bench.tree.asked, ["open l.iso"]);
        let form = file(&entry).identity();
        assert_eq!((bytes(form), form.length), (None, 1001));
        assert!(Rc::ptr_eq(&bench.again("/l.iso", Some(&entry)), &entry));
        let huge = Facts { size: 5 << 32, ..facts() };
        bench.tree.put_node("huge", Node::File(Vec::new(), huge));
        assert_eq!(file(&bench.look("/huge")).identity().length, 5 << 32);

        bench.tree.facts_mut("l.iso").changed = Stamp { seconds: 1_999_999, nanoseconds: 0 };
        let entry = bench.look("/l.iso");
        assert!(file(&entry).identity().etag.starts_with("W/"), "it may change without a trace");

        let all = bench.memory.budget.reserve(1 << 20).expect("all memory");
        let entry = bench.look("/s.png");
        assert_eq!(bytes(file(&entry).identity()), None);
        assert!(Rc::ptr_eq(&bench.again("/s.png", Some(&entry)), &entry));
        drop(all);
        let entry = bench.again("/s.png", Some(&entry));
        assert_eq!(bytes(file(&entry).identity()), Some(b"small".as_slice()), "there is memory again");
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_read_again_and_never_mixed() {
        let mut bench = Bench::new(site(), &[("a.png", "before")]);
        bench.tree.after_read = Some(|tree, path| {
            tree.after_read = None;
            tree.put(path, "after!");
        });
        let entry = bench.look("/a.png");
        assert_eq!(bytes(file(&entry).identity()), Some(b"after!".as_slice()));
        assert!(entry.lasting);

        bench.tree.after_read = Some(|tree, path| tree.facts_mut(path).size += 1);
        let entry = bench.look("/a.png");
        assert_eq!(bytes(file(&entry).identity()), None, "sent from the file as it grows");
        assert!(!entry.lasting);
        assert_eq!(bench.tree.asked.len(), 2 * usize::from(TRIES));
    }

    #[test]
    fn sidecars_are_taken_when_they_help() {
        let source = "let x = 1;".repeat(9);
        let mut bench = Bench::new(
            site(),
            &[
                ("a.js", &source),
                ("a.js.br", "br"),
                ("a.js.gz", "gzip"),
                ("a.js.zst", &source),
                ("b.zip", "z"),
            ],
        );
        let entry = bench.look("/a.js");
        let codings: Vec<_> = file(&entry).representations.iter().map(|form| form.coding).collect();
        assert_eq!(codings, [None, Some(Coding::Brotli), Some(Coding::Gzip)], "zstd is not smaller");
        for form in &file(&entry).representations {
            assert!(String::from_utf8_lossy(&form.fields).contains("Vary: Accept-Encoding\r\n"));
            assert!(String::from_utf8_lossy(&form.fields_not_modified).contains("Vary: Accept-Encoding\r\n"));
        }
        assert_ne!(file(&entry).representations[0].etag, file(&entry).representations[1].etag);
        assert!(Rc::ptr_eq(&bench.again("/a.js", Some(&entry)), &entry), "nothing changed");
        assert!(!bench.tree.asked.iter().any(|asked| asked.starts_with("read")));

        bench.tree.facts_mut("a.js.br").modified.seconds -= 1;
        let entry = bench.again("/a.js", Some(&entry));
        let codings: Vec<_> = file(&entry).representations.iter().map(|form| form.coding).collect();
        assert_eq!(codings, [None, Some(Coding::Gzip)], "older than its source");
        bench.tree.remove("a.js.gz");
        let entry = bench.again("/a.js", Some(&entry));
        assert!(!String::from_utf8_lossy(&file(&entry).identity().fields).contains("Vary"));
        bench.look("/b.zip");
        assert_eq!(bench.tree.asked, ["open b.zip", "read b.zip"], "what is compressed has no sidecars");
    }

    #[test]
    fn an_index_that_comes_later_is_seen() {
        let two = config::Site { index: vec!["index.html".into(), "index.htm".into()], ..site() };
        let mut bench = Bench::new(two, &[("d/index.htm", "old")]);
        let entry = bench.look("/d/");
        assert_eq!(file(&entry).path.as_deref(), Some(b"/d/index.htm".as_slice()));
        bench.tree.put("d/index.html", "new");
        let entry = bench.again("/d/", Some(&entry));
        assert_eq!(file(&entry).path.as_deref(), Some(b"/d/index.html".as_slice()));
    }
}
