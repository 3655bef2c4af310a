use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bulkhead_classifier::{PortRange, Service, protocol};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;

/// The tier and action that decided. `None` if no rule matched.
type Decided = Option<(Tier, RuleAction)>;

/// Returns the address with this index, of a small universe of both families.
fn address(at: u32) -> IpAddr {
    if at < 6 { Ipv4Addr::from(0x0a00_0000 + at).into() } else { Ipv6Addr::from(u128::from(at)).into() }
}

const ADDRESSES: u32 = 9;
const TRAFFIC: [(u8, u16); 6] = [
    (protocol::TCP, 79),
    (protocol::TCP, 80),
    (protocol::TCP, 81),
    (protocol::UDP, 80),
    (protocol::SCTP, 80),
    (protocol::ICMP, 0),
];

/// The one address of the region `own node`.
const NODE: u32 = 5;

fn peers(members: &[u32]) -> Addresses {
    members.iter().map(|&at| address(at)).collect::<AddressSet>().into()
}

fn service(number: u8, first: u16, last: u16) -> Services {
    ServiceSet::from_iter([Service { protocols: (number, number), ports: PortRange { first, last } }]).into()
}

fn rule(tier: Tier, peers: Option<Addresses>, services: Services, action: RuleAction, origin: u32) -> Tiered {
    Tiered { tier, peers, services, names: None, action, origin: OriginId(origin) }
}

fn matches(rule: &Tiered, at: u32, (number, port): (u8, u16)) -> bool {
    let peer = rule.peers.as_ref().map_or(at == NODE, |peers| peers.contains(address(at)));
    peer && rule.services.contains(number, port)
}

/// Returns the verdict of the tiers by definition: in each tier the first match decides; Pass and no match continue with the next tier.
/// Also returns whether a rule passed the packet.
fn truth(rules: &[Tiered], at: u32, traffic: (u8, u16)) -> (Action, OriginId, Decided, bool) {
    let mut passed = false;
    for tier in Tier::ALL {
        let first = rules.iter().find(|rule| rule.tier == tier && matches(rule, at, traffic));
        let Some(rule) = first else { continue };
        let action = match rule.action {
            RuleAction::Accept => Action::Allow,
            RuleAction::Deny => Action::Deny,
            RuleAction::Pass => {
                passed = true;
                continue;
            }
        };
        return (action, rule.origin, Some((tier, rule.action)), passed);
    }
    (Action::Allow, Origins::not_isolated(Direction::Ingress), None, passed)
}

fn lowered(lowered: &Lowered, at: u32, (number, port): (u8, u16)) -> (Action, OriginId) {
    let node = Arc::new(AddressSet::from_iter([address(NODE)]));
    for rule in crate::renderer::plain::on_node(&lowered.rules, &lowered.own_node, &node) {
        if rule.peers.contains(address(at)) && rule.services.contains(number, port) {
            return (rule.action, rule.origin);
        }
    }
    panic!("the list leaves something open")
}

fn any_rules() -> impl Strategy<Value = Vec<Tiered>> {
    let addresses = prop_oneof![
        1 => Just(Some(Addresses::Any)),
        1 => Just(None),
        5 => prop::collection::vec(0..ADDRESSES, 1..5).prop_map(|members| Some(peers(&members))),
    ];
    let services = prop_oneof![
        2 => Just(Services::Any),
        3 => (79u16..82, 0u16..3).prop_map(|(first, more)| service(protocol::TCP, first, first + more)),
        1 => Just(service(protocol::UDP, 0, u16::MAX)),
    ];
    let action = prop_oneof![Just(RuleAction::Accept), Just(RuleAction::Deny), Just(RuleAction::Pass)];
    let of_tier = move |tier: Tier| {
        let one = (addresses.clone(), services.clone(), action.clone());
        prop::collection::vec(one, 0..6).prop_map(move |rules| {
            let rule = |(peers, services, action): (Option<Addresses>, _, _)| {
                // A Pass of the own node is refused.
                let peers = if action == RuleAction::Pass { peers.or(Some(Addresses::Any)) } else { peers };
                rule(tier.clone(), peers, services, action, 0)
            };
            rules.into_iter().map(rule).collect::<Vec<_>>()
        })
    };
    let policies = (any::<bool>(), of_tier(Tier::NetworkPolicy)).prop_map(|(isolated, rules)| {
        let own = rule(Tier::NetworkPolicy, None, Services::Any, RuleAction::Accept, 0);
        let rest = rule(Tier::NetworkPolicy, Some(Addresses::Any), Services::Any, RuleAction::Deny, 0);
        let accepts = rules.into_iter().map(|rule| Tiered { action: RuleAction::Accept, ..rule });
        let all: Vec<_> = [own].into_iter().chain(accepts).chain([rest]).collect();
        if isolated { all } else { Vec::new() }
    });
    (of_tier(Tier::Admin), policies, of_tier(Tier::Baseline)).prop_map(|(admin, policies, baseline)| {
        let numbered = admin.into_iter().chain(policies).chain(baseline).zip(10..);
        let number = |(rule, at): (Tiered, u32)| Tiered { origin: OriginId(at), ..rule };
        numbered.map(number).collect()
    })
}

#[test]
fn the_lowered_list_says_of_everything_what_the_tiers_say_and_names_the_same_rule() {
    let reached = RefCell::new(BTreeMap::<(Option<String>, bool), u32>::new());
    let mut runner = TestRunner::new(ProptestConfig::with_cases(3_000));
    let run = |rules: Vec<Tiered>| {
        let list = lower(rules.clone(), Direction::Ingress).unwrap();
        prop_assert!(list.rules.iter().all(|rule| rule.peers != Addresses::Set(Arc::default())));
        for at in 0..ADDRESSES {
            for traffic in TRAFFIC {
                let (action, origin, decided, passed) = truth(&rules, at, traffic);
                prop_assert_eq!(lowered(&list, at, traffic), (action, origin), "{} {:?}", at, traffic);
                let decided = decided.map(|decided| format!("{decided:?}"));
                *reached.borrow_mut().entry((decided, passed)).or_default() += 1;
            }
        }
        Ok(())
    };
    runner.run(&any_rules(), run).unwrap();
    let reached = reached.into_inner();
    // The Admin tier decides before any Pass. The other tiers and the default decide with and without a preceding Pass.
    assert_eq!(reached.len(), 2 + 4 + 4 + 2, "{reached:?}");
    assert!(reached.values().all(|&count| count > 300), "{reached:?}");
}

#[test]
fn a_pass_takes_its_traffic_out_of_the_rules_behind_it_and_of_no_other_tier() {
    let all = Some(Addresses::Any);
    let tcp = || service(protocol::TCP, 0, u16::MAX);
    let list = lower(
        [
            rule(Tier::Admin, Some(peers(&[1])), Services::Any, RuleAction::Accept, 10),
            rule(Tier::Admin, Some(peers(&[1, 2])), tcp(), RuleAction::Pass, 11),
            rule(Tier::Admin, Some(peers(&[2, 3])), Services::Any, RuleAction::Deny, 12),
            rule(Tier::Baseline, all, Services::Any, RuleAction::Deny, 13),
        ],
        Direction::Ingress,
    )
    .unwrap();
    let without_tcp: Services = ServiceSet::all()
        .subtract(&[tcp()].iter().fold(ServiceSet::default(), |_, services| {
            let Services::Set(set) = services else { unreachable!() };
            ServiceSet::clone(set)
        }))
        .into();
    let shown: Vec<_> =
        list.rules.iter().map(|rule| (&rule.peers, &rule.services, rule.action, rule.origin.0)).collect();
    assert_eq!(
        shown,
        [
            (&peers(&[1]), &Services::Any, Action::Allow, 10),
            (&peers(&[3]), &Services::Any, Action::Deny, 12),
            (&peers(&[2]), &without_tcp, Action::Deny, 12),
            (&Addresses::Any, &Services::Any, Action::Deny, 13),
        ]
    );
}

#[test]
fn network_policy_alone_is_lowered_to_itself_with_the_same_sets() {
    let sets = [peers(&[1, 2]), peers(&[3])];
    let own = rule(Tier::NetworkPolicy, None, Services::Any, RuleAction::Accept, 0);
    let accepts =
        sets.iter().map(|set| rule(Tier::NetworkPolicy, Some(set.clone()), Services::Any, RuleAction::Accept, 7));
    let rest = rule(Tier::NetworkPolicy, Some(Addresses::Any), Services::Any, RuleAction::Deny, 8);
    let list = lower([own].into_iter().chain(accepts).chain([rest]), Direction::Egress).unwrap();
    let own: Vec<_> = list.own_node.iter().map(|own| (own.before, own.rule.action)).collect();
    assert_eq!((&*own, list.rules.len()), (&[(0, Action::Allow)][..], 3), "nothing is asked behind the deny");
    for (set, rule) in sets.iter().zip(&list.rules) {
        let (Addresses::Set(set), Addresses::Set(lowered)) = (set, &rule.peers) else { panic!("{rule:?}") };
        assert!(Arc::ptr_eq(set, lowered));
    }
}

#[test]
fn a_pass_of_the_own_node_is_refused_and_named() {
    let pass = rule(Tier::Admin, None, Services::Any, RuleAction::Pass, 5);
    let refused = lower([pass], Direction::Egress).unwrap_err();
    assert_eq!(
        (&refused, refused.origin()),
        (&TooComplex::PassOfOwnNode { tier: Tier::Admin, origin: OriginId(5) }, OriginId(5))
    );
    assert!(refused.to_string().contains("Admin tier"), "{refused}");
}

#[test]
fn what_would_become_too_many_rules_is_refused_and_names_the_rule() {
    // Each Pass has another port and half of the addresses, so that each address has other remaining ports.
    let half = |bit: u32| -> Addresses {
        (0..1u32 << 14)
            .filter(|at| at >> bit & 1 == 1)
            .map(|at| IpAddr::from(Ipv4Addr::from(at)))
            .collect::<AddressSet>()
            .into()
    };
    let passes = (0..14).map(|bit| {
        let port = 80 + u16::try_from(bit).unwrap();
        rule(Tier::Admin, Some(half(bit)), service(protocol::TCP, port, port), RuleAction::Pass, bit)
    });
    let deny = rule(Tier::Admin, Some(Addresses::Any), Services::Any, RuleAction::Deny, 99);
    let refused = lower(passes.chain([deny]), Direction::Ingress).unwrap_err();
    assert_eq!(refused, TooComplex::Pieces { tier: Tier::Admin, origin: OriginId(99) });
}
