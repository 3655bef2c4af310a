//! Services of the state. Policy does not depend on them: an invalid Service changes no table.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::PoisonError;

use bulkhead_cluster::kubernetes::Changes;
use bulkhead_control::cache::Event;
use bulkhead_control::object::{Node, Object};
use bulkhead_control::renderer::acl::Attachment;
use bulkhead_control::source::ForeignKinds;
use tokio::sync::watch;

use super::super::api::Api;
use super::super::log;
use super::own_node::more_addresses;
use super::{LiveState, nameless, told};
use bulkhead_answers::services::{self, Adapter, NodeHealth, Update};

/// Splits a stored copy of the API server's state into objects for Services and objects for policy. Nodes are in both. Services are in both if
/// policies of other products are read, because these may name Services.
pub(super) fn kept(objects: Vec<Object>, foreign: ForeignKinds) -> (Vec<Object>, Vec<Object>) {
    let is_of_services = |object: &Object| matches!(object, Object::Service(_) | Object::EndpointSlice(_));
    let (mut services, mut policy): (Vec<Object>, Vec<Object>) = objects.into_iter().partition(is_of_services);
    let nodes: Vec<Object> = policy.iter().filter(|object| matches!(object, Object::Node(_))).cloned().collect();
    if foreign != ForeignKinds::Skip {
        policy.extend(services.iter().cloned());
    }
    services.extend(nodes);
    (services, policy)
}

/// Whether the event's object affects only Services.
pub(super) const fn is_of_services(event: &Event) -> bool {
    matches!(
        event,
        Event::Apply(Object::Service(_) | Object::EndpointSlice(_))
            | Event::DeleteService(_)
            | Event::DeleteEndpointSlice(_)
    )
}

impl LiveState {
    /// Ends a batch of changes: returns the change of Services to publish, and whether the trusted DNS servers changed, which depend on
    /// Services, tables and addresses. The update is `None` if Services have not changed, are not all listed yet, or are off.
    pub(crate) fn take_services(&mut self) -> (Option<Update>, bool) {
        self.hear_services();
        self.withhold_sources();
        (self.take_update(), self.follow_names())
    }

    fn take_update(&mut self) -> Option<Update> {
        let services = self.services.as_mut()?;
        if let Some(health) = services.take_health() {
            // `send` would fail without a receiver.
            self.health.send_replace(health);
        }
        let update = services.take();
        if update.is_some() {
            self.count_services();
        }
        update
    }

    /// Excludes source addresses that a pod or a node has, and logs them.
    fn withhold_sources(&mut self) {
        let Some(adapter) = &mut self.services else { return };
        let taken = services::withhold_taken(adapter, &self.pipeline);
        for (address, holder) in taken.iter().filter(|(address, _)| !self.taken_sources.contains_key(*address)) {
            log::warn(&format!(
                "{address}, the source address of masqueraded connections to Services, is also the address of {holder}: \
                 connections of outside clients to backends on other nodes, and of pods to themselves, are refused\n  \
                 help: set services.source_addresses to an unassigned address that is routed to this node"
            ));
        }
        self.taken_sources = taken;
    }

    /// Applies the API server's changes to Services. The first batch comes once all are listed.
    fn hear_services(&mut self) {
        let Some(taken) = self.api.as_mut().and_then(Api::take_services) else { return };
        match taken {
            Ok(Changes { is_whole, mut events, warnings, .. }) => {
                if is_whole && !self.kept_services.is_empty() {
                    // Deletes objects of the stored copy that the server no longer has.
                    let objects = events.into_iter().filter_map(|event| match event {
                        Event::Apply(object) => Some(object),
                        _ => None,
                    });
                    events = std::mem::take(&mut self.kept_services).replace(objects);
                }
                // Separate from the warnings about policy. Each batch repeats all of them.
                let warnings = told(&warnings);
                warnings.difference(&self.told_of_services).for_each(log::warn);
                self.told_of_services = warnings;
                self.adapt(events);
            }
            Err(errors) => log::error(&format!("the API server's changes to Services are not applied\n{errors}")),
        }
    }

    /// Applies the Services and nodes of a stored copy, if it has Services.
    pub(super) fn follow_kept_services(&mut self, objects: Vec<Object>) {
        if objects.iter().any(|object| matches!(object, Object::Service(_))) {
            let events = self.kept_services.replace(objects);
            self.adapt(events);
        }
    }

    /// Passes the API server's events to the adapter. This node is as in its object, even before policy's first batch arrives.
    fn adapt(&mut self, events: Vec<Event>) {
        // Nodes are recorded as policy knows them.
        self.changes.note(events.iter().filter(|event| is_of_services(event)));
        let more = more_addresses(&self.own_node(), &self.own);
        let Some(adapter) = &mut self.services else { return };
        adapter.apply(events);
        adapter.set_more_addresses(more);
        adapter.listed();
    }

    /// Splits events into those for policy and those for Services. Nodes are in both, except this one: for policy it has the addresses of
    /// its interfaces. Services are in both if policies of other products are read.
    pub(super) fn divide(&self, events: Vec<Event>) -> (Vec<Event>, Vec<Event>) {
        let (mut services, mut policy): (Vec<Event>, Vec<Event>) = events.into_iter().partition(is_of_services);
        let is_other_node = |event: &&Event| match event {
            Event::Apply(Object::Node(node)) => node.name != self.node,
            Event::DeleteNode(name) => *name != self.node,
            _ => false,
        };
        let nodes: Vec<Event> = policy.iter().filter(is_other_node).cloned().collect();
        if self.config.options.foreign != ForeignKinds::Skip {
            policy.extend(services.iter().cloned());
        }
        services.extend(nodes);
        (policy, services)
    }

    /// Applies changes of Services, with this node's object and its additional addresses.
    pub(super) fn follow_services(&mut self, mut events: Vec<Event>, own: &Node, more: BTreeSet<IpAddr>) {
        let Some(adapter) = &mut self.services else { return };
        let is_known = *own != nameless(&self.node);
        events.push(if is_known {
            Event::Apply(Object::Node(own.clone()))
        } else {
            Event::DeleteNode(self.node.clone())
        });
        adapter.apply(events);
        adapter.set_more_addresses(more);
        adapter.listed();
    }

    /// Subscribes to the node's health and its Services' health checks, for load balancers. `None` if Services are off.
    pub(crate) fn health(&self) -> Option<watch::Receiver<NodeHealth>> {
        self.services.as_ref().map(|_| self.health.subscribe())
    }

    /// Passes the host ports of the node's pods to the adapter. The addresses are those in the tables: a pod that the plugin has attached
    /// has them before its object does.
    pub(super) fn follow_host_ports(&mut self) {
        let Some(adapter) = &mut self.services else { return };
        let cache = self.pipeline.cache();
        let pods = self.tables.interfaces.iter().filter_map(|interface| match &interface.attachment {
            Attachment::Pod(name) => Some((&**cache.pod(cache.pod_key(name)?)?, &*interface.addresses)),
            _ => None,
        });
        adapter.set_host_ports(pods);
    }

    /// Stores the counts of Services for metrics and status.
    pub(super) fn count_services(&self) {
        let counts = self.services.as_ref().map(Adapter::counts);
        *self.counts.services.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}
