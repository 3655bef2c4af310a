//! Finds the lines of fields after the text was read. Only messages and explanations need lines, so reading does not pay for them.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, Span};

use super::json::{JsonTokens, Shape, Token};
use super::path::{FieldPath, Step};

/// The notation of a text. JSON is also YAML, but `serde_json` is several times as fast and reads consecutive documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    Yaml,
    Json,
}

/// A field whose line number the caller needs.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The document's number in the text, from 1, not counting empty documents.
    pub(super) document: usize,
    /// The field's path from the document's root.
    pub(super) path: FieldPath,
}

/// Returns the lines, from 1, of the wanted fields in the same order. Walks over the text once. For a field that is not written there (it
/// is missing, or comes from an alias or a merge key), returns the line of the nearest enclosing field. `None` if the document does not
/// exist.
pub(super) fn lines(text: &str, syntax: Syntax, wanted: &[Wanted]) -> Vec<Option<usize>> {
    let mut roots: BTreeMap<usize, Place> = BTreeMap::new();
    for Wanted { document, path } in wanted {
        roots.entry(*document).or_default().want(path.steps());
    }
    match syntax {
        Syntax::Json => walk_documents(&mut JsonTokens::new(text), &mut roots),
        Syntax::Yaml => walk_documents(&mut YamlTokens(Parser::new_from_str(text)), &mut roots),
    }
    wanted.iter().map(|Wanted { document, path }| roots.get(document)?.line_of(path.steps())).collect()
}

/// A node of the tree of wanted paths. Children are found by hash, since a list of policies may have thousands of wanted elements.
#[derive(Default)]
pub(super) struct Place {
    line: Option<usize>,
    fields: HashMap<String, Self>,
    elements: HashMap<usize, Self>,
}

impl Place {
    /// Returns the root of a tree without wanted paths, for an object that starts on this line, from 1.
    pub(super) fn on_line(line: usize) -> Self {
        Self { line: Some(line), ..Self::default() }
    }

    /// Adds the path of a wanted field.
    pub(super) fn want(&mut self, steps: &[Step]) {
        let Some((first, rest)) = steps.split_first() else { return };
        let child = match first {
            Step::Key(key) => self.fields.entry(key.clone()).or_default(),
            Step::Index(index) => self.elements.entry(*index).or_default(),
        };
        child.want(rest);
    }

    fn element(&mut self, index: usize) -> Option<&mut Self> {
        self.elements.get_mut(&index)
    }

    fn field(&mut self, key: &str) -> Option<&mut Self> {
        self.fields.get_mut(key)
    }

    /// Returns the line, from 1, of the last step of the path that the walk has found. `None` if it has found none, not even the root.
    pub(super) fn line_of(&self, steps: &[Step]) -> Option<usize> {
        let deeper = steps.split_first().and_then(|(first, rest)| {
            let child = match first {
                Step::Key(key) => self.fields.get(key),
                Step::Index(index) => self.elements.get(index),
            };
            child?.line_of(rest)
        });
        deeper.or(self.line)
    }
}

fn walk_documents<'a>(tokens: &mut impl Iterator<Item = (Token<'a>, usize)>, roots: &mut BTreeMap<usize, Place>) {
    let last = roots.last_key_value().map_or(0, |(&document, _)| document);
    let mut document = 0;
    while document < last
        && let Some((token, line)) = tokens.next()
    {
        if matches!(token, Token::Scalar { null: true, .. }) {
            continue;
        }
        document += 1;
        let mut root = roots.get_mut(&document);
        if let Some(place) = &mut root {
            place.line = Some(line);
        }
        walk(tokens, &token, root);
    }
}

/// Walks over one value. Returns false if the tokens end before the value does. The parsers bound the depth of nesting and thus this
/// recursion.
pub(super) fn walk<'a>(
    tokens: &mut impl Iterator<Item = (Token<'a>, usize)>,
    first: &Token<'a>,
    mut place: Option<&mut Place>,
) -> bool {
    let Token::Open(shape) = *first else { return true };
    let mut index = 0;
    while let Some((token, line)) = tokens.next() {
        let mut child = match (shape, &token) {
            (_, Token::Close) => return true,
            (Shape::Sequence, _) => {
                index += 1;
                place.as_mut().and_then(|place| place.element(index - 1))
            }
            (Shape::Mapping, Token::Scalar { text, .. }) => place.as_mut().and_then(|place| place.field(text)),
            (Shape::Mapping, key) => {
                walk(tokens, key, None);
                None
            }
        };
        if let Some(child) = &mut child {
            child.line = Some(line);
        }
        if shape == Shape::Sequence {
            walk(tokens, &token, child);
        } else if let Some((value, _)) = tokens.next() {
            walk(tokens, &value, child);
        }
    }
    false
}

/// Iterates over the tokens of YAML text up to its first error.
pub(super) struct YamlTokens<'a, P>(pub(super) P)
where
    P: Iterator<Item = Result<(Event<'a>, Span), serde_saphyr::granit_parser::ScanError>>;

impl<'a, P> Iterator for YamlTokens<'a, P>
where
    P: Iterator<Item = Result<(Event<'a>, Span), serde_saphyr::granit_parser::ScanError>>,
{
    type Item = (Token<'a>, usize);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (event, span) = self.0.next()?.ok()?;
            let token = match event {
                Event::MappingStart(..) => Token::Open(Shape::Mapping),
                Event::SequenceStart(..) => Token::Open(Shape::Sequence),
                Event::MappingEnd | Event::SequenceEnd => Token::Close,
                Event::Scalar(text, style, _, _) => {
                    let null = style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                    Token::Scalar { text, null }
                }
                // An alias's value is written elsewhere. Here the alias is a value without fields.
                Event::Alias(_) => Token::Scalar { text: Cow::Borrowed("*"), null: false },
                _ => continue,
            };
            return Some((token, span.start.line()));
        }
    }
}
