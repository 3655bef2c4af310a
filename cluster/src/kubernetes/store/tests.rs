use super::super::kinds::Form;
use super::super::page;
use super::*;

fn store() -> Store {
    let mut store = Store::new([Kind::Namespace, Kind::NetworkPolicy, Kind::Pod].into_iter(), false);
    for kind in [Kind::Namespace, Kind::NetworkPolicy, Kind::Pod] {
        assert!(store.take(Purpose::Policy).is_none(), "not everything is known");
        let listing = Listing::new(kind);
        store.settle(listing);
    }
    store
}

fn item(kind: Kind, rest: &str) -> Item {
    let text = format!(r#"{{"type":"ADDED","object":{{{rest}}}}}"#);
    let Ok((page::Line::Applied(item), _)) = page::line(Form::preferred(kind), text.as_bytes()) else {
        panic!("{text}")
    };
    item
}

fn namespace(labels: &str) -> Item {
    item(Kind::Namespace, &format!(r#""metadata":{{"name":"x","resourceVersion":"1","labels":{labels}}}"#))
}

fn pod(name: &str) -> Item {
    item(Kind::Pod, &format!(r#""metadata":{{"name":"{name}","namespace":"x","resourceVersion":"1"}},"spec":{{}}"#))
}

/// Takes a batch of policy changes and returns one short text per event.
fn taken(store: &mut Store) -> Vec<String> {
    let Some(changes) = store.take(Purpose::Policy) else { return Vec::new() };
    let show = |event: &Event| match event {
        Event::Apply(object) => format!("+{:?}", Key::of(object)),
        other => format!("{other:?}"),
    };
    changes.unwrap().events.iter().map(show).collect()
}

#[test]
fn what_changes_twice_is_taken_once_and_what_was_taken_is_not_taken_again() {
    let mut store = store();
    store.put(pod("a"));
    store.put(pod("b"));
    store.delete(Key::Pod(bulkhead_control::object::ObjectName::new("x", "b")));
    let first = store.take(Purpose::Policy).unwrap().unwrap();
    assert!(first.is_whole && first.events.len() == 2 && first.heard.is_none(), "{first:?}");
    assert!(store.taken().is_some_and(|objects| objects.count() == 1));
    store.put(pod("a"));
    assert!(store.take(Purpose::Policy).is_none(), "the same is no change");
    let mut listing = Listing::new(Kind::Pod);
    store.add(&mut listing, vec![pod("c"), pod("c")]);
    assert!(store.take(Purpose::Policy).is_none(), "half a list changes nothing");
    store.settle(listing);
    assert!(store.taken().is_none(), "not as it was taken");
    let events = taken(&mut store);
    assert!(events.len() == 2 && events[0].starts_with("DeletePod") && events[1].contains(r#""c""#), "{events:?}");
    assert_eq!(store.counts()[Kind::Pod as usize], (Kind::Pod, Some(1)));
}

#[test]
fn a_batch_tells_when_its_first_change_was_heard() {
    let mut store = store();
    store.put(pod("a"));
    assert_eq!(store.take(Purpose::Policy).unwrap().unwrap().heard, None, "the first lists are no change");
    let before = Instant::now();
    store.put(pod("b"));
    let between = Instant::now();
    store.put(pod("c"));
    let heard = store.take(Purpose::Policy).unwrap().unwrap().heard.unwrap();
    assert!((before..=between).contains(&heard));
    store.delete(Key::Pod(bulkhead_control::object::ObjectName::new("x", "c")));
    assert!(
        store.take(Purpose::Policy).unwrap().unwrap().heard.unwrap() >= between,
        "that of the batch before is forgotten"
    );
}

#[test]
fn policies_that_ask_for_labels_do_not_let_in_a_namespace_whose_labels_cannot_be_read() {
    let mut store = store();
    let peer = r#"{"namespaceSelector":{"matchExpressions":[{"key":"team","operator":"DoesNotExist"}]}}"#;
    let rest = format!(
        r#""metadata":{{"name":"p","namespace":"x","resourceVersion":"1"}},"spec":{{"podSelector":{{}},"ingress":[{{"from":[{peer}]}}]}}"#
    );
    store.put(item(Kind::NetworkPolicy, &rest));
    store.put(namespace("{}"));
    assert_eq!(taken(&mut store).len(), 2);
    store.put(namespace(r#"{"team":7}"#));
    let changes = store.take(Purpose::Policy).unwrap().unwrap();
    assert_eq!((changes.events.len(), changes.faulty), (2, 1), "the policy as well: {changes:?}");
    let told = changes.warnings.to_string();
    assert!(told.starts_with("kubernetes: Namespace x: metadata.labels"), "{told}");
    let policy = changes.events.iter().find_map(|event| match event {
        Event::Apply(Object::Policy(policy)) => Some(format!("{policy:?}")),
        _ => None,
    });
    assert!(policy.unwrap().contains("NotIn"), "all but this namespace");
    store.put(namespace("{}"));
    assert_eq!(taken(&mut store).len(), 2, "and back");
}
