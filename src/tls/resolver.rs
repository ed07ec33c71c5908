//! Which certificate a client is shown: by the name it asks for, then by the signatures it can check.
//! RFC 6066 section 3.
//!
//! A name leads to the certificate of the site that answers for it, by the same rules as `files/route`: a
//! wildcard host stands for one or more labels. That a wildcard in a certificate stands for one (RFC 9525
//! section 6.3) is the client's to check: the certificate may name deeper hosts beside it.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// The certificates of one name, most wanted first.
pub type Keys = Vec<Arc<CertifiedKey>>;

/// Names and their certificates.
#[derive(Default, Debug)]
pub struct Resolver {
    /// Lower-case names, and suffixes that begin with a dot for `*.suffix`.
    names: HashMap<String, Keys>,
    /// For clients that name no host, or one that is not served.
    default: Keys,
}

thread_local! {
    /// The name the last hello on this thread asked for. The unbuffered connection has no
    /// accessor for it, and a worker has one thread, so the session takes it from here.
    static ASKED: Cell<Option<Box<str>>> = const { Cell::new(None) };
}

/// Takes the name that the hello just processed asked for.
pub fn take_asked() -> Option<Box<str>> {
    ASKED.take()
}

impl Resolver {
    /// Adds a name, exact or `*.` and a suffix. The first to claim a name keeps it.
    pub fn add(&mut self, host: &str, keys: &Keys) {
        let name = host.strip_prefix('*').unwrap_or(host).to_ascii_lowercase();
        self.names.entry(name).or_insert_with(|| keys.clone());
    }

    /// Sets what is shown when no name fits; the first call wins.
    pub fn set_default(&mut self, keys: &Keys) {
        if self.default.is_empty() {
            self.default = keys.clone();
        }
    }

    /// The certificates for a name: exact, else of the longest suffix, else the default. A host `*.suffix` asks
    /// for what is shown to the names it stands for.
    pub fn keys(&self, name: Option<&str>) -> &Keys {
        let Some(name) = name else {
            return &self.default;
        };
        // rustls has checked that it is a DNS name; only its case and a last dot may vary.
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        // From the left, so that the longest suffix is met first.
        let wildcard = || name.match_indices('.').find_map(|(dot, _)| self.names.get(&name[dot..]));
        self.names.get(&name).or_else(wildcard).unwrap_or(&self.default)
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        ASKED.set(hello.server_name().map(Into::into));
        let offered = hello.signature_schemes();
        let keys = self.keys(hello.server_name());
        let usable = keys.iter().find(|key| key.key.choose_scheme(offered).is_some());
        // With none that fits, rustls says so to the client better than we could.
        usable.or(keys.first()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(label: &str) -> Keys {
        let pair = rcgen::generate_simple_self_signed([label.to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(pair.signing_key.serialize_der()).unwrap();
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        vec![Arc::new(CertifiedKey::from_der(vec![pair.cert.into()], key, &provider).unwrap())]
    }

    #[test]
    fn names_lead_to_certificates() {
        let [exact, wildcard, deep, default] = ["exact", "wildcard", "deep", "default"].map(keys);
        let mut resolver = Resolver::default();
        resolver.add("a.example", &exact);
        resolver.add("*.example", &wildcard);
        resolver.add("*.Deep.example", &deep);
        resolver.add("a.example", &default);
        resolver.set_default(&default);
        resolver.set_default(&exact);
        let check = |section: &str, name: Option<&str>, expected: &Keys| {
            assert!(Arc::ptr_eq(&resolver.keys(name)[0], &expected[0]), "{section}: {name:?}");
        };
        check("RFC 6066 3, exact", Some("a.example"), &exact);
        check("RFC 6066 3, case", Some("A.ExAmPlE"), &exact);
        check("one label", Some("b.example"), &wildcard);
        check("several labels", Some("d.c.b.example."), &wildcard);
        check("the longest suffix", Some("c.b.deep.example"), &deep);
        check("the longest suffix is not its own name", Some("deep.example"), &wildcard);
        check("a wildcard host", Some("*.deep.example"), &deep);
        check("not no label", Some("example"), &default);
        check("RFC 6066 3, unknown", Some("other.test"), &default);
        check("RFC 6066 3, absent", None, &default);
    }
}
