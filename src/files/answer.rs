//! The order of decisions, which operators may rely on:
//!
//! 1. the site, by host: 421 without one;
//! 2. where a program is mounted: 5 and 6 hold there too, then the program, whatever the method;
//! 3. the method: OPTIONS is answered, others but GET and HEAD are refused (405, 501);
//! 4. the path, decoded and normalised: 400;
//! 5. `https_redirect`, but for ACME challenges, which come by plain HTTP (RFC 8555 section 8.3);
//! 6. rules: `allow` and `deny` (403), `redirect`, `auth` (401);
//! 7. hidden names: 404, whatever is there;
//! 8. what the path leads to: a file, a listing, the path with a slash (301), or where nothing is
//!    the site's fallback; rules about who may see it hold for the path of the file as well, where an
//!    index or a clean URL stands for it;
//! 9. for every refusal of these: the site's page for that status, else one of our own.

use std::rc::Rc;

use super::auth::Admission;
use super::entry::{Entry, File, Listing, Representation, Target};
use super::errors::Refusal;
use super::route::Site;
use super::rules::{location, push_field, push_host, push_path, push_query};
use super::{
    Answer, Credential, Files, Mounted, Peer, Plan, PlanBody, Question, auth, decide, errors, listing,
    negotiate, represent,
};
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
    /// Something must be looked up first.
    Lookup(Question),
    /// A password must be verified first.
    Verify(Box<Credential>),
    /// A refusal, for which the site may have a page.
    Refused(Box<Refusal>),
    /// A program answers.
    Program(Box<Mounted>),
}

impl From<Refusal> for Halt {
    fn from(refusal: Refusal) -> Self {
        Halt::Refused(Box::new(refusal))
    }
}

impl From<Question> for Halt {
    fn from(question: Question) -> Self {
        Halt::Lookup(question)
    }
}

impl Halt {
    fn refused(status: u16) -> Self {
        Refusal::new(status).into()
    }
}

/// Decides about a request. `path` is memory to decode into.
pub(super) fn answer(files: &mut Files, asked: &Asked<'_>, path: &mut Vec<u8>) -> Answer {
    let Some(site) = files.sites.find(asked.request.host).map(Rc::clone) else {
        return Answer::Ready(for_method(errors::refuse(421, ""), asked.request.method));
    };
    let plan = match respond(files, asked, &site, path) {
        Ok(plan) => plan,
        Err(Halt::Lookup(question)) => return Answer::Lookup(question),
        Err(Halt::Verify(credential)) => return Answer::Verify(*credential),
        Err(Halt::Program(mounted)) => return Answer::Program(mounted),
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
    let (path, query) = match asked.request.target {
        request::Target::Path { path: encoded, query } => (Some(target::normalise(encoded, path)), query),
        request::Target::Asterisk | request::Target::Authority => (None, None),
    };
    if let Some(Ok(path)) = path
        && let Some(mount) = site.mount(path)
    {
        return mounted(files, asked, site, mount, path, query);
    }
    let path = match (asked.request.method, path) {
        (Method::Options, _) => return Ok(errors::options(ALLOW)),
        (Method::Known, _) => return Err(Refusal::new(405).with("Allow", ALLOW.as_bytes()).into()),
        (Method::Unknown, _) => return Err(Halt::refused(501)),
        (Method::Get | Method::Head, None) => return Err(Halt::refused(400)),
        (Method::Get | Method::Head, Some(path)) => {
            path.map_err(|bad| Refusal { explanation: bad.explanation().into(), ..Refusal::new(400) })?
        }
    };
    if let Some(plan) = by_rules(files, asked, site, path, query)? {
        return Ok(plan);
    }
    if !site.hidden && is_hidden(path) {
        return Err(Halt::refused(404));
    }
    let entry = entry(files, asked, site, path)?;
    match &entry.target {
        Target::File(file) => serve(files, asked, site, path, file),
        Target::Listing(listing) => Ok(list(files, asked.request, site, path, query, listing)),
        Target::Directory => Ok(with_rule_fields(site, path, to_directory(path, query), &[])),
        Target::Refused(404) => fall_back(files, asked, site),
        Target::Refused(status) => Err(refused_entry(*status)),
    }
}

/// What is decided without looking at what is there; `None`: the client may see it.
fn by_rules(
    files: &Files,
    asked: &Asked<'_>,
    site: &Site,
    path: &[u8],
    query: Option<&[u8]>,
) -> Result<Option<Plan>, Halt> {
    if let Some(port) = site.https_redirect
        && !asked.peer.secure
        && !path.starts_with(ACME)
    {
        return to_https(asked.request.host, site, port, path, query).map(Some);
    }
    if !site.rules.allows(path, asked.peer.address) {
        return Err(Halt::refused(403));
    }
    if let Some(redirect) = site.rules.redirect(path) {
        let to = location(&redirect.to, path, query, asked.request.host);
        return Ok(Some(with_rule_fields(site, path, errors::redirect(redirect.status, &to), &[])));
    }
    authorize(files, asked, site, path)?;
    Ok(None)
}

/// The program that answers the path, where the client may see it. Programs take any method but TRACE, which
/// would show them what proxies added.
fn mounted(
    files: &Files,
    asked: &Asked<'_>,
    site: &Site,
    mount: u16,
    path: &[u8],
    query: Option<&[u8]>,
) -> Result<Plan, Halt> {
    if asked.request.method_name == b"TRACE" {
        return Err(Halt::refused(405));
    }
    if let Some(plan) = by_rules(files, asked, site, path, query)? {
        return Ok(plan);
    }
    let credentials = asked.request.fields.only(Known::Authorization).and_then(authorization::basic);
    let user = site.rules.auth(path).and(credentials).map(|basic| basic.user().to_vec());
    let mut fields = Vec::new();
    if let Some(headers) = site.rules.headers(path) {
        fields.extend_from_slice(&headers.fields);
        headers.vary.iter().for_each(|vary| push_field(&mut fields, "Vary", vary.as_bytes()));
    }
    let secure_fields = site.hsts.clone().filter(|_| asked.peer.secure);
    let path = path.to_vec();
    Err(Halt::Program(Box::new(Mounted { site: site.id, mount, path, user, fields, secure_fields })))
}

fn refused_entry(status: u16) -> Halt {
    match status {
        // Means of the system come back within moments.
        503 => Refusal::new(503).with("Retry-After", b"1").into(),
        status => Halt::refused(status),
    }
}

/// What a path leads to, as far as it is known.
fn entry(files: &mut Files, asked: &Asked<'_>, site: &Site, path: &[u8]) -> Result<Rc<Entry>, Question> {
    // The last: it may have been looked up again for its plain form.
    let mut found = asked.found.iter().rev();
    if let Some((_, entry)) = found.find(|(question, _)| question.site == site.id && question.path == path) {
        return Ok(Rc::clone(entry));
    }
    match files.cache.fresh(site.id, path, asked.clock.now) {
        Some(entry) => Ok(Rc::clone(entry)),
        None => Err(Question { site: site.id, path: path.to_vec(), plain: false }),
    }
}

/// The form of the file at `path` for the client.
fn form<'a>(
    files: &mut Files,
    asked: &Asked<'_>,
    site: &Site,
    path: &[u8],
    file: &'a File,
) -> Result<&'a Representation, Question> {
    negotiate::choose(file, &asked.request.fields, &mut files.accepts).ok_or_else(|| Question {
        site: site.id,
        path: path.to_vec(),
        plain: true,
    })
}

fn serve(files: &mut Files, asked: &Asked<'_>, site: &Site, path: &[u8], file: &File) -> Result<Plan, Halt> {
    if let Some(own) = &file.path {
        admit(files, asked, site, own)?;
    }
    let form = form(files, asked, site, path, file)?;
    Ok(decide::serve(asked.request, form, asked.clock.wall)?)
}

/// A page of a single-page application, which finds out itself what the path means.
fn fall_back(files: &mut Files, asked: &Asked<'_>, site: &Site) -> Result<Plan, Halt> {
    let Some(path) = &site.fallback else { return Err(Halt::refused(404)) };
    admit(files, asked, site, path)?;
    let entry = entry(files, asked, site, path)?;
    match &entry.target {
        Target::File(file) => serve(files, asked, site, path, file),
        Target::Refused(status @ 500..) => Err(refused_entry(*status)),
        _ => Err(Halt::refused(404)),
    }
}

/// The site's page for a refusal, or ours.
fn error_page(
    files: &mut Files,
    asked: &Asked<'_>,
    site: &Site,
    refusal: &Refusal,
) -> Result<Plan, Question> {
    let Some(path) = site.error_page(refusal.status) else { return Ok(refusal.page()) };
    let entry = entry(files, asked, site, path)?;
    match &entry.target {
        Target::File(file) => {
            let form = form(files, asked, site, path, file)?;
            Ok(decide::error_page(file, form, refusal))
        }
        _ => Ok(refusal.page()),
    }
}

/// Whether the client may see what another path than its own leads it to.
fn admit(files: &Files, asked: &Asked<'_>, site: &Site, path: &[u8]) -> Result<(), Halt> {
    if !site.rules.allows(path, asked.peer.address) {
        return Err(Halt::refused(403));
    }
    authorize(files, asked, site, path)
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
        Admission::Verify(credential) => Err(Halt::Verify(Box::new(credential))),
        Admission::Denied => {
            let challenge = auth::challenge(&auth.realm);
            Err(Refusal::new(401).with("WWW-Authenticate", challenge.as_bytes()).into())
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

/// With the fields of the path's rule; `vary` is what the answer depends on by itself.
fn with_rule_fields(site: &Site, path: &[u8], mut plan: Plan, vary: &[&str]) -> Plan {
    let headers = site.rules.headers(path);
    if let Some(vary) = represent::vary(headers, vary) {
        push_field(&mut plan.extra, "Vary", vary.as_bytes());
    }
    if let Some(headers) = headers {
        plan.extra.extend_from_slice(&headers.fields_without_content);
    }
    plan
}

fn list(
    files: &mut Files,
    request: &Request<'_>,
    site: &Site,
    path: &[u8],
    query: Option<&[u8]>,
    names: &Listing,
) -> Plan {
    let form = listing::Form { json: prefers_json(&request.fields), order: listing::Order::of(query) };
    let content_type = if form.json { "application/json" } else { "text/html; charset=utf-8" };
    let wanted = negotiate::cheap(&request.fields, &mut files.accepts);
    let gauge = &files.memory.budget.gauge;
    let (coding, bytes) = names.rendered(form, wanted, gauge, || listing::render(path, names, form));
    let length = bytes.len();
    let mut extra = Vec::with_capacity(160);
    push_field(&mut extra, "Content-Type", content_type.as_bytes());
    push_field(&mut extra, "Content-Length", itoa::Buffer::new().format(length).as_bytes());
    if let Some(coding) = coding {
        push_field(&mut extra, "Content-Encoding", coding.name().as_bytes());
    }
    let plan = Plan { extra, coding, body: PlanBody::Memory(bytes, 0..length), ..Plan::empty(200) };
    with_rule_fields(site, path, plan, &["Accept", "Accept-Encoding"])
}

#[cfg(test)]
mod tests {
    use crate::config::{self, Auth, Redirect};
    use crate::files::compress;
    use crate::files::entry::Coding;
    use crate::files::testing::{Bench, Node, Shown, rule, site};
    use crate::sys::Errno;

    const TREE: [(&str, &str); 8] = [
        ("index.html", "root"),
        ("404.html", "own 404"),
        ("a.txt", "text"),
        ("d/index.html", "d"),
        ("e/b c.txt", "b"),
        (".git/config", "secret"),
        (".well-known/acme-challenge/token", "proof"),
        (".well-known/.x", "x"),
    ];

    fn status(site: &config::Site, method: &str, target: &str) -> u16 {
        Shown::of(&Bench::new(site.clone(), &TREE).ask(method, target, "")).status
    }

    #[test]
    fn methods_paths_and_names_have_their_status() {
        for (method, target, expected) in [
            ("GET", "/", 200),
            ("HEAD", "/a.txt", 200),
            ("OPTIONS", "/a.txt", 204),
            ("OPTIONS", "*", 204),
            ("POST", "/a.txt", 405),
            ("BREW", "/a.txt", 501),
            ("GET", "/a.txt/", 404),
            ("GET", "/none", 404),
            ("GET", "/d", 301),
            ("GET", "/e/", 404),
            ("GET", "/e/b%20c.txt", 200),
            ("GET", "/e/../a.txt", 200),
            ("GET", "//a.txt", 200),
            ("GET", "/a%2ftxt", 400),
            ("GET", "/a%00", 400),
            ("GET", "/../a.txt", 400),
            ("GET", "/.git/config", 404),
            ("GET", "/%2egit/config", 404),
            ("GET", "/d/.x", 404),
            ("GET", "/.well-known/acme-challenge/token", 200),
            ("GET", "/.well-known", 301),
            ("GET", "/.well-known/.x", 404),
            ("GET", "/d/.well-known/x", 404),
        ] {
            assert_eq!(status(&site(), method, target), expected, "{method} {target}");
        }
        let open = config::Site { hidden: true, ..site() };
        assert_eq!(status(&open, "GET", "/.git/config"), 200);
    }

    #[test]
    fn refusals_say_what_the_rfc_wants() {
        let mut bench = Bench::new(site(), &TREE);
        assert_eq!(Shown::of(&bench.ask("PUT", "/", "")).field("Allow"), "GET, HEAD, OPTIONS");
        assert_eq!(Shown::of(&bench.ask("OPTIONS", "/", "")).field("Allow"), "GET, HEAD, OPTIONS");
        bench.tree.put_node("busy", Node::Refuses(Errno::MFILE));
        let busy = bench.get("/busy", "");
        assert_eq!((busy.status, busy.field("Retry-After")), (503, "1"));
        bench.tree.put("busy", "calm");
        assert_eq!(bench.get("/busy", "").status, 200, "and is not remembered");
        let mut named = Bench::new(config::Site { hosts: vec!["other".into()], ..site() }, &TREE);
        assert_eq!(named.get("/", "").status, 421);
    }

    #[test]
    fn head_is_get_without_content() {
        let mut bench = Bench::new(config::Site { listing: true, ..site() }, &TREE);
        for target in ["/a.txt", "/none", "/d", "/e/", "/e/b%20c.txt?x"] {
            let get = bench.get(target, "");
            let head = Shown::of(&bench.ask("HEAD", target, ""));
            assert_eq!((get.status, &get.fields), (head.status, &head.fields), "{target}");
            assert_eq!(head.content, "", "{target}");
        }
    }

    #[test]
    fn a_hit_asks_for_nothing() {
        let mut bench = Bench::new(site(), &TREE);
        bench.get("/a.txt", "");
        assert!(!bench.tree.asked.is_empty());
        let shown = bench.get("/a.txt", "");
        assert_eq!((shown.status, shown.content.as_str()), (200, "text"));
        assert!(bench.tree.asked.is_empty());
        bench.get("/none", "");
        assert_eq!(bench.get("/none", "").status, 404);
        assert!(bench.tree.asked.is_empty());
        bench.tree.put("a.txt", "changed");
        bench.tree.put("none", "now here");
        bench.clock.now += std::time::Duration::from_secs(1);
        assert_eq!(bench.get("/a.txt", "").content, "changed");
        assert_eq!(bench.get("/none", "").content, "now here");
        bench.tree.put("a.txt", "flipped");
        bench.files.forget_site(0);
        assert_eq!(bench.get("/a.txt", "").content, "flipped");
    }

    #[test]
    fn who_cannot_be_served_now_takes_nothing_from_others() {
        let mut bench = Bench::new(site(), &[]);
        let coded = compress::cheaply(&[b'x'; 2000], Coding::Gzip).expect("it compresses");
        bench.tree.put("a.js.gz", coded);
        bench.tree.put("a.txt", "text");
        assert_eq!(bench.get("/a.js", "Accept-Encoding: gzip\r\n").field("Content-Encoding"), "gzip");
        bench.get("/a.txt", "");
        let rest = (1 << 20) - bench.files.stats().bytes;
        let all = bench.files.memory.budget.reserve(rest).expect("all memory");
        assert_eq!(bench.get("/a.js", "").status, 503, "no memory to decode it");
        assert_eq!(bench.get("/a.js", "Accept-Encoding: gzip\r\n").status, 200);
        assert!(bench.tree.asked.is_empty(), "as good as it was");
        drop(all);
        assert_eq!(bench.get("/a.js", "").content, "x".repeat(2000));

        // The file is as it was when there are descriptors again, and is not read again.
        bench.clock.now += std::time::Duration::from_secs(1);
        let there = bench.tree.replace_node("a.txt", Node::Refuses(Errno::MFILE));
        assert_eq!(bench.get("/a.txt", "").status, 503);
        bench.tree.put_node("a.txt", there);
        assert_eq!(bench.get("/a.txt", "").content, "text");
        assert!(!bench.tree.asked.iter().any(|asked| asked.starts_with("read")), "{:?}", bench.tree.asked);
    }

    #[test]
    fn directories_redirect_to_their_slash() {
        let mut bench = Bench::new(site(), &TREE);
        let check = |bench: &mut Bench, target: &str, expected: &str| {
            let shown = bench.get(target, "");
            assert_eq!((shown.status, shown.field("Location")), (301, expected), "{target}");
        };
        check(&mut bench, "/d", "/d/");
        check(&mut bench, "/d?a=1&b=%20", "/d/?a=1&b=%20");
        bench.tree.put("x y:/z", "");
        check(&mut bench, "/x%20y:", "/x%20y%3A/");
    }

    #[test]
    fn where_nothing_is_the_fallback_answers_and_then_the_error_page() {
        let fallback = config::Site { fallback: Some("/index.html".into()), ..site() };
        let mut bench = Bench::new(fallback.clone(), &TREE);
        let shown = bench.get("/app/route", "");
        assert_eq!((shown.status, shown.content.as_str()), (200, "root"));
        let tag = format!("If-None-Match: {}\r\n", shown.field("ETag"));
        assert_eq!(bench.get("/app/other", &tag).status, 304);
        assert_eq!(bench.get("/.git/config", "").status, 404);

        let page = config::Site { error_pages: vec![(404, "/404.html".into())], ..site() };
        let mut bench = Bench::new(page.clone(), &TREE);
        let shown = bench.get("/none", "Range: bytes=0-1\r\nIf-None-Match: *\r\n");
        assert_eq!((shown.status, shown.content.as_str(), shown.field("ETag")), (404, "own 404", ""));
        assert_eq!(shown.field("Content-Type"), "text/html; charset=utf-8");
        assert_eq!(bench.get("/404.html", "").status, 200);

        let missing = config::Site { fallback: Some("/none.html".into()), ..page };
        assert_eq!(Bench::new(missing, &TREE).get("/x", "").content, "own 404");
        let missing = config::Site { error_pages: vec![(404, "/none.html".into())], ..site() };
        assert!(Bench::new(missing, &TREE).get("/x", "").content.contains("<h1>404"));
        let methods = config::Site { error_pages: vec![(405, "/404.html".into())], ..site() };
        let shown = Shown::of(&Bench::new(methods, &TREE).ask("POST", "/", ""));
        assert_eq!((shown.content.as_str(), shown.field("Allow")), ("own 404", "GET, HEAD, OPTIONS"));
    }

    #[test]
    fn plain_http_is_sent_to_https() {
        let redirect = |port| config::Site { https_redirect: Some(port), ..site() };
        let mut bench = Bench::new(redirect(443), &TREE);
        let shown = bench.get("/none?x=1", "");
        assert_eq!((shown.status, shown.field("Location")), (308, "https://h/none?x=1"));
        assert_eq!(bench.get("/.well-known/acme-challenge/token", "").content, "proof");
        bench.peer.secure = true;
        assert_eq!(bench.get("/a.txt", "").status, 200);
        let mut bench = Bench::new(redirect(8443), &TREE);
        assert_eq!(bench.get("/", "").field("Location"), "https://h:8443/");
        bench.host = "";
        assert_eq!(bench.get("/", "").status, 400, "nowhere to go");
        let named = config::Site { hosts: vec!["*.x".into(), "n.x".into()], ..redirect(443) };
        let mut bench = Bench::new(named, &TREE);
        bench.host = "A.x";
        assert_eq!(bench.get("/", "").field("Location"), "https://A.x/");
    }

    #[test]
    fn hsts_is_said_on_secure_connections_only() {
        let mut bench = Bench::new(config::Site { hsts: Some("max-age=1".into()), ..site() }, &TREE);
        assert_eq!(bench.get("/", "").field("Strict-Transport-Security"), "");
        bench.peer.secure = true;
        for target in ["/", "/none", "/d"] {
            assert_eq!(bench.get(target, "").field("Strict-Transport-Security"), "max-age=1", "{target}");
        }
    }

    #[test]
    fn rules_are_asked_in_order() {
        let auth = Auth { realm: "a \"b\"".into(), users: vec![("ann".into(), "hash".into())] };
        let rules = vec![
            config::Rule { deny: vec!["127.0.0.0/8".parse().expect("a net")], ..rule("/denied/**") },
            config::Rule {
                redirect: Some(Redirect { to: "https://n{path}?{query}".into(), status: 302 }),
                headers: vec![("X-Moved".into(), "yes".into())],
                ..rule("/moved/**")
            },
            config::Rule { auth: Some(auth), ..rule("/d/index.html") },
            config::Rule { headers: vec![("Cache-Control".into(), "no-cache".into())], ..rule("*.html") },
        ];
        let mut bench = Bench::new(config::Site { rules, ..site() }, &TREE);
        assert_eq!(bench.get("/denied/x", "").status, 403);
        bench.peer.address = None;
        assert_eq!(bench.get("/denied/x", "").status, 404);
        let moved = bench.get("/moved/a b?q", "");
        assert_eq!((moved.status, moved.field("Location")), (302, "https://n/moved/a%20b?q"));
        assert_eq!(moved.field("X-Moved"), "yes");
        assert_eq!(bench.get("/", "").field("Cache-Control"), "no-cache", "of the index");
        assert_eq!(bench.get("/a.txt", "").field("Cache-Control"), "");

        let ann = "Authorization: Basic YW5uOnB3\r\n";
        for target in ["/d/", "/d/index.html"] {
            let shown = bench.get(target, "");
            assert_eq!(shown.status, 401, "{target}");
            let expected = "Basic realm=\"a \\\"b\\\"\", charset=\"UTF-8\"";
            assert_eq!(shown.field("WWW-Authenticate"), expected);
        }
        assert_eq!((bench.get("/d/", ann).status, bench.verified), (401, 1));
        assert_eq!((bench.get("/d/", ann).status, bench.verified), (401, 1), "remembered for a while");
        bench.clock.now += std::time::Duration::from_secs(60);
        bench.right = true;
        assert_eq!((bench.get("/d/", ann).status, bench.verified), (200, 2));
        assert_eq!((bench.get("/d/index.html", ann).status, bench.verified), (200, 2));
        for junk in ["Basic !", "Bearer YW5uOnB3", "Basic YW5u"] {
            assert_eq!(bench.get("/d/", &format!("Authorization: {junk}\r\n")).status, 401, "{junk}");
        }
        assert_eq!(bench.verified, 2);
    }

    #[test]
    fn listings_come_in_the_form_asked_for() {
        let rules = vec![config::Rule {
            headers: vec![("X-L".into(), "1".into()), ("vary".into(), "Origin".into())],
            ..rule("/e/")
        }];
        let mut bench = Bench::new(config::Site { listing: true, rules, ..site() }, &TREE);
        let page = bench.get("/e/?sort=size&order=desc", "Accept: text/html\r\n");
        assert!(page.content.contains("<a href=\"b%20c.txt\">b c.txt</a>"), "{}", page.content);
        assert_eq!((page.field("Vary"), page.field("X-L")), ("Accept, Accept-Encoding, Origin", "1"));
        let json = bench.get("/e/", "Accept: application/json\r\n");
        assert_eq!(json.field("Content-Type"), "application/json");
        assert!(json.content.starts_with("{\"path\":\"/e/\""), "{}", json.content);
        assert!(bench.tree.asked.is_empty(), "both from one look");
    }
}
