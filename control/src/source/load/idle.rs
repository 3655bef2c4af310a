//! Finds `extensions/v1beta1` policies without effect.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::Semantics;
use super::super::error::SourceError;
use super::{Loader, namespace_name};
use crate::object::{ISOLATION_ANNOTATION, IngressIsolation, Object, PolicyVersion};

impl Loader {
    /// Adds a warning for each `extensions/v1beta1` policy that changes nothing. Such a policy can only allow connections, and the pods of a
    /// namespace that is not isolated accept all connections anyway. Adds none unless the options select the semantics of v1beta1.
    pub(super) fn warn_of_idle(&mut self) {
        let Semantics::V1beta1 { default } = self.options.semantics else { return };
        let isolates = |isolation| match isolation {
            IngressIsolation::ClusterDefault => default == IngressIsolation::DefaultDeny,
            IngressIsolation::DefaultDeny => true,
        };
        let objects = || self.slots.iter().filter_map(|slot| slot.object.as_ref());
        let isolated: BTreeSet<&str> = objects()
            .filter_map(|object| match object {
                Object::Namespace(namespace) if isolates(namespace.isolation) => Some(&*namespace.name),
                _ => None,
            })
            .collect();
        let known: BTreeSet<&str> = objects().filter_map(|object| namespace_name(object)).map(|name| &**name).collect();
        let works = |namespace: &str| {
            isolated.contains(namespace) || (!known.contains(namespace) && isolates(IngressIsolation::ClusterDefault))
        };
        let idle = objects().filter_map(|object| match object {
            Object::Policy(policy) if policy.version == PolicyVersion::V1beta1 && !works(&policy.name.namespace) => {
                Some(policy)
            }
            _ => None,
        });
        for policy in idle {
            let Some(position) = &policy.position else { continue };
            self.loaded.warnings.push(SourceError {
                file: Arc::clone(&position.file),
                document: position.document,
                line: Some(position.line),
                object: Some(format!("NetworkPolicy {}", policy.name)),
                path: String::new(),
                problem: "the policy has no effect: its namespace does not isolate its pods, which are open".to_owned(),
                help: format!(
                    "give the namespace the annotation {ISOLATION_ANNOTATION}: '{{\"ingress\": {{\"isolation\": \"DefaultDeny\"}}}}', or \
                     write `apiVersion: networking.k8s.io/v1`"
                ),
            });
        }
    }
}
