//! Creates workers: a single one, several that share a session budget, or several with adopted sessions.

#[cfg(target_os = "linux")]
mod lasting;

use std::collections::VecDeque;
use std::sync::Arc;

use ahash::RandomState;

use super::column::Columns;
use super::names::Learning;
use super::pending::Pending;
use super::{Affinity, Team, Worker, WorkerConfig};
use crate::fragment::FragmentTable;
use crate::service::{ClientAffinity, Steering};
use crate::session::{Budget, Moment, SessionMemoryError, SessionTable, TableFile};
use crate::{BURST, Counters};

impl Worker {
    /// Creates a worker without sessions. Its hashes are keyed at random.
    ///
    /// # Panics
    /// If there is no address space for the sessions. [`Worker::try_new`] returns an error instead.
    pub fn new(config: WorkerConfig) -> Self {
        Self::try_new(config).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Creates a worker without sessions. Its hashes are keyed at random.
    ///
    /// # Errors
    /// If there is not enough address space for the sessions.
    pub fn try_new(config: WorkerConfig) -> Result<Self, SessionMemoryError> {
        let shared = (&Arc::new(Budget::new(&config.sessions, 1)), &Arc::new(ClientAffinity::new()));
        Self::with_hasher(config, shared, &RandomState::new(), None)
    }

    /// Creates workers that share the session capacity and its shares. Their hashes are keyed at random. The affinity selects each packet's
    /// worker.
    ///
    /// # Errors
    /// If there is not enough address space for the sessions.
    pub fn team(config: WorkerConfig, workers: usize, affinity: &Affinity) -> Result<Vec<Self>, SessionMemoryError> {
        let (budget, clients) = (Arc::new(Budget::new(&config.sessions, workers)), Arc::new(ClientAffinity::new()));
        let make = |_| Self::with_hasher(config, (&budget, &clients), &RandomState::new(), None);
        let team = (0..workers).map(make).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::acquainted(team, &budget, affinity))
    }

    /// Connects the workers, so that each finds the translated sessions of the others and the names that they have learned.
    fn acquainted(mut team: Vec<Self>, budget: &Budget, affinity: &Affinity) -> Vec<Self> {
        let workers = team.len();
        if let [first, others @ ..] = &mut team[..] {
            others.iter_mut().for_each(|worker| worker.share_names(Arc::clone(first.learned())));
        }
        if workers > 1 {
            let steering = Arc::new(Steering::new(budget.slots()));
            for (id, worker) in team.iter_mut().enumerate() {
                worker.sessions.tell(Arc::clone(&steering), id);
                worker.team = Some(Team { affinity: affinity.clone(), id, workers });
            }
        }
        team
    }

    /// Creates a worker whose hashes are the same in every run.
    #[cfg(test)]
    pub(crate) fn with_fixed_seed(config: WorkerConfig) -> Self {
        let shared = (&Arc::new(Budget::new(&config.sessions, 1)), &Arc::new(ClientAffinity::new()));
        Self::with_hasher(config, shared, &RandomState::with_seeds(1, 2, 3, 4), None).expect("tests have room")
    }

    fn with_hasher(
        config: WorkerConfig,
        (budget, clients): (&Arc<Budget>, &Arc<ClientAffinity>),
        hasher: &RandomState,
        file: Option<TableFile>,
    ) -> Result<Self, SessionMemoryError> {
        Ok(Self {
            tcp_pickup: config.sessions.tcp_pickup,
            sessions: SessionTable::new(config.sessions, Arc::clone(budget), hasher, file)?,
            fragments: FragmentTable::new(config.fragments, hasher.clone()),
            counters: Counters::default(),
            now: Moment::default(),
            generation: None,
            epoch: 0,
            ports: Vec::new(),
            columns: Columns::default(),
            services: 0,
            review_from: None,
            clients: Arc::clone(clients),
            team: None,
            frames: Vec::with_capacity(BURST),
            pending: Pending::new(),
            learning: Learning::default(),
            audits: Vec::with_capacity(BURST),
            audit_tap: None,
            exhausted: None,
            survivors: VecDeque::new(),
        })
    }
}
