//! Verifies a claim for all addresses and ports at once, and finds a counterexample.
//!
//! ```text
//!  from, to --regions--> classes with their addresses --each pair of classes--> sides --against the claim's ports--> violated?
//!                                                                               `-- a pair of addresses of theirs that is a connection
//! ```
//! Ignores pairs of ends without a connection that policy can deny: an address and itself, addresses of two families, two ends that are not
//! selectable pods, and a pod and its own node.
//!
//! **Invariant.** A claim holds only if it covers at least one connection.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bulkhead_classifier::{AddressSet, ServiceSet};
use bulkhead_control::cache::Cache;
use bulkhead_control::object::Object;
use bulkhead_control::reachability::{ClassId, Holder, Protocol, Reachability, Verdict};

use super::ends::{Selected, everything};
use super::file::{Claim, Kind};

/// Result of a claim: whether it holds, and a witness if not.
#[derive(Debug)]
pub(super) enum Outcome {
    Holds,
    /// The claim covers no connection, with the reason.
    Vacuous(String),
    Fails(Witness),
}

/// A connection that violates the claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Witness {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) protocol: Protocol,
    /// Destination port. 0 for protocols without ports.
    pub(super) port: u16,
    pub(super) verdict: Verdict,
}

/// A class of addresses that no rule distinguishes, and the ranges of its addresses that belong to an end of the claim.
type Part = (ClassId, Vec<(IpAddr, IpAddr)>);

/// Verifies a claim against a state, for all addresses and ports. `services` are the state's Services and `EndpointSlices`.
pub(super) fn judge(claim: &Claim, cache: &Cache, reachability: &Reachability, services: &[Object]) -> Outcome {
    let from = claim.from.select(cache, reachability);
    if from.addresses.is_empty() {
        return Outcome::Vacuous(nobody("from", &from));
    }
    let sources = match claim.kind {
        Kind::Only => everything().subtract(&from.addresses),
        Kind::Never | Kind::Always => from.addresses.clone(),
    };
    let sources = parts(&sources, reachability);
    let (mut vacuous, mut holds) = (None, false);
    for (ports, to) in claim.to.targets(cache, reachability, services, &claim.ports) {
        let asked = Asked {
            reachability,
            kind: claim.kind,
            ports: &ports,
            clipped: vec![None; reachability.sides().len()],
            known: HashMap::new(),
        };
        match asked.judge(&sources, &from, &to) {
            Outcome::Holds => holds = true,
            Outcome::Vacuous(reason) => vacuous = vacuous.or(Some(reason)),
            fails @ Outcome::Fails(_) => return fails,
        }
    }
    vacuous.filter(|_| !holds).map_or(Outcome::Holds, Outcome::Vacuous)
}

fn nobody(end: &str, selected: &Selected) -> String {
    match selected.nowhere.first() {
        Some(pod) => format!("`{end}` selects only pods without an address, such as {pod}"),
        None => match &selected.similar {
            Some(similar) => format!("`{end}` selects nobody: {similar}"),
            None => format!("`{end}` selects nobody"),
        },
    }
}

/// Splits addresses by class, in address order.
fn parts(addresses: &AddressSet, reachability: &Reachability) -> Vec<Part> {
    let v4 = addresses.v4_intervals().iter().map(|&(first, last)| (IpAddr::V4(first.into()), IpAddr::V4(last.into())));
    let v6 = addresses.v6_intervals().iter().map(|&(first, last)| (IpAddr::V6(first.into()), IpAddr::V6(last.into())));
    let wanted: Vec<(IpAddr, IpAddr)> = v4.chain(v6).collect();
    let mut places: Vec<Option<usize>> = vec![None; reachability.classes().len()];
    let mut parts: Vec<Part> = Vec::new();
    let mut next = 0;
    for region in reachability.regions() {
        while wanted.get(next).is_some_and(|&(_, last)| last < region.first) {
            next += 1;
        }
        for &(first, last) in wanted[next..].iter().take_while(|&&(first, _)| first <= region.last) {
            let place = *places[region.class.index()].get_or_insert_with(|| {
                parts.push((region.class, Vec::new()));
                parts.len() - 1
            });
            parts[place].1.push((first.max(region.first), last.min(region.last)));
        }
    }
    parts
}

/// Returns an address of a documentation block (RFC 5737, RFC 3849), which readers recognise. `None` if the ranges contain none.
fn shown(ranges: &[(IpAddr, IpAddr)]) -> Option<IpAddr> {
    const SHOWN: [IpAddr; 4] = [
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)),
        IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    ];
    SHOWN.into_iter().find(|shown| ranges.iter().any(|(first, last)| first <= shown && shown <= last))
}

/// Iterates over the addresses of a range.
fn within((first, last): (IpAddr, IpAddr)) -> Box<dyn Iterator<Item = IpAddr>> {
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

/// Evaluates a claim against a state, for connections to some destination ports, and caches results.
struct Asked<'a> {
    reachability: &'a Reachability,
    kind: Kind,
    /// The destination ports of the claim's connections.
    ports: &'a ServiceSet,
    /// Caches, by number of a side, the ports of the claim that this side allows. `None` if not computed yet.
    clipped: Vec<Option<ServiceSet>>,
    /// Caches, by the numbers of the two sides, whether the pair violates the claim.
    known: HashMap<(u32, u32), bool>,
}

impl Asked<'_> {
    /// Verifies the claim for the connections from `sources` to the addresses of `to`. `from` is the end `from` of the claim: one of its
    /// pods may be the reason why there are no connections.
    fn judge(mut self, sources: &[Part], from: &Selected, to: &Selected) -> Outcome {
        if to.addresses.is_empty() {
            return Outcome::Vacuous(nobody("to", to));
        }
        let targets = parts(&to.addresses, self.reachability);
        let mut is_about_something = false;
        for source in sources {
            for target in &targets {
                if !self.is_violated(source.0, target.0) {
                    is_about_something = is_about_something || self.connection(source, target).is_some();
                } else if let Some((from, to)) = self.connection(source, target) {
                    return Outcome::Fails(self.witness(from, to));
                }
            }
        }
        if is_about_something {
            return Outcome::Holds;
        }
        let on_host: Vec<&str> = from.on_host.iter().chain(&to.on_host).map(String::as_str).collect();
        Outcome::Vacuous(match on_host.first() {
            Some(pod) => format!("no policy applies to these connections: {pod} is on the host network"),
            None => {
                "no such connection exists: both ends are the same pod, both are outside the cluster, or their address families differ"
                    .to_owned()
            }
        })
    }

    /// Whether connections between two classes violate the claim.
    fn is_violated(&mut self, from: ClassId, to: ClassId) -> bool {
        let (egress, ingress) = self.reachability.side_numbers(from, to);
        if let Some(&known) = self.known.get(&(egress, ingress)) {
            return known;
        }
        let passing = self.clip(egress).intersect(&self.clip(ingress));
        let is_violated = match self.kind {
            Kind::Never | Kind::Only => !passing.is_empty(),
            Kind::Always => passing != *self.ports,
        };
        self.known.insert((egress, ingress), is_violated);
        is_violated
    }

    fn clip(&mut self, side: u32) -> ServiceSet {
        let (reachability, ports) = (self.reachability, self.ports);
        let clip = || reachability.sides()[side as usize].allowed().intersect(ports);
        self.clipped[side as usize].get_or_insert_with(clip).clone()
    }

    /// Returns a source and a target address between which a connection is possible. `None` if no pair has one.
    fn connection(&self, (from, sources): &Part, (to, targets): &Part) -> Option<(IpAddr, IpAddr)> {
        let holder = |class: &ClassId| &self.reachability.class(*class).holder;
        if *holder(from) != Holder::Pods && *holder(to) != Holder::Pods {
            return None;
        }
        let is_connection = |&(from, to): &(IpAddr, IpAddr)| {
            from != to && from.is_ipv4() == to.is_ipv4() && !self.reachability.is_own_node(from, to)
        };
        // The choice of address matters only between a pod and a node, with few addresses. Otherwise two candidates are enough to avoid the
        // other end.
        let is_to_node = [from, to].into_iter().any(|class| matches!(holder(class), Holder::Nodes(_)));
        let each = |ranges: &[(IpAddr, IpAddr)]| -> Vec<IpAddr> {
            match is_to_node {
                true => ranges.iter().flat_map(|&range| within(range)).collect(),
                false => shown(ranges).into_iter().chain(ranges.iter().take(2).flat_map(|&(a, b)| [a, b])).collect(),
            }
        };
        let (sources, targets) = (each(sources), each(targets));
        let mut pairs = sources.iter().flat_map(|&from| targets.iter().map(move |&to| (from, to)));
        pairs.find(is_connection)
    }

    /// Returns the first port at which the connection violates the claim.
    fn witness(&self, from: IpAddr, to: IpAddr) -> Witness {
        let (source, target) = (self.reachability.class_at(from), self.reachability.class_at(to));
        let verdicts = self.reachability.verdicts(source, target, false);
        let is_wrong = |verdict: &Verdict| verdict.allowed() != (self.kind == Kind::Always);
        let found = verdicts.protocols().find_map(|protocol| {
            let wanted = self.ports.ports_of(protocol.number());
            let mut wrong = verdicts.of_protocol(protocol).iter().filter(|verdict| is_wrong(verdict));
            wrong.find_map(|verdict| {
                let overlap = |&(first, last): &(u16, u16)| {
                    let (first, last) = (first.max(verdict.ports.first), last.min(verdict.ports.last));
                    (first <= last).then_some((first, last))
                };
                let (first, last) = wanted.iter().find_map(overlap)?;
                // Port 0 is not usable.
                let port = match protocol {
                    Protocol::Tcp | Protocol::Udp | Protocol::Sctp => first.max(1).min(last),
                    Protocol::Number(_) => first,
                    Protocol::Other => 0,
                };
                Some(Witness { from, to, protocol, port, verdict: *verdict })
            })
        });
        found.expect("the sides of the two classes violate the claim at a port")
    }
}
