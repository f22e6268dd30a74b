//! What is wrong with a configuration, in the form an operator can act on: where, what, and what to write instead.

use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// A place in a file, counted from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FilePosition {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// One mistake. Never carries a value that may be secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The configuration file, as it was named, or the variable that overrides it.
    pub file: PathBuf,
    /// Where in the file; none for a variable, or if the file could not be read.
    #[serde(flatten)]
    pub at: Option<FilePosition>,
    /// What is wrong: lower case, no full stop.
    pub message: String,
    /// What to do about it, often text that can be pasted; may have several lines.
    pub hint: Option<String>,
}

/// All mistakes in one configuration, in the order of the file; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(FilePosition { line, column }) = self.at {
            write!(f, "{line}:{column}:")?;
        }
        write!(f, " {}", self.message)?;
        let mut lines = self.hint.iter().flat_map(|hint| hint.lines());
        if let Some(first) = lines.next() {
            write!(f, "\n  hint: {first}")?;
        }
        lines.try_for_each(|line| write!(f, "\n        {line}"))
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().enumerate() {
            let gap = if at == 0 { "" } else { "\n" };
            write!(f, "{gap}{problem}")?;
        }
        Ok(())
    }
}

impl Error for Problem {}
impl Error for Problems {}

/// Collects the mistakes in one file while it is being read.
pub(super) struct ProblemReport<'t> {
    file: &'t Path,
    text: &'t str,
    variables: Vec<String>,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    missing: Vec<Problem>,
}

impl<'t> ProblemReport<'t> {
    /// Nothing wrong so far with this text from this file.
    pub(super) fn new(file: &'t Path, text: &'t str) -> Self {
        let (problems, warnings, missing) = (Vec::new(), Vec::new(), Vec::new());
        Self { file, text, variables: Vec::new(), problems, warnings, missing }
    }

    /// The place of what a variable has instead of the file: bytes behind the end of the text.
    pub(super) fn variable(&mut self, name: &str) -> Range<usize> {
        self.variables.push(name.to_owned());
        let at = self.text.len() + self.variables.len();
        at..at + 1
    }

    /// Notes a mistake at these bytes of the text.
    pub(super) fn add(&mut self, at: Range<usize>, message: impl Into<String>, hint: Option<String>) {
        self.problems.push(self.problem(at, message.into(), hint));
    }

    /// Notes something at these bytes that works and should be written otherwise.
    pub(super) fn warn(&mut self, at: Range<usize>, message: impl Into<String>, hint: Option<String>) {
        self.warnings.push(self.problem(at, message.into(), hint));
    }

    /// Notes something that is not on this machine, and without which one upstream cannot start.
    pub(super) fn miss(&mut self, at: Range<usize>, message: impl Into<String>, hint: Option<String>) {
        self.missing.push(self.problem(at, message.into(), hint));
    }

    /// What is not on this machine.
    pub(super) fn take_missing(&mut self) -> Vec<Problem> {
        self.missing.sort_by_key(|problem| problem.at);
        std::mem::take(&mut self.missing)
    }

    /// What works and should be written otherwise.
    pub(super) fn take_warnings(&mut self) -> Vec<Problem> {
        std::mem::take(&mut self.warnings)
    }

    fn problem(&self, at: Range<usize>, message: String, hint: Option<String>) -> Problem {
        let beyond = at.start.checked_sub(self.text.len() + 1);
        match beyond.and_then(|index| self.variables.get(index)) {
            Some(variable) => Problem { file: variable.into(), at: None, message, hint },
            None => Problem { file: self.file.to_owned(), at: Some(self.position(at.start)), message, hint },
        }
    }

    /// The place of a byte in the text.
    pub(super) fn position(&self, byte: usize) -> FilePosition {
        let before = self.text.get(..byte).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        FilePosition { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1 }
    }

    /// Whether nothing is wrong so far.
    pub(super) fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// What was found, in the order of the file.
    pub(super) fn into_problems(mut self) -> Problems {
        self.problems.sort_by_key(|problem| problem.at);
        self.problems.dedup();
        Problems(self.problems)
    }
}
