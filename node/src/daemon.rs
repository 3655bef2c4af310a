//! The main thread: starts the other threads, handles signals, watches the configuration file and prints the summary.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;
use bulkhead_dataplane::io::{FlowCache, KernelFlows, Port, TcDatapath};
use bulkhead_dataplane::vswitch::{PollMode, Tap, Vswitch, VswitchConfig};
use bulkhead_dataplane::{Affinity, WorkerConfig};
use crossbeam_channel::{Receiver, select};

use super::admin;
use super::audit::{self, Audit};
use super::capture::Capture;
use super::composer::Composer;
use super::config::{Config, Poll, PortEntry, buffers};
use super::datapath::{DatapathConfig, LinuxDatapath};
use super::host_port::HostPort;
use super::hubble;
use super::interfaces::thread::{self as interfaces, Command};
use super::journal::Journal;
use super::kept;
use super::kernel::Kernel;
use super::log;
use super::next_hops::NextHops;
use super::notice::Notice;
use super::observer::{About, Observation, Observer};
use super::own_addresses;
use super::policy;
use super::ports::thread as ports;
use super::ports::{Event, PortFile, Registry};
use super::preflight;
use super::signals::{self, Request};
use super::state::{DENYING, LiveState};
use super::view::PortView;
use super::watch::Watch;
use crate::args::Run;
use bulkhead_answers::args::Format;
use bulkhead_observe::admin::Missed;

/// How often the configuration's file is looked at. No promise depends on it, as one does on the state's files; whoever cannot wait
/// sends a SIGHUP.
const CONFIG_INTERVAL: Duration = Duration::from_millis(250);

/// See the module.
pub(super) struct Daemon {
    config: Config,
    config_path: PathBuf,
    /// The node's name on the command line.
    node: Option<String>,
    config_watch: Watch,
    next_hops: NextHops,
    host_port: Option<HostPort>,
    composer: Arc<Composer>,
    vswitch: Arc<Vswitch>,
    interfaces: interfaces::Handle,
    policy: policy::Handle,
    ports: ports::Handle,
    notices: Receiver<Notice>,
    requests: Receiver<Request>,
    capture: Option<Capture>,
    ready_file: Option<PathBuf>,
    tc: Option<Arc<TcDatapath>>,
    format: Format,
    observer: Observer,
    admin: admin::thread::Handle,
    auditor: audit::Handle,
    journal: Option<Journal>,
}

impl Daemon {
    /// Reads the state, starts the workers and then the other threads.
    ///
    /// # Errors
    /// When there is no state, or the system refuses something. No interface was touched then.
    pub(super) fn start(config: Config, args: &Run, requests: Receiver<Request>) -> anyhow::Result<Self> {
        // What an earlier process has left would tell too early that this one is ready.
        if let Some(path) = &args.ready_file {
            // Now, and not when all interfaces are attached to.
            signals::check_ready_file(path)
                .with_context(|| format!("the ready file {} cannot be written", path.display()))?;
            let _ = std::fs::remove_file(path);
        }
        let config_watch = Watch::every(CONFIG_INTERVAL, std::slice::from_ref(&args.config));
        // Here and not in the thread that follows it: a vswitch that has no state to enforce does not touch the node.
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
        if let Some(finding) = preflight::routes::check(&config, &state.pod_networks()) {
            log::warn(&finding);
        }
        let affinity = Affinity::new();
        let kernel = Kernel::new(&config, &affinity, args.capture.is_some())?;
        let entries = registry.entries();
        let ports = entries.iter().filter(|entry| entry.kept_closed().is_none()).map(closed).collect();
        // Nobody else has them: the kernel's part is there once in a network namespace.
        let mut host_port = HostPort::make(&config)?;
        let (flows, takeover) = (kernel.flows(), kernel.takeover());
        let routes = config.routes.clone();
        let services = state.take_services().map(|update| update.services);
        let composer = Composer::new(state.policy(), services, ports, routes, config.denied, flows, takeover)?;
        let composer = Arc::new(composer);
        let (mut capture, mut tap) = (None, None);
        if let Some(path) = &args.capture {
            let (writer, end) = Capture::start(path, composer.current().ports(), state.origins())?;
            (capture, tap) = (Some(writer), Some(end));
        }
        let mut next_hops = NextHops::default();
        next_hops.check(&composer.peers(), &config);
        host_port.iter_mut().for_each(|port| port.lead(composer.destinations()));
        let flows = kernel.flows().filter(|_| config.flow_cache);
        let store = kept::open(&config)?;
        let workers = vswitch_config(&config, tap, flows, affinity);
        let mut vswitch = Vswitch::start_with(&workers, composer.publisher(), store)?;
        vswitch.adoption().into_iter().for_each(kept::say);
        let umem = Arc::clone(vswitch.pool().umem());
        if let Some(tc) = &kernel.tc {
            let queues = tc.trunk_ports(&umem, buffers::TRUNK)?;
            vswitch.add_trunk(queues.into_iter().map(|queue| -> Box<dyn Port> { Box::new(queue) }));
        }
        let vswitch = Arc::new(vswitch);
        let Kernel { tc, flow_cache } = kernel;
        let (mode, big_tcp) = (config.mode, config.big_tcp.map(|bytes| (bytes, config.uplink())));
        let datapath = DatapathConfig { mode, big_tcp, force: args.force, umem, flow_cache, tc: tc.clone() };
        let datapath = LinuxDatapath::new(datapath, Arc::clone(&vswitch), Arc::clone(&composer));
        let about = About {
            started: Instant::now(),
            stream: Arc::default(),
            node: config.node.clone(),
            origins: state.origins(),
            state: state.counts(),
            session_capacity: config.sessions.settings().capacity,
            is_settled: AtomicBool::new(false),
            follower: state.follower(),
            // Whoever asks is in another folder.
            configuration: std::path::absolute(&args.config).unwrap_or_else(|_| args.config.clone()),
            journal: journal.clone(),
            stale_after: config.state.kubernetes.as_ref().map_or(Duration::MAX, |server| server.stale_after),
        };
        let audit = Arc::new(Audit::new(config.audit_folder.clone(), &config.node, about.origins.clone()));
        let (tell, notices) = crossbeam_channel::unbounded();
        let (tell_ports, port_events) = crossbeam_channel::unbounded();
        let (health, hubble) = (state.health(), hubble::Endpoint::bind(&config.hubble, &state)?);
        let policy = policy::start(state, Arc::clone(&composer), tell.clone(), tell_ports.clone())?;
        let routes = config.routes.clone();
        let shared = Arc::clone(&composer);
        let interfaces = interfaces::start(&entries, routes, datapath, shared, tell.clone(), tell_ports.clone())?;
        let others = ports::Others {
            composer: Arc::clone(&composer),
            interfaces: interfaces.commands(),
            policy: policy.attach(),
        };
        let ports = ports::start(registry, port_file, others, (tell_ports.clone(), port_events))?;
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
            composer,
            vswitch,
            interfaces,
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
        })
    }

    /// Runs until a signal; returns exit code 0 on one.
    ///
    /// # Errors
    /// When a thread has died, which is a fault of the program: half of the traffic would be lost in silence, or no change be
    /// seen any more.
    pub(super) fn run(mut self) -> anyhow::Result<ExitCode> {
        let dead = loop {
            if let Some(dead) = self.dead_threads() {
                break Some(dead);
            }
            if self.config_watch.has_changed() {
                self.reconfigure();
            }
            // What could not be published, and tables that workers still used at the last change.
            self.composer.retry();
            self.composer.collect();
            if self.host_port.as_ref().is_some_and(HostPort::is_due) {
                self.lead();
            }
            let next_look = self.config_watch.next_look().saturating_duration_since(Instant::now());
            let (requests, notices) = (self.requests.clone(), self.notices.clone());
            select! {
                recv(requests) -> request => match request.unwrap_or(Request::Stop) {
                    Request::Stop => break None,
                    Request::Summary => self.summarize(),
                    Request::Look => self.hurry("SIGHUP"),
                },
                // An error: all threads that could tell something are dead, which is seen above.
                recv(notices) -> notice => match notice {
                    Ok(Notice::Settled { open, all }) => self.announce(open, all)?,
                    Ok(Notice::Look) => self.hurry("the admin socket"),
                    Ok(Notice::Policy) => self.follow_policy(),
                    Ok(Notice::Services) => self.lead(),
                    Err(_) => {}
                },
                default(next_look) => {}
            }
        };
        let stopped = self.stop();
        if let Some(dead) = dead {
            anyhow::bail!("{dead} died: this is a bug in bulkhead; report the panic message above");
        }
        stopped?;
        Ok(ExitCode::SUCCESS)
    }

    /// What the policy says beside the tables.
    fn follow_policy(&mut self) {
        self.next_hops.check(&self.composer.peers(), &self.config);
        self.lead();
    }

    /// Where the node's own packets go.
    fn lead(&mut self) {
        self.host_port.iter_mut().for_each(|port| port.lead(self.composer.destinations()));
    }

    fn dead_threads(&self) -> Option<String> {
        match self.vswitch.dead_workers() {
            0 if self.interfaces.is_dead() => Some("the interfaces thread has".to_owned()),
            0 if self.ports.is_dead() => Some("the ports thread has".to_owned()),
            0 if self.policy.is_dead() => Some("the policy thread has".to_owned()),
            0 if self.observer.has_lost_source() => Some("the kubernetes thread has".to_owned()),
            0 => None,
            dead => Some(format!("{dead} workers have")),
        }
    }

    /// Says that forwarding has started.
    fn announce(&self, open: usize, all: usize) -> anyhow::Result<()> {
        self.composer.enter_flows();
        self.observer.settle();
        if let Some(tc) = &self.tc {
            tc.close_left();
        }
        let announced = signals::announce_ready(self.ready_file.as_deref());
        announced.context("cannot announce that forwarding has started")?;
        let denying = if self.composer.enforced().is_denying {
            format!("; denying: no state is loaded, and {DENYING}")
        } else {
            String::new()
        };
        let node = &*self.config.node;
        tracing::info!(
            node,
            open,
            all,
            denying = !denying.is_empty(),
            "ready: node {node}, {open} of {all} ports open{denying}"
        );
        Ok(())
    }

    /// Has everything looked at now, whenever it would be due.
    fn hurry(&mut self, who: &str) {
        log::info(&format!("re-reading the configuration and the state, requested by {who}"));
        self.config_watch.hurry();
        self.policy.look();
        self.interfaces.tell(Command::Look);
        self.composer.hurry();
    }

    /// Takes over what may change at run time, and says what may not.
    fn reconfigure(&mut self) {
        if let Some(path) = self.config_watch.endless().map(Path::to_path_buf) {
            if self.config_watch.was_read() {
                log::error(&format!(
                    "the changed configuration is not applied\n{} is no longer a file\n\
                     help: write a new file and rename it",
                    path.display()
                ));
            }
            return;
        }
        let config = Config::read(&self.config_path, self.node.as_deref());
        if !self.config_watch.was_read() {
            return;
        }
        let config = match config {
            Ok(config) => config,
            Err(errors) => {
                log::error(&format!(
                    "the changed configuration is not applied; the previous one stays in force\n{errors}"
                ));
                return;
            }
        };
        let fields = self.config.needs_restart(&config);
        if !fields.is_empty() {
            log::warn(&format!(
                "the configuration has changed in {}: restart the vswitch to apply this",
                fields.join(", ")
            ));
        }
        if Config::has_other_ports(&fields) {
            return;
        }
        self.ports.tell(Event::Configured(config.ports.clone(), config.routes.clone()));
        self.composer.set_denied(config.denied);
        if (self.config.engine, self.config.enforcement) != (config.engine, config.enforcement) {
            self.policy.judge(config.judging());
        }
        (self.config.ports, self.config.routes, self.config.denied) = (config.ports, config.routes, config.denied);
        (self.config.engine, self.config.enforcement) = (config.engine, config.enforcement);
        self.next_hops.check(&self.composer.peers(), &self.config);
    }

    /// Prints what was counted so far.
    fn summarize(&self) {
        if let Err(error) = print(self.format, &self.observer.observe()) {
            log::error(&format!("cannot print the summary: {error:#}"));
        }
    }

    /// Stops the workers, detaches from the interfaces and prints the summary.
    fn stop(self) -> anyhow::Result<()> {
        log::info("stopping");
        let Self {
            vswitch, interfaces, capture, observer, admin, format, ready_file, tc, ports, auditor, journal, ..
        } = self;
        // Nobody asks the workers any more, nor waits for a port.
        ports.stop();
        drop(admin);
        if let Some(tc) = &tc {
            tc.stay();
        }
        if let Some(path) = ready_file {
            let _ = std::fs::remove_file(path);
        }
        let interfaces = interfaces.stop();
        // Nobody else has them any more.
        let vswitch = match Arc::try_unwrap(vswitch) {
            Ok(vswitch) => vswitch.stop(),
            Err(shared) => shared.counters(),
        };
        auditor.stop();
        journal.iter().for_each(Journal::stop);
        // Without workers nothing is forwarded, so these are the last numbers.
        let report = interfaces.as_ref().map(|stopped| stopped.report()).unwrap_or_default();
        // Only now: until the workers had ended, nothing was to reach the host's stack.
        drop(interfaces);
        let (captured, whole) = capture.map(Capture::finish).unzip();
        if let Some(captured) = captured {
            log::info(&format!("captured {} packets", captured.written));
        }
        let printed = print(format, &observer.with(vswitch, report, captured));
        // What was counted is told in any case.
        whole.unwrap_or(Ok(())).context("the capture is not whole")?;
        printed
    }
}

/// A port that is not open yet.
fn closed(entry: &PortEntry) -> PortView {
    PortView { name: entry.name.clone(), kind: entry.kind, mac: entry.mac, link: None }
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

/// Prints the summary.
fn print(format: Format, observation: &Observation) -> anyhow::Result<()> {
    let summary = observation.summary();
    log::print(match format {
        Format::Text => {
            let mut text = Vec::new();
            summary.write(&mut text)?;
            String::from_utf8(text)?
        }
        Format::Json => format!("{}\n", summary.json()),
    });
    Ok(())
}
