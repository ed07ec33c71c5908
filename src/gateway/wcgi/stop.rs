//! Why a run ends, and the watch over how long it may last.
//!
//! `timeout` bounds the time a module itself takes; waiting for the client, to take output or to give input,
//! does not count: a slow client is not the module's fault, and has its own deadlines in the worker. `wall`
//! bounds all of it, so that nobody holds a thread for ever.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Why a run ends before `_start` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The module said so, with this code.
    Exit(i32),
    /// It took longer than its mount's `timeout`.
    Timeout,
    /// It took longer than its mount's `wall`, waiting included.
    Wall,
    /// Nobody reads its output any more.
    Gone,
    /// It was told to by the worker.
    Ended,
    /// It called the system without having a memory that both can see.
    NoMemory,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exit(code) => return write!(f, "it exited with code {code}"),
            Self::Timeout => "it ran for longer than `timeout`",
            Self::Wall => "it ran for longer than `wall`",
            Self::Gone => "nobody reads its answer any more",
            Self::Ended => "it was told to end",
            Self::NoMemory => "it exports no `memory`",
        })
    }
}

impl std::error::Error for Stop {}

/// What is said of a run that does not end at once.
pub type Announce = Box<dyn FnOnce() + Send + Sync>;

/// How long a run has taken and may take.
pub struct Watch {
    began: Instant,
    waited: Duration,
    timeout: Duration,
    wall: Duration,
    ended: Arc<AtomicBool>,
    announce: Option<Announce>,
}

impl Watch {
    /// Begins to count. Setting `ended` ends the run.
    pub fn new(timeout: Duration, wall: Duration, ended: Arc<AtomicBool>, announce: Announce) -> Self {
        let announce = Some(announce);
        Self { began: Instant::now(), waited: Duration::ZERO, timeout, wall, ended, announce }
    }

    /// Says that the run has begun, if that was not said. Left until somebody has to wait for the run: one that
    /// ends before has its beginning and its end told in one word, which wakes the worker once.
    pub fn announce(&mut self) {
        if let Some(announce) = self.announce.take() {
            announce();
        }
    }

    /// Whether it was said that the run has begun.
    pub fn is_announced(&self) -> bool {
        self.announce.is_none()
    }

    /// Whether it may go on.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check(&self) -> Result<(), Stop> {
        let elapsed = self.began.elapsed();
        if self.ended.load(Ordering::Relaxed) {
            Err(Stop::Ended)
        } else if elapsed >= self.wall {
            Err(Stop::Wall)
        } else if elapsed.saturating_sub(self.waited) >= self.timeout {
            Err(Stop::Timeout)
        } else {
            Ok(())
        }
    }

    /// Has `wait` wait, again and again, until it says that it is done; that time is not the module's.
    /// It is given how long it may wait at most before the watch is looked at again.
    ///
    /// # Errors
    /// The reason why it is over.
    pub fn aside(&mut self, mut wait: impl FnMut(Duration) -> bool) -> Result<(), Stop> {
        /// An end that was ordered is seen after at most this long. The pipe is closed then, too, which
        /// is seen at once.
        const LOOK_AGAIN: Duration = Duration::from_secs(1);
        self.announce();
        loop {
            self.check()?;
            let began = Instant::now();
            let left = self.wall.saturating_sub(self.began.elapsed());
            let done = wait(left.min(LOOK_AGAIN));
            self.waited += began.elapsed();
            if done {
                return Ok(());
            }
        }
    }

    /// How long the module may still run by itself.
    pub fn left(&self) -> Duration {
        let elapsed = self.began.elapsed();
        let own = self.timeout.saturating_sub(elapsed.saturating_sub(self.waited));
        own.min(self.wall.saturating_sub(elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn each_bound_has_its_reason() {
        let ended = Arc::new(AtomicBool::new(false));
        let check = |timeout, wall| Watch::new(timeout, wall, ended.clone(), Box::new(|| ())).check();
        assert_eq!(check(LONG, LONG), Ok(()));
        assert_eq!(check(Duration::ZERO, LONG), Err(Stop::Timeout));
        assert_eq!(check(LONG, Duration::ZERO), Err(Stop::Wall));
        ended.store(true, Ordering::Relaxed);
        assert_eq!(check(Duration::ZERO, Duration::ZERO), Err(Stop::Ended));
    }

    #[test]
    fn waiting_is_not_running() {
        let announced = Arc::new(AtomicBool::new(false));
        let saying = Arc::clone(&announced);
        let announce = Box::new(move || saying.store(true, Ordering::Relaxed));
        let mut watch = Watch::new(LONG, LONG, Arc::default(), announce);
        let mut rounds = 0;
        let done = watch.aside(|most| {
            assert!(most <= Duration::from_secs(1) && announced.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(5));
            rounds += 1;
            rounds == 3
        });
        assert_eq!((done, rounds), (Ok(()), 3));
        assert!(watch.waited >= Duration::from_millis(15));
        assert!(watch.began.elapsed() >= watch.waited);
    }
}
