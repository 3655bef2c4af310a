//! Security identities: a number for each set of labels, the same on every node without a store.
//!
//! ```text
//!  namespace, labels --sorted text--> hash --> first choice, second choice, ... --the first that is not another's--> 7340321
//!                                                                                  `-- CiliumIdentity-like objects say it instead
//! ```
//! **Purpose.** What people see, and what nodes could tell each other: all pods of an application have one number, and a pod's
//! address has that of its labels. [`Identities`] gives numbers to label sets and finds label sets by their numbers.
//!
//! **Not its purpose.** Nothing is enforced by these numbers ([`crate::renderer::identity`] says why), so that it does no harm where
//! somebody writes labels whose numbers collide.
//!
//! **Derived, not allocated.** Each label set has choices in the order that its hash gives, and gets the first that no label set of
//! precedence has; precedence is by the whole hash, then by the text. That is a function of which label sets there are, so that two
//! nodes, and two runs of one, agree as soon as they see the same pods, in whatever order they came. What lost: a counter in a store (a
//! dependency, and a node that cannot reach it cannot start pods); the hash alone (30,000 label sets in 2^24 numbers collide 27 times).
//! What it costs: where one of two that collide goes, the other gets its first choice, another number than it had.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use ahash::AHashMap;
use ipnet::IpNet;

use crate::object::Labels;

/// A security identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub u32);

impl Identity {
    /// Nobody in particular: the wildcard of a policy map.
    pub const ANY: Self = Self(0);
    /// The node itself. Source of this and the next two: Cilium, pkg/identity/numericidentity.go, reserved identities.
    pub const HOST: Self = Self(1);
    /// Whatever is not in the cluster.
    pub const WORLD: Self = Self(2);
    /// Another node.
    pub const REMOTE_NODE: Self = Self(6);

    /// The first number that label sets get: those below are reserved, as in Cilium.
    const FIRST: u32 = 256;
    /// One more than the last: 24 bits fit a VXLAN network identifier, in which overlays carry an identity.
    const END: u32 = 1 << 24;
    /// The bit of numbers that mean something on one node alone, as in Cilium: those of address blocks that its policies name.
    const LOCAL: u32 = 1 << 24;

    /// Whether the number means something on one node alone.
    pub const fn is_local(self) -> bool {
        self.0 & Self::LOCAL != 0
    }

    /// The name of a special identity.
    pub const fn reserved(self) -> Option<&'static str> {
        match self {
            Self::ANY => Some("any"),
            Self::HOST => Some("host"),
            Self::WORLD => Some("world"),
            Self::REMOTE_NODE => Some("remote-node"),
            _ => None,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What an identity stands for: labels in order, each written once, `key=value;` each. Equal sets have equal texts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelSet(Arc<str>);

impl LabelSet {
    /// The labels of a pod, and its namespace, under a name that no label of a pod can have.
    pub fn of_pod(namespace: &str, labels: &Labels) -> Self {
        Self::of_pod_within(namespace, labels, &[])
    }

    /// The same of pods that rules tell apart by more than labels: each text says by what (a block, a port's number).
    pub fn of_pod_within(namespace: &str, labels: &Labels, within: &[String]) -> Self {
        // Source: Cilium, the label `k8s:io.kubernetes.pod.namespace`.
        let mut text = format!("k8s:io.kubernetes.pod.namespace={namespace};");
        let pairs: BTreeMap<&str, &str> = labels.iter().map(|(key, value)| (&**key, &**value)).collect();
        pairs.iter().for_each(|(key, value)| text.push_str(&format!("k8s:{key}={value};")));
        within.iter().for_each(|within| text.push_str(&format!("{within};")));
        Self(text.into())
    }

    /// The addresses that these blocks, and none besides of those that policies name, hold.
    pub fn of_blocks<'a>(blocks: impl IntoIterator<Item = &'a IpNet>) -> Self {
        let blocks: BTreeSet<&IpNet> = blocks.into_iter().collect();
        Self(blocks.into_iter().map(|block| format!("cidr:{block};")).collect::<String>().into())
    }

    /// The labels as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// FNV-1a with 64 bits: the same on every machine and in every version, which keyed hashes are not.
    /// Source: draft-eastlake-fnv, "FNV-1a".
    fn hash(&self) -> u64 {
        self.0
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    }
}

impl fmt::Display for LabelSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who has a number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    labels: LabelSet,
    /// Which of its choices this is; none where an object says it.
    choice: Option<u32>,
}

/// The store: label sets and their numbers, both ways.
#[derive(Clone, Debug)]
pub struct Identities {
    by_labels: AHashMap<LabelSet, Identity>,
    by_number: BTreeMap<Identity, Held>,
    /// Those that do not have their first choice.
    displaced: BTreeSet<LabelSet>,
    first: u32,
    count: u32,
    local: bool,
}

impl Identities {
    /// An empty store of numbers that mean the same on all nodes.
    pub fn of_cluster() -> Self {
        Self::with(Identity::FIRST, Identity::END - Identity::FIRST, false)
    }

    /// An empty store of numbers that mean something on one node alone.
    pub fn of_node() -> Self {
        Self::with(Identity::LOCAL, Identity::END, true)
    }

    fn with(first: u32, count: u32, local: bool) -> Self {
        Self { by_labels: AHashMap::new(), by_number: BTreeMap::new(), displaced: BTreeSet::new(), first, count, local }
    }

    /// The number of a label set, which gets one if it has none. None when there are as many label sets as numbers.
    pub fn add(&mut self, labels: &LabelSet) -> Option<Identity> {
        if let Some(&known) = self.by_labels.get(labels) {
            return Some(known);
        }
        if self.by_labels.len() >= self.count as usize {
            return None;
        }
        self.settle(labels.clone());
        self.by_labels.get(labels).copied()
    }

    /// Gives a label set the number that an object (a CiliumIdentity, a record of a store) says, whoever has it by derivation. False
    /// where another object has said it for other labels: then nothing changes.
    pub fn assign(&mut self, labels: &LabelSet, number: Identity) -> bool {
        if self.by_number.get(&number).is_some_and(|held| held.choice.is_none() && held.labels != *labels) {
            return false;
        }
        self.remove(labels);
        let evicted = self.by_number.insert(number, Held { labels: labels.clone(), choice: None });
        self.by_labels.insert(labels.clone(), number);
        if let Some(evicted) = evicted {
            self.by_labels.remove(&evicted.labels);
            self.settle(evicted.labels);
        }
        true
    }

    /// Forgets a label set that no pod has any more.
    pub fn remove(&mut self, labels: &LabelSet) {
        let Some(number) = self.by_labels.remove(labels) else { return };
        self.by_number.remove(&number);
        self.displaced.remove(labels);
        // Whoever would rather have had this number did not get its first choice. All of them choose again, which ends the same
        // whatever the order.
        let displaced = std::mem::take(&mut self.displaced);
        for number in displaced.iter().filter_map(|other| self.by_labels.remove(other)) {
            self.by_number.remove(&number);
        }
        displaced.into_iter().for_each(|other| self.settle(other));
    }

    /// The number of a label set.
    pub fn of(&self, labels: &LabelSet) -> Option<Identity> {
        self.by_labels.get(labels).copied()
    }

    /// The label set of a number.
    pub fn labels(&self, number: Identity) -> Option<&LabelSet> {
        self.by_number.get(&number).map(|held| &held.labels)
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = (Identity, &LabelSet)> {
        self.by_number.iter().map(|(&number, held)| (number, &held.labels))
    }

    /// Whether its numbers mean something on one node alone.
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// The number that a label set chooses at last or first.
    fn choice(&self, labels: &LabelSet, choice: u32) -> Identity {
        let hash = labels.hash();
        // Both halves decide: those that collide once do not collide again and again. An odd step, and after a round one by one, so that
        // every number is a choice some time.
        let step = (hash >> 32) | 1;
        let at = if choice < self.count {
            (hash & u64::from(u32::MAX)).wrapping_add(step.wrapping_mul(choice.into()))
        } else {
            hash.wrapping_add((choice - self.count).into())
        };
        let at = u32::try_from(at % u64::from(self.count)).expect("below a count of 32 bits");
        Identity(self.first + at)
    }

    /// Whether the first comes before the second where both choose one number.
    fn precedes(one: &LabelSet, other: &LabelSet) -> bool {
        (one.hash(), one) < (other.hash(), other)
    }

    /// Finds a number for a label set that has none, and for those that have to give theirs up.
    fn settle(&mut self, labels: LabelSet) {
        let mut next = Some((labels, 0));
        while let Some((labels, choice)) = next.take() {
            let number = self.choice(&labels, choice);
            let is_free = self
                .by_number
                .get(&number)
                .is_none_or(|held| held.choice.is_some() && Self::precedes(&labels, &held.labels));
            if !is_free {
                next = Some((labels, choice + 1));
                continue;
            }
            if choice > 0 {
                self.displaced.insert(labels.clone());
            }
            self.by_labels.insert(labels.clone(), number);
            let evicted = self.by_number.insert(number, Held { labels, choice: Some(choice) });
            if let Some(Held { labels, choice: Some(choice) }) = evicted {
                self.by_labels.remove(&labels);
                self.displaced.remove(&labels);
                next = Some((labels, choice + 1));
            }
        }
    }
}

#[cfg(test)]
mod tests;
