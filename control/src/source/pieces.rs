//! Parses a long text on several processors.
//!
//! ```text
//!  {                                      {
//!      "items": [               head          "items": null
//!          {                  --------->  }                        one document
//!              "kind": "Pod"
//!          },                   item  ->  thread 1, entries --.
//!          {                                                   >-- the document's entries
//!              "kind": "Node"   item  ->  thread 2, entries --'
//!          }
//!      ]                        tail
//!  }
//! ```
//! A list is cut before its items, and a text of several documents before the documents, where `kubectl` and people break lines. Long texts
//! are dumps of clusters, so the pieces are alike and each thread gets one of equal length.
//!
//! **Invariant.** A cut is a guess from lines alone, and never changes what a text means. Valid items between a valid head and tail are a
//! valid list, and no value of YAML or JSON contains a line like those before which the text is cut. If any piece is invalid, such as after
//! an alias of another piece, the caller parses the whole text, so that errors are those of the whole text too.

use std::num::NonZero;
use std::ops::Range;
use std::thread;

use memchr::{memchr_iter, memmem};
use serde_saphyr::Spanned;

use super::document::{Document, Item, Items, MAX_OBJECTS};
use super::locate::Syntax;
use super::parse::{self, MAX_FOREIGN, Parsed, SyntaxError};
use super::tree::{Element, Entry, Tree, line_number};

/// Minimum length in bytes of a text that is cut. A shorter one is parsed in a few milliseconds.
const MIN_LEN: usize = 1 << 18;

/// Maximum number of threads: on a large machine, one command leaves most processors to others.
const MAX_THREADS: usize = 8;

/// Stack size of a thread in bytes: the usual one of the main thread on Linux, because the parsers' limits on nesting depth suit it.
const STACK: usize = 8 << 20;

/// Maximum length in bytes of what precedes the items of a list. `kubectl` writes three lines.
const MAX_HEAD: usize = 1 << 12;

/// Parses a text as [`parse::parse`] does, and a long one by as many threads as there are processors.
pub(super) fn parse(file: &str, text: &str) -> Result<(Vec<Entry>, Syntax), SyntaxError> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
    if threads > 1 && text.len() >= MIN_LEN {
        let syntax = parse::likely(text);
        if let Some(parsed) = parse_in(text, syntax, threads) {
            return Ok((parsed.entries, syntax));
        }
    }
    parse::parse(file, text)
}

/// Parses a text of the given notation by a number of threads. `None` if it is written in another way, or cannot be parsed.
fn parse_in(text: &str, syntax: Syntax, threads: usize) -> Option<Parsed> {
    let list = match syntax {
        Syntax::Json => json_list(text, threads),
        Syntax::Yaml => yaml_list(text, threads),
    };
    list.or_else(|| documents(text, syntax, threads))
}

/// Calls `parse` for each part in a thread of its own, and returns the results in the order of the parts. `None` if a call returns `None` or
/// panics, or if a thread cannot be started.
fn in_threads<T: Send, R: Send>(parts: Vec<T>, parse: impl Fn(T) -> Option<R> + Sync) -> Option<Vec<R>> {
    let parse = &parse;
    thread::scope(|scope| {
        let spawn = |part| thread::Builder::new().stack_size(STACK).spawn_scoped(scope, move || parse(part)).ok();
        let threads: Vec<_> = parts.into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread?.join().ok()?).collect()
    })
}

/// Cuts a range of a text into up to `most` pieces of about equal length, and returns their ranges of bytes. `next` gets the rest of the text
/// and returns the offset in it at which the next piece may start; `None` if none may.
fn cut(text: &str, range: Range<usize>, most: usize, next: impl Fn(&str) -> Option<usize>) -> Vec<Range<usize>> {
    let mut starts = vec![range.start];
    for part in 1..most {
        let wanted = (range.start + range.len() / most * part).max(starts[starts.len() - 1] + 1);
        let Some(from) = (wanted..range.end).find(|&at| text.is_char_boundary(at)) else { break };
        let Some(start) = next(&text[from..range.end]) else { break };
        starts.push(from + start);
    }
    let ends = starts.iter().skip(1).copied().chain([range.end]);
    starts.iter().zip(ends).map(|(&start, end)| start..end).collect()
}

/// Returns the number of line breaks in a text.
fn breaks(text: &str) -> usize {
    memchr_iter(b'\n', text.as_bytes()).count()
}

/// Returns the first line break of a text, `\n` or `\r\n`. Returns `\n` if the text has none.
fn line_break(text: &str) -> &'static str {
    let is_long = text.find('\n').is_some_and(|at| text[..at].ends_with('\r'));
    if is_long { "\r\n" } else { "\n" }
}

/// Parses a text of several documents. `None` if it has one document, directives, too many documents, or a piece that cannot be parsed.
fn documents(text: &str, syntax: Syntax, threads: usize) -> Option<Parsed> {
    let marker = match syntax {
        Syntax::Json => "\n{".to_owned(),
        Syntax::Yaml => format!("\n---{}", line_break(text)),
    };
    let pieces = cut(text, 0..text.len(), threads, |rest| rest.find(&marker).map(|at| at + 1));
    // A directive of YAML precedes the marker of its document.
    let has_directives = || syntax == Syntax::Yaml && (text.starts_with('%') || text.contains("\n%"));
    // A text with too many documents is refused, so it is parsed only once.
    let has_too_many = || memmem::find_iter(text.as_bytes(), &marker).nth(MAX_OBJECTS).is_some();
    if pieces.len() == 1 || has_directives() || has_too_many() {
        return None;
    }
    let parsed = in_threads(pieces, |piece| {
        let lines_before = breaks(&text[..piece.start]);
        let mut parsed = parse::whole(&text[piece], syntax).ok()?;
        parsed.entries.iter_mut().for_each(|entry| entry.line += lines_before);
        Some(parsed)
    })?;
    let mut all = Parsed::default();
    for mut parsed in parsed {
        parsed.entries.iter_mut().for_each(|entry| entry.document += all.documents);
        all.entries.append(&mut parsed.entries);
        all.documents += parsed.documents;
        all.foreign += parsed.foreign;
    }
    (all.documents <= MAX_OBJECTS && all.foreign <= MAX_FOREIGN).then_some(all)
}

/// Parses a YAML document whose `items` are written as a block sequence of the outer block mapping. `None` if they are written in another
/// way, or if a piece cannot be parsed.
fn yaml_list(text: &str, threads: usize) -> Option<Parsed> {
    let line_break = line_break(text);
    let key = format!("items:{line_break}");
    let start = if text.starts_with(&key) { 0 } else { head(text).find(&format!("\n{key}"))? + 1 } + key.len();
    let indent = text[start..].find(|letter| letter != ' ')?;
    let marker = format!("{}- ", &text[start..start + indent]);
    // The key is the outer mapping's, and no directive changes what tags in the items mean.
    let goes_on = |line: &str| {
        let is_open = |quote: char| line.matches(quote).count() % 2 == 1;
        line.replace("{}", "").contains(['{', '[', '|', '>', '%', '\\']) || is_open('"') || is_open('\'')
    };
    (text[start..].starts_with(&marker) && !text[..start].lines().any(goes_on)).then_some(())?;
    // The list ends behind its last item, at the next field of the mapping.
    let is_inside = |line: &str| {
        let content = line.trim_start_matches(' ');
        line.len() - content.len() > indent || matches!(content.trim_end().chars().next(), None | Some('#'))
    };
    let last = start + text[start..].rfind(&format!("\n{marker}")).map_or(0, |at| at + 1);
    let (first, rest) = text[last..].split_once('\n').unwrap_or((&text[last..], ""));
    let others = rest.split_inclusive('\n').take_while(|line| is_inside(line)).map(str::len).sum::<usize>();
    let end = text.len().min(last + first.len() + 1 + others);
    let rest = [&text[..start], &text[end..]].concat();
    let mut documents: Vec<Spanned<Document<Spanned<Tree>>>> =
        serde_saphyr::from_multiple_with_options(&rest, parse::yaml_options(&rest)).ok()?;
    let document = documents.pop().filter(|_| documents.is_empty())?;
    let line = line_number(&document);
    let marker = format!("\n{marker}");
    let pieces = cut(text, start..end, threads, |rest| rest.find(&marker).map(|at| at + 1));
    let items = in_threads(pieces, |piece| {
        let (lines_before, text) = (breaks(&text[..piece.start]), &text[piece]);
        if parse::long_line(text).is_some() {
            return None;
        }
        let items: Items<Spanned<Tree>> = serde_saphyr::from_str_with_options(text, parse::yaml_options(text)).ok()?;
        let mut items = items.into_list()?;
        items.iter_mut().for_each(|(_, line)| *line += lines_before);
        Some(items)
    })?;
    list(document.value, line, items)
}

/// Parses a JSON object whose `items` begin and end on lines of their own, all with the same indentation. `None` if they are written in another
/// way, or if a piece cannot be parsed.
fn json_list(text: &str, threads: usize) -> Option<Parsed> {
    let line_break = line_break(text);
    let key = format!("\"items\": [{line_break}");
    let start = head(text).find(&key)? + key.len();
    let indent = &text[start..start + text[start..].find(|letter| letter != ' ')?];
    let start = start + indent.len();
    // Behind the last item are the list's end and the object's other fields.
    let last = format!("{line_break}{indent}}}{line_break}");
    let end = text.rfind(&last)? + line_break.len() + indent.len() + 1;
    let before = text[..start].trim_end().strip_suffix('[')?;
    // The key is the outer object's.
    (before.matches(['{', '[']).count() == 1).then_some(())?;
    let after = text.get(end..).filter(|_| start < end)?.trim_start().strip_prefix(']')?;
    let document: Document<Tree> = serde_json::from_str(&[before, "null", after].concat()).ok()?;
    let line = 1 + breaks(&text[..text.find('{')?]);
    let between = format!("{line_break}{indent}}},{line_break}{indent}{{{line_break}");
    // Of what is between, the end of one item, the start of the next, and from there to the end.
    let (one, next) = (line_break.len() + indent.len() + 1, line_break.len() + 1);
    let behind = |at: usize| at + between.len() - next;
    let pieces = cut(text, start..end, threads, |rest| rest.find(&between).map(behind));
    let items = in_threads(pieces, |piece| {
        let mut line = 1 + breaks(&text[..piece.start]);
        let text = text[piece].trim_end();
        let text = text.strip_suffix(',').unwrap_or(text);
        let mut items = Vec::new();
        let ends = memmem::find_iter(text.as_bytes(), &between).map(|at| (at + one, behind(at)));
        let mut start = 0;
        for (end, next) in ends.chain([(text.len(), text.len())]) {
            let tree: Tree = serde_json::from_str(&text[start..end]).ok()?;
            items.push((Item::new(tree.into_parts().0), line));
            line += breaks(&text[start..next]);
            start = next;
        }
        Some(items)
    })?;
    list(document, line, items)
}

/// Returns the first [`MAX_HEAD`] bytes of a text, or fewer so that no character is cut.
fn head(text: &str) -> &str {
    let length = (0..=text.len().min(MAX_HEAD)).rev().find(|&at| text.is_char_boundary(at));
    &text[..length.unwrap_or(0)]
}

/// Returns the entries of the document that starts on `line`, from 1, with these items. `None` in the cases of [`Document::with_items`].
fn list<L: Element>(document: Document<L>, line: usize, items: Vec<Vec<(Item, usize)>>) -> Option<Parsed> {
    let items: Vec<_> = items.into_iter().flatten().collect();
    let mut entries = Vec::new();
    document.with_items(items)?.finish(1, line, &[], &mut entries);
    Some(Parsed { entries, documents: 1, ..Parsed::default() })
}

#[cfg(test)]
mod tests;
