//! Contiv's tests of its cache and indexes: lookups by label, key and namespace, and the changes that a watcher receives.

use std::collections::BTreeSet;

use bulkhead_control::cache::{Cache, CacheChange, Event};
use bulkhead_control::object::{Object, Peer, PodPeer};

use super::manifest::{name, namespace, object, objects, pod, policy};

fn manifests() -> Vec<String> {
    vec![
        namespace("dev", "env: dev, owner: alice"),
        namespace("prod", "env: prod"),
        namespace("kube-system", ""),
        pod("dev/web", "10.0.0.1", "node-1", "app: web, tier: front"),
        pod("dev/api", "10.0.0.2", "node-1", "app: api, tier: back"),
        pod("dev/bare", "10.0.0.3", "node-2", ""),
        pod("prod/web", "10.0.1.1", "node-1", "app: web, tier: front"),
        pod("prod/db", "10.0.1.2", "node-2", "app: db"),
        pod("kube-system/dns", "10.0.2.1", "node-2", "k8s-app: kube-dns"),
    ]
}

fn cache() -> Cache {
    let mut cache = Cache::default();
    for object in objects(&manifests()) {
        assert_eq!(cache.apply(Event::Apply(object)).len(), 1);
    }
    cache
}

/// The peer with these selectors, in a policy of the namespace `dev`.
fn peer(selectors: &str) -> PodPeer {
    let spec = format!("podSelector: {{}}, policyTypes: [Ingress], ingress: [{{from: [{{{selectors}}}]}}]");
    let Object::Policy(policy) = object(&policy("dev/p", &spec)) else { panic!("{spec}") };
    match &policy.ingress.as_ref().unwrap()[0].peers.as_ref().unwrap()[0] {
        Peer::Pods(peer) => peer.clone(),
        other => panic!("{other:?}"),
    }
}

/// The full names of the pods that a peer selects.
fn found(cache: &Cache, selectors: &str) -> Vec<String> {
    let keys = cache.pods_of_peer(&peer(selectors));
    let names: BTreeSet<_> = keys.iter().map(|&key| cache.pod(key).unwrap().name.to_string()).collect();
    names.into_iter().collect()
}

#[test]
fn pods_are_found_by_label_and_by_key_in_their_own_namespace() {
    let cache = cache();
    for (pods, expected) in [
        ("matchLabels: {app: web}", &["dev/web"][..]),
        ("matchLabels: {app: web, tier: front}", &["dev/web"]),
        ("matchLabels: {app: web, tier: back}", &[]),
        ("matchLabels: {app: db}", &[]),
        ("matchExpressions: [{key: app, operator: Exists}]", &["dev/api", "dev/web"]),
        ("matchExpressions: [{key: ap, operator: Exists}]", &[]),
        ("", &["dev/api", "dev/bare", "dev/web"]),
    ] {
        assert_eq!(found(&cache, &format!("podSelector: {{{pods}}}")), expected, "{pods}");
    }
}

#[test]
fn each_of_the_four_operators_selects_pods_and_several_must_all_hold() {
    let cache = cache();
    for (expressions, expected) in [
        ("{key: app, operator: In, values: [web, api, none]}", &["dev/api", "dev/web"][..]),
        ("{key: app, operator: NotIn, values: [web]}", &["dev/api", "dev/bare"]),
        ("{key: tier, operator: Exists}", &["dev/api", "dev/web"]),
        ("{key: tier, operator: DoesNotExist}", &["dev/bare"]),
        ("{key: app, operator: In, values: [web, api]}, {key: tier, operator: NotIn, values: [front]}", &["dev/api"]),
        ("{key: app, operator: Exists}, {key: tier, operator: DoesNotExist}", &[]),
        ("{key: app, operator: In, values: [web]}, {key: app, operator: In, values: [api]}", &[]),
        ("{key: app, operator: In, values: [web, api]}, {key: app, operator: In, values: [api]}", &["dev/api"]),
    ] {
        let selector = format!("podSelector: {{matchExpressions: [{expressions}]}}");
        assert_eq!(found(&cache, &selector), expected, "{expressions}");
    }
    let both =
        "podSelector: {matchLabels: {tier: front}, matchExpressions: [{key: app, operator: NotIn, values: [web]}]}";
    assert_eq!(found(&cache, both), [""; 0], "labels and expressions must both hold");
}

#[test]
fn each_of_the_four_operators_selects_namespaces() {
    let cache = cache();
    let (dev, prod) = (["dev/api", "dev/bare", "dev/web"], ["prod/db", "prod/web"]);
    let system = ["kube-system/dns"];
    for (selector, expected) in [
        ("matchLabels: {env: prod}", prod.to_vec()),
        ("matchExpressions: [{key: env, operator: In, values: [dev, test]}]", dev.to_vec()),
        ("matchExpressions: [{key: env, operator: NotIn, values: [dev]}]", [&system[..], &prod].concat()),
        ("matchExpressions: [{key: owner, operator: Exists}]", dev.to_vec()),
        ("matchExpressions: [{key: owner, operator: DoesNotExist}]", [&system[..], &prod].concat()),
        ("matchLabels: {kubernetes.io/metadata.name: kube-system}", system.to_vec()),
    ] {
        assert_eq!(found(&cache, &format!("namespaceSelector: {{{selector}}}")), expected, "{selector}");
    }
}

#[test]
fn an_empty_namespace_selector_finds_every_pod_also_those_of_kube_system() {
    let all = ["dev/api", "dev/bare", "dev/web", "kube-system/dns", "prod/db", "prod/web"];
    assert_eq!(found(&cache(), "namespaceSelector: {}"), all, "Contiv left kube-system out");
}

#[test]
fn a_peer_with_both_selectors_finds_pods_that_meet_both() {
    let cache = cache();
    let web = "podSelector: {matchLabels: {app: web}}";
    assert_eq!(found(&cache, &format!("{web}, namespaceSelector: {{}}")), ["dev/web", "prod/web"]);
    let prod = "namespaceSelector: {matchLabels: {env: prod}}";
    assert_eq!(found(&cache, &format!("{web}, {prod}")), ["prod/web"], "Contiv forgot the namespaces (B2)");
    assert_eq!(found(&cache, &format!("podSelector: {{}}, {prod}")), ["prod/db", "prod/web"]);
}

#[test]
fn the_indexes_follow_a_pod_through_its_life() {
    let mut cache = cache();
    let find = |cache: &Cache| (found(cache, "podSelector: {matchLabels: {app: web}}"), at(cache, "10.0.0.1"));
    assert_eq!(find(&cache), (vec!["dev/web".into()], vec!["dev/web".into()]));
    cache.apply(Event::Apply(object(&pod("dev/web", "10.0.0.1", "node-1", "app: other"))));
    assert_eq!(find(&cache), (vec![], vec!["dev/web".into()]));
    cache.apply(Event::Apply(object(&pod("dev/web", "10.0.0.9", "node-1", "app: web"))));
    assert_eq!(find(&cache), (vec!["dev/web".into()], vec![]));
    cache.apply(Event::DeletePod(name("dev/web")));
    assert_eq!(find(&cache), (vec![], vec![]));
    assert_eq!((at(&cache, "10.0.0.9"), cache.pods_in("dev").count()), (vec![], 2));
    cache.apply(Event::Apply(object(&pod("dev/web", "10.0.0.1", "node-1", "app: web"))));
    assert_eq!(find(&cache), (vec!["dev/web".into()], vec!["dev/web".into()]));
    assert_eq!(cache.pods_in("dev").count(), 3);
}

fn at(cache: &Cache, address: &str) -> Vec<String> {
    cache.pods_at(address.parse().unwrap()).map(|(_, pod)| pod.name.to_string()).collect()
}

#[test]
fn a_pod_without_an_address_is_kept_but_is_nobodys_peer() {
    let mut cache = cache();
    cache.apply(Event::Apply(object(&pod("dev/new", "", "node-1", "app: web"))));
    assert_eq!(cache.pods_in("dev").count(), 4);
    assert_eq!(found(&cache, "podSelector: {matchLabels: {app: web}}"), ["dev/web"]);
    cache.apply(Event::Apply(object(&pod("dev/new", "10.0.0.7", "node-1", "app: web"))));
    assert_eq!(found(&cache, "podSelector: {matchLabels: {app: web}}"), ["dev/new", "dev/web"]);
}

#[test]
fn a_change_tells_the_object_before_and_after_once_the_state_has_changed() {
    let mut cache = Cache::default();
    let web = |labels| object(&pod("dev/web", "10.0.0.1", "node-1", labels));
    let labels_of = |pod: Option<std::sync::Arc<bulkhead_control::object::Pod>>| {
        pod.map(|pod| pod.labels.values().map(ToString::to_string).collect::<Vec<_>>())
    };
    let mut heard = Vec::new();
    for event in [
        Event::Apply(web("app: one")),
        Event::Apply(web("app: one")),
        Event::Apply(web("app: two")),
        Event::DeletePod(name("dev/web")),
        Event::DeletePod(name("dev/web")),
    ] {
        let changes = cache.apply(event).into_iter().map(|change| {
            let CacheChange::Pod { key, old, new } = change else { panic!("{change:?}") };
            assert_eq!(cache.pod(key), new.as_ref(), "the state is already the new one");
            (labels_of(old), labels_of(new))
        });
        heard.push(changes.collect::<Vec<_>>());
    }
    let (one, two) = (Some(vec!["one".to_owned()]), Some(vec!["two".to_owned()]));
    let expected = [vec![(None, one.clone())], vec![], vec![(one, two.clone())], vec![(two, None)], vec![]];
    assert_eq!(heard, expected, "a repeat is no change");
}

#[test]
fn namespaces_and_policies_tell_of_their_changes_and_are_listed_by_namespace() {
    let mut cache = cache();
    let spec = "podSelector: {}, policyTypes: [Ingress]";
    for full_name in ["dev/p", "dev/q", "prod/p"] {
        let changes = cache.apply(Event::Apply(object(&policy(full_name, spec))));
        let [CacheChange::Policy { name, old: None, new: Some(_) }] = changes.as_slice() else { panic!("{changes:?}") };
        assert_eq!(name.to_string(), full_name);
    }
    let listed: Vec<_> = cache.policies_in(&"dev".into()).map(|policy| policy.name.to_string()).collect();
    assert_eq!(listed, ["dev/p", "dev/q"]);
    let changes = cache.apply(Event::DeletePolicy(name("dev/p")));
    assert!(matches!(changes.as_slice(), [CacheChange::Policy { old: Some(_), new: None, .. }]), "{changes:?}");
    assert_eq!(cache.policies_in(&"dev".into()).count(), 1);

    let changes = cache.apply(Event::Apply(object(&namespace("prod", "env: test"))));
    assert!(matches!(changes.as_slice(), [CacheChange::Namespace { old: Some(_), new: Some(_), .. }]), "{changes:?}");
    assert_eq!(found(&cache, "namespaceSelector: {matchLabels: {env: prod}}"), [""; 0]);
    assert_eq!(found(&cache, "namespaceSelector: {matchLabels: {env: test}}"), ["prod/db", "prod/web"]);
}
