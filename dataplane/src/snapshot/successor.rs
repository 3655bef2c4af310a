//! Which ports a snapshot leaves as they were in the one before: their sessions need not be judged again.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::Tables;
use bulkhead_classifier::identity::Difference;

use super::Snapshot;
use crate::{PortConfig, PortId, PortKind, TableId};

impl Snapshot {
    /// The same snapshot as the successor of another one: ports for which nothing has changed keep their epochs. To be called
    /// with the snapshot that is in force.
    ///
    /// A new host route below a prefix changes nothing for the port that the prefix leads to: its packets to that host
    /// went, and for a while go on, to where nobody has the address.
    #[must_use]
    pub fn after(mut self, previous: &Self) -> Self {
        if !self.routes.has_prefixes_of(&previous.routes) {
            return self;
        }
        let masquerades_alike = match (&previous.masquerade, &self.masquerade) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (old, new) => old.is_none() && new.is_none(),
        };
        let (alike, audited_alike) = (Alike::default(), Alike::default());
        let kept = |id: PortId| {
            let (old, new) = (previous.port(id)?, self.port(id)?);
            let addresses = &self.ports[id.index()].addresses;
            let table = |snapshot: &Self, id: Option<TableId>| snapshot.tables.get(id?.index()).cloned();
            let is_same_table = |alike: &Alike, old: Option<TableId>, new: Option<TableId>| match (
                table(previous, old),
                table(&self, new),
            ) {
                (Some(old), Some(new)) => alike.judge(&old, &new, addresses),
                (old, new) => old.is_none() && new.is_none(),
            };
            let has_same_tables = is_same_table(&alike, old.egress, new.egress)
                && is_same_table(&alike, old.ingress, new.ingress)
                && is_same_table(&audited_alike, old.audit, new.audit);
            let unbound = |port: &PortConfig| PortConfig { egress: None, ingress: None, audit: None, ..port.clone() };
            let is_same = unbound(old) == unbound(new);
            // What leaves with an address that the node has lost must not go on to, nor what left with a pod's to where pods are not
            // known any more.
            let leaves_alike = old.kind != PortKind::Uplink || masquerades_alike;
            (is_same && has_same_tables && leaves_alike).then(|| previous.epoch(id))
        };
        let mut epochs: Vec<u64> = self.ids().map(|id| kept(id).unwrap_or(self.generation)).collect();
        for port in previous.routes.hosts_lost(&self.routes) {
            if let Some(epoch) = epochs.get_mut(port.index()) {
                *epoch = self.generation;
            }
        }
        self.epochs = epochs;
        self
    }
}

/// Whether tables judge the packets of a port as others did. What differs between two versions of a node's identities is found once, for
/// all ports that have them.
#[derive(Default)]
struct Alike(OnceCell<(*const Tables, *const Tables, Difference)>);

impl Alike {
    fn judge(&self, old: &Arc<Tables>, new: &Arc<Tables>, addresses: &[IpAddr]) -> bool {
        if Arc::ptr_eq(old, new) {
            return true;
        }
        let (Some(before), Some(after)) = (old.identities(), new.identities()) else { return false };
        let places = (Arc::as_ptr(old), Arc::as_ptr(new));
        let (one, other, difference) = self.0.get_or_init(|| (places.0, places.1, Difference::between(before, after)));
        // Others than the first pair are taken as different: all ports of a node have the same identities.
        (*one, *other) == places && difference.leaves_alone(before, after, addresses)
    }
}
