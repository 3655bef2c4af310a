//! Errors and warnings about input, with their places.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::path::FieldPath;
use crate::object::Transport;

/// Number of errors, and of warnings, kept in full. Beyond it, [`SourceErrors`] only counts: more than a screen of messages helps no
/// reader, and a hostile file must not fill the memory with messages.
pub const MAX_SHOWN: usize = 50;

/// Maximum length of quoted input in a message, in characters. All but the longest valid names fit.
const MAX_QUOTED: usize = 120;

/// One error or warning about an input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SourceError {
    /// The file as the user named it, `-` for standard input.
    pub file: Arc<str>,
    /// The document's number in the file, from 1, not counting empty documents. 0 if the message is about the whole file.
    pub document: usize,
    /// The line, from 1. `None` if the message is about the whole file.
    pub line: Option<usize>,
    /// The object's kind, namespace and name, such as `NetworkPolicy default/web`, without the parts that could not be read.
    pub object: Option<String>,
    /// The field in the object, such as `spec.ingress[0].from`. Empty if the message is about the whole object.
    pub path: String,
    /// The problem.
    pub problem: String,
    /// The remedy.
    pub help: String,
}

impl fmt::Display for SourceError {
    /// Writes two lines: place and problem, then the remedy. Control characters of the input are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.file))?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(object) = &self.object {
            write!(f, ": {}", printable(object))?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", printable(&self.path))?;
        }
        write!(f, ": {}\n  help: {}", printable(&self.problem), printable(&self.help))
    }
}

/// A bounded list of errors or warnings: the first [`MAX_SHOWN`] messages and the total number.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct SourceErrors {
    shown: Vec<SourceError>,
    total: usize,
}

impl SourceErrors {
    /// Returns the kept messages, in the order of the input.
    pub fn shown(&self) -> &[SourceError] {
        &self.shown
    }

    /// Returns the number of messages, including those not kept.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Whether no message was added.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    pub(super) fn has_room(&self) -> bool {
        self.shown.len() < MAX_SHOWN
    }

    /// Adds a message. Returns its index in [`SourceErrors::shown`], or `None` if it was only counted.
    pub(super) fn push(&mut self, error: SourceError) -> Option<usize> {
        self.total += 1;
        self.has_room().then(|| {
            self.shown.push(error);
            self.shown.len() - 1
        })
    }

    pub(super) fn set_line(&mut self, index: usize, line: usize) {
        self.shown[index].line = Some(line);
    }

    /// Counts a message without keeping it.
    pub(super) fn count(&mut self) {
        self.total += 1;
    }
}

impl Extend<SourceError> for SourceErrors {
    fn extend<I: IntoIterator<Item = SourceError>>(&mut self, errors: I) {
        for error in errors {
            self.push(error);
        }
    }
}

impl fmt::Display for SourceErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.shown.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        match self.total - self.shown.len() {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

/// A problem in an object whose place is not known yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) path: FieldPath,
    pub(super) text: String,
    pub(super) help: String,
}

impl Problem {
    pub(super) fn new(path: &FieldPath, text: impl Into<String>, help: impl Into<String>) -> Self {
        Self { path: path.clone(), text: text.into(), help: help.into() }
    }

    /// Replaces the remedy if the problem quotes a placeholder: no correction of the value helps before it is filled in.
    pub(super) fn tell_of_placeholder(&mut self) {
        if let Some(help) = placeholder_help(&self.text) {
            help.clone_into(&mut self.help);
        }
    }
}

/// Returns the remedy for an expression or variable of a template in a text. `None` without one.
pub(super) fn template_help(text: &str) -> Option<&'static str> {
    if text.contains("{{") {
        return Some("this looks like a template: render it first (`helm template`)");
    }
    text.contains("${").then_some("this looks like a variable of a template: give it a value first (`envsubst`)")
}

/// Returns the remedy for a part of a template, or for a word in angle brackets, in a text. `None` without one.
fn placeholder_help(text: &str) -> Option<&'static str> {
    let is_word = |(word, _): (&str, &str)| word.starts_with(|c: char| c.is_ascii_alphabetic());
    let mut brackets = text.split('<').skip(1).filter_map(|rest| rest.split_once('>'));
    let help = "this looks like a placeholder: write your own value instead of the brackets";
    template_help(text).or_else(|| brackets.any(is_word).then_some(help))
}

impl fmt::Display for Problem {
    /// Writes one line without the remedy, for [`crate::object::Policy::fault`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string();
        if !path.is_empty() {
            write!(f, "{}: ", printable(&path))?;
        }
        f.write_str(&printable(&self.text))
    }
}

/// The problems and warnings found in one object.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
    /// Rules for a direction that `policyTypes` does not list. `warnings` contains them too.
    pub(super) idle_rules: Vec<Problem>,
    /// Empty lists of peers or ports, which allow every peer or port.
    pub(super) empty_lists: Vec<Problem>,
    /// The valid container ports of a pod or a pod template, with and without names. Policy needs only the named ones.
    pub(super) declared_ports: Vec<(u16, Transport)>,
}

impl Findings {
    pub(super) fn problem(&mut self, path: &FieldPath, text: impl Into<String>, help: impl Into<String>) {
        self.problems.push(Problem::new(path, text, help));
    }

    pub(super) fn warning(&mut self, path: &FieldPath, text: impl Into<String>, help: impl Into<String>) {
        self.warnings.push(Problem::new(path, text, help));
    }

    pub(super) fn idle_rules(&mut self, path: &FieldPath, text: &str, help: &str) {
        self.warning(path, text, help);
        self.idle_rules.push(Problem::new(path, text, help));
    }

    pub(super) fn empty_list(&mut self, path: &FieldPath, text: &str, help: &str) {
        self.empty_lists.push(Problem::new(path, text, help));
    }
}

/// Quotes a piece of input. Cuts it after [`MAX_QUOTED`] characters.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED) {
        None => format!("\"{text}\""),
        Some((end, _)) => format!("\"{}...\"", &text[..end]),
    }
}

/// Escapes characters that could move a terminal's cursor, change its colour or reorder the visible text.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    let harmful = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    if !text.contains(harmful) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if harmful(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}
