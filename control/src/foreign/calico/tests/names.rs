//! Tests of rules about domain names.

use std::sync::Arc;

use super::*;
use crate::object::{PolicyRule, Region};

/// Two sets, of which one has blocks too.
const SETS: &str = "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: api, labels: {to: api}}, spec: {nets: \
    [192.0.2.0/24], allowedEgressDomains: [API.example.com, '*.db.io']}}\n---\n{apiVersion: projectcalico.org/v3, kind: NetworkSet, \
    metadata: {name: own, namespace: blue, labels: {to: own}}, spec: {allowedEgressDomains: [own.io]}}\n---\n";

/// The traffic of the rules of a policy in the namespace `blue`.
fn traffic(direction: &str, rule: &str) -> Vec<PolicyRule> {
    let spec = format!("{{types: [Ingress, Egress], {direction}: [{rule}]}}");
    let world = world(&(SETS.to_owned() + &policy("blue/p", &spec)));
    let [policy] = &*world.policies else { panic!("{:?}", world.policies) };
    policy.ingress.iter().chain(&policy.egress).map(|rule| rule.traffic.clone()).collect()
}

fn names(names: &[&str]) -> Peer {
    Peer::Names(names.iter().map(|&name| Arc::from(name)).collect())
}

fn block(cidr: &str) -> Peer {
    Peer::Block(IpBlock { cidr: cidr.parse().unwrap(), except: Vec::new() })
}

#[test]
fn an_egress_rule_that_allows_matches_names() {
    let rules = traffic("egress", "{action: Allow, destination: {domains: [WWW.a.io, '*.b.io']}}");
    assert_eq!(rules, [PolicyRule { peers: Some(vec![names(&["www.a.io", "*.b.io"])]), ports: None }]);
    let one_family = traffic("egress", "{action: Allow, ipVersion: 4, destination: {domains: [a.io]}}");
    let region = Region { all: vec![vec![block("0.0.0.0/0")], vec![names(&["a.io"])]], none: Vec::new() };
    assert_eq!(one_family[0].peers, Some(vec![Peer::Region(Arc::new(region))]));
}

#[test]
fn a_selector_selects_the_names_of_sets_in_egress_rules_that_allow_only() {
    let global = "selector: to == 'api', namespaceSelector: global()";
    let api = names(&["api.example.com", "*.db.io"]);
    let rules = traffic("egress", &format!("{{action: Allow, destination: {{{global}}}}}"));
    let peers = rules[0].peers.as_ref().unwrap();
    assert!(peers.contains(&block("192.0.2.0/24")) && peers.contains(&api), "{peers:?}");
    let narrowed = traffic("egress", &format!("{{action: Allow, destination: {{notNets: [192.0.2.0/25], {global}}}}}"));
    let [Peer::Region(_), Peer::Region(region)] = &**narrowed[0].peers.as_ref().unwrap() else {
        panic!("{narrowed:?}")
    };
    assert_eq!(region.names().unwrap().0, ["api.example.com".into(), "*.db.io".into()]);
    assert_eq!(region.all.len(), 2);
    let own = traffic("egress", "{action: Allow, destination: {selector: to == 'own'}}");
    assert!(own[0].peers.as_ref().unwrap().contains(&names(&["own.io"])), "{own:?}");
    for (direction, rule) in [
        ("egress", format!("{{action: Deny, destination: {{{global}}}}}")),
        ("egress", format!("{{action: Pass, destination: {{{global}}}}}")),
        ("ingress", format!("{{action: Allow, source: {{{global}}}}}")),
    ] {
        let rules = traffic(direction, &rule);
        assert!(!rules[0].has_names() && rules[0].peers.as_ref().unwrap().contains(&block("192.0.2.0/24")), "{rule}");
    }
}

#[test]
fn names_of_ports_are_none_of_domain_names() {
    let ports = "action: Allow, protocol: TCP, destination: {ports: [http, 443], ";
    for to in ["domains: [a.io]", "selector: to == 'own'"] {
        let rules = traffic("egress", &format!("{{{ports}{to}}}}}"));
        let [numbered, named] = &*rules else { panic!("{rules:?}") };
        assert!(numbered.has_names() && !named.has_names(), "{rules:?}");
        assert!(numbered.ports.iter().flatten().all(|port| !matches!(port, PolicyPort::Named { .. })));
    }
}
