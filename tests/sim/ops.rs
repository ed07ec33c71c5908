//! What the kernel does with each op, in memory.

use std::time::Duration;

use httpd::ring::{Computation, Done, Job, Op, Payload, Token};
use httpd::sys::Errno;
use httpd::sys::fds::{Descriptor, Fd};

use crate::tree::Inode;
use crate::world::{Event, Gift, InFlight, Object, Ready, Way, World};

/// The most that one TLS record holds, and the type of those with content (RFC 8446 section 5.1).
const RECORD_MAX: usize = 1 << 14;
const APPLICATION_DATA: u8 = 23;

/// What trying an op led to.
enum Tried {
    /// It has to wait.
    Waits,
    /// It completed with nothing to carry.
    Plain(Result<usize, Errno>),
    /// It completed and carries something.
    Carrying(Result<usize, Errno>, Gift),
}

impl World {
    /// The kernel takes an op from the queue.
    pub fn submit(&mut self, token: Token, op: Op) {
        let fd = named(&op);
        let object = fd.map(|fd| self.object(fd, "an op"));
        let id = self.ops_begun;
        self.ops_begun += 1;
        let after = match &op {
            Op::Open { .. } | Op::Read { .. } => self.rng.micros(20, 20_000),
            Op::Delegate(_) => self.rng.micros(500, 60_000),
            Op::Append { .. } => self.rng.micros(5, 3000),
            _ => Duration::ZERO,
        };
        self.trace.add(self.now, format_args!("{token:?} {}", name(&op)));
        self.ops.insert(id, InFlight { token, op, object, started: false });
        if after.is_zero() { self.attempt(id) } else { self.schedule(after, Event::Attempt(id)) }
    }

    /// Tries all that wait for an object.
    pub fn wake(&mut self, object: Object) {
        let waiting = |(id, flight): (&u64, &InFlight)| {
            (flight.object == Some(object) && flight.started).then_some(*id)
        };
        let ids: Vec<u64> = self.ops.iter().filter_map(waiting).collect();
        ids.into_iter().for_each(|id| self.attempt(id));
    }

    pub fn attempt(&mut self, id: u64) {
        let Some(mut flight) = self.ops.remove(&id) else { return };
        flight.started = true;
        let tried = match (&mut flight.op, flight.object) {
            (Op::Accept { .. }, _) => return self.accept(id, flight),
            (Op::Cancel { .. }, Some(object)) => Tried::Plain(Ok(self.cancel(object))),
            (Op::Receive { .. }, Some(Object::Socket(socket))) => self.receive(socket),
            (Op::Send { head, from, body, .. }, Some(Object::Socket(socket))) => {
                let body = body.as_ref().map_or(&[][..], |(bytes, range)| &bytes[range.clone()]);
                self.send(socket, &head[*from..], body)
            }
            (Op::Writable { .. }, Some(Object::Socket(socket))) => self.writable(socket),
            (Op::Readable { .. }, Some(Object::Channel)) => match self.notes.is_empty() {
                true => Tried::Waits,
                false => Tried::Plain(Ok(1)),
            },
            (Op::Readable { .. }, Some(Object::Mailbox(runner))) => {
                let peer = &self.runners[runner as usize];
                if peer.says.is_empty() && !peer.has_left { Tried::Waits } else { Tried::Plain(Ok(1)) }
            }
            (Op::Writable { .. }, Some(Object::Mailbox(_))) => Tried::Plain(Ok(4)),
            (Op::Readable { .. }, Some(Object::Pipe { pipe, ours: true })) => {
                if self.pipes[pipe].is_readable() { Tried::Plain(Ok(1)) } else { Tried::Waits }
            }
            (Op::Writable { .. }, Some(Object::Pipe { pipe, ours: true })) => {
                if self.pipes[pipe].is_writable() { Tried::Plain(Ok(4)) } else { Tried::Waits }
            }
            (Op::Open { dir, path, symlinks }, _) => {
                let Object::File(dir) = self.object(dir.fd(), "an open") else {
                    panic!("beneath no directory")
                };
                self.open(dir, path.as_bytes(), *symlinks)
            }
            (Op::Read { file, offset, into, length }, _) => {
                let Object::File(inode) = self.object(file.fd(), "a read") else { panic!("from no file") };
                Tried::Plain(self.read_file(inode, *offset, into, *length))
            }
            (Op::Append { bytes, .. }, Some(Object::Log)) => Tried::Plain(Ok(self.append(bytes))),
            (Op::Delegate(job), _) => self.work(job),
            (op, object) => panic!("{op:?} on {object:?}"),
        };
        let (result, gift) = match tried {
            Tried::Waits => {
                self.ops.insert(id, flight);
                return;
            }
            Tried::Plain(result) => (result, Gift::Plain(Payload::None)),
            Tried::Carrying(result, gift) => (result, gift),
        };
        self.end(flight, result, gift);
    }

    /// Completes an op for good, giving back what it was lent.
    fn end(&mut self, flight: InFlight, result: Result<usize, Errno>, gift: Gift) {
        let socket = match flight.object {
            Some(Object::Socket(socket)) => Some(socket),
            _ => None,
        };
        let (gift, frees) = match flight.op {
            Op::Send { head, .. } => {
                (Gift::Plain(Payload::Memory(head)), socket.map(|socket| (socket, Way::Out)))
            }
            Op::Receive { .. } => (gift, socket.map(|socket| (socket, Way::In))),
            Op::Read { into, .. } => (Gift::Plain(Payload::Memory(into)), None),
            Op::Append { bytes, .. } => (Gift::Plain(Payload::Memory(bytes)), None),
            _ => (gift, None),
        };
        self.complete(Ready { token: flight.token, result, more: false, gift, frees });
    }

    fn accept(&mut self, id: u64, flight: InFlight) {
        let token = flight.token;
        let plain =
            |result| Ready { token, result, more: false, gift: Gift::Plain(Payload::None), frees: None };
        let Some(Object::Listener(listener)) = flight.object else {
            panic!("an accept on {:?}", flight.object)
        };
        while let Some(&socket) = self.backlogs[listener].front() {
            if self.rng.chance(self.odds.accept_fails) {
                return self.complete(plain(Err(Errno::MFILE)));
            }
            if self.rng.chance(self.odds.accept_aborts) {
                return self.complete(plain(Err(Errno::CONNABORTED)));
            }
            self.backlogs[listener].pop_front();
            let fd = self.install(Object::Socket(socket));
            self.note(format_args!("socket {socket} is accepted as {}", fd.0));
            let more = !self.rng.chance(self.odds.accept_ends);
            let gift = Gift::Plain(Payload::Descriptor(Descriptor::new(fd, &self.graveyard)));
            self.complete(Ready { token, result: Ok(0), more, gift, frees: None });
            if !more {
                return;
            }
        }
        self.ops.insert(id, flight);
    }

    fn cancel(&mut self, object: Object) -> usize {
        let on_it = |(id, flight): (&u64, &InFlight)| (flight.object == Some(object)).then_some(*id);
        let ids: Vec<u64> = self.ops.iter().filter_map(on_it).collect();
        let mut cancelled = 0;
        for id in ids {
            if self.ops.get(&id).is_some_and(|flight| !flight.started) {
                self.attempt(id);
            }
            if let Some(flight) = self.ops.remove(&id) {
                cancelled += 1;
                self.end(flight, Err(Errno::CANCELED), Gift::Plain(Payload::None));
            }
        }
        cancelled
    }

    fn receive(&mut self, socket: usize) -> Tried {
        // The kernel looks for a buffer first, and fails without one even where nothing has come.
        if self.leases_free == 0 || self.rng.chance(self.odds.no_buffer / 4) {
            return Tried::Plain(Err(Errno::NOBUFS));
        }
        let state = &mut self.sockets[socket];
        if state.broken {
            return Tried::Plain(Err(Errno::CONNRESET));
        }
        if state.inbound.is_empty() {
            let ended = state.client_finished || state.server_deaf;
            return if ended { Tried::Plain(Ok(0)) } else { Tried::Waits };
        }
        let mut length = state.inbound.len().min(self.odds.lease_bytes);
        if self.rng.chance(self.odds.short_receive) {
            length = self.rng.within(1, length);
        }
        let bytes = crate::net::take(&mut state.inbound, length);
        self.leases_free -= 1;
        self.tell_client(socket);
        Tried::Carrying(Ok(length), Gift::Received(bytes))
    }

    fn send(&mut self, socket: usize, head: &[u8], body: &[u8]) -> Tried {
        assert!(head.len() + body.len() > 0, "a send of nothing");
        match self.put(socket, [head, body]) {
            Err(Errno::AGAIN) => Tried::Waits,
            result => Tried::Plain(result),
        }
    }

    /// Puts bytes on their way to the client, as many as fit and chance allows.
    pub fn put(&mut self, socket: usize, parts: [&[u8]; 2]) -> Result<usize, Errno> {
        let state = &mut self.sockets[socket];
        if state.is_dead_for_sending() {
            return Err(if state.broken { Errno::CONNRESET } else { Errno::PIPE });
        }
        let room = state.room();
        if room == 0 {
            return Err(Errno::AGAIN);
        }
        let [first, second] = parts;
        let mut length = room.min(first.len() + second.len());
        if self.rng.chance(self.odds.short_send) {
            length = self.rng.within(1, length);
        }
        let of_first = length.min(first.len());
        let (first, second) = (&first[..of_first], &second[..length - of_first]);
        match self.sealing.get_mut(&socket) {
            None => [first, second].iter().for_each(|part| state.outbound.extend(*part)),
            // A record that was begun is kept by the kernel beyond what the socket holds.
            Some(records) => {
                for content in [first, second].concat().chunks(RECORD_MAX) {
                    state.outbound.extend(records.seal(APPLICATION_DATA, content));
                }
            }
        }
        state.sent += length as u64;
        self.tell_client(socket);
        Ok(length)
    }

    fn writable(&mut self, socket: usize) -> Tried {
        let state = &self.sockets[socket];
        if state.room() > 0 || state.is_dead_for_sending() { Tried::Plain(Ok(4)) } else { Tried::Waits }
    }

    fn open(&mut self, dir: Inode, path: &[u8], symlinks: httpd::sys::file::Symlinks) -> Tried {
        if self.rng.chance(self.odds.racing_open) {
            return Tried::Plain(Err(Errno::AGAIN));
        }
        match self.resolve(dir, path, symlinks) {
            Ok(file) => Tried::Carrying(Ok(0), Gift::Plain(Payload::Descriptor(file))),
            Err(errno) => Tried::Plain(Err(errno)),
        }
    }

    /// Opens a path beneath a directory.
    pub fn resolve(
        &mut self,
        dir: Inode,
        path: &[u8],
        symlinks: httpd::sys::file::Symlinks,
    ) -> Result<Descriptor, Errno> {
        let path = std::str::from_utf8(path).map_err(|_| Errno::NOENT)?;
        assert!(!path.starts_with('/') && !path.is_empty(), "the worker opens beneath a root, not {path}");
        if self.rng.chance(self.odds.open_fails) {
            return Err(Errno::MFILE);
        }
        let inode = self.tree.resolve(dir, path, symlinks)?;
        let fd = self.install(Object::File(inode));
        self.note(format_args!("open {path} as {}", fd.0));
        Ok(Descriptor::new(fd, &self.graveyard))
    }

    /// Reads from a file into spare capacity.
    pub fn read_file(
        &mut self,
        inode: Inode,
        offset: u64,
        into: &mut Vec<u8>,
        length: usize,
    ) -> Result<usize, Errno> {
        let room = (into.capacity() - into.len()).min(length);
        assert!(room > 0, "a read without room says nothing about the file");
        let bytes = self.tree.read(inode, offset, room)?;
        let mut count = bytes.len();
        if count > 1 && self.rng.chance(self.odds.short_read) {
            count = self.rng.within(1, count);
        }
        into.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn append(&mut self, bytes: &[u8]) -> usize {
        let mut length = bytes.len();
        if self.rng.chance(self.odds.short_append) {
            length = self.rng.within(1, length);
        }
        self.log.extend_from_slice(&bytes[..length]);
        length
    }

    fn work(&mut self, job: &mut Job) -> Tried {
        let done = match job {
            Job::Compute(computation) => {
                let computation = std::mem::replace(computation, Computation::new(|| Err(Errno::IO)));
                Ok(Done::Computed(computation.run()))
            }
            Job::VerifyPassword { password, hash } => Ok(Self::verdict(password, hash)),
            Job::List { directory, symlinks, names_max } => {
                let Object::File(inode) = self.object(directory.fd(), "a listing") else {
                    panic!("of no directory")
                };
                let listed = self.tree.list(inode, *symlinks, *names_max);
                listed.map(|(names, truncated)| Done::Listed { names, truncated })
            }
        };
        match done {
            Ok(done) => Tried::Carrying(Ok(0), Gift::Plain(Payload::Done(done))),
            Err(errno) => Tried::Plain(Err(errno)),
        }
    }
}

/// The descriptor an op names by number.
pub fn named(op: &Op) -> Option<Fd> {
    match op {
        Op::Accept { listener: fd }
        | Op::Receive { socket: fd }
        | Op::Send { socket: fd, .. }
        | Op::Writable { socket: fd }
        | Op::Readable { fd }
        | Op::Append { fd, .. }
        | Op::Cancel { fd } => Some(*fd),
        Op::Open { .. } | Op::Read { .. } | Op::Delegate(_) => None,
    }
}

fn name(op: &Op) -> String {
    match op {
        Op::Accept { .. } => "accept".into(),
        Op::Receive { socket } => format!("receive {}", socket.0),
        Op::Send { socket, head, from, body, more } => {
            let body = body.as_ref().map_or(0, |(_, range)| range.len());
            format!("send {}: {} + {body}{}", socket.0, head.len() - from, if *more { ", more" } else { "" })
        }
        Op::Writable { socket } => format!("writable {}", socket.0),
        Op::Readable { fd } => format!("readable {}", fd.0),
        Op::Open { path, .. } => format!("open {}", path.to_string_lossy()),
        Op::Read { offset, length, .. } => format!("read {length} at {offset}"),
        Op::Append { bytes, .. } => format!("append {}", bytes.len()),
        Op::Cancel { fd } => format!("cancel {}", fd.0),
        Op::Delegate(_) => "delegate".into(),
    }
}
