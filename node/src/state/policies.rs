//! Answers whether the state has a policy, for clients that wait until it is enforced.

use bulkhead_control::object::{self, ClusterPolicyName, PolicyName};
use bulkhead_control::pipeline::AuditedPolicy;

use super::LiveState;
use bulkhead_observe::admin::{Enforcement, PolicyQuestion};

impl LiveState {
    /// Reports whether the state has the policy, and which changes are not compiled. The caller adds whether compiled policy is in force.
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
                // 0 if the object has no generation.
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

    /// Returns why compiled policy differs from the state. Empty if it does not.
    fn pending(&self) -> Vec<String> {
        let mut pending = Vec::new();
        if self.denied {
            pending.push("no valid state is loaded, so pod traffic is denied".into());
        }
        if self.is_refused {
            pending.push("the newest state was refused and an older one stays in force; see the log".into());
        }
        if self.api.is_none() && !self.watch.is_read() {
            pending.push("the state's files have changed and will be read soon".into());
        }
        let refusals = self.pipeline.refusals();
        pending.extend(refusals.first().map(|refusal| format!("tables are too large: {refusal}")));
        pending
    }
}
