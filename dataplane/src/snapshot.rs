//! The snapshot: everything that the control plane tells the workers, swapped in one step.
//!
//! This is the one place where control and dataplane meet. A worker reads it once per burst, so a packet, and even a
//! whole burst, sees exactly one generation. How it is swapped, and who frees the old one: [`crate::swap`].

use std::cell::OnceCell;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use bulkhead_classifier::identity::Difference;
use bulkhead_classifier::{OriginId, Tables};

use crate::address_map::AddressMap;
use crate::masquerade::Masquerade;
use crate::{PortConfig, PortId, PortKind, Routes, Services, TableId, swap};

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

/// A publish that would go back in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("generation {offered} was published after generation {current}; each publish needs a higher number")]
pub struct PublishError {
    /// The generation in use.
    pub current: u64,
    /// The generation that was refused.
    pub offered: u64,
}

/// The control plane's end: swaps snapshots without a lock in any worker's way, and frees the old ones.
///
/// To be kept until the workers have ended: what they still hold when the last clone of it is dropped, they free.
#[derive(Clone, Debug)]
pub struct Publisher {
    /// Publishers exclude each other, so that the highest generation stays; readers never take it.
    swap: Arc<Mutex<swap::Publisher<Snapshot>>>,
}

impl Publisher {
    /// Starts with this snapshot.
    pub fn new(first: Snapshot) -> Self {
        Self { swap: Arc::new(Mutex::new(swap::Publisher::new(first))) }
    }

    /// Makes the snapshot the current one, whole and at once: every [`Reader::load`] that begins after this returns it or
    /// a later one. Frees old snapshots as [`Publisher::collect`] does.
    ///
    /// # Errors
    /// [`PublishError`] when its generation is not higher than the current one, nor the same with a higher epoch of Services.
    pub fn publish(&self, next: Snapshot) -> Result<(), PublishError> {
        let mut swap = self.swap();
        let now = swap.current();
        let is_later =
            |next: &Snapshot| (next.generation, next.services_epoch()) > (now.generation, now.services_epoch());
        if !is_later(&next) {
            return Err(PublishError { current: now.generation, offered: next.generation });
        }
        swap.publish(next);
        Ok(())
    }

    /// Frees the old snapshots that nobody holds any more, and returns how many are still held: at most one per
    /// [`Reader`], whose next load lets go of it, besides what [`Publisher::current`] gave out. To be called now and then,
    /// as a snapshot that was held at the time of a publish waits for the next one otherwise.
    pub fn collect(&self) -> usize {
        self.swap().collect()
    }

    /// The snapshot in use.
    pub fn current(&self) -> Arc<Snapshot> {
        self.swap().current()
    }

    /// A worker's end.
    pub fn reader(&self) -> Reader {
        Reader { swap: self.swap().reader() }
    }

    fn swap(&self) -> MutexGuard<'_, swap::Publisher<Snapshot>> {
        // Whoever panicked with it has published or has not; nothing is half done.
        self.swap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's end: one atomic read per burst, no reference count touched while nothing changes, and nothing freed.
#[derive(Clone, Debug)]
pub struct Reader {
    swap: swap::Reader<Snapshot>,
}

impl Reader {
    /// The current snapshot. To be called once per burst: what it returns is what the whole burst is judged by.
    #[inline]
    pub fn load(&mut self) -> &Snapshot {
        self.swap.load()
    }
}

#[cfg(test)]
mod tests;
