//! The policy pipeline: turns events into rules and passes them to renderers.
//!
//! One thread owns the pipeline, without a lock. A batch of events passes all layers before the next batch starts, so a renderer sees only
//! whole states.

mod apart;
mod audit;
mod enforcing;
mod node;
mod renderers;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use bulkhead_classifier::OriginId;

use self::enforcing::{Enforcing, at_destination};
use crate::attachments::{Attachment, Attachments, Standing};
use crate::cache::{Cache, CacheChange, Event};
use crate::claims::{Claims, Contest};
use crate::configurator::Configurator;
use crate::contract::{Endpoint, Transaction};
pub use crate::engine::{Choice, Engine};
use crate::foreign::Foreign;
use crate::object::{Denied, IngressIsolation, Labels, Node, Object, Pod, PodName, PolicyName};
use crate::origin::Origins;
use crate::processor::{Committed, Processor, Scope};
use crate::renderer::mirror::Mirror;
use crate::renderer::nftables::{NftRenderer, Suspects};
use crate::renderer::session_rules::SourceRenderer;
use crate::renderer::{Refusal, RenderError, Renderer};
use apart::Apart;
use audit::Shadow;
pub use audit::{AuditTables, AuditedPolicy};
pub use node::CompiledNode;
pub use renderers::RendererHandle;

/// The node name of pods without a node, so that questions about hand-written states can be answered.
pub const UNBOUND: &str = "";

/// Turns events about objects into transactions for renderers, and holds the current state.
pub struct Pipeline {
    attachments: Attachments,
    foreign: Foreign,
    claims: Claims,
    cache: Cache,
    processor: Processor,
    configurator: Configurator,
    origins: Origins,
    /// The endpoints that renderers know from the last transaction.
    told: BTreeMap<PodName, Arc<Endpoint>>,
    /// All renderers. The first one renders the enforced rules.
    renderers: Vec<Box<dyn Renderer>>,
    enforcing: Enforcing,
    choice: Choice,
    /// The tables of all nodes, including those for egress of pods whose rules name domains. Empty if the pipeline makes no tables.
    apart: Apart,
    /// The renderer of the audit tables. `None` while no policy is audited.
    shadow: Option<Shadow>,
    /// Whether a renderer failed on the last transaction. It tries again with the next one, even an empty one.
    is_behind: bool,
}

impl Pipeline {
    /// Creates a pipeline without objects.
    pub fn new(scope: Scope) -> Self {
        Self::with_default_isolation(scope, IngressIsolation::ClusterDefault)
    }

    /// Creates a pipeline without objects. `isolation` applies to namespaces without the `extensions/v1beta1` annotation.
    pub fn with_default_isolation(scope: Scope, isolation: IngressIsolation) -> Self {
        Self::with_engine(scope, isolation, Engine::Acl)
    }

    /// As [`Pipeline::with_default_isolation`], with a chosen engine. [`Scope::Cluster`] always uses [`Engine::Acl`], because an ipcache
    /// belongs to one node.
    pub fn with_engine(scope: Scope, isolation: IngressIsolation, engine: Engine) -> Self {
        let (enforcing, renderer) = at_destination(&scope, engine, 0);
        Self::with(scope, isolation, renderer, enforcing)
    }

    /// Creates a pipeline without objects for one node that enforces policy at the source.
    pub fn at_source(node: Arc<str>, isolation: IngressIsolation) -> Self {
        let renderer = Box::new(SourceRenderer::new(node.clone()));
        Self::with(Scope::Node(node), isolation, renderer, Enforcing::Sessions(RendererHandle::FIRST))
    }

    /// Creates a pipeline without objects for one node whose kernel enforces policy by nftables. It makes no tables.
    pub fn in_the_kernel(node: Arc<str>, isolation: IngressIsolation, suspects: Suspects) -> Self {
        let mut renderer = NftRenderer::of_node(node.clone());
        renderer.set_suspects(suspects);
        Self::with(Scope::Node(node), isolation, Box::new(renderer), Enforcing::Kernel(RendererHandle::FIRST))
    }

    /// Creates a pipeline without objects, for the pods of all nodes. It makes no tables, which take most of the time and memory of a large
    /// state: [`crate::reachability`] needs only rules and sets.
    pub fn without_tables(isolation: IngressIsolation) -> Self {
        let enforcing = Enforcing::Nothing(RendererHandle::FIRST);
        Self::with(Scope::Cluster, isolation, Box::<Mirror>::default(), enforcing)
    }

    /// As [`Pipeline::without_tables`], but the lists keep rules that other rules make ineffective. [`crate::reachability::removal`] can
    /// then evaluate the lists without those other rules.
    pub fn with_every_rule(isolation: IngressIsolation) -> Self {
        Self { configurator: Configurator::keeping_every_rule(), ..Self::without_tables(isolation) }
    }

    fn with(scope: Scope, isolation: IngressIsolation, first: Box<dyn Renderer>, enforcing: Enforcing) -> Self {
        Self {
            attachments: Attachments::default(),
            foreign: Foreign::default(),
            claims: Claims::default(),
            cache: Cache::new(isolation),
            processor: Processor::new(scope),
            configurator: Configurator::default(),
            origins: Origins::default(),
            told: BTreeMap::new(),
            renderers: vec![first],
            choice: Choice::Fixed(enforcing.engine()),
            enforcing,
            apart: Apart::default(),
            shadow: None,
            is_behind: false,
        }
    }

    /// Replaces the whole state by `objects`.
    ///
    /// # Errors
    /// [`RenderError`] of the first renderer that failed. The other renderers have applied the change.
    pub fn resync(&mut self, objects: impl IntoIterator<Item = Object>) -> Result<(), RenderError> {
        let mut cache = Cache::new(self.cache.default_isolation());
        let mut claims = Claims::default();
        let mut foreign = Foreign::default();
        self.attachments.forget_objects();
        let mut apply = |event| {
            for event in claims.resolve(&cache, event) {
                cache.apply(event);
            }
        };
        for object in objects {
            let event = self.attachments.resolve(Event::Apply(object));
            foreign.take(event).into_iter().for_each(&mut apply);
        }
        foreign.changed().into_iter().for_each(apply);
        cache.retain_from(&self.cache);
        cache.quarantine(claims.quarantined(&cache));
        (self.foreign, self.claims, self.cache) = (foreign, claims, cache);
        self.render_all()
    }

    /// Sends the whole present state to all renderers.
    ///
    /// # Errors
    /// As for [`Pipeline::resync`].
    pub fn render_all(&mut self) -> Result<(), RenderError> {
        let committed = self.processor.resync(&self.cache);
        // Before the configurator runs: an unsuitable engine would take the longest.
        self.suit();
        self.follow_audit();
        // The old endpoints live until the transaction exists, so that the configurator reuses their lists with the same identities.
        let before = (std::mem::take(&mut self.told), self.shadow.as_mut().map(Shadow::start_over));
        let nodes = self.cache.nodes().keys().chain(self.cache.host_networks()).cloned().collect();
        let mut transaction = self.transaction(committed, BTreeSet::new(), nodes);
        transaction.resync = true;
        drop(before);
        self.render(&transaction)
    }

    /// Applies one event, as a batch.
    ///
    /// # Errors
    /// As for [`Pipeline::resync`].
    pub fn apply(&mut self, event: Event) -> Result<(), RenderError> {
        self.apply_batch([event])
    }

    /// Applies events as one change: renderers receive at most one transaction, with the state after the last event, and none if that state
    /// is the same as before.
    ///
    /// # Errors
    /// As for [`Pipeline::resync`]. Also if the events change nothing while a renderer still fails on an earlier transaction.
    pub fn apply_batch(&mut self, events: impl IntoIterator<Item = Event>) -> Result<(), RenderError> {
        let events = events.into_iter().map(|event| self.attachments.resolve(event)).collect();
        self.take_in(events)
    }

    /// Replaces the list of pods that the node's container runtime has attached.
    ///
    /// # Errors
    /// As for [`Pipeline::resync`].
    pub fn attach(&mut self, attachments: BTreeMap<PodName, Attachment>) -> Result<(), RenderError> {
        let (claims, cache) = (&self.claims, &self.cache);
        let events = self.attachments.replace(attachments, |name| claims.said(cache, name).cloned());
        self.take_in(events)
    }

    /// Returns for each attached pod whether policy knows it, or why not.
    pub fn standings(&self) -> BTreeMap<PodName, Standing> {
        let covers = |pod: &Pod| self.processor.scope().covers(pod);
        self.attachments.standings(&self.cache, covers)
    }

    /// Applies events to which [`Attachments`] has added the attached pods' addresses.
    fn take_in(&mut self, events: Vec<Event>) -> Result<(), RenderError> {
        let (mut moved, mut nodes) = (BTreeSet::new(), BTreeSet::new());
        for event in self.foreign.resolve_all(events) {
            for event in self.claims.resolve(&self.cache, event) {
                for change in self.cache.apply(event) {
                    self.processor.process(&self.cache, &change);
                    match &change {
                        CacheChange::Node { name } => drop(nodes.insert(name.clone())),
                        CacheChange::Pod { old, new, .. } => {
                            nodes.extend(host_network_node(old.as_ref()));
                            nodes.extend(host_network_node(new.as_ref()));
                            moved.extend(old.as_ref().or(new.as_ref()).map(|pod| pod.name.clone()));
                        }
                        CacheChange::Namespace { .. }
                        | CacheChange::Policy { .. }
                        | CacheChange::ClusterPolicy { .. }
                        | CacheChange::Quarantine => {}
                    }
                }
            }
        }
        if let Some(change) = self.cache.quarantine(self.claims.quarantined(&self.cache)) {
            self.processor.process(&self.cache, &change);
        }
        let committed = self.processor.commit(&self.cache);
        let is_other_engine = self.suit();
        // A new shadow renderer needs the whole state as well.
        if self.follow_audit() || is_other_engine {
            return self.render_all();
        }
        let transaction = self.transaction(committed, moved, nodes);
        let has_news = self.shadow.as_ref().is_some_and(Shadow::has_news);
        if transaction.is_empty() && !has_news && !self.is_behind {
            return Ok(());
        }
        let needs_all = self.apart.needs_all(&transaction.endpoints);
        if self.makes_tables() && (needs_all || self.shadow.as_ref().is_some_and(Shadow::needs_all)) {
            return self.render_all();
        }
        self.render(&transaction)
    }

    /// Composes a transaction: the sets, the affected pods that changed since the last transaction, and the removed ones among the `moved`
    /// pods.
    fn transaction(
        &mut self,
        committed: Committed,
        moved: BTreeSet<PodName>,
        nodes: BTreeSet<Arc<str>>,
    ) -> Transaction {
        let Committed { affected, sets, dropped } = committed;
        let mut endpoints = Vec::with_capacity(affected.len());
        for key in affected {
            let Some(pod) = self.cache.pod(key).filter(|pod| self.processor.scope().covers(pod)) else { continue };
            let mut audits = false;
            let enforced = self.processor.policies_of(key).filter(|revision| {
                audits |= revision.policy.is_audited;
                !revision.policy.is_audited
            });
            let endpoint = Endpoint {
                pod: pod.name.clone(),
                node: pod.node.clone().unwrap_or_else(|| UNBOUND.into()),
                addresses: pod.addresses.clone(),
                mac: pod.mac,
                rules: self.configurator.configure(pod, enforced, &mut self.origins),
            };
            if let Some(shadow) = &mut self.shadow {
                let mut full = endpoint.clone();
                if audits {
                    let all = self.processor.policies_of(key);
                    full.rules = self.configurator.configure(pod, all, &mut self.origins);
                }
                shadow.tell(full);
            }
            if self.told.get(&pod.name).is_none_or(|told| **told != endpoint) {
                let endpoint = Arc::new(endpoint);
                self.told.insert(pod.name.clone(), endpoint.clone());
                endpoints.push((pod.name.clone(), Some(endpoint)));
            }
        }
        for name in moved {
            let pod = self.cache.pod_key(&name).and_then(|key| self.cache.pod(key));
            let stays = pod.is_some_and(|pod| self.processor.scope().covers(pod));
            if stays {
                continue;
            }
            self.shadow.iter_mut().for_each(|shadow| shadow.forget(&name));
            if self.told.remove(&name).is_some() {
                endpoints.push((name, None));
            }
        }
        let nodes = nodes.into_iter().map(|name| (name.clone(), self.node_state(&name))).collect();
        Transaction { resync: false, sets, endpoints, nodes, dropped }
    }

    /// Returns the node with the addresses of its object and of its host-network pods. `None` without an object and addresses.
    fn node_state(&self, name: &Arc<str>) -> Option<Arc<Node>> {
        let object = self.cache.nodes().get(name);
        let mut node = match object {
            Some(node) => Node::clone(node),
            None => Node {
                name: name.clone(),
                labels: Labels::new(),
                addresses: Vec::new(),
                pod_cidrs: Vec::new(),
                terminating: false,
            },
        };
        let host_pods = self.cache.host_network_pods(name);
        node.addresses.extend(host_pods.flat_map(|pod| pod.addresses.iter().copied()));
        node.addresses.sort_unstable();
        node.addresses.dedup();
        (object.is_some() || !node.addresses.is_empty()).then(|| Arc::new(node))
    }

    fn render(&mut self, transaction: &Transaction) -> Result<(), RenderError> {
        let (mut outcome, mut is_rendered) = (Ok(()), true);
        let makes_tables = self.makes_tables();
        let for_tables = apart::for_tables(transaction);
        for (at, renderer) in self.renderers.iter_mut().enumerate() {
            let transaction = if makes_tables && at == 0 { &*for_tables } else { transaction };
            let rendered = renderer.render_with(transaction, &self.origins);
            is_rendered &= at > 0 || rendered.is_ok();
            outcome = outcome.and(rendered.map_err(|source| RenderError { renderer: renderer.name(), source }));
        }
        if makes_tables {
            self.apart.follow(transaction, is_rendered);
            let tables = self.tables_of_renderer();
            self.apart.combine(tables);
        }
        if let Some(shadow) = &mut self.shadow {
            // A failure of the shadow is reported in `refusals` and never affects enforcement.
            shadow.render(transaction, &self.origins);
        }
        self.is_behind = outcome.is_err();
        self.configurator.sweep();
        self.sweep_origins();
        outcome
    }

    /// Forgets origins that neither a list nor a renderer uses. A renderer that refused newer rules still uses the origins of the older
    /// ones.
    fn sweep_origins(&mut self) {
        let (configurator, renderers, shadow, apart) = (&self.configurator, &self.renderers, &self.shadow, &self.apart);
        self.origins.sweep(|| {
            let mut used: HashSet<_> = renderers.iter().flat_map(|renderer| renderer.origins()).collect();
            used.extend(shadow.iter().flat_map(Shadow::origins));
            used.extend(apart.origins());
            for list in configurator.lists() {
                used.extend(list.rules.iter().map(|rule| rule.origin));
            }
            used
        });
    }

    /// Returns the rules that a renderer could not express, with the rules in force instead. All other rules are in force.
    pub fn refusals(&self) -> Vec<Refusal> {
        let enforcing = self.renderers.iter().flat_map(|renderer| renderer.refusals());
        enforcing.chain(self.apart.refusals()).chain(self.shadow.iter().flat_map(Shadow::refusals)).collect()
    }

    /// Returns the meaning of the origin numbers in verdicts.
    pub fn origins(&self) -> &Origins {
        &self.origins
    }

    /// Returns the origins of the isolation rules whose denied packets are refused with a reset or an ICMP error, not silently dropped. The
    /// annotation of the denying policies' namespace decides, or `default` if the namespace has none.
    ///
    /// The sender's policies deny its egress, the receiver's policies its ingress. A policy belongs to the namespace of its pods.
    pub fn refusing_origins(&self, default: Denied) -> Vec<OriginId> {
        let namespaces = self.cache.namespaces();
        let said = |name: &Arc<str>| namespaces.get(name).and_then(|namespace| namespace.denied);
        if default == Denied::Drop && !namespaces.keys().any(|name| said(name) == Some(Denied::Refuse)) {
            return Vec::new();
        }
        let refuses = |policies: &[PolicyName]| {
            policies.first().and_then(|policy| said(&policy.namespace)).unwrap_or(default) == Denied::Refuse
        };
        self.origins.isolations().filter(|(_, policies)| refuses(policies)).map(|(id, _)| id).collect()
    }

    /// Returns the addresses that several pods, or a pod and a node, claim.
    pub fn contests(&self) -> Vec<Contest> {
        self.claims.contests(&self.cache)
    }

    /// Returns the state after the last batch. Its pods have only the addresses that [`crate::claims`] gives them.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }
}

fn host_network_node(pod: Option<&Arc<Pod>>) -> Option<Arc<str>> {
    pod.filter(|pod| pod.host_network).and_then(|pod| pod.node.clone())
}

#[cfg(test)]
mod tests;
