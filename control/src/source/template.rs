//! Reads workloads: each one's pod template becomes a planned pod.
//!
//! As for pods, only the fields that policy needs are read, and unknown fields are ignored.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::cluster::checked_pod;
use super::error::{Findings, Problem};
use super::metadata::object_name;
use super::outcome::ObjectKey;
use super::owner;
use super::path::FieldPath;
use super::raw::{self, List, Mapping, Metadata, Part};
use crate::object::{Labels, Pod, Workload};

/// The kinds with a pod template, and their API groups over time. The template has the same place in all versions of these groups. The
/// order is that of [`precedence`].
const KINDS: [(&str, &[&str]); 7] = [
    ("Deployment", &["apps", "extensions"]),
    ("StatefulSet", &["apps"]),
    ("DaemonSet", &["apps", "extensions"]),
    ("ReplicaSet", &["apps", "extensions"]),
    ("ReplicationController", &[""]),
    ("CronJob", &["batch"]),
    ("Job", &["batch"]),
];

/// The result of reading a workload, with or without errors.
#[derive(Debug)]
pub(super) struct WorkloadRead {
    pub(super) api_version: String,
    pub(super) kind: &'static str,
    /// Kind, namespace and name for messages, without the parts that could not be read.
    pub(super) label: String,
    pub(super) key: Option<ObjectKey>,
    /// The workload's pod template. `None` if `findings` contains a problem.
    pub(super) template: Option<Template>,
    pub(super) findings: Findings,
}

/// A workload's pod template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    /// A pod made from the template. It has the workload's name, and no node or addresses.
    pub(super) pod: Pod,
    /// The controller of the workload itself: a Deployment for a `ReplicaSet`, a `CronJob` for a Job.
    pub(super) manager: Option<Workload>,
    /// Whether the workload runs more than one pod at a time.
    pub(super) is_many: bool,
    /// Whether the workload is scaled to zero pods.
    pub(super) is_idle: bool,
    /// Whether the workload starts no more pods: a Job that has completed or failed.
    pub(super) is_over: bool,
    /// The ordinal of a `StatefulSet`'s first pod. `None` for other kinds.
    pub(super) first_ordinal: Option<u64>,
}

/// Returns a kind's rank if several workloads of a namespace have the same name. The lowest rank keeps the plain name.
pub(super) fn precedence(kind: &str) -> usize {
    KINDS.iter().position(|(known, _)| *known == kind).unwrap_or(KINDS.len())
}

#[derive(Deserialize)]
struct RawWorkload {
    metadata: Part<Metadata>,
    spec: Part<RawSpec>,
    status: Option<Value>,
}

/// The fields that policy needs, of the specs of all these kinds.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSpec {
    replicas: Option<i64>,
    parallelism: Option<i64>,
    ordinals: Part<RawOrdinals>,
    template: Part<RawTemplate>,
    job_template: Part<RawJobTemplate>,
}

#[derive(Deserialize)]
struct RawOrdinals {
    start: Option<u64>,
}

#[derive(Deserialize)]
struct RawJobTemplate {
    spec: Part<RawJobSpec>,
}

#[derive(Default, Deserialize)]
struct RawJobSpec {
    parallelism: Option<i64>,
    template: Part<RawTemplate>,
}

#[derive(Deserialize)]
struct RawTemplate {
    metadata: Part<Map<String, Value>>,
    spec: Part<Map<String, Value>>,
}

#[derive(Deserialize)]
struct RawStatus {
    conditions: List<RawCondition>,
}

#[derive(Deserialize)]
struct RawCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

/// Reads a workload. `None` if the kind is not one of [`KINDS`].
pub(super) fn read(api_version: &str, kind: &str, value: &Value) -> Option<WorkloadRead> {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let (kind, _) = KINDS.into_iter().find(|(known, groups)| *known == kind && groups.contains(&group))?;
    let text = |pointer| value.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    let namespace = text("/metadata/namespace").unwrap_or("default");
    let (label, key) = match text("/metadata/name") {
        Some(name) => {
            let key = ObjectKey { kind, namespace: namespace.into(), name: name.into() };
            (format!("{kind} {namespace}/{name}"), Some(key))
        }
        None => (kind.to_owned(), None),
    };
    let mut findings = Findings::default();
    let template = match raw::typed(value, &FieldPath::default()) {
        Ok(raw) => template(kind, raw, &mut findings),
        Err(problem) => {
            findings.problems.push(problem);
            None
        }
    };
    let template = template.filter(|_| findings.problems.is_empty());
    Some(WorkloadRead { api_version: api_version.to_owned(), kind, label, key, template, findings })
}

/// Returns the template. If `findings` contains a problem, the template must not be used. `None` without a valid name, template or pod.
fn template(kind: &'static str, raw: RawWorkload, findings: &mut Findings) -> Option<Template> {
    let metadata = raw.metadata.map(|Mapping(metadata)| metadata).unwrap_or_default();
    let manager = owner::manager(metadata.owner_references.as_ref());
    let name = object_name(metadata.name, metadata.namespace, &mut findings.problems)?;
    let spec = raw.spec.map(|Mapping(spec)| spec).unwrap_or_default();
    let base = FieldPath::of("spec");
    let (template, parallelism, path) = match kind {
        "CronJob" => {
            let job = spec.job_template.and_then(|Mapping(job)| job.spec).map(|Mapping(job)| job).unwrap_or_default();
            (job.template, job.parallelism, base.key("jobTemplate").key("spec").key("template"))
        }
        _ => (spec.template, spec.parallelism, base.key("template")),
    };
    let Some(Mapping(template)) = template else {
        let help = "add the pod template; without it, the policies that select its pods are unknown";
        findings.problems.push(Problem::new(&path, "the workload has no pod template", help));
        return None;
    };
    let first_ordinal = (kind == "StatefulSet").then(|| spec.ordinals.and_then(|Mapping(o)| o.start).unwrap_or(0));
    let mut pod = pod_of(template, &path, findings)?;
    pod.owner = Some(Arc::new(Workload { kind: kind.into(), name: name.name.clone() }));
    if kind == "Job" {
        add_job_labels(&mut pod.labels, &name.name);
    }
    pod.name = name;
    let count = match kind {
        // One pod on each node: assume more than one node.
        "DaemonSet" => 2,
        "Job" | "CronJob" => parallelism.unwrap_or(1),
        _ => spec.replicas.unwrap_or(1),
    };
    let is_over = kind == "Job" && raw.status.as_ref().is_some_and(has_ended);
    Some(Template { pod, manager, is_many: count > 1, is_idle: count < 1, is_over, first_ordinal })
}

/// Returns the pod of a template, under a placeholder name.
fn pod_of(template: RawTemplate, path: &FieldPath, findings: &mut Findings) -> Option<Pod> {
    let mut metadata = template.metadata.map(|Mapping(metadata)| metadata).unwrap_or_default();
    // The name and owners of a template have no effect.
    metadata.retain(|key, _| key == "labels" || key == "annotations");
    metadata.insert("name".to_owned(), "template".into());
    let mut spec = template.spec.map(|Mapping(spec)| spec).unwrap_or_default();
    spec.remove("nodeName");
    let value = serde_json::json!({ "metadata": metadata, "spec": spec });
    let raw = raw::typed(&value, path).map_err(|problem| findings.problems.push(problem)).ok()?;
    let mut own = Findings::default();
    let pod = checked_pod(raw, &mut own);
    let within = |problem: Problem| Problem { path: path.join(&problem.path), ..problem };
    findings.problems.extend(own.problems.into_iter().map(within));
    findings.warnings.extend(own.warnings.into_iter().map(within));
    findings.declared_ports.extend(own.declared_ports);
    Some(Pod { planned: true, ..pod? })
}

/// Adds the labels that the Job controller sets on its pods, which policies may select by.
/// Source: Kubernetes "Well-Known Labels, Annotations and Taints".
fn add_job_labels(labels: &mut Labels, job: &Arc<str>) {
    for key in ["batch.kubernetes.io/job-name", "job-name"] {
        labels.entry(key.into()).or_insert_with(|| job.clone());
    }
}

fn has_ended(status: &Value) -> bool {
    let conditions = RawStatus::deserialize(status).ok().and_then(|status| status.conditions);
    conditions.into_iter().flatten().any(|Mapping(condition)| {
        matches!(condition.kind.as_str(), "Complete" | "Failed") && condition.status == "True"
    })
}
