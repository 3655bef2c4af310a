//! Calico's objects, of `projectcalico.org/v3` and `crd.projectcalico.org/v1`.
//!
//! Source: projectcalico/calico, `api/pkg/apis/projectcalico/v3`.

use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

pub use super::selector::Selector;
use super::{ForeignKind, ForeignName};
use crate::object::{Enforcement, Isolation, Labels, Order, PolicyPort, Position, RuleAction, ServiceName};

/// The tier of policies that name none. Kubernetes' NetworkPolicies are in it too.
pub const DEFAULT_TIER: &str = "default";

/// The tiers that represent those of Kubernetes, with their fixed orders.
pub const TIERS_OF_KUBERNETES: [(&str, f64); 3] = [("kube-admin", 1e3), (DEFAULT_TIER, 1e6), ("kube-baseline", 1e7)];

/// A policy of Calico with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The policy's kind and name.
    pub name: ForeignName,
    /// The name of the policy's tier: `default` if the policy names none.
    pub tier: Arc<str>,
    /// The policy's place in its tier. [`Order::LAST`] if it has none.
    pub order: Order,
    /// The condition on the endpoints that the policy applies to, in addition to their namespace.
    pub selector: Selector,
    /// The condition on their namespaces. `None` if absent. Only global policies have one.
    pub namespaces: Option<Selector>,
    /// The condition on their service accounts. `None` if absent.
    pub service_accounts: Option<Selector>,
    /// The directions that the policy applies to.
    pub types: Isolation,
    /// Rules for traffic towards the pods, in order. Without effect unless `types` has ingress.
    pub ingress: Vec<Rule>,
    /// Rules for traffic from the pods, in order. Without effect unless `types` has egress.
    pub egress: Vec<Rule>,
    /// The reason why the policy is invalid. `None` if the policy is valid. Its invalid rules are [`Action::Log`] if they allow, and deny
    /// everything otherwise.
    pub fault: Option<Arc<str>>,
    /// Its position in the source file. `None` if it comes from an API server.
    pub position: Option<Position>,
    /// The value of [`ENFORCEMENT_ANNOTATION`](crate::object::ENFORCEMENT_ANNOTATION), and audit for staged policies. `None` if absent.
    pub enforcement: Option<Enforcement>,
}

/// A Tier of Calico.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// The tier's name.
    pub name: Arc<str>,
    /// The tier's place among all tiers. `None`: after all tiers that have one.
    pub order: Option<Order>,
    /// What happens to traffic that the tier's policies apply to and none of their rules decides: Deny or Pass.
    pub end: RuleAction,
}

/// A NetworkSet or GlobalNetworkSet of Calico, or the addresses of a HostEndpoint: blocks of addresses that selectors select by label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkSet {
    /// The set's kind and name.
    pub name: ForeignName,
    /// The set's namespace. `None` if its kind has none.
    pub namespace: Option<Arc<str>>,
    /// The set's labels.
    pub labels: Labels,
    /// The blocks.
    pub nets: Vec<IpNet>,
    /// The patterns of domain names, of Calico's commercial products. Only rules that allow egress match their addresses.
    #[serde(default)]
    pub names: Vec<Arc<str>>,
}

impl Policy {
    /// Returns the policy's namespace. `None` if its kind has none.
    pub fn namespace(&self) -> Option<&str> {
        let is_global = matches!(
            self.name.kind,
            ForeignKind::CalicoGlobalNetworkPolicy | ForeignKind::CalicoStagedGlobalNetworkPolicy
        );
        self.name.name.split_once('/').filter(|_| !is_global).map(|(namespace, _)| namespace)
    }
}

/// What a rule does with the packets that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Allows the traffic.
    Allow,
    /// Denies the traffic.
    Deny,
    /// Leaves the decision to the next tier.
    Pass,
    /// Logs a line and goes on to the next rule, so it decides nothing.
    Log,
}

/// A rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// What the rule does.
    pub action: Action,
    /// The families that `ipVersion` permits.
    pub families: Families,
    /// The protocols and destination ports, without those in not-fields. `None` for all.
    pub ports: Option<Vec<PolicyPort>>,
    /// The source.
    pub source: Entity,
    /// The destination.
    pub destination: Entity,
    /// Whether the rule also looks at HTTP requests, which are not evaluated here.
    pub has_http: bool,
}

/// The source or destination of a rule. All conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entity {
    /// The address is in one of these blocks. Empty without this condition.
    pub nets: Vec<IpNet>,
    /// The address is in none of these blocks.
    pub not_nets: Vec<IpNet>,
    /// The address is that of an endpoint or set that the selector selects. `None` without this condition.
    pub selector: Option<Selector>,
    /// The address is not that of an endpoint or set that the selector selects, in whatever namespace. `None` without this condition.
    pub not_selector: Option<Selector>,
    /// The endpoint or set is in a namespace that the selector selects. `None` if absent: in a policy with a namespace, in that namespace.
    pub namespaces: Option<Selector>,
    /// The endpoint has such a service account. `None` without this condition.
    pub accounts: Option<Accounts>,
    /// The pod has learned the address for a domain name that one of these patterns matches. Empty without this condition. Only destinations of
    /// rules that allow egress have it, and beside it only `not_nets`. From Calico's commercial products.
    #[serde(default)]
    pub names: Vec<Arc<str>>,
    /// The address is an endpoint of this Service. `None` without this condition. Excludes all others.
    pub service: Option<ServiceName>,
}

/// A condition on service accounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounts {
    /// The names, one of which the account must have. Empty without this condition.
    pub names: Vec<Arc<str>>,
    /// The condition on its labels. `None` without one.
    pub selector: Option<Selector>,
}

/// The families of packets that a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Families {
    /// Whether the rule applies to IPv4.
    pub v4: bool,
    /// Whether the rule applies to IPv6.
    pub v6: bool,
}
