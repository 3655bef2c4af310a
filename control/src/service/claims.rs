//! Claims of several owners to one VIP or port, and which claim wins.

use std::hash::Hash;
use std::sync::Arc;

use ahash::AHashMap;

use super::{Owner, VipKind};
use crate::object::Timestamp;

/// A claim's rank. The lowest rank wins; see the module `service` for the reasons.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    kind: VipKind,
    /// An object without a creation time counts as newer than all others.
    is_ageless: bool,
    created: Option<Timestamp>,
    owner: Owner,
    port: Arc<str>,
}

impl Rank {
    pub(super) fn new(kind: VipKind, created: Option<Timestamp>, owner: Owner, port: Arc<str>) -> Self {
        Self { kind, is_ageless: created.is_none(), created, owner, port }
    }

    pub(super) const fn kind(&self) -> VipKind {
        self.kind
    }

    pub(super) const fn owner(&self) -> &Owner {
        &self.owner
    }
}

/// All claims by key. Each key's claims are sorted by rank, the winner first.
#[derive(Debug)]
pub(super) struct Claims<K, T>(AHashMap<K, Vec<(Rank, T)>>);

impl<K, T> Default for Claims<K, T> {
    fn default() -> Self {
        Self(AHashMap::new())
    }
}

impl<K: Hash + Eq, T: Copy + PartialEq> Claims<K, T> {
    /// Adds a claim. Returns whether it wins.
    pub(super) fn add(&mut self, key: K, rank: Rank, claimant: T) -> bool {
        let claims = self.0.entry(key).or_default();
        let at = claims.partition_point(|(other, _)| *other < rank);
        claims.insert(at, (rank, claimant));
        at == 0
    }

    /// Removes the claimant's claim to a key. Returns whether it was the winner.
    pub(super) fn remove_of(&mut self, key: &K, claimant: T) -> bool {
        let own = self.all(key).iter().find(|(_, other)| *other == claimant).map(|(rank, _)| rank.clone());
        own.is_some_and(|rank| self.remove(key, &rank))
    }

    /// Removes the claim with this rank. Returns whether it was the winner.
    pub(super) fn remove(&mut self, key: &K, rank: &Rank) -> bool {
        let Some(claims) = self.0.get_mut(key) else { return false };
        let Some(at) = claims.iter().position(|(other, _)| other == rank) else { return false };
        claims.remove(at);
        if claims.is_empty() {
            self.0.remove(key);
        }
        at == 0
    }

    /// Returns the winning claim. `None` if the key has no claims.
    pub(super) fn winner(&self, key: &K) -> Option<&(Rank, T)> {
        self.all(key).first()
    }

    /// Returns all claims to a key, the winner first.
    pub(super) fn all(&self, key: &K) -> &[(Rank, T)] {
        self.0.get(key).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of keys with at least one claim.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns all keys with at least one claim, in no particular order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }
}
