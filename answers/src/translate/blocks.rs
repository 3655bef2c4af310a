//! Finds policy CIDR blocks that match only virtual addresses of Services. Policy never sees those.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use bulkhead_control::object::{IpBlock, Object, Peer, PolicyName, PolicyRule, Position, ServiceName};
use bulkhead_control::origin::Direction;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::source;
use ipnet::IpNet;

use super::Services;
use super::find::addresses_of;
use crate::output::{printable, some_of};

/// Warnings printed one by one. The rest is only counted.
const MAX_TOLD: usize = 10;

/// Maximum number of Services named in one line.
const MAX_NAMED: usize = 3;

/// Returns a warning for each block that matches only virtual addresses, with its position and a remedy.
///
/// A block that also contains the pods behind the Service, such as `0.0.0.0/0`, is correct and not reported.
pub fn warnings(pipeline: &Pipeline, services: &Services) -> Vec<String> {
    let found = vain_blocks(pipeline, services);
    let more = found.len().saturating_sub(MAX_TOLD);
    // Each needs a line lookup in its file, so look up only those that are shown.
    let shown = found.iter().take(MAX_TOLD).map(told);
    shown.chain((more > 0).then(|| format!("and {more} more warnings of this kind"))).collect()
}

/// A policy block, or part of one, that matches only virtual addresses of Services.
pub struct VainBlock<'a> {
    /// Name of the policy; the names of cluster policies include their kind.
    pub policy: PolicyName,
    label: String,
    /// Direction of the rule.
    pub direction: Direction,
    /// Index of the rule in the policy's list, from 0.
    pub rule: usize,
    /// Position of the policy. `None` if it was not read from a file.
    pub position: Option<&'a Position>,
    /// Path of the field, such as `spec.egress[0].to[1].ipBlock.cidr`.
    pub path: String,
    wrong: Wrong,
}

impl VainBlock<'_> {
    /// Returns the fault and its effect as text.
    pub fn reason(&self) -> String {
        let Wrong { block, what, is_except, .. } = &self.wrong;
        let effect = if *is_except { "excludes nothing there" } else { "matches nothing there" };
        format!("{block} {what}, and policy is judged on the pod behind a Service: it {effect}")
    }
}

/// Remedy for all such blocks.
pub const REMEDY: &str =
    "name the pods behind the Service by podSelector and namespaceSelector; ports are those of the pods";

/// Finds the blocks of all policies that match only virtual addresses; see [`warnings`].
pub fn vain_blocks<'a>(pipeline: &'a Pipeline, services: &Services) -> Vec<VainBlock<'a>> {
    let known = Known::of(pipeline, services);
    if known.is_empty() {
        return Vec::new();
    }
    let cache = pipeline.cache();
    let (mut found, mut seen) = (Vec::new(), Seen::new());
    for policy in cache.policies().values() {
        let lists = [(Direction::Ingress, &policy.ingress), (Direction::Egress, &policy.egress)];
        for (direction, rules) in lists {
            for (at, rule) in rules.iter().flatten().enumerate() {
                let peers = if direction == Direction::Ingress { "from" } else { "to" };
                for (peer, wrong) in in_rule(&known, &mut seen, rule, direction) {
                    found.push(VainBlock {
                        policy: policy.name.clone(),
                        label: format!("NetworkPolicy {}", policy.name),
                        direction,
                        rule: at,
                        position: policy.position.as_ref(),
                        path: format!("spec.{direction}[{at}].{peers}[{peer}].ipBlock.{}", wrong.part),
                        wrong,
                    });
                }
            }
        }
    }
    for policy in cache.cluster_policies().values() {
        let lists = [(Direction::Ingress, &policy.ingress), (Direction::Egress, &policy.egress)];
        for (direction, rules) in lists {
            for (at, rule) in rules.iter().enumerate() {
                for (_, wrong) in in_rule(&known, &mut seen, &rule.traffic, direction) {
                    found.push(VainBlock {
                        policy: policy.rank.name.key(),
                        label: policy.rank.name.to_string(),
                        direction,
                        rule: at,
                        position: policy.position.as_ref(),
                        // A peer of a cluster policy may list several networks, which are separate peers here.
                        path: format!("spec.{direction}[{at}]"),
                        wrong,
                    });
                }
            }
        }
    }
    found
}

fn told(block: &VainBlock<'_>) -> String {
    let VainBlock { label, position, path, .. } = block;
    let line = position.map(|position| source::line_of(position, path).unwrap_or(position.line));
    let place = position.zip(line).map(|(position, line)| format!("{}:{line}: ", printable(&position.file)));
    format!("{}{label}: {path}: {}\n  help: {REMEDY}", place.unwrap_or_default(), block.reason())
}

/// The faulty part of a block.
#[derive(Clone)]
struct Wrong {
    /// The faulty field of the block: `cidr` or `except[0]`.
    part: String,
    block: IpNet,
    what: String,
    is_except: bool,
}

/// Results by block: policies repeat blocks, and each check tests all addresses inside.
type Seen = HashMap<(IpBlock, bool), Vec<Wrong>>;

/// Returns the faulty peers of a rule with their index, from 0.
fn in_rule(known: &Known, seen: &mut Seen, rule: &PolicyRule, direction: Direction) -> Vec<(usize, Wrong)> {
    let mut found = Vec::new();
    for (at, peer) in rule.peers.iter().flatten().enumerate() {
        let Peer::Block(block) = peer else { continue };
        let is_ingress = direction == Direction::Ingress;
        let wrong = seen.entry((block.clone(), is_ingress)).or_insert_with(|| in_block(known, block, is_ingress));
        found.extend(wrong.iter().map(|wrong| (at, wrong.clone())));
    }
    found
}

fn in_block(known: &Known, block: &IpBlock, is_ingress: bool) -> Vec<Wrong> {
    if let Some(what) = known.cidr(block, is_ingress) {
        return vec![Wrong { part: "cidr".into(), block: block.cidr, what, is_except: false }];
    }
    let excepts = block.except.iter().enumerate().filter_map(|(at, except)| {
        let what = known.except(block, except)?;
        Some(Wrong { part: format!("except[{at}]"), block: *except, what, is_except: true })
    });
    excepts.collect()
}

/// Known virtual addresses and pods.
struct Known {
    service_cidrs: Vec<IpNet>,
    /// Services by virtual address, except node addresses.
    vips: BTreeMap<IpAddr, Vec<ServiceName>>,
    /// Endpoint addresses by Service.
    endpoints: BTreeMap<ServiceName, Vec<IpAddr>>,
    pods: Vec<IpAddr>,
}

impl Known {
    fn of(pipeline: &Pipeline, services: &Services) -> Self {
        let mut vips: BTreeMap<IpAddr, Vec<ServiceName>> = BTreeMap::new();
        for service in services.all() {
            for address in addresses_of(service) {
                vips.entry(address).or_default().push(service.name.clone());
            }
        }
        let mut endpoints: BTreeMap<ServiceName, Vec<IpAddr>> = BTreeMap::new();
        for object in &services.objects {
            let Object::EndpointSlice(slice) = object else { continue };
            let Some(service) = slice.service_name() else { continue };
            endpoints.entry(service).or_default().extend(slice.endpoints.iter().map(|endpoint| endpoint.address));
        }
        let pods = pipeline.cache().pods().flat_map(|(_, pod)| pod.addresses.clone()).collect();
        Self { service_cidrs: services.settings().service_cidrs.clone(), vips, endpoints, pods }
    }

    fn is_empty(&self) -> bool {
        self.service_cidrs.is_empty() && self.vips.is_empty()
    }

    /// Returns why a block allows less than its author probably meant. `None` if it does not.
    fn cidr(&self, block: &IpBlock, is_ingress: bool) -> Option<String> {
        if let Some(what) = self.lies_inside(&block.cidr) {
            return Some(what);
        }
        let is_one = block.cidr.prefix_len() == block.cidr.max_prefix_len();
        if is_ingress && !is_one {
            // External clients may have addresses close to a load balancer's.
            return None;
        }
        let holds = |address: &IpAddr| {
            block.cidr.contains(address) && !block.except.iter().any(|except| except.contains(address))
        };
        self.holds_vips(&block.cidr, |vip, endpoint| holds(vip) && !holds(endpoint)).or_else(|| {
            self.holds_service_cidr(&block.cidr, |held| holds(&held.addr()) && !self.pods.iter().any(holds))
        })
    }

    /// Returns why an exception excludes less than its author probably meant. `None` if it does not.
    fn except(&self, block: &IpBlock, except: &IpNet) -> Option<String> {
        let is_left = |address: &IpAddr| {
            block.cidr.contains(address) && !block.except.iter().any(|except| except.contains(address))
        };
        self.lies_inside(except).or_else(|| self.holds_vips(except, |_, endpoint| is_left(endpoint))).or_else(|| {
            let is_vain =
                |_: &IpNet| self.pods.iter().any(is_left) && !self.pods.iter().any(|pod| except.contains(pod));
            self.holds_service_cidr(except, is_vain)
        })
    }

    /// Returns the fault if a service CIDR contains the whole block, else `None`.
    fn lies_inside(&self, block: &IpNet) -> Option<String> {
        let around = self.service_cidrs.iter().find(|cidr| cidr.contains(block))?;
        let name = self.names(block, |_, _| true).map_or(String::new(), |names| format!(" ({names})"));
        Some(format!("lies in the service CIDR {around}{name}"))
    }

    /// Returns the fault if the block contains Services' virtual addresses but treats their endpoints differently, else `None`.
    fn holds_vips(&self, block: &IpNet, is_vain: impl Fn(&IpAddr, &IpAddr) -> bool) -> Option<String> {
        let differs = |vip: &IpAddr, service: &ServiceName| {
            let endpoints = self.endpoints.get(service).into_iter().flatten();
            let mut own = endpoints.filter(|endpoint| endpoint.is_ipv4() == vip.is_ipv4()).peekable();
            // Without endpoints, the effect is unknown unless the block is exactly this address.
            (own.peek().is_none() && block.prefix_len() == block.max_prefix_len())
                || own.any(|endpoint| is_vain(vip, endpoint))
        };
        self.names(block, differs).map(|names| format!("holds {names}"))
    }

    /// Returns the fault if the block contains a service CIDR but is useless for pods, else `None`.
    fn holds_service_cidr(&self, block: &IpNet, is_vain: impl Fn(&IpNet) -> bool) -> Option<String> {
        let is_family = |pod: &IpAddr| pod.is_ipv4() == block.addr().is_ipv4();
        let held = self.service_cidrs.iter().find(|cidr| block.contains(*cidr))?;
        // Without pods, the purpose of the block is unknown.
        let is_told = self.pods.iter().any(is_family) && is_vain(held);
        is_told.then(|| format!("holds the service CIDR {held} and no pod"))
    }

    /// Returns the Services with an address in the block that satisfy `is_meant`, as text. `None` without one.
    fn names(&self, block: &IpNet, is_meant: impl Fn(&IpAddr, &ServiceName) -> bool) -> Option<String> {
        // The map's order keeps a block's addresses together.
        let inside = self.vips.range(block.network()..=block.broadcast());
        let meant = inside.flat_map(|(vip, names)| names.iter().map(move |name| (vip, name)));
        let meant: Vec<String> = meant
            .filter(|(vip, name)| is_meant(vip, name))
            .map(|(vip, name)| format!("{vip} of Service {name}"))
            .collect();
        let meant: Vec<&str> = meant.iter().map(String::as_str).collect();
        (!meant.is_empty()).then(|| some_of(&meant, MAX_NAMED))
    }
}
