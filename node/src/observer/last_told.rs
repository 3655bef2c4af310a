//! The last counters of each worker, reported while it does not answer.
//!
//! To Prometheus, a counter that falls to 0 is a restart: it would add the whole count again once the worker answers.

use std::sync::{Mutex, PoisonError};

use bulkhead_dataplane::vswitch::{VswitchCounters, WorkerCounters};

/// The last counters that each worker reported, by worker.
#[derive(Debug, Default)]
pub(super) struct LastTold(Mutex<Vec<WorkerCounters>>);

impl LastTold {
    /// Stores the counters of workers that have answered, and fills in the stored ones for those that have not. `has_answered` stays false.
    pub(super) fn fill(&self, counters: &mut VswitchCounters) {
        // A poisoned lock does no harm: entries are replaced as a whole.
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < counters.workers.len() {
            told.resize_with(counters.workers.len(), WorkerCounters::default);
        }
        for (last, now) in told.iter_mut().zip(&mut counters.workers) {
            let rounds = |worker: &WorkerCounters| worker.busy_rounds + worker.idle_rounds;
            if now.has_answered && rounds(now) >= rounds(last) {
                last.clone_from(now);
            } else {
                // Fewer rounds: another caller has stored a newer answer meanwhile.
                *now = WorkerCounters { has_answered: now.has_answered, ..last.clone() };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(received: u64) -> WorkerCounters {
        WorkerCounters { has_answered: true, received, busy_rounds: received, ..WorkerCounters::default() }
    }

    #[test]
    fn a_worker_that_does_not_answer_has_the_numbers_that_it_told_last() {
        let last_told = LastTold::default();
        let told = |workers: Vec<WorkerCounters>| {
            let mut counters = VswitchCounters { workers, ..VswitchCounters::default() };
            last_told.fill(&mut counters);
            counters.workers.iter().map(|worker| (worker.has_answered, worker.received)).collect::<Vec<_>>()
        };
        let silent = WorkerCounters::default;
        assert_eq!(told(vec![silent(), worker(7)]), [(false, 0), (true, 7)], "nothing is known of the first one yet");
        assert_eq!(told(vec![worker(5), silent()]), [(true, 5), (false, 7)]);
        assert_eq!(told(vec![silent(), silent()]), [(false, 5), (false, 7)]);
        // An answer with lower counters is older.
        assert_eq!(told(vec![worker(4), worker(9)]), [(true, 5), (true, 9)]);
        assert_eq!(told(vec![silent(), silent()]), [(false, 5), (false, 9)]);
        assert_eq!(told(Vec::new()), [], "the vswitch has been stopped");
        assert_eq!(told(vec![silent(), silent()]), [(false, 5), (false, 9)]);
    }
}
