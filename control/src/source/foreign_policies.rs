//! Prepares objects of other products for what the caller does with them: answers, auditing or enforcement.

use std::sync::Arc;

use super::error::Problem;
use super::options::ForeignKinds;
use super::outcome::{Outcome, Read};
use super::path::FieldPath;
use crate::foreign::ForeignObject;
use crate::foreign::calico::{Action, Policy as CalicoPolicy, Rule as CalicoRule};
use crate::foreign::cilium::Policy as CiliumPolicy;
use crate::object::{Direction, Enforcement, Object};

/// Returns the object as it is used with `kinds`. With [`ForeignKinds::Enforce`], a rule that allows traffic about which other conditions
/// decide is a fault. With [`ForeignKinds::Audit`], every policy is audited, and an object without a stand-in is left out.
pub(super) fn prepared(mut read: Read, kinds: ForeignKinds) -> Read {
    match kinds {
        ForeignKinds::Read | ForeignKinds::Skip => {}
        ForeignKinds::Audit => audit(&mut read.outcome),
        ForeignKinds::Enforce => close_conditional(&mut read),
    }
    read
}

fn audit(outcome: &mut Outcome) {
    let audit = Some(Enforcement::Audit);
    match outcome {
        Outcome::Object(Object::Foreign(object)) | Outcome::Closed(Object::Foreign(object)) => {
            match Arc::make_mut(object) {
                ForeignObject::CalicoPolicy(policy) => policy.enforcement = audit,
                ForeignObject::CiliumPolicy(policy) => policy.enforcement = audit,
                ForeignObject::CalicoTier(_)
                | ForeignObject::CalicoNetworkSet(_)
                | ForeignObject::CiliumCidrGroup(_)
                | ForeignObject::ServiceAccount(_) => {}
            }
        }
        Outcome::Unreadable => *outcome = Outcome::Nothing,
        Outcome::Object(_) | Outcome::Closed(_) | Outcome::Nothing => {}
    }
}

/// Replaces rules that allow traffic about which other conditions decide by rules that decide nothing, and adds a problem for each.
fn close_conditional(read: &mut Read) {
    let (Outcome::Object(Object::Foreign(object)) | Outcome::Closed(Object::Foreign(object))) = &mut read.outcome
    else {
        return;
    };
    let problems = match Arc::make_mut(object) {
        ForeignObject::CalicoPolicy(policy) => close_calico(policy),
        ForeignObject::CiliumPolicy(policy) => close_cilium(policy),
        ForeignObject::CalicoTier(_)
        | ForeignObject::CalicoNetworkSet(_)
        | ForeignObject::CiliumCidrGroup(_)
        | ForeignObject::ServiceAccount(_) => return,
    };
    if problems.is_empty() {
        return;
    }
    read.findings.problems.extend(problems);
    read.outcome = match std::mem::replace(&mut read.outcome, Outcome::Nothing) {
        Outcome::Object(object) => Outcome::Closed(object),
        other => other,
    };
}

fn close_calico(policy: &mut CalicoPolicy) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (direction, rules) in [(Direction::Ingress, &mut policy.ingress), (Direction::Egress, &mut policy.egress)] {
        let base = FieldPath::of("spec").key(direction.name());
        for (at, rule) in rules.iter_mut().enumerate().filter(|(_, rule)| rule.has_http) {
            problems.push(conditional(&base.index(at).key("http"), "HTTP rules"));
            *rule = CalicoRule::everything(Action::Log);
        }
    }
    policy.fault = policy.fault.take().or_else(|| fault(&problems));
    problems
}

fn close_cilium(policy: &mut CiliumPolicy) -> Vec<Problem> {
    let mut problems = Vec::new();
    let rules = policy.specs.iter_mut().flat_map(|spec| spec.ingress.iter_mut().chain(&mut spec.egress));
    for rule in rules {
        let Some(conditions) = rule.then.take() else { continue };
        let path = FieldPath::parse(&rule.path).unwrap_or_default();
        problems.push(conditional(&path, &conditions));
        rule.peers = Some(Vec::new());
    }
    policy.fault = policy.fault.take().or_else(|| fault(&problems));
    problems
}

fn conditional(path: &FieldPath, conditions: &str) -> Problem {
    let help = "allow the ports without these conditions, or enforce them in the applications; `state.foreign_policies: audit` enforces \
                no policy of other products";
    Problem::new(path, format!("{conditions} decide about traffic that the rule allows, and are not evaluated"), help)
}

fn fault(problems: &[Problem]) -> Option<Arc<str>> {
    problems.first().map(|problem| problem.to_string().into())
}
