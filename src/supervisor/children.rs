//! The children as processes, workers and companions alike: what they say, and how they end.
//!
//! A child may have been taken over by whoever sent it a byte too many, so nothing it says may hold up the
//! supervisor: notes are taken a few at a time, and a child that sends what is no note is ended.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

use super::Supervisor;
use super::companions::{self, CompanionId};
use super::machine::{Event, WorkerId};
use crate::metrics::start as metrics;
use crate::observe::names::Counters;
use crate::sys::process::{self, Ended, Pid};
use crate::sys::{Errno, pass};
use crate::worker::start::{NOTE_BYTES_MAX, Report};

/// So many notes of one child are taken at a time. What is left has the next wait return at once, with
/// everybody else being heard in between. A sound child sends a few in its life.
const NOTES_MAX: usize = 16;

/// A child's process.
pub(super) struct Process {
    pub pid: Pid,
    /// `None` once the child has closed its end, or is not listened to any more.
    pub channel: Option<OwnedFd>,
    pub counters: Counters,
    pub core: Option<u32>,
    /// Why it said that it cannot serve.
    pub reason: Option<String>,
    /// When it was last told the status.
    status_told: Option<Instant>,
}

/// A child sent what is no note.
struct Nonsense;

/// What a companion says.
enum Word {
    Report(Report),
    /// It asks for the status.
    Status,
}

impl Process {
    pub fn new(pid: Pid, channel: Option<OwnedFd>, counters: Counters, core: Option<u32>) -> Self {
        Self { pid, channel, counters, core, reason: None, status_told: None }
    }

    /// Takes what it said, up to [`NOTES_MAX`] notes.
    fn hear<N>(&mut self, understand: impl Fn(&[u8]) -> Option<N>) -> Result<Vec<N>, Nonsense> {
        let mut heard = Vec::new();
        let mut note = [0; NOTE_BYTES_MAX];
        while heard.len() < NOTES_MAX
            && let Some(channel) = &self.channel
        {
            match pass::receive(channel, &mut note) {
                Ok((0, _)) => self.channel = None,
                Ok((length, _)) => heard.push(understand(&note[..length]).ok_or(Nonsense)?),
                Err(errno) if errno == Errno::AGAIN => break,
                Err(_) => self.channel = None,
            }
        }
        Ok(heard)
    }

    /// Ends it: it is not what we have forked any more, or we have made a mistake.
    fn silence(&mut self) {
        self.channel = None;
        self.reason = Some("it sent a note that is none, and was killed for that".to_owned());
        process::kill(self.pid);
    }

    /// Whether it may be told the status now. It asks no more often by itself, unless it was taken over.
    fn may_be_told(&mut self, now: Instant) -> bool {
        let may = self.status_told.is_none_or(|told| now.duration_since(told) >= metrics::STATUS_EVERY);
        self.status_told = if may { Some(now) } else { self.status_told };
        may
    }
}

impl Supervisor {
    /// Takes notes of a worker.
    pub(super) fn listen_to(&mut self, id: WorkerId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        match process.hear(Report::from_note) {
            Ok(heard) => heard.into_iter().for_each(|report| self.heard(id, report)),
            Err(Nonsense) => process.silence(),
        }
    }

    fn heard(&mut self, id: WorkerId, report: Report) {
        match report {
            Report::Ready => self.handle(Event::Ready(id)),
            Report::Failed(reason) => {
                self.processes.entry(id).and_modify(|process| process.reason = Some(reason));
            }
            Report::Barred => self.renewal_wanted |= self.is_current(id),
        }
    }

    /// Takes notes of a companion.
    pub(super) fn listen_to_companion(&mut self, id: CompanionId) {
        let Some(process) = self.attending.get_mut(&id) else { return };
        match process.hear(Word::from_note) {
            Ok(heard) => heard.into_iter().for_each(|word| self.heard_companion(id, word)),
            Err(Nonsense) => process.silence(),
        }
    }

    fn heard_companion(&mut self, id: CompanionId, word: Word) {
        let Some(process) = self.attending.get_mut(&id) else { return };
        match word {
            Word::Status if process.may_be_told(Instant::now()) => self.tell_status(id),
            Word::Status => {}
            Word::Report(Report::Failed(reason)) => process.reason = Some(reason),
            Word::Report(Report::Ready) => self.waits_no_longer(id),
            // Its roots are its own affair.
            Word::Report(Report::Barred) => {}
        }
    }

    /// Takes the endings of all children that have ended. The kernel is asked for any, not for those we
    /// know: process 1 of a container is given the orphans of others too, and to take these in a second
    /// step would take whichever of ours ended in between.
    pub(super) fn reap(&mut self) {
        while let Some((pid, ended, _)) = process::reap_any() {
            if let Some(id) = name_of(&self.processes, pid) {
                self.bury(id, ended);
            } else if let Some(id) = name_of(&self.attending, pid) {
                self.bury_companion(id, ended);
            }
        }
    }

    fn bury(&mut self, id: WorkerId, ended: Ended) {
        let Some(mut process) = self.processes.remove(&id) else { return };
        self.gone.add(&process.counters, true);
        // Its last words may still be on the way. They are read before it is mourned: it may have served.
        for report in process.hear(Report::from_note).unwrap_or_default() {
            match report {
                Report::Failed(reason) => process.reason = Some(reason),
                report => self.heard(id, report),
            }
        }
        self.handle(Event::Died { worker: id, ended: Some(ended), reason: process.reason });
    }

    fn bury_companion(&mut self, id: CompanionId, ended: Ended) {
        let Some(mut process) = self.attending.remove(&id) else { return };
        self.gone.add(&process.counters, true);
        for word in process.hear(Word::from_note).unwrap_or_default() {
            match word {
                Word::Report(Report::Failed(reason)) => process.reason = Some(reason),
                Word::Report(Report::Ready) => self.waits_no_longer(id),
                Word::Report(Report::Barred) | Word::Status => {}
            }
        }
        self.attend(companions::Event::Died { id, ended: Some(ended), reason: process.reason });
    }
}

impl Word {
    fn from_note(note: &[u8]) -> Option<Self> {
        match note {
            metrics::STATUS => Some(Self::Status),
            note => Report::from_note(note).map(Self::Report),
        }
    }
}

fn name_of<N: Copy>(processes: &BTreeMap<N, Process>, pid: Pid) -> Option<N> {
    processes.iter().find(|(_, process)| process.pid == pid).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_says_much_is_heard_a_few_notes_at_a_time() {
        let (channel, theirs) = pass::channel().expect("a channel");
        let counters = Counters::new().expect("counters");
        let mut process = Process::new(process::own_pid(), Some(channel), counters, None);
        for _ in 0..2 * NOTES_MAX + 1 {
            pass::send(&theirs, b"R", None).expect("room for it");
        }
        let mut heard = || process.hear(Report::from_note).map(|notes| notes.len()).ok();
        assert_eq!([heard(), heard(), heard(), heard()], [NOTES_MAX, NOTES_MAX, 1, 0].map(Some));
        pass::send(&theirs, b"F", None).expect("room for it");
        pass::send(&theirs, b"nonsense", None).expect("room for it");
        assert_eq!(heard(), None, "nothing of it is believed");
    }

    #[test]
    fn the_status_is_told_no_more_often_than_it_is_made() {
        let counters = Counters::new().expect("counters");
        let mut process = Process::new(process::own_pid(), None, counters, None);
        let now = Instant::now();
        let mut may = |at| process.may_be_told(at);
        assert!(
            may(now) && !may(now) && may(now + metrics::STATUS_EVERY) && !may(now + metrics::STATUS_EVERY)
        );
    }
}
