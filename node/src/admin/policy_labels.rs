//! The labels of a policy's time series, and the limit on their number.

use std::collections::BTreeMap;

use bulkhead_control::origin::{Direction, Origin};
use bulkhead_dataplane::OriginCounters;

use super::exposition::Labels;

/// Maximum number of policies with separate time series. The least busy others are summed as `others`, so that policy names cannot flood
/// the metrics server.
pub(crate) const MAX_POLICIES: usize = 500;

/// Keeps the [`MAX_POLICIES`] busiest rows and sums the others into one.
pub(crate) fn bounded(sums: BTreeMap<Labels, OriginCounters>) -> Vec<(Labels, OriginCounters)> {
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by_key(|(_, counters)| std::cmp::Reverse(counters.allowed.saturating_add(counters.denied)));
    if rows.len() > MAX_POLICIES {
        let rest = rows.split_off(MAX_POLICIES).into_iter().map(|(_, counters)| counters);
        rows.push((policy_labels("others", "", "", ""), rest.fold(OriginCounters::default(), plus)));
    }
    rows
}

pub(crate) fn plus(sum: OriginCounters, more: OriginCounters) -> OriginCounters {
    OriginCounters {
        allowed: sum.allowed + more.allowed,
        denied: sum.denied + more.denied,
        audited: sum.audited + more.audited,
    }
}

fn policy_labels(kind: &str, namespace: &str, policy: &str, direction: &str) -> Labels {
    [("kind", kind), ("namespace", namespace), ("policy", policy), ("direction", direction)]
        .map(|(name, value)| (name, value.to_owned()))
        .into()
}

pub(crate) fn labels_of(origin: Option<Origin>) -> Labels {
    let labels = |kind, namespace: &str, policy: &str, direction: Option<Direction>| {
        policy_labels(kind, namespace, policy, direction.map_or("", Direction::name))
    };
    match origin {
        Some(Origin::Policy { policy, direction, .. }) => {
            labels("networkpolicy", &policy.namespace, &policy.name, Some(direction))
        }
        Some(Origin::ClusterPolicy { policy, direction, .. }) => {
            labels("clusternetworkpolicy", "", &policy.to_string(), Some(direction))
        }
        // One series covers all policies that isolate a pod. Their namespace is the pod's.
        Some(Origin::Isolation { policies, direction, .. }) => {
            let namespace = policies.first().map_or("", |policy| &*policy.namespace);
            labels("isolation", namespace, "", Some(direction))
        }
        Some(Origin::NotIsolated(direction)) => labels("not_isolated", "", "", Some(direction)),
        Some(Origin::OwnNode) => labels("own_node", "", "", None),
        Some(Origin::OwnPod) => labels("own_pod", "", "", None),
        None => labels("unknown", "", "", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_policies_there_are_the_series_are_bounded_and_nothing_is_lost() {
        let counters = |at: usize| OriginCounters { allowed: at as u64, denied: 1, audited: 0 };
        let policies = |count: usize| -> BTreeMap<Labels, OriginCounters> {
            let of = |at: usize| policy_labels("networkpolicy", "n", &format!("p{at}"), "ingress");
            (0..count).map(|at| (of(at), counters(at))).collect()
        };
        assert_eq!(bounded(policies(MAX_POLICIES)).len(), MAX_POLICIES);
        let many = 3 * MAX_POLICIES;
        let rows = bounded(policies(many));
        assert_eq!(rows.len(), MAX_POLICIES + 1);
        let total = rows.iter().map(|(_, counters)| *counters).fold(OriginCounters::default(), plus);
        assert_eq!(total, (0..many).map(counters).fold(OriginCounters::default(), plus));
        let (first, last) = (&rows[0], &rows[MAX_POLICIES]);
        assert_eq!(first.1, counters(many - 1), "the busiest one has its own");
        assert_eq!(last.0, policy_labels("others", "", "", ""));
    }
}
