//! Entity tags (RFC 9110 section 8.8.3) and lists of them.

use super::fields::trim;

/// An entity tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntityTag<'a> {
    /// Whether it is marked as weak.
    pub weak: bool,
    /// The opaque part, with its quotes.
    pub opaque: &'a [u8],
}

impl<'a> EntityTag<'a> {
    /// Reads exactly one tag.
    pub fn parse(text: &'a [u8]) -> Option<EntityTag<'a>> {
        let (tag, rest) = take(text)?;
        rest.is_empty().then_some(tag)
    }

    /// Strong comparison (section 8.8.3.2): the same bytes.
    pub fn same_bytes(self, other: EntityTag) -> bool {
        !self.weak && !other.weak && self.opaque == other.opaque
    }

    /// Weak comparison (section 8.8.3.2): the same meaning.
    pub fn same_meaning(self, other: EntityTag) -> bool {
        self.opaque == other.opaque
    }
}

/// A list of tags, or `*`, as `If-Match` and `If-None-Match` have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tags<'a> {
    /// `*`: whatever there is.
    Any,
    /// These.
    List(List<'a>),
}

impl<'a> Tags<'a> {
    /// Reads the value of one field line.
    pub fn parse(value: &'a [u8]) -> Tags<'a> {
        if trim(value) == b"*" { Tags::Any } else { Tags::List(List { rest: value }) }
    }
}

/// The tags of a list, in order. It ends early at what is no tag: clients that forget the quotes get the
/// answer they would get for a tag that matches nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct List<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for List<'a> {
    type Item = EntityTag<'a>;

    fn next(&mut self) -> Option<EntityTag<'a>> {
        while let [b' ' | b'\t' | b',', rest @ ..] = self.rest {
            self.rest = rest;
        }
        let (tag, rest) = take(self.rest)?;
        // Tags may hold commas, so the list cannot be split at them.
        let rest = trim(rest);
        if !rest.is_empty() && rest[0] != b',' {
            self.rest = b"";
            return None;
        }
        self.rest = rest;
        Some(tag)
    }
}

/// A tag at the beginning of `text`, and what follows.
fn take(text: &[u8]) -> Option<(EntityTag<'_>, &[u8])> {
    let (weak, text) = match text {
        [b'W', b'/', text @ ..] => (true, text),
        _ => (false, text),
    };
    let inner = text.strip_prefix(b"\"")?;
    // etagc: visible, but no quote; there are no escapes.
    let end = inner.iter().position(|&byte| byte == b'"' || byte <= b' ' || byte == 0x7f)?;
    (inner[end] == b'"').then(|| {
        let (opaque, rest) = text.split_at(end + 2);
        (EntityTag { weak, opaque }, rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Option<Vec<(bool, &str)>> {
        match Tags::parse(text.as_bytes()) {
            Tags::Any => None,
            Tags::List(tags) => {
                Some(tags.map(|tag| (tag.weak, std::str::from_utf8(tag.opaque).unwrap())).collect())
            }
        }
    }

    /// RFC 9110 section 8.8.3.
    #[test]
    fn tags_are_quoted_and_perhaps_weak() {
        for (text, expected) in [
            ("\"xyzzy\"", Some((false, "\"xyzzy\""))),
            ("W/\"xyzzy\"", Some((true, "\"xyzzy\""))),
            ("\"\"", Some((false, "\"\""))),
            ("\"a,b\\\"", Some((false, "\"a,b\\\""))),
            ("\"\u{e9}\"", Some((false, "\"\u{e9}\""))),
            ("", None),
            ("xyzzy", None),
            ("\"xyzzy", None),
            ("w/\"xyzzy\"", None),
            ("W/xyzzy", None),
            ("\"a b\"", None),
            ("\"a\"b", None),
            (" \"a\"", None),
            ("*", None),
        ] {
            let expected = expected.map(|(weak, opaque)| EntityTag { weak, opaque: opaque.as_bytes() });
            assert_eq!(EntityTag::parse(text.as_bytes()), expected, "{text}");
        }
    }

    /// RFC 9110 section 8.8.3.2: the table of the section.
    #[test]
    fn comparison_is_strong_or_weak() {
        for (one, other, strong, weak) in [
            ("W/\"1\"", "W/\"1\"", false, true),
            ("W/\"1\"", "W/\"2\"", false, false),
            ("W/\"1\"", "\"1\"", false, true),
            ("\"1\"", "\"1\"", true, true),
            ("\"1\"", "\"2\"", false, false),
        ] {
            let tag = |text: &'static str| EntityTag::parse(text.as_bytes()).unwrap();
            assert_eq!(tag(one).same_bytes(tag(other)), strong, "{one} {other}");
            assert_eq!(tag(one).same_meaning(tag(other)), weak, "{one} {other}");
        }
    }

    /// RFC 9110 sections 13.1.1 and 13.1.2.
    #[test]
    fn lists_are_read_until_they_make_no_sense() {
        assert_eq!(list("*"), None);
        assert_eq!(list(" * "), None);
        assert_eq!(list(""), Some(vec![]));
        assert_eq!(
            list("\"a\", W/\"b\" ,,\t\"c,d\""),
            Some(vec![(false, "\"a\""), (true, "\"b\""), (false, "\"c,d\"")])
        );
        assert_eq!(list("\"a\" \"b\""), Some(vec![]));
        assert_eq!(list("\"a\", b, \"c\""), Some(vec![(false, "\"a\"")]));
        assert_eq!(list("\"a\", *"), Some(vec![(false, "\"a\"")]));
        assert_eq!(list("a"), Some(vec![]));
    }
}
