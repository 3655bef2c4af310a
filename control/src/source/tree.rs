//! Untyped values of a text, and the entries decoded from them.

use std::cell::Cell;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use super::decode::Decoded;
use super::error::quoted;
use super::path::FieldPath;

/// The end of the message about a repeated key.
pub(super) const GIVEN_TWICE: &str = " is given twice in one mapping";

/// Maximum estimated memory of one object, in bytes. API servers limit objects to 1.5 MB of text, which needs about a quarter of this.
const MAX_WEIGHT: usize = 1 << 25;

/// Estimated memory of a value besides its text, in bytes.
const VALUE_WEIGHT: usize = 64;

/// Whether no reader looks into a list or mapping of this name, although such fields are most of a pod's and a node's text. It is read as an
/// empty one, so that a policy that has it still has an unknown field.
fn is_unused(key: &str) -> bool {
    matches!(
        key,
        "affinity"
            | "args"
            | "command"
            | "containerStatuses"
            | "env"
            | "envFrom"
            | "images"
            | "initContainerStatuses"
            | "lifecycle"
            | "livenessProbe"
            | "managedFields"
            | "readinessProbe"
            | "securityContext"
            | "startupProbe"
            | "tolerations"
            | "topologySpreadConstraints"
            | "volumeMounts"
            | "volumes"
    )
}

/// An object found in a text.
#[derive(Debug)]
pub(super) struct Entry {
    /// The document's number in the text, from 1, not counting empty documents.
    pub(super) document: usize,
    /// The line on which the object starts, from 1.
    pub(super) line: usize,
    /// The object's path in the document: empty, or `items[7]` in a list.
    pub(super) path: FieldPath,
    pub(super) decoded: Decoded,
}

impl Entry {
    /// Whether the entry is a document that is something else than a Kubernetes object.
    pub(super) fn is_no_object(&self) -> bool {
        self.decoded.is_no_object() && self.path.steps().is_empty()
    }
}

/// An untyped value. Parsing fails if a mapping repeats a key, of which `serde_json` would silently keep the last. Repeated keys in fields of
/// [`is_unused`] are not noticed.
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
        Room::of_an_object().deserialize(deserializer).map(Tree)
    }
}

/// The memory in bytes that an object may still take. As a seed, it reads a value that takes a part of it: a value needs many times the
/// memory of its text, so a text of tiny values would fill the memory. Readers copy names and labels, so a long one would too.
pub(super) struct Room(Cell<usize>);

impl Room {
    pub(super) const fn of_an_object() -> Self {
        Self(Cell::new(MAX_WEIGHT))
    }

    fn take<E: serde::de::Error>(&self, text: usize) -> Result<(), E> {
        let left = self.0.get().checked_sub(text.saturating_add(VALUE_WEIGHT));
        self.0.set(
            left.ok_or_else(|| E::custom("the object holds more or longer values than an API server would store"))?,
        );
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for &Room {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        TreeVisitor { room: self, is_unused: false }.deserialize(deserializer)
    }
}

/// Visitor methods that accept every scalar except strings and pass it to `$scalar`.
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
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($scalar(Value::Null))
        }
    };
}

pub(super) use scalars;

/// Reads a value.
struct TreeVisitor<'a> {
    room: &'a Room,
    /// See [`is_unused()`]. The value may be a scalar: a label, or a field with another meaning.
    is_unused: bool,
}

impl<'de> DeserializeSeed<'de> for TreeVisitor<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.room.take(0)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TreeVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    scalars!(|value| value);

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.room.take(value.len())?;
        Ok(Value::from(value))
    }

    fn visit_string<E: serde::de::Error>(self, value: String) -> Result<Value, E> {
        self.room.take(value.len())?;
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut elements = Vec::new();
        if self.is_unused {
            while access.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Value::Array(elements));
        }
        while let Some(element) = access.next_element_seed(self.room)? {
            elements.push(element);
        }
        Ok(Value::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let (mut fields, room) = (Map::new(), self.room);
        if self.is_unused {
            while access.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(Value::Object(fields));
        }
        while let Some(key) = access.next_key::<String>()? {
            room.take(key.len())?;
            let value = access.next_value_seed(Self { room, is_unused: is_unused(&key) })?;
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{errors, policy_text};
    use super::*;

    /// Both notations of one value.
    fn both(text: &str) -> [Value; 2] {
        let json: Tree = serde_json::from_str(text).unwrap();
        let yaml: Tree = serde_saphyr::from_str(text).unwrap();
        [json.0, yaml.0]
    }

    #[test]
    fn a_field_that_no_reader_looks_into_is_empty_and_what_is_named_alike_stays() {
        let text = r#"{"spec": {"containers": [{"env": [{"name": "a"}, [], 3], "ports": [1], "lifecycle": {"preStop": {"sleep": 1}}}], "volumes": []},
            "metadata": {"labels": {"env": "prod", "images": ""}, "managedFields": [{"a": {"a": 1}}]},
            "endpoints": [{"conditions": {"ready": true, "env": [1]}}], "images": null, "volumeMounts": 7}"#;
        let expected = json!({"spec": {"containers": [{"env": [], "ports": [1], "lifecycle": {}}], "volumes": []},
            "metadata": {"labels": {"env": "prod", "images": ""}, "managedFields": []},
            "endpoints": [{"conditions": {"ready": true, "env": []}}], "images": null, "volumeMounts": 7});
        assert_eq!(both(text), [expected.clone(), expected]);
    }

    #[test]
    fn a_name_longer_than_an_api_server_stores_is_refused() {
        let name = "a".repeat(MAX_WEIGHT);
        let text = format!("{{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {{\n\"name\": \"{name}\"}}}}");
        let errors = errors(&text);
        assert!(
            errors.len() == 1 && errors[0].contains("t.yaml:2: the object holds more or longer values"),
            "{errors:?}"
        );
    }

    #[test]
    fn a_policy_with_such_a_list_has_an_unknown_field() {
        let errors = errors(&policy_text("podSelector: {}\nenv: [{name: a}]"));
        assert!(errors.len() == 1 && errors[0].contains("unknown field `env`"), "{errors:?}");
        let errors = self::errors(&policy_text("podSelector: {matchLabels: {env: [a]}}"));
        assert!(errors.len() == 1 && errors[0].contains("sequence"), "{errors:?}");
    }
}
