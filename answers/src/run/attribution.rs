//! The policy behind a verdict.

use std::borrow::Cow;
use std::sync::Arc;

use bulkhead_control::object::{ClusterPolicyName, ObjectName, PodName, Position};
use bulkhead_control::origin::Origin;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_dataplane::Decision;

/// The policy behind a verdict, in the user's terms.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Attribution {
    /// The NetworkPolicy rule that decided. `None` if another policy or none decided.
    pub policy: Option<PolicyRef>,
    /// The rule of a cluster policy that decided. `None` if another policy or none decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_policy: Option<ClusterPolicyRef>,
    /// The policies that isolate the pod, if no rule allowed the packet. Empty if a rule decided.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub isolated_by: Vec<PolicyRef>,
    /// Why policy cannot deny the traffic: `own_node` or `own_pod`. `None` if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exempt: Option<Cow<'static, str>>,
}

/// A NetworkPolicy or one of its rules.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PolicyRef {
    /// Namespace of the policy.
    pub namespace: Arc<str>,
    /// Name of the policy.
    pub name: Arc<str>,
    /// Direction of the rule: `ingress` or `egress`.
    pub direction: Cow<'static, str>,
    /// Index of the rule, from 0. `None` for the whole policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
    /// Kind of the policy. `None` for a NetworkPolicy of Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Cow<'static, str>>,
}

impl PolicyRef {
    fn new(policy: &ObjectName, direction: &'static str, rule: Option<usize>) -> Self {
        let ObjectName { namespace, name } = policy.clone();
        Self { namespace, name, direction: direction.into(), rule, kind: None }
    }

    /// Returns the reference to a policy of another product. Its namespace is empty if its kind has none.
    fn foreign(policy: &ClusterPolicyName, direction: &'static str) -> Self {
        let (namespace, name) = policy.name.split_once('/').unwrap_or(("", &policy.name));
        let kind = Some(policy.kind.name().into());
        Self { namespace: namespace.into(), name: name.into(), direction: direction.into(), rule: None, kind }
    }
}

/// A rule of a cluster policy.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ClusterPolicyRef {
    /// Tier of the policy: `Admin`, `Baseline`, or another product's.
    pub tier: Cow<'static, str>,
    /// Kind of the policy.
    pub kind: Cow<'static, str>,
    /// Name of the policy.
    pub name: Arc<str>,
    /// Direction of the rule: `ingress` or `egress`.
    pub direction: Cow<'static, str>,
    /// Index of the rule, from 0.
    pub rule: usize,
    /// Name of the rule. `None` if unnamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule_name: Option<Arc<str>>,
    /// What else decides about traffic that the rule accepts: `HTTP rules`. `None` if nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Arc<str>>,
}

/// Converts an origin to an attribution. `None` gives an empty one.
pub fn attribution(origin: Option<&Origin>) -> Attribution {
    match origin {
        Some(Origin::Policy { policy, direction, rule }) => Attribution {
            policy: Some(PolicyRef::new(policy, direction.name(), Some(*rule))),
            ..Attribution::default()
        },
        Some(Origin::Isolation { policies, others, direction, .. }) => {
            let own = policies.iter().map(|policy| PolicyRef::new(policy, direction.name(), None));
            let others = others.iter().map(|policy| PolicyRef::foreign(policy, direction.name()));
            Attribution { isolated_by: own.chain(others).collect(), ..Attribution::default() }
        }
        Some(Origin::ClusterPolicy { tier, policy, direction, rule, rule_name, then }) => Attribution {
            cluster_policy: Some(ClusterPolicyRef {
                tier: tier.name().to_owned().into(),
                kind: policy.kind.name().into(),
                name: policy.name.clone(),
                direction: direction.name().into(),
                rule: *rule,
                rule_name: rule_name.clone(),
                then: then.clone(),
            }),
            ..Attribution::default()
        },
        Some(Origin::OwnNode) => Attribution { exempt: Some("own_node".into()), ..Attribution::default() },
        Some(Origin::OwnPod) => Attribution { exempt: Some("own_pod".into()), ..Attribution::default() },
        Some(Origin::NotIsolated(_)) | None => Attribution::default(),
    }
}

/// Returns the origin of a decision. `None` if no rule was involved.
pub fn origin(pipeline: &Pipeline, decision: Option<Decision>) -> Option<Origin> {
    pipeline.origins().get(decision?.origin?).cloned()
}

/// Returns the file position of a policy. `None` if it was deleted or did not come from a file.
pub fn position<'a>(pipeline: &'a Pipeline, policy: &PodName) -> Option<&'a Position> {
    pipeline.cache().policies().get(policy)?.position.as_ref()
}
