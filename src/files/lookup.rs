//! Finding out what a path leads to: which fact is wanted next, until an entry can be made of them.
//!
//! The worker opens, reads and lists; this machine only says what. Every path is opened by its name
//! beneath the site's root and judged by what was opened: nothing is looked at first and opened
//! afterwards, so no exchange of files in between can mislead it.
//!
//! ```text
//! /a      open a ── file ──────────────┬─ its forms ── File
//!            │ missing or directory    │
//!            ├─ a.br a.zst a.gz ───────┤
//!            └─ clean_urls: open a.html┘ else ── Directory (301) or Refused
//! /d/     open d/index.html … as above, else listing: open d ── list ── Listing, or Refused
//! ```
//!
//! Which forms a file has is found out by [`super::forms`].
//!
//! A body read into RAM must be whole: as long as the file, whose facts must be the same after as
//! before. The same facts as at an earlier look mean the same contents, so nothing is read again.
//!
//! Pure: no I/O, no clock.

use std::collections::VecDeque;
use std::ffi::CString;
use std::rc::Rc;

use super::cache::Memory;
use super::compress::Undecoded;
use super::entry::{Coding, Entry, Listing, Target};
use super::errors::status_of;
use super::forms::{self, Forms, Found, Next};
use super::listing;
use super::represent;
use super::route::Site;
use crate::http::date;
use crate::ring::Clock;
use crate::sys::Errno;
use crate::sys::fds::Descriptor;
use crate::sys::file::{Facts, Kind, Name, Symlinks};

/// How often a file that changes while it is read, or an open that raced with a rename, is tried
/// again. Deploys write a file once; what still changes then is a log or a database.
const TRIES: u8 = 3;

/// Names read of one directory. Beyond it a listing is of no use to a person, and takes long.
const NAMES_MAX: usize = 10_000;

/// Where a path begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beneath {
    /// At the site's root.
    Root,
    /// At the site's directory of compressed variants.
    Cache,
}

/// What the machine wants.
#[derive(Debug)]
pub enum Step {
    /// Open this, and take its facts: [`Fact::Opened`] or [`Fact::Refused`].
    Open {
        /// Where the path begins.
        beneath: Beneath,
        /// Without leading slash; "." is where it begins.
        path: CString,
        /// How symlinks are treated.
        symlinks: Symlinks,
    },
    /// Read `length` bytes from `offset` on, fewer if it ends before, then take its facts again.
    Contents {
        /// What was opened.
        file: Rc<Descriptor>,
        /// The first byte's.
        offset: u64,
        /// Never 0.
        length: usize,
    },
    /// Decode this, where that stalls nobody: [`super::compress::decode`], [`Fact::Decoded`].
    Decode {
        /// The coded bytes.
        bytes: Vec<u8>,
        /// How they are coded.
        coding: Coding,
        /// At most so many decoded bytes.
        bytes_max: usize,
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
    /// It was decoded, or not.
    Decoded(Result<Vec<u8>, Undecoded>),
    /// It was listed.
    Listed {
        /// In no order.
        names: Vec<Name>,
        /// Whether there were more.
        truncated: bool,
    },
}

/// What a lookup is given.
#[derive(Debug)]
pub struct Given {
    /// The site.
    pub site: Rc<Site>,
    /// What may be kept in RAM.
    pub memory: Memory,
    /// Now.
    pub clock: Clock,
    /// What the path led to when it was last looked at.
    pub previous: Option<Rc<Entry>>,
    /// The variants that the site's cache directory may hold; `None`: it has none.
    pub variants: Option<Variants>,
    /// Whether a file that the site ships only compressed is to be decoded.
    pub plain: bool,
}

/// Which variants the precompressor makes.
#[derive(Clone, Debug)]
pub struct Variants {
    /// In these codings.
    pub codings: Rc<[Coding]>,
    /// Of files that have at least so many bytes.
    pub size_min: u64,
}

impl Variants {
    /// Whether a file may have such a variant.
    pub fn may_have(&self, coding: Coding, source: &Facts) -> bool {
        source.size >= self.size_min && self.codings.contains(&coding)
    }
}

/// Finds out what one path leads to.
#[derive(Debug)]
pub struct Lookup {
    given: Given,
    /// As asked for.
    path: Vec<u8>,
    state: State,
    /// Paths that may answer, best first, without the one being tried.
    candidates: VecDeque<Vec<u8>>,
    is_directory: bool,
    tries: u8,
    lasting: bool,
}

/// What is being waited for.
#[derive(Debug)]
enum State {
    Begin,
    /// A candidate to be opened.
    Candidate(Vec<u8>),
    /// The forms of the file that answers.
    Forms(Box<Forms>),
    /// The directory to be opened.
    Directory,
    /// Its names.
    Names,
    Finished,
}

impl Lookup {
    /// A lookup of `path`, decoded and normalised, beginning with a slash.
    pub fn new(given: Given, path: Vec<u8>) -> Self {
        let candidates = candidates(&given.site, &path);
        let (state, is_directory, tries, lasting) = (State::Begin, false, 0, true);
        Self { given, path, state, candidates, is_directory, tries, lasting }
    }

    /// Takes the fact that the last step asked for, and says what is wanted next.
    pub fn next(&mut self, fact: Fact) -> Step {
        match (std::mem::replace(&mut self.state, State::Finished), fact) {
            (State::Begin, Fact::Begin) => self.try_candidate(),
            (State::Candidate(path), Fact::Opened(file, facts)) => self.candidate_opened(path, file, facts),
            (State::Candidate(path), Fact::Refused(errno)) => self.candidate_refused(path, errno),
            (State::Forms(mut forms), fact) => {
                let next = forms.next(&self.given, fact);
                self.follow(forms, next)
            }
            (State::Directory, Fact::Opened(directory, facts)) => {
                if facts.kind != Kind::Directory {
                    return self.refuse(404);
                }
                self.state = State::Names;
                Step::List { directory, symlinks: self.given.site.symlinks, names_max: NAMES_MAX }
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
            None if self.given.site.listing && self.path.ends_with(b"/") => {
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
            Ok(path) => Step::Open { beneath: Beneath::Root, path, symlinks: self.given.site.symlinks },
            // Decoding refuses NUL; an index or error page of the configuration might hold one.
            Err(_) => self.refuse(404),
        }
    }

    fn candidate_opened(&mut self, path: Vec<u8>, file: Rc<Descriptor>, facts: Facts) -> Step {
        match facts.kind {
            Kind::File => {
                let (forms, next) = Forms::of_source(&self.given, path, file, facts);
                self.follow(Box::new(forms), next)
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
            errno if forms::is_passing(errno) && self.tries < TRIES => {
                self.tries += 1;
                self.open(path)
            }
            // The site may ship it compressed only.
            Errno::NOENT if self.given.site.compressible.holds(&path) => {
                let (forms, next) = Forms::of_sidecars(&self.given, path);
                self.follow(Box::new(forms), next)
            }
            _ => match status_of(errno) {
                404 => self.try_candidate(),
                status => self.refuse(status),
            },
        }
    }

    /// Does what the forms of a file want.
    fn follow(&mut self, mut forms: Box<Forms>, next: Next) -> Step {
        match next {
            Next::Ask(step) => {
                self.state = State::Forms(forms);
                step
            }
            Next::Done(found) if found.pieces.is_empty() => self.try_candidate(),
            Next::Done(found) => self.finish_file(forms.path(), found),
            Next::Refused(status) => self.refuse(status),
            Next::Again if self.tries < TRIES => {
                self.tries += 1;
                self.open(forms.path().to_vec())
            }
            Next::Again => self.refuse(503),
            Next::Moved(file, facts) => {
                self.tries += 1;
                if self.tries < TRIES {
                    // By name again: what a rename put in its place is whole.
                    return self.open(forms.path().to_vec());
                }
                // Sent from the file as it is now; should it change meanwhile, the response ends short.
                self.lasting = false;
                let next = forms.source_is(&self.given, file, facts);
                self.follow(forms, next)
            }
        }
    }

    fn finish_file(&mut self, path: &[u8], found: Found) -> Step {
        let own_path = (path != self.path).then_some(path);
        if let Some(previous) = &self.given.previous
            && let Target::File(file) = &previous.target
            && file.representations.len() == found.pieces.len()
            && found.reused == found.pieces.len()
            && file.undecodable == found.undecodable
            && file.path.as_deref() == own_path
        {
            previous.checked.set(self.given.clock.now);
            return Step::Finished(Rc::clone(previous));
        }
        let now = date::seconds(self.given.clock.wall);
        let mut file = represent::file(&self.given.site, &self.path, own_path, found.pieces, now);
        file.undecodable = found.undecodable;
        self.finish(Target::File(file))
    }

    fn listed(&mut self, mut names: Vec<Name>, truncated: bool) -> Step {
        listing::arrange(&mut names, self.given.site.hidden, self.path == b"/");
        self.finish(Target::Listing(Listing::new(names, truncated)))
    }

    fn refuse(&mut self, status: u16) -> Step {
        self.lasting &= status < 500;
        self.finish(Target::Refused(status))
    }

    fn finish(&mut self, target: Target) -> Step {
        self.state = State::Finished;
        let checked = std::cell::Cell::new(self.given.clock.now);
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

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
