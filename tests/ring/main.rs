//! The ring against the running kernel: each op and each direct call once, and the rare paths that
//! tiny queues bring about. Skipped, with a word on stderr, where the kernel forbids io_uring.

mod files;
mod sockets;

use std::ffi::CString;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use httpd::ring::probe::Features;
use httpd::ring::uring::{Options, Uring};
use httpd::ring::{Completion, Done, Job, Op, Payload, Ring, Token};
use httpd::sys::Errno;
use httpd::sys::bytes::{Bytes, Gauge};
use httpd::sys::fds::{Descriptor, Fd};
use httpd::sys::file::{Kind, Symlinks};

/// Small queues: many tests run at once, and ring memory is limited per user.
fn options() -> Options {
    Options { submissions: 16, completions: 64, leases: 8, ..Options::default() }
}

/// Runs `test` over a ring of `options`, once as the kernel has it and once without buffer ring.
fn each_way(options: &Options, test: impl Fn(&mut Rig)) {
    for buffer_ring in [true, false] {
        let options = Options { buffer_ring, graveyard: Default::default(), ..options.clone() };
        let Some((ring, features)) = ring(&options) else { return };
        assert!(buffer_ring || !features.buffer_ring);
        test(&mut Rig { ring, completions: Vec::new() });
    }
}

/// A ring, unless the kernel forbids it. The memory of rings just closed is charged for a moment longer.
fn ring(options: &Options) -> Option<(Uring, Features)> {
    let patience = Instant::now() + Duration::from_secs(20);
    loop {
        match Uring::new(options) {
            Ok(made) => return Some(made),
            Err(failure) if failure.errno == Errno::NOMEM && Instant::now() < patience => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(failure) => {
                let forbidden = [Errno::PERM, Errno::ACCESS, Errno::NOSYS].contains(&failure.errno);
                assert!(forbidden, "{failure}");
                eprintln!("skipped: {failure}");
                return None;
            }
        }
    }
}

struct Rig {
    ring: Uring,
    completions: Vec<Completion>,
}

fn token(slot: u32) -> Token {
    Token { kind: 7, slot, reuse: slot.wrapping_mul(3) }
}

impl Rig {
    fn push(&mut self, slot: u32, op: Op) {
        self.ring.push(token(slot), op);
    }

    /// The next completion of `slot`; others are kept for later.
    fn next(&mut self, slot: u32) -> Completion {
        let patience = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(position) = self.completions.iter().position(|found| found.token == token(slot)) {
                return self.completions.remove(position);
            }
            assert!(Instant::now() < patience, "no completion of {slot}; there are {:?}", self.completions);
            self.ring.turn(Some(patience), &mut self.completions).expect("a usable ring");
        }
    }

    fn run(&mut self, slot: u32, op: Op) -> Completion {
        self.push(slot, op);
        self.next(slot)
    }

    /// Receives once and gives the lease back.
    fn receive(&mut self, slot: u32, socket: Fd) -> Result<Vec<u8>, Errno> {
        let completion = self.run(slot, Op::Receive { socket });
        self.received(completion)
    }

    fn received(&mut self, completion: Completion) -> Result<Vec<u8>, Errno> {
        let length = completion.result?;
        let Payload::Lease(lease) = completion.payload else {
            assert_eq!(length, 0, "bytes without a lease");
            return Ok(Vec::new());
        };
        let bytes = self.ring.leased(&lease).to_vec();
        assert_eq!(bytes.len(), length);
        self.ring.release(lease);
        Ok(bytes)
    }

    fn own(&self, fd: impl IntoRawFd) -> Descriptor {
        Descriptor::new(Fd(fd.into_raw_fd()), self.ring.graveyard())
    }

    /// A socket of the ring's and its other end.
    fn pair(&self) -> (Descriptor, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        ours.set_nonblocking(true).expect("a non-blocking socket");
        (self.own(ours), theirs)
    }

    fn directory(&self, path: &std::path::Path) -> Rc<Descriptor> {
        Rc::new(self.own(fs::File::open(path).expect("a directory")))
    }
}

fn path(text: &str) -> CString {
    CString::new(text).expect("no zero byte")
}

fn memory(completion: Completion) -> Vec<u8> {
    match completion.payload {
        Payload::Memory(memory) => memory,
        other => panic!("{other:?} instead of memory"),
    }
}
