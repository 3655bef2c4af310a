//! Translates a tier's rules into nft's syntax, and names chains and sets.

use std::fmt::Write as _;

use bulkhead_classifier::{OriginId, PortRange, Service, Services, protocol};

use crate::contract::{ListId, Peers, SetId, TierRule, TieredList};
use crate::object::{RuleAction, Tier};
use crate::origin::{Direction, Origins};

/// Protocols with ports that the kernel tracks. A policy cannot name ports of other protocols.
const WITH_PORTS: [u8; 3] = [protocol::TCP, protocol::UDP, protocol::SCTP];

/// The protocols whose rules may name a type and a code, with their names in nft.
const ICMP: [(u8, &str); 2] = [(protocol::ICMP, "icmp"), (protocol::ICMPV6, "icmpv6")];

/// The kernel sets that represent an address set: suffix, type, whether it contains blocks, and whether it is IPv4.
pub(super) const KINDS: [(&str, &str, bool, bool); 4] = [
    ("hosts4", "ipv4_addr", false, true),
    ("blocks4", "ipv4_addr", true, true),
    ("hosts6", "ipv6_addr", false, false),
    ("blocks6", "ipv6_addr", true, false),
];

/// The sets of the node's own addresses: name, type, and whether it is IPv4.
pub(super) const OWN_SETS: [(&str, &str, bool); 2] = [("own4", "ipv4_addr", true), ("own6", "ipv6_addr", false)];

pub(super) fn set_name(set: SetId, suffix: &str) -> String {
    format!("set-{}-{suffix}", set.0)
}

/// Returns the name of an interface's chain: `to-VETH` for traffic to the pod, `from-VETH` for traffic from it.
pub(super) fn workload_chain(interface: &str, direction: Direction) -> String {
    let prefix = match direction {
        Direction::Ingress => "to",
        Direction::Egress => "from",
    };
    format!("{prefix}-{}", escaped(interface))
}

/// Escapes characters that are invalid in a chain's name. The texts contain no slash, so names stay unique.
fn escaped(text: &str) -> String {
    let mut name = String::new();
    for letter in text.chars() {
        if letter.is_ascii_alphanumeric() || "-._".contains(letter) {
            name.push(letter);
        } else {
            write!(name, "/{:02x}", u32::from(letter)).expect("a text takes anything");
        }
    }
    name
}

pub(super) fn list_chain(list: ListId) -> String {
    format!("list-{}", list.0)
}

fn tier_chain(list: ListId, tier: &Tier) -> String {
    let tier = match tier {
        Tier::Admin => "admin",
        Tier::NetworkPolicy => "policy",
        Tier::Baseline => "baseline",
        Tier::Other(tier) => return format!("{}-tier-{}", list_chain(list), escaped(&tier.name)),
    };
    format!("{}-{tier}", list_chain(list))
}

/// A chain with its comment and rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) name: String,
    pub(super) comment: String,
    pub(super) rules: Vec<String>,
}

pub(super) fn names(list: &TieredList) -> Vec<String> {
    let tiers = tiers(list).into_iter().map(|tier| tier_chain(list.id, tier));
    std::iter::once(list_chain(list.id)).chain(tiers).collect()
}

fn tiers(list: &TieredList) -> Vec<&Tier> {
    let mut tiers: Vec<&Tier> = list.rules.iter().map(|rule| &rule.tier).collect();
    tiers.dedup();
    tiers
}

/// Returns the chains of a list: one that jumps to the tiers in order, and one per tier.
pub(super) fn chains(list: &TieredList, direction: Direction, comment: impl Fn(&TierRule) -> String) -> Vec<Chain> {
    let tiers = tiers(list);
    let mut rules: Vec<String> = tiers.iter().map(|tier| format!("jump {}", tier_chain(list.id, tier))).collect();
    rules.push(open(direction));
    let first = Chain { name: list_chain(list.id), comment: direction.name().to_owned(), rules };
    let of_tier = |tier: &Tier| {
        let rules = list.rules.iter().filter(|rule| rule.tier == *tier);
        Chain {
            name: tier_chain(list.id, tier),
            comment: super::comment::comment(format_args!("{direction}, tier {}", tier.name())),
            rules: rules.flat_map(|rule| rule_texts(rule, direction, &comment(rule))).collect(),
        }
    };
    std::iter::once(first).chain(tiers.iter().map(|tier| of_tier(tier))).collect()
}

/// Returns the name of the counter of an origin's decisions: `allow-12`, `deny-12`, `pass-12`.
pub(super) fn counter(action: RuleAction, origin: OriginId) -> String {
    let action = match action {
        RuleAction::Accept => "allow",
        RuleAction::Deny => "deny",
        RuleAction::Pass => "pass",
    };
    format!("{action}-{}", origin.0)
}

/// Returns the rules for a pod's connections to itself through a Service, which `matching` selects: the other tiers judge them,
/// NetworkPolicy does not. See [`hairpin`](crate::renderer::hairpin).
pub(super) fn hairpin(list: Option<&TieredList>, matching: &str) -> Vec<String> {
    let mut rules = Vec::new();
    if let Some(list) = list {
        // NetworkPolicy allows the connection where it isolates the pod, so later tiers do not decide.
        for tier in tiers(list).into_iter().take_while(|tier| **tier != Tier::NetworkPolicy) {
            rules.push(format!("{matching} jump {}", tier_chain(list.id, tier)));
        }
    }
    let own = counter(RuleAction::Accept, Origins::OWN_POD);
    rules.push(format!("{matching} counter name \"{own}\" accept"));
    rules
}

/// Returns the final rule for traffic that no other rule matches.
pub(super) fn open(direction: Direction) -> String {
    format!("counter name \"{}\" accept", counter(RuleAction::Accept, Origins::not_isolated(direction)))
}

/// Returns the nft rules of one rule: one for each set of its peers and each protocol.
fn rule_texts(rule: &TierRule, direction: Direction, comment: &str) -> Vec<String> {
    let verdict = match rule.action {
        RuleAction::Accept => "accept",
        RuleAction::Deny => "drop",
        // The tier leaves the decision to the next one.
        RuleAction::Pass => "return",
    };
    let end = format!("counter name \"{}\" {verdict} comment \"{comment}\"", counter(rule.action, rule.origin));
    let services = services(&rule.services);
    let mut texts = Vec::new();
    for peer in peers(&rule.peers, direction) {
        texts.extend(services.iter().map(|service| format!("{peer}{service}{end}")));
    }
    texts
}

/// Returns the conntrack field with the address of the other end.
const fn field(direction: Direction, v4: bool) -> &'static str {
    match (direction, v4) {
        (Direction::Ingress, true) => "ct original ip saddr",
        (Direction::Ingress, false) => "ct original ip6 saddr",
        // After translation: the source of the replies.
        (Direction::Egress, true) => "ct reply ip saddr",
        (Direction::Egress, false) => "ct reply ip6 saddr",
    }
}

fn peers(peers: &Peers, direction: Direction) -> Vec<String> {
    match peers {
        Peers::Any => vec![String::new()],
        // The kernel reads no DNS answers: such a rule matches nothing, and the vswitch logs a warning.
        Peers::Names { .. } => Vec::new(),
        Peers::OwnNode => OWN_SETS.iter().map(|(name, _, v4)| format!("{} @{name} ", field(direction, *v4))).collect(),
        Peers::Sets(sets) => {
            let of = |set: &SetId| {
                KINDS.map(|(suffix, _, _, v4)| format!("{} @{} ", field(direction, v4), set_name(*set, suffix)))
            };
            sets.iter().flat_map(of).collect()
        }
    }
}

/// Formats protocols and ports as nft matches: one per range of protocols with all ports, and one per protocol with listed ports.
fn services(services: &Services) -> Vec<String> {
    let Services::Set(set) = services else { return vec![String::new()] };
    let mut texts = Vec::new();
    let mut blocks: Vec<((u8, u8), Vec<PortRange>)> = Vec::new();
    for Service { protocols, ports } in set.services() {
        match blocks.last_mut().filter(|(last, _)| *last == protocols) {
            Some((_, all)) => all.push(ports),
            None => blocks.push((protocols, vec![ports])),
        }
    }
    for ((first, last), ports) in blocks {
        if ports == [PortRange::ALL] {
            let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
            texts.push(format!("meta l4proto {range} "));
            continue;
        }
        let ranges: Vec<String> = ports.iter().map(port_range).collect();
        for (number, name) in ICMP.into_iter().filter(|(number, _)| (first..=last).contains(number)) {
            let matches = ports.iter().flat_map(|ports| icmp(name, *ports));
            texts.extend(matches.map(|icmp| format!("meta l4proto {number} {icmp}")));
        }
        for number in (first..=last).filter(|number| WITH_PORTS.contains(number)) {
            texts.push(format!("meta l4proto {number} ct reply proto-src {{ {} }} ", ranges.join(", ")));
        }
        // nft sees port 0 in packets without ports.
        if ports.iter().any(|ports| ports.first == 0) {
            let is_icmp = |number: &u8| ICMP.iter().any(|(icmp, _)| icmp == number);
            let others = (first..=last).filter(|number| !WITH_PORTS.contains(number) && !is_icmp(number));
            texts.extend(others.map(|number| format!("meta l4proto {number} ")));
        }
    }
    texts
}

/// Formats matches of ICMP's types and codes, whose "ports" are the type times 256 plus the code: at most one for all codes of several types,
/// and one for some codes of the first and of the last type.
fn icmp(name: &str, PortRange { first, last }: PortRange) -> Vec<String> {
    let range = |first: u16, last: u16| port_range(&PortRange { first, last });
    let (types, codes) = ((first >> 8, last >> 8), (first & 0xff, last & 0xff));
    let of = |kind: u16, first, last| format!("{name} type {kind} {name} code {} ", range(first, last));
    if types.0 == types.1 && codes != (0, 0xff) {
        return vec![of(types.0, codes.0, codes.1)];
    }
    let mut texts = Vec::new();
    let whole_from = types.0 + u16::from(codes.0 > 0);
    let whole_to = i32::from(types.1) - i32::from(codes.1 < 0xff);
    if codes.0 > 0 {
        texts.push(of(types.0, codes.0, 0xff));
    }
    if let Ok(whole_to) = u16::try_from(whole_to)
        && whole_from <= whole_to
    {
        texts.push(format!("{name} type {} ", range(whole_from, whole_to)));
    }
    if codes.1 < 0xff {
        texts.push(of(types.1, 0, codes.1));
    }
    texts
}

fn port_range(ports: &PortRange) -> String {
    if ports.first == ports.last { ports.first.to_string() } else { format!("{}-{}", ports.first, ports.last) }
}

#[cfg(test)]
mod tests {
    use bulkhead_classifier::ServiceSet;

    use super::*;

    #[test]
    fn types_and_codes_of_icmp_are_matched_and_nothing_else() {
        let of = |number, first, last| {
            let service = Service { protocols: (number, number), ports: PortRange { first, last } };
            services(&ServiceSet::from_iter([service]).into())
        };
        assert_eq!(of(1, 0, u16::MAX), ["meta l4proto 1 "]);
        assert_eq!(of(1, 0x0800, 0x08ff), ["meta l4proto 1 icmp type 8 "]);
        assert_eq!(of(1, 0x0303, 0x0303), ["meta l4proto 1 icmp type 3 icmp code 3 "]);
        assert_eq!(of(58, 0x8000, 0x81ff), ["meta l4proto 58 icmpv6 type 128-129 "]);
        // The complement of type 0, code 1.
        assert_eq!(of(1, 0, 0), ["meta l4proto 1 icmp type 0 icmp code 0 "]);
        let rest = ["meta l4proto 1 icmp type 0 icmp code 2-255 ", "meta l4proto 1 icmp type 1-255 "];
        assert_eq!(of(1, 2, u16::MAX), rest);
        assert_eq!(
            of(1, 0x0110, 0x0205),
            ["meta l4proto 1 icmp type 1 icmp code 16-255 ", "meta l4proto 1 icmp type 2 icmp code 0-5 "]
        );
        assert_eq!(of(47, 0, 0), ["meta l4proto 47 "], "packets without ports have port 0");
    }
}
