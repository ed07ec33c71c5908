//! The memory that the kernel may touch on its own: receive buffers, the ring that provides them,
//! and message headers. Nothing outside this room can name it while it is lent.

use std::sync::atomic::{AtomicU16, Ordering};
use std::{ptr, slice};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::Lease;
use crate::sys::Errno;

/// The only group of provided buffers.
pub(super) const GROUP: u16 = 0;

/// Anonymous pages, kept from children of fork(2): two processes must not answer for one buffer.
#[derive(Debug)]
struct Mapping {
    start: *mut u8,
    length: usize,
    /// Never to be unmapped.
    kept: bool,
}

impl Mapping {
    fn new(length: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nobody's memory.
        let start =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), length, protection, MapFlags::PRIVATE) }?;
        let mapping = Self { start: start.cast(), length, kept: false };
        // SAFETY: the range is the mapping just made; the advice changes nothing in this process.
        unsafe { rustix::mm::madvise(start, length, Advice::LinuxDontFork) }?;
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // SAFETY: the range was mapped by `new`, and whoever drops this holds no reference into it and
        // has seen the last completion of whatever the kernel did with it.
        let unmapped = unsafe { rustix::mm::munmap(self.start.cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The receive buffers: each is either free, with the kernel, or out on a lease.
#[derive(Debug)]
pub(super) struct Leases {
    memory: Mapping,
    bytes_each: u32,
    out: Vec<bool>,
    out_count: usize,
    supply: Supply,
}

/// How free buffers reach the receives.
#[derive(Debug)]
enum Supply {
    /// The kernel takes them from a ring of `entries`. Those up to `tail` are written, those up to
    /// `published` the kernel knows of.
    Ring { entries: Mapping, tail: u16, published: u16 },
    /// We take them from a list, for recv(2).
    List(Vec<u16>),
}

impl Leases {
    /// Makes `count` buffers (a power of two) of `bytes_each` and, if `ring`, offers them to the
    /// kernel; where it refuses with EINVAL they are handed out here instead.
    pub(super) fn new(
        submitter: &Submitter<'_>,
        count: u16,
        bytes_each: u32,
        ring: bool,
    ) -> Result<Self, Errno> {
        assert!(count.is_power_of_two() && bytes_each > 0);
        let memory = Mapping::new(usize::from(count) * bytes_each as usize)?;
        let supply = if ring { Self::offer(submitter, count)? } else { None };
        let on_list = supply.is_none();
        let mut leases = Self {
            memory,
            bytes_each,
            out: vec![false; count.into()],
            out_count: 0,
            supply: supply.unwrap_or_else(|| Supply::List(Vec::with_capacity(count.into()))),
        };
        // The lowest number is handed out first from either kind of supply.
        (0..count).for_each(|index| leases.put(if on_list { count - 1 - index } else { index }));
        leases.publish();
        Ok(leases)
    }

    fn offer(submitter: &Submitter<'_>, count: u16) -> Result<Option<Supply>, Errno> {
        let entries = Mapping::new(usize::from(count) * size_of::<BufRingEntry>())?;
        // SAFETY: the mapping is page aligned, zeroed, as long as `count` entries, and lives until the
        // ring is gone: both are fields of the same ring, which waits for its last op before either goes.
        let registered =
            unsafe { submitter.register_buf_ring_with_flags(entries.start as u64, count, GROUP, 0) };
        match registered.map_err(super::uring::errno) {
            Ok(()) => Ok(Some(Supply::Ring { entries, tail: 0, published: 0 })),
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Whether the kernel chooses the buffers.
    pub(super) fn by_kernel(&self) -> bool {
        matches!(self.supply, Supply::Ring { .. })
    }

    /// How many are not out.
    pub(super) fn free(&self) -> usize {
        self.out.len() - self.out_count
    }

    /// Takes note that the kernel filled `buffer` with `length` bytes.
    pub(super) fn filled(&mut self, buffer: u16, length: u32) -> Lease {
        let out = &mut self.out[usize::from(buffer)];
        assert!(!*out && length <= self.bytes_each, "the kernel filled a buffer that it did not have");
        *out = true;
        self.out_count += 1;
        Lease { buffer, length }
    }

    /// Takes a free buffer from the list and has `fill` write to it.
    pub(super) fn fill(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<Option<Lease>, Errno> {
        let Supply::List(free) = &mut self.supply else { unreachable!("the kernel chooses the buffers") };
        let buffer = free.pop().ok_or(Errno::NOBUFS)?;
        let start = self.memory.start.wrapping_add(usize::from(buffer) * self.bytes_each as usize);
        // SAFETY: the range is one buffer inside the mapping; it came from the list, so no lease
        // refers to it, and without a buffer ring the kernel does not know of it.
        let room = unsafe { slice::from_raw_parts_mut(start, self.bytes_each as usize) };
        match fill(room) {
            Ok(length) if length > 0 => Ok(Some(self.filled(buffer, length as u32))),
            otherwise => {
                self.put(buffer);
                otherwise.map(|_| None)
            }
        }
    }

    /// The received bytes.
    pub(super) fn bytes(&self, lease: &Lease) -> &[u8] {
        assert!(
            self.out[usize::from(lease.buffer)] && lease.length <= self.bytes_each,
            "not a lease of this ring"
        );
        let start = self.memory.start.wrapping_add(usize::from(lease.buffer) * self.bytes_each as usize);
        // SAFETY: the range is inside one buffer of the mapping (checked above). The buffer is out, so
        // the kernel does not write to it before it is put back, for which `release` needs `&mut self`.
        unsafe { slice::from_raw_parts(start, lease.length as usize) }
    }

    /// Takes a buffer back.
    pub(super) fn release(&mut self, lease: Lease) {
        let out = &mut self.out[usize::from(lease.buffer)];
        assert!(*out, "a lease was given back twice");
        *out = false;
        self.out_count -= 1;
        self.put(lease.buffer);
    }

    /// Takes back a buffer that the kernel took and put nothing into.
    pub(super) fn unused(&mut self, buffer: u16) {
        assert!(!self.out[usize::from(buffer)]);
        self.put(buffer);
    }

    fn put(&mut self, buffer: u16) {
        let count = self.out.len();
        match &mut self.supply {
            Supply::List(free) => free.push(buffer),
            Supply::Ring { entries, tail, .. } => {
                let start = entries.start.cast::<BufRingEntry>();
                // SAFETY: the mapping holds `count` entries, zero is a valid one, and the kernel only reads
                // them, none beyond the published tail. No other reference exists: this is the only place
                // that makes one, and it ends with this function.
                let slots = unsafe { slice::from_raw_parts_mut(start, count) };
                let slot = &mut slots[usize::from(*tail) & (count - 1)];
                let address = self.memory.start as u64 + u64::from(buffer) * u64::from(self.bytes_each);
                slot.set_addr(address);
                slot.set_len(self.bytes_each);
                slot.set_bid(buffer);
                *tail = tail.wrapping_add(1);
            }
        }
    }

    /// Never frees the buffers: for when the kernel could not be made to give them up.
    pub(super) fn leave_to_kernel(&mut self) {
        self.memory.kept = true;
    }

    /// Lets the kernel have what was put back since the last time.
    pub(super) fn publish(&mut self) {
        let Supply::Ring { entries, tail, published } = &mut self.supply else { return };
        if tail == published {
            return;
        }
        // SAFETY: `start` is the first entry of the registered ring.
        let shared = unsafe { BufRingEntry::tail(entries.start.cast()) };
        // SAFETY: the tail is a naturally aligned u16 inside the mapping, which outlives this call; the
        // kernel reads it concurrently, and we write it only here, as an atomic.
        let shared = unsafe { AtomicU16::from_ptr(shared.cast_mut()) };
        // Release: the kernel must see the entries before the tail that covers them.
        shared.store(*tail, Ordering::Release);
        *published = *tail;
    }
}

/// What sendmsg reads: a header and the two parts it points to. Boxed, so that the address stays.
#[derive(Debug)]
pub(super) struct Message {
    header: libc::msghdr,
    parts: [libc::iovec; 2],
}

impl Message {
    /// An empty message, to be kept and used again: one send then allocates nothing.
    pub(super) fn new() -> Box<Self> {
        const EMPTY: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        // SAFETY: all zeroes is a valid msghdr: null pointers with length 0.
        let header = unsafe { std::mem::zeroed() };
        Box::new(Self { header, parts: [EMPTY, EMPTY] })
    }

    /// Points to two parts, which must stay where they are until the message is sent, and gives the
    /// address of the header, good for as long as the box is kept and not pointed elsewhere.
    pub(super) fn point(self: &mut Box<Self>, first: &[u8], second: &[u8]) -> *const libc::msghdr {
        self.parts = [first, second]
            .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
        self.header.msg_iov = self.parts.as_mut_ptr();
        self.header.msg_iovlen = self.parts.len() as _;
        &raw const self.header
    }
}
