//! From a request's host and path to a plan: which site, which rules, which file, in which form.
//!
//! [`Files::answer`] decides whatever is known; what is not known it asks for as a [`Question`],
//! which the worker has a [`lookup::Lookup`] answer: a machine that names the next fact it wants.
//! The result is an [`entry::Entry`], cached, from which the same request is then answered.
//!
//! ```text
//! answer ─ Ready ─────────────────────────────────────────────▶ send the plan
//!   ▲ │ ├─ Lookup(question) ─ files.lookup(question) ─ next(fact) … Finished(entry)
//!   │ │ │        └─ files.found(question, entry); with it in `found`, ask again ──┐
//!   │ │ └─ Verify(credential) ─ bcrypt elsewhere ─ files.verified(key, verdict) ──┤
//!   └─┴───────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Pure: descriptors are held, never used; time comes as a value.

mod answer;
pub mod auth;
pub mod cache;
pub mod compress;
pub mod compressible;
pub mod decide;
pub mod entry;
pub mod errors;
mod forms;
pub mod listing;
pub mod lookup;
pub mod negotiate;
pub mod represent;
pub mod route;
pub mod rules;
#[cfg(test)]
pub mod testing;
pub mod variants;

use std::net::IpAddr;
use std::ops::Range;
use std::rc::Rc;

use crate::config::Config;
use crate::http::accept::Memo;
use crate::http::request::Request;
use crate::ring::Clock;
use crate::sys::bytes::Bytes;
use crate::sys::fds::Descriptor;
use crate::sys::file::Facts;
use answer::Asked;
use auth::Verdicts;
use cache::{Budget, Cache, Memory};
use entry::{Coding, Entry, SiteId};
use lookup::{Given, Lookup, Variants};
use route::Sites;

/// What is to be sent in answer to a request, decided.
///
/// The fields are, in this order, `prepared`, `extra` and `site`; each ends with CRLF. Among them is
/// Content-Length for every status that has one, so that only Date, Server and what depends on the
/// connection remains to be written.
#[derive(Debug)]
pub struct Plan {
    /// The status code.
    pub status: u16,
    /// Ready-made fields.
    pub prepared: Option<Rc<[u8]>>,
    /// Fields made for this response.
    pub extra: Vec<u8>,
    /// Ready-made fields of all the site's responses on secure connections.
    pub site: Option<Rc<[u8]>>,
    /// The body; `Empty` for HEAD and for statuses without one.
    pub body: PlanBody,
    /// The content coding chosen, for the log.
    pub coding: Option<Coding>,
}

impl Plan {
    /// A status and nothing else.
    pub fn empty(status: u16) -> Self {
        let (prepared, site, coding) = (None, None, None);
        Self { status, prepared, extra: Vec::new(), site, body: PlanBody::Empty, coding }
    }
}

/// The bytes of a response's content.
#[derive(Debug)]
pub enum PlanBody {
    /// None.
    Empty,
    /// From RAM.
    Memory(Bytes, Range<usize>),
    /// Made for this response.
    Text(Vec<u8>),
    /// From a file; `facts` are those it must still have when its last byte is sent.
    File { file: Rc<Descriptor>, range: Range<u64>, facts: Facts },
    /// multipart/byteranges: in turn a part's head and its bytes, then the closing delimiter as a
    /// part without bytes (RFC 9110 section 14.6).
    Parts(Vec<(Vec<u8>, PlanBody)>),
}

/// What [`Files::answer`] says.
#[derive(Debug)]
pub enum Answer {
    /// Send this.
    Ready(Plan),
    /// Look this up, then ask again with what was found.
    Lookup(Question),
    /// Have this password verified, tell [`Files::verified`], then ask again.
    Verify(Credential),
    /// Have a program answer.
    Program(Box<Mounted>),
}

/// A request that a program answers, and may.
#[derive(Debug)]
pub struct Mounted {
    /// Of which site.
    pub site: SiteId,
    /// Index in the site's mounts.
    pub mount: u16,
    /// The path, decoded and normalised.
    pub path: Vec<u8>,
    /// The user, where a password was asked for.
    pub user: Option<Vec<u8>>,
    /// Field lines that rules set for the path.
    pub fields: Vec<u8>,
    /// Ready-made fields of all the site's responses on secure connections.
    pub secure_fields: Option<Rc<[u8]>>,
}

/// What is to be looked up: a decoded path of a site.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Question {
    /// Which site.
    pub site: SiteId,
    /// Decoded, normalised, beginning with a slash.
    pub path: Vec<u8>,
    /// Whether the file itself is needed even where the site ships only a compressed one: that one is
    /// decoded then.
    pub plain: bool,
}

/// A password to verify.
#[derive(Clone, Debug)]
pub struct Credential {
    /// Keyed hash of user, password and stored hash, under which the verdict is remembered.
    pub key: [u8; 32],
    /// As the client sent it.
    pub password: Vec<u8>,
    /// The bcrypt hash on file.
    pub hash: String,
}

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The client's address; `None` on a unix socket.
    pub address: Option<IpAddr>,
    /// Whether the connection is secure.
    pub secure: bool,
}

/// The bounds of one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Bytes of bodies and heads kept in RAM: this worker's part of `cache.memory`.
    pub memory: u64,
    /// Open files that entries may hold, besides those being sent.
    pub descriptors: usize,
}

impl Share {
    /// Descriptors to be allowed where nothing else is known: a fourth of the common hard limit of
    /// 4096, leaving the rest to connections.
    pub const DESCRIPTORS: usize = 1024;
}

/// Everything that is served from files: sites, rules, and what is known of their files.
pub struct Files {
    sites: Sites,
    memory: Memory,
    cache: Cache,
    verdicts: Verdicts,
    accepts: Memo,
    variants: Variants,
    /// Paths are decoded in here.
    path: Vec<u8>,
}

impl Files {
    /// The sites of a configuration. `secret` is random: it keys what is remembered of passwords and
    /// keeps clients from choosing paths that collide in the cache.
    pub fn new(config: &Config, share: Share, secret: [u8; 32]) -> Self {
        let budget = Budget::new(share.memory);
        // No file may crowd out all others, nor be read for each request because it fits nowhere.
        let file_max = config.cache.max_file.min(share.memory / 4);
        let codings = config.cache.encodings.iter().map(|encoding| Coding::of(*encoding)).collect();
        let seed = secret.first_chunk().map_or(0, |start| u64::from_le_bytes(*start));
        Self {
            sites: Sites::new(&config.sites),
            memory: Memory { budget: Rc::clone(&budget), file_max },
            cache: Cache::new(budget, config.cache.revalidate, share.descriptors, seed),
            verdicts: Verdicts::new(&secret),
            accepts: Memo::default(),
            variants: Variants { codings, size_min: config.cache.min_size },
            path: Vec::new(),
        }
    }

    /// What to do about a request. `found` is all that was looked up for it so far; it counts even
    /// where it is due for another look, so that every request comes to its end.
    pub fn answer(
        &mut self,
        request: &Request<'_>,
        peer: &Peer,
        clock: Clock,
        found: &[(Question, Rc<Entry>)],
    ) -> Answer {
        let mut path = std::mem::take(&mut self.path);
        let answer = answer::answer(self, &Asked { request, peer, clock, found }, &mut path);
        self.path = path;
        answer
    }

    /// The machine that finds out what a question asks. `cache`: the site's directory of variants is
    /// there.
    pub fn lookup(&self, question: &Question, clock: Clock, cache: bool) -> Lookup {
        let given = Given {
            site: Rc::clone(self.sites.site(question.site)),
            memory: self.memory.clone(),
            clock,
            previous: self.cache.peek(question.site, &question.path).map(Rc::clone),
            variants: cache.then(|| self.variants.clone()),
            plain: question.plain,
        };
        Lookup::new(given, question.path.clone())
    }

    /// Keeps what a lookup found.
    pub fn found(&mut self, question: &Question, entry: &Rc<Entry>) {
        self.cache.insert(question.site, &question.path, entry);
    }

    /// Forgets all that is known of a site, whose root leads elsewhere now.
    pub fn forget_site(&mut self, site: SiteId) {
        self.cache.forget(site);
    }

    /// Takes the verdict on a credential.
    pub fn verified(&mut self, key: [u8; 32], right: bool, clock: Clock) {
        self.verdicts.note(key, right, clock.now);
    }

    /// What the cache holds and did.
    pub fn stats(&self) -> cache::Stats {
        self.cache.stats()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::testing::{Bench, site};

    /// What happens to a site.
    #[derive(Clone, Debug)]
    enum Happening {
        /// A new file takes the place, as by rename(2).
        Replaced(usize, u8),
        /// The file is written over, with as many bytes. Its times are whole seconds.
        Overwritten(usize, u8),
        Removed(usize),
        Passed(u64),
        Asked(usize),
    }

    const PATHS: [&str; 4] = ["a.png", "b.js", "b.js.gz", "d/index.html"];
    const TARGETS: [&str; 3] = ["/a.png", "/b.js", "/d/"];

    fn happening() -> impl Strategy<Value = Happening> {
        prop_oneof![
            (0..PATHS.len(), 0..20_u8).prop_map(|(path, version)| Happening::Replaced(path, version)),
            (0..PATHS.len(), 0..20_u8).prop_map(|(path, version)| Happening::Overwritten(path, version)),
            (0..PATHS.len()).prop_map(Happening::Removed),
            (0..100_u64).prop_map(Happening::Passed),
            prop_oneof![Just(999_u64), Just(1000), Just(3000)].prop_map(Happening::Passed),
            (0..TARGETS.len()).prop_map(Happening::Asked),
            (0..TARGETS.len()).prop_map(Happening::Asked),
        ]
    }

    /// Contents tell what they are of, and in which version. Those of a sidecar are shorter.
    fn contents(path: &str, version: u8) -> String {
        let pad = if path.ends_with(".gz") { 1 } else { 20 };
        format!("{path} {version:02}{}", "x".repeat(pad))
    }

    proptest! {
        /// An answer shows what the path led to at some time within the last second, whole.
        #[test]
        fn answers_are_never_older_than_promised(happenings in prop::collection::vec(happening(), 1..150)) {
            let mut bench = Bench::new(site(), &[]);
            let mut elapsed = Duration::ZERO;
            // Each path's contents, oldest first, with the time from which on they were there.
            let mut past: HashMap<&str, Vec<(Duration, Option<String>)>> = HashMap::new();
            let start = bench.clock;
            for happening in happenings {
                let seconds = i64::try_from(start.wall.duration_since(UNIX_EPOCH).expect("after").as_secs())
                    .expect("not so late") + i64::try_from(elapsed.as_secs()).expect("not so long");
                match happening {
                    Happening::Replaced(path, version) => {
                        let path = PATHS[path];
                        bench.tree.put(path, contents(path, version));
                        bench.tree.facts_mut(path).changed.seconds = seconds;
                        past.entry(path).or_default().push((elapsed, Some(contents(path, version))));
                    }
                    Happening::Overwritten(path, version) => {
                        let path = PATHS[path];
                        if bench.tree.overwrite(path, &contents(path, version), seconds) {
                            past.entry(path).or_default().push((elapsed, Some(contents(path, version))));
                        }
                    }
                    Happening::Removed(path) => {
                        bench.tree.remove(PATHS[path]);
                        past.entry(PATHS[path]).or_default().push((elapsed, None));
                    }
                    Happening::Passed(milliseconds) => {
                        elapsed += Duration::from_millis(milliseconds);
                        bench.clock.now = start.now + elapsed;
                        bench.clock.wall = start.wall + elapsed;
                    }
                    Happening::Asked(target) => {
                        let shown = bench.get(TARGETS[target], "Accept-Encoding: gzip\r\n");
                        let path = match (TARGETS[target], shown.field("Content-Encoding")) {
                            ("/b.js", "gzip") => "b.js.gz",
                            ("/b.js", _) => "b.js",
                            ("/d/", _) => "d/index.html",
                            _ => "a.png",
                        };
                        let got = (shown.status == 200).then_some(shown.content);
                        prop_assert!(shown.status == 200 || shown.status == 404);
                        let seen = past.get(path).map_or(&[][..], Vec::as_slice);
                        let ends = seen.iter().skip(1).map(|(from, _)| *from).chain([Duration::MAX]);
                        let first = seen.first().map_or(Duration::MAX, |(from, _)| *from);
                        let within = |end: Duration| end.saturating_add(Duration::from_secs(1)) > elapsed;
                        let was = seen.iter().zip(ends).any(|((_, was), end)| *was == got && within(end))
                            || (got.is_none() && within(first));
                        prop_assert!(was, "{path} at {elapsed:?}: {got:?}, but {seen:?}");
                    }
                }
            }
        }
    }
}
