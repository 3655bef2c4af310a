//! Decides a list's rules for one peer: which rule applies to which protocols and ports.
//!
//! ```text
//!  rules that name the peer, by tier --first of its tier--> Accept, Deny: decided
//!                                                      `--> Pass, or no rule: the next tier; after the last: undecided
//! ```

use bulkhead_classifier::{OriginId, ServiceSet, Services};

use crate::contract::{RuleAction, TierRule};

/// Protocols and ports with the Accept or Deny, and the origin of the rule, that decides about them. `None` if no rule decides.
pub(crate) type Piece = (ServiceSet, Option<(RuleAction, OriginId)>);

/// Evaluates rules in order for a peer that all of them name. Returns disjoint pieces that together cover everything. Calls `hits` with the
/// protocols and ports for which each rule is the first of its tier, including Pass rules.
pub(crate) fn decide<'a>(
    rules: impl Iterator<Item = &'a TierRule>,
    mut hits: impl FnMut(&'a TierRule, &ServiceSet),
) -> Vec<Piece> {
    // Services that this tier has not decided, and services that it has passed to the next tier.
    let (mut open, mut passed) = (ServiceSet::all(), ServiceSet::default());
    let mut pieces: Vec<Piece> = Vec::new();
    let mut tier = None;
    for rule in rules {
        if tier != Some(&rule.tier) {
            (open, passed) = (open.union(&passed), ServiceSet::default());
            tier = Some(&rule.tier);
        }
        let hit = match &rule.services {
            Services::Any => open.clone(),
            Services::Set(services) => open.intersect(services),
        };
        if hit.is_empty() {
            continue;
        }
        open = open.subtract(&hit);
        hits(rule, &hit);
        if rule.action == RuleAction::Pass {
            passed = passed.union(&hit);
            continue;
        }
        let decision = Some((rule.action, rule.origin));
        match pieces.iter_mut().find(|(_, known)| *known == decision) {
            Some((services, _)) => *services = services.union(&hit),
            None => pieces.push((hit, decision)),
        }
    }
    let rest = open.union(&passed);
    if !rest.is_empty() {
        pieces.push((rest, None));
    }
    pieces
}
