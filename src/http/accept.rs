//! What a client would like to get: content codings (RFC 9110 section 12.5.3), and JSON rather than
//! HTML (section 12.5.1). Which of what it would take is sent is decided where the forms are known.

use super::fields::{Fields, Known, list, trim};

/// A weight in thousandths (section 12.4.2); 0 is "not acceptable".
pub type Weight = u16;

/// How welcome each content coding is that we may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Codings {
    /// br
    pub brotli: Weight,
    /// zstd
    pub zstd: Weight,
    /// gzip, and its old name x-gzip
    pub gzip: Weight,
    /// No coding. 1 where the client does not speak of it: acceptable, but less than what it names.
    pub identity: Weight,
}

impl Codings {
    /// What a client gets that does not speak of codings. By the letter of the RFC it may be sent any;
    /// but such clients are simple, and decode none.
    pub const PLAIN: Codings = Codings { brotli: 0, zstd: 0, gzip: 0, identity: 1 };
}

/// What a request accepts, in the form in which it can be looked up in a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accepted {
    /// These codings, one as welcome as the other and each more than none: a sum of [`BROTLI`],
    /// [`ZSTD`] and [`GZIP`]. What nearly every client says.
    Alike(u8),
    /// Some more than others.
    Weighted(Codings),
}

/// The bit of br in [`Accepted::Alike`].
pub const BROTLI: u8 = 1;
/// The bit of zstd.
pub const ZSTD: u8 = 2;
/// The bit of gzip.
pub const GZIP: u8 = 4;

impl Codings {
    fn accepted(self) -> Accepted {
        let weights = [(self.brotli, BROTLI), (self.zstd, ZSTD), (self.gzip, GZIP)];
        let welcome = weights.into_iter().filter(|(weight, _)| *weight > 0);
        let most = welcome.clone().map(|(weight, _)| weight).max();
        // Where no coding is acceptable it does not matter whether none at all is: see `PLAIN`.
        let Some(most) = most else { return Accepted::Alike(0) };
        if self.identity < most && welcome.clone().all(|(weight, _)| weight == most) {
            Accepted::Alike(welcome.map(|(_, bit)| bit).sum())
        } else {
            Accepted::Weighted(self)
        }
    }
}

/// Remembers what values of Accept-Encoding mean: the clients of the world send some dozens of them.
#[derive(Debug, Default)]
pub struct Memo {
    slots: [Remembered; 8],
}

/// The longest value remembered; browsers send 23 bytes.
const REMEMBERED_BYTES_MAX: usize = 60;

#[derive(Debug)]
struct Remembered {
    length: u8,
    value: [u8; REMEMBERED_BYTES_MAX],
    accepted: Accepted,
}

impl Default for Remembered {
    /// What the empty value means.
    fn default() -> Self {
        let accepted = Codings::PLAIN.accepted();
        Self { length: 0, value: [0; REMEMBERED_BYTES_MAX], accepted }
    }
}

impl Memo {
    /// What a request accepts.
    pub fn accepted(&mut self, fields: &Fields) -> Accepted {
        let Some(value) = fields.only(Known::AcceptEncoding).filter(|it| it.len() <= REMEMBERED_BYTES_MAX)
        else {
            return codings(fields).accepted();
        };
        // One place for each value, whoever had it before: enough of a hash for what clients send.
        let mix = value.iter().step_by(7).fold(value.len(), |sum, byte| sum * 5 + usize::from(*byte));
        let slot = &mut self.slots[mix % 8];
        let known = slot.value.get(..usize::from(slot.length)).unwrap_or_default();
        if known != value {
            slot.accepted = codings(fields).accepted();
            slot.length = value.len() as u8;
            slot.value[..value.len()].copy_from_slice(value);
        }
        slot.accepted
    }
}

/// The codings a request accepts.
pub fn codings(fields: &Fields) -> Codings {
    if fields.times(Known::AcceptEncoding) == 0 {
        return Codings::PLAIN;
    }
    let (mut brotli, mut zstd, mut gzip, mut identity, mut any) = (None, None, None, None, None);
    for element in fields.all(Known::AcceptEncoding).flat_map(list) {
        let Some((coding, weight)) = weighted(element) else {
            continue;
        };
        let place = if coding.eq_ignore_ascii_case(b"br") {
            &mut brotli
        } else if coding.eq_ignore_ascii_case(b"zstd") {
            &mut zstd
        } else if coding.eq_ignore_ascii_case(b"gzip") || coding.eq_ignore_ascii_case(b"x-gzip") {
            &mut gzip
        } else if coding.eq_ignore_ascii_case(b"identity") {
            &mut identity
        } else if coding == b"*" {
            &mut any
        } else {
            continue;
        };
        *place = Some(weight);
    }
    let named = |weight: Option<Weight>| weight.or(any).unwrap_or(0);
    Codings {
        brotli: named(brotli),
        zstd: named(zstd),
        gzip: named(gzip),
        identity: identity.or(any).unwrap_or(Codings::PLAIN.identity),
    }
}

/// Whether JSON is wanted rather than HTML. Of two that are equally welcome, it is the one that is named.
pub fn prefers_json(fields: &Fields) -> bool {
    if fields.times(Known::Accept) == 0 {
        return false;
    }
    let (json, html) = (welcome(fields, b"application", b"json"), welcome(fields, b"text", b"html"));
    json.weight > 0 && (json.weight, json.precision) > (html.weight, html.precision)
}

/// How welcome a media type is, and how precisely that was said: the most precise range counts.
#[derive(Clone, Copy, Default)]
struct Welcome {
    weight: Weight,
    precision: u8,
}

fn welcome(fields: &Fields, kind: &[u8], subtype: &[u8]) -> Welcome {
    let mut best = Welcome::default();
    for element in fields.all(Known::Accept).flat_map(list) {
        let Some((range, weight)) = weighted(element) else {
            continue;
        };
        let mut halves = range.splitn(2, |&byte| byte == b'/');
        let precision = match (halves.next(), halves.next()) {
            (Some(b"*"), Some(b"*")) => 1,
            (Some(sent), Some(b"*")) if sent.eq_ignore_ascii_case(kind) => 2,
            (Some(sent), Some(rest))
                if sent.eq_ignore_ascii_case(kind) && rest.eq_ignore_ascii_case(subtype) =>
            {
                3
            }
            _ => continue,
        };
        if precision > best.precision {
            best = Welcome { weight, precision };
        }
    }
    best
}

/// An element without its parameters, and its weight; `None` where the weight is malformed.
/// A quoted parameter could hold what looks like a weight, but nobody sends one of those.
fn weighted(element: &[u8]) -> Option<(&[u8], Weight)> {
    let mut parts = element.split(|&byte| byte == b';').map(trim);
    let name = parts.next()?;
    let mut weight = 1000;
    for parameter in parts {
        if let [b'q' | b'Q', b'=', value @ ..] = parameter {
            weight = parse_weight(value)?;
        }
    }
    Some((name, weight))
}

/// ( "0" [ "." 0*3DIGIT ] ) / ( "1" [ "." 0*3("0") ] )
fn parse_weight(value: &[u8]) -> Option<Weight> {
    let (whole, digits) = match value {
        [whole @ (b'0' | b'1')] => (whole, &b""[..]),
        [whole @ (b'0' | b'1'), b'.', digits @ ..] if digits.len() <= 3 => (whole, digits),
        _ => return None,
    };
    let mut weight = Weight::from(whole - b'0');
    for place in 0..3 {
        let digit = digits.get(place).copied().unwrap_or(b'0');
        weight = weight * 10 + digit.is_ascii_digit().then(|| Weight::from(digit - b'0'))?;
    }
    (weight <= 1000).then_some(weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(values: &[&str], brotli: Weight, zstd: Weight, gzip: Weight, identity: Weight) {
        let section: String = values.iter().map(|value| format!("Accept-Encoding: {value}\r\n")).collect();
        let fields = Fields::of_section(section.as_bytes()).unwrap();
        assert_eq!(codings(&fields), Codings { brotli, zstd, gzip, identity }, "{values:?}");
    }

    /// RFC 9110 section 12.5.3.
    #[test]
    fn codings_have_weights() {
        check(&[], 0, 0, 0, 1);
        check(&[""], 0, 0, 0, 1);
        check(&["gzip, deflate, br, zstd"], 1000, 1000, 1000, 1);
        check(&["gzip, deflate, br"], 1000, 0, 1000, 1);
        check(&["GZIP"], 0, 0, 1000, 1);
        check(&["x-gzip"], 0, 0, 1000, 1);
        check(&["compress, gzip;q=0.5"], 0, 0, 500, 1);
        check(&["gzip;q=1.0, identity; q=0.5, *;q=0"], 0, 0, 1000, 500);
        check(&["*"], 1000, 1000, 1000, 1000);
        check(&["*;q=0"], 0, 0, 0, 0);
        check(&["identity;q=0"], 0, 0, 0, 0);
        check(&["br, identity;q=0"], 1000, 0, 0, 0);
        check(&["*;q=0, identity"], 0, 0, 0, 1000);
        check(&["gzip;q=0, *"], 1000, 1000, 0, 1000);
        check(&["br;q=0.9", "gzip;q=0.8"], 900, 0, 800, 1);
        check(&["gzip ; Q=0.123"], 0, 0, 123, 1);
        check(&[",, br ,"], 1000, 0, 0, 1);
        check(&["brotli, gzippy, zst"], 0, 0, 0, 1);
    }

    #[test]
    fn what_most_clients_say_is_looked_up() {
        let mut memo = Memo::default();
        let mut check = |value: &str, expected: Accepted| {
            let section = format!("Accept-Encoding: {value}\r\n");
            let fields = Fields::of_section(section.as_bytes()).unwrap();
            for _ in 0..2 {
                assert_eq!(memo.accepted(&fields), expected, "{value}");
            }
        };
        let weighted =
            |brotli, zstd, gzip, identity| Accepted::Weighted(Codings { brotli, zstd, gzip, identity });
        for _ in 0..2 {
            check("gzip, deflate, br, zstd", Accepted::Alike(BROTLI + ZSTD + GZIP));
            check("gzip, deflate", Accepted::Alike(GZIP));
            check("", Accepted::Alike(0));
            check("identity;q=0", Accepted::Alike(0));
            check("*;q=0", Accepted::Alike(0));
            check("br;q=0.5, zstd;q=0.5", Accepted::Alike(BROTLI + ZSTD));
            check("br;q=0.5, zstd", weighted(500, 1000, 0, 1));
            check("gzip;q=0.5, identity", weighted(0, 0, 500, 1000));
            check("*", weighted(1000, 1000, 1000, 1000));
            check("gzip;q=0.001", weighted(0, 0, 1, 1));
            check(&format!("br{}", ", deflate".repeat(9)), Accepted::Alike(BROTLI));
        }
        for number in 0..100 {
            check(&format!("gzip, x{number}"), Accepted::Alike(GZIP));
        }
        assert_eq!(memo.accepted(&Fields::default()), Accepted::Alike(0));
    }

    /// RFC 9110 section 12.4.2.
    #[test]
    fn weights_are_strict() {
        for (text, weight) in [
            ("0", Some(0)),
            ("1", Some(1000)),
            ("0.", Some(0)),
            ("0.5", Some(500)),
            ("0.001", Some(1)),
            ("1.000", Some(1000)),
            ("1.001", None),
            ("0.0001", None),
            ("2", None),
            (".5", None),
            ("-1", None),
            ("0.a", None),
            ("0,5", None),
            ("", None),
            ("01", None),
        ] {
            assert_eq!(parse_weight(text.as_bytes()), weight, "{text}");
        }
        check(&["gzip;q=2, br"], 1000, 0, 0, 1);
    }

    /// RFC 9110 section 12.5.1.
    #[test]
    fn json_is_for_those_who_ask() {
        for (accept, expected) in [
            ("", false),
            ("*/*", false),
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/json, text/plain, */*", true),
            ("application/*", true),
            ("application/*, */*", true),
            ("application/json;q=0.5, text/html", false),
            ("text/html;q=0.5, application/json", true),
            ("application/json, text/html", false),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", false),
            ("application/json;q=0", false),
            ("application/json;q=0, */*", false),
            ("*/*, application/json;q=0.1", false),
            ("application/jsonx", false),
            ("json", false),
        ] {
            let section = format!("Accept: {accept}\r\n");
            assert_eq!(prefers_json(&Fields::of_section(section.as_bytes()).unwrap()), expected, "{accept}");
        }
        assert!(!prefers_json(&Fields::default()));
    }
}
