//! The state from an API server: batches of changes, and at start a stored copy.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bulkhead_cluster::kubernetes::{Changes, Follower, Notice};
use bulkhead_control::cache::Event;
use bulkhead_control::object::{Node, Object};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::source::SourceErrors;
use crossbeam_channel::Receiver;

use super::super::api::Api;
use super::super::log;
use super::{DENYING, LiveState, nameless, services, told};

impl LiveState {
    /// Loads the API server's first state, otherwise the stored copy, otherwise nothing.
    pub(super) fn load_from_server(&mut self) {
        let Some(api) = &mut self.api else { return };
        api.wait();
        self.refresh();
        if !self.denied {
            return;
        }
        // The pipeline has the server's objects, even if they were refused. With an older state added, it would have a mixture.
        let is_heard = self.counts.refused.load(Ordering::Relaxed) > 0;
        if let Some(kept) = self.api.as_ref().filter(|_| !is_heard).and_then(Api::last_good) {
            let (count, age) = (kept.objects.len(), kept.age.as_secs());
            let (services, objects) = services::kept(kept.objects, self.config.options.foreign);
            let whole = Changes { events: self.inventory.replace(objects), ..Changes::default() };
            match self.take_changes(whole) {
                Ok(_) => {
                    self.follow_kept_services(services);
                    log::warn(&format!(
                        "the API server cannot be reached; the last good state is in force: {count} objects, {age} s old"
                    ));
                    return;
                }
                Err(error) => log::error(&format!("the last good state cannot be used\n{error:#}")),
            }
        }
        let why = if is_heard {
            "the API server's state cannot be enforced"
        } else {
            "the API server has not sent a state yet"
        };
        log::error(&format!("{why}; {DENYING} until it sends a valid one"));
    }

    /// Returns the channel of notices about the API server. Never ready if the state comes from files.
    pub(crate) fn notices(&self) -> Receiver<Notice> {
        self.api.as_ref().map_or_else(crossbeam_channel::never, Api::notices)
    }

    /// Handles a notice about the API server. Its changes take effect with [`Self::refresh`].
    pub(crate) fn hear(&mut self, notice: &Notice) {
        let Some(api) = &mut self.api else { return };
        api.hear(notice);
        self.counts.unenforced_kinds.store(api.unread_kinds() as u64, Ordering::Relaxed);
    }

    /// Returns the API server's follower, which reports the connection's health. `None` if the state comes from files.
    pub(crate) fn follower(&self) -> Option<Arc<Follower>> {
        self.api.as_ref().map(Api::follower)
    }

    /// Applies the API server's changes. Returns whether anything in force changed.
    pub(super) fn refresh_from_server(&mut self) -> bool {
        let Some(api) = &mut self.api else { return false };
        let taken = match api.take() {
            None => {
                api.keep();
                return false;
            }
            Some(taken) => taken.map_err(|errors: SourceErrors| anyhow::Error::from(errors)),
        };
        match taken.and_then(|changes| self.take_changes(changes)) {
            Ok(has_changed) => {
                self.is_refused = false;
                self.api.iter_mut().for_each(Api::was_good);
                has_changed
            }
            Err(error) => {
                self.count(|counts| &counts.refused);
                self.is_refused = true;
                let then = if self.denied { DENYING } else { "the last good state stays in force" };
                log::error(&format!("cannot enforce the changes of the API server; {then}\n{error:#}"));
                false
            }
        }
    }

    /// Applies the changes. Returns whether anything in force changed.
    pub(super) fn take_changes(&mut self, changes: Changes) -> anyhow::Result<bool> {
        let Changes { is_whole, heard, mut events, faulty, warnings } = changes;
        self.heard = heard;
        let warnings = told(&warnings);
        self.tell(&warnings, log::warn);
        if is_whole && !self.inventory.is_empty() {
            // Deletes objects of the stored copy that the server no longer has.
            let objects = events.into_iter().filter_map(|event| match event {
                Event::Apply(object) => Some(object),
                _ => None,
            });
            events = std::mem::take(&mut self.inventory).replace(objects);
        }
        for event in &mut events {
            if let Event::Apply(Object::Node(node)) = event {
                self.config.node_ranges.complete(node);
            }
            match event {
                Event::Apply(Object::Node(node)) if node.name == self.node => {
                    self.own = node.clone();
                    *node = self.own_node();
                }
                Event::DeleteNode(name) if *name == self.node => {
                    self.own = nameless(&self.node);
                    let node = self.own_node();
                    if !node.addresses.is_empty() {
                        *event = Event::Apply(Object::Node(node));
                    }
                }
                _ => {}
            }
        }
        self.kernel.is_held = true;
        // Those of Services are noted with the batches of Services.
        self.changes.note(events.iter().filter(|event| !services::is_of_services(event)));
        self.pipeline.apply_batch(events)?;
        // The batch may have changed which addresses of the interfaces belong to pods.
        let node = self.own_node();
        let known = self.pipeline.cache().nodes().get(&self.node).is_some_and(|known| **known == node);
        if !known && (!node.addresses.is_empty() || self.own != nameless(&self.node)) {
            let event = Event::Apply(Object::Node(node));
            self.changes.note([&event]);
            self.pipeline.apply(event)?;
        }
        check_known(&self.pipeline, &self.own)?;
        let unread_kinds = self.api.as_ref().map_or(0, Api::unread_kinds);
        self.enforce(warnings, BTreeSet::new(), faulty, unread_kinds)
    }
}

/// Like `check_node`, for the pipeline's objects.
fn check_known(pipeline: &Pipeline, own: &Node) -> anyhow::Result<()> {
    let has_pod = || pipeline.cache().pods().any(|(_, pod)| pod.node.as_ref() == Some(&own.name));
    anyhow::ensure!(
        *own != nameless(&own.name) || has_pod(),
        "the API server has neither node `{0}` nor a pod on it\n  \
         help: write the node's name as in `kubectl get nodes` into `node`",
        own.name
    );
    Ok(())
}
