//! Finds policies that allow egress to other ends but not to a DNS server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bulkhead_classifier::protocol;
use bulkhead_control::cache::Cache;
use bulkhead_control::object::{IpBlock, Labels, Peer, PodName, PolicyPort, Tier, Transport};
use bulkhead_control::origin::Direction;
use bulkhead_control::reachability::{ClassId, Reachability};

use super::finding::{EGRESS_WITHOUT_DNS, ENCRYPTED_DNS, Found};
use super::subject::{Rule, Subject};
use crate::output::some_of;

/// Port of DNS. Source: RFC 1035, section 4.2.
const DNS: u16 = 53;

/// Label of the cluster's DNS servers and node caches. Source: Kubernetes, addons `dns` and `dns/nodelocaldns`.
const DNS_LABEL: &str = "k8s-app";
const SERVER: &str = "kube-dns";
const NODE_CACHE: &str = "node-local-dns";

/// Maximum number of pods named in one line.
const MAX_NAMED: usize = 3;

/// The known DNS servers.
struct Servers {
    /// Classes of the cluster's servers with their UDP ports. Empty if unknown.
    known: BTreeSet<(ClassId, u16)>,
    /// Whether every node has a DNS cache. Pods can always reach their own node.
    on_nodes: bool,
}

impl Servers {
    fn of(cache: &Cache, state: &Reachability) -> Self {
        let is = |labels: &Labels, value: &str| labels.get(DNS_LABEL).is_some_and(|label| **label == *value);
        let servers = cache.pods().map(|(_, pod)| pod).filter(|pod| pod.is_endpoint() && is(&pod.labels, SERVER));
        let mut known = BTreeSet::new();
        for pod in servers {
            let dns = pod.ports.iter().filter(|port| port.transport == Transport::Udp && port.name.starts_with("dns"));
            let numbers: Vec<u16> = dns.map(|port| port.port).chain([DNS]).collect();
            for address in &pod.addresses {
                known.extend(numbers.iter().map(|&number| (state.class_at(*address), number)));
            }
        }
        let on_nodes = cache.pods().any(|(_, pod)| is(&pod.labels, NODE_CACHE));
        Self { known, on_nodes }
    }
}

/// Reports the policies that allow egress to named ends but to no DNS server.
pub(super) fn find<'a>(cache: &Cache, state: &Reachability, subjects: &[Subject<'a>]) -> Vec<Found<'a>> {
    let servers = Servers::of(cache, state);
    if servers.on_nodes {
        return Vec::new();
    }
    let resolvers = resolvers(cache, subjects);
    let mut known: BTreeMap<(u32, bool), bool> = BTreeMap::new();
    let mut reaches = |address: IpAddr| {
        let class = state.class_at(address);
        let Some(list) = state.list_number(class, Direction::Egress) else { return true };
        let is_v4 = address.is_ipv4();
        *known.entry((list, is_v4)).or_insert_with(|| reaches(state, class, &servers))
    };
    let mut found = Vec::new();
    for subject in subjects.iter().filter(|subject| subject.tier == Tier::NetworkPolicy) {
        let Some(rule) = subject.rules.iter().find(|rule| needs_names(rule)) else { continue };
        let without = subject.pods.iter().filter(|pod| {
            // The policy may be about another DNS server's name.
            !resolvers.contains(&pod.name) && !pod.addresses.iter().any(|&address| reaches(address))
        });
        let names: Vec<String> = without.map(|pod| pod.name.to_string()).collect();
        if names.is_empty() {
            continue;
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let text = format!(
            "{} may connect to others (egress[{}]) and cannot ask a DNS server: names, of Services too, are not resolved",
            some_of(&names, MAX_NAMED),
            rule.at
        );
        let mend = "allow egress to the pods `k8s-app: kube-dns` of namespace kube-system at 53/UDP and 53/TCP";
        found.push(subject.found_in(EGRESS_WITHOUT_DNS, rule, subject.rule_at(rule), text, mend));
    }
    found
}

/// Addresses of public resolvers that answer over HTTPS and TLS: Cloudflare, Google, Quad9, OpenDNS, AdGuard.
const PUBLIC: [&str; 8] = [
    "1.1.1.1",
    "8.8.8.8",
    "9.9.9.9",
    "208.67.222.222",
    "94.140.14.14",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "2620:fe::fe",
];

/// The TCP ports of DNS over TLS (RFC 7858) and over HTTPS (RFC 8484).
const ENCRYPTED: [u16; 2] = [853, 443];

/// Returns a finding for each policy that has rules with domain names and a pod that may reach a public resolver over TLS or HTTPS. The
/// vswitch cannot read answers from there, so the rules do not allow their addresses.
pub(super) fn encrypted<'a>(state: &Reachability, subjects: &[Subject<'a>]) -> Vec<Found<'a>> {
    let resolvers: Vec<IpAddr> = PUBLIC.iter().filter_map(|text| text.parse().ok()).collect();
    let reached = |own: IpAddr| {
        let class = state.class_at(own);
        resolvers.iter().filter(move |address| address.is_ipv4() == own.is_ipv4()).find_map(|&address| {
            let side = state.side_number(class, Direction::Egress, state.class_at(address));
            let allowed = state.sides()[side as usize].allowed();
            let port = ENCRYPTED.into_iter().find(|&port| allowed.contains(protocol::TCP, port))?;
            Some((address, port))
        })
    };
    let mut found = Vec::new();
    for subject in subjects {
        let Some(rule) = subject.rules.iter().find(|rule| rule.traffic.has_names()) else { continue };
        let first =
            subject.pods.iter().find_map(|pod| Some((pod, pod.addresses.iter().find_map(|&own| reached(own))?)));
        let Some((pod, (address, port))) = first else { continue };
        let text = format!(
            "{} may reach {address} at {port}/TCP: names that it resolves there, over TLS or HTTPS, open nothing",
            pod.name
        );
        let mend = "deny the pods' egress to public resolvers, or to everybody that no rule names";
        found.push(subject.found_in(ENCRYPTED_DNS, rule, subject.rule_at(rule), text, mend));
    }
    found
}

/// Returns pods with a rule for port 53/UDP of an existing end, or for the node's DNS cache: they have some DNS server.
fn resolvers<'a>(cache: &Cache, subjects: &'a [Subject<'_>]) -> BTreeSet<&'a PodName> {
    let is_dns = |port: &PolicyPort| match port {
        PolicyPort::Range { transport: Transport::Udp, first, last } => *first <= DNS && DNS <= *last,
        PolicyPort::Named { transport: Transport::Udp, name } => name.starts_with("dns"),
        _ => false,
    };
    // Node caches have a link-local address (169.254.20.10 by default), whatever the port.
    let is_cache = |block: &IpBlock| matches!(block.cidr.addr(), IpAddr::V4(first) if first.is_link_local());
    let is_resolver = |rule: &&Rule<'_>| {
        let names_port = rule.ports().any(|(_, port)| is_dns(port)) && names_somebody(cache, rule);
        rule.direction == Direction::Egress && (names_port || rule.blocks().any(|(_, block)| is_cache(block)))
    };
    let with = subjects.iter().filter(|subject| subject.rules.iter().any(|rule| is_resolver(&rule)));
    with.flat_map(|subject| &subject.pods).map(|pod| &pod.name).collect()
}

fn names_somebody(cache: &Cache, rule: &Rule<'_>) -> bool {
    let is_there = |peer: &Peer| match peer {
        Peer::Block(_) | Peer::Nodes(_) | Peer::OwnNode => true,
        // A pod needs another resolver to resolve the name of this one.
        Peer::Region(region) => region.names().is_none(),
        Peer::Names(_) => false,
        Peer::Pods(peer) => cache.has_pod_of_peer(peer),
    };
    rule.traffic.peers.as_ref().is_none_or(|peers| peers.iter().any(is_there))
}

/// Whether a rule allows connections to ends that are usually named: pods, or everybody. CIDR blocks are addresses already.
fn needs_names(rule: &Rule<'_>) -> bool {
    let is_wide = |peer: &Peer| match peer {
        Peer::Block(block) => block.cidr.prefix_len() == 0,
        _ => matches!(peer, Peer::Pods(_) | Peer::Names(_)),
    };
    let is_named = |peer: &Peer| match peer {
        Peer::Pods(_) => true,
        Peer::Block(block) => block.cidr.prefix_len() == 0,
        Peer::Nodes(_) | Peer::OwnNode => false,
        Peer::Region(region) => region.all.iter().all(|union| union.iter().any(is_wide)),
        // Such a rule allows only addresses from DNS answers.
        Peer::Names(_) => true,
    };
    let speaks = match &rule.traffic.ports {
        None => true,
        Some(ports) => !ports.is_empty(),
    };
    rule.direction == Direction::Egress
        && speaks
        && rule.traffic.peers.as_ref().is_none_or(|peers| peers.iter().any(is_named))
}

/// Whether a class may reach a DNS server: a known one or, if none is known, any end at port 53.
fn reaches(state: &Reachability, pod: ClassId, servers: &Servers) -> bool {
    let allows = |peer: ClassId, number: u16| {
        let side = state.side_number(pod, Direction::Egress, peer);
        state.sides()[side as usize].allowed().contains(protocol::UDP, number)
    };
    let family = |peer: ClassId| state.class(peer).sample.is_ipv4() == state.class(pod).sample.is_ipv4();
    if servers.known.iter().any(|&(peer, _)| family(peer)) {
        return servers.known.iter().any(|&(peer, number)| family(peer) && allows(peer, number));
    }
    state.regions().any(|region| family(region.class) && allows(region.class, DNS))
}
