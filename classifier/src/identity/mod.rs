//! Identities: who has an address first, what that one may do second.
//!
//! ```text
//!   source address      --ipcache--> party: identity 17, endpoint 3 --egress map of 3----> row of the  --> protocol, port --> verdict
//!   destination address --ipcache--> party: identity 4, no endpoint --(no ingress map)     other's identity
//! ```
//! **Purpose.** The other form of [`Tables`](crate::Tables): where a compiled rule list holds the addresses of all sets that its rules
//! name, a [`PolicyMap`] holds numbers of identities, and one [`IpCache`] for the whole node says which address has which. An address
//! that gets a known identity is one piece of the ipcache and changes no map.
//!
//! **Not its purpose.** What an identity is: whoever fills the ipcache knows. Here it is a position, and rows of maps are by position.
//!
//! **Invariant.** Only numbers that were told have a row of their own; everybody else has the row of the unknown, the first one. Versions
//! share what has not changed, and within one [`lineage`](IdentityTables::new) a number means the same in all of them, so that two
//! versions tell by comparison which endpoints' verdicts may differ.

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

/// Who has addresses of one number: an identity and, for a pod that policy is enforced for, the position of its maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Party {
    /// The identity, as the maps of others know it.
    pub identity: u32,
    /// The position among the endpoints; none for everybody else.
    pub endpoint: Option<u32>,
}

/// The two maps of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointMaps {
    /// Who may send to it.
    pub ingress: Arc<PolicyMap>,
    /// To whom it may send.
    pub egress: Arc<PolicyMap>,
}

/// Who is who on a node, and what the node's endpoints may do.
#[derive(Clone, Debug)]
pub struct IdentityTables {
    lineage: u64,
    cache: Arc<IpCache>,
    /// By the ipcache's number, which is below their count.
    parties: Arc<[Party]>,
    endpoints: Arc<[EndpointMaps]>,
    /// The verdict on traffic between two that are no endpoints.
    others: Verdict,
    /// A rule for each decision, whose action and origin it has.
    decisions: RuleList,
}

impl IdentityTables {
    /// Puts the parts together. The verdicts of maps are positions in `decisions`, made by [`IdentityTables::verdict`]. Within one
    /// `lineage` the numbers of parties and identities never get another meaning.
    ///
    /// # Panics
    /// When a party has an endpoint that is not there. Lookups do where the ipcache has the number of no party.
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

    /// The verdict of the decision at a position.
    pub const fn verdict(action: Action, position: u32) -> Verdict {
        Verdict::by(action, position)
    }

    /// A decision as the list of decisions has it.
    pub const fn decision(action: Action, origin: OriginId) -> Rule {
        Rule::any(action, origin)
    }

    /// The decisions. They have no order: a verdict names one of them.
    pub(crate) fn decisions(&self) -> &RuleList {
        &self.decisions
    }

    /// The ipcache.
    pub fn cache(&self) -> &IpCache {
        &self.cache
    }

    /// The party behind a number of the ipcache.
    pub fn party(&self, number: u32) -> Option<Party> {
        self.parties.get(number as usize).copied()
    }

    /// The maps of an endpoint.
    pub fn endpoint(&self, at: u32) -> Option<&EndpointMaps> {
        self.endpoints.get(at as usize)
    }

    /// Heap bytes, maps that endpoints share counted once.
    pub fn bytes(&self) -> usize {
        let mut seen = AHashSet::new();
        let maps = self.endpoints.iter().flat_map(|maps| [&maps.ingress, &maps.egress]);
        let maps: usize = maps.filter(|map| seen.insert(Arc::as_ptr(map))).map(|map| map.bytes()).sum();
        let fixed = self.parties.len() * size_of::<Party>() + self.endpoints.len() * size_of::<EndpointMaps>();
        self.cache.bytes() + maps + fixed
    }

    /// For people.
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

/// A burst of keys.
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

/// More changed parties than this are not compared with each endpoint's maps: 1,000 pairs and 250 endpoints take some 10 ms.
const MOST_CHANGED: usize = 256;

/// What differs between two versions of a node's identities.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The identities before and after of addresses that have changed theirs; none for too many, or for numbers of another lineage.
    identities: Option<Vec<(u32, u32)>>,
}

impl Difference {
    /// What differs in `new`.
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

    /// Whether all verdicts on traffic from and to the endpoints that have these addresses, as far as their own maps give them, are the
    /// same. Nothing depends on addresses that no endpoint has.
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
