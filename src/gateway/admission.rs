//! How many programs of a mount run at once: up to `concurrency`, then a queue, then refusal. Pure: whoever
//! asks is a number, and starting is somebody else's business.
//!
//! ```text
//! enter -> Run ............................ leave -> the longest waiting may run
//!      |-> Wait -> leave (gave up waiting)
//!      '-> Full: 503 with Retry-After
//! ```

use std::collections::VecDeque;

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It may run.
    Run,
    /// It waits for its turn.
    Wait,
    /// Too many wait.
    Full,
}

/// The turnstile of one mount.
#[derive(Debug)]
pub struct Admission<T> {
    running: usize,
    running_max: usize,
    waiting: VecDeque<T>,
    waiting_max: usize,
}

impl<T: PartialEq> Admission<T> {
    /// With room for so many; neither is shared with other workers.
    pub fn new(running_max: usize, waiting_max: usize) -> Self {
        Self { running: 0, running_max: running_max.max(1), waiting: VecDeque::new(), waiting_max }
    }

    /// Somebody wants to run.
    pub fn enter(&mut self, who: T) -> Verdict {
        if self.running < self.running_max {
            self.running += 1;
            Verdict::Run
        } else if self.waiting.len() < self.waiting_max {
            self.waiting.push_back(who);
            Verdict::Wait
        } else {
            Verdict::Full
        }
    }

    /// Somebody who ran is done; who may run now.
    pub fn leave(&mut self) -> Option<T> {
        self.running = self.running.checked_sub(1).expect("who leaves has entered");
        let next = self.waiting.pop_front()?;
        self.running += 1;
        Some(next)
    }

    /// Somebody who waits gives up.
    pub fn give_up(&mut self, who: &T) {
        self.waiting.retain(|other| other != who);
    }

    /// How many run.
    pub fn running(&self) -> usize {
        self.running
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// One worker's share of what is allowed to all: never nothing.
pub fn share(of_all: u32, workers: u32) -> usize {
    of_all.div_ceil(workers.max(1)).max(1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_longest_waiting_comes_next() {
        let mut admission = Admission::new(2, 2);
        assert_eq!([1, 2, 3, 4, 5].map(|who| admission.enter(who)), {
            use Verdict::{Full, Run, Wait};
            [Run, Run, Wait, Wait, Full]
        });
        assert_eq!(admission.leave(), Some(3));
        admission.give_up(&4);
        assert_eq!(admission.leave(), None);
        assert_eq!(admission.leave(), None);
        assert_eq!((admission.running(), admission.waiting()), (0, 0));
    }

    #[test]
    fn a_share_is_never_nothing() {
        assert_eq!(
            [(32, 2), (33, 2), (1, 8), (0, 1)].map(|(all, workers)| share(all, workers)),
            [16, 17, 1, 1]
        );
    }

    proptest! {
        #[test]
        fn nobody_waits_while_there_is_room(
            running_max in 1_usize..4,
            waiting_max in 0_usize..4,
            deeds in prop::collection::vec(0_u8..3, 0..60),
        ) {
            let mut admission = Admission::new(running_max, waiting_max);
            let (mut running, mut waiting) = (0, VecDeque::new());
            for (who, deed) in deeds.into_iter().enumerate() {
                match deed {
                    0 => match admission.enter(who) {
                        Verdict::Run => running += 1,
                        Verdict::Wait => waiting.push_back(who),
                        Verdict::Full => prop_assert_eq!(waiting.len(), waiting_max),
                    },
                    1 if running > 0 => match admission.leave() {
                        Some(next) => prop_assert_eq!(Some(next), waiting.pop_front()),
                        None => running -= 1,
                    },
                    _ => {
                        if let Some(who) = waiting.pop_back() {
                            admission.give_up(&who);
                        }
                    }
                }
                prop_assert_eq!((admission.running(), admission.waiting()), (running, waiting.len()));
                prop_assert!(running <= running_max && (waiting.is_empty() || running == running_max));
            }
        }
    }
}
