//! Handles objects that are given twice.

use std::sync::Arc;

use super::{Context, Loader, Severity};
use crate::object::{Enforcement, Object, Policy, PolicyVersion};
use crate::selector::Selector;
use crate::source::Strictness;
use crate::source::error::{Problem, printable};
use crate::source::fallback::{either_namespace, either_pod};
use crate::source::path::FieldPath;

impl Loader {
    /// Handles an object that was given before. Which of the two is meant is unknown. In lenient mode, a stand-in that allows no more than
    /// either replaces both. Without a safe stand-in (two nodes, or pods that differ in more than their ports), neither counts.
    pub(super) fn repeat(&mut self, first: usize, object: Option<Object>, label: &str, context: &mut Context<'_>) {
        let slot = &mut self.slots[first];
        let text = format!("the object is given twice, first at {}:{}", slot.file, slot.line);
        if let (Some(Object::Foreign(one)), Some(Object::Foreign(other))) = (&slot.object, &object)
            && one.is_same(other)
        {
            // Calico serves each of its objects in two API groups, and a dump may have both.
            return;
        }
        // Without a cluster policy, traffic that it denies would pass, so both modes refuse the input.
        let is_cluster_policy = slot
            .object
            .iter()
            .chain(&object)
            .any(|object| matches!(object, Object::ClusterPolicy(_) | Object::Foreign(_)));
        let is_same = slot.object == object;
        for object in slot.object.iter().chain(&object).filter(|_| !is_same) {
            self.unknown.is_pod |= matches!(object, Object::Pod(_));
            self.unknown.is_node |= matches!(object, Object::Node(_));
        }
        slot.object = match (slot.object.take(), object) {
            (Some(Object::Policy(one)), Some(Object::Policy(other))) => {
                Some(either(Arc::unwrap_or_clone(one), Arc::unwrap_or_clone(other), &text).into())
            }
            (Some(one), Some(other)) if one == other => Some(one),
            (Some(Object::Namespace(one)), Some(Object::Namespace(other))) => {
                self.unknown.namespaces.insert(Arc::clone(&one.name));
                Some(Object::Namespace(either_namespace(&one, &other)))
            }
            (Some(Object::Pod(one)), Some(Object::Pod(other))) => either_pod(&one, &other).map(Object::from),
            _ => None,
        };
        let (severity, consequence) = match (self.options.strictness, &slot.object) {
            (Strictness::Strict, _) => (Severity::Error, ""),
            (Strictness::Lenient, Some(_)) => (Severity::Warning, ""),
            (Strictness::Lenient, None) if is_cluster_policy => (Severity::Error, ""),
            (Strictness::Lenient, None) => (Severity::Warning, "; until then neither is used"),
        };
        self.loaded.faulty += 1;
        let problem = Problem::new(&FieldPath::default(), text, format!("remove one of the two{consequence}"));
        self.report(severity, context, Some(label), problem);
    }
}

/// Returns a policy that allows no more than either of two policies with one name.
fn either(one: Policy, mut other: Policy, fault: &str) -> Policy {
    other.position.clone_from(&one.position);
    if one == other {
        return one;
    }
    let subject = if one.subject == other.subject { one.subject } else { Selector::everything() };
    let fault = Some(printable(fault).into());
    // A v1beta1 policy does not isolate by itself.
    let version = PolicyVersion::V1;
    let is_same = one.enforcement == other.enforcement;
    let enforcement = if is_same { one.enforcement } else { Some(Enforcement::Enforce) };
    Policy { subject, ingress: Some(Vec::new()), egress: Some(Vec::new()), version, fault, enforcement, ..other }
}
