//! Conditional requests (RFC 9110 section 13): whether a request for something that exists is carried out.

use super::date;
use super::etag::{EntityTag, Tags};
use super::fields::{Fields, Known};
use super::request::Method;

/// What is known of the representation that would be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Validators<'a> {
    /// Its entity tag, as it is sent.
    pub etag: Option<&'a [u8]>,
    /// When it was last modified, as it is sent: seconds since 1970.
    pub modified: Option<i64>,
}

/// What the conditions come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The request is carried out.
    Proceed,
    /// 304
    NotModified,
    /// 412
    PreconditionFailed,
}

/// Evaluates the conditions of a request, in the order of section 13.2.2. Methods that select no
/// representation have no conditions (section 13.2.1).
pub fn evaluate(method: Method, fields: &Fields, validators: Validators) -> Outcome {
    if !matches!(method, Method::Get | Method::Head) || !is_conditional(fields) {
        return Outcome::Proceed;
    }
    if fields.times(Known::IfMatch) > 0 {
        if !names(fields, Known::IfMatch, validators.etag, |one, other| one.same_bytes(other)) {
            return Outcome::PreconditionFailed;
        }
    } else if let (Some(date), Some(modified)) =
        (date_of(fields, Known::IfUnmodifiedSince), validators.modified)
        && modified > date
    {
        return Outcome::PreconditionFailed;
    }
    if fields.times(Known::IfNoneMatch) > 0 {
        if names(fields, Known::IfNoneMatch, validators.etag, |one, other| one.same_meaning(other)) {
            return Outcome::NotModified;
        }
    } else if let (Some(date), Some(modified)) =
        (date_of(fields, Known::IfModifiedSince), validators.modified)
        && modified <= date
    {
        return Outcome::NotModified;
    }
    Outcome::Proceed
}

/// Whether `Range` counts, as far as `If-Range` is concerned (section 13.1.5): it names, strongly, what
/// would be sent. `now` is the time of the answer in seconds since 1970: a file changed within the second
/// may change again without its date showing it, so until the second is over the date is weak
/// (section 8.8.2.2).
pub fn if_range(fields: &Fields, validators: Validators, now: i64) -> bool {
    if fields.times(Known::IfRange) == 0 {
        return true;
    }
    let Some(value) = fields.only(Known::IfRange) else {
        return false;
    };
    if let Some(tag) = EntityTag::parse(value) {
        let current = validators.etag.and_then(EntityTag::parse);
        return current.is_some_and(|current| current.same_bytes(tag));
    }
    match (date::parse(value), validators.modified) {
        (Some(date), Some(modified)) => date == modified && modified < now,
        _ => false,
    }
}

/// Most requests have no condition; this is all they pay.
fn is_conditional(fields: &Fields) -> bool {
    fields.times(Known::IfNoneMatch)
        + fields.times(Known::IfModifiedSince)
        + fields.times(Known::IfMatch)
        + fields.times(Known::IfUnmodifiedSince)
        > 0
}

/// Whether a field names the tag of what would be sent, or anything at all.
fn names(
    fields: &Fields,
    known: Known,
    etag: Option<&[u8]>,
    same: impl Fn(EntityTag, EntityTag) -> bool,
) -> bool {
    let current = etag.and_then(EntityTag::parse);
    fields.all(known).any(|value| match Tags::parse(value) {
        Tags::Any => true,
        Tags::List(mut tags) => current.is_some_and(|current| tags.any(|tag| same(current, tag))),
    })
}

/// The date of a field. One that is malformed or repeated counts as absent (sections 13.1.3 and 13.1.4).
fn date_of(fields: &Fields, known: Known) -> Option<i64> {
    fields.only(known).and_then(date::parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODIFIED: i64 = 784_111_777;
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn fields(lines: &[String]) -> Vec<u8> {
        lines.iter().flat_map(|line| format!("{line}\r\n").into_bytes()).collect()
    }

    fn check(lines: &[String], expected: Outcome) {
        let section = fields(lines);
        let fields = Fields::of_section(&section).unwrap();
        let validators = Validators { etag: Some(b"\"a\""), modified: Some(MODIFIED) };
        for method in [Method::Get, Method::Head] {
            assert_eq!(evaluate(method, &fields, validators), expected, "{method:?} {lines:?}");
        }
        for method in [Method::Options, Method::Known, Method::Unknown] {
            assert_eq!(evaluate(method, &fields, validators), Outcome::Proceed, "{method:?} {lines:?}");
        }
    }

    use Outcome::{NotModified, PreconditionFailed, Proceed};

    /// RFC 9110 section 13.1.1.
    #[test]
    fn if_match_compares_strongly() {
        for (value, expected) in [
            ("\"a\"", Proceed),
            ("*", Proceed),
            ("\"b\", \"a\"", Proceed),
            ("\"b\"", PreconditionFailed),
            ("W/\"a\"", PreconditionFailed),
            ("a", PreconditionFailed),
            ("", PreconditionFailed),
        ] {
            check(&[format!("If-Match: {value}")], expected);
        }
        check(&["If-Match: \"b\"".into(), "If-Match: \"a\"".into()], Proceed);
    }

    /// RFC 9110 section 13.1.2.
    #[test]
    fn if_none_match_compares_weakly() {
        for (value, expected) in [
            ("\"a\"", NotModified),
            ("*", NotModified),
            ("W/\"a\"", NotModified),
            ("\"b\",W/\"a\"", NotModified),
            ("\"b\"", Proceed),
            ("a", Proceed),
            ("", Proceed),
        ] {
            check(&[format!("If-None-Match: {value}")], expected);
        }
        check(&["If-None-Match: \"b\"".into(), "If-None-Match: \"a\"".into()], NotModified);
    }

    /// RFC 9110 sections 13.1.3 and 13.1.4.
    #[test]
    fn dates_compare_by_the_second() {
        for (name, date, expected) in [
            ("If-Modified-Since", BEFORE, Proceed),
            ("If-Modified-Since", SAME, NotModified),
            ("If-Modified-Since", AFTER, NotModified),
            ("If-Modified-Since", "Sunday, 06-Nov-94 08:49:37 GMT", NotModified),
            ("If-Modified-Since", "Sun Nov  6 08:49:37 1994", NotModified),
            ("If-Modified-Since", "yesterday", Proceed),
            ("If-Modified-Since", "", Proceed),
            ("If-Unmodified-Since", BEFORE, PreconditionFailed),
            ("If-Unmodified-Since", SAME, Proceed),
            ("If-Unmodified-Since", AFTER, Proceed),
            ("If-Unmodified-Since", "yesterday", Proceed),
        ] {
            check(&[format!("{name}: {date}")], expected);
            if expected != Proceed {
                // Two dates are no date.
                check(&[format!("{name}: {date}"), format!("{name}: {date}")], Proceed);
            }
        }
    }

    /// RFC 9110 section 13.2.2: each step against the next.
    #[test]
    fn conditions_have_an_order() {
        for (lines, expected) in [
            (vec!["If-Match: \"a\"".into(), format!("If-Unmodified-Since: {BEFORE}")], Proceed),
            (vec!["If-Match: \"b\"".into(), "If-None-Match: \"a\"".into()], PreconditionFailed),
            (
                vec![format!("If-Unmodified-Since: {BEFORE}"), "If-None-Match: \"a\"".into()],
                PreconditionFailed,
            ),
            (vec!["If-Match: *".into(), "If-None-Match: \"a\"".into()], NotModified),
            (vec!["If-None-Match: \"b\"".into(), format!("If-Modified-Since: {AFTER}")], Proceed),
            (vec!["If-None-Match: \"a\"".into(), format!("If-Modified-Since: {BEFORE}")], NotModified),
            (vec![format!("If-Unmodified-Since: {SAME}"), format!("If-Modified-Since: {SAME}")], NotModified),
        ] {
            check(&lines, expected);
        }
    }

    #[test]
    fn what_has_no_validators_matches_only_anything() {
        for (line, expected) in [
            ("If-Match: \"a\"", PreconditionFailed),
            ("If-Match: *", Proceed),
            ("If-None-Match: \"a\"", Proceed),
            ("If-None-Match: *", NotModified),
            ("If-Modified-Since: Sun, 06 Nov 1994 08:49:38 GMT", Proceed),
            ("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:36 GMT", Proceed),
        ] {
            let section = format!("{line}\r\n");
            let fields = Fields::of_section(section.as_bytes()).unwrap();
            assert_eq!(evaluate(Method::Get, &fields, Validators::default()), expected, "{line}");
        }
    }

    /// RFC 9110 sections 13.1.5 and 8.8.2.2.
    #[test]
    fn if_range_is_strong() {
        for (values, etag, expected) in [
            (&[][..], "\"a\"", true),
            (&["\"a\""], "\"a\"", true),
            (&["\"b\""], "\"a\"", false),
            (&["W/\"a\""], "\"a\"", false),
            (&["W/\"a\""], "W/\"a\"", false),
            (&["\"a\""], "W/\"a\"", false),
            (&["\"a\", \"b\""], "\"a\"", false),
            (&["*"], "\"a\"", false),
            (&["a"], "\"a\"", false),
            (&[""], "\"a\"", false),
            (&["\"a\"", "\"a\""], "\"a\"", false),
            (&[SAME], "\"a\"", true),
            (&[BEFORE], "\"a\"", false),
            (&[AFTER], "\"a\"", false),
        ] {
            let section: String = values.iter().map(|value| format!("If-Range: {value}\r\n")).collect();
            let fields = Fields::of_section(section.as_bytes()).unwrap();
            let validators = Validators { etag: Some(etag.as_bytes()), modified: Some(MODIFIED) };
            assert_eq!(if_range(&fields, validators, MODIFIED + 1), expected, "{values:?} {etag}");
        }
        let section = format!("If-Range: {SAME}\r\n");
        let fields = Fields::of_section(section.as_bytes()).unwrap();
        let validators = Validators { etag: None, modified: Some(MODIFIED) };
        assert!(!if_range(&fields, validators, MODIFIED));
        assert!(!if_range(&fields, Validators::default(), MODIFIED + 1));
    }
}
