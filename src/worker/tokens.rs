//! What a worker's operations are called.

use super::slots::Key;
use crate::ring::Token;

/// What an operation was. In completions it comes back as the token's `kind`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Accepting; the slot is the listener's index.
    Accept,
    /// The supervisor's channel has something to say.
    Channel,
    /// A connection's receive.
    Receive,
    /// A connection's send.
    Send,
    /// A connection's wait for room in its socket.
    Writable,
    /// A piece of a file for a connection.
    ReadPiece,
    /// A connection's password check.
    Verify,
    /// A look-up's step; the slot is the look-up's.
    Lookup,
    /// A batch of log lines.
    Append,
    /// A runner has something to say; the slot is its number.
    RunnerSays,
    /// A runner's mailbox may have room again.
    RunnerHears,
    /// A program may take more of its input; the slot is the run's.
    ProgramInput,
    /// A program may have printed something; the slot is the run's.
    ProgramOutput,
    /// A cancellation: nothing depends on its completion.
    Cancel,
}

impl Kind {
    const ALL: [Self; 14] = [
        Self::Accept,
        Self::Channel,
        Self::Receive,
        Self::Send,
        Self::Writable,
        Self::ReadPiece,
        Self::Verify,
        Self::Lookup,
        Self::Append,
        Self::RunnerSays,
        Self::RunnerHears,
        Self::ProgramInput,
        Self::ProgramOutput,
        Self::Cancel,
    ];

    /// The token of such an operation.
    pub fn token(self, key: Key) -> Token {
        Token { kind: self as u8, slot: key.slot, reuse: key.reuse }
    }

    /// What the operation with this token was.
    pub fn of(token: Token) -> Self {
        Self::ALL[usize::from(token.kind)]
    }
}

/// The slot a token names.
pub fn key(token: Token) -> Key {
    Key { slot: token.slot, reuse: token.reuse }
}
