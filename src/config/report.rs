//! What is wrong with a configuration, where, and what to do about it.

use std::fmt;
use std::path::{Path, PathBuf};

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
    /// A whole file, or a line of one whose text is better not shown.
    File {
        /// Which.
        file: PathBuf,
        /// Its line, from 1.
        line: Option<u32>,
    },
}

impl Report {
    /// A report of one problem.
    pub fn of(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }
}

impl Problem {
    /// A problem of a whole file.
    pub fn of_file(file: &Path, what: impl Into<String>, help: impl Into<String>) -> Self {
        let place = Place::File { file: file.to_owned(), line: None };
        Self { place, what: what.into(), help: help.into() }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.problems {
            let Place::File { file, .. } = &problem.place;
            writeln!(f, "{}: {}", file.display(), problem.what)?;
        }
        Ok(())
    }
}

impl std::error::Error for Report {}
