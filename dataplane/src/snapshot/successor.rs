//! Decides which ports a new snapshot leaves unchanged. Sessions of unchanged ports are not judged again.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::identity::Difference;
use bulkhead_classifier::{AddressSet, Tables};

use super::Snapshot;
use crate::{Holder, PortConfig, PortId, PortKind, TableId};

impl Snapshot {
    /// Returns this snapshot as the successor of `previous`, the snapshot in force: unchanged ports keep their epochs.
    ///
    /// A new host route below a prefix does not change the port that the prefix leads to: packets to that host went to a port where no
    /// machine had the address.
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
                && is_same_table(&audited_alike, old.audit, new.audit)
                && is_same_table(&Alike::default(), old.hairpin_table, new.hairpin_table)
                && is_same_table(&Alike::default(), old.named_table, new.named_table)
                && is_same_table(&Alike::default(), old.named_audit, new.named_audit);
            let unbound = |port: &PortConfig| PortConfig {
                egress: None,
                ingress: None,
                audit: None,
                hairpin_table: None,
                named_table: None,
                named_audit: None,
                ..port.clone()
            };
            let is_same = unbound(old) == unbound(new) && previous.learning(id) == self.learning(id);
            // If the node lost an address, connections masqueraded with it must be judged again. If masquerading begins, so must
            // connections that left with a pod's address.
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

impl Snapshot {
    /// Returns the port's holder and the DNS servers that the holder trusts. `None` if the port has no rules that name domains. If they
    /// change, flows that the kernel forwards may be DNS that a worker must see.
    fn learning(&self, port: PortId) -> Option<(Holder, &AddressSet)> {
        let names = self.names()?;
        Some((names.holder(port)?, names.servers()))
    }
}

/// Compares the tables of ports between two snapshots. The difference between two versions of a node's identities is computed once for all
/// ports that share them.
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
        // Any other pair counts as different: all ports of a node share the same identities.
        (*one, *other) == places && difference.leaves_alone(before, after, addresses)
    }
}
