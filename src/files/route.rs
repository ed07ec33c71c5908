//! Which site a request is for, by its host; and the site's configuration in the form in which it
//! is asked on every request.
//!
//! A host named exactly comes first, then the longest matching `*.` suffix, which stands for one or
//! more labels, then the site without names. Where none of these is there, nobody is meant to
//! answer: 421 (RFC 9110 section 15.5.20). The first site is not a default: a host that nobody
//! configured would see a site that nobody meant to show there.

use std::rc::Rc;

use hashbrown::HashMap;

use super::compressible::Compressible;
use super::entry::SiteId;
use super::rules::Rules;
use crate::config;
use crate::sys::file::Symlinks;

/// The longest host name that can be asked for (RFC 1035 section 2.3.4), with its final dot.
const HOST_MAX: usize = 256;

/// A site, as it is asked on every request.
#[derive(Debug)]
pub struct Site {
    /// Its place in the configuration.
    pub id: SiteId,
    /// The first exact name, for redirects of requests that name none.
    pub name: Option<Vec<u8>>,
    /// Names of indexes, best first.
    pub index: Vec<Vec<u8>>,
    /// How symlinks are treated.
    pub symlinks: Symlinks,
    /// Whether names that begin with a dot are served.
    pub hidden: bool,
    /// Whether directories without index are listed.
    pub listing: bool,
    /// The decoded path that answers where nothing is.
    pub fallback: Option<Vec<u8>>,
    /// Whether `/a` is `/a.html`.
    pub clean_urls: bool,
    /// The https port to redirect to.
    pub https_redirect: Option<u16>,
    /// A ready-made Strict-Transport-Security field.
    pub hsts: Option<Rc<[u8]>>,
    /// Decoded paths of bodies for error statuses.
    pub error_pages: Vec<(u16, Vec<u8>)>,
    /// Which of its files are worth compressing.
    pub compressible: Compressible,
    /// Its rules.
    pub rules: Rules,
    /// Paths that programs answer, longest first, each with a slash at either end, and their place in the
    /// configuration.
    mounts: Vec<(Box<[u8]>, u16)>,
}

impl Site {
    fn new(id: SiteId, site: &config::Site) -> Self {
        let path = |path: &String| match path.strip_prefix('/') {
            Some(_) => path.clone().into_bytes(),
            None => format!("/{path}").into_bytes(),
        };
        Self {
            id,
            name: site
                .hosts
                .iter()
                .find(|host| !host.starts_with("*."))
                .map(|host| host.clone().into_bytes()),
            index: site.index.iter().map(|name| name.clone().into_bytes()).collect(),
            symlinks: site.symlinks,
            hidden: site.hidden,
            listing: site.listing,
            fallback: site.fallback.as_ref().map(path),
            clean_urls: site.clean_urls,
            https_redirect: site.https_redirect,
            hsts: site.hsts.as_ref().filter(|value| !value.is_empty()).map(|value| {
                let mut field = Vec::new();
                super::rules::push_field(&mut field, "Strict-Transport-Security", value.as_bytes());
                field.into()
            }),
            error_pages: site.error_pages.iter().map(|(status, page)| (*status, path(page))).collect(),
            compressible: Compressible::new(&site.types),
            rules: Rules::new(&site.rules),
            mounts: mounts(site),
        }
    }

    /// The mount that answers a normalised path. `/a` without a slash belongs to `/a/`.
    pub fn mount(&self, path: &[u8]) -> Option<u16> {
        let answers = |mount: &[u8]| {
            path.starts_with(mount)
                || mount.strip_suffix(b"/").is_some_and(|mount| !mount.is_empty() && mount == path)
        };
        self.mounts.iter().find(|(mount, _)| answers(mount)).map(|(_, index)| *index)
    }

    /// The decoded path of the body for an error.
    pub fn error_page(&self, status: u16) -> Option<&[u8]> {
        self.error_pages.iter().find(|(own, _)| *own == status).map(|(_, path)| path.as_slice())
    }
}

fn mounts(site: &config::Site) -> Vec<(Box<[u8]>, u16)> {
    let numbered = site.mounts.iter().zip(0..=u16::MAX);
    let mut mounts: Vec<(Box<[u8]>, u16)> =
        numbered.map(|(mount, index)| (mount.path.as_bytes().into(), index)).collect();
    mounts.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    mounts
}

/// All sites.
#[derive(Debug)]
pub struct Sites {
    sites: Vec<Rc<Site>>,
    exact: HashMap<Box<[u8]>, SiteId>,
    /// By what follows the star, beginning with a dot.
    suffixes: HashMap<Box<[u8]>, SiteId>,
    default: Option<SiteId>,
}

impl Sites {
    /// Takes the sites of the configuration, whose hosts are in lower case.
    pub fn new(sites: &[config::Site]) -> Self {
        let mut own =
            Self { sites: Vec::new(), exact: HashMap::new(), suffixes: HashMap::new(), default: None };
        for (index, site) in sites.iter().enumerate() {
            let id = SiteId::try_from(index).expect("the configuration bounds the number of sites");
            own.sites.push(Rc::new(Site::new(id, site)));
            if site.hosts.is_empty() {
                own.default.get_or_insert(id);
            }
            for host in &site.hosts {
                let (map, host) = match host.strip_prefix('*') {
                    Some(suffix) if suffix.starts_with('.') => (&mut own.suffixes, suffix),
                    _ => (&mut own.exact, host.as_str()),
                };
                map.entry(host.trim_end_matches('.').as_bytes().into()).or_insert(id);
            }
        }
        own
    }

    /// The site of a number.
    pub fn site(&self, id: SiteId) -> &Rc<Site> {
        &self.sites[usize::from(id)]
    }

    /// The site for a host as a client named it, without port; `None`: nobody's.
    pub fn find(&self, host: &[u8]) -> Option<&Rc<Site>> {
        Some(self.site(self.named(host).or(self.default)?))
    }

    fn named(&self, host: &[u8]) -> Option<SiteId> {
        let host = host.strip_suffix(b".").unwrap_or(host);
        if (self.exact.is_empty() && self.suffixes.is_empty()) || host.is_empty() {
            return None;
        }
        let mut lower = [0; HOST_MAX];
        let lower = lower.get_mut(..host.len())?;
        lower.copy_from_slice(host);
        lower.make_ascii_lowercase();
        if let Some(id) = self.exact.get(&*lower) {
            return Some(*id);
        }
        if self.suffixes.is_empty() {
            return None;
        }
        // From the left, so that the longest suffix is met first; a star is at least one byte.
        (1..lower.len())
            .filter(|start| lower[*start] == b'.')
            .find_map(|start| self.suffixes.get(&lower[start..]).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::site;

    #[test]
    fn hosts_find_their_site() {
        let hosts = |hosts: &[&str]| {
            let hosts = hosts.iter().map(|host| (*host).into()).collect();
            config::Site { hosts, ..site() }
        };
        let named = [
            hosts(&["example.org", "*.example.org"]),
            hosts(&["*.deep.example.org", "[::1]"]),
            hosts(&["example.org", "127.0.0.1"]),
        ];
        let sites = Sites::new(&named);
        let check = |host: &str, expected: Option<SiteId>| {
            assert_eq!(sites.find(host.as_bytes()).map(|site| site.id), expected, "{host}");
        };
        check("example.org", Some(0));
        check("EXAMPLE.org.", Some(0));
        check("a.example.org", Some(0));
        check("b.a.example.org", Some(0));
        check("deep.example.org", Some(0));
        check("a.deep.example.org", Some(1));
        check("[::1]", Some(1));
        check("127.0.0.1", Some(2));
        check(".example.org", None);
        check("xexample.org", None);
        check("", None);
        check(&"a.".repeat(300), None);

        let with_default = [named.as_slice(), &[hosts(&[])]].concat();
        let sites = Sites::new(&with_default);
        assert_eq!(sites.find(b"nobody.example").map(|site| site.id), Some(3), "the default site");
        assert_eq!(sites.find(b"").map(|site| site.id), Some(3), "no host at all");
        assert_eq!(sites.find(b"example.org").map(|site| site.id), Some(0), "named before default");
    }
}
