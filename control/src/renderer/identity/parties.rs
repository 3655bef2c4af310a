//! Identities: addresses in the same sets have the same identity.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use bulkhead_classifier::identity::Party;

use crate::contract::SetId;

/// The number of a set, or of one of the special groups below.
pub(super) type Tag = u64;

/// The group of the node's own addresses.
pub(super) const OWN_NODE: Tag = u64::MAX;

/// The group of the other nodes' addresses.
pub(super) const REMOTE_NODE: Tag = u64::MAX - 1;

/// The identity of addresses that are in no set.
pub(super) const UNKNOWN: u32 = 0;

pub(super) const fn tag(set: SetId) -> Tag {
    set.0
}

/// A change that applies to a group of addresses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// The addresses leave a set.
    Leave(Tag),
    /// The addresses enter a set.
    Enter(Tag),
    /// The addresses no longer belong to the endpoint.
    Unbind(u32),
    /// The addresses belong to the endpoint.
    Bind(u32),
}

/// Assigns numbers to identities and to parties. A party is an identity and, if a local pod has the address, its endpoint number.
#[derive(Debug)]
pub(super) struct Parties {
    /// The sets of each identity, ascending.
    sets: Vec<Arc<[Tag]>>,
    identities: AHashMap<Arc<[Tag]>, u32>,
    by_tag: AHashMap<Tag, BTreeSet<u32>>,
    parties: Vec<Party>,
    numbers: AHashMap<Party, u32>,
    /// Identities created since the last [`Parties::take_fresh`].
    fresh: Vec<u32>,
}

impl Default for Parties {
    /// Creates the numbering with identity 0, that of addresses in no set.
    fn default() -> Self {
        let mut parties = Self {
            sets: Vec::new(),
            identities: AHashMap::new(),
            by_tag: AHashMap::new(),
            parties: Vec::new(),
            numbers: AHashMap::new(),
            fresh: Vec::new(),
        };
        let identity = parties.identity(&[]);
        debug_assert_eq!(identity, UNKNOWN, "the first number is 0");
        parties.party(Party { identity, endpoint: None });
        parties
    }
}

impl Parties {
    /// Returns all parties, by number.
    pub(super) fn all(&self) -> &[Party] {
        &self.parties
    }

    /// Returns the number of identities.
    pub(super) fn identities(&self) -> usize {
        self.sets.len()
    }

    pub(super) fn sets_of(&self, identity: u32) -> &Arc<[Tag]> {
        &self.sets[identity as usize]
    }

    pub(super) fn in_set(&self, tag: Tag) -> impl Iterator<Item = u32> + '_ {
        self.by_tag.get(&tag).into_iter().flatten().copied()
    }

    /// Returns the identities created since the last call.
    pub(super) fn take_fresh(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.fresh)
    }

    fn identity(&mut self, sets: &[Tag]) -> u32 {
        if let Some(&known) = self.identities.get(sets) {
            return known;
        }
        let number = u32::try_from(self.sets.len()).expect("fewer identities than addresses of IPv4");
        let sets: Arc<[Tag]> = sets.into();
        for &tag in sets.iter() {
            self.by_tag.entry(tag).or_default().insert(number);
        }
        self.sets.push(sets.clone());
        self.identities.insert(sets, number);
        self.fresh.push(number);
        number
    }

    fn party(&mut self, party: Party) -> u32 {
        *self.numbers.entry(party).or_insert_with(|| {
            self.parties.push(party);
            u32::try_from(self.parties.len() - 1).expect("fewer parties than addresses of IPv4")
        })
    }

    /// Returns the number of the party that addresses of party `number` have after these changes, applied in order.
    pub(super) fn after<'a>(&mut self, number: u32, changes: impl Iterator<Item = &'a Change>) -> u32 {
        let Party { identity, mut endpoint } = self.parties[number as usize];
        let before = self.sets_of(identity).clone();
        let mut sets = before.to_vec();
        for change in changes {
            match *change {
                Change::Leave(tag) => sets.retain(|&of| of != tag),
                Change::Enter(tag) => {
                    if let Err(at) = sets.binary_search(&tag) {
                        sets.insert(at, tag);
                    }
                }
                Change::Unbind(of) => endpoint = endpoint.filter(|&now| now != of),
                Change::Bind(to) => endpoint = Some(to),
            }
        }
        let identity = if *sets == *before { identity } else { self.identity(&sets) };
        self.party(Party { identity, endpoint })
    }

    /// Removes sets. Returns the renumbering: old party number to new.
    pub(super) fn retire(&mut self, tags: &[Tag]) -> AHashMap<u32, u32> {
        let gone: BTreeSet<u32> = tags.iter().flat_map(|tag| self.by_tag.remove(tag).unwrap_or_default()).collect();
        let tags: AHashSet<Tag> = tags.iter().copied().collect();
        let mut instead = AHashMap::new();
        for &identity in &gone {
            let sets = self.sets[identity as usize].clone();
            self.identities.remove(&sets);
            for tag in sets.iter() {
                if let Some(identities) = self.by_tag.get_mut(tag) {
                    identities.remove(&identity);
                }
            }
            let left: Vec<Tag> = sets.iter().copied().filter(|tag| !tags.contains(tag)).collect();
            instead.insert(identity, self.identity(&left));
        }
        let affected = (0u32..).zip(self.parties.clone()).filter(|(_, party)| gone.contains(&party.identity));
        affected
            .map(|(number, party)| (number, self.party(Party { identity: instead[&party.identity], ..party })))
            .collect()
    }

    /// Copies only the numbers in use. Returns the copy and the renumbering: old party number to new.
    pub(super) fn compacted(&self, in_use: &AHashSet<u32>) -> (Self, AHashMap<u32, u32>) {
        let mut compact = Self::default();
        let mut in_use: Vec<u32> = in_use.iter().copied().collect();
        in_use.sort_unstable();
        let renumbered = in_use.into_iter().map(|number| {
            let Party { identity, endpoint } = self.parties[number as usize];
            let identity = compact.identity(&self.sets[identity as usize]);
            (number, compact.party(Party { identity, endpoint }))
        });
        let renumbered = renumbered.collect();
        (compact, renumbered)
    }
}
