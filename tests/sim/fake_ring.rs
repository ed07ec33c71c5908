//! A ring without a kernel: the same ops against sockets and files in memory, in virtual time, with
//! mishaps from a seed. It holds the worker to the contract of the trait: it panics when a lease is
//! kept beyond its turn, a closed descriptor is named, a socket has two sends at once, and so on.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::CString;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use httpd::ring::{Clock, Completion, Lease, Op, Payload, Pipe, Ring, Stream, Token};
use httpd::sys::fds::{Descriptor, Fd};
use httpd::sys::file::{Facts, Symlinks};
use httpd::sys::{Errno, Error};

use crate::records::Tls13;
use crate::world::{Gift, Object, Way, World, completion};

pub struct FakeRing {
    pub world: Rc<RefCell<World>>,
    queue: Vec<(Token, Op)>,
    leases: Vec<Option<Vec<u8>>>,
    clock: Clock,
    /// Sockets with a send, or a receive, that has not completed.
    busy: HashSet<(usize, bool)>,
    /// Sockets that the worker says it has; compared once what is buried is closed.
    pub connections: Option<usize>,
}

impl FakeRing {
    pub fn new(world: Rc<RefCell<World>>) -> Self {
        let (clock, leases) = (world.borrow().clock(), world.borrow().odds.leases);
        Self {
            world,
            queue: Vec::new(),
            leases: (0..leases).map(|_| None).collect(),
            clock,
            busy: HashSet::new(),
            connections: None,
        }
    }

    /// Hands over what is queued and closes what is buried.
    fn submit(&mut self) {
        let mut world = self.world.borrow_mut();
        for (token, op) in self.queue.drain(..) {
            world.submit(token, op);
        }
        let mut buried = Vec::new();
        world.graveyard.exhume(&mut buried);
        buried.into_iter().for_each(|fd| world.close(fd));
        if let Some(connections) = self.connections.take() {
            // Accepted, but the worker has not been told yet.
            let untold =
                world.due.iter().filter(|ready| matches!(ready.gift, Gift::Plain(Payload::Descriptor(_))));
            let untold = untold.count();
            let open = world.sockets_open();
            assert!(
                open >= connections && open <= connections + untold,
                "{open} sockets for {connections} connections"
            );
        }
    }

    /// Lets time pass until something is due for the worker.
    fn wait(&mut self, until: Option<Instant>) {
        let mut world = self.world.borrow_mut();
        let until = until.map(|until| until.saturating_duration_since(world.base));
        while world.due.is_empty() {
            match (world.next_event_at(), until) {
                (Some(at), until) if until.is_none_or(|until| at <= until) => world.happen(),
                (_, Some(until)) => {
                    world.now = world.now.max(until);
                    break;
                }
                _ => {
                    world.stalled = true;
                    break;
                }
            }
            let spurious = world.odds.spurious / 10;
            if world.rng.chance(spurious) {
                break;
            }
        }
        // The worker takes its time, in which more may happen.
        let busy = world.rng.micros(1, 40);
        let back_at = world.now + busy;
        while world.next_event_at().is_some_and(|at| at <= back_at) {
            world.happen();
        }
        world.now = world.now.max(back_at);
        let now = world.now;
        world.tree.at(now);
        self.clock = world.clock();
    }
}

impl Ring for FakeRing {
    fn push(&mut self, token: Token, op: Op) {
        let way = match &op {
            Op::Receive { socket } => Some((*socket, false)),
            Op::Send { socket, .. } => Some((*socket, true)),
            _ => None,
        };
        let world = self.world.borrow();
        if let Some(fd) = crate::ops::named(&op) {
            world.object(fd, "an op");
        }
        if let Some((fd, out)) = way {
            let Object::Socket(socket) = world.object(fd, "an op") else { panic!("{op:?} on no socket") };
            assert!(self.busy.insert((socket, out)), "{op:?}: socket {socket} has one in flight");
        }
        drop(world);
        self.queue.push((token, op));
    }

    fn turn(&mut self, until: Option<Instant>, completions: &mut Vec<Completion>) -> Result<(), Error> {
        assert!(self.leases.iter().all(Option::is_none), "a lease was kept beyond its turn");
        self.world.borrow_mut().turns += 1;
        self.submit();
        self.wait(until);
        let due = self.world.borrow_mut().take_due();
        for mut ready in due {
            if let Some((socket, way)) = ready.frees {
                self.busy.remove(&(socket, way == Way::Out));
            }
            let payload = match std::mem::replace(&mut ready.gift, Gift::Plain(Payload::None)) {
                Gift::Plain(payload) => payload,
                Gift::Received(bytes) => {
                    let length = bytes.len() as u32;
                    let free = self.leases.iter().position(Option::is_none).expect("as many as were counted");
                    self.leases[free] = Some(bytes);
                    Payload::Lease(Lease { buffer: free as u16, length })
                }
            };
            completions.push(completion(ready, payload));
        }
        Ok(())
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    fn overflows(&self) -> u64 {
        0
    }

    fn leased(&self, lease: &Lease) -> &[u8] {
        self.leases[usize::from(lease.buffer)].as_deref().expect("a lease that is out")
    }

    fn release(&mut self, lease: Lease) {
        let bytes = self.leases[usize::from(lease.buffer)].take();
        assert!(bytes.is_some(), "a lease was given back twice");
        self.world.borrow_mut().leases_free += 1;
    }

    fn leases_free(&self) -> usize {
        self.world.borrow().leases_free
    }

    fn open_cached(&mut self, dir: Fd, path: &CString, symlinks: Symlinks) -> Result<Descriptor, Errno> {
        let mut world = self.world.borrow_mut();
        let Object::File(dir) = world.object(dir, "an open") else { panic!("beneath no directory") };
        let cold = world.odds.cold_open;
        if world.rng.chance(cold) {
            return Err(Errno::AGAIN);
        }
        world.resolve(dir, path.as_bytes(), symlinks)
    }

    fn open_root(&mut self, path: &Path) -> Result<Descriptor, Errno> {
        let mut world = self.world.borrow_mut();
        let fails = world.odds.open_fails;
        // Not at birth: a worker that cannot open a root then says so to every request.
        if world.turns > 0 && world.rng.chance(fails) {
            return Err(Errno::MFILE);
        }
        let inode = world.tree.resolve_root(&path.to_string_lossy())?;
        let fd = world.install(Object::File(inode));
        world.note(format_args!("open root as {}", fd.0));
        Ok(Descriptor::new(fd, &world.graveyard))
    }

    fn may_read(&mut self, directory: Fd) -> bool {
        let world = self.world.borrow();
        let Object::File(inode) = world.object(directory, "a look upwards") else { panic!("no directory") };
        !world.barred.contains(&inode)
    }

    fn facts(&mut self, file: Fd) -> Result<Facts, Errno> {
        let world = self.world.borrow();
        let Object::File(inode) = world.object(file, "fstat") else { panic!("facts of no file") };
        Ok(world.tree.facts(inode))
    }

    fn read_cached(
        &mut self,
        file: Fd,
        offset: u64,
        into: &mut Vec<u8>,
        length: usize,
    ) -> Result<usize, Errno> {
        let mut world = self.world.borrow_mut();
        let Object::File(inode) = world.object(file, "a read") else { panic!("from no file") };
        let cold = world.odds.cold_read;
        if world.rng.chance(cold) {
            return Err(Errno::AGAIN);
        }
        world.read_file(inode, offset, into, length)
    }

    fn resident(&mut self, file: Fd, range: Range<u64>) -> bool {
        let mut world = self.world.borrow_mut();
        let Object::File(inode) = world.object(file, "a look") else { panic!("at no file") };
        let cold = world.odds.cold_pages;
        let resident = !world.rng.chance(cold);
        world.resident = resident.then_some((inode, range, world.turns));
        resident
    }

    fn send_file(&mut self, socket: Fd, file: Fd, offset: u64, length: usize) -> Result<usize, Errno> {
        let mut world = self.world.borrow_mut();
        let Object::File(inode) = world.object(file, "sendfile") else { panic!("from no file") };
        let Object::Socket(socket) = world.object(socket, "sendfile") else { panic!("to no socket") };
        assert!(!self.busy.contains(&(socket, true)), "sendfile while a send is in flight");
        let claimed = world.resident.as_ref().is_some_and(|(of, range, turn)| {
            *of == inode
                && *turn == world.turns
                && range.start <= offset
                && offset + length as u64 <= range.end
        });
        assert!(claimed, "sendfile of a part that may have to be waited for");
        let bytes = world.tree.read(inode, offset, length)?.to_vec();
        if bytes.is_empty() {
            return Ok(0);
        }
        let sent = world.put(socket, [&bytes, &[]]);
        world.note(format_args!("socket {socket}: sendfile {sent:?}"));
        sent
    }

    fn accept_now(&mut self, listener: Fd) -> Result<Descriptor, Errno> {
        let mut world = self.world.borrow_mut();
        let Object::Listener(listener) = world.object(listener, "an accept") else {
            panic!("an accept on what is no listener");
        };
        let aborts = world.odds.accept_aborts;
        if world.rng.chance(aborts) {
            return Err(*world.rng.pick(&[Errno::CONNABORTED, Errno::INTR]));
        }
        let socket = world.backlogs[listener].pop_front().ok_or(Errno::AGAIN)?;
        let fd = world.install(Object::Socket(socket));
        Ok(Descriptor::new(fd, &world.graveyard))
    }

    fn send_now(&mut self, socket: Fd, bytes: &[u8]) -> Result<usize, Errno> {
        let mut world = self.world.borrow_mut();
        match world.object(socket, "a send") {
            Object::Channel => {
                world.reports.push(bytes.to_vec());
                Ok(bytes.len())
            }
            Object::Socket(socket) => {
                assert!(!self.busy.contains(&(socket, true)), "two sends at once");
                world.put(socket, [bytes, &[]])
            }
            object => panic!("a send to {object:?}"),
        }
    }

    fn shutdown(&mut self, socket: Fd, both: bool) {
        let mut world = self.world.borrow_mut();
        let Object::Socket(socket) = world.object(socket, "a shutdown") else { panic!("of no socket") };
        world.note(format_args!("socket {socket}: shutdown{}", if both { " of both ways" } else { "" }));
        let state = &mut world.sockets[socket];
        state.server_finished = true;
        state.server_deaf |= both;
        world.tell_client(socket);
        world.wake(Object::Socket(socket));
    }

    fn peer(&mut self, socket: Fd) -> Option<SocketAddr> {
        let world = self.world.borrow();
        let Object::Socket(socket) = world.object(socket, "a look") else { panic!("at no socket") };
        Some(SocketAddr::from(([10, 0, 0, world.sockets[socket].client as u8], 40_000)))
    }

    fn local(&mut self, socket: Fd) -> Option<SocketAddr> {
        self.world.borrow().object(socket, "a look");
        Some(SocketAddr::from(([10, 0, 0, 0], 80)))
    }

    fn unsent(&mut self, socket: Fd) -> u64 {
        let world = self.world.borrow();
        let Object::Socket(socket) = world.object(socket, "a look") else { panic!("at no socket") };
        world.sockets[socket].outbound.len() as u64
    }

    fn note(&mut self, channel: Fd, into: &mut [u8]) -> Result<(usize, Option<Descriptor>), Errno> {
        let mut world = self.world.borrow_mut();
        let note = match world.object(channel, "a note") {
            Object::Channel => world.notes.pop_front(),
            Object::Mailbox(runner) => {
                let peer = &mut world.runners[runner as usize];
                peer.says.pop_front().or(peer.has_left.then(Vec::new))
            }
            object => panic!("a note from {object:?}"),
        };
        let note = note.ok_or(Errno::AGAIN)?;
        into[..note.len()].copy_from_slice(&note);
        Ok((note.len(), None))
    }

    fn has_ended(&mut self, channel: Fd) -> bool {
        let world = self.world.borrow();
        let Object::Mailbox(runner) = world.object(channel, "a look") else { panic!("at no mailbox") };
        world.runners[runner as usize].has_left
    }

    fn send_note(&mut self, channel: Fd, note: &[u8], descriptors: &[Fd]) -> Result<(), Errno> {
        let mut world = self.world.borrow_mut();
        let Object::Mailbox(runner) = world.object(channel, "a note") else { panic!("to no mailbox") };
        let pipes = descriptors.iter().map(|fd| match world.object(*fd, "a descriptor sent along") {
            Object::Pipe { pipe, ours: false } => pipe,
            object => panic!("{object:?} is not for a script"),
        });
        let pipes: Vec<usize> = pipes.collect();
        world.tell_runner(runner, note, &pipes)
    }

    fn pipe(&mut self, stream: Stream) -> Result<Pipe, Errno> {
        let mut world = self.world.borrow_mut();
        let fails = world.odds.open_fails;
        if world.rng.chance(fails) {
            return Err(Errno::MFILE);
        }
        let pipe = world.make_pipe(stream == Stream::Input);
        let [ours, theirs] = [true, false].map(|ours| {
            let fd = world.install(Object::Pipe { pipe, ours });
            Descriptor::new(fd, &world.graveyard)
        });
        Ok(Pipe { ours, theirs })
    }

    fn read_pipe(&mut self, pipe: Fd, into: &mut Vec<u8>) -> Result<usize, Errno> {
        let mut world = self.world.borrow_mut();
        let Object::Pipe { pipe, ours: true } = world.object(pipe, "a read") else { panic!("from no pipe") };
        let room = into.capacity() - into.len();
        assert!(room > 0, "a read without room says nothing about the pipe");
        let short = world.odds.short_read;
        let room = if world.rng.chance(short) { world.rng.within(1, room) } else { room };
        let bytes = world.pipes[pipe].read(room)?;
        into.extend_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn unread(&mut self, pipe: Fd) -> usize {
        let world = self.world.borrow();
        let Object::Pipe { pipe, ours: true } = world.object(pipe, "FIONREAD") else { panic!("of no pipe") };
        world.pipes[pipe].bytes.len()
    }

    fn write_pipe(&mut self, pipe: Fd, bytes: &[u8]) -> Result<usize, Errno> {
        let mut world = self.world.borrow_mut();
        let Object::Pipe { pipe, ours: true } = world.object(pipe, "a write") else { panic!("to no pipe") };
        world.pipes[pipe].write(bytes)
    }

    fn install_tls(&mut self, socket: Fd, info: &[u8]) -> Result<(), Errno> {
        let mut world = self.world.borrow_mut();
        let Object::Socket(socket) = world.object(socket, "setsockopt") else { panic!("of no socket") };
        assert!(!self.busy.contains(&(socket, true)), "keys while a send is in flight");
        let refuses = world.odds.no_kernel_tls;
        if world.rng.chance(refuses) {
            return Err(Errno::NOPROTOOPT);
        }
        world.note(format_args!("socket {socket}: the kernel encrypts"));
        let before = world.sealing.insert(socket, Tls13::from_crypto_info(info));
        assert!(before.is_none(), "keys are given once");
        Ok(())
    }

    fn send_record(&mut self, socket: Fd, content_type: u8, payload: &[u8]) -> Result<(), Errno> {
        let mut world = self.world.borrow_mut();
        let Object::Socket(socket) = world.object(socket, "sendmsg") else { panic!("to no socket") };
        assert!(!self.busy.contains(&(socket, true)), "two sends at once");
        let state = &world.sockets[socket];
        if state.is_dead_for_sending() {
            return Err(Errno::PIPE);
        }
        if state.room() == 0 {
            return Err(Errno::AGAIN);
        }
        let records = world.sealing.get_mut(&socket).expect("a socket whose encryption the kernel does");
        let record = records.seal(content_type, payload);
        world.sockets[socket].outbound.extend(record);
        world.tell_client(socket);
        Ok(())
    }
}
