//! Fetching what [`crate::files::lookup`] wants to know: at once where the kernel has it in memory,
//! else through the ring, with everyone who asks meanwhile waiting for the same answer.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use super::Worker;
use super::slots::Key;
use super::start::BARRED;
use super::tokens::Kind;
use crate::conn::Event;
use crate::files::Question;
use crate::files::compress::{self, Undecoded};
use crate::files::entry::{Entry, Target};
use crate::files::lookup::{Beneath, Fact, Lookup, Step};
use crate::observe::names::Counter;
use crate::ring::{Clock, Computation, Done, Job, Op, Payload, Ring};
use crate::sys::Errno;
use crate::sys::fds::Descriptor;

/// Look-ups that wait for the ring.
#[derive(Debug, Default)]
pub struct Lookups {
    running: Vec<Slot>,
    free: Vec<u32>,
    by_question: HashMap<Question, u32>,
}

#[derive(Debug, Default)]
struct Slot {
    reuse: u32,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    machine: Lookup,
    question: Question,
    root: Rc<Descriptor>,
    /// The site's directory of variants.
    cache: Option<Rc<Descriptor>>,
    waiters: Vec<Key>,
    reading: Option<Contents>,
}

/// Contents being read.
#[derive(Debug)]
struct Contents {
    file: Rc<Descriptor>,
    offset: u64,
    length: usize,
}

impl Lookups {
    fn store(&mut self, running: Running) -> Key {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.running.push(Slot::default());
            self.running.len() as u32 - 1
        });
        self.by_question.insert(running.question.clone(), slot);
        let place = &mut self.running[slot as usize];
        place.running = Some(running);
        Key { slot, reuse: place.reuse }
    }

    fn take(&mut self, key: Key) -> Option<Running> {
        let place = self.running.get_mut(key.slot as usize).filter(|place| place.reuse == key.reuse)?;
        let running = place.running.take()?;
        place.reuse = place.reuse.wrapping_add(1);
        self.free.push(key.slot);
        self.by_question.remove(&running.question);
        Some(running)
    }
}

/// What a look-up waits for.
enum Progress {
    Finished(Rc<Entry>),
    Waits(Op),
}

impl<R: Ring> Worker<R> {
    /// Looks up for a connection; the answer, unless it has to be waited for.
    pub(super) fn look_up(&mut self, question: Question, waiter: Key) -> Option<(Question, Rc<Entry>)> {
        if let Some(&slot) = self.lookups.by_question.get(&question)
            && let Some(running) = &mut self.lookups.running[slot as usize].running
        {
            running.waiters.push(waiter);
            return None;
        }
        let now = self.shared.clock.now;
        let found = self.shared.roots.find(question.site, now, &mut self.ring);
        if found.flipped {
            self.shared.files.forget_site(question.site);
        }
        let variants = self.shared.variants.find(question.site, now, &mut self.ring);
        if found.barred || variants.barred {
            // Whom nobody hears goes on with what it has.
            let _ = self.ring.send_now(self.channel, BARRED);
        }
        let Some(root) = found.directory else {
            return Some((question, unavailable(now)));
        };
        // What is found counts as seen when its root was: else a deploy that flips the root would stay
        // unseen for the age of the root and that of the entry together.
        let clock = Clock { now: found.checked, ..self.shared.clock };
        let cache = variants.directory;
        let machine = self.shared.files.lookup(&question, clock, cache.is_some());
        let mut running = Running { machine, question, root, cache, waiters: Vec::new(), reading: None };
        match self.advance(&mut running, Fact::Begin) {
            Progress::Finished(entry) => {
                self.shared.files.found(&running.question, &entry);
                Some((running.question, entry))
            }
            Progress::Waits(op) => {
                self.shared.counters.add(Counter::LookupsAsync, 1);
                running.waiters.push(waiter);
                let key = self.lookups.store(running);
                self.ring.push(Kind::Lookup.token(key), op);
                None
            }
        }
    }

    /// The ring answered for a look-up.
    pub(super) fn looked_up(&mut self, key: Key, result: Result<usize, Errno>, payload: Payload) {
        let Some(mut running) = self.lookups.take(key) else { return };
        let progress = match self.fact(&mut running, result, payload) {
            Ok(fact) => self.advance(&mut running, fact),
            Err(op) => Progress::Waits(op),
        };
        match progress {
            Progress::Waits(op) => {
                let key = self.lookups.store(running);
                self.ring.push(Kind::Lookup.token(key), op);
            }
            Progress::Finished(entry) => {
                self.shared.files.found(&running.question, &entry);
                for waiter in running.waiters {
                    self.deliver(waiter, Event::Found(running.question.clone(), Rc::clone(&entry)));
                }
            }
        }
    }

    /// What a completion says; or the op that has to follow it first.
    fn fact(
        &mut self,
        running: &mut Running,
        result: Result<usize, Errno>,
        payload: Payload,
    ) -> Result<Fact, Op> {
        let fact = match (result, payload) {
            (Err(errno), _) => {
                running.reading = None;
                Fact::Refused(errno)
            }
            (Ok(_), Payload::Done(Done::Computed(result))) => Fact::Decoded(result.map_err(undecoded)),
            (Ok(_), Payload::Descriptor(file)) => self.opened(file),
            (Ok(_), Payload::Done(Done::Listed { names, truncated })) => Fact::Listed { names, truncated },
            (Ok(read), Payload::Memory(bytes)) => {
                let Some(contents) = running.reading.take() else {
                    return Ok(Fact::Refused(Errno::IO));
                };
                if read > 0 && bytes.len() < contents.length {
                    return self.read(running, contents, bytes);
                }
                self.contents(&contents, bytes)
            }
            (Ok(_), _) => Fact::Refused(Errno::IO),
        };
        Ok(fact)
    }

    /// Gives the machine facts until it is finished or one has to be waited for.
    fn advance(&mut self, running: &mut Running, mut fact: Fact) -> Progress {
        loop {
            fact = match running.machine.next(fact) {
                Step::Finished(entry) => return Progress::Finished(entry),
                Step::Open { beneath, path, symlinks } => {
                    let dir = match (beneath, &running.cache) {
                        (Beneath::Root, _) => &running.root,
                        (Beneath::Cache, Some(cache)) => cache,
                        (Beneath::Cache, None) => {
                            unreachable!("variants are asked for only where there is a cache")
                        }
                    };
                    match self.ring.open_cached(dir.fd(), &path, symlinks) {
                        Ok(file) => self.opened(file),
                        Err(Errno::AGAIN) => {
                            let dir = Rc::clone(dir);
                            return Progress::Waits(Op::Open { dir, path, symlinks });
                        }
                        Err(errno) => Fact::Refused(errno),
                    }
                }
                Step::Decode { bytes, coding, bytes_max } => {
                    let decode = move || compress::decode(&bytes, coding, bytes_max).map_err(errno);
                    return Progress::Waits(Op::Delegate(Job::Compute(Computation::new(decode))));
                }
                Step::Contents { file, offset, length } => {
                    let contents = Contents { file, offset, length };
                    let bytes = Vec::with_capacity(contents.length);
                    match self.read(running, contents, bytes) {
                        Ok(fact) => fact,
                        Err(op) => return Progress::Waits(op),
                    }
                }
                Step::List { directory, symlinks, names_max } => {
                    return Progress::Waits(Op::Delegate(Job::List { directory, symlinks, names_max }));
                }
            };
        }
    }

    fn opened(&mut self, file: Descriptor) -> Fact {
        match self.ring.facts(file.fd()) {
            Ok(facts) => Fact::Opened(Rc::new(file), facts),
            Err(errno) => Fact::Refused(errno),
        }
    }

    /// Reads on as long as that needs no waiting.
    fn read(&mut self, running: &mut Running, contents: Contents, mut bytes: Vec<u8>) -> Result<Fact, Op> {
        while bytes.len() < contents.length {
            let rest = contents.length - bytes.len();
            let offset = contents.offset + bytes.len() as u64;
            match self.ring.read_cached(contents.file.fd(), offset, &mut bytes, rest) {
                Ok(0) => break,
                Ok(_) => {}
                Err(Errno::AGAIN) => {
                    let file = Rc::clone(&contents.file);
                    running.reading = Some(contents);
                    return Err(Op::Read { file, offset, into: bytes, length: rest });
                }
                Err(errno) => return Ok(Fact::Refused(errno)),
            }
        }
        Ok(self.contents(&contents, bytes))
    }

    fn contents(&mut self, contents: &Contents, bytes: Vec<u8>) -> Fact {
        match self.ring.facts(contents.file.fd()) {
            Ok(facts_after) => Fact::Contents { bytes, facts_after },
            Err(errno) => Fact::Refused(errno),
        }
    }
}

/// A failed decoding, as a job reports it.
fn errno(undecoded: Undecoded) -> Errno {
    match undecoded {
        Undecoded::TooLarge => Errno::FBIG,
        Undecoded::Broken => Errno::BADMSG,
    }
}

fn undecoded(errno: Errno) -> Undecoded {
    if errno == Errno::FBIG { Undecoded::TooLarge } else { Undecoded::Broken }
}

/// What any path of a site leads to whose root cannot be opened.
fn unavailable(now: Instant) -> Rc<Entry> {
    Rc::new(Entry { checked: Cell::new(now), lasting: false, target: Target::Refused(503) })
}
