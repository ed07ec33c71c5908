//! Requests, and the judge of their answers: what the file tree says the answer may be.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use crate::faults::Rng;
use crate::reader::Response;
use crate::scripts;
use crate::site::{self, BODY_MAX, FILES, HEAD_MAX, PASSWORD, REVALIDATE};
use crate::variants::SHIPPED;
use crate::world::World;

/// What one client asks.
#[derive(Clone)]
pub struct Request {
    pub bytes: Vec<u8>,
    pub is_head: bool,
    pub want: Want,
    /// Its Accept-Encoding.
    pub accepts: &'static str,
    /// The connection ends with its answer.
    pub ends: bool,
}

impl Request {
    /// Whether a script has a part in the answer.
    pub fn is_of_script(&self) -> bool {
        let mounted = |mount: &[u8]| self.bytes.windows(mount.len()).take(12).any(|part| part == mount);
        [&b" /cgi/"[..], b" /stream/", b" /wasm/"].into_iter().any(mounted)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.bytes[..self.bytes.len().min(300)]);
        write!(f, "{text:?} ({} bytes)", self.bytes.len())
    }
}

/// What may come.
#[derive(Clone, Debug)]
pub enum Want {
    /// The file at this path, or this range of it: first byte, last byte.
    File { path: &'static str, range: Option<(usize, usize)>, known: Option<Known> },
    /// One of these statuses.
    Status(&'static [u16]),
    /// A redirect to a location that contains this.
    Redirect(&'static str),
    /// What a script printed: one of these statuses, and this document. `cut`: it may end too soon.
    Printed { statuses: &'static [u16], document: Option<Vec<u8>>, cut: bool },
    /// A page that contains these.
    Page(&'static [&'static str]),
}

/// A form of a file that the client has already.
#[derive(Clone, Debug)]
pub struct Known {
    pub etag: String,
    pub body: Rc<Vec<u8>>,
}

/// A plain request for a file.
pub fn get(path: &'static str) -> Request {
    get_in(path, "")
}

/// The same, of a client that accepts these codings.
pub fn get_in(path: &'static str, accepts: &'static str) -> Request {
    let accept = accept_encoding(accepts);
    let bytes = format!("GET {path} HTTP/1.1\r\nHost: example.org\r\n{accept}\r\n").into_bytes();
    let want = Want::File { path, range: None, known: None };
    Request { bytes, is_head: false, want, accepts, ends: false }
}

fn accept_encoding(accepts: &str) -> String {
    if accepts.is_empty() { String::new() } else { format!("Accept-Encoding: {accepts}\r\n") }
}

/// What clients say of codings.
const ACCEPTS: [&str; 9] = [
    "gzip, deflate, br, zstd",
    "gzip",
    "br",
    "zstd, gzip",
    "gzip;q=0.7, br;q=0.5, *;q=0",
    "identity",
    "*",
    "x-gzip, identity;q=0",
    "gzip;q=0, *;q=0.1",
];

/// Whether a client wants to be sent a coding. What is not coded, everyone takes.
fn is_welcome(accepts: &str, coding: &str) -> bool {
    let weight = |name: &str| {
        let element = accepts.split(", ").find(|element| element.split(';').next() == Some(name))?;
        Some(!element.ends_with(";q=0"))
    };
    let old = if coding == "gzip" { weight("x-gzip") } else { None };
    weight(coding).or(old).or_else(|| weight("*")).unwrap_or(false)
}

/// A request by chance. `known`: what the client got last from some path.
pub fn draw(rng: &mut Rng, known: Option<&(&'static str, Known)>) -> Request {
    if rng.chance(180) {
        return script(rng);
    }
    let kind = rng.below(100);
    let target = *rng.pick(match kind {
        0..45 => &FILES[..],
        52..58 => &["/", "/sub/", "/link.txt"],
        62..66 => &["/.hidden", "/out.txt", "/up.txt", "/fifo", "/list/none/", "/a.txt/below", "/none/"],
        66..69 => &["/../etc/secret", "/%2e%2e/%2e%2e/etc/secret", "/sub/../../etc/secret", "/a%00b"],
        69..72 => &["/sub", "/list"],
        _ => &["/a.txt"],
    });
    match kind {
        0..45 | 52..58 => file(rng, target, None),
        45..52 => match known {
            Some((path, known)) => file(rng, path, Some(known.clone())),
            None => file(rng, "/small.css", None),
        },
        58..62 => plain(rng, "GET", "/none", Want::Status(&[404])),
        62..66 => plain(rng, "GET", target, Want::Status(&[403, 404])),
        66..69 => plain(rng, "GET", target, Want::Status(&[400, 403, 404])),
        69..72 => plain(rng, "GET", target, Want::Redirect("/")),
        72..75 => plain(rng, "GET", "/list/", Want::Page(&["one.txt", "two.txt"])),
        75..78 => plain(rng, "GET", "/old/thing?x=1", Want::Redirect("https://new.example/old/thing")),
        78..84 => private(rng),
        84..94 => with_body(rng),
        94..97 => plain(rng, "DELETE", target, Want::Status(&[405, 501])),
        97..98 => plain(rng, "BREW", target, Want::Status(&[405, 501])),
        98..99 => plain(rng, "OPTIONS", "*", Want::Status(&[200, 204, 405])),
        _ => plain(rng, "OPTIONS", target, Want::Status(&[200, 204, 405])),
    }
}

/// A request that can only be refused, and the connection with it.
pub fn draw_bad(rng: &mut Rng) -> Request {
    let (bytes, statuses): (Vec<u8>, &'static [u16]) = match rng.below(8) {
        0 => (b"GET / HTTP/1.1\r\n\r\n".to_vec(), &[400]),
        1 => (b"GET /\r\n\r\n".to_vec(), &[400, 505]),
        2 => (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(), &[400]),
        3 => (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n".to_vec(), &[400, 505]),
        4 => (
            b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc"
                .to_vec(),
            &[400],
        ),
        5 => {
            (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".to_vec(), &[400, 405])
        }
        6 => (
            format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", BODY_MAX + 1).into_bytes(),
            &[413],
        ),
        _ => {
            let mut bytes = b"GET / HTTP/1.1\r\nHost: x\r\n".to_vec();
            while bytes.len() <= HEAD_MAX as usize {
                bytes.extend(b"X-Filler: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n");
            }
            bytes.extend(b"\r\n");
            (bytes, &[431])
        }
    };
    Request { bytes, is_head: false, want: Want::Status(statuses), accepts: "", ends: true }
}

/// A request for a file, plainly, by HEAD, or for a range.
fn file(rng: &mut Rng, path: &'static str, known: Option<Known>) -> Request {
    let is_head = rng.chance(150);
    let range = (!is_head && known.is_none() && rng.chance(200)).then(|| {
        let first = rng.below(9000);
        (first, first + rng.below(20_000))
    });
    let mut fields = String::new();
    if let Some((first, last)) = range {
        fields += &format!("Range: bytes={first}-{last}\r\n");
    }
    if let Some(known) = &known {
        fields += &format!("If-None-Match: {}\r\n", known.etag);
    }
    let accepts = if rng.chance(600) { *rng.pick(&ACCEPTS) } else { "" };
    fields += &accept_encoding(accepts);
    let method = if is_head { "HEAD" } else { "GET" };
    let want = Want::File { path, range, known };
    Request { accepts, ..finish(rng, method, path, &fields, b"", want) }
}

fn plain(rng: &mut Rng, method: &str, target: &str, want: Want) -> Request {
    finish(rng, method, target, "", b"", want)
}

fn private(rng: &mut Rng) -> Request {
    // "ali:sesame", "ali:wrong", and nothing.
    match rng.below(3) {
        0 => {
            assert_eq!(PASSWORD, "sesame");
            let want = Want::File { path: "/private/x.txt", range: None, known: None };
            finish(rng, "GET", "/private/x.txt", "Authorization: Basic YWxpOnNlc2FtZQ==\r\n", b"", want)
        }
        1 => finish(
            rng,
            "GET",
            "/private/x.txt",
            "Authorization: Basic YWxpOndyb25n\r\n",
            b"",
            Want::Status(&[401]),
        ),
        _ => plain(rng, "GET", "/private/x.txt", Want::Status(&[401])),
    }
}

/// Something a script answers.
pub fn script(rng: &mut Rng) -> Request {
    let (name, statuses) = *rng.pick::<(&str, &'static [u16])>(&[
        ("much", &[200]),
        ("much", &[200]),
        ("counted", &[201]),
        ("deaf", &[200]),
        ("background", &[200]),
        ("mute", &[200]),
        ("pauses", &[200]),
        ("lingers", &[200]),
        ("long", &[200]),
        ("short", &[502]),
        ("killed", &[502]),
        ("bad", &[502]),
        ("nothing", &[502]),
        ("loop", &[502]),
        ("silent", &[504]),
        ("absent", &[404]),
        ("plain", &[403]),
        ("busy", &[503]),
        ("broken", &[500]),
    ]);
    let mount = *rng.pick(&["/cgi", "/stream", "/wasm"]);
    match rng.below(10) {
        0..4 => {
            let body = body(rng);
            let want = Want::Printed { statuses: &[200], document: Some(body.clone()), cut: false };
            posted(rng, &format!("{mount}/echo"), &body, want)
        }
        4 => {
            let want = Want::File { path: "/steady.bin", range: None, known: None };
            plain(rng, "GET", &format!("{mount}/redirect"), want)
        }
        5 => {
            let (body, want) =
                (body(rng), Want::Printed { statuses, document: document(name), cut: cut(name) });
            posted(rng, &format!("{mount}/{name}"), &body, want)
        }
        _ => {
            let method = if rng.chance(150) { "HEAD" } else { "GET" };
            let cut = cut(name) && method == "GET";
            // A document that nobody sees cannot be too short.
            let statuses = match (name, method) {
                ("short" | "killed", "HEAD") => &[200, 502],
                _ => statuses,
            };
            plain(
                rng,
                method,
                &format!("{mount}/{name}"),
                Want::Printed { statuses, document: document(name), cut },
            )
        }
    }
}

fn document(name: &str) -> Option<Vec<u8>> {
    match name {
        "much" | "counted" | "deaf" | "background" | "lingers" | "long" | "mute" => Some(scripts::much()),
        "pauses" => Some(scripts::much().repeat(2)),
        _ => None,
    }
}

fn cut(name: &str) -> bool {
    ["short", "killed"].contains(&name)
}

fn body(rng: &mut Rng) -> Vec<u8> {
    let length = rng.below(3000);
    (0..length).map(|_| rng.next() as u8).collect()
}

fn with_body(rng: &mut Rng) -> Request {
    let body = body(rng);
    posted(rng, "/a.txt", &body, Want::Status(&[405]))
}

/// A request with a body, with its length or in chunks.
fn posted(rng: &mut Rng, target: &str, body: &[u8], want: Want) -> Request {
    let length = body.len();
    if rng.chance(500) {
        let expects = if want.is_of_script() && rng.chance(200) { "Expect: 100-continue\r\n" } else { "" };
        return finish(rng, "POST", target, &format!("{expects}Content-Length: {length}\r\n"), body, want);
    }
    let mut coded = Vec::new();
    for piece in body.chunks(rng.within(1, 700)) {
        coded.extend(format!("{:x}\r\n", piece.len()).into_bytes());
        coded.extend_from_slice(piece);
        coded.extend(b"\r\n");
    }
    coded.extend(b"0\r\n");
    if rng.chance(200) {
        coded.extend(b"X-Trailer: late\r\n");
    }
    coded.extend(b"\r\n");
    finish(rng, "POST", target, "Transfer-Encoding: chunked\r\n", &coded, want)
}

fn finish(rng: &mut Rng, method: &str, target: &str, fields: &str, body: &[u8], want: Want) -> Request {
    let old = rng.chance(60) && !fields.contains("chunked");
    let asks_close = rng.chance(60);
    let connection = match (old, asks_close) {
        (_, true) => "Connection: close\r\n",
        (true, false) if rng.chance(500) => "Connection: keep-alive\r\n",
        _ => "",
    };
    let ends = asks_close || (old && connection.is_empty());
    let version = if old { "1.0" } else { "1.1" };
    let noise = if rng.chance(300) { "User-Agent: sim\r\nAccept: */*\r\nCookie: a=b\r\n" } else { "" };
    let head =
        format!("{method} {target} HTTP/{version}\r\nHost: example.org\r\n{noise}{fields}{connection}\r\n");
    Request { bytes: [head.as_bytes(), body].concat(), is_head: method == "HEAD", want, accepts: "", ends }
}

/// Whether the answer is one that the tree allows, for a request that was begun at `sent_at`.
pub fn judge(world: &World, request: &Request, sent_at: Duration, response: &Response) -> Result<(), String> {
    // A look-up whose opens keep racing with renames gives up, as one without descriptors does.
    if response.status == 503 && world.odds.racing_open + world.odds.open_fails > 0 {
        return Ok(());
    }
    // Too many run, or there are no pipes; or whoever started it is gone.
    let orphaned = || was_orphaned(world, sent_at);
    if request.is_of_script() && (response.status == 503 || (response.status == 502 && orphaned())) {
        return Ok(());
    }
    // Decoding takes memory, which may be in use.
    if response.status == 503 && matches!(request.want, Want::File { path: SHIPPED, .. }) {
        return Ok(());
    }
    match &request.want {
        Want::Printed { statuses, document, .. } => {
            printed(world, request, sent_at, response, statuses, document.as_deref())
        }
        Want::Status(statuses) if statuses.contains(&response.status) => Ok(()),
        Want::Status(statuses) => Err(format!("{} instead of one of {statuses:?}", response.status)),
        Want::Redirect(place) => match (response.status, response.field("location")) {
            (301 | 302 | 307 | 308, Some(location)) if location.contains(place) => Ok(()),
            (status, location) => Err(format!("{status} {location:?} instead of a redirect to {place}")),
        },
        Want::Page(parts) => {
            let text = String::from_utf8_lossy(&response.body);
            let whole = request.is_head || parts.iter().all(|part| text.contains(part));
            if response.status == 200 && whole {
                Ok(())
            } else {
                Err(format!("{} with {text}", response.status))
            }
        }
        Want::File { path, range, known } => {
            let from = sent_at.saturating_sub(REVALIDATE);
            let versions = site::versions(world, path, from);
            let forgives = *path == SHIPPED && !world.decodes;
            let coding = response.field("content-encoding");
            if coding.is_some_and(|coding| !forgives && !is_welcome(request.accepts, coding)) {
                return Err(format!("{coding:?} for a client that accepts {:?}", request.accepts));
            }
            let varies = response.field("vary").is_some_and(|value| value.contains("Accept-Encoding"));
            if matches!(response.status, 200 | 206 | 304) && !path.ends_with(".bin") && !varies {
                return Err(format!("a {} without Vary", response.status));
            }
            let fits = |bytes: Option<&Vec<u8>>| {
                bytes.map_or(response.status == 404, |bytes| {
                    answers(world, request, *range, known.as_ref(), response, bytes)
                })
            };
            if versions.iter().any(|version| fits(version.bytes.as_deref())) {
                return Ok(());
            }
            let lengths: Vec<_> =
                versions.iter().map(|version| version.bytes.as_ref().map(|bytes| bytes.len())).collect();
            Err(format!(
                "{} {:?} with {} bytes is none of the versions of {path} since {from:?}: {lengths:?}",
                response.status,
                response.field("content-length"),
                response.body.len()
            ))
        }
    }
}

/// Whether a runner died with what was asked for then, or did not live to hear it.
fn was_orphaned(world: &World, sent_at: Duration) -> bool {
    let mut deaths = world.runners.iter().flat_map(|runner| &runner.deaths);
    deaths.any(|at| *at + Duration::from_secs(1) >= sent_at)
}

fn is_old(request: &Request) -> bool {
    request.bytes.windows(10).take(80).any(|part| part == b" HTTP/1.0\r")
}

impl Want {
    pub fn is_of_script(&self) -> bool {
        matches!(self, Want::Printed { .. })
    }
}

/// Whether a response is what a script printed, or what a server without luck says instead.
fn printed(
    world: &World,
    request: &Request,
    sent_at: Duration,
    response: &Response,
    statuses: &[u16],
    document: Option<&[u8]>,
) -> Result<(), String> {
    let late = world.now > sent_at + site::WALL - Duration::from_secs(1);
    match response.status {
        504 if late => Ok(()),
        // Where the end of the connection is the end of the document, who is killed seems to have finished.
        200 if is_old(request) && statuses == [502] => Ok(()),
        status if !statuses.contains(&status) => Err(format!("{status} instead of one of {statuses:?}")),
        status if request.is_head => match (response.field("content-length"), document) {
            (Some(said), Some(document)) if status < 300 && said.parse() != Ok(document.len()) => {
                Err(format!("Content-Length {said} for a document of {} bytes", document.len()))
            }
            _ => Ok(()),
        },
        // Cut off, which such a client cannot see.
        200..300
            if is_old(request)
                && (was_orphaned(world, sent_at) || world.stopped_at.is_some() || late)
                && document.is_some_and(|document| document.starts_with(&response.body)) =>
        {
            Ok(())
        }
        200..300 if document.is_some_and(|document| document != response.body) => {
            Err(format!("{} bytes that the script did not print", response.body.len()))
        }
        _ => Ok(()),
    }
}

/// Whether a response is right for one version of a file.
fn answers(
    world: &World,
    request: &Request,
    range: Option<(usize, usize)>,
    known: Option<&Known>,
    response: &Response,
    bytes: &[u8],
) -> bool {
    if response.status == 304 {
        return known.is_some_and(|known| *known.body == bytes);
    }
    // A refusal does not say which form it is about.
    let codings = match response.field("content-encoding") {
        Some(coding) => vec![coding],
        None if response.status == 416 => vec!["br", "zstd", "gzip"],
        None => Vec::new(),
    };
    let coded = codings.iter().flat_map(|coding| world.forms.of(bytes, coding));
    let plain = (response.field("content-encoding").is_none()).then_some(bytes);
    plain.into_iter().chain(coded).any(|form| is_of(request, range, response, form))
}

/// Whether a response is right for one form of a version.
fn is_of(request: &Request, range: Option<(usize, usize)>, response: &Response, bytes: &[u8]) -> bool {
    let length_said = response.field("content-length").and_then(|text| text.parse::<usize>().ok());
    match (response.status, range) {
        (200, None) => {
            let body = if request.is_head { &[][..] } else { bytes };
            length_said == Some(bytes.len()) && response.body == body && response.field("etag").is_some()
        }
        // An empty file has no ranges; it may be sent as it is.
        (200, Some(_)) => bytes.is_empty() && response.body.is_empty(),
        (206, Some((first, last))) if first < bytes.len() => {
            let last = last.min(bytes.len() - 1);
            let place = format!("bytes {first}-{last}/{}", bytes.len());
            response.body == bytes[first..=last] && response.field("content-range") == Some(&place)
        }
        (416, Some((first, _))) => {
            first >= bytes.len()
                && response.field("content-range") == Some(&format!("bytes */{}", bytes.len()))
        }
        _ => false,
    }
}

/// Whether a response that ended too soon may be: the file itself was changed while it was sent.
pub fn may_be_cut(world: &World, request: &Request, sent_at: Duration) -> bool {
    if let Want::Printed { cut, .. } = &request.want {
        let late = world.now > sent_at + site::WALL - Duration::from_secs(1);
        return *cut || late || was_orphaned(world, sent_at);
    }
    let Want::File { path, .. } = &request.want else { return false };
    let from = sent_at.saturating_sub(REVALIDATE);
    // What was damaged stays so until it is looked at again.
    let file = if *path == "/" { "/index.html" } else { *path };
    if world.forms.tampered.iter().any(|(tampered, at)| *tampered == file && *at >= from) {
        return true;
    }
    site::versions(world, path, from).iter().any(|version| version.in_place && version.since >= from)
}
