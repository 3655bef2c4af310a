//! Finds the lines of fields of objects from the lines on which the objects start. An answer names one rule of a state of many megabytes, so
//! the text is read up to the last of the objects, and only the objects are parsed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use memchr::memchr_iter;
use serde_saphyr::granit_parser::Parser;

use super::json::{JsonTokens, Shape, Token};
use super::locate::{self, Place, Wanted, YamlTokens, walk};
use super::path::FieldPath;
use super::{parse, read};
use crate::object::Position;

/// Size of the buffer through which a file is read, in bytes: it stays in the processor's cache.
const BUFFER: usize = 1 << 16;

/// A field of an object: the object's position, and the field's path in it.
type Field<'a> = (&'a Position, &'a str);

/// Returns the lines, from 1, of fields of the file's objects, in the same order. For a field that is not written there, returns the line of
/// the nearest enclosing field. `None` if the file cannot be read or does not contain the object.
pub(super) fn in_file(path: &Path, fields: &[Field<'_>]) -> Vec<Option<usize>> {
    let near = File::open(path).ok().and_then(|file| {
        let mut source = BufReader::with_capacity(BUFFER, file);
        let is_plain = read::is_plain(source.fill_buf().ok()?);
        is_plain.then(|| near(source, fields))
    });
    match near {
        Some((lines, elsewhere)) if elsewhere.is_empty() => lines,
        _ => read::file_text(path).map_or_else(|_| vec![None; fields.len()], |text| in_text(&text, fields)),
    }
}

/// Like [`in_file`], for the text of a file.
pub(super) fn in_text(text: &str, fields: &[Field<'_>]) -> Vec<Option<usize>> {
    let (mut lines, elsewhere) = near(text.as_bytes(), fields);
    let wanted = |&at: &usize| {
        let (position, sub_path) = fields[at];
        let path = FieldPath::parse(&position.path)?.join(&FieldPath::parse(sub_path)?);
        Some((at, Wanted { document: position.document, path }))
    };
    let (places, wanted): (Vec<usize>, Vec<Wanted>) = elsewhere.iter().filter_map(wanted).unzip();
    if !wanted.is_empty() {
        let found = locate::lines(text, parse::syntax_of(text), &wanted);
        places.into_iter().zip(found).for_each(|(at, line)| lines[at] = line);
    }
    lines
}

/// Returns the line of each field that [`Nearby`] finds, `None` for the others, and the indices of those that may be found another way.
fn near(source: impl BufRead, fields: &[Field<'_>]) -> (Vec<Option<usize>>, Vec<usize>) {
    let (mut lines, mut elsewhere) = (vec![None; fields.len()], Vec::new());
    let mut nearby = Nearby::new(source);
    let mut objects: BTreeMap<(usize, usize, &str), Vec<usize>> = BTreeMap::new();
    for (at, (position, _)) in fields.iter().enumerate() {
        objects.entry((position.line, position.document, &position.path)).or_default().push(at);
    }
    for ((line, _, path), places) in objects {
        let (places, paths): (Vec<usize>, Vec<FieldPath>) =
            places.into_iter().filter_map(|at| Some((at, FieldPath::parse(fields[at].1)?))).unzip();
        // Lists in lists are rare.
        let is_nested = path.matches('[').count() > 1;
        match nearby.lines(line, !path.is_empty(), &paths).filter(|_| !is_nested) {
            Some(found) => places.into_iter().zip(found).for_each(|(at, line)| lines[at] = line),
            None => elsewhere.extend(places),
        }
    }
    (lines, elsewhere)
}

/// Finds fields of objects from the lines on which the objects start. Reads the text up to the last object's end and parses only the
/// objects.
///
/// An object that starts on a line of its own is recognised by its notation: in JSON by a brace that stands alone, in YAML by its
/// indentation. That is how `kubectl` and people write. All others, and objects with aliases, need [`locate::lines`].
pub(super) struct Nearby<R> {
    source: R,
    /// The number of lines that were taken from `source`, without `next`.
    taken: usize,
    /// A line that was read and not yet taken.
    next: Option<String>,
}

impl<R: BufRead> Nearby<R> {
    /// `source` is at the start of a UTF-8 text.
    pub(super) const fn new(source: R) -> Self {
        Self { source, taken: 0, next: None }
    }

    /// Returns the lines of fields, given by their paths in the object, as [`locate::lines`] does. `line` is the object's, from 1, and
    /// `is_item` is true if it is an element of a list. `None` if the object is written in another way, if the source cannot be read, or if
    /// `line` is not behind the object of the previous call.
    pub(super) fn lines(&mut self, line: usize, is_item: bool, fields: &[FieldPath]) -> Option<Vec<Option<usize>>> {
        let before = line.checked_sub(1)?;
        self.skip_to(before)?;
        let mut root = Place::on_line(line);
        fields.iter().for_each(|path| root.want(path.steps()));
        let first = self.take_line()?;
        let is_whole = if first.trim() == "{" {
            let text = self.json_object(first)?;
            let mut tokens = JsonTokens::new(&text).map(|(token, line)| (token, line + before));
            let (token, _) = tokens.next()?;
            walk(&mut tokens, &token, Some(&mut root))
        } else {
            let text = if is_item { self.yaml_item(first)? } else { self.yaml_document(first)? };
            let mut tokens = YamlTokens(Parser::new_from_str(&text)).map(|(token, line)| (token, line + before));
            if is_item {
                matches!(tokens.next()?, (Token::Open(Shape::Sequence), _)).then_some(())?;
            }
            let (token, _) = tokens.next()?;
            let is_mapping = matches!(token, Token::Open(Shape::Mapping));
            is_mapping && walk(&mut tokens, &token, Some(&mut root))
        };
        is_whole.then(|| fields.iter().map(|path| root.line_of(path.steps())).collect())
    }

    /// Takes lines until `before` lines are taken. `None` if more are taken already, or if the source ends before.
    fn skip_to(&mut self, before: usize) -> Option<()> {
        if self.taken < before && self.next.take().is_some() {
            self.taken += 1;
        }
        let mut missing = before.checked_sub(self.taken)?;
        while missing > 0 {
            let buffer = self.source.fill_buf().ok().filter(|buffer| !buffer.is_empty())?;
            let mut breaks = memchr_iter(b'\n', buffer);
            // Counting is several times as fast as walking over the breaks.
            let count = breaks.clone().count().min(missing);
            let length = if count < missing { buffer.len() } else { breaks.nth(missing - 1)? + 1 };
            self.source.consume(length);
            missing -= count;
        }
        self.taken = before;
        Some(())
    }

    /// Reads the next line, with its line break, unless it is read already. `None` at the source's end, or if the line is not UTF-8.
    fn peek(&mut self) -> Option<&str> {
        if self.next.is_none() {
            let mut line = String::new();
            self.next = self.source.read_line(&mut line).is_ok_and(|length| length > 0).then_some(line);
        }
        self.next.as_deref()
    }

    /// Returns the next line with its line break, and counts it. `None` as for [`Self::peek`].
    fn take_line(&mut self) -> Option<String> {
        self.peek()?;
        self.taken += 1;
        self.next.take()
    }

    /// Returns `first` and the lines behind it up to the first that is not `is_inside`.
    fn block(&mut self, first: String, is_inside: impl Fn(&str) -> bool) -> String {
        let mut text = first;
        while self.peek().is_some_and(&is_inside) {
            text.extend(self.take_line());
        }
        text
    }

    /// Returns the object that `first`, an opening brace, begins. `None` if no closing brace is written below it.
    fn json_object(&mut self, first: String) -> Option<String> {
        let margin = first[..first.len() - first.trim_start().len()].to_owned();
        let is_end = |line: &str| line.strip_prefix(&*margin).is_some_and(|rest| rest.starts_with('}'));
        let text = self.block(first, |line| !is_end(line));
        Some(text + &self.take_line()?)
    }

    /// Returns the element of a block sequence that `first` begins. `None` if it begins none.
    fn yaml_item(&mut self, first: String) -> Option<String> {
        let indent = indent(&first);
        first[indent..].strip_prefix("- ")?;
        Some(self.block(first, |line| {
            let content = line.trim_start();
            content.is_empty() || content.starts_with('#') || self::indent(line) > indent
        }))
    }

    /// Returns the YAML document whose block mapping `first` begins. `None` if it begins none.
    fn yaml_document(&mut self, first: String) -> Option<String> {
        first.starts_with(|letter: char| letter.is_ascii_alphabetic()).then_some(())?;
        Some(self.block(first, |line| !(line.starts_with("---") || line.starts_with("..."))))
    }
}

/// Returns the number of spaces with which a line begins.
fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}
