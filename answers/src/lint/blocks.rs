//! Finds CIDR blocks that do not do what they seem to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::cache::Cache;
use bulkhead_control::object::{ContainerPort, IpBlock, Object, Pod, PodName, PolicyPort, Transport};
use bulkhead_control::origin::Direction;
use bulkhead_control::pipeline::Pipeline;
use ipnet::IpNet;

use super::finding::{At, BLOCK_NAMES_PODS, BLOCK_NAMES_SERVICE, EXCEPT_REOPENED, Found, SERVICE_PORT};
use super::nobody::destinations;
use super::subject::{Rule, Subject};
use crate::translate::Services;
use crate::translate::blocks::{REMEDY, vain_blocks};

/// Reports blocks that match only virtual addresses of Services.
pub(super) fn of_services<'a>(pipeline: &'a Pipeline, services: &Services, subjects: &[Subject<'a>]) -> Vec<Found<'a>> {
    let by_name: BTreeMap<_, &Subject<'a>> = subjects.iter().map(|subject| (&subject.name, subject)).collect();
    let found = vain_blocks(pipeline, services).into_iter().filter_map(|block| {
        let subject = by_name.get(&block.policy)?;
        let rule = subject.rules.iter().find(|rule| (rule.direction, rule.at) == (block.direction, block.rule))?;
        let at = At { path: block.path.clone(), ..subject.rule_at(rule) };
        Some(subject.found_in(BLOCK_NAMES_SERVICE, rule, at, block.reason(), REMEDY))
    });
    found.collect()
}

/// Known pod addresses.
pub(super) struct PodAddresses {
    /// Addresses of existing pods. Those of future pods are unknown.
    pods: BTreeMap<IpAddr, PodName>,
    /// `spec.podCIDRs` of nodes and --pod-cidr.
    cidrs: Vec<IpNet>,
}

impl PodAddresses {
    pub(super) fn of(cache: &Cache, said: &[IpNet]) -> Self {
        let there = cache.pods().map(|(_, pod)| pod).filter(|pod| pod.is_endpoint() && !pod.planned);
        let addresses = there.flat_map(|pod| pod.addresses.iter().map(|&address| (address, pod.name.clone())));
        let of_nodes = cache.nodes().values().flat_map(|node| node.pod_cidrs.iter().copied());
        Self { pods: addresses.collect(), cidrs: of_nodes.chain(said.iter().copied()).collect() }
    }

    /// Returns why a block covers pods only, and the cause, which other blocks of the policy may share. `None` if the block may cover other
    /// ends.
    fn why(&self, block: &IpBlock) -> Option<(String, String)> {
        let cidr = &block.cidr;
        if let Some(around) = self.cidrs.iter().find(|around| around.contains(cidr)) {
            return Some((format!("{cidr} lies in {around}, from which pods get their addresses"), around.to_string()));
        }
        let is_one = cidr.prefix_len() == cidr.max_prefix_len();
        let pod = self.pods.get(&cidr.addr()).filter(|_| is_one)?;
        Some((format!("{} is the address of pod {pod}", cidr.addr()), "pod".to_owned()))
    }
}

/// Reports blocks of a rule that cover pod addresses.
pub(super) fn of_pods<'a>(pods: &PodAddresses, subject: &Subject<'a>, rule: &Rule<'a>) -> Vec<Found<'a>> {
    let found = rule.blocks().filter_map(|(at, block)| {
        let (reason, cause) = pods.why(block)?;
        let at = subject.peer_at(rule, at);
        let text = format!(
            "{reason}. A recreated pod has another address, and not every network plugin matches pods by address"
        );
        let one =
            subject.found_in(BLOCK_NAMES_PODS, rule, at, text, "name the pods by podSelector and namespaceSelector");
        Some(Found { cause: Some(cause), ..one })
    });
    found.collect()
}

/// Reports exceptions that another rule allows again for a common pod.
pub(super) fn reopened<'a>(subject: &Subject<'a>, all: &[Subject<'a>]) -> Vec<Found<'a>> {
    let mut found = Vec::new();
    let names: BTreeSet<_> = subject.pods.iter().map(|pod| &pod.name).collect();
    let same_pods = |other: &&Subject<'a>| {
        other.name.namespace == subject.name.namespace
            && !other.is_cluster()
            && other.pods.iter().any(|pod| names.contains(&pod.name))
    };
    let with_except = || subject.rules.iter().filter(|rule| rule.blocks().any(|(_, block)| !block.except.is_empty()));
    if subject.is_cluster() || with_except().next().is_none() {
        return found;
    }
    let others: Vec<&Subject<'a>> = all.iter().filter(same_pods).collect();
    for rule in with_except() {
        for (at, block) in rule.blocks() {
            for (number, except) in block.except.iter().enumerate() {
                let rules = others.iter().flat_map(|other| other.rules.iter().map(move |rule| (*other, rule)));
                let mut same = rules.filter(|(_, other)| other.direction == rule.direction);
                let opens = same.find_map(|(other, one)| {
                    let is_itself = other.name == subject.name && one.at == rule.at;
                    let how = opens(rule, one, except, is_itself.then_some(at))?;
                    Some((other.rule_at(one), how))
                });
                let Some((by, how)) = opens else { continue };
                let place = subject.peer_at(rule, at);
                let place = At { path: format!("{}.ipBlock.except[{number}]", place.path), ..place };
                let text = format!("{except} is left out here, and {} {how}: rules only ever add", by.text);
                let mend = "give that rule the same except, or remove this one";
                let one = subject.found_in(EXCEPT_REOPENED, rule, place, text, mend);
                found.push(Found { cause: Some(format!("{} {how}", by.text)), by: vec![by], ..one });
            }
        }
    }
    found
}

/// Returns how a rule allows what another rule's exception excludes. `None` if it does not, or names exactly that and is thus intended.
/// `own` is the peer with the exception if both are the same rule.
fn opens(rule: &Rule<'_>, other: &Rule<'_>, except: &IpNet, own: Option<usize>) -> Option<&'static str> {
    let holds = |block: &IpBlock| {
        block.cidr.contains(except) && !block.except.iter().any(|one| one.contains(except) || except.contains(one))
    };
    let is_everything = covers(other.traffic.ports.as_deref(), rule.traffic.ports.as_deref());
    let overlaps = overlap(rule.traffic.ports.as_deref(), other.traffic.ports.as_deref());
    let (is_any, is_wider, is_named) = match &other.traffic.peers {
        None => (true, true, false),
        Some(_) => {
            let blocks = || other.blocks().filter(|(at, block)| own != Some(*at) && holds(block));
            let is_wider = blocks().any(|(_, block)| block.cidr != *except);
            (false, is_wider, blocks().next().is_some())
        }
    };
    if own.is_some() && is_any {
        return None;
    }
    match (is_everything, is_any || is_wider, is_named) {
        (true, true, _) | (true, _, true) => Some("allows it at the same ports"),
        // A rule that opens DNS to everybody is intended.
        (false, true, _) if overlaps && !is_dns(other) => Some("allows it at some of the same ports"),
        _ => None,
    }
}

fn is_dns(rule: &Rule<'_>) -> bool {
    let mut ports = rule.ports().map(|(_, port)| port).peekable();
    ports.peek().is_some() && ports.all(|port| matches!(port, PolicyPort::Range { first: DNS, last: DNS, .. }))
}

/// Port of DNS. Source: IANA, "Service Name and Transport Protocol Port Number Registry".
const DNS: u16 = 53;

/// Whether port list `one` covers `other`. Names are compared as strings.
fn covers(one: Option<&[PolicyPort]>, other: Option<&[PolicyPort]>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return one.is_none() };
    let holds = |port: &PolicyPort| one.iter().any(|all| contains(all, port));
    !other.is_empty() && other.iter().all(holds)
}

fn contains(all: &PolicyPort, port: &PolicyPort) -> bool {
    match (all, port) {
        (
            PolicyPort::All(a),
            PolicyPort::All(b) | PolicyPort::Range { transport: b, .. } | PolicyPort::Named { transport: b, .. },
        ) => a == b,
        (
            PolicyPort::Range { transport: a, first, last },
            PolicyPort::Range { transport: b, first: from, last: to },
        ) => a == b && first <= from && to <= last,
        (named @ PolicyPort::Named { .. }, other) => named == other,
        _ => false,
    }
}

fn overlap(one: Option<&[PolicyPort]>, other: Option<&[PolicyPort]>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return true };
    one.iter().any(|a| other.iter().any(|b| contains(a, b) || contains(b, a) || meets(a, b)))
}

fn meets(one: &PolicyPort, other: &PolicyPort) -> bool {
    match (one, other) {
        (
            PolicyPort::Range { transport: a, first, last },
            PolicyPort::Range { transport: b, first: from, last: to },
        ) => a == b && first <= to && from <= last,
        _ => false,
    }
}

/// A Service port, and the target port of its backends.
struct Behind {
    service: String,
    transport: Transport,
    port: u16,
    target: u16,
}

/// Service ports by backend address.
pub(super) struct ServicePorts(BTreeMap<IpAddr, Vec<Behind>>);

impl ServicePorts {
    pub(super) fn of(services: &[Object]) -> Self {
        let all = services.iter().filter_map(|object| match object {
            Object::Service(service) => Some((&service.name, service)),
            _ => None,
        });
        let by_name: BTreeMap<_, _> = all.collect();
        let mut ports: BTreeMap<IpAddr, Vec<Behind>> = BTreeMap::new();
        for object in services {
            let Object::EndpointSlice(slice) = object else { continue };
            let Some(service) = slice.service_name().and_then(|name| by_name.get(&name).copied()) else { continue };
            for (port, end) in service.ports.iter().flat_map(|port| slice.ports.iter().map(move |end| (port, end))) {
                if port.name != end.name || port.transport != end.transport {
                    continue;
                }
                for endpoint in &slice.endpoints {
                    ports.entry(endpoint.address).or_default().push(Behind {
                        service: service.name.to_string(),
                        transport: port.transport,
                        port: port.port,
                        target: end.port,
                    });
                }
            }
        }
        Self(ports)
    }

    /// Reports rule ports that are a Service's port but no destination pod's.
    pub(super) fn confused<'a>(&self, cache: &Cache, subject: &Subject<'a>, rule: &Rule<'a>) -> Vec<Found<'a>> {
        let single = |port: &PolicyPort| match port {
            PolicyPort::Range { transport, first, last } if first == last => Some((*transport, *first)),
            _ => None,
        };
        let wanted: Vec<_> = rule.ports().filter_map(|(at, port)| Some((at, single(port)?))).collect();
        if self.0.is_empty()
            || wanted.is_empty()
            || (rule.traffic.peers.is_none() && rule.direction == Direction::Egress)
        {
            return Vec::new();
        }
        let pods = destinations(cache, subject, rule);
        let mut found = Vec::new();
        for (at, (transport, number)) in wanted {
            let of =
                |address: &IpAddr| self.0.get(address).into_iter().flatten().filter(|one| one.transport == transport);
            let has = |one: &&ContainerPort| one.transport == transport && one.port == number;
            let is_served = pods.iter().any(|pod| {
                pod.ports.iter().any(|port| has(&port))
                    || pod.addresses.iter().any(|address| of(address).any(|one| one.target == number))
            });
            let behind =
                |pod: &Arc<Pod>| pod.addresses.iter().find_map(|address| of(address).find(|one| one.port == number));
            if is_served || pods.is_empty() || !pods.iter().all(|pod| behind(pod).is_some()) {
                continue;
            }
            let Some(one) = pods.first().and_then(|pod| behind(pod)) else { continue };
            let text = format!(
                "{number} is the port of Service {}, and the pods behind it listen on {}: policy is judged on the pod's port",
                one.service, one.target
            );
            let mend = format!("write {}", one.target);
            found.push(subject.found_in(SERVICE_PORT, rule, subject.port_at(rule, at), text, mend));
        }
        found
    }
}
