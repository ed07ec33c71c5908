//! Bytes of a client, mutated from a seed: whatever they are, nothing panics, cutting them differently changes
//! nothing, and `httparse` reads what is accepted the same way.
//!
//! `HTTPD_FUZZ_COUNT` says how many streams are tried, `HTTPD_FUZZ_SEED` which come first; a failure
//! names the seed of its stream.

use std::net::{IpAddr, Ipv4Addr};

use httpd::http::conditions::{self, Validators};
use httpd::http::fields::Fields;
use httpd::http::range::{self, Ranges};
use httpd::http::request::{Method, Target, Version};
use httpd::http::{accept, authorization, date, etag, expect, forwarded, host, media_types, target};
use httpd::http1::chunked::Decoder;
use httpd::http1::framing::Framing;
use httpd::http1::head::{self, HeadLimits, Parsed};
use httpd::http1::proxy_protocol;
use httpd::http1::refusal::Refusal;

const STREAMS: &[&str] = &[
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /a/%62/../c?d=e HTTP/1.1\r\nHost: example.org:80\r\nAccept-Encoding: gzip, br;q=0.5\r\n\r\nHEAD / HTTP/1.0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "POST http://b/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nT: u\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "\r\nOPTIONS * HTTP/1.1\r\nHost:\r\nExpect: 100-continue\r\n\r\nCONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: [::1]:80\r\nX-A:\t b \r\nCookie: \u{e9}=\"1, 2\"\r\nRange: bytes=0-1\r\n\r\n",
];

const MORSELS: &[&str] = &[
    "\r",
    "\n",
    "\r\n",
    "\r\n\r\n",
    "\0",
    " ",
    "\t",
    ":",
    ";",
    ",",
    "0",
    "f",
    "-1",
    "%",
    "*",
    "//",
    "..",
    "#",
    "\u{7f}",
    "\u{e9}",
    "Host: b\r\n",
    "Content-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    " chunked",
    "HTTP/1.0",
    "HTTP/2.0",
    "ffffffffffffffff",
    "18446744073709551616",
    "X : y\r\n",
    " folded\r\n",
];

/// xorshift64*
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize) % bound.max(1)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |value| value.parse().expect("a number"))
}

fn seeds() -> std::ops::Range<u64> {
    let first = setting("HTTPD_FUZZ_SEED", 0);
    first..first + setting("HTTPD_FUZZ_COUNT", 5000)
}

fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let at = dice.below(bytes.len() + 1);
    let end = (at + dice.below(8)).min(bytes.len());
    match dice.below(6) {
        0 if at < bytes.len() => bytes[at] = dice.below(256) as u8,
        1 => drop(bytes.drain(at..end)),
        2 => {
            let copy = bytes[at..end].to_vec();
            let to = dice.below(bytes.len() + 1);
            bytes.splice(to..to, copy);
        }
        3 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
        4 => bytes.truncate(at.max(1)),
        _ => drop(bytes.splice(at..at, dice.pick(MORSELS).bytes())),
    }
}

/// What a server would have seen.
#[derive(PartialEq, Debug)]
enum Event {
    Head { method: Vec<u8>, path: Vec<u8>, host: Vec<u8>, fields: usize, framing: Framing },
    Body(Vec<u8>),
    Refused(Refusal),
}

/// The state of one connection that is fed pieces.
struct Reader {
    limits: HeadLimits,
    buffer: Vec<u8>,
    body: Option<(Framing, u64, Decoder, Vec<u8>)>,
    events: Vec<Event>,
}

impl Reader {
    fn read(bytes: &[u8], limits: HeadLimits, mut next_length: impl FnMut() -> usize) -> Vec<Event> {
        let mut reader = Reader { limits, buffer: Vec::new(), body: None, events: Vec::new() };
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(next_length().clamp(1, rest.len()));
            reader.buffer.extend_from_slice(piece);
            rest = after;
            while reader.advance() {}
            if let Some(Event::Refused(_)) = reader.events.last() {
                break;
            }
        }
        reader.events
    }

    /// Whether there may be more to do with what is there.
    fn advance(&mut self) -> bool {
        let progress = if self.body.is_some() { self.advance_body() } else { self.advance_head() };
        progress.unwrap_or_else(|refusal| {
            self.events.push(Event::Refused(refusal));
            false
        })
    }

    fn advance_head(&mut self) -> Result<bool, Refusal> {
        let Parsed::Complete { request, framing, length, .. } = head::parse(&self.buffer, self.limits)?
        else {
            return Ok(false);
        };
        if self.limits.lenient_line_ends {
            assert!(length <= self.buffer.len());
        } else {
            assert!(self.buffer[..length].ends_with(b"\r\n\r\n"));
        }
        judge(&self.buffer, length, &request);
        let mut scratch = Vec::new();
        let path = match request.target {
            Target::Path { path, .. } => target::normalise(path, &mut scratch).unwrap_or(b"bad").to_vec(),
            Target::Asterisk => b"*".to_vec(),
            Target::Authority => b"authority".to_vec(),
        };
        expect::of(&request);
        values(&request.fields);
        self.events.push(Event::Head {
            method: request.method_name.to_vec(),
            path,
            host: request.host.to_vec(),
            fields: request.fields.iter().count(),
            framing,
        });
        let remaining = if let Framing::Length(remaining) = framing { remaining } else { 0 };
        self.body = Some((framing, remaining, Decoder::new(), Vec::new()));
        self.buffer.drain(..length);
        Ok(true)
    }

    fn advance_body(&mut self) -> Result<bool, Refusal> {
        let Some((framing, remaining, decoder, body)) = &mut self.body else { return Ok(false) };
        let done = match framing {
            Framing::None => true,
            Framing::Length(_) => {
                let taken = self.buffer.len().min(usize::try_from(*remaining).unwrap_or(usize::MAX));
                body.extend(self.buffer.drain(..taken));
                *remaining -= taken as u64;
                *remaining == 0
            }
            Framing::Chunked => {
                let step = decoder.decode(&self.buffer)?;
                body.extend_from_slice(&self.buffer[step.data]);
                self.buffer.drain(..step.consumed);
                if !step.done && step.consumed > 0 {
                    return Ok(true);
                }
                step.done
            }
        };
        if done {
            self.events.push(Event::Body(std::mem::take(body)));
            self.body = None;
        }
        Ok(done)
    }
}

/// Whatever is accepted here, `httparse` accepts and reads alike.
fn judge(bytes: &[u8], length: usize, request: &httpd::http::request::Request) {
    let mut headers = [httparse::EMPTY_HEADER; 100];
    let mut judge = httparse::Request::new(&mut headers);
    match judge.parse(bytes) {
        // It knows only two versions.
        Err(httparse::Error::Version) if request.version == Version::Http11 => return,
        // Its targets are strings; names of files need not be.
        Err(httparse::Error::Token) if std::str::from_utf8(request.target_text).is_err() => return,
        result => assert_eq!(result, Ok(httparse::Status::Complete(length))),
    }
    assert_eq!(judge.method.map(str::as_bytes), Some(request.method_name));
    assert_eq!(judge.path.map(str::as_bytes), Some(request.target_text));
    let read = judge.headers.iter().map(|header| (header.name.as_bytes(), header.value));
    assert!(read.eq(request.fields.iter()));
    assert_eq!(judge.headers.len(), request.fields.count());
}

/// Everything that reads the value of a field.
fn values(fields: &Fields) {
    let validators = Validators { etag: Some(b"\"a\""), modified: Some(784_111_777) };
    conditions::evaluate(Method::Get, fields, validators);
    conditions::if_range(fields, validators, 784_111_778);
    accept::codings(fields);
    accept::prefers_json(fields);
    forwarded::client(fields, IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.is_loopback());
    if let Some(value) = range::asked(Method::Get, fields) {
        ranges(value);
    }
    for (_, value) in fields.iter() {
        authorization::basic(value);
    }
}

fn ranges(value: &[u8]) {
    for length in [0, 1, 10, 1 << 40, u64::MAX] {
        match range::resolve(value, length) {
            Ranges::Whole | Ranges::Unsatisfiable => {}
            Ranges::One(range) => assert!(range.start < range.end && range.end <= length),
            Ranges::Many(mut ranges) => {
                assert!((2..=16).contains(&ranges.len()));
                ranges.sort_by_key(|range| range.start);
                assert!(ranges.iter().all(|range| range.start < range.end && range.end <= length));
                assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{ranges:?}");
            }
        }
    }
}

#[test]
fn streams_are_read_alike_however_they_are_cut() {
    let (mut accepted, mut refused) = (0, 0);
    for seed in seeds() {
        let mut dice = Dice::new(seed);
        let mut bytes = dice.pick(STREAMS).as_bytes().to_vec();
        if dice.below(2) == 0 {
            bytes.extend_from_slice(dice.pick(STREAMS).as_bytes());
        }
        for _ in 0..dice.below(4) {
            mutate(&mut bytes, &mut dice);
        }
        let limits =
            HeadLimits { bytes: dice.pick(&[64, 200, 16384]), lenient_line_ends: dice.below(4) == 0 };
        let whole = Reader::read(&bytes, limits, || usize::MAX);
        let single = Reader::read(&bytes, limits, || 1);
        let longest = dice.below(40) + 1;
        let pieces = Reader::read(&bytes, limits, || dice.below(longest));
        let shown = bytes.escape_ascii();
        assert_eq!(whole, single, "HTTPD_FUZZ_SEED={seed} {shown}");
        assert_eq!(whole, pieces, "HTTPD_FUZZ_SEED={seed} {shown}");
        match whole.last() {
            Some(Event::Refused(_)) => refused += 1,
            _ => accepted += 1,
        }
    }
    // The mutations are neither so wild nor so tame that one side goes untested.
    if accepted + refused >= 1000 {
        assert!(accepted > 100 && refused > 100, "{accepted} accepted, {refused} refused");
    }
}

#[test]
fn proxy_headers_are_read_alike_however_they_are_cut() {
    let text = b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\nGET";
    let binary = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\xc0\0\x02\x01\xc0\0\x02\x02\x12\x34\0\x50GET";
    for seed in seeds() {
        let mut dice = Dice::new(seed);
        let mut bytes = dice.pick(&[&text[..], binary]).to_vec();
        for _ in 0..dice.below(3) {
            mutate(&mut bytes, &mut dice);
        }
        let whole = proxy_protocol::parse(&bytes);
        for end in 0..bytes.len() {
            let early = proxy_protocol::parse(&bytes[..end]);
            let waits = early == Ok(proxy_protocol::Parsed::Incomplete);
            assert!(waits || early == whole, "HTTPD_FUZZ_SEED={seed} {}", bytes.escape_ascii());
        }
    }
}

#[test]
fn values_are_read_without_panic() {
    const VALUES: &[&str] = &[
        "bytes=0-1,5-,-3,8-9",
        "\"a\", W/\"b\", *",
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "gzip;q=0.5, br, *;q=0",
        "for=192.0.2.1;proto=http, for=\"[2001:db8::1]:80\"",
        "192.0.2.1, [::1]:80, unknown",
        "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
        "example.org:80",
        "[::1]:443",
        "/a/%62/../c//.html",
        "application/json;q=0.1, text/*, */*;q=0",
    ];
    for seed in seeds() {
        let mut dice = Dice::new(seed);
        let mut value = dice.pick(VALUES).as_bytes().to_vec();
        for _ in 0..dice.below(5) {
            mutate(&mut value, &mut dice);
        }
        ranges(&value);
        date::parse(&value);
        etag::EntityTag::parse(&value);
        host::parse(&value);
        media_types::of(&value);
        authorization::basic(&value);
        let mut scratch = Vec::new();
        if let Ok(path) = target::normalise(&value, &mut scratch) {
            assert!(path.starts_with(b"/") && !path.windows(2).any(|pair| pair == b"//"));
            assert!(!path.split(|&byte| byte == b'/').any(|segment| segment == b".." || segment == b"."));
        }
        value.retain(|byte| !byte.is_ascii_control());
        for name in [
            "If-Match",
            "If-None-Match",
            "If-Range",
            "If-Modified-Since",
            "Accept",
            "Accept-Encoding",
            "Forwarded",
            "X-Forwarded-For",
            "Expect",
            "Connection",
            "Range",
        ] {
            let section =
                [name.as_bytes(), b": ", &value, b"\r\n", name.as_bytes(), b":", &value, b"\r\n"].concat();
            values(&Fields::of_section(&section).expect("fields"));
        }
    }
}
