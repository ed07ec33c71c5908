//! Sizes and times as people write them: "64KiB", "30s".

use std::time::Duration;

/// What is wrong with a text, and what to do about it.
pub type Complaint = (String, String);

/// Longest time that means anything here; also keeps sums of times from overflowing.
const TIME_MAX: Duration = Duration::from_secs(366 * 86_400);

const SIZES: [(&str, u64); 5] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// In milliseconds.
const TIMES: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Bytes. A bare number counts bytes.
///
/// # Errors
/// A sentence and its help.
pub fn size(text: &str) -> Result<u64, Complaint> {
    let (number, unit) = split(text, "a size", "\"64KiB\"")?;
    if unit.is_empty() {
        return Ok(number);
    }
    let Some((_, factor)) = SIZES.iter().find(|(name, _)| *name == unit) else {
        let letter = unit.chars().next().map_or('?', |letter| letter.to_ascii_uppercase());
        let meant = SIZES.iter().find(|(name, _)| name.starts_with(letter));
        let help = match meant {
            Some((name, _)) => {
                format!("did you mean \"{number}{name}\"? The units are B, KiB, MiB, GiB and TiB")
            }
            None => "the units are B, KiB, MiB, GiB and TiB".to_owned(),
        };
        return Err((format!("`{unit}` is not a unit of size"), help));
    };
    number.checked_mul(*factor).ok_or_else(|| too_large(text))
}

/// A time. Only 0 needs no unit.
///
/// # Errors
/// A sentence and its help.
pub fn time(text: &str) -> Result<Duration, Complaint> {
    let (number, unit) = split(text, "a time", "\"30s\"")?;
    let Some((_, factor)) = TIMES.iter().find(|(name, _)| *name == unit) else {
        return match (number, unit) {
            (0, "") => Ok(Duration::ZERO),
            (_, "") => Err((
                format!("the time `{text}` has no unit"),
                format!("write \"{number}s\" for seconds; the units are ms, s, m, h and d"),
            )),
            _ => {
                let letter = unit.to_ascii_lowercase();
                let meant = TIMES.iter().find(|(name, _)| letter == *name || letter.starts_with(name));
                let help = match meant {
                    Some((name, _)) => {
                        format!("did you mean \"{number}{name}\"? The units are ms, s, m, h and d")
                    }
                    None => "the units are ms, s, m, h and d".to_owned(),
                };
                Err((format!("`{unit}` is not a unit of time"), help))
            }
        };
    };
    let time = number.checked_mul(*factor).map(Duration::from_millis).ok_or_else(|| too_large(text))?;
    if time > TIME_MAX { Err((format!("`{text}` is longer than a year"), String::new())) } else { Ok(time) }
}

fn split<'a>(text: &'a str, kind: &str, example: &str) -> Result<(u64, &'a str), Complaint> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if text.starts_with('-') {
        return Err((format!("`{text}` is negative"), format!("{kind} looks like {example}")));
    }
    if number.is_empty() {
        return Err((format!("`{text}` is not {kind}"), format!("{kind} looks like {example}")));
    }
    if unit.starts_with(['.', ',']) {
        return Err((
            format!("`{text}` is not a whole number"),
            "write it in the next smaller unit".to_owned(),
        ));
    }
    let number = number.parse().map_err(|_| too_large(text))?;
    if unit.starts_with(' ') {
        return Err((format!("`{text}` holds a space"), format!("write \"{number}{}\"", unit.trim())));
    }
    Ok((number, unit))
}

fn too_large(text: &str) -> Complaint {
    (format!("`{text}` is too large"), String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("0", 0),
            ("512", 512),
            ("7B", 7),
            ("64KiB", 65_536),
            ("1MiB", 1 << 20),
            ("1GiB", 1 << 30),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(size(text), Ok(expected), "{text}");
        }
        for (text, what, help) in [
            ("64KB", "`KB` is not a unit of size", "did you mean \"64KiB\"?"),
            ("64k", "`k` is not a unit of size", "did you mean \"64KiB\"?"),
            ("64 KiB", "holds a space", "write \"64KiB\""),
            ("64x", "`x` is not a unit of size", "the units are"),
            ("", "is not a size", "looks like"),
            ("much", "is not a size", "looks like"),
            ("-1KiB", "is negative", "looks like"),
            ("1.5GiB", "is not a whole number", "next smaller unit"),
            ("99999999TiB", "is too large", ""),
            ("99999999999999999999", "is too large", ""),
        ] {
            let complaint = size(text).expect_err(text);
            assert!(complaint.0.contains(what) && complaint.1.contains(help), "{text}: {complaint:?}");
        }
    }

    #[test]
    fn times() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("250ms", 250),
            ("30s", 30_000),
            ("10m", 600_000),
            ("8h", 28_800_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(time(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for (text, what, help) in [
            ("30", "has no unit", "\"30s\""),
            ("30sec", "`sec` is not a unit of time", "\"30s\""),
            ("30S", "`S` is not a unit of time", "\"30s\""),
            ("5min", "`min` is not a unit of time", "\"5m\""),
            ("5KiB", "`KiB` is not a unit of time", "the units are"),
            ("-5s", "is negative", ""),
            ("soon", "is not a time", ""),
            ("400d", "longer than a year", ""),
            ("99999999999999999d", "is too large", ""),
        ] {
            let complaint = time(text).expect_err(text);
            assert!(complaint.0.contains(what) && complaint.1.contains(help), "{text}: {complaint:?}");
        }
    }
}
