//! Families, protocols, ports and ICMP.

use super::*;

fn with(rule: &str) -> World {
    world(&policy("x/p", &format!("{{types: [Ingress], ingress: [{{action: Allow, {rule}}}]}}")))
}

/// Whether a rule lets packets of each family to pod `x/a` pass.
fn families(rule: &str) -> [bool; 2] {
    let world = with(rule);
    [world.allows(B, A, 80), world.allows("fd00::2", "fd00::1", 80)]
}

#[test]
fn a_rule_applies_to_the_families_that_all_its_blocks_leave() {
    assert_eq!(families("ipVersion: 4"), [true, false]);
    assert_eq!(families("ipVersion: 6"), [false, true]);
    assert_eq!(families("ipVersion: 6, source: {selector: 'all()'}"), [false, true]);
    assert_eq!(families("source: {nets: [10.0.0.0/8, 'fd00::/8']}"), [true, true]);
    assert_eq!(families("source: {nets: [10.0.0.0/8]}"), [true, false]);
    assert_eq!(families("ipVersion: 6, source: {nets: [10.0.0.0/8]}"), [false, false]);
    // Blocks that exclude also remove the rule for the other family.
    assert_eq!(families("source: {notNets: [192.0.2.0/24]}"), [true, false]);
    assert_eq!(families("source: {notNets: [192.0.2.0/24, '2001:db8::/32']}"), [true, true]);
    assert_eq!(families("source: {notNets: [0.0.0.0/0]}"), [false, false]);
    assert_eq!(families("source: {notNets: [0.0.0.0/0, '2001:db8::/32']}"), [false, true]);
    assert_eq!(families("source: {selector: 'all()', notNets: ['::/0', 192.0.2.0/24]}"), [true, false]);
    assert_eq!(families("source: {nets: [10.0.0.0/8, 'fd00::/8'], notNets: [10.0.0.0/29]}"), [false, false]);
}

#[test]
fn protocols_have_names_and_numbers_and_may_be_excluded() {
    let passes = |rule: &str| {
        let world = with(rule);
        [protocol::TCP, protocol::UDP, protocol::SCTP, protocol::ICMP, 47].map(|of| world.passes(B, A, of, 0))
    };
    assert_eq!(passes("protocol: TCP"), [true, false, false, false, false]);
    assert_eq!(passes("protocol: udp"), [false, true, false, false, false]);
    assert_eq!(passes("protocol: 132"), [false, false, true, false, false]);
    assert_eq!(passes("protocol: ICMP"), [false, false, false, true, false]);
    assert_eq!(passes("protocol: 47"), [false, false, false, false, true]);
    assert_eq!(passes("notProtocol: TCP"), [false, true, true, true, true]);
    assert_eq!(passes("protocol: TCP, notProtocol: TCP"), [false; 5]);
    assert_eq!(passes("protocol: TCP, notProtocol: UDP"), [true, false, false, false, false]);
}

#[test]
fn ports_are_numbers_ranges_and_names_without_those_excluded() {
    let open = |destination: &str| {
        let world = with(&format!("protocol: TCP, destination: {destination}"));
        [79, 80, 81, 8080, 65535].into_iter().filter(|&port| world.allows(B, A, port)).collect::<Vec<_>>()
    };
    assert_eq!(open("{ports: [80]}"), [80]);
    assert_eq!(open("{ports: ['80', '8000:9000']}"), [80, 8080]);
    assert_eq!(open("{ports: [http]}"), [80], "the port of the pod itself");
    assert_eq!(open("{ports: [http, 81]}"), [80, 81]);
    assert_eq!(open("{notPorts: [80]}"), [79, 81, 8080, 65535]);
    assert_eq!(open("{ports: ['79:81'], notPorts: [80]}"), [79, 81]);
    assert_eq!(open("{ports: [80], notPorts: ['1:100']}"), [0; 0]);
    assert_eq!(open("{notPorts: ['1:65535']}"), [0; 0]);
    assert_eq!(open("{notPorts: ['80:81', '8080:65534']}"), [79, 65535]);
    assert!(!with("protocol: TCP, destination: {notPorts: [80]}").passes(B, A, protocol::UDP, 81));
    let any = with("destination: {ports: [http]}");
    assert!(any.allows(B, A, 80) && !any.passes(B, A, protocol::UDP, 80), "a name without a protocol");
}

#[test]
fn a_name_of_a_port_is_another_number_at_each_destination_and_none_in_a_set() {
    let set = "{apiVersion: projectcalico.org/v3, kind: NetworkSet, metadata: {name: s, namespace: x}, spec: {nets: [10.0.0.0/8]}}\n---\n";
    let spec = |ports: &str| {
        format!(
            "{{types: [Egress], egress: [{{action: Allow, protocol: TCP, destination: {{selector: 'all()', ports: [{ports}]}}}}]}}"
        )
    };
    let world = world(&policy("x/p", &spec("http")));
    assert!(world.allows(A, B, 8080) && !world.allows(A, B, 80) && !world.allows(A, C, 8080));
    // The set covers all pods, but gives them no names of ports.
    let with_set = super::world(&(set.to_owned() + &policy("x/p", &spec("http, 81"))));
    assert!(with_set.allows(A, B, 8080) && with_set.allows(A, B, 81) && with_set.allows(A, C, 81));
    assert!(!with_set.allows(A, B, 80));
    let other = with_set.policies.iter().flat_map(|policy| &policy.egress).map(|rule| rule.at).collect::<Vec<_>>();
    assert_eq!(other, [Some(0), Some(0)]);
}

#[test]
fn icmp_has_types_and_codes() {
    let ping = 8 << 8;
    let passes = |rule: &str| {
        let world = with(rule);
        [ping, ping + 1, 3 << 8].map(|port| world.passes(B, A, protocol::ICMP, port))
    };
    assert_eq!(passes("protocol: ICMP, icmp: {type: 8}"), [true, true, false]);
    assert_eq!(passes("protocol: ICMP, icmp: {type: 8, code: 0}"), [true, false, false]);
    assert_eq!(passes("protocol: ICMP, notICMP: {type: 8, code: 0}"), [false, true, true]);
    assert_eq!(passes("protocol: ICMP, icmp: {type: 8}, notICMP: {type: 8, code: 1}"), [true, false, false]);
    assert!(with("protocol: ICMPv6, icmp: {type: 128}").passes("fd00::2", "fd00::1", protocol::ICMPV6, 128 << 8));
}

#[test]
fn http_rules_are_the_third_answer() {
    let world = with("protocol: TCP, http: {methods: [GET], paths: [{exact: /a}]}");
    assert_eq!(world.policies[0].ingress[0].then.as_deref(), Some("HTTP rules"));
    assert!(world.allows(B, A, 80));
}
