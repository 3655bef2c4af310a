//! The control thread's loop.

mod enforce;
mod kept;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bulkhead_dataplane::io::{FlowCache, KernelFlowCache};
use bulkhead_dataplane::vswitch::{PollMode, Vswitch, VswitchConfig, VswitchCounters, VswitchEvent};
use bulkhead_dataplane::{PortId, Publisher, Snapshot, WorkerConfig};

use super::capture::{Capture, CaptureCounters};
use super::config::{Config, Poll};
use super::ids::Ids;
use super::log;
use super::next_hops::NextHops;
use super::ports::Ports;
use super::signals::{self, Request, Requests};
use super::state::LiveState;
use super::summary::Summary;
use super::system::{Cached, Held, Kernel, Opened};
use super::watch::Watch;
use crate::args::{Format, Run};
use enforce::Refused;

/// How long the loop waits for a signal before it looks around. Less than the watches' interval, so that they look when
/// they are due.
const ROUND: Duration = Duration::from_millis(10);

/// How often interfaces are looked at when the kernel tells of no change, because what it tells may be lost. A few system
/// calls each; a port that fails is told by its worker at once.
const LOOK: Duration = Duration::from_millis(100);

/// Looking at interfaces because the kernel tells of changes may take this part of the time: on a node whose interfaces change
/// all the time, the rest is for policy and signals.
const SHARE: u32 = 4;

/// Everything that the control thread has.
pub(super) struct Control {
    config: Config,
    config_path: PathBuf,
    config_watch: Watch,
    state: LiveState,
    ports: Ports,
    ids: Ids,
    next_hops: NextHops,
    publisher: Publisher,
    vswitch: Vswitch,
    held: Held,
    flow_cache: Option<Arc<KernelFlowCache>>,
    opened: Opened,
    closed: Vec<PortId>,
    capture: Option<Capture>,
    requests: Requests,
    ready_file: Option<PathBuf>,
    about: About,
    force: bool,
    next_look: Instant,
    /// Before this, interfaces are not looked at only because the kernel says so.
    soonest_look: Instant,
    refused: Option<Refused>,
}

impl Control {
    /// Reads the state and starts the workers. No interface is taken yet.
    pub(super) fn start(config: Config, args: &Run, requests: Requests) -> anyhow::Result<Self> {
        // What an earlier process has left would tell too early that this one is ready.
        if let Some(path) = &args.ready_file {
            // Now, and not when all interfaces are taken.
            signals::check_ready_file(path)
                .with_context(|| format!("the ready file {} cannot be written", path.display()))?;
            let _ = std::fs::remove_file(path);
        }
        let config_watch = Watch::new(std::slice::from_ref(&args.config));
        let state = LiveState::load(&config.state, &config.node)?;
        let (ports, mut ids) = (Ports::new(&config.ports), Ids::default());
        let first = enforce::view(&state, &ports, &config).snapshot(1, &mut ids)?;
        let publisher = Publisher::new(Snapshot::empty());
        let mut capture = None;
        let mut tap = None;
        if let Some(path) = &args.capture {
            let (writer, end) = Capture::start(path, first.ports(), state.pipeline().origins().clone())?;
            (capture, tap) = (Some(writer), Some(end));
        }
        let flow_cache = flow_cache(&config, tap.is_some());
        if let Some(cache) = &flow_cache {
            cache.enter(first.generation());
        }
        publisher.publish(first)?;
        let mut next_hops = NextHops::default();
        next_hops.check(state.peers(), &config);
        let vswitch = VswitchConfig {
            cores: config.workers.cores.clone(),
            poll: match config.workers.poll {
                Poll::Spin => PollMode::Spin,
                Poll::Adaptive => PollMode::Adaptive,
            },
            engine: WorkerConfig { sessions: config.sessions.settings(), ..WorkerConfig::default() },
            frames: config.frames(),
            tap,
            flow_cache: flow_cache.clone().map(|cache| -> Arc<dyn FlowCache> { cache }),
        };
        let vswitch = Vswitch::start_with(&vswitch, &publisher, kept::open(&config)?)?;
        vswitch.adoption().into_iter().for_each(kept::say);
        let now = Instant::now();
        Ok(Self {
            config,
            config_path: args.config.clone(),
            config_watch,
            state,
            ports,
            ids,
            next_hops,
            publisher,
            vswitch,
            held: Held::new(flow_cache.clone()),
            flow_cache,
            opened: Opened::default(),
            closed: Vec::new(),
            capture,
            requests,
            ready_file: args.ready_file.clone(),
            about: About { format: args.output, started: now },
            force: args.force,
            next_look: now,
            soonest_look: now,
            refused: None,
        })
    }

    /// Goes on until a signal. Answers 0 then.
    ///
    /// # Errors
    /// When a worker has died, which is a fault of the program: half of the traffic would be lost in silence.
    pub(super) fn run(mut self) -> anyhow::Result<ExitCode> {
        let mut is_ready = false;
        let dead = loop {
            self.round();
            match self.vswitch.dead_workers() {
                0 => {}
                dead => break dead,
            }
            let has_more = self.ports.has_more();
            if !is_ready && !has_more {
                is_ready = true;
                let (open, all) = self.ports.open_of();
                let announced = signals::announce_ready(self.ready_file.as_deref());
                announced.context("cannot announce that forwarding has started")?;
                log::info(&format!("ready: node {}, {open} of {all} ports open", self.config.node));
            }
            match self.requests.wait(if has_more { Duration::ZERO } else { ROUND }) {
                Some(Request::Stop) => break 0,
                Some(Request::Summary) => {
                    let counted = Counted {
                        vswitch: self.vswitch.counters(),
                        cached: self.held.cached(),
                        captured: self.capture.as_ref().map(Capture::counters),
                    };
                    let (config, state, ports) = (&self.config, &self.state, &self.ports);
                    let printed = self.about.print(config, &self.publisher.current(), &counted, state, ports);
                    if let Err(error) = printed {
                        log::error(&format!("cannot print the summary: {error:#}"));
                    }
                }
                Some(Request::Look) => self.hurry(),
                Some(Request::Interfaces) => self.hurry_look(),
                None => {}
            }
        };
        let stopped = self.stop();
        anyhow::ensure!(dead == 0, "{dead} workers have died, a fault of the program; their last words are above");
        stopped?;
        Ok(ExitCode::SUCCESS)
    }

    /// Looks at everything in the next round, whenever it would be due.
    fn hurry(&mut self) {
        log::info("looking at the files, as SIGHUP asks");
        self.config_watch.hurry();
        self.state.hurry();
        self.next_look = Instant::now();
        self.refused.iter_mut().for_each(Refused::hurry);
    }

    /// Looks at the interfaces as soon as may be.
    fn hurry_look(&mut self) {
        self.ports.counters.told += 1;
        self.next_look = self.next_look.min(self.soonest_look);
    }

    /// One look at everything that may have changed.
    fn round(&mut self) {
        let state = self.state.refresh();
        if state {
            self.next_hops.check(self.state.peers(), &self.config);
        }
        let mut changed = self.take_events() | state;
        if self.config_watch.has_changed() {
            changed |= self.reconfigure();
        }
        let started = Instant::now();
        if started >= self.next_look || self.ports.has_more() {
            changed |= self.with_system(|ports, system| ports.look(system, started));
            self.held.reach();
            self.next_look = started + LOOK;
            self.soonest_look = Instant::now() + ROUND.max(started.elapsed() * SHARE);
        }
        if !self.closed.is_empty() {
            // Events of closed ports are all here, and new ports of these numbers are not the workers' yet.
            changed |= self.take_events();
            self.closed.clear();
        }
        if changed || self.refused.as_ref().is_some_and(Refused::is_due) {
            self.enforce(changed, state);
        }
        // Tables that workers still used at the last change.
        self.publisher.collect();
    }

    fn take_events(&mut self) -> bool {
        let events: Vec<VswitchEvent> = self.vswitch.events().collect();
        let mut changed = false;
        for event in events {
            let (port, queue, error) = match event {
                VswitchEvent::PortGone { port, queue, error } => (port, queue, error),
                VswitchEvent::WorkerRestarted { worker } => {
                    log::error(&format!(
                        "worker {worker} has failed and goes on with its sessions: a fault of the program\n\
                         help: report the message of the panic above it"
                    ));
                    continue;
                }
            };
            let Some(name) = self.ids.name(port.index()).cloned().filter(|_| !self.closed.contains(&port)) else {
                continue;
            };
            let why = format!("queue {queue}: {error}");
            changed |= self.with_system(|ports, system| ports.failed(&name, &why, system));
        }
        changed
    }

    /// Takes over what may change at run time, and says what may not.
    fn reconfigure(&mut self) -> bool {
        if let Some(path) = self.config_watch.endless().map(Path::to_path_buf) {
            if self.config_watch.was_read() {
                log::error(&format!(
                    "the configuration has changed and is not taken over\n{} is not a file any more\n\
                     help: write a new file and rename it",
                    path.display()
                ));
            }
            return false;
        }
        let config = Config::read(&self.config_path);
        if !self.config_watch.was_read() {
            return false;
        }
        let config = match config {
            Ok(config) => config,
            Err(errors) => {
                log::error(&format!("the configuration has changed and is not taken over\n{errors}"));
                return false;
            }
        };
        let fields = self.config.needs_restart(&config);
        if !fields.is_empty() {
            log::warn(&format!("the configuration has changed in {}, which needs a restart", fields.join(", ")));
        }
        let ports = self.with_system(|ports, system| ports.configure(&config.ports, system));
        let changed = ports || self.config.routes != config.routes;
        self.next_look = Instant::now();
        (self.config.ports, self.config.routes) = (config.ports, config.routes);
        self.next_hops.check(self.state.peers(), &self.config);
        log::info(if changed {
            "the configuration's ports and routes were taken over"
        } else {
            "the configuration's ports and routes are as before"
        });
        changed
    }

    fn with_system<T>(&mut self, act: impl FnOnce(&mut Ports, &mut Kernel<'_>) -> T) -> T {
        let mut system = Kernel {
            vswitch: &mut self.vswitch,
            held: &mut self.held,
            opened: &mut self.opened,
            ids: &self.ids,
            closed: &mut self.closed,
            mode: self.config.mode,
            force: self.force,
        };
        act(&mut self.ports, &mut system)
    }

    /// Stops the workers, gives the interfaces back and prints the summary.
    fn stop(self) -> anyhow::Result<()> {
        log::info("stopping");
        let Self { vswitch, held, capture, about, config, state, ports, publisher, ready_file, .. } = self;
        if let Some(path) = ready_file {
            let _ = std::fs::remove_file(path);
        }
        let vswitch = vswitch.stop();
        // Without workers nothing is forwarded, so these are the last numbers.
        let cached = held.cached();
        // Only now: until the workers had ended, nothing was to reach the host's stack.
        drop(held);
        let (captured, whole) = capture.map(Capture::finish).unzip();
        if let Some(captured) = captured {
            log::info(&format!("captured {} packets", captured.written));
        }
        let counted = Counted { vswitch, cached, captured };
        let printed = about.print(&config, &publisher.current(), &counted, &state, &ports);
        // What was counted is told in any case.
        whole.unwrap_or(Ok(())).context("the capture is not whole")?;
        printed
    }
}

/// The flow cache, where it is wanted and can be. A capture is of all packets, so there is none beside it.
fn flow_cache(config: &Config, captures: bool) -> Option<Arc<KernelFlowCache>> {
    if !config.flow_cache || captures {
        return None;
    }
    let refused = |error: &std::io::Error| {
        log::warn(&format!(
            "no flow cache: {error}; all packets go through the workers\n\
             help: Linux 5.12 or newer and CAP_PERFMON, or flow_cache: false"
        ));
    };
    KernelFlowCache::new().inspect_err(refused).ok()
}

/// What was counted.
struct Counted {
    vswitch: VswitchCounters,
    cached: Cached,
    captured: Option<CaptureCounters>,
}

/// How and since when this runs, for the summary.
struct About {
    format: Format,
    started: Instant,
}

impl About {
    fn print(
        &self,
        config: &Config,
        snapshot: &Snapshot,
        counted: &Counted,
        state: &LiveState,
        ports: &Ports,
    ) -> anyhow::Result<()> {
        let summary = Summary {
            node: &config.node,
            snapshot,
            counters: &counted.vswitch,
            cached: &counted.cached,
            state: state.counters(),
            ports: ports.counters,
            capture: counted.captured,
            uptime: self.started.elapsed(),
            origins: state.pipeline().origins(),
        };
        log::print(match self.format {
            Format::Text => {
                let mut text = Vec::new();
                summary.write(&mut text)?;
                String::from_utf8(text)?
            }
            Format::Json => format!("{}\n", summary.json()),
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
