//! Making a ring: queues, receive buffers, limits and restrictions, with less where memory is short.

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue};

use super::direct;
use super::memory::Leases;
use super::probe::{Failure, Features, Step};
use super::uring::errno;
use crate::sys::Errno;
use crate::sys::fds::Graveyard;

/// Sizes and switches of a ring.
#[derive(Clone, Debug)]
pub struct Options {
    /// Entries of the submission queue. Only bounds how much one system call hands over.
    pub submissions: u32,
    /// Entries of the completion queue: room for a burst of all connections of a worker. Beyond it
    /// the kernel keeps a list, which costs it memory and ends multishot ops.
    pub completions: u32,
    /// Receive buffers, a power of two. Measured: 16 for 500 connections double the cost of a
    /// request, from 64 on there is no difference; more only for bursts.
    pub leases: u16,
    /// Bytes of each: most request heads fit.
    pub lease_bytes: u32,
    /// Whether to try to have the kernel choose the buffers.
    pub buffer_ring: bool,
    /// Where descriptors of this worker are buried.
    pub graveyard: Graveyard,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            submissions: 512,
            completions: 4096,
            leases: 1024,
            lease_bytes: 4096,
            buffer_ring: true,
            graveyard: Graveyard::default(),
        }
    }
}

/// The least queue worth working with; below it a refusal for lack of memory is final.
const SUBMISSIONS_MIN: u32 = 32;
const LEASES_MIN: u16 = 64;

/// Kernel threads for what cannot be done at once: reads and opens from disks (bounded), and what may
/// wait for ever (unbounded; the ops used here never do).
const KERNEL_THREADS: [u32; 2] = [8, 4];

/// Makes and enables a ring for the calling thread.
pub(super) fn make(options: &Options) -> Result<(IoUring, Leases, Features), Failure> {
    let ring = create(options).map_err(|errno| Failure::new(Step::Create, errno))?;
    let leases = lease(&ring, options).map_err(|errno| Failure::new(Step::Buffers, errno))?;
    let register = |error| Failure::new(Step::Register, errno(error));
    ring.submitter().register_iowq_max_workers(&mut KERNEL_THREADS.clone()).map_err(register)?;
    let restricted = ring.submitter().register_restrictions(&mut restrictions()).is_ok();
    ring.submitter().register_enable_rings().map_err(|error| Failure::new(Step::Enable, errno(error)))?;

    let features = Features {
        buffer_ring: leases.by_kernel(),
        no_iowait: ring.params().is_feature_no_iowait(),
        restricted,
        cachestat: direct::has_cachestat(),
        submissions: ring.params().sq_entries(),
        completions: ring.params().cq_entries(),
        leases: leases.free() as u16,
    };
    Ok((ring, leases, features))
}

/// Creates the ring, smaller where memory is short.
fn create(options: &Options) -> Result<IoUring, Errno> {
    let (mut submissions, mut completions) = (options.submissions, options.completions);
    loop {
        let made = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_cqsize(completions)
            .setup_clamp()
            .setup_r_disabled()
            .dontfork()
            .build(submissions)
            .map_err(errno);
        match made {
            // A ring just closed by another process keeps its memory charged for a moment; a smaller
            // one mostly still fits.
            Err(Errno::NOMEM) if submissions / 2 >= SUBMISSIONS_MIN => {
                (submissions, completions) = (submissions / 2, completions / 2);
            }
            made => return made,
        }
    }
}

fn lease(ring: &IoUring, options: &Options) -> Result<Leases, Errno> {
    let mut count = options.leases;
    loop {
        match Leases::new(&ring.submitter(), count, options.lease_bytes, options.buffer_ring) {
            Err(Errno::NOMEM) if count / 2 >= LEASES_MIN => count /= 2,
            leases => return leases,
        }
    }
}

/// All that the ring is ever asked for. No register operation is needed any more, so none is listed.
fn restrictions() -> Vec<Restriction> {
    let ops = [
        opcode::AcceptMulti::CODE,
        opcode::AsyncCancel2::CODE,
        opcode::OpenAt2::CODE,
        opcode::PollAdd::CODE,
        opcode::Read::CODE,
        opcode::Recv::CODE,
        opcode::Send::CODE,
        opcode::SendMsg::CODE,
        opcode::Write::CODE,
    ];
    let flags = Restriction::sqe_flags_allowed(squeue::Flags::BUFFER_SELECT.bits());
    ops.into_iter().map(Restriction::sqe_op).chain([flags]).collect()
}
