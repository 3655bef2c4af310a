//! Reads Calico's policies.

use std::sync::Arc;

use serde_json::Value;

use super::super::enforcement;
use super::super::error::{Findings, quoted};
use super::super::names;
use super::super::outcome::{Outcome, Read};
use super::super::path::FieldPath;
use super::raw::RawSpec;
use super::{Group, Identity, finished, identity, objects, rule, selector};
use crate::foreign::calico::{DEFAULT_TIER, Policy, Selector};
use crate::foreign::{ForeignKind, ForeignObject};
use crate::object::{Enforcement, Isolation, Order};
use crate::origin::Direction;

/// Reads a policy.
pub(super) fn read(kind: ForeignKind, value: &Value, group: Group) -> Read {
    let mut findings = Findings::default();
    let identity = identity(kind, value, group, &mut findings);
    let spec = objects::spec::<RawSpec>(value, &mut findings);
    let name = identity.as_ref().map(|identity| identity.name.clone());
    let Some((identity, spec)) = identity.zip(spec) else {
        return finished(kind, value, name, None, findings, Outcome::Unreadable);
    };
    if decides_nothing(kind, &spec, &mut findings) && findings.problems.is_empty() {
        return finished(kind, value, name, None, findings, Outcome::Nothing);
    }
    let head = head(identity, &spec, group, &mut findings);
    if !findings.problems.is_empty() {
        return finished(kind, value, name, None, findings, Outcome::Unreadable);
    }
    let namespace = head.namespace().map(str::to_owned);
    let base = FieldPath::of("spec");
    let mut rules = |direction: Direction, raw: &Option<Vec<Value>>| {
        let base = base.key(direction.name());
        let raw = raw.iter().flatten().enumerate();
        raw.map(|(at, raw)| rule::read(direction, namespace.as_deref(), raw, &base.index(at), &mut findings))
            .collect::<Vec<_>>()
    };
    let (ingress, egress) = (rules(Direction::Ingress, &spec.ingress), rules(Direction::Egress, &spec.egress));
    warn_of_idle(&head, !ingress.is_empty(), !egress.is_empty(), &mut findings);
    let enforcement = if is_staged(kind) { Some(Enforcement::Audit) } else { enforcement::of(value, &mut findings) };
    let fault: Option<Arc<str>> = findings.problems.first().map(|problem| problem.to_string().into());
    let policy = ForeignObject::CalicoPolicy(Box::new(Policy { ingress, egress, enforcement, fault, ..head }));
    match findings.problems.is_empty() {
        true => finished(kind, value, name, Some(policy), findings, Outcome::Unreadable),
        false => finished(kind, value, name, None, findings, Outcome::Closed(policy.into())),
    }
}

const fn is_staged(kind: ForeignKind) -> bool {
    matches!(kind, ForeignKind::CalicoStagedNetworkPolicy | ForeignKind::CalicoStagedGlobalNetworkPolicy)
}

/// Checks fields of only some kinds. Returns whether the policy decides nothing about pods, with a warning.
fn decides_nothing(kind: ForeignKind, spec: &RawSpec, findings: &mut Findings) -> bool {
    let is_global =
        matches!(kind, ForeignKind::CalicoGlobalNetworkPolicy | ForeignKind::CalicoStagedGlobalNetworkPolicy);
    let base = FieldPath::of("spec");
    for (field, is_there, belongs) in [
        ("namespaceSelector", spec.namespace_selector.is_some(), is_global),
        ("doNotTrack", spec.do_not_track.is_some(), is_global),
        ("preDNAT", spec.pre_dnat.is_some(), is_global),
        ("applyOnForward", spec.apply_on_forward.is_some(), is_global),
        ("stagedAction", spec.staged_action.is_some(), is_staged(kind)),
    ] {
        if is_there && !belongs {
            let text = format!("unknown field `{field}` in a {}", kind.name());
            findings.problem(
                &base.key(field),
                text,
                "remove it: an unknown field could change the meaning of the policy",
            );
        }
    }
    for (field, is_set) in [("doNotTrack", spec.do_not_track), ("preDNAT", spec.pre_dnat)] {
        if is_set == Some(true) {
            let help = "protect nodes by other means";
            let text = format!("passed over: a policy with `{field}` applies to host endpoints only");
            findings.warning(&base.key(field), text, help);
            return true;
        }
    }
    if spec.apply_on_forward == Some(true) {
        let text = "host endpoints are not judged: the policy applies to pods only";
        findings.warning(&base.key("applyOnForward"), text, "protect nodes by other means");
    }
    staged_away(spec.staged_action.as_deref(), findings)
}

/// Whether a staged policy decides nothing even if it were enforced.
pub(super) fn staged_away(action: Option<&str>, findings: &mut Findings) -> bool {
    let path = FieldPath::of("spec").key("stagedAction");
    match action {
        None | Some("" | "Set" | "Learn") => false,
        Some(action @ ("Delete" | "Ignore")) => {
            let text = format!("passed over: a staged policy with `{action}` is not evaluated");
            findings.warning(&path, text, "write Set to see what the policy would deny");
            true
        }
        Some(other) => {
            findings.problem(&path, format!("unknown action {}", quoted(other)), "write Set, Delete, Learn or Ignore");
            false
        }
    }
}

/// Returns the policy without rules.
fn head(identity: Identity, spec: &RawSpec, group: Group, findings: &mut Findings) -> Policy {
    let base = FieldPath::of("spec");
    let tier = spec.tier.as_deref().filter(|tier| !tier.is_empty()).unwrap_or(DEFAULT_TIER);
    if !names::is_dns_subdomain(tier) {
        findings.problem(&base.key("tier"), format!("invalid name {}", quoted(tier)), "write the name of a Tier");
    }
    let mut of = |text: &Option<String>, field: &str| selector(text.as_deref(), false, &base.key(field), findings);
    Policy {
        selector: of(&spec.selector, "selector").unwrap_or(Selector::All),
        namespaces: of(&spec.namespace_selector, "namespaceSelector"),
        service_accounts: of(&spec.service_account_selector, "serviceAccountSelector"),
        types: types(spec, group, findings),
        name: identity.name,
        tier: tier.into(),
        order: spec.order.map_or(Order::LAST, Order::of),
        ingress: Vec::new(),
        egress: Vec::new(),
        fault: None,
        position: None,
        enforcement: None,
    }
}

/// Returns the directions of the policy. Without `types`, Calico's API fills them in when an object is created; a stored object without them
/// applies to both directions.
fn types(spec: &RawSpec, group: Group, findings: &mut Findings) -> Isolation {
    let has = |rules: &Option<Vec<Value>>| rules.as_ref().is_some_and(|rules| !rules.is_empty());
    let written = spec.types.as_deref().unwrap_or_default();
    if written.is_empty() {
        return match group {
            Group::Stored => Isolation { ingress: true, egress: true },
            Group::Api => {
                let egress = has(&spec.egress);
                Isolation { ingress: !egress || has(&spec.ingress), egress }
            }
        };
    }
    let base = FieldPath::of("spec").key("types");
    for (at, text) in written.iter().enumerate() {
        if !matches!(text.as_str(), "Ingress" | "Egress") {
            findings.problem(&base.index(at), format!("unknown type {}", quoted(text)), "write Ingress or Egress");
        }
    }
    let lists = |word: &str| written.iter().any(|text| text == word);
    Isolation { ingress: lists("Ingress"), egress: lists("Egress") }
}

fn warn_of_idle(policy: &Policy, has_ingress: bool, has_egress: bool, findings: &mut Findings) {
    for (direction, word, has_rules, applies) in [
        (Direction::Ingress, "Ingress", has_ingress, policy.types.ingress),
        (Direction::Egress, "Egress", has_egress, policy.types.egress),
    ] {
        if has_rules && !applies {
            let text = format!("these rules have no effect: `types` does not list {word}");
            let path = FieldPath::of("spec").key(direction.name());
            findings.warning(&path, text, format!("add {word} to `types`, or remove the rules"));
        }
    }
}
