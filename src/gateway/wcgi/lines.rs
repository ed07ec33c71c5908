//! What a module says on standard error, as lines of the log. Bounded: a line is cut, and of a run that goes
//! on and on only the number of lines is told.

/// Bytes of a line that are shown.
const LINE_BYTES_MAX: usize = 1000;

/// Lines of a run that are shown.
const LINES_MAX: u32 = 100;

/// The standard error of a run.
#[derive(Debug)]
pub struct Lines {
    /// Who speaks.
    label: String,
    line: Vec<u8>,
    shown: u32,
    hidden: u64,
}

impl Lines {
    /// Nothing has been said so far.
    pub fn new(label: String) -> Self {
        Self { label, line: Vec::new(), shown: 0, hidden: 0 }
    }

    /// Takes some bytes, and logs the lines that are whole.
    pub fn write(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, whole) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            let room = LINE_BYTES_MAX.saturating_sub(self.line.len());
            self.line.extend_from_slice(text.get(..room).unwrap_or(text));
            if whole {
                self.end_line();
            }
        }
    }

    /// Logs what is left, and how much was not shown.
    pub fn finish(&mut self) {
        if !self.line.is_empty() {
            self.end_line();
        }
        if self.hidden > 0 {
            tracing::warn!("{}: {} more lines on standard error", self.label, self.hidden);
            self.hidden = 0;
        }
    }

    fn end_line(&mut self) {
        if self.shown < LINES_MAX {
            self.shown += 1;
            let text = String::from_utf8_lossy(&self.line);
            tracing::warn!("{}: {}", self.label, text.trim_end().escape_debug());
        } else {
            self.hidden += 1;
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_counted() {
        let mut lines = Lines::new("test".to_owned());
        lines.write(b"one\ntw");
        assert_eq!((lines.shown, lines.line.as_slice()), (1, b"tw".as_slice()));
        lines.write(b"o");
        lines.write(&[b'x'; 5000]);
        assert_eq!(lines.line.len(), LINE_BYTES_MAX);
        for _ in 0..300 {
            lines.write(b"\n\n");
        }
        assert_eq!((lines.shown, lines.hidden), (LINES_MAX, 1 + 600 - u64::from(LINES_MAX)));
        lines.finish();
        assert_eq!(lines.hidden, 0);
    }
}
