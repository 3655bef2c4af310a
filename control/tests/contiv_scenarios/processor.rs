//! Tests the processor with Contiv's table of events: the pods that each event concerns, and the meaning of policies afterwards. Contiv had
//! no tests of this layer, and most of its faults in it. These policies have rules in both directions: Contiv processed a policy with an
//! empty list again at every event, which hid the faults.

use std::collections::BTreeSet;
use std::net::IpAddr;

use bulkhead_control::cache::{Cache, Event, PodKey};
use bulkhead_control::contract::{Peers, SetId, SetMirror, Transaction};
use bulkhead_control::processor::{Committed, Processor, Scope};

use super::manifest::{name, namespace, object, objects, pod, policy};

/// Every pod that a test names.
const PODS: [&str; 6] = ["dev/web1", "dev/web2", "dev/db", "dev/idle", "dev/new", "ops/x"];

/// Web pods communicate with databases of their namespace.
const WITH_DB: &str = "podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress, Egress],
    ingress: [{from: [{podSelector: {matchLabels: {app: db}}}]}],
    egress: [{to: [{podSelector: {matchLabels: {app: db}}}]}]";

/// Web pods communicate with namespaces of production.
const WITH_PROD: &str = "podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress, Egress],
    ingress: [{from: [{namespaceSelector: {matchLabels: {env: prod}}}]}],
    egress: [{to: [{namespaceSelector: {matchLabels: {env: prod}}}]}]";

/// A cache and its processor.
struct Followed {
    cache: Cache,
    processor: Processor,
    sets: SetMirror,
}

impl Followed {
    /// Two web pods on two nodes, a database on the second, an idle pod on the first, under these policies of `dev`.
    fn new(scope: Scope, policies: &[(&str, &str)]) -> Self {
        let mut manifests = vec![
            namespace("dev", "env: dev"),
            pod("dev/web1", "10.0.0.1", "node-1", "app: web"),
            pod("dev/web2", "10.0.0.2", "node-2", "app: web"),
            pod("dev/db", "10.0.0.3", "node-2", "app: db"),
            pod("dev/idle", "10.0.0.4", "node-1", "app: idle"),
        ];
        manifests.extend(policies.iter().map(|(name, spec)| policy(&format!("dev/{name}"), spec)));
        let mut followed =
            Self { cache: Cache::default(), processor: Processor::new(scope), sets: SetMirror::default() };
        for object in objects(&manifests) {
            followed.affected_by(Event::Apply(object));
        }
        followed
    }

    /// Applies an event. Returns the pods whose policies, or whose policies' sets, change.
    fn affected_by(&mut self, event: Event) -> Vec<&'static str> {
        for change in self.cache.apply(event) {
            self.processor.process(&self.cache, &change);
        }
        let committed = self.processor.commit(&self.cache);
        let named = self.named(&committed.affected);
        assert_eq!(named.len(), committed.affected.len(), "a pod that no test names is concerned");
        let changed: BTreeSet<SetId> = committed.sets.iter().map(|delta| delta.set).collect();
        let by_set = |pod: &&str| self.named_sets(pod).iter().any(|set| changed.contains(set));
        let concerned = PODS.into_iter().filter(|pod| named.contains(pod) || by_set(pod)).collect();
        self.take(committed, false);
        concerned
    }

    /// Resynchronizes the processor. Returns the affected pods.
    fn resync(&mut self) -> Vec<&'static str> {
        let committed = self.processor.resync(&self.cache);
        let named = self.named(&committed.affected);
        self.take(committed, true);
        named
    }

    fn take(&mut self, committed: Committed, resync: bool) {
        let Committed { sets, dropped, .. } = committed;
        self.sets.apply(&Transaction { resync, sets, dropped, ..Transaction::default() });
    }

    fn named_sets(&self, pod: &str) -> Vec<SetId> {
        let policies = self.cache.pod_key(&name(pod)).into_iter().flat_map(|key| self.processor.policies_of(key));
        let matches =
            policies.flat_map(|revision| [&revision.policy.ingress, &revision.policy.egress]).flatten().flatten();
        matches
            .flat_map(|entry| match &entry.peers {
                Peers::Sets(sets) => sets.to_vec(),
                _ => Vec::new(),
            })
            .collect()
    }

    fn apply(&mut self, manifest: &str) -> Vec<&'static str> {
        self.affected_by(Event::Apply(object(manifest)))
    }

    fn named(&self, keys: &BTreeSet<PodKey>) -> Vec<&'static str> {
        let has = |pod: &&str| self.cache.pod_key(&name(pod)).is_some_and(|key| keys.contains(&key));
        PODS.into_iter().filter(has).collect()
    }

    /// The names of the policies that select a pod.
    fn policies_of(&self, pod: &str) -> Vec<String> {
        let key = self.cache.pod_key(&name(pod)).unwrap();
        self.processor.policies_of(key).map(|revision| revision.policy.name.to_string()).collect()
    }

    /// Whether a pod's policies allow traffic with an address. Both directions must agree, as every policy here names the same peers in
    /// both.
    fn talks_with(&self, pod: &str, address: &str) -> bool {
        let (key, address): (_, IpAddr) = (self.cache.pod_key(&name(pod)).unwrap(), address.parse().unwrap());
        let mut both = [false; 2];
        for revision in self.processor.policies_of(key) {
            for (found, matches) in both.iter_mut().zip([&revision.policy.ingress, &revision.policy.egress]) {
                *found |= matches.iter().flatten().any(|entry| self.sets.names(&entry.peers, &[], address));
            }
        }
        assert_eq!(both[0], both[1], "{pod} and {address}");
        both[0]
    }
}

fn cluster(policies: &[(&str, &str)]) -> Followed {
    Followed::new(Scope::Cluster, policies)
}

#[test]
fn a_pod_is_under_the_policies_of_its_namespace_that_select_it_sorted_by_name() {
    let mut followed = cluster(&[("web", WITH_DB), ("all", "podSelector: {}, policyTypes: [Ingress]")]);
    followed.apply(&pod("ops/x", "10.1.0.1", "node-1", "app: web"));
    followed.apply(&policy("ops/web", "podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]"));
    assert_eq!(followed.policies_of("dev/web1"), ["dev/all", "dev/web"]);
    assert_eq!(followed.policies_of("dev/db"), ["dev/all"]);
    assert_eq!(followed.policies_of("ops/x"), [""; 0], "a policy of this name in another namespace is another policy");
}

#[test]
fn a_new_pod_without_an_address_concerns_nobody_until_it_has_one() {
    let mut followed = cluster(&[("web", WITH_DB)]);
    assert_eq!(followed.apply(&pod("dev/new", "", "node-1", "app: other")), [""; 0]);
    assert_eq!(followed.apply(&pod("dev/new", "", "node-1", "app: db")), [""; 0]);
    assert_eq!(followed.apply(&pod("dev/new", "10.0.0.9", "node-1", "app: db")), ["dev/web1", "dev/web2", "dev/new"]);
    assert!(followed.talks_with("dev/web1", "10.0.0.9"));
}

#[test]
fn a_peers_new_address_concerns_the_pods_that_its_policies_select() {
    let mut followed = cluster(&[("web", WITH_DB)]);
    assert_eq!(followed.apply(&pod("dev/db", "10.0.0.9", "node-2", "app: db")), ["dev/web1", "dev/web2", "dev/db"]);
    let talks = ["10.0.0.9", "10.0.0.3"].map(|address| followed.talks_with("dev/web1", address));
    assert_eq!(talks, [true, false]);
}

#[test]
fn a_peer_that_loses_and_regains_its_address_leaves_and_returns() {
    let mut followed = cluster(&[("web", WITH_DB)]);
    assert_eq!(followed.apply(&pod("dev/db", "", "node-2", "app: db")), ["dev/web1", "dev/web2", "dev/db"]);
    assert!(!followed.talks_with("dev/web1", "10.0.0.3"));
    followed.apply(&pod("dev/db", "10.0.0.3", "node-2", "app: db"));
    assert!(followed.talks_with("dev/web1", "10.0.0.3"));
}

#[test]
fn a_deleted_peer_concerns_the_pods_that_its_policies_select() {
    let mut followed = cluster(&[("web", WITH_DB)]);
    let affected = followed.affected_by(Event::DeletePod(name("dev/db")));
    assert_eq!(affected, ["dev/web1", "dev/web2", "dev/db"]);
    assert!(!followed.talks_with("dev/web1", "10.0.0.3"));
}

#[test]
fn a_relabelled_peer_is_missed_by_no_policy_with_both_rule_lists() {
    let mut followed = cluster(&[("web", WITH_DB)]);
    for (labels, talks) in [("app: other", false), ("app: db, version: two", true), ("app: other", false)] {
        let affected = followed.apply(&pod("dev/db", "10.0.0.3", "node-2", labels));
        assert_eq!(affected, ["dev/web1", "dev/web2", "dev/db"], "{labels}; Contiv's fault B11");
        assert_eq!(followed.talks_with("dev/web2", "10.0.0.3"), talks, "{labels}");
    }
}

#[test]
fn a_label_that_no_selector_looks_at_concerns_no_other_pod() {
    let mut followed = cluster(&[("web", WITH_DB)]);
    let affected = followed.apply(&pod("dev/db", "10.0.0.3", "node-2", "app: db, version: two"));
    assert!(!affected.contains(&"dev/web1") && !affected.contains(&"dev/web2"), "{affected:?}");
}

#[test]
fn a_pod_relabelled_into_and_out_of_a_policy_is_itself_concerned() {
    let mut followed = cluster(&[("web", WITH_DB)]);
    assert_eq!(followed.apply(&pod("dev/idle", "10.0.0.4", "node-1", "app: web")), ["dev/idle"], "Contiv's fault B10");
    assert_eq!(followed.policies_of("dev/idle"), ["dev/web"]);
    assert_eq!(followed.apply(&pod("dev/idle", "10.0.0.4", "node-1", "app: idle")), ["dev/idle"], "Contiv's fault B10");
    assert_eq!(followed.policies_of("dev/idle"), [""; 0]);
}

#[test]
fn a_policy_concerns_the_pods_that_it_selects_now_and_those_that_it_selected_before() {
    let mut followed = cluster(&[]);
    assert_eq!(followed.apply(&policy("dev/p", WITH_DB)), ["dev/web1", "dev/web2"]);
    let idle = WITH_DB.replace("{app: web}", "{app: idle}");
    assert_eq!(followed.apply(&policy("dev/p", &idle)), ["dev/web1", "dev/web2", "dev/idle"]);
    let policies = ["dev/web1", "dev/idle"].map(|pod| followed.policies_of(pod).len());
    assert_eq!(policies, [0, 1]);
    assert_eq!(followed.affected_by(Event::DeletePolicy(name("dev/p"))), ["dev/idle"]);
    assert_eq!(followed.policies_of("dev/idle"), [""; 0]);
}

#[test]
fn a_namespace_that_enters_or_leaves_a_selector_concerns_the_pods_of_the_policy() {
    let mut followed = cluster(&[("web", WITH_PROD)]);
    followed.apply(&pod("ops/x", "10.1.0.1", "node-1", ""));
    assert!(!followed.talks_with("dev/web1", "10.1.0.1"), "the namespace is not known yet");
    let web: &[&str] = &["dev/web1", "dev/web2"];
    for (labels, affected, talks) in [
        ("env: prod", web, true),
        ("env: prod, owner: alice", &[], true),
        ("env: test", web, false),
        ("env: test, owner: alice", &[], false),
        ("env: prod", web, true),
    ] {
        assert_eq!(followed.apply(&namespace("ops", labels)), affected, "{labels}; Contiv's faults B11 and B16");
        assert_eq!(followed.talks_with("dev/web1", "10.1.0.1"), talks, "{labels}");
    }
    assert_eq!(followed.affected_by(Event::DeleteNamespace("ops".into())), web);
    assert!(!followed.talks_with("dev/web1", "10.1.0.1"));
}

#[test]
fn a_resync_concerns_every_pod_and_forgets_what_the_new_state_does_not_hold() {
    let mut followed = cluster(&[("web", WITH_DB)]);
    assert_eq!(followed.resync(), ["dev/web1", "dev/web2", "dev/db", "dev/idle"]);
    assert_eq!(followed.policies_of("dev/web1"), ["dev/web"]);
    assert!(followed.talks_with("dev/web1", "10.0.0.3"));

    followed.cache = cluster(&[]).cache;
    assert_eq!(followed.resync(), ["dev/web1", "dev/web2", "dev/db", "dev/idle"]);
    assert_eq!(followed.policies_of("dev/web1"), [""; 0]);
}

#[test]
fn in_the_scope_of_a_node_pods_elsewhere_are_peers_and_never_concerned() {
    let mut followed = Followed::new(Scope::Node("node-1".into()), &[("web", WITH_DB)]);
    assert!(followed.talks_with("dev/web1", "10.0.0.3"), "the database on the other node is a peer");
    assert_eq!(followed.policies_of("dev/web2"), [""; 0]);
    assert_eq!(followed.apply(&pod("dev/db", "10.0.0.9", "node-2", "app: db")), ["dev/web1"]);
    assert_eq!(followed.apply(&pod("dev/web2", "10.0.0.2", "node-2", "app: web, version: two")), [""; 0]);
    assert_eq!(followed.apply(&policy("dev/web", WITH_PROD)), ["dev/web1"]);
    assert_eq!(followed.resync(), ["dev/web1", "dev/idle"]);
}

#[test]
fn a_pod_that_moves_to_another_node_is_concerned_and_then_no_longer_looked_after() {
    let mut followed = Followed::new(Scope::Node("node-1".into()), &[("web", WITH_DB)]);
    assert_eq!(followed.apply(&pod("dev/web1", "10.0.0.1", "node-2", "app: web")), ["dev/web1"]);
    assert_eq!(followed.policies_of("dev/web1"), [""; 0]);
    assert_eq!(followed.apply(&policy("dev/web", WITH_PROD)), [""; 0]);
    assert_eq!(followed.apply(&pod("dev/web2", "10.0.0.2", "node-1", "app: web")), ["dev/web2"]);
    assert_eq!(followed.policies_of("dev/web2"), ["dev/web"]);
}
