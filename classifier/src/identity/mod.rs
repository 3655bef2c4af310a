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

mod ranges;

use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashSet;
use ipnet::IpNet;

use self::ranges::{Cut, Ranges};
use crate::engine::address::Address;
use crate::engine::{Axis, Classed};
use crate::rule_list::RuleList;
use crate::simd::{Kernel, Scalar, Simd};
use crate::{Action, AddressSet, Key, OriginId, Rule, Service, ServiceSet, Verdict};

/// The ipcache: from each address to a number. Addresses that nobody has told anything of have the number 0.
#[derive(Clone, Debug)]
pub struct IpCache {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
}

impl Default for IpCache {
    fn default() -> Self {
        Self { v4: Ranges::all(0), v6: Ranges::all(0) }
    }
}

impl IpCache {
    /// The number of an address.
    pub fn get(&self, address: IpAddr) -> u32 {
        match address {
            IpAddr::V4(v4) => self.v4.get(Scalar, v4.into()),
            IpAddr::V6(v6) => self.v6.get(Scalar, v6.into()),
        }
    }

    /// The ipcache after changes. `next` gives an address' number from the one before and from the positions, ascending, of those of
    /// `changes` that the address is in. It is asked for addresses that are in one of them.
    #[must_use]
    pub fn changed(&self, changes: &[&AddressSet], mut next: impl FnMut(u32, &[usize]) -> u32) -> Self {
        let (v4, v4_groups) = cuts(changes.iter().map(|set| set.v4_intervals()));
        let (v6, v6_groups) = cuts(changes.iter().map(|set| set.v6_intervals()));
        let v4 = if v4.is_empty() {
            self.v4.clone()
        } else {
            self.v4.changed(&v4, &mut |number, group| next(number, &v4_groups[group]))
        };
        let v6 = if v6.is_empty() {
            self.v6.clone()
        } else {
            self.v6.changed(&v6, &mut |number, group| next(number, &v6_groups[group]))
        };
        Self { v4, v6 }
    }

    /// The same addresses with other numbers.
    #[must_use]
    pub fn renumbered(&self, number: impl Fn(u32) -> u32) -> Self {
        Self { v4: self.v4.renumbered(&number), v6: self.v6.renumbered(&number) }
    }

    /// The numbers that addresses have.
    pub fn numbers(&self) -> AHashSet<u32> {
        let (v4, v6) = (self.v4.all_pieces(), self.v6.all_pieces());
        v4.iter().map(|&(_, number)| number).chain(v6.iter().map(|&(_, number)| number)).collect()
    }

    /// Which addresses have which number, as the fewest prefixes, ascending, IPv4 first. Those that nobody has told anything of are left
    /// out.
    pub fn entries(&self) -> Vec<(IpNet, u32)> {
        fn told<A: Address>(pieces: &[(A, u32)]) -> impl Iterator<Item = (A, A, u32)> + '_ {
            let firsts = std::iter::once(A::ZERO).chain(pieces.iter().filter_map(|(last, _)| last.next()));
            firsts.zip(pieces).map(|(first, &(last, number))| (first, last, number)).filter(|piece| piece.2 != 0)
        }
        let mut entries = Vec::new();
        let mut add = |set: AddressSet, number| entries.extend(set.prefixes().map(|prefix| (prefix, number)));
        for (first, last, number) in told(&self.v4.all_pieces()) {
            add(AddressSet::of_intervals(vec![(first, last)], vec![]), number);
        }
        for (first, last, number) in told(&self.v6.all_pieces()) {
            add(AddressSet::of_intervals(vec![], vec![(first, last)]), number);
        }
        entries
    }

    /// Pieces of the address space that it tells apart.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Whether nothing was told of any address.
    pub fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        self.v4.bytes() + self.v6.bytes()
    }
}

/// The places where something changes, each with the number of a group of changes, and the groups.
fn cuts<'a, A: Address>(changes: impl Iterator<Item = &'a [(A, A)]>) -> (Vec<Cut<A>>, Vec<Vec<usize>>) {
    // By point: the change begins there, or has ended before it.
    let mut events: Vec<(A, bool, usize)> = Vec::new();
    for (change, intervals) in changes.enumerate() {
        for &(first, last) in intervals {
            events.push((first, true, change));
            events.extend(last.next().map(|after| (after, false, change)));
        }
    }
    events.sort_unstable();
    let (mut cuts, mut groups): (Vec<Cut<A>>, Vec<Vec<usize>>) = (Vec::new(), Vec::new());
    let mut numbers = ahash::AHashMap::<Vec<usize>, usize>::new();
    let (mut active, mut from) = (Vec::<usize>::new(), A::ZERO);
    let mut close = |from: A, last: A, active: &Vec<usize>| {
        if active.is_empty() {
            return;
        }
        let group = *numbers.entry(active.clone()).or_insert_with(|| {
            groups.push(active.clone());
            groups.len() - 1
        });
        cuts.push((from, last, group));
    };
    for (point, begins, change) in events {
        if point > from {
            close(from, point.previous().expect("there is one below"), &active);
            from = point;
        }
        match active.binary_search(&change) {
            Err(at) if begins => active.insert(at, change),
            Ok(at) if !begins => drop(active.remove(at)),
            _ => {}
        }
    }
    close(from, A::LAST, &active);
    (cuts, groups)
}

/// What one identity may do: services that do not overlap, with the position of a decision each. Services that are in none are denied
/// without a reason.
pub type Row = Vec<(ServiceSet, Verdict)>;

/// What every identity may do in one direction of an endpoint.
#[derive(Clone, Debug)]
pub struct PolicyMap {
    /// From an identity to a row.
    identities: Axis<u32>,
    /// From a protocol and a port to a verdict.
    rows: Vec<Axis<u32>>,
}

impl PolicyMap {
    /// The map of these rows, of which there is at least one: `identities` are those, ascending, that have another than the first.
    pub fn new(identities: &[(u32, usize)], rows: &[Row]) -> Self {
        let mut of = Classed { lasts: Vec::new(), class_of: Vec::new() };
        let mut push = |first: u32, row: u32| match of.class_of.last() {
            Some(&before) if before == row => {}
            Some(_) => {
                of.lasts.push(first - 1);
                of.class_of.push(row);
            }
            None => of.class_of.push(row),
        };
        push(0, 0);
        let mut identities = identities.iter().peekable();
        while let Some(&(identity, row)) = identities.next() {
            let row = u32::try_from(row).expect("fewer rows than identities");
            if identity == 0 {
                continue;
            }
            push(identity, row);
            if let Some(after) = identity.checked_add(1)
                && identities.peek().is_none_or(|next| next.0 > after)
            {
                push(after, 0);
            }
        }
        Self { identities: Axis::new(of), rows: rows.iter().map(services).collect() }
    }

    /// The verdict on traffic with an identity.
    pub fn verdict(&self, identity: u32, protocol: u8, port: u16) -> Verdict {
        Verdict::from_code(self.code(Scalar, identity, u32::from(protocol) << 16 | u32::from(port)))
    }

    #[inline(always)]
    fn code<S: Simd>(&self, simd: S, identity: u32, service: u32) -> u32 {
        self.rows[self.identities.class(simd, identity) as usize].class(simd, service)
    }

    /// Whether both have the same verdicts on traffic with two identities.
    fn says_the_same_of(&self, one: u32, other: u32) -> bool {
        let row = |identity| self.identities.class(Scalar, identity) as usize;
        let (one, other) = (row(one), row(other));
        one == other || self.rows[one] == self.rows[other]
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        let rows: usize = self.rows.iter().map(|row| row.bytes() + size_of::<Axis<u32>>()).sum();
        self.identities.bytes() + rows
    }
}

/// A row as a tree over protocol and port.
fn services(row: &Row) -> Axis<u32> {
    let mut pieces: Vec<(u32, u32, u32)> = Vec::new();
    for (set, verdict) in row {
        for Service { protocols: (first, last), ports } in set.services() {
            let at = |protocol: u8, port: u16| u32::from(protocol) << 16 | u32::from(port);
            if ports.first == 0 && ports.last == u16::MAX {
                pieces.push((at(first, 0), at(last, u16::MAX), verdict.code()));
            } else {
                let each = |protocol| (at(protocol, ports.first), at(protocol, ports.last), verdict.code());
                pieces.extend((first..=last).map(each));
            }
        }
    }
    pieces.sort_unstable();
    let mut of = Classed { lasts: Vec::new(), class_of: Vec::new() };
    let mut push = |first: u32, code: u32| match of.class_of.last() {
        Some(&before) if before == code => {}
        Some(_) => {
            of.lasts.push(first - 1);
            of.class_of.push(code);
        }
        None => of.class_of.push(code),
    };
    let mut next = 0;
    for (first, last, code) in pieces {
        if first > next {
            push(next, u32::MAX);
        }
        push(first, code);
        next = last + 1;
    }
    // Services end with the last protocol.
    if next < 1 << 24 {
        push(next, u32::MAX);
    }
    Axis::new(of)
}

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
