//! `[[site]]`: names, roots, pages and certificates. Rules have their own file.

use std::path::PathBuf;

use super::file::{self, At, Strings, Switch};
use super::hosts;
use super::mounts;
use super::report::Span;
use super::resolve::{Resolver, is_set};
use super::rules;
use super::{Address, Certificate, Listen, Site, Symlinks};

/// Sites are numbered with sixteen bits.
const SITES_MAX: usize = u16::MAX as usize;

/// Resolves all sites. No request body is larger than `body`.
pub fn resolve(file: &file::File, listen: &[Listen], body: u64, own: &mut Resolver) -> Vec<Site> {
    let tables: &[file::Site] = file.site.as_ref().map_or(&[], |sites| &sites.value);
    if tables.is_empty() {
        own.absent("site", "there is no site to serve", "add [[site]] with root = \"/var/www/html\"");
    }
    if let Some(table) = tables.get(SITES_MAX) {
        own.problems.at(&table.at, format!("there are more than {SITES_MAX} sites"), "");
    }
    let mut hosts = Hosts::default();
    let sites: Vec<Site> = tables.iter().map(|table| one(table, listen, body, &mut hosts, own)).collect();
    mounts::warn_of_sources(&sites, own);
    let tls = file.listen.iter().flat_map(|listen| &listen.value).find(|listen| is_set(&listen.tls));
    if let Some(key) = tls.and_then(|listen| listen.tls.as_ref())
        && !tables.is_empty()
        && tables
            .iter()
            .all(|table| table.certificate.is_none() && !own.problems.is_meant(&table.at, "site.certificate"))
    {
        let help =
            "add [[site.certificate]] to a site, with cert and key, or self_signed = true for development";
        own.problems.at(&key.span, "a listener speaks TLS, and no site has a certificate", help);
    }
    sites
}

/// Names taken so far, each with the line of its site.
#[derive(Default)]
struct Hosts {
    taken: Vec<(String, u32)>,
    default: Option<u32>,
}

fn one(table: &file::Site, listen: &[Listen], body: u64, hosts: &mut Hosts, own: &mut Resolver) -> Site {
    const SYMLINKS: [(&str, Symlinks); 3] =
        [("beneath", Symlinks::Beneath), ("never", Symlinks::Never), ("anywhere", Symlinks::Anywhere)];
    Site {
        hosts: names(table, hosts, own),
        root: root(table, own),
        index: index(&table.index, own),
        symlinks: own.word(&table.symlinks, "site.symlinks", &SYMLINKS, Symlinks::Beneath),
        hidden: is_set(&table.hidden),
        listing: is_set(&table.listing),
        fallback: table.fallback.as_ref().map(|path| url_path(path, "site.fallback", own)),
        clean_urls: is_set(&table.clean_urls),
        https_redirect: https_redirect(&table.https_redirect, listen, own),
        hsts: hsts(&table.hsts, own),
        error_pages: error_pages(table, own),
        certificates: certificates(table, own),
        rules: rules::resolve(table, own),
        mounts: mounts::resolve(table, body, own),
        types: Vec::new(),
        line: own.context.text.line(&table.at),
    }
}

fn names(table: &file::Site, known: &mut Hosts, own: &mut Resolver) -> Vec<String> {
    let line = own.context.text.line(&table.at);
    let Some(host) = &table.host else {
        if own.problems.is_meant(&table.at, "site.host") {
            return Vec::new();
        }
        if let Some(other) = known.default {
            let what = format!("there is a second site without `host`; the first begins on line {other}");
            own.problems.at(
                &table.at,
                what,
                "only one site can answer for all other hosts: name those of this one",
            );
        }
        known.default.get_or_insert(line);
        return Vec::new();
    };
    if host.value.is_empty() {
        own.problems.at(&host.span, "the list of hosts is empty", "leave `host` out for the default site");
    }
    let mut names = Vec::new();
    for text in &host.value {
        let name = match hosts::host(&text.value) {
            Ok(name) => name,
            Err(complaint) => {
                own.complain(&text.span, complaint);
                continue;
            }
        };
        if let Some((_, other)) = known.taken.iter().find(|(other, _)| *other == name) {
            let place =
                if *other == line { "this site".to_owned() } else { format!("the site on line {other}") };
            own.problems.at(&text.span, format!("`{name}` is already a host of {place}"), "keep one");
            continue;
        }
        known.taken.push((name.clone(), line));
        names.push(name);
    }
    names
}

fn root(table: &file::Site, own: &mut Resolver) -> PathBuf {
    let Some(root) = &table.root else {
        own.problems.missing(
            &table.at,
            "site.root",
            "[[site]] lacks its `root`",
            "add root = \"/var/www/html\"",
        );
        return PathBuf::new();
    };
    let path = own.path(root);
    if root.value.is_empty() {
        return path;
    }
    match own.context.disk.is_directory(&path) {
        Ok(true) => {}
        Ok(false) => {
            let what = format!("`{}` is not a directory", root.value);
            own.problems.at(&root.span, what, "a site serves the files of a directory");
        }
        Err(error) => own.refused(root, &error),
    }
    path
}

fn index(names: &Option<At<Strings>>, own: &mut Resolver) -> Vec<String> {
    let Some(names) = names else { return vec!["index.html".to_owned()] };
    for name in &names.value {
        if name.value.is_empty()
            || name.value.contains(['/', '\0'])
            || matches!(name.value.as_str(), "." | "..")
        {
            let what = format!("`{}` is not the name of a file", name.value);
            own.problems.at(&name.span, what, "an index is a name without slashes, such as \"index.html\"");
        }
    }
    names.value.iter().map(|name| name.value.clone()).collect()
}

/// A path as clients see it, decoded.
pub fn url_path(path: &At<String>, name: &str, own: &mut Resolver) -> String {
    let text = &path.value;
    if !text.starts_with('/') {
        let what = format!("`{name}` must begin with a slash");
        let help = format!("it is a path below the root: \"/{}\"", text.trim_start_matches("./"));
        own.problems.at(&path.span, what, help);
    } else if text.split('/').any(|segment| matches!(segment, "." | "..")) {
        own.problems.at(&path.span, format!("`{name}` holds a dot segment"), "write the path without it");
    } else if text.chars().any(char::is_control) {
        own.problems.at(&path.span, format!("`{name}` holds a control character"), "");
    }
    text.clone()
}

fn https_redirect(switch: &Option<At<Switch>>, listen: &[Listen], own: &mut Resolver) -> Option<u16> {
    let switch = switch.as_ref()?;
    let tls_port = listen.iter().filter(|listen| listen.tls).find_map(|listen| match listen.address {
        Address::Tcp(address) => Some(address.port()),
        Address::Unix(_) => None,
    });
    match switch.value {
        Switch::Flag(false) => None,
        Switch::Flag(true) if tls_port.is_some() => tls_port,
        Switch::Flag(true) => {
            let help =
                "add [[listen]] with tls = true, or name the port that clients see: https_redirect = 443";
            own.problems.at(&switch.span, "`site.https_redirect` has no port to lead to", help);
            None
        }
        Switch::Number(number) => {
            let port = u16::try_from(number).ok().filter(|port| *port != 0);
            if port.is_none() {
                own.problems.at(
                    &switch.span,
                    format!("{number} is not a port"),
                    "a port is a number up to 65535",
                );
            }
            port
        }
    }
}

/// RFC 6797 section 6.1.
fn hsts(value: &Option<At<String>>, own: &mut Resolver) -> Option<String> {
    let value = value.as_ref().filter(|value| !value.value.is_empty())?;
    let (mut max_age, mut bad) = (false, value.value.chars().any(char::is_control));
    for directive in value.value.split(';').map(str::trim) {
        match directive.split_once('=') {
            Some((name, age)) if name.trim().eq_ignore_ascii_case("max-age") => {
                let digits = age.trim().trim_matches('"');
                max_age = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
                bad |= !max_age;
            }
            Some(_) => bad = true,
            None => {
                bad |=
                    !["includeSubDomains", "preload"].iter().any(|name| name.eq_ignore_ascii_case(directive))
            }
        }
    }
    if bad || !max_age {
        let what = format!("`{}` is not a Strict-Transport-Security policy", value.value);
        own.problems.at(
            &value.span,
            what,
            "write \"max-age=31536000\", perhaps with \"; includeSubDomains\"",
        );
    }
    Some(value.value.clone())
}

fn error_pages(table: &file::Site, own: &mut Resolver) -> Vec<(u16, String)> {
    let mut pages = Vec::new();
    for (status, path) in table.error_pages.iter().flat_map(|pages| &pages.value.0) {
        let page = url_path(path, &format!("site.error_pages.{}", status.value), own);
        match status.value.parse::<u16>() {
            Ok(number) if (400..600).contains(&number) => pages.push((number, page)),
            _ => {
                let what = format!("`{}` is not the status of an error", status.value);
                own.problems.at(&status.span, what, "write one from 400 to 599: 404 = \"/404.html\"");
            }
        }
    }
    pages
}

fn certificates(table: &file::Site, own: &mut Resolver) -> Vec<Certificate> {
    let mut certificates = Vec::new();
    for table in table.certificate.iter().flat_map(|list| &list.value) {
        let lacks = |own: &mut Resolver, at: &Span, key: &str| {
            let help = "a certificate is cert and key, two PEM files, or self_signed = true for development";
            own.problems.missing(
                at,
                &format!("site.certificate.{key}"),
                format!("[[site.certificate]] lacks its `{key}`"),
                help,
            );
        };
        match (&table.cert, &table.key, table.self_signed.as_ref().filter(|flag| flag.value)) {
            (None, None, Some(_)) => certificates.push(Certificate::SelfSigned),
            (_, _, Some(flag)) => {
                let what = "`self_signed = true` stands beside `cert` or `key`";
                own.problems.at(
                    &flag.span,
                    what,
                    "remove one of them: a certificate is made or read, not both",
                );
            }
            (Some(cert), Some(key), None) => {
                let (cert, key) = (own.readable(cert), own.readable(key));
                certificates.push(Certificate::Files { cert, key });
            }
            (None, _, None) => lacks(own, &table.at, "cert"),
            (Some(_), None, None) => lacks(own, &table.at, "key"),
        }
    }
    certificates
}
