//! Traps of Cilium.

use super::{check, refused};

fn policy(spec: &str) -> String {
    let indented: String = spec.lines().map(|line| format!("  {line}\n")).collect();
    format!(
        "---\napiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {{namespace: a, name: x}}\nspec:\n{indented}"
    )
}

fn clusterwide(spec: &str) -> String {
    let policy = policy(spec).replace("CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy");
    policy.replace("namespace: a, name: x", "name: wide")
}

#[test]
fn an_entry_without_fields_isolates_and_allows_nobody() {
    let spec = "endpointSelector: {matchLabels: {app: db}}\ningress: [{}]";
    let denied = "deny a/web -> a/db TCP 80
                  deny 8.8.8.8 -> a/db TCP 80
                  deny node-2 -> a/db TCP 80
                  allow node-1 -> a/db TCP 80
                  allow a/db -> a/web TCP 80
                  allow b/web -> a/web TCP 80";
    check(&policy(spec), denied);
    check(&clusterwide(spec), &format!("{denied}\n deny a/web -> b/db TCP 80"));
}

#[test]
fn an_entry_with_ports_and_no_peer_allows_everybody_there() {
    check(
        &policy(
            "endpointSelector: {matchLabels: {app: db}}
ingress:
- toPorts:
  - ports: [{port: '80', protocol: TCP}]",
        ),
        "allow a/web -> a/db TCP 80
         allow 8.8.8.8 -> a/db TCP 80
         allow node-2 -> a/db TCP 80
         deny a/web -> a/db TCP 81
         deny a/web -> a/db ICMP 8",
    );
}

#[test]
fn an_explicitly_empty_list_of_peers_is_nobody_also_with_ports() {
    check(
        &policy(
            "endpointSelector: {matchLabels: {app: db}}
ingress:
- fromEndpoints: []
  toPorts:
  - ports: [{port: '80', protocol: TCP}]",
        ),
        "deny a/web -> a/db TCP 80
         deny 8.8.8.8 -> a/db TCP 80
         deny node-2 -> a/db TCP 80",
    );
}

#[test]
fn sections_without_entries_have_no_effect() {
    check(
        &policy("endpointSelector: {}\ningress: []\negressDeny: []"),
        "allow b/web -> a/db TCP 80
         allow a/db -> 8.8.8.8 TCP 80",
    );
}

#[test]
fn empty_selectors_of_peers_mean_the_namespace_or_all_pods() {
    let spec = "endpointSelector: {matchLabels: {app: db}}\ningress: [{fromEndpoints: [{}]}]";
    check(
        &policy(spec),
        "allow a/web -> a/db TCP 80
         deny b/web -> a/db TCP 80
         deny 8.8.8.8 -> a/db TCP 80
         allow b/web -> b/db TCP 80",
    );
    check(
        &clusterwide(spec),
        "allow a/web -> a/db TCP 80
         allow b/web -> a/db TCP 80
         deny 8.8.8.8 -> a/db TCP 80
         deny node-2 -> a/db TCP 80
         allow a/web -> b/db TCP 80
         deny node-1 -> b/db TCP 80",
    );
}

#[test]
fn the_subject_stays_in_the_policys_namespace() {
    check(
        &policy(
            "endpointSelector: {matchLabels: {app: db}}
ingress: [{}]
egress: [{toEntities: [all]}]",
        ),
        "deny a/web -> a/db TCP 80
         allow a/web -> b/db TCP 80
         allow a/db -> b/db TCP 80",
    );
}

#[test]
fn a_deny_with_ports_wins_over_a_wider_allow() {
    let allow = policy(
        "endpointSelector: {matchLabels: {app: db}}
ingress: [{fromEntities: [all]}]",
    );
    let deny = clusterwide(
        "endpointSelector: {matchLabels: {app: db}}
ingressDeny:
- fromEndpoints: [{matchLabels: {app: web}}]
  toPorts:
  - ports: [{port: '80', endPort: 90, protocol: TCP}]",
    );
    check(
        &format!("{allow}{deny}"),
        "deny a/web -> a/db TCP 80
         deny b/web -> a/db TCP 90
         allow a/web -> a/db TCP 91
         allow a/web -> a/db UDP 80
         allow b/db -> a/db TCP 80
         allow 8.8.8.8 -> a/db TCP 80
         deny a/db -> b/db TCP 80",
    );
}

#[test]
fn a_cidr_never_means_pods_or_nodes() {
    check(
        &policy(
            "endpointSelector: {matchLabels: {app: db}}
ingress: [{fromCIDR: [10.244.0.0/16, 192.168.0.0/24, 203.0.113.0/24]}]
egress:
- toCIDRSet: [{cidr: 0.0.0.0/0, except: [203.0.113.0/25]}]",
        ),
        "deny a/web -> a/db TCP 80
         deny b/web -> a/db TCP 80
         allow 10.244.9.9 -> a/db TCP 80
         deny node-2 -> a/db TCP 80
         allow 192.168.0.9 -> a/db TCP 80
         allow 203.0.113.1 -> a/db TCP 80
         deny 8.8.8.8 -> a/db TCP 80
         deny a/db -> a/web TCP 80
         deny a/db -> node-1 TCP 80
         deny a/db -> node-2 TCP 80
         allow a/db -> 8.8.8.8 TCP 80
         deny a/db -> 203.0.113.1 TCP 80
         allow a/db -> 203.0.113.200 TCP 80
         deny a/db/6 -> 2001:db8::1 TCP 80",
    );
}

#[test]
fn a_deny_of_a_cidr_does_not_deny_pods() {
    check(
        &policy(
            "endpointSelector: {matchLabels: {app: db}}
ingress: [{fromEntities: [all]}]
ingressDeny: [{fromCIDR: [0.0.0.0/0]}]",
        ),
        "allow b/web -> a/db TCP 80
         allow node-2 -> a/db TCP 80
         deny 8.8.8.8 -> a/db TCP 80
         allow 2001:db8::1 -> a/db/6 TCP 80",
    );
}

#[test]
fn cidr_groups_by_name_and_by_label() {
    let groups = "---
apiVersion: cilium.io/v2
kind: CiliumCIDRGroup
metadata: {name: one, labels: {kind: partner}}
spec: {externalCIDRs: [203.0.113.0/25]}
---
apiVersion: cilium.io/v2alpha1
kind: CiliumCIDRGroup
metadata: {name: two, labels: {kind: office}}
spec: {externalCIDRs: [203.0.113.128/25, '2001:db8::/32']}
";
    let policy = policy(
        "endpointSelector: {matchLabels: {app: db}}
ingress:
- fromCIDRSet: [{cidrGroupRef: one}]
  toPorts: [{ports: [{port: '80'}]}]
- fromCIDRSet: [{cidrGroupSelector: {matchLabels: {kind: office}}, except: [203.0.113.129/32]}]
- fromCIDRSet: [{cidrGroupRef: missing}]",
    );
    check(
        &format!("{groups}{policy}"),
        "allow 203.0.113.1 -> a/db TCP 80
         deny 203.0.113.1 -> a/db TCP 81
         allow 203.0.113.200 -> a/db TCP 81
         deny 203.0.113.129 -> a/db TCP 81
         allow 2001:db8::1 -> a/db/6 TCP 81
         deny 8.8.8.8 -> a/db TCP 80",
    );
}

#[test]
fn the_cluster_is_pods_and_nodes_with_their_host_network_pods() {
    let of = |entities: &str| {
        policy(&format!(
            "endpointSelector: {{matchLabels: {{app: db}}}}
ingress: [{{fromEntities: [{entities}]}}]
egress: [{{toEntities: [{entities}]}}]"
        ))
    };
    let verdicts = |pod: &str, own: &str, remote: &str, world: &str| {
        format!(
            "{pod} b/web -> a/db TCP 80
             {pod} a/db -> b/web TCP 80
             allow node-1 -> a/db TCP 80
             {own} a/db -> node-1 TCP 80
             {remote} b/host -> a/db TCP 80
             {remote} a/db -> node-2 TCP 80
             {world} 8.8.8.8 -> a/db TCP 80
             {world} a/db -> 10.244.1.200 TCP 80"
        )
    };
    check(&of("cluster"), &verdicts("allow", "allow", "allow", "deny"));
    check(&of("world"), &verdicts("deny", "deny", "deny", "allow"));
    check(&of("all"), &verdicts("allow", "allow", "allow", "allow"));
    check(&of("host"), &verdicts("deny", "allow", "deny", "deny"));
    check(&of("host, remote-node"), &verdicts("deny", "allow", "allow", "deny"));
    check(&of("health, init, unmanaged, ingress, none"), &verdicts("deny", "deny", "deny", "deny"));
    let families = policy(
        "endpointSelector: {matchLabels: {app: db}}
ingress: [{fromEntities: [world-ipv6]}]
egress: [{toEntities: [world-ipv4]}]",
    );
    check(
        &families,
        "allow 2001:db8::1 -> a/db/6 TCP 80
         deny 8.8.8.8 -> a/db TCP 80
         allow a/db -> 8.8.8.8 TCP 80
         deny a/db/6 -> 2001:db8::1 TCP 80
         deny a/db -> a/web TCP 80",
    );
    refused(&of("universe"), &["universe"]);
}

#[test]
fn without_default_deny_a_policy_does_not_isolate_but_its_rules_count() {
    let open = policy(
        "endpointSelector: {matchLabels: {app: db}}
enableDefaultDeny: {ingress: false}
ingress: [{fromEndpoints: [{matchLabels: {app: web}}]}]
ingressDeny: [{fromEntities: [all], toPorts: [{ports: [{port: '22', protocol: TCP}]}]}]",
    );
    check(
        &open,
        "allow a/web -> a/db TCP 80
         deny a/web -> a/db TCP 22
         allow b/web -> a/db TCP 80
         allow 8.8.8.8 -> a/db TCP 80",
    );
    let isolating = clusterwide("endpointSelector: {matchLabels: {app: db}}\ningress: [{fromCIDR: [8.8.8.0/24]}]");
    check(
        &format!("{open}{isolating}"),
        "allow a/web -> a/db TCP 80
         deny a/web -> a/db TCP 22
         deny b/web -> a/db TCP 80
         allow 8.8.8.8 -> a/db TCP 80
         deny 8.8.8.8 -> a/db TCP 22
         deny 203.0.113.1 -> a/db TCP 80",
    );
}

#[test]
fn policies_of_kubernetes_are_in_the_same_union() {
    let kubernetes = "---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: a, name: k}
spec:
  podSelector: {}
  ingress:
  - from: [{ipBlock: {cidr: 10.244.2.0/24}}]
";
    let cilium = policy(
        "endpointSelector: {matchLabels: {app: db}}
enableDefaultDeny: {ingress: false}
ingress: [{fromEndpoints: [{matchLabels: {app: web}}]}]
ingressDeny: [{fromEntities: [cluster], toPorts: [{ports: [{port: '22'}]}]}]",
    );
    check(
        &format!("{kubernetes}{cilium}"),
        "allow a/web -> a/db TCP 80
         allow b/db -> a/db TCP 80
         deny b/db -> a/db TCP 22
         deny 8.8.8.8 -> a/db TCP 80
         deny a/db -> a/web TCP 80",
    );
}

#[test]
fn a_label_of_the_namespace_lifts_the_limit_to_the_own_one() {
    let of = |selector: &str| {
        policy(&format!(
            "endpointSelector: {{matchLabels: {{app: db}}}}
ingress: [{{fromEndpoints: [{selector}]}}]"
        ))
    };
    let verdicts = |own: &str, web: &str, db: &str| {
        format!(
            "{own} a/web -> a/db TCP 80
             {web} b/web -> a/db TCP 80
             {db} b/db -> a/db TCP 80
             deny b/host -> a/db TCP 80
             deny 8.8.8.8 -> a/db TCP 80"
        )
    };
    for source in ["k8s:", "any:", ""] {
        let name = format!("'{source}io.kubernetes.pod.namespace': b");
        check(&of(&format!("{{matchLabels: {{{name}}}}}")), &verdicts("deny", "allow", "allow"));
        check(&of(&format!("{{matchLabels: {{{name}, '{source}app': web}}}}")), &verdicts("deny", "allow", "deny"));
        let label = format!("'{source}io.cilium.k8s.namespace.labels.team': blue");
        check(&of(&format!("{{matchLabels: {{{label}}}}}")), &verdicts("deny", "allow", "allow"));
        let any = format!("'{source}io.cilium.k8s.namespace.labels.team'");
        let exists = format!("{{matchExpressions: [{{key: {any}, operator: Exists}}]}}");
        check(&of(&exists), &verdicts("allow", "allow", "allow"));
    }
    check(&of("{matchLabels: {app: web}}"), &verdicts("allow", "deny", "deny"));
    let account = "{matchLabels: {'k8s:io.cilium.k8s.policy.serviceaccount': robot}}";
    check(&of(account), &verdicts("allow", "deny", "deny"));
}

#[test]
fn a_selector_that_only_excludes_matches_what_has_no_labels() {
    let spec = |selector: &str| {
        format!(
            "endpointSelector: {{matchLabels: {{app: db}}}}\ningress: [{{fromEndpoints: [{{matchExpressions: [{selector}]}}]}}]"
        )
    };
    let verdicts = |own: &str, others: &str| {
        format!(
            "{own} a/web -> a/db TCP 80
             deny b/web -> a/db TCP 80
             {others} node-2 -> a/db TCP 80
             {others} 8.8.8.8 -> a/db TCP 80"
        )
    };
    let by_name = spec("{key: io.kubernetes.pod.namespace, operator: NotIn, values: [b]}");
    check(&policy(&by_name), &verdicts("allow", "allow"));
    check(&clusterwide(&by_name), &verdicts("allow", "allow"));
    let by_label = spec("{key: io.cilium.k8s.namespace.labels.team, operator: NotIn, values: [blue]}");
    check(&policy(&by_label), &verdicts("allow", "allow"));
    // Cluster-wide, a label of the namespace does not lift the limit to endpoints with a namespace.
    check(&clusterwide(&by_label), &verdicts("allow", "deny"));
    let by_pod = spec("{key: app, operator: NotIn, values: [other]}");
    check(&policy(&by_pod), &verdicts("allow", "deny"));
}

#[test]
fn a_label_of_source_reserved_is_an_entity() {
    let of = |entity: &str| {
        policy(&format!(
            "endpointSelector: {{matchLabels: {{app: db}}}}\ningress: [{{fromEndpoints: [{{matchLabels: {{'reserved:{entity}': ''}}}}]}}]"
        ))
    };
    check(&of("world"), "allow 8.8.8.8 -> a/db TCP 80\n deny a/web -> a/db TCP 80\n deny node-2 -> a/db TCP 80");
    check(&of("remote-node"), "deny 8.8.8.8 -> a/db TCP 80\n deny a/web -> a/db TCP 80\n allow node-2 -> a/db TCP 80");
}

#[test]
fn another_namespace_in_the_subject_has_no_effect() {
    check(
        &policy("endpointSelector: {matchLabels: {'k8s:io.kubernetes.pod.namespace': b, app: db}}\ningress: [{}]"),
        "deny a/web -> a/db TCP 80
         allow a/web -> b/db TCP 80",
    );
}

#[test]
fn specs_are_several_policies() {
    check(
        "---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {namespace: a, name: x}
specs:
- endpointSelector: {matchLabels: {app: db}}
  ingress: [{fromEndpoints: [{matchLabels: {app: web}}]}]
- endpointSelector: {matchLabels: {app: db}}
  egressDeny: [{toEntities: [world]}]
- endpointSelector: {}
  ingress: [{fromCIDR: [8.8.8.8/32]}]
",
        "allow a/web -> a/db TCP 80
         deny b/web -> a/db TCP 80
         allow 8.8.8.8 -> a/db TCP 80
         allow 8.8.8.8 -> a/web TCP 80
         deny b/web -> a/web TCP 80
         deny a/db -> 8.8.8.8 TCP 80
         deny a/db -> b/web TCP 80
         allow a/web -> b/web TCP 80",
    );
}

#[test]
fn any_protocol_is_tcp_udp_and_sctp_and_no_icmp() {
    check(
        &policy(
            "endpointSelector: {matchLabels: {app: db}}
ingress:
- fromEndpoints: [{}]
  toPorts:
  - ports: [{port: '80', protocol: ANY}, {port: '81'}, {port: '82', protocol: SCTP}, {port: http}]
- toPorts: [{ports: [{port: '0', protocol: UDP}]}]
- icmps: [{fields: [{type: 8}, {family: IPv6, type: EchoRequest}]}]",
        ),
        "allow a/web -> a/db TCP 80
         allow a/web -> a/db UDP 80
         allow a/web -> a/db SCTP 80
         allow a/web -> a/db SCTP 81
         allow a/web -> a/db SCTP 82
         deny a/web -> a/db TCP 82
         allow a/web -> a/db TCP 8080
         deny a/web -> a/db SCTP 8080
         allow 8.8.8.8 -> a/db UDP 999
         deny 8.8.8.8 -> a/db TCP 80
         allow 8.8.8.8 -> a/db ICMP 8
         deny a/web -> a/db ICMP 0
         allow 2001:db8::1 -> a/db/6 ICMPv6 128
         deny 2001:db8::1 -> a/db/6 ICMPv6 129
         deny a/web -> a/db GRE 0",
    );
}

#[test]
fn the_api_server_is_its_endpoints_inside_and_outside() {
    check(
        &policy(
            "endpointSelector: {matchLabels: {app: db}}
egress:
- toEntities: [kube-apiserver]
  toPorts: [{ports: [{port: '443', protocol: TCP}]}]",
        ),
        "allow a/db -> node-1 TCP 443
         allow a/db -> 203.0.113.6 TCP 443
         deny a/db -> node-2 TCP 443
         deny a/db -> 203.0.113.8 TCP 443
         deny a/db -> node-1 TCP 80",
    );
}

#[test]
fn the_cluster_contains_the_api_server_also_outside() {
    check(
        &policy("endpointSelector: {matchLabels: {app: db}}\negress: [{toEntities: [cluster]}]"),
        "allow a/db -> 203.0.113.6 TCP 443
         deny a/db -> 203.0.113.8 TCP 443",
    );
}

#[test]
fn services_are_pods_by_their_selector_or_addresses_without_one() {
    let of = |service: &str| {
        policy(&format!("endpointSelector: {{matchLabels: {{app: db}}}}\negress: [{{toServices: [{service}]}}]"))
    };
    let web = "allow a/db -> b/web TCP 80
               deny a/db -> b/db TCP 80
               deny a/db -> a/web TCP 80
               deny a/db -> 203.0.113.7 TCP 443";
    check(&of("{k8sService: {serviceName: web, namespace: b}}"), web);
    check(&of("{k8sServiceSelector: {selector: {matchLabels: {svc: web}}, namespace: b}}"), web);
    // An endpoint that is a pod's address is no address outside.
    let outer = "allow a/db -> 203.0.113.7 TCP 80
                 deny a/db -> b/db TCP 443
                 deny a/db -> b/web TCP 80";
    check(&of("{k8sService: {serviceName: outer, namespace: b}}"), outer);
    check(&of("{k8sServiceSelector: {selector: {matchLabels: {svc: outer}}}}"), outer);
}

#[test]
fn rules_of_the_application_layer_allow_here_and_decide_there() {
    check(
        &policy(
            "endpointSelector: {matchLabels: {app: db}}
ingress:
- fromEndpoints: [{matchLabels: {app: web}}]
  toPorts:
  - ports: [{port: '80', protocol: TCP}]
    rules: {http: [{method: GET}]}",
        ),
        "allow a/web -> a/db TCP 80
         deny a/web -> a/db TCP 81",
    );
}

#[test]
fn a_star_in_a_name_stays_inside_one_label() {
    check(
        &policy(
            "endpointSelector: {matchLabels: {app: db}}
egress:
- toFQDNs: [{matchName: Example.com}, {matchPattern: '*.example.org'}, {matchPattern: 'a*c.example.net'}]
- toFQDNs: [{matchPattern: '**.deep.example'}]
  toPorts: [{ports: [{port: '443', protocol: TCP}]}]",
        ),
        "allow a/db -> 203.0.113.1=example.com TCP 80
         deny a/db -> 203.0.113.1=www.example.com TCP 80
         deny a/db -> 203.0.113.1 TCP 80
         allow a/db -> 203.0.113.1=www.example.org TCP 80
         deny a/db -> 203.0.113.1=a.b.example.org TCP 80
         deny a/db -> 203.0.113.1=example.org TCP 80
         allow a/db -> 203.0.113.1=ac.example.net TCP 80
         allow a/db -> 203.0.113.1=abc.example.net TCP 80
         deny a/db -> 203.0.113.1=a.c.example.net TCP 80
         deny a/db -> 203.0.113.1=abcd.example.net TCP 80
         allow a/db -> 203.0.113.1=a.deep.example TCP 443
         allow a/db -> 203.0.113.1=a.b.deep.example TCP 443
         deny a/db -> 203.0.113.1=a.deep.example TCP 80
         deny a/db -> 203.0.113.1=deep.example TCP 443",
    );
    check(
        &policy("endpointSelector: {matchLabels: {app: db}}\negress: [{toFQDNs: [{matchPattern: '*'}]}]"),
        "allow a/db -> 203.0.113.1=a.b.example.org TCP 80
         allow a/db -> 203.0.113.1=org TCP 80
         deny a/db -> 203.0.113.1 TCP 80",
    );
}

#[test]
fn a_name_never_means_a_pod_or_a_node() {
    check(
        &policy("endpointSelector: {matchLabels: {app: db}}\negress: [{toFQDNs: [{matchPattern: '*'}]}]"),
        "allow a/db -> 203.0.113.1=example.com TCP 80
         deny a/db -> a/web=example.com TCP 80
         deny a/db -> node-2=example.com TCP 80",
    );
}

#[test]
fn what_the_cluster_cannot_decide_is_refused_by_name() {
    let of = |section: &str| policy(&format!("endpointSelector: {{}}\n{section}"));
    refused(&of("egress: [{toGroups: [{aws: {}}]}]"), &["toGroups"]);
    refused(&of("ingress: [{fromRequires: [{matchLabels: {app: web}}]}]"), &["fromRequires"]);
    refused(&of("ingress: [{fromEndpoints: [{}], fromCIDR: [8.8.8.8/32]}]"), &["ingress[0]"]);
    refused(&of("ingres: [{}]"), &["ingres"]);
    let node = clusterwide("nodeSelector: {}\ningress: [{}]");
    refused(&node, &["nodeSelector"]);
}
