//! Whether the server serves, on a page of its own: the supervisor writes it, and who answers for it can
//! read it without asking, even while the supervisor is busy.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;

use crate::sys::shared::Page;
use crate::sys::{Error, memory_file};

/// Where the state stands.
const STATE: usize = 0;
/// Where the number of workers that serve stands.
const WORKERS: usize = 1;

/// What the supervisor last said. Clones share it.
#[derive(Clone, Debug)]
pub struct Health(Page);

/// What there is to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// So many workers serve.
    Serving(u64),
    /// Nobody serves yet, or at the moment.
    Idle,
    /// The server stops: what is in flight is finished, nobody else is served.
    Draining,
}

impl Health {
    /// Nobody serves yet. The file that comes along outlives the program, if it is kept open.
    ///
    /// # Errors
    /// When the system gives no shared page.
    pub fn new() -> Result<(Self, OwnedFd), Error> {
        let file = memory_file::page()?;
        Ok((Self::of(&file)?, file))
    }

    /// What a file holds that [`Self::new`] gave.
    ///
    /// # Errors
    /// When it is no such file.
    pub fn of(file: &OwnedFd) -> Result<Self, Error> {
        Page::of(file).map(Self)
    }

    /// Says how it is.
    pub fn set(&self, verdict: Verdict) {
        let (is_draining, workers) = match verdict {
            Verdict::Serving(workers) => (0, workers),
            Verdict::Idle => (0, 0),
            Verdict::Draining => (1, 0),
        };
        self.0[STATE].store(is_draining, Relaxed);
        self.0[WORKERS].store(workers, Relaxed);
    }

    /// How it was when that was last said.
    pub fn verdict(&self) -> Verdict {
        match (self.0[STATE].load(Relaxed), self.0[WORKERS].load(Relaxed)) {
            (0, 0) => Verdict::Idle,
            (0, workers) => Verdict::Serving(workers),
            _ => Verdict::Draining,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard() {
        let (health, file) = Health::new().expect("a page");
        assert_eq!(health.verdict(), Verdict::Idle);
        for verdict in [Verdict::Serving(3), Verdict::Draining, Verdict::Serving(1), Verdict::Idle] {
            health.set(verdict);
            assert_eq!(health.clone().verdict(), verdict);
            assert_eq!(Health::of(&file).expect("the same page").verdict(), verdict);
        }
    }
}
