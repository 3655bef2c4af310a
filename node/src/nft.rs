//! `bulkhead run` with `dataplane: nftables`: the node's kernel enforces policy, and this process keeps its ruleset up to date.
//!
//! ```text
//!   state files | API server --LiveState--> NftRenderer --change--> nft --> kernel: table inet bulkhead
//!   host routes, configuration --places-------^                              | counters
//!   admin socket, HTTP <-- [ admin ] <-- Told <------------------------------'
//! ```
//! One thread does all of this in turn. It forwards no packets, so the kernel keeps enforcing while the thread is busy. Interfaces without
//! a known pod and pods without a known interface are closed: a new pod stays closed until its rules are loaded.
//!
//! **Invariant.** The kernel has one complete ruleset, the last one that loaded without error. A failure is logged once and retried. When
//! the process ends, the table stays and keeps enforcing; the next process replaces it in one transaction.

mod admin;
mod kernel;
mod metrics;
mod nobodys;
mod places;
mod start;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use bulkhead_control::object::PodName;
use bulkhead_control::pipeline::RendererHandle;
use bulkhead_control::renderer::nftables::{Epoch, NftRenderer, remember};
use bulkhead_dataplane::io::{LinkStatus, Watched};
use crossbeam_channel::{Receiver, never, select};

use super::admin::thread::Handle;
use super::changes;
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

/// Interval of reading the node's routes, which map pods to interfaces. A newly wired pod stays closed for up to this long.
const ROUTES: Duration = Duration::from_millis(100);
/// Interval of checking that the table exists. After `nft flush ruleset`, traffic is unfiltered for up to this long.
const LOOK: Duration = Duration::from_secs(2);
/// Minimum time between the two steps of a change. Changes within this time share one second step. [`kernel::wait_for_packets`], not this
/// time, ensures that packets of the old ruleset are gone.
const SETTLED: Duration = Duration::from_millis(20);
/// Time until a failed load of the ruleset is retried.
const AGAIN: Duration = Duration::from_secs(1);

/// Removes the nftables table. Returns whether it existed.
///
/// # Errors
/// If a process enforces policy in this network namespace, or nft fails.
pub(super) fn cleanup() -> anyhow::Result<bool> {
    let _ownership = kernel::Ownership::take()?;
    kernel::remove()
}

/// Returns a connection to the process that enforces policy in this network namespace. It ends with that process. `None` if there is none.
pub(super) fn owner() -> Option<UnixStream> {
    kernel::owner()
}

/// Enforces policy until a signal stops the process.
///
/// # Errors
/// If nftables is unusable, the state cannot be loaded, or the system refuses a resource.
pub(super) fn start(config: Config, args: &Run, requests: &Receiver<Request>) -> anyhow::Result<ExitCode> {
    check()?;
    if let Some(path) = &args.ready_file {
        signals::check_ready_file(path)
            .with_context(|| format!("the ready file {} cannot be written", path.display()))?;
        let _ = std::fs::remove_file(path);
    }
    Enforcer::start(config, args)?.run(requests)
}

/// The enforcement thread: the configuration, the state, and what the kernel has loaded.
struct Enforcer {
    /// Ownership of the nftables table in this network namespace, held for the life of the process.
    _ownership: kernel::Ownership,
    config: Config,
    config_path: PathBuf,
    node: Option<String>,
    config_watch: Watch,
    state: LiveState,
    handle: RendererHandle<NftRenderer>,
    epoch: Epoch,
    /// When the second step of the last change is due; after it, the kernel remembers allowed connections again. `None` once done.
    settles: Option<Instant>,
    /// When a failed load is retried. `None` if the last load succeeded.
    again: Option<Instant>,
    looked: Instant,
    routes: places::HostRoutes,
    /// Pods whose missing interface was logged.
    unplaced: BTreeSet<String>,
    nobodys: Nobodys,
    /// Whether to log when the next ruleset change takes effect.
    is_to_be_told: bool,
    /// The last error, so that it is logged once. `None` after a success.
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
        let (mut addresses, mut server) = (changes::of(Watched::Addresses), self.state.notices());
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
                // The last routes stay: without routes, all pods would be closed.
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
            let (files, configuration) = (self.state.file_events(), self.config_watch.events());
            select! {
                recv(requests) -> request => match request.unwrap_or(Request::Stop) {
                    Request::Stop => break,
                    Request::Summary => self.summarize(),
                    Request::Look => self.hurry("SIGHUP"),
                },
                recv(files) -> event => self.state.hear_of_files(event),
                recv(configuration) -> event => self.config_watch.hear(event),
                recv(asked) -> asked => if asked.is_ok() { self.hurry("the admin socket") },
                // The newest state was enforced or refused above.
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

    /// Checks that the table is unchanged, and schedules a reload if another program changed it. Also looks for interfaces that belong to
    /// no pod.
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

    /// Logs interfaces that are closed because they belong to no pod. Each is logged once.
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

    /// Loads a changed ruleset, or runs the second step of the last change if it is due. `seen` is when the thread noticed the change.
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
                // The table may be gone.
                self.state.nft_taken(self.handle, false);
                return self.fail(&error);
            }
            self.settles = None;
        }
        (self.again, self.failed) = (None, None);
        self.lock().is_refused = false;
    }

    /// Schedules a retry, and logs the error if it differs from the last one.
    fn fail(&mut self, error: &anyhow::Error) {
        self.again = Some(Instant::now() + AGAIN);
        let text = format!("{error:#}");
        if self.failed.as_ref() != Some(&text) {
            log::error(&format!("cannot load the ruleset; the previous one stays in force\n{text}"));
            self.failed = Some(text);
        }
        self.lock().is_refused = true;
    }

    /// Logs pods that are closed because the node has no interface for them.
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

    /// Announces in the ready file, to systemd and in the log that policy is in force.
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

    /// Prints the kernel's counters.
    fn summarize(&self) {
        match kernel::counters() {
            Ok(counters) => log::print(self.lock().summary(self.format, &counters.unwrap_or_default())),
            Err(error) => log::error(&format!("cannot print the summary: {error:#}")),
        }
    }
}
