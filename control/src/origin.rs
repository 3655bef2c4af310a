//! Where a rule comes from: what stands behind the classifier's opaque marks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use bulkhead_classifier::OriginId;

use crate::object::{ClusterPolicyName, PolicyName, Tier};

/// The direction of traffic from the pod's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Towards the pod.
    Ingress,
    /// From the pod.
    Egress,
}

impl Direction {
    /// `ingress` or `egress`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    /// The direction of the same traffic at its other end.
    pub const fn opposite(self) -> Self {
        match self {
            Self::Ingress => Self::Egress,
            Self::Egress => Self::Ingress,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a rule is in a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A rule of a policy.
    Policy {
        /// The policy.
        policy: PolicyName,
        /// Which of its lists.
        direction: Direction,
        /// The rule's position in that list, from 0.
        rule: usize,
    },
    /// A rule of a cluster policy.
    ClusterPolicy {
        /// Admin or Baseline.
        tier: Tier,
        /// The policy.
        policy: ClusterPolicyName,
        /// Which of its lists.
        direction: Direction,
        /// The rule's position in that list, from 0.
        rule: usize,
        /// The rule's name where it has one.
        rule_name: Option<Arc<str>>,
    },
    /// The end of a list: these policies isolate the pod and none of them allows the traffic.
    Isolation {
        /// The policies, sorted.
        policies: Arc<[PolicyName]>,
        /// The isolated direction.
        direction: Direction,
    },
    /// No policy isolates the pod in this direction.
    NotIsolated(Direction),
    /// Traffic between a pod and the node it runs on, either way, is always allowed (kubelet probes, node-local DNS).
    /// Source: Kubernetes "Network Policies", "The two sorts of pod isolation": "traffic to and from the node where a
    /// Pod is running is always allowed".
    OwnNode,
    /// A pod always reaches itself.
    /// Source: Kubernetes "Network Policies", "What you can't do with network policies": no blocking of loopback.
    OwnPod,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy { policy, direction, rule } => write!(f, "{policy} {direction}[{rule}]"),
            Self::ClusterPolicy { tier, policy, direction, rule, rule_name } => {
                write!(f, "{} tier, {policy} {direction}[{rule}]", tier.name())?;
                rule_name.as_ref().map_or(Ok(()), |name| write!(f, " ({name})"))
            }
            Self::Isolation { policies, direction } => {
                write!(f, "{direction} isolated by ")?;
                for (at, policy) in policies.iter().enumerate() {
                    write!(f, "{}{policy}", if at > 0 { ", " } else { "" })?;
                }
                Ok(())
            }
            Self::NotIsolated(direction) => write!(f, "no {direction} isolation"),
            Self::OwnNode => f.write_str("own node"),
            Self::OwnPod => f.write_str("own pod"),
        }
    }
}

/// Numbers the origins, so that a rule and a session carry four bytes instead of names.
///
/// **A number never gets another meaning**: sessions, counters, captured verdicts and snapshots that workers still read
/// outlive the rules that made them, and none of them tells when it has forgotten a number. What is forgotten is the
/// meaning of numbers that no list and no published table has: a verdict may then name nobody, but never somebody else. It
/// is kept while fewer than [`Origins::KEPT`] others were numbered after the last use, so that what is still on its way to
/// a person has its name. Since the same policy's rule has the same number as long as it is remembered, it is new names of
/// policies, and new sets of policies that isolate, that take room: some 200 bytes each.
///
/// Numbers that are free again when nobody has them any more would need a count of their holders, packets among them.
#[derive(Clone, Debug)]
pub struct Origins {
    by_id: BTreeMap<OriginId, Origin>,
    ids: HashMap<Origin, OriginId>,
    /// Numbers that nothing had when that was last looked for, and that were not asked for since.
    unused: HashSet<OriginId>,
    given: u32,
    kept: usize,
    /// How many had a meaning when that was last looked for.
    before: usize,
}

impl Default for Origins {
    fn default() -> Self {
        Self::keeping(Self::KEPT)
    }
}

impl Origins {
    /// How many origins are numbered before one that is not used any more is forgotten: for 3 MB, a day in which a cluster
    /// makes ten policies of new names a minute.
    pub const KEPT: usize = 1 << 14;

    /// The number that stands for all origins when there are no others left. It means nothing.
    const NOBODY: OriginId = OriginId(u32::MAX);

    /// The number of [`Origin::OwnNode`], the same in every process, so that whoever makes such a rule needs no numbering.
    pub const OWN_NODE: OriginId = OriginId(0);

    /// The number of [`Origin::OwnPod`].
    pub const OWN_POD: OriginId = OriginId(1);

    /// The number of [`Origin::NotIsolated`].
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

    /// The number of the origin, a new one when it has none or is forgotten. After 2^32 numbers all origins have the last,
    /// which means nothing.
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

    /// What the number stands for; none when it was never given, or is forgotten.
    pub fn get(&self, id: OriginId) -> Option<&Origin> {
        self.by_id.get(&id)
    }

    /// The origins with a meaning whose numbers are `first` or later, ascending: a number that is given later is greater.
    pub fn since(&self, first: OriginId) -> impl Iterator<Item = (OriginId, &Origin)> {
        self.by_id.range(first..).map(|(&id, origin)| (id, origin))
    }

    /// The numbers of isolations, each with the policies that isolate.
    pub(crate) fn isolations(&self) -> impl Iterator<Item = (OriginId, &[PolicyName])> {
        self.by_id.iter().filter_map(|(&id, origin)| match origin {
            Origin::Isolation { policies, .. } => Some((id, &**policies)),
            _ => None,
        })
    }

    /// Forgets what was not used the last time either, once so many were numbered since that it is worth the search.
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

    /// How many numbers have a meaning.
    #[expect(clippy::len_without_is_empty, reason = "some origins always have a number")]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many origins have numbers from the start.
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
