//! What the learned policies allow and was not seen, exactly.
//!
//! Each pod of a policy's workload and each end that a rule names are asked about, at the rule's ports: what of it gets through in the
//! new state and was in no session. Outside addresses are ranges that no rule tells apart, cut at those that were seen.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use bulkhead_classifier::{PortRange, Service, ServiceSet};
use bulkhead_control::object::Transport;
use bulkhead_control::origin::Direction;
use bulkhead_control::reachability::{ClassId, Protocol, Region};

use super::Sets;
use super::evidence::Evidence;
use super::policy::{LearnedPolicy, Peer, PortName, Rule};
use super::workload::{Workload, Workloads};

/// Addresses, first and last.
pub(super) type Range = (IpAddr, IpAddr);

/// What is allowed without having been seen: from, to, the workloads or blocks as they are told, and the ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Excess {
    /// As it is told, from.
    pub(super) from_title: String,
    pub(super) to_title: String,
    pub(super) transport: Transport,
    pub(super) ports: Vec<(u16, u16)>,
    pub(super) from: Range,
    pub(super) to: Range,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Surplus {
    pub(super) excess: Vec<Excess>,
}

/// What one end may reach of another: services by the two ranges.
type Found = BTreeMap<(Range, Range), (String, String, ServiceSet)>;

impl Surplus {
    pub(super) fn of(policies: &[LearnedPolicy], workloads: &Workloads, evidence: &Evidence, after: &Sets) -> Self {
        let mut search = Search {
            workloads,
            after,
            seen: BTreeMap::new(),
            partners: [(); 2].map(|()| BTreeMap::new()),
            allowed: HashMap::new(),
            found: Found::new(),
        };
        for &(from, to, transport, port) in evidence.contacts.keys() {
            search.seen.entry((from, to)).or_default().insert((transport, port));
            search.partners[0].entry(from).or_default().insert(to);
            search.partners[1].entry(to).or_default().insert(from);
        }
        for policy in policies {
            let subject = &workloads.all[policy.workload];
            for (direction, rules) in &policy.rules {
                let is_ingress = *direction == Direction::Ingress.name();
                for rule in rules {
                    rule.peers.iter().for_each(|peer| search.peer(subject, is_ingress, rule, peer));
                }
            }
        }
        let rows = |((from, to), (from_title, to_title, services)): ((Range, Range), (String, String, ServiceSet))| {
            Transport::ALL.into_iter().filter_map(move |transport| {
                let ports = services.ports_of(transport.number()).to_vec();
                let (from_title, to_title) = (from_title.clone(), to_title.clone());
                (!ports.is_empty()).then_some(Excess { from_title, to_title, transport, ports, from, to })
            })
        };
        let mut excess: Vec<Excess> = search.found.into_iter().flat_map(rows).collect();
        excess.sort_unstable();
        Self { excess }
    }
}

struct Search<'a> {
    workloads: &'a Workloads,
    after: &'a Sets,
    seen: BTreeMap<(IpAddr, IpAddr), BTreeSet<(Transport, u16)>>,
    /// Whom an address was seen to connect to, and who to it.
    partners: [BTreeMap<IpAddr, BTreeSet<IpAddr>>; 2],
    /// What gets through between two classes, with whether one is the other one's node.
    allowed: HashMap<(ClassId, ClassId, bool), ServiceSet>,
    found: Found,
}

impl Search<'_> {
    fn peer(&mut self, subject: &Workload, is_ingress: bool, rule: &Rule, peer: &Peer) {
        for pod in &subject.pods {
            for &own in &pod.addresses {
                match peer {
                    Peer::Workload(at) => {
                        let other = &self.workloads.all[*at];
                        for other_pod in &other.pods {
                            let services = services(rule, if is_ingress { &pod.ports } else { &other_pod.ports });
                            for &address in &other_pod.addresses {
                                let (from, to) = if is_ingress { (address, own) } else { (own, address) };
                                let titles = if is_ingress { (other, subject) } else { (subject, other) };
                                let titles = (titles.0.title(), titles.1.title());
                                self.ask((from, from), (to, to), titles, &services);
                            }
                        }
                    }
                    Peer::Block(block) => {
                        let services = services(rule, &pod.ports);
                        for range in self.pieces(own, is_ingress, block) {
                            let (from, to) = if is_ingress { (range, (own, own)) } else { ((own, own), range) };
                            let titles = (subject.title(), block.to_string());
                            let titles = if is_ingress { (titles.1, titles.0) } else { titles };
                            self.ask(from, to, titles, &services);
                        }
                    }
                }
            }
        }
    }

    /// The parts of a block that no rule tells apart; addresses that the pod was seen with are parts of their own.
    fn pieces(&self, own: IpAddr, is_ingress: bool, block: &ipnet::IpNet) -> Vec<Range> {
        let (first, last) = (block.network(), block.broadcast());
        let regions = self.after.reachability.regions();
        let clip = |region: &Region| {
            let same = region.first.is_ipv4() == first.is_ipv4();
            (same && region.first <= last && region.last >= first)
                .then(|| (region.first.max(first), region.last.min(last)))
        };
        let ranges: Vec<Range> = regions.filter_map(clip).collect();
        let none = BTreeSet::new();
        let partners = self.partners[usize::from(is_ingress)].get(&own).unwrap_or(&none);
        let mut pieces = Vec::new();
        for (mut start, end) in ranges {
            let mut is_open = true;
            for &partner in partners.range(start..=end) {
                if partner > start {
                    pieces.push((start, step(partner, -1)));
                }
                pieces.push((partner, partner));
                is_open = partner < end;
                if is_open {
                    start = step(partner, 1);
                }
            }
            if is_open {
                pieces.push((start, end));
            }
        }
        pieces
    }

    fn ask(&mut self, from: Range, to: Range, titles: (String, String), services: &ServiceSet) {
        let reachability = &self.after.reachability;
        // An address of its own is not asked about, and of two families there is no connection.
        if from.0 == to.0 || from.0.is_ipv4() != to.0.is_ipv4() {
            return;
        }
        let own_node = reachability.is_own_node(from.0, to.0);
        let classes = (reachability.class_at(from.0), reachability.class_at(to.0), own_node);
        let allowed = self.allowed.entry(classes).or_insert_with(|| {
            let verdicts = reachability.verdicts(classes.0, classes.1, own_node);
            let of = |transport: Transport| {
                let verdicts = verdicts.of_protocol(Protocol::from(transport)).iter().filter(|of| of.allowed());
                verdicts
                    .map(|of| of.ports)
                    .collect::<Vec<_>>()
                    .into_iter()
                    .map(move |ports| Service { protocols: (transport.number(), transport.number()), ports })
            };
            Transport::ALL.into_iter().flat_map(of).collect()
        });
        let seen = self.seen.get(&(from.0, to.0)).filter(|_| from.0 == from.1 && to.0 == to.1);
        let seen: ServiceSet = seen.into_iter().flatten().map(|&(transport, port)| service(transport, port)).collect();
        let excess = services.intersect(allowed).subtract(&seen);
        if !excess.is_empty() {
            let found = self.found.entry((from, to)).or_insert_with(|| (titles.0, titles.1, ServiceSet::default()));
            found.2 = found.2.union(&excess);
        }
    }
}

fn service(transport: Transport, port: u16) -> Service {
    Service { protocols: (transport.number(), transport.number()), ports: PortRange { first: port, last: port } }
}

/// What a rule's ports are at a pod that declares these.
fn services(rule: &Rule, declared: &[bulkhead_control::object::ContainerPort]) -> ServiceSet {
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

/// The address before or after. Only called where there is one.
fn step(address: IpAddr, by: i8) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4(u32::from(address).wrapping_add_signed(i32::from(by)).into()),
        IpAddr::V6(address) => IpAddr::V6(u128::from(address).wrapping_add_signed(i128::from(by)).into()),
    }
}
