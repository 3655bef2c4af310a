//! Checks that the input has the objects on which policies of other products depend. Without one, an Allow would match less, but a Deny too.

use std::collections::BTreeSet;

use super::Loader;
use crate::foreign::calico::{Policy, TIERS_OF_KUBERNETES};
use crate::foreign::{self, ForeignObject, Needs};
use crate::object::{Object, Position};
use crate::source::error::SourceError;
use crate::source::outcome::{Outcome, Read};

/// Services and EndpointSlices of an input from which Services are not read: policies of other products may depend on them.
#[derive(Default)]
pub(super) struct Held {
    objects: Vec<Object>,
    /// The first faulty one: its kind and name, and its position.
    faulty: Option<(String, Position)>,
}

impl Held {
    /// Keeps a Service or EndpointSlice.
    pub(super) fn keep(&mut self, read: Read, position: impl FnOnce() -> Position) {
        match read.outcome {
            Outcome::Object(object) => self.objects.push(object),
            _ => drop(self.faulty.get_or_insert_with(|| (read.label, position()))),
        }
    }
}

impl Loader {
    /// Adds the held Services if a policy depends on them. Adds an error for each policy that depends on a kind of object that the input does
    /// not have, and a warning for each policy of a tier without an object.
    pub(super) fn complete(&mut self) {
        let all = || self.slots.iter().filter_map(|slot| slot.object.as_ref());
        let objects = all().filter_map(|object| match object {
            Object::Foreign(object) => Some(object),
            _ => None,
        });
        let policies: Vec<_> = objects.clone().filter_map(|object| Some((object.clone(), object.needs()?))).collect();
        let has_accounts = objects.clone().any(|object| matches!(**object, ForeignObject::ServiceAccount(_)));
        let tiers: BTreeSet<_> = objects
            .filter_map(|object| match &**object {
                ForeignObject::CalicoTier(tier) => Some(tier.name.clone()),
                _ => None,
            })
            .collect();
        let has_slices = all().chain(&self.held.objects).any(|object| matches!(object, Object::EndpointSlice(_)));
        let needing = |kind: Needs| policies.iter().find(|(_, needs)| needs.overlaps(kind)).map(|(object, _)| object);
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        if let Some(policy) = needing(Needs::SERVICE_ACCOUNTS).filter(|_| !has_accounts) {
            let text = "selects by labels of service accounts, and the input has no ServiceAccount";
            errors.push(about(policy, text, "add the output of `kubectl get serviceaccounts -A -o yaml`"));
        }
        for (kind, reports, otherwise) in [
            (Needs::SERVICES, &mut errors, ""),
            (Needs::MORE_SERVICES, &mut warnings, "; until then its rules allow less"),
        ] {
            let Some(policy) = needing(kind) else { continue };
            if !has_slices {
                let help = format!("add the output of `kubectl get services,endpointslices -A -o yaml`{otherwise}");
                reports.push(about(
                    policy,
                    "names a Service or the API server, and the input has no EndpointSlice",
                    &help,
                ));
            }
            if let Some((label, position)) = &self.held.faulty {
                let text = format!("names a Service or the API server, and {label} at {position} could not be read");
                reports.push(about(policy, &text, &format!("correct that object{otherwise}")));
            }
        }
        for (object, _) in &policies {
            let ForeignObject::CalicoPolicy(policy) = &**object else { continue };
            if is_lost(policy, &tiers) {
                let text = format!(
                    "tier `{}` has no Tier object: it comes after all others, and denies at its end",
                    policy.tier
                );
                warnings.push(about(object, &text, "add the Tier"));
            }
        }
        let held = std::mem::take(&mut self.held);
        if needing(Needs::SERVICES).or(needing(Needs::MORE_SERVICES)).is_some() {
            for object in held.objects {
                self.slots.push(super::Slot { object: Some(object), file: "".into(), line: 0 });
            }
        }
        self.errors.extend(errors);
        self.loaded.warnings.extend(warnings);
    }

    /// Returns all objects, with the ranked policies that those of other products resolve to instead of these. `None` if there are no objects
    /// of other products.
    pub(super) fn resolved(&self) -> Option<Vec<Object>> {
        let objects = self.slots.iter().filter_map(|slot| slot.object.as_ref());
        let has_some = objects.clone().any(|object| matches!(object, Object::Foreign(_)));
        has_some.then(|| foreign::resolved(objects.cloned()))
    }
}

fn is_lost(policy: &Policy, tiers: &BTreeSet<std::sync::Arc<str>>) -> bool {
    TIERS_OF_KUBERNETES.iter().all(|(name, _)| **name != *policy.tier) && !tiers.contains(&policy.tier)
}

fn about(policy: &ForeignObject, problem: &str, help: &str) -> SourceError {
    let position = policy.position();
    SourceError {
        file: position.map_or_else(|| "".into(), |position| position.file.clone()),
        document: position.map_or(0, |position| position.document),
        line: position.map(|position| position.line),
        object: Some(policy.name().to_string()),
        path: String::new(),
        problem: problem.to_owned(),
        help: help.to_owned(),
    }
}
