//! `bulkhead run` with `dataplane: nftables`: the node's kernel enforces policy, and this process keeps its ruleset up to date.
//!
//! ```text
//!   state files | API server --LiveState--> NftRenderer --change--> nft --> kernel: table inet bulkhead
//!   host routes, configuration --places-------^                              | counters
//!   admin socket, HTTP <-- [ admin ] <-- Told <------------------------------'
//! ```
//! One thread does it all in turn: nothing here forwards, and the kernel goes on with what it has. What it does not know yet it drops
//! (interfaces without a pod, pods without an interface), so that a pod that comes is closed until its rules are in force.
//!
//! **Invariant.** The kernel has one whole ruleset that made sense, the last one that it has taken. What fails is said once and tried again.
//! When the process ends, the table stays and goes on judging; the next process replaces it in one transaction.

mod admin;
mod kernel;
mod metrics;
mod nobodys;
mod places;
mod start;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use bulkhead_control::object::PodName;
use bulkhead_control::pipeline::RendererHandle;
use bulkhead_control::renderer::nftables::{Epoch, NftRenderer, remember};
use bulkhead_dataplane::io::LinkStatus;
use crossbeam_channel::{Receiver, never, select};

use super::admin::thread::Handle;
use super::config::Config;
use super::log;
use super::names::Lookup;
use super::own_addresses;
use super::signals::{self, Request};
use super::state::{DENYING, LiveState};
use super::watch::Watch;
use crate::args::Run;
use bulkhead_answers::args::Format;
pub(super) use kernel::check;
use nobodys::Nobodys;
use status::Told;

/// How often the node's routes are looked at, by which pods are found: what a pod that has just been wired waits at most, closed.
const ROUTES: Duration = Duration::from_millis(100);
/// How often it is looked at whether the table is still there: what `nft flush ruleset` opens is open for so long at most.
const LOOK: Duration = Duration::from_secs(2);
/// When the second step of a change follows the first, at the soonest: changes that follow each other within so long have one second step
/// together. That no packet of before is on its way any more [`kernel::wait_for_packets`] makes sure of, and not this time.
const SETTLED: Duration = Duration::from_millis(20);
/// When what failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Removes the table.
///
/// # Errors
/// When a process that enforces runs here, or the system refuses.
pub(super) fn cleanup() -> anyhow::Result<bool> {
    let _ownership = kernel::Ownership::take()?;
    kernel::remove()
}

/// Enforces until a signal ends it.
///
/// # Errors
/// When there is no state, or the system refuses something.
pub(super) fn start(config: Config, args: &Run) -> anyhow::Result<ExitCode> {
    check()?;
    if let Some(path) = &args.ready_file {
        signals::check_ready_file(path)
            .with_context(|| format!("the ready file {} cannot be written", path.display()))?;
        let _ = std::fs::remove_file(path);
    }
    let requests = signals::listen().context("cannot listen to signals")?;
    Enforcer::start(config, args)?.run(&requests)
}

/// See the module.
struct Enforcer {
    /// Held for the life of the process.
    _ownership: kernel::Ownership,
    config: Config,
    config_path: PathBuf,
    node: Option<String>,
    config_watch: Watch,
    state: LiveState,
    handle: RendererHandle<NftRenderer>,
    epoch: Epoch,
    /// When connections are to be remembered again; none when they are.
    settles: Option<Instant>,
    /// When the kernel is told again what it has not taken.
    again: Option<Instant>,
    looked: Instant,
    routes: places::HostRoutes,
    /// Pods that were told to have no interface.
    unplaced: BTreeSet<String>,
    nobodys: Nobodys,
    /// Whether a state is to be put into force that the log tells of.
    is_to_be_told: bool,
    /// What failed last, so that it is said once.
    failed: Option<String>,
    told: Arc<Mutex<Told>>,
    ready_file: Option<PathBuf>,
    format: Format,
    _admin: Handle,
    asked: Receiver<()>,
    lookups: Receiver<Lookup>,
}

impl Enforcer {
    fn run(mut self, requests: &Receiver<Request>) -> anyhow::Result<ExitCode> {
        let (mut addresses, mut server) = (own_addresses::changes(), self.state.notices());
        let mut renumbered = true;
        let mut is_announced = false;
        loop {
            let seen = Instant::now();
            if std::mem::take(&mut renumbered) {
                self.state.renumber(own_addresses::read());
            }
            self.is_to_be_told |= self.state.refresh() && self.state.policy().is_told;
            if self.config_watch.has_changed() {
                self.reconfigure();
            }
            match places::host_routes() {
                Ok(routes) => self.routes = routes,
                // Pods stay where they were: without routes all of them would be closed.
                Err(error) => log::error(&format!("cannot read the kernel's routes: {error}")),
            }
            self.look();
            self.enforce(seen);
            if !is_announced && self.failed.is_none() {
                self.announce()?;
                is_announced = true;
            }
            let next = [Some(Instant::now() + ROUTES), self.settles, self.again, Some(self.state.next_look())];
            let next =
                next.into_iter().flatten().min().map_or(ROUTES, |next| next.saturating_duration_since(Instant::now()));
            let (asked, lookups) = (self.asked.clone(), self.lookups.clone());
            select! {
                recv(requests) -> request => match request.unwrap_or(Request::Stop) {
                    Request::Stop => break,
                    Request::Summary => self.summarize(),
                    Request::Look => self.hurry("SIGHUP"),
                },
                recv(asked) -> asked => if asked.is_ok() { self.hurry("the admin socket") },
                // What the state has was put into force above, or is told to be refused.
                recv(lookups) -> lookup => if let Ok(lookup) = lookup {
                    lookup.answer(&self.state);
                },
                recv(addresses) -> told => match told {
                    Ok(()) => renumbered = true,
                    Err(_) => addresses = never(),
                },
                recv(server) -> told => match told {
                    Ok(notice) => self.state.hear(&notice),
                    Err(_) => server = never(),
                },
                default(next) => {}
            }
            if self.lock().has_lost_source() {
                anyhow::bail!(
                    "the kubernetes thread has died: this is a bug in bulkhead; report the panic message above"
                );
            }
        }
        log::info("stopping; the kernel keeps enforcing its ruleset (`bulkhead cleanup` removes it)");
        if let Some(path) = &self.ready_file {
            let _ = std::fs::remove_file(path);
        }
        self.summarize();
        Ok(ExitCode::SUCCESS)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the table is still there. Somebody may have flushed all tables.
    fn look(&mut self) {
        if self.looked.elapsed() < LOOK || self.again.is_some() {
            return;
        }
        self.looked = Instant::now();
        match kernel::epoch() {
            Ok(epoch) if epoch == Some(self.epoch) => {}
            Ok(_) => {
                log::error("another program removed or changed the table inet bulkhead; bulkhead loads it again");
                self.lock().is_kept = false;
                self.state.nft_taken(self.handle, false);
            }
            Err(error) => self.fail(&error),
        }
        let has_state = !self.state.is_denying() && !self.lock().is_kept;
        if has_state && let Ok(links) = bulkhead_dataplane::io::links() {
            self.tell_nobodys(&links);
        }
    }

    /// Says which interfaces are closed because they are nobody's.
    fn tell_nobodys(&mut self, links: &[LinkStatus]) {
        let told = Arc::clone(&self.told);
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        let new = self.nobodys.look(links, &self.config.nftables.suspects(), &told.places);
        told.nobodys.clone_from(&self.nobodys.known);
        drop(told);
        for interface in new {
            log::warn(&format!(
                "interface {interface} is closed: it belongs to no pod of this node and to no port of the configuration\nhelp: if no pod is behind it, \
                 add it to `ports` with `kind: uplink`, or set `nftables.pod_interfaces` to the prefixes of pod interface names"
            ));
        }
    }

    /// Tells the kernel what has changed, and lets connections be remembered when it is time to.
    fn enforce(&mut self, seen: Instant) {
        if self.again.is_some_and(|again| Instant::now() < again) {
            return;
        }
        let places = places::places(&self.config.ports, &self.routes, self.state.nft_pods(self.handle));
        let next = self.epoch.next();
        let is_kept = self.lock().is_kept && self.state.is_denying();
        let change = if is_kept { None } else { self.state.nft_change(self.handle, places.clone(), next) };
        if let Some(change) = change {
            let done = kernel::change(&change, next);
            self.state.nft_taken(self.handle, done.is_ok());
            if let Err(error) = done {
                return self.fail(&error);
            }
            self.epoch = next;
            self.settles = Some(Instant::now() + SETTLED);
            self.tell_unplaced(&places);
            let is_denying = self.state.is_denying();
            self.lock().enforced(places, is_denying, seen);
            if std::mem::take(&mut self.is_to_be_told) {
                log::info("the new state is in force");
            }
        } else if self.settles.is_some_and(|settles| Instant::now() >= settles) {
            kernel::wait_for_packets();
            if let Err(error) = kernel::run(&remember(self.epoch)) {
                // Perhaps the table is gone.
                self.state.nft_taken(self.handle, false);
                return self.fail(&error);
            }
            self.settles = None;
        }
        (self.again, self.failed) = (None, None);
        self.lock().is_refused = false;
    }

    /// What failed is tried again, with all that is known.
    fn fail(&mut self, error: &anyhow::Error) {
        self.again = Some(Instant::now() + AGAIN);
        let text = format!("{error:#}");
        if self.failed.as_ref() != Some(&text) {
            log::error(&format!("cannot load the ruleset; the previous one stays in force\n{text}"));
            self.failed = Some(text);
        }
        self.lock().is_refused = true;
    }

    /// Says which pods have no interface: they are closed, and should not be.
    fn tell_unplaced(&mut self, places: &BTreeMap<Arc<str>, Option<PodName>>) {
        let placed: BTreeSet<_> = places.values().flatten().collect();
        let pods = self.state.nft_pods(self.handle).filter(|(pod, _)| !placed.contains(pod));
        let unplaced: BTreeSet<String> = pods.map(|(pod, _)| pod.to_string()).collect();
        for pod in unplaced.difference(&self.unplaced) {
            log::warn(&format!(
                "pod {pod} is closed: the node has no interface for it\nhelp: name its interface in `ports`, or use a network plugin that \
                 routes to each pod's address (packets over a bridge bypass policy)"
            ));
        }
        self.unplaced = unplaced;
        self.lock().unplaced.clone_from(&self.unplaced);
    }

    /// Says that policy is in force.
    fn announce(&mut self) -> anyhow::Result<()> {
        self.lock().is_settled = true;
        let announced = signals::announce_ready(self.ready_file.as_deref());
        announced.context("cannot announce that policy is in force")?;
        let told = self.lock();
        let denying = match (told.is_kept, self.state.is_denying()) {
            (true, _) => "; no state is loaded, and the ruleset of the previous process stays in force".to_owned(),
            (false, true) => format!("; denying: no state is loaded, and {DENYING}"),
            (false, false) => String::new(),
        };
        let pods = told.places.values().flatten().count();
        log::info(&format!("ready: node {}, the kernel enforces policy for {pods} pods{denying}", told.node));
        Ok(())
    }

    fn hurry(&mut self, who: &str) {
        log::info(&format!("re-reading the configuration and the state, requested by {who}"));
        self.config_watch.hurry();
        self.state.hurry();
        self.looked = Instant::now().checked_sub(LOOK).unwrap_or(self.looked);
    }

    fn reconfigure(&mut self) {
        if let Some(path) = self.config_watch.endless().map(Path::to_path_buf) {
            if self.config_watch.was_read() {
                log::error(&format!(
                    "the changed configuration is not applied: {} is no longer a file",
                    path.display()
                ));
            }
            return;
        }
        let config = Config::read(&self.config_path, self.node.as_deref());
        if !self.config_watch.was_read() {
            return;
        }
        match config {
            Err(errors) => log::error(&format!(
                "the changed configuration is not applied; the previous one stays in force\n{errors}"
            )),
            Ok(config) => {
                let fields = self.config.needs_restart(&config);
                if !fields.is_empty() {
                    log::warn(&format!(
                        "the configuration has changed in {}: restart bulkhead to apply this",
                        fields.join(", ")
                    ));
                }
                if !Config::has_other_ports(&fields) {
                    self.config.ports = config.ports;
                }
            }
        }
    }

    /// Prints what was counted.
    fn summarize(&self) {
        match kernel::counters() {
            Ok(counters) => log::print(self.lock().summary(self.format, &counters.unwrap_or_default())),
            Err(error) => log::error(&format!("cannot print the summary: {error:#}")),
        }
    }
}
