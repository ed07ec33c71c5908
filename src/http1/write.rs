//! Heads of responses as HTTP/1 writes them (RFC 9112 sections 2.1 and 4).
//!
//! Nearly everything is ready before a request comes: status lines when compiling, `Date` and `Server`
//! once a second, the fields of an entry when it is cached. A head is those pieces one behind another.

use super::persistence::Persistence;
use crate::http::request::Version;
use crate::http::status::with_statuses;

/// What `Connection` says in a response (RFC 9112 section 9.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionField {
    /// Nothing: the version's default holds.
    None,
    /// That this is the last response.
    Close,
    /// That an HTTP/1.0 connection goes on.
    KeepAlive,
}

impl ConnectionField {
    /// What must be said so that a client of this version expects `persistence`.
    pub fn telling(version: Version, persistence: Persistence) -> ConnectionField {
        match (persistence, version) {
            (Persistence::Close, _) => ConnectionField::Close,
            (Persistence::Persist, Version::Http11) => ConnectionField::None,
            (Persistence::Persist, Version::Http10) => ConnectionField::KeepAlive,
        }
    }

    fn line(self) -> &'static [u8] {
        match self {
            ConnectionField::None => b"",
            ConnectionField::Close => b"Connection: close\r\n",
            ConnectionField::KeepAlive => b"Connection: keep-alive\r\n",
        }
    }
}

/// Appends a head. Each of `fields` holds complete field lines, each ended by CRLF; nothing that
/// depends on the connection is among them.
pub fn head(out: &mut Vec<u8>, status: u16, fields: [&[u8]; 4], connection: ConnectionField) {
    let made;
    let status_line = match status_line(status) {
        Some(line) => line,
        None => {
            made = unregistered(status);
            &made
        }
    };
    debug_assert!(fields.iter().all(|lines| lines.is_empty() || lines.ends_with(b"\r\n")));
    let [first, second, third, fourth] = fields;
    let pieces = [status_line, first, second, third, fourth, connection.line(), b"\r\n"];
    out.reserve(pieces.iter().map(|piece| piece.len()).sum());
    for piece in pieces {
        out.extend_from_slice(piece);
    }
}

/// The interim response that invites a body (RFC 9110 section 15.2.1).
pub fn interim_continue() -> &'static [u8] {
    b"HTTP/1.1 100 Continue\r\n\r\n"
}

macro_rules! status_lines {
    ($($status:literal $reason:literal,)*) => {
        /// The status line of a registered status, with its CRLF.
        pub const fn status_line(status: u16) -> Option<&'static [u8]> {
            match status {
                $($status => Some(concat!("HTTP/1.1 ", $status, " ", $reason, "\r\n").as_bytes()),)*
                _ => None,
            }
        }
    };
}
with_statuses!(status_lines);

/// The status line of a status nobody registered, as a gateway may pass on: without a phrase, but with
/// the space before it (RFC 9112 section 4).
fn unregistered(status: u16) -> [u8; 15] {
    assert!((100..1000).contains(&status), "a status has three digits: {status}");
    let mut line = *b"HTTP/1.1 000 \r\n";
    for (digit, divisor) in [(9, 100), (10, 10), (11, 1)] {
        line[digit] = b'0' + (status / divisor % 10) as u8;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9112 sections 2.1 and 4.
    #[test]
    fn heads_are_the_pieces_in_order() {
        let mut out = b"before".to_vec();
        head(&mut out, 200, [b"Date: d\r\n", b"ETag: e\r\n", b"", b""], ConnectionField::None);
        assert_eq!(out, b"beforeHTTP/1.1 200 OK\r\nDate: d\r\nETag: e\r\n\r\n");
        out.clear();
        head(&mut out, 404, [b"Date: d\r\n", b"", b"A: b\r\n", b""], ConnectionField::Close);
        assert_eq!(out, b"HTTP/1.1 404 Not Found\r\nDate: d\r\nA: b\r\nConnection: close\r\n\r\n");
        out.clear();
        head(&mut out, 799, [b""; 4], ConnectionField::KeepAlive);
        assert_eq!(out, b"HTTP/1.1 799 \r\nConnection: keep-alive\r\n\r\n");
    }

    #[test]
    fn every_head_parses() {
        for status in 100..1000 {
            let mut out = Vec::new();
            head(&mut out, status, [b"Date: d\r\n", b"A: b\r\n", b"C: d\r\n", b""], ConnectionField::Close);
            let mut fields = [httparse::EMPTY_HEADER; 8];
            let mut response = httparse::Response::new(&mut fields);
            assert_eq!(response.parse(&out), Ok(httparse::Status::Complete(out.len())), "{status}");
            assert_eq!(response.code, Some(status));
            assert_eq!(response.reason, Some(crate::http::status::reason(status)));
            assert_eq!(response.headers.len(), 4);
        }
    }

    /// RFC 9112 section 9.3.
    #[test]
    fn only_what_differs_from_the_default_is_told() {
        use Persistence::{Close, Persist};
        for (version, persistence, expected) in [
            (Version::Http11, Persist, ConnectionField::None),
            (Version::Http11, Close, ConnectionField::Close),
            (Version::Http10, Persist, ConnectionField::KeepAlive),
            (Version::Http10, Close, ConnectionField::Close),
        ] {
            assert_eq!(ConnectionField::telling(version, persistence), expected);
        }
    }
}
