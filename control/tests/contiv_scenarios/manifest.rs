//! Shorthands for manifests, which the file source reads.

use bulkhead_control::object::{Object, ObjectName};
use bulkhead_control::source::{Strictness, load_text};

pub(crate) fn objects(manifests: &[String]) -> Vec<Object> {
    let text = manifests.join("---\n");
    load_text("scenario.yaml", &text, Strictness::Strict).unwrap_or_else(|errors| panic!("{errors}\n{text}")).objects
}

pub(crate) fn object(manifest: &str) -> Object {
    let mut objects = objects(&[manifest.to_owned()]);
    assert_eq!(objects.len(), 1, "{manifest}");
    objects.remove(0)
}

/// `namespace/name` as a name.
pub(crate) fn name(full_name: &str) -> ObjectName {
    let (namespace, name) = full_name.split_once('/').unwrap();
    ObjectName::new(namespace, name)
}

/// A pod with these labels (`app: web, tier: front`). Without an address, its network is not set up yet.
pub(crate) fn pod(full_name: &str, address: &str, node: &str, labels: &str) -> String {
    let (namespace, name) = full_name.split_once('/').unwrap();
    let status = match address {
        "" => "phase: Pending".to_owned(),
        _ => format!("phase: Running, podIPs: [{{ip: {address}}}]"),
    };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{namespace: {namespace}, name: {name}, labels: {{{labels}}}}}\n\
         spec: {{nodeName: {node}, containers: [{{name: c}}]}}\nstatus: {{{status}}}\n"
    )
}

pub(crate) fn namespace(name: &str, labels: &str) -> String {
    format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{{labels}}}}}\n")
}

pub(crate) fn node(name: &str, address: &str) -> String {
    let status = format!("status: {{addresses: [{{type: InternalIP, address: {address}}}]}}");
    format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n{status}\n")
}

/// A policy with this spec, in YAML's flow style and without the outer braces.
pub(crate) fn policy(full_name: &str, spec: &str) -> String {
    let (namespace, name) = full_name.split_once('/').unwrap();
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
         metadata: {{namespace: {namespace}, name: {name}}}\nspec: {{{spec}}}\n"
    )
}
