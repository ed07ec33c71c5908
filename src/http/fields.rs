//! The fields of a request (RFC 9110 section 5): in order, borrowed, with those the server cares about
//! at hand. What a field means is the business of the file named after it; how fields are framed on
//! the wire is that of `http1`.
//!
//! Nothing is stored per field. A [`Fields`] keeps the checked text of the field section, which can be
//! walked again at any time, and the first value of each [`Known`] name, which is all that nearly
//! every request needs. An array of a hundred slices would have to be cleared and moved for each
//! request, at a cost well above that of parsing a small one.

use memchr::memchr;

/// More fields than this are refused (431). Browsers send about fifteen; a hundred is the common limit
/// of servers.
pub const FIELDS_MAX: usize = 100;

/// Declares [`Known`] and how its names are recognised.
macro_rules! known {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Names the server looks for.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Known {
            $(#[doc = $name] $variant,)*
        }

        impl Known {
            /// All of them, in the order of their discriminants.
            pub const ALL: &'static [Known] = &[$(Known::$variant,)*];

            /// The name as the registry spells it.
            pub const fn name(self) -> &'static str {
                match self { $(Known::$variant => $name,)* }
            }
        }
    };
}

known! {
    Accept = "Accept",
    AcceptEncoding = "Accept-Encoding",
    Authorization = "Authorization",
    Connection = "Connection",
    ContentEncoding = "Content-Encoding",
    ContentLength = "Content-Length",
    ContentType = "Content-Type",
    Cookie = "Cookie",
    Expect = "Expect",
    Forwarded = "Forwarded",
    Host = "Host",
    IfMatch = "If-Match",
    IfModifiedSince = "If-Modified-Since",
    IfNoneMatch = "If-None-Match",
    IfRange = "If-Range",
    IfUnmodifiedSince = "If-Unmodified-Since",
    Origin = "Origin",
    Proxy = "Proxy",
    Range = "Range",
    Referer = "Referer",
    Te = "TE",
    Trailer = "Trailer",
    TransferEncoding = "Transfer-Encoding",
    Upgrade = "Upgrade",
    UserAgent = "User-Agent",
    XForwardedFor = "X-Forwarded-For",
    XForwardedProto = "X-Forwarded-Proto",
    XRequestId = "X-Request-Id",
}

const KNOWN: usize = Known::ALL.len();

impl Known {
    /// Which known name this is, in any case.
    pub fn of(name: &[u8]) -> Option<Known> {
        use Known::*;
        // The length and the first letter leave one candidate; comparing it decides.
        let first = name.first()?.to_ascii_lowercase();
        let candidate = match (name.len(), first) {
            (2, b't') => Te,
            (4, b'h') => Host,
            (5, b'r') => Range,
            (5, b'p') => Proxy,
            (6, b'a') => Accept,
            (6, b'c') => Cookie,
            (6, b'e') => Expect,
            (6, b'o') => Origin,
            (7, b'r') => Referer,
            (7, b't') => Trailer,
            (7, b'u') => Upgrade,
            (8, b'i') => match name[3] | 0x20 {
                b'm' => IfMatch,
                _ => IfRange,
            },
            (9, b'f') => Forwarded,
            (10, b'c') => Connection,
            (10, b'u') => UserAgent,
            (12, b'c') => ContentType,
            (12, b'x') => XRequestId,
            (13, b'a') => Authorization,
            (13, b'i') => IfNoneMatch,
            (14, b'c') => ContentLength,
            (15, b'a') => AcceptEncoding,
            (15, b'x') => XForwardedFor,
            (16, b'c') => ContentEncoding,
            (17, b'i') => IfModifiedSince,
            (17, b't') => TransferEncoding,
            (17, b'x') => XForwardedProto,
            (19, b'i') => IfUnmodifiedSince,
            _ => return None,
        };
        same_name(name, candidate.name().as_bytes()).then_some(candidate)
    }
}

/// Whether a name of the same length is `known`, which consists of letters and hyphens, in any case.
/// Eight bytes at a time, of which the last may be looked at twice.
#[inline]
fn same_name(name: &[u8], known: &[u8]) -> bool {
    let same = |name: u64, known: u64| {
        // Letters may differ in the bit that tells their case; they are the bytes from 0x40 on.
        let case = (known & u64::from_le_bytes([0x40; 8])) >> 1;
        (name ^ known) & !case == 0
    };
    match (name.last_chunk::<8>(), known.last_chunk::<8>()) {
        (Some(name_end), Some(known_end)) => {
            let words = name.as_chunks::<8>().0.iter().zip(known.as_chunks::<8>().0);
            let end = (name_end, known_end);
            words
                .chain([end])
                .all(|(name, known)| same(u64::from_le_bytes(*name), u64::from_le_bytes(*known)))
        }
        _ => name.eq_ignore_ascii_case(known),
    }
}

/// Fields of a request, in order, borrowed from its bytes.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    section: &'a [u8],
    first: [&'a [u8]; KNOWN],
    times: [u8; KNOWN],
    count: u8,
}

impl Default for Fields<'_> {
    fn default() -> Self {
        Fields { section: &[], first: [&[]; KNOWN], times: [0; KNOWN], count: 0 }
    }
}

impl<'a> Fields<'a> {
    /// The first value of a field, without surrounding whitespace; `None` where the request has none.
    pub fn first(&self, known: Known) -> Option<&'a [u8]> {
        (self.times[known as usize] > 0).then_some(self.first[known as usize])
    }

    /// How often a field was sent.
    pub fn times(&self, known: Known) -> usize {
        self.times[known as usize].into()
    }

    /// The value of a field that must not be repeated: `None` where it is absent or is.
    pub fn only(&self, known: Known) -> Option<&'a [u8]> {
        (self.times[known as usize] == 1).then_some(self.first[known as usize])
    }

    /// Every value of a field, in order.
    pub fn all(&self, known: Known) -> All<'a> {
        match self.times[known as usize] {
            0 => All::None,
            1 => All::One(self.first[known as usize]),
            _ => All::Many(self.iter(), known),
        }
    }

    /// How many fields there are.
    pub fn count(&self) -> usize {
        self.count.into()
    }

    /// All fields as (name, value), in order, names as sent.
    pub fn iter(&self) -> Iter<'a> {
        Iter { rest: self.section }
    }

    /// The checked text of them all: lines, each ended by LF or CRLF.
    pub fn section(&self) -> &'a [u8] {
        self.section
    }

    /// The fields of a complete section: lines "name: value", each ended by LF or CRLF. `None` where
    /// a line is not one, or where there are too many.
    pub fn of_section(section: &'a [u8]) -> Option<Fields<'a>> {
        let mut fields = Fields::default();
        let mut rest = section;
        while !rest.is_empty() {
            let (line, after) = split_line(rest)?;
            let (name, value) = split_field(line)?;
            if !is_token(name) || !is_value(value) || !fields.note(Known::of(name), value) {
                return None;
            }
            rest = after;
        }
        fields.close(section);
        Some(fields)
    }

    /// Takes note of the next field; false where it is one too many. Whoever builds fields line by
    /// line calls [`Fields::close`] at the end, with the text these fields were read from.
    #[must_use]
    #[inline]
    pub fn note(&mut self, known: Option<Known>, value: &'a [u8]) -> bool {
        if usize::from(self.count) == FIELDS_MAX {
            return false;
        }
        self.count += 1;
        if let Some(known) = known {
            let index = known as usize;
            if self.times[index] == 0 {
                self.first[index] = value;
            }
            self.times[index] += 1;
        }
        true
    }

    /// Says which text the noted fields were read from: each line checked, each ended by LF or CRLF.
    pub fn close(&mut self, section: &'a [u8]) {
        self.section = section;
    }
}

/// All fields as (name, value).
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (line, rest) = split_line(self.rest)?;
        self.rest = rest;
        split_field(line)
    }
}

/// Every value of one field.
#[derive(Clone, Debug)]
pub enum All<'a> {
    /// No more.
    None,
    /// Exactly one.
    One(&'a [u8]),
    /// To be looked for among all fields.
    Many(Iter<'a>, Known),
}

impl<'a> Iterator for All<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        match self {
            All::None => None,
            All::One(value) => {
                let value = *value;
                *self = All::None;
                Some(value)
            }
            All::Many(fields, known) => {
                fields.find(|(name, _)| Known::of(name) == Some(*known)).map(|(_, value)| value)
            }
        }
    }
}

/// The elements of a comma-separated list (RFC 9110 section 5.6.1) without surrounding whitespace;
/// empty elements are skipped, as recipients must. For lists whose elements hold no quoted commas.
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim).filter(|element| !element.is_empty())
}

/// Without surrounding spaces and tabs: OWS of RFC 9110 section 5.6.3.
pub fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

/// Whether this is a token of RFC 9110 section 5.6.2, as names of fields and methods must be.
pub fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&byte| is_token_byte(byte))
}

/// Whether a byte may stand in a token.
pub fn is_token_byte(byte: u8) -> bool {
    TOKEN[usize::from(byte)]
}

/// Whether this may be the value of a field (RFC 9110 section 5.5): no control bytes but tab.
pub fn is_value(text: &[u8]) -> bool {
    control_at(text).is_none()
}

/// Where the first control byte is that is no tab. Eight bytes at a time: nearly all bytes of a request
/// are those of values.
#[inline]
pub fn control_at(text: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([0x01; 8]);
    const TOPS: u64 = u64::from_le_bytes([0x80; 8]);
    let (words, tail) = text.as_chunks::<8>();
    for (index, bytes) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*bytes);
        // The top bit of each byte that is below 0x20, and of each that is 0x7f. A borrow can set bits of the
        // bytes above a true one, but the lowest is always true.
        let below = word.wrapping_sub(ONES * 0x20) & !word & TOPS;
        let delete = (word ^ (ONES * 0x7f)).wrapping_sub(ONES) & !(word ^ (ONES * 0x7f)) & TOPS;
        if below | delete != 0 {
            let first = (below | delete).trailing_zeros() as usize / 8;
            if bytes[first] != b'\t' {
                return Some(index * 8 + first);
            }
            if let Some(at) = bytes.iter().position(|&byte| is_control(byte)) {
                return Some(index * 8 + at);
            }
        }
    }
    tail.iter().position(|&byte| is_control(byte)).map(|at| words.len() * 8 + at)
}

fn is_control(byte: u8) -> bool {
    byte.is_ascii_control() && byte != b'\t'
}

static TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = (byte as u8).is_ascii_alphanumeric()
            || matches!(
                byte as u8,
                b'!' | b'#'
                    | b'$'
                    | b'%'
                    | b'&'
                    | b'\''
                    | b'*'
                    | b'+'
                    | b'-'
                    | b'.'
                    | b'^'
                    | b'_'
                    | b'`'
                    | b'|'
                    | b'~'
            );
        byte += 1;
    }
    table
};

fn split_line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr(b'\n', text)?;
    let (line, rest) = (&text[..end], &text[end + 1..]);
    Some((line.strip_suffix(b"\r").unwrap_or(line), rest))
}

fn split_field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = memchr(b':', line)?;
    Some((&line[..colon], trim(&line[colon + 1..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_name_is_recognised_in_any_case() {
        for (index, &known) in Known::ALL.iter().enumerate() {
            assert_eq!(known as usize, index);
            let name = known.name();
            assert_eq!(Known::of(name.as_bytes()), Some(known), "{name}");
            assert_eq!(Known::of(name.to_uppercase().as_bytes()), Some(known), "{name}");
            assert_eq!(Known::of(name.to_lowercase().as_bytes()), Some(known), "{name}");
            let mut other = name.as_bytes().to_vec();
            *other.last_mut().unwrap() = b'~';
            assert_eq!(Known::of(&other), None, "{name}");
        }
        for name in ["", "x", "If-Eagle", "Hosts", "Content_Length", "HOST "] {
            assert_eq!(Known::of(name.as_bytes()), None, "{name:?}");
        }
    }

    #[test]
    fn fields_are_found_counted_and_walked_in_order() {
        let fields =
            Fields::of_section(b"Host: a\r\nx-other:1\r\nACCEPT:  b,c \r\nother:\t2\r\naccept:d\nTE:\r\n")
                .unwrap();
        assert_eq!(fields.first(Known::Host), Some(&b"a"[..]));
        assert_eq!(fields.first(Known::Te), Some(&b""[..]));
        assert_eq!(fields.first(Known::Range), None);
        assert_eq!(fields.first(Known::Accept), Some(&b"b,c"[..]));
        assert_eq!(fields.only(Known::Accept), None);
        assert_eq!(fields.only(Known::Host), Some(&b"a"[..]));
        assert_eq!(fields.times(Known::Accept), 2);
        assert_eq!(fields.all(Known::Accept).collect::<Vec<_>>(), [&b"b,c"[..], b"d"]);
        assert_eq!(fields.all(Known::Host).collect::<Vec<_>>(), [b"a"]);
        assert_eq!(fields.all(Known::Range).count(), 0);
        assert_eq!(fields.count(), 6);
        let names: Vec<_> = fields.iter().map(|(name, _)| name).collect();
        assert_eq!(names, [&b"Host"[..], b"x-other", b"ACCEPT", b"other", b"accept", b"TE"]);
    }

    #[test]
    fn sections_that_are_not_fields_are_refused() {
        for bad in ["a", "a: b", "\r\n", ": b\r\n", "a b: c\r\n", "a : c\r\n", "a: \x01\r\n", "a: b\rc\r\n"] {
            assert!(Fields::of_section(bad.as_bytes()).is_none(), "{bad:?}");
        }
        let hundred = "a:b\n".repeat(FIELDS_MAX);
        assert_eq!(Fields::of_section(hundred.as_bytes()).unwrap().count(), FIELDS_MAX);
        assert!(Fields::of_section((hundred + "a:b\n").as_bytes()).is_none());
    }

    /// RFC 9110 section 5.6.1.
    #[test]
    fn lists_skip_empty_elements() {
        let elements: Vec<_> = list(b" , a,\tb ,, c d,").collect();
        assert_eq!(elements, [&b"a"[..], b"b", b"c d"]);
        assert_eq!(list(b"").count(), 0);
    }

    /// RFC 9110 sections 5.5 and 5.6.2.
    #[test]
    fn tokens_and_values_hold_what_they_may() {
        for byte in 0..=255u8 {
            let delimiter = b"\"(),/:;<=>?@[\\]{}".contains(&byte);
            assert_eq!(is_token(&[byte]), byte.is_ascii_graphic() && !delimiter, "{byte}");
            let control = byte.is_ascii_control() && byte != b'\t';
            for length in 1..20 {
                for at in 0..length {
                    let mut value = vec![b'\t'; length];
                    value[at] = byte;
                    assert_eq!(control_at(&value), control.then_some(at), "{byte} {at} {length}");
                    value.fill(0xff);
                    value[at] = byte;
                    value[length - 1] = byte;
                    assert_eq!(control_at(&value), control.then_some(at), "{byte} {at} {length}");
                }
            }
        }
        assert!(!is_token(b""));
        assert!(is_value(b""));
    }
}
