//! The pipeline: every layer in a row, driven by events.
//!
//! Owned by one thread, without a lock. A batch of events runs through all layers before the next is taken, so a renderer sees whole
//! states only.

mod audit;
mod enforcing;
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
use crate::object::{Denied, IngressIsolation, Labels, Node, Object, Pod, PodName, PolicyName};
use crate::origin::Origins;
use crate::processor::{Committed, Processor, Scope};
use crate::renderer::mirror::Mirror;
use crate::renderer::nftables::{NftRenderer, Suspects};
use crate::renderer::session_rules::SourceRenderer;
use crate::renderer::{Refusal, RenderError, Renderer};
use audit::Shadow;
pub use audit::{AuditTables, AuditedPolicy};
pub use renderers::RendererHandle;

/// The name of the node that pods without one are kept under, so that a state written by hand can be asked about.
pub const UNBOUND: &str = "";

/// See the module.
pub struct Pipeline {
    attachments: Attachments,
    claims: Claims,
    cache: Cache,
    processor: Processor,
    configurator: Configurator,
    origins: Origins,
    /// The endpoints as renderers know them.
    told: BTreeMap<PodName, Arc<Endpoint>>,
    /// The first makes the tables.
    renderers: Vec<Box<dyn Renderer>>,
    enforcing: Enforcing,
    choice: Choice,
    /// The tables of all policies, while some are audited.
    shadow: Option<Shadow>,
    /// Whether a renderer could not take in the last transaction: it tries again with the next one, be that empty.
    is_behind: bool,
}

impl Pipeline {
    /// A pipeline without objects.
    pub fn new(scope: Scope) -> Self {
        Self::with_default_isolation(scope, IngressIsolation::ClusterDefault)
    }

    /// A pipeline without objects, for a cluster whose namespaces isolate or not when their `extensions/v1beta1` annotation
    /// does not say.
    pub fn with_default_isolation(scope: Scope, isolation: IngressIsolation) -> Self {
        Self::with_engine(scope, isolation, Engine::Acl)
    }

    /// The same with another engine. Tables of all nodes are always rule lists: an ipcache is a node's.
    pub fn with_engine(scope: Scope, isolation: IngressIsolation, engine: Engine) -> Self {
        let (enforcing, renderer) = at_destination(&scope, engine, 0);
        Self::with(scope, isolation, renderer, enforcing)
    }

    /// A pipeline without objects for one node that enforces policy at the source.
    pub fn at_source(node: Arc<str>, isolation: IngressIsolation) -> Self {
        let renderer = Box::new(SourceRenderer::new(node.clone()));
        Self::with(Scope::Node(node), isolation, renderer, Enforcing::Sessions(RendererHandle::FIRST))
    }

    /// A pipeline without objects for one node whose kernel enforces policy by nftables. It makes no tables.
    pub fn in_the_kernel(node: Arc<str>, isolation: IngressIsolation, suspects: Suspects) -> Self {
        let mut renderer = NftRenderer::of_node(node.clone());
        renderer.set_suspects(suspects);
        Self::with(Scope::Node(node), isolation, Box::new(renderer), Enforcing::Kernel(RendererHandle::FIRST))
    }

    /// A pipeline without objects, of the pods of all nodes, that makes no tables: for questions that the rules and sets answer by
    /// themselves ([`crate::reachability`]). Tables of all nodes take most of the time and memory of a large state.
    pub fn without_tables(isolation: IngressIsolation) -> Self {
        let enforcing = Enforcing::Nothing(RendererHandle::FIRST);
        Self::with(Scope::Cluster, isolation, Box::<Mirror>::default(), enforcing)
    }

    /// The same, and no rule is left out of the lists because others leave it nothing to do, so that it can be asked what would be if those
    /// were not there ([`crate::reachability::removal`]).
    pub fn with_every_rule(isolation: IngressIsolation) -> Self {
        Self { configurator: Configurator::keeping_every_rule(), ..Self::without_tables(isolation) }
    }

    fn with(scope: Scope, isolation: IngressIsolation, first: Box<dyn Renderer>, enforcing: Enforcing) -> Self {
        Self {
            attachments: Attachments::default(),
            claims: Claims::default(),
            cache: Cache::new(isolation),
            processor: Processor::new(scope),
            configurator: Configurator::default(),
            origins: Origins::default(),
            told: BTreeMap::new(),
            renderers: vec![first],
            choice: Choice::Fixed(enforcing.engine()),
            enforcing,
            shadow: None,
            is_behind: false,
        }
    }

    /// Makes `objects` the whole state.
    ///
    /// # Errors
    /// [`RenderError`] of the first renderer that could not take it; the others have taken it.
    pub fn resync(&mut self, objects: impl IntoIterator<Item = Object>) -> Result<(), RenderError> {
        let mut cache = Cache::new(self.cache.default_isolation());
        let mut claims = Claims::default();
        self.attachments.forget_objects();
        for object in objects {
            let event = self.attachments.resolve(Event::Apply(object));
            for event in claims.resolve(&cache, event) {
                cache.apply(event);
            }
        }
        cache.retain_from(&self.cache);
        cache.quarantine(claims.quarantined(&cache));
        (self.claims, self.cache) = (claims, cache);
        self.render_all()
    }

    /// Renders the present state from scratch.
    ///
    /// # Errors
    /// As for [`Pipeline::resync`].
    pub fn render_all(&mut self) -> Result<(), RenderError> {
        let committed = self.processor.resync(&self.cache);
        // Before anything is made of the state: an engine that does not suit it would take the longest.
        self.suit();
        self.follow_audit();
        // Kept until the end: lists that endpoints still have keep their identities.
        let before = (std::mem::take(&mut self.told), self.shadow.as_mut().map(Shadow::start_over));
        let nodes = self.cache.nodes().keys().chain(self.cache.host_networks()).cloned().collect();
        let mut transaction = self.transaction(committed, BTreeSet::new(), nodes);
        transaction.resync = true;
        drop(before);
        self.render(&transaction)
    }

    /// Takes in one event, as a batch of its own.
    ///
    /// # Errors
    /// As for [`Pipeline::resync`].
    pub fn apply(&mut self, event: Event) -> Result<(), RenderError> {
        self.apply_batch([event])
    }

    /// Takes in events as one change: renderers see the state after the last of them and none in between, and publish once, or not
    /// at all where nothing has changed in the end.
    ///
    /// # Errors
    /// As for [`Pipeline::resync`]; also when the events change nothing, as long as a renderer has not taken in what came before.
    pub fn apply_batch(&mut self, events: impl IntoIterator<Item = Event>) -> Result<(), RenderError> {
        let events = events.into_iter().map(|event| self.attachments.resolve(event)).collect();
        self.take_in(events)
    }

    /// Makes these all pods that the node's container runtime has attached, in place of those of the last call.
    ///
    /// # Errors
    /// As for [`Pipeline::resync`].
    pub fn attach(&mut self, attachments: BTreeMap<PodName, Attachment>) -> Result<(), RenderError> {
        let (claims, cache) = (&self.claims, &self.cache);
        let events = self.attachments.replace(attachments, |name| claims.said(cache, name).cloned());
        self.take_in(events)
    }

    /// How far each attached pod is known.
    pub fn standings(&self) -> BTreeMap<PodName, Standing> {
        let covers = |pod: &Pod| self.processor.scope().covers(pod);
        self.attachments.standings(&self.cache, covers)
    }

    /// Takes in events with the addresses of attached pods.
    fn take_in(&mut self, events: Vec<Event>) -> Result<(), RenderError> {
        let (mut moved, mut nodes) = (BTreeSet::new(), BTreeSet::new());
        for event in events {
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
        // Also where this is the first audited policy: the shadow has to be told everything.
        if self.follow_audit() || is_other_engine {
            return self.render_all();
        }
        let transaction = self.transaction(committed, moved, nodes);
        let has_news = self.shadow.as_ref().is_some_and(Shadow::has_news);
        if transaction.is_empty() && !has_news && !self.is_behind {
            return Ok(());
        }
        self.render(&transaction)
    }

    /// What is to be told: the sets, the affected pods that differ from what was told last, and those of the moved ones that are
    /// gone.
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

    /// The node with all addresses that are its own: those of its object and of its host-network pods.
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
        let mut outcome = Ok(());
        for renderer in &mut self.renderers {
            let rendered = renderer.render_with(transaction, &self.origins);
            outcome = outcome.and(rendered.map_err(|source| RenderError { renderer: renderer.name(), source }));
        }
        if let Some(shadow) = &mut self.shadow {
            // What it cannot take in is told, and never keeps anything from being enforced.
            shadow.render(transaction, &self.origins);
        }
        self.is_behind = outcome.is_err();
        self.configurator.sweep();
        self.sweep_origins();
        outcome
    }

    /// Forgets origins that no list has, nor what renderers have in force, be it because one refused the later ones.
    fn sweep_origins(&mut self) {
        let (configurator, renderers, shadow) = (&self.configurator, &self.renderers, &self.shadow);
        self.origins.sweep(|| {
            let mut used: HashSet<_> = renderers.iter().flat_map(|renderer| renderer.origins()).collect();
            used.extend(shadow.iter().flat_map(Shadow::origins));
            for list in configurator.lists() {
                used.extend(list.rules.iter().map(|rule| rule.origin));
            }
            used
        });
    }

    /// The rules that do not fit a renderer, with what is in force in their place. Everything else is in force.
    pub fn refusals(&self) -> Vec<Refusal> {
        let enforcing = self.renderers.iter().flat_map(|renderer| renderer.refusals());
        enforcing.chain(self.shadow.iter().flat_map(Shadow::refusals)).collect()
    }

    /// What verdicts' origins mean.
    pub fn origins(&self) -> &Origins {
        &self.origins
    }

    /// The origins of rules whose denials are refused instead of dropped, as the namespaces of the denying policies have
    /// it. A namespace that does not say does as `default`.
    ///
    /// It is the policies of the pod that denies which are asked: of the sender's for its egress, of the receiver's for its
    /// ingress. Policies are of their pod's namespace.
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

    /// The addresses that several pods, or a pod and a node, say are theirs.
    pub fn contests(&self) -> Vec<Contest> {
        self.claims.contests(&self.cache)
    }

    /// The state. Its pods have no addresses but those that are theirs.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }
}

fn host_network_node(pod: Option<&Arc<Pod>>) -> Option<Arc<str>> {
    pod.filter(|pod| pod.host_network).and_then(|pod| pod.node.clone())
}

#[cfg(test)]
mod tests;
