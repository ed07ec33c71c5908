//! What a program prints, on its way to the client: its head collected, its document framed anew
//! (RFC 9112 section 7.1) and measured against what it promised.

use super::super::outgoing::Outgoing;

/// Bytes in front of everything a program prints, in the buffer it is read into, for the size of a chunk:
/// eight digits and CRLF. Whoever frames otherwise begins to send behind them.
pub const CHUNK_ROOM: usize = 10;

/// The chunk without bytes, and no trailers.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Where an answer has got to.
#[derive(Debug)]
pub(super) enum Output {
    /// Its head is being collected, behind [`CHUNK_ROOM`].
    Head(Vec<u8>),
    /// The document follows in chunks.
    Chunked,
    /// So many bytes of the document follow.
    Counted(u64),
    /// The document ends with the connection.
    UntilClose,
    /// The client gets no document; what is printed is dropped.
    Dropped,
}

impl Output {
    /// Whether the client has seen nothing yet.
    pub(super) fn is_unsent(&self) -> bool {
        matches!(self, Output::Head(_))
    }

    /// Sends what was printed from `from` on, which is at least [`CHUNK_ROOM`]. Gives back the memory that is
    /// not needed, and how many bytes of the document were sent and how many were too many.
    pub(super) fn pass(&mut self, mut bytes: Vec<u8>, from: usize, out: &mut Outgoing) -> Passed {
        let printed = (bytes.len() - from) as u64;
        let (sent, surplus) = match self {
            Output::Head(_) => unreachable!("the head is collected first"),
            Output::Dropped => (0, 0),
            Output::Chunked | Output::UntilClose => (printed, 0),
            Output::Counted(rest) => {
                let sent = printed.min(*rest);
                *rest -= sent;
                (sent, printed - sent)
            }
        };
        if sent == 0 {
            return Passed { sent, surplus, spare: bytes };
        }
        bytes.truncate(from + sent as usize);
        let from = if matches!(self, Output::Chunked) { frame(&mut bytes, from) } else { from };
        out.stream(bytes, from);
        Passed { sent, surplus, spare: Vec::new() }
    }

    /// Sends what belongs behind the document.
    pub(super) fn end(&self, out: &mut Outgoing) {
        if matches!(self, Output::Chunked) {
            out.stream(LAST_CHUNK.to_vec(), 0);
        }
    }
}

/// What became of printed bytes.
#[derive(Debug)]
pub(super) struct Passed {
    pub(super) sent: u64,
    pub(super) surplus: u64,
    pub(super) spare: Vec<u8>,
}

/// Puts the size before the bytes from `from` on, and the end behind them; where the chunk begins.
fn frame(bytes: &mut Vec<u8>, from: usize) -> usize {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let size = bytes.len() - from;
    let mut at = from - 2;
    bytes[at..from].copy_from_slice(b"\r\n");
    let mut rest = size;
    loop {
        at -= 1;
        bytes[at] = DIGITS[rest & 0xf];
        rest >>= 4;
        if rest == 0 {
            break;
        }
    }
    assert!(at >= from - CHUNK_ROOM, "a buffer holds less than eight digits count");
    bytes.extend_from_slice(b"\r\n");
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(mut output: Output, printed: &[u8]) -> (String, u64, u64) {
        let mut out = Outgoing::default();
        let bytes = [&[0; CHUNK_ROOM], printed].concat();
        let passed = output.pass(bytes, CHUNK_ROOM, &mut out);
        output.end(&mut out);
        (String::from_utf8(out.all()).expect("text"), passed.sent, passed.surplus)
    }

    /// RFC 9112 section 7.1.
    #[test]
    fn documents_are_framed_as_announced() {
        let long = "x".repeat(0x1234);
        let check = |output, printed: &str, expected: &str, sent, surplus| {
            assert_eq!(passed(output, printed.as_bytes()), (expected.to_owned(), sent, surplus));
        };
        check(Output::Chunked, "hello", "5\r\nhello\r\n0\r\n\r\n", 5, 0);
        check(Output::Chunked, "", "0\r\n\r\n", 0, 0);
        check(Output::Chunked, &long, &format!("1234\r\n{long}\r\n0\r\n\r\n"), 0x1234, 0);
        check(Output::UntilClose, "hello", "hello", 5, 0);
        check(Output::Counted(5), "hello", "hello", 5, 0);
        check(Output::Counted(9), "hello", "hello", 5, 0);
        check(Output::Counted(4), "hello", "hell", 4, 1);
        check(Output::Counted(0), "hello", "", 0, 5);
        check(Output::Dropped, "hello", "", 0, 0);
    }
}
