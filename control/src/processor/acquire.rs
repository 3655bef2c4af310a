//! Registers a policy as a user of the address book's sets that it is compiled from.

use std::collections::BTreeMap;
use std::sync::Arc;

use ahash::AHashSet;
use bulkhead_classifier::AddressSet;

use super::governing::Governing;
use crate::book::{AddressBook, Anywhere, PortName, Use, addresses_of};
use crate::cache::Cache;
use crate::object::{Peer, PolicyName, PolicyPort, PolicyRule, Region};
use crate::origin::Direction;
use crate::work::Work;

/// Acquires the sets that a policy is compiled from, and creates those that no other policy uses.
pub(super) fn acquire(
    book: &mut AddressBook,
    cache: &Cache,
    policy: &Governing,
    blocks: &Blocks,
    work: &mut Work,
) -> AHashSet<Use> {
    let user = &policy.key();
    let mut uses = AHashSet::new();
    for (direction, _, rule) in policy.rules() {
        let named = if direction == Direction::Egress { named_ports(rule) } else { Vec::new() };
        for peer in rule.peers.iter().flatten() {
            match peer {
                Peer::Pods(peer) => {
                    let id = book.acquire(cache, peer, user, work);
                    uses.insert(Use::Group(id));
                    for name in &named {
                        book.acquire_named(cache, id, name, user, work);
                        uses.insert(Use::NamedIn(id, name.clone()));
                    }
                }
                Peer::Nodes(selector) => {
                    book.acquire_nodes(cache, selector, user);
                    uses.insert(Use::Nodes(selector.clone()));
                }
                Peer::Region(region) => {
                    let addresses = region.names().map_or_else(|| region.clone(), |(_, rest)| Arc::new(rest));
                    uses.extend(acquire_region(book, cache, &addresses, user, work));
                }
                Peer::Block(_) | Peer::OwnNode | Peer::Names(_) => {}
            }
        }
        for name in &named {
            for region in regions(rule) {
                book.acquire_anywhere(cache, &Anywhere::Everybody, name, user, work);
                uses.insert(Use::NamedAnywhere(Anywhere::Everybody, name.clone()));
                book.acquire_named_in_region(region, name, user);
                uses.insert(Use::NamedInRegion(region.clone(), name.clone()));
            }
            for place in places(rule) {
                book.acquire_anywhere(cache, &place, name, user, work);
                uses.insert(Use::NamedAnywhere(place, name.clone()));
            }
        }
    }
    if policy.has_quarantine() {
        book.acquire_quarantine(cache, user);
        uses.insert(Use::Quarantine);
    }
    for block in blocks.0.values() {
        book.acquire_block(block, user);
        uses.insert(Use::Block(block.clone()));
    }
    uses
}

/// Acquires a region and the sets that it consists of.
fn acquire_region(
    book: &mut AddressBook,
    cache: &Cache,
    region: &Arc<Region>,
    user: &PolicyName,
    work: &mut Work,
) -> Vec<Use> {
    let mut uses = Vec::new();
    for peer in region.peers() {
        match peer {
            Peer::Pods(peer) => uses.push(Use::Group(book.acquire(cache, peer, user, work))),
            Peer::Nodes(selector) => {
                book.acquire_nodes(cache, selector, user);
                uses.push(Use::Nodes(selector.clone()));
            }
            Peer::Block(_) | Peer::OwnNode | Peer::Names(_) | Peer::Region(_) => {}
        }
    }
    if region.excludes_pods() {
        book.acquire_quarantine(cache, user);
        uses.push(Use::Quarantine);
    }
    book.acquire_region(region, user);
    uses.push(Use::Region(region.clone()));
    uses
}

/// The address blocks of a policy's rules, by direction and position of the rule.
#[derive(Debug)]
pub(super) struct Blocks(pub(super) BTreeMap<(Direction, usize), Arc<AddressSet>>);

impl Blocks {
    pub(super) fn of(policy: &Governing) -> Self {
        let blocks = |rule: &PolicyRule| -> Option<Arc<AddressSet>> {
            let blocks = rule.peers.iter().flatten().filter_map(|peer| match peer {
                Peer::Pods(_) | Peer::Nodes(_) | Peer::OwnNode | Peer::Names(_) | Peer::Region(_) => None,
                Peer::Block(block) => Some(addresses_of(block)),
            });
            // In one step: a union per block would copy the previous result for each of a thousand blocks.
            let mut blocks = blocks.peekable();
            blocks.peek()?;
            Some(Arc::new(blocks.flat_map(|block| block.prefixes().collect::<Vec<_>>()).collect()))
        };
        Self(policy.rules().filter_map(|(direction, at, rule)| Some(((direction, at), blocks(rule)?))).collect())
    }
}

/// Returns the peers without a pod selector for which an egress rule's port names are looked up: blocks, or all pods.
pub(super) fn places(rule: &PolicyRule) -> Vec<Anywhere> {
    let Some(peers) = &rule.peers else { return vec![Anywhere::Everybody] };
    let block = |peer: &Peer| match peer {
        Peer::Pods(_) | Peer::Nodes(_) | Peer::OwnNode | Peer::Names(_) | Peer::Region(_) => None,
        Peer::Block(block) => Some(Anywhere::Block(block.clone())),
    };
    peers.iter().filter_map(block).collect()
}

/// Returns the regions among the rule's peers, except those with a condition on domain names.
pub(super) fn regions(rule: &PolicyRule) -> impl Iterator<Item = &Arc<Region>> {
    rule.peers.iter().flatten().filter_map(|peer| match peer {
        Peer::Region(region) => Some(region).filter(|region| region.names().is_none()),
        _ => None,
    })
}

/// Returns the names of ports in the rule, each with its protocol.
pub(super) fn named_ports(rule: &PolicyRule) -> Vec<PortName> {
    let ports = rule.ports.iter().flatten();
    ports
        .filter_map(|port| match port {
            PolicyPort::Named { transport, name } => Some((*transport, name.clone())),
            PolicyPort::All(_) | PolicyPort::Range { .. } | PolicyPort::Numbers { .. } => None,
        })
        .collect()
}
