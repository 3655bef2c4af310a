//! Relates the sets of the contract to the ports that have their addresses.
//!
//! A set is *exact* if its addresses are all addresses of some ports. A group of these ports then means the same as the addresses. Other
//! sets are written as blocks: those with an address of no port, or with only some of a port's addresses. Whether a set is exact depends on
//! its addresses and the ports, not on their history.
//!
//! ```text
//!   set  --addresses--> 10.0.0.1  10.0.0.2      all of them a port's, and all of each port: exact
//!   port a: 10.0.0.1 ------^         ^------ port b: 10.0.0.2
//! ```
//! Each address of a port refers to the sets that contain it, so an event of a pod costs time in proportion to its sets. If a port receives
//! a new address, the sets that are not exact are searched for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ahash::AHashMap;
use bulkhead_classifier::AddressSet;
use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};

use super::intervals::Intervals;
use crate::contract::{SetDelta, SetId};

/// A port's index in the renderer.
pub(super) type PortId = usize;

#[derive(Debug, Default)]
struct Set {
    v4: Intervals,
    v6: Intervals,
    /// Number of the set's addresses that belong to ports, for IPv4 and for IPv6.
    known: [u128; 2],
    /// Number of ports with some, but not all, of their addresses in the set.
    partial: usize,
}

impl Set {
    fn of(&mut self, v6: bool) -> &mut Intervals {
        if v6 { &mut self.v6 } else { &mut self.v4 }
    }

    fn contains(&self, address: IpAddr) -> bool {
        let (v6, number) = number(address);
        if v6 { self.v6.contains(number) } else { self.v4.contains(number) }
    }

    fn is_exact(&self) -> bool {
        let counts = [self.v4.count(), self.v6.count()];
        counts == self.known && self.partial == 0 && !self.v6.is_everything()
    }
}

/// An address that belongs to a port, or did so until this transaction.
#[derive(Debug, Default)]
struct Held {
    port: Option<PortId>,
    sets: Vec<SetId>,
}

/// The changes that a transaction made to sets and ports.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// Sets whose addresses or ports changed, and whether each was exact before.
    pub(super) sets: BTreeMap<SetId, bool>,
    /// Ports that entered or left a set.
    pub(super) ports: BTreeSet<PortId>,
}

/// The sets, the ports' addresses, and the relations between both.
#[derive(Debug, Default)]
pub(super) struct Members {
    sets: AHashMap<SetId, Set>,
    held: BTreeMap<IpAddr, Held>,
    addresses: AHashMap<PortId, Vec<IpAddr>>,
    inexact: BTreeSet<SetId>,
    /// Addresses that lost their port in this transaction.
    left: Vec<IpAddr>,
    moved: Moved,
}

impl Members {
    /// Whether the set's addresses are exactly those of some ports. True for an unknown or empty set.
    pub(super) fn is_exact(&self, set: SetId) -> bool {
        self.sets.get(&set).is_none_or(Set::is_exact)
    }

    /// Returns the sets that contain any of the port's addresses.
    pub(super) fn sets_of(&self, port: PortId) -> BTreeSet<SetId> {
        let addresses = self.addresses.get(&port).into_iter().flatten();
        addresses.filter_map(|address| self.held.get(address)).flat_map(|held| held.sets.iter().copied()).collect()
    }

    pub(super) fn ports_in(&self, set: SetId) -> impl Iterator<Item = PortId> + '_ {
        let set = self.sets.get(&set);
        let intervals = |v6: bool| {
            set.into_iter().flat_map(move |set| if v6 { set.v6.iter() } else { set.v4.iter() }.map(move |of| (v6, of)))
        };
        let ranges = intervals(false).chain(intervals(true));
        ranges.flat_map(|(v6, of)| self.within(v6, of)).filter_map(|(_, held)| held.port)
    }

    /// Returns the number of intervals of the set. 0 if it is unknown.
    pub(super) fn intervals(&self, set: SetId) -> usize {
        self.sets.get(&set).map_or(0, |set| set.v4.len() + set.v6.len())
    }

    /// Returns the addresses of a set. Empty if it is unknown.
    pub(super) fn address_set(&self, set: SetId) -> AddressSet {
        let Some(set) = self.sets.get(&set) else { return AddressSet::default() };
        let v4 = set.v4.iter().flat_map(|(first, last)| Ipv4Subnets::new(v4(first), v4(last), 0)).map(IpNet::V4);
        let v6 = set.v6.iter();
        let v6 = v6.flat_map(|(first, last)| Ipv6Subnets::new(Ipv6Addr::from(first), Ipv6Addr::from(last), 0));
        v4.chain(v6.map(IpNet::V6)).collect()
    }

    pub(super) fn put_port(&mut self, port: PortId, addresses: &[IpAddr]) {
        self.remove_port(port);
        if addresses.is_empty() {
            return;
        }
        self.addresses.insert(port, addresses.to_vec());
        for &address in addresses {
            if !self.held.contains_key(&address) {
                // A set that changed earlier in this transaction is searched only if it was inexact at the start. Otherwise the address
                // belonged to a port, and its entry still exists.
                let sets = self.inexact.iter().copied().filter(|set| self.sets[set].contains(address)).collect();
                self.held.insert(address, Held { port: None, sets });
            }
            self.held.get_mut(&address).expect("inserted above").port = Some(port);
        }
        self.count(port, true);
        self.moved.ports.insert(port);
    }

    pub(super) fn remove_port(&mut self, port: PortId) {
        if !self.addresses.contains_key(&port) {
            return;
        }
        self.count(port, false);
        for address in self.addresses.remove(&port).unwrap_or_default() {
            if let Some(held) = self.held.get_mut(&address).filter(|held| held.port == Some(port)) {
                held.port = None;
                self.left.push(address);
            }
        }
        self.moved.ports.insert(port);
    }

    /// Adds a port to the counts of the sets that contain its addresses if `enters`, otherwise removes it from them.
    fn count(&mut self, port: PortId, enters: bool) {
        let addresses = &self.addresses[&port];
        let mut inside: BTreeMap<SetId, [u128; 2]> = BTreeMap::new();
        for address in addresses {
            for set in &self.held[address].sets {
                inside.entry(*set).or_default()[usize::from(address.is_ipv6())] += 1;
            }
        }
        for (id, by_family) in inside {
            touch(&mut self.moved, &self.sets, id);
            let set = self.sets.get_mut(&id).expect("an address is in known sets");
            let is_partial = by_family.iter().sum::<u128>() < addresses.len() as u128;
            for (known, more) in set.known.iter_mut().zip(by_family) {
                *known = if enters { *known + more } else { *known - more };
            }
            set.partial =
                if enters { set.partial + usize::from(is_partial) } else { set.partial - usize::from(is_partial) };
        }
    }

    /// Adds addresses to a set and removes others.
    pub(super) fn change(&mut self, SetDelta { set, added, removed }: &SetDelta) {
        self.sets.entry(*set).or_default();
        touch(&mut self.moved, &self.sets, *set);
        for (addresses, enters) in [(removed, false), (added, true)] {
            let v4 =
                addresses.v4_intervals().iter().map(|&(first, last)| (false, (u128::from(first), u128::from(last))));
            let v6 = addresses.v6_intervals().iter().map(|&of| (true, of));
            for (v6, (first, last)) in v4.chain(v6) {
                let of = self.sets.get_mut(set).expect("made above").of(v6);
                if enters {
                    of.insert(first, last);
                } else {
                    of.remove(first, last);
                }
                let within: Vec<IpAddr> = self.within(v6, (first, last)).map(|(address, _)| address).collect();
                for address in within {
                    self.toggle(*set, address, enters);
                }
            }
        }
    }

    /// Records that an address of a port enters or leaves a set.
    fn toggle(&mut self, id: SetId, address: IpAddr, enters: bool) {
        let held = self.held.get_mut(&address).expect("found by its address");
        let at = held.sets.iter().position(|known| *known == id);
        match at {
            None if enters => held.sets.push(id),
            Some(at) if !enters => drop(held.sets.swap_remove(at)),
            _ => return,
        }
        let Some(port) = held.port else { return };
        self.moved.ports.insert(port);
        let all = &self.addresses[&port];
        let inside = all.iter().filter(|address| self.held[*address].sets.contains(&id)).count();
        let before = if enters { inside - 1 } else { inside + 1 };
        let is_partial = |inside: usize| usize::from(inside > 0 && inside < all.len());
        let set = self.sets.get_mut(&id).expect("changed now");
        set.partial = set.partial + is_partial(inside) - is_partial(before);
        let known = &mut set.known[usize::from(address.is_ipv6())];
        *known = if enters { *known + 1 } else { *known - 1 };
    }

    /// Removes a set that no rule names.
    pub(super) fn drop_set(&mut self, set: SetId) {
        let ports: Vec<PortId> = self.ports_in(set).collect();
        for port in ports {
            for address in &self.addresses[&port] {
                if let Some(held) = self.held.get_mut(address) {
                    held.sets.retain(|known| *known != set);
                }
            }
            self.moved.ports.insert(port);
        }
        for address in &self.left {
            if let Some(held) = self.held.get_mut(address) {
                held.sets.retain(|known| *known != set);
            }
        }
        self.sets.remove(&set);
        self.inexact.remove(&set);
    }

    /// Ends a transaction. Returns its changes.
    pub(super) fn end(&mut self) -> Moved {
        for address in std::mem::take(&mut self.left) {
            if self.held.get(&address).is_some_and(|held| held.port.is_none()) {
                self.held.remove(&address);
            }
        }
        let moved = std::mem::take(&mut self.moved);
        for set in moved.sets.keys() {
            match self.sets.get(set) {
                Some(of) if !of.is_exact() => drop(self.inexact.insert(*set)),
                _ => drop(self.inexact.remove(set)),
            }
        }
        moved
    }

    fn within(&self, v6: bool, (first, last): (u128, u128)) -> impl Iterator<Item = (IpAddr, &Held)> + '_ {
        let range = if v6 {
            IpAddr::from(Ipv6Addr::from(first))..=IpAddr::from(Ipv6Addr::from(last))
        } else {
            IpAddr::from(v4(first))..=IpAddr::from(v4(last))
        };
        self.held.range(range).map(|(&address, held)| (address, held))
    }
}

fn touch(moved: &mut Moved, sets: &AHashMap<SetId, Set>, set: SetId) {
    moved.sets.entry(set).or_insert_with(|| sets.get(&set).is_none_or(Set::is_exact));
}

fn v4(number: u128) -> Ipv4Addr {
    Ipv4Addr::from(u32::try_from(number).expect("an address of IPv4"))
}

fn number(address: IpAddr) -> (bool, u128) {
    match address {
        IpAddr::V4(address) => (false, u32::from(address).into()),
        IpAddr::V6(address) => (true, address.into()),
    }
}
