//! Reads CiliumNetworkPolicy, CiliumClusterwideNetworkPolicy and CiliumCIDRGroup, with the checks of Cilium's agent.
//!
//! ```text
//!  metadata --fault--> input refused, as for other policies
//!  each spec: shape, selector --fault--> strict: input refused; lenient: denies everything to and from the pods that it may select
//!             of nodes ---------------> strict: input refused; lenient: left out, as it selects no pod
//!  each element of a list of rules --fault--> strict: input refused; lenient: allows nothing, and denies everything if it denies
//! ```
//! What rules of packets' headers cannot say is never left out in silence. Rules about requests ([`Rule::then`]) are kept by name, and all
//! else is a problem: policies of nodes, groups of cloud providers, requirements, nodes by label.
//!
//! Source: cilium/cilium, `pkg/policy/api` and `pkg/k8s/apis/cilium.io/utils`.

mod entities;
mod peers;
mod ports;
mod raw;
mod selectors;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::Value;

use self::raw::{RawDefaultDeny, RawEntry, RawGroup, RawIngress, RawObject, RawSpec};
use self::selectors::{Selected, Use};
use super::cluster::labels_of;
use super::enforcement;
use super::error::{Findings, Problem, quoted};
use super::metadata::{self, plain_name};
use super::outcome::{ObjectKey, Outcome, Read};
use super::path::FieldPath;
use super::policy::block_of;
use super::raw::{Mapping, RawSelector, typed};
use crate::foreign::cilium::{CidrGroup, Policy, Rule, Spec, every_pod};
use crate::foreign::{ForeignKind, ForeignName, ForeignObject};
use crate::object::{Isolation, NamespaceScope, PodPeer, RuleAction};
use crate::origin::Direction;

/// The API group of Cilium's kinds.
const GROUP: &str = "cilium.io";

/// Reads an object of Cilium. `None` if it is none, or of a kind that policy does not depend on.
pub(super) fn read(api_version: &str, kind: &str, value: &Value) -> Option<Read> {
    let version = api_version.strip_prefix(GROUP)?.strip_prefix('/')?;
    let kinds =
        [ForeignKind::CiliumNetworkPolicy, ForeignKind::CiliumClusterwideNetworkPolicy, ForeignKind::CiliumCidrGroup];
    let kind = kinds.into_iter().find(|known| known.name() == kind)?;
    Some(match (version, kind) {
        ("v2" | "v2alpha1", ForeignKind::CiliumCidrGroup) => read_group(value),
        ("v2", _) => read_policy(kind, value),
        _ => {
            let text = format!("{} of {} is not supported", kind.name(), quoted(api_version));
            let help = format!("write `apiVersion: {GROUP}/v2`");
            let findings = Findings {
                problems: vec![Problem::new(&FieldPath::of("apiVersion"), text, help)],
                ..Findings::default()
            };
            Read { label: label_of(kind, value), key: None, outcome: Outcome::Unreadable, findings }
        }
    })
}

/// Returns the object's kind, and its namespace and name if they are readable, for messages.
fn label_of(kind: ForeignKind, value: &Value) -> String {
    let text = |pointer| value.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    match (text("/metadata/namespace"), text("/metadata/name")) {
        (namespace, Some(name)) if kind == ForeignKind::CiliumNetworkPolicy => {
            format!("{} {}/{name}", kind.name(), namespace.unwrap_or("default"))
        }
        (_, Some(name)) => format!("{} {name}", kind.name()),
        _ => kind.name().to_owned(),
    }
}

fn read_policy(kind: ForeignKind, value: &Value) -> Read {
    let mut findings = Findings::default();
    let label = label_of(kind, value);
    let Some((namespace, name)) = place(kind, value, &mut findings) else {
        return Read { label, key: None, outcome: Outcome::Unreadable, findings };
    };
    let specs = Reader { namespace: namespace.clone(), findings: &mut findings }.specs(value);
    let enforcement = enforcement::of(value, &mut findings);
    let whole = namespace.as_ref().map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}").into());
    let fault = findings.problems.first().map(|first| first.to_string().into());
    let outcome = match specs {
        Some(specs) => {
            let is_whole = fault.is_none();
            let policy = Policy { name: ForeignName { kind, name: whole }, specs, fault, position: None, enforcement };
            let object = ForeignObject::CiliumPolicy(policy).into();
            if is_whole { Outcome::Object(object) } else { Outcome::Closed(object) }
        }
        None => Outcome::Unreadable,
    };
    let key = ObjectKey { kind: kind.name(), namespace: namespace.unwrap_or_else(|| "".into()), name };
    Read { label, key: Some(key), outcome, findings }
}

/// Returns the policy's namespace, `None` for a kind without one, and its name. `None` and a problem if one of them is invalid.
fn place(kind: ForeignKind, value: &Value, findings: &mut Findings) -> Option<(Option<Arc<str>>, Arc<str>)> {
    if kind == ForeignKind::CiliumNetworkPolicy {
        let place = metadata::place(value, findings);
        return Some((Some(place.namespace?), place.name?)).filter(|_| findings.problems.is_empty());
    }
    if value.pointer("/metadata/namespace").is_some_and(|namespace| !namespace.is_null() && namespace != "") {
        let path = FieldPath::of("metadata").key("namespace");
        let text = format!("a {} has no namespace", kind.name());
        findings.problem(&path, text, "remove it, or write a CiliumNetworkPolicy for this namespace alone");
        return None;
    }
    let text = value.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned);
    Some((None, plain_name(text, &mut findings.problems)?.into()))
}

fn read_group(value: &Value) -> Read {
    let mut findings = Findings::default();
    let kind = ForeignKind::CiliumCidrGroup;
    let group = match typed::<RawGroup>(value, &FieldPath::default()) {
        Ok(raw) => checked_group(raw, &mut findings),
        Err(problem) => {
            findings.problems.push(problem);
            None
        }
    };
    let key =
        group.as_ref().map(|group| ObjectKey { kind: kind.name(), namespace: "".into(), name: group.name.clone() });
    // Without one of its blocks, policies that deny the group's addresses would allow them.
    let outcome = match group.filter(|_| findings.problems.is_empty()) {
        Some(group) => Outcome::Object(ForeignObject::CiliumCidrGroup(group).into()),
        None => Outcome::Unreadable,
    };
    Read { label: label_of(kind, value), key, outcome, findings }
}

fn checked_group(raw: RawGroup, findings: &mut Findings) -> Option<CidrGroup> {
    let metadata = raw.metadata.map(|Mapping(metadata)| metadata).unwrap_or_default();
    let name = plain_name(metadata.name, &mut findings.problems);
    let base = FieldPath::of("spec");
    let Some(Mapping(spec)) = raw.spec else {
        findings.problem(&FieldPath::default(), "missing field `spec`", "add `spec` with `externalCIDRs`");
        return None;
    };
    let path = base.key("externalCIDRs");
    let Some(texts) = spec.blocks else {
        findings.problem(&path, "missing field `externalCIDRs`", "add it, or write `[]` for an empty group");
        return None;
    };
    let blocks = texts.iter().enumerate().filter_map(|(at, text)| block_of(text, &path.index(at), findings)).collect();
    Some(CidrGroup { name: name?.into(), labels: labels_of(metadata.labels), blocks })
}

/// Reads one policy.
struct Reader<'a> {
    /// The policy's namespace. `None` for a policy of the whole cluster.
    namespace: Option<Arc<str>>,
    findings: &'a mut Findings,
}

/// A list of rules: its name, direction, and what its elements do.
type List = (&'static str, Direction, RuleAction);

impl Reader<'_> {
    fn fail<T>(&mut self, problem: Problem) -> Option<T> {
        self.findings.problems.push(problem);
        None
    }

    /// Returns the policy's specs. `None` if no stand-in can replace an invalid one.
    fn specs(&mut self, value: &Value) -> Option<Vec<Spec>> {
        let object = match typed::<RawObject>(value, &FieldPath::default()) {
            Ok(object) => object,
            Err(problem) => {
                self.findings.problems.push(problem);
                return self.closed(None, &FieldPath::of("spec")).map(|spec| vec![spec]);
            }
        };
        let one = object.spec.filter(|spec| !spec.is_null()).map(|spec| (FieldPath::of("spec"), spec));
        let base = FieldPath::of("specs");
        let many = object.specs.into_iter().flatten().enumerate().map(|(at, spec)| (base.index(at), spec));
        let all: Vec<_> = one.into_iter().chain(many).collect();
        if all.is_empty() {
            self.findings.problem(&FieldPath::default(), "the policy has neither `spec` nor `specs`", "add `spec`");
            return self.closed(None, &FieldPath::of("spec")).map(|spec| vec![spec]);
        }
        let mut specs = Vec::new();
        for (path, value) in &all {
            specs.extend(self.spec(value, path)?);
        }
        Some(specs)
    }

    /// Returns a spec, nothing if it selects no pod, or a stand-in if it is invalid. `None` if no stand-in can replace it. A spec of nodes is
    /// a problem, and selects no pod.
    fn spec(&mut self, value: &Value, base: &FieldPath) -> Option<Option<Spec>> {
        let raw = match typed::<RawSpec>(value, base) {
            Ok(raw) => raw,
            Err(problem) => {
                self.findings.problems.push(problem);
                return self.closed(Some(value), base).map(Some);
            }
        };
        if raw.node_selector.as_ref().is_some_and(|selector| !selector.is_null()) {
            let help =
                "policies of nodes' own traffic are not enforced here: remove the spec, or set `--ignore` for its kind";
            self.findings.problem(&base.key("nodeSelector"), "a policy of nodes", help);
            // In a policy of the whole cluster it restricts no pod. Cilium has none in a namespace, and none with both selectors.
            let is_of_nodes = self.namespace.is_none() && raw.endpoint_selector.is_none();
            return if is_of_nodes { Some(None) } else { self.closed(Some(value), base).map(Some) };
        }
        let path = base.key("endpointSelector");
        let Some(Mapping(selector)) = &raw.endpoint_selector else {
            self.findings.problem(
                &path,
                "missing field `endpointSelector`",
                "write `endpointSelector: {}` for every pod",
            );
            return self.closed(Some(value), base).map(Some);
        };
        let subject = self.selector(selector, Use::Subject, &path);
        let (mut ingress, mut egress) = self.lists(&raw, base);
        let isolates = isolation(&raw);
        // A rule that matches nobody matters only if nothing else shows that the policy is about the direction.
        let matches_some = |rule: &Rule| rule.peers.as_ref().is_none_or(|peers| !peers.is_empty());
        if isolates.ingress {
            ingress.retain(matches_some);
        }
        if isolates.egress {
            egress.retain(matches_some);
        }
        let subject = match subject {
            Some(Selected::Pods(subject) | Selected::PodsAndOthers(subject)) => subject,
            Some(Selected::Reserved(_) | Selected::Nothing) => {
                let text = "the selector selects no pod, so the rules have no effect";
                self.findings.warning(&path, text, "correct it, or remove the rules");
                return Some(None);
            }
            None => return self.closed(Some(value), base).map(Some),
        };
        Some(Some(Spec { path: base.to_string().into(), subject, isolates, ingress, egress }))
    }

    /// Returns the ingress rules and the egress rules of a spec. In both, the rules that deny come first. An invalid element is replaced by its
    /// stand-in, and its faults are added to the findings.
    fn lists(&mut self, raw: &RawSpec, base: &FieldPath) -> (Vec<Rule>, Vec<Rule>) {
        let (mut ingress, mut egress) = (Vec::new(), Vec::new());
        let count = |list: &Option<Vec<Value>>| list.as_ref().map_or(0, Vec::len);
        for (list, first, elements) in [
            (("ingressDeny", Direction::Ingress, RuleAction::Deny), 0, &raw.ingress_deny),
            (("ingress", Direction::Ingress, RuleAction::Accept), count(&raw.ingress_deny), &raw.ingress),
            (("egressDeny", Direction::Egress, RuleAction::Deny), 0, &raw.egress_deny),
            (("egress", Direction::Egress, RuleAction::Accept), count(&raw.egress_deny), &raw.egress),
        ] {
            let rules = if list.1 == Direction::Ingress { &mut ingress } else { &mut egress };
            for (at, element) in elements.iter().flatten().enumerate() {
                rules.extend(self.rules_or_closed(list, (first + at, element), &base.key(list.0).index(at)));
            }
        }
        (ingress, egress)
    }

    /// Returns the stand-in for an invalid spec: it denies everything to and from the pods that its selector selects, or, if that is
    /// invalid, to and from all pods of the policy's namespace. `None` if the policy has no namespace and its selector is invalid.
    fn closed(&mut self, value: Option<&Value>, base: &FieldPath) -> Option<Spec> {
        let path = base.key("endpointSelector");
        let selector = value.and_then(|value| value.get("endpointSelector"));
        let selector = selector.and_then(|selector| typed::<RawSelector>(selector, &path).ok());
        let subject = selector.and_then(|selector| {
            let mut findings = Findings::default();
            let mut reader = Reader { namespace: self.namespace.clone(), findings: &mut findings };
            match reader.selector(&selector, Use::Subject, &path)? {
                Selected::Pods(subject) | Selected::PodsAndOthers(subject) => Some(subject),
                Selected::Reserved(_) | Selected::Nothing => None,
            }
        });
        let whole = self.namespace.clone().map(|own| PodPeer { namespaces: NamespaceScope::Own(own), ..every_pod() });
        let deny = |list| vec![closed_rule(0, &base.key(list))];
        Some(Spec {
            path: base.to_string().into(),
            subject: subject.or(whole)?,
            isolates: Isolation { ingress: true, egress: true },
            ingress: deny("ingressDeny"),
            egress: deny("egressDeny"),
        })
    }

    /// Returns the rules of an element. For an invalid element: no rule if it allows, and a rule that denies everything if it denies.
    fn rules_or_closed(&mut self, list: List, (at, value): (usize, &Value), base: &FieldPath) -> Vec<Rule> {
        let before = self.findings.problems.len();
        let entry = match list.1 {
            Direction::Ingress => typed::<RawIngress>(value, base).map(RawEntry::from),
            Direction::Egress => typed::<RawEntry>(value, base),
        };
        let rules = match entry {
            Ok(raw) => self.rules(list, at, &raw, base),
            Err(problem) => {
                self.findings.problems.push(problem);
                Vec::new()
            }
        };
        match (self.findings.problems.len() == before, list.2) {
            (true, _) => rules,
            (false, RuleAction::Deny) => vec![closed_rule(at, base)],
            (false, _) => Vec::new(),
        }
    }

    /// Returns the rules of an element: one for each part of its `toPorts` that has its own further conditions. An element without peers and
    /// ports matches nobody. The rules may be used only if no problem was found.
    fn rules(&mut self, list: List, at: usize, raw: &RawEntry, base: &FieldPath) -> Vec<Rule> {
        let (name, direction, action) = list;
        for (field, is_set) in [("toFQDNs", raw.names.is_some()), ("authentication", raw.authentication.is_some())] {
            if is_set && action == RuleAction::Deny {
                let help = "remove it: rules that deny apply to packets, by addresses and ports";
                self.findings.problem(&base.key(field), format!("`{name}` has no `{field}`"), help);
            }
        }
        let peers = self.peers(direction, raw, base);
        let ports = self.ports(list, raw, base);
        let (Some(peers), Some(ports)) = (peers, ports) else { return Vec::new() };
        let has_ports = ports.iter().any(|part| part.ports.is_some());
        let peers = match peers {
            peers::Peers::Absent if !has_ports => Some(Vec::new()),
            peers::Peers::Absent | peers::Peers::Everybody => None,
            peers::Peers::Listed(peers) => Some(peers),
        };
        if direction == Direction::Egress
            && ports.iter().any(ports::Part::has_names)
            && peers.as_ref().is_some_and(|peers| !peers.is_empty() && !peers.iter().any(peers::has_pods))
        {
            let text = "a named port cannot be combined with destinations that are no pods, which have no named ports";
            self.findings.problem(base, text, "write the port's number");
        }
        let rule = |part: ports::Part| Rule {
            path: base.to_string().into(),
            at,
            action,
            peers: peers.clone(),
            ports: part.ports,
            then: part.then,
        };
        ports.into_iter().map(rule).collect()
    }
}

/// Returns the rule that replaces an invalid element that denies: it denies everything.
fn closed_rule(at: usize, path: &FieldPath) -> Rule {
    Rule { path: path.to_string().into(), at, action: RuleAction::Deny, peers: None, ports: None, then: None }
}

/// Returns the directions in which a spec isolates: those with an element in one of the lists, unless the spec says otherwise.
fn isolation(raw: &RawSpec) -> Isolation {
    let has_some = |list: &Option<Vec<Value>>| list.as_ref().is_some_and(|list| !list.is_empty());
    let set =
        |of: fn(&RawDefaultDeny) -> Option<bool>| raw.enable_default_deny.as_ref().and_then(|Mapping(raw)| of(raw));
    Isolation {
        ingress: set(|raw| raw.ingress).unwrap_or_else(|| has_some(&raw.ingress) || has_some(&raw.ingress_deny)),
        egress: set(|raw| raw.egress).unwrap_or_else(|| has_some(&raw.egress) || has_some(&raw.egress_deny)),
    }
}
