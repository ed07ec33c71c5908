//! What a connection still has to say, in order.
//!
//! Heads and small bodies are written one behind the other into `plain`, so that pipelined requests
//! are answered by one send. A body too large to copy waits in `queue`, and while one waits no
//! further request is looked at: the memory of a connection is bounded by one buffer and one piece.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use super::buffers::Buffers;
use crate::files::PlanBody;
use crate::sys::bytes::{Bytes, Slice};
use crate::sys::fds::Descriptor;
use crate::sys::file::Facts;

/// Bodies up to this size are copied behind their head: one contiguous send costs the kernel less
/// than gathering two pieces, up to about the size of the first-level cache.
const COPY_MAX: usize = 16 * 1024;
/// With so much to send, further pipelined requests wait.
const PLAIN_MAX: usize = 64 * 1024;
/// A piece of a body handed to the kernel at once; bounds what one connection takes of a turn to some
/// 200 us of a core. Half of it costs a sixth more CPU per byte with a hundred large downloads.
pub const PIECE_MAX: usize = 2 * 1024 * 1024;

/// Bytes to be sent, in order.
#[derive(Debug, Default)]
pub struct Outgoing {
    plain: Vec<u8>,
    queue: VecDeque<Piece>,
}

#[derive(Debug)]
enum Piece {
    /// Bytes from the index on.
    Text(Vec<u8>, usize),
    Memory(Bytes, Range<usize>),
    File(FilePiece),
}

/// A part of a file that waits to be sent.
#[derive(Clone, Debug)]
pub struct FilePiece {
    /// The open file.
    pub file: Rc<Descriptor>,
    /// What is left of it.
    pub range: Range<u64>,
    /// What the file must still be when the last byte goes.
    pub facts: Facts,
}

/// What goes next.
#[derive(Debug)]
pub enum Next {
    /// Nothing is left.
    Nothing,
    /// These bytes of the head from `from` on, and the body. `more`: a file follows at once.
    Bytes { head: Vec<u8>, from: usize, body: Option<Slice>, more: bool },
    /// A part of a file; call [`Outgoing::advance_file`] with what went.
    File { piece: FilePiece, last: bool },
}

/// Bytes of a body.
pub fn length(body: &PlanBody) -> u64 {
    match body {
        PlanBody::Empty => 0,
        PlanBody::Text(bytes) => bytes.len() as u64,
        PlanBody::Memory(_, range) => range.len() as u64,
        PlanBody::File { range, .. } => range.end - range.start,
        PlanBody::Parts(parts) => parts.iter().map(|(head, part)| head.len() as u64 + length(part)).sum(),
    }
}

impl Outgoing {
    /// Where the next response head is written.
    pub fn head(&mut self, buffers: &mut Buffers) -> &mut Vec<u8> {
        debug_assert!(self.queue.is_empty());
        if self.plain.capacity() == 0 {
            self.plain = buffers.small();
        }
        &mut self.plain
    }

    /// Adds the body of the response whose head was just written.
    pub fn body(&mut self, body: PlanBody) {
        let copy = self.queue.is_empty();
        match body {
            PlanBody::Empty => {}
            PlanBody::Text(bytes) if copy && bytes.len() <= COPY_MAX => self.plain.extend_from_slice(&bytes),
            PlanBody::Text(bytes) => self.queue.push_back(Piece::Text(bytes, 0)),
            PlanBody::Memory(bytes, range) if copy && range.len() <= COPY_MAX => {
                self.plain.extend_from_slice(&bytes[range]);
            }
            PlanBody::Memory(bytes, range) => self.queue.push_back(Piece::Memory(bytes, range)),
            PlanBody::File { range, .. } if range.is_empty() => {}
            PlanBody::File { file, range, facts } => {
                self.queue.push_back(Piece::File(FilePiece { file, range, facts }));
            }
            PlanBody::Parts(parts) => {
                for (head, part) in parts {
                    self.body(PlanBody::Text(head));
                    self.body(part);
                }
            }
        }
    }

    /// Adds bytes from the index on, behind all that waits.
    pub fn stream(&mut self, bytes: Vec<u8>, from: usize) {
        self.queue.push_back(Piece::Text(bytes, from));
    }

    /// Whether another response may be written behind what waits.
    pub fn has_room(&self) -> bool {
        self.queue.is_empty() && self.plain.len() < PLAIN_MAX
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.queue.is_empty()
    }

    /// Bytes that wait.
    pub fn length(&self) -> u64 {
        let queued = self.queue.iter().map(|piece| match piece {
            Piece::Text(bytes, from) => (bytes.len() - from) as u64,
            Piece::Memory(_, range) => range.len() as u64,
            Piece::File(piece) => piece.range.end - piece.range.start,
        });
        self.plain.len() as u64 + queued.sum::<u64>()
    }

    /// Bytes of files that wait.
    pub fn of_files(&self) -> u64 {
        let of_file = |piece: &Piece| match piece {
            Piece::File(piece) => piece.range.end - piece.range.start,
            Piece::Text(..) | Piece::Memory(..) => 0,
        };
        self.queue.iter().map(of_file).sum()
    }

    /// Takes what goes next, at most about `piece_max` bytes of a body. A file stays until
    /// [`Self::advance_file`] says how much of it went.
    pub fn next(&mut self, piece_max: usize, buffers: &mut Buffers) -> Next {
        self.gather(buffers);
        let head = std::mem::take(&mut self.plain);
        match self.queue.front_mut() {
            None if head.is_empty() => Next::Nothing,
            None => Next::Bytes { head, from: 0, body: None, more: false },
            Some(Piece::Memory(bytes, range)) => {
                let end = range.end.min(range.start + piece_max);
                let body = Some((bytes.clone(), range.start..end));
                range.start = end;
                if range.start == range.end {
                    self.queue.pop_front();
                }
                Next::Bytes { head, from: 0, body, more: false }
            }
            Some(Piece::Text(..)) => {
                if !head.is_empty() {
                    return Next::Bytes { head, from: 0, body: None, more: false };
                }
                match self.queue.pop_front() {
                    Some(Piece::Text(head, from)) => Next::Bytes { head, from, body: None, more: false },
                    _ => unreachable!("the front was text"),
                }
            }
            Some(Piece::File(_)) if !head.is_empty() => Next::Bytes { head, from: 0, body: None, more: true },
            Some(Piece::File(piece)) => {
                let end = piece.range.end.min(piece.range.start + piece_max as u64);
                let last = end == piece.range.end;
                let piece = FilePiece { range: piece.range.start..end, ..piece.clone() };
                Next::File { piece, last }
            }
        }
    }

    /// Notes that `bytes` of the file at the front went.
    pub fn advance_file(&mut self, bytes: usize) {
        let Some(Piece::File(piece)) = self.queue.front_mut() else {
            panic!("a transfer ended that was never begun");
        };
        piece.range.start += bytes as u64;
        assert!(piece.range.start <= piece.range.end, "more was transferred than asked for");
        if piece.range.is_empty() {
            self.queue.pop_front();
        }
    }

    /// Puts bytes read of the file at the front before it.
    pub fn chunk(&mut self, bytes: Vec<u8>) {
        self.advance_file(bytes.len());
        self.queue.push_front(Piece::Text(bytes, 0));
    }

    /// Drops what waits; the response it belongs to will stay incomplete.
    pub fn abandon(&mut self, buffers: &mut Buffers) {
        for piece in self.queue.drain(..) {
            if let Piece::Text(bytes, _) = piece {
                buffers.give(bytes);
            }
        }
        buffers.give(std::mem::take(&mut self.plain));
    }

    /// Moves short texts behind the plain bytes, so that they leave together.
    fn gather(&mut self, buffers: &mut Buffers) {
        while let Some(Piece::Text(text, from)) = self.queue.front() {
            if self.plain.is_empty() || self.plain.len() + text.len() - from > COPY_MAX {
                return;
            }
            self.plain.extend_from_slice(&text[*from..]);
            if let Some(Piece::Text(text, _)) = self.queue.pop_front() {
                buffers.give(text);
            }
        }
    }

    /// All that waits, for tests of what makes it.
    #[cfg(test)]
    pub fn all(&self) -> Vec<u8> {
        let mut all = self.plain.clone();
        for piece in &self.queue {
            match piece {
                Piece::Text(bytes, from) => all.extend_from_slice(&bytes[*from..]),
                Piece::Memory(bytes, range) => all.extend_from_slice(&bytes[range.clone()]),
                Piece::File(_) => panic!("files have no bytes here"),
            }
        }
        all
    }
}
