//! The order of decisions, which operators may rely on:
//!
//! 1. the site, by host: 421 without one;
//! 2. the method: OPTIONS is answered, others but GET and HEAD are refused (405, 501);
//! 3. the path, decoded and normalised: 400;
//! 4. `https_redirect`, but for ACME challenges, which come by plain HTTP (RFC 8555 section 8.3);
//! 5. rules: `allow` and `deny` (403), `redirect`, `auth` (401);
//! 6. hidden names: 404, whatever is there;
//! 7. what the path leads to: a file, a listing, the path with a slash (301), or where nothing is
//!    the site's fallback; rules about who may see it hold for the path of the file as well, where an
//!    index or a clean URL stands for it;
//! 8. for every refusal of these: the site's page for that status, else one of our own.

use std::rc::Rc;

use super::auth::Admission;
use super::entry::{Entry, File, Listing, Target};
use super::route::Site;
use super::errors::Refusal;
use super::rules::{location, push_field, push_host, push_path, push_query};
use super::{Answer, Files, Peer, Plan, PlanBody, Question, auth, decide, errors, listing};
use crate::http::accept::prefers_json;
use crate::http::fields::Known;
use crate::http::method::ALLOW;
use crate::http::request::{self, Method, Request};
use crate::http::{authorization, target};
use crate::ring::Clock;

/// Where certificate authorities look for proof (RFC 8555 section 8.3).
const ACME: &[u8] = b"/.well-known/acme-challenge/";

/// One request and what is known for it.
pub(super) struct Asked<'a> {
    pub request: &'a Request<'a>,
    pub peer: &'a Peer,
    pub clock: Clock,
    pub found: &'a [(Question, Rc<Entry>)],
}

/// Why there is no plan yet, or not the one that was aimed at.
enum Halt {
    /// Something must be found out first.
    Pending(Answer),
    /// A refusal, for which the site may have a page.
    Refused(Refusal),
}

impl Halt {
    fn refused(status: u16) -> Self {
        Halt::Refused(Refusal::new(status))
    }
}

/// Decides about a request. `path` is memory to decode into.
pub(super) fn answer(files: &mut Files, asked: &Asked<'_>, path: &mut Vec<u8>) -> Answer {
    let Some(site) = files.sites.find(asked.request.host).map(Rc::clone) else {
        return Answer::Ready(for_method(errors::refuse(421, ""), asked.request.method));
    };
    let plan = match respond(files, asked, &site, path) {
        Ok(plan) => plan,
        Err(Halt::Pending(answer)) => return answer,
        Err(Halt::Refused(refusal)) => match error_page(files, asked, &site, &refusal) {
            Ok(plan) => plan,
            Err(question) => return Answer::Lookup(question),
        },
    };
    let site = if asked.peer.secure { site.hsts.clone() } else { None };
    Answer::Ready(Plan { site, ..for_method(plan, asked.request.method) })
}

/// HEAD is GET without the content (RFC 9110 section 9.3.2).
fn for_method(plan: Plan, method: Method) -> Plan {
    if method == Method::Head { Plan { body: PlanBody::Empty, ..plan } } else { plan }
}

fn respond(files: &mut Files, asked: &Asked<'_>, site: &Site, path: &mut Vec<u8>) -> Result<Plan, Halt> {
    let (encoded, query) = match (asked.request.method, asked.request.target) {
        (Method::Options, _) => return Ok(errors::options(ALLOW)),
        (Method::Known, _) | (_, request::Target::Authority) => {
            return Err(Halt::Refused(Refusal::new(405).with("Allow", ALLOW.as_bytes())));
        }
        (Method::Unknown, _) => return Err(Halt::refused(501)),
        (Method::Get | Method::Head, request::Target::Asterisk) => return Err(Halt::refused(400)),
        (Method::Get | Method::Head, request::Target::Path { path, query }) => (path, query),
    };
    let path = target::normalise(encoded, path).map_err(|bad| {
        Halt::Refused(Refusal { explanation: bad.explanation().into(), ..Refusal::new(400) })
    })?;

    if let Some(port) = site.https_redirect
        && !asked.peer.secure
        && !path.starts_with(ACME)
    {
        return to_https(asked.request.host, site, port, path, query);
    }
    if !site.rules.allows(path, asked.peer.address) {
        return Err(Halt::refused(403));
    }
    if let Some(redirect) = site.rules.redirect(path) {
        let to = location(&redirect.to, path, query, asked.request.host);
        return Ok(with_rule_fields(site, path, errors::redirect(redirect.status, &to)));
    }
    authorize(files, asked, site, path)?;
    if !site.hidden && is_hidden(path) {
        return Err(Halt::refused(404));
    }
    let entry = entry(files, asked, site, path).map_err(|question| Halt::Pending(Answer::Lookup(question)))?;
    match &entry.target {
        Target::File(file) => serve(files, asked, site, file),
        Target::Listing(listing) => Ok(list(asked.request, site, path, query, listing)),
        Target::Directory => Ok(with_rule_fields(site, path, to_directory(path, query))),
        Target::Refused(404) => fall_back(files, asked, site),
        Target::Refused(status) => Err(refused_entry(*status)),
    }
}

fn refused_entry(status: u16) -> Halt {
    match status {
        // Means of the system come back within moments.
        503 => Halt::Refused(Refusal::new(503).with("Retry-After", b"1")),
        status => Halt::refused(status),
    }
}

/// What a path leads to, as far as it is known.
fn entry(files: &mut Files, asked: &Asked<'_>, site: &Site, path: &[u8]) -> Result<Rc<Entry>, Question> {
    let looked_up = asked.found.iter().find(|(question, _)| question.site == site.id && question.path == path);
    if let Some((_, entry)) = looked_up {
        return Ok(Rc::clone(entry));
    }
    match files.cache.fresh(site.id, path, asked.clock.now) {
        Some(entry) => Ok(Rc::clone(entry)),
        None => Err(Question { site: site.id, path: path.to_vec() }),
    }
}

fn serve(files: &Files, asked: &Asked<'_>, site: &Site, file: &File) -> Result<Plan, Halt> {
    if let Some(path) = &file.path {
        if !site.rules.allows(path, asked.peer.address) {
            return Err(Halt::refused(403));
        }
        authorize(files, asked, site, path)?;
    }
    decide::serve(asked.request, file, asked.clock.wall).map_err(Halt::Refused)
}

/// A page of a single-page application, which finds out itself what the path means.
fn fall_back(files: &mut Files, asked: &Asked<'_>, site: &Site) -> Result<Plan, Halt> {
    let Some(path) = &site.fallback else { return Err(Halt::refused(404)) };
    let entry = entry(files, asked, site, path).map_err(|question| Halt::Pending(Answer::Lookup(question)))?;
    match &entry.target {
        Target::File(file) => serve(files, asked, site, file),
        Target::Refused(status @ 500..) => Err(refused_entry(*status)),
        _ => Err(Halt::refused(404)),
    }
}

/// The site's page for a refusal, or ours.
fn error_page(files: &mut Files, asked: &Asked<'_>, site: &Site, refusal: &Refusal) -> Result<Plan, Question> {
    let Some(path) = site.error_page(refusal.status) else { return Ok(refusal.page()) };
    let entry = entry(files, asked, site, path)?;
    match &entry.target {
        Target::File(file) => Ok(decide::error_page(file, refusal)),
        _ => Ok(refusal.page()),
    }
}

fn authorize(files: &Files, asked: &Asked<'_>, site: &Site, path: &[u8]) -> Result<(), Halt> {
    let Some(auth) = site.rules.auth(path) else { return Ok(()) };
    let credentials = asked.request.fields.only(Known::Authorization).and_then(authorization::basic);
    let admission = match &credentials {
        Some(basic) => files.verdicts.admit(auth, basic.user(), basic.password(), asked.clock.now),
        None => Admission::Denied,
    };
    match admission {
        Admission::Granted => Ok(()),
        Admission::Verify(credential) => Err(Halt::Pending(Answer::Verify(credential))),
        Admission::Denied => {
            let challenge = auth::challenge(&auth.realm);
            Err(Halt::Refused(Refusal::new(401).with("WWW-Authenticate", challenge.as_bytes())))
        }
    }
}

/// Whether a segment begins with a dot, but for `/.well-known/` (RFC 8615).
fn is_hidden(path: &[u8]) -> bool {
    if path == b"/.well-known" {
        return false;
    }
    let path = path.strip_prefix(b"/.well-known/").unwrap_or(path);
    path.first() == Some(&b'.')
        || memchr::memchr_iter(b'.', path).any(|dot| dot > 0 && path.get(dot - 1) == Some(&b'/'))
}

fn to_https(host: &[u8], site: &Site, port: u16, path: &[u8], query: Option<&[u8]>) -> Result<Plan, Halt> {
    let host = match (host, &site.name) {
        (b"", Some(name)) => name.as_slice(),
        // HTTP/1.0 to a site without a name: there is no telling where it should go.
        (b"", None) => return Err(Halt::refused(400)),
        (host, _) => host,
    };
    let mut to = b"https://".to_vec();
    push_host(&mut to, host);
    if port != 443 {
        to.push(b':');
        to.extend_from_slice(itoa::Buffer::new().format(port).as_bytes());
    }
    push_path_and_query(&mut to, path, query);
    // 308 rather than 301, so that no client changes the method one day.
    Ok(errors::redirect(308, &to))
}

/// Within the site, so that it holds whatever name and scheme a proxy in front has.
fn to_directory(path: &[u8], query: Option<&[u8]>) -> Plan {
    let mut to = Vec::with_capacity(path.len() + 16);
    push_path_and_query(&mut to, &[path, b"/"].concat(), query);
    errors::redirect(301, &to)
}

fn push_path_and_query(into: &mut Vec<u8>, path: &[u8], query: Option<&[u8]>) {
    push_path(into, path);
    if let Some(query) = query {
        into.push(b'?');
        push_query(into, query);
    }
}

fn with_rule_fields(site: &Site, path: &[u8], mut plan: Plan) -> Plan {
    if let Some(headers) = site.rules.headers(path) {
        plan.extra.extend_from_slice(&headers.fields_without_content);
    }
    plan
}

fn list(request: &Request<'_>, site: &Site, path: &[u8], query: Option<&[u8]>, names: &Listing) -> Plan {
    let order = listing::Order::of(query);
    let (content_type, text) = if prefers_json(&request.fields) {
        ("application/json", listing::json(path, names, order))
    } else {
        ("text/html; charset=utf-8", listing::html(path, names, order))
    };
    let mut extra = Vec::with_capacity(128);
    push_field(&mut extra, "Content-Type", content_type.as_bytes());
    push_field(&mut extra, "Content-Length", itoa::Buffer::new().format(text.len()).as_bytes());
    push_field(&mut extra, "Vary", b"Accept");
    with_rule_fields(site, path, Plan { extra, body: PlanBody::Text(text), ..Plan::empty(200) })
}
