//! The snapshot: everything that the control plane tells the workers, swapped in one step.
//!
//! This is the one place where control and dataplane meet. A worker reads it once per burst, so a packet, and even a
//! whole burst, sees exactly one generation. How it is swapped, and who frees the old one: [`crate::swap`].

mod publisher;
mod successor;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::RandomState;
use bulkhead_classifier::{OriginId, Tables, Verdict};

use crate::address_map::AddressMap;
use crate::masquerade::Masquerade;
use crate::outcome::Decision;
use crate::service::Node;
use crate::{PortConfig, PortId, PortKind, Routes, Services, TableId};

pub use publisher::{PublishError, Publisher, Reader};

/// Ports, tables and routes of one generation. Immutable, so that what was checked stays true.
#[derive(Clone, Debug)]
pub struct Snapshot {
    generation: u64,
    ports: Vec<PortConfig>,
    tables: Vec<Arc<Tables>>,
    routes: Routes,
    /// By port: the generation in which something last changed that its packets depend on.
    epochs: Vec<u64>,
    /// Which pod or host port owns an address.
    owners: AddressMap,
    host: Option<PortId>,
    uplink: Option<PortId>,
    /// Origins of rules whose denials the senders are told of.
    refusing: HashSet<OriginId, RandomState>,
    /// None where Services are left to somebody else.
    services: Option<Arc<Services>>,
    /// None where pods' addresses stay.
    masquerade: Option<Arc<Masquerade>>,
}

/// Why a snapshot was refused. The one in use stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// A port id would not fit.
    #[error("{ports} ports; a snapshot holds at most 65535")]
    TooManyPorts {
        /// How many there are.
        ports: usize,
    },
    /// Two ports have one name.
    #[error("two ports have the name {name:?}; every port needs a name of its own")]
    DuplicateName {
        /// The name.
        name: Arc<str>,
    },
    /// Two pods, or a pod and the node, claim one address.
    #[error("ports {first:?} and {second:?} both claim {address}; leave out the one that no longer runs")]
    DuplicateAddress {
        /// The address.
        address: IpAddr,
        /// The first port's name.
        first: Arc<str>,
        /// The second port's name.
        second: Arc<str>,
    },
    /// A second port of a kind that a node has once.
    #[error("ports {first:?} and {second:?} are both of kind {kind:?}; a node has one of them")]
    DuplicateKind {
        /// The kind.
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
        /// How many tables there are.
        tables: usize,
    },
    /// A route leads to a port that is not in the snapshot.
    #[error("a route leads to port {port:?}, but the snapshot has {ports} ports")]
    UnknownPort {
        /// The port that it names.
        port: PortId,
        /// How many ports there are.
        ports: usize,
    },
}

impl Snapshot {
    /// Checks the parts against each other and prepares the lookups.
    ///
    /// # Errors
    /// [`SnapshotError`] when the parts contradict each other.
    pub fn new(
        generation: u64,
        ports: Vec<PortConfig>,
        tables: Vec<Arc<Tables>>,
        routes: Routes,
    ) -> Result<Self, SnapshotError> {
        // The last id stays free for "no port", which replays use.
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
            services: None,
            masquerade: None,
        };
        snapshot.check_references()?;
        snapshot.find_owners()?;
        snapshot.host = snapshot.only(PortKind::Host)?;
        snapshot.uplink = snapshot.only(PortKind::Uplink)?;
        Ok(snapshot)
    }

    /// The same, but denials by rules of these origins are refused: the sender, if it is on this node, is told by a TCP
    /// reset or an ICMP error. No verdict changes. All other denials are silent.
    #[must_use]
    pub fn refusing(mut self, origins: impl IntoIterator<Item = OriginId>) -> Self {
        self.refusing.extend(origins);
        self
    }

    /// The same with these Services. It may have the generation of the one that is in force, if the Services have a higher
    /// [epoch](Services::epoch) and nothing else differs: then no session is judged again.
    #[must_use]
    pub fn with_services(mut self, services: Option<Arc<Services>>) -> Self {
        self.services = services;
        self
    }

    /// The Services; none where they are left to somebody else.
    pub fn services(&self) -> Option<&Services> {
        self.services.as_deref()
    }

    /// The same where pods' connections to the world leave with the node's address.
    #[must_use]
    pub fn with_masquerade(mut self, masquerade: Option<Arc<Masquerade>>) -> Self {
        self.masquerade = masquerade;
        self
    }

    /// How pods' connections to the world leave; none where their addresses stay.
    pub fn masquerade(&self) -> Option<&Masquerade> {
        self.masquerade.as_deref()
    }

    /// Whether denials by rules of this origin are refused.
    pub fn refuses(&self, origin: OriginId) -> bool {
        self.refusing.contains(&origin)
    }

    /// Whether any denial is refused.
    pub fn refuses_any(&self) -> bool {
        !self.refusing.is_empty()
    }

    /// Generation 0 without ports: what a worker has before the first publish. It drops everything.
    pub fn empty() -> Self {
        Self::new(0, Vec::new(), Vec::new(), Routes::default()).expect("nothing in it can contradict anything")
    }

    /// The number of this snapshot; each publish has a higher one.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// The ports; a [`PortId`] is a position in here.
    pub fn ports(&self) -> &[PortConfig] {
        &self.ports
    }

    /// The tables; a [`TableId`] is a position in here.
    pub fn tables(&self) -> &[Arc<Tables>] {
        &self.tables
    }

    /// The routes.
    pub const fn routes(&self) -> &Routes {
        &self.routes
    }

    /// The port with this id.
    pub fn port(&self, id: PortId) -> Option<&PortConfig> {
        self.ports.get(id.index())
    }

    /// The table with this id.
    pub fn table(&self, id: TableId) -> Option<&Tables> {
        self.tables.get(id.index()).map(Arc::as_ref)
    }

    /// Whose verdict of the table it is, for display.
    pub(crate) fn decision(&self, table: TableId, verdict: Verdict) -> Decision {
        let origin = self.table(table).and_then(|tables| tables.deciding_rule(verdict)).map(|rule| rule.origin);
        let rule = verdict.rule().and_then(|rule| u32::try_from(rule).ok());
        Decision { table: Some(table), rule, origin }
    }

    /// What Services must know of the node.
    pub(crate) fn node(&self) -> Node<'_> {
        let addresses = self.host.and_then(|host| self.port(host)).map_or(&[][..], |host| &host.addresses);
        Node { host: self.host, addresses, owners: &self.owners, routes: &self.routes }
    }

    /// The port with this name. Walks all ports: for start-up and captures, not for packets.
    pub fn port_named(&self, name: &str) -> Option<PortId> {
        self.ids().find(|id| &*self.ports[id.index()].name == name)
    }

    /// The pod or host port that has this address as its own.
    pub fn owner(&self, address: IpAddr) -> Option<PortId> {
        self.owners.get(address)
    }

    /// The node's own port.
    pub const fn host(&self) -> Option<PortId> {
        self.host
    }

    /// The port towards everything that is not on this node.
    pub const fn uplink(&self) -> Option<PortId> {
        self.uplink
    }

    /// The generation in which something last changed that packets from or to the port depend on: its addresses, its link,
    /// its table, or a route through it. Generation 0 for a port that the snapshot does not know. What was decided about
    /// packets between two ports stays right while both have the same epochs. Tables by identity are one for all ports: there it is what
    /// they say of the port's own addresses.
    pub fn epoch(&self, id: PortId) -> u64 {
        self.epochs.get(id.index()).copied().unwrap_or_default()
    }

    fn services_epoch(&self) -> u64 {
        self.services.as_ref().map_or(0, |services| services.epoch())
    }

    /// All port ids in order.
    pub fn ids(&self) -> impl Iterator<Item = PortId> + use<> {
        (0..self.ports.len()).map(|at| PortId(u16::try_from(at).expect("checked in Snapshot::new")))
    }

    fn check_references(&self) -> Result<(), SnapshotError> {
        let mut names = HashSet::new();
        for port in &self.ports {
            if !names.insert(&port.name) {
                return Err(SnapshotError::DuplicateName { name: port.name.clone() });
            }
            let mut bound = port.egress.into_iter().chain(port.ingress).chain(port.audit);
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
