//! `extensions/v1beta1`: the namespace isolates, policies only allow, and an empty list allows nothing.

use super::Loaded;
use super::tests::{errors, lenient, policies, strict};
use crate::object::{ISOLATION_ANNOTATION, IngressIsolation, Object, PolicyVersion};

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
        assert!(errors.len() == 1 && errors[0].contains("the annotation is not understood"), "{strange}: {errors:?}");
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
