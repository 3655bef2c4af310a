//! Reads the objects that Calico's policies refer to.

use std::sync::Arc;

use bulkhead_classifier::NamePattern;
use ipnet::IpNet;
use serde_json::Value;

use super::super::error::{Findings, Problem, quoted};
use super::super::metadata::object_name;
use super::super::outcome::{Outcome, Read};
use super::super::path::FieldPath;
use super::super::raw::{Mapping, Part, typed};
use super::raw::{RawHostEndpoint, RawNetworkSet, RawObject, RawTier};
use super::{Group, finished, identity, missing};
use crate::foreign::calico::{NetworkSet, TIERS_OF_KUBERNETES, Tier};
use crate::foreign::{ForeignKind, ForeignName, ForeignObject, ServiceAccount};
use crate::object::{Order, RuleAction};

/// Returns an object's spec. `None` and a problem if it is missing or has another form.
pub(super) fn spec<T: serde::de::DeserializeOwned>(value: &Value, findings: &mut Findings) -> Option<T> {
    let base = FieldPath::default();
    let spec = typed::<RawObject>(value, &base).and_then(|object| match object.spec.filter(|spec| !spec.is_null()) {
        Some(spec) => typed(&spec, &FieldPath::of("spec")),
        None => Err(missing(&base, "spec")),
    });
    spec.map_err(|problem| findings.problems.push(problem)).ok()
}

/// Reads a Tier. Without a faulty one, the order of all rules is unknown, so every mode refuses it.
pub(super) fn tier(value: &Value, group: Group) -> Read {
    let mut findings = Findings::default();
    let identity = identity(ForeignKind::CalicoTier, value, group, &mut findings);
    let spec = spec::<RawTier>(value, &mut findings);
    let name = identity.map(|identity| identity.name);
    let tier = name.as_ref().zip(spec).and_then(|(name, spec)| {
        let base = FieldPath::of("spec");
        let end = match spec.default_action.as_deref() {
            None | Some("Deny") => RuleAction::Deny,
            Some("Pass") => RuleAction::Pass,
            Some(other) => {
                let text = format!("unknown action {}", quoted(other));
                findings.problem(&base.key("defaultAction"), text, "write Deny or Pass");
                return None;
            }
        };
        if let Some((known, order)) = TIERS_OF_KUBERNETES.into_iter().find(|(known, _)| **known == *name.name) {
            let usual = if known == "default" { RuleAction::Deny } else { RuleAction::Pass };
            if spec.order.is_some_and(|own| own != order) || (end != usual && spec.default_action.is_some()) {
                let text = format!("tier `{known}` has order {order} and default action {}", usual.name());
                findings.problem(&base, text, "remove the change, or use a tier of another name");
            }
        }
        Some(Tier { name: name.name.clone(), order: spec.order.map(Order::of), end })
    });
    finished(ForeignKind::CalicoTier, value, name, tier.map(ForeignObject::CalicoTier), findings, Outcome::Unreadable)
}

/// Reads a NetworkSet or GlobalNetworkSet. Without the blocks of a faulty one, a Deny would match less, so every mode refuses it.
pub(super) fn network_set(kind: ForeignKind, value: &Value, group: Group) -> Read {
    let mut findings = Findings::default();
    let identity = identity(kind, value, group, &mut findings);
    let spec = spec::<RawNetworkSet>(value, &mut findings);
    let base = FieldPath::of("spec");
    let name = identity.as_ref().map(|identity| identity.name.clone());
    let members = spec.map(|spec| {
        let nets = nets(spec.nets.as_deref(), &base.key("nets"), &mut findings);
        let path = base.key("allowedEgressDomains");
        (nets, names(spec.allowed_egress_domains.as_deref(), &path, &mut findings))
    });
    let set = identity.zip(members).map(|(identity, (nets, names))| NetworkSet {
        name: identity.name,
        namespace: identity.namespace,
        labels: identity.labels,
        nets,
        names,
    });
    finished(kind, value, name, set.map(ForeignObject::CalicoNetworkSet), findings, Outcome::Unreadable)
}

/// Reads a HostEndpoint as a global set of its expected addresses. A selector of peers may select it by its labels. The policies of the
/// endpoint itself have no effect on pods.
pub(super) fn host_endpoint(value: &Value, group: Group) -> Read {
    let kind = ForeignKind::CalicoHostEndpoint;
    let mut findings = Findings::default();
    let identity = identity(kind, value, group, &mut findings);
    let spec = spec::<RawHostEndpoint>(value, &mut findings);
    let path = FieldPath::of("spec").key("expectedIPs");
    let nets = spec.map(|spec| nets(spec.expected_ips.as_deref(), &path, &mut findings));
    let name = identity.as_ref().map(|identity| identity.name.clone());
    let set = identity.zip(nets).map(|(identity, nets)| NetworkSet {
        name: identity.name,
        namespace: None,
        labels: identity.labels,
        nets,
        names: Vec::new(),
    });
    if findings.problems.is_empty() {
        let help = "protect the node by other means; as a peer of pods, its addresses count";
        findings.warning(&FieldPath::default(), "traffic of host endpoints is not judged", help);
    }
    finished(kind, value, name, set.map(ForeignObject::CalicoNetworkSet), findings, Outcome::Unreadable)
}

/// Returns the blocks of a list. A single address is a block of full length.
pub(super) fn nets(texts: Option<&[String]>, base: &FieldPath, findings: &mut Findings) -> Vec<IpNet> {
    let block = |(at, text): (usize, &String)| match super::super::block_or_address(text) {
        Ok(block) => Some(block),
        Err((problem, help)) => {
            findings.problem(&base.index(at), problem, help);
            None
        }
    };
    texts.unwrap_or_default().iter().enumerate().filter_map(block).collect()
}

/// Returns the patterns of domain names of a list. The star of `*.example.com` matches one or more labels, as in Calico.
pub(super) fn names(texts: Option<&[String]>, base: &FieldPath, findings: &mut Findings) -> Vec<Arc<str>> {
    let name = |(at, text): (usize, &String)| match text.trim().parse::<NamePattern>() {
        Ok(pattern) if !pattern.is_glob() => Some(pattern.to_string().into()),
        _ => {
            let help = "write a name such as www.example.com or *.example.com";
            findings.problem(&base.index(at), format!("unsupported domain name {}", quoted(text)), help);
            None
        }
    };
    texts.unwrap_or_default().iter().enumerate().filter_map(name).collect()
}

#[derive(serde::Deserialize)]
struct RawServiceAccount {
    metadata: Part<super::super::raw::Metadata>,
}

/// Reads a ServiceAccount. Without the labels of a faulty one, policies select other pods, so every mode refuses it.
pub(super) fn service_account(value: &Value) -> Read {
    let kind = ForeignKind::ServiceAccount;
    let mut findings = Findings::default();
    let account = match typed::<RawServiceAccount>(value, &FieldPath::default()) {
        Ok(RawServiceAccount { metadata: Some(Mapping(metadata)) }) => {
            let labels = metadata.labels.into_iter().flatten().map(|(key, value)| (key.into(), value.into())).collect();
            object_name(metadata.name, metadata.namespace, &mut findings.problems)
                .map(|name| ServiceAccount { name, labels })
        }
        Ok(_) => fail(&mut findings, missing(&FieldPath::default(), "metadata")),
        Err(problem) => fail(&mut findings, problem),
    };
    let name = account.as_ref().map(|account| ForeignName { kind, name: account.name.to_string().into() });
    finished(kind, value, name, account.map(ForeignObject::ServiceAccount), findings, Outcome::Unreadable)
}

fn fail<T>(findings: &mut Findings, problem: Problem) -> Option<T> {
    findings.problems.push(problem);
    None
}
