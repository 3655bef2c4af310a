//! Finds rules that never decide and policies without effect.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_classifier::OriginId;
use bulkhead_control::object::{PolicyName, RuleAction};
use bulkhead_control::origin::{Direction, Origin};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::removal::{Reason, Removal, Removals};

use super::finding::{
    At, BLOCKED_RULE, Check, Found, MAX_BY, NAMES_ITSELF, POLICY_CHANGES_NOTHING, REDUNDANT_RULE, SAME_PRIORITY,
    SHADOWED_RULE,
};
use super::makers::Makers;
use super::nobody;
use super::subject::{Rule, RuleKey, Subject, origins};
use crate::output::some_of;

/// Rules and policies without effect.
pub(super) struct Dead<'a> {
    pub(super) found: Vec<Found<'a>>,
    /// All dead rules, including those of policies reported as a whole.
    pub(super) rules: BTreeSet<RuleKey>,
}

/// Checks all policies. `told` are the findings about peers and ports, which explain rules that match nothing.
pub(super) fn find<'a>(
    pipeline: &'a Pipeline,
    removals: &mut Removals<'_>,
    makers: &Makers<'a>,
    subjects: &[Subject<'a>],
    told: &[Found<'a>],
) -> Dead<'a> {
    let origins = origins(pipeline);
    let mut dead = Dead { found: Vec::new(), rules: BTreeSet::new() };
    // Findings that can be removed individually, to find out which can be removed together.
    let mut removable: Vec<(usize, Removal)> = Vec::new();
    for subject in subjects {
        let rules: Vec<(&Rule<'a>, Option<OriginId>)> =
            subject.rules.iter().map(|rule| (rule, origins.get(&key(subject, rule)).copied())).collect();
        let is_dead = |(_, origin): &&(&Rule<'a>, Option<OriginId>)| {
            origin.is_none_or(|origin| removals.is_harmless(&Removal::of_rule(origin)))
        };
        let idle: Vec<&(&Rule<'a>, Option<OriginId>)> = rules.iter().filter(is_dead).collect();
        dead.rules.extend(idle.iter().map(|(rule, _)| key(subject, rule)));
        if subject.pods.is_empty() {
            dead.found.extend(nobody::policy(pipeline.cache(), makers, subject));
            continue;
        }
        let whole = Removal { policies: [subject.name.clone()].into(), ..Removal::default() };
        if removals.is_harmless(&whole) {
            removable.push((dead.found.len(), whole));
            dead.found.push(changes_nothing(subject, subjects, idle.len()));
            if idle.len() == rules.len() {
                continue;
            }
        }
        for (rule, origin) in idle {
            let reason = origin.map(|origin| removals.reason(origin)).filter(|reason| reason.names_somebody);
            let Some(reason) = reason else {
                dead.found.extend(nobody::nothing(subject, rule, told));
                continue;
            };
            removable.extend(origin.map(|origin| (dead.found.len(), Removal::of_rule(origin))));
            dead.found.push(explained(pipeline, subject, rule, &reason));
        }
    }
    together(removals, &mut dead.found, removable);
    dead
}

fn key(subject: &Subject<'_>, rule: &Rule<'_>) -> RuleKey {
    (subject.name.clone(), rule.direction, rule.at)
}

/// Marks the findings that can be removed together. Whole policies come before single rules, later ones before earlier ones, so that the
/// first of several equal ones stays.
fn together(removals: &mut Removals<'_>, found: &mut [Found<'_>], mut removable: Vec<(usize, Removal)>) {
    removable.sort_by_key(|(at, removal)| (removal.policies.is_empty(), std::cmp::Reverse(*at)));
    let mut gone: BTreeSet<PolicyName> = BTreeSet::new();
    for (at, removal) in removable {
        let one = &mut found[at];
        let goes = gone.contains(&one.policy) || removals.is_harmless(&removal);
        if goes {
            removals.remove(&removal);
            gone.extend(removal.policies);
        } else {
            one.mend.push_str("; but not together with the others that are found here: then it is needed");
        }
        one.together = Some(goes);
    }
}

fn changes_nothing<'a>(subject: &Subject<'a>, all: &[Subject<'a>], idle: usize) -> Found<'a> {
    let own: BTreeSet<_> = subject.pods.iter().map(|pod| &pod.name).collect();
    let same = |other: &&Subject<'a>| {
        let common = |at: usize| subject.concerns[at] && other.concerns[at];
        other.name != subject.name && (common(0) || common(1)) && other.pods.iter().any(|pod| own.contains(&pod.name))
    };
    let others: Vec<&Subject<'a>> = all.iter().filter(same).take(MAX_BY).collect();
    let rules = match (subject.rules.len(), idle) {
        (0, _) => "it has no rules".to_owned(),
        (all, idle) if all == idle => "none of its rules decides anything".to_owned(),
        _ => "what its rules allow would pass without it".to_owned(),
    };
    let names: Vec<String> = others.iter().map(|other| other.label()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let beside = match names.len() {
        0 => String::new(),
        _ => format!("; its pods are also selected by {}", some_of(&names, MAX_BY)),
    };
    let text = format!("without the policy every verdict would be the same: {rules}{beside}");
    let by = others.iter().map(|other| other.at()).collect();
    Found { by, ..subject.found(POLICY_CHANGES_NOTHING, text, "remove the policy") }
}

/// Explains why a rule that matches connections never decides.
fn explained<'a>(pipeline: &'a Pipeline, subject: &Subject<'a>, rule: &Rule<'a>, reason: &Reason) -> Found<'a> {
    let deciders: Vec<Decider<'a>> = reason.by.iter().filter_map(|&origin| decider(pipeline, origin)).collect();
    let blockers: Vec<Decider<'a>> = reason.blocked_by.iter().filter_map(|&origin| decider(pipeline, origin)).collect();
    let names = |all: &[Decider<'_>]| {
        let names: Vec<&str> = all.iter().map(|one| one.text.as_str()).collect();
        some_of(&names, MAX_BY)
    };
    let verb = match rule.action {
        RuleAction::Accept => "allows",
        RuleAction::Deny => "denies",
        RuleAction::Pass => "passes on",
    };
    let mut parts = Vec::new();
    let is_before = deciders.iter().all(|one| one.is_cluster || one.is_isolation);
    let is_shadowed = if subject.is_cluster() { !reason.is_reached } else { !deciders.is_empty() && is_before };
    if !deciders.is_empty() {
        parts.push(match is_shadowed {
            true => format!("what it {verb} is decided before by {}", names(&deciders)),
            false => format!("what it {verb} is decided alike by {}", names(&deciders)),
        });
    }
    if reason.by_default {
        parts.push(format!("what it {verb} passes without it as well, because no other rule denies it"));
    }
    if !blockers.is_empty() {
        parts.push(format!("what it {verb} is denied at the other end: {}", names(&blockers)));
    }
    if reason.only_itself {
        parts.push("it names the pod itself, which always reaches itself".to_owned());
    }
    if reason.only_own_node {
        parts.push("it names the pod's own node, with which it may always connect".to_owned());
    }
    let nothing_else = deciders.is_empty() && !reason.by_default && !reason.only_own_node;
    let check: &'static Check = if nothing_else && !blockers.is_empty() {
        BLOCKED_RULE
    } else if nothing_else && reason.only_itself {
        NAMES_ITSELF
    } else if is_shadowed {
        SHADOWED_RULE
    } else {
        REDUNDANT_RULE
    };
    let mend = match (check.id == BLOCKED_RULE.id, is_only(subject, rule)) {
        (true, _) => "allow it at the other end too, or remove the rule".to_owned(),
        (false, true) => format!("remove the rule, and keep {} in policyTypes", type_name(rule.direction)),
        (false, false) => "remove the rule".to_owned(),
    };
    let by = deciders.into_iter().chain(blockers).take(MAX_BY).flat_map(|one| one.at).collect();
    Found { by, ..subject.found_in(check, rule, subject.rule_at(rule), parts.join("; "), mend) }
}

/// Whether the rule is the only one of a NetworkPolicy in its direction. Removing it needs explicit `policyTypes`, because the default
/// isolates only ingress.
fn is_only(subject: &Subject<'_>, rule: &Rule<'_>) -> bool {
    !subject.is_cluster() && subject.rules.iter().filter(|other| other.direction == rule.direction).count() == 1
}

fn type_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "Ingress",
        Direction::Egress => "Egress",
    }
}

/// A rule, or the policies that isolate a pod, that decide instead of a dead rule.
struct Decider<'a> {
    text: String,
    is_cluster: bool,
    is_isolation: bool,
    at: Vec<At<'a>>,
}

fn decider(pipeline: &Pipeline, origin: OriginId) -> Option<Decider<'_>> {
    let origin = pipeline.origins().get(origin)?;
    let cache = pipeline.cache();
    let own = |policy: &PolicyName| cache.policies().get(policy).and_then(|policy| policy.position.as_ref());
    let text = origin.to_string();
    Some(match origin {
        Origin::Policy { policy, direction, rule } => Decider {
            at: vec![At { text: text.clone(), position: own(policy), path: format!("spec.{direction}[{rule}]") }],
            text,
            is_cluster: false,
            is_isolation: false,
        },
        Origin::ClusterPolicy { policy, direction, rule, rule_name, .. } => {
            let position = cache.cluster_policies().get(policy).and_then(|policy| policy.position.as_ref());
            let path = policy.rule_path(*direction, *rule, rule_name.as_deref());
            Decider { at: vec![At { text: text.clone(), position, path }], text, is_cluster: true, is_isolation: false }
        }
        Origin::Isolation { policies, others, .. } => Decider {
            at: policies
                .iter()
                .map(|policy| At { text: policy.to_string(), position: own(policy), path: String::new() })
                .chain(others.iter().map(|policy| {
                    let object = cache.cluster_policies().get(policy);
                    let position = object.and_then(|policy| policy.position.as_ref());
                    At { text: policy.to_string(), position, path: String::new() }
                }))
                .collect(),
            text,
            is_cluster: false,
            is_isolation: true,
        },
        Origin::OwnNode | Origin::OwnPod | Origin::NotIsolated(_) => return None,
    })
}

/// Reports cluster policies of equal priority whose order matters.
pub(super) fn ties<'a>(pipeline: &'a Pipeline, removals: &Removals<'_>, subjects: &[Subject<'a>]) -> Vec<Found<'a>> {
    let ranks: BTreeMap<PolicyName, _> =
        // The API of other products defines the order of their policies.
        pipeline
            .cache()
            .cluster_policies()
            .values()
            .filter(|policy| !policy.rank.name.kind.is_foreign())
            .map(|policy| (policy.rank.name.key(), &policy.rank))
            .collect();
    let mut found = Vec::new();
    let mut by_place: BTreeMap<_, Vec<&Subject<'a>>> = BTreeMap::new();
    for subject in subjects {
        if let Some(rank) = ranks.get(&subject.name) {
            by_place.entry((&rank.tier, rank.order)).or_default().push(subject);
        }
    }
    for tied in by_place.values_mut() {
        tied.sort_by_key(|subject| ranks.get(&subject.name).copied());
        for (at, second) in tied.iter().enumerate() {
            for first in &tied[..at] {
                let Some((one, other)) = removals.disagreement(&first.name, &second.name) else { continue };
                let [one, other] = [one, other].map(|origin| decider(pipeline, origin));
                let (Some(one), Some(other)) = (one, other) else { continue };
                let text = format!(
                    "{} and {} are of one tier and priority and say otherwise of the same connections; the API leaves open which is \
                     asked first, here it is the former",
                    one.text, other.text
                );
                let by = one.at.into_iter().chain(other.at).collect();
                let mend = "give one of the two policies another priority";
                found.push(Found { by, ..second.found(SAME_PRIORITY, text, mend) });
            }
        }
    }
    found
}
