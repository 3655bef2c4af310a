//! Recognizes custom resources whose operators may make pods.
//!
//! The reader cannot know which pods an operator makes. It keeps the labels that the resource gives to what it describes, so that `lint` can
//! name the resource as a possible reason why a selector matches no pod. No verdict depends on them.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{error::printable, foreign};
use crate::object::{Labels, ObjectName, Position};

/// A custom resource whose operator may make pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomResource {
    /// The kind, such as `Prometheus`.
    pub kind: String,
    /// The name. The namespace is empty for a resource without one.
    pub name: ObjectName,
    /// The resource's own labels, which some operators copy to the pods.
    pub labels: Labels,
    /// The sets of labels in the spec, such as those of a pod template.
    pub templates: BTreeSet<Labels>,
    /// The position of the resource in the input.
    pub position: Position,
}

impl std::fmt::Display for CustomResource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.name.namespace {
            "" => write!(f, "{} {}", self.kind, self.name.name),
            _ => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

/// A custom resource without its position.
#[derive(Debug)]
pub(super) struct Described {
    kind: String,
    name: ObjectName,
    labels: Labels,
    templates: BTreeSet<Labels>,
}

impl Described {
    pub(super) fn at(self, position: Position) -> CustomResource {
        let Self { kind, name, labels, templates } = self;
        CustomResource { kind, name, labels, templates, position }
    }
}

/// Kinds that make pods even if the spec has none of [`is_of_pods`]' fields: everything in it has a default. Source: prometheus-operator's
/// API, and Strimzi's, where the pods are described by `KafkaNodePool`.
const WITH_DEFAULTS: [(&str, &str); 5] = [
    ("monitoring.coreos.com", "Prometheus"),
    ("monitoring.coreos.com", "PrometheusAgent"),
    ("monitoring.coreos.com", "Alertmanager"),
    ("monitoring.coreos.com", "ThanosRuler"),
    ("kafka.strimzi.io", "Kafka"),
];

/// Maximum number of label sets kept of a resource.
const MAX_TEMPLATES: usize = 16;

/// Returns what an object of an unsupported kind says about pods. `None` for kinds of Kubernetes itself, which has a reader for each kind
/// with a pod template, and for objects that describe no pods.
pub(super) fn read(api_version: &str, kind: &str, value: &Value) -> Option<Box<Described>> {
    let group = foreign::group_of(api_version);
    // A group of Kubernetes has no dot, or is in k8s.io. Groups in x-k8s.io are those of its subprojects.
    if !group.contains('.') || group.ends_with(".k8s.io") {
        return None;
    }
    let text = |pointer| value.pointer(pointer).and_then(Value::as_str).map(printable);
    let name = text("/metadata/name")?;
    let mut spec = Spec { has_pods: WITH_DEFAULTS.contains(&(group, kind)), templates: BTreeSet::new() };
    value.get("spec").into_iter().for_each(|value| spec.read(value));
    spec.has_pods.then(|| {
        Box::new(Described {
            kind: printable(kind).into_owned(),
            name: ObjectName::new(text("/metadata/namespace").unwrap_or_default(), name),
            labels: value.pointer("/metadata/labels").and_then(Value::as_object).map(labels).unwrap_or_default(),
            templates: spec.templates,
        })
    })
}

/// What a spec says about pods.
struct Spec {
    has_pods: bool,
    templates: BTreeSet<Labels>,
}

impl Spec {
    /// Reads a value and all values in it. The parsers bound the depth of nesting.
    fn read(&mut self, value: &Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.read(item)),
            Value::Object(fields) => {
                for (key, value) in fields {
                    self.has_pods |= is_of_pods(key, value);
                    match value {
                        Value::Object(all) if matches!(key.as_str(), "labels" | "podLabels") => {
                            let labels = labels(all);
                            if !labels.is_empty() && self.templates.len() < MAX_TEMPLATES {
                                self.templates.insert(labels);
                            }
                        }
                        value => self.read(value),
                    }
                }
            }
            _ => {}
        }
    }
}

/// Whether a field occurs only where pods are described: in a pod template, or in an operator's own words for one.
fn is_of_pods(key: &str, value: &Value) -> bool {
    match key {
        "containers" | "tolerations" | "topologySpreadConstraints" | "volumeClaimTemplates" => value.is_array(),
        "replicas" | "instances" => value.is_u64(),
        "podMetadata" | "podTemplate" | "podLabels" | "affinity" | "nodeSelector" => value.is_object(),
        "serviceAccountName" => value.is_string(),
        _ => false,
    }
}

fn labels(fields: &Map<String, Value>) -> Labels {
    fields.iter().filter_map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into()))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::labels;

    fn described(api_version: &str, kind: &str, spec: &Value) -> Option<(String, BTreeSet<Labels>)> {
        let value = json!({"metadata": {"name": "x", "namespace": "a"}, "spec": spec});
        let found = read(api_version, kind, &value)?;
        Some((format!("{} {}", found.kind, found.name), found.templates))
    }

    #[test]
    fn a_custom_resource_describes_pods_by_the_fields_of_its_spec_or_by_its_kind() {
        let template = json!({"template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": []}}});
        let app = BTreeSet::from([labels("app=x")]);
        for (api_version, kind, spec, templates) in [
            ("argoproj.io/v1alpha1", "Rollout", template.clone(), app.clone()),
            ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", template.clone(), app.clone()),
            ("example.org/v1", "Alert", json!({"podMetadata": {"labels": {"app": "x"}}}), app),
            ("kafka.strimzi.io/v1", "KafkaNodePool", json!({"replicas": 3}), BTreeSet::new()),
            ("monitoring.coreos.com/v1", "Prometheus", json!({}), BTreeSet::new()),
        ] {
            assert_eq!(described(api_version, kind, &spec), Some((format!("{kind} a/x"), templates)), "{kind}");
        }
        for (api_version, kind, spec) in [
            ("monitoring.coreos.com/v1", "ServiceMonitor", json!({"selector": {"matchLabels": {"app": "x"}}})),
            ("cert-manager.io/v1", "Certificate", json!({"secretTemplate": {"labels": {"app": "x"}}})),
            ("crd.example.org/v1", "Pool", json!({"nodeSelector": "all()"})),
            ("apiextensions.k8s.io/v1", "CustomResourceDefinition", template.clone()),
            ("apps/v1", "ControllerRevision", template),
        ] {
            assert_eq!(described(api_version, kind, &spec), None, "{kind}");
        }
    }
}
