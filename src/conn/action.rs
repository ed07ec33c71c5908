//! What goes into a connection and what comes out of it.

use std::ops::Range;
use std::rc::Rc;

use super::outcome::Outcome;
use super::program::{Exit, Fault, Start};
use crate::files::entry::Entry;
use crate::files::{Credential, Question};
use crate::gateway::messages::Why;
use crate::sys::Errno;
use crate::sys::bytes::Slice;
use crate::sys::fds::Descriptor;
use crate::sys::file::Facts;

/// Something that happened to a connection.
#[derive(Debug)]
pub enum Event<'a> {
    /// Bytes came; none means that the peer will send no more.
    Received(&'a [u8]),
    /// Receiving failed.
    ReceiveFailed(Errno),
    /// A send ended; `head` is the memory it was lent.
    Sent { result: Result<usize, Errno>, head: Vec<u8> },
    /// The socket takes bytes again.
    Writable,
    /// That many bytes of the file went to the socket; 0: the socket is full.
    Transferred(usize),
    /// The next bytes of the file, read because they could not be transferred directly.
    Chunk(Vec<u8>),
    /// The transfer cannot go on.
    TransferFailed(Outcome),
    /// What a look-up found.
    Found(Question, Rc<Entry>),
    /// A password was verified, and the verdict remembered.
    Verified,
    /// Too many passwords wait to be verified.
    Overloaded,
    /// Whether the kernel encrypts from now on.
    KernelTls(Result<(), Errno>),
    /// Whether the kernel took the closing alert.
    RecordSent(Result<(), Errno>),
    /// A program runs; `unparsed`: its output is a whole response.
    ProgramStarted { unparsed: bool },
    /// No program runs; the status of the answer. No further event of a program's follows.
    ProgramRefused(u16),
    /// The memory of an [`Action::Relay`]; `deaf`: the program reads no more.
    Relayed { buffer: Vec<u8>, deaf: bool },
    /// What a program printed, behind [`CHUNK_ROOM`](super::program::CHUNK_ROOM) bytes of no meaning;
    /// `ended`: nothing follows.
    Printed { bytes: Vec<u8>, ended: bool },
    /// A program has ended; what it printed last may still follow.
    ProgramExited(Exit),
    /// The deadline passed; `unsent` bytes wait in the socket.
    Deadline { unsent: u64 },
    /// The worker retires: finish what is in flight. `now`: close an idle connection at once,
    /// instead of answering one more request.
    Drain { now: bool },
    /// The time to finish is over: close, whatever is under way.
    Stop,
}

/// Something a connection wants done. What needs the peer's patience completes with an [`Event`].
#[derive(Debug)]
pub enum Action {
    /// Receive once; gives `Received` or `ReceiveFailed`.
    Receive,
    /// Send; gives `Sent`.
    Send { head: Vec<u8>, from: usize, body: Option<Slice>, more: bool },
    /// Wait until the socket takes bytes; gives `Writable`.
    AwaitWritable,
    /// Move these bytes of the file towards the socket; gives `Transferred`, `Chunk` or
    /// `TransferFailed`. With `direct` the kernel may move them; `last`: the file must still be as
    /// `facts` say, for after these bytes the response will look complete.
    Transfer { file: Rc<Descriptor>, range: Range<u64>, facts: Facts, direct: bool, last: bool },
    /// Look up; gives `Found`.
    Lookup(Question),
    /// Verify a password; gives `Verified` or `Overloaded`.
    Verify(Credential),
    /// Start a program; gives `ProgramStarted` or `ProgramRefused`, and in the end `ProgramExited`.
    StartProgram(Box<Start>),
    /// Hand the program this part of its input; gives `Relayed`.
    Relay(Vec<u8>),
    /// Tell the program that its input ends.
    EndInput,
    /// Read what the program prints; gives `Printed`.
    ReadOutput,
    /// Let go of the program; with a reason, end it. Nothing of it is heard any more.
    LeaveProgram { why: Option<Why>, fault: Option<Fault> },
    /// Have the kernel encrypt what is sent from now on; gives `KernelTls` at once.
    InstallTls(zeroize::Zeroizing<Vec<u8>>),
    /// Send a record of another type; gives `RecordSent` at once.
    SendRecord { content_type: u8, payload: [u8; 2] },
    /// End the sending side.
    ShutdownSend,
    /// Close; the last action of a connection.
    Close(Outcome),
}
