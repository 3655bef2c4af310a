//! Workers with sessions that outlive a process or a panic.

use std::sync::Arc;

use ahash::RandomState;

use super::super::exit;
use super::{Affinity, Pending, Worker, WorkerConfig};
use crate::session::{Budget, SessionMemoryError};
use crate::session::{NOWHERE, Stored};
use crate::{PortId, PortKind, SessionStore, SessionStoreError, Snapshot};

impl Worker {
    /// Creates workers like [`Worker::team`], with sessions in files, and adopts the sessions of an earlier process. The affinity assigns
    /// them to workers, and the snapshot their ports, so that they end with their pods. `now` is in nanoseconds since 1970.
    ///
    /// # Errors
    /// If the files cannot be written or there is not enough address space.
    pub fn team_in(
        store: &mut SessionStore,
        config: WorkerConfig,
        workers: usize,
        affinity: &Affinity,
        snapshot: &Snapshot,
        now: u64,
    ) -> Result<Vec<Self>, SessionStoreError> {
        let budget = Arc::new(Budget::new(&config.sessions, workers));
        let clients = Arc::new(store.create_clients(now)?);
        let make = |worker| {
            let file = store.create(worker, budget.slots())?;
            Ok(Self::with_hasher(config, (&budget, &clients), &RandomState::new(), Some(file))?)
        };
        let team = (0..workers).map(make).collect::<Result<Vec<_>, SessionStoreError>>()?;
        let mut team = Self::acquainted(team, &budget, affinity);
        let learned = team.first().map(|worker| Arc::clone(worker.learned())).unwrap_or_default();
        let names = Arc::new(store.create_names(&learned, now)?);
        team.iter_mut().for_each(|worker| worker.keep_names_in(Arc::clone(&names)));
        if let Some(worker) = team.first_mut() {
            worker.counters.clients.remembered = store.adoption().clients;
        }
        let kinds = || snapshot.ports().iter().map(|port| port.kind);
        team.iter_mut().for_each(|worker| worker.sessions.know_ports(kinds()));
        let mut stored = store.take();
        let found = stored.len();
        stored.retain(|stored| team.first().is_some_and(|worker| !worker.sessions.is_over(stored, now)));
        // Keeps the most recently used ones if there is not room for all.
        let skipped = stored.len().saturating_sub(config.sessions.capacity);
        let stored = &mut stored[skipped..];
        for stored in stored.iter_mut() {
            stored.name = stored.name.and_then(|id| names.intern(&learned, store.name(id)?, now));
        }
        let adopted = stored.iter().filter(|stored| {
            let owner = affinity.worker_of_session(&stored.key(), workers);
            team[owner].sessions.adopt(stored, ports(snapshot, stored), now)
        });
        let adopted = adopted.count();
        store.adoption_mut().adopted = adopted as u64;
        store.adoption_mut().left_out += (found - adopted) as u64;
        store.commit()?;
        Ok(team)
    }

    /// Restarts after a panic during a burst and keeps the sessions, which the tables in force must allow again. Fragments are forgotten.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(crate) fn restart(&mut self) -> Result<(), SessionMemoryError> {
        self.sessions.rebuild(self.now.time)?;
        self.fragments.clear();
        self.pending = Pending::new();
        self.audits.clear();
        Ok(())
    }
}

/// Returns the ports of a session's forward direction by its addresses. [`NOWHERE`] for a port that the snapshot does not tell: the session
/// then gets it with its first packet.
fn ports(snapshot: &Snapshot, stored: &Stored) -> (PortId, PortId) {
    let [source, destination] = stored.ends();
    let same_kind = || match stored.in_kind() {
        PortKind::Pod => None,
        PortKind::Uplink => snapshot.uplink(),
        PortKind::Host => snapshot.host(),
    };
    let in_port = snapshot.owner(source).or_else(same_kind);
    let out =
        in_port.map_or_else(|| snapshot.routes().lookup(destination), |port| exit::route(snapshot, port, destination));
    (in_port.unwrap_or(NOWHERE), out.unwrap_or(NOWHERE))
}
