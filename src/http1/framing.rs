//! How long a request's body is (RFC 9112 section 6). Every rule against request smuggling that
//! concerns bodies is here and nowhere else.
//!
//! The RFC lets a server repair some of these requests, such as equal repeated lengths. None is
//! repaired: what two programs might read differently has no honest sender.

use super::refusal::Refusal;
use crate::http::fields::{Fields, Known};
use crate::http::request::Version;

/// How the end of a request's body is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// There is no body.
    None,
    /// So many bytes follow.
    Length(u64),
    /// Chunks follow.
    Chunked,
}

/// The framing of a request with these fields.
pub fn of(version: Version, fields: &Fields) -> Result<Framing, Refusal> {
    let lengths = fields.times(Known::ContentLength);
    let codings = fields.times(Known::TransferEncoding);
    if lengths == 0 && codings == 0 {
        return Ok(Framing::None);
    }
    if codings > 0 {
        return coding(version, fields, lengths);
    }
    match fields.only(Known::ContentLength) {
        Some(value) => length(value).map(Framing::Length),
        None => Err(Refusal::ContentLengthRepeated),
    }
}

fn coding(version: Version, fields: &Fields, lengths: usize) -> Result<Framing, Refusal> {
    if version == Version::Http10 {
        return Err(Refusal::CodingOnHttp10);
    }
    if lengths > 0 {
        return Err(Refusal::LengthAndCoding);
    }
    // A list of one with empty elements about it would be chunked to some parsers and not to others.
    match fields.only(Known::TransferEncoding) {
        Some(value) if value.eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
        _ => Err(Refusal::TransferCoding),
    }
}

/// 1*DIGIT, and nothing else: no sign, no list, no inner whitespace, no more than 64 bits.
fn length(value: &[u8]) -> Result<u64, Refusal> {
    if value.is_empty() {
        return Err(Refusal::ContentLength);
    }
    value
        .iter()
        .try_fold(0u64, |length, &digit| {
            let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
            length.checked_mul(10)?.checked_add(digit)
        })
        .ok_or(Refusal::ContentLength)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(version: Version, section: &str, expected: Result<Framing, Refusal>) {
        let lines: String = section.lines().map(|line| format!("{line}\r\n")).collect();
        let fields = Fields::of_section(lines.as_bytes()).expect("a field section");
        assert_eq!(of(version, &fields), expected, "{section:?}");
    }

    fn check11(section: &str, expected: Result<Framing, Refusal>) {
        check(Version::Http11, section, expected);
    }

    /// RFC 9112 section 6.2, RFC 9110 section 8.6.
    #[test]
    fn lengths_are_one_number() {
        use Refusal::{ContentLength, ContentLengthRepeated};
        check11("Host: a", Ok(Framing::None));
        check11("Content-Length: 0", Ok(Framing::Length(0)));
        check11("content-length:  42 ", Ok(Framing::Length(42)));
        check11("Content-Length: 0042", Ok(Framing::Length(42)));
        check11("Content-Length: 18446744073709551615", Ok(Framing::Length(u64::MAX)));
        check(Version::Http10, "Content-Length: 1", Ok(Framing::Length(1)));
        for bad in [
            "",
            "+1",
            "-1",
            "1 2",
            "1,1",
            "1, 1",
            "1,",
            "0x10",
            "1.0",
            "1e3",
            "18446744073709551616",
            "\u{661}",
            "99999999999999999999999999",
            "1_000",
            "ten",
        ] {
            check11(&format!("Content-Length: {bad}"), Err(ContentLength));
        }
        check11("Content-Length: 1\nContent-Length: 1", Err(ContentLengthRepeated));
        check11("Content-Length: 1\nContent-Length: 2", Err(ContentLengthRepeated));
    }

    /// RFC 9112 sections 6.1 and 6.3.
    #[test]
    fn the_only_coding_is_chunked_once() {
        use Refusal::{CodingOnHttp10, LengthAndCoding, TransferCoding};
        check11("Transfer-Encoding: chunked", Ok(Framing::Chunked));
        check11("transfer-encoding: \tChUnKeD ", Ok(Framing::Chunked));
        for other in [
            "",
            "identity",
            "gzip",
            "gzip, chunked",
            "chunked, gzip",
            "chunked, chunked",
            "chunked,",
            ",chunked",
            "chunked;q=1",
            "\"chunked\"",
            "xchunked",
            "chunked x",
            "chun ked",
        ] {
            check11(&format!("Transfer-Encoding: {other}"), Err(TransferCoding));
        }
        check11("Transfer-Encoding: chunked\nTransfer-Encoding: chunked", Err(TransferCoding));
        check11("Transfer-Encoding: gzip\nTransfer-Encoding: chunked", Err(TransferCoding));
        check11("Transfer-Encoding: chunked\nContent-Length: 3", Err(LengthAndCoding));
        check11("Content-Length: 3\nTransfer-Encoding: identity", Err(LengthAndCoding));
        check11("Content-Length: x\nTransfer-Encoding: chunked", Err(LengthAndCoding));
        check(Version::Http10, "Transfer-Encoding: chunked", Err(CodingOnHttp10));
        check(Version::Http10, "Transfer-Encoding: chunked\nContent-Length: 3", Err(CodingOnHttp10));
    }
}
