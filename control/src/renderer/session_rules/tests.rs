//! The encoding, rule by rule, as in Contiv's own tests.

use std::net::IpAddr;

use bulkhead_classifier::{Action, PortRange, Service, protocol};

use super::encode::{Difference, SessionRules, difference, encode};
use super::*;
use crate::renderer::contiv::rules::Rules;
use crate::renderer::contiv::tuple::SixTuple;

const LOCAL: SessionScope = SessionScope::Local { namespace: 7 };
const OPEN: SixTuple = SixTuple::any(Action::Allow);

fn tuple(action: Action, src: &str, dst: &str, service: Option<(u8, u16, u16)>) -> SixTuple {
    let service =
        service.map(|(number, first, last)| Service { protocols: (number, number), ports: PortRange { first, last } });
    SixTuple { src: src.parse().ok(), dst: dst.parse().ok(), service, action }
}

fn encoded(scope: SessionScope, table: &[SixTuple], own: &[&str]) -> Vec<String> {
    let own: Vec<IpAddr> = own.iter().map(|address| address.parse().unwrap()).collect();
    let rules = encode(scope, &Rules::of_sorted(table), &own, 1_000).unwrap().rules;
    rules.into_iter().map(|(matches, action)| SessionRule { matches, action }.to_string()).collect()
}

#[test]
fn a_deny_of_a_block_towards_a_pod_is_one_global_rule() {
    let deny = tuple(Action::Deny, "192.168.2.0/24", "10.10.1.1/32", Some((protocol::TCP, 80, 80)));
    assert_eq!(
        encoded(SessionScope::Global, &[deny, OPEN], &[]),
        ["deny global TCP 10.10.1.1/32:80 <- 192.168.2.0/24:0"]
    );
}

#[test]
fn a_deny_of_a_block_from_a_pod_is_one_local_rule() {
    let deny = tuple(Action::Deny, "", "10.0.0.0/8", Some((protocol::TCP, 22, 22)));
    assert_eq!(encoded(LOCAL, &[deny, OPEN], &["10.10.1.1"]), ["deny local:7 TCP 0.0.0.0/0:0 <- 10.0.0.0/8:22"]);
}

#[test]
fn a_deny_of_any_udp_is_two_halves_of_each_family_that_it_may_be_about() {
    let udp = Some((protocol::UDP, 0, u16::MAX));
    let of = |pod: &str| encoded(SessionScope::Global, &[tuple(Action::Deny, "", pod, udp), OPEN], &[]);
    let halves = |pod: &str, low: &str, high: &str| {
        [format!("deny global UDP {pod}:0 <- {low}:0"), format!("deny global UDP {pod}:0 <- {high}:0")]
    };
    assert_eq!(of("10.10.1.1/32"), halves("10.10.1.1/32", "0.0.0.0/1", "128.0.0.0/1"));
    assert_eq!(of("fd00::1/128"), halves("fd00::1/128", "::/1", "8000::/1"), "B14: IPv6 too");
    let any = encoded(LOCAL, &[tuple(Action::Deny, "", "", udp), OPEN], &[]);
    assert_eq!(any.len(), 4, "a side without a family is of both: {any:?}");
}

#[test]
fn of_two_rules_with_one_match_the_first_of_the_table_decides() {
    let tcp = Some((protocol::TCP, 0, u16::MAX));
    let pod = "10.10.1.1/32";
    let table = [tuple(Action::Allow, "", pod, tcp), tuple(Action::Deny, "", pod, None), OPEN];
    assert_eq!(
        encoded(SessionScope::Global, &table, &[]),
        [
            "allow global TCP 10.10.1.1/32:0 <- 0.0.0.0/1:0",
            "allow global TCP 10.10.1.1/32:0 <- 128.0.0.0/1:0",
            "deny global UDP 10.10.1.1/32:0 <- 0.0.0.0/1:0",
            "deny global UDP 10.10.1.1/32:0 <- 128.0.0.0/1:0",
        ]
    );
}

#[test]
fn a_block_of_every_address_is_not_less_specific_than_the_halves_of_any() {
    let web = Some((protocol::TCP, 80, 80));
    let pod = "10.10.1.1/32";
    let table = [tuple(Action::Allow, "0.0.0.0/0", pod, web), tuple(Action::Deny, "", pod, None), OPEN];
    let rules = encoded(SessionScope::Global, &table, &[]);
    assert!(rules.contains(&"allow global TCP 10.10.1.1/32:80 <- 0.0.0.0/1:0".to_owned()), "{rules:?}");
    assert!(rules.iter().all(|rule| !rule.contains("/0:")), "{rules:?}");
}

#[test]
fn a_range_is_a_rule_for_each_port_and_what_has_no_sessions_is_none() {
    let range = tuple(Action::Allow, "", "10.0.0.1/32", Some((protocol::UDP, 80, 82)));
    assert_eq!(encoded(LOCAL, &[range], &[]).len(), 3);
    let from_zero = tuple(Action::Allow, "", "10.0.0.1/32", Some((protocol::UDP, 0, 1)));
    let rules = encoded(LOCAL, &[from_zero], &[]);
    assert_eq!(rules, ["allow local:7 UDP 0.0.0.0/0:0 <- 10.0.0.1/32:1"], "port 0 would be all ports");
    let sctp = tuple(Action::Allow, "", "10.0.0.1/32", Some((protocol::SCTP, 80, 80)));
    assert_eq!(encoded(LOCAL, &[sctp, OPEN], &[]), [""; 0]);
    let half = tuple(Action::Deny, "", "10.0.0.1/32", Some((protocol::UDP, 1, 1 << 15)));
    let half = Rules::of_sorted(&[half]);
    assert!(encode(LOCAL, &half, &[], 32_767).is_none(), "more than the bound");
    assert_eq!(encode(LOCAL, &half, &[], 32_768).unwrap().rules.len(), 32_768);
}

#[test]
fn nearly_all_ports_are_a_rule_for_all_and_one_for_each_other_port() {
    let tcp = |first, last| Some((protocol::TCP, first, last));
    let server = "10.0.0.1/32";
    let table = [
        tuple(Action::Allow, "", server, tcp(1, 24)),
        tuple(Action::Allow, "", server, tcp(26, u16::MAX)),
        tuple(Action::Allow, "", "10.0.0.0/24", tcp(25, 26)),
        tuple(Action::Deny, "", "10.0.0.0/8", None),
    ];
    let of_server = |table: &[SixTuple]| {
        let mut rules = encoded(LOCAL, table, &[]);
        rules.retain(|rule| rule.contains("10.0.0.1/32"));
        rules
    };
    let all = "allow local:7 TCP 0.0.0.0/0:0 <- 10.0.0.1/32:0";
    assert_eq!(of_server(&table), [all], "the block around it allows port 25");
    let deny = "deny local:7 TCP 0.0.0.0/0:0 <- 10.0.0.1/32:25";
    assert_eq!(of_server(&[&table[..2], &table[3..]].concat()), [all, deny], "the block around that denies it");
    assert_eq!(of_server(&table[..2]), [all], "without a rule it is allowed");
}

#[test]
fn a_pod_reaches_itself_where_the_rest_is_denied() {
    let own = tuple(Action::Deny, "", "10.10.1.1/32", None);
    let rules = encoded(LOCAL, &[own.clone(), SixTuple::any(Action::Deny)], &["10.10.1.1"]);
    let about_itself: Vec<_> = rules.iter().filter(|rule| rule.contains("10.10.1.1")).collect();
    assert_eq!(about_itself.len(), 2);
    assert!(about_itself.iter().all(|rule| rule.starts_with("allow")));
    assert_eq!(encoded(LOCAL, &[own, OPEN], &["10.10.1.1"]), [""; 0], "open to the rest, and to itself");
}

/// Returns a network by index: one of a few nested networks, or any.
fn network(number: u32) -> Option<IpNet> {
    let text = [
        "10.0.0.1/32",
        "10.0.0.2/32",
        "10.0.0.0/24",
        "10.0.0.0/8",
        "0.0.0.0/1",
        "0.0.0.0/0",
        "fd00::1/128",
        "::/0",
        "",
    ];
    text[number as usize % text.len()].parse().ok()
}

fn ports(number: u32) -> Option<(u8, u16, u16)> {
    let ranges = [(1, 24), (26, u16::MAX), (80, 80), (443, 443), (0, u16::MAX), (1, 2_000), (1_990, u16::MAX)];
    let (first, last) = ranges[number as usize / 2 % ranges.len()];
    let protocol = if number.is_multiple_of(2) { protocol::TCP } else { protocol::UDP };
    (number < 15).then_some((protocol, first, last))
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(96))]
    #[test]
    fn the_difference_of_two_tables_leads_from_the_rules_of_one_to_those_of_the_other(
        is_global in proptest::prelude::any::<bool>(),
        tables in proptest::collection::vec(
            proptest::collection::btree_set((0u32..9, 0u32..9, 0u32..16, proptest::prelude::any::<bool>()), 0..14), 2..6,
        ),
    ) {
        let (scope, own) = (if is_global { SessionScope::Global } else { LOCAL }, vec!["10.0.0.1".parse().unwrap()]);
        let own: &[IpAddr] = if is_global { &[] } else { &own };
        let mut tables = tables.into_iter().map(|table| {
            let mut tuples: Vec<SixTuple> = table.into_iter().map(|(local, remote, service, allow)| {
                let service = ports(service).map(|(number, first, last)| {
                    Service { protocols: (number, number), ports: PortRange { first, last } }
                });
                let (src, dst) = if is_global { (network(remote), network(local)) } else { (None, network(remote)) };
                let families = [src, dst].map(|net| net.map(|net| net.addr().is_ipv4()));
                let src = if families[0] == families[1] || families.contains(&None) { src } else { None };
                SixTuple { src, dst, service, action: if allow { Action::Allow } else { Action::Deny } }
            }).chain([OPEN]).collect();
            tuples.sort();
            tuples.dedup();
            Rules::of_sorted(&tuples)
        });
        let mut old = tables.next().unwrap();
        let mut known = encode(scope, &old, own, usize::MAX).unwrap();
        for new in tables {
            let fresh = encode(scope, &new, own, usize::MAX).unwrap();
            let Some(Difference { requests, widths }) = difference(scope, (&old, &new), own, &known.wide) else {
                panic!("both end with the allow of the rest");
            };
            for request in &requests {
                match request {
                    SessionRequest::Delete(rule) => {
                        proptest::prop_assert_eq!(known.rules.remove(&rule.matches), Some(rule.action), "{}", rule);
                    }
                    SessionRequest::Add(rule) => {
                        proptest::prop_assert_eq!(known.rules.insert(rule.matches, rule.action), None, "{}", rule);
                    }
                }
            }
            for (pair, is_wide) in widths {
                let is_news = if is_wide { known.wide.insert(pair) } else { known.wide.remove(&pair) };
                proptest::prop_assert!(is_news);
            }
            let differs = |one: &SessionRules, other: &SessionRules| {
                one.iter().filter(|(matches, action)| other.get(matches) != Some(action)).map(|(m, a)| (*m, *a)).take(3).collect::<Vec<_>>()
            };
            proptest::prop_assert_eq!(differs(&known.rules, &fresh.rules), vec![]);
            proptest::prop_assert_eq!(differs(&fresh.rules, &known.rules), vec![]);
            proptest::prop_assert_eq!(&known.wide, &fresh.wide);
            old = new;
        }
    }
}
