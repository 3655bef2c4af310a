//! From a selector to the pods and sets of networks that it selects.
//!
//! An endpoint has its own labels, those of its namespace after `pcns.`, those of its service account after `pcsa.`, and
//! `projectcalico.org/namespace`, `…/orchestrator` and `…/serviceaccount`. Sets of networks have their own labels and, if their kind has
//! namespaces, those of the namespace. Source: `libcalico-go/lib/backend/k8s/conversion`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{NetworkSet, Selector};
use crate::filter::Filter;
use crate::foreign::{ForeignKind, Needs, Surroundings};
use crate::object::{IpBlock, NAMESPACE_NAME_LABEL, NamespaceScope, Peer, PodPeer};
use crate::selector::{Condition, Requirement, Selector as LabelSelector};

const NAMESPACE: &str = "projectcalico.org/namespace";
const ORCHESTRATOR: &str = "projectcalico.org/orchestrator";
const SERVICE_ACCOUNT: &str = "projectcalico.org/serviceaccount";
/// The label of namespaces and of service accounts with their name.
const NAME: &str = "projectcalico.org/name";
const OF_NAMESPACE: &str = "pcns.";
const OF_ACCOUNT: &str = "pcsa.";

fn label(key: &str, condition: Condition) -> Selector {
    Selector::Label(Requirement { key: key.into(), condition })
}

/// Returns the selector of the endpoints of a namespace.
pub(super) fn in_namespace(namespace: &str) -> Selector {
    label(NAMESPACE, Condition::In(vec![namespace.into()]))
}

/// Returns the selector of the endpoints of service accounts of these names.
pub(super) fn with_accounts(names: &[Arc<str>]) -> Selector {
    label(SERVICE_ACCOUNT, Condition::In(names.to_vec()))
}

/// Returns the selector of the endpoints in the namespaces of a `namespaceSelector`. There, `all()` means an endpoint with a namespace, and
/// `global()` one without.
pub(super) fn of_namespaces(selector: &Selector) -> Selector {
    selector.map(&|part| match part {
        Selector::All => label(NAMESPACE, Condition::Exists),
        Selector::Global => label(NAMESPACE, Condition::DoesNotExist),
        part => prefixed(part, OF_NAMESPACE),
    })
}

/// Returns the selector of the endpoints with the service accounts of a `serviceAccountSelector`.
pub(super) fn of_accounts(selector: &Selector) -> Selector {
    selector.map(&|part| prefixed(part, OF_ACCOUNT))
}

fn prefixed(part: &Selector, prefix: &str) -> Selector {
    match part {
        Selector::Label(Requirement { key, condition }) => label(&format!("{prefix}{key}"), condition.clone()),
        other => other.clone(),
    }
}

/// Returns the kinds of objects on which the selected pods depend.
pub(super) fn needs(selector: &Selector) -> Needs {
    let is_of_account = |part: &Selector| match part {
        Selector::Label(requirement) => requirement.key.strip_prefix(OF_ACCOUNT).is_some_and(|key| key != NAME),
        _ => false,
    };
    if selector.any(&is_of_account) { Needs::SERVICE_ACCOUNTS } else { Needs::NOTHING }
}

/// Returns the kinds of objects on which the selected sets of networks depend.
pub(super) fn needs_of_sets(selector: &Selector) -> Needs {
    let is_of_namespace = |part: &Selector| match part {
        Selector::Label(requirement) => requirement.key.starts_with(OF_NAMESPACE),
        _ => false,
    };
    let mut needs = Needs::NETWORK_SETS;
    if selector.any(&is_of_namespace) {
        needs |= Needs::NAMESPACES;
    }
    needs
}

/// Returns the pods that the selector selects. `None` if it can select none.
pub(super) fn of(selector: &Selector, surroundings: &Surroundings) -> Option<PodPeer> {
    let parts = match filter(selector, false, surroundings) {
        Filter::All(parts) => parts,
        one => vec![one],
    };
    let (mut namespaces, mut pods, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for part in parts {
        match part {
            Filter::Any(none) if none.is_empty() => return None,
            Filter::Label(requirement) => pods.push(requirement),
            Filter::NamespaceLabel(requirement) => namespaces.push(requirement),
            other => rest.push(other),
        }
    }
    let namespaces = match &*namespaces {
        [Requirement { key, condition: Condition::In(names) }]
            if **key == *NAMESPACE_NAME_LABEL && names.len() == 1 =>
        {
            NamespaceScope::Own(Arc::clone(&names[0]))
        }
        _ => NamespaceScope::Selected(LabelSelector::new(namespaces)),
    };
    let filter = (!rest.is_empty()).then(|| Arc::new(all(rest)));
    Some(PodPeer { namespaces, pods: LabelSelector::new(pods), filter })
}

/// Returns the blocks of the sets of networks that the selector selects.
pub(super) fn blocks(selector: &Selector, surroundings: &Surroundings) -> Vec<Peer> {
    let nets = sets(selector, surroundings).flat_map(|set| &set.nets);
    nets.map(|&cidr| Peer::Block(IpBlock { cidr, except: Vec::new() })).collect()
}

/// Returns the patterns of domain names, such as `*.example.com`, in the sets of networks that the selector selects. Empty if no selected set has
/// any.
pub(super) fn names(selector: &Selector, surroundings: &Surroundings) -> Vec<Arc<str>> {
    sets(selector, surroundings).flat_map(|set| &set.names).cloned().collect()
}

/// Returns the sets of networks that the selector selects.
fn sets<'a>(selector: &'a Selector, surroundings: &'a Surroundings) -> impl Iterator<Item = &'a NetworkSet> {
    surroundings.network_sets.values().filter(|set| selects(selector, set, surroundings))
}

fn selects(selector: &Selector, set: &NetworkSet, surroundings: &Surroundings) -> bool {
    let namespace = set.namespace.as_ref();
    let labels = namespace.and_then(|namespace| surroundings.namespaces.get(namespace));
    selector.holds(&|key| {
        let inherited = || match key.strip_prefix(OF_NAMESPACE) {
            Some(NAME) => namespace,
            Some(key) => labels?.get(key),
            None => None,
        };
        let own = || set.labels.get(key).or_else(inherited);
        if key == NAMESPACE && set.name.kind == ForeignKind::CalicoNetworkSet { namespace } else { own() }
    })
}

/// Returns the condition on pods that the selector is, or the opposite one if `is_negated`.
fn filter(selector: &Selector, is_negated: bool, surroundings: &Surroundings) -> Filter {
    let parts = |selectors: &[Selector]| {
        selectors.iter().map(|selector| filter(selector, is_negated, surroundings)).collect::<Vec<_>>()
    };
    match selector {
        Selector::All | Selector::Global => constant(!is_negated),
        Selector::Label(requirement) => of_label(requirement, is_negated, surroundings),
        Selector::Not(selector) => filter(selector, !is_negated, surroundings),
        Selector::And(selectors) if is_negated => any(parts(selectors)),
        Selector::Or(selectors) if !is_negated => any(parts(selectors)),
        Selector::And(selectors) | Selector::Or(selectors) => all(parts(selectors)),
    }
}

fn constant(holds: bool) -> Filter {
    if holds { Filter::All(Vec::new()) } else { Filter::Any(Vec::new()) }
}

/// Returns the conjunction. Leaves out what always holds.
fn all(filters: Vec<Filter>) -> Filter {
    let mut parts = Vec::with_capacity(filters.len());
    for filter in filters {
        match filter {
            Filter::All(inner) => parts.extend(inner),
            Filter::Any(inner) if inner.is_empty() => return constant(false),
            other => parts.push(other),
        }
    }
    if parts.len() == 1 { parts.remove(0) } else { Filter::All(parts) }
}

/// Returns the disjunction. Leaves out what never holds.
fn any(filters: Vec<Filter>) -> Filter {
    let mut parts = Vec::with_capacity(filters.len());
    for filter in filters {
        match filter {
            Filter::Any(inner) => parts.extend(inner),
            Filter::All(inner) if inner.is_empty() => return constant(true),
            other => parts.push(other),
        }
    }
    if parts.len() == 1 { parts.remove(0) } else { Filter::Any(parts) }
}

fn of_label(requirement: &Requirement, is_negated: bool, surroundings: &Surroundings) -> Filter {
    let Requirement { key, condition } = requirement;
    let not = |holds: bool| constant(holds != is_negated);
    if **key == *ORCHESTRATOR {
        return not(condition.holds(Some(&"k8s".into())));
    }
    if names_account(key) {
        return of_account_name(condition, is_negated);
    }
    if let Some(key) = key.strip_prefix(OF_ACCOUNT) {
        return negated(of_account(key, condition, surroundings), is_negated);
    }
    let (of, key): (fn(Requirement) -> Filter, Arc<str>) = match key.strip_prefix(OF_NAMESPACE) {
        Some(NAME) => (Filter::NamespaceLabel, NAMESPACE_NAME_LABEL.into()),
        Some(key) => (Filter::NamespaceLabel, key.into()),
        None if **key == *NAMESPACE => (Filter::NamespaceLabel, NAMESPACE_NAME_LABEL.into()),
        None => (Filter::Label, Arc::clone(key)),
    };
    if *key == *NAMESPACE_NAME_LABEL && matches!(condition, Condition::Exists | Condition::DoesNotExist) {
        // Every namespace has a name, and every pod a namespace.
        let is_of_namespace = of(Requirement { key: Arc::clone(&key), condition: Condition::Exists });
        if matches!(is_of_namespace, Filter::NamespaceLabel(_)) {
            return not(*condition == Condition::Exists);
        }
    }
    match is_negated.then(|| opposite(condition)) {
        None => of(Requirement { key, condition: condition.clone() }),
        Some(Some(condition)) => of(Requirement { key, condition }),
        Some(None) => Filter::Not(Box::new(of(Requirement { key, condition: condition.clone() }))),
    }
}

fn negated(filter: Filter, is_negated: bool) -> Filter {
    match filter {
        filter if !is_negated => filter,
        Filter::All(inner) if inner.is_empty() => constant(false),
        Filter::Any(inner) if inner.is_empty() => constant(true),
        Filter::Not(inner) => *inner,
        other => Filter::Not(Box::new(other)),
    }
}

/// Returns the condition that holds exactly where this one does not. `None` if no condition does.
fn opposite(condition: &Condition) -> Option<Condition> {
    match condition {
        Condition::In(values) => Some(Condition::NotIn(values.clone())),
        Condition::NotIn(values) => Some(Condition::In(values.clone())),
        Condition::Exists => Some(Condition::DoesNotExist),
        Condition::DoesNotExist => Some(Condition::Exists),
        Condition::Contains(_) | Condition::StartsWith(_) | Condition::EndsWith(_) => None,
    }
}

/// Whether the label is the name of the endpoint's service account.
fn names_account(key: &str) -> bool {
    key == SERVICE_ACCOUNT || key.strip_prefix(OF_ACCOUNT) == Some(NAME)
}

/// Returns the condition on the name of a pod's service account, or the opposite one. Every pod has a service account.
fn of_account_name(condition: &Condition, is_negated: bool) -> Filter {
    match condition {
        Condition::Exists => constant(!is_negated),
        Condition::DoesNotExist => constant(is_negated),
        condition => negated(Filter::ServiceAccount(condition.clone()), is_negated),
    }
}

/// Returns the condition that a label of a pod's service account meets a condition. A service account without an object has no labels.
fn of_account(key: &str, condition: &Condition, surroundings: &Surroundings) -> Filter {
    let holds_without = condition.holds(None);
    let mut others: BTreeMap<&Arc<str>, Vec<Arc<str>>> = BTreeMap::new();
    for account in surroundings.service_accounts.values() {
        if condition.holds(account.labels.get(key)) != holds_without {
            others.entry(&account.name.namespace).or_default().push(account.name.name.clone());
        }
    }
    let of = |(namespace, names): (&Arc<str>, Vec<Arc<str>>)| {
        Filter::All(vec![Filter::Namespaces(vec![Arc::clone(namespace)]), Filter::ServiceAccount(Condition::In(names))])
    };
    negated(any(others.into_iter().map(of).collect()), holds_without)
}
