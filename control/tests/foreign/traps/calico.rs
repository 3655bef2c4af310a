//! Traps of Calico.

use super::{check, refused};

#[test]
fn a_log_rule_decides_nothing() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: first}
spec:
  order: 1
  selector: app == 'db'
  ingress:
  - action: Log
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: second}
spec:
  order: 2
  selector: app == 'db'
  ingress:
  - action: Log
    protocol: TCP
  - action: Allow
    protocol: TCP
    destination: {ports: [80]}
",
        "allow a/web -> a/db TCP 80
         deny a/web -> a/db TCP 81
         deny 8.8.8.8 -> a/db UDP 80
         allow a/db -> a/web TCP 81",
    );
}

#[test]
fn a_log_rule_alone_isolates() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: only}
spec:
  selector: app == 'db'
  ingress:
  - action: Log
",
        "deny a/web -> a/db TCP 80
         allow a/db -> a/web TCP 80
         allow b/web -> a/web TCP 80",
    );
}

#[test]
fn a_pass_goes_over_a_tier_without_policies_to_the_next_one() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: first}
spec: {order: 1}
---
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: empty}
spec: {order: 2}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: pass}
spec:
  tier: first
  selector: app == 'db'
  types: [Ingress]
  ingress:
  - {action: Pass, protocol: TCP}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: allow}
spec:
  selector: app == 'db'
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: TCP, destination: {ports: [80]}}
",
        "allow a/web -> a/db TCP 80
         deny a/web -> a/db TCP 81
         deny a/web -> a/db UDP 80
         allow a/web -> b/db TCP 81
         deny a/web -> b/db UDP 80",
    );
}

#[test]
fn the_default_action_of_a_tier_is_for_pods_that_it_selects_in_the_direction() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: open}
spec: {order: 1, defaultAction: Pass}
---
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: closed}
spec: {order: 2}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: one}
spec:
  tier: open
  types: [Ingress]
  ingress:
  - {action: Deny, protocol: UDP}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: two}
spec:
  tier: closed
  selector: app == 'db'
  types: [Egress]
  egress:
  - {action: Allow, protocol: TCP}
",
        "deny a/db -> b/web UDP 53
         allow a/db -> b/web TCP 53
         deny a/db -> 8.8.8.8 UDP 53
         deny a/db -> 8.8.8.8 ICMP 8
         allow b/web -> a/db ICMP 8
         deny b/web -> a/db UDP 53",
    );
}

#[test]
fn staged_policies_decide_nothing_and_isolate_nothing() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: StagedNetworkPolicy
metadata: {namespace: a, name: staged}
spec:
  order: 1
  selector: all()
  types: [Ingress, Egress]
  ingress:
  - {action: Deny}
---
apiVersion: projectcalico.org/v3
kind: StagedGlobalNetworkPolicy
metadata: {name: staged}
spec:
  types: [Ingress, Egress]
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: enforced}
spec:
  order: 2
  selector: app == 'db'
  ingress:
  - {action: Allow, protocol: TCP}
",
        "allow b/web -> a/db TCP 80
         deny b/web -> a/db UDP 80
         allow b/web -> a/web UDP 80
         allow a/db -> b/web UDP 80",
    );
}

#[test]
fn policies_of_a_tier_without_an_object_come_after_all_tiers_and_decide() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: last}
spec: {}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: ghostly}
spec:
  tier: ghost
  order: 1
  types: [Ingress]
  ingress:
  - {action: Deny, protocol: TCP, destination: {ports: [80]}}
  - {action: Allow, protocol: TCP}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: late}
spec:
  tier: last
  selector: app == 'db'
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: TCP, destination: {ports: [80]}}
  - {action: Pass}
",
        "allow a/web -> a/db TCP 80
         allow a/web -> a/db TCP 81
         deny a/web -> a/db UDP 81
         deny a/web -> b/web TCP 80
         allow a/web -> b/web TCP 81
         deny a/web -> b/web UDP 81",
    );
}

#[test]
fn between_equal_orders_names_decide_then_namespaces_then_kinds() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: x}
spec:
  order: 5
  types: [Ingress]
  ingress:
  - {action: Deny}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: b, name: x}
spec:
  order: 5
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: TCP}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: x}
spec:
  order: 5
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: TCP, destination: {ports: [80]}}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: w}
spec:
  order: 5
  types: [Ingress]
  ingress:
  - {action: Deny, protocol: TCP, destination: {ports: [22]}}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: z}
spec:
  order: 5
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: UDP}
",
        "allow b/web -> a/web TCP 80
         deny b/web -> a/web TCP 81
         deny b/web -> a/web UDP 53
         deny a/web -> b/web TCP 22
         allow a/web -> b/web TCP 81
         allow a/web -> b/web UDP 53
         deny a/web -> b/web ICMP 8",
    );
}

#[test]
fn a_policy_without_an_order_comes_last() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: aaa}
spec:
  ingress:
  - {action: Deny}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: zzz}
spec:
  order: 1e9
  ingress:
  - {action: Allow, protocol: TCP}
",
        "allow b/web -> a/web TCP 80
         deny b/web -> a/web UDP 80",
    );
}

/// A NetworkPolicy of Kubernetes that allows TCP from the namespace, at Calico's order 1000.
const OF_KUBERNETES: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: a, name: middle}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {}}]
    ports: [{protocol: TCP, port: 80}, {protocol: TCP, port: 81}]
---
";

#[test]
fn policies_of_kubernetes_stand_at_order_1000_of_the_default_tier() {
    let policies = "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: before}
spec:
  order: 999
  selector: app == 'db'
  types: [Ingress]
  ingress:
  - {action: Deny, protocol: TCP, destination: {ports: [80]}}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: after}
spec:
  order: 1001
  selector: app == 'db'
  types: [Ingress]
  ingress:
  - {action: Deny, protocol: TCP, destination: {ports: [81, 82]}}
  - {action: Allow}
";
    check(
        &format!("{OF_KUBERNETES}{policies}"),
        "deny a/web -> a/db TCP 80
         allow a/web -> a/db TCP 81
         deny a/web -> a/db TCP 82
         deny b/web -> a/db TCP 81
         allow b/web -> a/db UDP 53",
    );
}

#[test]
fn names_decide_between_kubernetes_and_calico_at_order_1000() {
    let policies = "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: lll}
spec:
  order: 1000
  selector: app == 'db'
  types: [Ingress]
  ingress:
  - {action: Deny, protocol: TCP, destination: {ports: [80]}}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: nnn}
spec:
  order: 1000
  selector: app == 'db'
  types: [Ingress]
  ingress:
  - {action: Deny, protocol: TCP}
";
    check(
        &format!("{OF_KUBERNETES}{policies}"),
        "deny a/web -> a/db TCP 80
         allow a/web -> a/db TCP 81
         deny b/web -> a/db TCP 81",
    );
}

#[test]
fn missing_types_follow_the_rules_in_the_api_and_are_both_in_the_stored_form() {
    let of = |group: &str, sections: &str| {
        format!(
            "
apiVersion: {group}
kind: NetworkPolicy
metadata: {{namespace: a, name: x}}
spec:
  selector: app == 'db'
{sections}"
        )
    };
    let (ingress, egress) = ("  ingress: [{action: Allow}]\n", "  egress: [{action: Allow}]\n");
    let (api, stored) = ("projectcalico.org/v3", "crd.projectcalico.org/v1");
    check(&of(api, ingress), "allow a/db -> b/web TCP 80\n allow b/web -> a/db TCP 80");
    check(&of(api, egress), "allow a/db -> b/web TCP 80\n allow b/web -> a/db TCP 80");
    check(&of(api, ""), "allow a/db -> b/web TCP 80\n deny b/web -> a/db TCP 80");
    check(&of(api, &format!("{ingress}{egress}")), "allow a/db -> b/web TCP 80\n allow b/web -> a/db TCP 80");
    check(&of(stored, ingress), "deny a/db -> b/web TCP 80\n allow b/web -> a/db TCP 80");
    check(&of(stored, egress), "allow a/db -> b/web TCP 80\n deny b/web -> a/db TCP 80");
    check(&of(stored, ""), "deny a/db -> b/web TCP 80\n deny b/web -> a/db TCP 80");
}

#[test]
fn a_not_selector_alone_means_endpoints_of_the_namespace_in_a_network_policy() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: x}
spec:
  types: [Ingress, Egress]
  ingress:
  - {action: Allow, source: {notSelector: app == 'db'}}
  egress:
  - {action: Allow}
",
        "allow a/web -> a/db TCP 80
         deny a/db -> a/web TCP 80
         deny b/web -> a/db TCP 80
         deny 8.8.8.8 -> a/db TCP 80
         deny node-2 -> a/db TCP 80",
    );
}

#[test]
fn a_not_selector_alone_means_everything_else_in_a_global_network_policy() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: x}
spec:
  namespaceSelector: projectcalico.org/name == 'a'
  types: [Ingress]
  ingress:
  - {action: Allow, source: {notSelector: app == 'db'}}
",
        "allow a/web -> a/db TCP 80
         deny a/db -> a/web TCP 80
         deny b/db -> a/web TCP 80
         allow b/web -> a/db TCP 80
         allow 8.8.8.8 -> a/db TCP 80
         allow node-2 -> a/db TCP 80
         allow b/db -> b/web TCP 80",
    );
}

/// Network sets with one label: of namespaces a and b, and of the cluster.
const SETS: &str = "
apiVersion: projectcalico.org/v3
kind: NetworkSet
metadata: {namespace: a, name: s, labels: {kind: partner}}
spec: {nets: [203.0.113.1/32]}
---
apiVersion: projectcalico.org/v3
kind: NetworkSet
metadata: {namespace: b, name: s, labels: {kind: partner}}
spec: {nets: [203.0.113.2/32]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkSet
metadata: {name: s, labels: {kind: partner, app: web}}
spec: {nets: [203.0.113.3, '2001:db8::/32']}
---
";

#[test]
fn a_network_set_is_an_endpoint_of_its_namespace() {
    let policy = |entity: &str| {
        format!(
            "{SETS}
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {{namespace: a, name: x}}
spec:
  types: [Egress]
  egress:
  - {{action: Allow, destination: {entity}}}
"
        )
    };
    let verdicts = |own: &str, other: &str, global: &str, pod: &str| {
        format!(
            "{own} a/db -> 203.0.113.1 TCP 80
             {other} a/db -> 203.0.113.2 TCP 80
             {global} a/db -> 203.0.113.3 TCP 80
             {global} a/db/6 -> 2001:db8::1 TCP 80
             {pod} a/db -> a/web TCP 80
             deny a/db -> 203.0.113.4 TCP 80"
        )
    };
    check(&policy("{selector: kind == 'partner'}"), &verdicts("allow", "deny", "deny", "deny"));
    check(
        &policy("{selector: kind == 'partner', namespaceSelector: all()}"),
        &verdicts("allow", "allow", "deny", "deny"),
    );
    check(
        &policy("{selector: kind == 'partner', namespaceSelector: team == 'blue'}"),
        &verdicts("deny", "allow", "deny", "deny"),
    );
    check(
        &policy("{selector: kind == 'partner', namespaceSelector: global()}"),
        &verdicts("deny", "deny", "allow", "deny"),
    );
    // No pod is in `global()`, whatever its labels.
    check(&policy("{selector: app == 'web', namespaceSelector: global()}"), &verdicts("deny", "deny", "allow", "deny"));
    check(&policy("{namespaceSelector: all()}"), &verdicts("allow", "allow", "deny", "allow"));
}

#[test]
fn a_selector_of_a_global_policy_means_network_sets_of_all_namespaces() {
    check(
        &format!(
            "{SETS}
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {{name: x}}
spec:
  selector: app == 'db'
  types: [Egress]
  egress:
  - {{action: Allow, destination: {{selector: kind == 'partner'}}}}
"
        ),
        "allow a/db -> 203.0.113.1 TCP 80
         allow b/db -> 203.0.113.2 TCP 80
         allow b/db -> 203.0.113.3 TCP 80
         deny b/db -> b/web TCP 80",
    );
}

#[test]
fn nets_count_for_their_family_and_a_rule_without_nets_of_it_is_not_there() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: x}
spec:
  selector: app == 'db'
  types: [Ingress]
  ingress:
  - {action: Deny, source: {nets: [10.244.2.3/32]}}
  - {action: Allow, source: {nets: [10.244.0.0/16, 'fd00:2::/64']}}
  - {action: Deny, source: {notNets: [10.0.0.0/8]}}
  - {action: Allow, ipVersion: 6, source: {notNets: ['fd00::/8']}}
",
        "deny b/web -> a/db TCP 80
         allow b/db -> a/db TCP 80
         allow b/web/6 -> a/db/6 TCP 80
         deny a/web/6 -> a/db/6 TCP 80
         deny 8.8.8.8 -> a/db TCP 80
         allow 2001:db8::1 -> a/db/6 TCP 80",
    );
}

#[test]
fn a_rule_whose_not_nets_are_everything_is_not_there() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: x}
spec:
  selector: app == 'db'
  types: [Ingress]
  ingress:
  - {action: Deny, source: {notNets: [0.0.0.0/0]}}
  - {action: Allow}
",
        "allow b/web -> a/db TCP 80
         allow b/web/6 -> a/db/6 TCP 80",
    );
}

#[test]
fn service_accounts_are_known_by_name_and_by_the_labels_of_their_object() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: x}
spec:
  serviceAccountSelector: '!has(role)'
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: TCP, destination: {ports: [80]}, source: {serviceAccounts: {names: [robot, other]}}}
  - action: Allow
    protocol: TCP
    destination: {ports: [81]}
    source: {serviceAccounts: {names: [robot]}, namespaceSelector: all()}
  - action: Allow
    protocol: TCP
    destination: {ports: [82]}
    source: {serviceAccounts: {selector: role == 'writer'}, namespaceSelector: all()}
  - action: Allow
    protocol: TCP
    destination: {ports: [83]}
    source: {serviceAccounts: {names: [robot], selector: role == 'writer'}}
",
        "allow a/web -> a/db TCP 80
         deny b/web -> a/db TCP 80
         allow a/web -> a/db TCP 81
         allow b/web -> a/db TCP 81
         deny b/db -> a/db TCP 81
         deny a/web -> a/db TCP 82
         allow b/web -> a/db TCP 82
         deny a/web -> a/db TCP 83
         deny b/web -> a/db TCP 83
         allow b/db -> a/web TCP 99",
    );
}

#[test]
fn service_accounts_without_an_object_have_a_name() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: x}
spec:
  selector: projectcalico.org/serviceaccount ends with 'lost'
  types: [Ingress]
  ingress:
  - {action: Deny}
",
        "deny b/web -> c/lost TCP 80
         allow b/web -> a/db TCP 80",
    );
}

#[test]
fn a_staged_policy_of_kubernetes_decides_nothing() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: StagedKubernetesNetworkPolicy
metadata: {namespace: a, name: x}
spec:
  podSelector: {}
  policyTypes: [Ingress, Egress]
",
        "allow b/web -> a/db TCP 80
         allow a/db -> b/web TCP 80",
    );
}

#[test]
fn a_port_name_is_the_number_that_each_pod_gives_it() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: a, name: out}
spec:
  selector: app == 'web'
  types: [Egress]
  egress:
  - {action: Allow, protocol: TCP, destination: {namespaceSelector: all(), ports: [http, 53]}}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {namespace: b, name: in}
spec:
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: TCP, destination: {ports: [http]}}
",
        "allow a/web -> a/db TCP 8080
         allow a/web -> a/db TCP 53
         deny a/web -> a/db TCP 80
         allow a/web -> b/web TCP 80
         deny a/web -> b/web TCP 8080
         deny a/web -> b/web TCP 53
         allow a/db -> b/db TCP 8080
         deny a/db -> b/db TCP 80
         deny a/web -> 8.8.8.8 TCP 80
         deny a/web -> 8.8.8.8 TCP 53",
    );
}

#[test]
fn services_are_addresses_with_ports_in_egress_and_addresses_alone_in_ingress() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: x}
spec:
  namespaceSelector: projectcalico.org/name == 'a'
  types: [Ingress, Egress]
  ingress:
  - {action: Allow, source: {services: {namespace: b, name: outer}}}
  egress:
  - {action: Allow, destination: {services: {namespace: b, name: outer}}}
",
        "allow a/web -> 203.0.113.7 TCP 443
         deny a/web -> 203.0.113.7 TCP 80
         deny a/web -> 203.0.113.7 UDP 443
         allow a/web -> b/db TCP 443
         deny a/web -> b/web TCP 443
         allow 203.0.113.7 -> a/web UDP 99
         allow b/db -> a/web TCP 99
         deny b/web -> a/web TCP 443",
    );
}

#[test]
fn the_own_node_reaches_its_pods_and_pods_reach_it_by_policy() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: first}
spec: {order: 1}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: x}
spec:
  tier: first
  types: [Ingress, Egress]
  egress:
  - {action: Allow, protocol: TCP, destination: {nets: [192.168.0.0/24], ports: [443]}}
",
        "allow node-1 -> a/web TCP 80
         deny node-2 -> a/web TCP 80
         deny a/web -> node-1 TCP 80
         allow a/web -> node-1 TCP 443
         allow a/web -> node-2 TCP 443
         deny a/web -> node-2 TCP 80",
    );
}

#[test]
fn protocols_and_icmp_types() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: x}
spec:
  selector: app == 'db'
  types: [Ingress]
  ingress:
  - {action: Allow, ipVersion: 4, protocol: ICMP, icmp: {type: 8, code: 0}}
  - {action: Allow, ipVersion: 6, protocol: ICMPv6, notICMP: {type: 128}}
  - {action: Deny, ipVersion: 4, protocol: ICMP}
  - {action: Allow, protocol: 47}
  - {action: Allow, notProtocol: TCP, ipVersion: 4}
  - {action: Allow, protocol: TCP, destination: {ports: ['80:90', 443], notPorts: [85]}}
",
        "allow a/web -> a/db ICMP 8
         deny a/web -> a/db ICMP 8/1
         deny a/web -> a/db ICMP 0
         deny a/web/6 -> a/db/6 ICMPv6 128
         allow a/web/6 -> a/db/6 ICMPv6 3
         allow a/web -> a/db GRE 0
         allow a/web/6 -> a/db/6 GRE 0
         allow a/web -> a/db UDP 99
         deny a/web/6 -> a/db/6 UDP 99
         allow a/web -> a/db TCP 84
         deny a/web -> a/db TCP 85
         deny a/web -> a/db TCP 91
         allow a/web -> a/db TCP 443",
    );
}

#[test]
fn a_not_selector_beside_a_selector_is_about_the_same_endpoint() {
    check(
        "
apiVersion: projectcalico.org/v3
kind: GlobalNetworkSet
metadata: {name: s, labels: {kind: partner}}
spec: {nets: [10.244.0.0/16]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: x}
spec:
  selector: app == 'db'
  types: [Ingress]
  ingress:
  - {action: Deny, protocol: TCP, source: {selector: app == 'web', notSelector: has(kind)}}
  - {action: Allow, protocol: TCP}
  - {action: Allow, protocol: UDP, source: {notSelector: has(kind)}}
",
        "deny a/web -> a/db TCP 80
         allow b/db -> a/db TCP 80
         deny a/web -> a/db UDP 80
         allow 8.8.8.8 -> a/db UDP 80",
    );
}

#[test]
fn a_rule_for_forwarded_traffic_is_one_for_pods_too() {
    let policy = |field: &str| {
        format!(
            "
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {{name: x}}
spec:
  {field}: true
  selector: app == 'db'
  types: [Ingress]
  ingress: [{{action: Deny}}]
"
        )
    };
    check(&policy("applyOnForward"), "deny a/web -> a/db TCP 80");
    // These two are about host endpoints only.
    check(&policy("preDNAT"), "allow a/web -> a/db TCP 80");
    check(&policy("doNotTrack"), "allow a/web -> a/db TCP 80");
}

#[test]
fn domain_names_open_the_addresses_that_the_pod_has_resolved() {
    let objects = |rules: &str| {
        format!(
            "
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {{name: first}}
spec: {{order: 1}}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkSet
metadata: {{name: set, labels: {{to: known}}}}
spec: {{nets: [198.51.100.0/24], allowedEgressDomains: ['*.example.org', example.net]}}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {{namespace: a, name: first.names}}
spec:
  tier: first
  selector: app == 'db'
  types: [Egress]
  egress:
{rules}
"
        )
    };
    check(
        &objects(
            "  - {action: Deny, destination: {nets: [203.0.113.9/32]}}
  - {action: Allow, protocol: TCP, destination: {domains: [Example.com], ports: [443]}}",
        ),
        "allow a/db -> 203.0.113.1=example.com TCP 443
         deny a/db -> 203.0.113.1=example.com TCP 80
         deny a/db -> 203.0.113.1=www.example.com TCP 443
         deny a/db -> 203.0.113.1 TCP 443
         deny a/db -> 203.0.113.9=example.com TCP 443",
    );
    let set = "destination: {selector: to == 'known', namespaceSelector: global()}";
    check(
        &objects(&format!("  - {{action: Allow, {set}}}")),
        "allow a/db -> 203.0.113.1=a.b.example.org TCP 443
         allow a/db -> 203.0.113.1=example.net UDP 53
         allow a/db -> 198.51.100.1 TCP 443
         deny a/db -> 203.0.113.1=example.org TCP 443
         deny a/db -> 203.0.113.1 TCP 443",
    );
    // The names of a set have no effect where a rule denies.
    check(
        &objects(&format!("  - {{action: Deny, {set}}}\n  - {{action: Allow}}")),
        "allow a/db -> 203.0.113.1=example.net TCP 443
         deny a/db -> 198.51.100.1 TCP 443",
    );
    refused(
        &objects("  - {action: Deny, destination: {domains: [example.com]}}"),
        &["spec.egress[0].destination.domains", "cannot be used here"],
    );
}

#[test]
fn what_cannot_be_read_is_refused_with_its_field() {
    let namespaced = |spec: &str| {
        format!(
            "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {{namespace: a, name: x}}\nspec: {spec}\n"
        )
    };
    refused(&namespaced("{selektor: all()}"), &["selektor"]);
    refused(&namespaced("{selector: \"app == 'x\"}"), &["spec.selector"]);
    refused(&namespaced("{ingress: [{action: Allow, source: {ports: [80]}}]}"), &["spec.ingress[0].source.ports"]);
    refused(&namespaced("{preDNAT: true}"), &["preDNAT"]);
}
