//! NetworkPolicy: the result of reading valid policies, and the exact messages about faults.

use super::*;
use crate::object::{IpBlock, NamespaceScope, Peer, PodPeer, Policy, PolicyPort, PolicyRule, Transport};
use crate::selector::{Condition, Requirement, Selector};

pub(super) fn strict(text: &str) -> Result<Loaded, SourceErrors> {
    load_text("t.yaml", text, Strictness::Strict)
}

pub(super) fn lenient(text: &str) -> Loaded {
    load_text("t.yaml", text, Strictness::Lenient).unwrap_or_else(|errors| panic!("{errors}"))
}

pub(super) fn messages(reports: &SourceErrors) -> Vec<String> {
    reports.shown().iter().map(ToString::to_string).collect()
}

/// Returns the displayed errors of a text.
pub(super) fn errors(text: &str) -> Vec<String> {
    match strict(text) {
        Ok(loaded) => panic!("accepted: {loaded:?}"),
        Err(errors) => messages(&errors),
    }
}

pub(super) fn policies(loaded: &Loaded) -> Vec<&Policy> {
    let mut policies = Vec::new();
    for object in &loaded.objects {
        if let Object::Policy(policy) = object {
            policies.push(&**policy);
        }
    }
    policies
}

/// Returns the text of a policy whose spec starts on line 5.
pub(super) fn policy_text(spec: &str) -> String {
    let spec: String = spec.lines().map(|line| format!("  {line}\n")).collect();
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: web, namespace: shop}}\nspec:\n{spec}"
    )
}

/// Returns the policy with this spec, and the warnings.
fn read_spec(spec: &str) -> (Policy, Vec<String>) {
    let loaded = strict(&policy_text(spec)).unwrap_or_else(|errors| panic!("{spec}\n{errors}"));
    assert_eq!(loaded.objects.len(), 1);
    (policies(&loaded)[0].clone(), messages(&loaded.warnings))
}

fn read(spec: &str) -> Policy {
    let (policy, warnings) = read_spec(spec);
    assert_eq!(warnings, [""; 0], "{spec}");
    policy
}

/// Returns the only error about the spec, without the prefix that all such errors have.
fn spec_error(spec: &str) -> String {
    let errors = errors(&policy_text(spec));
    assert_eq!(errors.len(), 1, "{errors:#?}");
    let (place, rest) = errors[0].split_once(": NetworkPolicy shop/web: ").expect("names the policy");
    format!("{} {rest}", place.strip_prefix("t.yaml:").expect("names the file"))
}

fn labels(pairs: &[(&str, &str)]) -> Selector {
    let one = |&(key, value): &(&str, &str)| requirement(key, Condition::In(vec![value.into()]));
    Selector::new(pairs.iter().map(one))
}

fn requirement(key: &str, condition: Condition) -> Requirement {
    Requirement { key: key.into(), condition }
}

fn only_rule(policy: &Policy) -> &PolicyRule {
    match policy.ingress.as_deref() {
        Some([rule]) => rule,
        other => panic!("one ingress rule expected: {other:?}"),
    }
}

fn only_peer(spec_peer: &str) -> Peer {
    let policy = read(&format!("ingress: [{{from: [{spec_peer}]}}]"));
    only_rule(&policy).peers.as_ref().expect("the list is there")[0].clone()
}

fn block(cidr: &str, except: &[&str]) -> Peer {
    let parse = |text: &&str| text.parse().unwrap();
    Peer::Block(IpBlock { cidr: parse(&cidr), except: except.iter().map(parse).collect() })
}

#[test]
fn an_absent_or_null_or_empty_pod_selector_selects_every_pod() {
    for spec in ["policyTypes: [Ingress]", "podSelector:", "podSelector: {}", "podSelector: {matchLabels: }"] {
        assert_eq!(read(spec).subject, Selector::everything(), "{spec}");
    }
}

#[test]
fn a_policy_without_a_spec_isolates_its_namespace_and_is_warned_about() {
    for spec in ["", "spec:\n", "spec: null\n"] {
        let text = format!("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: web}}\n{spec}");
        let loaded = strict(&text).unwrap();
        let policy = policies(&loaded)[0];
        assert_eq!((&policy.subject, &policy.ingress, &policy.egress), (&Selector::everything(), &Some(vec![]), &None));
        assert_eq!(loaded.warnings.total(), 1);
    }
}

#[test]
fn selectors_take_labels_and_all_four_operators() {
    let policy = read(
        "podSelector:\n  matchLabels: {app: web, empty: \"\"}\n  matchExpressions:\n\
         \x20 - {key: tier, operator: In, values: [b, a]}\n  - {key: x.y/z, operator: NotIn, values: [c]}\n\
         \x20 - {key: here, operator: Exists}\n  - {key: gone, operator: DoesNotExist, values: []}",
    );
    let expected = Selector::new([
        requirement("app", Condition::In(vec!["web".into()])),
        requirement("empty", Condition::In(vec!["".into()])),
        requirement("tier", Condition::In(vec!["a".into(), "b".into()])),
        requirement("x.y/z", Condition::NotIn(vec!["c".into()])),
        requirement("here", Condition::Exists),
        requirement("gone", Condition::DoesNotExist),
    ]);
    assert_eq!(policy.subject, expected);
}

#[test]
fn policy_types_default_to_ingress_and_to_egress_only_with_egress_rules() {
    let directions = |spec: &str| {
        let policy = read(spec);
        (policy.ingress.map(|rules| rules.len()), policy.egress.map(|rules| rules.len()))
    };
    for (spec, expected) in [
        ("podSelector: {}", (Some(0), None)),
        ("egress: []", (Some(0), None)),
        ("egress: [{}]", (Some(0), Some(1))),
        ("{egress: [{}], policyTypes: []}", (Some(0), Some(1))),
        ("{egress: [{}], policyTypes: null}", (Some(0), Some(1))),
        ("policyTypes: [Egress]", (None, Some(0))),
        ("{ingress: [], policyTypes: [Ingress]}", (Some(0), None)),
        ("{ingress: null, policyTypes: [Ingress, Egress]}", (Some(0), Some(0))),
        ("policyTypes: [Ingress, Ingress]", (Some(0), None)),
    ] {
        assert_eq!(directions(spec), expected, "{spec}");
    }
}

#[test]
fn rules_of_a_direction_that_is_not_listed_are_ignored_with_a_warning_but_checked() {
    let (policy, warnings) = read_spec("policyTypes: [Ingress]\negress:\n- {}");
    assert_eq!((policy.ingress, policy.egress), (Some(vec![]), None));
    let warning = "t.yaml:6: NetworkPolicy shop/web: spec.egress: these rules have no effect: policyTypes does not list \
                   Egress\n  help: add Egress to policyTypes, or remove the rules";
    assert_eq!(warnings, [warning]);
    let error = spec_error("policyTypes: [Ingress]\negress:\n- to:\n  - {}");
    assert!(error.starts_with("8 spec.egress[0].to[0]: the peer is empty"), "{error}");
}

#[test]
fn absent_null_and_empty_peers_and_ports_mean_everything() {
    for rule in ["{}", "{from: }", "{from: []}", "{ports: null}", "{ports: [], from: []}"] {
        let policy = read(&format!("ingress: [{rule}]"));
        assert_eq!(only_rule(&policy), &PolicyRule { peers: None, ports: None }, "{rule}");
    }
    let policy = read("{policyTypes: [Egress], egress: [{to: [], ports: []}]}");
    assert_eq!(policy.egress, Some(vec![PolicyRule { peers: None, ports: None }]));
}

#[test]
fn a_pod_selector_alone_stays_in_the_policys_namespace() {
    for peer in
        ["{podSelector: {matchLabels: {a: b}}}", "{podSelector: {matchLabels: {a: b}}, namespaceSelector: null}"]
    {
        let expected =
            PodPeer { namespaces: NamespaceScope::Own("shop".into()), pods: labels(&[("a", "b")]), filter: None };
        assert_eq!(only_peer(peer), Peer::Pods(expected));
    }
}

#[test]
fn both_selectors_of_one_peer_must_hold() {
    let expected = PodPeer {
        namespaces: NamespaceScope::Selected(labels(&[("n", "1")])),
        pods: labels(&[("a", "b")]),
        filter: None,
    };
    let peer = "{podSelector: {matchLabels: {a: b}}, namespaceSelector: {matchLabels: {n: \"1\"}}}";
    assert_eq!(only_peer(peer), Peer::Pods(expected));
}

#[test]
fn an_empty_namespace_selector_means_every_namespace() {
    let all = NamespaceScope::Selected(Selector::everything());
    let expected = PodPeer { namespaces: all, pods: Selector::everything(), filter: None };
    assert_eq!(only_peer("{namespaceSelector: {}}"), Peer::Pods(expected));
}

#[test]
fn blocks_keep_their_exceptions() {
    assert_eq!(
        only_peer("{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16, 10.2.3.4/32]}}"),
        block("10.0.0.0/8", &["10.1.0.0/16", "10.2.3.4/32"])
    );
    assert_eq!(only_peer("{ipBlock: {cidr: '::/0', except: ['fd00::/8']}}"), block("::/0", &["fd00::/8"]));
    assert_eq!(only_peer("{ipBlock: {cidr: ::/0, except: null}}"), block("::/0", &[]));
}

#[test]
fn host_bits_are_cleared_with_a_warning() {
    let (policy, warnings) =
        read_spec("ingress:\n- from:\n  - ipBlock:\n      cidr: 10.1.2.3/8\n      except: [10.9.9.9/16]");
    assert_eq!(only_rule(&policy).peers, Some(vec![block("10.0.0.0/8", &["10.9.0.0/16"])]));
    let start = "NetworkPolicy shop/web: spec.ingress[0].from[0].ipBlock";
    assert_eq!(
        warnings,
        [
            format!(
                "t.yaml:8: {start}.cidr: \"10.1.2.3/8\" has host bits set; read as 10.0.0.0/8\n  \
                 help: write 10.0.0.0/8"
            ),
            format!(
                "t.yaml:9: {start}.except[0]: \"10.9.9.9/16\" has host bits set; read as \
                 10.9.0.0/16\n  help: write 10.9.0.0/16"
            ),
        ]
    );
}

#[test]
fn ports_take_their_defaults_and_ranges() {
    let ports = "ports: [{}, {protocol: UDP}, {port: 80}, {port: http}, {protocol: SCTP, port: 7, endPort: 7}, \
                 {port: 1, endPort: 65535}, {port: 0x50}]";
    let policy = read(&format!("ingress: [{{{ports}}}]"));
    let range = |transport, first, last| PolicyPort::Range { transport, first, last };
    assert_eq!(
        only_rule(&policy).ports.as_deref().unwrap(),
        [
            PolicyPort::All(Transport::Tcp),
            PolicyPort::All(Transport::Udp),
            range(Transport::Tcp, 80, 80),
            PolicyPort::Named { transport: Transport::Tcp, name: "http".into() },
            range(Transport::Sctp, 7, 7),
            range(Transport::Tcp, 1, 65535),
            range(Transport::Tcp, 80, 80),
        ]
    );
}

#[test]
fn every_fault_of_a_rule_is_told_with_its_line_and_remedy() {
    for (rule, expected) in [
        (
            "ports: [{protocol: tcp}]",
            r#"6 spec.ingress[0].ports[0].protocol: unknown protocol "tcp"|write TCP, UDP or SCTP"#,
        ),
        (
            "ports: [{protocol: ICMP}]",
            r#"6 spec.ingress[0].ports[0].protocol: unknown protocol "ICMP"|write TCP, UDP or SCTP"#,
        ),
        ("ports:\n- port: 0", "7 spec.ingress[0].ports[0].port: port 0 does not exist|write a number from 1 to 65535"),
        (
            "ports: [{port: 65536}]",
            "6 spec.ingress[0].ports[0].port: port 65536 does not exist|write a number from 1 to 65535",
        ),
        (
            "ports: [{port: -1}]",
            "6 spec.ingress[0].ports[0].port: port -1 does not exist|write a number from 1 to 65535",
        ),
        (
            "ports: [{port: \"80\"}]",
            r#"6 spec.ingress[0].ports[0].port: invalid port name "80"|write 80 without quotes"#,
        ),
        (
            "ports: [{port: \"\"}]",
            "6 spec.ingress[0].ports[0].port: invalid port name \"\"|write up to 15 lower-case letters, digits and single \
             hyphens, at least one letter",
        ),
        (
            "ports: [{port: HTTP}]",
            "6 spec.ingress[0].ports[0].port: invalid port name \"HTTP\"|write up to 15 lower-case letters, digits and \
             single hyphens, at least one letter",
        ),
        (
            "ports: [{port: 80.5}]",
            "6 spec.ingress[0].ports[0].port: invalid type: floating point `80.5`, expected a port number or a port \
             name|write a whole number from 1 to 65535, or the name of a port",
        ),
        (
            "ports: [{port: true}]",
            "6 spec.ingress[0].ports[0].port: invalid type: boolean `true`, expected a port number or a port name|write a \
             whole number from 1 to 65535, or the name of a port",
        ),
        (
            "ports: [{endPort: 90}]",
            "6 spec.ingress[0].ports[0].endPort: `endPort` requires `port`|add the first port of the range",
        ),
        (
            "ports: [{port: http, endPort: 90}]",
            "6 spec.ingress[0].ports[0].endPort: `endPort` cannot be combined with a named port|write the first port of the range as a \
             number, or remove `endPort`",
        ),
        (
            "ports:\n- port: 90\n  endPort: 89",
            "8 spec.ingress[0].ports[0].endPort: endPort 89 is less than port 90|write a port from 90 to 65535",
        ),
        (
            "ports: [{port: 1, endPort: 70000}]",
            "6 spec.ingress[0].ports[0].endPort: port 70000 does not exist|write a number from 1 to 65535",
        ),
        (
            "from: [{}]",
            "6 spec.ingress[0].from[0]: the peer is empty|write `podSelector: {}` for the policy's own namespace, \
             `namespaceSelector: {}` for every pod, or leave out the list for everyone",
        ),
        (
            "from: [{podSelector: }]",
            "6 spec.ingress[0].from[0]: the peer is empty|write `podSelector: {}` for the policy's own namespace, \
             `namespaceSelector: {}` for every pod, or leave out the list for everyone",
        ),
        (
            "from: [{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}]",
            "6 spec.ingress[0].from[0].ipBlock: `ipBlock` cannot be combined with a selector|write two peers, each after a `- `",
        ),
        ("from: [{ipBlock: {}}]", "6 spec.ingress[0].from[0].ipBlock: missing field `cidr`|add `cidr`"),
        (
            "from: [{namespaceSelector: []}]",
            "6 spec.ingress[0].from[0].namespaceSelector: invalid type: sequence, expected a mapping|write `key: value` \
             pairs, or `{}` for none",
        ),
        (
            "from:\n- namespaceSelecter: {}",
            "7 spec.ingress[0].from[0].namespaceSelecter: unknown field `namespaceSelecter`, expected one of `podSelector`, \
             `namespaceSelector`, `ipBlock`|did you mean `namespaceSelector`?",
        ),
        (
            "to: []",
            "6 spec.ingress[0].to: unknown field `to`, expected `from` or `ports`|remove it: an unknown field \
             could change the meaning of the policy",
        ),
    ] {
        let indented = rule.replace('\n', "\n  ");
        let error = spec_error(&format!("ingress:\n- {indented}"));
        assert_eq!(error, expected.replace('|', "\n  help: "), "{rule}");
    }
}

#[test]
fn every_fault_of_a_block_is_told() {
    let whole = "write a block such as 10.0.0.0/8 or fd00::/8";
    let inside = "write a smaller block of the cidr, of the same address family";
    let length = "without leading zeros";
    for (block, expected) in [
        (
            "cidr: 10.0.0.1",
            "cidr: block \"10.0.0.1\" has no prefix length|write 10.0.0.1/32 for this one address".into(),
        ),
        (
            "cidr: 'fd00::1'",
            "cidr: block \"fd00::1\" has no prefix length|write fd00::1/128 for this one address".into(),
        ),
        ("cidr: web", format!("cidr: block \"web\" has no prefix length|{whole}")),
        ("cidr: 10.0.0/8", format!("cidr: invalid block \"10.0.0/8\": invalid address \"10.0.0\"|{whole}")),
        (
            "cidr: 10.0.010.0/24",
            "cidr: invalid block \"10.0.010.0/24\": invalid address \"10.0.010.0\"|remove the leading zeros".into(),
        ),
        (
            "cidr: 10.0.0.0/33",
            format!("cidr: invalid block \"10.0.0.0/33\": prefix length \"33\"|write a number from 0 to 32, {length}"),
        ),
        (
            "cidr: 10.0.0.0/08",
            format!("cidr: invalid block \"10.0.0.0/08\": prefix length \"08\"|write a number from 0 to 32, {length}"),
        ),
        (
            "cidr: '::/129'",
            format!("cidr: invalid block \"::/129\": prefix length \"129\"|write a number from 0 to 128, {length}"),
        ),
        (
            "cidr: '::ffff:10.0.0.0/104'",
            "cidr: invalid block \"::ffff:10.0.0.0/104\": \"::ffff:10.0.0.0\" is an IPv4-mapped IPv6 address|write \
             10.0.0.0"
                .into(),
        ),
        (
            "cidr: 10.0.0.0/8, except: [10.0.0.0/8]",
            format!("except[0]: \"10.0.0.0/8\" is not strictly inside cidr \"10.0.0.0/8\"|{inside}"),
        ),
        (
            "cidr: 10.0.0.0/8, except: [0.0.0.0/0]",
            format!("except[0]: \"0.0.0.0/0\" is not strictly inside cidr \"10.0.0.0/8\"|{inside}"),
        ),
        (
            "cidr: 10.0.0.0/8, except: [11.0.0.0/9]",
            format!("except[0]: \"11.0.0.0/9\" is not strictly inside cidr \"10.0.0.0/8\"|{inside}"),
        ),
        (
            "cidr: 0.0.0.0/0, except: ['fd00::/8']",
            format!("except[0]: \"fd00::/8\" is not strictly inside cidr \"0.0.0.0/0\"|{inside}"),
        ),
    ] {
        let error = spec_error(&format!("ingress: [{{from: [{{ipBlock: {{{block}}}}}]}}]"));
        let expected = format!("5 spec.ingress[0].from[0].ipBlock.{}", expected.replace('|', "\n  help: "));
        assert_eq!(error, expected, "{block}");
    }
}

#[test]
fn every_fault_of_a_selector_is_told() {
    let value = "write up to 63 letters, digits, `-`, `_` and `.`, starting and ending with a letter or digit";
    let key = "write up to 63 letters, digits, `-`, `_` and `.`, optionally after a domain and `/`";
    for (selector, expected) in [
        (
            "matchExpressions: [{key: a, operator: In}]",
            "matchExpressions[0].values: operator In without values|add at least one value".into(),
        ),
        (
            "matchExpressions: [{key: a, operator: NotIn, values: []}]",
            "matchExpressions[0].values: operator NotIn without values|add at least one value".into(),
        ),
        (
            "matchExpressions: [{key: a, operator: Exists, values: [b]}]",
            "matchExpressions[0].values: operator Exists with values|remove the values, or write In or NotIn".into(),
        ),
        (
            "matchExpressions: [{key: a, operator: in, values: [b]}]",
            "matchExpressions[0].operator: unknown operator \"in\"|write In, NotIn, Exists or DoesNotExist".into(),
        ),
        ("matchExpressions: [{key: a}]", "matchExpressions[0]: missing field `operator`|add `operator`".into()),
        (
            "matchExpressions: [{key: '-', operator: Exists}]",
            format!("matchExpressions[0].key: invalid label key \"-\"|{key}"),
        ),
        (
            "matchExpressions: [{key: a, operator: In, values: [b c]}]",
            format!("matchExpressions[0].values[0]: invalid label value \"b c\"|{value}"),
        ),
        ("matchLabels: {a/b/c: d}", format!("matchLabels.a/b/c: invalid label key \"a/b/c\"|{key}")),
        ("matchLabels: {a.b/c: -d}", format!("matchLabels[\"a.b/c\"]: invalid label value \"-d\"|{value}")),
        (
            "matchLabels: {a: 1}",
            "matchLabels.a: invalid type: integer `1`, expected a string|put the value in quotes".into(),
        ),
        (
            "matchLabels: {a: yes}",
            "matchLabels.a: invalid type: boolean `true`, expected a string|put the value in quotes".into(),
        ),
        (
            "matchLabels: {a: 1.10}",
            "matchLabels.a: invalid type: floating point `1.1`, expected a string|put the value in quotes".into(),
        ),
        (
            "matchLabels: {a: }",
            "matchLabels.a: invalid type: null, expected a string|write a value, or \"\" for an empty one".into(),
        ),
        (
            "matchLables: {a: b}",
            "matchLables: unknown field `matchLables`, expected `matchLabels` or `matchExpressions`|did you mean \
             `matchLabels`?"
                .into(),
        ),
        (
            "app: web",
            "app: unknown field `app`, expected `matchLabels` or `matchExpressions`|remove it: an unknown field \
             could change the meaning of the policy"
                .into(),
        ),
    ] {
        let error = spec_error(&format!("podSelector: {{{selector}}}"));
        assert_eq!(error, format!("5 spec.podSelector.{}", expected.replace('|', "\n  help: ")), "{selector}");
    }
}

#[test]
fn an_unknown_policy_type_is_an_error() {
    let expected = "7 spec.policyTypes[1]: unknown policy type \"egress\"\n  help: write Ingress or Egress";
    assert_eq!(spec_error("policyTypes:\n- Ingress\n- egress"), expected);
}

#[test]
fn a_misspelt_direction_is_an_error_and_not_a_policy_that_denies_or_allows() {
    let expected = "6 spec.ingres: unknown field `ingres`, expected one of `podSelector`, `ingress`, `egress`, `policyTypes`\n  \
                    help: did you mean `ingress`?";
    assert_eq!(spec_error("podSelector: {}\ningres:\n- {}"), expected);
}

#[test]
fn a_null_rule_is_not_a_rule_that_allows_everything() {
    let expected = "6 spec.ingress[0]: invalid type: null, expected a mapping\n  help: write `{}` for an empty mapping";
    assert_eq!(spec_error("ingress:\n-\n"), expected);
}

#[test]
fn all_faults_of_a_policy_are_told_at_once() {
    let errors = errors(&policy_text("policyTypes: [x]\ningress:\n- from: [{}]\n  ports: [{protocol: x}, {port: 0}]"));
    assert_eq!(errors.len(), 4, "{errors:#?}");
}

#[test]
fn the_metadata_of_a_policy_is_held_to_its_fields_as_well() {
    for (object, expected) in [
        (
            "metadata: {nmae: web}",
            "t.yaml:3: NetworkPolicy: metadata.nmae: unknown field \"nmae\"|did you mean `name`?",
        ),
        (
            "metadata: {name: web, namepsace: prod}",
            "t.yaml:3: NetworkPolicy default/web: metadata.namepsace: unknown field \"namepsace\"|did you mean `namespace`?",
        ),
        (
            "metadata: {name: 7}",
            "t.yaml:3: NetworkPolicy: metadata.name: invalid type: integer `7`, expected a string|put the value in quotes",
        ),
        ("metadata: {}", "t.yaml:3: NetworkPolicy: metadata: missing field `name`|add `name`"),
        (
            "metadata:",
            "t.yaml:3: NetworkPolicy: metadata: invalid type: null, expected a mapping|write `{}` for an empty mapping",
        ),
        ("spec: {}", "t.yaml:1: NetworkPolicy: missing field `metadata`|add `metadata` with a `name`"),
        (
            "metadata: {name: Web}",
            "t.yaml:3: NetworkPolicy default/Web: metadata.name: invalid name \"Web\"|write lower-case letters, digits, `-` and `.`, \
             starting and ending with a letter or digit",
        ),
        (
            "metadata: {name: web, namespace: a.b}",
            "t.yaml:3: NetworkPolicy a.b/web: metadata.namespace: invalid namespace \"a.b\"|write up to 63 lower-case letters, \
             digits and `-`",
        ),
        (
            "metadata: {name: web}\nsepc: {}",
            "t.yaml:4: NetworkPolicy default/web: sepc: unknown field `sepc`, expected one of `apiVersion`, `kind`, \
             `metadata`, `status`, `spec`|did you mean `spec`?",
        ),
    ] {
        let text = format!("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n{object}\n");
        assert_eq!(errors(&text), [expected.replace('|', "\n  help: ")], "{object}");
    }
}

#[test]
fn a_policy_as_the_api_server_prints_it_is_accepted() {
    let text = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  annotations:\n    \
                kubectl.kubernetes.io/last-applied-configuration: |\n      {}\n  creationTimestamp: \"2026-01-01T00:00:00Z\"\n  \
                generation: 1\n  labels: {a: b}\n  managedFields: [{manager: kubectl, fieldsV1: {f:spec: {}}}]\n  name: web\n  \
                namespace: shop\n  ownerReferences: []\n  finalizers: []\n  resourceVersion: \"7\"\n  selfLink: /x\n  \
                uid: 0-0\nspec:\n  podSelector: {}\n  policyTypes: [Ingress]\nstatus: {conditions: [{anything: 1}]}\n";
    let loaded = strict(text).unwrap();
    assert!(loaded.warnings.is_empty());
    assert_eq!(policies(&loaded)[0].name.to_string(), "shop/web");
}

#[test]
fn a_policy_of_another_api_version_is_never_passed_over() {
    for (api_version, kind, expected) in [
        (
            "extensions/v1beta2",
            "NetworkPolicy",
            "apiVersion: NetworkPolicy of \"extensions/v1beta2\" is not supported|write `apiVersion: networking.k8s.io/v1`",
        ),
        (
            "networking.k8s.io/v2",
            "NetworkPolicy",
            "apiVersion: NetworkPolicy of \"networking.k8s.io/v2\" is not supported|write `apiVersion: networking.k8s.io/v1`",
        ),
        (
            "networking.k8s.oi/v1",
            "NetworkPolicy",
            "apiVersion: NetworkPolicy of \"networking.k8s.oi/v1\" is not supported|write `apiVersion: networking.k8s.io/v1`",
        ),
        (
            "v1",
            "NetworkPolicy",
            "apiVersion: NetworkPolicy of \"v1\" is not supported|write `apiVersion: networking.k8s.io/v1`",
        ),
        ("networking.k8s.io/v1", "Networkpolicy", "kind: unknown kind \"Networkpolicy\"|did you mean `NetworkPolicy`?"),
        (
            "networking.k8s.io/v1",
            "NetworkPolicies",
            "kind: unknown kind \"NetworkPolicies\"|did you mean `NetworkPolicy`?",
        ),
    ] {
        let text = format!(
            "{{apiVersion: {api_version}, kind: {kind}, metadata: {{name: web}}, spec: {{podSelector: {{}}}}}}"
        );
        let expected = format!("t.yaml:1: NetworkPolicy default/web: {}", expected.replace('|', "\n  help: "));
        assert_eq!(errors(&text), [expected]);
        let loaded = lenient(&text);
        assert!(policies(&loaded)[0].fault.is_some(), "{text}");
    }
}

#[test]
fn kinds_that_restrict_traffic_and_are_not_enforced_are_an_error_each_unless_they_may_be_ignored() {
    for (api_version, kind, name) in [
        ("policy.antrea.io/v1beta2", "AntreaNetworkPolicy", "antreanetworkpolicy"),
        ("networking.example.org/v1", "NetworkPolicy", "NetworkPolicy.networking.example.org"),
        ("crd.antrea.io/v1beta1", "ClusterNetworkPolicy", "ClusterNetworkPolicy.crd.antrea.io"),
        ("k8s.ovn.org/v1", "EgressFirewall", "EgressFirewall"),
    ] {
        let one = format!("apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: a}}\n---\n");
        let text = one.repeat(3);
        for strictness in [Strictness::Strict, Strictness::Lenient] {
            let errors = messages(&load_text("t.yaml", &text, strictness).unwrap_err());
            let [error] = &errors[..] else { panic!("{kind}: {errors:?}") };
            assert!(
                error.starts_with(&format!("t.yaml:1: objects of kind {api_version} {kind} restrict traffic")),
                "{error}"
            );
            let written = error.split("--ignore ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
            for name in [name, written] {
                let options = Options { ignored: [name.parse().unwrap()].into(), ..strictness.into() };
                let loaded = load_text("t.yaml", &text, options).unwrap();
                assert!(loaded.warnings.is_empty() && loaded.unenforced.is_empty(), "{name}");
                assert_eq!((loaded.ignored.values().sum::<usize>(), loaded.skipped.len()), (3, 0), "{name}");
            }
            let other = Options { ignored: ["OtherNetworkPolicy".parse().unwrap()].into(), ..strictness.into() };
            assert!(load_text("t.yaml", &text, other).is_err());
            let report = Options { unenforced: Unenforced::Report, ..strictness.into() };
            assert_eq!(messages(&load_text("t.yaml", &text, report).unwrap().unenforced), errors);
        }
    }
    // Calico does not enforce the first one, and the second restricts nothing.
    let others = "{apiVersion: projectcalico.org/v3, kind: StagedNetworkPolicy}\n---\n{apiVersion: stats.antrea.io/v1alpha1, kind: NetworkPolicyStats}";
    assert!(strict(others).unwrap().warnings.is_empty());
}

#[test]
fn kubernetes_own_policies_cannot_be_ignored() {
    for wrong in [
        "NetworkPolicy",
        "networkpolicy.networking.k8s.io",
        "NetworkPolicy.extensions",
        "",
        ".x",
        "a.",
        "cilium.io/v2 X",
    ] {
        assert!(wrong.parse::<KindName>().is_err(), "{wrong}");
    }
}

#[test]
fn a_faulty_policy_fails_closed_where_faults_are_survived() {
    let loaded =
        lenient(&policy_text("podSelector: {matchLabels: {a: b}}\ningress:\n- ports: [{port: 80}]\n- from: [{}]"));
    let policy = policies(&loaded)[0];
    assert_eq!(policy.subject, labels(&[("a", "b")]));
    assert_eq!((&policy.ingress, &policy.egress), (&Some(vec![]), &Some(vec![])));
    assert_eq!(policy.fault.as_deref(), Some("spec.ingress[1].from[0]: the peer is empty"));
    assert_eq!(loaded.warnings.total(), 1);
    assert!(loaded.warnings.shown()[0].help.ends_with("; until then it isolates its pods and allows nothing"));
}

#[test]
fn a_faulty_policy_whose_subjects_are_not_known_isolates_its_whole_namespace() {
    for spec in [
        "podSelector: {matchLables: {a: b}}",
        "podSelector: {matchLabels: {a: b, c: 1}}",
        "podSelecter: {}",
        "podSelector: []",
    ] {
        let loaded = lenient(&policy_text(spec));
        let policy = policies(&loaded)[0];
        assert_eq!(policy.subject, Selector::everything(), "{spec}");
        assert!(policy.fault.is_some(), "{spec}");
    }
}

#[test]
fn a_policy_whose_metadata_is_not_understood_isolates_where_it_can_be_known_to() {
    let head = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nspec: {podSelector: {matchLabels: {a: b}}, ingress: [{}]}\n";
    for (metadata, name) in [
        ("metadata: {name: web, namepsace: prod}", "prod/web"),
        ("metadata: {nmae: web, namespace: prod}", "prod/web"),
        ("metadata: {namespace: prod}", "prod/unnamed at t.yaml:1"),
        ("metadata: {namespace: prod, name: Web}", "prod/unnamed at t.yaml:1"),
        ("metadata: []", "default/unnamed at t.yaml:1"),
        ("metadata:", "default/unnamed at t.yaml:1"),
        ("", "default/unnamed at t.yaml:1"),
        ("metadata: {name: 7, namespace: 8}", "8/7"),
    ] {
        let text = format!("{head}{metadata}\n");
        assert_eq!(errors(&text).len().min(1), 1, "{metadata}");
        let loaded = lenient(&text);
        let policy = policies(&loaded)[0];
        assert_eq!(policy.name.to_string(), name, "{metadata}");
        assert_eq!((&policy.ingress, &policy.egress), (&Some(vec![]), &Some(vec![])), "{metadata}");
        assert_eq!(policy.subject, labels(&[("a", "b")]), "{metadata}");
        assert!(policy.fault.is_some() && loaded.faulty == 1 && !loaded.warnings.is_empty(), "{metadata}");
    }
    // No pod can be in these namespaces, so the policy applies to none.
    for namespace in ["a.b", "[prod]", "{}", "Prod"] {
        let loaded = lenient(&format!("{head}metadata: {{name: web, namespace: {namespace}}}\n"));
        assert_eq!((loaded.objects.len(), loaded.faulty, loaded.warnings.total()), (0, 1, 1), "{namespace}");
    }
}

#[test]
fn policies_without_names_are_kept_apart() {
    let one = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {}}";
    let loaded = lenient(&format!("{{apiVersion: v1, kind: List, items: [{one}, {one}, {one}]}}"));
    let names: BTreeSet<_> = policies(&loaded).iter().map(|policy| policy.name.clone()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
}

#[test]
fn a_field_of_the_metadata_that_is_not_known_is_worth_a_warning_and_no_more() {
    let head = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nspec: {podSelector: {}}\n";
    for (metadata, warning) in [
        (
            "{name: web, shardOfTomorrow: {a: [1]}}",
            "t.yaml:4: NetworkPolicy default/web: metadata.shardOfTomorrow: unknown field",
        ),
        ("{name: web, names: [a]}", "t.yaml:4: NetworkPolicy default/web: metadata.names: unknown field"),
        ("{name: web, labels: {v: 1.10}}", "t.yaml:4: NetworkPolicy default/web: metadata.labels.v: invalid type"),
        ("{name: web, annotations: []}", "t.yaml:4: NetworkPolicy default/web: metadata.annotations: invalid type"),
    ] {
        let text = format!("{head}metadata: {metadata}\n");
        let (one, other) = (strict(&text).unwrap(), lenient(&text));
        assert_eq!(one, other, "{metadata}");
        assert!(policies(&one)[0].fault.is_none() && one.faulty == 0, "{metadata}");
        let warnings = messages(&one.warnings);
        assert!(warnings.len() == 1 && warnings[0].starts_with(warning), "{warnings:?}");
    }
    let of_old = strict(&format!("{head}metadata: {{name: web, clusterName: x, initializers: []}}\n")).unwrap();
    assert!(of_old.warnings.is_empty());
}
