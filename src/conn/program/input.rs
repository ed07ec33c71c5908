//! A request's body on its way to the program: taken out of its framing as it comes, and handed on in
//! pieces, of which one is under way at a time. While one is, nothing more is read from the client.

use std::cell::Cell;
use std::rc::Rc;

use crate::conn::request_body::{Discard, Rest};
use crate::http1::chunked::Decoder;
use crate::http1::framing::Framing;
use crate::http1::refusal::Refusal;

/// Bytes of a body without length that are kept until it is complete. Bodies of forms are well below;
/// whoever sends more by chunks (`git push` of more than 1 MiB) has to be streamed.
const SPOOL_BYTES_MAX: u64 = 1 << 20;

/// The same for all connections of a worker together.
const SPOOLED_BYTES_MAX: u64 = 64 << 20;

/// Bytes of bodies that the connections of a worker keep. Clones count together.
#[derive(Clone, Default, Debug)]
pub struct Spooled(Rc<Cell<u64>>);

/// A request's body.
#[derive(Debug)]
pub(super) struct Input {
    /// What is still to come from the client.
    rest: Option<Rest>,
    taken: u64,
    bytes_max: u64,
    /// Taken out of its framing, and not handed on.
    data: Vec<u8>,
    /// Set while the whole is waited for, so that its length can be told.
    spool: Option<Spool>,
    /// A piece is under way.
    relaying: bool,
    /// The program reads no more: what still comes is dropped.
    deaf: bool,
    /// The program knows, or need not be told, that no more comes.
    told: bool,
}

/// The bytes kept, counted as long as they are.
#[derive(Debug)]
struct Spool {
    counted: u64,
    all: Spooled,
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.all.0.set(self.all.0.get() - self.counted);
    }
}

/// Why a body is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotTaken {
    /// It is longer than allowed: 413.
    TooLong,
    /// It is too long to be kept, and its length was not told: 411.
    LengthRequired,
    /// It is malformed: 400.
    Malformed(Refusal),
}

/// What is to be done next.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Nothing now.
    Nothing,
    /// This piece is to be handed on.
    Relay(Vec<u8>),
    /// The program is to be told that no more comes.
    End,
}

impl Input {
    /// For a body so framed, of at most `bytes_max`. `spooled`: where its length is not told, it is kept
    /// until it is complete.
    pub(super) fn new(framing: Framing, bytes_max: u64, spooled: Option<&Spooled>) -> Self {
        let rest = match framing {
            Framing::None | Framing::Length(0) => None,
            Framing::Length(length) => Some(Rest::Length(length)),
            Framing::Chunked => Some(Rest::Chunked(Decoder::default())),
        };
        let spool = spooled.filter(|_| framing == Framing::Chunked);
        let spool = spool.map(|all| Spool { counted: 0, all: all.clone() });
        let told = rest.is_none();
        let (data, taken) = (Vec::new(), 0);
        Self { rest, taken, bytes_max, data, spool, relaying: false, deaf: false, told }
    }

    /// Whether the client has said all of it.
    pub(super) fn is_complete(&self) -> bool {
        self.rest.is_none()
    }

    /// Whether any of it came.
    pub(super) fn has_begun(&self) -> bool {
        self.taken > 0 || self.is_complete()
    }

    /// Whether more is to be read from the client.
    pub(super) fn wants_more(&self) -> bool {
        let room = self.spool.is_some() || (self.data.is_empty() && !self.relaying);
        !self.is_complete() && (self.deaf || room)
    }

    /// Whether it is still kept back.
    pub(super) fn is_spooling(&self) -> bool {
        self.spool.is_some()
    }

    /// Ends keeping it back; its length.
    pub(super) fn spooled(&mut self) -> u64 {
        self.spool = None;
        self.data.len() as u64
    }

    /// Takes what belongs to the body from the front of `bytes`; how much that is.
    pub(super) fn take(&mut self, bytes: &[u8], memory: impl FnOnce() -> Vec<u8>) -> Result<usize, NotTaken> {
        if self.data.capacity() == 0 && !self.deaf {
            self.data = memory();
        }
        let mut at = 0;
        while at < bytes.len() {
            let piece = match &mut self.rest {
                None => break,
                Some(Rest::Length(rest)) => {
                    let count = usize::try_from(*rest).unwrap_or(usize::MAX).min(bytes.len() - at);
                    *rest -= count as u64;
                    if *rest == 0 {
                        self.rest = None;
                    }
                    at += count;
                    &bytes[at - count..at]
                }
                Some(Rest::Chunked(decoder)) => {
                    let from = &bytes[at..];
                    let step = decoder.decode(from).map_err(NotTaken::Malformed)?;
                    if step.done {
                        self.rest = None;
                    }
                    at += step.consumed;
                    &from[step.data]
                }
            };
            self.taken += piece.len() as u64;
            if self.taken > self.bytes_max {
                return Err(NotTaken::TooLong);
            }
            if let Some(spool) = &mut self.spool {
                let all = spool.all.0.get() + piece.len() as u64;
                if self.taken > SPOOL_BYTES_MAX || all > SPOOLED_BYTES_MAX {
                    return Err(NotTaken::LengthRequired);
                }
                spool.counted += piece.len() as u64;
                spool.all.0.set(all);
            }
            if !self.deaf {
                self.data.extend_from_slice(piece);
            }
        }
        Ok(at)
    }

    /// What is to be done next.
    pub(super) fn next(&mut self) -> Next {
        if self.relaying || self.told || self.spool.is_some() {
            return Next::Nothing;
        }
        if !self.data.is_empty() {
            self.relaying = true;
            return Next::Relay(std::mem::take(&mut self.data));
        }
        if self.is_complete() {
            self.told = true;
            return Next::End;
        }
        Next::Nothing
    }

    /// The piece under way arrived; or, when the program is deaf, will never.
    pub(super) fn relayed(&mut self, deaf: bool) {
        self.relaying = false;
        if deaf {
            self.deaf = true;
            self.told = true;
            self.data = Vec::new();
        }
    }

    /// What drops the part that the client has not said yet, and the memory.
    pub(super) fn into_rest(self) -> (Option<Discard>, Vec<u8>) {
        let budget = self.bytes_max.saturating_sub(self.taken).max(1);
        (self.rest.map(|rest| Discard::invited(rest, budget)), self.data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay(bytes: &[u8]) -> Next {
        Next::Relay(bytes.to_vec())
    }

    /// RFC 3875 section 4.2: never more than CONTENT_LENGTH.
    #[test]
    fn a_body_ends_where_its_length_says() {
        let mut input = Input::new(Framing::Length(5), 100, None);
        assert!(!input.has_begun() && input.wants_more());
        assert_eq!(input.take(b"abc", Vec::new), Ok(3));
        assert!(!input.wants_more(), "a piece waits");
        assert_eq!(input.next(), relay(b"abc"));
        assert!(!input.wants_more(), "a piece is under way");
        assert_eq!(input.next(), Next::Nothing);
        input.relayed(false);
        assert!(input.wants_more());
        assert_eq!(input.take(b"deGET /", Vec::new), Ok(2));
        assert!(input.is_complete() && !input.wants_more());
        assert_eq!(input.next(), relay(b"de"));
        input.relayed(false);
        assert_eq!((input.next(), input.next()), (Next::End, Next::Nothing));
    }

    #[test]
    fn without_a_body_nobody_is_told_of_its_end() {
        for framing in [Framing::None, Framing::Length(0)] {
            let mut input = Input::new(framing, 100, None);
            assert!(input.is_complete() && input.has_begun() && !input.wants_more());
            assert_eq!(input.next(), Next::Nothing);
        }
    }

    /// RFC 9112 section 7.1: transfer codings are removed.
    #[test]
    fn chunks_are_streamed_or_kept() {
        let chunks = b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\nnext";
        let mut streamed = Input::new(Framing::Chunked, 100, None);
        assert_eq!(streamed.take(chunks, Vec::new), Ok(chunks.len() - 4));
        assert_eq!(streamed.next(), relay(b"abcde"));

        let all = Spooled::default();
        let mut kept = Input::new(Framing::Chunked, 100, Some(&all));
        assert_eq!(kept.take(&chunks[..8], Vec::new), Ok(8));
        assert!(kept.wants_more() && kept.is_spooling());
        assert_eq!((kept.next(), all.0.get()), (Next::Nothing, 3));
        assert_eq!(kept.take(&chunks[8..], Vec::new), Ok(chunks.len() - 12));
        assert!(kept.is_complete());
        assert_eq!((kept.spooled(), all.0.get()), (5, 0));
        assert_eq!(kept.next(), relay(b"abcde"));
    }

    #[test]
    fn bodies_too_long_or_malformed_are_not_taken() {
        let check = |framing, spool: bool, bytes: &[u8], expected: NotTaken| {
            let all = Spooled::default();
            let mut input = Input::new(framing, 2 << 20, spool.then_some(&all));
            assert_eq!(input.take(bytes, Vec::new), Err(expected));
            drop(input);
            assert_eq!(all.0.get(), 0, "what was kept is given back");
        };
        let long = |length: usize| {
            let mut bytes = format!("{length:x}\r\n").into_bytes();
            bytes.resize(bytes.len() + length, b'x');
            bytes
        };
        check(Framing::Chunked, false, &long((2 << 20) + 1), NotTaken::TooLong);
        check(Framing::Chunked, true, &long((1 << 20) + 1), NotTaken::LengthRequired);
        check(Framing::Chunked, true, b"zz\r\n", NotTaken::Malformed(Refusal::ChunkSize));
        let all = Spooled::default();
        all.0.set(SPOOLED_BYTES_MAX);
        let mut input = Input::new(Framing::Chunked, 100, Some(&all));
        assert_eq!(input.take(b"1\r\na\r\n", Vec::new), Err(NotTaken::LengthRequired));
    }

    #[test]
    fn a_deaf_program_has_the_rest_dropped() {
        let mut input = Input::new(Framing::Length(9), 100, None);
        assert_eq!(input.take(b"abc", Vec::new), Ok(3));
        assert_eq!(input.next(), relay(b"abc"));
        input.relayed(true);
        assert!(input.wants_more());
        assert_eq!(input.take(b"defghi", Vec::new), Ok(6));
        assert_eq!(input.next(), Next::Nothing);
        assert!(matches!(input.into_rest(), (None, data) if data.is_empty()));
    }
}
