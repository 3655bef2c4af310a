//! The state from files: they are read as a whole, and the differences are applied.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use bulkhead_control::object::Object;
use bulkhead_control::source::{Loaded, Unenforced};
use crossbeam_channel::{Receiver, RecvError};

use super::own_node::{check_node, more_addresses, nameless, with_addresses};
use super::{DENYING, LiveState, told};
use crate::api::unread_policies;
use crate::config::WhenRefused;
use crate::log;
use bulkhead_answers::services::Adapter;

impl LiveState {
    /// Returns the channel of events about the files. Pass what it receives to [`Self::hear_of_files`].
    pub(crate) fn file_events(&self) -> Receiver<()> {
        self.watch.events()
    }

    /// Takes an event of the channel of [`Self::file_events`].
    pub(crate) fn hear_of_files(&mut self, event: Result<(), RecvError>) {
        self.watch.hear(event);
    }

    /// Applies what was read, or logs why not. Returns whether anything in force changed.
    pub(super) fn settle(&mut self, loaded: anyhow::Result<Loaded>) -> bool {
        let error = match loaded.and_then(|loaded| self.take(loaded)) {
            Ok(has_changed) => {
                self.is_refused = false;
                if !has_changed && !self.services.as_ref().is_some_and(Adapter::has_changed) {
                    log::info("the new state is in force and changes nothing on this node");
                }
                return has_changed;
            }
            Err(error) => error,
        };
        self.count(|counts| &counts.refused);
        self.is_refused = true;
        let was_denied = self.denied;
        self.denied |= self.config.when_refused == WhenRefused::Deny;
        let then = if self.denied { DENYING } else { "the last good state stays in force" };
        log::error(&format!("the changed state does not load; {then}\n{error:#}"));
        self.denied != was_denied
    }

    pub(super) fn load_files(&self) -> anyhow::Result<Loaded> {
        if let Some(path) = self.watch.endless() {
            // Opening a pipe without a writer would block the policy thread forever.
            let help = "name a file or a folder; instead of the pipe, write a new file and rename it";
            anyhow::bail!("{} is neither a file nor a folder\n  help: {help}", path.display());
        }
        let mut options = self.config.options.clone();
        if self.counts.applied.load(Ordering::Relaxed) > 0 {
            // At start, an error stops the vswitch. Once it runs, another product's object must not block all changes, so it is only
            // logged.
            options.unenforced = Unenforced::Report;
        }
        Ok(self.config.load(options)?)
    }

    /// Replaces the state. On an error, the previous state stays in force. Returns whether anything in force changed.
    pub(super) fn take(&mut self, loaded: Loaded) -> anyhow::Result<bool> {
        let mut warnings = told(&loaded.warnings);
        self.tell(&warnings, log::warn);
        let unenforced: BTreeSet<String> = loaded.unenforced.shown().iter().map(ToString::to_string).collect();
        self.tell(&unenforced, log::error);
        if !loaded.foreign.is_empty() {
            let counts = loaded.foreign.iter().map(|(kind, count)| (&**kind, Some(*count)));
            let warning = unread_policies(counts);
            self.tell(&[warning.clone()].into(), log::warn);
            warnings.insert(warning);
        }
        let (faulty, unenforced_kinds) = (loaded.faulty, loaded.unenforced.total() + loaded.foreign.len());
        check_node(&loaded.objects, &self.node)?;
        let mut objects = loaded.objects;
        let own = objects.iter().find_map(|object| match object {
            Object::Node(node) if node.name == self.node => Some(node.clone()),
            _ => None,
        });
        if own.is_none() {
            warnings.insert(format!(
                "the state has no Node object for `{0}`: only the addresses of the node's interfaces and host-network pods \
                 count as the node, whose traffic with its own pods is always allowed\n  help: add the output of `kubectl get nodes -o yaml`",
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
        // Of two objects with one name, the later one counts.
        let is_known = !node.addresses.is_empty() || own != nameless(&self.node);
        objects.extend(is_known.then_some(Object::Node(node)));
        // Only differences are compiled. If that fails, the tables stay, and the pipeline retries with the next change: it has the
        // differences.
        let changes = self.inventory.replace(objects);
        self.changes.note(&changes);
        let (policy, services) = self.divide(changes);
        self.kernel.is_held = true;
        let applied = self.pipeline.apply_batch(policy);
        // Even if policy could not be compiled.
        self.follow_services(services, &own, more);
        applied?;
        self.own = own;
        self.enforce(warnings, unenforced, faulty, unenforced_kinds)
    }
}
