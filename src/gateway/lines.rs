//! What programs write to their standard error, as lines for the log: cut to length, not more than the log
//! can bear, of one program or of all. Pure: time and bytes come as values.

use std::time::{Duration, Instant};

/// The longest line; what follows is a line of its own.
const LINE_BYTES_MAX: usize = 1000;

/// Lines that may be logged: so many at once, and then one each so often.
#[derive(Debug)]
pub struct Allowance {
    left: u32,
    most: u32,
    every: Duration,
    /// Since when so many are left.
    since: Instant,
    /// Lines that were too many since the last one that was not.
    dropped: u64,
}

impl Allowance {
    /// Of one program: enough for a trace of an error.
    pub fn of_one(now: Instant) -> Self {
        Self::new(50, Duration::from_millis(100), now)
    }

    /// Of all programs together: what takes hours to fill a disk.
    pub fn of_all(now: Instant) -> Self {
        Self::new(500, Duration::from_millis(50), now)
    }

    fn new(most: u32, every: Duration, now: Instant) -> Self {
        Self { left: most, most, every, since: now, dropped: 0 }
    }

    /// Takes one line; how many were dropped before it, or `None` where it is dropped as well.
    pub fn take(&mut self, now: Instant) -> Option<u64> {
        if !self.has_room(now) {
            self.dropped += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.dropped))
    }

    fn has_room(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since);
        let more = passed.as_millis() / self.every.as_millis();
        if more > 0 {
            self.since = now;
            self.left = self.left.saturating_add(u32::try_from(more).unwrap_or(self.most)).min(self.most);
        }
        self.left > 0
    }
}

/// Cuts bytes into lines and counts them.
#[derive(Debug)]
pub struct Lines {
    partial: Vec<u8>,
    own: Allowance,
}

impl Lines {
    /// None yet.
    pub fn new(now: Instant) -> Self {
        Self { partial: Vec::new(), own: Allowance::of_one(now) }
    }

    /// Takes bytes, and gives `write` the lines they end, as far as there is room among those of all.
    pub fn take(&mut self, mut bytes: &[u8], now: Instant, all: &mut Allowance, mut write: impl FnMut(&str)) {
        while !bytes.is_empty() {
            let room = LINE_BYTES_MAX - self.partial.len();
            let end = memchr::memchr(b'\n', bytes);
            let cut = end.unwrap_or(bytes.len()).min(room);
            self.partial.extend_from_slice(&bytes[..cut]);
            bytes = &bytes[cut..];
            if bytes.first() == Some(&b'\n') {
                bytes = &bytes[1..];
                self.line(now, all, &mut write);
            } else if self.partial.len() == LINE_BYTES_MAX {
                self.line(now, all, &mut write);
            }
        }
    }

    /// The end: what has no end of line is a line too, and what was dropped is told.
    pub fn finish(&mut self, now: Instant, all: &mut Allowance, mut write: impl FnMut(&str)) {
        self.line(now, all, &mut write);
        if self.own.dropped > 0 && all.take(now).is_some() {
            write(&format!("({} more lines were dropped)", std::mem::take(&mut self.own.dropped)));
        }
    }

    fn line(&mut self, now: Instant, all: &mut Allowance, write: &mut impl FnMut(&str)) {
        let line = self.partial.trim_ascii_end();
        if !line.is_empty() {
            if !self.own.has_room(now) {
                self.own.dropped += 1;
            } else if let (Some(of_others), Some(dropped)) = (all.take(now), self.own.take(now)) {
                if of_others > 0 {
                    write(&format!(
                        "({of_others} lines of programs were dropped: there were too many of all)"
                    ));
                }
                if dropped > 0 {
                    write(&format!("({dropped} lines were dropped: there were too many)"));
                }
                write(&String::from_utf8_lossy(line));
            }
        }
        self.partial.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pieces: &[&str], expected: &[&str]) {
        let now = Instant::now();
        let (mut lines, mut all, mut found) = (Lines::new(now), Allowance::of_all(now), Vec::new());
        for piece in pieces {
            lines.take(piece.as_bytes(), now, &mut all, |line| found.push(line.to_owned()));
        }
        lines.finish(now, &mut all, |line| found.push(line.to_owned()));
        assert_eq!(found, expected, "{pieces:?}");
    }

    #[test]
    fn bytes_become_lines() {
        check(&[], &[]);
        check(&["a\nb\n"], &["a", "b"]);
        check(&["a", "b\nc"], &["ab", "c"]);
        check(&["a\r\n\n  \nb"], &["a", "b"]);
        let long = "x".repeat(LINE_BYTES_MAX);
        check(&[&long, "\n", "y\n"], &[&long, "y"]);
        check(&[&format!("{long}{long}z")], &[&long, &long, "z"]);
    }

    #[test]
    fn what_is_no_text_is_shown_all_the_same() {
        let (now, mut found) = (Instant::now(), Vec::new());
        let mut all = Allowance::of_all(now);
        Lines::new(now).take(b"a\xffb\n", now, &mut all, |line| found.push(line.to_owned()));
        assert_eq!(found, ["a\u{fffd}b"]);
    }

    #[test]
    fn a_flood_is_dammed_and_counted() {
        const EVERY: Duration = Duration::from_millis(100);
        let begin = Instant::now();
        let (mut lines, mut all, mut found) = (Lines::new(begin), Allowance::of_all(begin), Vec::new());
        let flood = "x\n".repeat(1000);
        lines.take(flood.as_bytes(), begin, &mut all, |line| found.push(line.to_owned()));
        assert_eq!(found.len(), 50);
        lines.take(b"later\n", begin + EVERY, &mut all, |line| found.push(line.to_owned()));
        assert_eq!(found[50..], ["(950 lines were dropped: there were too many)", "later"]);
        lines.take(b"too soon\n", begin + EVERY, &mut all, |line| found.push(line.to_owned()));
        lines.finish(begin + EVERY, &mut all, |line| found.push(line.to_owned()));
        assert_eq!(found[52..], ["(1 more lines were dropped)"]);
        let mut later = 0;
        lines.take(flood.as_bytes(), begin + 900 * EVERY, &mut all, |_| later += 1);
        assert_eq!(later, 50, "silence does not add up");
    }

    #[test]
    fn many_trickles_are_no_flood_either() {
        let now = Instant::now();
        let (mut all, mut found) = (Allowance::of_all(now), Vec::new());
        for _ in 0..600 {
            let mut lines = Lines::new(now);
            lines.take(b"x\n", now, &mut all, |line| found.push(line.to_owned()));
            lines.finish(now, &mut all, |line| found.push(line.to_owned()));
        }
        assert_eq!(found.len(), 500);
        let later = now + Duration::from_secs(1);
        Lines::new(later).take(b"x\n", later, &mut all, |line| found.push(line.to_owned()));
        assert_eq!(found[500..], ["(100 lines of programs were dropped: there were too many of all)", "x"]);
    }
}
