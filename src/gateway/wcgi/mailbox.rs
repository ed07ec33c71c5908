//! The host's end of its connection with one worker: what it asked for, and the threads that read it.
//!
//! Several threads wait for messages on the same socket, of which the kernel wakes one for each. Who takes a
//! request runs it, after seeing to it that somebody else waits; so no thread hands work to another, which would
//! cost a request two changes of context more. There is one thread more than may run modules: somebody always
//! waits, and the order to end a run is heard however many there are. Requests beyond that wait in a queue.
//!
//! Messages are taken in order, but threads may get on with them in another: an `End` may be here before its
//! `Start`, and a message of an earlier life of the worker after its successor's first.
//!
//! Nothing here grows with what a worker sends: it has its share of each mount, and a thread that cannot send its
//! answer waits for room instead of reading on. Each mailbox has threads of its own, so that is nobody else's harm.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::gateway::faults::Faults;
use crate::gateway::messages::{Message, MountId, Refusal, ToRunner, ToWorker};
use crate::gateway::start::is_epoch_of;
use crate::observe::names::{Counter, Counters};
use crate::sys::wait::{self, For};
use crate::sys::{Errno, pass};

/// How long after a failure messages are asked for again, or sent.
const PAUSE: Duration = Duration::from_millis(100);

/// What a request is known by: the epoch of the worker that asked, and its number for it.
pub type Asked = (u64, u64);

/// A socket, and what came over it.
pub struct Mailbox {
    fd: OwnedFd,
    /// Whose it is.
    index: usize,
    /// How many workers there are.
    workers: usize,
    /// The host's own epoch.
    epoch: u64,
    book: Mutex<Book>,
    counters: Arc<Mutex<Counters>>,
    /// Those of all mailboxes: together they may log as much as one.
    faults: Arc<Mutex<Faults>>,
}

/// A request whose turn it is.
#[derive(Debug)]
pub struct Job {
    /// What it is known by.
    pub asked: Asked,
    /// Set to end it.
    pub ended: Arc<AtomicBool>,
    /// The length of its message.
    pub length: usize,
    /// What came with it.
    pub descriptors: Vec<OwnedFd>,
    /// Whether another thread is to be begun first: nobody else waits for messages.
    pub hires: bool,
}

/// What is known of a worker, and what it has asked for.
#[derive(Debug)]
pub struct Book {
    /// The latest epoch the worker had.
    peer: u64,
    /// Requests under way, those included that wait for a thread.
    runs: HashMap<Asked, (MountId, Arc<AtomicBool>)>,
    /// Told to end before anybody got on with their start.
    early: VecDeque<Asked>,
    /// Of each mount, how many may run at once.
    shares: Arc<HashMap<MountId, usize>>,
    /// Requests for which there is no thread.
    unserved: VecDeque<(Vec<u8>, Job)>,
    /// Threads that wait for messages.
    readers: usize,
    threads: usize,
    threads_max: usize,
}

/// What becomes of a message.
#[derive(Debug)]
enum Verdict {
    Nothing,
    Greet,
    Run(Arc<AtomicBool>),
    Refuse(u64, Refusal),
}

impl Mailbox {
    /// That of worker `index` of so many.
    ///
    /// # Errors
    /// Those of fcntl(2).
    pub fn new(
        fd: OwnedFd,
        (index, workers): (usize, usize),
        epoch: u64,
        book: Book,
        counters: Arc<Mutex<Counters>>,
        faults: Arc<Mutex<Faults>>,
    ) -> Result<Self, Errno> {
        // Of all who have this end, only the host reads it.
        wait::set_blocking(&fd, true)?;
        Ok(Self { fd, index, workers, epoch, book: Mutex::new(book), counters, faults })
    }

    /// Says that the host is here, to whoever is at the other end.
    pub fn greet(&self) {
        self.say(0, ToWorker::Hello);
    }

    /// Waits for a request to run, whose message is in `memory` then; does what else there is to do. `None`:
    /// nothing will ever come again.
    pub fn next(&self, memory: &mut [u8]) -> Option<Job> {
        loop {
            if let Some((bytes, job)) = self.book().serve_or_wait() {
                memory.get_mut(..bytes.len())?.copy_from_slice(&bytes);
                return Some(job);
            }
            let received = pass::receive_all(&self.fd, memory);
            let mut book = self.book();
            book.readers -= 1;
            let (length, descriptors) = match received {
                // An empty packet looks like the end.
                Ok((0, _)) if wait::has_ended(&self.fd) => return None,
                Ok(received) => received,
                Err(errno) => {
                    drop(book);
                    self.fault(&format!("worker {} cannot be heard: {errno}", self.index));
                    // For want of memory, if anything; without a thread here nothing would run any more.
                    thread::sleep(PAUSE);
                    continue;
                }
            };
            let bytes = memory.get(..length).unwrap_or_default();
            let Some(message) = Message::<ToRunner<'_>>::decode(bytes) else {
                self.fault(&format!("worker {} sent a message that is none", self.index));
                continue;
            };
            let from = message.from;
            if !is_epoch_of(from, self.index, self.workers) {
                self.fault(&format!("worker {} speaks as if it were another", self.index));
                continue;
            }
            match book.take(&message, self.epoch) {
                Verdict::Nothing => {}
                Verdict::Greet => {
                    drop(book);
                    self.say(from, ToWorker::Hello);
                }
                Verdict::Refuse(id, why) => {
                    drop(book);
                    self.say(from, ToWorker::Refused { id, why });
                }
                Verdict::Run(ended) => {
                    let ToRunner::Start(start) = message.what else { continue };
                    let job = Job { asked: (from, start.id), ended, length, descriptors, hires: false };
                    if let Some(job) = book.assign(bytes, job) {
                        return Some(job);
                    }
                }
            }
        }
    }

    /// The thread that was to be begun could not.
    pub fn lose_thread(&self) {
        self.book().threads -= 1;
    }

    /// A request is over: its number is free.
    pub fn finish(&self, asked: Asked) {
        self.book().runs.remove(&asked);
    }

    /// Says something to an epoch of the worker, as soon as there is room.
    pub fn say(&self, to: u64, what: ToWorker) {
        self.count(what);
        let mut bytes = Vec::with_capacity(64);
        Message { from: self.epoch, to, what }.encode(&mut bytes);
        let room = || wait::wait(&[(self.fd.as_fd(), For::Writing)], None).is_ok();
        insist(|| pass::send(&self.fd, &bytes, None), room);
    }

    fn count(&self, what: ToWorker) {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        match what {
            ToWorker::Hello => {}
            ToWorker::Started { .. } => {
                counters.add(Counter::ProgramsStarted, 1);
                counters.add(Counter::ProgramsRunning, 1);
            }
            ToWorker::Refused { .. } => counters.add(Counter::ProgramsRefused, 1),
            ToWorker::Exited { .. } => counters.sub(Counter::ProgramsRunning, 1),
            ToWorker::Ran { .. } => counters.add(Counter::ProgramsStarted, 1),
        }
    }

    fn fault(&self, what: &str) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).log(what);
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends, again and again for want of room or memory: a worker that misses an end counts that run for ever.
/// Whatever else is wrong stays wrong: nobody is there to read.
fn insist(mut send: impl FnMut() -> Result<(), Errno>, room: impl Fn() -> bool) {
    loop {
        match send() {
            Err(Errno::AGAIN) if room() => {}
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => thread::sleep(PAUSE),
            Ok(()) | Err(_) => return,
        }
    }
}

impl Book {
    /// Ends that came early and whose requests never came are of no use for long.
    const EARLY_MAX: usize = 64;

    /// Of a worker that has this share of each mount, for one thread to begin with.
    pub fn new(shares: Arc<HashMap<MountId, usize>>, threads_max: usize) -> Self {
        Self {
            peer: 0,
            runs: HashMap::new(),
            early: VecDeque::new(),
            shares,
            unserved: VecDeque::new(),
            readers: 0,
            threads: 1,
            threads_max,
        }
    }

    /// A thread has nothing to do: it takes what nobody has served so far, unless it has to wait for messages.
    fn serve_or_wait(&mut self) -> Option<(Vec<u8>, Job)> {
        let unserved = if self.readers > 0 { self.unserved.pop_front() } else { None };
        self.readers += usize::from(unserved.is_none());
        unserved
    }

    /// Gives a request to the thread that has it in hand, or keeps it until another is free.
    fn assign(&mut self, bytes: &[u8], mut job: Job) -> Option<Job> {
        if self.readers == 0 {
            if self.threads == self.threads_max {
                self.unserved.push_back((bytes.to_vec(), job));
                return None;
            }
            self.threads += 1;
            job.hires = true;
        }
        Some(job)
    }

    fn take(&mut self, message: &Message<ToRunner<'_>>, epoch: u64) -> Verdict {
        let &Message { from, to, what } = message;
        // Epochs rise. A worker that claims one of a life to come harms only what comes in its own mailbox, which
        // it could close as well.
        if from < self.peer {
            return Verdict::Nothing;
        }
        if from > self.peer {
            self.peer = from;
            self.runs.values().for_each(|(_, ended)| ended.store(true, Ordering::Relaxed));
            self.early.clear();
        }
        match what {
            ToRunner::Hello => Verdict::Greet,
            _ if to != epoch => Verdict::Nothing,
            ToRunner::Start(start) => match self.begin((from, start.id), start.mount) {
                Ok(ended) => Verdict::Run(ended),
                Err(why) => Verdict::Refuse(start.id, why),
            },
            ToRunner::End { id, .. } => {
                self.end((from, id));
                Verdict::Nothing
            }
        }
    }

    fn begin(&mut self, asked: Asked, mount: MountId) -> Result<Arc<AtomicBool>, Refusal> {
        if self.runs.contains_key(&asked) {
            return Err(Refusal::Broken);
        }
        if !self.has_room(asked.0, mount)? {
            return Err(Refusal::Busy);
        }
        let early = self.early.iter().position(|other| *other == asked);
        early.map(|at| self.early.remove(at));
        let ended = Arc::new(AtomicBool::new(early.is_some()));
        self.runs.insert(asked, (mount, Arc::clone(&ended)));
        Ok(ended)
    }

    /// Whether one more may run. A worker asks for no more than its share, so this is for one that was taken over.
    /// What its earlier lives began is being ended; until it has, there may be as many again.
    fn has_room(&self, from: u64, mount: MountId) -> Result<bool, Refusal> {
        let share = *self.shares.get(&mount).ok_or(Refusal::NotFound)?;
        let (mut now, mut ever) = (0, 0);
        for ((epoch, _), _) in self.runs.iter().filter(|(_, (other, _))| *other == mount) {
            ever += 1;
            now += usize::from(*epoch == from);
        }
        Ok(now < share && ever < 2 * share)
    }

    fn end(&mut self, asked: Asked) {
        if let Some((_, ended)) = self.runs.get(&asked) {
            ended.store(true, Ordering::Relaxed);
            return;
        }
        if self.early.len() == Self::EARLY_MAX {
            self.early.pop_front();
        }
        self.early.push_back(asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNT: MountId = MountId { site: 0, mount: 3 };
    const WORKER: u64 = 10;

    fn book(share: usize, threads_max: usize) -> Book {
        Book::new(Arc::new(HashMap::from([(MOUNT, share)])), threads_max)
    }

    fn job(id: u64) -> Job {
        Job { asked: (WORKER, id), ended: Arc::default(), length: 1, descriptors: Vec::new(), hires: false }
    }

    #[test]
    fn an_end_that_comes_first_still_counts() {
        let mut book = book(9, 2);
        let begin = |book: &mut Book, id| {
            let ended = book.begin((WORKER, id), MOUNT).expect("room");
            book.runs.clear();
            ended.load(Ordering::Relaxed)
        };
        book.end((WORKER, 7));
        assert!(!begin(&mut book, 8));
        assert!(begin(&mut book, 7));
        assert!(!begin(&mut book, 7), "once");
        (100..300).for_each(|id| book.end((WORKER, id)));
        assert_eq!(book.early.len(), Book::EARLY_MAX);
        assert!(begin(&mut book, 299) && !begin(&mut book, 100));
        let ended = book.begin((WORKER, 9), MOUNT).expect("room");
        book.end((WORKER, 9));
        assert!(ended.load(Ordering::Relaxed));
    }

    #[test]
    fn what_cannot_be_said_now_is_said_later() {
        let mut results = [Err(Errno::NOBUFS), Err(Errno::AGAIN), Err(Errno::NOMEM), Ok(())].into_iter();
        insist(|| results.next().expect("once it went well, no more"), || true);
        assert_eq!(results.len(), 0);
        for gone in [Errno::PIPE, Errno::CONNRESET] {
            let mut results = std::iter::once(Err(gone));
            insist(|| results.next().expect("nobody reads"), || true);
        }
    }

    #[test]
    fn a_worker_has_its_share_and_no_more() {
        let mut book = book(2, 9);
        let (mut began, mut refused) = (Vec::new(), 0);
        for worker in [WORKER, WORKER + 1, WORKER + 2] {
            assert!(matches!(
                book.take(&Message { from: worker, to: 0, what: ToRunner::Hello }, 1),
                Verdict::Greet
            ));
            assert!(began.iter().all(|ended: &Arc<AtomicBool>| ended.load(Ordering::Relaxed)));
            for id in 0..3 {
                match book.begin((worker, id), MOUNT) {
                    Ok(ended) => began.push(ended),
                    Err(why) => {
                        assert_eq!(why, Refusal::Busy);
                        refused += 1;
                    }
                }
            }
        }
        assert_eq!((began.len(), refused), (4, 1 + 1 + 3));
        assert_eq!(
            book.begin((WORKER, 0), MOUNT).err(),
            Some(Refusal::Broken),
            "a number is that of one run"
        );
        let other = MountId { site: 0, mount: 4 };
        assert_eq!(book.begin((WORKER, 9), other).err(), Some(Refusal::NotFound));
    }

    #[test]
    fn what_is_meant_for_others_or_comes_too_late_is_dropped() {
        let mut book = book(2, 2);
        let end = |from, to| {
            let what = ToRunner::End { id: 5, why: crate::gateway::messages::Why::Gone };
            Message { from, to, what }
        };
        assert!(matches!(book.take(&end(WORKER, 1), 2), Verdict::Nothing));
        assert!(book.early.is_empty(), "for the host before");
        book.take(&end(WORKER, 2), 2);
        assert_eq!(book.early, [(WORKER, 5)]);
        book.take(&end(WORKER - 1, 2), 2);
        assert_eq!(book.early, [(WORKER, 5)], "of the worker before");
        let hello = Message { from: WORKER - 1, to: 0, what: ToRunner::Hello };
        assert!(matches!(book.take(&hello, 2), Verdict::Nothing));
    }

    #[test]
    fn somebody_always_waits_for_messages() {
        let mut book = book(9, 2);
        // The first thread waits and takes a request; a second one is begun.
        assert!(book.serve_or_wait().is_none());
        book.readers -= 1;
        assert!(book.assign(b"1", job(1)).is_some_and(|job| job.hires));
        assert!(book.serve_or_wait().is_none());
        book.readers -= 1;
        // There is no third: the second keeps its request and waits.
        assert!(book.assign(b"2", job(2)).is_none());
        assert!(book.serve_or_wait().is_none());
        // The first is done.
        let (bytes, next) = book.serve_or_wait().expect("what was kept");
        assert_eq!((&bytes[..], next.asked, next.hires), (&b"2"[..], (WORKER, 2), false));
        assert!(book.serve_or_wait().is_none());
        book.readers -= 1;
        assert!(book.assign(b"3", job(3)).is_some_and(|job| !job.hires), "one waits already");
    }
}
