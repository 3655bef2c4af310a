//! Parses the text of a file, YAML or JSON, into decoded objects.

use serde::de::IgnoredAny;
use serde_saphyr::Spanned;

use super::document::{Document, MAX_OBJECTS};
use super::error::{quoted, template_help};
use super::json::JsonTokens;
pub(super) use super::locate::Syntax;
use super::tree::{Entry, GIVEN_TWICE, Tree, line_number};

/// Maximum number of bytes that aliases may add to a text's scalars. Without a bound, a small file could fill the memory ("billion
/// laughs").
const MAX_ALIASED_BYTES: usize = 64 << 20;

/// Maximum number of values below anchors. The parser keeps them, 250 bytes each.
const MAX_ANCHORED: usize = 1 << 17;

/// Maximum length of a line of YAML in bytes. API servers limit objects to 1.5 MB. The parser copies a scalar, and looks ahead over a line.
const MAX_YAML_LINE: usize = 1 << 24;

/// Maximum length in bytes of a text that is tried as YAML although it looks like JSON. Only people write such YAML.
const MAX_BRACED: usize = 1 << 24;

/// Maximum number of documents of a text that are no object and become entries. Messages show far fewer, and a text with more must not fill
/// the memory with problems.
pub(super) const MAX_FOREIGN: usize = 10_000;

const REPEATED_HELP: &str = "remove one of the two: it is undefined which one counts";

/// The error of a text that is neither YAML nor JSON.
pub(super) struct SyntaxError {
    pub(super) line: Option<usize>,
    pub(super) text: String,
    pub(super) help: String,
}

/// The objects of a text, in order.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    /// The objects, and the first [`MAX_FOREIGN`] documents that are none.
    pub(super) entries: Vec<Entry>,
    /// Number of documents in the text that are not empty.
    pub(super) documents: usize,
    /// Number of documents that are no object.
    pub(super) foreign: usize,
}

impl Parsed {
    /// Adds the objects of the next document, which starts on `line`, from 1. `item_lines` are the lines of the elements of its `items`; empty
    /// if the parser has reported them.
    fn add<L>(&mut self, document: Document<L>, line: usize, item_lines: &[usize]) {
        self.documents += 1;
        let before = self.entries.len();
        document.finish(self.documents, line, item_lines, &mut self.entries);
        let is_foreign = self.entries[before..].first().is_some_and(Entry::is_no_object);
        self.foreign += usize::from(is_foreign);
        if self.foreign > MAX_FOREIGN && is_foreign {
            self.entries.truncate(before);
        }
    }
}

/// Takes YAML documents one by one, because entries need less memory than documents.
impl<L> Extend<Spanned<Document<L>>> for Parsed {
    fn extend<T: IntoIterator<Item = Spanned<Document<L>>>>(&mut self, documents: T) {
        for document in documents {
            let line = line_number(&document);
            self.add(document.value, line, &[]);
        }
    }
}

/// Returns the objects of a text, in order, and its notation. If both parsers fail, the file name and the start of the text decide whose
/// error is returned.
pub(super) fn parse(file: &str, text: &str) -> Result<(Vec<Entry>, Syntax), SyntaxError> {
    let named_json = file.ends_with(".json");
    let likely = likely(text);
    let first = match whole(text, likely) {
        Ok(parsed) => return Ok((parsed.entries, likely)),
        Err(error) => error,
    };
    if likely == Syntax::Yaml {
        return Err(whole(text, Syntax::Json).err().filter(|_| named_json).unwrap_or(first));
    }
    let is_json = named_json || starts_with_quoted_key(text);
    if is_json && text.len() > MAX_BRACED {
        return Err(first);
    }
    // A YAML document may also start with a brace.
    match whole(text, Syntax::Yaml) {
        Ok(parsed) => Ok((parsed.entries, Syntax::Yaml)),
        // Text in a `.json` file or with a quoted first key is meant as JSON, any other text as YAML.
        Err(_) if is_json => Err(first),
        Err(yaml) => Err(yaml),
    }
}

/// Returns the objects of a text that is read in this notation only, in order.
///
/// # Errors
/// If the text is not valid in the notation, or exceeds a limit.
pub(super) fn whole(text: &str, syntax: Syntax) -> Result<Parsed, SyntaxError> {
    match syntax {
        Syntax::Yaml => parse_yaml(text),
        Syntax::Json => parse_json(text),
    }
}

/// Whether a text that is neither YAML nor JSON could be meant as a policy: it has a field `kind`. A template, which has no meaning before it
/// is rendered, could be one only if it also mentions network policies, or leaves the kind to its values.
pub(super) fn could_be_policy(text: &str) -> bool {
    if text.contains('\0') {
        // UTF-16 without its mark.
        return could_be_policy(&text.replace('\0', ""));
    }
    let after = |at: usize| text[at + "kind".len()..].trim_start_matches(['"', '\'', ' ']).strip_prefix(':');
    let mut kinds = text.match_indices("kind").filter_map(|(at, _)| after(at)).map(str::trim_start).peekable();
    if kinds.peek().is_none() || !text.contains("{{") {
        return kinds.peek().is_some();
    }
    let is_left_open = |kind: &str| kind.trim_start_matches(['"', '\'']).starts_with("{{");
    text.to_ascii_lowercase().contains("networkpolic") || kinds.any(is_left_open)
}

/// Returns the notation to try first: JSON if the text starts with a brace, else YAML.
pub(super) fn likely(text: &str) -> Syntax {
    if starts_like_json(text) { Syntax::Json } else { Syntax::Yaml }
}

fn starts_like_json(text: &str) -> bool {
    text.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('{')
}

fn starts_with_quoted_key(text: &str) -> bool {
    text.trim_start().strip_prefix('{').is_some_and(|rest| rest.trim_start().starts_with('"'))
}

/// Returns the notation of a text that [`parse`] has accepted.
pub(super) fn syntax_of(text: &str) -> Syntax {
    let is_json = || serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>().all(|value| value.is_ok());
    if starts_like_json(text) && is_json() { Syntax::Json } else { Syntax::Yaml }
}

fn parse_json(text: &str) -> Result<Parsed, SyntaxError> {
    let mut parsed = Parsed::default();
    let mut tokens = JsonTokens::new(text);
    for document in serde_json::Deserializer::from_str(text).into_iter::<Option<Document<Tree>>>() {
        let document = document.map_err(|error| json_error(&error))?;
        let outline = tokens.outline();
        if let Some(document) = document {
            parsed.add(document, outline.line, &outline.items);
        }
        if parsed.documents > MAX_OBJECTS {
            return Err(too_many_documents(Some(outline.line)));
        }
    }
    Ok(parsed)
}

/// Returns the error with the line, from 1, and a remedy.
fn json_error(error: &serde_json::Error) -> SyntaxError {
    // `serde_json` appends the line, which the message already has in front.
    let message = error.to_string();
    let text = message.split(" at line ").next().unwrap_or_default().to_owned();
    let help = match error.classify() {
        serde_json::error::Category::Eof => "the text ends too early: check that the file is complete",
        _ if text.ends_with(GIVEN_TWICE) => REPEATED_HELP,
        _ => "correct the JSON; no object of this file was read",
    };
    SyntaxError { line: Some(error.line()).filter(|&line| line > 0), text, help: help.to_owned() }
}

/// Returns the error of a text with more than [`MAX_OBJECTS`] documents. `line` is that of the first one beyond, from 1.
fn too_many_documents(line: Option<usize>) -> SyntaxError {
    let text = format!("the text holds more than {MAX_OBJECTS} documents");
    SyntaxError { line, text, help: "check that it is the right file, or split it".to_owned() }
}

/// Returns the offset in bytes of the first line that is too long for the YAML parser. `None` if no line is.
pub(super) fn long_line(text: &str) -> Option<usize> {
    let mut start = 0;
    // Only a stretch without a line break matters, so most lines need no look.
    while let Some(stretch) = text.as_bytes().get(start..=start + MAX_YAML_LINE) {
        match stretch.iter().rposition(|&byte| byte == b'\n') {
            Some(end) => start += end + 1,
            None => return Some(start),
        }
    }
    None
}

fn parse_yaml(text: &str) -> Result<Parsed, SyntaxError> {
    if let Some(long) = long_line(text) {
        let line = 1 + text[..long].matches('\n').count();
        let text = format!("the line has more than {} MiB", MAX_YAML_LINE >> 20);
        let help = "check that it is the right file; JSON may have any length of lines".to_owned();
        return Err(SyntaxError { line: Some(line), text, help });
    }
    serde_saphyr::from_str_multiple_with_options::<Spanned<Document<Spanned<Tree>>>, _>(text, yaml_options(text))
        .map_err(|error| yaml_error(text, &error))
}

/// Returns the YAML parser's limits. Every node and merge key takes at least one byte, so the text's length bounds their number. The
/// parser's fixed limits are lifted: a real cluster exceeds them. [`Tree`] bounds each object. Only aliases expand to more than the text
/// holds; their limits stay. The limit on nesting depth also stays, since it bounds recursion.
pub(super) fn yaml_options(text: &str) -> serde_saphyr::Options {
    let size = text.len();
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_documents: MAX_OBJECTS,
            max_recorded_anchor_events: MAX_ANCHORED,
            max_total_scalar_bytes: size.saturating_add(MAX_ALIASED_BYTES),
            // A set of labels that a thousand pods refer to is no attack.
            enforce_alias_anchor_ratio: false,
        },
        // As in `kubectl`, 017 is 15.
        legacy_octal_numbers: true,
        // A tag requests a type that is unknown here.
        reject_unsupported_tags: true,
        // On by default, but costs time and is not shown.
        with_snippet: false,
    }
}

fn yaml_error(source: &str, error: &serde_saphyr::Error) -> SyntaxError {
    let location = error.location();
    let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let line = location.map(|place| number(place.line()));
    let mut help = "correct the YAML; no object of this file was read";
    let text = match error.without_snippet() {
        serde_saphyr::Error::Budget { breach: serde_saphyr::budget::BudgetBreach::Documents { .. }, .. } => {
            return too_many_documents(line);
        }
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            help = REPEATED_HELP;
            format!("key {}{GIVEN_TWICE}", quoted(key))
        }
        other => {
            let message = other.render_with_formatter(&serde_saphyr::UserMessageFormatter);
            let alone = message.split(" at line ").next().and_then(|text| text.lines().next()).unwrap_or_default();
            // Behind an alias, the line of its anchor follows.
            alone.trim_end_matches(" (defined").to_owned()
        }
    };
    let written = line.and_then(|line| source.lines().nth(line.checked_sub(1)?));
    if let Some(rendering) = written.and_then(template_help) {
        help = rendering;
    }
    SyntaxError { line, text, help: help.to_owned() }
}
