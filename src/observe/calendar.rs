//! Days of the proleptic Gregorian calendar, in UTC, for time stamps of log lines. Pure.

use std::time::{SystemTime, UNIX_EPOCH};

/// A moment, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Year.
    pub year: u64,
    /// Month, from 1.
    pub month: u8,
    /// Day of the month, from 1.
    pub day: u8,
    /// Hour.
    pub hour: u8,
    /// Minute.
    pub minute: u8,
    /// Second.
    pub second: u8,
    /// Millisecond.
    pub millisecond: u16,
}

/// English abbreviations of the months.
pub const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl From<SystemTime> for Moment {
    /// A clock that stands before 1970 is taken to say 1970.
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (year, month, day) = date(since.as_secs() / 86_400);
        let of_day = since.as_secs() % 86_400;
        Self {
            year,
            month,
            day,
            hour: (of_day / 3600) as u8,
            minute: (of_day / 60 % 60) as u8,
            second: (of_day % 60) as u8,
            millisecond: since.subsec_millis() as u16,
        }
    }
}

impl std::fmt::Display for Moment {
    /// RFC 3339, with milliseconds.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { year, month, day, hour, minute, second, millisecond } = self;
        write!(formatter, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z")
    }
}

/// Year, month and day of a day counted from 1970-01-01.
///
/// Years are counted from March, so that the leap day is the last of its year; then all months but the
/// last follow one pattern of 153 days in five.
fn date(days: u64) -> (u64, u8, u8) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // From 0000-03-01 to 1970-01-01.
    let days = days + 719_468;
    let of_era = days % DAYS_OF_400_YEARS;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = days / DAYS_OF_400_YEARS * 400 + year_of_era + u64::from(month <= 2);
    (year, month as u8, day as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn moments_read_as_rfc_3339() {
        // Seconds as given by date(1).
        let cases = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ];
        for (milliseconds, expected) in cases {
            let time = UNIX_EPOCH + Duration::from_millis(milliseconds);
            assert_eq!(Moment::from(time).to_string(), expected);
        }
        assert_eq!(Moment::from(UNIX_EPOCH - Duration::from_secs(5)), Moment::from(UNIX_EPOCH));
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut last = date(0);
        for day in 1..200_000 {
            let next = date(day);
            let (year, month, of_month) = last;
            let is_next = next == (year, month, of_month + 1)
                || (next == (year, month + 1, 1) && of_month >= 28)
                || (next == (year + 1, 1, 1) && (month, of_month) == (12, 31));
            assert!(is_next, "{last:?} is followed by {next:?}");
            last = next;
        }
    }
}
