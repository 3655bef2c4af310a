//! The meaning of Cilium's policies: objects as text in, ranked policies out.

use super::{every_pod, outside};
use crate::cache::Event;
use crate::filter::Filter;
use crate::foreign::{Foreign, resolved};
use crate::object::{
    ClusterPolicy, ClusterPolicyKind, IpBlock, Isolation, NAMESPACE_NAME_LABEL, NamespaceScope, Object, Peer, PodPeer,
    PolicyPort, Region, RuleAction, Tier, Transport,
};
use crate::selector::{Condition, Requirement, Selector};
use crate::source::{ForeignKinds, Options, ServiceKinds, load_text};

fn load(text: &str) -> Vec<Object> {
    let options = Options { foreign: ForeignKinds::Read, services: ServiceKinds::Read, ..Options::default() };
    load_text("t.yaml", text, options).unwrap_or_else(|errors| panic!("{text}\n{errors}")).objects
}

fn policies(text: &str) -> Vec<ClusterPolicy> {
    let all = resolved(load(text)).into_iter().filter_map(|object| match object {
        Object::ClusterPolicy(policy) => Some(ClusterPolicy::clone(&policy)),
        _ => None,
    });
    all.collect()
}

fn namespaced(rest: &str) -> String {
    format!("{{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {{name: p, namespace: shop}}, {rest}}}\n")
}

fn clusterwide(rest: &str) -> String {
    format!("{{apiVersion: cilium.io/v2, kind: CiliumClusterwideNetworkPolicy, metadata: {{name: p}}, {rest}}}\n")
}

fn only(text: &str) -> ClusterPolicy {
    let mut all = policies(text);
    assert_eq!(all.len(), 1, "{text}");
    all.remove(0)
}

/// Returns a namespaced policy for all pods of its namespace with these lists of rules.
fn rules(text: &str) -> ClusterPolicy {
    only(&namespaced(&format!("spec: {{endpointSelector: {{}}, {text}}}")))
}

/// Returns the peers of the only rule of a list with this element, in a namespaced policy and in one of the whole cluster.
fn both(list: &str, element: &str) -> [Option<Vec<Peer>>; 2] {
    let spec = format!("spec: {{endpointSelector: {{}}, {list}: [{element}]}}");
    [namespaced(&spec), clusterwide(&spec)].map(|text| {
        let policy = only(&text);
        let all = if list.starts_with("ingress") { policy.ingress } else { policy.egress };
        assert_eq!(all.len(), 1, "{text}");
        all.into_iter().next().unwrap().traffic.peers
    })
}

fn peers(list: &str, element: &str) -> Option<Vec<Peer>> {
    let [one, other] = both(list, element);
    assert_eq!(one, other, "{element}");
    one
}

fn ports(element: &str) -> Option<Vec<PolicyPort>> {
    rules(&format!("ingress: [{element}]")).ingress.remove(0).traffic.ports
}

fn requirement(key: &str, condition: Condition) -> Requirement {
    Requirement { key: key.into(), condition }
}

fn is(key: &str, value: &str) -> Requirement {
    requirement(key, Condition::In(vec![value.into()]))
}

fn pods<const N: usize, const M: usize>(namespaces: [Requirement; N], pods: [Requirement; M]) -> PodPeer {
    let namespaces = NamespaceScope::Selected(Selector::new(namespaces));
    PodPeer { namespaces, pods: Selector::new(pods), filter: None }
}

fn own<const N: usize>(labels: [Requirement; N]) -> PodPeer {
    PodPeer { namespaces: NamespaceScope::Own("shop".into()), ..pods([], labels) }
}

fn block(cidr: &str, except: &[&str]) -> Peer {
    let except = except.iter().map(|text| text.parse().unwrap()).collect();
    Peer::Block(IpBlock { cidr: cidr.parse().unwrap(), except })
}

fn every_node() -> Peer {
    Peer::Nodes(Selector::everything())
}

fn tcp(first: u16, last: u16) -> PolicyPort {
    PolicyPort::Range { transport: Transport::Tcp, first, last }
}

#[test]
fn a_policy_is_part_of_a_union_with_network_policies() {
    let policy = rules("ingress: [{fromEndpoints: [{}]}], ingressDeny: [{fromEntities: [world]}]");
    assert!(policy.is_union && policy.rank.tier == Tier::NetworkPolicy && policy.fault.is_none());
    assert_eq!(policy.rank.name.to_string(), "CiliumNetworkPolicy shop/p");
    let actions: Vec<_> =
        policy.ingress.iter().map(|rule| (rule.action, rule.name.as_deref().unwrap(), rule.at)).collect();
    let expected =
        [(RuleAction::Deny, "spec.ingressDeny[0]", Some(0)), (RuleAction::Accept, "spec.ingress[0]", Some(1))];
    assert_eq!(actions, expected);
    assert_eq!(policy.position.unwrap().line, 1);
    let wide = only(&clusterwide("spec: {endpointSelector: {}, egress: [{}]}"));
    assert_eq!(wide.rank.name.kind, ClusterPolicyKind::CiliumClusterwideNetworkPolicy);
    assert_eq!((wide.subject, &*wide.rank.name.name), (every_pod(), "p"));
}

#[test]
fn a_direction_is_isolated_by_a_list_with_an_element_unless_the_policy_says_otherwise() {
    for (text, ingress, egress) in [
        ("", false, false),
        ("ingress: []", false, false),
        ("ingress: null, egress: []", false, false),
        ("ingress: [{}]", true, false),
        ("ingressDeny: [{}]", true, false),
        ("egress: [{}]", false, true),
        ("ingress: [], egressDeny: [{}]", false, true),
        ("ingress: [{}], egress: [{}], enableDefaultDeny: {ingress: false}", false, true),
        ("ingress: [{}], egress: [{}], enableDefaultDeny: {egress: false, ingress: null}", true, false),
        ("ingress: [{}], enableDefaultDeny: {egress: true}", true, true),
        ("enableDefaultDeny: {ingress: true}", true, false),
    ] {
        assert_eq!(rules(text).isolates, Isolation { ingress, egress }, "{text}");
    }
    let open = rules(
        "ingress: [{fromEndpoints: [{}]}], ingressDeny: [{fromCIDR: [192.0.2.1]}], enableDefaultDeny: {ingress: false}",
    );
    assert_eq!(open.ingress.len(), 2, "its rules count all the same");
}

#[test]
fn an_element_without_peers_and_ports_matches_nobody() {
    for (list, ingress) in [("ingress", true), ("ingressDeny", true), ("egress", false), ("egressDeny", false)] {
        for text in [namespaced as fn(&str) -> String, clusterwide] {
            let policy = only(&text(&format!("spec: {{endpointSelector: {{}}, {list}: [{{}}]}}")));
            assert!(policy.ingress.is_empty() && policy.egress.is_empty(), "{list}");
            assert_eq!(policy.isolates, Isolation { ingress, egress: !ingress }, "{list}");
        }
    }
    let with_ports = rules("ingress: [{toPorts: [{ports: [{port: \"80\", protocol: TCP}]}]}]");
    assert_eq!(with_ports.ingress[0].traffic.peers, None, "from anybody");
    assert_eq!(peers("egress", "{icmps: [{fields: [{type: 8}]}]}"), None);
}

#[test]
fn an_empty_list_of_peers_matches_nobody_with_or_without_ports() {
    let ports = "toPorts: [{ports: [{port: \"80\"}]}]";
    for field in ["fromEndpoints", "fromCIDR", "fromCIDRSet", "fromEntities", "fromNodes"] {
        for element in [format!("{{{field}: []}}"), format!("{{{field}: [], {ports}}}")] {
            let policy = rules(&format!("ingress: [{element}]"));
            assert!(policy.ingress.is_empty() && policy.isolates.ingress, "{element}");
        }
    }
    assert_eq!(peers("ingress", &format!("{{fromEndpoints: null, {ports}}}")), None, "null is as absent");
}

#[test]
fn each_of_specs_is_a_policy_of_its_own() {
    let text = namespaced(
        "spec: {endpointSelector: {matchLabels: {app: a}}, ingress: [{}]}, \
         specs: [{endpointSelector: {matchLabels: {app: b}}, egress: [{}]}, \
         {endpointSelector: {}, egressDeny: [{toEndpoints: [{}]}]}]",
    );
    let all = policies(&text);
    let names: Vec<_> = all.iter().map(|policy| &*policy.rank.name.name).collect();
    assert_eq!(names, ["shop/p", "shop/p.specs[0]", "shop/p.specs[1]"]);
    assert_eq!((&all[1].subject, all[1].isolates.ingress), (&own([is("app", "b")]), false));
    assert_eq!(all[2].egress[0].name.as_deref(), Some("specs[1].egressDeny[0]"));
}

#[test]
fn the_selector_of_a_namespaced_policy_stays_in_its_namespace() {
    let subject = |selector: &str| {
        policies(&namespaced(&format!("spec: {{endpointSelector: {selector}}}"))).pop().map(|policy| policy.subject)
    };
    assert_eq!(subject("{}"), Some(own([])));
    assert_eq!(subject("{matchLabels: {app: web}}"), Some(own([is("app", "web")])));
    let other = "{matchLabels: {\"k8s:io.kubernetes.pod.namespace\": other}}";
    assert_eq!(subject(other), Some(own([])), "the own namespace replaces it");
    let both = pods([is(NAMESPACE_NAME_LABEL, "other"), is(NAMESPACE_NAME_LABEL, "shop")], []);
    assert_eq!(subject("{matchLabels: {io.kubernetes.pod.namespace: other}}"), Some(both), "nobody is in two");
    let labelled = pods([is(NAMESPACE_NAME_LABEL, "shop"), is("team", "red")], []);
    assert_eq!(subject("{matchLabels: {io.cilium.k8s.namespace.labels.team: red}}"), Some(labelled));
    assert_eq!(subject("{matchLabels: {\"reserved:ingress\": \"\"}}"), None, "no pods");
    let wide = only(&clusterwide("spec: {endpointSelector: {matchLabels: {\"k8s:io.kubernetes.pod.namespace\": x}}}"));
    assert_eq!(wide.subject, pods([is(NAMESPACE_NAME_LABEL, "x")], []));
}

#[test]
fn pods_as_peers_are_of_the_own_namespace_unless_the_selector_names_another() {
    let namespace = |key: &str| format!("{{fromEndpoints: [{{matchLabels: {{\"{key}\": x, app: a}}}}]}}");
    let expected = Some(vec![Peer::Pods(pods([is(NAMESPACE_NAME_LABEL, "x")], [is("app", "a")]))]);
    for key in ["k8s:io.kubernetes.pod.namespace", "any:io.kubernetes.pod.namespace", "io.kubernetes.pod.namespace"] {
        assert_eq!(peers("ingress", &namespace(key)), expected, "{key}");
    }
    let labelled = Some(vec![Peer::Pods(pods([is("x.y/team", "x")], [is("app", "a")]))]);
    assert_eq!(peers("ingress", &namespace("k8s:io.cilium.k8s.namespace.labels.x.y/team")), labelled);
    let [narrow, wide] = both("egress", "{toEndpoints: [{matchLabels: {\"any:app\": a}}, {}]}");
    assert_eq!(narrow, Some(vec![Peer::Pods(own([is("app", "a")])), Peer::Pods(own([]))]));
    assert_eq!(
        wide,
        Some(vec![Peer::Pods(pods([], [is("app", "a")])), Peer::Pods(every_pod())]),
        "all pods, not the world"
    );
}

#[test]
fn the_service_account_is_a_label_of_pods() {
    let expression = |rest: &str| {
        let key = "k8s:io.cilium.k8s.policy.serviceaccount";
        let element = format!("{{fromEndpoints: [{{matchExpressions: [{{key: \"{key}\", {rest}}}]}}]}}");
        let rule = rules(&format!("ingress: [{element}]")).ingress;
        rule.into_iter().next().map(|rule| match &rule.traffic.peers.unwrap()[..] {
            [Peer::Pods(PodPeer { filter, .. })] => filter.as_deref().cloned(),
            other => panic!("{other:?}"),
        })
    };
    let accounts = || vec!["a".into(), "b".into()];
    let of = |condition| Some(Some(Filter::ServiceAccount(condition)));
    assert_eq!(expression("operator: In, values: [a, b]"), of(Condition::In(accounts())));
    assert_eq!(expression("operator: NotIn, values: [a, b]"), of(Condition::NotIn(accounts())));
    assert_eq!(expression("operator: Exists"), Some(None));
    assert_eq!(expression("operator: DoesNotExist"), None, "every pod has one, so the rule matches nobody");
}

#[test]
fn a_selector_that_needs_no_label_also_matches_what_is_no_pod() {
    let others = Peer::Region(Region { all: vec![], none: vec![Peer::Pods(every_pod())] }.into());
    let not = |key: &str| {
        format!("{{fromEndpoints: [{{matchExpressions: [{{key: \"{key}\", operator: NotIn, values: [x]}}]}}]}}")
    };
    let not_x = |key: &str| requirement(key, Condition::NotIn(vec!["x".into()]));
    let expected = Some(vec![Peer::Pods(pods([not_x(NAMESPACE_NAME_LABEL)], [])), others.clone()]);
    assert_eq!(peers("ingress", &not("k8s:io.kubernetes.pod.namespace")), expected);
    // Cilium adds a namespace to these selectors.
    let [narrow, wide] = both("ingress", &not("io.cilium.k8s.namespace.labels.team"));
    let labelled = Peer::Pods(pods([not_x("team")], []));
    assert_eq!((narrow, wide), (Some(vec![labelled.clone(), others]), Some(vec![labelled])));
    let [narrow, wide] = both("ingress", &not("app"));
    assert_eq!(narrow, Some(vec![Peer::Pods(own([not_x("app")]))]));
    assert_eq!(wide, Some(vec![Peer::Pods(pods([], [not_x("app")]))]));
}

#[test]
fn labels_that_cilium_leaves_out_of_identities_are_on_no_pod() {
    for key in ["pod-template-hash", "statefulset.kubernetes.io/pod-name", "kubernetes.io/os", "x.beta.kubernetes.io/a"]
    {
        let element = |operator: &str| {
            format!("ingress: [{{fromEndpoints: [{{matchExpressions: [{{key: {key}, operator: {operator}}}]}}]}}]")
        };
        assert!(rules(&element("Exists")).ingress.is_empty(), "{key}");
        assert_eq!(rules(&element("DoesNotExist")).ingress[0].traffic.peers, Some(vec![Peer::Pods(own([]))]), "{key}");
    }
    for key in ["app.kubernetes.io/name", "node.kubernetes.io/x", "app"] {
        let text = format!("ingress: [{{fromEndpoints: [{{matchLabels: {{{key}: a}}}}]}}]");
        assert_eq!(rules(&text).ingress[0].traffic.peers, Some(vec![Peer::Pods(own([is(key, "a")]))]), "{key}");
    }
}

#[test]
fn entities_are_groups_of_addresses() {
    let world = outside(vec![]);
    for (entities, expected) in [
        ("world", Some(vec![world.clone()])),
        ("world-ipv4", Some(vec![outside(vec![vec![block("0.0.0.0/0", &[])]])])),
        ("world-ipv6", Some(vec![outside(vec![vec![block("::/0", &[])]])])),
        ("cluster", Some(vec![Peer::Pods(every_pod()), every_node()])),
        ("host", Some(vec![Peer::OwnNode])),
        ("host, remote-node", Some(vec![every_node()])),
        ("remote-node, cluster", Some(vec![Peer::Pods(every_pod()), every_node()])),
        ("all", None),
        ("world, all", None),
        ("world, host", Some(vec![Peer::OwnNode, world])),
    ] {
        assert_eq!(peers("ingress", &format!("{{fromEntities: [{entities}]}}")), expected, "{entities}");
        assert_eq!(peers("egress", &format!("{{toEntities: [{entities}]}}")), expected, "{entities}");
    }
    // Traffic from the own node is never denied.
    assert_eq!(peers("ingress", "{fromEntities: [remote-node]}"), Some(vec![every_node()]));
    for nobody in ["none", "unmanaged", "health", "init", "ingress"] {
        let policy = rules(&format!("ingress: [{{fromEntities: [{nobody}]}}]"));
        assert!(policy.ingress.is_empty() && policy.isolates.ingress, "{nobody}");
    }
    let reserved =
        "{fromEndpoints: [{matchLabels: {\"reserved:host\": \"\"}}, {matchLabels: {\"reserved:remote-node\": \"\"}}]}";
    assert_eq!(peers("ingress", reserved), Some(vec![every_node()]));
}

#[test]
fn the_api_server_is_its_endpoints_wherever_they_are() {
    let slice = "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
        metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}, \
        endpoints: [{addresses: [203.0.113.7]}, {addresses: [10.0.0.1]}, {addresses: [10.0.0.1]}, {addresses: [10.0.0.9], conditions: {ready: false}}]}\n";
    let of = |entity: &str| {
        let text = namespaced(&format!("spec: {{endpointSelector: {{}}, egress: [{{toEntities: [{entity}]}}]}}"));
        let policy = only(&format!("{text}---\n{slice}"));
        policy.egress[0].traffic.peers.clone().unwrap()
    };
    let both = [block("10.0.0.1/32", &[]), block("203.0.113.7/32", &[])];
    assert_eq!(of("kube-apiserver"), both);
    assert_eq!(of("cluster")[2..], both, "an API server outside is part of the cluster");
    let text = namespaced("spec: {endpointSelector: {}, egress: [{toEntities: [kube-apiserver]}]}");
    assert_eq!(only(&text).egress[0].traffic.peers, Some(vec![]), "unknown endpoints match nobody");
    let options = Options { foreign: ForeignKinds::Read, ..Options::default() };
    let warnings = load_text("t.yaml", &text, options.clone()).unwrap().warnings.to_string();
    assert!(
        warnings.contains("and the input has no EndpointSlice") && warnings.contains("its rules allow less"),
        "{warnings}"
    );
    let denies = text.replace("egress:", "egressDeny:");
    let errors = load_text("t.yaml", &denies, options.clone()).unwrap_err().to_string();
    assert!(errors.contains("names a Service or the API server, and the input has no EndpointSlice"), "{errors}");
    // Services are read although the options skip them.
    let whole = load_text("t.yaml", &format!("{denies}---\n{slice}"), options).unwrap();
    assert!(whole.objects.iter().any(|object| matches!(object, Object::EndpointSlice(_))));
}

#[test]
fn blocks_never_contain_pods_or_nodes() {
    let expected = |blocks: Vec<Peer>| Some(vec![outside(vec![blocks])]);
    let cidrs = "{fromCIDR: [10.0.0.0/8, 192.0.2.1, '2001:db8::1']}";
    let blocks = vec![block("10.0.0.0/8", &[]), block("192.0.2.1/32", &[]), block("2001:db8::1/128", &[])];
    assert_eq!(peers("ingress", cidrs), expected(blocks));
    let set = "{toCIDRSet: [{cidr: 0.0.0.0/0, except: [10.0.0.0/8, 192.168.0.0/16]}, {cidr: '::/0'}]}";
    let blocks = vec![block("0.0.0.0/0", &["10.0.0.0/8", "192.168.0.0/16"]), block("::/0", &[])];
    assert_eq!(peers("egressDeny", set), expected(blocks));
    let nothing = rules("egress: [{toCIDRSet: [{cidr: 10.0.0.0/8, except: [10.0.0.0/8]}]}]");
    assert!(nothing.egress.is_empty(), "nothing is left of the block");
}

#[test]
fn groups_of_blocks_are_filled_in_and_follow_their_objects() {
    let group = |name: &str, label: &str, blocks: &str| {
        format!(
            "---\n{{apiVersion: cilium.io/v2alpha1, kind: CiliumCIDRGroup, metadata: {{name: {name}, labels: {{kind: {label}}}}}, spec: {{externalCIDRs: [{blocks}]}}}}\n"
        )
    };
    let text = |rule: &str| namespaced(&format!("spec: {{endpointSelector: {{}}, egress: [{{toCIDRSet: [{rule}]}}]}}"));
    let groups =
        group("a", "x", "10.0.0.0/8, 192.0.2.0/24") + &group("b", "x", "'2001:db8::/32'") + &group("c", "z", "");
    let of = |rule: &str| only(&(text(rule) + &groups)).egress[0].traffic.peers.clone().unwrap();
    let expected = [block("10.0.0.0/8", &["10.1.0.0/16"]), block("192.0.2.0/24", &[])];
    assert_eq!(of("{cidrGroupRef: a, except: [10.1.0.0/16]}"), [outside(vec![expected.into()])]);
    assert_eq!(of("{cidrGroupRef: a, except: [192.0.0.0/8]}"), [outside(vec![vec![block("10.0.0.0/8", &[])]])]);
    let all = vec![block("10.0.0.0/8", &[]), block("192.0.2.0/24", &[]), block("2001:db8::/32", &[])];
    assert_eq!(of("{cidrGroupSelector: {matchLabels: {kind: x}}}"), [outside(vec![all])]);
    assert_eq!(of("{cidrGroupRef: c}"), [], "an empty group is nobody, not everybody");
    assert_eq!(of("{cidrGroupRef: unknown}"), []);

    let mut foreign = Foreign::default();
    let mut apply = |text: &str| {
        let events = foreign.resolve_all(load(text).into_iter().map(Event::Apply));
        events
            .into_iter()
            .map(|event| match event {
                Event::Apply(Object::ClusterPolicy(policy)) => policy.egress[0].traffic.peers.clone().unwrap(),
                other => panic!("{other:?}"),
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(apply(&text("{cidrGroupRef: a}")), [vec![]]);
    let ten = vec![outside(vec![vec![block("10.0.0.0/8", &[])]])];
    assert_eq!(apply(&group("a", "x", "10.0.0.0/8")), [ten]);
    assert_eq!(apply(&group("b", "x", "10.0.0.0/8")), Vec::<Vec<Peer>>::new(), "another group");
}

#[test]
fn services_are_the_pods_that_they_select_or_the_addresses_behind_them() {
    let service = |name: &str, namespace: &str, rest: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: {namespace}, labels: {{tier: back}}}}, spec: {{clusterIP: None{rest}}}}}\n"
        )
    };
    let slice = "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
        metadata: {name: db-1, namespace: ext, labels: {kubernetes.io/service-name: db}}, endpoints: [{addresses: [192.0.2.5]}]}\n";
    let state = service("web", "shop", ", selector: {app: web, v: \"1\"}")
        + &service("web", "ext", ", selector: {app: w}")
        + &service("db", "ext", "")
        + slice;
    let of = |rule: &str| {
        let text = namespaced(&format!(
            "spec: {{endpointSelector: {{}}, egress: [{{toServices: [{rule}], toPorts: [{{ports: [{{port: \"80\"}}]}}]}}]}}"
        ));
        only(&(text + &state)).egress[0].traffic.peers.clone().unwrap()
    };
    let web = Peer::Pods(own([is("app", "web"), is("v", "1")]));
    let other = Peer::Pods(PodPeer { namespaces: NamespaceScope::Own("ext".into()), ..pods([], [is("app", "w")]) });
    let db = outside(vec![vec![block("192.0.2.5/32", &[])]]);
    assert_eq!(of("{k8sService: {serviceName: web, namespace: shop}}"), vec![web.clone()]);
    assert_eq!(of("{k8sService: {serviceName: web}}"), [other.clone(), web.clone()], "of any namespace");
    assert_eq!(of("{k8sService: {serviceName: db, namespace: ext}}"), vec![db.clone()]);
    assert_eq!(of("{k8sServiceSelector: {selector: {matchLabels: {tier: back}}}}"), [other.clone(), web, db.clone()]);
    assert_eq!(of("{k8sServiceSelector: {selector: {}, namespace: ext}}"), [other, db]);
    assert_eq!(of("{k8sService: {serviceName: unknown, namespace: ext}}"), [], "nobody");
}

#[test]
fn ports_are_numbers_ranges_or_names_of_one_or_all_protocols() {
    let to = |port: &str| ports(&format!("{{toPorts: [{{ports: [{port}]}}]}}")).unwrap();
    assert_eq!(to("{port: \"80\", protocol: TCP}"), [tcp(80, 80)]);
    assert_eq!(to("{port: \"80\", endPort: 90, protocol: TCP}"), [tcp(80, 90)]);
    assert_eq!(to("{port: \"80\", endPort: 0, protocol: TCP}"), [tcp(80, 80)]);
    assert_eq!(to("{port: \"0\", protocol: UDP}"), [PolicyPort::All(Transport::Udp)]);
    let named = |transport| PolicyPort::Named { transport, name: "http".into() };
    assert_eq!(to("{port: HTTP, protocol: TCP, endPort: 90}"), [named(Transport::Tcp)], "lower case, and no range");
    for any in ["{port: http}", "{port: http, protocol: ANY}", "{port: http, protocol: \"\"}"] {
        assert_eq!(to(any), Transport::ALL.map(named), "{any}");
    }
    let all = Transport::ALL.map(|transport| PolicyPort::Range { transport, first: 53, last: 53 });
    assert_eq!(to("{port: \"53\", protocol: ANY}"), all, "with SCTP, and without ICMP");
    assert_eq!(ports("{fromEntities: [all], toPorts: []}"), None, "all ports, and ICMP");
}

#[test]
fn types_of_icmp_are_numbers_or_names_with_all_their_codes() {
    let icmp = |protocol, of_type: u16| PolicyPort::Numbers {
        protocols: (protocol, protocol),
        first: of_type * 256,
        last: of_type * 256 + 255,
    };
    let element = "{icmps: [{fields: [{type: 8}, {type: EchoReply, family: IPv4}, {family: IPv6, type: EchoRequest}]}, {fields: [{type: \"3\"}]}]}";
    assert_eq!(ports(element), Some(vec![icmp(1, 8), icmp(1, 0), icmp(58, 128), icmp(1, 3)]));
    assert_eq!(ports("{fromEntities: [all], icmps: [{fields: []}]}"), Some(vec![]), "no type matches nothing");
}

#[test]
fn names_of_domains_keep_their_stars_inside_labels() {
    let names = "{toFQDNs: [{matchName: WWW.example.com}, {matchPattern: '*.example.com'}, {matchPattern: '**.x.io.'}, \
        {matchName: localhost}, {matchPattern: '*'}, {matchPattern: a.b.c}]}";
    let expected = [
        "www.example.com",
        "matchPattern:*.example.com",
        "matchPattern:**.x.io",
        "matchPattern:localhost",
        "matchPattern:*",
        "a.b.c",
    ];
    let expected = outside(vec![vec![Peer::Names(expected.map(std::sync::Arc::from).into())]]);
    assert_eq!(peers("egress", names), Some(vec![expected]));
}

#[test]
fn rules_about_requests_are_kept_as_what_decides_then() {
    let then = |ports: &str, rest: &str| {
        let text =
            format!("egress: [{{toEntities: [world], toPorts: [{{ports: [{{port: \"53\"}}], {ports}}}]{rest}}}]");
        rules(&text).egress.remove(0).then.map(|then| then.to_string())
    };
    for (ports, expected) in [
        ("", None),
        ("rules: {}", None),
        ("rules: {http: [{method: GET}]}", Some("HTTP rules")),
        ("rules: {http: []}", Some("HTTP rules")),
        ("rules: {kafka: [{}]}", Some("Kafka rules")),
        ("rules: {l7proto: x, l7: [{a: b}]}", Some("rules of another protocol")),
        ("rules: {dns: [{matchPattern: '*'}]}", None),
        ("rules: {dns: [{matchName: a.b}, {matchPattern: '**.'}]}", None),
        ("rules: {dns: [{matchPattern: '*.example.com'}]}", Some("DNS rules")),
        ("serverNames: [a.b]", Some("server names")),
        ("serverNames: []", None),
        ("listener: {name: x}", Some("an Envoy listener")),
        ("terminatingTLS: {}, originatingTLS: {}, rules: {http: [{}]}", Some("HTTP rules, TLS interception")),
    ] {
        assert_eq!(then(ports, "").as_deref(), expected, "{ports}");
    }
    assert_eq!(
        then("rules: {http: []}", ", authentication: {mode: required}").as_deref(),
        Some("HTTP rules, mutual authentication")
    );
    assert_eq!(then("", ", authentication: {mode: disabled}"), None);
    let alone = rules("ingress: [{fromEndpoints: [{}], authentication: {mode: required}}]");
    assert_eq!(alone.ingress[0].then.as_deref(), Some("mutual authentication"));
    // One rule for each kind of further conditions, first the one without.
    let many = rules(
        "ingress: [{toPorts: [{ports: [{port: \"1\", protocol: TCP}], rules: {http: [{}]}}, {ports: [{port: \"2\", protocol: TCP}]}, \
         {ports: [{port: \"3\", protocol: TCP}]}]}]",
    );
    let parts: Vec<_> =
        many.ingress.iter().map(|rule| (rule.traffic.ports.clone().unwrap(), rule.then.as_deref())).collect();
    assert_eq!(parts, [(vec![tcp(2, 2), tcp(3, 3)], None), (vec![tcp(1, 1)], Some("HTTP rules"))]);
}

#[test]
fn the_annotation_of_enforcement_is_kept() {
    let text = "{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: p, annotations: {bulkhead.dev/enforcement: audit}}, spec: {endpointSelector: {}}}";
    let policy = only(text);
    assert_eq!(policy.enforcement, Some(crate::object::Enforcement::Audit));
    assert_eq!(&*policy.rank.name.name, "default/p");
}
