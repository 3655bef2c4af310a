//! Recognizes unsupported kinds, of other products and of Kubernetes, that restrict traffic.

use super::error::Problem;
use super::path::FieldPath;

/// The kind that is enforced, if its group is one of [`is_own_group`].
pub(super) const OWN_KIND: &str = "NetworkPolicy";

/// Kinds that restrict traffic and whose names do not contain `NetworkPolicy`, as (group, kind).
const OTHERS: [(&str, &str); 1] = [("k8s.ovn.org", "EgressFirewall")];

/// Whether NetworkPolicies of `group` are those of Kubernetes.
pub(super) fn is_own_group(group: &str) -> bool {
    ["networking.k8s.io", "extensions"].iter().any(|own| own.eq_ignore_ascii_case(group))
}

/// Returns the group of an apiVersion. Empty for the core group.
pub(super) fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Whether objects of an unsupported kind restrict traffic, such as `CiliumNetworkPolicy` and `GlobalNetworkPolicy`. Calico's staged
/// policies are proposals, which Calico does not enforce either.
pub(super) fn restricts(group: &str, kind: &str) -> bool {
    let lower = kind.to_ascii_lowercase();
    let is_policy = lower.ends_with("networkpolicy") || lower.ends_with("networkpolicies");
    (is_policy && !lower.starts_with("staged")) || OTHERS.contains(&(group, kind))
}

/// Returns the problem for objects of an unsupported kind that restricts traffic.
pub(super) fn problem(api_version: &str, kind: &str) -> Problem {
    let group = group_of(api_version);
    let name = if kind.eq_ignore_ascii_case(OWN_KIND) { format!("{kind}.{group}") } else { kind.to_owned() };
    let text = format!("objects of kind {api_version} {kind} restrict traffic and are not enforced");
    let help = format!(
        "write what they say as networking.k8s.io/v1 NetworkPolicy; or accept what they then do not restrict: --ignore {name}, and \
         for `run` state: {{ignore: [{name}]}}"
    );
    Problem::new(&FieldPath::default(), text, help)
}
