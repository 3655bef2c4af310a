//! Parses pages of lists and lines of watches.
//!
//! Objects are parsed one by one: an untyped tree of a whole page takes several times the memory of its text.

use std::fmt;

use bulkhead_control::foreign::{ForeignKind, ForeignName};
use bulkhead_control::inventory::Key;
use bulkhead_control::object::{ClusterPolicyKind, ClusterPolicyName, Object, ObjectName};
use bulkhead_control::source::escaped;
use bulkhead_control::source::single::{self, Single};
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::kinds::{Form, Kind};
use super::pruned::Pruned;

/// A parsed object with its key, version and faults.
pub(super) struct Item {
    pub(super) key: Key,
    pub(super) read: Single,
    pub(super) version: Option<u64>,
}

#[derive(Default)]
pub(super) struct Page {
    pub(super) items: Vec<Item>,
    /// The resource version from which a watch can start.
    pub(super) version: String,
    /// The token of the next page. `None` on the last one.
    pub(super) next: Option<String>,
}

pub(super) enum Line {
    /// The object was added or changed.
    Applied(Item),
    /// The object was deleted.
    Deleted { key: Key, version: Option<u64> },
    /// No change up to this version.
    Bookmark { version: Option<u64> },
    /// The server ended the watch, with an HTTP status code.
    Failed { code: u16, message: String },
}

impl Line {
    /// Returns the version as a number, for ordering. `None` if the server's versions are not numeric.
    pub(super) const fn version(&self) -> Option<u64> {
        match self {
            Self::Applied(Item { version, .. }) | Self::Deleted { version, .. } | Self::Bookmark { version } => {
                *version
            }
            Self::Failed { .. } => None,
        }
    }
}

/// Parses a page of a list.
///
/// # Errors
/// If any part of the page is malformed.
pub(super) fn page(form: Form, text: &str) -> Result<Page, String> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let page = PageSeed(form).deserialize(&mut deserializer);
    let page = page.and_then(|page| deserializer.end().map(|()| page));
    page.map_err(|error| format!("the server's list of {} is malformed: {}", form.kind.resource(), shown(&error)))
}

/// Parses a line of a watch. Also returns its version as the server writes it.
///
/// # Errors
/// If the line is malformed, so that the change is unknown.
pub(super) fn line(form: Form, text: &[u8]) -> Result<(Line, String), String> {
    let unreadable = |error: &dyn fmt::Display| {
        format!("the server sent a malformed change of {}: {}", form.kind.resource(), shown(error))
    };
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let event = EventSeed(form.kind).deserialize(&mut deserializer);
    let event = event.and_then(|event| deserializer.end().map(|()| event));
    let Event { what, object } = event.map_err(|error| unreadable(&error))?;
    if what == "ERROR" {
        let code = object.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
        let message = object.get("message").and_then(Value::as_str).unwrap_or_default();
        return Ok((Line::Failed { code: code.unwrap_or(500), message: message.to_owned() }, String::new()));
    }
    let text = version_of(&object).ok_or_else(|| unreadable(&"no metadata.resourceVersion"))?.to_owned();
    let version = text.parse().ok();
    let line = match &*what {
        "ADDED" | "MODIFIED" => Line::Applied(item(form, object).map_err(|error| unreadable(&error))?),
        "DELETED" => {
            check_kind(form, &object).map_err(|error| unreadable(&error))?;
            Line::Deleted { key: key_of(form, &object).ok_or_else(|| unreadable(&NAMELESS))?, version }
        }
        "BOOKMARK" => Line::Bookmark { version },
        other => return Err(unreadable(&format_args!("unknown type {other:?}"))),
    };
    Ok((line, text))
}

struct Event {
    what: String,
    object: Value,
}

const NAMELESS: &str = "an object without a name";

/// Formats an error, truncated because it may quote the server's text.
fn shown(error: &dyn fmt::Display) -> String {
    escaped(&error.to_string()).chars().take(200).collect()
}

fn version_of(value: &Value) -> Option<&str> {
    value.pointer("/metadata/resourceVersion").and_then(Value::as_str).filter(|version| !version.is_empty())
}

/// Parses an object with the code that reads files.
fn item(form: Form, value: Value) -> Result<Item, String> {
    check_kind(form, &value)?;
    let (key, version) = (key_of(form, &value), version_of(&value).and_then(|version| version.parse().ok()));
    let key = key.ok_or(NAMELESS)?;
    let read = single::read(value, form.api_version, form.kind.api_kind(), form.foreign);
    let mut read = read.ok_or("an object of another kind")?;
    if let Some(Object::Pod(pod)) = &mut read.object {
        // Verdicts do not depend on the owner, which would take megabytes in a large cluster.
        std::sync::Arc::make_mut(pod).owner = None;
    }
    // The key shares the object's strings.
    let key = read.object.as_ref().map_or(key, Key::of);
    Ok(Item { key, read, version })
}

/// Checks `apiVersion` and `kind`, which items of lists may omit.
fn check_kind(form: Form, value: &Value) -> Result<(), String> {
    for (field, expected) in [("apiVersion", form.api_version), ("kind", form.kind.api_kind())] {
        match value.get(field) {
            None => {}
            Some(Value::String(found)) if found == expected => {}
            Some(found) => return Err(format!("{field} {found} instead of {expected}")),
        }
    }
    Ok(())
}

fn key_of(form: Form, value: &Value) -> Option<Key> {
    let text = |pointer| value.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    let name = text("/metadata/name")?;
    let namespaced = || Some(ObjectName::new(text("/metadata/namespace")?, name));
    let cluster = |kind| Some(Key::ClusterPolicy(ClusterPolicyName { kind, name: name.into() }));
    let foreign = |kind| {
        let raw = || match text("/metadata/namespace") {
            Some(namespace) => format!("{namespace}/{name}").into(),
            None => name.into(),
        };
        let known = single::foreign_name(value.clone(), form.api_version, form.kind.api_kind());
        Some(Key::Foreign(ForeignName { kind, name: known.unwrap_or_else(raw) }))
    };
    match form.kind {
        Kind::Namespace => Some(Key::Namespace(name.into())),
        Kind::Node => Some(Key::Node(name.into())),
        Kind::Pod => namespaced().map(Key::Pod),
        Kind::NetworkPolicy => namespaced().map(Key::Policy),
        Kind::Service => namespaced().map(Key::Service),
        Kind::EndpointSlice => namespaced().map(Key::EndpointSlice),
        Kind::ClusterNetworkPolicy => cluster(ClusterPolicyKind::ClusterNetworkPolicy),
        Kind::AdminNetworkPolicy => cluster(ClusterPolicyKind::AdminNetworkPolicy),
        Kind::BaselineAdminNetworkPolicy => cluster(ClusterPolicyKind::BaselineAdminNetworkPolicy),
        Kind::CalicoTier => foreign(ForeignKind::CalicoTier),
        Kind::CalicoNetworkPolicy => foreign(ForeignKind::CalicoNetworkPolicy),
        Kind::CalicoGlobalNetworkPolicy => foreign(ForeignKind::CalicoGlobalNetworkPolicy),
        Kind::CalicoStagedNetworkPolicy => foreign(ForeignKind::CalicoStagedNetworkPolicy),
        Kind::CalicoStagedGlobalNetworkPolicy => foreign(ForeignKind::CalicoStagedGlobalNetworkPolicy),
        Kind::CalicoStagedKubernetesNetworkPolicy => Some(Key::ClusterPolicy(ClusterPolicyName {
            kind: ClusterPolicyKind::CalicoStagedKubernetesNetworkPolicy,
            name: namespaced()?.to_string().into(),
        })),
        Kind::CalicoNetworkSet => foreign(ForeignKind::CalicoNetworkSet),
        Kind::CalicoGlobalNetworkSet => foreign(ForeignKind::CalicoGlobalNetworkSet),
        Kind::CalicoHostEndpoint => foreign(ForeignKind::CalicoHostEndpoint),
        Kind::CiliumNetworkPolicy => foreign(ForeignKind::CiliumNetworkPolicy),
        Kind::CiliumClusterwideNetworkPolicy => foreign(ForeignKind::CiliumClusterwideNetworkPolicy),
        Kind::CiliumCidrGroup => foreign(ForeignKind::CiliumCidrGroup),
        Kind::ServiceAccount => foreign(ForeignKind::ServiceAccount),
    }
}

struct EventSeed(Kind);

impl<'de> DeserializeSeed<'de> for EventSeed {
    type Value = Event;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Event, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EventSeed {
    type Value = Event;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event of a watch")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Event, A::Error> {
        let (mut what, mut object) = (None, None);
        while let Some(key) = access.next_key::<String>()? {
            match &*key {
                "type" => what = Some(access.next_value::<String>()?),
                "object" => object = Some(access.next_value_seed(Pruned(self.0))?),
                _ => drop(access.next_value::<IgnoredAny>()?),
            }
        }
        let (Some(what), Some(object)) = (what, object) else {
            return Err(A::Error::custom("it has no type or no object"));
        };
        Ok(Event { what, object })
    }
}

struct PageSeed(Form);

impl<'de> DeserializeSeed<'de> for PageSeed {
    type Value = Page;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Page, D::Error> {
        deserializer.deserialize_map(self)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    r#continue: String,
}

impl<'de> Visitor<'de> for PageSeed {
    type Value = Page;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Page, A::Error> {
        let (mut page, mut kind, mut has_items) = (Page::default(), None, false);
        while let Some(key) = access.next_key::<String>()? {
            match &*key {
                "kind" => kind = Some(access.next_value::<String>()?),
                "metadata" => {
                    let metadata: ListMetadata = access.next_value()?;
                    page.version = metadata.resource_version;
                    page.next = Some(metadata.r#continue).filter(|next| !next.is_empty());
                }
                "items" => {
                    page.items = access.next_value_seed(ItemsSeed(self.0))?;
                    has_items = true;
                }
                _ => drop(access.next_value::<IgnoredAny>()?),
            }
        }
        let expected = format!("{}List", self.0.kind.api_kind());
        if kind.as_deref() != Some(&*expected) {
            return Err(A::Error::custom(format_args!("it is not a {expected}")));
        }
        if !has_items || page.version.is_empty() {
            return Err(A::Error::custom("it has no items or no metadata.resourceVersion"));
        }
        Ok(page)
    }
}

struct ItemsSeed(Form);

impl<'de> DeserializeSeed<'de> for ItemsSeed {
    type Value = Vec<Item>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Item>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemsSeed {
    type Value = Vec<Item>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the objects of a list")
    }

    /// Returns an empty list: programs in Go write `null` for it.
    fn visit_unit<E>(self) -> Result<Vec<Item>, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Vec<Item>, A::Error> {
        let mut items = Vec::new();
        while let Some(value) = access.next_element_seed(Pruned(self.0.kind))? {
            items.push(item(self.0, value).map_err(A::Error::custom)?);
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD_FORM: Form = Form::preferred(Kind::Pod);
    const POD: &str = r#"{"metadata":{"name":"a","namespace":"x","resourceVersion":"7"},"spec":{}}"#;

    #[test]
    fn a_page_is_read_whole_or_not_at_all() {
        let text = format!(
            r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"9","continue":"c"}},"items":[{POD}]}}"#
        );
        let read = page(POD_FORM, &text).unwrap();
        assert_eq!((read.version.as_str(), read.next.as_deref(), read.items.len()), ("9", Some("c"), 1));
        let item = &read.items[0];
        assert_eq!((item.key.clone(), item.version), (Key::Pod(ObjectName::new("x", "a")), Some(7)));
        assert!(item.read.object.is_some() && !item.read.has_problems());
        for end in 0..text.len() {
            assert!(page(POD_FORM, &text[..end]).is_err(), "{}", &text[..end]);
        }
        for wrong in [
            text.replace("PodList", "NodeList"),
            text.replace("PodList", "Status"),
            text.replace(r#""resourceVersion":"9","#, ""),
            text.replace(r#""namespace":"x","#, ""),
            text.replace("items", "item"),
            text.replace(POD, "7"),
            text.clone() + "x",
        ] {
            assert!(page(POD_FORM, &wrong).is_err(), "{wrong}");
        }
        let empty = text.replace(&format!("[{POD}]"), "null");
        assert!(page(POD_FORM, &empty).unwrap().items.is_empty());
    }

    #[test]
    fn lines_say_what_has_changed_and_nonsense_is_none() {
        let of = |what: &str| line(POD_FORM, format!(r#"{{"type":"{what}","object":{POD}}}"#).as_bytes());
        assert!(matches!(of("ADDED"), Ok((Line::Applied(Item { version: Some(7), .. }), _))));
        assert!(matches!(of("MODIFIED"), Ok((Line::Applied(_), version)) if version == "7"));
        assert!(matches!(of("DELETED"), Ok((Line::Deleted { version: Some(7), .. }, _))));
        assert!(matches!(of("BOOKMARK"), Ok((Line::Bookmark { version: Some(7) }, _))));
        assert!(of("OTHER").is_err());
        let gone = br#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}"#;
        assert!(matches!(line(POD_FORM, gone), Ok((Line::Failed { code: 410, .. }, _))));
        for wrong in [&b"\xff\x00"[..], b"", b"{", br#"{"type":"ADDED"}"#, br#"{"type":"ADDED","object":7}"#] {
            assert!(line(POD_FORM, wrong).is_err());
        }
        let other = br#"{"type":"ADDED","object":{"kind":"Node","metadata":{"name":"a","resourceVersion":"1"}}}"#;
        assert!(line(POD_FORM, other).is_err());
    }

    #[test]
    fn an_object_that_is_not_understood_is_still_known_by_its_name() {
        let text = br#"{"type":"ADDED","object":{"kind":"NetworkPolicy","apiVersion":"networking.k8s.io/v1",
            "metadata":{"name":"p","namespace":"x","resourceVersion":"1"},"spec":{"ingres":[]}}}"#;
        let Ok((Line::Applied(item), _)) = line(Form::preferred(Kind::NetworkPolicy), text) else {
            panic!("it is a line")
        };
        assert_eq!(item.key, Key::Policy(ObjectName::new("x", "p")));
        assert!(matches!(item.read.object, Some(Object::Policy(_))) && item.read.has_problems());
        let text = br#"{"type":"ADDED","object":{"metadata":{"name":"a","namespace":"x","resourceVersion":"1"},
            "spec":{"nodeName":[]}}}"#;
        let Ok((Line::Applied(item), _)) = line(POD_FORM, text) else { panic!("it is a line") };
        assert!(item.read.object.is_none() && item.key == Key::Pod(ObjectName::new("x", "a")));
    }
}
