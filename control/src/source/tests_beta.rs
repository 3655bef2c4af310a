//! `extensions/v1beta1`: the namespace isolates, policies only allow, and an empty list allows nothing.

use super::tests::{messages, policies};
use super::{Loaded, Options, Semantics, SourceErrors, Strictness, load_text};
use crate::object::{ISOLATION_ANNOTATION, IngressIsolation, Object, PolicyVersion};

const OF_2016: Semantics = Semantics::V1beta1 { default: IngressIsolation::ClusterDefault };

fn read(text: &str, strictness: Strictness, semantics: Semantics) -> Result<Loaded, SourceErrors> {
    load_text("t.yaml", text, Options { strictness, semantics, ..Options::default() })
}

fn strict(text: &str) -> Result<Loaded, SourceErrors> {
    read(text, Strictness::Strict, OF_2016)
}

fn lenient(text: &str) -> Loaded {
    read(text, Strictness::Lenient, OF_2016).unwrap()
}

fn errors(text: &str) -> Vec<String> {
    messages(&strict(text).unwrap_err())
}

fn beta(spec: &str) -> String {
    format!(
        "{{apiVersion: extensions/v1beta1, kind: NetworkPolicy, metadata: {{name: p, namespace: myns}}, spec: {spec}}}"
    )
}

fn namespace(annotation: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: myns\n  annotations:\n    {ISOLATION_ANNOTATION}: |\n      {annotation}\n"
    )
}

#[test]
fn absent_lists_mean_everything_and_empty_ones_nothing() {
    let loaded = strict(&beta("{podSelector: , ingress: [{}, {from: [], ports: []}]}")).unwrap();
    let policy = policies(&loaded)[0].clone();
    assert_eq!((policy.version, policy.egress), (PolicyVersion::V1beta1, None));
    let rules: Vec<_> = policy.ingress.unwrap().into_iter().map(|rule| (rule.peers, rule.ports)).collect();
    assert_eq!(rules, [(None, None), (Some(vec![]), Some(vec![]))]);
}

#[test]
fn what_came_later_is_refused() {
    for (spec, path) in [
        ("{podSelector: {}, egress: []}", "spec.egress"),
        ("{podSelector: {}, policyTypes: [Ingress]}", "spec.policyTypes"),
        ("{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}]}", "spec.ingress[0].from[0]"),
        ("{podSelector: {}, ingress: [{from: [{podSelector: {}, namespaceSelector: {}}]}]}", "spec.ingress[0].from[0]"),
        ("{podSelector: {}, ingress: [{ports: [{port: 1, endPort: 2}]}]}", "spec.ingress[0].ports[0].endPort"),
    ] {
        let errors = errors(&beta(spec));
        assert!(errors.len() == 1 && errors[0].contains(path) && errors[0].contains("v1beta1"), "{spec}: {errors:?}");
    }
}

#[test]
fn the_annotation_isolates_and_a_strange_one_is_an_error_that_isolates_where_faults_are_survived() {
    let isolation_in = |loaded: Loaded| match &loaded.objects[..] {
        [Object::Namespace(namespace)] => namespace.isolation,
        other => panic!("{other:?}"),
    };
    let isolation = |annotation: &str| isolation_in(strict(&namespace(annotation)).unwrap());
    assert_eq!(isolation(r#"{"ingress": {"isolation": "DefaultDeny"}}"#), IngressIsolation::DefaultDeny);
    assert_eq!(isolation(r#"{"ingress": {}}"#), IngressIsolation::ClusterDefault);
    assert_eq!(isolation("{}"), IngressIsolation::ClusterDefault);
    for strange in [r#"{"ingress": {"isolation": "Deny"}}"#, "DefaultDeny", r#"{"egress": {}}"#] {
        let errors = errors(&namespace(strange));
        assert!(errors.len() == 1 && errors[0].contains("invalid annotation"), "{strange}: {errors:?}");
        assert_eq!(isolation_in(lenient(&namespace(strange))), IngressIsolation::DefaultDeny, "{strange}");
    }
}

#[test]
fn a_namespace_that_is_being_deleted_is_known_as_such() {
    for text in [
        "{apiVersion: v1, kind: Namespace, metadata: {name: x}, status: {phase: Terminating}}",
        "{apiVersion: v1, kind: Namespace, metadata: {name: x, deletionTimestamp: '2026-01-01T00:00:00Z'}}",
    ] {
        let loaded = strict(text).unwrap();
        assert!(matches!(&loaded.objects[..], [Object::Namespace(namespace)] if namespace.terminating), "{text}");
    }
}

#[test]
fn servers_since_1_7_take_v1beta1_for_v1_and_ignore_the_annotation() {
    let spec = "{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{from: [], ports: []}], \
                egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 1, endPort: 2}]}]}";
    let v1 = |text: &str| read(text, Strictness::Strict, Semantics::V1).unwrap();
    let (old, new) = (v1(&beta(spec)), v1(&beta(spec).replace("extensions/v1beta1", "networking.k8s.io/v1")));
    assert_eq!(policies(&old), policies(&new));
    assert!(old.warnings.is_empty() && policies(&old)[0].version == PolicyVersion::V1);
    for (annotation, is_told) in [
        (r#"{"ingress": {"isolation": "DefaultDeny"}}"#, true),
        ("DefaultDeny", true),
        ("{}", false),
        (r#"{"ingress": {}}"#, false),
    ] {
        let loaded = v1(&namespace(annotation));
        let [Object::Namespace(read)] = &loaded.objects[..] else { panic!("a namespace expected") };
        assert_eq!(read.isolation, IngressIsolation::ClusterDefault, "{annotation}");
        let warnings = messages(&loaded.warnings);
        assert_eq!(warnings.len(), usize::from(is_told), "{warnings:?}");
        let told = |warning: &String| {
            warning.starts_with("t.yaml:6: Namespace myns: ") && warning.contains("ignores it since 1.7")
        };
        assert!(
            warnings.iter().all(|warning| told(warning) && warning.contains("--policy-semantics v1beta1")),
            "{warnings:?}"
        );
    }
}

#[test]
fn a_policy_that_only_allows_where_nothing_isolates_is_worth_a_warning() {
    let policy = beta("{podSelector: {}, ingress: [{}]}");
    let told = |text: &str, default| {
        let loaded = read(text, Strictness::Strict, Semantics::V1beta1 { default }).unwrap();
        messages(&loaded.warnings)
    };
    let isolating = namespace(r#"{"ingress": {"isolation": "DefaultDeny"}}"#);
    let silent = "{apiVersion: v1, kind: Namespace, metadata: {name: myns}}\n";
    for (namespace, default, is_idle) in [
        ("", IngressIsolation::ClusterDefault, true),
        (silent, IngressIsolation::ClusterDefault, true),
        (&*isolating, IngressIsolation::ClusterDefault, false),
        ("", IngressIsolation::DefaultDeny, false),
        (silent, IngressIsolation::DefaultDeny, false),
    ] {
        let warnings = told(&format!("{policy}\n---\n{namespace}"), default);
        assert_eq!(warnings.len(), usize::from(is_idle), "{namespace}: {warnings:?}");
        assert!(
            warnings
                .iter()
                .all(|warning| warning.starts_with("t.yaml:1: NetworkPolicy myns/p: the policy has no effect"))
        );
    }
    let v1 = policy.replace("extensions/v1beta1", "networking.k8s.io/v1");
    assert!(told(&v1, IngressIsolation::ClusterDefault).is_empty());
}
