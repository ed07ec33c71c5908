//! What a program writes to its standard error, as lines for the log: cut to length, not more than the log
//! can bear. Pure: time and bytes come as values.

use std::time::{Duration, Instant};

/// The longest line; what follows is a line of its own.
const LINE_BYTES_MAX: usize = 1000;

/// Lines a program may write at once, and then each so often: enough for a trace of an error, too little to
/// fill a disk.
const BURST: u32 = 50;
const EVERY: Duration = Duration::from_millis(100);

/// Cuts bytes into lines and counts them.
#[derive(Debug)]
pub struct Lines {
    partial: Vec<u8>,
    /// Lines that may be written now.
    allowed: u32,
    /// Since when that is so.
    since: Instant,
    /// Lines that were too many since the last one that was not.
    dropped: u64,
}

impl Lines {
    /// None yet.
    pub fn new(now: Instant) -> Self {
        Self { partial: Vec::new(), allowed: BURST, since: now, dropped: 0 }
    }

    /// Takes bytes, and gives `write` the lines they end.
    pub fn take(&mut self, mut bytes: &[u8], now: Instant, mut write: impl FnMut(&str)) {
        self.allow(now);
        while !bytes.is_empty() {
            let room = LINE_BYTES_MAX - self.partial.len();
            let end = memchr::memchr(b'\n', bytes);
            let cut = end.unwrap_or(bytes.len()).min(room);
            self.partial.extend_from_slice(&bytes[..cut]);
            bytes = &bytes[cut..];
            if bytes.first() == Some(&b'\n') {
                bytes = &bytes[1..];
                self.line(&mut write);
            } else if self.partial.len() == LINE_BYTES_MAX {
                self.line(&mut write);
            }
        }
    }

    /// The end: what has no end of line is a line too, and what was dropped is told.
    pub fn finish(&mut self, mut write: impl FnMut(&str)) {
        if !self.partial.is_empty() {
            self.line(&mut write);
        }
        if self.dropped > 0 {
            write(&format!("({} more lines were dropped)", std::mem::take(&mut self.dropped)));
        }
    }

    fn allow(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        let more = passed.as_millis() / EVERY.as_millis();
        if more > 0 {
            self.since = now;
            self.allowed = self.allowed.saturating_add(u32::try_from(more).unwrap_or(BURST)).min(BURST);
        }
    }

    fn line(&mut self, write: &mut impl FnMut(&str)) {
        let line = self.partial.trim_ascii_end();
        if line.is_empty() {
        } else if self.allowed == 0 {
            self.dropped += 1;
        } else {
            self.allowed -= 1;
            if self.dropped > 0 {
                write(&format!("({} lines were dropped: there were too many)", self.dropped));
                self.dropped = 0;
            }
            write(&String::from_utf8_lossy(line));
        }
        self.partial.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pieces: &[&str], expected: &[&str]) {
        let now = Instant::now();
        let (mut lines, mut found) = (Lines::new(now), Vec::new());
        for piece in pieces {
            lines.take(piece.as_bytes(), now, |line| found.push(line.to_owned()));
        }
        lines.finish(|line| found.push(line.to_owned()));
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
        Lines::new(now).take(b"a\xffb\n", now, |line| found.push(line.to_owned()));
        assert_eq!(found, ["a\u{fffd}b"]);
    }

    #[test]
    fn a_flood_is_dammed_and_counted() {
        let begin = Instant::now();
        let (mut lines, mut found) = (Lines::new(begin), Vec::new());
        lines.take("x\n".repeat(1000).as_bytes(), begin, |line| found.push(line.to_owned()));
        assert_eq!(found.len(), BURST as usize);
        lines.take(b"later\n", begin + EVERY, |line| found.push(line.to_owned()));
        assert_eq!(found[50..], ["(950 lines were dropped: there were too many)", "later"]);
        lines.take(b"too soon\n", begin + EVERY, |line| found.push(line.to_owned()));
        lines.finish(|line| found.push(line.to_owned()));
        assert_eq!(found[52..], ["(1 more lines were dropped)"]);
        let mut later = 0;
        lines.take("x\n".repeat(1000).as_bytes(), begin + 900 * EVERY, |_| later += 1);
        assert_eq!(later, BURST, "silence does not add up");
    }
}
