//! The ring over io_uring: the only user of the `io-uring` crate.
//!
//! The hand-over of ops, and the way back of their completions. What an op lends to the
//! kernel stays in the table of ops in flight until its last completion; the direct calls, the
//! receive buffers and the helper thread have files of their own.
//!
//! Needs Linux 6.1 (DEFER_TASKRUN). Deliberately absent: direct descriptors (below 6.13 one idle
//! receive holds back the FIN of every other socket), links, SQPOLL, SEND_ZC, and the operations
//! that always cost a kernel thread: splice, statx, shutdown. Measured and left out: a least time to wait for
//! several completions (6.12), whose timer costs what the larger batches save; and handing sends over before
//! the end of a turn, while what was encrypted for them is still in the cache, which changes nothing, since
//! the kernel's copy waits for the memory it writes to.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use io_uring::types::{self, CancelBuilder, OpenHow, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};

use super::helper::Helper;
use super::inflight::{InFlight, Lent, Table};
use super::memory::{GROUP, Leases, Message};
use super::probe::{Failure, Features};
pub use super::setup::Options;
use super::{CString, Clock, Completion, Lease, Op, Payload, Pipe, Ring, Stream, Token, direct, setup};
use crate::sys::bytes::Slice;
use crate::sys::fds::{Descriptor, Fd, Graveyard};
use crate::sys::file::{Facts, Symlinks};
use crate::sys::sandbox::{Place, lies_beneath};
use crate::sys::{Errno, Error};

/// io_uring and what belongs to it. Stays on the thread that made it.
#[derive(Debug)]
pub struct Uring {
    // First, so that it is closed before the memory below is freed.
    ring: RingAndDebug,
    table: Table,
    leases: Leases,
    #[allow(clippy::vec_box, reason = "the kernel is told where each message is")]
    messages: Vec<Box<Message>>,
    helper: Option<Helper>,
    graveyard: Graveyard,
    buried: Vec<Fd>,
    reaped: Vec<cqueue::Entry>,
    /// Completions that the kernel has no part in.
    ready: Vec<Completion>,
    no_iowait: bool,
    cachestat: bool,
    /// Where the sandbox lets files be opened; `None`: anywhere.
    readable: Option<Vec<Place>>,
    clock: Clock,
    overflows: u64,
}

struct RingAndDebug(IoUring);

impl std::fmt::Debug for RingAndDebug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "io_uring {:?}", self.0.params())
    }
}

/// The most that one read or write moves (MAX_RW_COUNT).
const LENGTH_MAX: usize = 0x7fff_f000;

/// Token of ops that are the ring's own.
const NOBODY: Token = Token { kind: 0, slot: 0, reuse: 0 };

/// How to open, by the way symlinks are treated. Static: the kernel reads it with the op.
static HOW: [OpenHow; 3] =
    [open_how(Symlinks::Beneath), open_how(Symlinks::Never), open_how(Symlinks::Anywhere)];

const fn open_how(symlinks: Symlinks) -> OpenHow {
    OpenHow::new()
        .flags(direct::OPEN_FLAGS.bits() as u64)
        .resolve(crate::sys::tree::resolve_flags(symlinks).bits())
}

/// The kernel's reason in an [`io::Error`].
pub(super) fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Uring {
    /// Makes a ring for the calling thread. To be called in the worker, after fork, and before it
    /// gives up its privileges: what is made by a privileged process is not counted against the
    /// user's limit of locked memory.
    ///
    /// # Errors
    /// What the kernel refused, with the cause and the way out for the operator.
    pub fn new(options: &Options) -> Result<(Self, Features), Failure> {
        let (ring, leases, features) = setup::make(options)?;
        let uring = Self {
            reaped: Vec::with_capacity(features.completions as usize),
            ring: RingAndDebug(ring),
            table: Table::default(),
            leases,
            messages: Vec::new(),
            helper: None,
            graveyard: options.graveyard.clone(),
            buried: Vec::new(),
            ready: Vec::new(),
            no_iowait: features.no_iowait,
            cachestat: features.cachestat,
            readable: None,
            clock: Clock { now: Instant::now(), wall: SystemTime::now() },
            overflows: 0,
        };
        Ok((uring, features))
    }

    /// Notes beneath which directories the sandbox lets files be opened; `None`: anywhere.
    pub fn limit(&mut self, readable: Option<Vec<Place>>) {
        self.readable = readable;
    }

    /// Where descriptors of this worker are buried.
    pub fn graveyard(&self) -> &Graveyard {
        &self.graveyard
    }
}

impl Ring for Uring {
    fn push(&mut self, token: Token, op: Op) {
        match op {
            Op::Accept { listener } => {
                let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
                let entry = opcode::AcceptMulti::new(types::Fd(listener.0)).flags(flags).build();
                self.queue(token, entry, Lent::Accept);
            }
            Op::Receive { socket } => self.receive(token, socket),
            Op::Send { socket, head, from, body, more } => self.send(token, socket, head, from, body, more),
            Op::Writable { socket } => self.poll(token, socket, libc::POLLOUT, Lent::Nothing),
            Op::Readable { fd } => self.poll(token, fd, libc::POLLIN, Lent::Nothing),
            Op::Open { dir, path, symlinks } => {
                let how = &HOW[symlinks as usize];
                let entry = opcode::OpenAt2::new(types::Fd(dir.fd().0), path.as_ptr(), how).build();
                self.queue(token, entry, Lent::Path(path, dir));
            }
            Op::Read { file, offset, mut into, length } => {
                let room = into.spare_capacity_mut();
                let length = room.len().min(length).min(LENGTH_MAX) as u32;
                let fd = types::Fd(file.fd().0);
                let entry = opcode::Read::new(fd, room.as_mut_ptr().cast(), length).offset(offset).build();
                self.queue(token, entry, Lent::Spare(into, file));
            }
            Op::Append { fd, bytes } => {
                // -1: wherever the file's position is, which with O_APPEND is its end; pipes have none.
                let length = bytes.len().min(LENGTH_MAX) as u32;
                let entry =
                    opcode::Write::new(types::Fd(fd.0), bytes.as_ptr(), length).offset(u64::MAX).build();
                self.queue(token, entry, Lent::Buffer(bytes));
            }
            Op::Cancel { fd } => {
                if !self.leases.by_kernel() {
                    self.table.stop_polling(fd);
                }
                let entry = opcode::AsyncCancel2::new(CancelBuilder::fd(types::Fd(fd.0)).all()).build();
                self.queue(token, entry, Lent::Nothing);
            }
            Op::Delegate(job) => {
                if let Err(errno) = self.delegate(token, job) {
                    let payload = Payload::None;
                    self.ready.push(Completion { token, result: Err(errno), more: false, payload });
                }
            }
        }
    }

    fn turn(&mut self, until: Option<Instant>, completions: &mut Vec<Completion>) -> Result<(), Error> {
        if !self.graveyard.is_empty() {
            // What is queued may name what is buried, so it goes first; and a close after the wait might
            // come late by any time. Under load the first call finds completions, and there is no second.
            if !self.handed_over() {
                self.enter(Wait::No)?;
            }
            self.close_buried();
        }
        let found = !self.ready.is_empty() || !self.ring.0.completion().is_empty();
        if !found || !self.handed_over() {
            self.enter(if found { Wait::No } else { Wait::Until(until) })?;
        }
        self.reap(completions);
        self.clock = Clock { now: Instant::now(), wall: SystemTime::now() };
        Ok(())
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    fn overflows(&self) -> u64 {
        self.overflows
    }

    fn leased(&self, lease: &Lease) -> &[u8] {
        self.leases.bytes(lease)
    }

    fn release(&mut self, lease: Lease) {
        self.leases.release(lease);
    }

    fn leases_free(&self) -> usize {
        self.leases.free()
    }

    fn accept_now(&mut self, listener: Fd) -> Result<Descriptor, Errno> {
        direct::accept(listener).map(|fd| Descriptor::new(fd, &self.graveyard))
    }

    fn open_cached(&mut self, dir: Fd, path: &CString, symlinks: Symlinks) -> Result<Descriptor, Errno> {
        direct::open_cached(dir, path, symlinks).map(|fd| Descriptor::new(fd, &self.graveyard))
    }

    fn open_root(&mut self, path: &Path) -> Result<Descriptor, Errno> {
        direct::open_root(path).map(|fd| Descriptor::new(fd, &self.graveyard))
    }

    fn may_read(&mut self, directory: Fd) -> bool {
        self.readable.as_ref().is_none_or(|places| lies_beneath(direct::borrow(directory), places))
    }

    fn facts(&mut self, file: Fd) -> Result<Facts, Errno> {
        direct::facts(file)
    }

    fn read_cached(
        &mut self,
        file: Fd,
        offset: u64,
        into: &mut Vec<u8>,
        length: usize,
    ) -> Result<usize, Errno> {
        direct::read_cached(file, offset, into, length)
    }

    fn resident(&mut self, file: Fd, range: Range<u64>) -> bool {
        direct::resident(file, range, &mut self.cachestat)
    }

    fn send_file(&mut self, socket: Fd, file: Fd, offset: u64, length: usize) -> Result<usize, Errno> {
        direct::send_file(socket, file, offset, length)
    }

    fn send_now(&mut self, socket: Fd, bytes: &[u8]) -> Result<usize, Errno> {
        direct::send_now(socket, bytes)
    }

    fn shutdown(&mut self, socket: Fd, both: bool) {
        direct::shutdown(socket, both);
    }

    fn peer(&mut self, socket: Fd) -> Option<SocketAddr> {
        direct::peer(socket)
    }

    fn local(&mut self, socket: Fd) -> Option<SocketAddr> {
        direct::local(socket)
    }

    fn unsent(&mut self, socket: Fd) -> u64 {
        direct::unsent(socket)
    }

    fn note(&mut self, channel: Fd, into: &mut [u8]) -> Result<(usize, Option<Descriptor>), Errno> {
        let (length, came) = direct::note(channel, into)?;
        Ok((length, came.map(|fd| Descriptor::new(fd, &self.graveyard))))
    }

    fn has_ended(&mut self, channel: Fd) -> bool {
        crate::sys::wait::has_ended(direct::borrow(channel))
    }

    fn send_note(&mut self, channel: Fd, note: &[u8], descriptors: &[Fd]) -> Result<(), Errno> {
        direct::send_note(channel, note, descriptors)
    }

    fn pipe(&mut self, stream: Stream) -> Result<Pipe, Errno> {
        let (ours, theirs) = direct::pipe(stream)?;
        let own = |fd| Descriptor::new(fd, &self.graveyard);
        Ok(Pipe { ours: own(ours), theirs: own(theirs) })
    }

    fn read_pipe(&mut self, pipe: Fd, into: &mut Vec<u8>) -> Result<usize, Errno> {
        direct::read_pipe(pipe, into)
    }

    fn unread(&mut self, pipe: Fd) -> usize {
        crate::sys::wait::unread(direct::borrow(pipe))
    }

    fn write_pipe(&mut self, pipe: Fd, bytes: &[u8]) -> Result<usize, Errno> {
        rustix::io::write(direct::borrow(pipe), bytes)
    }

    fn install_tls(&mut self, socket: Fd, info: &[u8]) -> Result<(), Errno> {
        direct::install_tls(socket, info)
    }

    fn send_record(&mut self, socket: Fd, content_type: u8, payload: &[u8]) -> Result<(), Errno> {
        direct::send_record(socket, content_type, payload)
    }
}

/// How long a hand-over may wait for a completion.
#[derive(Clone, Copy)]
enum Wait {
    No,
    Until(Option<Instant>),
}

impl Uring {
    fn receive(&mut self, token: Token, socket: Fd) {
        if !self.leases.by_kernel() {
            let lent = Lent::ReceiveByPoll { socket: Some(socket), last: false };
            return self.poll(token, socket, libc::POLLIN, lent);
        }
        let entry = opcode::Recv::new(types::Fd(socket.0), std::ptr::null_mut(), 0).buf_group(GROUP).build();
        self.queue(token, entry.flags(squeue::Flags::BUFFER_SELECT), Lent::Receive);
    }

    fn send(
        &mut self,
        token: Token,
        socket: Fd,
        head: Vec<u8>,
        from: usize,
        body: Option<Slice>,
        more: bool,
    ) {
        let fd = types::Fd(socket.0);
        let flags = libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
        let one = |part: &[u8]| {
            opcode::Send::new(fd, part.as_ptr(), part.len().min(LENGTH_MAX) as u32).flags(flags).build()
        };
        let first = &head[from..];
        match body {
            None => {
                let entry = one(first);
                self.queue(token, entry, Lent::Buffer(head));
            }
            Some((body, range)) if first.is_empty() => {
                let entry = one(&body[range]);
                self.queue(token, entry, Lent::Shared(head, body));
            }
            Some((body, range)) => {
                let mut message = self.messages.pop().unwrap_or_else(Message::new);
                let header = message.point(first, &body[range]);
                let entry = opcode::SendMsg::new(fd, header).flags(flags as u32).build();
                self.queue(token, entry, Lent::Parts(head, body, message));
            }
        }
    }

    fn poll(&mut self, token: Token, fd: Fd, events: libc::c_short, lent: Lent) {
        let entry = opcode::PollAdd::new(types::Fd(fd.0), events as u32).build();
        self.queue(token, entry, lent);
    }

    fn delegate(&mut self, token: Token, job: super::Job) -> Result<(), Errno> {
        let helper = match &mut self.helper {
            Some(helper) => helper,
            none => none.insert(Helper::start()?),
        };
        helper.give(token, job)?;
        self.listen();
        Ok(())
    }

    /// Polls the helper's bell, while there is something to wait for.
    fn listen(&mut self) {
        let Some(helper) = &mut self.helper else { return };
        if helper.pending > 0 && !helper.listening {
            helper.listening = true;
            let bell = helper.bell();
            self.poll(NOBODY, bell, libc::POLLIN, Lent::Helper);
        }
    }

    fn queue(&mut self, token: Token, entry: squeue::Entry, lent: Lent) {
        let index = self.table.insert(InFlight { token, lent });
        let entry = entry.user_data(index);
        // More than any shortage of the kernel's that passes: some seconds.
        for _ in 0..4096 {
            // SAFETY: all that the entry points to is static, or owned by the table's entry, which is
            // kept until the op's last completion and does not move what it owns.
            if unsafe { self.ring.0.submission().push(&entry) }.is_ok() {
                return;
            }
            let handed_over = self.enter(Wait::No);
            assert!(handed_over.is_ok(), "the ring is unusable: {handed_over:?}");
        }
        panic!("the kernel takes no operations");
    }

    /// Whether the kernel has taken all that was queued.
    fn handed_over(&mut self) -> bool {
        self.ring.0.submission().is_empty()
    }

    /// Hands over what is queued, and waits. Returns early for signals and shortages of the kernel's.
    fn enter(&mut self, wait: Wait) -> Result<(), Error> {
        self.leases.publish();
        let timeout = match wait {
            Wait::No => Some(Duration::ZERO),
            Wait::Until(None) => None,
            Wait::Until(Some(until)) => Some(until.saturating_duration_since(Instant::now())),
        };
        let timespec = Timespec::from(timeout.unwrap_or_default());
        let (want, arguments) = match timeout {
            None => (1, SubmitArgs::new()),
            Some(Duration::ZERO) => (0, SubmitArgs::new()),
            Some(_) => (1, SubmitArgs::new().timespec(&timespec)),
        };
        // GETEVENTS also without waiting: with DEFER_TASKRUN nothing completes otherwise.
        let mut flags = EnterFlags::EXT_ARG | EnterFlags::GETEVENTS;
        if self.no_iowait {
            flags |= EnterFlags::NO_IOWAIT;
        }
        let queued = self.ring.0.submission().len() as u32;
        // SAFETY: with EXT_ARG the argument is the structure that `SubmitArgs` wraps; it and the time it
        // points to live through the call. What the queued entries point to is kept by the table.
        let entered = unsafe { self.ring.0.submitter().enter(queued, want, flags.bits(), Some(&arguments)) };
        match entered.map_err(errno) {
            Ok(_) | Err(Errno::TIME | Errno::INTR) => Ok(()),
            // No memory for the ops just now, or for the completions: those that wait are taken next.
            Err(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
                if self.ring.0.completion().is_empty() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            }
            Err(errno) => Err(Error::new("wait for", "the io_uring", errno)),
        }
    }

    fn close_buried(&mut self) {
        // Rarely the kernel does not take all at once; then the buried wait for the next turn.
        if self.handed_over() {
            self.graveyard.exhume(&mut self.buried);
            for fd in self.buried.drain(..) {
                if !self.leases.by_kernel() {
                    self.table.closed(fd);
                }
                direct::close(fd);
            }
        }
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        if self.ring.0.submission().cq_overflow() {
            self.overflows += 1;
        }
        completions.append(&mut self.ready);
        let mut reaped = mem::take(&mut self.reaped);
        reaped.extend(self.ring.0.completion());
        for entry in reaped.drain(..) {
            self.complete(&entry, completions);
        }
        self.reaped = reaped;
    }

    fn complete(&mut self, entry: &cqueue::Entry, completions: &mut Vec<Completion>) {
        let index = entry.user_data();
        let more = cqueue::more(entry.flags());
        let result = usize::try_from(entry.result()).map_err(|_| Errno::from_raw_os_error(-entry.result()));
        if more {
            let InFlight { token, lent } = self.table.at(index);
            assert!(matches!(lent, Lent::Accept), "only an accept goes on");
            let token = *token;
            let (result, payload) = self.opened(result);
            completions.push(Completion { token, result, more, payload });
            return;
        }
        let InFlight { token, lent } = self.table.remove(index);
        let (result, payload) = match lent {
            Lent::Nothing => (result, Payload::None),
            Lent::Accept | Lent::Path(..) => self.opened(result),
            Lent::Receive => self.received(result, cqueue::buffer_select(entry.flags())),
            Lent::ReceiveByPoll { socket: None, .. } => (Ok(0), Payload::None),
            Lent::ReceiveByPoll { socket: Some(socket), last } => match self.receive_now(socket, result) {
                Err(Errno::AGAIN | Errno::INTR) if !last => return self.receive(token, socket),
                Err(Errno::AGAIN | Errno::INTR) => (Err(Errno::CANCELED), Payload::None),
                Err(errno) => (Err(errno), Payload::None),
                Ok(None) => (Ok(0), Payload::None),
                Ok(Some(lease)) => (Ok(lease.length as usize), Payload::Lease(lease)),
            },
            Lent::Buffer(buffer) | Lent::Shared(buffer, _) => (result, Payload::Memory(buffer)),
            Lent::Parts(buffer, _, message) => {
                self.messages.push(message);
                (result, Payload::Memory(buffer))
            }
            Lent::Spare(mut buffer, _) => {
                let length = buffer.len() + result.unwrap_or_default();
                assert!(length <= buffer.capacity(), "the kernel read more than there was room for");
                // SAFETY: the kernel wrote that many bytes behind those there were, and is done with it.
                unsafe { buffer.set_len(length) };
                (result, Payload::Memory(buffer))
            }
            Lent::Helper => return self.hear(completions),
            Lent::Farewell => return,
        };
        completions.push(Completion { token, result, more, payload });
    }

    fn opened(&self, result: Result<usize, Errno>) -> (Result<usize, Errno>, Payload) {
        match result {
            Ok(fd) => (Ok(0), Payload::Descriptor(Descriptor::new(Fd(fd as i32), &self.graveyard))),
            Err(errno) => (Err(errno), Payload::None),
        }
    }

    fn received(
        &mut self,
        result: Result<usize, Errno>,
        buffer: Option<u16>,
    ) -> (Result<usize, Errno>, Payload) {
        match (result, buffer) {
            (Ok(length @ 1..), Some(buffer)) => {
                let lease = self.leases.filled(buffer, length as u32);
                (Ok(length), Payload::Lease(lease))
            }
            (Ok(1..), None) => panic!("the kernel received into no buffer"),
            (result, buffer) => {
                if let Some(buffer) = buffer {
                    self.leases.unused(buffer);
                }
                (result, Payload::None)
            }
        }
    }

    /// Receives after a poll said that it is time to.
    fn receive_now(&mut self, socket: Fd, polled: Result<usize, Errno>) -> Result<Option<Lease>, Errno> {
        polled?;
        self.leases.fill(|room| direct::receive(socket, room))
    }

    /// Takes the helper's answers.
    fn hear(&mut self, completions: &mut Vec<Completion>) {
        let Some(helper) = &mut self.helper else { return };
        helper.listening = false;
        helper.take(|(token, answer)| {
            let (result, payload) = match answer {
                Ok(done) => (Ok(0), Payload::Done(done)),
                Err(errno) => (Err(errno), Payload::None),
            };
            completions.push(Completion { token, result, more: false, payload });
        });
        self.listen();
    }
}

impl Drop for Uring {
    /// Takes all memory back from the kernel before it is freed: closing the ring does not wait for
    /// kernel threads that are reading from a disk.
    fn drop(&mut self) {
        if !self.table.is_empty() && !std::thread::panicking() {
            let entry = opcode::AsyncCancel2::new(CancelBuilder::any()).build();
            self.queue(NOBODY, entry, Lent::Farewell);
            let mut completions = Vec::new();
            let patience = Instant::now() + Duration::from_secs(1);
            while !self.table.is_empty() && Instant::now() < patience {
                if self.turn(Some(patience), &mut completions).is_err() {
                    break;
                }
                completions.clear();
            }
        }
        if !self.table.is_empty() {
            mem::forget(mem::take(&mut self.table));
            self.leases.leave_to_kernel();
        }
        self.graveyard.exhume(&mut self.buried);
        self.buried.drain(..).for_each(direct::close);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_never_asks_for_is_refused() {
        let (mut ring, _leases, features) = setup::make(&Options::default()).expect("a ring");
        if !features.restricted {
            return;
        }
        let entry = opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build();
        // SAFETY: the operation lends no memory.
        unsafe { ring.submission().push(&entry) }.expect("room for one");
        ring.submit_and_wait(1).expect("handed over");
        let answer = ring.completion().next().expect("an answer").result();
        assert_eq!(answer, -libc::EACCES);
        let workers = ring.submitter().register_iowq_max_workers(&mut [1, 1]);
        assert_eq!(workers.map_err(errno), Err(Errno::ACCESS));
    }
}
