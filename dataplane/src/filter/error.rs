//! Errors in filter expressions, with their position.

use std::fmt;

/// An error in an expression. Its display marks the position:
///
/// ```text
/// cannot parse the filter: a port is a number from 0 to 65535
///   tcp port 80808
///            ^^^^^
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// Message that says what is wrong with the expression.
    pub message: String,
    /// How to fix it. May be empty.
    pub help: String,
    /// Byte range of the error in the expression: first byte, and byte after the last.
    pub span: (usize, usize),
    text: Box<str>,
}

/// Characters of the expression shown on either side of the error.
const SHOWN: usize = 60;

impl FilterError {
    pub(super) fn new(text: &str, span: (usize, usize), message: impl Into<String>, help: &str) -> Self {
        Self { message: message.into(), help: help.to_owned(), span, text: text.into() }
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { message, help, span: (start, end), text } = self;
        write!(f, "cannot parse the filter: {message}")?;
        // Counts characters instead of bytes, and replaces control characters, which a terminal would interpret.
        let letters = |part: Option<&str>| -> Vec<char> {
            part.unwrap_or_default().chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
        };
        let (before, place, after) =
            (letters(text.get(..*start)), letters(text.get(*start..*end)), letters(text.get(*end..)));
        let (cut, rest) = (before.len().saturating_sub(SHOWN), after.len().min(SHOWN));
        let place = &place[..place.len().min(SHOWN)];
        let shown: String = before[cut..].iter().chain(place).chain(&after[..rest]).collect();
        writeln!(f, "\n  {shown}")?;
        write!(f, "  {}{}", " ".repeat(before.len() - cut), "^".repeat(place.len().max(1)))?;
        if help.is_empty() { Ok(()) } else { write!(f, "\n  help: {help}") }
    }
}

impl std::error::Error for FilterError {}
