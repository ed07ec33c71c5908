//! Which deadline a connection is under. One at a time; the worker's timers keep it.

use std::time::Instant;

/// What a connection is waiting for the peer to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// Finish the TLS handshake, or send the PROXY header.
    Handshake,
    /// Begin a request.
    Request,
    /// Finish a request head.
    Head,
    /// Go on with a request body.
    Body,
    /// Take bytes.
    Reading,
    /// Close, after our last byte.
    Close,
    /// Nothing: a program is to print something, or to take some of its input.
    Program,
    /// Nothing: a program is to be over.
    Wall,
    /// Nothing: a program's end is to be known.
    Exit,
}

/// A deadline, and whom it is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadline {
    /// When.
    pub at: Instant,
    /// What should have happened.
    pub waiting: Waiting,
}

/// Tells a slow reader from one that stopped.
///
/// While the kernel holds bytes for the peer and a send waits for room, no completion shows
/// progress. Twice per send time the number of unacknowledged bytes is looked at: it falls as long
/// as the peer reads. Two looks in a row without change end the connection, so a peer that takes
/// nothing is given between one and one and a half times the send time.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    unsent: u64,
    looks: u8,
}

impl Default for Stall {
    fn default() -> Self {
        Self { unsent: u64::MAX, looks: 0 }
    }
}

impl Stall {
    /// Notes how much is unsent; whether the peer has stopped reading.
    pub fn look(&mut self, unsent: u64) -> bool {
        self.looks = if unsent == self.unsent { self.looks + 1 } else { 0 };
        self.unsent = unsent;
        self.looks >= 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_is_stalled_after_two_unchanged_looks() {
        let mut stall = Stall::default();
        let looks = [900, 900, 800, 800, 800];
        assert_eq!(looks.map(|unsent| stall.look(unsent)), [false, false, false, false, true]);
    }
}
