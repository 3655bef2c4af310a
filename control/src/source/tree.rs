//! Untyped values of a text, and the entries decoded from them.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use super::decode::Decoded;
use super::error::quoted;
use super::path::FieldPath;

/// The end of the message about a repeated key.
pub(super) const GIVEN_TWICE: &str = " is given twice in one mapping";

/// An object found in a text.
pub(super) struct Entry {
    /// The document's number in the text, from 1, not counting empty documents.
    pub(super) document: usize,
    /// The line on which the object starts, from 1.
    pub(super) line: usize,
    /// The object's path in the document: empty, or `items[7]` in a list.
    pub(super) path: FieldPath,
    pub(super) decoded: Decoded,
}

/// An untyped value. Parsing fails if a mapping repeats a key, of which `serde_json` would silently keep the last.
pub(super) struct Tree(pub(super) Value);

/// The type of elements of `items`, with the line if the parser reports it.
pub(super) trait Element: DeserializeOwned {
    /// Returns the value and its line, from 1. 0 if the parser does not report it.
    fn into_parts(self) -> (Value, usize);
}

impl Element for Tree {
    fn into_parts(self) -> (Value, usize) {
        (self.0, 0)
    }
}

impl Element for Spanned<Tree> {
    fn into_parts(self) -> (Value, usize) {
        let line = line_number(&self);
        (self.value.0, line)
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor).map(Tree)
    }
}

/// Visitor methods that accept every scalar and pass it to `$scalar`.
macro_rules! scalars {
    ($scalar:expr) => {
        fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
            Ok($scalar(Value::from(value)))
        }
        fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
            Ok($scalar(Value::from(value)))
        }
        fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
            Ok($scalar(Value::from(value)))
        }
        fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
            Ok($scalar(Value::from(value)))
        }
        fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
            Ok($scalar(Value::from(value)))
        }
        fn visit_string<E>(self, value: String) -> Result<Self::Value, E> {
            Ok($scalar(Value::from(value)))
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($scalar(Value::Null))
        }
    };
}

pub(super) use scalars;

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    scalars!(|value| value);

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(Tree(element)) = access.next_element()? {
            elements.push(element);
        }
        Ok(Value::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let Tree(value) = access.next_value()?;
            insert_once(&mut fields, key, value)?;
        }
        Ok(Value::Object(fields))
    }
}

pub(super) fn insert_once<E: serde::de::Error>(
    fields: &mut Map<String, Value>,
    key: String,
    value: Value,
) -> Result<(), E> {
    match fields.entry(key) {
        serde_json::map::Entry::Vacant(entry) => {
            entry.insert(value);
            Ok(())
        }
        serde_json::map::Entry::Occupied(entry) => {
            Err(E::custom(format_args!("key {}{GIVEN_TWICE}", quoted(entry.key()))))
        }
    }
}

pub(super) fn line_number<T>(spanned: &Spanned<T>) -> usize {
    usize::try_from(spanned.referenced.line()).unwrap_or(usize::MAX)
}
