//! The snapshot: all state that the control plane gives to the workers, replaced atomically.
//!
//! It is the only interface between control plane and dataplane. A worker loads it once per burst, so all packets of a burst are judged by
//! one generation. [`crate::swap`] replaces and frees snapshots.

mod publisher;
mod successor;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::RandomState;
use bulkhead_classifier::{OriginId, Tables, Verdict};

use crate::address_map::AddressMap;
use crate::masquerade::Masquerade;
use crate::names::Names;
use crate::outcome::{Decider, Decision};
use crate::route::Hop;
use crate::service::Node;
use crate::{PortConfig, PortId, PortKind, Routes, Services, TableId};

pub use publisher::{PublishError, Publisher, Reader};

/// Ports, tables and routes of one generation. Immutable, so that its checks stay valid.
#[derive(Clone, Debug)]
pub struct Snapshot {
    generation: u64,
    ports: Vec<PortConfig>,
    tables: Vec<Arc<Tables>>,
    routes: Routes,
    /// By port id: the generation of the last change that affects packets from or to the port.
    epochs: Vec<u64>,
    /// The pod or host port that owns each address.
    owners: AddressMap,
    host: Option<PortId>,
    uplink: Option<PortId>,
    /// Origins of rules whose denials are reported to the sender.
    refusing: HashSet<OriginId, RandomState>,
    /// Whether senders to addresses that no pod has are notified.
    tells_unreachable: bool,
    /// Services that the vswitch translates. `None` if another proxy translates them.
    services: Option<Arc<Services>>,
    /// How pods' connections to external networks get the node's address. `None` without masquerading.
    masquerade: Option<Arc<Masquerade>>,
    /// The UDP port of the tunnel between nodes, to which pods may not send. `None` without a tunnel.
    tunnel_port: Option<u16>,
    /// The ports with rules that name domains, and the DNS servers from which they learn. `None` if no rule names domains.
    names: Option<Arc<Names>>,
    /// Whether any port has tables with rules that name domains.
    has_named_ports: bool,
}

/// The reason why a snapshot was rejected. The current one stays in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// Too many ports for 16-bit port ids.
    #[error("the snapshot has {ports} ports; the maximum is 65535")]
    TooManyPorts {
        /// Number of ports.
        ports: usize,
    },
    /// Two ports have the same name.
    #[error("two ports have the name {name:?}; every port needs a name of its own")]
    DuplicateName {
        /// The name that both ports have.
        name: Arc<str>,
    },
    /// Two pods, or a pod and the node, claim the same address.
    #[error("ports {first:?} and {second:?} both claim {address}; leave out the one that no longer runs")]
    DuplicateAddress {
        /// The address that both ports claim.
        address: IpAddr,
        /// The first port's name.
        first: Arc<str>,
        /// The second port's name.
        second: Arc<str>,
    },
    /// Two ports of a kind that a node has only once.
    #[error("ports {first:?} and {second:?} are both of kind {kind:?}; a node has one of them")]
    DuplicateKind {
        /// The kind that both ports have.
        kind: PortKind,
        /// The first port's name.
        first: Arc<str>,
        /// The second port's name.
        second: Arc<str>,
    },
    /// A port names a table that is not in the snapshot.
    #[error("port {port:?} names table {table:?}, but the snapshot has {tables} tables")]
    UnknownTable {
        /// The port's name.
        port: Arc<str>,
        /// The table that it names.
        table: TableId,
        /// Number of tables in the snapshot.
        tables: usize,
    },
    /// A route leads to a port that is not in the snapshot.
    #[error("a route leads to port {port:?}, but the snapshot has {ports} ports")]
    UnknownPort {
        /// The port of the route.
        port: PortId,
        /// Number of ports in the snapshot.
        ports: usize,
    },
}

impl Snapshot {
    /// Checks that ports, tables and routes are consistent and prepares the lookups.
    ///
    /// # Errors
    /// [`SnapshotError`] if they are inconsistent.
    pub fn new(
        generation: u64,
        ports: Vec<PortConfig>,
        tables: Vec<Arc<Tables>>,
        routes: Routes,
    ) -> Result<Self, SnapshotError> {
        // The last id is reserved for "no port", which replays use.
        if ports.len() > usize::from(u16::MAX) {
            return Err(SnapshotError::TooManyPorts { ports: ports.len() });
        }
        let epochs = vec![generation; ports.len()];
        let mut snapshot = Self {
            generation,
            ports,
            tables,
            routes,
            epochs,
            owners: AddressMap::default(),
            host: None,
            uplink: None,
            refusing: HashSet::default(),
            tells_unreachable: false,
            services: None,
            masquerade: None,
            tunnel_port: None,
            names: None,
            has_named_ports: false,
        };
        snapshot.has_named_ports = snapshot.ports.iter().any(PortConfig::is_named);
        snapshot.check_references()?;
        snapshot.find_owners()?;
        snapshot.host = snapshot.only(PortKind::Host)?;
        snapshot.uplink = snapshot.only(PortKind::Uplink)?;
        Ok(snapshot)
    }

    /// Rejects instead of silently dropping packets denied by rules of these origins: a sender on this node receives a TCP reset or an ICMP
    /// error. Verdicts do not change.
    #[must_use]
    pub fn refusing(mut self, origins: impl IntoIterator<Item = OriginId>) -> Self {
        self.refusing.extend(origins);
        self
    }

    /// Sets whether senders to addresses that no pod has ([`DropReason::NoSuchPod`](crate::DropReason::NoSuchPod)) receive a TCP reset or an
    /// ICMP error, wherever they are, and peers of sessions whose pod is gone likewise. Verdicts do not change.
    #[must_use]
    pub const fn telling_unreachable(mut self, tells: bool) -> Self {
        self.tells_unreachable = tells;
        self
    }

    /// Whether senders to addresses that no pod has are notified.
    pub const fn tells_unreachable(&self) -> bool {
        self.tells_unreachable
    }

    /// Whether the port's interface no longer exists.
    pub(crate) fn is_gone(&self, port: PortId) -> bool {
        self.port(port).is_some_and(|port| port.is_gone)
    }

    /// Whether no host has this address of the node: its port is gone, or no port has it and its route says so.
    pub fn is_unreachable(&self, address: IpAddr) -> bool {
        match self.owner(address) {
            Some(owner) => self.is_gone(owner),
            None => self.routes.find(address).is_some_and(Hop::is_unreachable),
        }
    }

    /// Sets the Services. The snapshot may keep the generation in force if the Services have a higher [epoch](Services::epoch) and nothing
    /// else differs. Then sessions are not judged again.
    #[must_use]
    pub fn with_services(mut self, services: Option<Arc<Services>>) -> Self {
        self.services = services;
        self
    }

    /// Returns the Services. `None` if another proxy translates them.
    pub fn services(&self) -> Option<&Services> {
        self.services.as_deref()
    }

    /// Sets how pods' connections to external networks are masqueraded.
    #[must_use]
    pub fn with_masquerade(mut self, masquerade: Option<Arc<Masquerade>>) -> Self {
        self.masquerade = masquerade;
        self
    }

    /// Returns the masquerading configuration. `None` if pods keep their addresses.
    pub fn masquerade(&self) -> Option<&Masquerade> {
        self.masquerade.as_deref()
    }

    /// Sets the UDP port of the tunnel between nodes, to which pods may not send over the host port or the uplink. `None` without a tunnel.
    #[must_use]
    pub const fn with_tunnel_port(mut self, port: Option<u16>) -> Self {
        self.tunnel_port = port;
        self
    }

    /// Returns the UDP port of the tunnel between nodes. `None` without a tunnel.
    pub const fn tunnel_port(&self) -> Option<u16> {
        self.tunnel_port
    }

    /// Sets the ports with rules that name domains, and the DNS servers from which they learn. `None` if no rule names domains.
    #[must_use]
    pub fn with_names(mut self, names: Option<Arc<Names>>) -> Self {
        self.names = names;
        self
    }

    /// Returns the ports with rules that name domains, and the DNS servers from which they learn. `None` if no rule names domains.
    pub fn names(&self) -> Option<&Names> {
        self.names.as_deref()
    }

    /// Whether denials by rules of this origin are reported to the sender.
    pub fn refuses(&self, origin: OriginId) -> bool {
        self.refusing.contains(&origin)
    }

    /// Whether any denials are reported to the sender.
    pub fn refuses_any(&self) -> bool {
        !self.refusing.is_empty()
    }

    /// Whether any port [is named](PortConfig::is_named).
    #[inline]
    pub(crate) const fn has_named_ports(&self) -> bool {
        self.has_named_ports
    }

    /// Returns generation 0 without ports, which drops everything. Workers begin with it.
    pub fn empty() -> Self {
        Self::new(0, Vec::new(), Vec::new(), Routes::default()).expect("nothing in it can contradict anything")
    }

    /// Returns the generation. Each publish has a higher one.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the ports, indexed by [`PortId`].
    pub fn ports(&self) -> &[PortConfig] {
        &self.ports
    }

    /// Returns the tables, indexed by [`TableId`].
    pub fn tables(&self) -> &[Arc<Tables>] {
        &self.tables
    }

    /// Returns the routing table.
    pub const fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Returns the port, or `None` for an unknown id.
    pub fn port(&self, id: PortId) -> Option<&PortConfig> {
        self.ports.get(id.index())
    }

    /// Returns the table, or `None` for an unknown id.
    pub fn table(&self, id: TableId) -> Option<&Tables> {
        self.tables.get(id.index()).map(Arc::as_ref)
    }

    /// Returns a table's verdict with the deciding rule and its origin.
    pub(crate) fn decision(&self, table: TableId, verdict: Verdict) -> Decision {
        let origin = self.table(table).and_then(|tables| tables.deciding_rule(verdict)).map(|rule| rule.origin);
        let rule = verdict.rule().and_then(|rule| u32::try_from(rule).ok());
        Decision { by: Some(Decider::Table(table)), rule, origin }
    }

    /// Returns the node's port, addresses and routes, as the Services need them.
    pub(crate) fn node(&self) -> Node<'_> {
        let addresses = self.host.and_then(|host| self.port(host)).map_or(&[][..], |host| &host.addresses);
        let shared_uplink = self.shared_uplink();
        Node { host: self.host, shared_uplink, addresses, owners: &self.owners, routes: &self.routes }
    }

    /// Finds a port by name. Walks all ports, so use it only at start-up and for captures.
    pub fn port_named(&self, name: &str) -> Option<PortId> {
        self.ids().find(|id| &*self.ports[id.index()].name == name)
    }

    /// Returns the pod or host port that owns the address. `None` if no port owns it.
    pub fn owner(&self, address: IpAddr) -> Option<PortId> {
        self.owners.get(address)
    }

    /// Returns the port of the node itself. `None` if there is none.
    pub const fn host(&self) -> Option<PortId> {
        self.host
    }

    /// Returns the port towards other nodes and external networks. `None` if there is none.
    pub const fn uplink(&self) -> Option<PortId> {
        self.uplink
    }

    /// Returns the uplink if it shares the host port's interface ([`PortConfig::shares_host`]). `None` otherwise, and without an uplink.
    pub fn shared_uplink(&self) -> Option<PortId> {
        self.uplink.filter(|&uplink| self.port(uplink).is_some_and(|port| port.shares_host))
    }

    /// Returns the generation of the last change that affects packets from or to the port: its addresses, link, table, or a route through
    /// it. 0 for an unknown port. Decisions about packets between two ports stay valid while both epochs are unchanged. All ports share
    /// tables by identity, so there only rules about the port's own addresses count.
    pub fn epoch(&self, id: PortId) -> u64 {
        self.epochs.get(id.index()).copied().unwrap_or_default()
    }

    fn services_epoch(&self) -> u64 {
        self.services.as_ref().map_or(0, |services| services.epoch())
    }

    /// Returns all port ids, in order.
    pub fn ids(&self) -> impl Iterator<Item = PortId> + use<> {
        (0..self.ports.len()).map(|at| PortId(u16::try_from(at).expect("checked in Snapshot::new")))
    }

    fn check_references(&self) -> Result<(), SnapshotError> {
        let mut names = HashSet::new();
        for port in &self.ports {
            if !names.insert(&port.name) {
                return Err(SnapshotError::DuplicateName { name: port.name.clone() });
            }
            let tables =
                [port.egress, port.ingress, port.audit, port.hairpin_table, port.named_table, port.named_audit];
            let mut bound = tables.into_iter().flatten();
            if let Some(table) = bound.find(|table| table.index() >= self.tables.len()) {
                let tables = self.tables.len();
                return Err(SnapshotError::UnknownTable { port: port.name.clone(), table, tables });
            }
        }
        match self.routes.ports().find(|port| port.index() >= self.ports.len()) {
            Some(port) => Err(SnapshotError::UnknownPort { port, ports: self.ports.len() }),
            None => Ok(()),
        }
    }

    fn find_owners(&mut self) -> Result<(), SnapshotError> {
        for id in self.ids() {
            let port = &self.ports[id.index()];
            if port.kind == PortKind::Uplink {
                continue;
            }
            for &address in &port.addresses {
                if let Some(other) = self.owners.insert(address, id).filter(|&other| other != id) {
                    let first = self.ports[other.index()].name.clone();
                    return Err(SnapshotError::DuplicateAddress { address, first, second: port.name.clone() });
                }
            }
        }
        Ok(())
    }

    fn only(&self, kind: PortKind) -> Result<Option<PortId>, SnapshotError> {
        let mut found = self.ids().filter(|id| self.ports[id.index()].kind == kind);
        let first = found.next();
        match (first, found.next()) {
            (Some(first), Some(second)) => Err(SnapshotError::DuplicateKind {
                kind,
                first: self.ports[first.index()].name.clone(),
                second: self.ports[second.index()].name.clone(),
            }),
            _ => Ok(first),
        }
    }
}

#[cfg(test)]
mod tests;
