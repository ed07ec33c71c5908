//! The spawner's end of its connection with one worker.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use crate::gateway::messages::{Message, ToWorker};
use crate::sys::{Errno, pass};

/// A socket, and what found no room in it yet: one or two short messages for each program that runs.
#[derive(Debug)]
pub struct Mailbox {
    fd: OwnedFd,
    /// The epoch of the worker, once it has spoken.
    peer: Option<u64>,
    waiting: VecDeque<Vec<u8>>,
}

impl Mailbox {
    /// Of a SEQPACKET socket, non-blocking.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd, peer: None, waiting: VecDeque::new() }
    }

    /// To be waited for.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether messages wait for room.
    pub fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Notes who speaks; whether that is another than before.
    pub fn is_new(&mut self, from: u64) -> bool {
        self.peer.replace(from) != Some(from)
    }

    /// Takes one message; `None` when there is none.
    ///
    /// # Errors
    /// Those of recvmsg(2).
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<(usize, Vec<OwnedFd>)>, Errno> {
        match pass::receive_all(&self.fd, buffer) {
            Ok(received) => Ok(Some(received)),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Sends one message, after those that wait.
    pub fn send(&mut self, message: &Message<ToWorker>) {
        let mut bytes = Vec::with_capacity(64);
        message.encode(&mut bytes);
        self.waiting.push_back(bytes);
        self.flush();
    }

    /// Sends what waits, as far as there is room.
    pub fn flush(&mut self) {
        while let Some(message) = self.waiting.front() {
            match pass::send(&self.fd, message, None) {
                Err(Errno::AGAIN | Errno::NOBUFS) => return,
                // Nobody is there to hear it; a successor of the worker begins with a word of its own.
                Ok(()) | Err(_) => drop(self.waiting.pop_front()),
            }
        }
    }
}
