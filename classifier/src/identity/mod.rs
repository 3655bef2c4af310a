//! Identity tables: look up the identity of each address, then what that identity may do.
//!
//! ```text
//!   source address      --ipcache--> party: identity 17, endpoint 3 --egress map of 3----> row of the  --> protocol, port --> verdict
//!   destination address --ipcache--> party: identity 4, no endpoint --(no ingress map)     other's identity
//! ```
//! **Purpose.** An alternative form of [`Tables`](crate::Tables). A compiled rule list contains the addresses of all sets that its rules
//! name. Here a [`PolicyMap`] contains identity numbers, and one [`IpCache`] per node maps addresses to identities. A new address with a
//! known identity changes one piece of the ipcache and no map.
//!
//! **Not its purpose.** It does not define identities. An identity is a number that the caller fills into the ipcache, and rows of maps are
//! looked up by it.
//!
//! **Invariant.** Only the identities that a map names have rows of their own; all others use the first row. Versions share unchanged
//! parts. Within one [`lineage`](IdentityTables::new) numbers keep their meaning, so comparing two versions tells which endpoints' verdicts
//! may differ.

mod ipcache;
mod policy_map;
mod ranges;

use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashSet;

pub use self::ipcache::IpCache;
pub use self::policy_map::{PolicyMap, Row};
use crate::engine::address::Address;
use crate::rule_list::RuleList;
use crate::simd::{Kernel, Simd};
use crate::{Action, Key, OriginId, Rule, Verdict};

/// The owner of an address: its identity and, for a pod with enforced policy, its endpoint index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Party {
    /// The identity's number in policy maps.
    pub identity: u32,
    /// The index among the endpoints. `None` if no policy is enforced for the address.
    pub endpoint: Option<u32>,
}

/// The two policy maps of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointMaps {
    /// The policy for traffic to the endpoint.
    pub ingress: Arc<PolicyMap>,
    /// The policy for traffic from the endpoint.
    pub egress: Arc<PolicyMap>,
}

/// The identities of a node's addresses, and the policy of its endpoints.
#[derive(Clone, Debug)]
pub struct IdentityTables {
    lineage: u64,
    cache: Arc<IpCache>,
    /// The owner of each address, indexed by the ipcache's numbers.
    parties: Arc<[Party]>,
    endpoints: Arc<[EndpointMaps]>,
    /// The verdict on traffic in which neither side is an endpoint.
    others: Verdict,
    /// The rules that verdicts of policy maps refer to: one per decision, with its action and origin, in no order.
    decisions: RuleList,
}

impl IdentityTables {
    /// Combines the parts. Verdicts in maps are positions in `decisions`, made by [`IdentityTables::verdict`]. In all tables of one
    /// `lineage`, a number must refer to the same party or identity.
    ///
    /// # Panics
    /// If a party's endpoint index is out of range. Lookups panic if the ipcache contains a number without a party.
    pub fn new(
        lineage: u64,
        cache: Arc<IpCache>,
        parties: Arc<[Party]>,
        endpoints: Arc<[EndpointMaps]>,
        others: Verdict,
        decisions: RuleList,
    ) -> Self {
        let has_maps = |party: &Party| party.endpoint.is_none_or(|at| (at as usize) < endpoints.len());
        assert!(parties.iter().all(has_maps), "a party's endpoint is there");
        Self { lineage, cache, parties, endpoints, others, decisions }
    }

    /// Returns the verdict that refers to the decision at a position of `decisions`.
    pub const fn verdict(action: Action, position: u32) -> Verdict {
        Verdict::by(action, position)
    }

    /// Returns a rule for the list of decisions. Only its action and origin have a meaning.
    pub const fn decision(action: Action, origin: OriginId) -> Rule {
        Rule::any(action, origin)
    }

    /// Returns the rules that verdicts refer to. Their order has no meaning.
    pub(crate) fn decisions(&self) -> &RuleList {
        &self.decisions
    }

    /// Returns the ipcache, which maps addresses to numbers.
    pub fn cache(&self) -> &IpCache {
        &self.cache
    }

    /// Returns the owner of the addresses with this ipcache number. `None` if the number is out of range.
    pub fn party(&self, number: u32) -> Option<Party> {
        self.parties.get(number as usize).copied()
    }

    /// Returns an endpoint's maps. `None` if the index is out of range.
    pub fn endpoint(&self, at: u32) -> Option<&EndpointMaps> {
        self.endpoints.get(at as usize)
    }

    /// Returns the heap bytes. Maps that endpoints share count once.
    pub fn bytes(&self) -> usize {
        let mut seen = AHashSet::new();
        let maps = self.endpoints.iter().flat_map(|maps| [&maps.ingress, &maps.egress]);
        let maps: usize = maps.filter(|map| seen.insert(Arc::as_ptr(map))).map(|map| map.bytes()).sum();
        let fixed = self.parties.len() * size_of::<Party>() + self.endpoints.len() * size_of::<EndpointMaps>();
        self.cache.bytes() + maps + fixed
    }

    /// Describes the tables, for people.
    pub(crate) fn describe(&self) -> String {
        let (pieces, parties) = (self.cache.len(), self.parties.len());
        format!("identities: {pieces} pieces of the ipcache, {parties} parties, {} endpoints", self.endpoints.len())
    }

    #[inline(always)]
    fn party_of<S: Simd>(&self, simd: S, address: [u64; 2], is_v6: bool) -> Party {
        let number = if is_v6 {
            self.cache.v6.get(simd, u128::from_halves(address))
        } else {
            self.cache.v4.get(simd, u32::from_halves(address))
        };
        self.parties[number as usize]
    }

    #[inline(always)]
    fn decide<S: Simd>(&self, simd: S, key: &Key) -> u32 {
        let (src, dst) = key.bits();
        let family = key.family();
        let sender = self.party_of(simd, src, family & 1 != 0);
        let receiver = self.party_of(simd, dst, family & 2 != 0);
        let service = u32::from(key.protocol()) << 16 | u32::from(key.dst_port());
        let mut code = self.others.code();
        if let Some(at) = sender.endpoint {
            code = self.endpoints[at as usize].egress.code(simd, receiver.identity, service);
            if !Verdict::from_code(code).is_allow() {
                return code;
            }
        }
        if let Some(at) = receiver.endpoint {
            code = self.endpoints[at as usize].ingress.code(simd, sender.identity, service);
        }
        code
    }
}

/// Looks up a burst of keys in identity tables.
pub(crate) struct Judge<'a> {
    pub(crate) tables: &'a IdentityTables,
    pub(crate) keys: &'a [Key],
    pub(crate) verdicts: &'a mut [Verdict],
}

impl Kernel for Judge<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (key, verdict) in self.keys.iter().zip(self.verdicts) {
            *verdict = Verdict::from_code(self.tables.decide(simd, key));
        }
    }
}

/// Maximum of changed pairs of identities that are compared with each endpoint's maps: 1,000 pairs and 250 endpoints would take about 10
/// ms.
const MOST_CHANGED: usize = 256;

/// The difference between two versions of a node's identities.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Pairs of the old and new identity of addresses. `None` if there are too many, or if the lineages differ.
    identities: Option<Vec<(u32, u32)>>,
}

impl Difference {
    /// Compares the identities of two versions of a node's tables.
    pub fn between(old: &IdentityTables, new: &IdentityTables) -> Self {
        if old.lineage != new.lineage {
            return Self { identities: None };
        }
        if Arc::ptr_eq(&old.cache, &new.cache) {
            return Self { identities: Some(Vec::new()) };
        }
        let mut pairs = AHashSet::new();
        let mut tell = |before: u32, after: u32| {
            if pairs.len() <= MOST_CHANGED {
                let of = |tables: &IdentityTables, number: u32| tables.parties[number as usize].identity;
                pairs.insert((of(old, before), of(new, after)));
            }
        };
        old.cache.v4.differences(&new.cache.v4, &mut tell);
        old.cache.v6.differences(&new.cache.v6, &mut tell);
        Self { identities: (pairs.len() <= MOST_CHANGED).then(|| pairs.into_iter().collect()) }
    }

    /// Whether traffic from and to these addresses has the same verdicts in the endpoints' maps of both versions. Ignores addresses without
    /// an endpoint.
    pub fn leaves_alone(&self, old: &IdentityTables, new: &IdentityTables, addresses: &[IpAddr]) -> bool {
        let Some(pairs) = &self.identities else { return false };
        addresses.iter().all(|&address| {
            let maps = |tables: &IdentityTables| {
                let at = tables.parties[tables.cache.get(address) as usize].endpoint?;
                Some(tables.endpoints[at as usize].clone())
            };
            match (maps(old), maps(new)) {
                (None, None) => true,
                (Some(old), Some(new)) => {
                    let both = [(&old.ingress, &new.ingress), (&old.egress, &new.egress)];
                    both.into_iter().all(|(old, new)| {
                        let same =
                            |&(before, after): &(u32, u32)| before == after || new.says_the_same_of(before, after);
                        Arc::ptr_eq(old, new) && pairs.iter().all(same)
                    })
                }
                _ => false,
            }
        })
    }
}

#[cfg(test)]
mod tests;
