//! Finds the lines of JSON values in text that `serde_json` has accepted: `serde_json` reports lines only for errors.

use std::borrow::Cow;

/// A token of YAML or JSON text.
#[derive(Debug)]
pub(super) enum Token<'a> {
    Open(Shape),
    Close,
    Scalar {
        text: Cow<'a, str>,
        /// Whether the scalar is null. A document that holds only this scalar is empty and is not counted.
        null: bool,
    },
}

/// The kind of collection that a token opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Mapping,
    Sequence,
}

/// Iterates over the tokens of JSON text, with their lines from 1. For invalid JSON the tokens are meaningless, but the iterator ends.
pub(super) struct JsonTokens<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

impl<'a> JsonTokens<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, line: 1 }
    }

    /// Returns the offset behind the closing quote of the string that starts at `start`.
    fn string_end(&self, start: usize) -> usize {
        let bytes = self.text.as_bytes();
        let mut at = start + 1;
        while let Some(&byte) = bytes.get(at) {
            match byte {
                b'"' => return at + 1,
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
        bytes.len()
    }
}

impl<'a> Iterator for JsonTokens<'a> {
    type Item = (Token<'a>, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            let start = self.at;
            self.at += 1;
            let token = match byte {
                b'\n' => {
                    self.line += 1;
                    continue;
                }
                b' ' | b'\t' | b'\r' | b',' | b':' => continue,
                b'{' => Token::Open(Shape::Mapping),
                b'[' => Token::Open(Shape::Sequence),
                b'}' | b']' => Token::Close,
                b'"' => {
                    self.at = self.string_end(start);
                    let raw = self.text.get(start..self.at).unwrap_or_default();
                    Token::Scalar { text: unescaped(raw), null: false }
                }
                _ => {
                    let is_end = |byte: &u8| b" \t\r\n,:{}[]\"".contains(byte);
                    self.at = bytes[start..].iter().position(is_end).map_or(bytes.len(), |length| start + length);
                    let raw = self.text.get(start..self.at).unwrap_or_default();
                    Token::Scalar { text: Cow::Borrowed(raw), null: raw == "null" }
                }
            };
            return Some((token, self.line));
        }
        None
    }
}

fn unescaped(raw: &str) -> Cow<'_, str> {
    let inner = raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"'));
    match inner {
        Some(inner) if !inner.contains('\\') => Cow::Borrowed(inner),
        _ => Cow::Owned(serde_json::from_str(raw).unwrap_or_default()),
    }
}

/// The line of a document and of each element of its `items`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outline {
    pub(super) line: usize,
    pub(super) items: Vec<usize>,
}

impl JsonTokens<'_> {
    /// Takes the tokens of one value and returns its outline. The line is 0 if no token is left.
    pub(super) fn outline(&mut self) -> Outline {
        let mut outline = Outline::default();
        let mut depth = 0_usize;
        // State in the outer mapping: whether the next token is a key, and whether the last key was `items`.
        let (mut key_next, mut in_items) = (true, false);
        for (token, line) in self {
            if matches!(token, Token::Close) {
                depth = depth.saturating_sub(1);
            } else {
                match (depth, &token) {
                    (0, _) => outline.line = line,
                    (1, key) if key_next => {
                        in_items = matches!(key, Token::Scalar { text, .. } if text == "items");
                        key_next = false;
                    }
                    (1, _) => key_next = true,
                    (2, _) if in_items => outline.items.push(line),
                    _ => {}
                }
                depth += usize::from(matches!(token, Token::Open(_)));
            }
            if depth == 0 {
                break;
            }
        }
        outline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_items_have_their_lines() {
        let text = "null {\n\"items\" : [\n{\"items\": [1, 2]},\n[{}], 3,\n\"x\\\"{\" ],\n \"a\": \"items\", \"b\": [7]}\n{}\n\n5";
        let outline = |line, items: &[usize]| Outline { line, items: items.to_vec() };
        let mut tokens = JsonTokens::new(text);
        let expected =
            [outline(1, &[]), outline(1, &[3, 4, 4, 5]), outline(7, &[]), outline(9, &[]), Outline::default()];
        assert_eq!(expected.each_ref().map(|_| tokens.outline()), expected);
    }

    #[test]
    fn text_that_is_no_json_ends() {
        for text in ["\"", "\"\\", "{\"\\u00e9", "}}}]", "\u{e9}\u{e9}", "\"\\\u{e9}\""] {
            let mut tokens = JsonTokens::new(text);
            while tokens.outline().line > 0 {}
        }
    }
}
