//! How a program's answer begins (RFC 3875 section 6): fields, an empty line, then the document.
//!
//! ```text
//! document                Content-Type, perhaps Status
//! local redirect          Location: /path?query      nothing else: answered as if that had been asked for
//! client redirect         Location: https://...      302 unless Status says otherwise
//! client redirect with a document                    the same, and Content-Type
//! ```
//!
//! Programs are not peers: what they get wrong is told to the operator, and the client sees a 502. Lines
//! end with LF or CRLF (section 6.3, "NL"), since most programs print for their own system.

use memchr::memchr;

use crate::http::fields::{is_token, is_value, trim};
use crate::http::status;

/// Bytes of a head. Rather more than the 8 KiB to 32 KiB that servers take of each other, since cookies
/// and policies are set by programs.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;

/// A complete head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// Bytes of it, with its empty line; what follows is the document.
    pub length: usize,
    /// What it says.
    pub answer: Answer,
}

/// What a program answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// A response (sections 6.2.1, 6.2.3 and 6.2.4).
    Response {
        /// The status: that of the program, or 302 with a location, or 200.
        status: u16,
        /// How long the document is, if the program says.
        content_length: Option<u64>,
        /// Field lines for the client, each ended by CRLF, in the order of the program.
        fields: Vec<u8>,
    },
    /// As if the client had asked for this path and query (section 6.2.2).
    LocalRedirect(Vec<u8>),
    /// A response that the program frames itself (section 5): everything from the first byte on is for the
    /// client, and the connection ends after it.
    Unparsed {
        /// Its status, for the log.
        status: u16,
    },
}

/// What is wrong with an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bad {
    /// There is none.
    Nothing,
    /// It ended before the empty line.
    Unfinished,
    /// The empty line did not come within [`HEAD_BYTES_MAX`].
    TooLong,
    /// It begins with a status line, as only programs named `nph-` may.
    StatusLine,
    /// A program named `nph-` does not begin with a status line.
    NoStatusLine,
    /// A line is not "name: value".
    Line,
    /// A value holds a control character.
    Value,
    /// None of Content-Type, Location and Status is there.
    NoRequiredField,
    /// One of them, or Content-Length, is there twice.
    Repeated,
    /// Status is not a final status.
    Status,
    /// Content-Length is not a number.
    ContentLength,
    /// Location is empty.
    Location,
    /// The program used a transfer coding, which is not its business.
    TransferCoding,
}

impl Bad {
    /// For the log.
    pub const fn explanation(self) -> &'static str {
        match self {
            Bad::Nothing => "it printed nothing",
            Bad::Unfinished => "it ended before the empty line that ends the head",
            Bad::TooLong => "its head is longer than 64 KiB",
            Bad::StatusLine => "it begins with a status line; only scripts named nph-... may do that",
            Bad::NoStatusLine => "it is named nph-... and does not begin with a status line",
            Bad::Line => "a line of its head is not \"Name: value\"",
            Bad::Value => "a field of its head holds a control character",
            Bad::NoRequiredField => "its head has none of Content-Type, Location and Status",
            Bad::Repeated => "a field of its head that may be there once is there twice",
            Bad::Status => "its Status is not a number from 200 to 599",
            Bad::ContentLength => "its Content-Length is not a number",
            Bad::Location => "its Location is empty",
            Bad::TransferCoding => "it says Transfer-Encoding, which is the server's business",
        }
    }
}

/// Reads the head at the start of what a program printed; `None` while its end has not come. `ended`: no
/// more will come. `unparsed`: the program's name says that it frames its answer itself.
pub fn parse(printed: &[u8], ended: bool, unparsed: bool) -> Result<Option<Head>, Bad> {
    const PROTOCOL: &[u8] = b"HTTP/";
    let begins = printed.len() >= PROTOCOL.len() && printed.starts_with(PROTOCOL);
    if unparsed && (begins || !PROTOCOL.starts_with(&printed[..printed.len().min(PROTOCOL.len())])) {
        return status_line(printed, ended);
    }
    if begins {
        return Err(Bad::StatusLine);
    }
    let mut fields = Collected::default();
    let mut rest = &printed[..printed.len().min(HEAD_BYTES_MAX)];
    loop {
        let Some(end) = memchr(b'\n', rest) else {
            return match ended {
                _ if printed.len() >= HEAD_BYTES_MAX => Err(Bad::TooLong),
                true if printed.is_empty() => Err(Bad::Nothing),
                true => Err(Bad::Unfinished),
                false => Ok(None),
            };
        };
        let line = &rest[..end];
        rest = &rest[end + 1..];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            let consumed = printed.len().min(HEAD_BYTES_MAX) - rest.len();
            return Ok(Some(Head { length: consumed, answer: fields.answer()? }));
        }
        fields.line(line)?;
    }
}

/// HTTP-Version SP status-code, of a program that writes the whole response.
fn status_line(printed: &[u8], ended: bool) -> Result<Option<Head>, Bad> {
    let line = match memchr(b'\n', printed) {
        Some(end) => &printed[..end],
        None if ended && printed.is_empty() => return Err(Bad::Nothing),
        None if ended || printed.len() >= HEAD_BYTES_MAX => return Err(Bad::NoStatusLine),
        None => return Ok(None),
    };
    let status = match line {
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0' | b'1', b' ', code @ ..] => status(code),
        _ => None,
    };
    let status = status.ok_or(Bad::NoStatusLine)?;
    Ok(Some(Head { length: 0, answer: Answer::Unparsed { status } }))
}

/// Fields as they are read.
#[derive(Default)]
struct Collected<'a> {
    status: Option<u16>,
    location: Option<&'a [u8]>,
    content_type: bool,
    content_length: Option<u64>,
    /// Whether there is anything for the client beside Location and Content-Type.
    others: bool,
    fields: Vec<u8>,
}

/// Fields of the connection (RFC 9110 section 7.6.1) and those the server writes itself.
const NOT_PASSED: [&str; 8] =
    ["Connection", "Keep-Alive", "Proxy-Connection", "TE", "Trailer", "Upgrade", "Date", "Server"];

impl<'a> Collected<'a> {
    fn line(&mut self, line: &'a [u8]) -> Result<(), Bad> {
        let colon = memchr(b':', line).ok_or(Bad::Line)?;
        let (name, value) = (&line[..colon], trim(&line[colon + 1..]));
        if !is_token(name) {
            return Err(Bad::Line);
        }
        if !is_value(value) {
            return Err(Bad::Value);
        }
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        if is("Status") {
            return once(&mut self.status, status(value).ok_or(Bad::Status)?);
        }
        if is("Content-Length") {
            let length = std::str::from_utf8(value).ok().filter(|text| !text.starts_with('+'));
            let length = length.and_then(|text| text.parse().ok()).ok_or(Bad::ContentLength)?;
            return once(&mut self.content_length, length);
        }
        if is("Transfer-Encoding") {
            return Err(Bad::TransferCoding);
        }
        let for_server = name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case(b"X-CGI-"));
        if for_server || NOT_PASSED.iter().any(|other| is(other)) {
            return Ok(());
        }
        if is("Location") {
            if value.is_empty() {
                return Err(Bad::Location);
            }
            once(&mut self.location, value)?;
        } else if is("Content-Type") {
            if std::mem::replace(&mut self.content_type, true) {
                return Err(Bad::Repeated);
            }
        } else {
            self.others = true;
        }
        for part in [name, b": ", value, b"\r\n"] {
            self.fields.extend_from_slice(part);
        }
        Ok(())
    }

    fn answer(self) -> Result<Answer, Bad> {
        if self.status.is_none() && self.location.is_none() && !self.content_type {
            return Err(Bad::NoRequiredField);
        }
        // With a status, or with fields for the client, a path is meant for the client as well: the
        // section forbids both in a local redirect, and a cookie would be lost.
        if let Some(location) = self.location
            && self.status.is_none()
            && !self.others
            && location.starts_with(b"/")
            && !location.starts_with(b"//")
        {
            return Ok(Answer::LocalRedirect(location.to_vec()));
        }
        let usual = if self.location.is_some() { 302 } else { 200 };
        let status = self.status.unwrap_or(usual);
        Ok(Answer::Response { status, content_length: self.content_length, fields: self.fields })
    }
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), Bad> {
    if place.replace(value).is_some() { Err(Bad::Repeated) } else { Ok(()) }
}

/// Three digits, then nothing or a phrase, which is not passed on.
fn status(text: &[u8]) -> Option<u16> {
    let (digits, phrase) = text.split_at_checked(3)?;
    if !phrase.is_empty() && !phrase.starts_with(b" ") && !phrase.starts_with(b"\r") {
        return None;
    }
    let digits = digits.iter().all(u8::is_ascii_digit).then_some(digits)?;
    let status = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (200..600).contains(&status).then_some(status)
}

/// Whether a response to this has no content, whatever the program printed.
pub fn drops_content(is_head: bool, status: u16) -> bool {
    is_head || status::has_no_content(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(printed: &str) -> (u16, Option<u64>, String, String) {
        match parse(printed.as_bytes(), true, false) {
            Ok(Some(Head { length, answer: Answer::Response { status, content_length, fields } })) => {
                let fields = String::from_utf8(fields).expect("text");
                (status, content_length, fields, printed[length..].to_owned())
            }
            other => panic!("{printed:?}: {other:?}"),
        }
    }

    fn check(printed: &str, status: u16, fields: &str, document: &str) {
        let found = response(printed);
        assert_eq!((found.0, &*found.2, &*found.3), (status, fields, document), "{printed:?}");
    }

    /// RFC 3875 section 6.2.1.
    #[test]
    fn documents_have_a_type_and_perhaps_a_status() {
        check("Content-Type: text/plain\n\nhi", 200, "Content-Type: text/plain\r\n", "hi");
        check("Content-Type: text/plain\r\n\r\nhi", 200, "Content-Type: text/plain\r\n", "hi");
        check("content-type:text/plain\n\r\n\n", 200, "content-type: text/plain\r\n", "\n");
        check("Status: 404 Not Found\nContent-Type: a/b\n\n", 404, "Content-Type: a/b\r\n", "");
        check("STATUS: 404\ncontent-TYPE: a/b\n\n", 404, "content-TYPE: a/b\r\n", "");
        check("status:599\n\n", 599, "", "");
        check("Content-Type: a/b\nX:\n\n", 200, "Content-Type: a/b\r\nX: \r\n", "");
    }

    /// RFC 3875 sections 6.2.3 and 6.2.4.
    #[test]
    fn client_redirects_are_302_unless_a_status_says_otherwise() {
        check("Location: https://a/b\n\n", 302, "Location: https://a/b\r\n", "");
        check("Location: //a/b\n\n", 302, "Location: //a/b\r\n", "");
        check(
            "Status: 302 Found\nLocation: http://a/\nContent-Type: t/p\n\ngo",
            302,
            "Location: http://a/\r\nContent-Type: t/p\r\n",
            "go",
        );
        check("Status: 303\nLocation: /next\n\n", 303, "Location: /next\r\n", "");
        check("Status: 201\nLocation: /new\n\n", 201, "Location: /new\r\n", "");
        check("Location: /in\nSet-Cookie: a=b\n\n", 302, "Location: /in\r\nSet-Cookie: a=b\r\n", "");
    }

    /// RFC 3875 section 6.2.2.
    #[test]
    fn a_path_alone_is_a_local_redirect() {
        for printed in [
            "Location: /a/b?c=d\n\n",
            "location:/a/b?c=d\r\n\r\n",
            "Location: /a/b?c=d\nContent-Type: x/y\n\n",
        ] {
            let found = parse(printed.as_bytes(), true, false);
            let Ok(Some(Head { answer: Answer::LocalRedirect(location), .. })) = found else {
                panic!("{printed:?}: {found:?}")
            };
            assert_eq!(location, b"/a/b?c=d");
        }
    }

    /// RFC 3875 sections 6.3.4 and 6.3.5, RFC 9110 section 7.6.1.
    #[test]
    fn fields_are_passed_on_but_for_those_of_the_connection_and_the_server() {
        check(
            "Content-Type: a/b\nSet-Cookie: a=1\nSet-Cookie: b=2\nETag: \"x\"\n\n",
            200,
            "Content-Type: a/b\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nETag: \"x\"\r\n",
            "",
        );
        check(
            "Content-Type: a/b\nConnection: close\nKeep-Alive: x\nx-cgi-note: y\nDate: z\nServer: q\n\n",
            200,
            "Content-Type: a/b\r\n",
            "",
        );
        assert_eq!(response("Content-Length: 12\nContent-Type: a/b\n\n").1, Some(12));
        assert_eq!(response("Content-Type: a/b\n\n").1, None);
    }

    #[test]
    fn bad_heads_have_their_reason() {
        for (printed, expected) in [
            ("", Bad::Nothing),
            ("Content-Type: a/b", Bad::Unfinished),
            ("Content-Type: a/b\n", Bad::Unfinished),
            ("hello\n\n", Bad::Line),
            ("Content-Type: a/b\n folded: c\n\n", Bad::Line),
            ("Content Type: a/b\n\n", Bad::Line),
            (": a/b\n\n", Bad::Line),
            ("Content-Type: a\0b\n\n", Bad::Value),
            ("Content-Type: a\rX: b\n\n", Bad::Value),
            ("\n", Bad::NoRequiredField),
            ("X-Only: this\n\n", Bad::NoRequiredField),
            ("Content-Length: 1\n\n", Bad::NoRequiredField),
            ("Content-Type: a/b\nContent-Type: c/d\n\n", Bad::Repeated),
            ("Status: 200\nStatus: 404\n\n", Bad::Repeated),
            ("Location: /a\nLocation: /b\n\n", Bad::Repeated),
            ("Content-Length: 1\nContent-Length: 1\n\n", Bad::Repeated),
            ("Status: OK\n\n", Bad::Status),
            ("Status: 2000\n\n", Bad::Status),
            ("Status: 101 Switching Protocols\n\n", Bad::Status),
            ("Status: 100\n\n", Bad::Status),
            ("Status: 600\n\n", Bad::Status),
            ("Content-Length: -1\n\n", Bad::ContentLength),
            ("Content-Length: +1\n\n", Bad::ContentLength),
            ("Content-Length: \n\n", Bad::ContentLength),
            ("Location:\n\n", Bad::Location),
            ("Content-Type: a/b\nTransfer-Encoding: chunked\n\n", Bad::TransferCoding),
            ("HTTP/1.1 200 OK\nContent-Type: a/b\n\n", Bad::StatusLine),
        ] {
            assert_eq!(parse(printed.as_bytes(), true, false), Err(expected), "{printed:?}");
        }
    }

    #[test]
    fn a_head_in_pieces_is_waited_for_within_its_bound() {
        let printed = b"Status: 404\r\nContent-Type: a/b\r\n\r\nbody";
        for length in 0..printed.len() {
            let found = parse(&printed[..length], false, false).expect("a good start");
            assert_eq!(found.is_some(), length >= printed.len() - 4, "{length}");
        }
        let mut long = b"X: ".to_vec();
        long.resize(HEAD_BYTES_MAX - 1, b'a');
        assert_eq!(parse(&long, false, false), Ok(None));
        long.push(b'a');
        assert_eq!(parse(&long, false, false), Err(Bad::TooLong));
        long.extend_from_slice(b"\n\n");
        assert_eq!(parse(&long, true, false), Err(Bad::TooLong));
    }

    /// RFC 3875 section 5.
    #[test]
    fn unparsed_answers_begin_with_a_status_line() {
        let check = |printed: &str, ended, expected| {
            let found = parse(printed.as_bytes(), ended, true);
            let found = found.map(|head| head.map(|head| (head.length, head.answer)));
            assert_eq!(found, expected, "{printed:?}");
        };
        check("HTTP/1.1 203 Fine\r\nX: y\r\n\r\n", false, Ok(Some((0, Answer::Unparsed { status: 203 }))));
        check("HTTP/1.0 200\n", false, Ok(Some((0, Answer::Unparsed { status: 200 }))));
        check("HTTP/1.0 200", false, Ok(None));
        check("HTT", false, Ok(None));
        check("", false, Ok(None));
        check("", true, Err(Bad::Nothing));
        check("HTTP/1.0 200", true, Err(Bad::NoStatusLine));
        check("HTTP/2 200\r\n", false, Err(Bad::NoStatusLine));
        check("Content-Type: a/b\n\n", false, Err(Bad::NoStatusLine));
    }
}
