//! What the operator laid down for some paths: fields, redirects, passwords, addresses.
//!
//! Sorted by kind when the configuration is taken, because the first match wins per kind.

use std::net::IpAddr;

use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

use crate::config::glob::Glob;
use crate::config::{self, Auth, Redirect};
use crate::http::target::encode_path;

/// Fields that say how a message is cut or sent; a rule cannot set them.
const NOT_SETTABLE: [&str; 7] = [
    "Connection",
    "Content-Encoding",
    "Content-Length",
    "Content-Range",
    "Date",
    "Transfer-Encoding",
    "Upgrade",
];

/// What must be encoded in a query that is as the client sent it: percent signs stay.
const IN_QUERY: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// The rules of a site.
#[derive(Debug, Default)]
pub struct Rules {
    headers: Vec<(Glob, Headers)>,
    redirects: Vec<(Glob, Redirect)>,
    auths: Vec<(Glob, Auth)>,
    access: Vec<(Glob, Access)>,
}

/// Fields a rule sets.
#[derive(Debug, Default)]
pub struct Headers {
    /// Sent in place of the media type that the name tells.
    pub content_type: Option<Box<str>>,
    /// Names and values for 200 and 206, without Content-Type, ready-made.
    pub fields: Vec<u8>,
    /// The same without those that describe content, for 304 and redirects.
    pub fields_without_content: Vec<u8>,
    /// Values of Vary, which is merged with our own.
    pub vary: Vec<String>,
}

/// Addresses a rule lets in or keeps out.
#[derive(Debug)]
struct Access {
    allow: Vec<ipnet::IpNet>,
    deny: Vec<ipnet::IpNet>,
}

impl Rules {
    /// Sorts and compiles the rules of the configuration.
    pub fn new(rules: &[config::Rule]) -> Self {
        let mut own = Self::default();
        for rule in rules {
            // The configuration was checked with the same function.
            let glob = Glob::new(&rule.pattern).expect("the configuration holds no bad pattern");
            if !rule.headers.is_empty() {
                own.headers.push((glob.clone(), Headers::new(&rule.headers)));
            }
            if let Some(redirect) = &rule.redirect {
                own.redirects.push((glob.clone(), redirect.clone()));
            }
            if let Some(auth) = &rule.auth {
                own.auths.push((glob.clone(), auth.clone()));
            }
            if !rule.allow.is_empty() || !rule.deny.is_empty() {
                own.access.push((glob, Access { allow: rule.allow.clone(), deny: rule.deny.clone() }));
            }
        }
        own
    }

    /// The fields for a path.
    pub fn headers(&self, path: &[u8]) -> Option<&Headers> {
        first(&self.headers, path)
    }

    /// The redirect for a path.
    pub fn redirect(&self, path: &[u8]) -> Option<&Redirect> {
        first(&self.redirects, path)
    }

    /// The passwords for a path.
    pub fn auth(&self, path: &[u8]) -> Option<&Auth> {
        first(&self.auths, path)
    }

    /// Whether `address` may see a path. A peer without an address, on a unix socket, is in no range.
    /// Who is denied stays out, also where a wider range is allowed.
    pub fn allows(&self, path: &[u8], address: Option<IpAddr>) -> bool {
        let Some(access) = first(&self.access, path) else { return true };
        let within = |nets: &[ipnet::IpNet]| address.is_some_and(|address| config::contains(nets, address));
        !within(&access.deny) && (access.allow.is_empty() || within(&access.allow))
    }
}

fn first<'a, T>(rules: &'a [(Glob, T)], path: &[u8]) -> Option<&'a T> {
    rules.iter().find(|(glob, _)| glob.matches(path)).map(|(_, value)| value)
}

impl Headers {
    fn new(headers: &[(String, String)]) -> Self {
        let mut own = Self::default();
        for (name, value) in headers {
            if NOT_SETTABLE.iter().any(|other| other.eq_ignore_ascii_case(name)) {
                continue;
            }
            if name.eq_ignore_ascii_case("Content-Type") {
                own.content_type = Some(value.as_str().into());
            } else if name.eq_ignore_ascii_case("Vary") {
                own.vary.push(value.clone());
            } else {
                push_field(&mut own.fields, name, value.as_bytes());
                let about_content = name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("Content-"));
                // Policies are named like content and are not about it.
                if !about_content || name.eq_ignore_ascii_case("Content-Security-Policy") {
                    push_field(&mut own.fields_without_content, name, value.as_bytes());
                }
            }
        }
        own
    }
}

/// Where a redirect leads: its template with `{path}` (encoded), `{query}` (without question mark)
/// and `{host}` (without port) replaced. A question mark before an absent query is left out.
/// Nothing a client sent can end the field or begin another part of the URL.
pub fn location(template: &str, path: &[u8], query: Option<&[u8]>, host: &[u8]) -> Vec<u8> {
    let mut location = Vec::with_capacity(template.len() + path.len() + 16);
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let (before, from) = rest.split_at(open);
        location.extend_from_slice(before.as_bytes());
        if let Some(after) = from.strip_prefix("{path}") {
            push_path(&mut location, path);
            rest = after;
        } else if let Some(after) = from.strip_prefix("{query}") {
            match query {
                Some(query) => push_query(&mut location, query),
                None if location.last() == Some(&b'?') => drop(location.pop()),
                None => {}
            }
            rest = after;
        } else if let Some(after) = from.strip_prefix("{host}") {
            push_host(&mut location, host);
            rest = after;
        } else {
            location.push(b'{');
            rest = &from[1..];
        }
    }
    location.extend_from_slice(rest.as_bytes());
    location.retain(|byte| !byte.is_ascii_control());
    location
}

/// Appends a decoded path, encoded.
pub fn push_path(into: &mut Vec<u8>, path: &[u8]) {
    encode_path(path).for_each(|piece| into.extend_from_slice(piece.as_bytes()));
}

/// Appends a query as a client sent it, with what may not stand in a URL encoded.
pub fn push_query(into: &mut Vec<u8>, query: &[u8]) {
    percent_encode(query, IN_QUERY).for_each(|piece| into.extend_from_slice(piece.as_bytes()));
}

/// Appends a host, without anything that could not be part of one.
pub fn push_host(into: &mut Vec<u8>, host: &[u8]) {
    let allowed = |byte: &&u8| byte.is_ascii_alphanumeric() || b".-_[]:".contains(byte);
    into.extend(host.iter().filter(allowed));
}

/// Appends a field line. What would end the line early is left out of the value.
pub fn push_field(into: &mut Vec<u8>, name: &str, value: &[u8]) {
    into.extend_from_slice(name.as_bytes());
    into.extend_from_slice(b": ");
    into.extend(value.iter().filter(|byte| !matches!(byte, b'\r' | b'\n' | 0)));
    into.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::rule;

    #[test]
    fn the_first_match_wins_per_kind() {
        let fields = |value: &str| vec![("X".to_owned(), value.to_owned())];
        let to = |to: &str| Some(Redirect { to: to.into(), status: 308 });
        let rules = Rules::new(&[
            config::Rule { headers: fields("1"), ..rule("/a/**") },
            config::Rule { headers: fields("2"), redirect: to("/one"), ..rule("/**") },
            config::Rule { redirect: to("/two"), ..rule("/a/**") },
        ]);
        assert_eq!(rules.headers(b"/a/b").expect("a match").fields, b"X: 1\r\n");
        assert_eq!(rules.headers(b"/b").expect("a match").fields, b"X: 2\r\n");
        assert_eq!(rules.redirect(b"/a/b").expect("a match").to, "/one");
        assert!(rules.auth(b"/a/b").is_none());
    }

    #[test]
    fn addresses_are_let_in_or_kept_out() {
        let nets = |nets: &[&str]| nets.iter().map(|net| net.parse().expect("a net")).collect::<Vec<_>>();
        let rules = Rules::new(&[
            config::Rule {
                allow: nets(&["10.0.0.0/8", "::1/128"]),
                deny: nets(&["10.1.0.0/16"]),
                ..rule("/in/**")
            },
            config::Rule { deny: nets(&["192.0.2.0/24"]), ..rule("/**") },
        ]);
        let check = |path: &str, address: Option<&str>, expected: bool| {
            let address = address.map(|address| address.parse().expect("an address"));
            assert_eq!(rules.allows(path.as_bytes(), address), expected, "{path} for {address:?}");
        };
        check("/in/x", Some("10.2.3.4"), true);
        check("/in/x", Some("::ffff:10.2.3.4"), true);
        check("/in/x", Some("10.1.3.4"), false);
        check("/in/x", Some("::1"), true);
        check("/in/x", Some("192.0.2.1"), false);
        check("/in/x", None, false);
        check("/out", Some("192.0.2.1"), false);
        check("/out", Some("192.0.3.1"), true);
        check("/out", None, true);
    }

    #[test]
    fn redirects_cannot_be_steered() {
        let check = |template: &str, path: &str, query: Option<&str>, host: &str, expected: &str| {
            let location = location(template, path.as_bytes(), query.map(str::as_bytes), host.as_bytes());
            assert_eq!(String::from_utf8_lossy(&location), expected, "{template}");
        };
        check("https://new.example{path}", "/a b%", Some("x=1"), "", "https://new.example/a%20b%25");
        check("https://{host}{path}?{query}", "/a", Some("x=%20 1"), "h", "https://h/a?x=%20%201");
        check("{path}?{query}", "/a", None, "h", "/a");
        check("/{other}{", "/a", None, "h", "/{other}{");
        check("{path}", "/a\r\nSet-Cookie: x", None, "h", "/a%0D%0ASet-Cookie%3A%20x");
        check("{path}?{query}", "/", Some("a\r\nb"), "h", "/?a%0D%0Ab");
        check("https://{host}/", "/", None, "h/@evil\r\n", "https://hevil/");
        check("{path}", "/é", None, "", "/%C3%A9");
    }
}
