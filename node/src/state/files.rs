//! The state as files say it: they are read whole, and what differs from before is taken over.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use bulkhead_control::object::Object;
use bulkhead_control::source::{self, Loaded, Unenforced};

use super::own_node::{check_node, more_addresses, nameless, with_addresses};
use super::{DENYING, LiveState, told};
use crate::config::WhenRefused;
use crate::log;
use bulkhead_answers::services::Adapter;

impl LiveState {
    /// Takes over what was read, or says why not. Returns whether that changed what is in force.
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
    pub(super) fn take(&mut self, loaded: Loaded) -> anyhow::Result<bool> {
        let mut warnings = told(&loaded.warnings);
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
}
