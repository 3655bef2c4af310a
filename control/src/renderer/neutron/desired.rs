//! What there should be at a Neutron server, in its API's terms.

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

/// The family of a rule's addresses: its `ethertype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The address's.
    pub const fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// As the API writes it.
    pub const fn ethertype(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// The other end of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Remote {
    /// Everybody of the family.
    Any,
    /// These addresses, not all of a family.
    Prefix(IpNet),
    /// The ports in this group: one of ours by its tag, or in a rule that a server lists maybe another by its ID.
    Group(Arc<str>),
}

/// A rule of a security group. Two that are equal are one to the API.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SecurityRule {
    /// Towards the port or from it.
    pub direction: Direction,
    /// Of which family.
    pub family: Family,
    /// The protocol's number, none for all.
    pub protocol: Option<u8>,
    /// Destination ports, none for all.
    pub ports: Option<PortRange>,
    /// The other end.
    pub remote: Remote,
}

impl SecurityRule {
    /// The attributes that say what it allows. `group_id` names the groups.
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

    /// The body of the request that creates it in `group`. `group_id` gives the ID of a group of ours by its tag.
    pub fn body(&self, group: &str, group_id: impl Fn(&str) -> String) -> Value {
        let mut attributes = self.attributes(&group_id);
        attributes.insert("security_group_id".to_owned(), group_id(group).into());
        json!({ "security_group_rule": attributes })
    }
}

impl fmt::Display for SecurityRule {
    /// `ingress IPv4 tcp 80-81 from 10.0.0.0/8`.
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
            Remote::Any => write!(f, " {word} anybody"),
            Remote::Prefix(prefix) => write!(f, " {word} {prefix}"),
            Remote::Group(group) => write!(f, " {word} group {group}"),
        }
    }
}

/// A security group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityGroup {
    /// Its name, for people.
    pub name: String,
    /// The generation of the policy that it is made of, none where it is of none or the object does not say.
    pub generation: Option<u64>,
    /// Its rules.
    pub rules: BTreeSet<SecurityRule>,
    /// Why it has none although the policy has.
    pub refused: Option<String>,
}

/// A pod's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The pod's addresses, by which its port is found.
    pub addresses: Vec<IpAddr>,
    /// The tags of the groups that it is to be in, and of no others.
    pub groups: BTreeSet<Arc<str>>,
    /// Those of them that are there to be named by rules.
    pub peers: BTreeSet<Arc<str>>,
}

/// All that should be at the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Groups by their tags.
    pub groups: BTreeMap<Arc<str>, SecurityGroup>,
    /// Ports by their pods.
    pub ports: BTreeMap<PodName, Attachment>,
}

/// The longest name of a group: Neutron's limit for names.
const MAX_NAME: usize = 255;

impl NeutronRenderer {
    /// What there should be. `identities` tells of a policy what its object says; `origins` are the pipeline's.
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

    /// What each group is called.
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
            // The numbers of its port names tell them apart. One of them has the bare name, so that a policy with one keeps its group
            // when its ports change.
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

/// Digits of the hash that tells variants of one policy apart; with the UID and `_v` that is less than 60 characters.
const VARIANT_DIGITS: usize = 16;

fn variant(ingress: Option<&[Allow]>, egress: Option<&[Allow]>) -> String {
    let text = |rules: Option<&[Allow]>| {
        let rules = rules.map(|rules| rules.iter().map(|allow| format!("{} {:?}", allow.rule, allow.services)));
        format!("{:?}", rules.map(Iterator::collect::<Vec<_>>))
    };
    format!("{}\n{}", text(ingress), text(egress))
}

/// What the names of all our groups begin with.
pub const NAME_PREFIX: &str = "bulkhead: ";

fn named(name: &str) -> String {
    format!("{NAME_PREFIX}{name}").chars().take(MAX_NAME).collect()
}

/// The rules of a group, of the families that its ports have.
fn rules(group: &Group, peers: &BTreeMap<&Arc<[SetId]>, Arc<str>>) -> BTreeSet<SecurityRule> {
    let families =
        || Family::ALL.into_iter().zip(group.families).filter(|(_, ports)| *ports > 0).map(|(family, _)| family);
    let lines = group.lines.iter().flatten();
    let rule = |Line { direction, service, remote }: &Line, family: Family| {
        let remote = match remote {
            LineRemote::Any => Remote::Any,
            LineRemote::Prefix(prefix) if Family::of(prefix.addr()) != family => return None,
            // The API takes both for the same rule.
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
