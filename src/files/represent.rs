//! Files made ready to be sent: entity tags, media types and the lines of a head, all made once per
//! look at a file and not per request.

use std::rc::Rc;

use xxhash_rust::xxh3::xxh3_128;

use super::entry::{Body, Coding, File, Origin, Representation};
use super::negotiate::Choices;
use super::route::Site;
use super::rules::{Headers, push_field};
use super::variants::Footer;
use crate::http::{date, media_types};
use crate::sys::file::Facts;

/// One form of a file, before it is known which others there are.
#[derive(Debug)]
pub struct Piece {
    /// `None`: the file itself.
    pub coding: Option<Coding>,
    /// Where it comes from.
    pub origin: Origin,
    /// Facts of the file that holds it.
    pub facts: Facts,
    /// Whether a later change must show in the facts.
    pub settled: bool,
    /// xxh3_128 of its bytes, where they were at hand.
    pub hash: Option<u128>,
    /// Bytes.
    pub length: u64,
    /// Where the bytes are.
    pub body: Body,
    etag: Box<str>,
}

impl Piece {
    /// A file that was looked at just now.
    pub fn new(coding: Option<Coding>, origin: Origin, facts: Facts, settled: bool, body: Body) -> Self {
        let (hash, length) = match &body {
            Body::Memory(bytes) => (Some(xxh3_128(bytes)), bytes.len() as u64),
            Body::File(_) => (None, facts.size),
        };
        let etag = etag(&facts, settled, hash);
        Self { coding, origin, facts, settled, hash, length, body, etag }
    }

    /// A variant whose footer was found to be right. Nobody changes a variant, so it is settled.
    pub fn variant(coding: Coding, facts: Facts, footer: &Footer, body: Body) -> Self {
        let hash = Some(footer.coded_hash);
        let (coding, origin, length) = (Some(coding), Origin::Cache, footer.coded_length);
        Self { coding, origin, facts, settled: true, hash, length, body, etag: etag(&facts, true, hash) }
    }

    /// A form that is as it was.
    pub fn again(form: &Representation) -> Self {
        Self {
            coding: form.coding,
            origin: form.origin,
            facts: form.facts,
            settled: form.settled,
            hash: form.hash,
            length: form.length,
            body: form.body.clone(),
            etag: form.etag.clone(),
        }
    }
}

/// Different for each form of a file. From the contents where they are known, so that replicas agree
/// and a deploy that resets all times does no harm; else from what changes with them, weak while they
/// may still change without that (RFC 9110 section 8.8.1).
fn etag(facts: &Facts, settled: bool, hash: Option<u128>) -> Box<str> {
    match hash {
        Some(hash) => format!("\"{hash:032x}\""),
        None => {
            let (weak, modified) = (if settled { "" } else { "W/" }, &facts.modified);
            let (seconds, nanoseconds) = (modified.seconds, modified.nanoseconds);
            format!("{weak}\"{:x}-{seconds:x}.{nanoseconds:x}-{:x}\"", facts.size, facts.inode)
        }
    }
    .into()
}

/// Puts the forms of a file together. `asked` is the path of the request, `own_path` that of the
/// file where it is another; the first piece is the file itself, if that is there; `now` is in seconds
/// since 1970.
///
/// A rule's fields are looked for by the path asked for, then by the file's, so that `*.html` also
/// holds for the index of `/`.
pub fn file(site: &Site, asked: &[u8], own_path: Option<&[u8]>, pieces: Vec<Piece>, now: i64) -> File {
    let path = own_path.unwrap_or(asked);
    let headers = site.rules.headers(asked).or_else(|| site.rules.headers(path));
    let own_type = headers.and_then(|headers| headers.content_type.as_deref());
    let guessed = media_types::of(path);
    let content_type = own_type.unwrap_or(&guessed);
    // Also where there is one form only: a cache that keeps it must not give it to others later.
    let varies = pieces.len() > 1 || site.compressible.holds(path);
    let vary = vary(headers, if varies { &["Accept-Encoding"] } else { &[] });
    let modified = pieces.first().map_or(0, |piece| piece.facts.modified.seconds);
    let representations: Vec<_> = pieces
        .into_iter()
        .map(|piece| represent(piece, content_type, modified.min(now), vary.as_deref(), headers))
        .collect();
    let choices = Choices::among(&representations);
    File { path: own_path.map(Into::into), representations, choices, varies, undecodable: false }
}

/// What the answer depends on besides the path (RFC 9110 section 12.5.5): the fields that are `ours`,
/// and what a rule says.
pub fn vary(headers: Option<&Headers>, ours: &[&str]) -> Option<String> {
    let theirs = headers.map_or(&[][..], |headers| &headers.vary);
    let says = |ours: &str| {
        let mut names = theirs.iter().flat_map(|value| value.split(',')).map(str::trim);
        names.any(|name| name == "*" || name.eq_ignore_ascii_case(ours))
    };
    let ours = ours.iter().copied().filter(|ours| !says(ours));
    let values: Vec<&str> = ours.chain(theirs.iter().map(String::as_str)).collect();
    (!values.is_empty()).then(|| values.join(", "))
}

fn represent(
    piece: Piece,
    content_type: &str,
    last_modified: i64,
    vary: Option<&str>,
    headers: Option<&Headers>,
) -> Representation {
    let Piece { coding, origin, facts, settled, hash, length, body, etag } = piece;
    let mut fields = Vec::with_capacity(256);
    push_field(&mut fields, "Content-Type", content_type.as_bytes());
    let type_end = fields.len();
    push_field(&mut fields, "Content-Length", itoa::Buffer::new().format(length).as_bytes());
    let length_end = fields.len();
    if let Some(coding) = coding {
        push_field(&mut fields, "Content-Encoding", coding.name().as_bytes());
    }
    push_field(&mut fields, "ETag", etag.as_bytes());
    // Before 1970 a date can be written, but some clients cannot read it, and the tag is there.
    if last_modified >= 0 {
        push_field(&mut fields, "Last-Modified", &date::format(last_modified));
    }
    fields.extend_from_slice(b"Accept-Ranges: bytes\r\n");

    let mut not_modified = Vec::with_capacity(128);
    push_field(&mut not_modified, "ETag", etag.as_bytes());
    for into in [&mut fields, &mut not_modified] {
        if let Some(vary) = vary {
            push_field(into, "Vary", vary.as_bytes());
        }
    }
    if let Some(headers) = headers {
        fields.extend_from_slice(&headers.fields);
        not_modified.extend_from_slice(&headers.fields_without_content);
    }
    Representation {
        coding,
        origin,
        facts,
        settled,
        hash,
        etag,
        last_modified,
        fields: fields.into(),
        type_end,
        length_end,
        fields_not_modified: Rc::from(not_modified),
        length,
        body,
    }
}
