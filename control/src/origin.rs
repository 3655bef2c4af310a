//! Origins: the meaning of the classifier's opaque origin numbers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use bulkhead_classifier::OriginId;

pub use crate::object::Direction;
use crate::object::{ClusterPolicyName, PolicyName, Tier};

/// The reason why a rule is in a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A rule of a policy.
    Policy {
        /// The policy's namespace and name.
        policy: PolicyName,
        /// The policy's list that contains the rule: `ingress` or `egress`.
        direction: Direction,
        /// The rule's index in that list, starting at 0.
        rule: usize,
    },
    /// A rule of a cluster policy.
    ClusterPolicy {
        /// The policy's tier.
        tier: Tier,
        /// The policy's kind and name.
        policy: ClusterPolicyName,
        /// The policy's list that contains the rule: `ingress` or `egress`.
        direction: Direction,
        /// The rule's index in that list, starting at 0.
        rule: usize,
        /// The rule's name. `None` if the rule has none.
        rule_name: Option<Arc<str>>,
        /// What else decides about traffic that the rule accepts, and is not evaluated here: `HTTP rules`. `None` if nothing does.
        then: Option<Arc<str>>,
    },
    /// The default deny at the end of a tier: these policies isolate the pod, and no rule of the tier allows the traffic. Some tiers of other
    /// products pass the traffic to the next tier instead.
    Isolation {
        /// The tier.
        tier: Tier,
        /// The NetworkPolicies among the isolating policies, sorted.
        policies: Arc<[PolicyName]>,
        /// The policies of other products among the isolating policies, in order of evaluation.
        others: Arc<[ClusterPolicyName]>,
        /// The isolated direction.
        direction: Direction,
    },
    /// No policy isolates the pod in this direction.
    NotIsolated(Direction),
    /// Traffic between a pod and its own node is always allowed, in both directions (kubelet probes, node-local DNS). Source: Kubernetes
    /// "Network Policies", "The two sorts of pod isolation": "traffic to and from the node where a Pod is running is always allowed".
    OwnNode,
    /// A pod can always reach itself. Source: Kubernetes "Network Policies", "What you can't do with network policies".
    OwnPod,
}

impl Origin {
    /// Returns the origin of the default deny behind NetworkPolicies that isolate a pod in a direction. `policies` are sorted.
    pub fn isolation(policies: impl Into<Arc<[PolicyName]>>, direction: Direction) -> Self {
        Self::Isolation { tier: Tier::NetworkPolicy, policies: policies.into(), others: [].into(), direction }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy { policy, direction, rule } => write!(f, "{policy} {direction}[{rule}]"),
            Self::ClusterPolicy { tier, policy, direction, rule, rule_name, then } => {
                write!(f, "{} tier, {policy} ", tier.name())?;
                match rule_name {
                    Some(path) if policy.kind.is_cilium() => write!(f, "{path}")?,
                    Some(name) => write!(f, "{direction}[{rule}] ({name})")?,
                    None => write!(f, "{direction}[{rule}]")?,
                }
                then.as_ref().map_or(Ok(()), |then| write!(f, ", then {then}"))
            }
            Self::Isolation { tier, policies, others, direction } => {
                match tier {
                    Tier::Other(tier) => write!(f, "{} tier, ", tier.name)?,
                    Tier::Admin | Tier::NetworkPolicy | Tier::Baseline => {}
                }
                write!(f, "{direction} isolated by ")?;
                let names = policies.iter().map(ToString::to_string).chain(others.iter().map(ToString::to_string));
                f.write_str(&names.collect::<Vec<_>>().join(", "))
            }
            Self::NotIsolated(direction) => write!(f, "no {direction} isolation"),
            Self::OwnNode => f.write_str("own node"),
            Self::OwnPod => f.write_str("own pod"),
        }
    }
}

/// Assigns numbers to origins, so that rules and sessions store four bytes instead of names.
///
/// **A number never gets a second meaning.** Sessions, counters, captured verdicts and snapshots may still have the number of a deleted
/// rule. So only the meaning of a number that no list and no published table has is forgotten. Such a verdict then has no name, but never a
/// wrong one. A meaning is kept until [`Origins::KEPT`] others were numbered after its last use, for reports in progress. Only new policy
/// names and new sets of isolating policies use memory: about 200 bytes each. Reusing numbers would require a count of their holders,
/// including packets.
#[derive(Clone, Debug)]
pub struct Origins {
    by_id: BTreeMap<OriginId, Origin>,
    ids: HashMap<Origin, OriginId>,
    /// Numbers that were unused in the last sweep and were not requested since.
    unused: HashSet<OriginId>,
    given: u32,
    kept: usize,
    /// Number of origins after the last sweep.
    before: usize,
}

impl Default for Origins {
    fn default() -> Self {
        Self::keeping(Self::KEPT)
    }
}

impl Origins {
    /// Number of new origins after which an unused one is forgotten: 3 MB, or a day with ten new policy names per minute in the cluster.
    pub const KEPT: usize = 1 << 14;

    /// The number of all origins after 2^32 - 1 others. It has no meaning.
    const NOBODY: OriginId = OriginId(u32::MAX);

    /// The number of [`Origin::OwnNode`]. Constant in all processes, so that a rule for it needs no [`Origins`].
    pub const OWN_NODE: OriginId = OriginId(0);

    /// The number of [`Origin::OwnPod`], also constant.
    pub const OWN_POD: OriginId = OriginId(1);

    /// Returns the number of [`Origin::NotIsolated`], also constant.
    pub const fn not_isolated(direction: Direction) -> OriginId {
        match direction {
            Direction::Ingress => OriginId(2),
            Direction::Egress => OriginId(3),
        }
    }

    pub(crate) fn keeping(kept: usize) -> Self {
        let mut origins =
            Self { by_id: BTreeMap::new(), ids: HashMap::new(), unused: HashSet::new(), given: 0, kept, before: 0 };
        let [ingress, egress] = [Direction::Ingress, Direction::Egress].map(Origin::NotIsolated);
        for fixed in [Origin::OwnNode, Origin::OwnPod, ingress, egress] {
            origins.id(fixed);
        }
        origins
    }

    /// Returns the origin's number, or a new one if it has none or was forgotten. After 2^32 - 1 numbers, returns `u32::MAX` without a
    /// meaning.
    pub fn id(&mut self, origin: Origin) -> OriginId {
        if let Some(&id) = self.ids.get(&origin) {
            self.unused.remove(&id);
            return id;
        }
        let id = OriginId(self.given);
        if id == Self::NOBODY {
            return id;
        }
        self.given += 1;
        self.by_id.insert(id, origin.clone());
        self.ids.insert(origin, id);
        id
    }

    /// Returns the origin with this number. `None` if the number was never assigned or its origin is forgotten.
    pub fn get(&self, id: OriginId) -> Option<&Origin> {
        self.by_id.get(&id)
    }

    /// Returns the known origins whose numbers are `first` or later, in the order in which they were numbered.
    pub fn since(&self, first: OriginId) -> impl Iterator<Item = (OriginId, &Origin)> {
        self.by_id.range(first..).map(|(&id, origin)| (id, origin))
    }

    /// Returns the numbers of isolations, each with the isolating policies.
    pub(crate) fn isolations(&self) -> impl Iterator<Item = (OriginId, &[PolicyName])> {
        self.by_id.iter().filter_map(|(&id, origin)| match origin {
            Origin::Isolation { policies, .. } => Some((id, &**policies)),
            _ => None,
        })
    }

    /// Forgets origins that were unused in this sweep and the previous one. Does nothing until `kept` origins were added since.
    pub(crate) fn sweep(&mut self, used: impl FnOnce() -> HashSet<OriginId>) {
        if self.by_id.len() < self.before + self.kept {
            return;
        }
        let used = used();
        let lasts = |origin: &Origin| {
            !matches!(origin, Origin::Policy { .. } | Origin::ClusterPolicy { .. } | Origin::Isolation { .. })
        };
        let before = std::mem::take(&mut self.unused);
        self.by_id.retain(|id, origin| used.contains(id) || lasts(origin) || !before.contains(id));
        self.ids.retain(|_, id| self.by_id.contains_key(id));
        let unused = |(id, origin): (&OriginId, &Origin)| (!used.contains(id) && !lasts(origin)).then_some(*id);
        self.unused = self.by_id.iter().filter_map(unused).collect();
        self.before = self.by_id.len();
    }

    /// Returns the number of origins that have a number.
    #[expect(clippy::len_without_is_empty, reason = "some origins always have a number")]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of origins that have a number from the start.
    const FIXED: u32 = 4;

    fn origin(at: usize) -> Origin {
        Origin::Policy { policy: PolicyName::new("x", format!("p{at}")), direction: Direction::Ingress, rule: 0 }
    }

    #[test]
    fn what_nothing_uses_is_forgotten_after_as_many_others_and_its_number_means_nobody_else() {
        let mut origins = Origins::keeping(10);
        let lasting = origins.id(Origin::OwnNode);
        let used = origins.id(origin(0));
        let mut most = 0;
        for at in 1..1_000 {
            let id = origins.id(origin(at));
            origins.sweep(|| [used].into());
            most = most.max(origins.len());
            let back = at.saturating_sub(9).max(1);
            for recent in back..=at {
                let number = origins.ids[&origin(recent)];
                assert_eq!(origins.get(number), Some(&origin(recent)), "{recent} at {at}");
            }
            assert_eq!(origins.get(id), Some(&origin(at)));
            assert!((0..origins.given).all(|id| origins.get(OriginId(id)).is_none_or(|meant| match meant {
                Origin::Policy { .. } => *meant == origin((id - FIXED) as usize),
                _ => id < FIXED,
            })));
        }
        assert!(most <= 39, "{most} origins remembered of 1,004");
        assert_eq!((origins.get(lasting), origins.get(used)), (Some(&Origin::OwnNode), Some(&origin(0))));
        assert_eq!(origins.get(OriginId(5)), None);
        assert_eq!(origins.id(origin(1)).0, 1_004, "it comes back under a new number");
    }

    #[test]
    fn an_origin_that_is_asked_for_again_is_in_use() {
        let mut origins = Origins::keeping(10);
        let id = origins.id(origin(0));
        for at in 1..200 {
            origins.id(origin(at));
            assert_eq!(origins.id(origin(0)), id);
            origins.sweep(HashSet::new);
        }
    }

    #[test]
    fn after_the_last_number_origins_have_no_meaning_and_not_anothers() {
        let mut origins = Origins { given: u32::MAX - 1, ..Origins::default() };
        let last = origins.id(origin(0));
        assert_eq!(origins.get(last), Some(&origin(0)));
        let (one, other) = (origins.id(origin(1)), origins.id(origin(2)));
        assert_eq!((origins.get(one), origins.get(other)), (None, None));
        assert_eq!(origins.id(origin(0)), last);
    }
}
