//! Security identities: a number for each set of labels, equal on all nodes without a shared store.
//!
//! ```text
//!  namespace, labels --sorted text--> hash --> first choice, second choice, ... --first free choice--> 7340321
//!                                                                                  `-- or the number that an object sets
//! ```
//! **Purpose.** Numbers for users and for communication between nodes. All pods of an application have one number, that of their labels.
//! [`Identities`] maps label sets to numbers and back.
//!
//! **Not its purpose.** Enforcement ([`crate::renderer::identity`] says why). So labels with colliding numbers give no access.
//!
//! **Derived, not allocated.** A label set's hash yields a sequence of choices. The label set gets the first choice that no label set of
//! higher precedence has; precedence is by hash, then by text. The result depends on the existing label sets only, not on their order. So
//! nodes and restarted processes agree as soon as they see the same pods.
//!
//! A counter in a store would be a dependency, and a node without access to the store could not start pods. The hash alone has 27
//! collisions with 30,000 label sets in 2^24 numbers. The cost: after one of two colliding label sets is removed, the other one's number
//! changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use ahash::AHashMap;
use ipnet::IpNet;

use crate::object::Labels;

/// A security identity: the number of a label set, or a reserved number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub u32);

impl Identity {
    /// Matches every identity: the wildcard of a policy map.
    pub const ANY: Self = Self(0);
    /// The local node. Source of this and the next two: Cilium, pkg/identity/numericidentity.go, reserved identities.
    pub const HOST: Self = Self(1);
    /// Any address outside the cluster.
    pub const WORLD: Self = Self(2);
    /// Another node.
    pub const REMOTE_NODE: Self = Self(6);

    /// The lowest number for label sets. Lower numbers are reserved, as in Cilium.
    const FIRST: u32 = 256;
    /// One more than the highest number: 24 bits fit a VXLAN network identifier, in which overlays carry an identity.
    const END: u32 = 1 << 24;
    /// The bit of node-local numbers, as in Cilium. They identify address blocks that policies name.
    const LOCAL: u32 = 1 << 24;

    /// Whether the number is valid on one node only.
    pub const fn is_local(self) -> bool {
        self.0 & Self::LOCAL != 0
    }

    /// Returns the name of a reserved identity. `None` for other numbers.
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

/// The meaning of an identity: sorted labels without duplicates, each as `key=value;`. Equal sets have equal texts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelSet(Arc<str>);

impl LabelSet {
    /// Returns the labels of a pod and its namespace. The namespace's key cannot be a pod label.
    pub fn of_pod(namespace: &str, labels: &Labels) -> Self {
        Self::of_pod_within(namespace, labels, &[])
    }

    /// As [`of_pod`](Self::of_pod), for pods that rules also distinguish by blocks or port numbers, which `within` lists as texts.
    pub fn of_pod_within(namespace: &str, labels: &Labels, within: &[String]) -> Self {
        // Source: Cilium, the label `k8s:io.kubernetes.pod.namespace`.
        let mut text = format!("k8s:io.kubernetes.pod.namespace={namespace};");
        let pairs: BTreeMap<&str, &str> = labels.iter().map(|(key, value)| (&**key, &**value)).collect();
        pairs.iter().for_each(|(key, value)| text.push_str(&format!("k8s:{key}={value};")));
        within.iter().for_each(|within| text.push_str(&format!("{within};")));
        Self(text.into())
    }

    /// Returns the addresses that are in exactly these blocks, of all blocks that policies name.
    pub fn of_blocks<'a>(blocks: impl IntoIterator<Item = &'a IpNet>) -> Self {
        let blocks: BTreeSet<&IpNet> = blocks.into_iter().collect();
        Self(blocks.into_iter().map(|block| format!("cidr:{block};")).collect::<String>().into())
    }

    /// Returns the labels as text, in the form `key=value;key=value;`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Hashes the labels with 64-bit FNV-1a (draft-eastlake-fnv), which is equal on all machines and in all versions, unlike keyed hashes.
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

/// The owner of a number: a label set.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    labels: LabelSet,
    /// Index of the number among the label set's choices ([`Identities::choice`]). `None` if an object set the number.
    choice: Option<u32>,
}

/// A two-way map between label sets and their numbers.
#[derive(Clone, Debug)]
pub struct Identities {
    by_labels: AHashMap<LabelSet, Identity>,
    by_number: BTreeMap<Identity, Held>,
    /// Label sets whose first choice belongs to another label set.
    displaced: BTreeSet<LabelSet>,
    first: u32,
    count: u32,
    local: bool,
}

impl Identities {
    /// Creates an empty map whose numbers are equal on all nodes.
    pub fn of_cluster() -> Self {
        Self::with(Identity::FIRST, Identity::END - Identity::FIRST, false)
    }

    /// Creates an empty map whose numbers are valid on one node only.
    pub fn of_node() -> Self {
        Self::with(Identity::LOCAL, Identity::END, true)
    }

    fn with(first: u32, count: u32, local: bool) -> Self {
        Self { by_labels: AHashMap::new(), by_number: BTreeMap::new(), displaced: BTreeSet::new(), first, count, local }
    }

    /// Returns the number of a label set, and assigns one if it has none. `None` if no number is free.
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

    /// Assigns the number that an object sets (a CiliumIdentity, a store's record). A label set that derived this number gets another one.
    /// Returns false and changes nothing if an object has set the number for other labels.
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

    /// Removes a label set. Call when no pod has it any more.
    pub fn remove(&mut self, labels: &LabelSet) {
        let Some(number) = self.by_labels.remove(labels) else { return };
        self.by_number.remove(&number);
        self.displaced.remove(labels);
        // A label set that preferred this number is displaced. All displaced ones choose again; the order does not affect the result.
        let displaced = std::mem::take(&mut self.displaced);
        for number in displaced.iter().filter_map(|other| self.by_labels.remove(other)) {
            self.by_number.remove(&number);
        }
        displaced.into_iter().for_each(|other| self.settle(other));
    }

    /// Returns the number of a label set. `None` if it has none.
    pub fn of(&self, labels: &LabelSet) -> Option<Identity> {
        self.by_labels.get(labels).copied()
    }

    /// Returns the label set with a number. `None` if no label set has it.
    pub fn labels(&self, number: Identity) -> Option<&LabelSet> {
        self.by_number.get(&number).map(|held| &held.labels)
    }

    /// Returns all label sets in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Identity, &LabelSet)> {
        self.by_number.iter().map(|(&number, held)| (number, &held.labels))
    }

    /// Whether the numbers are valid on one node only.
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// Returns the number that is the label set's choice with this index, derived from its hash. Index 0 is the first choice.
    fn choice(&self, labels: &LabelSet, choice: u32) -> Identity {
        let hash = labels.hash();
        // Label sets with the same first choice rarely have the same second choice: the hash's upper half sets the step. An odd step, and
        // single steps after one round, let every number become a choice.
        let step = (hash >> 32) | 1;
        let at = if choice < self.count {
            (hash & u64::from(u32::MAX)).wrapping_add(step.wrapping_mul(choice.into()))
        } else {
            hash.wrapping_add((choice - self.count).into())
        };
        let at = u32::try_from(at % u64::from(self.count)).expect("below a count of 32 bits");
        Identity(self.first + at)
    }

    /// Whether `one` has precedence over `other` if both choose the same number.
    fn precedes(one: &LabelSet, other: &LabelSet) -> bool {
        (one.hash(), one) < (other.hash(), other)
    }

    /// Assigns a number to a label set that has none, and new numbers to the label sets that it evicts.
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
