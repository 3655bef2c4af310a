//! Tests of what is refused, passed over and warned of, with the messages.

mod properties;

use std::fmt::Write as _;

use super::super::tests::messages;
use super::super::{ForeignKinds, Loaded, Options, SourceErrors, Strictness, load_text};
use crate::foreign::ForeignObject;
use crate::foreign::calico::{Action, Families, Policy};
use crate::object::Object;

fn load(text: &str, strictness: Strictness) -> Result<Loaded, SourceErrors> {
    load_text("t.yaml", text, Options { strictness, foreign: ForeignKinds::Read, ..Options::default() })
}

fn document(kind: &str, spec: &str) -> String {
    let is_namespaced =
        matches!(kind, "NetworkPolicy" | "StagedNetworkPolicy" | "StagedKubernetesNetworkPolicy" | "NetworkSet");
    let metadata = if is_namespaced { "{name: p, namespace: x}" } else { "{name: p}" };
    format!("apiVersion: projectcalico.org/v3\nkind: {kind}\nmetadata: {metadata}\nspec: {spec}\n")
}

/// The errors about an object, without file, line and the help's label.
fn errors(kind: &str, spec: &str) -> String {
    match load(&document(kind, spec), Strictness::Strict) {
        Ok(loaded) => panic!("accepted: {spec}\n{loaded:?}"),
        Err(errors) => messages(&errors).join("\n"),
    }
}

fn rule_error(rule: &str) -> String {
    let text = errors("NetworkPolicy", &format!("{{ingress: [{rule}]}}"));
    assert!(text.starts_with("t.yaml:4: Calico NetworkPolicy x/p: spec.ingress[0]"), "{text}");
    text
}

fn warnings(text: &str) -> Vec<String> {
    let loaded = load(text, Strictness::Strict).unwrap_or_else(|errors| panic!("{errors}"));
    messages(&loaded.warnings)
}

fn policies(loaded: &Loaded) -> Vec<&Policy> {
    let mut policies = Vec::new();
    for object in &loaded.objects {
        let Object::Foreign(object) = object else { continue };
        if let ForeignObject::CalicoPolicy(policy) = &**object {
            policies.push(&**policy);
        }
    }
    policies
}

#[test]
fn each_fault_of_a_rule_names_field_and_remedy() {
    for (rule, parts) in [
        (
            "{action: Allow, source: {ports: [80]}}",
            ["source.ports: ports of the source", "match the destination's ports"],
        ),
        (
            "{action: Allow, source: {notPorts: [80]}, protocol: TCP}",
            ["source.notPorts: ports of the source", "replies"],
        ),
        (
            "{action: Allow, destination: {nets: [10.0.0.0/8]}}",
            ["destination: addresses of the policy's own", "`selector`"],
        ),
        (
            "{action: Allow, destination: {services: {name: s, namespace: x}}}",
            ["destination.services: ", "source of an ingress rule"],
        ),
        (
            "{action: Allow, source: {services: {name: s}}}",
            ["source.services: missing field `namespace`", "write `namespace: x`"],
        ),
        (
            "{action: Allow, source: {services: {namespace: s}}}",
            ["source.services: missing field `name`", "add `name`"],
        ),
        (
            "{action: Allow, source: {services: {name: s, namespace: x}, selector: 'all()'}}",
            ["cannot be combined", "two rules"],
        ),
        ("{action: Allow, destination: {ports: [80]}}", ["ports require a protocol", "write `protocol: TCP`"]),
        ("{action: Allow, protocol: ICMP, destination: {ports: [80]}}", ["ports require a protocol", "UDP or SCTP"]),
        ("{action: Allow, protocol: TCP, destination: {ports: [0]}}", ["ports[0]: invalid port \"0\"", "1 to 65535"]),
        (
            "{action: Allow, protocol: TCP, destination: {ports: ['9:8']}}",
            ["ports[0]: invalid port \"9:8\"", "1000:2000"],
        ),
        (
            "{action: Allow, protocol: TCP, destination: {ports: ['a b']}}",
            ["ports[0]: invalid port \"a b\"", "name of a port"],
        ),
        (
            "{action: Allow, protocol: TCP, destination: {notPorts: [http]}}",
            ["names of ports cannot be excluded", "number"],
        ),
        (
            "{action: Allow, protocol: TCP, destination: {ports: [http], notPorts: [1]}}",
            ["cannot be combined with `notPorts`", "two rules"],
        ),
        ("{action: Allow, protocol: GRE}", ["protocol: unknown protocol \"GRE\"", "a number from 1 to 255"]),
        ("{action: Allow, protocol: 256}", ["protocol: unknown protocol \"256\"", "1 to 255"]),
        ("{action: Allow, icmp: {type: 8}}", ["icmp: types of ICMP require", "`protocol: ICMP`"]),
        ("{action: Allow, protocol: ICMP, icmp: {code: 0}}", ["icmp: `code` requires `type`", "add the type"]),
        ("{action: Allow, protocol: ICMP, icmp: {type: 255}}", ["icmp.type: a number out of range", "0 to 254"]),
        ("{action: Allow, ipVersion: 5}", ["ipVersion: unknown version 5", "write 4 or 6"]),
        ("{action: Deny, http: {methods: [GET]}}", ["`http` cannot be used here", "`action: Allow`"]),
        ("{action: allow}", ["action: unknown action \"allow\"", "Allow, Deny, Pass or Log"]),
        ("{}", ["missing field `action`", "Allow, Deny, Pass or Log"]),
        ("{action: Allow, source: {selectr: a}}", ["unknown field `selectr`", "did you mean `selector`?"]),
        ("{action: Allow, source: {selector: a = 'x'}}", ["source.selector: invalid selector", "app == 'web'"]),
        (r#"{action: Allow, source: {selector: "a == 'x'\n"}}"#, ["source.selector: invalid selector", "`>-`"]),
        ("{action: Allow, source: {selector: 'global()'}}", ["`global()` cannot be used here", "`namespaceSelector`"]),
        ("{action: Allow, source: {namespaceSelector: 'global() || has(a)'}}", ["cannot be combined", "alone"]),
        ("{action: Allow, source: {nets: [10.0.0.0/33]}}", ["source.nets[0]: invalid block", "0 to 32"]),
        (
            "{action: Allow, source: {serviceAccounts: {selector: '('}}}",
            ["serviceAccounts.selector: invalid selector", "help"],
        ),
    ] {
        let text = rule_error(rule);
        assert!(parts.iter().all(|part| text.contains(part)), "{rule}\n{text}");
    }
    for (rule, parts) in [
        (
            "egress: [{action: Deny, destination: {domains: [a.io]}}]",
            ["destination.domains: domain names cannot be used here", "`action: Allow`"],
        ),
        (
            "egress: [{action: Allow, source: {domains: [a.io]}}]",
            ["source.domains: domain names cannot", "destination of an egress rule"],
        ),
        ("ingress: [{action: Allow, source: {domains: [a.io]}}]", ["source.domains: domain names cannot", "egress"]),
        (
            "egress: [{action: Allow, destination: {domains: [a.io], selector: has(a)}}]",
            ["destination: `domains` cannot be combined", "two rules"],
        ),
        (
            "egress: [{action: Allow, destination: {domains: [a.io], nets: [10.0.0.0/8]}}]",
            ["`domains` cannot be combined", "two rules"],
        ),
        (
            "egress: [{action: Allow, destination: {domains: [a.io, 'www.*.io']}}]",
            ["destination.domains[1]: unsupported domain name \"www.*.io\"", "*.example.com"],
        ),
        (
            "egress: [{action: Allow, destination: {domains: ['matchPattern:a']}}]",
            ["domains[0]: unsupported", "www.example.com"],
        ),
    ] {
        let text = errors("NetworkPolicy", &format!("{{{rule}}}"));
        assert!(parts.iter().all(|part| text.contains(part)), "{rule}\n{text}");
    }
    let egress = errors("NetworkPolicy", "{egress: [{action: Allow, http: {}}]}");
    assert!(egress.contains("spec.egress[0].http: `http` cannot be used here"), "{egress}");
    let with_ports =
        "{egress: [{action: Allow, protocol: TCP, destination: {services: {name: s, namespace: x}, ports: [1]}}]}";
    assert!(errors("NetworkPolicy", with_ports).contains("`services` cannot be combined with ports"));
}

#[test]
fn each_fault_of_a_policy_or_another_object_names_field_and_remedy() {
    for (kind, spec, parts) in [
        ("NetworkPolicy", "{selector: '('}", ["spec.selector: invalid selector", "help"]),
        ("NetworkPolicy", "{selectr: 'all()'}", ["unknown field `selectr`", "did you mean `selector`?"]),
        ("NetworkPolicy", "{types: [ingress]}", ["spec.types[0]: unknown type \"ingress\"", "Ingress or Egress"]),
        (
            "NetworkPolicy",
            "{namespaceSelector: 'all()'}",
            ["unknown field `namespaceSelector` in a Calico NetworkPolicy", "remove it"],
        ),
        ("NetworkPolicy", "{stagedAction: Set}", ["unknown field `stagedAction`", "remove it"]),
        ("NetworkPolicy", "{applyOnForward: true}", ["unknown field `applyOnForward`", "remove it"]),
        ("NetworkPolicy", "{order: high}", ["spec.order: invalid type", "help"]),
        ("NetworkPolicy", "{tier: A}", ["spec.tier: invalid name", "name of a Tier"]),
        ("NetworkPolicy", "", ["missing field `spec`", "add `spec`"]),
        ("GlobalNetworkPolicy", "{namespaceSelector: 'global()'}", ["`global()` cannot be used here", "rule"]),
        (
            "StagedNetworkPolicy",
            "{stagedAction: Try}",
            ["stagedAction: unknown action", "Set, Delete, Learn or Ignore"],
        ),
        ("StagedKubernetesNetworkPolicy", "{podSelector: {}, ingres: []}", ["unknown field `ingres`", "`ingress`"]),
        ("Tier", "{defaultAction: Allow}", ["spec.defaultAction: unknown action \"Allow\"", "write Deny or Pass"]),
        ("Tier", "{orders: 1}", ["unknown field `orders`", "did you mean `order`?"]),
        ("NetworkSet", "{nets: [10.0.0.0/8, x]}", ["spec.nets[1]: invalid address", "help"]),
        ("GlobalNetworkSet", "{priority: 1}", ["unknown field `priority`", "remove it"]),
        (
            "NetworkSet",
            "{allowedEgressDomains: ['a b']}",
            ["spec.allowedEgressDomains[0]: unsupported", "*.example.com"],
        ),
    ] {
        let text = errors(kind, spec);
        assert!(parts.iter().all(|part| text.contains(part)), "{kind} {spec}\n{text}");
        // No stand-in is possible, so the lenient mode refuses these too, unless a faulty object decides nothing.
        let survives = load(&document(kind, spec), Strictness::Lenient).is_ok();
        assert_eq!(survives, kind == "StagedKubernetesNetworkPolicy", "{kind} {spec}");
    }
    let default = document("Tier", "{order: 7, defaultAction: Deny}").replace("name: p", "name: default");
    let text = messages(&load(&default, Strictness::Strict).unwrap_err()).join("");
    assert!(text.contains("tier `default` has order 1000000 and default action Deny"), "{text}");
    let usual = document("Tier", "{order: 1000000, defaultAction: Deny}").replace("name: p", "name: default");
    assert!(load(&usual, Strictness::Strict).is_ok());
    let placed = document("GlobalNetworkPolicy", "{}").replace("{name: p}", "{name: p, namespace: x}");
    assert!(messages(&load(&placed, Strictness::Strict).unwrap_err())[0].contains("has no namespace"));
}

#[test]
fn in_lenient_mode_a_faulty_rule_never_widens() {
    let rules = "{ingress: [{action: Allow, source: {ports: [1]}}, {action: Deny, source: {ports: [1]}}, {action: Pass, x: 1}, {x: 1}]}";
    let loaded = load(&document("NetworkPolicy", rules), Strictness::Lenient).unwrap();
    let [policy] = policies(&loaded)[..] else { panic!("{loaded:?}") };
    let actions: Vec<_> = policy.ingress.iter().map(|rule| rule.action).collect();
    assert_eq!(actions, [Action::Log, Action::Deny, Action::Deny, Action::Deny]);
    assert!(policy.fault.as_ref().unwrap().contains("ports of the source"), "{:?}", policy.fault);
    assert_eq!(loaded.warnings.total(), 4);
    let text = messages(&loaded.warnings)[0].clone();
    assert!(text.contains("until then a rule decides nothing if it allows, and denies everything otherwise"), "{text}");
}

#[test]
fn what_decides_nothing_about_pods_is_passed_over_with_a_warning() {
    for (spec, part) in [
        ("{doNotTrack: true, applyOnForward: true, ingress: [{action: Allow, source: {ports: [1]}}]}", "`doNotTrack`"),
        ("{preDNAT: true, applyOnForward: true}", "`preDNAT`"),
    ] {
        let loaded = load(&document("GlobalNetworkPolicy", spec), Strictness::Strict).unwrap();
        assert!(loaded.objects.is_empty());
        let text = messages(&loaded.warnings).join("");
        assert!(
            text.contains("Calico GlobalNetworkPolicy p: spec.")
                && text.contains(part)
                && text.contains("host endpoints only"),
            "{text}"
        );
    }
    let text = warnings(&document("GlobalNetworkPolicy", "{applyOnForward: true}")).join("");
    assert!(text.contains("host endpoints are not judged"), "{text}");
    let host = warnings(&document("HostEndpoint", "{node: n, expectedIPs: [192.0.2.1], ports: []}")).join("");
    assert!(host.contains("Calico HostEndpoint p: traffic of host endpoints is not judged"), "{host}");
    let idle = warnings(&document("NetworkPolicy", "{types: [Ingress], egress: [{action: Allow}]}")).join("");
    assert!(idle.contains("spec.egress: these rules have no effect"), "{idle}");
    let loopback = "{ingress: [{action: Deny, destination: {nets: [127.0.0.0/8, '::1']}}, {action: Allow}]}";
    let loaded = load(&document("GlobalNetworkPolicy", loopback), Strictness::Strict).unwrap();
    let text = messages(&loaded.warnings).join("");
    assert!(text.contains("spec.ingress[0].destination: traffic to a loopback address"), "{text}");
    let families: Vec<_> = policies(&loaded)[0].ingress.iter().map(|rule| rule.families).collect();
    assert_eq!(families, [Families::NONE, Families::BOTH]);
    let wider = "{ingress: [{action: Allow, destination: {nets: [127.0.0.0/8, 10.0.0.0/8]}}]}";
    assert!(errors("GlobalNetworkPolicy", wider).contains("addresses of the policy's own pods"));
    let staged =
        warnings(&document("StagedKubernetesNetworkPolicy", "{podSelector: {}, stagedAction: Delete}")).join("");
    assert!(staged.contains("passed over"), "{staged}");
}

#[test]
fn the_input_must_have_the_objects_on_which_policies_depend() {
    let lost = warnings(&document("NetworkPolicy", "{tier: lost}")).join("");
    assert!(
        lost.contains("tier `lost` has no Tier object") && lost.starts_with("t.yaml:1: Calico NetworkPolicy x/p: "),
        "{lost}"
    );
    let accounts = errors("NetworkPolicy", "{serviceAccountSelector: has(a)}");
    assert!(
        accounts.contains("the input has no ServiceAccount") && accounts.contains("kubectl get serviceaccounts"),
        "{accounts}"
    );
    assert!(
        load(&document("NetworkPolicy", "{serviceAccountSelector: projectcalico.org/name == 'a'}"), Strictness::Strict)
            .is_ok()
    );
    let service = "{ingress: [{action: Allow, source: {services: {name: s, namespace: x}}}]}";
    assert!(errors("NetworkPolicy", service).contains("the input has no EndpointSlice"));
    let slice = "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s-1, namespace: x, labels: \
                 {kubernetes.io/service-name: s}}, addressType: IPv4, endpoints: [{addresses: [10.0.0.1]}], ports: []}\n";
    // Services are not read here, except if a policy depends on them.
    let loaded = load(&(document("NetworkPolicy", service) + slice), Strictness::Strict).unwrap();
    assert!(loaded.objects.iter().any(|object| matches!(object, Object::EndpointSlice(_))));
    let other = load(&(document("NetworkPolicy", "{}") + slice), Strictness::Strict).unwrap();
    assert_eq!(other.objects.len(), 1);
    let faulty = slice.replace("10.0.0.1", "10.0.0.1000");
    let text = messages(
        &load(&(document("NetworkPolicy", service) + slice + &faulty.replace("s-1", "s-2")), Strictness::Strict)
            .unwrap_err(),
    );
    assert!(text.join("").contains("EndpointSlice x/s-2 at t.yaml:"), "{text:?}");
}

#[test]
fn without_the_option_policies_are_counted() {
    let policy = document("NetworkPolicy", "{}");
    let loaded = load_text("t.yaml", &format!("{policy}---\n{policy}"), Strictness::Strict).unwrap();
    assert!(loaded.objects.is_empty() && loaded.skipped.is_empty());
    assert_eq!(loaded.foreign, [("projectcalico.org/v3 NetworkPolicy".to_owned(), 2)].into());
    let ignored = ["NetworkPolicy.projectcalico.org".parse().unwrap()].into();
    let options = Options { foreign: ForeignKinds::Read, ignored, ..Options::default() };
    let loaded = load_text("t.yaml", &policy, options).unwrap();
    assert_eq!((loaded.objects.len(), loaded.ignored.len()), (0, 1));
    let account = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: a, namespace: x}}";
    assert!(load_text("t.yaml", account, Strictness::Strict).unwrap().objects.is_empty());
    assert_eq!(load(account, Strictness::Strict).unwrap().objects.len(), 1);
}

#[test]
fn two_objects_of_a_name_are_refused_unless_they_are_the_same_in_both_groups() {
    let one = document("NetworkPolicy", "{types: [Ingress]}");
    let stored = one.replace("projectcalico.org/v3", "crd.projectcalico.org/v1");
    assert_eq!(load(&format!("{one}---\n{stored}"), Strictness::Strict).unwrap().objects.len(), 1);
    let other = stored.replace("Ingress", "Egress");
    for strictness in [Strictness::Strict, Strictness::Lenient] {
        let text = messages(&load(&format!("{one}---\n{other}"), strictness).unwrap_err()).join("");
        assert!(text.contains("the object is given twice"), "{text}");
    }
}

#[test]
fn hostile_selectors_and_lists_are_read_or_refused_in_time() {
    let mut spec = String::from("{ingress: [");
    for at in 0..2000 {
        write!(spec, "{{action: Allow, protocol: TCP, destination: {{ports: ['{}:{}']}}}},", at + 1, at + 2).unwrap();
    }
    assert!(load(&document("NetworkPolicy", &(spec + "]}")), Strictness::Strict).is_ok());
    let deep = format!("{{selector: \"{}has(a){}\"}}", "(".repeat(30_000), ")".repeat(30_000));
    assert!(errors("NetworkPolicy", &deep).contains("nested parentheses"));
    let ports: Vec<_> = (1..1000).map(|at| (2 * at).to_string()).collect();
    let many =
        format!("{{ingress: [{{action: Allow, protocol: TCP, destination: {{notPorts: [{}]}}}}]}}", ports.join(","));
    let loaded = load(&document("NetworkPolicy", &many), Strictness::Strict).unwrap();
    assert_eq!(policies(&loaded)[0].ingress[0].ports.as_ref().unwrap().len(), 1000);
}
