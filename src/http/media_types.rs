//! Media types of files by their names (RFC 9110 section 8.3). Asked once when a file is looked up.

use std::borrow::Cow;

/// What nothing is known of.
pub const UNKNOWN: &str = "application/octet-stream";

/// The value of `Content-Type` for a file of this name, which may be a path. Text is said to be UTF-8, since
/// nothing else is written any more and clients guess badly.
pub fn of(name: &[u8]) -> Cow<'static, str> {
    let media_type = essence(name);
    if is_text(media_type) {
        Cow::Owned(format!("{media_type}; charset=utf-8"))
    } else {
        Cow::Borrowed(media_type)
    }
}

/// Without parameters.
fn essence(name: &[u8]) -> &'static str {
    let Some(extension) = extension(name) else {
        return UNKNOWN;
    };
    let extension = extension.to_ascii_lowercase();
    match OURS.iter().find(|(ours, _)| *ours == extension) {
        Some((_, media_type)) => media_type,
        None => mime_guess::from_ext(&extension).first_raw().unwrap_or(UNKNOWN),
    }
}

/// What stands behind the last dot of the last segment; names that only begin with a dot have none.
fn extension(name: &[u8]) -> Option<&str> {
    let segment = name.rsplit(|&byte| byte == b'/').next()?;
    let dot = segment.iter().rposition(|&byte| byte == b'.').filter(|&dot| dot > 0)?;
    std::str::from_utf8(&segment[dot + 1..]).ok()
}

fn is_text(media_type: &str) -> bool {
    media_type.starts_with("text/") || TEXT.contains(&media_type)
}

/// Text that does not say so.
const TEXT: &[&str] = &[
    "application/javascript",
    "application/json",
    "application/manifest+json",
    "application/xhtml+xml",
    "application/xml",
    "application/atom+xml",
    "application/rss+xml",
    "image/svg+xml",
];

/// Where the guess is out of date, missing, or right only for another operating system.
const OURS: &[(&str, &str)] = &[
    ("asc", "text/plain"),
    ("avif", "image/avif"),
    ("br", "application/x-brotli"),
    ("cjs", "text/javascript"),
    ("conf", "text/plain"),
    ("deb", "application/vnd.debian.binary-package"),
    ("geojson", "application/geo+json"),
    ("glb", "model/gltf-binary"),
    ("gz", "application/gzip"),
    ("ico", "image/vnd.microsoft.icon"),
    ("iso", "application/x-iso9660-image"),
    ("js", "text/javascript"),
    ("json", "application/json"),
    ("jsonld", "application/ld+json"),
    ("jxl", "image/jxl"),
    ("log", "text/plain"),
    ("map", "application/json"),
    ("markdown", "text/markdown"),
    ("md", "text/markdown"),
    ("mjs", "text/javascript"),
    ("opus", "audio/ogg"),
    ("otf", "font/otf"),
    ("rpm", "application/x-rpm"),
    ("rs", "text/plain"),
    ("rss", "application/rss+xml"),
    ("sh", "text/plain"),
    ("sha256", "text/plain"),
    ("sig", "application/pgp-signature"),
    ("tgz", "application/gzip"),
    ("toml", "application/toml"),
    ("ts", "video/mp2t"),
    ("ttf", "font/ttf"),
    ("wasm", "application/wasm"),
    ("webmanifest", "application/manifest+json"),
    ("webp", "image/webp"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("xml", "application/xml"),
    ("xz", "application/x-xz"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("zst", "application/zstd"),
    ("zsync", "application/x-zsync"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9110 section 8.3.
    #[test]
    fn names_tell_types() {
        for (name, expected) in [
            ("index.html", "text/html; charset=utf-8"),
            ("/a.b/INDEX.HTM", "text/html; charset=utf-8"),
            ("a.css", "text/css; charset=utf-8"),
            ("a.js", "text/javascript; charset=utf-8"),
            ("a.mjs", "text/javascript; charset=utf-8"),
            ("a.json", "application/json; charset=utf-8"),
            ("a.xml", "application/xml; charset=utf-8"),
            ("a.svg", "image/svg+xml; charset=utf-8"),
            ("a.txt", "text/plain; charset=utf-8"),
            ("a.md", "text/markdown; charset=utf-8"),
            ("a.webmanifest", "application/manifest+json; charset=utf-8"),
            ("a.png", "image/png"),
            ("a.jpeg", "image/jpeg"),
            ("a.webp", "image/webp"),
            ("a.avif", "image/avif"),
            ("a.wasm", "application/wasm"),
            ("a.woff2", "font/woff2"),
            ("a.pdf", "application/pdf"),
            ("a.zip", "application/zip"),
            ("a.tar.gz", "application/gzip"),
            ("a.zst", "application/zstd"),
            ("a.deb", "application/vnd.debian.binary-package"),
            ("a.mp4", "video/mp4"),
            ("a.unheardof", UNKNOWN),
            ("README", UNKNOWN),
            (".html", UNKNOWN),
            ("/a.html/", UNKNOWN),
            ("a.", UNKNOWN),
            ("", UNKNOWN),
        ] {
            assert_eq!(of(name.as_bytes()), expected, "{name}");
        }
        assert_eq!(of(b"a.\xff"), UNKNOWN);
        assert_eq!(of(b"\xff.png"), "image/png");
    }

    #[test]
    fn our_table_is_sorted_and_of_use() {
        assert!(OURS.is_sorted_by(|one, other| one.0 < other.0));
        for (extension, media_type) in OURS {
            assert_eq!(essence(format!("a.{extension}").as_bytes()), *media_type);
        }
    }
}
