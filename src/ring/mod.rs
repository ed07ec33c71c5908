//! The one door between a worker and the kernel.
//!
//! A worker pushes [`Op`]s, then takes a *turn*: everything queued is handed to the kernel in one
//! system call, which also waits for the next completion or the next deadline. The few calls that
//! never block and are cheaper made directly are methods of the same trait, so that the simulation
//! can stand in for all of the kernel.
//!
//! Memory and descriptors travel by ownership: what an op lends to the kernel is moved into the ring
//! and comes back, or is dropped, with the op's last completion. Code outside this room cannot touch
//! memory that the kernel may be reading or writing, because it does not have it.
//!
//! What may be relied on, of the kernel and of the simulation alike:
//! * every op but a multishot accept completes exactly once; an accept completes with `more` any
//!   number of times and once without, mostly but not always with an error;
//! * completions come in any order, also of ops on one descriptor;
//! * a send may be short; so may a read; a receive of 0 bytes is the end of the stream;
//! * a receive may fail with ENOBUFS while all leases are out: arm it again once some are back;
//! * a token is only echoed: the ring does not care whether its slot still means the same;
//! * direct calls happen at once, before all that is queued;
//! * a descriptor named by a number alone ([`Fd`]) may be dropped with ops in flight only after a
//!   [`Op::Cancel`] or a [`Ring::shutdown`] of both directions; those ops still complete. Without, they hold
//!   the file open: its peer would see no end.

#[allow(unsafe_code)]
mod direct;
mod helper;
mod inflight;
#[allow(unsafe_code)]
mod memory;
pub mod probe;
mod setup;
#[allow(unsafe_code)]
pub mod uring;

use std::ffi::CString;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use crate::sys::bytes::Slice;
use crate::sys::fds::{Descriptor, Fd};
use crate::sys::file::{Facts, Name, Symlinks};
use crate::sys::{Errno, Error};

/// Says which operation a completion belongs to. Echoed by the ring, never read by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token {
    /// What the operation was.
    pub kind: u8,
    /// Whose it was.
    pub slot: u32,
    /// The how-manieth use of the slot.
    pub reuse: u32,
}

/// An operation, as plain data that owns what it lends to the kernel.
#[derive(Debug)]
pub enum Op {
    /// Accept connections until it fails or is cancelled. Gives [`Payload::Descriptor`]s,
    /// non-blocking and close-on-exec.
    Accept { listener: Fd },
    /// Receive once, into a leased buffer. Gives [`Payload::Lease`] when bytes came.
    Receive { socket: Fd },
    /// Send `head[from..]`, then `body`; either may be empty. The result counts bytes of both.
    /// Gives `head` back as [`Payload::Memory`]. `more`: another send follows at once
    /// (MSG_MORE); every chain ends with one that says `false`.
    Send { socket: Fd, head: Vec<u8>, from: usize, body: Option<Slice>, more: bool },
    /// Complete once the socket, or pipe, takes more bytes, or its other end is gone.
    Writable { socket: Fd },
    /// Complete once the descriptor has something to read or its other end is gone.
    Readable { fd: Fd },
    /// Open for reading, beneath `dir`, by openat2(2): the way that may wait for a disk. Gives
    /// [`Payload::Descriptor`]. May fail with EAGAIN too: something was renamed at the same time.
    Open { dir: Rc<Descriptor>, path: CString, symlinks: Symlinks },
    /// Read at `offset` into the spare capacity of `into`, at most `length` bytes. Gives the buffer
    /// back as [`Payload::Memory`], longer by what was read.
    Read { file: Rc<Descriptor>, offset: u64, into: Vec<u8>, length: usize },
    /// Append to a log. Gives the buffer back as [`Payload::Memory`].
    Append { fd: Fd, bytes: Vec<u8> },
    /// Cancel every operation on `fd`; each completes, mostly with ECANCELED. The cancellation
    /// itself completes too.
    Cancel { fd: Fd },
    /// Have the helper thread do what would stall the worker. Gives [`Payload::Done`].
    Delegate(Job),
}

/// What would stall a worker and has no ring operation; done by one helper thread per worker.
#[derive(Debug)]
pub enum Job {
    /// Check a password against a bcrypt hash: some tens of milliseconds of arithmetic.
    VerifyPassword { password: Vec<u8>, hash: String },
    /// Read the names of the open directory and look at what each leads to; at most `names_max`. What
    /// `symlinks` keeps beneath, it keeps beneath this directory.
    List { directory: Rc<Descriptor>, symlinks: Symlinks, names_max: usize },
    /// Compute something that takes more than a moment.
    Compute(Computation),
}

/// Arithmetic to be done elsewhere; what it gives travels as bytes, or as the number of an error.
pub struct Computation(Box<dyn FnOnce() -> Result<Vec<u8>, Errno> + Send>);

impl Computation {
    /// To be done later.
    pub fn new(compute: impl FnOnce() -> Result<Vec<u8>, Errno> + Send + 'static) -> Self {
        Self(Box::new(compute))
    }

    /// Does it.
    ///
    /// # Errors
    /// Its own.
    pub fn run(self) -> Result<Vec<u8>, Errno> {
        (self.0)()
    }
}

impl std::fmt::Debug for Computation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Computation")
    }
}

/// What a [`Job`] found.
#[derive(Debug)]
pub enum Done {
    /// What was computed, or its own error.
    Computed(Result<Vec<u8>, Errno>),
    /// Whether the password is right.
    Verified(bool),
    /// The names in the directory, in no order; `truncated` when there were more.
    Listed { names: Vec<Name>, truncated: bool },
}

/// The answer to an [`Op`].
#[derive(Debug)]
pub struct Completion {
    /// The op's token.
    pub token: Token,
    /// Bytes moved, or nothing of interest; or the kernel's refusal.
    pub result: Result<usize, Errno>,
    /// Whether the op goes on and completes again.
    pub more: bool,
    /// What the op gives or gives back.
    pub payload: Payload,
}

/// What a completion carries.
#[derive(Debug)]
pub enum Payload {
    /// Nothing.
    None,
    /// Received bytes; to be released in the same turn.
    Lease(Lease),
    /// A descriptor that was opened or accepted.
    Descriptor(Descriptor),
    /// Memory that had been lent.
    Memory(Vec<u8>),
    /// What a job found.
    Done(Done),
}

/// A stream between a worker and a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// The worker writes what the program reads.
    Input,
    /// The worker reads what the program writes.
    Output,
}

/// A pipe between a worker and a program.
#[derive(Debug)]
pub struct Pipe {
    /// The worker's end, which never blocks.
    pub ours: Descriptor,
    /// The program's end, which does, as programs expect.
    pub theirs: Descriptor,
}

/// Received bytes in a buffer of the ring. Must be given back with [`Ring::release`].
#[derive(Debug)]
#[must_use]
pub struct Lease {
    /// Which buffer.
    pub buffer: u16,
    /// How many bytes were received.
    pub length: u32,
}

/// The time of a turn; read once after each wait.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Clock {
    /// For deadlines.
    pub now: Instant,
    /// For dates.
    pub wall: SystemTime,
}

/// What the kernel does for a worker.
pub trait Ring {
    /// Queues an op. When the queue is full, hands it to the kernel first.
    fn push(&mut self, token: Token, op: Op);

    /// Hands over what is queued, closes what is buried, waits for a completion but no longer than
    /// `until`, and appends what completed. Without a deadline and completions, waits for ever; but
    /// may return with nothing, after a signal or ops of the ring's own.
    ///
    /// # Errors
    /// Only when the ring itself is unusable; the worker cannot go on.
    fn turn(&mut self, until: Option<Instant>, completions: &mut Vec<Completion>) -> Result<(), Error>;

    /// The time, as of the end of the last turn.
    fn clock(&self) -> Clock;

    /// How many turns found more completions than their queue holds.
    fn overflows(&self) -> u64;

    /// The received bytes.
    fn leased(&self, lease: &Lease) -> &[u8];

    /// Gives a buffer back.
    fn release(&mut self, lease: Lease);

    /// How many receive buffers are with the kernel, free to be filled.
    fn leases_free(&self) -> usize;

    /// Accepts a connection that waits, non-blocking and close-on-exec.
    ///
    /// # Errors
    /// EAGAIN when none waits, and those of accept4(2).
    fn accept_now(&mut self, listener: Fd) -> Result<Descriptor, Errno>;

    /// Opens for reading beneath `dir`, without waiting for a disk: EAGAIN says that
    /// [`Op::Open`] is needed. Fifos and devices open without blocking or side effects.
    ///
    /// # Errors
    /// EXDEV and ELOOP where `symlinks` forbids the way, and those of openat2(2).
    fn open_cached(&mut self, dir: Fd, path: &CString, symlinks: Symlinks) -> Result<Descriptor, Errno>;

    /// Opens a site's root directory by its configured path, following symlinks.
    ///
    /// # Errors
    /// Those of open(2).
    fn open_root(&mut self, path: &std::path::Path) -> Result<Descriptor, Errno>;

    /// Whether the sandbox lets files beneath a directory be opened. Asked of roots, seldom.
    fn may_read(&mut self, directory: Fd) -> bool;

    /// Facts of an open file.
    ///
    /// # Errors
    /// Those of fstat(2).
    fn facts(&mut self, file: Fd) -> Result<Facts, Errno>;

    /// Reads at `offset` into the spare capacity of `into`, at most `length` bytes, without waiting
    /// for a disk: EAGAIN says that [`Op::Read`] is needed.
    ///
    /// # Errors
    /// Those of preadv2(2) with RWF_NOWAIT; EAGAIN also where the file system knows no such flag.
    fn read_cached(
        &mut self,
        file: Fd,
        offset: u64,
        into: &mut Vec<u8>,
        length: usize,
    ) -> Result<usize, Errno>;

    /// Whether that part of the file can be read without waiting for a disk, as far as can be told.
    fn resident(&mut self, file: Fd, range: Range<u64>) -> bool;

    /// Sends a part of a file; only called for resident parts. May be short; 0 at the end of the file.
    ///
    /// # Errors
    /// EAGAIN when the socket is full, and those of sendfile(2).
    fn send_file(&mut self, socket: Fd, file: Fd, offset: u64, length: usize) -> Result<usize, Errno>;

    /// Sends a few bytes at once, or not at all: for notes to the supervisor and last words.
    ///
    /// # Errors
    /// EAGAIN when the socket is full, and those of send(2).
    fn send_now(&mut self, socket: Fd, bytes: &[u8]) -> Result<usize, Errno>;

    /// Ends the sending side (`both`: also the receiving side, which completes a pending receive).
    fn shutdown(&mut self, socket: Fd, both: bool);

    /// The peer's address, IPv4 even on an IPv6 listener; `None` on a unix socket or when it is gone.
    fn peer(&mut self, socket: Fd) -> Option<SocketAddr>;

    /// The address the peer connected to, in the same form; `None` on a unix socket.
    fn local(&mut self, socket: Fd) -> Option<SocketAddr>;

    /// Bytes accepted from us that the peer has not acknowledged yet (SIOCOUTQ), for telling a slow
    /// reader from one that stopped.
    fn unsent(&mut self, socket: Fd) -> u64;

    /// Takes one note from the supervisor's channel, with a descriptor if one came along.
    ///
    /// # Errors
    /// EAGAIN when there is none; a note of 0 bytes says that the supervisor is gone.
    fn note(&mut self, channel: Fd, into: &mut [u8]) -> Result<(usize, Option<Descriptor>), Errno>;

    /// Whether the other end of a SEQPACKET socket will never say anything again. A note of 0 bytes alone does not
    /// tell: it may be one that somebody sent.
    fn has_ended(&mut self, channel: Fd) -> bool;

    /// Sends one note over a SEQPACKET socket, whole or not at all, with duplicates of the descriptors.
    ///
    /// # Errors
    /// EAGAIN when the socket is full, and those of sendmsg(2).
    fn send_note(&mut self, channel: Fd, note: &[u8], descriptors: &[Fd]) -> Result<(), Errno>;

    /// Makes a pipe for a program.
    ///
    /// # Errors
    /// Those of pipe2(2) and fcntl(2).
    fn pipe(&mut self, stream: Stream) -> Result<Pipe, Errno>;

    /// Reads from a pipe into the spare capacity of `into`, of which there is some; 0 is the end.
    ///
    /// Pipes are waited for by [`Op::Readable`] and [`Op::Writable`] and moved by direct calls, because an
    /// operation that waits for a pipe takes a kernel thread before Linux 6.4, and one that does not wait
    /// is no cheaper than the call.
    ///
    /// # Errors
    /// EAGAIN when there is nothing, and those of read(2).
    fn read_pipe(&mut self, pipe: Fd, into: &mut Vec<u8>) -> Result<usize, Errno>;

    /// How many bytes of a pipe nobody has read yet (FIONREAD).
    fn unread(&mut self, pipe: Fd) -> usize;

    /// Writes to a pipe what fits.
    ///
    /// # Errors
    /// EAGAIN when it is full, EPIPE when nobody reads, and those of write(2).
    fn write_pipe(&mut self, pipe: Fd, bytes: &[u8]) -> Result<usize, Errno>;

    /// Hands encryption of what is sent from now on to the kernel. `info` is the kernel's
    /// `tls12_crypto_info_*` structure. Nothing may be in flight on the socket.
    ///
    /// # Errors
    /// Those of setsockopt(2) for TCP_ULP and TLS_TX; the socket then is as before.
    fn install_tls(&mut self, socket: Fd, info: &[u8]) -> Result<(), Errno>;

    /// Sends one record of another content type on a socket whose encryption the kernel does.
    ///
    /// # Errors
    /// EAGAIN when the socket is full, and those of sendmsg(2).
    fn send_record(&mut self, socket: Fd, content_type: u8, payload: &[u8]) -> Result<(), Errno>;
}
