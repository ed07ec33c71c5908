//! A request and the file it is for: which form, whether it is sent at all, and how much of it.
//!
//! Conditions and ranges are about the form that content negotiation chose, as RFC 9110 section 14.2
//! has it: a client that accepts brotli and asks for a range gets a part of the brotli form, and its
//! tag for If-Range. Browsers send `Accept-Encoding: identity` along with a range for that reason.

use std::ops::Range;
use std::rc::Rc;
use std::time::SystemTime;

use xxhash_rust::xxh3::xxh3_128;

use super::entry::{Body, File, Representation};
use super::errors::Refusal;
use super::rules::push_field;
use super::{Plan, PlanBody};
use crate::http::conditions::{self, Outcome, Validators};
use crate::http::date;
use crate::http::multipart::Multipart;
use crate::http::range::{self, Ranges};
use crate::http::request::Request;

/// Answers a GET or HEAD with a form of a file: 200, 206 or 304; or refuses with 412 or 416.
///
/// # Errors
/// Where a condition does not hold or a range is not there.
pub fn serve(request: &Request<'_>, form: &Representation, wall: SystemTime) -> Result<Plan, Refusal> {
    let validators = Validators {
        etag: Some(form.etag.as_bytes()),
        // As it is sent: a date before 1970 is not.
        modified: (form.last_modified >= 0).then_some(form.last_modified),
    };
    match conditions::evaluate(request.method, &request.fields, validators) {
        Outcome::Proceed => {}
        Outcome::NotModified => {
            let prepared = Some(Rc::clone(&form.fields_not_modified));
            return Ok(Plan { prepared, coding: form.coding, ..Plan::empty(304) });
        }
        Outcome::PreconditionFailed => return Err(Refusal::new(412)),
    }
    if let Some(value) = range::asked(request.method, &request.fields)
        && conditions::if_range(&request.fields, validators, date::seconds(wall))
    {
        return match range::resolve(value, form.length) {
            Ranges::Whole => Ok(whole(form)),
            Ranges::One(range) => Ok(part(form, range)),
            Ranges::Many(ranges) => Ok(parts(form, &ranges)),
            Ranges::Unsatisfiable => {
                let mut value = Vec::new();
                range::unsatisfied_range(&mut value, form.length);
                Err(Refusal::new(416).with("Content-Range", &value))
            }
        };
    }
    Ok(whole(form))
}

/// A refusal with a form of a file as its page, without what is said of it as a resource.
pub fn error_page(file: &File, form: &Representation, refusal: &Refusal) -> Plan {
    let mut extra = Vec::with_capacity(192 + refusal.fields.len());
    extra.extend_from_slice(&form.fields[..form.length_end]);
    if let Some(coding) = form.coding {
        push_field(&mut extra, "Content-Encoding", coding.name().as_bytes());
    }
    if file.varies {
        push_field(&mut extra, "Vary", b"Accept-Encoding");
    }
    extra.extend_from_slice(&refusal.fields);
    Plan { extra, coding: form.coding, body: body(form, 0..form.length), ..Plan::empty(refusal.status) }
}

fn whole(form: &Representation) -> Plan {
    let prepared = Some(Rc::clone(&form.fields));
    Plan { prepared, coding: form.coding, body: body(form, 0..form.length), ..Plan::empty(200) }
}

fn part(form: &Representation, range: Range<u64>) -> Plan {
    let mut content_range = Vec::with_capacity(64);
    range::content_range(&mut content_range, &range, form.length);
    let mut extra = Vec::with_capacity(form.fields.len() + 64);
    extra.extend_from_slice(&form.fields[..form.type_end]);
    push_field(&mut extra, "Content-Length", itoa::Buffer::new().format(range.end - range.start).as_bytes());
    push_field(&mut extra, "Content-Range", &content_range);
    extra.extend_from_slice(&form.fields[form.length_end..]);
    Plan { extra, coding: form.coding, body: body(form, range), ..Plan::empty(206) }
}

fn parts(form: &Representation, ranges: &[Range<u64>]) -> Plan {
    // As good as drawn by lot: what holds the hash of its own hash was not made by accident.
    let boundary = format!("{:032x}", xxh3_128(form.etag.as_bytes()));
    let media_type = form.media_type();
    let multipart = Multipart { boundary: &boundary, media_type, length: form.length };
    let (heads, length) = multipart.parts(ranges);
    let mut parts: Vec<_> =
        heads.into_iter().zip(ranges).map(|(head, range)| (head, body(form, range.clone()))).collect();
    parts.push((multipart.end(), PlanBody::Empty));
    let mut extra = Vec::with_capacity(form.fields.len() + 64);
    push_field(&mut extra, "Content-Type", multipart.content_type().as_bytes());
    push_field(&mut extra, "Content-Length", itoa::Buffer::new().format(length).as_bytes());
    extra.extend_from_slice(&form.fields[form.length_end..]);
    Plan { extra, coding: form.coding, body: PlanBody::Parts(parts), ..Plan::empty(206) }
}

fn body(form: &Representation, range: Range<u64>) -> PlanBody {
    if range.is_empty() {
        return PlanBody::Empty;
    }
    match &form.body {
        Body::Memory(bytes) => {
            // What is in memory has indices that fit.
            let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
            PlanBody::Memory(bytes.clone(), index(range.start)..index(range.end))
        }
        Body::File(file) => PlanBody::File { file: Rc::clone(file), range, facts: form.facts },
    }
}

#[cfg(test)]
mod tests {
    use crate::config;
    use crate::files::testing::{Bench, Shown, rule, site};

    const MODIFIED: &str = "Mon, 12 Jan 1970 13:46:40 GMT";
    const LATER: &str = "Mon, 12 Jan 1970 13:46:41 GMT";

    fn bench() -> Bench {
        let source = "let x = 1;".repeat(9);
        let rules = vec![config::Rule {
            headers: vec![
                ("Cache-Control".into(), "max-age=60".into()),
                ("Content-Language".into(), "en".into()),
                ("Vary".into(), "Origin".into()),
                ("content-length".into(), "1".into()),
            ],
            ..rule("/ruled.*")
        }];
        Bench::new(
            config::Site { rules, ..site() },
            &[
                ("a.txt", "0123456789"),
                ("empty", ""),
                ("large.bin", &"x".repeat(2000)),
                ("a.js", &source),
                ("a.js.br", "brotli"),
                ("a.js.gz", "gzipped"),
                ("ruled.js", &source),
                ("ruled.js.br", "brotli"),
            ],
        )
    }

    #[test]
    fn a_whole_file_has_its_fields() {
        let shown = bench().get("/a.txt", "");
        assert_eq!((shown.status, shown.content.as_str()), (200, "0123456789"));
        assert_eq!(
            shown.fields,
            format!(
                "Content-Type: text/plain; charset=utf-8\r\nContent-Length: 10\r\n\
                 ETag: {}\r\nLast-Modified: {MODIFIED}\r\nAccept-Ranges: bytes\r\n\
                 Vary: Accept-Encoding\r\n",
                shown.field("ETag")
            )
        );
        assert_eq!(shown.field("ETag").len(), 34);
        let large = bench().get("/large.bin", "");
        assert_eq!((large.content.as_str(), large.field("ETag")), ("file 0..2000", "\"7d0-f4240.5-4\""));
        let empty = bench().get("/empty", "");
        assert_eq!((empty.status, empty.field("Content-Length")), (200, "0"));
    }

    /// RFC 9110 section 13.2.2.
    #[test]
    fn conditions_come_in_order() {
        let mut bench = bench();
        let tag = bench.get("/a.txt", "").field("ETag").to_owned();
        for (fields, expected) in [
            (format!("If-None-Match: {tag}"), 304),
            (format!("If-None-Match: W/{tag}"), 304),
            ("If-None-Match: *".into(), 304),
            ("If-None-Match: \"x\"".into(), 200),
            (format!("If-Modified-Since: {MODIFIED}"), 304),
            (format!("If-Modified-Since: {LATER}"), 304),
            (format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {MODIFIED}"), 200),
            (format!("If-Match: {tag}"), 200),
            ("If-Match: \"x\"".into(), 412),
            (format!("If-Match: {tag}\r\nIf-None-Match: {tag}"), 304),
            ("If-Unmodified-Since: Mon, 12 Jan 1970 13:46:39 GMT".into(), 412),
            (format!("If-Unmodified-Since: {MODIFIED}"), 200),
            ("If-Match: \"x\"\r\nRange: bytes=0-1".into(), 412),
            (format!("If-None-Match: {tag}\r\nRange: bytes=99-"), 304),
        ] {
            assert_eq!(bench.get("/a.txt", &format!("{fields}\r\n")).status, expected, "{fields}");
        }
    }

    /// RFC 9110 section 15.4.5.
    #[test]
    fn not_modified_says_what_caches_need() {
        let mut bench = bench();
        let full = bench.get("/ruled.js", "");
        assert_eq!(full.field("Content-Language"), "en");
        let shown = bench.get("/ruled.js", &format!("If-None-Match: {}\r\n", full.field("ETag")));
        assert_eq!(
            shown.fields,
            format!(
                "ETag: {}\r\nVary: Accept-Encoding, Origin\r\nCache-Control: max-age=60\r\n",
                full.field("ETag")
            )
        );
    }

    /// RFC 9110 sections 14.2 and 15.3.7.
    #[test]
    fn ranges_are_parts() {
        let mut bench = bench();
        for (range, status, content_range, content) in [
            ("bytes=2-4", 206, "bytes 2-4/10", "234"),
            ("bytes=7-", 206, "bytes 7-9/10", "789"),
            ("bytes=-3", 206, "bytes 7-9/10", "789"),
            ("bytes=0-99", 206, "bytes 0-9/10", "0123456789"),
            ("bytes=2-4,5-6", 206, "bytes 2-6/10", "23456"),
            ("bytes=9-2", 200, "", "0123456789"),
            ("lines=1-2", 200, "", "0123456789"),
        ] {
            let shown = bench.get("/a.txt", &format!("Range: {range}\r\n"));
            let seen = (shown.status, shown.field("Content-Range"), shown.content.as_str());
            assert_eq!(seen, (status, content_range, content), "{range}");
            assert_eq!(shown.field("Content-Type"), "text/plain; charset=utf-8", "{range}");
            assert_eq!(shown.field("Last-Modified"), MODIFIED, "{range}");
        }
        let refused = bench.get("/a.txt", "Range: bytes=10-\r\n");
        assert_eq!((refused.status, refused.field("Content-Range")), (416, "bytes */10"));
        assert_eq!(bench.get("/large.bin", "Range: bytes=1990-\r\n").content, "file 1990..2000");
        assert_eq!(bench.get("/empty", "Range: bytes=0-1\r\n").status, 416);
        let head = Shown::of(&bench.ask("HEAD", "/a.txt", "Range: bytes=0-1\r\n"));
        assert_eq!(head.status, 200, "ranges are for GET");
    }

    /// RFC 9110 section 14.6.
    #[test]
    fn several_ranges_are_several_parts() {
        let shown = bench().get("/a.txt", "Range: bytes=0-1,-2\r\n");
        let boundary = shown.field("Content-Type").strip_prefix("multipart/byteranges; boundary=");
        let boundary = boundary.expect("multipart");
        let head = |range: &str| {
            format!(
                "\r\n--{boundary}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Range: {range}\r\n\r\n"
            )
        };
        let expected = format!("{}01{}89\r\n--{boundary}--\r\n", head("bytes 0-1/10"), head("bytes 8-9/10"));
        assert_eq!((shown.status, shown.content.as_str()), (206, expected.as_str()));
        assert_eq!(shown.field("Content-Range"), "");
    }

    /// RFC 9110 section 13.1.5.
    #[test]
    fn if_range_needs_the_same_form() {
        let mut bench = bench();
        let tag = bench.get("/a.txt", "").field("ETag").to_owned();
        for (validator, expected) in
            [(tag.as_str(), 206), ("\"x\"", 200), (&format!("W/{tag}"), 200), (MODIFIED, 206), (LATER, 200)]
        {
            let fields = format!("Range: bytes=0-1\r\nIf-Range: {validator}\r\n");
            assert_eq!(bench.get("/a.txt", &fields).status, expected, "{validator}");
        }
    }

    /// RFC 9110 section 12.5.3.
    #[test]
    fn the_smallest_welcome_form_is_sent() {
        let mut bench = bench();
        let mut tags = Vec::new();
        for (accepted, expected) in [
            ("", ""),
            ("Accept-Encoding: gzip", "gzip"),
            ("Accept-Encoding: gzip, deflate, br, zstd", "br"),
            ("Accept-Encoding: zstd", ""),
            ("Accept-Encoding: br;q=0.5, gzip", "gzip"),
            ("Accept-Encoding: identity;q=0", ""),
        ] {
            let fields = if accepted.is_empty() { String::new() } else { format!("{accepted}\r\n") };
            let shown = bench.get("/a.js", &fields);
            assert_eq!((shown.status, shown.field("Content-Encoding")), (200, expected), "{accepted}");
            assert_eq!(shown.field("Vary"), "Accept-Encoding", "{accepted}");
            assert_eq!(shown.field("Content-Type"), "text/javascript; charset=utf-8", "{accepted}");
            tags.push(shown.field("ETag").to_owned());
        }
        tags.sort();
        tags.dedup();
        assert_eq!(tags.len(), 3, "one for each form");
        let part = bench.get("/a.js", "Accept-Encoding: br\r\nRange: bytes=0-2\r\n");
        assert_eq!((part.status, part.content.as_str(), part.field("Content-Encoding")), (206, "bro", "br"));
        assert_eq!(bench.get("/a.txt", "").field("Vary"), "Accept-Encoding", "it may have forms one day");
        assert_eq!(bench.get("/large.bin", "").field("Vary"), "", "nobody compresses it");
    }
}
