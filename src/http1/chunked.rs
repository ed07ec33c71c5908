//! The chunked transfer coding (RFC 9112 section 7.1), decoded as it comes.
//!
//! ```text
//! Size -> (SizeSpace ->) Extension -> SizeEnd -> Data -> DataReturn -> DataEnd -> Size ...
//!                                        | size 0
//!                                        +-> TrailerStart -> LastEnd -> Done
//!
//! TrailerStart -> TrailerName -> TrailerValue -> TrailerEnd -> TrailerStart ...
//! ```
//!
//! Every line ends with CRLF, whatever the operator chose for heads: programs that disagree on where an
//! extension ends disagree on where a request ends. Extensions and trailers are checked, bounded and
//! forgotten; no recipient has to understand them (sections 7.1.1 and 7.1.2).

use std::ops::Range;

use super::refusal::Refusal;
use crate::http::fields::{FIELDS_MAX, is_token_byte};

/// Digits of a size: what 64 bits hold.
const SIZE_DIGITS_MAX: u8 = 16;

/// Bytes of the extensions of one chunk. Signed uploads, the only known use, take about 90.
const EXTENSION_BYTES_MAX: u32 = 256;

/// Extension bytes a body may have beyond one for each byte of data, so that nobody keeps us busy with
/// bodies that are mostly extensions.
const EXTENSION_SPARE: u64 = 16 * 1024;

/// Bytes of a trailer section.
const TRAILER_BYTES_MAX: u32 = 8 * 1024;

/// What one call made of its input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// So many bytes are done with.
    pub consumed: usize,
    /// Those among them that are data; often none.
    pub data: Range<usize>,
    /// Whether the body is complete. What is not consumed then belongs to the next request.
    pub done: bool,
}

/// Where in a body we are.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
    /// Bytes of the current chunk still to come, or its size as far as it is read.
    remaining: u64,
    /// Digits of the size so far.
    digits: u8,
    /// Bytes of the current chunk's extensions.
    extension: u32,
    /// Extension bytes that are left to this body.
    spare: u64,
    trailer_bytes: u32,
    trailers: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Size,
    SizeSpace,
    Extension,
    SizeEnd,
    Data,
    DataReturn,
    DataEnd,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerEnd,
    LastEnd,
    Done,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder::new()
    }
}

impl Decoder {
    /// At the beginning of a body.
    pub fn new() -> Decoder {
        Decoder {
            state: State::Size,
            remaining: 0,
            digits: 0,
            extension: 0,
            spare: EXTENSION_SPARE,
            trailer_bytes: 0,
            trailers: 0,
        }
    }

    /// Takes from `input` up to the end of the first piece of data, of the body, or of the input.
    /// After a refusal the decoder must not be used again.
    pub fn decode(&mut self, input: &[u8]) -> Result<Step, Refusal> {
        let mut at = 0;
        while self.state != State::Done {
            let Some(&byte) = input.get(at) else {
                break;
            };
            if self.state == State::Data {
                let data = at..at + self.take_data(input.len() - at);
                return Ok(Step { consumed: data.end, data, done: false });
            }
            self.state = self.next(byte)?;
            at += 1;
        }
        Ok(Step { consumed: at, data: at..at, done: self.state == State::Done })
    }

    /// How much of `available` is data.
    fn take_data(&mut self, available: usize) -> usize {
        let taken = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(available);
        self.remaining -= taken as u64;
        self.spare = self.spare.saturating_add(taken as u64);
        if self.remaining == 0 {
            self.state = State::DataReturn;
        }
        taken
    }

    /// The state after a byte that is not data.
    fn next(&mut self, byte: u8) -> Result<State, Refusal> {
        match (self.state, byte) {
            (State::Size | State::SizeSpace | State::Extension, _) => self.size_line(byte),
            (State::SizeEnd, b'\n') => Ok(self.begin_chunk()),
            (State::DataReturn, b'\r') => Ok(State::DataEnd),
            (State::DataEnd, b'\n') => {
                (self.digits, self.extension) = (0, 0);
                Ok(State::Size)
            }
            (State::DataReturn | State::DataEnd, _) => Err(Refusal::ChunkEnd),
            (State::LastEnd, b'\n') => Ok(State::Done),
            (State::TrailerEnd, b'\n') => Ok(State::TrailerStart),
            (State::SizeEnd | State::LastEnd | State::TrailerEnd, _) => Err(Refusal::BareCarriageReturn),
            (State::TrailerStart | State::TrailerName | State::TrailerValue, _) => self.trailer(byte),
            (State::Data | State::Done, _) => unreachable!("not asked about data"),
        }
    }

    /// chunk-size [ chunk-ext ] up to its CR. Whitespace is bad but allowed before an extension; before
    /// CRLF it is junk.
    fn size_line(&mut self, byte: u8) -> Result<State, Refusal> {
        match (self.state, byte) {
            (_, b'\n') => Err(Refusal::BareLineFeed),
            (State::Size, _) if byte.is_ascii_hexdigit() => self.size_digit(byte),
            (State::Size, _) if self.digits == 0 => Err(Refusal::ChunkSize),
            (State::Size | State::Extension, b'\r') => Ok(State::SizeEnd),
            (State::Size | State::SizeSpace, b';') => self.extension_byte(State::Extension),
            (State::Size | State::SizeSpace, b' ' | b'\t') => self.extension_byte(State::SizeSpace),
            (State::Extension, _) if byte == b'\t' || !byte.is_ascii_control() => {
                self.extension_byte(State::Extension)
            }
            (State::Extension, _) => Err(Refusal::ChunkExtension),
            _ => Err(Refusal::ChunkSize),
        }
    }

    fn size_digit(&mut self, byte: u8) -> Result<State, Refusal> {
        if self.digits == SIZE_DIGITS_MAX {
            return Err(Refusal::ChunkSize);
        }
        let digit = char::from(byte).to_digit(16).unwrap_or(0);
        self.remaining = self.remaining << 4 | u64::from(digit);
        self.digits += 1;
        Ok(State::Size)
    }

    fn extension_byte(&mut self, state: State) -> Result<State, Refusal> {
        self.extension += 1;
        self.spare = self.spare.checked_sub(1).ok_or(Refusal::ChunkExtension)?;
        if self.extension > EXTENSION_BYTES_MAX { Err(Refusal::ChunkExtension) } else { Ok(state) }
    }

    fn begin_chunk(&self) -> State {
        if self.remaining == 0 { State::TrailerStart } else { State::Data }
    }

    /// Field lines as in a head, up to the CR of each.
    fn trailer(&mut self, byte: u8) -> Result<State, Refusal> {
        self.trailer_bytes += 1;
        match (self.state, byte) {
            (State::TrailerStart, b'\r') => return Ok(State::LastEnd),
            (_, b'\n') => return Err(Refusal::BareLineFeed),
            _ if self.trailer_bytes > TRAILER_BYTES_MAX => return Err(Refusal::TrailersTooLong),
            _ => {}
        }
        match (self.state, byte) {
            (State::TrailerStart, _) if is_token_byte(byte) => {
                self.trailers += 1;
                if self.trailers > FIELDS_MAX {
                    Err(Refusal::TrailersTooLong)
                } else {
                    Ok(State::TrailerName)
                }
            }
            (State::TrailerName, b':') => Ok(State::TrailerValue),
            (State::TrailerName, _) if is_token_byte(byte) => Ok(State::TrailerName),
            (State::TrailerValue, b'\r') => Ok(State::TrailerEnd),
            (State::TrailerValue, _) if byte == b'\t' || !byte.is_ascii_control() => Ok(State::TrailerValue),
            _ => Err(Refusal::Trailer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The data, and how many bytes the body took where it is complete.
    type Decoded = Result<(Vec<u8>, Option<usize>), Refusal>;

    /// Decodes pieces of the given lengths, in turn.
    fn in_pieces(body: &[u8], lengths: &[usize]) -> Decoded {
        let mut decoder = Decoder::new();
        let (mut data, mut at) = (Vec::new(), 0);
        for length in lengths.iter().cycle() {
            let mut piece = &body[at..body.len().min(at + length)];
            if piece.is_empty() {
                return Ok((data, None));
            }
            while !piece.is_empty() {
                let step = decoder.decode(piece)?;
                assert!(step.data.end <= step.consumed && step.consumed <= piece.len());
                assert!(step.consumed > 0 || step.done);
                data.extend_from_slice(&piece[step.data]);
                at += step.consumed;
                if step.done {
                    return Ok((data, Some(at)));
                }
                piece = &piece[step.consumed..];
            }
        }
        unreachable!("a cycle has no end");
    }

    fn decoded(body: &[u8]) -> Decoded {
        let whole = in_pieces(body, &[body.len().max(1)]);
        assert_eq!(in_pieces(body, &[1]), whole);
        for end in 1..body.len().min(40) {
            assert_eq!(in_pieces(body, &[end, body.len()]), whole);
        }
        whole
    }

    fn accepted(body: &str, data: &str) {
        assert_eq!(decoded(body.as_bytes()), Ok((data.as_bytes().to_vec(), Some(body.len()))), "{body:?}");
        let followed = format!("{body}GET / HTTP/1.1\r\n");
        assert_eq!(
            decoded(followed.as_bytes()),
            Ok((data.as_bytes().to_vec(), Some(body.len()))),
            "{body:?}"
        );
        for end in 0..body.len() {
            assert!(matches!(decoded(&body.as_bytes()[..end]), Ok((_, None))), "{body:?} {end}");
        }
    }

    fn refused(body: &str, refusal: Refusal) {
        assert_eq!(decoded(body.as_bytes()), Err(refusal), "{body:?}");
    }

    /// RFC 9112 section 7.1.
    #[test]
    fn chunks_become_data() {
        accepted("0\r\n\r\n", "");
        accepted("5\r\nhello\r\n0\r\n\r\n", "hello");
        accepted("5\r\nhello\r\n6\r\n world\r\n000\r\n\r\n", "hello world");
        accepted("A\r\n0123456789\r\n0\r\n\r\n", "0123456789");
        accepted("00000000000000a\r\n0123456789\r\n0\r\n\r\n", "0123456789");
        accepted("2\r\n\r\n\r\n0\r\n\r\n", "\r\n");
    }

    /// RFC 9112 section 7.1.
    #[test]
    fn sizes_are_strict() {
        for body in [
            "\r\n", "x\r\n", " 5\r\n", "+5\r\n", "-5\r\n", "0x5\r\n", "5 \r\n", "5 x\r\n", "5,5\r\n",
            ";a\r\n", "5\0\r\n",
        ] {
            refused(body, Refusal::ChunkSize);
        }
        refused("11112222333344445\r\n", Refusal::ChunkSize);
        refused("00000000000000005\r\n", Refusal::ChunkSize);
        assert_eq!(decoded(b"ffffffffffffffff\r\na"), Ok((b"a".to_vec(), None)));
        refused("5\nhello\r\n", Refusal::BareLineFeed);
        refused("\n", Refusal::BareLineFeed);
        refused("5\rhello\r\n", Refusal::BareCarriageReturn);
        refused("5\r\r\nhello\r\n", Refusal::BareCarriageReturn);
        refused("5\r\nhello!\r\n", Refusal::ChunkEnd);
        refused("5\r\nhello\n0\r\n\r\n", Refusal::ChunkEnd);
        refused("5\r\nhello\r0\r\n\r\n", Refusal::ChunkEnd);
        refused("5\r\nhello0\r\n\r\n", Refusal::ChunkEnd);
    }

    /// RFC 9112 section 7.1.1.
    #[test]
    fn extensions_are_skipped_within_bounds() {
        accepted("5;a\r\nhello\r\n0;b=\"c;d\"\r\n\r\n", "hello");
        accepted("5 ; a = b\r\nhello\r\n0\r\n\r\n", "hello");
        refused("5;a\nb\r\n", Refusal::BareLineFeed);
        refused("5;a\rb\r\n", Refusal::BareCarriageReturn);
        refused("5;a\0\r\n", Refusal::ChunkExtension);
        refused("5;\"\u{1b}\"\r\n", Refusal::ChunkExtension);
        accepted(&format!("5;{}\r\nhello\r\n0\r\n\r\n", "a".repeat(255)), "hello");
        refused(&format!("5;{}\r\n", "a".repeat(256)), Refusal::ChunkExtension);
        refused(&format!("5{}\r\n", " ".repeat(257)), Refusal::ChunkExtension);
        let many = |size: usize, chunks: usize| {
            let chunk = format!("{size:x};{}\r\n{}\r\n", "a".repeat(99), "d".repeat(size));
            in_pieces(chunk.repeat(chunks).as_bytes(), &[usize::MAX >> 1]).map(|(data, _)| data.len())
        };
        assert_eq!(many(100, 1000), Ok(100_000));
        assert_eq!(many(1, 160), Ok(160));
        assert_eq!(many(1, 170), Err(Refusal::ChunkExtension));
    }

    /// RFC 9112 section 7.1.2.
    #[test]
    fn trailers_are_checked_and_dropped() {
        accepted("0\r\nA: b\r\n\r\n", "");
        accepted("1\r\nx\r\n0\r\nA:b\r\nContent-Length: 5\r\nC:\t\u{e9}\r\n\r\n", "x");
        for bad in [
            "0\r\nA\r\n",
            "0\r\n: b\r\n",
            "0\r\nA : b\r\n",
            "0\r\n A: b\r\n",
            "0\r\nA: b\r\n c\r\n",
            "0\r\nA: \0",
        ] {
            refused(bad, Refusal::Trailer);
        }
        refused("0\r\n\n", Refusal::BareLineFeed);
        refused("0\r\nA: b\n\r\n", Refusal::BareLineFeed);
        refused("0\r\nA: b\rc\r\n", Refusal::BareCarriageReturn);
        refused("0\r\n\r\r\n", Refusal::BareCarriageReturn);
        refused("0\r\n\rA: b\r\n", Refusal::BareCarriageReturn);
        accepted(&format!("0\r\n{}\r\n", "a:b\r\n".repeat(FIELDS_MAX)), "");
        let lengths = [usize::MAX >> 1];
        let many = format!("0\r\n{}", "a:b\r\n".repeat(FIELDS_MAX + 1));
        assert_eq!(in_pieces(many.as_bytes(), &lengths), Err(Refusal::TrailersTooLong));
        let long = format!("0\r\nA: {}", "a".repeat(8192));
        assert_eq!(in_pieces(long.as_bytes(), &lengths), Err(Refusal::TrailersTooLong));
    }

    proptest! {
        #[test]
        fn cutting_never_changes_the_data(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 0..5),
            junk in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
            lengths in prop::collection::vec(1usize..9, 1..9),
        ) {
            let mut body = Vec::new();
            for chunk in &chunks {
                body.extend_from_slice(format!("{:x};e\r\n", chunk.len()).as_bytes());
                body.extend_from_slice(chunk);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(b"0\r\nT: u\r\n\r\n");
            if let Some((index, byte)) = junk {
                let at = index.index(body.len());
                body[at] = byte;
            } else {
                prop_assert_eq!(in_pieces(&body, &[body.len()]), Ok((chunks.concat(), Some(body.len()))));
            }
            prop_assert_eq!(in_pieces(&body, &lengths), in_pieces(&body, &[body.len()]));
        }
    }
}
