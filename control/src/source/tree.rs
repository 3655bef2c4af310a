//! A text's values before they are decoded, and the objects found in them.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use super::decode::Decoded;
use super::error::quoted;
use super::path::FieldPath;

/// How the message about a repeated key ends, and its remedy.
pub(super) const GIVEN_TWICE: &str = " is given twice in one mapping";

/// An object of a text.
pub(super) struct Entry {
    /// Its document, from 1, empty ones not counted.
    pub(super) document: usize,
    /// The line on which it starts, from 1.
    pub(super) line: usize,
    /// Its path in the document: empty, or `items[7]`.
    pub(super) path: FieldPath,
    pub(super) decoded: Decoded,
}

/// An untyped value in which no mapping repeats a key. (`serde_json` would keep the last.)
pub(super) struct Tree(pub(super) Value);

/// What the elements of `items` are read as: with their line where the parser tells it.
pub(super) trait Element: DeserializeOwned {
    /// The value, and its line; 0 when it is not known.
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

/// The methods of a visitor that takes every scalar.
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
