//! Audited policies: computes what a node would enforce if it enforced them too.
//!
//! ```text
//!                            .--without audited policies--> endpoints --> renderers --> tables in force
//!  policies of a pod --------+
//!                            `--all policies--------------> endpoints --> shadow -----> audit tables
//! ```
//! **Two compilations.** A connection is audited if the tables in force allow it and the audit tables deny it. The same configurator and a
//! renderer of the same kind make both. An audited policy therefore cannot change what is enforced, and enforcing it later has the
//! predicted effect.
//!
//! **Cost.** The shadow exists only while a policy is audited. It doubles the memory and compile time of the tables. A port has an audit
//! table only if the two tables may differ ([`AuditTables::differs_at`]). Each new connection that such a port allows needs a second
//! lookup.
//!
//! **Rejected.** A third action *allow and count* in one list. If only some of a pod's policies are audited, their rules must be crossed
//! with the enforced ones, in both directions and over all tiers, which changes and multiplies the rules in force. Every engine and
//! renderer would have to know the action. That enforcement stays the same would need a proof about them, instead of a comparison of two
//! lists.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use bulkhead_classifier::OriginId;

use super::Pipeline;
use super::apart::{self, Apart};
use super::enforcing::Enforcing;
use crate::contract::{Endpoint, EndpointRules, TieredList, Transaction};
use crate::object::{ClusterPolicyName, Enforcement, PodName, Policy, PolicyName, Position};
use crate::origin::Origins;
use crate::processor::Scope;
use crate::renderer::acl::{AclRenderer, Attachment, NodeTables};
use crate::renderer::identity::IdentityRenderer;
use crate::renderer::mirror::Mirror;
use crate::renderer::{Instead, Refusal, RenderError, Renderer};

/// The tables of a node as if its audited policies were enforced.
#[derive(Clone, Debug)]
pub struct AuditTables {
    /// The tables of all policies, audited ones included.
    pub tables: Arc<NodeTables>,
    pub(super) differing: Differing,
}

/// The pods for which the audit tables may give another verdict than the tables in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Differing {
    /// Whether the egress rules of any pod differ. The tables of all ports judge egress.
    egress: bool,
    /// Pods whose ingress rules differ.
    ingress: BTreeSet<PodName>,
}

impl AuditTables {
    /// Whether the audit table of this interface may give another verdict than the table in force.
    pub fn differs_at(&self, attachment: &Attachment) -> bool {
        self.differing.egress || matches!(attachment, Attachment::Pod(pod) if self.differing.ingress.contains(pod))
    }
}

impl PartialEq for AuditTables {
    /// Whether both have the same table object and the same differences.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tables, &other.tables) && self.differing == other.differing
    }
}

/// The name of a policy that is audited, or that requests an audit from a pipeline without auditing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AuditedPolicy {
    /// A NetworkPolicy.
    Namespaced(PolicyName),
    /// A policy of the tiers around NetworkPolicy.
    Cluster(ClusterPolicyName),
}

impl std::fmt::Display for AuditedPolicy {
    /// Writes `shop/web` for a NetworkPolicy, `ClusterNetworkPolicy web` for a cluster policy.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Namespaced(name) => name.fmt(f),
            Self::Cluster(name) => name.fmt(f),
        }
    }
}

/// The renderer of the audit tables, of the same kind as the enforcing one.
enum Form {
    Acl(Box<AclRenderer>),
    Identities(Box<IdentityRenderer>),
}

impl Form {
    /// Returns the renderer's tables of all nodes, without egress tables.
    fn all_tables(&self) -> Vec<Arc<NodeTables>> {
        match self {
            Self::Acl(renderer) => renderer.all_node_tables().cloned().collect(),
            Self::Identities(renderer) => renderer.node_tables().cloned().into_iter().collect(),
        }
    }

    fn renderer(&self) -> &dyn Renderer {
        match self {
            Self::Acl(renderer) => &**renderer,
            Self::Identities(renderer) => &**renderer,
        }
    }

    fn renderer_mut(&mut self) -> &mut dyn Renderer {
        match self {
            Self::Acl(renderer) => &mut **renderer,
            Self::Identities(renderer) => &mut **renderer,
        }
    }
}

/// The renderer of the audit tables and its endpoints.
pub(super) struct Shadow {
    /// `None` if the pipeline makes no tables.
    form: Option<Form>,
    /// The latest endpoints, compiled from all policies. `news` lists those that changed since the last transaction.
    pub(super) told: BTreeMap<PodName, Arc<Endpoint>>,
    news: Vec<(PodName, Option<Arc<Endpoint>>)>,
    /// The audit tables of all nodes, including egress tables.
    apart: Apart,
    /// The error of the last transaction, if it failed. The renderer tries again with the next one.
    failed: Option<String>,
}

impl Shadow {
    fn new(scope: &Scope, enforcing: &Enforcing) -> Option<Self> {
        let form = match (scope, enforcing) {
            (_, Enforcing::Nothing(_)) => None,
            (Scope::Node(node), Enforcing::Acl(_)) => Some(Form::Acl(Box::new(AclRenderer::of_node(node.clone())))),
            (Scope::Cluster, Enforcing::Acl(_)) => Some(Form::Acl(Box::new(AclRenderer::of_all_nodes()))),
            (Scope::Node(node), Enforcing::Identities(_)) => {
                Some(Form::Identities(Box::new(IdentityRenderer::of_node(node.clone(), 0))))
            }
            (_, Enforcing::Identities(_) | Enforcing::Sessions(_) | Enforcing::Kernel(_)) => return None,
        };
        Some(Self { form, told: BTreeMap::new(), news: Vec::new(), apart: Apart::default(), failed: None })
    }

    /// Forgets the endpoints before a resync. Returns them, so that the caller keeps their lists alive and the lists keep their identities.
    pub(super) fn start_over(&mut self) -> BTreeMap<PodName, Arc<Endpoint>> {
        self.news.clear();
        std::mem::take(&mut self.told)
    }

    /// Records the endpoint, compiled from all policies, for the next transaction if it changed.
    pub(super) fn tell(&mut self, endpoint: Endpoint) {
        if self.told.get(&endpoint.pod).is_none_or(|told| **told != endpoint) {
            let (name, endpoint) = (endpoint.pod.clone(), Arc::new(endpoint));
            self.told.insert(name.clone(), endpoint.clone());
            self.news.push((name, Some(endpoint)));
        }
    }

    /// Records that the pod was removed.
    pub(super) fn forget(&mut self, pod: &PodName) {
        if self.told.remove(pod).is_some() {
            self.news.push((pod.clone(), None));
        }
    }

    /// Whether endpoints changed since the last transaction, or the renderer failed on it.
    pub(super) fn has_news(&self) -> bool {
        !self.news.is_empty() || self.failed.is_some()
    }

    /// Applies a transaction of the enforcing renderers, with this shadow's endpoints.
    pub(super) fn render(&mut self, transaction: &Transaction, origins: &Origins) {
        let endpoints = std::mem::take(&mut self.news);
        let Some(form) = &mut self.form else { return };
        let transaction = Transaction { endpoints, ..transaction.clone() };
        let rendered = form.renderer_mut().render_with(&apart::for_tables(&transaction), origins);
        self.failed = rendered.err().map(|error| error.to_string());
        self.apart.follow(&transaction, self.failed.is_none());
        self.apart.combine(form.all_tables());
    }

    /// Whether the next transaction must be a resync ([`Apart::needs_all`]).
    pub(super) fn needs_all(&self) -> bool {
        self.form.is_some() && self.apart.needs_all(&self.news)
    }

    pub(super) fn origins(&self) -> HashSet<OriginId> {
        match &self.form {
            Some(form) => form.renderer().origins().into_iter().chain(self.apart.origins()).collect(),
            None => {
                let lists = self.told.values().flat_map(|endpoint| endpoint.rules.lists());
                lists.flat_map(|list| list.rules.iter().map(|rule| rule.origin)).collect()
            }
        }
    }

    /// Returns the rules that the renderer of the audit tables could not express. They affect the audit, not enforcement.
    pub(super) fn refusals(&self) -> Vec<Refusal> {
        let mut refusals = self.form.as_ref().map(|form| form.renderer().refusals()).unwrap_or_default();
        refusals.extend(self.apart.refusals());
        refusals = refusals.into_iter().map(of_audit).collect();
        let failed = self.failed.iter().cloned();
        refusals.extend(failed.map(|why| Refusal { subject: "the audit".to_owned(), instead: Instead::LastGood, why }));
        refusals
    }

    /// Adds a pod to those whose rules differ, if all policies give it other rules than the enforced ones.
    pub(super) fn compare(&self, name: &PodName, enforced: &Endpoint, differing: &mut Differing) {
        let Some(full) = self.told.get(name) else { return };
        let (ingress, egress) = differences(&enforced.rules, &full.rules);
        differing.egress |= egress;
        differing.ingress.extend(ingress.then(|| name.clone()));
    }

    fn all_tables(&self) -> Vec<Arc<NodeTables>> {
        self.apart.all_tables().cloned().collect()
    }
}

impl Pipeline {
    /// Enables auditing. Policies whose annotation, or whose namespace's annotation, requests an audit are then not enforced. `default`
    /// applies to policies without an annotation. Without auditing, all policies are enforced, whatever their annotations say, except staged
    /// ones, which have no effect then.
    ///
    /// Must be called before the pipeline has objects. Has no effect if policy is enforced at the source or by the kernel.
    #[must_use]
    pub fn auditing(mut self, default: Enforcement) -> Self {
        if self.can_audit() {
            self.processor.set_auditing(Some(default));
        }
        self
    }

    /// Changes the default for policies without an annotation. `None` disables auditing: all policies are enforced. Has no effect if policy
    /// is enforced at the source or by the kernel.
    ///
    /// # Errors
    /// As for [`Pipeline::resync`].
    pub fn enforce(&mut self, default: Option<Enforcement>) -> Result<(), RenderError> {
        if self.processor.auditing() == default || !self.can_audit() {
            return Ok(());
        }
        self.processor.set_auditing(default);
        if default.is_none() && self.processor.audited().is_empty() {
            // All compiled policies are enforced already.
            return Ok(());
        }
        self.render_all()
    }

    /// Whether this kind of enforcement supports auditing.
    const fn can_audit(&self) -> bool {
        match self.enforcing {
            Enforcing::Acl(_) | Enforcing::Identities(_) | Enforcing::Nothing(_) => true,
            Enforcing::Sessions(_) | Enforcing::Kernel(_) => false,
        }
    }

    /// Creates the shadow if a policy is audited, or drops it if none is. Returns whether it is new and needs the whole state.
    pub(super) fn follow_audit(&mut self) -> bool {
        match (&self.shadow, self.processor.audited().is_empty()) {
            (Some(_), true) => self.shadow = None,
            (None, false) => {
                self.shadow = Shadow::new(self.processor.scope(), &self.enforcing);
                return self.shadow.is_some();
            }
            _ => {}
        }
        false
    }

    /// Returns the audited policies that select a pod of the scope, sorted by name.
    pub fn audited_policies(&self) -> BTreeSet<AuditedPolicy> {
        let cluster = self.cache.cluster_policies().keys().map(|name| (name.key(), name));
        let cluster: BTreeMap<PolicyName, &ClusterPolicyName> = cluster.collect();
        let named = |name: &PolicyName| match cluster.get(name) {
            Some(policy) => AuditedPolicy::Cluster((*policy).clone()),
            None => AuditedPolicy::Namespaced(name.clone()),
        };
        self.processor.audited().iter().map(named).collect()
    }

    /// Whether this policy is enforced or audited. `None` if the policy does not exist.
    pub fn enforcement_of(&self, policy: &AuditedPolicy) -> Option<Enforcement> {
        let said = match policy {
            AuditedPolicy::Namespaced(name) => {
                let policy = self.cache.policies().get(name)?;
                self.processor.auditing().map(|default| self.cache.enforcement(policy, default))
            }
            AuditedPolicy::Cluster(name) => {
                let policy = self.cache.cluster_policies().get(name)?;
                let staged = name.kind.is_staged().then_some(Enforcement::Audit);
                self.processor.auditing().map(|default| policy.enforcement.unwrap_or(default)).or(staged)
            }
        };
        Some(said.unwrap_or_default())
    }

    /// Returns the policies that are enforced although they, or their namespaces, request an audit, each with its position in the source.
    /// Empty if auditing is enabled.
    pub fn unaudited_policies(&self) -> Vec<(AuditedPolicy, Option<Position>)> {
        if self.processor.auditing().is_some() {
            return Vec::new();
        }
        let wants = |policy: &Policy| self.cache.enforcement(policy, Enforcement::Enforce) == Enforcement::Audit;
        let own = self.cache.policies().values().filter(|policy| wants(policy));
        let own = own.map(|policy| (AuditedPolicy::Namespaced(policy.name.clone()), policy.position.clone()));
        let cluster = self.cache.cluster_policies().values();
        let cluster = cluster.filter(|policy| policy.enforcement == Some(Enforcement::Audit));
        let cluster = cluster.filter(|policy| !policy.rank.name.kind.is_staged());
        let cluster = cluster.map(|policy| (AuditedPolicy::Cluster(policy.rank.name.clone()), policy.position.clone()));
        own.chain(cluster).collect()
    }

    /// Returns the audit tables of a node. `None` if they cannot differ from those in force.
    pub fn audit_tables(&self, node: &str) -> Option<AuditTables> {
        self.all_audit_tables().remove(node)
    }

    /// Returns the audit tables of all nodes of the scope whose tables may differ from those in force.
    pub fn all_audit_tables(&self) -> BTreeMap<Arc<str>, AuditTables> {
        let Some(shadow) = &self.shadow else { return BTreeMap::new() };
        let mut differing: BTreeMap<&Arc<str>, Differing> = BTreeMap::new();
        for (name, enforced) in &self.told {
            let of_node = differing.entry(&enforced.node).or_default();
            shadow.compare(name, enforced, of_node);
        }
        differing.retain(|_, differing| *differing != Differing::default());
        let tables = shadow.all_tables().into_iter();
        tables
            .filter_map(|tables| Some((tables.node.clone(), differing.remove(&tables.node)?, tables)))
            .map(|(node, differing, tables)| (node, AuditTables { tables, differing }))
            .collect()
    }

    /// Returns the rules and sets if audited policies were enforced too. `None` if no policy is audited, or the pipeline makes tables
    /// ([`Pipeline::without_tables`]).
    pub fn audit_mirror(&self) -> Option<Mirror> {
        Some(self.mirror()?.with_endpoints(self.shadow.as_ref()?.told.clone()))
    }
}

/// Returns the refusal of a rule of the audit tables.
pub(super) fn of_audit(refusal: Refusal) -> Refusal {
    Refusal { subject: format!("the audit of {}", refusal.subject), ..refusal }
}

/// Whether the lists of a pod differ, for ingress and egress. Equal lists have the same identity.
fn differences(enforced: &EndpointRules, full: &EndpointRules) -> (bool, bool) {
    let differ = |one: &Option<Arc<TieredList>>, other: &Option<Arc<TieredList>>| match (one, other) {
        (Some(one), Some(other)) => one.id != other.id,
        (one, other) => one.is_some() != other.is_some(),
    };
    (differ(&enforced.ingress, &full.ingress), differ(&enforced.egress, &full.egress))
}
