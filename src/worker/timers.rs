//! When which slot wants to be told that time has passed. Pure: knows slots and instants only.
//!
//! Deadlines move with almost every event, nearly always to later. So a deadline is only noted, and
//! the heap holds one live alarm per slot, never later than the deadline: when it rings early it is
//! set again. A slot's alarm outlives its connection and serves the next one, which keeps the heap
//! small under short connections. (A wheel would save the logarithm of operations that are rare.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// One deadline for each slot.
#[derive(Debug, Default)]
pub struct Timers {
    slots: Vec<Alarm>,
    heap: BinaryHeap<Reverse<(Instant, u32)>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Alarm {
    deadline: Option<Instant>,
    /// When the heap's live entry for the slot rings; others are stale.
    rings: Option<Instant>,
}

impl Timers {
    /// Sets or removes the deadline of `slot`.
    pub fn set(&mut self, slot: u32, deadline: Option<Instant>) {
        let index = slot as usize;
        if index >= self.slots.len() {
            self.slots.resize(index + 1, Alarm::default());
        }
        let alarm = &mut self.slots[index];
        alarm.deadline = deadline;
        if let Some(at) = deadline
            && alarm.rings.is_none_or(|rings| at < rings)
        {
            alarm.rings = Some(at);
            self.heap.push(Reverse((at, slot)));
        }
    }

    /// When to look next; `None`: nothing is waited for.
    pub fn next(&mut self) -> Option<Instant> {
        while let Some(&Reverse((at, slot))) = self.heap.peek() {
            let alarm = &mut self.slots[slot as usize];
            if alarm.rings == Some(at) {
                if alarm.deadline.is_some() {
                    return Some(at);
                }
                alarm.rings = None;
            }
            self.heap.pop();
        }
        None
    }

    /// Takes a slot whose deadline has passed, removing the deadline.
    pub fn expired(&mut self, now: Instant) -> Option<u32> {
        while let Some(at) = self.next().filter(|&at| at <= now) {
            let Some(Reverse((_, slot))) = self.heap.pop() else { break };
            let alarm = &mut self.slots[slot as usize];
            alarm.rings = None;
            match alarm.deadline {
                Some(deadline) if deadline <= now => {
                    alarm.deadline = None;
                    return Some(slot);
                }
                later => self.set(slot, later),
            }
            debug_assert!(at <= now);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(origin: Instant, seconds: u64) -> Instant {
        origin + Duration::from_secs(seconds)
    }

    #[test]
    fn a_deadline_moved_to_later_rings_only_then() {
        let origin = Instant::now();
        let mut timers = Timers::default();
        timers.set(3, Some(at(origin, 10)));
        timers.set(3, Some(at(origin, 20)));
        assert_eq!(timers.expired(at(origin, 10)), None);
        assert_eq!(timers.next(), Some(at(origin, 20)));
        assert_eq!(timers.expired(at(origin, 20)), Some(3));
        assert_eq!(timers.expired(at(origin, 99)), None);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn a_deadline_moved_to_earlier_rings_then_and_once() {
        let origin = Instant::now();
        let mut timers = Timers::default();
        timers.set(1, Some(at(origin, 60)));
        timers.set(1, Some(at(origin, 10)));
        assert_eq!(timers.expired(at(origin, 10)), Some(1));
        assert_eq!(timers.expired(at(origin, 60)), None);
    }

    #[test]
    fn a_slot_without_deadline_wakes_nobody() {
        let origin = Instant::now();
        let mut timers = Timers::default();
        timers.set(0, Some(at(origin, 5)));
        timers.set(0, None);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn many_short_uses_of_one_slot_keep_one_alarm() {
        let origin = Instant::now();
        let mut timers = Timers::default();
        for second in 0..1000 {
            timers.set(0, Some(at(origin, second + 60)));
            timers.set(0, None);
        }
        assert_eq!(timers.heap.len(), 1);
    }
}
