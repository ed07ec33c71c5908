//! What is wrong with a configuration, where, and what to do about it; and how that is shown.
//!
//! ```text
//! config.toml:12:1: `site.rot` is not a known key
//!     |
//!  12 | rot = "/var/www"
//!     | ^^^
//!     = did you mean `root`?
//! ```
//!
//! Knows text and positions, not what they mean.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// How much of a long line is shown around the mistake.
const SHOWN_MAX: usize = 90;

/// Bytes of the source text.
pub type Span = Range<usize>;

/// Every mistake of a configuration, in the order in which they stand there. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The mistakes.
    pub problems: Vec<Problem>,
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it is.
    pub place: Place,
    /// What is wrong.
    pub what: String,
    /// What to do about it; empty where that is plain.
    pub help: String,
}

/// Where a mistake is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Some characters of a file.
    Text {
        /// Which file.
        file: PathBuf,
        /// The line, from 1.
        line: u32,
        /// The character in it, from 1.
        column: u32,
        /// The text of the line.
        text: String,
        /// How many characters of it.
        width: usize,
    },
    /// A whole file, or a line of one whose text is better not shown.
    File {
        /// Which.
        file: PathBuf,
        /// The line, from 1.
        line: Option<u32>,
    },
    /// A flag of the command line.
    Flag(&'static str),
}

impl Report {
    /// A report of one problem.
    pub fn of(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }

    /// The first problem and how many more there are, on one line: for logs and status.
    pub fn summary(&self) -> String {
        let first = self.problems.first().map(Problem::headline).unwrap_or_default();
        match self.problems.len() {
            0 | 1 => first,
            2 => format!("{first} (and one more problem)"),
            more => format!("{first} (and {} more problems)", more - 1),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Report {}

impl Problem {
    /// A problem of a whole file.
    pub fn of_file(file: &Path, what: impl Into<String>, help: impl Into<String>) -> Self {
        let place = Place::File { file: file.to_owned(), line: None };
        Self { place, what: what.into(), help: help.into() }
    }

    /// The place and what is wrong there, on one line.
    pub fn headline(&self) -> String {
        format!("{}: {}", self.place, self.what)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.headline())?;
        let mut gutter = 3;
        if let Place::Text { line, column, text, width, .. } = &self.place {
            gutter = line.to_string().len().max(gutter);
            let (text, before, width) = window(text, *column as usize - 1, *width);
            writeln!(f, "{:gutter$} |", "")?;
            writeln!(f, "{line:>gutter$} | {text}")?;
            writeln!(f, "{:gutter$} | {:before$}{}", "", "", "^".repeat(width))?;
        }
        if !self.help.is_empty() {
            writeln!(f, "{:gutter$} = {}", "", self.help)?;
        }
        Ok(())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Text { file, line, column, .. } => write!(f, "{}:{line}:{column}", file.display()),
            Place::File { file, line: Some(line) } => write!(f, "{}:{line}", file.display()),
            Place::File { file, line: None } => write!(f, "{}", file.display()),
            Place::Flag(flag) => f.write_str(flag),
        }
    }
}

/// What was written must not command the terminal it is quoted on.
fn clean(text: &str) -> String {
    text.chars().map(printable).collect()
}

/// What of a line is shown, how many characters of that stand before the mistake, and how many are marked.
fn window(text: &str, before: usize, width: usize) -> (String, usize, usize) {
    let characters: Vec<char> = text.chars().map(printable).collect();
    // The mistake may be what is missing at the end of the line.
    let width = width.min(characters.len().saturating_sub(before)).max(1);
    if characters.len() <= SHOWN_MAX {
        return (characters.into_iter().collect(), before, width);
    }
    let start = before.saturating_sub(SHOWN_MAX / 3);
    let end = (start + SHOWN_MAX).min(characters.len());
    let left = if start > 0 { "..." } else { "" };
    let right = if end < characters.len() { "..." } else { "" };
    let shown: String = characters.get(start..end).unwrap_or_default().iter().collect();
    let width = width.min(end.saturating_sub(before)).max(1);
    (format!("{left}{shown}{right}"), before - start + left.len(), width)
}

/// One column for each character, and nothing that a terminal would obey.
fn printable(character: char) -> char {
    match character {
        '\t' => ' ',
        other if other.is_control() => '\u{fffd}',
        other => other,
    }
}

/// What positions refer to.
#[derive(Clone, Copy, Debug)]
pub enum Text<'a> {
    /// The text of a file.
    File {
        /// Its name.
        file: &'a Path,
        /// Its text.
        source: &'a str,
    },
    /// Flags of the command line: position i is the i-th.
    Flags(&'static [&'static str]),
}

impl Text<'_> {
    /// The line of a position, from 1.
    pub fn line(&self, span: &Span) -> u32 {
        match self {
            Text::File { source, .. } => count(lines_before(source, span.start)) + 1,
            Text::Flags(_) => 1,
        }
    }

    fn place(&self, span: &Span) -> Place {
        match *self {
            Text::Flags(flags) => Place::Flag(flags.get(span.start).copied().unwrap_or("command line")),
            Text::File { file, source } => {
                let start = floor(source, span.start);
                let line_start = source[..start].rfind('\n').map_or(0, |newline| newline + 1);
                let text = source[line_start..].lines().next().unwrap_or("");
                let marked = floor(source, span.end.max(start)) - start;
                let rest = text.get(start - line_start..).unwrap_or("");
                let width = rest.get(..marked).unwrap_or(rest).chars().count();
                Place::Text {
                    file: file.to_owned(),
                    line: self.line(span),
                    column: count(source[line_start..start].chars().count()) + 1,
                    text: text.to_owned(),
                    width,
                }
            }
        }
    }
}

fn lines_before(source: &str, position: usize) -> usize {
    source.as_bytes().iter().take(position).filter(|byte| **byte == b'\n').count()
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX - 1)
}

/// The start of the character that `position` points into.
fn floor(source: &str, position: usize) -> usize {
    let position = position.min(source.len());
    (0..=position).rev().find(|position| source.is_char_boundary(*position)).unwrap_or(0)
}

/// Problems as they are found.
#[derive(Debug, Default)]
pub struct Problems {
    found: Vec<(Span, String, String)>,
    /// What should be put right, though it keeps nothing from being served.
    warned: Vec<(Span, String, String)>,
    /// Problems of whole files, by the place that names the file.
    elsewhere: Vec<(Span, Problem)>,
    /// Lines about which all is said.
    settled: Vec<Span>,
    /// Keys that were meant to be there: where their table begins, and their full name.
    meant: Vec<(usize, String)>,
}

impl Problems {
    /// Adds one.
    pub fn at(&mut self, span: &Span, what: impl Into<String>, help: impl Into<String>) {
        if !self.settled.iter().any(|lines| lines.contains(&span.start)) {
            self.found.push((span.clone(), clean(&what.into()), clean(&help.into())));
        }
    }

    /// Adds a warning.
    pub fn warn(&mut self, span: &Span, what: impl Into<String>, help: impl Into<String>) {
        self.warned.push((span.clone(), clean(&what.into()), clean(&help.into())));
    }

    /// Adds one, and nothing more about the lines it stands on: what could be said would mislead.
    pub fn only(&mut self, lines: Span, span: &Span, what: impl Into<String>, help: impl Into<String>) {
        self.found.push((span.clone(), clean(&what.into()), clean(&help.into())));
        self.settled.push(lines);
    }

    /// Adds a problem of a file that is named at `span`.
    pub fn elsewhere(&mut self, span: &Span, problem: Problem) {
        let (what, help) = (clean(&problem.what), clean(&problem.help));
        self.elsewhere.push((span.clone(), Problem { what, help, ..problem }));
    }

    /// Notes that a key of the table at `table` is there, though misspelt or with an unfit value.
    pub fn note_meant(&mut self, table: &Span, key: String) {
        self.meant.push((table.start, key));
    }

    /// Whether a key of the table at `table` was meant to be there.
    pub fn is_meant(&self, table: &Span, key: &str) -> bool {
        self.meant.iter().any(|(start, meant)| *start == table.start && meant == key)
    }

    /// Adds that a key is missing, unless it was meant to be there: its own problem says enough.
    pub fn missing(&mut self, table: &Span, key: &str, what: impl Into<String>, help: impl Into<String>) {
        if !self.is_meant(table, key) {
            self.at(table, what, help);
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.found.len() + self.elsewhere.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them with their places, in the order of the text, one place and sentence once; and the
    /// warnings.
    pub fn finish(self, text: &Text) -> (Vec<Problem>, Vec<Problem>) {
        let placed = |(span, what, help): (Span, String, String)| {
            let place = text.place(&span);
            (span, Problem { place, what, help })
        };
        let in_order = |mut all: Vec<(Span, Problem)>| {
            all.sort_by_key(|(span, _)| span.start);
            let mut problems: Vec<Problem> = all.into_iter().map(|(_, problem)| problem).collect();
            problems.dedup();
            problems
        };
        let found = self.found.into_iter().map(placed).chain(self.elsewhere).collect();
        (in_order(found), in_order(self.warned.into_iter().map(placed).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(source: &str, marked: &str) -> String {
        let start = source.find(marked).expect("the test marks what is there");
        let mut problems = Problems::default();
        problems.at(&(start..start + marked.len()), "wrong", "do right");
        let text = Text::File { file: Path::new("a.toml"), source };
        Report { problems: problems.finish(&text).0 }.to_string()
    }

    #[test]
    fn the_caret_stands_below_the_mistake() {
        assert_eq!(
            rendered("one = 1\n\ttwo = \"ü\" three\n", "three"),
            "a.toml:2:12: wrong\n    |\n  2 |  two = \"ü\" three\n    |            ^^^^^\n    = do right\n"
        );
    }

    #[test]
    fn several_lines_are_marked_on_the_first() {
        assert_eq!(
            rendered("a = [\n1,\n]\n", "[\n1,\n]"),
            "a.toml:1:5: wrong\n    |\n  1 | a = [\n    |     ^\n    = do right\n"
        );
    }

    #[test]
    fn the_end_of_a_text_can_be_marked() {
        assert!(rendered("a =", "").starts_with("a.toml:1:1"));
        let text = Text::File { file: Path::new("a"), source: "a =" };
        assert!(matches!(text.place(&(3..3)), Place::Text { line: 1, column: 4, .. }));
        assert!(matches!(text.place(&(9..12)), Place::Text { line: 1, column: 4, .. }));
    }

    #[test]
    fn long_lines_are_cut_around_the_mistake() {
        let line = format!("{}BAD{}", "x".repeat(200), "y".repeat(200));
        let shown = rendered(&line, "BAD");
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[2].contains("...xxx") && lines[2].ends_with("yyy..."), "{shown}");
        assert_eq!(lines[2].find("BAD"), lines[3].find("^^^"), "{shown}");
        assert!(lines[2].len() < 120, "{shown}");
    }

    #[test]
    fn terminals_are_not_commanded() {
        assert!(!rendered("a = \"\u{1b}[2J\" b", "b").contains('\u{1b}'));
    }

    #[test]
    fn a_summary_is_one_line() {
        let problem = Problem::of_file(Path::new("a.toml"), "is broken", "mend it");
        let report = |count: usize| Report { problems: vec![problem.clone(); count] }.summary();
        assert_eq!(report(1), "a.toml: is broken");
        assert_eq!(report(2), "a.toml: is broken (and one more problem)");
        assert_eq!(report(3), "a.toml: is broken (and 2 more problems)");
    }
}
