//! Bodies from files: by sendfile(2) while the pages are in memory, else read by the ring, so that
//! no page fault or disk wait stalls the other connections of the worker.

use std::ops::Range;
use std::rc::Rc;

use super::Worker;
use super::slots::{Key, Reading};
use super::tokens::Kind;
use crate::conn::Event;
use crate::conn::buffers::LARGE;
use crate::conn::outcome::Outcome;
use crate::observe::names::Counter;
use crate::ring::{Op, Payload, Ring};
use crate::sys::Errno;
use crate::sys::fds::Descriptor;
use crate::sys::file::Facts;

impl<R: Ring> Worker<R> {
    /// Moves a piece of a file towards the socket; `None` when it has to be read first.
    pub(super) fn transfer(
        &mut self,
        key: Key,
        file: Rc<Descriptor>,
        range: Range<u64>,
        facts: Facts,
        direct: bool,
        last: bool,
    ) -> Option<Event<'static>> {
        if last && !self.is_unchanged(&file, &facts) {
            return Some(Event::TransferFailed(Outcome::FileChanged));
        }
        if direct && self.ring.resident(file.fd(), range.clone()) {
            return Some(self.transfer_directly(key, &file, range));
        }
        let mut into = self.shared.buffers.large();
        let length = LARGE.min((range.end - range.start) as usize);
        let end = last.then_some(range.end);
        let reading = Reading { file: Rc::clone(&file), end, facts, offset: range.start };
        match self.ring.read_cached(file.fd(), range.start, &mut into, length) {
            Err(Errno::AGAIN) => {
                let live = self.slots.get(key)?;
                live.reading = Some(reading);
                let op = Op::Read { file, offset: range.start, into, length };
                self.ring.push(Kind::ReadPiece.token(key), op);
                None
            }
            result => Some(self.piece_read(reading, result, into)),
        }
    }

    fn transfer_directly(&mut self, key: Key, file: &Descriptor, range: Range<u64>) -> Event<'static> {
        let Some(live) = self.slots.get(key) else {
            return Event::TransferFailed(Outcome::Stopped);
        };
        let length = (range.end - range.start) as usize;
        match self.ring.send_file(live.socket.fd(), file.fd(), range.start, length) {
            Ok(0) => Event::TransferFailed(Outcome::FileChanged),
            Ok(bytes) => {
                self.shared.counters.add(Counter::BytesSent, bytes as u64);
                Event::Transferred(bytes)
            }
            Err(Errno::AGAIN) => Event::Transferred(0),
            Err(Errno::IO) => Event::TransferFailed(Outcome::FileUnreadable),
            Err(errno) => Event::TransferFailed(Outcome::SocketFailed(errno)),
        }
    }

    /// A piece came from the ring.
    pub(super) fn read_piece(&mut self, key: Key, result: Result<usize, Errno>, payload: Payload) {
        let into = match payload {
            Payload::Memory(into) => into,
            _ => Vec::new(),
        };
        let Some(reading) = self.slots.get(key).and_then(|live| live.reading.take()) else {
            return self.shared.buffers.give(into);
        };
        let event = self.piece_read(reading, result, into);
        self.deliver(key, event);
    }

    fn piece_read(
        &mut self,
        reading: Reading,
        result: Result<usize, Errno>,
        into: Vec<u8>,
    ) -> Event<'static> {
        let outcome = match result {
            Ok(0) => Outcome::FileChanged,
            Ok(bytes) => {
                let completes = reading.end == Some(reading.offset + bytes as u64);
                if !completes || self.is_unchanged(&reading.file, &reading.facts) {
                    return Event::Chunk(into);
                }
                Outcome::FileChanged
            }
            Err(_) => Outcome::FileUnreadable,
        };
        self.shared.buffers.give(into);
        Event::TransferFailed(outcome)
    }

    /// Whether the file has still the contents the response began with, as far as facts can tell.
    fn is_unchanged(&mut self, file: &Descriptor, facts: &Facts) -> bool {
        let now = self.ring.facts(file.fd());
        now.is_ok_and(|now| now.size == facts.size && now.modified == facts.modified)
    }
}
