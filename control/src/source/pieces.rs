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

use super::document::{Document, Item, Items, MAX_OBJECTS};
use super::locate::Syntax;
use super::parse::{self, MAX_YAML_LINE, Parsed};
use super::tree::{Element, Tree};
use serde_saphyr::Spanned;

/// Minimum length in bytes of a text that is cut. A shorter one is parsed in a few milliseconds.
const MIN_LEN: usize = 1 << 18;

/// Maximum number of threads. Allocations of more would wait for each other.
const MAX_THREADS: usize = 8;

/// The stack of a thread in bytes: that of the main thread on Linux, since the parsers' limits on nesting are made for it.
const STACK: usize = 8 << 20;

/// Parses a text of the given notation. `None` if it is short, is written in another way, or cannot be parsed.
pub(super) fn parse(text: &str, syntax: Syntax) -> Option<Parsed> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
    if threads == 1 || text.len() < MIN_LEN {
        return None;
    }
    parse_in(text, syntax, threads)
}

/// Parses a text by a number of threads.
fn parse_in(text: &str, syntax: Syntax, threads: usize) -> Option<Parsed> {
    let list = match syntax {
        Syntax::Json => json_list(text, threads),
        Syntax::Yaml => yaml_list(text, threads),
    };
    list.or_else(|| documents(text, syntax, threads))
}

/// Calls `parse` for each part in a thread of its own. `None` if any returns `None`.
fn in_threads<T: Send, R: Send>(parts: Vec<T>, parse: impl Fn(T) -> Option<R> + Sync) -> Option<Vec<R>> {
    let parse = &parse;
    thread::scope(|scope| {
        let spawn = |part| thread::Builder::new().stack_size(STACK).spawn_scoped(scope, move || parse(part)).ok();
        let threads: Vec<_> = parts.into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread?.join().ok()?).collect()
    })
}

/// A part of a text, from the start of a line.
#[derive(Clone, Copy)]
struct Piece<'a> {
    text: &'a str,
    /// Number of lines before it.
    lines_before: usize,
}

/// Returns the text's lines without their ends, with the offset and number of each. Both count from 0.
fn lines(text: &str) -> impl Iterator<Item = (usize, usize, &str)> {
    let mut offset = 0;
    text.split_inclusive('\n').enumerate().map(move |(number, line)| {
        let start = offset;
        offset += line.len();
        (start, number, line.trim_end_matches(['\n', '\r']))
    })
}

/// Cuts `range` of a text at up to `most` of `starts`, which are offsets and line numbers in ascending order.
fn cut<'a>(text: &'a str, range: Range<usize>, starts: &[(usize, usize)], most: usize) -> Option<Vec<Piece<'a>>> {
    let boundary = |part: usize| {
        let wanted = range.start + range.len() / most * part;
        starts.get(starts.partition_point(|&(start, _)| start < wanted)).copied()
    };
    let mut starts: Vec<(usize, usize)> = (0..most).filter_map(boundary).collect();
    starts.dedup();
    let ends = starts.iter().skip(1).map(|&(start, _)| start).chain([range.end]);
    let piece = |(&(start, lines_before), end): (&(usize, usize), usize)| {
        text.get(start..end).map(|text| Piece { text, lines_before })
    };
    (starts.first()?.0 == range.start).then_some(())?;
    starts.iter().zip(ends).map(piece).collect()
}

/// Parses a text of several documents.
fn documents(text: &str, syntax: Syntax, threads: usize) -> Option<Parsed> {
    let mut starts = vec![(0, 0)];
    for (start, number, line) in lines(text).skip(1) {
        let is_start = match syntax {
            Syntax::Json => line.starts_with('{'),
            Syntax::Yaml => line == "---",
        };
        // A directive precedes the marker of its document.
        if (syntax == Syntax::Yaml && line.starts_with('%')) || starts.len() > MAX_OBJECTS {
            return None;
        }
        if is_start {
            starts.push((start, number));
        }
    }
    let pieces = cut(text, 0..text.len(), &starts, threads).filter(|pieces| pieces.len() > 1)?;
    let parsed = in_threads(pieces, |piece| {
        let mut parsed = parse::whole(piece.text, syntax).ok()?;
        parsed.entries.iter_mut().for_each(|entry| entry.line += piece.lines_before);
        Some(parsed)
    })?;
    let mut all = Parsed::default();
    for parsed in parsed {
        let entries = parsed.entries.into_iter().map(|mut entry| {
            entry.document += all.documents;
            entry
        });
        all.entries.extend(entries);
        all.documents += parsed.documents;
    }
    (all.documents <= MAX_OBJECTS).then_some(all)
}

/// Parses a document whose `items` are written as a block sequence of an outer block mapping.
fn yaml_list(text: &str, threads: usize) -> Option<Parsed> {
    let mut lines = lines(text);
    let is_marker = |line: &str| line.starts_with("---") || line.starts_with("...") || line.starts_with('%');
    lines
        .find(|&(start, _, line)| line == "items:" || (start > 0 && is_marker(line)))
        .filter(|found| found.2 == "items:")?;
    let mut lines = lines.peekable();
    let &(first, _, line) = lines.peek()?;
    let marker = &line[..line.find("- ")? + 2];
    let indent = marker.trim_start_matches(' ');
    (indent == "- ").then_some(())?;
    let indent = marker.len() - indent.len();
    let (mut starts, mut end) = (Vec::new(), text.len());
    for (start, number, line) in lines {
        if line.len() > MAX_YAML_LINE || starts.len() > MAX_OBJECTS {
            return None;
        }
        let content = line.trim_start_matches(' ');
        if line.starts_with(marker) {
            starts.push((start, number));
        } else if !content.is_empty() && !content.starts_with('#') && line.len() - content.len() <= indent {
            end = start;
            break;
        }
    }
    let pieces = cut(text, first..end, &starts, threads)?;
    let rest = [&text[..first], &text[end..]].concat();
    let mut documents: Vec<Spanned<Document<Spanned<Tree>>>> =
        serde_saphyr::from_multiple_with_options(&rest, parse::yaml_options(&rest)).ok()?;
    let document = documents.pop().filter(|_| documents.is_empty())?;
    let line = super::tree::line_number(&document);
    let items = in_threads(pieces, |piece| {
        let items: Items<Spanned<Tree>> =
            serde_saphyr::from_str_with_options(piece.text, parse::yaml_options(piece.text)).ok()?;
        let mut items = items.into_list()?;
        items.iter_mut().for_each(|(_, line)| *line += piece.lines_before);
        Some(items)
    })?;
    list(document.value, line, items)
}

/// Parses an object whose `items` are objects that begin and end on lines of their own, all with the same indentation.
fn json_list(text: &str, threads: usize) -> Option<Parsed> {
    let mut lines = lines(text);
    lines.find(|(_, _, line)| line.trim_start() == "\"items\": [")?;
    let mut lines = lines.peekable();
    let &(first, _, line) = lines.peek()?;
    let indent = line.strip_suffix('{').filter(|indent| indent.trim_start().is_empty())?;
    let (mut starts, mut ends, mut end) = (Vec::new(), Vec::new(), None);
    for (start, number, line) in lines {
        match line.strip_prefix(indent) {
            _ if starts.len() > MAX_OBJECTS => return None,
            Some("{") => starts.push((start, number)),
            Some("}," | "}") => ends.push(start + indent.len() + 1),
            // Between two items is no line of its own, so this is the list's end.
            _ if ends.len() == starts.len() => {
                end = Some(start);
                break;
            }
            _ => {}
        }
    }
    let end = end?;
    // Between the end of an item and the start of the next are a comma and white space.
    let is_apart = |(&(start, _), &end): (&(usize, usize), &usize)| {
        text.get(end..start).is_some_and(|between| between.trim() == ",")
    };
    (starts.iter().skip(1).zip(&ends).all(is_apart) && text[*ends.last()?..end].trim().is_empty()).then_some(())?;
    let rest = [text[..first].trim_end().strip_suffix('[')?, "null", text[end..].trim_start().strip_prefix(']')?];
    let document: Document<Tree> = serde_json::from_str(&rest.concat()).ok()?;
    let line = 1 + text[..text.find('{')?].matches('\n').count();
    let slices: Vec<(usize, usize, usize)> =
        starts.iter().zip(&ends).map(|(&(start, line), &end)| (start, end, line)).collect();
    let parts: Vec<&[(usize, usize, usize)]> = slices.chunks(slices.len().div_ceil(threads)).collect();
    let items = in_threads(parts, |part| {
        let item = |&(start, end, line): &(usize, usize, usize)| {
            let tree: Tree = serde_json::from_str(text.get(start..end)?).ok()?;
            Some((Item::new(tree.into_parts().0), line + 1))
        };
        part.iter().map(item).collect::<Option<Vec<_>>>()
    })?;
    list(document, line, items)
}

/// Returns the entries of a list. `None` if the document's `items` are not to be replaced, or are too many.
fn list<L: Element>(document: Document<L>, line: usize, items: Vec<Vec<(Item, usize)>>) -> Option<Parsed> {
    let items: Vec<_> = items.into_iter().flatten().collect();
    let mut entries = Vec::new();
    document.with_items(items)?.finish(1, line, &[], &mut entries);
    Some(Parsed { entries, documents: 1 })
}

#[cfg(test)]
mod tests;
