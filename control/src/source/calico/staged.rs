//! Reads StagedKubernetesNetworkPolicies of Calico: what a NetworkPolicy of Kubernetes would deny if it were enforced.

use std::sync::Arc;

use serde_json::Value;

use super::super::outcome::{ObjectKey, Outcome, Read};
use super::super::policy;
use super::policy::staged_away;
use crate::object::{
    ClusterPolicy, ClusterPolicyKind, ClusterPolicyName, ClusterRule, Enforcement, Isolation, NamespaceScope, Object,
    Order, PodPeer, Policy, PolicyRule, PolicyVersion, Rank, RuleAction, Tier,
};

/// Reads a policy as a NetworkPolicy, and returns it as an audited one among the others of its tier.
pub(super) fn read(value: &Value) -> Read {
    let kind = ClusterPolicyKind::CalicoStagedKubernetesNetworkPolicy;
    let mut own = value.clone();
    let action = own.get_mut("spec").and_then(Value::as_object_mut).and_then(|spec| spec.remove("stagedAction"));
    let Read { key, outcome, mut findings, .. } = policy::read(&own, PolicyVersion::V1, None);
    let action = action.as_ref().filter(|action| !action.is_null());
    let text = action.map(|action| action.as_str().map_or_else(|| action.to_string(), str::to_owned));
    let is_away = staged_away(text.as_deref(), &mut findings);
    let key = key.map(|key| ObjectKey { kind: kind.name(), ..key });
    let label = key
        .as_ref()
        .map_or_else(|| kind.name().to_owned(), |key| format!("{} {}/{}", kind.name(), key.namespace, key.name));
    let outcome = match outcome {
        _ if is_away => Outcome::Nothing,
        Outcome::Object(Object::Policy(policy)) if findings.problems.is_empty() => {
            Outcome::Object(staged(kind, Arc::unwrap_or_clone(policy)).into())
        }
        // A faulty staged policy decides nothing, as every staged policy.
        _ => Outcome::Nothing,
    };
    Read { label, key, outcome, findings }
}

fn staged(kind: ClusterPolicyKind, policy: Policy) -> ClusterPolicy {
    let Policy { name, subject, ingress, egress, position, .. } = policy;
    let isolates = Isolation { ingress: ingress.is_some(), egress: egress.is_some() };
    let rules = |rules: Option<Vec<PolicyRule>>| {
        let rule = |traffic| ClusterRule { name: None, action: RuleAction::Accept, traffic, then: None, at: None };
        rules.into_iter().flatten().map(rule).collect()
    };
    ClusterPolicy {
        rank: Rank {
            tier: Tier::NetworkPolicy,
            order: Order::NETWORK_POLICY,
            tie: format!("{}/{}/StagedKubernetesNetworkPolicy", name.name, name.namespace).into(),
            name: ClusterPolicyName { kind, name: name.to_string().into() },
        },
        subject: PodPeer { namespaces: NamespaceScope::Own(name.namespace), pods: subject, filter: None },
        ingress: rules(ingress),
        egress: rules(egress),
        isolates,
        is_union: false,
        fault: None,
        position,
        enforcement: Some(Enforcement::Audit),
    }
}
