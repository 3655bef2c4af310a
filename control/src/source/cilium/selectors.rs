//! Reads Cilium's label selectors. Their keys have a source before a colon, and also name properties of a pod that are no labels of its
//! object: its namespace, the namespace's labels, its service account.

use std::sync::Arc;

use super::super::error::quoted;
use super::super::labels::{condition, label_key, label_value};
use super::super::path::FieldPath;
use super::super::raw::{Mapping, RawSelector};
use super::Reader;
use crate::filter::Filter;
use crate::object::{NAMESPACE_NAME_LABEL, NamespaceScope, PodPeer};
use crate::selector::{Condition, Requirement, Selector};

/// The keys of properties of pods. Source: Cilium, `pkg/k8s/apis/cilium.io/const.go`.
const NAMESPACE: &str = "io.kubernetes.pod.namespace";
const NAMESPACE_LABELS: &str = "io.cilium.k8s.namespace.labels.";
const SERVICE_ACCOUNT: &str = "io.cilium.k8s.policy.serviceaccount";
const CLUSTER: &str = "io.cilium.k8s.policy.cluster";

/// Starts of keys that are no part of a pod's identity unless the agent's option `labels` says so. Source: Cilium, "Limiting
/// Identity-Relevant Labels", and `pkg/labelsfilter/filter.go`.
const LEFT_OUT: [&str; 13] = [
    "io.kubernetes",
    "kubernetes.io",
    "k8s.io",
    "pod-template-generation",
    "pod-template-hash",
    "controller-revision-hash",
    "annotation",
    "controller-uid",
    "etcd_node",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/controller-uid",
];

/// What a selector selects.
pub(super) enum Selected {
    /// Pods.
    Pods(PodPeer),
    /// Pods, and all addresses that belong to no pod.
    PodsAndOthers(PodPeer),
    /// The entity of a label of source `reserved`.
    Reserved(String),
    /// Nothing.
    Nothing,
}

/// Whose selector it is, which decides the namespaces that it is limited to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// `endpointSelector`.
    Subject,
    /// A peer.
    Peer,
}

/// The conditions of a selector, by what they are about.
#[derive(Default)]
struct Conditions {
    pods: Vec<Requirement>,
    namespaces: Vec<Requirement>,
    accounts: Vec<Filter>,
    reserved: Vec<(String, Condition)>,
    /// Whether a key names the namespace.
    names_namespace: bool,
    /// Whether a key names a label of the namespace.
    names_namespace_labels: bool,
    /// Whether a condition needs a label to exist, so that it holds for nothing but pods.
    needs_labels: bool,
    /// Whether a condition holds for no pod.
    is_impossible: bool,
}

/// What a key is about.
enum Key<'a> {
    Pod(&'a str),
    Namespace,
    NamespaceLabel(&'a str),
    ServiceAccount,
    Cluster,
    Reserved(&'a str),
    LeftOut(&'a str),
    OtherSource(&'a str),
}

fn key_of(text: &str) -> Key<'_> {
    if let Some(name) = text.strip_prefix('$').or_else(|| text.strip_prefix("reserved.")) {
        return Key::Reserved(name);
    }
    let (source, key) = text.split_once(':').unwrap_or(("any", text));
    match (source, key) {
        ("reserved", name) => Key::Reserved(name),
        ("k8s" | "any" | "", NAMESPACE) => Key::Namespace,
        ("k8s" | "any" | "", SERVICE_ACCOUNT) => Key::ServiceAccount,
        ("k8s" | "any" | "", CLUSTER) => Key::Cluster,
        ("k8s" | "any" | "", key) => match key.strip_prefix(NAMESPACE_LABELS) {
            Some(label) => Key::NamespaceLabel(label),
            None if LEFT_OUT.iter().any(|start| key.starts_with(start)) || key.contains("beta.kubernetes.io") => {
                Key::LeftOut(key)
            }
            None => Key::Pod(key),
        },
        (source, _) => Key::OtherSource(source),
    }
}

impl Reader<'_> {
    /// Returns what a selector selects. `None` and a problem if it is invalid.
    pub(super) fn selector(&mut self, raw: &RawSelector, of: Use, base: &FieldPath) -> Option<Selected> {
        let before = self.findings.problems.len();
        let mut conditions = Conditions::default();
        for (key, value) in raw.match_labels.iter().flatten() {
            let path = base.key("matchLabels").key(key);
            // The policy's own namespace replaces the one written here.
            if let (Some(own), Use::Subject, Some("io.kubernetes.pod.namespace")) =
                (&self.namespace, of, key.strip_prefix("k8s:"))
            {
                if **own != **value {
                    let text =
                        format!("{} has no effect: the policy applies to pods of its own namespace", quoted(value));
                    self.findings.warning(&path, text, "remove the label");
                }
                continue;
            }
            label_value(value, &path, self.findings);
            self.condition(key, Condition::In(vec![value.as_str().into()]), &path, &mut conditions);
        }
        for (at, Mapping(expression)) in raw.match_expressions.iter().flatten().enumerate() {
            let path = base.key("matchExpressions").index(at);
            if let Some(condition) = condition(expression, &path, self.findings) {
                self.condition(&expression.key, condition, &path.key("key"), &mut conditions);
            }
        }
        let is_valid = self.findings.problems.len() == before;
        is_valid.then(|| self.selected(conditions, of, base)).flatten()
    }

    /// Adds the condition on one label.
    fn condition(&mut self, text: &str, condition: Condition, path: &FieldPath, all: &mut Conditions) {
        let is_negative = matches!(condition, Condition::NotIn(_) | Condition::DoesNotExist);
        all.needs_labels |= !is_negative;
        match key_of(text) {
            Key::Pod(key) => {
                label_key(key, path, self.findings);
                all.pods.push(Requirement { key: key.into(), condition });
            }
            Key::Namespace => {
                all.names_namespace = true;
                all.namespaces.push(Requirement { key: NAMESPACE_NAME_LABEL.into(), condition });
            }
            Key::NamespaceLabel(key) => {
                label_key(key, path, self.findings);
                all.names_namespace_labels = true;
                all.namespaces.push(Requirement { key: key.into(), condition });
            }
            Key::ServiceAccount => match condition {
                // Every pod has a service account.
                Condition::Exists => {}
                Condition::DoesNotExist => all.is_impossible = true,
                condition => all.accounts.push(Filter::ServiceAccount(condition)),
            },
            Key::Cluster => match condition {
                Condition::Exists => {}
                Condition::DoesNotExist => all.is_impossible = true,
                _ => {
                    let help = "remove the label: a state holds the pods of one cluster, whose name it does not tell";
                    self.findings.problem(path, "a condition on the name of the cluster", help);
                }
            },
            Key::Reserved(name) => all.reserved.push((name.to_owned(), condition)),
            Key::LeftOut(key) => {
                let text = format!("Cilium leaves the label {} out of identities, so no pod has it here", quoted(key));
                self.findings.warning(path, text, "select by another label");
                all.is_impossible |= !is_negative;
            }
            Key::OtherSource(source) => {
                let text = format!("labels of source {} are not supported", quoted(source));
                self.findings.problem(
                    path,
                    text,
                    "write a label of pods, with `k8s:`, `any:` or nothing before its key",
                );
            }
        }
    }

    fn selected(&mut self, all: Conditions, of: Use, base: &FieldPath) -> Option<Selected> {
        if let [(name, condition)] = &all.reserved[..] {
            let is_alone =
                all.pods.is_empty() && all.namespaces.is_empty() && all.accounts.is_empty() && !all.is_impossible;
            let is_set = match condition {
                Condition::In(values) => values.iter().all(|value| value.is_empty()),
                condition => *condition == Condition::Exists,
            };
            if is_alone && is_set {
                return Some(Selected::Reserved(name.clone()));
            }
        }
        if !all.reserved.is_empty() {
            let help = "write a selector with this label alone, or an entity in `fromEntities` or `toEntities`";
            self.findings.problem(base, "a label of source `reserved` can only stand alone, and not be denied", help);
            return None;
        }
        if all.is_impossible {
            return Some(Selected::Nothing);
        }
        let own = self
            .namespace
            .as_ref()
            .filter(|_| of == Use::Subject || !(all.names_namespace || all.names_namespace_labels));
        let namespaces = match own {
            Some(own) if all.namespaces.is_empty() => NamespaceScope::Own(Arc::clone(own)),
            Some(own) => {
                let is_own =
                    Requirement { key: NAMESPACE_NAME_LABEL.into(), condition: Condition::In(vec![own.clone()]) };
                NamespaceScope::Selected(Selector::new(all.namespaces.into_iter().chain([is_own])))
            }
            None => NamespaceScope::Selected(Selector::new(all.namespaces)),
        };
        let filter = match all.accounts.len() {
            0 => None,
            1 => all.accounts.into_iter().next().map(Arc::new),
            _ => Some(Arc::new(Filter::All(all.accounts))),
        };
        let pods = PodPeer { namespaces, pods: Selector::new(all.pods), filter };
        // Cilium adds the namespace to all other selectors of peers, and then they need a label to exist.
        let is_free = all.names_namespace || self.namespace.is_some() && all.names_namespace_labels;
        Some(match of == Use::Peer && is_free && !all.needs_labels {
            true => Selected::PodsAndOthers(pods),
            false => Selected::Pods(pods),
        })
    }
}
