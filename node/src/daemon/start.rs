//! Starts the vswitch: state, workers, threads, in this order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;
use bulkhead_dataplane::io::{FlowCache, KernelFlows, Port};
use bulkhead_dataplane::vswitch::{PollMode, Tap, Vswitch, VswitchConfig};
use bulkhead_dataplane::{Affinity, WorkerConfig};
use crossbeam_channel::Receiver;

use crate::admin;
use crate::args::Run;
use crate::audit::{self, Audit};
use crate::capture::Capture;
use crate::composer::{Composer, Ways};
use crate::config::{Config, Poll, PortEntry, buffers};
use crate::datapath::{DatapathConfig, LinuxDatapath, SharedUplink};
use crate::host_port::HostPort;
use crate::hubble;
use crate::interfaces::thread::{self as interfaces};
use crate::journal::Journal;
use crate::kept;
use crate::kernel::Kernel;
use crate::log;
use crate::next_hops::NextHops;
use crate::observer::{About, Observer};
use crate::own_addresses;
use crate::policy;
use crate::ports::thread as ports;
use crate::ports::{PortFile, Registry};
use crate::preflight;
use crate::remote_nodes::RemoteNodes;
use crate::signals::{self, Request};
use crate::state::LiveState;
use crate::view::PortView;
use crate::watch::Watch;
use bulkhead_observe::admin::Missed;

use super::Daemon;
use super::names::NameSweep;

impl Daemon {
    /// Reads the state, starts the workers and then the other threads.
    ///
    /// # Errors
    /// If the state cannot be loaded, or the system refuses a resource. No interface has been changed then.
    pub(crate) fn start(config: Config, args: &Run, requests: Receiver<Request>) -> anyhow::Result<Self> {
        // The ready file of the previous process would announce this one too early.
        if let Some(path) = &args.ready_file {
            // Report an unwritable path now, before any interface is attached.
            signals::check_ready_file(path)
                .with_context(|| format!("the ready file {} cannot be written", path.display()))?;
            let _ = std::fs::remove_file(path);
        }
        let config_watch = Watch::new(std::slice::from_ref(&args.config));
        // The state is loaded here, not in the policy thread: a vswitch without a state must not change the node.
        let addresses = own_addresses::read().unwrap_or_else(|error| {
            log::error(&format!(
                "cannot read the node's addresses from the kernel; only those in the state are used: {error}"
            ));
            BTreeSet::new()
        });
        let port_file = config.admin.ports_folder.as_deref().map(|folder| PortFile::new(folder, &config.node));
        let added = port_file.as_ref().map(PortFile::read).unwrap_or_default();
        let mut registry = Registry::new(config.ports.clone(), added);
        if let (Some(socket), Some(file)) = (&config.admin.socket, &port_file) {
            registry.make_up(&Missed::of(socket), file);
        }
        let (settings, attached) = (config.services.clone(), registry.attachments());
        let mut state = LiveState::load(&config.state, settings, &config.node, config.judging(), addresses, attached)?;
        let journal = Journal::start(&config.journal, &config.node, state.origins());
        state.record(journal.clone(), config.enforcement);
        state.masquerade(config.masquerade.clone(), config.services.as_ref());
        state.learn_names(config.names.clone());
        if let Some(finding) = preflight::routes::check(&config, &state.pod_networks()) {
            log::warn(&finding);
        }
        let affinity = Affinity::new();
        let kernel = Kernel::new(&config, &affinity, args.capture.is_some())?;
        let entries = registry.entries();
        let ports = entries.iter().filter(|entry| entry.kept_closed().is_none()).map(closed).collect();
        // After Kernel::new, which ensures that no other vswitch runs in this network namespace.
        let mut host_port = HostPort::make(&config)?;
        let (flows, takeover) = (kernel.flows(), kernel.takeover());
        let ways = Ways { routes: config.routes.clone(), tunnel_port: config.tunnel_port() };
        let services = state.take_services().0.map(|update| update.services);
        let composer = Composer::new(state.policy(), services, ports, ways, config.answers(), flows, takeover)?;
        let composer = Arc::new(composer);
        let (mut capture, mut tap) = (None, None);
        if let Some(path) = &args.capture {
            let (writer, end) = Capture::start(path, composer.current().ports(), state.origins())?;
            (capture, tap) = (Some(writer), Some(end));
        }
        let mut next_hops = NextHops::default();
        let known = composer.remote_nodes();
        next_hops.check(known.as_deref().unwrap_or_default(), &config);
        host_port.iter_mut().for_each(|port| port.lead(composer.destinations()));
        let mut remote_nodes =
            RemoteNodes::new(&config, kernel.tc.clone(), config.flow_cache && args.capture.is_none());
        if let Some((remote, nodes)) = remote_nodes.as_mut().zip(known) {
            remote.lead(nodes, &composer.destinations());
        }
        let flows = kernel.flows().filter(|_| config.flow_cache);
        let store = kept::open(&config, kernel.tc.as_ref().map(|tc| tc.away()).unwrap_or_default())?;
        let workers = vswitch_config(&config, tap, flows, affinity);
        let mut vswitch = Vswitch::start_with(&workers, composer.publisher(), store)?;
        vswitch.adoption().into_iter().for_each(kept::say);
        kernel.tc.iter().for_each(|tc| vswitch.learn(&tc.take_begun()));
        let umem = Arc::clone(vswitch.pool().umem());
        if let Some(tc) = &kernel.tc {
            let queues = tc.trunk_ports(&umem, buffers::TRUNK)?;
            vswitch.add_trunk(queues.into_iter().map(|queue| -> Box<dyn Port> { Box::new(queue) }));
        }
        let vswitch = Arc::new(vswitch);
        composer.judge_flows_by(&vswitch);
        let Kernel { tc, flow_cache, claim } = kernel;
        let (mode, big_tcp) = (config.xdp_mode, config.big_tcp.map(|bytes| (bytes, config.uplink())));
        let shared_uplink = SharedUplink::of(&config);
        let datapath =
            DatapathConfig { mode, big_tcp, force: args.force, umem, flow_cache, tc: tc.clone(), shared_uplink };
        let (tell, notices) = crossbeam_channel::unbounded();
        let datapath = LinuxDatapath::new(datapath, Arc::clone(&vswitch), Arc::clone(&composer), tell.clone());
        let (health, hubble) = (state.health(), hubble::Endpoint::bind(&config.hubble, &state)?);
        let about = About {
            started: Instant::now(),
            stream: Arc::default(),
            node: config.node.clone(),
            origins: state.origins(),
            state: state.counts(),
            remote_nodes: remote_nodes.as_ref().map(RemoteNodes::report),
            session_capacity: config.sessions.settings().capacity,
            is_settled: AtomicBool::new(false),
            follower: state.follower(),
            // Clients of the admin socket have another working directory.
            configuration: std::path::absolute(&args.config).unwrap_or_else(|_| args.config.clone()),
            journal: journal.clone(),
            hubble_certificate_end: hubble.as_ref().and_then(hubble::Endpoint::certificate_end),
            stale_after: config.state.kubernetes.as_ref().map_or(Duration::MAX, |server| server.stale_after),
        };
        let audit = Arc::new(Audit::new(config.audit_folder.clone(), &config.node, about.origins.clone()));
        let (tell_ports, port_events) = crossbeam_channel::unbounded();
        let policy = policy::start(state, Arc::clone(&composer), tell.clone(), tell_ports.clone())?;
        let routes = config.routes.clone();
        let shared = Arc::clone(&composer);
        let interfaces = interfaces::start(&entries, routes, datapath, shared, tell.clone(), tell_ports.clone())?;
        let others = ports::Others {
            composer: Arc::clone(&composer),
            interfaces: interfaces.commands(),
            policy: policy.attach(),
        };
        let ports = ports::start(registry, port_file, others, tell.clone(), (tell_ports.clone(), port_events))?;
        let reading = capture.as_ref().map(Capture::reading);
        let (auditor, audits) = audit::start(Arc::clone(&audit), Arc::clone(&composer), policy.names())?;
        vswitch.tell_audits_to(&audits);
        let (asker, names) = (interfaces.asker(), policy.names());
        let observer = Observer::new(about, Arc::clone(&composer), &vswitch, asker, reading, names, audit);
        let admin = admin::start(&config.admin, hubble, observer.clone(), tell, tell_ports, health)?;
        Ok(Self {
            config,
            config_path: args.config.clone(),
            node: args.node.clone(),
            config_watch,
            next_hops,
            host_port,
            remote_nodes,
            composer,
            vswitch,
            interfaces,
            is_settled: false,
            names: NameSweep::new(),
            has_taken_over: false,
            policy,
            ports,
            notices,
            requests,
            capture,
            ready_file: args.ready_file.clone(),
            tc,
            format: args.output,
            observer,
            admin,
            auditor,
            journal,
            _claim: claim,
        })
    }
}

/// Returns the view of a port that is not open yet.
fn closed(entry: &PortEntry) -> PortView {
    PortView {
        name: entry.name.clone(),
        kind: entry.kind,
        mac: entry.mac,
        link: None,
        is_gone: false,
        shares_host: false,
    }
}

fn vswitch_config(
    config: &Config,
    tap: Option<Tap>,
    flows: Option<Arc<dyn KernelFlows>>,
    affinity: Affinity,
) -> VswitchConfig {
    VswitchConfig {
        cores: config.workers.cores.clone(),
        poll: match config.workers.poll {
            Poll::Spin => PollMode::Spin,
            Poll::Adaptive => PollMode::Adaptive,
        },
        engine: WorkerConfig { sessions: config.sessions.settings(), ..WorkerConfig::default() },
        frames: config.frames(),
        tap,
        flow_cache: flows.map(|flows| -> Arc<dyn FlowCache> { flows }),
        lease: config.flow_lease,
        affinity,
    }
}
