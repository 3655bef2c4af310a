//! Tests all three tiers: compares a node's tables with the definition of the tiers.

use std::collections::BTreeMap;

use bulkhead_classifier::{Action, AddressSet, Key, PortRange, Service, ServiceSet, Services, protocol};

use super::*;
use crate::contract::{
    Endpoint, EndpointRules, ListId, Peers, RuleAction, SetDelta, SetId, SetMirror, Tier, TierRule, TieredList,
};

const NODE: &str = "192.168.0.1";
const PODS: [&str; 4] = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"];
const ELSEWHERE: [&str; 2] = ["10.0.1.1", "10.0.1.2"];

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn services(&mut self) -> Services {
        let tcp = (protocol::TCP, protocol::TCP);
        match self.below(3) {
            0 => Services::Any,
            at => {
                let first = 79 + u16::try_from(self.below(3)).unwrap();
                let last = first + u16::try_from(at).unwrap() - 1;
                ServiceSet::from_iter([Service { protocols: tcp, ports: PortRange { first, last } }]).into()
            }
        }
    }

    fn tier(&mut self, tier: &Tier, origin: &mut u32, rules: &mut Vec<TierRule>) {
        let isolates = *tier == Tier::NetworkPolicy;
        let mut add = |peers, services, action, own| {
            *origin += 1;
            let origin = if own { crate::origin::Origins::OWN_NODE } else { OriginId(*origin) };
            rules.push(TierRule { tier: tier.clone(), peers, services, action, origin });
        };
        if isolates {
            add(Peers::OwnNode, Services::Any, RuleAction::Accept, true);
        }
        for _ in 0..self.below(4) {
            let sets: Vec<SetId> = (0..6).filter(|_| self.below(3) == 0).map(SetId).collect();
            let peers = if self.below(8) == 0 { Peers::Any } else { Peers::Sets(sets.into()) };
            let actions = [RuleAction::Accept, RuleAction::Deny, RuleAction::Pass];
            let action = if isolates { RuleAction::Accept } else { actions[usize::try_from(self.below(3)).unwrap()] };
            add(peers, self.services(), action, false);
        }
        if isolates {
            add(Peers::Any, Services::Any, RuleAction::Deny, false);
        }
    }

    fn list(&mut self, id: u64, origin: &mut u32) -> Option<Arc<TieredList>> {
        let mut rules = Vec::new();
        for tier in Tier::ALL {
            if self.below(2) == 0 {
                self.tier(&tier, origin, &mut rules);
            }
        }
        (!rules.is_empty()).then(|| Arc::new(TieredList { id: ListId(id), rules }))
    }
}

/// Returns the verdict of the tiers by definition, with the rule and tier that decided.
fn truth(sets: &SetMirror, list: Option<&TieredList>, peer: IpAddr, port: u16) -> (Action, Option<(Tier, OriginId)>) {
    for tier in Tier::ALL {
        let mut rules = list.iter().flat_map(|list| &list.rules).filter(|rule| rule.tier == tier);
        let matches = |rule: &&TierRule| {
            sets.names(&rule.peers, &[address(NODE)], peer) && rule.services.contains(protocol::TCP, port)
        };
        match rules.find(matches) {
            Some(rule) if rule.action == RuleAction::Accept => return (Action::Allow, Some((tier, rule.origin))),
            Some(rule) if rule.action == RuleAction::Deny => return (Action::Deny, Some((tier, rule.origin))),
            _ => {}
        }
    }
    (Action::Allow, None)
}

fn transaction(random: &mut Random) -> Transaction {
    let all: Vec<IpAddr> = PODS.iter().chain(&ELSEWHERE).chain([&NODE]).map(|text| address(text)).collect();
    let set = |set: u64, random: &mut Random| {
        let members: AddressSet = all.iter().copied().filter(|_| random.below(3) == 0).collect();
        SetDelta { set: SetId(set), added: Arc::new(members), removed: Arc::default() }
    };
    let (mut origin, mut id) = (10, 0);
    let mut list = |random: &mut Random| {
        id += 1;
        random.list(id, &mut origin)
    };
    let shared = [list(random), list(random)];
    let mut endpoint = |(at, text): (usize, &&str)| {
        let rules = match at {
            // Two pods with the same rules are one class.
            0 | 1 => EndpointRules { ingress: shared[0].clone(), egress: shared[1].clone(), apart: None },
            _ => EndpointRules { ingress: list(random), egress: list(random), apart: None },
        };
        let pod = PodName::new("x", format!("p{at}"));
        let endpoint =
            Endpoint { pod: pod.clone(), node: "n".into(), addresses: vec![address(text)], mac: None, rules };
        (pod, Some(Arc::new(endpoint)))
    };
    let endpoints = PODS.iter().enumerate().map(&mut endpoint).collect();
    let node = Node {
        name: "n".into(),
        labels: Default::default(),
        addresses: vec![address(NODE)],
        pod_cidrs: vec![],
        terminating: false,
    };
    Transaction {
        resync: true,
        sets: (0..6).map(|at| set(at, random)).collect(),
        endpoints,
        nodes: vec![("n".into(), Some(Arc::new(node)))],
        dropped: vec![],
    }
}

#[test]
fn a_nodes_tables_say_what_the_tiers_of_the_sender_and_of_the_receiver_say_together() {
    hold_against_the_tiers(|told| {
        let mut renderer = AclRenderer::of_node("n".into());
        renderer.render(told).unwrap();
        renderer.node_tables("n").unwrap().clone()
    });
}

/// Compares the renderer's tables for random tiers with the tiers' definition.
pub(in crate::renderer) fn hold_against_the_tiers(mut tables_of: impl FnMut(&Transaction) -> Arc<NodeTables>) {
    let mut reached = BTreeMap::<String, u32>::new();
    let mut random = Random(0xb1);
    for _ in 0..1_500 {
        let told = transaction(&mut random);
        let mut sets = SetMirror::default();
        sets.apply(&told);
        let tables = tables_of(&told);
        let rules_of = |of: IpAddr| {
            let at = PODS.iter().position(|text| address(text) == of)?;
            Some(told.endpoints[at].1.as_ref().unwrap().rules.clone())
        };
        for src in PODS.iter().chain(&ELSEWHERE).chain([&NODE]).map(|text| address(text)) {
            for dst in PODS.iter().chain(&ELSEWHERE).chain([&NODE]).map(|text| address(text)) {
                let local = [src, dst].map(|end| rules_of(end).is_some());
                if src == dst || local == [false; 2] {
                    continue;
                }
                let mut interfaces = tables.interfaces.iter();
                let owner = interfaces.clone().find(|interface| interface.addresses.contains(&dst));
                let uplink = || interfaces.find(|interface| interface.attachment == Attachment::Uplink);
                let table = &tables.tables[owner.or_else(uplink).unwrap().table].tables;
                for port in 78..83 {
                    let egress = rules_of(src).and_then(|rules| rules.egress);
                    let ingress = rules_of(dst).and_then(|rules| rules.ingress);
                    let out = truth(&sets, egress.as_deref(), dst, port);
                    let out_tier = out.1.as_ref().map(|(tier, _)| tier.clone());
                    let decides = match out.0 {
                        Action::Deny => ("egress", out),
                        Action::Allow => ("ingress", truth(&sets, ingress.as_deref(), src, port)),
                    };
                    let verdict = table.lookup(&Key::new(src, dst, protocol::TCP, 40_000, port));
                    let (side, (action, by)) = decides;
                    assert_eq!(verdict.action(), action, "{src} -> {dst}:{port} {by:?}\n{told:#?}");
                    if action == Action::Deny {
                        let named = table.deciding_rule(verdict).map(|rule| rule.origin);
                        assert_eq!(named, by.as_ref().map(|(_, origin)| *origin), "{src} -> {dst}:{port}\n{told:#?}");
                    }
                    let way = if local == [true; 2] { "local" } else { "across" };
                    let tier = by.as_ref().map(|(tier, _)| tier.clone());
                    *reached.entry(format!("{way} {side} {action:?} {tier:?}")).or_default() += 1;
                    if dst == address(NODE) {
                        *reached.entry(format!("own node {action:?} {:?}", out_tier)).or_default() += 1;
                    }
                }
            }
        }
    }
    // Both ways: each side denies by each tier and the receiver's accepts or nothing decides; the own node by Admin and Baseline
    // both ways, accepted by the tier between, and by nothing.
    assert_eq!(reached.len(), 2 * (3 + 3 + 4) + 6, "{reached:#?}");
    assert!(reached.values().all(|&count| count > 200), "{reached:#?}");
}
