//! Counters of the state.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::judging::Judged;
use bulkhead_answers::services::Counts;
use bulkhead_observe::admin::Judging;

/// A copy of the state's counters at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct StateCounters {
    /// States that took effect since the process started, including the first one.
    pub applied: u64,
    /// States that were refused since the process started.
    pub refused: u64,
    /// Number of objects of the state in force that could not be parsed.
    pub faulty: u64,
    /// Number of addresses that several pods, or a pod and a node, claim in the state in force.
    pub contested_addresses: u64,
    /// Object kinds in the state in force that restrict traffic, but that Bulkhead does not enforce and the configuration does not ignore.
    pub unenforced_kinds: u64,
    /// Tables of the state in force that could not be compiled, as too large. The last table that fitted is in force, or all is denied.
    pub refused_tables: u64,
    /// Numbers of Services, their virtual addresses and backends. `None` if Services are off.
    pub services: Option<Counts>,
    #[serde(skip)]
    pub judged: Judged,
}

impl StateCounters {
    /// Returns the renderer that judges packets, and where. `None` before the policy pipeline is created at start.
    pub(crate) fn judging(&self) -> Option<Judging> {
        let Judged { renderer, place, is_automatic } = self.judged;
        let (renderer, place) = (renderer.to_owned(), place.to_owned());
        (!renderer.is_empty()).then_some(Judging { renderer, place, automatic: is_automatic })
    }
}

/// Counters that the policy thread updates and other threads read.
#[derive(Debug, Default)]
pub(crate) struct StateCounts {
    pub(super) applied: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) faulty: AtomicU64,
    pub(super) contested_addresses: AtomicU64,
    pub(super) unenforced_kinds: AtomicU64,
    pub(super) refused_tables: AtomicU64,
    pub(super) services: Mutex<Option<Counts>>,
    judged: Mutex<Judged>,
}

impl StateCounts {
    pub(crate) fn read(&self) -> StateCounters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StateCounters {
            applied: read(&self.applied),
            refused: read(&self.refused),
            faulty: read(&self.faulty),
            contested_addresses: read(&self.contested_addresses),
            unenforced_kinds: read(&self.unenforced_kinds),
            refused_tables: read(&self.refused_tables),
            services: *self.services.lock().unwrap_or_else(PoisonError::into_inner),
            judged: *self.judged.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Stores the renderer and place that judge packets now. Returns the previous ones.
    pub(super) fn judged(&self, now: Judged) -> Judged {
        std::mem::replace(&mut *self.judged.lock().unwrap_or_else(PoisonError::into_inner), now)
    }
}
