//! The policy in force: what the state's files or the API server say, or said when they last made sense.

mod counts;
mod judging;
mod masquerade;
mod nftables;
mod own_node;
mod policies;
mod server;
mod services;
mod translations;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bulkhead_classifier::OriginId;
use bulkhead_control::attachments::{Attachment, Standing};
use bulkhead_control::inventory::Inventory;
use bulkhead_control::object::{Denied, Enforcement, Node, Object, Pod, PodName};
use bulkhead_control::pipeline::{AuditTables, AuditedPolicy, Pipeline};
use bulkhead_control::renderer::acl::{self, NodeTables};
use bulkhead_control::service::Settings;
use bulkhead_control::source::{self, Loaded, SourceErrors, Unenforced};
use ipnet::IpNet;
use tokio::sync::watch;

use super::api::Api;
use super::composer::Policy;
use super::config::{StateConfig, WhenMissing, WhenRefused};
use super::journal::{ChangeLog, Journal};
use super::log;
use super::next_hops::{self, Peer};
use super::origins::SharedOrigins;
use super::stream::{EndFacts, Selector};
use super::watch::Watch;
use crate::services::{Adapter, NodeHealth};
use crate::{contests, run};
pub(super) use counts::{StateCounters, StateCounts};
pub(super) use judging::{Judged, Judging};
use masquerade::Masquerading;
use nftables::KernelState;
use own_node::{check_node, more_addresses, nameless, with_addresses, without_state};
pub(super) use translations::{Asked, AskedFor, Translations};

/// How often the first read is repeated while the files go on changing: with the pause, five seconds. Who writes for
/// longer than that is read as it comes, like any later change.
const SETTLING: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// What becomes of packets without a state.
pub(super) const DENYING: &str = "nothing is forwarded but the node's own traffic to and from the uplink";

/// See the module.
pub(super) struct LiveState {
    config: StateConfig,
    node: Arc<str>,
    watch: Watch,
    /// The API server, where the state is not files.
    api: Option<Api>,
    pipeline: Pipeline,
    /// What the pipeline was told of the files, or of what was kept of the API server's state.
    inventory: Inventory,
    /// What workers are told of Services; none where they are off.
    services: Option<Adapter>,
    /// What load balancers are told.
    health: watch::Sender<NodeHealth>,
    /// How pods' connections to the world leave; none for with their own addresses.
    masquerading: Option<Masquerading>,
    /// Services and nodes that were kept of the API server's state, until it tells them itself.
    kept_services: Inventory,
    /// Addresses that connections to Services were to leave with, and whose they are: they are not used.
    taken_sources: BTreeMap<IpAddr, String>,
    origins: SharedOrigins,
    /// Those of a node without a state where the kernel enforces.
    tables: Arc<NodeTables>,
    /// What the kernel is to enforce: the number of the last state that made sense, and whether a later one does not.
    kernel: KernelState,
    /// See [`Policy::audit`] and [`Policy::audited`].
    audit: Option<Arc<AuditTables>>,
    audited: Arc<BTreeSet<AuditedPolicy>>,
    peers: Arc<[Peer]>,
    /// The node's own blocks.
    pod_networks: Arc<[IpNet]>,
    /// See [`Policy::node_addresses`].
    primary: Arc<[IpAddr]>,
    refusing: [Arc<[OriginId]>; 2],
    /// What is in force where there is no state: the node's own addresses and nothing else, so that it can ask for one.
    without: Arc<NodeTables>,
    /// The node as its object is, or one without anything.
    own: Node,
    /// The addresses of the node's interfaces.
    addresses: BTreeSet<IpAddr>,
    /// Whether nothing may pass, because there is no state that makes sense and the configuration wants it so.
    denied: bool,
    /// When the change that was taken last was heard, until somebody asks.
    heard: Option<Instant>,
    /// What was told of the last state: of the next one what is new is.
    told: BTreeSet<String>,
    /// The same of an API server's Services, which have batches of their own.
    told_of_services: BTreeSet<String>,
    counts: Arc<StateCounts>,
    /// Whether what was read or heard last was refused, so that an older state is in force.
    is_refused: bool,
    /// What the journal is told.
    changes: ChangeLog,
}

impl LiveState {
    /// Reads the state for the first time, to be judged so. `services` is none where they are off, `addresses` are those of the
    /// node's interfaces, `attached` the pods that were attached.
    ///
    /// # Errors
    /// When it does not load, unless the configuration says to wait for one.
    pub(super) fn load(
        config: &StateConfig,
        services: Option<Settings>,
        node: &Arc<str>,
        judging: Judging,
        addresses: BTreeSet<IpAddr>,
        attached: BTreeMap<PodName, Attachment>,
    ) -> anyhow::Result<Self> {
        // Before reading, so that what changes meanwhile is seen.
        let watch = Watch::new(&config.paths);
        let isolation = config.options.semantics.default_isolation();
        let mut pipeline = judging.pipeline(node, isolation)?;
        pipeline.resync([])?;
        let mut changes = ChangeLog::default();
        changes.note_attached(&attached);
        pipeline.attach(attached)?;
        let nothing = without_state(node, &addresses)?;
        let api = Api::start(config, node)?;
        let mut state = Self {
            config: config.clone(),
            node: node.clone(),
            watch,
            api,
            pipeline,
            inventory: Inventory::default(),
            services: services.map(|settings| Adapter::new(node.clone(), settings)),
            health: watch::Sender::default(),
            masquerading: None,
            kept_services: Inventory::default(),
            taken_sources: BTreeMap::new(),
            origins: SharedOrigins::default(),
            tables: Arc::clone(&nothing),
            kernel: KernelState::default(),
            audit: None,
            audited: Arc::default(),
            peers: [].into(),
            pod_networks: [].into(),
            primary: [].into(),
            refusing: [[].into(), [].into()],
            without: nothing,
            own: nameless(node),
            addresses,
            denied: true,
            heard: None,
            told: BTreeSet::new(),
            told_of_services: BTreeSet::new(),
            counts: Arc::default(),
            is_refused: false,
            changes,
        };
        state.counts.judged(Judged::of(&state.pipeline));
        state.count_services();
        if state.api.is_some() {
            state.load_from_server();
            return Ok(state);
        }
        let mut loaded = state.load_files();
        for _ in 0..SETTLING {
            if state.watch.was_read() {
                break;
            }
            // Somebody is writing: what was read may lack the policies that are still to come.
            std::thread::sleep(PAUSE);
            loaded = state.load_files();
        }
        let read = loaded.and_then(|loaded| state.take(loaded));
        match (read, config.when_missing) {
            (Ok(_), _) => {}
            (Err(error), WhenMissing::Exit) => return Err(error),
            (Err(error), WhenMissing::Deny) => {
                state.count(|counts| &counts.refused);
                log::error(&format!("there is no state yet; {DENYING} until there is\n{error:#}"));
            }
        }
        Ok(state)
    }

    /// Looks at the files with the next [`Self::refresh`], and asks a server again.
    pub(super) fn hurry(&mut self) {
        self.watch.hurry();
        self.api.iter_mut().for_each(Api::hurry);
    }

    /// Looks at the files, and reads them when they have changed, or takes what the API server has changed. Returns whether that
    /// changed what is in force.
    pub(super) fn refresh(&mut self) -> bool {
        if self.api.is_some() {
            return self.refresh_from_server();
        }
        if !self.watch.has_changed() {
            return false;
        }
        self.heard = Some(Instant::now());
        let loaded = self.load_files();
        if !self.watch.was_read() {
            // The files went on changing: what was read may be half of it.
            return false;
        }
        self.settle(loaded)
    }

    /// Takes over what was read, or says why not. Returns whether that changed what is in force.
    fn settle(&mut self, loaded: anyhow::Result<Loaded>) -> bool {
        let error = match loaded.and_then(|loaded| self.take(loaded)) {
            Ok(has_changed) => {
                self.is_refused = false;
                if !has_changed && !self.services.as_ref().is_some_and(Adapter::has_changed) {
                    log::info("the new state is in force; it changes nothing for this node");
                }
                return has_changed;
            }
            Err(error) => error,
        };
        self.count(|counts| &counts.refused);
        self.is_refused = true;
        let was_denied = self.denied;
        self.denied |= self.config.when_refused == WhenRefused::Deny;
        let then = if self.denied { DENYING } else { "the last good one stays in force" };
        log::error(&format!("the state has changed and does not load; {then}\n{error:#}"));
        self.denied != was_denied
    }

    fn load_files(&self) -> anyhow::Result<Loaded> {
        if let Some(path) = self.watch.endless() {
            // A pipe without a writer would keep the policy thread for ever.
            let help = "name a file or a folder; what writes the pipe may write a new file and rename it";
            anyhow::bail!("{} is neither a file nor a folder\n  help: {help}", path.display());
        }
        let mut options = self.config.options.clone();
        if self.counts.applied.load(Ordering::Relaxed) > 0 {
            // Whoever starts a vswitch can be told to stop. One that runs must not be kept from all changes by the object of another
            // product: it tells as loud as it can.
            options.unenforced = Unenforced::Report;
        }
        Ok(source::load(&self.config.paths, options)?)
    }

    /// Makes this the state, or changes nothing that is in force. Returns whether that changed what is in force.
    fn take(&mut self, loaded: Loaded) -> anyhow::Result<bool> {
        let mut warnings = warnings_of(&loaded);
        self.tell(&warnings, log::warn);
        let unenforced: BTreeSet<String> = loaded.unenforced.shown().iter().map(ToString::to_string).collect();
        self.tell(&unenforced, log::error);
        let (faulty, unenforced_kinds) = (loaded.faulty, loaded.unenforced.total());
        check_node(&loaded.objects, &self.node)?;
        let mut objects = loaded.objects;
        let own = objects.iter().find_map(|object| match object {
            Object::Node(node) if node.name == self.node => Some(node.clone()),
            _ => None,
        });
        if own.is_none() {
            warnings.insert(format!(
                "the state has no Node object for `{0}`: traffic between its pods and the node, which is always allowed, is that of its \
                 interfaces' addresses and host-network pods alone\n  help: add the output of `kubectl get nodes -o yaml`",
                self.node
            ));
        }
        let own = own.unwrap_or_else(|| nameless(&self.node));
        let pods = objects.iter().filter_map(|object| match object {
            Object::Pod(pod) if pod.is_endpoint() => Some(&pod.addresses),
            _ => None,
        });
        let pods: BTreeSet<IpAddr> =
            pods.flatten().copied().filter(|address| self.addresses.contains(address)).collect();
        let node = with_addresses(&own, &self.addresses, |address| pods.contains(address));
        let more = more_addresses(&node, &own);
        // Of two objects of one name the later one counts.
        let is_known = !node.addresses.is_empty() || own != nameless(&self.node);
        objects.extend(is_known.then_some(Object::Node(node)));
        // What differs, and nothing else, is compiled. Should that fail, the tables stay and what differs is known all the same: the
        // pipeline tries again with the next change.
        let changes = self.inventory.replace(objects);
        self.changes.note(&changes);
        let (policy, services) = self.divide(changes);
        self.kernel.is_held = true;
        let applied = self.pipeline.apply_batch(policy);
        // Whatever becomes of policy.
        self.follow_services(services, &own, more);
        applied?;
        self.own = own;
        self.enforce(warnings, unenforced, faulty, unenforced_kinds)
    }

    /// Has what the pipeline knows enforced. Returns whether that changes what is in force.
    fn enforce(
        &mut self,
        mut warnings: BTreeSet<String>,
        unenforced: BTreeSet<String>,
        faulty: usize,
        unenforced_kinds: usize,
    ) -> anyhow::Result<bool> {
        let contests = self.pipeline.contests();
        warnings.extend(contests.iter().map(contests::told));
        warnings.extend(run::left_open(&self.pipeline));
        warnings.extend(run::refusals(&self.pipeline));
        warnings.extend(run::unaudited(&self.pipeline));
        self.tell(&warnings, log::warn);
        self.told = warnings.into_iter().chain(unenforced).collect();
        let is_other = self.take_tables(contests.len())?;
        let has_changed = std::mem::take(&mut self.denied) || is_other;
        self.counts.applied.fetch_add(u64::from(has_changed || self.api.is_none()), Ordering::Relaxed);
        self.counts.faulty.store(faulty as u64, Ordering::Relaxed);
        self.counts.unenforced_kinds.store(unenforced_kinds as u64, Ordering::Relaxed);
        Ok(has_changed)
    }

    /// Takes what the pipeline has compiled. Returns whether that is something else than before.
    fn take_tables(&mut self, contests: usize) -> anyhow::Result<bool> {
        let (tables, is_other_kernel) = match self.kernel_revision() {
            None => (run::node_tables(&self.pipeline, &self.node)?, false),
            // There are no tables: the kernel is told what has changed.
            Some(revision) => {
                run::check_node(&self.pipeline, &self.node)?;
                let before = std::mem::replace(&mut self.kernel.revision, revision);
                (Arc::clone(&self.tables), before != revision)
            }
        };
        run::check_addresses(&tables)?;
        self.kernel.is_held = false;
        self.tell_judging();
        let (audit, audited) = (self.pipeline.audit_tables(&self.node), self.pipeline.audited_policies());
        self.origins.follow(self.pipeline.origins());
        let peers = next_hops::peers(&self.pipeline, &self.node);
        let refusing = [Denied::Drop, Denied::Refuse].map(|default| self.pipeline.refusing_origins(default).into());
        let blocks: Vec<IpNet> = self.own_blocks().collect();
        let (has_other_primary, is_masqueraded_otherwise) = (self.find_primary(), self.follow_masquerade());
        let is_same = Arc::ptr_eq(&tables, &self.tables)
            && !is_other_kernel
            && !is_masqueraded_otherwise
            && *peers == *self.peers
            && *blocks == *self.pod_networks
            && !has_other_primary
            && refusing == self.refusing
            && audit.as_ref() == self.audit.as_deref()
            && audited == *self.audited;
        (self.audit, self.audited) = (audit.map(Arc::new), Arc::new(audited));
        (self.tables, self.peers, self.refusing) = (tables, peers.into(), refusing);
        self.pod_networks = blocks.into();
        self.follow_host_ports();
        self.counts.contested_addresses.store(contests as u64, Ordering::Relaxed);
        self.counts.refused_tables.store(self.pipeline.refusals().len() as u64, Ordering::Relaxed);
        Ok(!is_same)
    }

    /// Makes these all pods that are attached. Returns whether that changed what is in force.
    pub(super) fn attach(&mut self, pods: BTreeMap<PodName, Attachment>) -> bool {
        self.changes.note_attached(&pods);
        let taken = self.pipeline.attach(pods).map_err(anyhow::Error::from);
        if self.counts.applied.load(Ordering::Relaxed) == 0 {
            // They count with the first state.
            return false;
        }
        let contests = self.pipeline.contests();
        match taken.and_then(|()| self.take_tables(contests.len())) {
            Ok(has_changed) => {
                let findings = contests.iter().map(contests::told).chain(run::refusals(&self.pipeline)).collect();
                self.tell(&findings, log::warn);
                has_changed
            }
            Err(error) => {
                log::error(&format!(
                    "the pods that were attached cannot be enforced; what was in force stays\n{error:#}"
                ));
                false
            }
        }
    }

    /// Has the journal told of this state and all that come; without one nothing more is noted.
    pub(super) fn record(&mut self, journal: Option<Journal>, enforcement: Enforcement) {
        let settings = crate::journal::Settings {
            isolation: self.config.options.semantics.default_isolation(),
            enforcement,
            services: self.services.as_ref().map(|services| services.resolver().settings().clone()),
            program: env!("CARGO_PKG_VERSION").into(),
        };
        self.changes.tell_to(journal, settings);
    }

    /// Tells the journal what is in force by this generation. `is_held` is whether what is known is not.
    pub(super) fn tell_changes(&mut self, generation: u64, is_held: bool) {
        self.changes.tell(generation, self.denied, is_held || self.is_refused);
    }

    /// How far each attached pod is known.
    pub(super) fn standings(&self) -> BTreeMap<PodName, Standing> {
        self.pipeline.standings()
    }

    /// The addresses of a pod that has not ended, none when there is no such pod.
    pub(super) fn addresses_of(&self, name: &PodName) -> Option<Vec<IpAddr>> {
        let cache = self.pipeline.cache();
        let pod = cache.pod(cache.pod_key(name)?)?;
        (!pod.finished).then(|| pod.addresses.to_vec())
    }

    /// What there is at an address.
    pub(super) fn end_at(&self, address: IpAddr) -> EndFacts {
        let cache = self.pipeline.cache();
        // A pod that has the node's address is told as the node.
        let pods = cache.pods_at(address).map(|(_, pod)| pod).filter(|pod| !pod.finished && !pod.host_network);
        let pod = pods.last().cloned();
        let is_node = || cache.nodes().values().any(|node| node.addresses.contains(&address));
        EndFacts { is_node: pod.is_none() && is_node(), pod }
    }

    /// The addresses of the pods that are selected.
    pub(super) fn addresses_selected(&self, selector: &Selector) -> HashSet<IpAddr> {
        let pods = self.pipeline.cache().pods().map(|(_, pod)| pod);
        let selected = pods.filter(|pod| !pod.finished && selector.selects(pod));
        selected.flat_map(|pod| pod.addresses.iter().copied()).collect()
    }

    /// Whose addresses these are, each as people know it: the workload of a pod, a node, or nobody in the cluster.
    pub(super) fn owners_of(&self, addresses: &[IpAddr]) -> Vec<String> {
        let cache = self.pipeline.cache();
        let owner = |&address: &IpAddr| {
            let node = cache.nodes().values().find(|node| node.addresses.contains(&address));
            let pod = || cache.pods_at(address).map(|(_, pod)| pod).find(|pod| !pod.finished);
            match (node, pod) {
                (Some(node), _) => format!("node {}", node.name),
                (None, pod) => pod().map_or_else(|| address.to_string(), |pod| owner_name(pod)),
            }
        };
        addresses.iter().map(owner).collect()
    }

    /// Tells these, but for those that were told of the last state, or of this one.
    fn tell(&mut self, findings: &BTreeSet<String>, tell: fn(&String)) {
        findings.difference(&self.told).for_each(tell);
        self.told.extend(findings.iter().cloned());
    }

    fn count(&self, of: impl Fn(&StateCounts) -> &AtomicU64) {
        of(&self.counts).fetch_add(1, Ordering::Relaxed);
    }

    /// When to look next, if nothing is told.
    pub(super) fn next_look(&self) -> Instant {
        self.api.as_ref().map_or_else(|| self.watch.next_look(), Api::next_look)
    }

    /// What is to be enforced: the last good state, or before there was one that no pod sends or is sent anything.
    pub(super) fn policy(&self) -> Policy {
        let is_told = self.api.is_none() || self.counts.applied.load(Ordering::Relaxed) <= 1;
        let masquerade = self.masquerading.as_ref().map(Masquerading::value);
        if self.denied {
            let (tables, refusing) = (Arc::clone(&self.without), [[].into(), [].into()]);
            let (peers, pod_networks, node_addresses) = ([].into(), [].into(), Arc::clone(&self.primary));
            let (audit, audited) = (None, Arc::default());
            return Policy {
                tables,
                audit,
                audited,
                peers,
                pod_networks,
                node_addresses,
                masquerade,
                refusing,
                denied: true,
                is_told,
            };
        }
        let (tables, peers) = (Arc::clone(&self.tables), Arc::clone(&self.peers));
        let (pod_networks, node_addresses) = (Arc::clone(&self.pod_networks), Arc::clone(&self.primary));
        let (refusing, audit, audited) = (self.refusing.clone(), self.audit.clone(), Arc::clone(&self.audited));
        Policy {
            tables,
            audit,
            audited,
            peers,
            pod_networks,
            node_addresses,
            masquerade,
            refusing,
            denied: false,
            is_told,
        }
    }

    /// When the change that was taken last was heard: the first of its events of the API server, or that files had changed. None where there
    /// was no such change since this was asked.
    pub(super) const fn take_heard(&mut self) -> Option<Instant> {
        self.heard.take()
    }

    /// Where the node's own pods have their addresses: its blocks, and each pod's own.
    pub(super) fn pod_networks(&self) -> Vec<IpNet> {
        let blocks = self.own_blocks();
        let pods =
            self.tables.interfaces.iter().filter(|interface| matches!(interface.attachment, acl::Attachment::Pod(_)));
        blocks.chain(pods.flat_map(|pod| pod.addresses.iter().copied().map(IpNet::from))).collect()
    }

    fn own_blocks(&self) -> impl Iterator<Item = IpNet> {
        let own = self.pipeline.cache().nodes().values().filter(|node| *node.name == *self.node);
        own.flat_map(|node| node.pod_cidrs.iter().copied())
    }

    /// What the numbers in the tables stand for, of this state and of all that come.
    pub(super) fn origins(&self) -> SharedOrigins {
        self.origins.clone()
    }

    /// How often the state has changed, for whoever wants to know while this is in use.
    pub(super) fn counts(&self) -> Arc<StateCounts> {
        Arc::clone(&self.counts)
    }
}

/// `shop/web (Deployment)`; a pod that nothing has made by its own name. Pods come and go, and what they are part of stays.
fn owner_name(pod: &Pod) -> String {
    match &pod.owner {
        Some(owner) => format!("{}/{} ({})", pod.name.namespace, owner.name, owner.kind),
        None => pod.name.to_string(),
    }
}

/// What deserves a look in what was read.
fn warnings_of(loaded: &Loaded) -> BTreeSet<String> {
    told(&loaded.warnings)
}

fn told(warnings: &SourceErrors) -> BTreeSet<String> {
    let more = warnings.total() - warnings.shown().len();
    let more = (more > 0).then(|| format!("{more} more of such"));
    warnings.shown().iter().map(ToString::to_string).chain(more).collect()
}

#[cfg(test)]
mod tests {
    use bulkhead_control::source::{Options, ServiceKinds, Strictness};

    use super::*;
    use crate::live::config::MasqueradeConfig;
    use crate::live::scratch::Scratch;

    /// A folder with a state.
    struct Files(Scratch);

    impl Files {
        fn new(name: &str) -> Self {
            Self(Scratch::new(&format!("state-{name}")))
        }

        fn write(&self, text: &str) {
            self.0.write("state.yaml", text);
        }

        fn load(&self, when_missing: WhenMissing, when_refused: WhenRefused) -> anyhow::Result<LiveState> {
            let config = StateConfig {
                paths: vec![self.0.path().join("state.yaml")],
                kubernetes: None,
                options: Options { services: ServiceKinds::Read, ..Strictness::Lenient.into() },
                when_missing,
                when_refused,
            };
            LiveState::load(
                &config,
                Some(Settings::default()),
                &"node-1".into(),
                Judging::default(),
                BTreeSet::new(),
                BTreeMap::new(),
            )
        }
    }

    /// What is counted, but for Services.
    fn of_policy(state: &LiveState) -> StateCounters {
        StateCounters { services: None, judged: Judged::default(), ..state.counts().read() }
    }

    /// Reads the files now, without waiting for them to come to rest.
    fn reread(state: &mut LiveState) -> bool {
        let loaded = state.load_files();
        state.settle(loaded)
    }

    fn node(name: &str, number: u8) -> String {
        format!(
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\nspec: {{podCIDRs: [10.{number}.0.0/16]}}\n\
             status: {{addresses: [{{type: InternalIP, address: 192.0.2.{number}}}]}}\n"
        )
    }

    fn pod(name: &str, address: &str) -> String {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: x}}\nspec: {{nodeName: node-1}}\n\
             status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}\n"
        )
    }

    #[test]
    fn what_does_not_load_leaves_the_last_good_state_in_force() {
        let files = Files::new("keep");
        files.write(&(node("node-1", 1) + &pod("a", "10.1.0.1")));
        let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
        let good = state.policy().tables;
        for wrong in ["", "kind: [", "apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n", &*node("node-2", 2)] {
            files.write(wrong);
            assert!(!reread(&mut state), "{wrong}");
            assert!(Arc::ptr_eq(&good, &state.policy().tables) && !state.denied, "{wrong}");
        }
        files.write(&(node("node-1", 1) + &pod("b", "10.1.0.2")));
        assert!(reread(&mut state));
        assert_eq!(of_policy(&state), StateCounters { applied: 2, refused: 4, ..StateCounters::default() });
        assert_ne!(good.interfaces, state.policy().tables.interfaces);
    }

    #[test]
    fn a_state_that_changes_nothing_for_the_node_is_not_published() {
        let files = Files::new("nothing");
        let (here, there) = (node("node-1", 1) + &pod("a", "10.1.0.1"), node("node-2", 2));
        files.write(&(here.clone() + &there));
        let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
        let before = state.policy();
        let elsewhere = |name: &str, address: &str| pod(name, address).replace("nodeName: node-1", "nodeName: node-2");
        let policy = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: y}\nspec: {podSelector: {}}\n";
        let more = elsewhere("b", "10.2.0.1") + policy;
        for text in
            [there.clone() + &here, here.clone() + &there + &more, here.clone() + &there + &elsewhere("c", "10.2.0.3")]
        {
            files.write(&text);
            assert!(!reread(&mut state), "{text}");
            assert!(Arc::ptr_eq(&state.policy().tables, &before.tables));
        }
        assert_eq!(state.counts().read().applied, 4, "each of them was taken in");
        // The same objects, and what of another node matters here: where its pods are.
        files.write(&(here + &there.replace("10.2.0.0", "10.3.0.0")));
        assert!(reread(&mut state));
        let after = state.policy();
        assert!(after.peers != before.peers && Arc::ptr_eq(&after.tables, &before.tables));
    }

    #[test]
    fn an_object_that_cannot_be_read_holds_back_no_other_one() {
        let files = Files::new("faulty");
        let good = node("node-1", 1) + &pod("a", "10.1.0.1");
        files.write(&good);
        let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
        let policy =
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: x}\nspec: ";
        let unreadable = pod("c", "10.1.0.3").replace("nodeName: node-1", "nodeName: [node-1]");
        files.write(&format!("{good}{policy}{{ingres: []}}\n{unreadable}---\n{{}}\n{}", pod("b", "10.1.0.2")));
        assert!(reread(&mut state));
        let tables = state.policy().tables;
        let ports: Vec<_> = tables.interfaces.iter().map(|interface| run::port_name(&interface.attachment)).collect();
        assert_eq!(ports.iter().map(|name| &**name).collect::<Vec<_>>(), ["x/a", "x/b", "uplink", "host"]);
        let (from, to) = ("10.1.0.2".parse().unwrap(), "10.1.0.1".parse().unwrap());
        let key = bulkhead_classifier::Key::new(from, to, 6, 40_000, 80);
        let local = &tables.tables[tables.interfaces[0].table].tables;
        assert_eq!(local.lookup(&key).action(), bulkhead_classifier::Action::Deny, "the policy isolates its namespace");
        assert_eq!(of_policy(&state), StateCounters { applied: 2, faulty: 3, ..StateCounters::default() });
        files.write(&good);
        assert!(reread(&mut state));
        assert_eq!(of_policy(&state), StateCounters { applied: 3, ..StateCounters::default() });
    }

    #[test]
    fn two_pods_with_one_address_change_nothing_for_others_and_the_newer_one_has_it() {
        let files = Files::new("contest");
        let started = |name: &str, address: &str, hour: u8| {
            let time = format!("status: {{startTime: '2026-01-01T{hour:02}:00:00Z', phase");
            pod(name, address).replace("status: {phase", &time)
        };
        let rest = node("node-1", 1) + &pod("c", "10.1.0.3");
        files.write(&(rest.clone() + &started("a", "10.1.0.1", 1) + &started("b", "10.1.0.1", 2)));
        let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
        let pods = |state: &LiveState| -> Vec<String> {
            let tables = state.policy().tables;
            let names = tables.interfaces.iter().map(|interface| run::port_name(&interface.attachment).to_string());
            names.filter(|name| name.contains('/')).collect()
        };
        assert_eq!(pods(&state), ["x/b", "x/c"]);
        assert_eq!(state.counts().read().contested_addresses, 1);
        let warning = state.told.iter().find(|warning| warning.contains("10.1.0.1")).expect("a warning");
        assert!(warning.contains("x/a") && warning.contains("x/b") && warning.contains("help: "), "{warning}");
        files.write(&(rest.clone() + &pod("a", "10.1.0.1") + &pod("b", "10.1.0.1")));
        assert!(reread(&mut state));
        assert_eq!(pods(&state), ["x/c"], "nobody has it");
        files.write(&(rest + &pod("a", "10.1.0.1")));
        assert!(reread(&mut state));
        assert_eq!((pods(&state), state.counts().read().contested_addresses), (vec!["x/a".into(), "x/c".into()], 0));
    }

    #[test]
    fn kinds_that_are_not_enforced_keep_a_vswitch_from_starting_and_not_from_going_on() {
        let files = Files::new("unenforced");
        let foreign = "---\napiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: a}\n";
        let good = node("node-1", 1) + &pod("a", "10.1.0.1");
        files.write(&(good.clone() + foreign));
        let error = files.load(WhenMissing::Exit, WhenRefused::Keep).err().expect("it does not start");
        assert!(format!("{error:#}").contains("--ignore CiliumNetworkPolicy"), "{error:#}");
        let mut waiting = files.load(WhenMissing::Deny, WhenRefused::Keep).unwrap();
        assert!(waiting.denied && !reread(&mut waiting), "nor does one that waits for a state go on with this one");
        files.write(&good);
        let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
        files.write(&(good + foreign + &pod("b", "10.1.0.2")));
        assert!(reread(&mut state));
        assert_eq!(of_policy(&state), StateCounters { applied: 2, unenforced_kinds: 1, ..StateCounters::default() });
        assert!(
            state.told.iter().any(|told| told.contains("CiliumNetworkPolicy restrict traffic")),
            "{:?}",
            state.told
        );
        assert_eq!(state.policy().tables.interfaces.len(), 4, "the new pod is there");
    }

    #[test]
    fn the_addresses_of_the_nodes_interfaces_are_its_own_as_long_as_it_has_them_but_no_pods() {
        let files = Files::new("addresses");
        let policy = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: x}\n\
                      spec: {podSelector: {}, policyTypes: [Ingress, Egress]}\n";
        files.write(&(node("node-1", 1) + &pod("a", "10.1.0.1") + &pod("b", "10.1.0.2") + policy));
        let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
        let set = |addresses: &[&str]| Ok(addresses.iter().map(|address| address.parse().unwrap()).collect());
        let passes = |state: &LiveState, from: &str, to: &str| {
            let tables = state.policy().tables;
            let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let key = bulkhead_classifier::Key::new(from, to, 17, 40_000, 53);
            let has = tables.interfaces.iter().find(|interface| interface.addresses.contains(&to));
            let out = has
                .or_else(|| tables.interfaces.iter().find(|interface| interface.attachment == acl::Attachment::Uplink));
            let table = &tables.tables[out.unwrap().table].tables;
            table.lookup(&key).action() == bulkhead_classifier::Action::Allow
        };
        let dns = "169.254.20.10";
        assert!(!passes(&state, "10.1.0.1", dns) && passes(&state, "10.1.0.1", "192.0.2.1"));
        assert!(state.renumber(set(&[dns, "10.1.0.2"])));
        assert!(passes(&state, "10.1.0.1", dns) && passes(&state, dns, "10.1.0.1"));
        assert!(!passes(&state, "10.1.0.1", "10.1.0.2"), "a pod's address is the pod's");
        assert!(!state.renumber(set(&[dns, "10.1.0.2"])), "the same is no change");
        // Another state, and then no such address any more.
        files.write(&(pod("a", "10.1.0.1") + &pod("c", "10.1.0.3") + policy));
        assert!(reread(&mut state));
        assert!(passes(&state, "10.1.0.3", dns) && !passes(&state, "10.1.0.3", "192.0.2.1"));
        assert!(state.told.iter().any(|told| told.contains("no Node object for `node-1`")), "{:?}", state.told);
        assert!(state.renumber(set(&[])));
        assert!(!passes(&state, "10.1.0.3", dns));
        assert!(!state.renumber(Err(std::io::ErrorKind::Other.into())));
    }

    #[test]
    fn an_attached_pod_has_its_addresses_from_when_its_object_is_known() {
        let files = Files::new("attached");
        let pending = |name: &str| pod(name, "10.1.0.9").replace("podIP: 10.1.0.9, podIPs: [{ip: 10.1.0.9}]", "");
        let attachment = |address: &str, number| {
            let addresses = vec![address.parse().unwrap()];
            Attachment { uid: None, addresses, number }
        };
        let attached = [(PodName::new("x", "a"), attachment("10.1.0.1", 1))];
        files.write(&node("node-1", 1));
        let config = StateConfig {
            paths: vec![files.0.path().join("state.yaml")],
            kubernetes: None,
            options: Options { services: ServiceKinds::Read, ..Strictness::Lenient.into() },
            when_missing: WhenMissing::Exit,
            when_refused: WhenRefused::Keep,
        };
        // As an earlier process has kept it.
        let mut state = LiveState::load(
            &config,
            Some(Settings::default()),
            &"node-1".into(),
            Judging::default(),
            BTreeSet::new(),
            attached.clone().into(),
        )
        .unwrap();
        let has = |state: &LiveState| -> Vec<String> {
            let tables = state.policy().tables;
            let pods =
                tables.interfaces.iter().filter(|interface| matches!(interface.attachment, acl::Attachment::Pod(_)));
            pods.flat_map(|pod| pod.addresses.iter().map(ToString::to_string)).collect()
        };
        assert!(has(&state).is_empty());
        assert_eq!(state.standings()[&PodName::new("x", "a")], Standing::Unknown);
        files.write(&(node("node-1", 1) + &pending("a") + &pending("b")));
        assert!(reread(&mut state));
        assert_eq!(
            (has(&state), state.standings()[&PodName::new("x", "a")].clone()),
            (vec!["10.1.0.1".into()], Standing::Known)
        );
        let more = [attached[0].clone(), (PodName::new("x", "b"), attachment("10.1.0.2", 2))];
        assert!(state.attach(more.clone().into()) && !state.attach(more.into()), "the same is no change");
        assert_eq!(has(&state), ["10.1.0.1", "10.1.0.2"]);
        assert!(state.attach(BTreeMap::new()) && has(&state).is_empty() && state.standings().is_empty());
    }

    #[test]
    fn where_the_configuration_wants_it_nothing_passes_until_a_state_loads() {
        let files = Files::new("deny");
        assert!(files.load(WhenMissing::Exit, WhenRefused::Keep).is_err(), "there is no file");
        let mut state = files.load(WhenMissing::Deny, WhenRefused::Deny).unwrap();
        assert!(state.denied);
        files.write(&node("node-1", 1));
        assert!(reread(&mut state) && !state.denied);
        files.write("nonsense");
        assert!(reread(&mut state) && state.denied, "a change of what is in force");
        assert!(!reread(&mut state) && state.denied, "not again");
        files.write(&node("node-1", 1));
        assert!(reread(&mut state) && !state.denied);
    }

    #[test]
    fn the_other_nodes_pods_are_behind_their_nodes() {
        let files = Files::new("peers");
        files.write(&(node("node-1", 1) + &node("node-2", 2) + &node("node-3", 3)));
        let state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
        let peers: Vec<String> =
            state.policy().peers.iter().map(|peer| format!("{} {} {}", peer.node, peer.prefix, peer.address)).collect();
        assert_eq!(peers, ["node-2 10.2.0.0/16 192.0.2.2", "node-3 10.3.0.0/16 192.0.2.3"]);
    }

    fn service(name: &str, address: &str, endpoints: &str) -> String {
        format!(
            "---\n{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: x}}, spec: {{clusterIPs: [{address}], ports: \
             [{{port: 53, protocol: UDP}}]}}}}\n---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, metadata: \
             {{name: {name}-1, namespace: x, labels: {{kubernetes.io/service-name: {name}}}}}, ports: [{{name: '', port: 53, protocol: UDP}}], \
             endpoints: [{endpoints}]}}\n"
        )
    }

    #[test]
    fn services_are_followed_beside_policy_and_neither_takes_the_other_for_a_change() {
        let files = Files::new("services");
        let rest = node("node-1", 1) + &pod("a", "10.1.0.2");
        files.write(&rest);
        let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
        let first = state.take_services().expect("there is a first list").services;
        assert_eq!(first.source_for("192.0.2.9".parse().unwrap()), Some("10.1.0.1".parse().unwrap()));
        assert!(state.take_services().is_none());
        let dns = service("dns", "10.96.0.10", "{addresses: [10.1.0.2], nodeName: node-1}");
        files.write(&(rest.clone() + &dns));
        assert!(!reread(&mut state), "policy is the same");
        let second = state.take_services().expect("a Service").services;
        assert!(second.epoch() > first.epoch());
        let counts = state.counts().read().services.unwrap();
        assert_eq!((counts.services, counts.vips, counts.backends, counts.listed), (1, 1, 1, true));
        // A Service that cannot be read is left out and told, and holds nothing back.
        let faulty = service("bad", "10.96.0.300", "");
        files.write(&(rest.clone() + &dns + &faulty + &pod("b", "10.1.0.3")));
        assert!(reread(&mut state));
        assert!(state.take_services().is_none_or(|update| update.stale.is_empty()));
        assert_eq!((state.counts().read().faulty, state.counts().read().services.unwrap().vips), (1, 1));
        assert!(state.told.iter().any(|told| told.contains("Service x/bad")), "{:?}", state.told);
        files.write(&rest);
        assert!(reread(&mut state), "a pod is gone");
        let update = state.take_services().unwrap();
        assert_eq!(update.stale, ["10.1.0.2".parse().unwrap()].into());
    }

    #[test]
    fn no_connection_leaves_with_the_address_of_a_pod_or_a_node() {
        let files = Files::new("taken");
        let text = |pods: &str| node("node-1", 1) + &node("node-2", 2) + pods;
        files.write(&text(&pod("a", "10.1.0.1")));
        let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
        let source = |state: &mut LiveState| {
            let services = state.take_services().expect("a change").services;
            services.source_for("192.0.2.9".parse().unwrap()).map(|address| address.to_string())
        };
        assert_eq!(source(&mut state), None);
        assert_eq!(state.taken_sources.values().collect::<Vec<_>>(), ["pod x/a"]);
        assert!(state.take_services().is_none(), "the same is no change");
        files.write(&text(""));
        assert!(reread(&mut state));
        assert_eq!(source(&mut state).as_deref(), Some("10.1.0.1"));
        // A bridge of another network that is left over.
        assert!(state.renumber(Ok(["10.1.0.1".parse().unwrap()].into())));
        assert_eq!((source(&mut state), state.taken_sources.len()), (None, 1));
    }

    #[test]
    fn a_host_port_leads_to_the_address_that_its_pod_was_attached_with_and_to_nobody_when_the_pod_is_gone() {
        let files = Files::new("host-port");
        let at = |text: &str| bulkhead_dataplane::Vip { address: text.parse().unwrap(), protocol: 6, port: 80 };
        let with_port = pod("a", "10.1.0.9").replace("podIP: 10.1.0.9, podIPs: [{ip: 10.1.0.9}]", "").replace(
            "nodeName: node-1",
            "nodeName: node-1, containers: [{ports: [{containerPort: 8080, hostPort: 80}]}]",
        );
        files.write(&(node("node-1", 1) + &with_port));
        let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
        assert!(state.take_services().unwrap().services.vip(&at("192.0.2.1")).is_none(), "it has no address yet");
        let attachment = Attachment { uid: None, addresses: vec!["10.1.0.1".parse().unwrap()], number: 1 };
        assert!(state.attach([(PodName::new("x", "a"), attachment)].into()));
        let services = state.take_services().expect("the pod has an address").services;
        let (_, port) = services.vip(&at("192.0.2.1")).unwrap();
        assert_eq!(*port.serving, ["10.1.0.1:8080".parse().unwrap()]);
        // The node is given another address, and then the pod goes.
        state.renumber(Ok(["192.0.2.77".parse().unwrap()].into()));
        assert!(state.take_services().unwrap().services.vip(&at("192.0.2.77")).is_some());
        files.write(&node("node-1", 1));
        assert!(reread(&mut state));
        let update = state.take_services().unwrap();
        assert!(["192.0.2.1", "192.0.2.77"].iter().all(|address| update.services.vip(&at(address)).is_none()));
    }

    #[test]
    fn masquerading_follows_the_nodes_of_the_state_and_its_own_addresses() {
        let files = Files::new("masquerade");
        files.write(&(node("node-1", 1) + &node("node-2", 2)));
        let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
        assert!(state.policy().masquerade.is_none());
        state.masquerade(Some(MasqueradeConfig::default()), None);
        let is_for = |state: &LiveState, text: &str| state.policy().masquerade.unwrap().is_for(text.parse().unwrap());
        assert!(!is_for(&state, "10.2.0.7") && !is_for(&state, "192.0.2.2") && is_for(&state, "10.3.0.7"));
        files.write(&(node("node-1", 1) + &node("node-2", 2) + &node("node-3", 3)));
        assert!(reread(&mut state) && !is_for(&state, "10.3.0.7"));
        assert!(state.renumber(Ok(["2001:db8::1".parse().unwrap()].into())));
        let sources: Vec<String> =
            state.policy().masquerade.unwrap().sources().iter().map(ToString::to_string).collect();
        assert_eq!(sources, ["192.0.2.1", "2001:db8::1"]);
    }

    #[test]
    fn before_there_is_a_state_there_are_no_services_and_where_they_are_off_never() {
        let files = Files::new("no-services");
        let mut state = files.load(WhenMissing::Deny, WhenRefused::Keep).unwrap();
        assert!(state.take_services().is_none());
        assert!(!state.counts().read().services.unwrap().listed);
        files.write(&node("node-1", 1));
        assert!(reread(&mut state) && state.take_services().is_some());
        let config = StateConfig { options: Strictness::Lenient.into(), ..state.config.clone() };
        let at = Judging::default();
        let mut off = LiveState::load(&config, None, &"node-1".into(), at, BTreeSet::new(), BTreeMap::new()).unwrap();
        assert!(off.take_services().is_none() && off.counts().read().services.is_none());
    }
}
