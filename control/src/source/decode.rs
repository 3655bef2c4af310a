//! Determines the kind of a value and calls that kind's reader.

use serde_json::{Map, Value};

use super::calico;
use super::cilium;
use super::cluster_policy;
use super::custom::{self, Described};
use super::error::{Problem, quoted};
use super::fallback;
use super::kinds;
use super::names;
use super::outcome::{Model, Read};
use super::path::FieldPath;
use super::policy;
use super::service;
use super::template::{self, WorkloadRead};
use crate::object::{ISOLATION_ANNOTATION, PolicyVersion};

/// The supported apiVersion of NetworkPolicy.
pub(super) const POLICY_API: &str = "networking.k8s.io/v1";
/// The apiVersion of NetworkPolicy from 2016, when namespaces isolated and policies only allowed.
const BETA_POLICY_API: &str = "extensions/v1beta1";
const POLICY_KIND: &str = "NetworkPolicy";
const POLICY_GROUP: &str = "networking.k8s.io";
/// Fields that occur only in the spec of a NetworkPolicy.
const POLICY_FIELDS: [&str; 3] = ["podSelector", "policyTypes", "egress"];
/// Further fields of policies' specs, also of other kinds of policies.
const FIELDS_OF_POLICIES: [&str; 3] = ["ingress", "subject", "endpointSelector"];

/// Maximum edit distance, in letters, at which a group counts as a typo of [`POLICY_GROUP`]. Other products define their own NetworkPolicy,
/// but in groups with a greater distance.
const GROUP_TYPO: usize = 4;

/// The apiVersion and kind of an object, such as `apps/v1` and `Deployment`, in one allocation: a large state has many skipped objects.
#[derive(Debug)]
pub(super) struct VersionKind {
    /// The apiVersion, directly followed by the kind.
    text: Box<str>,
    /// The length of the apiVersion in bytes.
    version: usize,
}

impl VersionKind {
    fn new(api_version: &str, kind: &str) -> Self {
        Self { text: [api_version, kind].concat().into(), version: api_version.len() }
    }

    /// Returns the apiVersion and the kind.
    pub(super) fn parts(&self) -> (&str, &str) {
        self.text.split_at(self.version)
    }
}

/// The result of decoding a value. A large state has many, so all that is rare or large is boxed.
#[derive(Debug)]
pub(super) enum Decoded {
    /// An object of an unsupported kind, which is only counted.
    Skipped {
        /// The object's apiVersion and kind.
        kind: VersionKind,
        /// What a custom resource says about its pods. `None` if it describes none.
        pods: Option<Box<Described>>,
    },
    /// A document or list whose objects cannot be determined.
    Unreadable(Box<Problem>),
    /// A document that is neither an object nor a list of objects, such as an array.
    NoObject(Box<Problem>),
    /// A mapping without an identity that does not look like a policy, such as the values of a chart.
    Foreign(Box<Problem>),
    /// An object of a supported kind.
    Read(Box<Read>),
    /// An object of another product, or one that only policies of other products refer to.
    OtherProduct {
        /// The object's apiVersion and kind.
        kind: VersionKind,
        /// The object. Not used with [`ForeignKinds::Skip`](super::ForeignKinds::Skip).
        read: Box<Read>,
    },
    /// An object with a pod template.
    Workload(Box<WorkloadRead>),
    /// An object whose meaning depends on [`Semantics`](super::Semantics).
    BySemantics {
        /// The meaning in API servers since Kubernetes 1.7.
        v1: Box<Read>,
        /// The meaning in API servers of 2016, when namespaces isolated.
        v1beta1: Box<Read>,
    },
}

impl Decoded {
    /// Whether the document is something else than a Kubernetes object.
    pub(super) const fn is_no_object(&self) -> bool {
        matches!(self, Self::NoObject(_) | Self::Foreign(_))
    }
}

/// The apiVersion and kind of the items of a typed list such as `PodList`, which the items need not repeat.
#[derive(Clone, Debug, Default)]
pub(super) struct Inherited(Option<(String, String)>);

impl Inherited {
    pub(super) fn new(api_version: &str, kind: &str) -> Self {
        Self(Some((api_version.to_owned(), kind.to_owned())))
    }

    /// Adds apiVersion and kind to `value` if they are missing there.
    pub(super) fn fill(&self, value: &mut Value) {
        let (Some((api_version, kind)), Some(fields)) = (&self.0, value.as_object_mut()) else { return };
        for (key, text) in [("apiVersion", api_version), ("kind", kind)] {
            fields.entry(key).or_insert_with(|| Value::from(text.as_str()));
        }
    }
}

/// Returns the apiVersion and kind of an object.
pub(super) fn identity(fields: &Map<String, Value>) -> Result<(&str, &str), Problem> {
    let text = |key: &str, example: &str| {
        let help = format!("write `{key}: {example}` or the correct value; without it, this could be a policy");
        match fields.get(key) {
            Some(Value::String(text)) if !text.is_empty() => Ok(text.as_str()),
            Some(_) => Err(Problem::new(&FieldPath::of(key), format!("`{key}` is not a name"), help)),
            None => Err(Problem::new(&FieldPath::default(), format!("the object has no `{key}`"), help)),
        }
    };
    Ok((text("apiVersion", POLICY_API)?, text("kind", POLICY_KIND)?))
}

/// Reads an object, with both [`Model`]s if they may differ.
pub(super) fn decode(mut value: Value, inherited: &Inherited) -> Decoded {
    inherited.fill(&mut value);
    match decode_by(&value, Model::V1) {
        Decoded::Read(v1) if is_of_2016(&value) => match decode_by(&value, Model::V1beta1) {
            Decoded::Read(v1beta1) => Decoded::BySemantics { v1, v1beta1 },
            other => other,
        },
        decoded => decoded,
    }
}

/// Whether the object may have another meaning in [`Model::V1beta1`].
fn is_of_2016(value: &Value) -> bool {
    let annotations = value.pointer("/metadata/annotations");
    // Unreadable annotations may isolate.
    value.get("apiVersion").is_some_and(|version| version == BETA_POLICY_API)
        || annotations.is_some_and(|all| {
            !all.is_null() && all.as_object().is_none_or(|all| all.contains_key(ISOLATION_ANNOTATION))
        })
}

fn decode_by(value: &Value, model: Model) -> Decoded {
    let Some(fields) = value.as_object() else {
        let help = "write an object with apiVersion and kind";
        let problem = Problem::new(&FieldPath::default(), "not an object", help);
        return unidentified(value, problem, model);
    };
    let (api_version, kind) = match identity(fields) {
        Ok(identity) => identity,
        Err(problem) => return unidentified(value, problem, model),
    };
    if let Some(read) = cluster_policy::read(api_version, kind, value) {
        return Decoded::Read(Box::new(read));
    }
    if let Some(read) = calico::read(api_version, kind, value).or_else(|| cilium::read(api_version, kind, value)) {
        return Decoded::OtherProduct { kind: VersionKind::new(api_version, kind), read: Box::new(read) };
    }
    if let Some(read) = template::read(api_version, kind, value) {
        return Decoded::Workload(Box::new(read));
    }
    let beta = if model == Model::V1beta1 { PolicyVersion::V1beta1 } else { PolicyVersion::V1 };
    let read = match (api_version, kind) {
        (POLICY_API, POLICY_KIND) => policy::read(value, PolicyVersion::V1, None),
        (BETA_POLICY_API, POLICY_KIND) => policy::read(value, beta, None),
        ("v1", "Pod") => kinds::pod(value),
        ("v1", "Namespace") => kinds::namespace(value, model),
        ("v1", "Node") => kinds::node(value),
        ("v1", service::SERVICE_KIND) => service::service(value),
        (service::SLICE_API | service::OLD_SLICE_API, service::SLICE_KIND) => service::slice(value),
        _ => match meant_as_policy(api_version, kind) {
            Some(problem) => policy::read(value, PolicyVersion::V1, Some(problem)),
            None => {
                let pods = custom::read(api_version, kind, value);
                return Decoded::Skipped { kind: VersionKind::new(api_version, kind), pods };
            }
        },
    };
    Decoded::Read(Box::new(read))
}

/// Returns the problem of an object that is probably meant as a NetworkPolicy, but has an older apiVersion or a typo. `None` for other
/// objects. Skipping such an object would silently protect nothing.
fn meant_as_policy(api_version: &str, kind: &str) -> Option<Problem> {
    let group = api_version.split('/').next().unwrap_or_default();
    let near_group = names::nearest(group, [POLICY_GROUP]).is_some()
        && strsim::osa_distance(&group.to_lowercase(), POLICY_GROUP) <= GROUP_TYPO;
    // Groups without a dot belong to Kubernetes. Other products do not define policies there.
    let own_group = near_group || !group.contains('.');
    let near_kind = strsim::osa_distance(&kind.to_lowercase(), &POLICY_KIND.to_lowercase()) <= 3;
    if !(own_group && near_kind && kind.len() <= POLICY_KIND.len() + 3) {
        return None;
    }
    Some(if kind == POLICY_KIND {
        let text = format!("NetworkPolicy of {} is not supported", quoted(api_version));
        Problem::new(&FieldPath::of("apiVersion"), text, format!("write `apiVersion: {POLICY_API}`"))
    } else {
        let text = format!("unknown kind {}", quoted(kind));
        Problem::new(&FieldPath::of("kind"), text, format!("did you mean `{POLICY_KIND}`?"))
    })
}

/// Reads an object without a usable kind or apiVersion: as a policy if it has a policy's fields, as a namespace if it has the isolation
/// annotation. If it looks like neither these nor another policy, it is no object.
fn unidentified(value: &Value, problem: Problem, model: Model) -> Decoded {
    let text = |key: &str| value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let is_policy = match (text("apiVersion"), text("kind")) {
        (_, Some(kind)) => kind == POLICY_KIND || meant_as_policy("", kind).is_some(),
        (Some(version), None) if version.contains('.') && !version.starts_with(POLICY_GROUP) => false,
        _ => value.get("spec").is_some_and(|spec| POLICY_FIELDS.iter().any(|field| spec.get(field).is_some())),
    };
    if is_policy {
        return Decoded::Read(Box::new(policy::read(value, PolicyVersion::V1, Some(problem))));
    }
    let annotations = value.pointer("/metadata/annotations");
    let isolates = annotations.is_some_and(|all| all.get(ISOLATION_ANNOTATION).is_some());
    if text("kind") == Some("Namespace") || (isolates && model == Model::V1beta1) {
        let mut read = Read { outcome: fallback::namespace(value, model), ..kinds::namespace(value, model) };
        read.findings.problems.insert(0, problem);
        return Decoded::Read(Box::new(read));
    }
    let restricts = match (text("apiVersion"), text("kind")) {
        _ if isolates => true,
        (_, Some(kind)) if kind.trim_end_matches("List").ends_with("Policy") => true,
        // Without these objects, verdicts would be others. Settings of charts have such a `kind` without a name.
        (_, Some("Pod" | "Node" | "Service" | "EndpointSlice")) => value.pointer("/metadata/name").is_some(),
        (_, Some(_)) => false,
        (Some(version), None) if version.contains(POLICY_GROUP) => true,
        _ => value.get("spec").is_some_and(|spec| FIELDS_OF_POLICIES.iter().any(|field| spec.get(field).is_some())),
    };
    match restricts {
        true => Decoded::Read(Box::new(Read::nameless(problem))),
        false => Decoded::Foreign(problem.into()),
    }
}
