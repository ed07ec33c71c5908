//! `[[site.rule]]`: fields, redirects, passwords and addresses for some paths.

use super::file::{self, At};
use super::glob::Glob;
use super::listeners::ranges;
use super::report::{Place, Problem};
use super::resolve::Resolver;
use super::suggest;
use super::{Auth, Redirect, Rule, htpasswd};

/// What a rule may not set: fields that cut the message or say how it travels, and those whose truth only
/// the server knows.
const NOT_SETTABLE: [&str; 16] = [
    "Accept-Ranges",
    "Connection",
    "Content-Encoding",
    "Content-Length",
    "Content-Range",
    "Date",
    "ETag",
    "Keep-Alive",
    "Last-Modified",
    "Proxy-Connection",
    "Server",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
    "WWW-Authenticate",
];

/// RFC 9110 section 15.4: those that lead elsewhere.
const REDIRECTS: [i64; 5] = [301, 302, 303, 307, 308];

/// Keeps the method and is not remembered: a slip can be taken back.
const REDIRECT: u16 = 307;

const PLACEHOLDERS: [&str; 3] = ["path", "query", "host"];

/// Resolves the rules of a site.
pub fn resolve(site: &file::Site, own: &mut Resolver) -> Vec<Rule> {
    site.rule.iter().flat_map(|rules| &rules.value).filter_map(|table| one(table, own)).collect()
}

fn one(table: &file::Rule, own: &mut Resolver) -> Option<Rule> {
    let rule = Rule {
        pattern: table.pattern.as_ref().map(|pattern| pattern.value.clone()).unwrap_or_default(),
        headers: headers(table, own),
        redirect: redirect(table, own),
        auth: table.auth.as_ref().and_then(|auth| self::auth(auth, own)),
        allow: ranges(&table.allow, own),
        deny: ranges(&table.deny, own),
    };
    let idle = table.headers.is_none() && table.redirect.is_none() && table.auth.is_none();
    let meant = ["headers", "redirect", "auth", "allow", "deny"]
        .iter()
        .any(|key| own.problems.is_meant(&table.at, &format!("site.rule.{key}")));
    if idle && table.allow.is_none() && table.deny.is_none() && !meant {
        let help = "add headers, redirect, auth, allow or deny, or remove the rule";
        own.problems.at(&table.at, "this rule does nothing", help);
    }
    // An empty list would let in whom it was meant to keep out.
    for (name, list) in [("allow", &table.allow), ("deny", &table.deny)] {
        if let Some(list) = list.as_ref().filter(|list| list.value.is_empty()) {
            let help = "to keep everyone out, write deny = [\"0.0.0.0/0\", \"::/0\"]";
            own.problems.at(&list.span, format!("`site.rule.{name}` is empty"), help);
        }
    }
    let Some(pattern) = &table.pattern else {
        own.problems.missing(
            &table.at,
            "site.rule.match",
            "[[site.rule]] lacks its `match`",
            "add match = \"/**\" for all paths",
        );
        return None;
    };
    if let Err(bad) = Glob::new(&pattern.value) {
        let help =
            "`*` stands for a part of a segment, `**` for any path, `?` for a letter, `{a,b}` for either";
        own.problems.at(&pattern.span, format!("`{}` cannot match: {}", pattern.value, bad.text()), help);
    }
    Some(rule)
}

/// RFC 9110 sections 5.1 and 5.5.
fn headers(table: &file::Rule, own: &mut Resolver) -> Vec<(String, String)> {
    let pairs = table.headers.as_ref().map_or(&[][..], |pairs| &pairs.value.0);
    let mut headers: Vec<(String, String)> = Vec::new();
    for (name, value) in pairs {
        if name.value.is_empty() || !name.value.bytes().all(is_token) {
            let what = format!("`{}` is not the name of a header field", name.value);
            own.problems.at(&name.span, what, "names are made of letters, digits and hyphens");
        } else if NOT_SETTABLE.iter().any(|other| other.eq_ignore_ascii_case(&name.value)) {
            let help = match name.value.eq_ignore_ascii_case("Server") {
                true => "set `name` in [server] instead",
                false => "remove it: the server sets it where it is true",
            };
            own.problems.at(&name.span, format!("`{}` cannot be set by a rule", name.value), help);
        } else if headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(&name.value)) {
            own.problems.at(
                &name.span,
                format!("`{}` is set twice, case does not count", name.value),
                "keep one",
            );
        }
        if value.value.chars().any(|letter| letter.is_control() && letter != '\t') {
            own.problems.at(
                &value.span,
                format!("the value of `{}` holds a control character", name.value),
                "",
            );
        } else if value.value.trim() != value.value {
            let what = format!("the value of `{}` begins or ends with a space", name.value);
            own.problems.at(&value.span, what, "remove it");
        }
        headers.push((name.value.clone(), value.value.clone()));
    }
    headers
}

/// RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn redirect(table: &file::Rule, own: &mut Resolver) -> Option<Redirect> {
    if let Some(status) = &table.status {
        if !REDIRECTS.contains(&status.value) {
            let help = "it is 301 or 308 for good, 302 or 307 for now, 303 to fetch another page";
            own.problems.at(&status.span, format!("{} is not the status of a redirect", status.value), help);
        }
        if table.redirect.is_none() {
            own.problems.at(
                &status.span,
                "`site.rule.status` is for redirects",
                "add `redirect`, or remove it",
            );
        }
    }
    let to = table.redirect.as_ref()?;
    let rooted = to.value.starts_with('/');
    if !rooted && !["http://", "https://"].iter().any(|scheme| to.value.starts_with(scheme)) {
        let what = format!("`{}` is not where a redirect can lead", to.value);
        own.problems.at(&to.span, what, "begin it with a slash, or with https:// and a host");
    } else if to.value.chars().any(|letter| letter.is_control() || letter == ' ') {
        let what = "a redirect holds a space or control character";
        own.problems.at(&to.span, what, "encode it, a space as %20");
    }
    placeholders(to, own);
    let status =
        table.status.as_ref().and_then(|status| u16::try_from(status.value).ok()).unwrap_or(REDIRECT);
    Some(Redirect { to: to.value.clone(), status })
}

fn placeholders(to: &At<String>, own: &mut Resolver) {
    for piece in to.value.split('{').skip(1) {
        let Some((name, _)) = piece.split_once('}') else {
            own.problems.at(&to.span, "a redirect has a brace without its partner", "encode it as %7B");
            return;
        };
        if PLACEHOLDERS.contains(&name) {
            continue;
        }
        let help = match suggest::nearest(name, PLACEHOLDERS) {
            Some(near) => format!("did you mean {{{near}}}?"),
            None => "there are {path}, {query} and {host}".to_owned(),
        };
        own.problems.at(&to.span, format!("{{{name}}} is not a placeholder"), help);
    }
}

fn auth(table: &At<file::Auth>, own: &mut Resolver) -> Option<Auth> {
    let at = &table.span;
    let table = &table.value;
    match &table.realm {
        None => {
            let help = "add realm = \"staff\": browsers show it when they ask for the password";
            own.problems.missing(at, "site.rule.auth.realm", "`site.rule.auth` lacks its `realm`", help);
        }
        Some(realm) if realm.value.is_empty() || realm.value.chars().any(char::is_control) => {
            own.problems.at(
                &realm.span,
                "a realm is empty or holds a control character",
                "write a word or two",
            );
        }
        Some(_) => {}
    }
    let Some(users) = &table.users else {
        own.problems.missing(
            at,
            "site.rule.auth.users",
            "`site.rule.auth` lacks its `users`",
            "add the path of a file made with `htpasswd -B`",
        );
        return None;
    };
    let realm = table.realm.as_ref().map(|realm| realm.value.clone()).unwrap_or_default();
    Some(Auth { realm, users: self::users(users, own) })
}

fn users(file: &At<String>, own: &mut Resolver) -> Vec<(String, String)> {
    let path = own.path(file);
    if file.value.is_empty() {
        return Vec::new();
    }
    let text = match own.context.disk.read(&path) {
        Ok(text) => text,
        Err(error) => {
            own.refused(file, &error);
            return Vec::new();
        }
    };
    let (users, problems) = htpasswd::parse(&text);
    if users.is_empty() && problems.is_empty() {
        own.problems.at(&file.span, format!("`{}` holds no user", file.value), "add one with `htpasswd -B`");
    }
    let named = own.context.base_as_named.join(&file.value);
    for (line, what, help) in problems {
        let place = Place::File { file: named.clone(), line: Some(line) };
        own.problems.elsewhere(&file.span, Problem { place, what, help });
    }
    users
}
