//! Splits documents and (possibly nested) lists into objects, and decodes list items while they are parsed.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::decode::{Decoded, Inherited, decode, identity};
use super::error::{Problem, quoted};
use super::path::FieldPath;
use super::tree::{Element, Entry, GIVEN_TWICE, Room, Tree, insert_once, scalars};

/// Lists that are read with any apiVersion. They need `items` and may have no unknown field: with the typo `item:`, such a list would
/// otherwise silently hold no objects.
const MUST_BE_LISTS: [&str; 7] =
    ["List", "NamespaceList", "PodList", "NodeList", "NetworkPolicyList", "ServiceList", "EndpointSliceList"];

/// Maximum number of objects in a list, and of documents in a text: three times as many as Kubernetes' largest cluster has pods.
pub(super) const MAX_OBJECTS: usize = 1 << 19;

/// A parsed document. An object, and elements of `items` that name their own kind, are decoded while the text is parsed, because untyped
/// values need several times the memory of their text.
pub(super) enum Document<L> {
    /// A mapping that has no `items`, and whose kind is not that of a list.
    Object(Box<Decoded>),
    /// Any other mapping. `items` are not among the fields.
    Mapping { fields: Map<String, Value>, items: Option<Items<L>> },
    /// A sequence whose elements are no list's, with the index of the first element that is an object. `None` if none is.
    Sequence(Option<usize>),
    /// A scalar.
    Scalar,
}

/// The value of the field `items` of a document.
pub(super) enum Items<L> {
    /// A list. Each element is beside the line in the text on which it starts, from 1; 0 if the parser does not report lines (JSON). `L` is
    /// the type as which the parser reads an element.
    List(Vec<(Item, usize)>, PhantomData<L>),
    /// `null`, or no value, which YAML reads as `null`.
    Null,
    /// A mapping or a scalar.
    Other,
}

/// An element of the list `items`.
pub(super) enum Item {
    /// An object that names its apiVersion and kind.
    Decoded(Decoded),
    /// An item without a kind, or a nested list. How to read it depends on the enclosing list.
    Undecoded(Box<Value>),
}

impl Item {
    pub(super) fn new(value: Value) -> Self {
        let has = |key: &str| value.get(key).is_some_and(Value::is_string);
        let nested = value.get("items").is_some();
        if has("apiVersion") && has("kind") && !nested {
            Self::Decoded(decode(value, &Inherited::default()))
        } else {
            Self::Undecoded(value.into())
        }
    }
}

impl<'de, L: Element> Deserialize<'de> for Document<L> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DocumentVisitor(PhantomData))
    }
}

struct DocumentVisitor<L>(PhantomData<L>);

impl<'de, L: Element> Visitor<'de> for DocumentVisitor<L> {
    type Value = Document<L>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    scalars!(|_| Document::Scalar);

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(Document::Scalar)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let (mut at, mut first) = (0, None);
        while let Some(element) = access.next_element::<Tree>()? {
            if element.0.is_object() && !decode(element.0, &Inherited::default()).is_no_object() {
                first = Some(at);
                break;
            }
            at += 1;
        }
        while access.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Document::Sequence(first))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let (mut fields, mut items, room) = (Map::new(), None, Room::of_an_object());
        while let Some(key) = access.next_key::<String>()? {
            if key != "items" {
                let value = access.next_value_seed(&room)?;
                insert_once(&mut fields, key, value)?;
            } else if items.is_some() {
                return Err(A::Error::custom(format_args!("key \"items\"{GIVEN_TWICE}")));
            } else {
                items = Some(access.next_value::<Items<L>>()?);
            }
        }
        // Without an identity it is no list either.
        let is_object = items.is_none() && identity(&fields).map_or(true, |(_, kind)| !kind.ends_with("List"));
        Ok(match is_object {
            true => Document::Object(Box::new(decode(Value::Object(fields), &Inherited::default()))),
            false => Document::Mapping { fields, items },
        })
    }
}

impl<L> Items<L> {
    /// Whether an element is a Kubernetes object, or could be one of which a part is missing.
    fn holds_objects(&self) -> bool {
        let is_object = |item: &Item| match item {
            Item::Decoded(_) => true,
            Item::Undecoded(value) => !decode(Value::clone(value), &Inherited::default()).is_no_object(),
        };
        matches!(self, Self::List(items, _) if items.iter().any(|(item, _)| is_object(item)))
    }

    /// Returns the list's elements, each with its line as in [`Items::List`]. `None` if the value is null, a mapping or a scalar.
    pub(super) fn into_list(self) -> Option<Vec<(Item, usize)>> {
        match self {
            Self::List(items, _) => Some(items),
            Self::Null | Self::Other => None,
        }
    }
}

impl<'de, L: Element> Deserialize<'de> for Items<L> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemsVisitor(PhantomData))
    }
}

struct ItemsVisitor<L>(PhantomData<L>);

impl<'de, L: Element> Visitor<'de> for ItemsVisitor<L> {
    type Value = Items<L>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    scalars!(|value: Value| if value.is_null() { Items::Null } else { Items::Other });

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(Items::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(element) = access.next_element::<L>()? {
            if items.len() == MAX_OBJECTS {
                return Err(A::Error::custom(format_args!("the list holds more than {MAX_OBJECTS} objects")));
            }
            let (value, line) = element.into_parts();
            items.push((Item::new(value), line));
        }
        Ok(Items::List(items, PhantomData))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        while access.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Items::Other)
    }
}

impl<L> Document<L> {
    /// Replaces the value of the document's `items`, which must be null, by this list. `None` if the document has no `items`, if their value
    /// is not null, or if the list has more than [`MAX_OBJECTS`] elements.
    pub(super) fn with_items(self, items: Vec<(Item, usize)>) -> Option<Self> {
        match self {
            Self::Mapping { fields, items: Some(Items::Null) } if items.len() <= MAX_OBJECTS => {
                Some(Self::Mapping { fields, items: Some(Items::List(items, PhantomData)) })
            }
            _ => None,
        }
    }

    /// Adds the document's objects to `entries`. `item_lines` holds the lines of the items for parsers that do not report them.
    pub(super) fn finish(self, document: usize, line: usize, item_lines: &[usize], entries: &mut Vec<Entry>) {
        let mut add = |line, path, decoded| entries.push(Entry { document, line, path, decoded });
        let root = FieldPath::default();
        let (mut fields, items) = match self {
            Self::Mapping { fields, items } => (fields, items),
            Self::Object(decoded) => return add(line, root, *decoded),
            Self::Sequence(Some(at)) => {
                let help = "write each element as a document of its own, or all below `items:` of an object with `apiVersion: v1` and `kind: List`";
                let problem = Problem::new(&root.index(at), "an array of objects is not read", help);
                return add(line, root, Decoded::Unreadable(problem.into()));
            }
            Self::Sequence(None) | Self::Scalar => {
                let problem =
                    Problem::new(&root, "not an object", "write one object with apiVersion and kind in each document");
                return add(line, root, Decoded::NoObject(problem.into()));
            }
        };
        let items_are_list = items.as_ref().map(|items| !matches!(items, Items::Other));
        let inherited = match list_kind(&fields, items_are_list) {
            // A list of something else hides no objects.
            Err(problem) if identity(&fields).is_err() && !items.as_ref().is_some_and(Items::holds_objects) => {
                return add(line, root, Decoded::NoObject(problem.into()));
            }
            Err(problem) => return add(line, root, Decoded::Unreadable(problem.into())),
            Ok(inherited) => inherited,
        };
        match (inherited, items) {
            (Some(inherited), Some(Items::List(items, _))) => {
                for (at, (item, own_line)) in items.into_iter().enumerate() {
                    let line = if own_line > 0 { own_line } else { item_lines.get(at).copied().unwrap_or(line) };
                    let path = FieldPath::of("items").index(at);
                    match item {
                        Item::Decoded(decoded) => add(line, path, decoded),
                        Item::Undecoded(value) => expand(*value, &inherited, line, path, &mut add),
                    }
                }
            }
            (Some(_), _) => {}
            (None, items) => {
                // The value is gone. The key alone matters, to kinds that refuse unknown fields.
                if items.is_some() {
                    fields.insert("items".to_owned(), Value::Null);
                }
                add(line, root, decode(Value::Object(fields), &Inherited::default()));
            }
        }
    }
}

/// Adds the object of an item, or the objects of a nested list. The parsers bound the depth of nesting.
fn expand(
    mut value: Value,
    inherited: &Inherited,
    line: usize,
    path: FieldPath,
    add: &mut impl FnMut(usize, FieldPath, Decoded),
) {
    inherited.fill(&mut value);
    let items_are_list = value.get("items").map(|items| items.is_array() || items.is_null());
    let is_list = |fields: &&Map<String, Value>| items_are_list.is_some() || identity(fields).is_ok();
    let own = match value.as_object().filter(is_list).map(|fields| list_kind(fields, items_are_list)) {
        Some(Err(problem)) => return add(line, path, Decoded::Unreadable(problem.into())),
        Some(Ok(own)) => own,
        None => None,
    };
    let Some(own) = own else { return add(line, path, decode(value, &Inherited::default())) };
    if let Some(Value::Array(items)) = value.get_mut("items").map(Value::take) {
        for (at, item) in items.into_iter().enumerate() {
            expand(item, &own, line, path.key("items").index(at), add);
        }
    }
}

/// Returns what the items inherit, or `None` if the object is not a list. `items_are_list` is `None` if the object has no `items`.
fn list_kind(fields: &Map<String, Value>, items_are_list: Option<bool>) -> Result<Option<Inherited>, Problem> {
    let root = FieldPath::default();
    let (api_version, kind) = identity(fields)?;
    let Some(item_kind) = kind.strip_suffix("List") else { return Ok(None) };
    if items_are_list == Some(false) {
        return Err(Problem::new(&root.key("items"), "not a list", "write `items: []` for an empty list"));
    }
    if MUST_BE_LISTS.contains(&kind) {
        let known = ["apiVersion", "kind", "metadata", "items"];
        if let Some(key) = fields.keys().find(|key| !known.contains(&key.as_str())) {
            let text = format!("unknown field {}, expected apiVersion, kind, metadata or items", quoted(key));
            return Err(Problem::new(&root.key(key), text, "a list holds its objects in `items`"));
        }
        if items_are_list.is_none() {
            return Err(Problem::new(&root, "the list has no `items`", "write `items: []` for an empty list"));
        }
    }
    Ok(match item_kind {
        // The object is not a list: a kind whose name ends in `List`.
        _ if items_are_list.is_none() => None,
        "" => Some(Inherited::default()),
        kind => Some(Inherited::new(api_version, kind)),
    })
}
