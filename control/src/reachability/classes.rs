//! Builds the classes and the rows of sides.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;

use super::partition::Family;
use super::{ClassId, Holder, ListNumber, Listed, Member, Region, Side, class_at};
use crate::cache::Cache;
use crate::contract::{Endpoint, ListId, Peers, SetId, TieredList};
use crate::pipeline::UNBOUND;
use crate::renderer::mirror::Mirror;

/// The pods' rule lists, and the sets that their rules match.
#[derive(Debug, Default)]
pub(super) struct Lists {
    pub(super) all: Vec<Arc<TieredList>>,
    numbers: AHashMap<ListId, ListNumber>,
    /// The sets that the rules match, sorted and without duplicates.
    pub(super) sets: Vec<SetId>,
}

impl Lists {
    pub(super) fn of(mirror: &Mirror) -> Self {
        let mut lists = Self::default();
        for list in mirror.endpoints().values().flat_map(|endpoint| endpoint.rules.lists()) {
            let next = ListNumber(number(lists.all.len()));
            lists.numbers.entry(list.id).or_insert_with(|| {
                lists.all.push(list.clone());
                next
            });
        }
        let named = lists.all.iter().flat_map(|list| &list.rules).filter_map(|rule| rule.peers.sets());
        lists.sets = named.flat_map(|sets| sets.iter().copied()).collect();
        lists.sets.sort_unstable();
        lists.sets.dedup();
        lists
    }

    fn held_by(&self, endpoint: &Endpoint) -> HeldBy {
        let number = |list: &Option<Arc<TieredList>>| list.as_ref().map(|list| self.numbers[&list.id]);
        let (egress, ingress) = (number(&endpoint.rules.egress), number(&endpoint.rules.ingress));
        HeldBy { holder: Holder::Pods, egress, ingress }
    }
}

/// An address's owner and the owner's rule lists.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HeldBy {
    pub(super) holder: Holder,
    pub(super) egress: Option<ListNumber>,
    pub(super) ingress: Option<ListNumber>,
}

impl HeldBy {
    const NOBODY: Self = Self { holder: Holder::Outside, egress: None, ingress: None };
}

/// Assigns numbers to classes in the order in which the partition reaches them.
#[derive(Debug)]
pub(super) struct Classes {
    /// The holder of each holder number. The first one is `NOBODY`.
    pub(super) holders: Vec<HeldBy>,
    holder_numbers: AHashMap<HeldBy, u32>,
    /// The sets of each signature number, ascending. Two addresses have the same signature if the same sets contain them.
    pub(super) signatures: Vec<Arc<[u32]>>,
    signature_numbers: AHashMap<Arc<[u32]>, u32>,
    numbers: AHashMap<(Family, u32, u32), ClassId>,
    /// The signature and the holder of each class, by number.
    pub(super) keys: Vec<(u32, u32)>,
}

impl Classes {
    pub(super) fn new() -> Self {
        Self {
            holders: vec![HeldBy::NOBODY],
            holder_numbers: [(HeldBy::NOBODY, 0)].into_iter().collect(),
            signatures: Vec::new(),
            signature_numbers: AHashMap::new(),
            numbers: AHashMap::new(),
            keys: Vec::new(),
        }
    }

    fn holder(&mut self, by: HeldBy) -> u32 {
        let next = number(self.holders.len());
        *self.holder_numbers.entry(by).or_insert_with_key(|by| {
            self.holders.push(by.clone());
            next
        })
    }

    /// Returns the class of addresses that are in these sets and have this holder.
    pub(super) fn class(&mut self, family: Family, inside: &[u32], holder: Option<u32>) -> ClassId {
        let signature = match self.signature_numbers.get(inside) {
            Some(&known) => known,
            None => {
                let next = number(self.signatures.len());
                let sets: Arc<[u32]> = inside.into();
                self.signatures.push(sets.clone());
                self.signature_numbers.insert(sets, next);
                next
            }
        };
        let holder = holder.unwrap_or_default();
        let next = ClassId(number(self.keys.len()));
        *self.numbers.entry((family, signature, holder)).or_insert_with(|| {
            self.keys.push((signature, holder));
            next
        })
    }
}

/// Maps addresses to holders. An address that both a node and a pod claim is the node's.
pub(super) fn holders(mirror: &Mirror, lists: &Lists, classes: &mut Classes) -> AHashMap<IpAddr, u32> {
    let mut holders = AHashMap::new();
    for endpoint in mirror.endpoints().values() {
        let holder = classes.holder(lists.held_by(endpoint));
        holders.extend(endpoint.addresses.iter().map(|&address| (address, holder)));
    }
    let mut nodes: BTreeMap<IpAddr, Vec<Arc<str>>> = BTreeMap::new();
    for (name, node) in mirror.nodes() {
        for &address in &node.addresses {
            nodes.entry(address).or_default().push(name.clone());
        }
    }
    for (address, names) in nodes {
        let by = HeldBy { holder: Holder::Nodes(names.into()), egress: None, ingress: None };
        holders.insert(address, classes.holder(by));
    }
    holders
}

/// Returns the addresses of all unfinished pods.
pub(super) fn members(cache: &Cache, regions: &[Vec<Region>; 2]) -> Vec<Member> {
    let pods = cache.pods().map(|(_, pod)| pod).filter(|pod| !pod.finished);
    let there = pods.filter(|pod| !pod.host_network || pod.node.is_some());
    let mut members: Vec<Member> = there
        .flat_map(|pod| {
            pod.addresses.iter().map(|&address| Member {
                pod: pod.name.clone(),
                address,
                class: class_at(&regions[Family::of(address) as usize], address),
                node: pod.node.clone().unwrap_or_else(|| UNBOUND.into()),
                host_network: pod.host_network,
            })
        })
        .collect();
    members.sort_by(|a, b| (&a.pod, a.address).cmp(&(&b.pod, b.address)));
    members
}

/// Builds the lists' rows from the classes in each set.
pub(super) struct Rows {
    classes_of_set: AHashMap<SetId, Vec<u32>>,
    classes: usize,
    sides: Vec<Side>,
}

impl Rows {
    pub(super) fn new(sets: &[SetId], classes: &Classes) -> Self {
        let mut classes_of_set: AHashMap<SetId, Vec<u32>> = sets.iter().map(|&set| (set, Vec::new())).collect();
        for (&(signature, _), class) in classes.keys.iter().zip(0..) {
            for &set in &*classes.signatures[signature as usize] {
                classes_of_set.entry(sets[set as usize]).or_default().push(class);
            }
        }
        Self { classes_of_set, classes: classes.keys.len(), sides: vec![Side::open()] }
    }

    /// Returns the lists with their rows, and the sides that the rows refer to.
    pub(super) fn fill(mut self, lists: Vec<Arc<TieredList>>) -> (Vec<Listed>, Vec<Side>) {
        let mut named: Vec<Vec<u32>> = vec![Vec::new(); self.classes];
        let lists = lists.into_iter().map(|list| {
            let row = self.row(&list, &mut named);
            Listed { list, row }
        });
        let lists = lists.collect();
        (lists, self.sides)
    }

    /// Returns, for each class as the peer, the position in `sides` of what the list decides about it. `named` is scratch space with an
    /// empty vector per class, and is empty again afterwards.
    fn row(&mut self, list: &TieredList, named: &mut [Vec<u32>]) -> Vec<u32> {
        let mut touched: Vec<u32> = Vec::new();
        for (rule, at) in list.rules.iter().zip(0..) {
            let Peers::Sets(sets) = &rule.peers else { continue };
            for &class in sets.iter().filter_map(|set| self.classes_of_set.get(set)).flatten() {
                let rules = &mut named[class as usize];
                if rules.is_empty() {
                    touched.push(class);
                }
                if rules.last() != Some(&at) {
                    rules.push(at);
                }
            }
        }
        let mut by_rules: AHashMap<Vec<u32>, u32> = AHashMap::new();
        let mut row = vec![self.side(list, &[]); self.classes];
        for class in touched {
            let rules = std::mem::take(&mut named[class as usize]);
            let side = match by_rules.get(&rules) {
                Some(&side) => side,
                None => {
                    let side = self.side(list, &rules);
                    by_rules.insert(rules, side);
                    side
                }
            };
            row[class as usize] = side;
        }
        row
    }

    /// Adds the side of a list towards a peer that these rules match, in addition to rules that match every peer.
    fn side(&mut self, list: &TieredList, named: &[u32]) -> u32 {
        let mut named = named.iter().peekable();
        let rules = list.rules.iter().zip(0..).filter(|(rule, at)| {
            let is_named = named.next_if_eq(&at).is_some();
            is_named || rule.peers == Peers::Any
        });
        let side = Side::of_rules(rules.map(|(rule, _)| rule));
        self.sides.push(side);
        number(self.sides.len() - 1)
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).expect("an address space of fewer than 2^32 classes, lists and sides")
}
