//! Audited policies: what the node would enforce if they were enforced too.
//!
//! ```text
//!                            .--without audited policies--> endpoints --> renderers --> the tables in force
//!  policies of a pod --------+
//!                            `--all of them---------------> endpoints --> shadow -----> what they would be
//! ```
//! **Two compilations.** A connection is audited where the tables in force allow it and those of all policies deny it. Both sides come
//! out of the same configurator and a renderer of the same kind, so that an audited policy cannot change what is enforced, and becomes
//! what was foretold when it is enforced. The shadow exists while some policy is audited, and a port has a shadow table only where the
//! two may differ ([`AuditTables::differs_at`]); without audited policies nothing here costs anything. What it costs while there are
//! some: the memory and the compile time of these tables once more, and a second lookup for each new connection that passes.
//!
//! **What lost.** One list with a third action, *allow and count*: where only one of several policies is audited, each of its lists
//! has to be crossed with those that are enforced, in both directions and over all tiers, so that the rules in force become others, and
//! more, as soon as something is audited. The engines and every renderer would know of the action, and whether enforcement has stayed
//! as it was would be a theorem about them instead of a comparison of two lists.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use bulkhead_classifier::OriginId;

use super::Pipeline;
use super::enforcing::Enforcing;
use crate::contract::{Endpoint, EndpointRules, TieredList, Transaction};
use crate::object::{ClusterPolicyName, Enforcement, PodName, Policy, PolicyName, Position};
use crate::origin::Origins;
use crate::processor::Scope;
use crate::renderer::acl::{AclRenderer, Attachment, NodeTables};
use crate::renderer::identity::IdentityRenderer;
use crate::renderer::{Instead, Refusal, RenderError, Renderer};

/// What a node would enforce if its audited policies were enforced too.
#[derive(Clone, Debug)]
pub struct AuditTables {
    /// Its tables then.
    pub tables: Arc<NodeTables>,
    differing: Differing,
}

/// Where the tables of all policies may say something else than those in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Differing {
    /// What some pod may send: that is judged at every port.
    egress: bool,
    /// Pods that may be sent something else.
    ingress: BTreeSet<PodName>,
}

impl AuditTables {
    /// Whether the table of this interface may say something else than the one in force.
    pub fn differs_at(&self, attachment: &Attachment) -> bool {
        self.differing.egress || matches!(attachment, Attachment::Pod(pod) if self.differing.ingress.contains(pod))
    }
}

impl PartialEq for AuditTables {
    /// Whether nothing has changed from one to the other.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tables, &other.tables) && self.differing == other.differing
    }
}

/// A policy that is not enforced, or is enforced although it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AuditedPolicy {
    /// Of a namespace.
    Namespaced(PolicyName),
    /// Of the cluster.
    Cluster(ClusterPolicyName),
}

impl std::fmt::Display for AuditedPolicy {
    /// `shop/web`, or `ClusterNetworkPolicy web`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Namespaced(name) => name.fmt(f),
            Self::Cluster(name) => name.fmt(f),
        }
    }
}

/// The renderer of the shadow tables, of the same kind as the enforcing one.
enum Form {
    Acl(Box<AclRenderer>),
    Identities(Box<IdentityRenderer>),
}

impl Form {
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

/// See the module.
pub(super) struct Shadow {
    form: Form,
    /// The endpoints as the renderer knows them, and what it is to be told of them.
    told: BTreeMap<PodName, Arc<Endpoint>>,
    news: Vec<(PodName, Option<Arc<Endpoint>>)>,
    /// Why it could not take in the last transaction. It tries again with the next one.
    failed: Option<String>,
}

impl Shadow {
    fn new(scope: &Scope, enforcing: &Enforcing) -> Option<Self> {
        let form = match (scope, enforcing) {
            (Scope::Node(node), Enforcing::Acl(_)) => Form::Acl(Box::new(AclRenderer::of_node(node.clone()))),
            (Scope::Cluster, Enforcing::Acl(_)) => Form::Acl(Box::new(AclRenderer::of_all_nodes())),
            (Scope::Node(node), Enforcing::Identities(_)) => {
                Form::Identities(Box::new(IdentityRenderer::of_node(node.clone(), 0)))
            }
            (_, Enforcing::Identities(_) | Enforcing::Sessions(_) | Enforcing::Kernel(_) | Enforcing::Nothing(_)) => {
                return None;
            }
        };
        Some(Self { form, told: BTreeMap::new(), news: Vec::new(), failed: None })
    }

    /// Forgets the endpoints, because all of them are told again. Returns what they were: what still has a list keeps its identity.
    pub(super) fn start_over(&mut self) -> BTreeMap<PodName, Arc<Endpoint>> {
        self.news.clear();
        std::mem::take(&mut self.told)
    }

    /// An endpoint by all policies.
    pub(super) fn tell(&mut self, endpoint: Endpoint) {
        if self.told.get(&endpoint.pod).is_none_or(|told| **told != endpoint) {
            let (name, endpoint) = (endpoint.pod.clone(), Arc::new(endpoint));
            self.told.insert(name.clone(), endpoint.clone());
            self.news.push((name, Some(endpoint)));
        }
    }

    /// The pod is gone.
    pub(super) fn forget(&mut self, pod: &PodName) {
        if self.told.remove(pod).is_some() {
            self.news.push((pod.clone(), None));
        }
    }

    /// Whether the renderer is to be told something of endpoints, or has not taken in what it was told.
    pub(super) fn has_news(&self) -> bool {
        !self.news.is_empty() || self.failed.is_some()
    }

    /// Follows a transaction of the enforcing renderers, with the endpoints by all policies.
    pub(super) fn render(&mut self, transaction: &Transaction, origins: &Origins) {
        let endpoints = std::mem::take(&mut self.news);
        let transaction = Transaction { endpoints, ..transaction.clone() };
        let rendered = self.form.renderer_mut().render_with(&transaction, origins);
        self.failed = rendered.err().map(|error| error.to_string());
    }

    pub(super) fn origins(&self) -> HashSet<OriginId> {
        self.form.renderer().origins()
    }

    /// What does not fit. Nothing of it is enforced.
    pub(super) fn refusals(&self) -> Vec<Refusal> {
        let mut refusals = self.form.renderer().refusals();
        refusals.iter_mut().for_each(|refusal| refusal.subject = format!("the audit of {}", refusal.subject));
        let failed = self.failed.iter().cloned();
        refusals.extend(failed.map(|why| Refusal { subject: "the audit".to_owned(), instead: Instead::LastGood, why }));
        refusals
    }

    fn all_tables(&self) -> Vec<Arc<NodeTables>> {
        match &self.form {
            Form::Acl(renderer) => renderer.all_node_tables().cloned().collect(),
            Form::Identities(renderer) => renderer.node_tables().cloned().into_iter().collect(),
        }
    }
}

impl Pipeline {
    /// The same pipeline with audited policies: those whose annotation, or whose namespace's, says so, and with
    /// [`Enforcement::Audit`] also those that say nothing. Without this all policies are enforced, whatever they say. To be called
    /// before there are objects. Where policy is enforced at the source, or by the kernel, nothing is audited.
    #[must_use]
    pub fn auditing(mut self, default: Enforcement) -> Self {
        if self.can_audit() {
            self.processor.set_auditing(Some(default));
        }
        self
    }

    /// Has policies that do not say be enforced or audited from now on; with none all are enforced, whatever they say. Where policy is
    /// enforced at the source, or by the kernel, nothing changes.
    ///
    /// # Errors
    /// As for [`Pipeline::resync`].
    pub fn enforce(&mut self, default: Option<Enforcement>) -> Result<(), RenderError> {
        if self.processor.auditing() == default || !self.can_audit() {
            return Ok(());
        }
        self.processor.set_auditing(default);
        self.render_all()
    }

    /// Whether policies can be left out of what is enforced, and counted.
    const fn can_audit(&self) -> bool {
        match self.enforcing {
            Enforcing::Acl(_) | Enforcing::Identities(_) | Enforcing::Nothing(_) => true,
            Enforcing::Sessions(_) | Enforcing::Kernel(_) => false,
        }
    }

    /// Makes the shadow, or forgets it, as there are audited policies. Returns whether it is new, and is to be told everything.
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

    /// The policies that select a pod of the scope and are not enforced, by name.
    pub fn audited_policies(&self) -> BTreeSet<AuditedPolicy> {
        let cluster = self.cache.cluster_policies().keys().map(|name| (name.key(), name));
        let cluster: BTreeMap<PolicyName, &ClusterPolicyName> = cluster.collect();
        let named = |name: &PolicyName| match cluster.get(name) {
            Some(policy) => AuditedPolicy::Cluster((*policy).clone()),
            None => AuditedPolicy::Namespaced(name.clone()),
        };
        self.processor.audited().iter().map(named).collect()
    }

    /// Whether this policy is enforced; none when there is no such policy.
    pub fn enforcement_of(&self, policy: &AuditedPolicy) -> Option<Enforcement> {
        let said = match policy {
            AuditedPolicy::Namespaced(name) => {
                let policy = self.cache.policies().get(name)?;
                self.processor.auditing().map(|default| self.cache.enforcement(policy, default))
            }
            AuditedPolicy::Cluster(name) => {
                let policy = self.cache.cluster_policies().get(name)?;
                self.processor.auditing().map(|default| policy.enforcement.unwrap_or(default))
            }
        };
        Some(said.unwrap_or_default())
    }

    /// The policies that are enforced although they, or their namespaces, want to be audited: this pipeline audits nothing. Each with
    /// where it stands.
    pub fn unaudited_policies(&self) -> Vec<(AuditedPolicy, Option<Position>)> {
        if self.processor.auditing().is_some() {
            return Vec::new();
        }
        let wants = |policy: &Policy| self.cache.enforcement(policy, Enforcement::Enforce) == Enforcement::Audit;
        let own = self.cache.policies().values().filter(|policy| wants(policy));
        let own = own.map(|policy| (AuditedPolicy::Namespaced(policy.name.clone()), policy.position.clone()));
        let cluster = self.cache.cluster_policies().values();
        let cluster = cluster.filter(|policy| policy.enforcement == Some(Enforcement::Audit));
        let cluster = cluster.map(|policy| (AuditedPolicy::Cluster(policy.rank.name.clone()), policy.position.clone()));
        own.chain(cluster).collect()
    }

    /// What a node would enforce if its audited policies were enforced too; none where none is audited.
    pub fn audit_tables(&self, node: &str) -> Option<AuditTables> {
        self.all_audit_tables().remove(node)
    }

    /// The same of all nodes of the scope.
    pub fn all_audit_tables(&self) -> BTreeMap<Arc<str>, AuditTables> {
        let Some(shadow) = &self.shadow else { return BTreeMap::new() };
        let mut differing: BTreeMap<&Arc<str>, Differing> = BTreeMap::new();
        for (name, enforced) in &self.told {
            let Some(full) = shadow.told.get(name) else { continue };
            let (ingress, egress) = differences(&enforced.rules, &full.rules);
            if ingress || egress {
                let of_node = differing.entry(&enforced.node).or_default();
                of_node.egress |= egress;
                of_node.ingress.extend(ingress.then(|| name.clone()));
            }
        }
        let tables = shadow.all_tables().into_iter();
        tables
            .filter_map(|tables| Some((tables.node.clone(), differing.remove(&tables.node)?, tables)))
            .map(|(node, differing, tables)| (node, AuditTables { tables, differing }))
            .collect()
    }
}

/// Whether the two lists of a pod are others, in each direction. Equal lists are one list.
fn differences(enforced: &EndpointRules, full: &EndpointRules) -> (bool, bool) {
    let differ = |one: &Option<Arc<TieredList>>, other: &Option<Arc<TieredList>>| match (one, other) {
        (Some(one), Some(other)) => one.id != other.id,
        (one, other) => one.is_some() != other.is_some(),
    };
    (differ(&enforced.ingress, &full.ingress), differ(&enforced.egress, &full.egress))
}
