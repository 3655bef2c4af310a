//! The pipeline: every layer in a row, driven by events.
//!
//! Owned by one thread. An event runs through all layers before the next is taken, so a renderer sees whole states only.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use bulkhead_classifier::OriginId;

use crate::cache::{Cache, Change, Event, PodKey};
use crate::configurator::Configurator;
use crate::object::{Denied, IngressIsolation, Node, Object, Pod, PolicyName};
use crate::origin::{Origin, Origins};
use crate::processor::{Processor, Scope, Work};
use crate::renderer::acl::{AclRenderer, NodeTables, OriginsGuard, Published, TableWork};
use crate::renderer::{PodConfig, RenderError, Renderer, Transaction};

/// The origins, shared by the layers that make rules and by whoever wants to know what a verdict means.
#[derive(Clone, Debug, Default)]
pub struct SharedOrigins(Arc<Mutex<Origins>>);

impl SharedOrigins {
    pub(crate) fn lock(&self) -> OriginsGuard<'_> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the number stands for.
    pub fn get(&self, id: OriginId) -> Option<Origin> {
        self.lock().get(id).cloned()
    }
}

/// The name of the node that pods without one are kept under, so that a state written by hand can be asked about.
pub const UNBOUND: &str = "";

/// See the module.
pub struct Pipeline {
    cache: Cache,
    processor: Processor,
    configurator: Configurator,
    origins: SharedOrigins,
    published: Published,
    acl: BTreeMap<Arc<str>, AclRenderer>,
    renderers: Vec<Box<dyn Renderer + Send>>,
}

impl Pipeline {
    /// A pipeline without objects.
    pub fn new(scope: Scope) -> Self {
        Self::with_default_isolation(scope, IngressIsolation::ClusterDefault)
    }

    /// A pipeline without objects, for a cluster whose namespaces isolate or not when their `extensions/v1beta1` annotation
    /// does not say.
    pub fn with_default_isolation(scope: Scope, isolation: IngressIsolation) -> Self {
        Self {
            cache: Cache::new(isolation),
            processor: Processor::new(scope),
            configurator: Configurator::default(),
            origins: SharedOrigins::default(),
            published: Published::default(),
            acl: BTreeMap::new(),
            renderers: Vec::new(),
        }
    }

    /// Registers a further renderer, which goes with the pipeline from thread to thread. It gets every transaction from the next
    /// on; a resync gives it the whole state.
    pub fn register(&mut self, renderer: Box<dyn Renderer + Send>) {
        self.renderers.push(renderer);
    }

    /// Makes `objects` the whole state.
    ///
    /// # Errors
    /// [`RenderError`] of the first renderer that could not take it; the others have taken it.
    pub fn resync(&mut self, objects: impl IntoIterator<Item = Object>) -> Result<(), RenderError> {
        let mut cache = Cache::new(self.cache.default_isolation());
        for object in objects {
            cache.apply(Event::Apply(object));
        }
        cache.retain_from(&self.cache);
        self.cache = cache;
        self.render_all()
    }

    /// Renders the present state from scratch.
    ///
    /// # Errors
    /// As for [`Pipeline::resync`].
    pub fn render_all(&mut self) -> Result<(), RenderError> {
        let pods = self.processor.resync(&self.cache);
        let gone = self.acl.keys().filter(|name| !self.cache.nodes().contains_key(*name)).cloned();
        let hosting = self.cache.host_networks().filter(|name| !self.cache.nodes().contains_key(*name)).cloned();
        let mut nodes: Vec<_> = self.cache.nodes().keys().cloned().chain(gone).chain(hosting).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut transaction = self.transaction(&pods, nodes);
        transaction.resync = true;
        self.render(&transaction)
    }

    /// Takes in one event.
    ///
    /// # Errors
    /// As for [`Pipeline::resync`].
    pub fn apply(&mut self, event: Event) -> Result<(), RenderError> {
        let (mut affected, mut nodes, mut gone) = (BTreeSet::new(), Vec::new(), Vec::new());
        for change in self.cache.apply(event) {
            affected.extend(self.processor.process(&self.cache, &change));
            match &change {
                Change::Node { name } => nodes.push(name.clone()),
                Change::Pod { old, new, .. } => {
                    nodes.extend(host_network_node(old.as_ref()));
                    nodes.extend(host_network_node(new.as_ref()));
                    let scope = self.processor.scope();
                    let left = old.as_ref().filter(|pod| scope.covers(pod));
                    let stays = new.as_ref().is_some_and(|pod| scope.covers(pod));
                    gone.extend(left.filter(|_| !stays).map(|pod| (pod.name.clone(), None)));
                }
                Change::Namespace { .. } | Change::Policy { .. } => {}
            }
        }
        let mut transaction = self.transaction(&affected, nodes);
        transaction.pods.extend(gone);
        if transaction.pods.is_empty() && transaction.nodes.is_empty() {
            return Ok(());
        }
        self.render(&transaction)
    }

    fn transaction(&mut self, pods: &BTreeSet<PodKey>, nodes: Vec<Arc<str>>) -> Transaction {
        let mut origins = self.origins.lock();
        let mut configs = Vec::with_capacity(pods.len());
        for &key in pods {
            let Some(pod) = self.cache.pod(key).filter(|pod| self.processor.scope().covers(pod)) else { continue };
            let rules = self.configurator.configure(pod, self.processor.policies_of(key), &mut origins);
            let config = PodConfig {
                pod: pod.name.clone(),
                node: pod.node.clone().unwrap_or_else(|| UNBOUND.into()),
                addresses: pod.addresses.clone(),
                mac: pod.mac,
                rules,
            };
            configs.push((pod.name.clone(), Some(Arc::new(config))));
        }
        let nodes = nodes.into_iter().map(|name| (name.clone(), self.node_state(&name))).collect();
        Transaction { resync: false, pods: configs, nodes }
    }

    /// The node with all addresses that are its own: those of its object and of its host-network pods.
    fn node_state(&self, name: &Arc<str>) -> Option<Arc<Node>> {
        let object = self.cache.nodes().get(name);
        let mut node = match object {
            Some(node) => Node::clone(node),
            None => Node { name: name.clone(), addresses: Vec::new(), pod_cidrs: Vec::new() },
        };
        let host_pods = self.cache.host_network_pods(name);
        node.addresses.extend(host_pods.flat_map(|pod| pod.addresses.iter().copied()));
        node.addresses.sort_unstable();
        node.addresses.dedup();
        (object.is_some() || !node.addresses.is_empty()).then(|| Arc::new(node))
    }

    fn render(&mut self, transaction: &Transaction) -> Result<(), RenderError> {
        self.add_nodes(transaction);
        let mut outcome = Ok(());
        for renderer in self.acl.values_mut() {
            outcome = outcome.and(renderer.render(transaction));
        }
        for renderer in &mut self.renderers {
            outcome = outcome.and(renderer.render(transaction));
        }
        self.configurator.sweep();
        self.sweep_origins();
        outcome
    }

    /// Forgets origins that no list has, nor tables that are in force, be it because a renderer refused the later ones.
    fn sweep_origins(&self) {
        let used = || {
            let lists = self.configurator.lists().flat_map(|list| &list.rules).map(|rule| rule.origin);
            let mut used: HashSet<_> = lists.collect();
            for tables in self.published.all() {
                used.extend(tables.tables.iter().flat_map(|table| table.tables.rules().iter()).map(|rule| rule.origin));
            }
            used
        };
        self.origins.lock().sweep(used);
    }

    /// Makes a renderer for each node of the scope that has none yet.
    fn add_nodes(&mut self, transaction: &Transaction) {
        let named = transaction.nodes.iter().map(|(name, _)| name);
        let hosting = transaction.pods.iter().filter_map(|(_, config)| Some(&config.as_ref()?.node));
        let nodes: Vec<Arc<str>> = match self.processor.scope() {
            Scope::Node(node) => vec![node.clone()],
            Scope::Cluster => named.chain(hosting).cloned().collect(),
        };
        for node in nodes {
            if !self.acl.contains_key(&node) {
                let (origins, published) = (self.origins.clone(), self.published.clone());
                let mut renderer = match self.processor.scope() {
                    Scope::Node(_) => AclRenderer::new(node.clone(), origins, published),
                    Scope::Cluster => AclRenderer::of_many(node.clone(), origins, published),
                };
                renderer.set_node(self.node_state(&node).as_deref());
                self.acl.insert(node, renderer);
            }
        }
    }

    /// The latest tables of a node, none when the node is not in the scope or nothing is known of it.
    pub fn node_tables(&self, node: &str) -> Option<Arc<NodeTables>> {
        self.published.node(node)
    }

    /// The latest tables of all nodes of the scope, by name.
    pub fn all_node_tables(&self) -> Vec<Arc<NodeTables>> {
        self.published.all()
    }

    /// What verdicts' origins mean.
    pub fn origins(&self) -> &SharedOrigins {
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
        let origins = self.origins.lock();
        let refuses = |policies: &[PolicyName]| {
            policies.first().and_then(|policy| said(&policy.namespace)).unwrap_or(default) == Denied::Refuse
        };
        origins.isolations().filter(|(_, policies)| refuses(policies)).map(|(id, _)| id).collect()
    }

    /// The work that finding and compiling the affected policies took so far.
    pub fn work(&self) -> Work {
        self.processor.work()
    }

    /// The work that large tables of all nodes took so far.
    pub fn table_work(&self) -> TableWork {
        self.acl.values().map(AclRenderer::work).fold(TableWork::default(), TableWork::plus)
    }

    /// Waits for the tables that are compiled beside, so that the next event goes on from them.
    #[cfg(test)]
    fn finish_builds(&mut self) {
        self.acl.values_mut().for_each(AclRenderer::finish_build);
    }

    /// The state.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }
}

fn host_network_node(pod: Option<&Arc<Pod>>) -> Option<Arc<str>> {
    pod.filter(|pod| pod.host_network).and_then(|pod| pod.node.clone())
}

#[cfg(test)]
mod tests;
