//! A request and the file it is for: which form, whether it is sent at all, and how much of it.
//!
//! Conditions and ranges are about the form that content negotiation chose, as RFC 9110 section 14.2
//! has it: a client that accepts brotli and asks for a range gets a part of the brotli form, and its
//! tag for If-Range. Browsers send `Accept-Encoding: identity` along with a range for that reason.

use std::cmp::Reverse;
use std::ops::Range;
use std::rc::Rc;
use std::time::SystemTime;

use xxhash_rust::xxh3::xxh3_128;

use super::entry::{Body, Coding, File, Representation};
use super::errors::Refusal;
use super::rules::push_field;
use super::{Plan, PlanBody};
use crate::http::accept::{Codings, codings};
use crate::http::conditions::{self, Outcome, Validators};
use crate::http::date;
use crate::http::fields::Fields;
use crate::http::multipart::Multipart;
use crate::http::range::{self, Ranges};
use crate::http::request::Request;

/// Answers a GET or HEAD with a file: 200, 206 or 304; or refuses with 412 or 416.
///
/// # Errors
/// Where a condition does not hold or a range is not there.
pub fn serve(request: &Request<'_>, file: &File, wall: SystemTime) -> Result<Plan, Refusal> {
    let form = choose(file, &request.fields);
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

/// A refusal with a file as its page: the file itself, without what is said of it as a resource.
pub fn error_page(file: &File, refusal: &Refusal) -> Plan {
    let form = file.identity();
    let mut extra = Vec::with_capacity(128 + refusal.fields.len());
    extra.extend_from_slice(&form.fields[..form.length_end]);
    extra.extend_from_slice(&refusal.fields);
    Plan { extra, body: body(form, 0..form.length), ..Plan::empty(refusal.status) }
}

/// The form most welcome to the client, of equally welcome ones the smallest. The file itself is
/// sent where nothing is welcome, rather than a refusal that no client knows how to handle.
fn choose<'a>(file: &'a File, fields: &Fields<'_>) -> &'a Representation {
    if file.representations.len() == 1 {
        return file.identity();
    }
    let codings = codings(fields);
    let welcome = |form: &&Representation| (weight(&codings, form.coding), Reverse(form.length));
    let acceptable = file.representations.iter().filter(|form| weight(&codings, form.coding) > 0);
    acceptable.max_by_key(welcome).unwrap_or(file.identity())
}

fn weight(codings: &Codings, coding: Option<Coding>) -> u16 {
    match coding {
        None => codings.identity,
        Some(Coding::Brotli) => codings.brotli,
        Some(Coding::Zstd) => codings.zstd,
        Some(Coding::Gzip) => codings.gzip,
    }
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
