//! Files made ready to be sent: entity tags, media types and the lines of a head, all made once per
//! look at a file and not per request.

use std::rc::Rc;

use xxhash_rust::xxh3::xxh3_128;

use super::entry::{Body, Coding, File, Representation};
use super::route::Site;
use super::rules::{Headers, push_field};
use crate::http::{date, media_types};
use crate::sys::file::Facts;

/// One form of a file, before it is known which others there are.
#[derive(Debug)]
pub struct Piece {
    /// `None`: the file itself.
    pub coding: Option<Coding>,
    /// Facts of the file that holds it.
    pub facts: Facts,
    settled: bool,
    etag: Box<str>,
    body: Body,
}

impl Piece {
    /// A form that was looked at just now.
    pub fn new(coding: Option<Coding>, facts: Facts, settled: bool, body: Body) -> Self {
        let etag = etag(&facts, settled, &body);
        Self { coding, facts, settled, etag, body }
    }

    /// A form that is as it was.
    pub fn again(form: &Representation) -> Self {
        Self {
            coding: form.coding,
            facts: form.facts,
            settled: form.settled,
            etag: form.etag.clone(),
            body: form.body.clone(),
        }
    }
}

/// Different for each form of a file. From the contents where they are at hand, so that replicas
/// agree and a deploy that resets all times does no harm; else from what changes with them, weak while
/// they may still change without that (RFC 9110 section 8.8.1).
fn etag(facts: &Facts, settled: bool, body: &Body) -> Box<str> {
    match body {
        Body::Memory(bytes) => format!("\"{:032x}\"", xxh3_128(bytes)),
        Body::File(_) => {
            let (weak, modified) = (if settled { "" } else { "W/" }, &facts.modified);
            let (seconds, nanoseconds) = (modified.seconds, modified.nanoseconds);
            format!("{weak}\"{:x}-{seconds:x}.{nanoseconds:x}-{:x}\"", facts.size, facts.inode)
        }
    }
    .into()
}

/// Puts the forms of a file together. `asked` is the path of the request, `own_path` that of the
/// file where it is another; the first piece is the file itself; `now` is in seconds since 1970.
///
/// A rule's fields are looked for by the path asked for, then by the file's, so that `*.html` also
/// holds for the index of `/`.
pub fn file(site: &Site, asked: &[u8], own_path: Option<&[u8]>, pieces: Vec<Piece>, now: i64) -> File {
    let path = own_path.unwrap_or(asked);
    let headers = site.rules.headers(asked).or_else(|| site.rules.headers(path));
    let own_type = headers.and_then(|headers| headers.content_type.as_deref());
    let guessed = media_types::of(path);
    let content_type = own_type.unwrap_or(&guessed);
    let vary = vary(headers, (pieces.len() > 1).then_some("Accept-Encoding"));
    let modified = pieces.first().map_or(0, |piece| piece.facts.modified.seconds);
    let representations = pieces
        .into_iter()
        .map(|piece| represent(piece, content_type, modified.min(now), vary.as_deref(), headers))
        .collect();
    File { path: own_path.map(Into::into), representations }
}

/// What the answer depends on besides the path (RFC 9110 section 12.5.5): the field that is `ours`,
/// and what a rule says.
pub fn vary(headers: Option<&Headers>, ours: Option<&str>) -> Option<String> {
    let theirs = headers.map_or(&[][..], |headers| &headers.vary);
    let says = |ours: &str| {
        let mut names = theirs.iter().flat_map(|value| value.split(',')).map(str::trim);
        names.any(|name| name == "*" || name.eq_ignore_ascii_case(ours))
    };
    let ours = ours.filter(|ours| !says(ours));
    let values: Vec<&str> = ours.into_iter().chain(theirs.iter().map(String::as_str)).collect();
    (!values.is_empty()).then(|| values.join(", "))
}

fn represent(
    piece: Piece,
    content_type: &str,
    last_modified: i64,
    vary: Option<&str>,
    headers: Option<&Headers>,
) -> Representation {
    let Piece { coding, facts, settled, etag, body } = piece;
    let length = match &body {
        Body::Memory(bytes) => bytes.len() as u64,
        Body::File(_) => facts.size,
    };
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
        facts,
        settled,
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
