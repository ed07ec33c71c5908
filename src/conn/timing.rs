//! How long responses take, for the histograms: from the turn in which a request's head was complete to
//! the one in which the last byte of its response was with the kernel.
//!
//! Responses to pipelined requests leave by one send, so that a connection holds two batches and no list:
//! what leaves now, and what was decided since. Of a batch the oldest request counts for all; they differ
//! by the few turns in which their bytes came.

use std::time::Instant;

use crate::observe::latency::CLASSES;
use crate::observe::names::Counters;

/// Responses of a connection that are not with the kernel yet.
#[derive(Debug, Default)]
pub(super) struct Timing {
    /// When the head was complete of a request that is being looked up.
    asked: Option<Instant>,
    waiting: Option<Batch>,
    leaving: Option<Batch>,
}

#[derive(Clone, Copy, Debug)]
struct Batch {
    began: Instant,
    /// How many, by class.
    counts: [u16; CLASSES.len()],
}

impl Timing {
    /// A request is understood, but something has to be looked up or asked before it can be answered.
    pub(super) fn asked(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
    }

    /// A response was decided.
    pub(super) fn decided(&mut self, status: u16, now: Instant) {
        let began = self.asked.take().unwrap_or(now);
        let Some(class) = usize::from(status / 100).checked_sub(2) else { return };
        let batch = self.waiting.get_or_insert(Batch { began, counts: [0; CLASSES.len()] });
        if let Some(count) = batch.counts.get_mut(class) {
            // One buffer of responses is less than this can count.
            *count = count.saturating_add(1);
        }
    }

    /// The last byte of all that waited is being sent.
    pub(super) fn leave(&mut self) {
        debug_assert!(self.leaving.is_none(), "one send at a time");
        self.leaving = self.waiting.take();
    }

    /// The send has ended.
    pub(super) fn left(&mut self, now: Instant, counters: &Counters) {
        self.leaving.take().into_iter().for_each(|batch| batch.record(now, counters));
    }

    /// Everything has ended, one way or another.
    pub(super) fn end(&mut self, now: Instant, counters: &Counters) {
        self.left(now, counters);
        self.waiting.take().into_iter().for_each(|batch| batch.record(now, counters));
    }
}

impl Batch {
    fn record(self, now: Instant, counters: &Counters) {
        let took = now.saturating_duration_since(self.began);
        for (class, count) in self.counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
            counters.add_latency(class, count, took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_leaves_together_is_timed_together_and_what_waits_by_itself() {
        let counters = Counters::new().expect("a page");
        let origin = Instant::now();
        let at = |micros| origin + Duration::from_micros(micros);
        let mut timing = Timing::default();
        timing.decided(200, at(0));
        timing.decided(404, at(10));
        timing.leave();
        timing.decided(200, at(90));
        timing.left(at(100), &counters);
        assert_eq!((counters.latency(0).sum, counters.latency(2).sum), (100, 100));
        timing.left(at(100), &counters);
        timing.leave();
        timing.left(at(120), &counters);
        assert_eq!((counters.latency(0).sum, counters.latency(0).count), (130, 2));
        timing.asked(at(200));
        timing.asked(at(210));
        timing.decided(500, at(220));
        timing.end(at(300), &counters);
        timing.end(at(400), &counters);
        assert_eq!((counters.latency(3).sum, counters.latency(3).count), (100, 1));
    }

    #[test]
    fn interim_responses_and_statuses_of_no_class_are_not_timed() {
        let mut timing = Timing::default();
        timing.decided(103, Instant::now());
        assert!(timing.waiting.is_none());
        let counters = Counters::new().expect("a page");
        timing.decided(799, Instant::now());
        timing.end(Instant::now(), &counters);
        assert!((0..CLASSES.len()).all(|class| counters.latency(class).count == 0));
    }
}
