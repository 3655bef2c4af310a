//! The state as an API server tells it: batches of what has changed, and at the start what was kept.

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
    /// Takes the first state of the API server, or what was kept of an earlier one, or none.
    pub(super) fn load_from_server(&mut self) {
        let Some(api) = &mut self.api else { return };
        api.wait();
        self.refresh();
        if !self.denied {
            return;
        }
        // What the server has told is in the pipeline, refused or not. An older state upon it would be none that there ever was.
        let is_heard = self.counts.refused.load(Ordering::Relaxed) > 0;
        if let Some(kept) = self.api.as_ref().filter(|_| !is_heard).and_then(Api::last_good) {
            let (count, age) = (kept.objects.len(), kept.age.as_secs());
            let (services, objects) = services::kept(kept.objects);
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

    /// What the API server is heard with.
    pub(crate) fn notices(&self) -> Receiver<Notice> {
        self.api.as_ref().map_or_else(crossbeam_channel::never, Api::notices)
    }

    /// Takes note of what was told about the API server; [`Self::refresh`] does what follows.
    pub(crate) fn hear(&mut self, notice: &Notice) {
        self.api.iter_mut().for_each(|api| api.hear(notice));
    }

    /// The API server, for whoever wants to know how well it is heard.
    pub(crate) fn follower(&self) -> Option<Arc<Follower>> {
        self.api.as_ref().map(Api::follower)
    }

    /// Takes what the API server has changed. Returns whether that changed what is in force.
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

    /// Makes the changes part of the state. Returns whether that changed what is in force.
    fn take_changes(&mut self, changes: Changes) -> anyhow::Result<bool> {
        let Changes { is_whole, heard, mut events, faulty, warnings } = changes;
        self.heard = heard;
        let warnings = told(&warnings);
        self.tell(&warnings, log::warn);
        if is_whole && !self.inventory.is_empty() {
            // What was kept of an earlier state goes, as far as it is not so any more.
            let objects = events.into_iter().filter_map(|event| match event {
                Event::Apply(object) => Some(object),
                _ => None,
            });
            events = std::mem::take(&mut self.inventory).replace(objects);
        }
        for event in &mut events {
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
        self.changes.note(&events);
        self.pipeline.apply_batch(events)?;
        // Which addresses of the interfaces are pods' may have changed with them.
        let node = self.own_node();
        let known = self.pipeline.cache().nodes().get(&self.node).is_some_and(|known| **known == node);
        if !known && (!node.addresses.is_empty() || self.own != nameless(&self.node)) {
            let event = Event::Apply(Object::Node(node));
            self.changes.note([&event]);
            self.pipeline.apply(event)?;
        }
        check_known(&self.pipeline, &self.own)?;
        self.enforce(warnings, BTreeSet::new(), faulty, 0)
    }
}

/// As `check_node`, of what the pipeline knows.
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
