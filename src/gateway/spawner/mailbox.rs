//! The spawner's end of its connection with one worker.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use crate::gateway::messages::{Message, ToWorker};
use crate::sys::{Errno, pass, wait};

/// A socket, and what found no room in it yet: one or two short messages for each program that runs. While
/// something waits for room, nothing more is read: who does not listen is not heard, and so cannot make it grow.
#[derive(Debug)]
pub struct Mailbox {
    fd: OwnedFd,
    /// The epoch of the worker, once it has spoken.
    peer: Option<u64>,
    waiting: VecDeque<Vec<u8>>,
    /// Nothing will ever come again.
    is_over: bool,
}

/// What a mailbox holds.
#[derive(Debug)]
pub enum Received {
    /// A message of so many bytes, and what came with it.
    Message(usize, Vec<OwnedFd>),
    /// None at present.
    Nothing,
    /// None any more: this is the last thing received.
    End,
}

impl Mailbox {
    /// Of a SEQPACKET socket, non-blocking.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd, peer: None, waiting: VecDeque::new(), is_over: false }
    }

    /// To be waited for.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether messages wait for room.
    pub fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether it is to be read.
    pub fn is_heard(&self) -> bool {
        !self.is_full() && !self.is_over
    }

    /// Notes who speaks; whether that is another than before.
    pub fn is_new(&mut self, from: u64) -> bool {
        self.peer.replace(from) != Some(from)
    }

    /// Takes one message.
    ///
    /// # Errors
    /// Those of recvmsg(2).
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Received, Errno> {
        match pass::receive_all(&self.fd, buffer) {
            // An empty packet looks like the end, and does not keep a later life of the worker from being heard.
            Ok((0, _)) if wait::has_ended(&self.fd) => {
                self.is_over = true;
                Ok(Received::End)
            }
            Ok((length, descriptors)) => Ok(Received::Message(length, descriptors)),
            Err(Errno::AGAIN) => Ok(Received::Nothing),
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

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: Message<ToWorker> = Message { from: 1, to: 2, what: ToWorker::Hello };

    #[test]
    fn an_end_is_told_from_an_empty_packet() {
        let (fd, worker) = pass::channel().expect("a channel");
        let (mut mailbox, mut buffer) = (Mailbox::new(fd), [0; 16]);
        pass::send(&worker, b"", None).expect("sent");
        assert!(matches!(mailbox.receive(&mut buffer), Ok(Received::Message(0, _))));
        assert!(matches!(mailbox.receive(&mut buffer), Ok(Received::Nothing)) && mailbox.is_heard());
        pass::send(&worker, b"last", None).expect("sent");
        drop(worker);
        assert!(matches!(mailbox.receive(&mut buffer), Ok(Received::Message(4, _))));
        assert!(matches!(mailbox.receive(&mut buffer), Ok(Received::End)) && !mailbox.is_heard());
    }

    #[test]
    fn who_does_not_listen_is_not_heard() {
        let (fd, worker) = pass::channel().expect("a channel");
        let mut mailbox = Mailbox::new(fd);
        let sent = (0..100_000).find(|_| {
            mailbox.send(&ANSWER);
            mailbox.is_full()
        });
        assert!(sent.is_some() && !mailbox.is_heard());
        let mut buffer = [0; 64];
        while pass::receive(&worker, &mut buffer).is_ok() {}
        mailbox.flush();
        assert!(mailbox.is_heard());
    }
}
