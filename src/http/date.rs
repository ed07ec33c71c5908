//! Dates of HTTP (RFC 9110 section 5.6.7), as whole seconds since 1970 within, as text on the wire.
//! Time comes as a value; there is no clock here.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use httpdate::HttpDate;

/// The last second that four digits can name the year of: files may bear any time at all.
const LAST: i64 = 253_402_300_799;

/// Bytes of an IMF-fixdate.
pub const LENGTH: usize = 29;

/// As IMF-fixdate. Times before 1970 and after 9999 become the nearest that can be written.
pub fn format(seconds: i64) -> [u8; LENGTH] {
    let mut text = [b' '; LENGTH];
    // Never negative once clamped.
    let seconds = seconds.clamp(0, LAST).unsigned_abs();
    let date = HttpDate::from(UNIX_EPOCH + Duration::from_secs(seconds));
    write!(&mut text[..], "{date}").expect("an IMF-fixdate has 29 bytes");
    text
}

/// Any of the three forms recipients must understand; `None` for all else, which makes the field that
/// holds it count as absent. Years of two digits are read as 1970 to 2069.
pub fn parse(text: &[u8]) -> Option<i64> {
    let date = httpdate::parse_http_date(std::str::from_utf8(text).ok()?).ok()?;
    Some(seconds(date))
}

/// Whole seconds since 1970, rounded down.
pub fn seconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        Err(before) => {
            let before = before.duration();
            let whole = before.as_secs() + u64::from(before.subsec_nanos() > 0);
            i64::try_from(whole).map_or(i64::MIN, |whole| -whole)
        }
    }
}

/// The field lines that every response begins with: `Date`, and `Server` where it is configured.
/// Written anew when the second changes.
#[derive(Debug)]
pub struct DateLine {
    second: i64,
    lines: Vec<u8>,
}

/// Where the date stands in the lines.
const DATE: std::ops::Range<usize> = 6..6 + LENGTH;

impl DateLine {
    /// With `Server: name`, or without.
    pub fn new(server: Option<&str>) -> DateLine {
        let mut lines = b"Date: ".to_vec();
        lines.extend_from_slice(&format(0));
        lines.extend_from_slice(b"\r\n");
        if let Some(name) = server {
            lines.extend_from_slice(b"Server: ");
            lines.extend_from_slice(name.as_bytes());
            lines.extend_from_slice(b"\r\n");
        }
        DateLine { second: 0, lines }
    }

    /// The lines as of `now`.
    pub fn at(&mut self, now: SystemTime) -> &[u8] {
        let second = seconds(now);
        if second != self.second {
            self.second = second;
            self.lines[DATE].copy_from_slice(&format(second));
        }
        &self.lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9110 section 5.6.7: one moment in all forms.
    #[test]
    fn three_forms_are_read_and_one_is_written() {
        let moment = 784_111_777;
        for text in
            ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
        {
            assert_eq!(parse(text.as_bytes()), Some(moment), "{text}");
        }
        assert_eq!(&format(moment), b"Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn what_is_no_date_is_none() {
        for text in [
            "",
            "0",
            "yesterday",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Sun, 31 Feb 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 GMT, Sun, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 GM\u{e9}",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse(b"\xff"), None);
    }

    #[test]
    fn any_file_time_can_be_written() {
        for (seconds, text) in [
            (i64::MIN, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (-1, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (LAST, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (i64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(format(seconds), text.as_bytes(), "{seconds}");
        }
    }

    #[test]
    fn seconds_are_rounded_down() {
        let half = Duration::from_millis(500);
        assert_eq!(seconds(UNIX_EPOCH + half), 0);
        assert_eq!(seconds(UNIX_EPOCH - half), -1);
        assert_eq!(seconds(UNIX_EPOCH - half * 2), -1);
    }

    #[test]
    fn lines_follow_the_clock_both_ways() {
        let mut lines = DateLine::new(Some("httpd"));
        for second in [0, 784_111_777, 784_111_777, 784_111_776] {
            let now = UNIX_EPOCH + Duration::from_millis(second * 1000 + 999);
            let date = String::from_utf8(format(second as i64).to_vec()).unwrap();
            assert_eq!(lines.at(now), format!("Date: {date}\r\nServer: httpd\r\n").as_bytes());
        }
        assert_eq!(DateLine::new(None).at(UNIX_EPOCH), b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n");
    }
}
