//! Composes what the policy thread and the interface thread know into one snapshot and publishes it.
//!
//! ```text
//!   policy thread -----set_policy---> [ tables, other nodes ]
//!                 ---set_services---> [ Services ] -----> the snapshot in force with other Services
//!   interfaces thread --set_ports---> [ ports, routes ] --compose--> Snapshot --publish--> workers
//! ```
//!
//! Each thread publishes its own change together with the other's latest state, so neither waits for the other. They share a lock while
//! composing, which takes well below a millisecond for a hundred ports. Tables are compiled before. The alternative, a separate composing
//! thread, would add a queue and another thread, and the interface thread would still wait for its answer before handing over ports.
//!
//! **Invariant.** Every published snapshot is complete and valid. If composing fails, the previous snapshot stays in force, the error is
//! logged once, and composing is retried.

mod flows;
mod holders;
mod policy;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use bulkhead_control::object::Denied;
use bulkhead_control::pipeline::AuditedPolicy;
use bulkhead_dataplane::io::KernelFlows;
use bulkhead_dataplane::vswitch::Vswitch;
use bulkhead_dataplane::{PortId, Publisher, Services, Snapshot};
use ipnet::IpNet;
use prometheus_client::metrics::histogram::Histogram;

use super::config::{Answers, RouteEntry};
use super::host_port::Destinations;
use super::ids::Ids;
use super::log;
use super::remote_nodes::RemoteNode;
use super::state::NameServers;
use super::view::{PortView, View};
use bulkhead_answers::run;
use bulkhead_answers::services::Update;
use holders::Holders;
pub(super) use policy::{Enforced, Policy, Takeover};

/// Time until a failed publication is retried. The cause may be a temporary lack of memory.
const AGAIN: Duration = Duration::from_secs(1);

/// A change that could not be published and is retried.
#[derive(Debug)]
struct Refused {
    /// Why publishing failed, to log each error once.
    why: String,
    /// When publishing is tried again.
    again: Instant,
    /// Whether the policy changed; otherwise ports or routes did.
    is_policy: bool,
}

/// How packets leave the node.
#[derive(Clone, Debug, Default)]
pub(super) struct Ways {
    /// The configured routes.
    pub routes: Vec<RouteEntry>,
    /// The UDP port of the tunnel to other nodes. `None` without a tunnel.
    pub tunnel_port: Option<u16>,
}

#[derive(Debug)]
struct Inner {
    policy: Policy,
    ports: Vec<PortView>,
    ways: Ways,
    answers: Answers,
    ids: Ids,
    holders: Holders,
    refused: Option<Refused>,
    /// The Services. `None` until they are listed, and if they are off.
    services: Option<Arc<Services>>,
    /// When the last policy was published, and how long that took since its change was detected.
    enforced: (Instant, Duration),
    /// Whether flows of the previous process continue until all ports are open.
    keeps_flows: bool,
}

impl Inner {
    /// Composes the snapshot with this generation.
    ///
    /// # Errors
    /// If parts contradict each other, for example two ports with one address.
    fn compose(&mut self, generation: u64) -> anyhow::Result<Snapshot> {
        let Policy { tables, audit, remote_nodes, pod_networks, refusing: [dropping, refusing], denied, .. } =
            &self.policy;
        let (denied, audit) = (*denied, audit.as_deref());
        let refusing = match self.answers.denied {
            Denied::Drop => dropping.to_vec(),
            Denied::Refuse => refusing.to_vec(),
        };
        let (ports, Ways { routes, tunnel_port }) = (&self.ports, &self.ways);
        let view = View { tables, audit, ports, routes, remote_nodes, pod_networks, refusing, denied };
        let masquerade = self.policy.masquerade.clone();
        let snapshot = view.snapshot(generation, &mut self.ids)?;
        let snapshot = snapshot.telling_unreachable(self.answers.unreachable == Denied::Refuse);
        let holders = &mut self.holders;
        if denied {
            snapshot.ports().iter().for_each(|port| holders.keep(port));
        }
        let names = self.policy.names.as_deref().and_then(|NameServers { servers, settings }| {
            run::names(servers.clone(), settings, snapshot.ports(), |_, port| holders.of(port))
        });
        let snapshot = snapshot.with_services(self.services.clone()).with_masquerade(masquerade);
        Ok(snapshot.with_tunnel_port(*tunnel_port).with_names(names))
    }
}

/// Composes snapshots of policy, Services, ports and routes, and publishes them to the workers.
#[derive(Debug)]
pub(super) struct Composer {
    inner: Mutex<Inner>,
    publisher: Publisher,
    flow_cache: Option<Arc<dyn KernelFlows>>,
    /// The workers that judge the kernel's flows again. Not set before they run.
    vswitch: OnceLock<Weak<Vswitch>>,
    event_to_enforced: Histogram,
}

/// Histogram bounds in seconds: from a small change without network delay to delays that an operator notices.
const BUCKETS: [f64; 13] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

impl Composer {
    /// Publishes the first snapshot.
    ///
    /// # Errors
    /// If the initial state is inconsistent.
    pub(super) fn new(
        policy: Policy,
        services: Option<Arc<Services>>,
        ports: Vec<PortView>,
        ways: Ways,
        answers: Answers,
        flow_cache: Option<Arc<dyn KernelFlows>>,
        takeover: Takeover,
    ) -> anyhow::Result<Self> {
        let Takeover { generation, keeps_flows } = takeover;
        let mut inner = Inner {
            policy,
            ports,
            ways,
            answers,
            ids: Ids::default(),
            holders: Holders::default(),
            refused: None,
            services,
            enforced: (Instant::now(), Duration::ZERO),
            keeps_flows,
        };
        let (first, publisher) = (inner.compose(generation)?, Publisher::new(Snapshot::empty()));
        if let Some(cache) = flow_cache.as_ref().filter(|_| !keeps_flows) {
            cache.enter(&first);
        }
        publisher.publish(first)?;
        inner.holders.finish();
        Ok(Self {
            inner: Mutex::new(inner),
            publisher,
            flow_cache,
            vswitch: OnceLock::new(),
            event_to_enforced: Histogram::new(BUCKETS),
        })
    }

    /// Returns the publisher from which workers read the snapshot in force.
    pub(super) const fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// Returns the snapshot in force.
    pub(super) fn current(&self) -> Arc<Snapshot> {
        self.publisher.current()
    }

    /// Publishes a policy, and its Services if they changed too. `seen` is when this process detected the change. `heard` is when its first
    /// event arrived, or `None` without an event.
    pub(super) fn set_policy(&self, policy: Policy, services: Option<Update>, seen: Instant, heard: Option<Instant>) {
        let mut inner = self.lock();
        inner.policy = policy;
        let stale = services.map(|Update { services, stale }| {
            inner.services = Some(services);
            stale
        });
        self.publish(&mut inner, true, true);
        if let Some(stale) = stale {
            // A refused policy does not hold back Services.
            self.publish_services(&inner);
            self.end_stale_flows(&stale);
        }
        let now = Instant::now();
        inner.enforced = (now, now.duration_since(seen));
        // A refused policy is not in force, so its time does not count.
        if let Some(heard) = heard.filter(|_| inner.refused.is_none()) {
            self.event_to_enforced.observe(now.duration_since(heard).as_secs_f64());
        }
    }

    /// Publishes new Services with the same policy. Sessions are not judged again.
    pub(super) fn set_services(&self, update: Update) {
        let mut inner = self.lock();
        inner.services = Some(update.services);
        self.publish_services(&inner);
        self.end_stale_flows(&update.stale);
    }

    /// Returns the histogram of latency in seconds, from the first event or file change of a new state until the workers had it.
    pub(super) const fn event_to_enforced(&self) -> &Histogram {
        &self.event_to_enforced
    }

    /// Returns when the policy in force was published, and whether it denies everything, for status and metrics.
    pub(super) fn enforced(&self) -> Enforced {
        let inner = self.lock();
        let (since, took) = inner.enforced;
        let (is_denying, is_refused) = (inner.policy.denied, inner.refused.is_some());
        Enforced { since, took, is_denying, is_refused, keeps_flows: inner.keeps_flows }
    }

    /// Sets whether senders of dropped packets are answered.
    pub(super) fn set_answers(&self, answers: Answers) {
        let mut inner = self.lock();
        if std::mem::replace(&mut inner.answers, answers) != answers {
            self.publish(&mut inner, true, false);
        }
    }

    /// Publishes these ports instead of the previous ones, and these routes (`None` keeps the routes). Returns whether they are in force.
    pub(super) fn set_ports(&self, ports: Vec<PortView>, routes: Option<Vec<RouteEntry>>) -> bool {
        let mut inner = self.lock();
        inner.ports = ports;
        if let Some(routes) = routes {
            inner.ways.routes = routes;
        }
        self.publish(&mut inner, true, false);
        inner.refused.is_none()
    }

    /// Retries a failed publication if it is due. Returns whether all known changes are in force.
    pub(super) fn retry(&self) -> bool {
        let mut inner = self.lock();
        if inner.refused.as_ref().is_some_and(|refused| Instant::now() >= refused.again) {
            self.publish(&mut inner, false, false);
        }
        inner.refused.is_none()
    }

    /// Returns when to retry the failed publication. `None` if none failed.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        self.lock().refused.as_ref().map(|refused| refused.again)
    }

    /// Makes the next [`retry`](Self::retry) due now.
    pub(super) fn hurry(&self) {
        if let Some(refused) = &mut self.lock().refused {
            refused.again = Instant::now();
        }
    }

    /// Frees tables that workers still used at the last change. Returns the number of snapshots that are still in use.
    pub(super) fn collect(&self) -> usize {
        self.publisher.collect()
    }

    /// Returns the number of the port with this name. `None` if the name has no number.
    pub(super) fn id_of(&self, name: &str) -> Option<PortId> {
        self.lock().ids.of(name).and_then(|at| u16::try_from(at).ok()).map(PortId)
    }

    /// Returns the name of the port that has, or last had, this number. `None` if no port had it.
    pub(super) fn name_of(&self, id: PortId) -> Option<Arc<str>> {
        self.lock().ids.name(id.index()).cloned()
    }

    /// Returns the audited policies. `None` while everything is denied, for example before a state is loaded.
    pub(super) fn audited(&self) -> Option<Arc<BTreeSet<AuditedPolicy>>> {
        let inner = self.lock();
        (!inner.policy.denied).then(|| Arc::clone(&inner.policy.audited))
    }

    /// Returns the other nodes. `None` while no state is in force, which may have others.
    pub(super) fn remote_nodes(&self) -> Option<Arc<[RemoteNode]>> {
        let inner = self.lock();
        (!inner.policy.denied).then(|| Arc::clone(&inner.policy.remote_nodes))
    }

    /// Returns the node's own pod networks. Empty before a state is loaded.
    pub(super) fn pod_networks(&self) -> Arc<[IpNet]> {
        Arc::clone(&self.lock().policy.pod_networks)
    }

    /// Returns the pod networks and Services that the node's own processes must reach over the host port.
    pub(super) fn destinations(&self) -> Destinations {
        let Inner { policy, services, .. } = &*self.lock();
        let (pods, sources) = (Arc::clone(&policy.pod_networks), Arc::clone(&policy.node_addresses));
        Destinations { pods, services: services.clone(), sources, masquerade: policy.masquerade.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic here leaves each part either replaced or unchanged.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Composes and publishes the current state.
    fn publish(&self, inner: &mut Inner, has_changed: bool, is_policy: bool) {
        let before = inner.refused.take();
        let is_policy = is_policy || before.as_ref().is_some_and(|refused| refused.is_policy);
        let published = self.try_publish(inner);
        match published {
            Ok(generation) if is_policy && !inner.policy.denied && inner.policy.is_told => {
                tracing::info!(generation, "the new state is in force, generation {generation}");
            }
            Ok(_) => {}
            Err(error) => {
                let why = format!("{error:#}");
                // Log the same error only once.
                if has_changed || before.is_none_or(|refused| refused.why != why) {
                    log::error(&format!("cannot enforce the change; the previous state stays in force\n{why}"));
                }
                inner.refused = Some(Refused { why, again: Instant::now() + AGAIN, is_policy });
            }
        }
    }

    /// Publishes the latest Services in the current snapshot, unless it has them.
    fn publish_services(&self, inner: &Inner) {
        let current = self.publisher.current();
        let epoch = |services: &Services| services.epoch();
        if current.services().map(epoch) == inner.services.as_deref().map(epoch) {
            return;
        }
        let snapshot = (*current).clone().with_services(inner.services.clone());
        if let Err(error) = self.publisher.publish(snapshot) {
            log::error(&format!("cannot enforce the new Services; the previous ones stay in force: {error}"));
        }
    }

    /// Composes and publishes a snapshot. Returns its generation.
    fn try_publish(&self, inner: &mut Inner) -> anyhow::Result<u64> {
        let current = self.publisher.current();
        let generation = current.generation() + 1;
        let snapshot = inner.compose(generation)?.after(&current);
        self.give_back_names(inner);
        let snapshot = Arc::new(snapshot);
        // Before the workers get the snapshot, so that flows which they add by the old tables stay unused.
        let idle = if inner.keeps_flows { Vec::new() } else { self.change_flows(&snapshot) };
        self.publisher.publish(Arc::clone(&snapshot))?;
        self.judge_flows(&snapshot, &idle);
        let gone = inner.holders.finish();
        if let Some(vswitch) = self.vswitch.get().and_then(Weak::upgrade) {
            vswitch.forget_names(&gone);
        }
        Ok(generation)
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_classifier::OriginId;

    use std::sync::atomic::{AtomicU64, Ordering};

    use bulkhead_control::pipeline::Pipeline;
    use bulkhead_control::processor::Scope;
    use bulkhead_control::source::{Strictness, load_text};
    use bulkhead_dataplane::io::{
        CachedFlow, CachedTraffic, FirstNumbers, FlowCache, FlowHandshake, FlowLatch, FlowSlot, FlowSteps,
        ForwardedFlow,
    };
    use bulkhead_dataplane::{Link, PortKind};

    use super::*;

    fn policy(pods: &[(&str, &str)]) -> Policy {
        let pod = |(name, address): &(&str, &str)| {
            format!(
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: x}}\nspec: {{nodeName: node-1}}\n\
                 status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}\n"
            )
        };
        let state: String = pods.iter().map(pod).collect();
        let mut pipeline = Pipeline::new(Scope::Node("node-1".into()));
        pipeline.resync(load_text("state", &state, Strictness::Strict).unwrap().objects).unwrap();
        Policy {
            tables: pipeline.node_tables("node-1").unwrap(),
            audit: None,
            audited: Arc::default(),
            remote_nodes: [].into(),
            pod_networks: [].into(),
            node_addresses: [].into(),
            masquerade: None,
            names: None,
            refusing: [[].into(), [].into()],
            denied: false,
            is_told: true,
        }
    }

    fn port(name: &str, mtu: u16) -> PortView {
        let link = Some(Link { mac: [2, 0, 0, 0, 0, 1], mtu });
        PortView { name: name.into(), kind: PortKind::Pod, mac: None, link, is_gone: false, shares_host: false }
    }

    const SILENT: Answers = Answers { denied: Denied::Drop, unreachable: Denied::Drop };
    const A: (&str, &str) = ("a", "10.1.0.1");
    const B: (&str, &str) = ("b", "10.1.0.2");

    fn composer() -> Composer {
        Composer::new(policy(&[A]), None, vec![port("x/a", 1500)], Ways::default(), SILENT, None, Takeover::NONE)
            .unwrap()
    }

    /// Returns the generation in force, and whether it has this pod.
    fn in_force(composer: &Composer, pod: &str) -> (u64, bool) {
        let snapshot = composer.current();
        (snapshot.generation(), snapshot.port_named(pod).is_some())
    }

    /// Returns a route for which composing fails. The configuration's check refuses such a route.
    fn nowhere() -> Option<Vec<RouteEntry>> {
        Some(vec![RouteEntry { prefix: "10.9.0.0/16".parse().unwrap(), via: None, port: "nowhere".into() }])
    }

    #[test]
    fn each_side_publishes_with_what_the_other_one_has_said_last() {
        let composer = composer();
        assert_eq!(in_force(&composer, "x/a"), (1, true));
        composer.set_policy(policy(&[A, B]), None, Instant::now(), None);
        assert!(composer.set_ports(vec![port("x/a", 9000), port("x/b", 1500)], None));
        composer.set_policy(policy(&[A, B]), None, Instant::now(), None);
        let snapshot = composer.current();
        let mtu = |name: &str| snapshot.port(snapshot.port_named(name).unwrap()).unwrap().link.unwrap().mtu;
        assert_eq!((snapshot.generation(), mtu("x/a"), mtu("x/b")), (4, 9000, 1500));
        assert_eq!(composer.name_of(composer.id_of("x/b").unwrap()).as_deref(), Some("x/b"));
    }

    #[test]
    fn a_change_that_cannot_be_enforced_is_tried_again_and_takes_effect_when_it_can() {
        let composer = composer();
        assert!(!composer.set_ports(vec![port("x/a", 1500)], nowhere()));
        composer.set_policy(policy(&[A, B]), None, Instant::now(), None);
        {
            let inner = composer.lock();
            let refused = inner.refused.as_ref().unwrap();
            assert!(refused.is_policy && refused.why.contains("10.9.0.0/16 leads to no port"), "{}", refused.why);
        }
        assert_eq!(in_force(&composer, "x/b"), (1, false), "what was in force stays");
        composer.hurry();
        assert!(!composer.retry(), "it was tried, and refused again");
        assert_eq!(in_force(&composer, "x/b"), (1, false));
        // Removes the cause of the failure and changes nothing else.
        composer.lock().ways.routes.clear();
        assert!(!composer.retry(), "it is not time yet");
        assert!(composer.next_attempt().is_some());
        composer.hurry();
        assert!(composer.retry());
        assert_eq!(in_force(&composer, "x/b"), (2, true));
        assert!(composer.retry() && composer.next_attempt().is_none());
        assert_eq!(in_force(&composer, "x/b"), (2, true), "once");
    }

    #[test]
    fn the_other_sides_next_change_brings_what_was_refused_along() {
        let composer = composer();
        assert!(!composer.set_ports(vec![port("x/a", 9000)], nowhere()));
        composer.lock().ways.routes.clear();
        composer.set_policy(policy(&[A, B]), None, Instant::now(), None);
        assert_eq!(in_force(&composer, "x/b"), (2, true));
        let snapshot = composer.current();
        let a = snapshot.port(snapshot.port_named("x/a").unwrap()).unwrap();
        assert_eq!(a.link.unwrap().mtu, 9000);
        assert!(composer.retry());
    }

    /// Services of this epoch, and the addresses whose UDP flows must end.
    fn update(epoch: u64, stale: &[&str]) -> Update {
        let mut services = Services::new(0);
        services.set_epoch(epoch);
        let stale = stale.iter().map(|address| address.parse().unwrap()).collect();
        Update { services: Arc::new(services), stale }
    }

    fn epochs(composer: &Composer) -> (u64, Option<u64>) {
        let snapshot = composer.current();
        (snapshot.generation(), snapshot.services().map(Services::epoch))
    }

    #[test]
    fn services_come_without_a_new_generation_and_stay_with_whatever_changes() {
        let composer = composer();
        assert_eq!(epochs(&composer), (1, None));
        composer.set_services(update(1, &[]));
        assert_eq!((epochs(&composer), in_force(&composer, "x/a")), ((1, Some(1)), (1, true)));
        composer.set_policy(policy(&[A, B]), None, Instant::now(), None);
        assert_eq!(epochs(&composer), (2, Some(1)));
        composer.set_policy(policy(&[A]), Some(update(2, &[])), Instant::now(), None);
        assert_eq!(epochs(&composer), (3, Some(2)), "one publication of both");
        composer.set_ports(vec![port("x/a", 9000)], None);
        assert_eq!(epochs(&composer), (4, Some(2)));
        // A failing policy or port change does not delay Services.
        assert!(!composer.set_ports(vec![port("x/a", 9000)], nowhere()));
        composer.set_services(update(3, &[]));
        assert_eq!(epochs(&composer), (4, Some(3)));
        composer.set_policy(policy(&[A, B]), Some(update(4, &[])), Instant::now(), None);
        assert_eq!(epochs(&composer), (4, Some(4)));
    }

    /// Records the ports whose flows were ended, and how often a snapshot was entered.
    #[derive(Debug, Default)]
    struct Recorded {
        ended: Mutex<Vec<PortId>>,
        entered: AtomicU64,
    }

    impl FlowCache for Recorded {
        fn reaches(&self, _: FlowSlot) -> bool {
            false
        }

        fn add(&self, _: &CachedFlow) {}

        fn renew(&self, _: &CachedFlow) -> bool {
            false
        }

        fn confirm(&self, _: &CachedFlow) {}

        fn forwards_answers(&self) -> bool {
            false
        }

        fn await_handshake(&self, _: FlowHandshake, _: FirstNumbers) {}

        fn steps(&self, _: FlowHandshake) -> FlowSteps {
            FlowSteps::default()
        }

        fn passed(&self, _: FlowLatch) -> u64 {
            0
        }

        fn moves(&self, _: PortId) -> u16 {
            0
        }

        fn moved(&self, port: PortId) {
            self.ended.lock().unwrap().push(port);
        }

        fn endings(&self) -> u64 {
            0
        }

        fn open(&self, _: FlowLatch, _: Option<u64>) -> bool {
            false
        }
    }

    impl KernelFlows for Recorded {
        fn expect(&self, _: &Snapshot) {}

        fn ending(&self, _: &Snapshot) -> (Vec<ForwardedFlow>, usize) {
            (Vec::new(), 0)
        }

        fn enter(&self, _: &Snapshot) {
            self.entered.fetch_add(1, Ordering::Relaxed);
        }

        fn leave(&self, _: PortId) {}

        fn traffic(&self, _: FlowSlot) -> CachedTraffic {
            CachedTraffic::default()
        }

        fn allowed_by(&self, _: OriginId) -> u64 {
            0
        }

        fn added(&self) -> u64 {
            0
        }

        fn failed(&self) -> u64 {
            0
        }
    }

    #[test]
    fn flows_in_the_kernel_end_at_the_ports_behind_which_a_backend_serves_no_more_and_nowhere_else() {
        let cache = Arc::new(Recorded::default());
        let uplink = PortView { kind: PortKind::Uplink, ..port("uplink", 1500) };
        let ports = vec![port("x/a", 1500), port("x/b", 1500), uplink];
        let flows: Arc<dyn KernelFlows> = cache.clone();
        let (first, takeover) = (policy(&[A, B]), Takeover::NONE);
        let composer = Composer::new(first, None, ports, Ways::default(), SILENT, Some(flows), takeover).unwrap();
        let ended = || -> Vec<String> {
            let ended = std::mem::take(&mut *cache.ended.lock().unwrap());
            ended.into_iter().map(|id| composer.name_of(id).unwrap().to_string()).collect()
        };
        composer.set_services(update(1, &[]));
        assert_eq!((ended().len(), cache.entered.load(Ordering::Relaxed)), (0, 1), "no flow is judged again");
        composer.set_services(update(2, &[B.1]));
        assert_eq!(ended(), ["x/b"]);
        composer.set_services(update(3, &["10.2.0.1", "10.2.0.2"]));
        assert_eq!(ended(), ["uplink"], "once, for backends of other nodes");
        composer.set_policy(policy(&[A, B]), Some(update(4, &[A.1])), Instant::now(), None);
        assert_eq!((ended(), cache.entered.load(Ordering::Relaxed)), (vec!["x/a".to_owned()], 2));
    }
}
