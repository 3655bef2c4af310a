//! Faults in Cilium's objects: the exact messages, and the stand-ins.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::super::tests::messages;
use super::super::tests_properties::value;
use super::super::{ForeignKinds, Loaded, Options, Strictness, load_text};
use crate::foreign::resolved;
use crate::object::{ClusterPolicy, ClusterRule, Isolation, NamespaceScope, Object, RuleAction};

fn load(text: &str, strictness: Strictness) -> Result<Loaded, super::super::SourceErrors> {
    load_text("t.yaml", text, Options { strictness, foreign: ForeignKinds::Read, ..Options::default() })
}

fn policy(kind: &str, rest: &str) -> String {
    format!("apiVersion: cilium.io/v2\nkind: {kind}\nmetadata: {{name: p}}\n{rest}\n")
}

/// Returns the only error about a policy, without the file's name, line and object.
fn error_of(text: &str) -> String {
    let errors = load(text, Strictness::Strict).map(|_| ()).expect_err(text);
    let [error] = &messages(&errors)[..] else { panic!("{text}: {errors}") };
    error.split_once(": ").and_then(|(_, rest)| rest.split_once(": ")).map_or("", |(_, rest)| rest).replace('\n', "")
}

fn error(spec: &str) -> String {
    error_of(&policy("CiliumNetworkPolicy", &format!("spec: {{endpointSelector: {{}}, {spec}}}")))
}

fn warnings(text: &str) -> Vec<String> {
    let loaded = load(text, Strictness::Strict).unwrap_or_else(|errors| panic!("{errors}"));
    messages(&loaded.warnings)
}

fn lenient(text: &str) -> ClusterPolicy {
    let loaded = load(text, Strictness::Lenient).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(loaded.faulty, 1, "{text}");
    match &resolved(loaded.objects)[..] {
        [Object::ClusterPolicy(policy)] => ClusterPolicy::clone(policy),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_rules_about_packets_cannot_say_is_refused_by_name() {
    for (spec, expected) in [
        (
            "ingress: [{fromRequires: [{}]}]",
            "spec.ingress[0].fromRequires: requirements are not supported; Cilium removed them in version 1.19",
        ),
        ("egress: [{toGroups: [{aws: {}}]}]", "spec.egress[0].toGroups: groups of a cloud provider are not supported"),
        ("egress: [{toNodes: [{}]}]", "spec.egress[0].toNodes: nodes by label are not supported"),
        (
            "egress: [{toEntities: [remote-node]}]",
            "spec.egress[0].toEntities: `remote-node` without `host`: rules cannot tell other nodes from the pod's own node",
        ),
        ("nodeSelector: {}", "spec.nodeSelector: a policy of nodes"),
        (
            "egress: [{toEndpoints: [{matchLabels: {\"k8s:io.cilium.k8s.policy.cluster\": x}}]}]",
            "spec.egress[0].toEndpoints[0].matchLabels[\"k8s:io.cilium.k8s.policy.cluster\"]: a condition on the name of the cluster",
        ),
        (
            "egress: [{toEndpoints: [{matchLabels: {\"cidr:10.0.0.0/8\": \"\"}}]}]",
            "labels of source \"cidr\" are not supported",
        ),
        (
            "ingress: [{fromEndpoints: [{matchExpressions: [{key: \"reserved:host\", operator: DoesNotExist}]}]}]",
            "a label of source `reserved` can only stand alone, and not be denied",
        ),
        (
            "ingress: [{fromEndpoints: [{matchLabels: {\"reserved:host\": \"\", app: a}}]}]",
            "a label of source `reserved` can only stand alone, and not be denied",
        ),
    ] {
        let error = error(spec);
        assert!(error.contains(expected) && error.contains("help: "), "{error}");
    }
}

#[test]
fn unknown_and_misplaced_fields_are_refused() {
    for (spec, expected) in [
        ("ingres: [{}]", "spec.ingres: unknown field `ingres`"),
        ("ingress: [{fromEndpoint: [{}]}]", "help: did you mean `fromEndpoints`?"),
        ("ingress: [{toEndpoints: [{}]}]", "spec.ingress[0].toEndpoints: unknown field"),
        ("egress: [{toPorts: [{port: [{}]}]}]", "help: did you mean `ports`?"),
        ("egressDeny: [{toFQDNs: [{matchName: a.b}]}]", "spec.egressDeny[0].toFQDNs: `egressDeny` has no `toFQDNs`"),
        ("ingressDeny: [{authentication: {mode: required}}]", "`ingressDeny` has no `authentication`"),
        (
            "ingressDeny: [{toPorts: [{ports: [{port: \"1\"}], rules: {http: []}}]}]",
            "spec.ingressDeny[0].toPorts[0].rules: `ingressDeny` has no `rules`",
        ),
        ("ingress: [{toPorts: [{ports: [{port: \"1\"}], rules: {grpc: []}}]}]", "rules.grpc: unknown field"),
        (
            "ingress: [{toPorts: [{ports: [{port: \"53\"}], rules: {dns: [{matchPattern: '*'}]}}]}]",
            "DNS rules are for egress only",
        ),
        ("ingress: [{toPorts: [{ports: [{port: \"53\"}], rules: {http: [], kafka: []}}]}]", "rules for two protocols"),
    ] {
        let error = error(spec);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn combinations_and_values_are_checked_as_the_agent_does() {
    let peers = |text: &str| format!("egress: [{{{text}}}]");
    let ports = |text: &str| format!("ingress: [{{toPorts: [{{ports: [{text}]}}]}}]");
    for (spec, expected) in [
        (
            peers("toEndpoints: [{}], toEntities: [world]"),
            "`toEndpoints` and `toEntities` cannot be combined in one element",
        ),
        (
            peers("toFQDNs: [{matchName: a.b}], toServices: [{k8sService: {serviceName: a}}]"),
            "`toServices` and `toFQDNs` cannot be combined",
        ),
        (
            peers("toFQDNs: [], toPorts: [{ports: [{port: \"1\"}]}]"),
            "`toFQDNs` is empty, which means nobody in some versions of Cilium",
        ),
        (peers("toFQDNs: [{}]"), "exactly one of `matchName` and `matchPattern` is required"),
        (
            peers("toFQDNs: [{matchName: '*.example.com'}]"),
            "toFQDNs[0].matchName: invalid domain name \"*.example.com\"",
        ),
        (peers("toFQDNs: [{matchPattern: 'a b'}]"), "toFQDNs[0].matchPattern: invalid domain name \"a b\""),
        (peers("toServices: [{}]"), "exactly one of `k8sService` and `k8sServiceSelector` is required"),
        (peers("toServices: [{k8sService: {namespace: a}}]"), "missing field `serviceName`"),
        (
            peers("toEntities: [wrold]"),
            "spec.egress[0].toEntities[0]: unknown entity \"wrold\"  help: did you mean `world`?",
        ),
        (peers("toCIDR: [10.0.0.0/33]"), "spec.egress[0].toCIDR[0]: invalid block"),
        (
            peers("toCIDRSet: [{cidr: 10.0.0.1}]"),
            "spec.egress[0].toCIDRSet[0].cidr: block \"10.0.0.1\" has no prefix length",
        ),
        (peers("toCIDRSet: [{cidr: 10.0.0.0/8, except: [11.0.0.0/16]}]"), "11.0.0.0/16 is not inside cidr 10.0.0.0/8"),
        (
            peers("toCIDRSet: [{cidr: 10.0.0.0/8, cidrGroupRef: a}]"),
            "exactly one of `cidr`, `cidrGroupRef` and `cidrGroupSelector`",
        ),
        (
            peers("toCIDR: [10.0.0.0/8], toPorts: [{ports: [{port: http}]}]"),
            "a named port cannot be combined with destinations that are no pods",
        ),
        (
            peers("toPorts: [{ports: [{port: \"1\"}]}], icmps: [{fields: [{type: 8}]}]"),
            "`icmps` and `toPorts` cannot be combined",
        ),
        (
            peers("icmps: [{fields: [{type: EchoReplay}]}]"),
            "icmps[0].fields[0].type: unknown type of ICMP  help: did you mean `EchoReply`?",
        ),
        (peers("icmps: [{fields: [{type: 256}]}]"), "unknown type of ICMP"),
        (peers("icmps: [{fields: [{type: 1, family: IPv5}]}]"), "unknown family \"IPv5\""),
        (ports(""), "ports: no ports, whose meaning depends on Cilium's version"),
        (ports("{port: \"010\"}"), "invalid port \"010\""),
        (ports("{port: \"65536\"}"), "invalid port \"65536\""),
        (
            ports("{port: 80}"),
            "ports[0].port: invalid type: integer `80`, expected a string  help: put the value in quotes",
        ),
        (ports("{port: \"80\", endPort: 79}"), "endPort 79 does not follow port 80"),
        (ports("{port: \"80\", protocol: ICMP}"), "unknown protocol \"ICMP\""),
        (ports(&"{port: \"80\"},".repeat(41)), "41 ports: the maximum is 40"),
        ("ingress: [{fromEndpoints: [{matchLabels: {\"a b\": c}}]}]".to_owned(), "invalid label key \"a b\""),
        (
            "ingress: [{fromEndpoints: [{matchExpressions: [{key: a, operator: in, values: [b]}]}]}]".to_owned(),
            "unknown operator \"in\"",
        ),
    ] {
        let error = error(&spec);
        assert!(error.contains(expected), "{error}\n{expected}");
    }
}

#[test]
fn the_object_itself_is_checked() {
    let spec = "spec: {endpointSelector: {}}";
    for (text, expected) in [
        (
            policy("CiliumClusterwideNetworkPolicy", spec).replace("name: p", "name: p, namespace: x"),
            "metadata.namespace: a CiliumClusterwideNetworkPolicy has no namespace",
        ),
        (policy("CiliumNetworkPolicy", spec).replace("name: p", "nme: p"), "metadata.nme: unknown field"),
        (
            policy("CiliumNetworkPolicy", spec).replace("v2", "v3"),
            "apiVersion: CiliumNetworkPolicy of \"cilium.io/v3\" is not supported",
        ),
        (policy("CiliumNetworkPolicy", ""), "the policy has neither `spec` nor `specs`"),
        (
            policy("CiliumNetworkPolicy", "spec: {ingress: []}"),
            "spec.endpointSelector: missing field `endpointSelector`",
        ),
        (policy("CiliumNetworkPolicy", "sepc: {}"), "unknown field `sepc`"),
        (policy("CiliumCIDRGroup", "spec: {}"), "spec.externalCIDRs: missing field `externalCIDRs`"),
        (
            policy("CiliumCIDRGroup", "spec: {externalCIDRs: [10.0.0.0]}"),
            "spec.externalCIDRs[0]: block \"10.0.0.0\" has no prefix length",
        ),
    ] {
        let error = error_of(&text);
        assert!(error.contains(expected), "{error}\n{expected}");
    }
    for kind in ["CiliumEndpoint", "CiliumNode", "CiliumIdentity"] {
        assert!(load(&policy(kind, "spec: {}"), Strictness::Strict).is_ok_and(|loaded| loaded.skipped.len() == 1));
    }
}

#[test]
fn what_has_no_effect_is_a_warning() {
    for (spec, expected) in [
        ("{endpointSelector: {matchLabels: {\"reserved:ingress\": \"\"}}}", "the selector selects no pod"),
        (
            "{endpointSelector: {matchLabels: {pod-template-hash: a}}}",
            "Cilium leaves the label \"pod-template-hash\" out of identities",
        ),
        (
            "{endpointSelector: {matchLabels: {\"k8s:io.kubernetes.pod.namespace\": x}}}",
            "\"x\" has no effect: the policy applies to pods of its own namespace",
        ),
    ] {
        let warnings = warnings(&policy("CiliumNetworkPolicy", &format!("spec: {spec}")));
        assert!(warnings.iter().any(|warning| warning.contains(expected)), "{warnings:?}");
    }
    assert!(
        warnings(&policy(
            "CiliumNetworkPolicy",
            "spec: {endpointSelector: {}, ingress: [{}], labels: [], description: x, log: {}}"
        ))
        .is_empty()
    );
    // Cilium's older guides have the description beside the metadata.
    let beside =
        warnings(&policy("CiliumNetworkPolicy", "description: x\nspec: {endpointSelector: {}, ingress: [{}]}"));
    assert!(beside.is_empty(), "{beside:?}");
}

#[test]
fn an_invalid_element_allows_nothing_or_denies_everything_in_lenient_mode() {
    let text = policy(
        "CiliumNetworkPolicy",
        "spec: {endpointSelector: {}, ingress: [{fromCIDR: [x]}, {fromEntities: [all]}], ingressDeny: [{fromEntities: [world]}]}",
    );
    let kept = lenient(&text);
    let actions: Vec<_> = kept.ingress.iter().map(|rule| rule.name.as_deref().unwrap()).collect();
    assert_eq!(actions, ["spec.ingressDeny[0]", "spec.ingress[1]"]);
    assert!(kept.isolates.ingress && kept.fault.is_some());
    let text = policy("CiliumNetworkPolicy", "spec: {endpointSelector: {}, egressDeny: [{toEntities: [remote-node]}]}");
    let denied = lenient(&text);
    assert_eq!((denied.egress[0].action, &denied.egress[0].traffic.peers), (RuleAction::Deny, &None));
}

#[test]
fn an_invalid_spec_denies_everything_in_lenient_mode() {
    for (rest, is_whole) in [
        ("spec: {endpointSelector: {matchLabels: {app: a}}, ingresDeny: []}", false),
        ("spec: {endpointSelector: {matchLabels: {\"a b\": a}}}", true),
        ("spec: {}", true),
        ("sepc: {}", true),
    ] {
        let closed = lenient(&policy("CiliumNetworkPolicy", rest));
        assert_eq!(closed.isolates, Isolation { ingress: true, egress: true }, "{rest}");
        for rules in [&closed.ingress, &closed.egress] {
            assert!(
                matches!(&rules[..], [rule] if rule.action == RuleAction::Deny && rule.traffic.peers.is_none()),
                "{rest}"
            );
        }
        assert_eq!(closed.subject.namespaces, NamespaceScope::Own("default".into()), "{rest}");
        assert_eq!(closed.subject.pods.requirements().is_empty(), is_whole, "{rest}");
    }
    // Without a namespace, it could be about any pod.
    for rest in ["spec: {}", "sepc: {}", "spec: {nodeSelector: {}, x: 1}"] {
        assert!(load(&policy("CiliumClusterwideNetworkPolicy", rest), Strictness::Lenient).is_err(), "{rest}");
    }
    let wide = lenient(&policy("CiliumClusterwideNetworkPolicy", "spec: {endpointSelector: {}, x: 1}"));
    assert_eq!(wide.subject.namespaces, NamespaceScope::Selected(crate::selector::Selector::everything()));
}

#[test]
fn a_spec_of_nodes_is_left_out_in_lenient_mode_and_the_others_stay() {
    let kind = "CiliumClusterwideNetworkPolicy";
    let nodes = "{nodeSelector: {matchLabels: {a: b}}, ingress: [{fromEntities: [cluster]}]}";
    let pods = "{endpointSelector: {matchLabels: {app: a}}, ingress: [{fromEntities: [world]}]}";
    let alone = policy(kind, &format!("spec: {nodes}"));
    let beside = policy(kind, &format!("specs: [{nodes}, {pods}]"));
    for text in [&alone, &beside] {
        let refused = load(text, Strictness::Strict).unwrap_err().to_string();
        assert!(refused.contains("nodeSelector: a policy of nodes"), "{refused}");
    }
    assert!(resolved(load(&alone, Strictness::Lenient).unwrap().objects).is_empty());
    let left = lenient(&beside);
    assert_eq!((left.subject.pods.requirements().len(), left.ingress.len()), (1, 1));
    assert!(left.ingress[0].action != RuleAction::Deny && left.fault.is_some());
    // Cilium has no such policies. They may be about pods, so they deny.
    for (kind, spec) in
        [("CiliumNetworkPolicy", nodes), (kind, "{endpointSelector: {matchLabels: {app: a}}, nodeSelector: {}}")]
    {
        let closed = lenient(&policy(kind, &format!("spec: {spec}")));
        assert_eq!(closed.ingress[0].action, RuleAction::Deny, "{spec}");
        assert_eq!(closed.isolates, Isolation { ingress: true, egress: true }, "{spec}");
    }
}

#[test]
fn a_policy_that_depends_on_an_object_that_is_unreadable_is_refused_in_lenient_mode() {
    let pod = "---\n{apiVersion: v1, kind: Pod, metadata: {name: a}, status: {podIP: x}}\n";
    let node = "---\n{apiVersion: v1, kind: Node, metadata: {name: a}, status: {addresses: [{type: InternalIP, address: x}]}}\n";
    let namespace = "---\n{apiVersion: v1, kind: Namespace, metadata: {name: a, labels: [x]}}\n";
    let by_label =
        "endpointSelector: {}, ingress: [{fromEndpoints: [{matchLabels: {io.cilium.k8s.namespace.labels.a: b}}]}]";
    for (object, spec, is_refused) in [
        (pod, "endpointSelector: {}, egress: [{toEntities: [world]}]", true),
        (pod, "endpointSelector: {}, egressDeny: [{toEndpoints: [{}]}]", true),
        (pod, "endpointSelector: {}, egress: [{toEndpoints: [{}]}]", false),
        (node, "endpointSelector: {}, egress: [{toCIDR: [10.0.0.0/8]}]", true),
        (node, "endpointSelector: {}, egress: [{toEntities: [host]}]", false),
        (namespace, by_label, true),
        (namespace, "endpointSelector: {}, ingress: [{fromEndpoints: [{}]}]", false),
    ] {
        let text = policy("CiliumNetworkPolicy", &format!("spec: {{{spec}}}")) + object;
        let loaded = load(&text, Strictness::Lenient);
        assert_eq!(loaded.is_err(), is_refused, "{text} {:?}", loaded.map(|loaded| loaded.warnings));
    }
}

/// A valid policy with every field.
fn everything() -> Value {
    let ports = json!([{"ports": [{"port": "80", "endPort": 90, "protocol": "TCP"}, {"port": "dns"}], "rules": {"http": [{"method": "GET"}]}},
        {"ports": [{"port": "53", "protocol": "ANY"}], "serverNames": ["a.b"], "listener": {}, "terminatingTLS": {}, "originatingTLS": {}}]);
    let selector = json!({"matchLabels": {"k8s:app": "a", "io.kubernetes.pod.namespace": "x"},
        "matchExpressions": [{"key": "io.cilium.k8s.policy.serviceaccount", "operator": "In", "values": ["b"]}]});
    json!({
        "endpointSelector": {"matchLabels": {"app": "web"}},
        "enableDefaultDeny": {"ingress": true, "egress": false},
        "description": "x", "labels": [], "log": {},
        "ingress": [{"fromEndpoints": [selector, {}], "toPorts": ports, "authentication": {"mode": "required"}},
            {"fromCIDR": ["10.0.0.0/8", "fd00::1"]}, {"icmps": [{"fields": [{"family": "IPv6", "type": "EchoReply"}]}]}],
        "ingressDeny": [{"fromEntities": ["world", "host"], "toPorts": [{"ports": [{"port": "1"}]}]}, {"fromNodes": []}],
        "egress": [{"toFQDNs": [{"matchName": "a.b"}, {"matchPattern": "*.b"}]},
            {"toServices": [{"k8sService": {"serviceName": "a", "namespace": "b"}}, {"k8sServiceSelector": {"selector": {}}}]},
            {"toEntities": ["cluster"], "toPorts": [{"ports": [{"port": "53"}], "rules": {"dns": [{"matchPattern": "*"}]}}]}],
        "egressDeny": [{"toCIDRSet": [{"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}, {"cidrGroupRef": "g"},
            {"cidrGroupSelector": {"matchLabels": {"a": "b"}}}]}],
    })
}

/// Returns the paths of all values below one, in the notation of [`Value::pointer`].
fn places(value: &Value, path: &str) -> Vec<String> {
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (format!("{path}/{}", escaped(key)), value)).collect()
        }
        Value::Array(items) => items.iter().enumerate().map(|(at, value)| (format!("{path}/{at}"), value)).collect(),
        _ => Vec::new(),
    };
    inner.into_iter().flat_map(|(path, value)| [vec![path.clone()], places(value, &path)].concat()).collect()
}

#[test]
fn a_random_value_anywhere_is_read_or_allows_no_more() {
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "a"}, "addressType": "IPv4",
        "endpoints": []});
    let object = |spec: &Value| {
        let policy = json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": {"name": "p"}, "spec": spec});
        format!("{policy}\n{slice}\n")
    };
    let policies = |loaded: Loaded| -> Vec<ClusterPolicy> {
        resolved(loaded.objects)
            .into_iter()
            .filter_map(|object| match object {
                Object::ClusterPolicy(policy) => Some(ClusterPolicy::clone(&policy)),
                _ => None,
            })
            .collect()
    };
    let good = everything();
    let whole =
        policies(load(&object(&good), Strictness::Strict).unwrap_or_else(|errors| panic!("{errors}"))).remove(0);
    assert_eq!((whole.ingress.len(), whole.egress.len()), (5, 4));
    let (accepted, refused) = (Cell::new(0), Cell::new(0));
    let strategy = (prop::sample::select(places(&good, "")), value());
    let result = TestRunner::new(Config::with_cases(1500)).run(&strategy, |(place, value)| {
        let mut spec = good.clone();
        *spec.pointer_mut(&place).expect("the places are there") = value;
        let text = object(&spec);
        let lenient =
            policies(load(&text, Strictness::Lenient).expect("the namespace is known, so a stand-in is possible"));
        match load(&text, Strictness::Strict) {
            Ok(strict) => {
                accepted.set(accepted.get() + 1);
                prop_assert_eq!(policies(strict), lenient);
            }
            Err(errors) => {
                refused.set(refused.get() + 1);
                prop_assert!(errors.shown().iter().all(|error| !error.problem.is_empty() && !error.help.is_empty()));
                let [closed] = &lenient[..] else { panic!("{lenient:?}") };
                prop_assert!(closed.fault.is_some());
                for (rules, all) in [(&closed.ingress, &whole.ingress), (&closed.egress, &whole.egress)] {
                    // Other entries before it give a rule another index.
                    let without_index = |rule: &ClusterRule| ClusterRule { at: None, ..rule.clone() };
                    let all: Vec<ClusterRule> = all.iter().map(without_index).collect();
                    let is_known = |rule| all.contains(&without_index(rule));
                    let denies_all = |rule: &ClusterRule| {
                        rule.action == RuleAction::Deny && rule.traffic.peers.is_none() && rule.traffic.ports.is_none()
                    };
                    // An entry without fields matches nobody.
                    let matches_nobody = |rule: &ClusterRule| rule.traffic.peers.as_ref().is_some_and(Vec::is_empty);
                    let allows_no_more = |rule| is_known(rule) || denies_all(rule) || matches_nobody(rule);
                    prop_assert!(rules.iter().all(allows_no_more), "{rules:?}");
                }
            }
        }
        Ok(())
    });
    result.unwrap();
    assert!(accepted.get() > 100 && refused.get() > 100, "accepted {accepted:?}, refused {refused:?}");
}
