//! OCSP responses read from a file beside the certificate, to be stapled. Nothing is fetched: whoever
//! renews the certificate fetches the response. RFC 6960 section 4.2, RFC 6066 section 8.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::certificates::Problem;

/// A response that may be served.
#[derive(Debug, PartialEq, Eq)]
pub struct Staple {
    /// The response, DER.
    pub response: Vec<u8>,
    /// Its nextUpdate, where it has one.
    pub until: Option<SystemTime>,
}

/// Where a certificate's response would be.
pub fn path(certificate: &Path) -> PathBuf {
    let mut name = OsString::from(certificate);
    name.push(".ocsp");
    name.into()
}

/// Reads the response beside a certificate, if there is one and it may still be served.
pub fn read(certificate: &Path, now: SystemTime, warnings: &mut Vec<Problem>) -> Option<Staple> {
    let path = path(certificate);
    let response = fs::read(&path).ok()?;
    let mut warn = |what: &str| {
        warnings.push(Problem {
            place: path.display().to_string(),
            what: format!("{what}; it is not served"),
            help: "fetch a new OCSP response, as DER".into(),
        });
    };
    match next_update(&response) {
        None => warn("not a successful OCSP response"),
        Some(Some(until)) if until <= now => warn("the OCSP response is out of date"),
        Some(until) => return Some(Staple { response, until }),
    }
    None
}

const SEQUENCE: u8 = 0x30;
const OCTET_STRING: u8 = 0x04;
const ENUMERATED: u8 = 0x0a;
const GENERALIZED_TIME: u8 = 0x18;
const EXPLICIT_0: u8 = 0xa0;

/// When the first answer in a response ceases to be good. `None`: it is no response, or not a
/// successful one. `Some(None)`: it does not say.
fn next_update(response: &[u8]) -> Option<Option<SystemTime>> {
    let (mut response, _) = value(response, SEQUENCE)?;
    if next(&mut response, ENUMERATED)? != [0] {
        return None;
    }
    let mut response_bytes = value(next(&mut response, EXPLICIT_0)?, SEQUENCE)?.0;
    skip(&mut response_bytes)?;
    let basic = value(next(&mut response_bytes, OCTET_STRING)?, SEQUENCE)?.0;
    let mut data = value(basic, SEQUENCE)?.0;
    if data.first() == Some(&EXPLICIT_0) {
        skip(&mut data)?;
    }
    // The responder's name or key, and when it signed.
    skip(&mut data)?;
    next(&mut data, GENERALIZED_TIME)?;
    let responses = next(&mut data, SEQUENCE)?;
    let mut single = value(responses, SEQUENCE)?.0;
    // The certificate's identity, its status, thisUpdate.
    skip(&mut single)?;
    skip(&mut single)?;
    next(&mut single, GENERALIZED_TIME)?;
    match single.first() {
        Some(&EXPLICIT_0) => {
            let time = value(next(&mut single, EXPLICIT_0)?, GENERALIZED_TIME)?.0;
            Some(Some(generalized_time(time)?))
        }
        _ => Some(None),
    }
}

/// The contents of the value at the front, which must have that tag, and what follows it.
fn value(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    if found != tag {
        return None;
    }
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

fn next<'d>(der: &mut &'d [u8], tag: u8) -> Option<&'d [u8]> {
    let (contents, rest) = value(der, tag)?;
    *der = rest;
    Some(contents)
}

fn skip(der: &mut &[u8]) -> Option<()> {
    let tag = *der.first()?;
    next(der, tag).map(|_| ())
}

/// `YYYYMMDDHHMMSSZ`, the only form DER allows in OCSP.
fn generalized_time(text: &[u8]) -> Option<SystemTime> {
    let (digits, b"Z") = text.split_at_checked(14)? else {
        return None;
    };
    let number = |from: usize, to: usize| {
        let mut number = 0i64;
        for digit in &digits[from..to] {
            number = number * 10 + i64::from(char::from(*digit).to_digit(10)?);
        }
        Some(number)
    };
    let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
    let (hour, minute, second) = (number(8, 10)?, number(10, 12)?, number(12, 14)?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days since 1970 of a date in the Gregorian calendar, with years that begin in March.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = years * 365 + years / 4 - years / 100 + years / 400 + (months * 153 + 2) / 5 + day - 719_469;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    Some(UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tlv(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
        let contents = contents.concat();
        let length = contents.len();
        let header = match length {
            0..=127 => vec![tag, length as u8],
            _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
        };
        [header, contents].concat()
    }

    fn response(status: u8, next_update: Option<&[u8]>) -> Vec<u8> {
        let time = |text: &[u8]| tlv(GENERALIZED_TIME, &[text]);
        let this = time(b"20261101000000Z");
        let next = next_update.map_or(Vec::new(), |text| tlv(EXPLICIT_0, &[&time(text)]));
        let single = tlv(SEQUENCE, &[&tlv(SEQUENCE, &[&[5; 60]]), &[0x80, 0], &this, &next]);
        let data = tlv(SEQUENCE, &[&tlv(0xa2, &[&[4, 1, 7]]), &this, &tlv(SEQUENCE, &[&single])]);
        let basic = tlv(SEQUENCE, &[&data, &tlv(SEQUENCE, &[&[6, 1, 42]]), &[3, 2, 0, 1]]);
        let bytes = tlv(SEQUENCE, &[&[6, 1, 42], &tlv(OCTET_STRING, &[&basic])]);
        tlv(SEQUENCE, &[&[ENUMERATED, 1, status], &tlv(EXPLICIT_0, &[&bytes])])
    }

    #[test]
    fn the_end_of_a_response_is_found() {
        let at = |seconds| Some(Some(UNIX_EPOCH + Duration::from_secs(seconds)));
        assert_eq!(next_update(&response(0, Some(b"20261108000000Z"))), at(1_794_096_000));
        assert_eq!(next_update(&response(0, Some(b"20280229235959Z"))), at(1_835_481_599));
        assert_eq!(next_update(&response(0, None)), Some(None));
        assert_eq!(next_update(&response(6, None)), None, "unauthorized");
        assert_eq!(next_update(&response(0, Some(b"2026-11-08T00:0"))), None);
    }

    #[test]
    fn damaged_responses_are_refused() {
        let whole = response(0, Some(b"20261108000000Z"));
        for length in 0..whole.len() {
            assert_eq!(next_update(&whole[..length]), None, "cut at {length}");
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut changed = whole.clone();
                changed[at] ^= 1 << bit;
                // Only that nothing panics: a signature is the client's to check.
                let _ = next_update(&changed);
            }
        }
    }

    #[test]
    fn only_a_response_that_is_good_is_served() {
        let directory = tempfile::tempdir().unwrap();
        let certificate = directory.path().join("cert.pem");
        let now = UNIX_EPOCH + Duration::from_secs(1_794_000_000);
        let mut warnings = Vec::new();
        assert_eq!(read(&certificate, now, &mut warnings), None);
        assert!(warnings.is_empty(), "none is needed");
        fs::write(path(&certificate), response(0, Some(b"20261108000000Z"))).unwrap();
        assert!(read(&certificate, now, &mut warnings).is_some());
        assert!(warnings.is_empty());
        assert!(read(&certificate, now + Duration::from_secs(96_000), &mut warnings).is_none());
        fs::write(path(&certificate), b"<html>").unwrap();
        assert!(read(&certificate, now, &mut warnings).is_none());
        let what: Vec<_> = warnings.iter().map(|warning| warning.what.as_str()).collect();
        assert_eq!(
            what,
            [
                "the OCSP response is out of date; it is not served",
                "not a successful OCSP response; it is not served"
            ]
        );
    }
}
