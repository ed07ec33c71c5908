//! Which files are worth compressing, by the media types of their names: what the precompressor makes
//! variants of, and what workers look for variants of. The two must agree, so they ask here.

use std::sync::Arc;

use crate::http::media_types;

/// Media types that are compressed.
#[derive(Clone, Debug, Default)]
pub struct Compressible {
    /// Besides the usual ones, in lower case; `main/*` stands for all of a kind.
    further: Arc<[String]>,
}

impl Compressible {
    /// The usual ones and these: `cache.types` of the configuration.
    pub fn new(further: &[String]) -> Self {
        Self { further: further.into() }
    }

    /// Whether a file of that name, which may be a path, is worth compressing.
    pub fn holds(&self, path: &[u8]) -> bool {
        is_compressible(path) || (!self.further.is_empty() && self.is_further(path))
    }

    fn is_further(&self, path: &[u8]) -> bool {
        let media_type = media_types::of(path);
        let essence = media_type.split(';').next().unwrap_or_default();
        self.further.iter().any(|further| match further.strip_suffix('*') {
            Some(main) => essence.starts_with(main),
            None => essence == further,
        })
    }
}

/// Whatever the configuration adds.
fn is_compressible(path: &[u8]) -> bool {
    let media_type = media_types::of(path);
    // Text says its charset, whatever its type is called.
    media_type.ends_with("; charset=utf-8")
        || media_type.starts_with("text/")
        || ["+json", "+xml"].iter().any(|suffix| media_type.ends_with(suffix))
        || COMPRESSIBLE.contains(&&*media_type)
}

/// What compresses well besides text: code, vectors and uncompressed pictures and fonts. PDF is absent: its
/// streams are compressed already, and readers of it ask for ranges, which a coding makes useless.
const COMPRESSIBLE: [&str; 11] = [
    "application/wasm",
    "application/toml",
    "application/yaml",
    "application/vnd.ms-fontobject",
    "application/x-javascript",
    "font/otf",
    "font/ttf",
    "image/bmp",
    "image/svg+xml",
    "image/vnd.microsoft.icon",
    "model/gltf-binary",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_compressed_already_is_compressible() {
        let check = |name: &str, expected: bool| {
            assert_eq!(is_compressible(name.as_bytes()), expected, "{name}");
        };
        for name in
            ["a.html", "b.css", "c.js", "d.mjs", "e.json", "f.xml", "g.svg", "h.wasm", "i.ttf", "j.otf"]
        {
            check(name, true);
        }
        for name in ["k.ico", "l.txt", "m.md", "n.csv", "o.webmanifest", "/p.d/q.atom", "r.geojson", "S.HTML"]
        {
            check(name, true);
        }
        for name in
            ["a.png", "b.jpg", "c.woff2", "d.gz", "e.br", "f.pdf", "g.mp4", "h.zip", "i", "j.deb", ".html"]
        {
            check(name, false);
        }
    }

    #[test]
    fn the_configuration_adds_types() {
        let own = Compressible::new(&["application/pdf".into(), "image/*".into()]);
        for (name, expected) in [("a.pdf", true), ("b.png", true), ("c.html", true), ("d.zip", false)] {
            assert_eq!(own.holds(name.as_bytes()), expected, "{name}");
        }
        assert!(!Compressible::default().holds(b"a.pdf"));
    }
}
