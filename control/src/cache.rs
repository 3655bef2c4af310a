//! The cache: the cluster's present state, its indexes, and the changes that each event causes. An event without a change causes no work in
//! later stages.

mod derived;
mod event;
mod label_index;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;

pub use self::event::{CacheChange, Event};
use self::label_index::LabelIndex;
use crate::object::{
    ClusterPolicy, ClusterPolicyName, Enforcement, IngressIsolation, Labels, NAMESPACE_NAME_LABEL, Namespace,
    NamespaceScope, Node, Object, Pod, PodName, PodPeer, Policy, PolicyName,
};
use crate::selector::{Condition, Selector};

/// A short identifier of a pod, used inside the pipeline. May be reused after the event that removed the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodKey(u32);

/// The cluster's objects as of the last event, with indexes of the pods by name, namespace, label and address.
#[derive(Debug, Default)]
pub struct Cache {
    namespaces: BTreeMap<Arc<str>, Arc<Namespace>>,
    nodes: BTreeMap<Arc<str>, Arc<Node>>,
    policies: BTreeMap<PolicyName, Arc<Policy>>,
    cluster_policies: BTreeMap<ClusterPolicyName, Arc<ClusterPolicy>>,
    pod_keys: AHashMap<PodName, PodKey>,
    /// Pods by key. `None` for keys that are free or become free with the next event.
    pods: Vec<Option<Arc<Pod>>>,
    free: Vec<PodKey>,
    gone: Vec<PodName>,
    pods_by_namespace: AHashMap<Arc<str>, BTreeSet<PodKey>>,
    pods_by_label: LabelIndex,
    /// The pods with each address: usually one, two while an address moves from a terminated pod to another one.
    pods_by_address: AHashMap<IpAddr, BTreeSet<PodKey>>,
    /// Running host-network pods, by node.
    host_network_pods: AHashMap<Arc<str>, BTreeSet<PodKey>>,
    /// Deleted policies that are still enforced, by namespace.
    retained: BTreeMap<Arc<str>, BTreeSet<PolicyName>>,
    /// Namespaces that are being deleted.
    ending: BTreeSet<Arc<str>>,
    quarantined: BTreeSet<IpAddr>,
    default_isolation: IngressIsolation,
}

impl Cache {
    /// Creates an empty cache. `default_isolation` applies to namespaces without the `extensions/v1beta1` annotation.
    pub fn new(default_isolation: IngressIsolation) -> Self {
        Self { default_isolation, ..Self::default() }
    }

    /// Returns the isolation of namespaces without the `extensions/v1beta1` annotation.
    pub fn default_isolation(&self) -> IngressIsolation {
        self.default_isolation
    }

    /// Applies one event. Returns the changes: none if the state is the same as before, otherwise the object's own change and then its
    /// consequences.
    pub fn apply(&mut self, event: Event) -> Vec<CacheChange> {
        let namespace = match &event {
            Event::Apply(Object::Namespace(Namespace { name, .. })) | Event::DeleteNamespace(name) => {
                Some((name.clone(), false))
            }
            Event::Apply(Object::Pod(pod)) => Some((pod.name.namespace.clone(), true)),
            Event::DeletePod(name) => Some((name.namespace.clone(), true)),
            _ => None,
        };
        self.free_keys();
        let mut changes: Vec<CacheChange> = self.take(event).into_iter().collect();
        if let Some((namespace, is_pod)) = namespace.filter(|_| !changes.is_empty()) {
            changes.extend(self.isolate(&namespace, is_pod));
            changes.extend(self.release(&namespace));
        }
        changes
    }

    fn take(&mut self, event: Event) -> Option<CacheChange> {
        match event {
            Event::Apply(Object::Namespace(namespace)) => {
                let name = namespace.name.clone();
                self.set_namespace(name, Some(Arc::new(namespace)))
            }
            Event::Apply(Object::Pod(pod)) => self.set_pod(&pod.name.clone(), Some(pod)),
            Event::Apply(Object::Node(node)) => {
                let name = node.name.clone();
                self.set_node(&name, Some(Arc::new(node)))
            }
            Event::Apply(Object::Policy(policy)) => {
                let name = policy.name.clone();
                self.set_policy(name, Some(policy))
            }
            Event::Apply(Object::ClusterPolicy(policy)) => {
                let name = policy.rank.name.clone();
                self.set_cluster_policy(name, Some(policy))
            }
            Event::DeleteNamespace(name) => self.set_namespace(name, None),
            Event::DeletePod(name) => self.set_pod(&name, None),
            Event::DeleteNode(name) => self.set_node(&name, None),
            Event::DeletePolicy(name) => self.set_policy(name, None),
            Event::DeleteClusterPolicy(name) => self.set_cluster_policy(name, None),
            // `crate::service` resolves Services, and `crate::foreign` policies of other products.
            Event::Apply(Object::Service(_) | Object::EndpointSlice(_) | Object::Foreign(_))
            | Event::DeleteService(_)
            | Event::DeleteEndpointSlice(_)
            | Event::DeleteForeign(_) => None,
        }
    }

    fn set_namespace(&mut self, name: Arc<str>, new: Option<Arc<Namespace>>) -> Option<CacheChange> {
        let old = replace(&mut self.namespaces, &name, new.clone());
        self.follow_end(&name, old.as_deref(), new.as_deref());
        (old != new).then_some(CacheChange::Namespace { name, old, new })
    }

    fn set_node(&mut self, name: &Arc<str>, new: Option<Arc<Node>>) -> Option<CacheChange> {
        let same = self.nodes.get(name) == new.as_ref();
        replace(&mut self.nodes, name, new);
        (!same).then(|| CacheChange::Node { name: name.clone() })
    }

    fn set_policy(&mut self, name: PolicyName, new: Option<Arc<Policy>>) -> Option<CacheChange> {
        if new.is_none() && self.is_needed(&name) {
            self.retained.entry(name.namespace.clone()).or_default().insert(name);
            return None;
        }
        if let Some(kept) = self.retained.get_mut(&name.namespace) {
            kept.remove(&name);
        }
        let old = replace(&mut self.policies, &name, new.clone());
        (old != new).then_some(CacheChange::Policy { name, old, new })
    }

    fn set_cluster_policy(&mut self, name: ClusterPolicyName, new: Option<Arc<ClusterPolicy>>) -> Option<CacheChange> {
        let old = replace(&mut self.cluster_policies, &name, new.clone());
        (old != new).then_some(CacheChange::ClusterPolicy { name, old, new })
    }

    fn set_pod(&mut self, name: &PodName, new: Option<Arc<Pod>>) -> Option<CacheChange> {
        if new.is_none() && self.pod_key(name).and_then(|key| self.pod(key)).is_none() {
            return None;
        }
        let key = match self.pod_keys.get(name) {
            Some(&key) => key,
            None => {
                let key = self.free.pop().unwrap_or_else(|| {
                    self.pods.push(None);
                    PodKey(u32::try_from(self.pods.len() - 1).expect("fewer than 2^32 pods at a time"))
                });
                self.pod_keys.insert(name.clone(), key);
                key
            }
        };
        if new.is_none() {
            self.gone.push(name.clone());
        }
        let old = std::mem::replace(&mut self.pods[key.0 as usize], new.clone());
        if same_to_policy(old.as_deref(), new.as_deref()) {
            return None;
        }
        self.reindex(key, old.as_deref(), new.as_deref());
        Some(CacheChange::Pod { key, old, new })
    }

    /// Frees the keys of pods that the previous event removed. All stages have processed that event.
    fn free_keys(&mut self) {
        for name in std::mem::take(&mut self.gone) {
            if let Some(key) = self.pod_keys.remove(&name) {
                self.free.push(key);
            }
        }
    }

    fn reindex(&mut self, key: PodKey, old: Option<&Pod>, new: Option<&Pod>) {
        if let Some(pod) = old {
            remove_from(&mut self.pods_by_namespace, &pod.name.namespace, key);
            self.pods_by_label.remove(key, pod);
            for address in &pod.addresses {
                remove_from(&mut self.pods_by_address, address, key);
            }
            if let Some(node) = host_of(pod) {
                remove_from(&mut self.host_network_pods, node, key);
            }
        }
        if let Some(pod) = new {
            self.pods_by_namespace.entry(pod.name.namespace.clone()).or_default().insert(key);
            self.pods_by_label.insert(key, pod);
            for &address in &pod.addresses {
                self.pods_by_address.entry(address).or_default().insert(key);
            }
            if let Some(node) = host_of(pod) {
                self.host_network_pods.entry(node.clone()).or_default().insert(key);
            }
        }
    }

    /// Returns the pod of this key. `None` if it was removed.
    pub fn pod(&self, key: PodKey) -> Option<&Arc<Pod>> {
        self.pods[key.0 as usize].as_ref()
    }

    /// Returns the key of the pod of this name. `None` if it does not exist.
    pub fn pod_key(&self, name: &PodName) -> Option<PodKey> {
        self.pod_keys.get(name).copied()
    }

    /// Returns all pods, in no particular order.
    pub fn pods(&self) -> impl Iterator<Item = (PodKey, &Arc<Pod>)> {
        (0u32..).zip(&self.pods).filter_map(|(at, pod)| Some((PodKey(at), pod.as_ref()?)))
    }

    /// Returns the pods of a namespace.
    pub fn pods_in(&self, namespace: &str) -> impl Iterator<Item = (PodKey, &Arc<Pod>)> {
        let keys = self.pods_by_namespace.get(namespace).into_iter().flatten();
        keys.filter_map(|&key| Some((key, self.pod(key)?)))
    }

    /// Returns the running host-network pods of a node, whose addresses are the node's.
    pub fn host_network_pods<'a>(&'a self, node: &'a Arc<str>) -> impl Iterator<Item = &'a Arc<Pod>> {
        let keys = self.host_network_pods.get(node).into_iter().flatten();
        keys.filter_map(|&key| self.pod(key))
    }

    /// Returns the nodes with running host-network pods.
    pub fn host_networks(&self) -> impl Iterator<Item = &Arc<str>> {
        self.host_network_pods.keys()
    }

    /// Returns the pods that have this address.
    pub fn pods_at(&self, address: IpAddr) -> impl Iterator<Item = (PodKey, &Arc<Pod>)> {
        let keys = self.pods_by_address.get(&address).into_iter().flatten();
        keys.filter_map(|&key| Some((key, self.pod(key)?)))
    }

    /// Returns the addresses that several pods claim and none verifiably has ([`crate::claims`]).
    pub fn quarantined(&self) -> &BTreeSet<IpAddr> {
        &self.quarantined
    }

    /// Sets the quarantined addresses. Returns a change if they differ from before.
    pub(crate) fn quarantine(&mut self, addresses: BTreeSet<IpAddr>) -> Option<CacheChange> {
        let changed = self.quarantined != addresses;
        self.quarantined = addresses;
        changed.then_some(CacheChange::Quarantine)
    }

    /// Returns all nodes, by name.
    pub fn nodes(&self) -> &BTreeMap<Arc<str>, Arc<Node>> {
        &self.nodes
    }

    /// Returns all namespaces, by name.
    pub fn namespaces(&self) -> &BTreeMap<Arc<str>, Arc<Namespace>> {
        &self.namespaces
    }

    /// Returns all NetworkPolicies by name, including deleted ones that are still enforced and the policies of isolating namespaces.
    pub fn policies(&self) -> &BTreeMap<PolicyName, Arc<Policy>> {
        &self.policies
    }

    /// Returns all cluster policies, by kind and name.
    pub fn cluster_policies(&self) -> &BTreeMap<ClusterPolicyName, Arc<ClusterPolicy>> {
        &self.cluster_policies
    }

    /// Returns the NetworkPolicies of a namespace, sorted by name.
    pub fn policies_in<'a>(&'a self, namespace: &'a Arc<str>) -> impl Iterator<Item = &'a Arc<Policy>> {
        let first = PolicyName { namespace: namespace.clone(), name: "".into() };
        self.policies.range(first..).take_while(move |(name, _)| name.namespace == *namespace).map(|(_, policy)| policy)
    }

    /// Whether a policy is enforced or audited: by its annotation, else by its namespace's annotation, else `default`.
    pub fn enforcement(&self, policy: &Policy, default: Enforcement) -> Enforcement {
        let of_namespace = || self.namespaces.get(&policy.name.namespace).and_then(|namespace| namespace.enforcement);
        policy.enforcement.or_else(of_namespace).unwrap_or(default)
    }

    /// Whether the scope covers the namespace. Of a namespace without an object, only the name is known.
    pub fn scope_covers(&self, scope: &NamespaceScope, namespace: &Arc<str>) -> bool {
        scope_covers(scope, namespace, self.namespaces.get(namespace).map(|namespace| &namespace.labels))
    }

    /// Whether a peer selects a pod, endpoint or not.
    pub fn is_selected(&self, peer: &PodPeer, pod: &Pod) -> bool {
        let namespace = self.namespaces.get(&pod.name.namespace);
        peer.pods.matches(&pod.labels)
            && self.scope_covers(&peer.namespaces, &pod.name.namespace)
            && passes_filter(peer, pod, namespace.map(|namespace| &**namespace))
    }

    /// Returns the keys of the endpoints that a peer selects.
    pub fn pods_of_peer(&self, peer: &PodPeer) -> BTreeSet<PodKey> {
        self.selected_by(peer).collect()
    }

    /// Whether a peer selects an endpoint.
    pub fn has_pod_of_peer(&self, peer: &PodPeer) -> bool {
        self.selected_by(peer).next().is_some()
    }

    /// Returns the keys of the endpoints that a peer selects, in no order, none twice.
    fn selected_by<'a>(&'a self, peer: &'a PodPeer) -> impl Iterator<Item = PodKey> {
        let pods = self.pods_matching(&peer.namespaces, &peer.pods);
        let is_filtered = |pod: &Pod| {
            peer.filter.is_none()
                || passes_filter(peer, pod, self.namespaces.get(&pod.name.namespace).map(|namespace| &**namespace))
        };
        pods.filter(move |(_, pod)| pod.is_endpoint() && is_filtered(pod)).map(|(key, _)| key)
    }

    /// Returns the pods that a selector selects in the namespaces of a scope, endpoints or not, in no order, none twice.
    ///
    /// Visits only the pods that meet the requirement with the fewest pods. The scope is matched once for each namespace, not for each pod.
    pub fn pods_matching<'a: 's, 's>(
        &'a self,
        scope: &'s NamespaceScope,
        selector: &'s Selector,
    ) -> impl Iterator<Item = (PodKey, &'a Arc<Pod>)> + use<'a, 's> {
        type Groups<'a> = Box<dyn Iterator<Item = (&'a Arc<str>, &'a BTreeSet<PodKey>)> + 'a>;
        let names = names_of(scope);
        let groups: Groups<'s> = match (self.pods_by_label.rarest(selector, names), names) {
            (Some(groups), _) => Box::new(groups),
            (None, Some(names)) => Box::new(names.iter().filter_map(|name| self.pods_by_namespace.get_key_value(name))),
            (None, None) => Box::new(self.pods_by_namespace.iter()),
        };
        let covered = groups.filter(|(namespace, _)| self.scope_covers(scope, namespace));
        let pods = covered.flat_map(|(_, keys)| keys).filter_map(|&key| Some((key, self.pod(key)?)));
        pods.filter(|(_, pod)| selector.matches(&pod.labels))
    }
}

/// Returns the names of the only namespaces that a scope can cover; they need not exist. `None` if the scope names none.
fn names_of(scope: &NamespaceScope) -> Option<&[Arc<str>]> {
    match scope {
        NamespaceScope::Own(own) => Some(std::slice::from_ref(own)),
        NamespaceScope::Selected(selector) => {
            selector.requirements().iter().find_map(|requirement| match &requirement.condition {
                Condition::In(names) if &*requirement.key == NAMESPACE_NAME_LABEL => Some(names.as_slice()),
                _ => None,
            })
        }
    }
}

/// Whether the scope covers a namespace with these labels. `labels` is `None` for a namespace without an object.
pub fn scope_covers(scope: &NamespaceScope, namespace: &Arc<str>, labels: Option<&Labels>) -> bool {
    match scope {
        NamespaceScope::Own(own) => own == namespace,
        NamespaceScope::Selected(selector) => match labels {
            Some(labels) => selector.matches(labels),
            None => selector.matches_unknown_namespace(namespace),
        },
    }
}

/// Whether a pod meets the peer's further condition, if it has one. `namespace` is the pod's, `None` if its object is missing.
pub(crate) fn passes_filter(peer: &PodPeer, pod: &Pod, namespace: Option<&Namespace>) -> bool {
    peer.filter.as_ref().is_none_or(|filter| filter.holds(pod, namespace))
}

/// Whether two states of a pod are equal except for UID, workload and lifetime. These decide only which pod has an address, never a
/// verdict.
fn same_to_policy(old: Option<&Pod>, new: Option<&Pod>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) if (old.lifetime, old.uid, &old.owner) != (new.lifetime, new.uid, &new.owner) => {
            Pod { lifetime: old.lifetime, uid: old.uid, owner: old.owner.clone(), ..new.clone() } == *old
        }
        _ => old == new,
    }
}

/// Returns the node whose network a running host-network pod uses.
fn host_of(pod: &Pod) -> Option<&Arc<str>> {
    pod.node.as_ref().filter(|_| pod.host_network && !pod.finished)
}

fn replace<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>, key: &K, new: Option<V>) -> Option<V> {
    match new {
        Some(value) => map.insert(key.clone(), value),
        None => map.remove(key),
    }
}

fn remove_from<K: std::hash::Hash + Eq>(index: &mut AHashMap<K, BTreeSet<PodKey>>, at: &K, key: PodKey) {
    if let Some(keys) = index.get_mut(at) {
        keys.remove(&key);
        if keys.is_empty() {
            index.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::Relaxed;

    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;

    use super::*;
    use crate::fixtures::{namespace, pod};

    #[test]
    fn an_event_that_changes_nothing_gives_no_notice() {
        let mut cache = Cache::default();
        assert_eq!(cache.apply(Event::Apply(pod("x/a", "10.0.0.1", "n", "app=a"))).len(), 1);
        assert!(cache.apply(Event::Apply(pod("x/a", "10.0.0.1", "n", "app=a"))).is_empty());
        assert!(cache.apply(Event::DeletePod(PodName::new("x", "unknown"))).is_empty());
    }

    #[test]
    fn a_pod_that_is_gone_leaves_no_trace() {
        let mut cache = Cache::default();
        for round in 0..3 {
            cache.apply(Event::Apply(pod(&format!("x/a{round}"), "10.0.0.1", "n", "app=a")));
            assert_eq!((cache.pods_in("x").count(), cache.pods_by_label.len()), (1, 1));
            cache.apply(Event::DeletePod(PodName::new("x", format!("a{round}"))));
        }
        cache.apply(Event::Apply(pod("x/b", "10.0.0.2", "n", "app=b")));
        assert_eq!((cache.pods.len(), cache.pod_keys.len(), cache.pods_by_label.len()), (1, 1, 1));
    }

    /// Number of selectors of the test below that selected a pod: in one namespace, in namespaces by name, by label, in all; with requirements
    /// on pods, without any.
    static REACHED: [AtomicU32; 6] = [const { AtomicU32::new(0) }; 6];

    /// Parses a selector of several requirements, separated by `;`, all of which a pod must meet. Each is written as for the fixture.
    fn selector(text: &str) -> Selector {
        let requirements = text.split(';').map(crate::fixtures::selector);
        Selector::new(requirements.flat_map(|one| one.requirements().to_vec()))
    }

    /// Returns one of six scopes: the own namespace, two that name namespaces, two by label, all namespaces.
    fn scope(number: usize) -> NamespaceScope {
        let selected = |text| NamespaceScope::Selected(selector(text));
        match number {
            0 => NamespaceScope::Own("y".into()),
            1 => selected("kubernetes.io/metadata.name in (x,y,unknown)"),
            2 => selected("kubernetes.io/metadata.name in (x,y);team=red"),
            3 => selected("team=red"),
            4 => selected("team!=red"),
            _ => selected(""),
        }
    }

    #[test]
    fn the_label_index_and_a_scan_find_the_same_pods() {
        let labels = ["", "app=a", "app=b", "app=a,tier=web", "tier=web", "tier=db"];
        let selectors = [
            "",
            "app=a",
            "app in (a,b)",
            "app in (b,c);tier=web",
            "app!=a",
            "tier=db;app!=a",
            "tier in (web,db);app=a",
        ];
        // A pod by namespace and number, with labels or removed.
        let events = prop::collection::vec((0..3usize, 0..6u8, prop::option::weighted(0.8, 0..labels.len())), 1..40);
        let mut runner = TestRunner::new(ProptestConfig::with_cases(300));
        runner
            .run(&events, |events| {
                let mut cache = Cache::default();
                // The third namespace has no object.
                cache.apply(Event::Apply(namespace("x", "team=red")));
                cache.apply(Event::Apply(namespace("y", "team=blue")));
                for (space, number, has) in events {
                    let (space, name) = (["x", "y", "z"][space], format!("p{number}"));
                    cache.apply(match has {
                        Some(at) => {
                            let address = format!("10.0.0.{number}");
                            Event::Apply(pod(&format!("{space}/{name}"), &address, "n", labels[at]))
                        }
                        None => Event::DeletePod(PodName::new(space, name)),
                    });
                }
                for (number, wanted) in (0..6).flat_map(|number| selectors.map(|wanted| (number, wanted))) {
                    let (scope, wanted) = (scope(number), selector(wanted));
                    let is_one =
                        |pod: &Pod| wanted.matches(&pod.labels) && cache.scope_covers(&scope, &pod.name.namespace);
                    let scan: BTreeSet<PodKey> =
                        cache.pods().filter(|(_, pod)| is_one(pod)).map(|(key, _)| key).collect();
                    let found: Vec<PodKey> = cache.pods_matching(&scope, &wanted).map(|(key, _)| key).collect();
                    prop_assert_eq!(found.len(), scan.len(), "none twice");
                    if !scan.is_empty() {
                        let kind = match number {
                            0 => 0,
                            1 | 2 => 1,
                            3 | 4 => 2,
                            _ => 3,
                        };
                        REACHED[kind].fetch_add(1, Relaxed);
                        REACHED[4 + usize::from(wanted.requirements().is_empty())].fetch_add(1, Relaxed);
                    }
                    prop_assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), scan);
                }
                Ok(())
            })
            .unwrap();
        assert!(REACHED.iter().all(|count| count.load(Relaxed) > 100), "{REACHED:?}");
    }

    #[test]
    fn an_isolation_that_was_kept_beyond_its_end_and_comes_back_stays() {
        let mut cache = Cache::default();
        let namespace = |terminating, isolation| {
            let Object::Namespace(namespace) = namespace("x", "") else { unreachable!() };
            Event::Apply(Object::Namespace(Namespace { terminating, isolation, ..namespace }))
        };
        cache.apply(Event::Apply(pod("x/a", "10.0.0.1", "n", "")));
        cache.apply(namespace(false, IngressIsolation::DefaultDeny));
        cache.apply(namespace(true, IngressIsolation::ClusterDefault));
        assert_eq!(cache.policies().len(), 1, "kept for the pod");
        cache.apply(namespace(false, IngressIsolation::DefaultDeny));
        assert_eq!(cache.policies().len(), 1);
        cache.apply(namespace(false, IngressIsolation::ClusterDefault));
        assert_eq!(cache.policies().len(), 0);
    }

    #[test]
    fn policies_of_a_namespace_are_not_those_of_one_whose_name_continues_it() {
        let mut cache = Cache::default();
        cache.apply(Event::Apply(crate::fixtures::deny_all("a/p")));
        cache.apply(Event::Apply(crate::fixtures::deny_all("ab/p")));
        cache.apply(Event::Apply(crate::fixtures::deny_all("a-b/p")));
        assert_eq!(cache.policies_in(&"a".into()).count(), 1);
    }
}
