//! Workers whose sessions outlive a process, or a fault.

use std::sync::Arc;

use ahash::RandomState;

use super::{Affinity, Pending, Worker, WorkerConfig};
use crate::session::{Budget, SessionMemoryError};
use crate::{SessionStore, SessionStoreError};

impl Worker {
    /// Workers like those of [`Worker::team`], with sessions in files, which go on with those that an earlier process has left there; `now` is the time in nanoseconds
    /// since 1970. Each worker gets what is its own by the affinity.
    ///
    /// # Errors
    /// When the files cannot be written, or when there is no address space.
    pub fn team_in(
        store: &mut SessionStore,
        config: WorkerConfig,
        workers: usize,
        affinity: &Affinity,
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
        if let Some(worker) = team.first_mut() {
            worker.counters.clients.remembered = store.adoption().clients;
        }
        let mut stored = store.take();
        let found = stored.len();
        stored.retain(|stored| team.first().is_some_and(|worker| !worker.sessions.is_over(stored, now)));
        // Those that were used last, if there is not room for all.
        let skipped = stored.len().saturating_sub(config.sessions.capacity);
        let adopted = stored[skipped..].iter().filter(|stored| {
            let owner = affinity.worker_of_session(&stored.key(), workers);
            team[owner].sessions.adopt(stored, now)
        });
        let adopted = adopted.count();
        store.adoption_mut().adopted = adopted as u64;
        store.adoption_mut().left_out += (found - adopted) as u64;
        store.commit()?;
        Ok(team)
    }

    /// Goes on after a fault in the middle of a burst, with the same sessions: the tables in force are asked about each anew.
    /// Fragments are forgotten.
    ///
    /// # Errors
    /// When there is no memory.
    pub(crate) fn restart(&mut self) -> Result<(), SessionMemoryError> {
        self.sessions.rebuild(self.now.time)?;
        self.fragments.clear();
        self.pending = Pending::new();
        self.audits.clear();
        Ok(())
    }
}
