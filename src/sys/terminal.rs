//! The terminal somebody looks at.

use std::io::Write as _;

/// How many lines the terminal of standard output has; `None` where it is no terminal, or does not know.
pub fn lines() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_row > 0).then_some(usize::from(size.ws_row))
}

/// A second screen of the terminal, to draw on; what was on the first comes back when this is dropped.
#[derive(Debug)]
pub struct Screen(());

impl Screen {
    /// Shows it.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn show() -> std::io::Result<Self> {
        // The alternate screen, without cursor and without wrapping of long lines.
        print("\x1b[?1049h\x1b[?25l\x1b[?7l").map(|()| Self(()))
    }

    /// Draws as much of a text as there are lines for.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn draw(&self, text: &str) -> std::io::Result<()> {
        print(&frame(text, lines().unwrap_or(usize::MAX)))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Where the terminal is gone there is nothing to restore.
        let _ = print("\x1b[?7h\x1b[?25h\x1b[?1049l");
    }
}

/// What draws a text from the top, over what was there.
fn frame(text: &str, lines: usize) -> String {
    let all = text.lines().count();
    let shown = if all > lines { lines.saturating_sub(1) } else { all };
    let mut frame = "\x1b[H".to_owned();
    for line in text.lines().take(shown) {
        frame.push_str(line);
        frame.push_str("\x1b[K\n");
    }
    if shown < all {
        frame.push_str(&format!("... {} more lines\x1b[K", all - shown));
    } else {
        // A line feed on the last line would scroll.
        frame.truncate(frame.trim_end_matches('\n').len());
    }
    frame + "\x1b[J"
}

fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_counted() {
        assert_eq!(frame("a\nb\n", 2), "\x1b[Ha\x1b[K\nb\x1b[K\x1b[J");
        assert_eq!(frame("a\nb\nc\n", 2), "\x1b[Ha\x1b[K\n... 2 more lines\x1b[K\x1b[J");
        assert_eq!(frame("", 2), "\x1b[H\x1b[J");
    }
}
