//! The last counters of each worker, reported while it does not answer.
//!
//! A counter that falls to 0 is a restart to whoever reads it: Prometheus would add all of it once more when the worker answers again.

use std::sync::{Mutex, PoisonError};

use bulkhead_dataplane::vswitch::{VswitchCounters, WorkerCounters};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LastTold(Mutex<Vec<WorkerCounters>>);

impl LastTold {
    /// Remembers what workers have told, and gives those that have not answered what they told last. They are still called silent.
    pub(super) fn fill(&self, counters: &mut VswitchCounters) {
        // Each is replaced as a whole.
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < counters.workers.len() {
            told.resize_with(counters.workers.len(), WorkerCounters::default);
        }
        for (last, now) in told.iter_mut().zip(&mut counters.workers) {
            let rounds = |worker: &WorkerCounters| worker.busy_rounds + worker.idle_rounds;
            if now.has_answered && rounds(now) >= rounds(last) {
                last.clone_from(now);
            } else {
                // An answer with fewer rounds is older than one that somebody else got meanwhile.
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
        // An answer that was under way for longer is older.
        assert_eq!(told(vec![worker(4), worker(9)]), [(true, 5), (true, 9)]);
        assert_eq!(told(vec![silent(), silent()]), [(false, 5), (false, 9)]);
        assert_eq!(told(Vec::new()), [], "the vswitch has been stopped");
        assert_eq!(told(vec![silent(), silent()]), [(false, 5), (false, 9)]);
    }
}
