//! The tables enforce "the source's list AND the destination's list", independent of history.

use std::net::IpAddr;

use bulkhead_classifier::Key;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;
use crate::renderer::contiv::MAX_TUPLES;
use crate::renderer::contiv::tuple::first_match;

/// The addresses of pods and of the rules' blocks. The first five are the pods'.
const V4: [&str; 8] =
    ["10.1.1.1", "10.1.1.2", "10.1.1.3", "10.1.1.5", "10.1.2.1", "10.1.1.9", "8.8.8.8", "192.168.0.7"];
const V6: [&str; 7] = ["fd00::1", "fd00::2", "fd00::3", "fd00::5", "fd00:2::1", "fd00::9", "2001:db8::7"];
const PODS: usize = 5;

fn any_service() -> impl Strategy<Value = Option<Service>> {
    let number = prop_oneof![Just(protocol::TCP), Just(protocol::UDP), Just(protocol::SCTP)];
    let ports = prop_oneof![
        Just((0, u16::MAX)),
        (78u16..84).prop_map(|port| (port, port)),
        (78u16..82, 0u16..4).prop_map(|(a, n)| (a, a + n))
    ];
    prop_oneof![
        2 => Just(None),
        8 => (number, ports).prop_map(|(number, (first, last))| service(number, first, last)),
        1 => Just(service(protocol::ICMP, 0, u16::MAX)),
    ]
}

fn any_peer() -> impl Strategy<Value = Option<ipnet::IpNet>> {
    let of = |addresses: &'static [&'static str], lengths: &'static [u8]| {
        (proptest::sample::select(addresses), proptest::sample::select(lengths))
            .prop_map(|(address, length)| Some(ipnet::IpNet::new(address.parse().unwrap(), length).unwrap().trunc()))
    };
    prop_oneof![1 => Just(None), 6 => of(&V4, &[32, 32, 32, 30, 24, 8, 0]), 4 => of(&V6, &[128, 128, 126, 64, 16, 0])]
}

fn any_list() -> impl Strategy<Value = Arc<PeerList>> {
    let permit =
        (any_peer(), any_service()).prop_map(|(peer, service)| PeerRule { peer, service, action: Action::Allow });
    let rules = proptest::collection::vec(permit, 0..6);
    let closed = (rules, prop_oneof![7 => Just(true), 1 => Just(false)]).prop_map(|(mut rules, closed)| {
        rules.extend(closed.then_some(PeerRule::DENY_THE_REST));
        Arc::new(PeerList::new(rules).unwrap())
    });
    prop_oneof![1 => Just(Arc::default()), 3 => closed]
}

fn any_update() -> impl Strategy<Value = Update> {
    let lists = (any_list(), any_list());
    (0..PODS, 0u8..3, proptest::option::weighted(0.85, lists)).prop_map(|(at, families, lists)| {
        let addresses = match families {
            0 => vec![V4[at]],
            1 => vec![V6[at]],
            _ => vec![V4[at], V6[at]],
        };
        let addresses = addresses.into_iter().map(|address| address.parse().unwrap()).collect();
        (pod(at), lists.map(|(ingress, egress)| PodLists { addresses, ingress, egress }))
    })
}

/// Returns the verdict of a pod's list, evaluated rule by rule.
fn says(list: Option<&PeerList>, peer: IpAddr, key: &Key) -> bool {
    let Some(list) = list.filter(|list| list.rules().iter().any(|rule| rule.action == Action::Deny)) else {
        return true;
    };
    list.rules().iter().filter(|rule| rule.action == Action::Allow).any(|rule| {
        let service = rule
            .service
            .is_none_or(|service| service.protocols.0 == key.protocol() && service.ports.contains(key.dst_port()));
        rule.peer.is_none_or(|net| net.contains(&peer)) && service
    })
}

/// Returns the table that judges a packet: that of the pod at the orientation's end, otherwise the global one.
fn table<'a>(state: &'a RendererState, orientation: Orientation, key: &Key) -> Option<&'a Arc<Table>> {
    let end = match orientation {
        Orientation::Egress => key.dst(),
        Orientation::Ingress => key.src(),
    };
    match state.pods().iter().find(|(_, lists)| lists.addresses.contains(&end)) {
        Some((name, _)) => state.locals().get(name),
        None => Some(state.global()),
    }
}

#[derive(Debug, Default)]
struct Reached {
    allow: usize,
    deny: usize,
    default: usize,
    v4: usize,
    v6: usize,
    tcp: usize,
    udp: usize,
    sctp: usize,
    other: usize,
}

impl Reached {
    fn note(&mut self, key: &Key, verdict: Action, default: bool) {
        *(if verdict == Action::Allow { &mut self.allow } else { &mut self.deny }) += 1;
        self.default += usize::from(default);
        *(if key.dst().is_ipv4() { &mut self.v4 } else { &mut self.v6 }) += 1;
        *(match key.protocol() {
            protocol::TCP => &mut self.tcp,
            protocol::UDP => &mut self.udp,
            protocol::SCTP => &mut self.sctp,
            _ => &mut self.other,
        }) += 1;
    }

    fn assert_all(&self, least: usize) {
        let Self { allow, deny, default, v4, v6, tcp, udp, sctp, other } = *self;
        assert!([allow, deny, default, v4, v6, tcp, udp, sctp, other].iter().all(|&count| count >= least), "{self:?}");
    }
}

fn probes() -> impl Iterator<Item = (u8, u16)> {
    let ports = [protocol::TCP, protocol::UDP, protocol::SCTP].into_iter();
    ports.flat_map(|number| [1, 78, 80, 81, 84].map(|port| (number, port))).chain([(protocol::ICMP, 0), (47, 0)])
}

fn pairs() -> impl Iterator<Item = (IpAddr, IpAddr)> {
    let family = |addresses: &'static [&'static str]| {
        addresses.iter().flat_map(|a| addresses.iter().map(|b| (a.parse().unwrap(), b.parse().unwrap())))
    };
    family(&V4).chain(family(&V6))
}

fn check_verdicts(state: &RendererState, orientation: Orientation, reached: &mut Reached) {
    let lists = |address: IpAddr| state.pods().values().find(|lists| lists.addresses.contains(&address));
    for (src, dst) in pairs() {
        let (from, to) = (lists(src), lists(dst));
        for (number, port) in probes() {
            let key = Key::new(src, dst, number, 40_000, port);
            let ideal =
                says(from.map(|lists| &*lists.egress), dst, &key) && says(to.map(|lists| &*lists.ingress), src, &key);
            let rules: Vec<_> = table(state, orientation, &key).into_iter().flat_map(|table| &table.rules).collect();
            let verdict = first_match(rules.iter().copied(), &key);
            assert_eq!(verdict == Action::Allow, ideal, "{orientation:?} {key:?} {rules:#?}");
            let last = rules.iter().position(|rule| rule.matches(&key)).is_none_or(|at| at + 1 == rules.len());
            reached.note(&key, verdict, last);
        }
    }
}

#[test]
fn the_first_match_in_the_tables_is_the_sources_list_and_the_destinations_list() {
    let mut runner = TestRunner::deterministic();
    let history = proptest::collection::vec(proptest::collection::vec(any_update(), 1..6), 1..4);
    let mut reached = Reached::default();
    for _ in 0..250 {
        let history = history.new_tree(&mut runner).unwrap().current();
        for orientation in [Orientation::Egress, Orientation::Ingress] {
            let mut cache = RendererCache::new(orientation, MAX_TUPLES);
            for updates in &history {
                // For a pod that occurs twice in a transaction, the last entry counts.
                commit(&mut cache, orientation, updates);
                check_verdicts(cache.state(), orientation, &mut reached);
            }
        }
    }
    reached.assert_all(10_000);
}

#[test]
fn an_address_that_two_pods_claim_may_do_what_both_lists_allow() {
    for orientation in [Orientation::Egress, Orientation::Ingress] {
        let lists = |address: &str, rules: &[&str]| PodLists {
            addresses: vec![address.parse().unwrap()],
            ingress: list(if orientation == Orientation::Ingress { rules } else { &[] }),
            egress: list(if orientation == Orientation::Egress { rules } else { &[] }),
        };
        let mut cache = RendererCache::new(orientation, MAX_TUPLES);
        let updates = [
            (pod(0), Some(lists(V4[0], &["P 10.0.0.0/8 TCP:80", "P 8.8.8.8/32 ANY", "D"]))),
            (pod(1), Some(lists(V4[0], &["P 10.1.1.2/32 ANY", "P 10.1.1.0/24 TCP:0", "D"]))),
            (pod(2), Some(lists(V4[1], &[]))),
        ];
        let allowed = |cache: &RendererCache, peer: &str, number, port| {
            let (claimed, peer) = (V4[0].parse().unwrap(), peer.parse().unwrap());
            let key = match orientation {
                Orientation::Egress => Key::new(claimed, peer, number, 1, port),
                Orientation::Ingress => Key::new(peer, claimed, number, 1, port),
            };
            let rules = table(cache.state(), orientation, &key).map(|table| &table.rules);
            first_match(rules.into_iter().flatten(), &key) == Action::Allow
        };
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            cache.flush();
            for at in order {
                commit(&mut cache, orientation, &[updates[at].clone()]);
            }
            assert!(allowed(&cache, V4[1], protocol::TCP, 80), "local peer, both allow");
            assert!(!allowed(&cache, V4[1], protocol::TCP, 81), "local peer, one allows");
            assert!(allowed(&cache, V4[5], protocol::TCP, 80), "remote peer, both allow");
            assert!(!allowed(&cache, V4[5], protocol::TCP, 81) && !allowed(&cache, V4[6], protocol::TCP, 80));
            commit(&mut cache, orientation, &[(pod(0), None)]);
            assert!(allowed(&cache, V4[5], protocol::TCP, 81) && allowed(&cache, V4[1], protocol::ICMP, 0));
        }
    }
}

#[test]
fn icmp_does_not_leak_through_all_tcp_and_all_udp() {
    for orientation in [Orientation::Egress, Orientation::Ingress] {
        let mut cache = RendererCache::new(orientation, MAX_TUPLES);
        let lists = |at: usize, rules: &[&str]| PodLists {
            addresses: vec![V4[at].parse().unwrap()],
            ingress: list(rules),
            egress: list(rules),
        };
        let l4 = ["P 10.0.0.0/8 TCP:0", "P 10.0.0.0/8 UDP:0", "P 10.0.0.0/8 SCTP:0", "D"];
        commit(
            &mut cache,
            orientation,
            &[(pod(0), Some(lists(0, &l4))), (pod(1), Some(lists(1, &["P any ANY", "D"])))],
        );
        let judge = |number| {
            let key = Key::new(V4[0].parse().unwrap(), V4[1].parse().unwrap(), number, 1, 0);
            first_match(&table(cache.state(), orientation, &key).unwrap().rules, &key)
        };
        assert_eq!([judge(protocol::SCTP), judge(protocol::ICMP)], [Action::Allow, Action::Deny]);
    }
}
