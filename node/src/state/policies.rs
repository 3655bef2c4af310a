//! Which policies the state has, for whoever waits for one to be enforced.

use bulkhead_control::object::{self, ClusterPolicyName, PolicyName};
use bulkhead_control::pipeline::AuditedPolicy;

use super::LiveState;
use bulkhead_observe::admin::{Enforcement, PolicyQuestion};

impl LiveState {
    /// What is known of a policy, and what of the state is not compiled. Whether what is compiled is in force others know.
    pub(crate) fn enforcement(&self, asked: &PolicyQuestion) -> Enforcement {
        let cache = self.pipeline.cache();
        let mut enforcement = Enforcement::default();
        let (named, fault) = match asked.kind {
            None => {
                let name = PolicyName::new(&*asked.namespace, &*asked.name);
                let policy = cache.policies().get(&name);
                let identity = policy.and_then(|policy| policy.identity.as_deref());
                enforcement.known = policy.is_some();
                enforcement.uid = identity.map(|identity| identity.uid.to_string());
                // 0 where the object does not say.
                enforcement.generation =
                    identity.map(|identity| identity.generation).filter(|generation| *generation > 0);
                let fault = policy.and_then(|policy| policy.fault.as_deref());
                (AuditedPolicy::Namespaced(name), fault)
            }
            Some(kind) => {
                let name = ClusterPolicyName { kind, name: asked.name.as_str().into() };
                let policy = cache.cluster_policies().get(&name);
                enforcement.known = policy.is_some();
                let fault = policy.and_then(|policy| policy.fault.as_deref());
                (AuditedPolicy::Cluster(name), fault)
            }
        };
        enforcement.audited = self.pipeline.enforcement_of(&named) == Some(object::Enforcement::Audit);
        enforcement.fault = fault.map(str::to_owned);
        enforcement.pending = self.pending();
        enforcement
    }

    /// What of the state is not what is compiled.
    fn pending(&self) -> Vec<String> {
        let mut pending = Vec::new();
        if self.denied {
            pending.push("there is no state that makes sense, so nothing is let through".into());
        }
        if self.is_refused {
            pending.push("the newest state is refused, and an older one stays in force; the log says why".into());
        }
        if self.api.is_none() && !self.watch.is_read() {
            pending.push("the state's files have changed and are about to be read".into());
        }
        let refusals = self.pipeline.refusals();
        pending.extend(refusals.first().map(|refusal| format!("tables do not fit: {refusal}")));
        pending
    }
}
