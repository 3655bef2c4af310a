//! Cilium's policies, of `cilium.io/v2`.
//!
//! The source reads a policy to this form, in which all that depends on the policy alone is decided: the pods that selectors select, ports,
//! entities. [`resolve()`] fills in what other objects say: groups of blocks, Services, the API server's addresses.
//!
//! Source: cilium/cilium, `pkg/policy/api` and `pkg/policy/utils`.

mod resolve;
#[cfg(test)]
mod tests;

pub(super) use self::resolve::resolve;
pub(crate) use self::resolve::{every_pod, outside};
use super::Needs;
use crate::object::RuleAction;
pub use crate::object::foreign::cilium::{CidrGroup, Policy, Rule, Spec, Who};

impl Policy {
    /// Returns the kinds of objects that the policy's meaning depends on.
    pub(super) fn needs(&self) -> Needs {
        let mut needs = Needs::NOTHING;
        for spec in &self.specs {
            for rule in spec.ingress.iter().chain(&spec.egress) {
                for who in rule.peers.iter().flatten() {
                    needs |= match who {
                        Who::Peer(_) | Who::Block(_) => Needs::NOTHING,
                        Who::Group { .. } | Who::Groups { .. } => Needs::CIDR_GROUPS,
                        // Without their addresses, a rule that allows them allows less.
                        _ if rule.action == RuleAction::Accept => Needs::MORE_SERVICES,
                        Who::Service { .. } | Who::Services { .. } | Who::ApiServer => Needs::SERVICES,
                    };
                }
            }
        }
        needs
    }
}
