//! Which kind of object a value is, and whose turn it is to read it.

use serde_json::{Map, Value};

use super::cluster_policy;
use super::error::{Findings, Problem, quoted};
use super::fallback;
use super::kinds;
use super::names;
use super::outcome::{Model, Outcome, Read};
use super::path::FieldPath;
use super::policy;
use super::service;
use super::template::{self, WorkloadRead};
use crate::object::{ISOLATION_ANNOTATION, PolicyVersion};

/// The apiVersion of the NetworkPolicy that is read.
pub(super) const POLICY_API: &str = "networking.k8s.io/v1";
/// The NetworkPolicy of the time when namespaces isolated and policies only allowed.
const BETA_POLICY_API: &str = "extensions/v1beta1";
const POLICY_KIND: &str = "NetworkPolicy";
const POLICY_GROUP: &str = "networking.k8s.io";
/// What only the spec of a NetworkPolicy has.
const POLICY_FIELDS: [&str; 3] = ["podSelector", "policyTypes", "egress"];

/// How far a group may be from that of NetworkPolicy and still be a typo of it, in letters. Other products have a
/// NetworkPolicy of their own, but none in a group that is as near.
const GROUP_TYPO: usize = 4;

/// What became of a value.
pub(super) enum Decoded {
    /// An object of a kind that is not read.
    Skipped {
        /// `apps/v1`.
        api_version: String,
        /// `Deployment`.
        kind: String,
    },
    /// A document or list of which it is not known which objects it holds.
    Unreadable(Problem),
    /// An object of a kind that is read.
    Read(Box<Read>),
    /// An object with a pod template.
    Workload(Box<WorkloadRead>),
    /// One that means another thing to the model of 2016.
    BySemantics {
        /// As servers since 1.7 have it.
        v1: Box<Read>,
        /// As it was meant in 2016.
        v1beta1: Box<Read>,
    },
}

/// What the items of a typed list (`PodList`) do not repeat.
#[derive(Clone, Debug, Default)]
pub(super) struct Inherited(Option<(String, String)>);

impl Inherited {
    pub(super) fn new(api_version: &str, kind: &str) -> Self {
        Self(Some((api_version.to_owned(), kind.to_owned())))
    }

    /// Adds what the value does not say itself.
    pub(super) fn fill(&self, value: &mut Value) {
        let (Some((api_version, kind)), Some(fields)) = (&self.0, value.as_object_mut()) else { return };
        for (key, text) in [("apiVersion", api_version), ("kind", kind)] {
            fields.entry(key).or_insert_with(|| Value::from(text.as_str()));
        }
    }
}

/// The value's apiVersion and kind.
pub(super) fn identity(fields: &Map<String, Value>) -> Result<(&str, &str), Problem> {
    let text = |key: &str, example: &str| {
        let help = format!("write `{key}: {example}` or whatever it is; without it this may be a policy");
        match fields.get(key) {
            Some(Value::String(text)) if !text.is_empty() => Ok(text.as_str()),
            Some(_) => Err(Problem::new(&FieldPath::of(key), format!("`{key}` is not a name"), help)),
            None => Err(Problem::new(&FieldPath::default(), format!("the object has no `{key}`"), help)),
        }
    };
    Ok((text("apiVersion", POLICY_API)?, text("kind", POLICY_KIND)?))
}

/// Reads an object, by both models where they differ.
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

/// Whether the object may mean another thing to the model of 2016.
fn is_of_2016(value: &Value) -> bool {
    let annotations = value.pointer("/metadata/annotations");
    // What cannot be read may isolate.
    value.get("apiVersion").is_some_and(|version| version == BETA_POLICY_API)
        || annotations.is_some_and(|all| {
            !all.is_null() && all.as_object().is_none_or(|all| all.contains_key(ISOLATION_ANNOTATION))
        })
}

fn decode_by(value: &Value, model: Model) -> Decoded {
    let Some(fields) = value.as_object() else {
        let help = "write an object with apiVersion and kind";
        let problem = Problem::new(&FieldPath::default(), "not an object", help);
        return Decoded::Read(Box::new(unidentified(value, problem, model)));
    };
    let (api_version, kind) = match identity(fields) {
        Ok(identity) => identity,
        Err(problem) => return Decoded::Read(Box::new(unidentified(value, problem, model))),
    };
    if let Some(read) = cluster_policy::read(api_version, kind, value) {
        return Decoded::Read(Box::new(read));
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
        (service::SLICE_API, service::SLICE_KIND) => service::slice(value),
        _ => match meant_as_policy(api_version, kind) {
            Some(problem) => policy::read(value, PolicyVersion::V1, Some(problem)),
            None => return Decoded::Skipped { api_version: api_version.to_owned(), kind: kind.to_owned() },
        },
    };
    Decoded::Read(Box::new(read))
}

/// What is wrong with an object that was meant as a NetworkPolicy, but does not say so as it must: an older apiVersion, or
/// a typo. Passed over it would protect nothing.
fn meant_as_policy(api_version: &str, kind: &str) -> Option<Problem> {
    let group = api_version.split('/').next().unwrap_or_default();
    let near_group = names::nearest(group, [POLICY_GROUP]).is_some()
        && strsim::osa_distance(&group.to_lowercase(), POLICY_GROUP) <= GROUP_TYPO;
    // Groups without a dot are Kubernetes' own: nobody else's policies are there.
    let own_group = near_group || !group.contains('.');
    let near_kind = strsim::osa_distance(&kind.to_lowercase(), &POLICY_KIND.to_lowercase()) <= 3;
    if !(own_group && near_kind && kind.len() <= POLICY_KIND.len() + 3) {
        return None;
    }
    Some(if kind == POLICY_KIND {
        let text = format!("NetworkPolicy of {} is not read", quoted(api_version));
        Problem::new(&FieldPath::of("apiVersion"), text, format!("write `apiVersion: {POLICY_API}`"))
    } else {
        let text = format!("unknown kind {}", quoted(kind));
        Problem::new(&FieldPath::of("kind"), text, format!("did you mean `{POLICY_KIND}`?"))
    })
}

/// What stands for an object that does not say what it is: a policy if it is like one, and a namespace if it has the annotation
/// that isolates.
fn unidentified(value: &Value, problem: Problem, model: Model) -> Read {
    let text = |key: &str| value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let is_policy = match (text("apiVersion"), text("kind")) {
        (_, Some(kind)) => kind == POLICY_KIND || meant_as_policy("", kind).is_some(),
        (Some(version), None) if version.contains('.') && !version.starts_with(POLICY_GROUP) => false,
        _ => value.get("spec").is_some_and(|spec| POLICY_FIELDS.iter().any(|field| spec.get(field).is_some())),
    };
    if is_policy {
        return policy::read(value, PolicyVersion::V1, Some(problem));
    }
    let annotations = value.pointer("/metadata/annotations");
    let isolates = model == Model::V1beta1 && annotations.is_some_and(|all| all.get(ISOLATION_ANNOTATION).is_some());
    let mut read = if text("kind") == Some("Namespace") || isolates {
        Read { outcome: fallback::namespace(value, model), ..kinds::namespace(value, model) }
    } else {
        Read { label: String::new(), key: None, outcome: Outcome::Nothing, findings: Findings::default() }
    };
    read.findings.problems.insert(0, problem);
    read
}
