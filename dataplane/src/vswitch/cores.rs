//! The cores that threads run on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The numbers of the cores that the calling thread may run on, in ascending order. Empty if the kernel numbers more than 1024.
pub fn usable() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// Binds the calling thread to a core. Returns false, and changes nothing, if the thread may not run there.
pub fn pin(core: usize) -> bool {
    // The kernel lets a thread leave the cores that it was started with (`taskset`).
    if !usable().contains(&core) {
        return false;
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_bound_to_a_core_that_it_may_run_on_and_no_other() {
        // A thread of its own: others keep their cores.
        let bound = std::thread::spawn(|| {
            let before = usable();
            let last = *before.last().unwrap();
            assert!(!pin(CpuSet::MAX_CPU) && !pin(usize::MAX) && usable() == before);
            assert!(pin(last) && usable() == [last]);
            assert!(!before.iter().any(|&other| other != last && pin(other)), "it may no longer run there");
        });
        bound.join().unwrap();
    }
}
