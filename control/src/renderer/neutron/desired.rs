//! The desired state of a Neutron server, in terms of its API.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{PortRange, protocol};
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::lines::{Line, Remote as LineRemote};
use super::names::{Names, hash, plain_or_hashed, suffix};
use super::renderer::{Group, NeutronRenderer};
use super::{Allow, GroupKey};
use crate::contract::SetId;
use crate::object::{PodName, PolicyIdentity, PolicyName};
use crate::origin::{Direction, Origins};

/// The address family of a rule, as in `ethertype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the family of the address.
    pub const fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Returns the name in the API.
    pub const fn ethertype(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// The remote end of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Remote {
    /// All addresses of the family.
    Any,
    /// These addresses, not a whole family.
    Prefix(IpNet),
    /// The ports in this group. Identified by tag if Bulkhead manages the group, otherwise by ID (only in rules that a server lists).
    Group(Arc<str>),
}

/// A rule of a security group. The API treats equal rules as one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SecurityRule {
    /// Whether the rule covers traffic to the port or from it.
    pub direction: Direction,
    /// The address family.
    pub family: Family,
    /// The IANA protocol number. `None` for all protocols.
    pub protocol: Option<u8>,
    /// The destination ports. `None` for all.
    pub ports: Option<PortRange>,
    /// The remote end: sources of ingress, destinations of egress.
    pub remote: Remote,
}

impl SecurityRule {
    /// Returns the attributes that define the allowed traffic. `group_id` resolves a group.
    fn attributes(&self, group_id: impl Fn(&str) -> String) -> Map<String, Value> {
        let mut attributes = Map::new();
        let mut put = |key: &str, value: Value| attributes.insert(key.to_owned(), value);
        put("direction", self.direction.name().into());
        put("ethertype", self.family.ethertype().into());
        let protocol = self.protocol.map(|number| match number {
            protocol::TCP => "tcp".to_owned(),
            protocol::UDP => "udp".to_owned(),
            protocol::SCTP => "sctp".to_owned(),
            other => other.to_string(),
        });
        put("protocol", protocol.into());
        if let Some(PortRange { first, last }) = self.ports {
            put("port_range_min", first.into());
            put("port_range_max", last.into());
        }
        match &self.remote {
            Remote::Any => {}
            Remote::Prefix(prefix) => drop(put("remote_ip_prefix", prefix.to_string().into())),
            Remote::Group(group) => drop(put("remote_group_id", group_id(group).into())),
        }
        attributes
    }

    /// Returns the body of the request that creates the rule in `group`. `group_id` returns the ID of a managed group by its tag.
    pub fn body(&self, group: &str, group_id: impl Fn(&str) -> String) -> Value {
        let mut attributes = self.attributes(&group_id);
        attributes.insert("security_group_id".to_owned(), group_id(group).into());
        json!({ "security_group_rule": attributes })
    }
}

impl fmt::Display for SecurityRule {
    /// Writes the rule as `ingress IPv4 tcp 80-81 from 10.0.0.0/8`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.direction, self.family.ethertype())?;
        match self.protocol {
            None => f.write_str(" any protocol")?,
            Some(protocol::TCP) => f.write_str(" tcp")?,
            Some(protocol::UDP) => f.write_str(" udp")?,
            Some(protocol::SCTP) => f.write_str(" sctp")?,
            Some(number) => write!(f, " protocol {number}")?,
        }
        if let Some(ports) = self.ports {
            write!(f, " {ports}")?;
        }
        let word = if self.direction == Direction::Ingress { "from" } else { "to" };
        match &self.remote {
            Remote::Any => write!(f, " {word} any address"),
            Remote::Prefix(prefix) => write!(f, " {word} {prefix}"),
            Remote::Group(group) => write!(f, " {word} group {group}"),
        }
    }
}

/// The desired state of a security group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityGroup {
    /// Its name, for users.
    pub name: String,
    /// The generation of its policy. `None` if the group has no policy or the policy object has no generation.
    pub generation: Option<u64>,
    /// The group's rules.
    pub rules: BTreeSet<SecurityRule>,
    /// The reason why the group has no rules although the policy has some. `None` if they were not refused.
    pub refused: Option<String>,
}

/// The desired groups of a pod's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The pod's addresses, which identify its port.
    pub addresses: Vec<IpAddr>,
    /// The tags of all groups of the port.
    pub groups: BTreeSet<Arc<str>>,
    /// The tags of those groups that rules name as remote groups.
    pub peers: BTreeSet<Arc<str>>,
}

/// The desired state of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Groups by tag.
    pub groups: BTreeMap<Arc<str>, SecurityGroup>,
    /// Ports by pod.
    pub ports: BTreeMap<PodName, Attachment>,
}

/// Maximum length of a group's name: Neutron's limit for names.
const MAX_NAME: usize = 255;

impl NeutronRenderer {
    /// Returns the desired state. `identities` returns the UID and generation of a policy's object. `origins` are the pipeline's.
    pub fn desired(
        &self,
        identities: impl Fn(&PolicyName) -> Option<Arc<PolicyIdentity>>,
        origins: &Origins,
    ) -> Desired {
        let policies = self.groups.iter().flatten().filter_map(|group| match &group.key {
            GroupKey::Policy { policy, .. } => Some((policy.clone(), identities(policy))),
            _ => None,
        });
        let names = Names::new(policies.collect());
        let tags = self.tags(&names, origins);
        let peers: BTreeMap<&Arc<[SetId]>, Arc<str>> = self
            .peers
            .iter()
            .filter(|(sets, _)| self.is_group(sets))
            .filter_map(|(sets, peer)| Some((sets, names.peer(peer.users.keys().next()?).into())))
            .collect();
        let mut desired = Desired::default();
        for (sets, peer) in self.peers.iter().filter(|(sets, _)| self.is_group(sets)) {
            let Some(first) = peer.users.keys().next() else { continue };
            let name = format!("{} {} rule {}", first.policy, first.direction, first.rule);
            let generation = names.generation(&first.policy);
            let group = SecurityGroup { name: named(&name), generation, rules: BTreeSet::new(), refused: None };
            desired.groups.insert(peers[sets].clone(), group);
        }
        for (id, group) in self.groups.iter().enumerate().filter_map(|(id, group)| Some((id, group.as_ref()?))) {
            let generation = match &group.key {
                GroupKey::Policy { policy, .. } => names.generation(policy),
                _ => None,
            };
            let rules = rules(group, &peers);
            let refused = group.lines.as_ref().err().cloned();
            let group = SecurityGroup { name: named(&group.key.to_string()), generation, rules, refused };
            desired.groups.insert(tags[&id].clone(), group);
        }
        for (name, port) in self.named_ports() {
            let of_peers: BTreeSet<Arc<str>> = port.peers.iter().filter_map(|sets| peers.get(sets).cloned()).collect();
            let groups = port.groups.iter().map(|id| tags[id].clone()).chain(of_peers.iter().cloned()).collect();
            let addresses = port.endpoint.addresses.clone();
            desired.ports.insert(name.clone(), Attachment { addresses, groups, peers: of_peers });
        }
        desired
    }

    fn tags(&self, names: &Names, origins: &Origins) -> BTreeMap<usize, Arc<str>> {
        let mut tags = BTreeMap::new();
        let mut variants: BTreeMap<&PolicyName, Vec<(String, usize)>> = BTreeMap::new();
        for (id, group) in self.groups.iter().enumerate().filter_map(|(id, group)| Some((id, group.as_ref()?))) {
            let tag = match &group.key {
                GroupKey::Open(direction) => format!("open_{}", suffix(*direction)),
                GroupKey::Node(node, direction) => format!("node_{}_{}", plain_or_hashed(node), suffix(*direction)),
                GroupKey::Whole { direction, list, node } => {
                    let rules = self.rules_of(*list).into_iter().flat_map(|list| &list.rules);
                    let text = rules.map(|rule| {
                        let origin = origins.get(rule.origin).map(ToString::to_string).unwrap_or_default();
                        format!("{:?} {:?} {origin} {:?}\n", rule.tier, rule.action, rule.services)
                    });
                    let text: String = text.collect();
                    format!("tiers_{}_{}", hash(&format!("{node:?}\n{text}")), suffix(*direction))
                }
                GroupKey::Policy { policy, ingress, egress } => {
                    variants.entry(policy).or_default().push((variant(ingress.as_deref(), egress.as_deref()), id));
                    continue;
                }
            };
            tags.insert(id, tag.into());
        }
        for (policy, mut all) in variants {
            // Variants differ in the numbers of the policy's port names. One variant gets the name without a suffix, so a policy with one
            // variant keeps its group when its ports change.
            all.sort_unstable();
            let name = names.policy(policy);
            for (at, (text, id)) in all.into_iter().enumerate() {
                let tag = if at == 0 { name.clone() } else { format!("{name}_v{}", &hash(&text)[..VARIANT_DIGITS]) };
                tags.insert(id, tag.into());
            }
        }
        tags
    }
}

/// Hexadecimal digits of the hash that distinguishes variants of a policy. With the UID and `_v`, a tag stays below 60 characters.
const VARIANT_DIGITS: usize = 16;

fn variant(ingress: Option<&[Allow]>, egress: Option<&[Allow]>) -> String {
    let text = |rules: Option<&[Allow]>| {
        let rules = rules.map(|rules| rules.iter().map(|allow| format!("{} {:?}", allow.rule, allow.services)));
        format!("{:?}", rules.map(Iterator::collect::<Vec<_>>))
    };
    format!("{}\n{}", text(ingress), text(egress))
}

/// Prefix of the names of all managed groups.
pub const NAME_PREFIX: &str = "bulkhead: ";

fn named(name: &str) -> String {
    format!("{NAME_PREFIX}{name}").chars().take(MAX_NAME).collect()
}

/// Returns the rules of a group, for the address families of its ports.
fn rules(group: &Group, peers: &BTreeMap<&Arc<[SetId]>, Arc<str>>) -> BTreeSet<SecurityRule> {
    let families =
        || Family::ALL.into_iter().zip(group.families).filter(|(_, ports)| *ports > 0).map(|(family, _)| family);
    let lines = group.lines.iter().flatten();
    let rule = |Line { direction, service, remote }: &Line, family: Family| {
        let remote = match remote {
            LineRemote::Any => Remote::Any,
            LineRemote::Prefix(prefix) if Family::of(prefix.addr()) != family => return None,
            // The API treats both as the same rule.
            LineRemote::Prefix(prefix) if prefix.prefix_len() == 0 => Remote::Any,
            LineRemote::Prefix(prefix) => Remote::Prefix(*prefix),
            LineRemote::Peers(sets) => Remote::Group(peers.get(sets)?.clone()),
        };
        let protocol = service.map(|(protocol, _)| protocol);
        let ports = service.and_then(|(_, ports)| ports);
        Some(SecurityRule { direction: *direction, family, protocol, ports, remote })
    };
    lines.flat_map(|line| families().filter_map(move |family| rule(line, family))).collect()
}
