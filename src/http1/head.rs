//! Heads of requests (RFC 9112 sections 2, 3 and 5): bytes in, a [`Request`] or a [`Refusal`] out.
//!
//! Lines are judged one after another, each when its line feed is there, and only what the first bad
//! line says counts. So the verdict on a head does not depend on how it was cut into pieces: more
//! bytes turn [`Parsed::Incomplete`] into something, and never change anything else. It also means that
//! parsing again is of use only when a line feed has come or the limit has been reached.
//!
//! This is no general parser with checks around it, since such parsers accept bare line feeds, any number
//! of empty lines and only two versions, and one would go over the same bytes again to refuse them.
//! `httparse` serves as judge in the tests instead: it must accept, and read alike, whatever is accepted here.

use memchr::{memchr, memchr2};

use super::framing::{self, Framing};
use super::persistence::{self, Persistence};
use super::refusal::Refusal;
use crate::http::fields::{Fields, Known, control_at, is_token, is_token_byte, is_value, trim};
use crate::http::host;
use crate::http::method;
use crate::http::request::{Method, Request, Target, Version};

/// Empty lines tolerated before a request. One comes from old clients that end a body with a spare CRLF
/// (RFC 9112 section 2.2); the rest is kindness to people at a terminal.
const EMPTY_LINES_MAX: usize = 4;

/// Bounds and choices of the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadLimits {
    /// Bytes of a head, from its first to the last of its empty line.
    pub bytes: usize,
    /// Whether LF alone ends a line.
    pub lenient_line_ends: bool,
}

/// What has come so far.
#[derive(Debug)]
// Boxing the head would be the allocation per request that borrowing avoids.
#[allow(clippy::large_enum_variant)]
pub enum Parsed<'a> {
    /// The beginning of a head that may yet be good.
    Incomplete,
    /// A head.
    Complete {
        /// The request.
        request: Request<'a>,
        /// How its body is framed.
        framing: Framing,
        /// What its client wants of the connection afterwards.
        persistence: Persistence,
        /// Bytes of the head; what follows is the body or the next request.
        length: usize,
    },
}

/// Parses the head that begins at the first of `bytes`.
pub fn parse<'a>(bytes: &'a [u8], limits: HeadLimits) -> Result<Parsed<'a>, Refusal> {
    let window = &bytes[..bytes.len().min(limits.bytes)];
    let mut lines = Lines { rest: window, lenient: limits.lenient_line_ends };
    let first = match first_line(&mut lines)? {
        Some(line) => request_line(line)?,
        None if window.len() == limits.bytes => return Err(Refusal::TargetTooLong),
        None => return Ok(Parsed::Incomplete),
    };
    let section = lines.rest;
    let mut fields = Fields::default();
    loop {
        if let Some((known, value, rest)) = plain_field_line(lines.rest) {
            note(known, value, &mut fields)?;
            lines.rest = rest;
            continue;
        }
        let before = lines.rest.len();
        match lines.next()? {
            None if window.len() == limits.bytes => return Err(Refusal::HeadTooLong),
            None => return Ok(Parsed::Incomplete),
            Some([]) => {
                fields.close(&section[..section.len() - before]);
                break;
            }
            Some(line) => field_line(line, &mut fields)?,
        }
    }
    let host = effective_host(&first, &fields)?;
    let framing = framing::of(first.version, &fields)?;
    let persistence = persistence::of(first.version, &fields);
    let request = Request {
        method: first.method,
        method_name: first.method_name,
        version: first.version,
        target_text: first.target_text,
        target: first.target,
        host,
        fields,
    };
    Ok(Parsed::Complete { request, framing, persistence, length: window.len() - lines.rest.len() })
}

/// What has come of the request line, for the log of a request that is refused: at most `bytes_max` bytes,
/// without line end. Whatever they are; the log escapes them.
pub fn request_line_text(bytes: &[u8], bytes_max: usize) -> &[u8] {
    let start = bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(bytes.len());
    let line = &bytes[start..];
    let line = &line[..line.len().min(bytes_max)];
    &line[..line.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(line.len())]
}

/// Cuts off lines.
struct Lines<'a> {
    rest: &'a [u8],
    lenient: bool,
}

impl<'a> Lines<'a> {
    /// The next complete line, without its end.
    #[inline]
    fn next(&mut self) -> Result<Option<&'a [u8]>, Refusal> {
        let Some(end) = memchr(b'\n', self.rest) else {
            return Ok(None);
        };
        let line = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        match line.strip_suffix(b"\r") {
            Some(line) => Ok(Some(line)),
            None if self.lenient => Ok(Some(line)),
            None => Err(Refusal::BareLineFeed),
        }
    }
}

/// The first line that is not empty. A byte that can begin no request is refused at once, so that whoever
/// speaks another protocol, TLS most likely, need not wait for the deadline.
fn first_line<'a>(lines: &mut Lines<'a>) -> Result<Option<&'a [u8]>, Refusal> {
    for _ in 0..=EMPTY_LINES_MAX {
        match lines.rest.first() {
            Some(b'\r' | b'\n') => {}
            Some(&byte) if !is_token_byte(byte) => return Err(Refusal::RequestLine),
            _ => return lines.next(),
        }
        match lines.next()? {
            Some([]) => {}
            Some(_) => return Err(Refusal::BareCarriageReturn),
            None => return Ok(None),
        }
    }
    Err(Refusal::EmptyLines)
}

struct RequestLine<'a> {
    method: Method,
    method_name: &'a [u8],
    target_text: &'a [u8],
    target: Target<'a>,
    /// The host of an absolute target.
    host: Option<&'a [u8]>,
    version: Version,
}

/// method SP request-target SP HTTP-version (RFC 9112 section 3).
fn request_line(line: &[u8]) -> Result<RequestLine<'_>, Refusal> {
    let malformed = || if line.contains(&b'\r') { Refusal::BareCarriageReturn } else { Refusal::RequestLine };
    let (method_name, rest) = split_at_space(line).ok_or_else(malformed)?;
    let (target_text, version) = split_at_space(rest).ok_or_else(malformed)?;
    if !is_token(method_name) || target_text.is_empty() {
        return Err(malformed());
    }
    let version = match version {
        b"HTTP/1.1" => Version::Http11,
        b"HTTP/1.0" => Version::Http10,
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] => Version::Http11,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => return Err(Refusal::Version),
        _ => return Err(malformed()),
    };
    let method = method::of(method_name);
    let (target, host) = target(method, method_name, target_text)?;
    Ok(RequestLine { method, method_name, target_text, target, host, version })
}

fn split_at_space(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = memchr(b' ', text)?;
    Some((&text[..space], &text[space + 1..]))
}

/// The four forms (RFC 9112 section 3.2), and the host of the absolute one.
fn target<'a>(
    method: Method,
    method_name: &[u8],
    text: &'a [u8],
) -> Result<(Target<'a>, Option<&'a [u8]>), Refusal> {
    // Bytes from 0x80 should have been percent-encoded, but stand for nothing else, and clients that
    // are handed such an address send it so. A fragment never belongs in a request.
    if text.iter().fold(false, |bad, &byte| bad | (byte <= b' ') | (byte == 0x7f) | (byte == b'#')) {
        let carriage_return = text.contains(&b'\r');
        return Err(if carriage_return { Refusal::BareCarriageReturn } else { Refusal::TargetBytes });
    }
    if method_name == b"CONNECT" {
        let authority = host::parse(text).filter(|authority| authority.port.is_some());
        let authority = authority.ok_or(Refusal::TargetForm)?;
        return Ok((Target::Authority, Some(authority.name)));
    }
    if text[0] == b'/' {
        return Ok((path_and_query(text), None));
    }
    if text == b"*" {
        return if method == Method::Options {
            Ok((Target::Asterisk, None))
        } else {
            Err(Refusal::TargetForm)
        };
    }
    let rest = without_scheme(text).ok_or(Refusal::TargetForm)?;
    let (authority, rest) = rest.split_at(memchr2(b'/', b'?', rest).unwrap_or(rest.len()));
    let host = host::parse(authority).ok_or(Refusal::HostMalformed)?.name;
    let target = match rest.first() {
        Some(b'/') => path_and_query(rest),
        Some(_) => Target::Path { path: b"/", query: Some(&rest[1..]) },
        None if method == Method::Options => Target::Asterisk,
        None => Target::Path { path: b"/", query: None },
    };
    Ok((target, Some(host)))
}

fn path_and_query(text: &[u8]) -> Target<'_> {
    match memchr(b'?', text) {
        Some(mark) => Target::Path { path: &text[..mark], query: Some(&text[mark + 1..]) },
        None => Target::Path { path: text, query: None },
    }
}

/// Behind `http://` or `https://`. Which of the two is not looked at: a proxy in front may have
/// ended the TLS, and what is served does not depend on it.
fn without_scheme(text: &[u8]) -> Option<&[u8]> {
    [&b"http://"[..], b"https://"].into_iter().find_map(|scheme| {
        let (start, rest) = text.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    })
}

/// Bytes of a name beyond which the faster way is not tried, so that it does not search a whole body for
/// a colon.
const PLAIN_NAME_MAX: usize = 64;

/// What a complete field line says, and the text behind it, if nothing about the line is wrong or unusual;
/// what is not taken here is left to [`field_line`], which says what is wrong. This way a line is gone over
/// once, many bytes at a time, and a known name is also known to be a token.
#[inline]
fn plain_field_line(text: &[u8]) -> Option<(Option<Known>, &[u8], &[u8])> {
    if text.first() == Some(&b'\r') {
        return None;
    }
    let colon = memchr(b':', &text[..text.len().min(PLAIN_NAME_MAX)])?;
    let name = &text[..colon];
    let known = Known::of(name);
    if known.is_none() && !is_token(name) {
        return None;
    }
    let (value, rest) = text[colon + 1..].split_at_checked(control_at(&text[colon + 1..])?)?;
    Some((known, trim(value), rest.strip_prefix(b"\r\n")?))
}

/// field-name ":" OWS field-value OWS (RFC 9112 section 5).
fn field_line<'a>(line: &'a [u8], fields: &mut Fields<'a>) -> Result<(), Refusal> {
    let end = line.iter().position(|&byte| !is_token_byte(byte));
    let (name, value) = match end {
        Some(end) if end > 0 && line[end] == b':' => (&line[..end], trim(&line[end + 1..])),
        _ => return Err(bad_name(line, end)),
    };
    if !is_value(value) {
        return Err(if value.contains(&b'\r') { Refusal::BareCarriageReturn } else { Refusal::FieldValue });
    }
    note(Known::of(name), value, fields)
}

fn note<'a>(known: Option<Known>, value: &'a [u8], fields: &mut Fields<'a>) -> Result<(), Refusal> {
    if fields.note(known, value) { Ok(()) } else { Err(Refusal::TooManyFields) }
}

#[cold]
fn bad_name(line: &[u8], end: Option<usize>) -> Refusal {
    let end = end.unwrap_or(line.len());
    match trim(&line[end..]) {
        _ if matches!(line.first(), Some(b' ' | b'\t')) => Refusal::FoldedLine,
        _ if line.contains(&b'\r') => Refusal::BareCarriageReturn,
        [b':', ..] if end > 0 => Refusal::SpaceBeforeColon,
        _ => Refusal::FieldName,
    }
}

/// The host a request is for (RFC 9112 sections 3.2 and 3.3): that of an absolute target, else that of
/// the `Host` field, which must be in order in any case.
fn effective_host<'a>(line: &RequestLine<'a>, fields: &Fields<'a>) -> Result<&'a [u8], Refusal> {
    let sent = match fields.times(Known::Host) {
        0 if line.version == Version::Http10 => None,
        0 => return Err(Refusal::HostMissing),
        1 => fields.first(Known::Host),
        _ => return Err(Refusal::HostRepeated),
    };
    // An empty field is what a client sends whose target has no host. There is always one in http URIs
    // (RFC 9110 section 4.2.1), so this can only go with the asterisk or a target of its own.
    let sent = match sent {
        None => &b""[..],
        Some(b"") if line.host.is_some() || line.target == Target::Asterisk => b"",
        Some(text) => host::parse(text).ok_or(Refusal::HostMalformed)?.name,
    };
    Ok(line.host.unwrap_or(sent))
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
