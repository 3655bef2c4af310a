//! Computes exactly what the learned policies allow beyond the observed traffic.
//!
//! ```text
//!  pods of a workload --same class, same declared ports--> a block ---.
//!  outside addresses --regions that no rule tells apart--> a block ---+--block x block, at the rule's ports--> allowed and not seen?
//!  pairs of addresses that were seen, or of a pod and its own node ----'--each by itself
//! ```
//! All pairs of two blocks have the same answer except these few, so workloads with hundreds of pods need one question, not one per pair.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{PortRange, Service, ServiceSet};
use bulkhead_control::object::{ContainerPort, Transport};
use bulkhead_control::origin::Direction;
use bulkhead_control::reachability::{ClassId, Holder, Protocol, Reachability};

use super::evidence::Evidence;
use super::names::NameExcess;
use super::policy::{LearnedPolicy, Peer, PortName, Rule};
use super::workload::Workloads;

/// A range of addresses: the first and the last.
pub(super) type Range = (IpAddr, IpAddr);

/// Unobserved allowed connections: from each address in `from` to each in `to`, except the pairs in `but`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Excess {
    /// Printed name of the workload or CIDR block.
    pub(super) from_title: String,
    pub(super) to_title: String,
    pub(super) transport: Transport,
    pub(super) ports: Vec<(u16, u16)>,
    pub(super) from: Arc<[Range]>,
    pub(super) to: Arc<[Range]>,
    /// Pairs of addresses to exclude: observed ones, and those of a pod with itself or its own node.
    pub(super) but: BTreeSet<(IpAddr, IpAddr)>,
}

impl Excess {
    /// Returns the number of address pairs, without the excluded ones.
    pub(super) fn pairs(&self) -> u128 {
        let count = |ranges: &[Range]| ranges.iter().fold(0u128, |sum, &range| sum.saturating_add(addresses(range)));
        count(&self.from).saturating_mul(count(&self.to)).saturating_sub(self.but.len() as u128)
    }
}

fn addresses((first, last): Range) -> u128 {
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => u128::from(u32::from(last) - u32::from(first)) + 1,
        (IpAddr::V6(first), IpAddr::V6(last)) => (u128::from(last) - u128::from(first)).saturating_add(1),
        _ => 0,
    }
}

/// Everything that is allowed but was not observed.
#[derive(Debug, Default)]
pub(super) struct Surplus {
    pub(super) excess: Vec<Excess>,
    /// What the names in the policies allow.
    pub(super) names: Vec<NameExcess>,
}

impl Surplus {
    pub(super) fn of(
        policies: &[LearnedPolicy],
        workloads: &Workloads,
        evidence: &Evidence,
        after: &Reachability,
    ) -> Self {
        let blocks = Blocks::of(workloads, after);
        let mut search = Search { blocks: &blocks, after, named: BTreeMap::new(), allowed: HashMap::new() };
        for policy in policies {
            for (direction, rules) in &policy.rules {
                let is_ingress = *direction == Direction::Ingress.name();
                for rule in rules {
                    rule.peers.iter().for_each(|peer| search.name(policy.workload, is_ingress, rule, peer));
                }
            }
        }
        let mut seen: HashMap<(usize, usize), BTreeMap<(IpAddr, IpAddr), ServiceSet>> = HashMap::new();
        for &(from, to, transport, port) in evidence.contacts.keys() {
            let pair = (blocks.at(from, after), blocks.at(to, after));
            let services = seen.entry(pair).or_default().entry((from, to)).or_default();
            *services = services.union(&[service(transport, port)].into_iter().collect());
        }
        let none = BTreeMap::new();
        let mut excess = Vec::new();
        for ((from, to), services) in std::mem::take(&mut search.named) {
            search.ask((from, to), &services, seen.get(&(from, to)).unwrap_or(&none), &mut excess);
        }
        excess.sort_unstable();
        Self { excess, names: NameExcess::of(policies, workloads, evidence) }
    }
}

/// Addresses that no rule and no port name distinguishes.
struct Block {
    title: String,
    class: ClassId,
    ranges: Arc<[Range]>,
    /// Ports that the pods declare. Empty for external addresses.
    ports: Arc<[ContainerPort]>,
}

impl Block {
    fn is_v4(&self) -> bool {
        self.ranges.first().is_some_and(|(first, _)| first.is_ipv4())
    }

    fn each(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.ranges.iter().flat_map(|&range| within(range))
    }
}

/// All blocks: those of workloads, then the external regions.
struct Blocks {
    all: Vec<Block>,
    of_workloads: Vec<Vec<usize>>,
    by_address: HashMap<IpAddr, usize>,
    /// Index of the first block that is an external region.
    regions: usize,
}

impl Blocks {
    fn of(workloads: &Workloads, after: &Reachability) -> Self {
        let reachability = after;
        let mut blocks = Self { all: Vec::new(), of_workloads: Vec::new(), by_address: HashMap::new(), regions: 0 };
        for workload in &workloads.all {
            /// What distinguishes blocks of a workload: the class of addresses, and the declared ports.
            type Kind<'a> = (ClassId, Vec<(Transport, u16, &'a str)>);
            let mut members: BTreeMap<Kind<'_>, Vec<(IpAddr, &[ContainerPort])>> = BTreeMap::new();
            for pod in &workload.pods {
                let mut declared: Vec<_> = pod.ports.iter().map(|of| (of.transport, of.port, &*of.name)).collect();
                declared.sort_unstable();
                for &address in &pod.addresses {
                    let key = (reachability.class_at(address), declared.clone());
                    members.entry(key).or_default().push((address, &pod.ports));
                }
            }
            let mut places = Vec::new();
            for ((class, _), mut addresses) in members {
                addresses.sort_unstable_by_key(|(address, _)| *address);
                blocks.by_address.extend(addresses.iter().map(|&(address, _)| (address, blocks.all.len())));
                places.push(blocks.all.len());
                blocks.all.push(Block {
                    title: workload.title(),
                    class,
                    ports: addresses[0].1.into(),
                    ranges: addresses.iter().map(|&(address, _)| (address, address)).collect(),
                });
            }
            blocks.of_workloads.push(places);
        }
        blocks.regions = blocks.all.len();
        blocks.all.extend(reachability.regions().map(|region| Block {
            title: String::new(),
            class: region.class,
            ranges: [(region.first, region.last)].into(),
            ports: [].into(),
        }));
        blocks
    }

    /// Returns the index of the block that contains an address.
    fn at(&self, address: IpAddr, after: &Reachability) -> usize {
        let known = self.by_address.get(&address).copied();
        known.unwrap_or_else(|| self.regions + after.region_at(address))
    }

    /// Returns the regions in a CIDR block. A rule names the block, so each region is entirely inside or outside.
    fn regions_of(&self, block: &ipnet::IpNet, after: &Reachability) -> std::ops::RangeInclusive<usize> {
        let at = |address| self.regions + after.region_at(address);
        at(block.network())..=at(block.broadcast())
    }
}

/// The indexes of a source and a destination block.
type Pair = (usize, usize);

struct Search<'a> {
    blocks: &'a Blocks,
    after: &'a Reachability,
    /// Pairs of blocks that rules name, with the ports of these rules.
    named: BTreeMap<Pair, Named>,
    /// Allowed services between two classes. The flag says whether one end is the other's own node.
    allowed: HashMap<(ClassId, ClassId, bool), ServiceSet>,
}

struct Named {
    titles: [String; 2],
    services: ServiceSet,
}

impl Search<'_> {
    fn name(&mut self, subject: usize, is_ingress: bool, rule: &Rule, peer: &Peer) {
        let blocks = self.blocks;
        let (others, title): (Vec<usize>, _) = match peer {
            Peer::Workload(at) => (blocks.of_workloads[*at].clone(), None),
            Peer::Block(block) => (blocks.regions_of(block, self.after).collect(), Some(block.to_string())),
        };
        for &own in &blocks.of_workloads[subject] {
            for &other in &others {
                let (from, to) = if is_ingress { (other, own) } else { (own, other) };
                if blocks.all[from].is_v4() != blocks.all[to].is_v4() {
                    continue;
                }
                let services = services(rule, &blocks.all[to].ports);
                let titles = || {
                    let of = |at: usize| match &title {
                        Some(title) if at == other => title.clone(),
                        _ => blocks.all[at].title.clone(),
                    };
                    Named { titles: [of(from), of(to)], services: ServiceSet::default() }
                };
                let named = self.named.entry((from, to)).or_insert_with(titles);
                named.services = named.services.union(&services);
            }
        }
    }

    /// Adds the services that are allowed between two blocks but were not observed.
    fn ask(
        &mut self,
        (from, to): Pair,
        named: &Named,
        seen: &BTreeMap<(IpAddr, IpAddr), ServiceSet>,
        excess: &mut Vec<Excess>,
    ) {
        let (source, destination) = (&self.blocks.all[from], &self.blocks.all[to]);
        let mut but: BTreeSet<(IpAddr, IpAddr)> = seen.keys().copied().collect();
        let own = self.of_own_nodes(source, destination);
        but.extend(&own);
        if from == to {
            // A pod cannot connect to itself through the vswitch.
            but.extend(source.each().map(|address| (address, address)));
        }
        let allowed = named.services.intersect(self.allowed(source.class, destination.class, false));
        let Named { titles, .. } = named;
        add(excess, titles, &allowed, (source.ranges.clone(), destination.ranges.clone()), &but);
        let none = ServiceSet::default();
        let single: BTreeSet<(IpAddr, IpAddr)> = seen.keys().copied().chain(own).collect();
        for (a, b) in single.into_iter().filter(|(a, b)| a != b) {
            let own_node = self.after.is_own_node(a, b);
            let allowed = named.services.intersect(self.allowed(source.class, destination.class, own_node));
            let left = allowed.subtract(seen.get(&(a, b)).unwrap_or(&none));
            add(excess, titles, &left, ([(a, a)].into(), [(b, b)].into()), &BTreeSet::new());
        }
    }

    /// Returns the pairs of a pod and its own node.
    fn of_own_nodes(&self, source: &Block, destination: &Block) -> Vec<(IpAddr, IpAddr)> {
        let reachability = self.after;
        let is_node = |block: &Block| matches!(reachability.class(block.class).holder, Holder::Nodes(_));
        if !is_node(source) && !is_node(destination) {
            return Vec::new();
        }
        let pairs = source.each().flat_map(|from| destination.each().map(move |to| (from, to)));
        pairs.filter(|&(from, to)| reachability.is_own_node(from, to)).collect()
    }

    fn allowed(&mut self, from: ClassId, to: ClassId, own_node: bool) -> &ServiceSet {
        let reachability = self.after;
        self.allowed.entry((from, to, own_node)).or_insert_with(|| {
            let verdicts = reachability.verdicts(from, to, own_node);
            let of = |transport: Transport| {
                let verdicts = verdicts.of_protocol(Protocol::from(transport)).iter().filter(|of| of.allowed());
                verdicts
                    .map(|of| Service { protocols: (transport.number(), transport.number()), ports: of.ports })
                    .collect::<Vec<_>>()
            };
            Transport::ALL.into_iter().flat_map(of).collect()
        })
    }
}

/// Adds one row per protocol.
fn add(
    excess: &mut Vec<Excess>,
    [from_title, to_title]: &[String; 2],
    services: &ServiceSet,
    (from, to): (Arc<[Range]>, Arc<[Range]>),
    but: &BTreeSet<(IpAddr, IpAddr)>,
) {
    for transport in Transport::ALL {
        let ports = services.ports_of(transport.number()).to_vec();
        let row = Excess {
            from_title: from_title.clone(),
            to_title: to_title.clone(),
            transport,
            ports,
            from: from.clone(),
            to: to.clone(),
            but: but.clone(),
        };
        if !row.ports.is_empty() && row.pairs() > 0 {
            excess.push(row);
        }
    }
}

fn service(transport: Transport, port: u16) -> Service {
    Service { protocols: (transport.number(), transport.number()), ports: PortRange { first: port, last: port } }
}

/// Returns the ports of a rule at a pod that declares these ports.
fn services(rule: &Rule, declared: &[ContainerPort]) -> ServiceSet {
    let numbers = |(transport, port): &(Transport, PortName)| -> Vec<Service> {
        match port {
            PortName::Number(number) => vec![service(*transport, *number)],
            PortName::Name(name) => declared
                .iter()
                .filter(|of| of.name == *name && of.transport == *transport)
                .map(|of| service(*transport, of.port))
                .collect(),
        }
    };
    rule.ports.iter().flat_map(numbers).collect()
}

/// Iterates over the addresses of a range.
fn within((first, last): Range) -> Box<dyn Iterator<Item = IpAddr>> {
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            Box::new((u32::from(first)..=u32::from(last)).map(|at| IpAddr::V4(at.into())))
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            Box::new((u128::from(first)..=u128::from(last)).map(|at| IpAddr::V6(at.into())))
        }
        _ => Box::new(std::iter::empty()),
    }
}
