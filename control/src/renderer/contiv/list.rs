//! A pod's rules for one direction as sorted one-sided 6-tuples, with the question that combining asks: what is allowed
//! with this address?

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use bulkhead_classifier::{Action, PortRange, Service};
use ipnet::IpNet;

use super::allowed_ports::AllowedPorts;
use super::tuple::{action_key, network_key, service_key};

/// A 6-tuple of which one side is the pod itself and therefore not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerRule {
    /// The other end, none for any of both families.
    pub peer: Option<IpNet>,
    /// Protocol and destination ports, none for any.
    pub service: Option<Service>,
    /// Allow or deny.
    pub action: Action,
}

impl PeerRule {
    /// The rule that ends the list of an isolated pod.
    pub const DENY_THE_REST: Self = Self { peer: None, service: None, action: Action::Deny };

    /// What is in both, for two rules that allow.
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

/// Rules that allow and, when the pod is isolated, a deny of the rest; immutable and shared.
///
/// Only a deny of everything may be among the rules: sorting would move any other one. Without a deny the list allows
/// everything, whatever its other rules say (Contiv's meaning). Beside an allow of everything there is no rest to deny,
/// so that such a deny goes: it would sort before the allow.
#[derive(Debug, Default)]
pub struct PeerList {
    rules: Vec<PeerRule>,
    closed: bool,
    /// The prefix lengths that occur, IPv4 and IPv6.
    lengths: [Vec<u8>; 2],
    fingerprint: u64,
}

/// A deny of less than everything stands among rules that will be sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a 6-tuple list can deny only the rest: the deny of {0:?} would not keep its place when the list is sorted")]
pub struct PartialDeny(pub PeerRule);

impl PeerList {
    /// The sorted list of these rules, each once. Bits after a prefix's length are ignored.
    ///
    /// # Errors
    /// [`PartialDeny`] when a rule denies less than everything.
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

    /// The list with other rules about these networks, which are sorted as its rules are; about others it stays.
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

    /// What of this list is not in the other, and what of that is not in this.
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

    /// The rules, sorted.
    pub fn rules(&self) -> &[PeerRule] {
        &self.rules
    }

    /// Whether anything is denied.
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    /// What the list allows with this address. Logarithmic in the rules, once for each prefix length that occurs.
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

    /// The networks that the list allows something with, each once; none among them is "any".
    pub(super) fn networks(&self) -> impl Iterator<Item = Option<IpNet>> + '_ {
        let allows = self.rules.iter().filter(|rule| rule.action == Action::Allow);
        let mut previous = None;
        allows.map(|rule| rule.peer).filter(move |&net| previous.replace(net) != Some(net))
    }

    /// What both lists allow. At most the product of their lengths.
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

/// The prefix lengths that occur, IPv4 and IPv6; the rules are sorted by them.
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

/// A rule's part of its list's fingerprint, which is the sum of them.
fn fingerprint(rule: &PeerRule) -> u64 {
    keys().hash_one(rule)
}

#[cfg(test)]
thread_local! {
    /// How often this thread asked a list about an address: the work of combining, without a clock.
    pub(super) static LOOKUPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// One random key for all fingerprints of the process, so that equal lists have equal ones and nobody can aim at them.
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

/// A pod as the cache knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodLists {
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// What may come to it.
    pub ingress: Arc<PeerList>,
    /// What it may send.
    pub egress: Arc<PeerList>,
}
