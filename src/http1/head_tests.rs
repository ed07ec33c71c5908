//! Tables for every rule of the head parser, each head also cut at every byte, and properties with
//! `httparse` as judge.

use super::*;
use crate::http::expect::{self, Expectation};
use proptest::prelude::*;

const LIMITS: HeadLimits = HeadLimits { bytes: 16384, lenient_line_ends: false };
const LENIENT: HeadLimits = HeadLimits { bytes: 16384, lenient_line_ends: true };

/// What a test looks at.
#[derive(PartialEq, Debug)]
struct Seen<'a> {
    target: Target<'a>,
    host: &'a [u8],
    framing: Framing,
    persistence: Persistence,
    length: usize,
}

fn whole(bytes: &[u8], limits: HeadLimits) -> Result<Option<Seen<'_>>, Refusal> {
    Ok(match parse(bytes, limits)? {
        Parsed::Incomplete => None,
        Parsed::Complete { request, framing, persistence, length } => {
            Some(Seen { target: request.target, host: request.host, framing, persistence, length })
        }
    })
}

/// The verdict on the whole, having seen that every prefix waits or says the same.
fn verdict(bytes: &[u8], limits: HeadLimits) -> Result<Option<Seen<'_>>, Refusal> {
    let verdict = whole(bytes, limits);
    for end in 0..bytes.len() {
        let early = whole(&bytes[..end], limits);
        let complete = matches!(&verdict, Ok(Some(seen)) if seen.length <= end);
        assert!(
            if complete { early == verdict } else { early == Ok(None) || early == verdict },
            "{:?}: {early:?} of {end} bytes, {verdict:?} of all",
            bytes.escape_ascii().to_string()
        );
    }
    verdict
}

fn refused(head: &str, expected: Refusal) {
    assert_eq!(verdict(head.as_bytes(), LIMITS), Err(expected), "{head:?}");
}

/// A request line before a good head.
fn refused_line(line: &str, expected: Refusal) {
    refused(&format!("{line}\r\nHost: a\r\n\r\n"), expected);
}

/// A field line within a good head.
fn refused_field(line: &str, expected: Refusal) {
    refused(&format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\nX: y\r\n\r\n"), expected);
}

fn accepted(head: &str) -> Seen<'_> {
    match verdict(head.as_bytes(), LIMITS) {
        Ok(Some(seen)) => {
            assert_eq!(seen.length, head.len(), "{head:?}");
            seen
        }
        other => panic!("{head:?}: {other:?}"),
    }
}

fn path<'a>(path: &'a str, query: Option<&'a str>) -> Target<'a> {
    Target::Path { path: path.as_bytes(), query: query.map(str::as_bytes) }
}

#[test]
fn a_request_is_read_whole() {
    let head = b"GET /a/b?c=d?e HTTP/1.1\r\nHost: Example.org:8080\r\nUser-Agent:x\r\nX-Empty:\r\n\r\nrest";
    let Ok(Parsed::Complete { request, framing, persistence, length }) = parse(head, LIMITS) else {
        panic!("refused");
    };
    assert_eq!(request.method, Method::Get);
    assert_eq!(request.method_name, b"GET");
    assert_eq!(request.version, Version::Http11);
    assert_eq!(request.target_text, b"/a/b?c=d?e");
    assert_eq!(request.target, path("/a/b", Some("c=d?e")));
    assert_eq!(request.host, b"Example.org");
    let fields: Vec<_> = request.fields.iter().collect();
    assert_eq!(fields, [(&b"Host"[..], &b"Example.org:8080"[..]), (b"User-Agent", b"x"), (b"X-Empty", b"")]);
    assert_eq!((framing, persistence, length), (Framing::None, Persistence::Persist, head.len() - 4));
}

/// RFC 9112 section 2.2.
#[test]
fn line_ends_are_strict() {
    refused("GET / HTTP/1.1\nHost: a\r\n\r\n", Refusal::BareLineFeed);
    refused("GET / HTTP/1.1\r\nHost: a\n\r\n", Refusal::BareLineFeed);
    refused("GET / HTTP/1.1\r\nHost: a\r\n\n", Refusal::BareLineFeed);
    refused("GET / HTTP/1.1\rHost: a\r\n\r\n", Refusal::BareCarriageReturn);
    refused("GET / HTTP/1.1\r\r\nHost: a\r\n\r\n", Refusal::BareCarriageReturn);
    refused("GET /\r HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BareCarriageReturn);
    refused("GET / HTTP/1.1\r\nHost: a\r\r\n\r\n", Refusal::BareCarriageReturn);
    refused("GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n", Refusal::BareCarriageReturn);
    refused("GET / HTTP/1.1\r\nHo\rst: a\r\n\r\n", Refusal::BareCarriageReturn);
    refused("GET / HTTP/1.1\r\nHost: a\r\n\r\r\n", Refusal::BareCarriageReturn);
}

/// RFC 9112 section 2.2.
#[test]
fn lenient_line_ends_are_a_choice() {
    for head in ["GET / HTTP/1.1\nHost: a\nX: y\n\n", "\nGET / HTTP/1.1\r\nHost: a\nX: y\r\n\n"] {
        let seen = verdict(head.as_bytes(), LENIENT).unwrap().unwrap();
        assert_eq!((seen.host, seen.length), (&b"a"[..], head.len()));
        let Ok(Parsed::Complete { request, .. }) = parse(head.as_bytes(), LENIENT) else { panic!() };
        assert_eq!(request.fields.iter().last(), Some((&b"X"[..], &b"y"[..])));
    }
    for head in
        ["GET / HTTP/1.1\rHost: a\n\n", "GET / HTTP/1.1\nHost: a\r\r\n\n", "GET /\r HTTP/1.1\nHost: a\n\n"]
    {
        assert_eq!(verdict(head.as_bytes(), LENIENT), Err(Refusal::BareCarriageReturn), "{head:?}");
    }
}

/// RFC 9112 section 2.2.
#[test]
fn few_empty_lines_are_tolerated() {
    accepted("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    accepted("\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    refused("\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::EmptyLines);
    refused("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BareLineFeed);
    refused("\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BareCarriageReturn);
    refused("\r\n GET / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::RequestLine);
}

/// RFC 9112 section 3.
#[test]
fn request_lines_have_three_parts() {
    for line in [
        "GET /",
        "GET",
        "GET /  HTTP/1.1",
        "GET  / HTTP/1.1",
        " GET / HTTP/1.1",
        "GET / HTTP/1.1 ",
        "GET /a b HTTP/1.1",
        "GET\t/\tHTTP/1.1",
        "GET / HTTP/1.1 x",
        "G(T / HTTP/1.1",
        "GET / http/1.1",
        "GET / HTTP/1",
        "GET / HTTP/1.",
        "GET / HTTP/11",
        "GET / HTTP/1.10",
        "GET / HTTP/01.1",
        "GET / HTTP/-1.1",
        "GET / HTTP 1.1",
        "GET / ",
        "GET  HTTP/1.1",
        "\u{16}\u{3}\u{1}",
        "{}",
        "G\u{e9}T / HTTP/1.1",
    ] {
        refused_line(line, Refusal::RequestLine);
    }
}

/// Another protocol is recognised by its first byte.
#[test]
fn other_protocols_are_refused_at_once() {
    for start in [&b"\x16\x03\x01"[..], b"\0", b"\x80", b" ", b"(", b"\r\n\x16"] {
        assert_eq!(whole(start, LIMITS), Err(Refusal::RequestLine), "{start:?}");
    }
    assert_eq!(whole(b"G", LIMITS), Ok(None));
}

/// RFC 9112 section 2.3, RFC 9110 section 2.5.
#[test]
fn versions_of_http_1_are_spoken() {
    for (version, expected) in [
        ("HTTP/1.0", Version::Http10),
        ("HTTP/1.1", Version::Http11),
        ("HTTP/1.2", Version::Http11),
        ("HTTP/1.9", Version::Http11),
    ] {
        let head = format!("GET / {version}\r\nHost: a\r\n\r\n");
        let Ok(Parsed::Complete { request, .. }) = parse(head.as_bytes(), LIMITS) else {
            panic!("{version}")
        };
        assert_eq!(request.version, expected, "{version}");
    }
    for version in ["HTTP/0.9", "HTTP/2.0", "HTTP/3.0", "HTTP/9.9"] {
        refused_line(&format!("GET / {version}"), Refusal::Version);
    }
    refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Refusal::Version);
}

/// RFC 9112 sections 3.2.1 to 3.2.4.
#[test]
fn target_forms_go_with_methods() {
    for (line, target, host) in [
        ("GET / HTTP/1.1", path("/", None), "a"),
        ("GET /? HTTP/1.1", path("/", Some("")), "a"),
        ("GET //b/c HTTP/1.1", path("//b/c", None), "a"),
        ("GET /\u{e9}|\"<> HTTP/1.1", path("/\u{e9}|\"<>", None), "a"),
        ("GET http://b/c?d HTTP/1.1", path("/c", Some("d")), "b"),
        ("GET HTTPS://B:80 HTTP/1.1", path("/", None), "B"),
        ("GET http://[::1]:80?d/e HTTP/1.1", path("/", Some("d/e")), "[::1]"),
        ("OPTIONS * HTTP/1.1", Target::Asterisk, "a"),
        ("OPTIONS http://b HTTP/1.1", Target::Asterisk, "b"),
        ("OPTIONS http://b/ HTTP/1.1", path("/", None), "b"),
        ("OPTIONS / HTTP/1.1", path("/", None), "a"),
        ("CONNECT b:443 HTTP/1.1", Target::Authority, "b"),
    ] {
        let head = format!("{line}\r\nHost: a\r\n\r\n");
        let seen = accepted(&head);
        assert_eq!((seen.target, seen.host), (target, host.as_bytes()), "{line}");
    }
    for line in [
        "GET * HTTP/1.1",
        "OPTIONS ** HTTP/1.1",
        "GET a HTTP/1.1",
        "GET a:80 HTTP/1.1",
        "GET ftp://a/ HTTP/1.1",
        "GET http:/a HTTP/1.1",
        "GET ?a HTTP/1.1",
        "CONNECT / HTTP/1.1",
        "CONNECT a HTTP/1.1",
        "CONNECT * HTTP/1.1",
        "CONNECT http://a:80 HTTP/1.1",
        "GET \\ HTTP/1.1",
    ] {
        refused_line(line, Refusal::TargetForm);
    }
    for line in [
        "GET http:// HTTP/1.1",
        "GET http:///a HTTP/1.1",
        "GET http://u@b/ HTTP/1.1",
        "GET http://b:x/ HTTP/1.1",
    ] {
        refused_line(line, Refusal::HostMalformed);
    }
    for line in ["GET /a#b HTTP/1.1", "GET /a\u{0}b HTTP/1.1", "GET /a\tb HTTP/1.1", "GET /\u{7f} HTTP/1.1"] {
        refused_line(line, Refusal::TargetBytes);
    }
}

/// RFC 9112 sections 3.2 and 3.2.2, RFC 9110 section 7.2.
#[test]
fn hosts_are_there_once_and_well_formed() {
    refused("GET / HTTP/1.1\r\n\r\n", Refusal::HostMissing);
    refused("GET http://b/ HTTP/1.1\r\n\r\n", Refusal::HostMissing);
    refused("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Refusal::HostRepeated);
    refused("GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n", Refusal::HostRepeated);
    for host in ["", "a b", "a,b, c", "a/b", "a@b", "a:b", "[::1", "http://a", "a\"", "a:99999"] {
        refused(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), Refusal::HostMalformed);
        refused(&format!("GET / HTTP/1.0\r\nHost: {host}\r\n\r\n"), Refusal::HostMalformed);
    }
    refused("GET http://b/ HTTP/1.1\r\nHost: a b\r\n\r\n", Refusal::HostMalformed);
    assert_eq!(accepted("GET http://b/ HTTP/1.1\r\nHost:\r\n\r\n").host, b"b");
    assert_eq!(accepted("OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n").host, b"");
    assert_eq!(accepted("GET / HTTP/1.0\r\n\r\n").host, b"");
    assert_eq!(accepted("GET / HTTP/1.0\r\nHost: a:80\r\n\r\n").host, b"a");
}

/// RFC 9112 sections 5, 5.1 and 5.2, RFC 9110 section 5.5.
#[test]
fn field_lines_are_strict() {
    for (line, refusal) in [
        ("X : y", Refusal::SpaceBeforeColon),
        ("X\t: y", Refusal::SpaceBeforeColon),
        ("X  \t :y", Refusal::SpaceBeforeColon),
        ("Content-Length : 5", Refusal::SpaceBeforeColon),
        (" folded", Refusal::FoldedLine),
        ("\tfolded: y", Refusal::FoldedLine),
        (" ", Refusal::FoldedLine),
        (": y", Refusal::FieldName),
        (":", Refusal::FieldName),
        ("no colon", Refusal::FieldName),
        ("none", Refusal::FieldName),
        ("a b: y", Refusal::FieldName),
        ("a\u{0}: y", Refusal::FieldName),
        ("a(b): y", Refusal::FieldName),
        ("\"a\": y", Refusal::FieldName),
        ("\u{e9}: y", Refusal::FieldName),
        ("a: y\u{0}", Refusal::FieldValue),
        ("a: \u{1}y", Refusal::FieldValue),
        ("a: y\u{7f}z", Refusal::FieldValue),
        ("a: \u{b}", Refusal::FieldValue),
    ] {
        refused_field(line, refusal);
    }
    for line in ["a:b", "a:", "a: \t b \t ", "a: b\tc", "a: \u{e9}", "!#$%&'*+-.^_`|~09: x", "a: b: c"] {
        accepted(&format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n"));
    }
    // An obsolete fold right behind the request line.
    refused("GET / HTTP/1.1\r\n Host: a\r\n\r\n", Refusal::FoldedLine);
}

/// RFC 9110 section 15.5.15, RFC 6585 section 5.
#[test]
fn limits_are_kept_to_the_byte() {
    let head = "GET /0123456789 HTTP/1.1\r\nHost: a\r\n\r\n";
    for bytes in 0..head.len() + 2 {
        let expected = match bytes {
            0..26 => Err(414),
            26..37 => Err(431),
            _ => Ok(true),
        };
        let verdict = verdict(head.as_bytes(), HeadLimits { bytes, ..LIMITS });
        assert_eq!(verdict.map(|seen| seen.is_some()).map_err(Refusal::status), expected, "{bytes}");
    }
    assert_eq!(head.len(), 37);
    let many = |count: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(count - 1));
    accepted(&many(100));
    refused(&many(101), Refusal::TooManyFields);
}

/// RFC 9112 section 6: the rules themselves are tested where they are.
#[test]
fn framing_and_persistence_are_reported() {
    let seen = accepted("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nConnection: close\r\n\r\n");
    assert_eq!((seen.framing, seen.persistence), (Framing::Length(5), Persistence::Close));
    let seen = accepted("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!((seen.framing, seen.persistence), (Framing::Chunked, Persistence::Persist));
    refused_field("Content-Length: 5\r\nContent-Length: 5", Refusal::ContentLengthRepeated);
    refused_field("Content-Length: +5", Refusal::ContentLength);
    refused_field("Transfer-Encoding: gzip, chunked", Refusal::TransferCoding);
}

/// RFC 9110 section 10.1.1.
#[test]
fn expectations_are_read() {
    for (version, field, expected) in [
        ("1.1", "X: y", Expectation::Nothing),
        ("1.1", "Expect: 100-continue", Expectation::Continue),
        ("1.1", "Expect: 100-Continue, 100-continue", Expectation::Continue),
        ("1.1", "Expect:", Expectation::Nothing),
        ("1.1", "Expect: 100-continue, x", Expectation::Other),
        ("1.1", "Expect: 200-ok", Expectation::Other),
        ("1.0", "Expect: 100-continue", Expectation::Nothing),
    ] {
        let head = format!("POST / HTTP/{version}\r\nHost: a\r\n{field}\r\n\r\n");
        let Ok(Parsed::Complete { request, .. }) = parse(head.as_bytes(), LIMITS) else { panic!("{head:?}") };
        assert_eq!(expect::of(&request), expected, "{head:?}");
    }
}

#[test]
fn the_log_sees_one_line() {
    for (bytes, expected) in [
        ("GET / HTTP/1.1\r\nHost", "GET / HTTP/1.1"),
        ("\r\n\r\nGET /\n", "GET /"),
        ("GET", "GET"),
        ("", ""),
        ("0123456789012345678901234567890", "01234567890123456789"),
    ] {
        assert_eq!(request_line_text(bytes.as_bytes(), 20), expected.as_bytes());
    }
}

/// Pieces of heads, good and bad, so that many combinations are good.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::sample::select(vec![
            "X: y\r\n", "Accept: */*\r\n", "Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n", "Host: b\r\n",
            "Connection: close\r\n", "a:\t \r\n", "\r\n", " x\r\n", "x : y\r\n", "x: y\n", "\n", "\r", "x: \u{0}\r\n",
            "Host: a b\r\n", "Cookie: \u{e9}\r\n", ":\r\n", "GET / HTTP/1.1\r\n",
        ]).prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ]
}

fn request_lines() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "GET / HTTP/1.1\r\n",
        "GET /a%20b?c HTTP/1.0\r\n",
        "\r\nPOST http://a/ HTTP/1.1\r\n",
        "OPTIONS * HTTP/1.1\r\n",
        "GET / HTTP/1.1\n",
        "GET  / HTTP/1.1\r\n",
        "",
    ])
}

fn heads() -> impl Strategy<Value = Vec<u8>> {
    (request_lines(), any::<bool>(), prop::collection::vec(piece(), 0..6), any::<bool>()).prop_map(
        |(line, host, pieces, end)| {
            let mut head = line.as_bytes().to_vec();
            if host {
                head.extend_from_slice(b"Host: a\r\n");
            }
            head.extend(pieces.into_iter().flatten());
            if end {
                head.extend_from_slice(b"\r\n");
            }
            head
        },
    )
}

proptest! {
    /// Every prefix waits or says the same, with either choice of line ends and any limit.
    #[test]
    fn cutting_never_changes_a_verdict(head in heads(), lenient in any::<bool>(), bytes in 0usize..200) {
        let _ = verdict(&head, HeadLimits { bytes, lenient_line_ends: lenient });
        let _ = verdict(&head, HeadLimits { lenient_line_ends: lenient, ..LIMITS });
    }

    /// Bytes behind a head are not looked at.
    #[test]
    fn what_follows_never_changes_a_verdict(head in heads(), rest in prop::collection::vec(any::<u8>(), 1..20)) {
        let alone = whole(&head, LIMITS);
        let longer = [&head[..], &rest].concat();
        if alone != Ok(None) {
            prop_assert_eq!(whole(&longer, LIMITS), alone);
        }
    }

    /// `httparse` accepts, and reads alike, whatever is accepted here.
    #[test]
    fn the_judge_agrees(head in heads()) {
        let Ok(Parsed::Complete { request, length, .. }) = parse(&head, LIMITS) else { return Ok(()) };
        let mut fields = [httparse::EMPTY_HEADER; 100];
        let mut judge = httparse::Request::new(&mut fields);
        prop_assert_eq!(judge.parse(&head), Ok(httparse::Status::Complete(length)));
        prop_assert_eq!(judge.method.unwrap().as_bytes(), request.method_name);
        prop_assert_eq!(judge.path.unwrap().as_bytes(), request.target_text);
        prop_assert_eq!(judge.version.unwrap() == 1, request.version == Version::Http11);
        let read: Vec<_> = judge.headers.iter().map(|field| (field.name.as_bytes(), field.value)).collect();
        prop_assert_eq!(read, request.fields.iter().collect::<Vec<_>>());
    }
}
