//! Range requests (RFC 9110 section 14) for bytes, the only unit there is.

use std::io::Write;
use std::ops::Range;

use super::fields::{Fields, Known, list};
use super::request::Method;

/// More ranges than this are not worth the bookkeeping, and are mostly an attack (RFC 9110 section 17.15):
/// the whole is sent.
const RANGES_MAX: usize = 16;

/// What a `Range` field comes to for a representation of known length.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ranges {
    /// The field does not count: everything is sent, with 200.
    Whole,
    /// One part: 206 with `Content-Range`.
    One(Range<u64>),
    /// Several parts that do not touch, in the order asked for: 206 with multipart/byteranges.
    Many(Vec<Range<u64>>),
    /// Nothing of what was asked for exists: 416 with [`unsatisfied_range`].
    Unsatisfiable,
}

/// The value of `Range`, where it has a meaning: on GET, and not repeated (section 14.2).
pub fn asked<'a>(method: Method, fields: &Fields<'a>) -> Option<&'a [u8]> {
    if method == Method::Get { fields.only(Known::Range) } else { None }
}

/// Resolves a `Range` value against the length of what would be sent. What is malformed, in another unit
/// or too much does not count. Ranges that overlap or touch become one, in the place of the first of them.
pub fn resolve(value: &[u8], length: u64) -> Ranges {
    let Some(set) = ranges_specifier(value) else {
        return Ranges::Whole;
    };
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut specs = 0;
    for spec in list(set) {
        specs += 1;
        match parse_spec(spec, length) {
            _ if specs > RANGES_MAX => return Ranges::Whole,
            Spec::Malformed => return Ranges::Whole,
            Spec::Beyond => {}
            // The end of nothing is all of it, which no Content-Range can say.
            Spec::Part(part) if part.is_empty() => return Ranges::Whole,
            Spec::Part(part) => add(&mut ranges, part),
        }
    }
    match (specs, ranges.len()) {
        (0, _) => Ranges::Whole,
        (_, 0) => Ranges::Unsatisfiable,
        (_, 1) => Ranges::One(ranges.remove(0)),
        _ => Ranges::Many(ranges),
    }
}

/// Appends the value of `Content-Range` for one part (section 14.4).
pub fn content_range(out: &mut Vec<u8>, range: &Range<u64>, length: u64) {
    debug_assert!(range.start < range.end && range.end <= length);
    write!(out, "bytes {}-{}/{length}", range.start, range.end - 1).expect("memory takes all");
}

/// Appends the value of `Content-Range` for 416 (section 14.4).
pub fn unsatisfied_range(out: &mut Vec<u8>, length: u64) {
    write!(out, "bytes */{length}").expect("memory takes all");
}

/// What stands behind "bytes=" (section 14.1.1); units are compared without case.
fn ranges_specifier(value: &[u8]) -> Option<&[u8]> {
    let (unit, set) = value.split_at_checked(6)?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(set)
}

enum Spec {
    Malformed,
    /// Well-formed, but nothing is there.
    Beyond,
    /// Empty only as the end of nothing.
    Part(Range<u64>),
}

/// first-pos "-" [last-pos], or "-" suffix-length (section 14.1.2).
fn parse_spec(spec: &[u8], length: u64) -> Spec {
    let Some(dash) = spec.iter().position(|&byte| byte == b'-') else {
        return Spec::Malformed;
    };
    let (first, last) = (&spec[..dash], &spec[dash + 1..]);
    let (first, last) = match (number(first), number(last)) {
        (Some(first), Some(last)) => (first, last),
        (Some(first), None) if last.is_empty() => (first, u64::MAX),
        (None, Some(0)) if first.is_empty() => return Spec::Beyond,
        (None, Some(suffix)) if first.is_empty() => return Spec::Part(length.saturating_sub(suffix)..length),
        _ => return Spec::Malformed,
    };
    if last < first {
        Spec::Malformed
    } else if first >= length {
        Spec::Beyond
    } else {
        Spec::Part(first..last.saturating_add(1).min(length))
    }
}

/// 1*DIGIT. A number too large for any file is as good as the largest there is.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(
        digits
            .iter()
            .fold(0u64, |number, digit| number.saturating_mul(10).saturating_add(u64::from(digit - b'0'))),
    )
}

/// Adds a part, joined with all that it overlaps or touches, in the place of the first of these.
fn add(ranges: &mut Vec<Range<u64>>, mut part: Range<u64>) {
    let mut place = ranges.len();
    // Joining may make the part reach others that were passed already; hence from the start again.
    while let Some(met) = ranges.iter().position(|range| range.start <= part.end && part.start <= range.end) {
        let range = ranges.remove(met);
        part = part.start.min(range.start)..part.end.max(range.end);
        place = place.min(met);
    }
    ranges.insert(place.min(ranges.len()), part);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: &str, length: u64, expected: Ranges) {
        assert_eq!(resolve(value.as_bytes(), length), expected, "{value:?} of {length}");
    }

    /// RFC 9110 section 14.1.2.
    #[test]
    fn single_ranges() {
        for (value, range) in [
            ("bytes=0-499", 0..500),
            ("bytes=500-999", 500..1000),
            ("bytes=-500", 9500..10000),
            ("bytes=9500-", 9500..10000),
            ("bytes=0-0", 0..1),
            ("bytes=-1", 9999..10000),
            ("bytes=0-", 0..10000),
            ("BYTES=0-1", 0..2),
            ("bytes=0-99999", 0..10000),
            ("bytes=-99999", 0..10000),
            ("bytes=5-99999999999999999999999999", 5..10000),
            ("bytes=-99999999999999999999999999", 0..10000),
            ("bytes=00000000000000000000000000001-2", 1..3),
            ("bytes= 1-2 ", 1..3),
            ("bytes=,1-2,,", 1..3),
            ("bytes=1-2,20000-", 1..3),
            ("bytes=1-2,-0", 1..3),
        ] {
            check(value, 10000, Ranges::One(range));
        }
        check("bytes=18446744073709551614-", u64::MAX, Ranges::One(u64::MAX - 1..u64::MAX));
    }

    /// RFC 9110 sections 14.1.1 and 14.2.
    #[test]
    fn what_makes_no_sense_does_not_count() {
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes=,",
            "bytes= ",
            "bytes=-",
            "bytes=a-b",
            "bytes=1",
            "bytes=5-4",
            "bytes=1-2-3",
            "bytes=--1",
            "bytes=+1-2",
            "bytes=1 - 2",
            "bytes=0x1-2",
            "bytes =1-2",
            "bytes=1-2;3-4",
            "lines=1-2",
            "1-2",
            "bytes=1-2,x",
            "bytes=1-2,5-4",
            "bytes:1-2",
            "bytes=\u{661}-",
        ] {
            check(value, 10000, Ranges::Whole);
        }
    }

    /// RFC 9110 sections 14.1.2 and 15.5.17.
    #[test]
    fn what_is_not_there_cannot_be_satisfied() {
        for value in [
            "bytes=10000-",
            "bytes=10000-10001",
            "bytes=-0",
            "bytes=99999999999999999999-",
            "bytes=10000-,-0",
        ] {
            check(value, 10000, Ranges::Unsatisfiable);
        }
        check("bytes=0-", 0, Ranges::Unsatisfiable);
        check("bytes=0-0", 0, Ranges::Unsatisfiable);
        check("bytes=-5", 0, Ranges::Whole);
    }

    /// RFC 9110 sections 14.2 and 15.3.7.2.
    #[test]
    #[allow(clippy::single_range_in_vec_init)]
    fn several_ranges_keep_their_order_and_never_touch() {
        for (value, expected) in [
            ("bytes=0-1,4-5", vec![0..2, 4..6]),
            ("bytes=4-5,0-1", vec![4..6, 0..2]),
            ("bytes=0-0,-1", vec![0..1, 99..100]),
            ("bytes=0-1,2-3", vec![0..4]),
            ("bytes=2-3,0-1", vec![0..4]),
            ("bytes=0-9,5-20", vec![0..21]),
            ("bytes=50-60,0-9,5-20", vec![50..61, 0..21]),
            ("bytes=0-9,50-60,5-20", vec![0..21, 50..61]),
            ("bytes=0-1,4-5,8-9,1-8", vec![0..10]),
            ("bytes=90-,0-1,-20", vec![80..100, 0..2]),
            ("bytes=0-,0-,0-,0-", vec![0..100]),
            ("bytes=10-19,30-39,20-29,50-", vec![10..40, 50..100]),
        ] {
            let expected =
                if expected.len() == 1 { Ranges::One(expected[0].clone()) } else { Ranges::Many(expected) };
            check(value, 100, expected);
        }
        let many = |count: u64| {
            let specs: Vec<_> = (0..count).map(|spec| format!("{}-{}", spec * 2, spec * 2)).collect();
            format!("bytes={}", specs.join(","))
        };
        check(&many(16), 1000, Ranges::Many((0..16).map(|spec| spec * 2..spec * 2 + 1).collect()));
        check(&many(17), 1000, Ranges::Whole);
    }

    /// RFC 9110 section 14.4.
    #[test]
    fn content_ranges_are_written() {
        let mut out = Vec::new();
        content_range(&mut out, &(42..1234), 1_234_567_890_123);
        assert_eq!(out, b"bytes 42-1233/1234567890123");
        out.clear();
        unsatisfied_range(&mut out, 47022);
        assert_eq!(out, b"bytes */47022");
    }

    /// RFC 9110 section 14.2.
    #[test]
    fn ranges_are_for_get_and_not_repeated() {
        let one = Fields::of_section(b"Range: bytes=0-\r\n").unwrap();
        let two = Fields::of_section(b"Range: bytes=0-\r\nRange: bytes=0-\r\n").unwrap();
        assert_eq!(asked(Method::Get, &one), Some(&b"bytes=0-"[..]));
        assert_eq!(asked(Method::Head, &one), None);
        assert_eq!(asked(Method::Get, &two), None);
    }
}
