//! The main thread: starts the other threads, handles signals, watches the configuration file and prints the summary.

mod names;
mod start;

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bulkhead_dataplane::io::TcDatapath;
use bulkhead_dataplane::vswitch::Vswitch;
use crossbeam_channel::{Receiver, never, select};

use super::admin;
use super::audit::{self};
use super::capture::Capture;
use super::composer::Composer;
use super::config::Config;
use super::host_port::HostPort;
use super::interfaces::thread::{self as interfaces, Command};
use super::journal::Journal;
use super::kept;
use super::log;
use super::next_hops::NextHops;
use super::notice::Notice;
use super::observer::{Observation, Observer};
use super::policy;
use super::ports::Event;
use super::ports::thread as ports;
use super::remote_nodes::RemoteNodes;
use super::signals::{self, Request};
use super::state::DENYING;
use super::watch::Watch;
use bulkhead_answers::args::Format;
use names::NameSweep;

/// Time until the main thread looks again whether workers still hold replaced tables. A worker that sleeps holds them for up to 150 ms.
const COLLECT: Duration = Duration::from_millis(250);

/// The running vswitch, as its main thread sees it.
pub(super) struct Daemon {
    config: Config,
    config_path: PathBuf,
    /// The node's name from the command line. `None` to use the configuration's.
    node: Option<String>,
    config_watch: Watch,
    next_hops: NextHops,
    host_port: Option<HostPort>,
    /// The ways to other nodes. `None` if the vswitch has an uplink port, or did not create the host port.
    remote_nodes: Option<RemoteNodes>,
    composer: Arc<Composer>,
    vswitch: Arc<Vswitch>,
    interfaces: interfaces::Handle,
    /// Whether every port has been tried once since the start.
    is_settled: bool,
    names: NameSweep,
    /// Whether flows of the previous process have ended, and its interfaces without a port are closed.
    has_taken_over: bool,
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
    /// The claim of `attach: xdp`. [`stop`](Self::stop) drops it after all that a process which stands by needs.
    _claim: Option<UnixListener>,
}

impl Daemon {
    /// Runs until a signal. Returns exit code 0.
    ///
    /// # Errors
    /// If a thread has died, which is a bug: the vswitch would silently lose traffic or ignore changes.
    pub(super) fn run(mut self) -> anyhow::Result<ExitCode> {
        let dead = loop {
            if self.config_watch.has_changed() {
                self.reconfigure();
            }
            let next = self.tidy().saturating_duration_since(Instant::now());
            let (requests, notices) = (self.requests.clone(), self.notices.clone());
            let routes = self.remote_nodes.as_ref().map_or_else(never, |nodes| nodes.changes().clone());
            select! {
                recv(self.config_watch.events()) -> event => self.config_watch.hear(event),
                recv(requests) -> request => match request.unwrap_or(Request::Stop) {
                    Request::Stop => break None,
                    Request::Summary => self.summarize(),
                    Request::Look => self.hurry("SIGHUP"),
                },
                recv(routes) -> told => self.remote_nodes.iter_mut().for_each(|nodes| nodes.hear(told.is_ok())),
                // The threads that send notices report their own end.
                recv(notices) -> notice => match notice {
                    Ok(Notice::Settled { open, all }) => self.announce(open, all)?,
                    Ok(Notice::Look) => self.hurry("the admin socket"),
                    Ok(Notice::Policy) => self.follow_policy()?,
                    Ok(Notice::Services) => self.lead(),
                    Ok(Notice::Died(who)) => break Some(who),
                    // What the interfaces thread has published is tidied up above.
                    Ok(Notice::Ports) | Err(_) => {}
                },
                default(next) => {}
            }
        };
        let stopped = self.stop();
        if let Some(dead) = dead {
            anyhow::bail!("{dead} died: this is a bug in bulkhead; report the panic message above");
        }
        stopped?;
        Ok(ExitCode::SUCCESS)
    }

    /// Does what follows from other threads' changes: retries those that could not be published, frees replaced tables, and checks the
    /// node's routes. Returns when to call this and to look at the configuration again if no message arrives.
    fn tidy(&mut self) -> Instant {
        self.composer.retry();
        let collect = (self.composer.collect() > 0).then(|| Instant::now() + COLLECT);
        if self.host_port.as_ref().is_some_and(HostPort::is_due) {
            self.lead();
        }
        if self.remote_nodes.as_ref().is_some_and(RemoteNodes::is_due) {
            self.lead_to_remote_nodes();
        }
        let ways =
            [self.host_port.as_ref().map(HostPort::next_check), self.remote_nodes.as_ref().map(RemoteNodes::next_look)];
        let sweep = self.names.next(self.composer.current().names().is_some(), self.vswitch.learned());
        let times = [collect, sweep, self.composer.next_attempt()].into_iter().chain(ways);
        times.flatten().fold(self.config_watch.next_look(), Instant::min)
    }

    /// After a policy change, checks the next hops of other nodes' pods, and updates the node's routes over the host port.
    fn follow_policy(&mut self) -> anyhow::Result<()> {
        self.auditor.look();
        self.check_next_hops();
        self.lead();
        self.lead_to_remote_nodes();
        self.take_over()
    }

    /// Updates the kernel routes by which the node's own processes reach pods and Services over the host port.
    fn lead(&mut self) {
        self.host_port.iter_mut().for_each(|port| port.lead(self.composer.destinations()));
    }

    /// Updates the node's routes and tunnel to other nodes. The existing ones stay while no state is in force.
    fn lead_to_remote_nodes(&mut self) {
        let Some((remote, nodes)) = self.remote_nodes.as_mut().zip(self.composer.remote_nodes()) else { return };
        remote.lead(nodes, &self.composer.destinations());
    }

    /// Warns of nodes whose pods the uplink does not reach.
    fn check_next_hops(&mut self) {
        self.next_hops.check(&self.composer.remote_nodes().unwrap_or_default(), &self.config);
    }

    /// Ends the takeover from the previous process when every port was tried and a state is loaded. Until then that process's flows go on
    /// without workers, as there is no policy to judge them by. Has an effect only once.
    fn take_over(&mut self) -> anyhow::Result<()> {
        if !self.is_settled || self.has_taken_over || self.composer.enforced().is_denying {
            return Ok(());
        }
        self.has_taken_over = true;
        self.composer.enter_flows();
        let Some(tc) = &self.tc else { return Ok(()) };
        tc.close_left();
        let vswitch = Arc::downgrade(&self.vswitch);
        let catch_up = move |absence| vswitch.upgrade().iter().for_each(|vswitch| kept::catch_up(vswitch, &absence));
        tc.start_beating(catch_up).context("cannot start the heartbeat thread")
    }

    /// Announces in the ready file, to systemd and in the log that forwarding has started.
    fn announce(&mut self, open: usize, all: usize) -> anyhow::Result<()> {
        self.is_settled = true;
        self.take_over()?;
        self.observer.settle();
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

    /// Makes all threads check their inputs now. `who` is for the log.
    fn hurry(&mut self, who: &str) {
        log::info(&format!("re-reading the configuration and the state, requested by {who}"));
        self.config_watch.hurry();
        self.policy.look();
        self.interfaces.tell(Command::Look);
        self.composer.hurry();
    }

    /// Reads the changed configuration, applies the changes that are possible at run time, and logs those that need a restart.
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
        self.composer.set_answers(config.answers());
        if (self.config.engine, self.config.enforcement) != (config.engine, config.enforcement) {
            self.policy.judge(config.judging());
        }
        (self.config.denied, self.config.unreachable) = (config.denied, config.unreachable);
        (self.config.ports, self.config.routes) = (config.ports, config.routes);
        (self.config.engine, self.config.enforcement) = (config.engine, config.enforcement);
        self.check_next_hops();
    }

    /// Prints the summary of all counters since the start.
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
        // From here on, no client can query the workers or wait for a port.
        ports.stop();
        drop(admin);
        if let Some(tc) = &tc {
            tc.stay();
        }
        if let Some(path) = ready_file {
            let _ = std::fs::remove_file(path);
        }
        let interfaces = interfaces.stop();
        // All other references to the workers are gone.
        let vswitch = match Arc::try_unwrap(vswitch) {
            Ok(vswitch) => vswitch.stop(),
            Err(shared) => shared.counters(),
        };
        auditor.stop();
        journal.iter().for_each(Journal::stop);
        // Without workers, no packet is forwarded, so these counts are final.
        let report = interfaces.as_ref().map(|stopped| stopped.report()).unwrap_or_default();
        // Detach only now: while workers ran, no packet could reach the host's stack.
        drop(interfaces);
        let (captured, whole) = capture.map(Capture::finish).unzip();
        if let Some(captured) = captured {
            log::info(&format!("captured {} packets", captured.written));
        }
        let printed = print(format, &observer.with(vswitch, report, captured));
        // Report an incomplete capture only after printing the counts.
        whole.unwrap_or(Ok(())).context("the capture is incomplete")?;
        printed
    }
}

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
