//! A pod's rules for one direction as sorted one-sided 6-tuples, with lookups of what they allow for an address.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use bulkhead_classifier::{Action, PortRange, Service};
use ipnet::IpNet;

use super::allowed_ports::AllowedPorts;
use super::tuple::{action_key, network_key, service_key};

/// A 6-tuple with the pod's own side left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerRule {
    /// The peer network. `None` for any address of both families.
    pub peer: Option<IpNet>,
    /// Protocol and destination ports. `None` for any.
    pub service: Option<Service>,
    /// Allow or deny.
    pub action: Action,
}

impl PeerRule {
    /// The last rule of an isolated pod's list.
    pub const DENY_THE_REST: Self = Self { peer: None, service: None, action: Action::Deny };

    /// Returns the intersection of two allow rules. `None` if they have no traffic in common.
    fn intersect(&self, other: &Self) -> Option<Self> {
        let peer = match (self.peer, other.peer) {
            (None, net) | (net, None) => net,
            // Prefixes are nested or disjoint.
            (Some(a), Some(b)) if a.contains(&b) => Some(b),
            (Some(a), Some(b)) if b.contains(&a) => Some(a),
            _ => return None,
        };
        let service = match (self.service, other.service) {
            (None, service) | (service, None) => service,
            (Some(a), Some(b)) => {
                let protocols = (a.protocols.0.max(b.protocols.0), a.protocols.1.min(b.protocols.1));
                let (first, last) = (a.ports.first.max(b.ports.first), a.ports.last.min(b.ports.last));
                if protocols.0 > protocols.1 || first > last {
                    return None;
                }
                Some(Service { protocols, ports: PortRange { first, last } })
            }
        };
        Some(Self { peer, service, action: Action::Allow })
    }
}

impl Ord for PeerRule {
    fn cmp(&self, other: &Self) -> Ordering {
        network_key(self.peer)
            .cmp(&network_key(other.peer))
            .then_with(|| service_key(self.service).cmp(&service_key(other.service)))
            .then_with(|| action_key(self.action).cmp(&action_key(other.action)))
    }
}

impl PartialOrd for PeerRule {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// An immutable, shared list of allow rules and, if the pod is isolated, a deny of the rest.
///
/// A deny must cover everything, because sorting would move any other deny. A list without a deny allows everything, regardless of its
/// other rules (Contiv's semantics). If an allow covers everything, the deny is dropped: it has no effect and would sort before the allow.
#[derive(Debug, Default)]
pub struct PeerList {
    rules: Vec<PeerRule>,
    closed: bool,
    /// The prefix lengths in use, for IPv4 and IPv6.
    lengths: [Vec<u8>; 2],
    fingerprint: u64,
}

/// A deny of less than everything, which sorting would move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a 6-tuple list can deny only the rest: sorting would move the deny of {0:?}")]
pub struct PartialDeny(pub PeerRule);

impl PeerList {
    /// Sorts and deduplicates the rules. Host bits are ignored.
    ///
    /// # Errors
    /// [`PartialDeny`] if a rule denies less than everything.
    pub fn new(rules: impl IntoIterator<Item = PeerRule>) -> Result<Self, PartialDeny> {
        let mut rules: Vec<_> =
            rules.into_iter().map(|rule| PeerRule { peer: rule.peer.map(|net| net.trunc()), ..rule }).collect();
        rules.sort_unstable();
        rules.dedup();
        let denies = |rule: &&PeerRule| rule.action == Action::Deny;
        if let Some(partial) = rules.iter().filter(denies).find(|rule| **rule != PeerRule::DENY_THE_REST) {
            return Err(PartialDeny(*partial));
        }
        if rules.last() == Some(&PeerRule { action: Action::Allow, ..PeerRule::DENY_THE_REST }) {
            rules.retain(|rule| rule.action == Action::Allow);
        }
        Ok(Self::of_sorted(rules))
    }

    fn of_sorted(rules: Vec<PeerRule>) -> Self {
        let fingerprint = rules.iter().map(fingerprint).fold(0, u64::wrapping_add);
        Self { closed: is_closed(&rules), lengths: lengths(&rules), rules, fingerprint }
    }

    /// Replaces the rules of these networks, which are sorted like the rules. Other rules stay.
    pub(super) fn with(&self, networks: &[IpNet], mut about: impl FnMut(IpNet) -> Vec<PeerRule>) -> Self {
        let mut rules = Vec::with_capacity(self.rules.len() + networks.len());
        let (mut fingerprint, mut copied) = (self.fingerprint, 0);
        let sum = |rules: &[PeerRule]| rules.iter().map(self::fingerprint).fold(0, u64::wrapping_add);
        for &network in networks {
            let old = self.range_of(Some(network));
            rules.extend_from_slice(&self.rules[copied..old.start]);
            let mut new = about(network);
            new.sort_unstable();
            new.dedup();
            fingerprint = fingerprint.wrapping_sub(sum(&self.rules[old.clone()])).wrapping_add(sum(&new));
            rules.append(&mut new);
            copied = old.end;
        }
        rules.extend_from_slice(&self.rules[copied..]);
        debug_assert!(rules.is_sorted_by(|a, b| a < b));
        Self { closed: self.closed, lengths: lengths(&rules), rules, fingerprint }
    }

    /// Returns the rules only in this list, and the rules only in the other.
    pub(super) fn difference(&self, other: &Self) -> (Vec<PeerRule>, Vec<PeerRule>) {
        let without = |one: &Self, other: &Self| {
            let mut theirs = other.rules.iter().peekable();
            let is_other = |rule: &&PeerRule| {
                while theirs.next_if(|other| other < rule).is_some() {}
                theirs.next_if_eq(rule).is_none()
            };
            one.rules.iter().filter(is_other).copied().collect()
        };
        (without(self, other), without(other, self))
    }

    /// Returns the rules, sorted.
    pub fn rules(&self) -> &[PeerRule] {
        &self.rules
    }

    /// Whether the list denies anything.
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns the protocols and ports that the list allows between the pod and a peer address, in O(log rules) per prefix length in use.
    pub(super) fn allowed(&self, address: IpAddr) -> AllowedPorts {
        #[cfg(test)]
        LOOKUPS.with(|count| count.set(count.get() + 1));
        if !self.closed {
            return AllowedPorts::everything();
        }
        let lengths = &self.lengths[usize::from(address.is_ipv6())];
        let enclosing = lengths.iter().filter_map(|&length| Some(IpNet::new(address, length).ok()?.trunc()));
        let rules = enclosing.map(Some).chain([None]).flat_map(|net| self.rules_of(net));
        AllowedPorts::of(rules.filter(|rule| rule.action == Action::Allow).map(|rule| rule.service))
    }

    fn rules_of(&self, network: Option<IpNet>) -> &[PeerRule] {
        &self.rules[self.range_of(network)]
    }

    fn range_of(&self, network: Option<IpNet>) -> Range<usize> {
        let key = network_key(network);
        let first = self.rules.partition_point(|rule| network_key(rule.peer) < key);
        let count = self.rules[first..].partition_point(|rule| network_key(rule.peer) == key);
        first..first + count
    }

    /// Returns the networks with allowed traffic, without duplicates. `None` is any.
    pub(super) fn networks(&self) -> impl Iterator<Item = Option<IpNet>> + '_ {
        let allows = self.rules.iter().filter(|rule| rule.action == Action::Allow);
        let mut previous = None;
        allows.map(|rule| rule.peer).filter(move |&net| previous.replace(net) != Some(net))
    }

    /// Returns the list that allows what both lists allow. Its length is at most the product of both.
    pub(super) fn intersect(&self, other: &Self) -> Self {
        let allows = |list: &Self| list.rules.clone().into_iter().filter(|rule| rule.action == Action::Allow);
        let rules: Vec<_> = match (self.closed, other.closed) {
            (false, false) => Vec::new(),
            (true, false) => self.rules.clone(),
            (false, true) => other.rules.clone(),
            (true, true) => allows(self)
                .flat_map(|a| allows(other).filter_map(move |b| a.intersect(&b)))
                .chain([PeerRule::DENY_THE_REST])
                .collect(),
        };
        Self::new(rules).expect("the only deny is that of the rest")
    }
}

fn is_closed(rules: &[PeerRule]) -> bool {
    rules.iter().any(|rule| rule.action == Action::Deny)
}

/// Returns the prefix lengths in use, for IPv4 and IPv6. Rules are sorted by prefix length.
fn lengths(rules: &[PeerRule]) -> [Vec<u8>; 2] {
    let mut lengths = [Vec::new(), Vec::new()];
    for net in rules.iter().filter_map(|rule| rule.peer) {
        let of_family = &mut lengths[usize::from(matches!(net, IpNet::V6(_)))];
        if of_family.last() != Some(&net.prefix_len()) {
            of_family.push(net.prefix_len());
        }
    }
    lengths
}

/// Returns a rule's contribution to its list's fingerprint, which is the sum of all contributions.
fn fingerprint(rule: &PeerRule) -> u64 {
    keys().hash_one(rule)
}

#[cfg(test)]
thread_local! {
    /// Number of address lookups by this thread, to measure the work of combining without a clock.
    pub(super) static LOOKUPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Returns the process's random key for fingerprints. Equal lists have equal fingerprints, and an attacker cannot construct collisions.
fn keys() -> &'static ahash::RandomState {
    static KEYS: std::sync::OnceLock<ahash::RandomState> = std::sync::OnceLock::new();
    KEYS.get_or_init(ahash::RandomState::new)
}

impl PartialEq for PeerList {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || (self.fingerprint == other.fingerprint && self.rules == other.rules)
    }
}

impl Eq for PeerList {}

impl Hash for PeerList {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fingerprint.hash(state);
    }
}

/// A pod's addresses and its rule lists for both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodLists {
    /// The pod's addresses.
    pub addresses: Vec<IpAddr>,
    /// The rules for traffic to the pod.
    pub ingress: Arc<PeerList>,
    /// The rules for traffic from the pod.
    pub egress: Arc<PeerList>,
}
