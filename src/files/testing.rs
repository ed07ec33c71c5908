//! What the tests of this room share: sites and rules to start from, and a tree in memory over which
//! lookups run as the worker would run them.

use crate::config;
use crate::sys::file::Symlinks;

/// A site with nothing special.
pub fn site() -> config::Site {
    config::Site {
        hosts: Vec::new(),
        root: "/srv".into(),
        index: vec!["index.html".into()],
        symlinks: Symlinks::Beneath,
        hidden: false,
        listing: false,
        fallback: None,
        clean_urls: false,
        https_redirect: None,
        hsts: None,
        error_pages: Vec::new(),
        certificates: Vec::new(),
        rules: Vec::new(),
        line: 1,
    }
}

/// A rule that does nothing.
pub fn rule(pattern: &str) -> config::Rule {
    config::Rule {
        pattern: pattern.into(),
        headers: Vec::new(),
        redirect: None,
        auth: None,
        allow: Vec::new(),
        deny: Vec::new(),
    }
}
