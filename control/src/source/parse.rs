//! Text to decoded objects: documents, and the items of lists.

use serde::de::IgnoredAny;
use serde_saphyr::Spanned;

use super::document::Document;
use super::error::quoted;
use super::json;
pub(super) use super::locate::Syntax;
use super::tree::{Entry, GIVEN_TWICE, Tree, line_number};

/// What aliases may add to a text's scalars, in bytes. Without a bound a small file could fill the memory ("billion laughs").
const MAX_ALIASED_BYTES: usize = 64 << 20;

/// The remedy for a repeated key.
const REPEATED_HELP: &str = "remove one of the two: which of them counts is not defined";

/// Why a text is neither YAML nor JSON.
pub(super) struct SyntaxError {
    pub(super) line: Option<usize>,
    pub(super) text: String,
    pub(super) help: String,
}

/// The objects of the text of a file, in order, and the notation that it turned out to have.
pub(super) fn parse(file: &str, text: &str) -> Result<(Vec<Entry>, Syntax), SyntaxError> {
    let named_json = file.ends_with(".json");
    if !starts_like_json(text) {
        let parsed = parse_yaml(text).map(|entries| (entries, Syntax::Yaml));
        return parsed.map_err(|yaml| parse_json(text).err().filter(|_| named_json).unwrap_or(yaml));
    }
    // A YAML document may start with a brace as well.
    let json = match parse_json(text) {
        Ok(entries) => return Ok((entries, Syntax::Json)),
        Err(error) => error,
    };
    match parse_yaml(text) {
        Ok(entries) => Ok((entries, Syntax::Yaml)),
        // What is called JSON, or has its first key in quotes, is hardly meant as YAML, and nothing else as JSON.
        Err(_) if named_json || starts_with_quoted_key(text) => Err(json),
        Err(yaml) => Err(yaml),
    }
}

fn starts_like_json(text: &str) -> bool {
    text.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('{')
}

fn starts_with_quoted_key(text: &str) -> bool {
    text.trim_start().strip_prefix('{').is_some_and(|rest| rest.trim_start().starts_with('"'))
}

/// The notation of a text that [`parse`] has accepted.
pub(super) fn syntax_of(text: &str) -> Syntax {
    let is_json = || serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>().all(|value| value.is_ok());
    if starts_like_json(text) && is_json() { Syntax::Json } else { Syntax::Yaml }
}

fn parse_json(text: &str) -> Result<Vec<Entry>, SyntaxError> {
    let documents = serde_json::Deserializer::from_str(text).into_iter::<Option<Document<Tree>>>();
    let documents: Vec<_> = documents.filter_map(Result::transpose).collect::<Result<_, _>>().map_err(|error| {
        // serde_json adds the place, which stands in front of the message already.
        let message = error.to_string();
        let text = message.split(" at line ").next().unwrap_or_default().to_owned();
        let help = match error.classify() {
            serde_json::error::Category::Eof => "the text ends too early: was it cut off?",
            _ if text.ends_with(GIVEN_TWICE) => REPEATED_HELP,
            _ => "correct the JSON; nothing of this file was read",
        };
        SyntaxError { line: Some(error.line()), text, help: help.to_owned() }
    })?;
    let outlines = json::outlines(text);
    let mut entries = Vec::new();
    for (at, (document, outline)) in documents.into_iter().zip(&outlines).enumerate() {
        document.finish(at + 1, outline.line, &outline.items, &mut entries);
    }
    Ok(entries)
}

fn parse_yaml(text: &str) -> Result<Vec<Entry>, SyntaxError> {
    let documents: Vec<Spanned<Document<Spanned<Tree>>>> =
        serde_saphyr::from_multiple_with_options(text, yaml_options(text)).map_err(|error| yaml_error(text, &error))?;
    let mut entries = Vec::new();
    for (at, document) in documents.into_iter().enumerate() {
        let line = line_number(&document);
        document.value.finish(at + 1, line, &[], &mut entries);
    }
    Ok(entries)
}

/// Every node, document and merge key costs at least a byte of the text, so the text's own length bounds them and the
/// parser's fixed limits (a fraction of a real cluster) are lifted. Only aliases make more of a text than it holds: the
/// limits on those stay, and so does the one on the depth of nesting, which bounds the recursion.
fn yaml_options(text: &str) -> serde_saphyr::Options {
    let size = text.len();
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_documents: usize::MAX,
            max_total_scalar_bytes: size.saturating_add(MAX_ALIASED_BYTES),
            // One set of labels that a thousand pods refer to is no attack.
            enforce_alias_anchor_ratio: false,
        },
        // As `kubectl`: 017 is fifteen.
        legacy_octal_numbers: true,
        // A tag asks for a meaning that is not known here.
        reject_unsupported_tags: true,
        // Both default to on and cost time for nothing.
        with_snippet: false,
    }
}

fn yaml_error(source: &str, error: &serde_saphyr::Error) -> SyntaxError {
    let location = error.location();
    let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let mut help = "correct the YAML; nothing of this file was read";
    let text = match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            help = REPEATED_HELP;
            format!("key {}{GIVEN_TWICE}", quoted(key))
        }
        other => {
            let message = other.render_with_formatter(&serde_saphyr::UserMessageFormatter);
            message.split(" at line ").next().unwrap_or_default().lines().next().unwrap_or_default().to_owned()
        }
    };
    let line = location.map(|place| number(place.line()));
    let written = line.and_then(|line| source.lines().nth(line.checked_sub(1)?));
    if written.is_some_and(|written| written.contains("{{")) {
        help = "this looks like a template: render it first (`helm template`)";
    }
    SyntaxError { line, text, help: help.to_owned() }
}
