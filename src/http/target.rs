//! The path of a request as a name to look up: decoded once, without empty and dot segments
//! (RFC 3986 sections 2.1, 5.2.4 and 6.2.2), and back into a form fit for addresses.
//!
//! Everything that decides by path (rules, hidden names, files) sees this one form, so that no second
//! spelling of a path gets around a decision. A backslash is an ordinary byte, as it is to the file system.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_encode};

/// Why a path leads nowhere: 400.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadPath {
    /// It does not begin with a slash.
    Relative,
    /// A percent sign without two hexadecimal digits.
    Percent,
    /// An encoded slash: to some programs a separator, to others part of a name.
    Slash,
    /// A zero byte, which no name can hold.
    Null,
    /// More `..` than there are segments. RFC 3986 would let them stay at the root; whoever sends this
    /// probes, or has an address that was made wrongly.
    AboveRoot,
}

impl BadPath {
    /// One sentence for the error page and the log.
    pub const fn explanation(self) -> &'static str {
        match self {
            BadPath::Relative => "The path does not begin with a slash.",
            BadPath::Percent => "The path holds a percent sign that encodes nothing.",
            BadPath::Slash => "The path holds an encoded slash.",
            BadPath::Null => "The path holds a zero byte.",
            BadPath::AboveRoot => "The path leads above the root.",
        }
    }
}

/// Decodes a path as sent, merges slashes and resolves dot segments, in this order: `//` separates like
/// `/`, and `%2e` is a dot. A path that needs none of it is handed back as it is, else the result is in
/// `buffer`.
pub fn normalise<'a>(path: &'a [u8], buffer: &'a mut Vec<u8>) -> Result<&'a [u8], BadPath> {
    if path.first() != Some(&b'/') {
        return Err(BadPath::Relative);
    }
    if is_normal(path) {
        return Ok(path);
    }
    buffer.clear();
    buffer.reserve(path.len());
    buffer.push(b'/');
    let mut rest = &path[1..];
    let mut segment = buffer.len();
    while let [byte, after @ ..] = rest {
        rest = after;
        match byte {
            b'/' => {
                end_segment(buffer, segment)?;
                if buffer.last() != Some(&b'/') {
                    buffer.push(b'/');
                }
                segment = buffer.len();
            }
            b'%' => {
                let (decoded, after) = decode(rest)?;
                rest = after;
                buffer.push(decoded);
            }
            0 => return Err(BadPath::Null),
            _ => buffer.push(*byte),
        }
    }
    end_segment(buffer, segment)?;
    Ok(buffer)
}

/// A path, or the name of a file, percent-encoded so that it may stand in a field and in an attribute of
/// HTML without further escaping, and so that a lone name is not taken for a scheme. Slashes stay.
pub fn encode_path(path: &[u8]) -> PercentEncode<'_> {
    percent_encode(path, ENCODED)
}

/// Whether there is nothing to decode, merge or resolve. A segment that begins with a dot is left to the
/// slower way, though it is mostly a hidden name.
fn is_normal(path: &[u8]) -> bool {
    // Without an early exit, so that the compiler compares many bytes at once.
    let pairs = path.iter().zip(&path[1..]);
    !pairs.fold(false, |bad, (&before, &byte)| {
        bad | (byte == b'%') | (byte == 0) | ((before == b'/') & ((byte == b'/') | (byte == b'.')))
    })
}

/// What two digits behind a percent sign stand for.
fn decode(digits: &[u8]) -> Result<(u8, &[u8]), BadPath> {
    let [high, low, rest @ ..] = digits else {
        return Err(BadPath::Percent);
    };
    let digit = |byte: &u8| char::from(*byte).to_digit(16).ok_or(BadPath::Percent);
    match (digit(high)? << 4 | digit(low)?) as u8 {
        0 => Err(BadPath::Null),
        b'/' => Err(BadPath::Slash),
        byte => Ok((byte, rest)),
    }
}

/// Resolves the segment that begins at `start` if it is a dot segment.
fn end_segment(buffer: &mut Vec<u8>, start: usize) -> Result<(), BadPath> {
    match &buffer[start..] {
        b"." => buffer.truncate(start),
        b".." => {
            let parent = buffer[..start - 1].iter().rposition(|&byte| byte == b'/');
            buffer.truncate(parent.ok_or(BadPath::AboveRoot)? + 1);
        }
        _ => {}
    }
    Ok(())
}

/// What stays is unreserved, or means nothing in a path, to HTML or to a shell that someone pastes it into.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'+')
    .remove(b',')
    .remove(b'=')
    .remove(b'@');

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(path: &str, expected: Result<&str, BadPath>) {
        let mut buffer = b"left over".to_vec();
        assert_eq!(normalise(path.as_bytes(), &mut buffer), expected.map(str::as_bytes), "{path:?}");
    }

    #[test]
    fn plain_paths_are_not_copied() {
        for path in ["/", "/a", "/a/b.html", "/a/", "/a b", "/a..b/c.", "/\u{e9}", "/a\\b"] {
            let mut buffer = Vec::new();
            let normal = normalise(path.as_bytes(), &mut buffer).unwrap();
            assert_eq!(normal.as_ptr(), path.as_ptr(), "{path}");
        }
    }

    /// RFC 3986 section 2.1.
    #[test]
    fn encoded_bytes_are_decoded_once() {
        check("/%61%2Db", Ok("/a-b"));
        check("/%c3%A9", Ok("/\u{e9}"));
        check("/%2541", Ok("/%41"));
        check("/a%20b%25", Ok("/a b%"));
        check("/%5c..%5C", Ok("/\\..\\"));
        check("/%3f%23", Ok("/?#"));
        check("/a%0ab", Ok("/a\nb"));
        for bad in ["/%", "/%4", "/a%", "/%zz", "/%4g", "/%%41", "/% 41", "/%+1", "/%u0041", "/..%"] {
            check(bad, Err(BadPath::Percent));
        }
        for bad in ["/%2f", "/a%2Fb", "/..%2f..", "/%2e%2e%2f"] {
            check(bad, Err(BadPath::Slash));
        }
        check("/%00", Err(BadPath::Null));
        check("/a%00.html", Err(BadPath::Null));
        check("/a\0b", Err(BadPath::Null));
        let mut buffer = Vec::new();
        assert_eq!(normalise(b"/%ff\xfe", &mut buffer), Ok(&b"/\xff\xfe"[..]));
    }

    /// RFC 3986 section 5.2.4, but that nothing climbs above the root, and that slashes are merged.
    #[test]
    fn dot_segments_are_resolved_and_slashes_merged() {
        for (path, expected) in [
            ("/a/b/c/./../../g", "/a/g"),
            ("/.", "/"),
            ("/./", "/"),
            ("/a/.", "/a/"),
            ("/a/..", "/"),
            ("/a/../", "/"),
            ("/a/b/..", "/a/"),
            ("/a/b/../", "/a/"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/.%2e/b/%2e", "/b/"),
            ("/a/...", "/a/..."),
            ("/.a/..b/c..", "/.a/..b/c.."),
            ("/.well-known/x", "/.well-known/x"),
            ("//", "/"),
            ("//a///b//", "/a/b/"),
            ("/a//../b", "/b"),
            ("/a/.//b", "/a/b"),
            ("/a/.. /b", "/a/.. /b"),
            ("/a/..\\b", "/a/..\\b"),
        ] {
            check(path, Ok(expected));
        }
        for path in [
            "/..",
            "/../",
            "/../a",
            "/a/../..",
            "/a/../../b",
            "/./..",
            "//..",
            "/%2e%2e/a",
            "/a/b/../../../c",
        ] {
            check(path, Err(BadPath::AboveRoot));
        }
        for path in ["", "a", "*", "../a", "%2f"] {
            check(path, Err(BadPath::Relative));
        }
    }

    #[test]
    fn encoded_names_are_safe_anywhere() {
        for (name, expected) in [
            ("/a/b-c_d.e~f", "/a/b-c_d.e~f"),
            ("a b", "a%20b"),
            ("50%", "50%25"),
            ("\"<>&'", "%22%3C%3E%26%27"),
            ("javascript:x", "javascript%3Ax"),
            ("a?b#c", "a%3Fb%23c"),
            ("a\r\nb", "a%0D%0Ab"),
            ("\u{e9}", "%C3%A9"),
        ] {
            assert_eq!(encode_path(name.as_bytes()).to_string(), expected, "{name:?}");
        }
    }

    fn paths() -> impl Strategy<Value = String> {
        let piece =
            prop::sample::select(vec!["/", "//", ".", "..", "a", "%2e", "%41", "%2f", "%00", "%", "\u{e9}"]);
        prop::collection::vec(piece, 0..12).prop_map(|pieces| format!("/{}", pieces.concat()))
    }

    proptest! {
        #[test]
        fn normal_paths_have_one_form(path in paths()) {
            let (mut first, mut second) = (Vec::new(), Vec::new());
            let Ok(normal) = normalise(path.as_bytes(), &mut first) else { return Ok(()) };
            prop_assert!(normal.starts_with(b"/") && !normal.contains(&0));
            let inner = normal.split(|&byte| byte == b'/').skip(1);
            let segments: Vec<_> = inner.collect();
            prop_assert!(segments[..segments.len() - 1].iter().all(|segment| !segment.is_empty()));
            prop_assert!(segments.iter().all(|segment| ![&b"."[..], b".."].contains(segment)));
            // Encoding it anew and normalising again changes nothing.
            let again = encode_path(normal).to_string();
            prop_assert_eq!(normalise(again.as_bytes(), &mut second), Ok(normal));
        }
    }
}
