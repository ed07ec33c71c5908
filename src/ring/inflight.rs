//! The operations that the kernel has, each with the memory it was lent.
//!
//! The index in this table is what the kernel echoes. An entry leaves the table with the last
//! completion of its op and not before: that is what makes the lent memory safe.

use std::ffi::CString;
use std::rc::Rc;

use super::memory::Message;
use super::{Fd, Token};
use crate::sys::bytes::Bytes;
use crate::sys::fds::Descriptor;

/// One operation in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Whose it is.
    pub(super) token: Token,
    /// What the kernel was lent, by which also the kind of the result is known.
    pub(super) lent: Lent,
}

/// What an op lends to the kernel until its last completion.
#[derive(Debug)]
pub(super) enum Lent {
    /// Nothing: polls and cancellations.
    Nothing,
    /// Nothing; connections come.
    Accept,
    /// A buffer that the kernel chooses.
    Receive,
    /// Nothing: the wait before a recv(2). `None` once the socket was closed; `last`: not to be repeated.
    ReceiveByPoll { socket: Option<Fd>, last: bool },
    /// The buffer of a send of one part, or of a write.
    Buffer(Vec<u8>),
    /// A send from shared memory; the empty buffer goes back.
    Shared(Vec<u8>, #[allow(dead_code, reason = "keeps the memory")] Bytes),
    /// A send of both.
    Parts(Vec<u8>, #[allow(dead_code, reason = "keeps the memory")] Bytes, Box<Message>),
    /// A path beneath a directory; the directory also stays open.
    Path(
        #[allow(dead_code, reason = "keeps the memory")] CString,
        #[allow(dead_code, reason = "keeps it open")] Rc<Descriptor>,
    ),
    /// Spare capacity to be read into; the file stays open.
    Spare(Vec<u8>, #[allow(dead_code, reason = "keeps it open")] Rc<Descriptor>),
    /// Nothing: the wait for the helper thread. Without a token of the worker's.
    Helper,
    /// Nothing: the cancellation of all at the end. Without a token of the worker's.
    Farewell,
}

/// A table with stable indices.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: Vec<Option<InFlight>>,
    vacant: Vec<u32>,
}

impl Table {
    pub(super) fn insert(&mut self, entry: InFlight) -> u64 {
        match self.vacant.pop() {
            Some(index) => {
                self.entries[index as usize] = Some(entry);
                index.into()
            }
            None => {
                self.entries.push(Some(entry));
                self.entries.len() as u64 - 1
            }
        }
    }

    /// The entry at an index that the kernel echoed.
    pub(super) fn at(&mut self, index: u64) -> &mut InFlight {
        self.entries[index as usize].as_mut().expect("a completion names an op in flight")
    }

    pub(super) fn remove(&mut self, index: u64) -> InFlight {
        let entry = self.entries[index as usize].take().expect("a completion names an op in flight");
        self.vacant.push(index as u32);
        entry
    }

    /// Has receives by poll on `fd` end with the poll that is in flight: it may be over already, so
    /// that a cancellation comes too late for it, and too early for the next.
    pub(super) fn stop_polling(&mut self, fd: Fd) {
        self.polls_of(fd).for_each(|(_, last)| *last = true);
    }

    /// Has receives by poll on `fd` receive nothing any more: its number will be another's.
    pub(super) fn closed(&mut self, fd: Fd) {
        self.polls_of(fd).for_each(|(socket, _)| *socket = None);
    }

    /// Searches all: only where the kernel takes no buffer ring.
    fn polls_of(&mut self, fd: Fd) -> impl Iterator<Item = (&mut Option<Fd>, &mut bool)> {
        self.entries.iter_mut().flatten().filter_map(move |entry| match &mut entry.lent {
            Lent::ReceiveByPoll { socket, last } if *socket == Some(fd) => Some((socket, last)),
            _ => None,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.vacant.len() == self.entries.len()
    }
}
