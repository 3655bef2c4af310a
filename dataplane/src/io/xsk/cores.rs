//! CPU affinity of threads.

use std::mem::size_of;

/// Bits of a `cpu_set_t`.
const MOST: usize = libc::CPU_SETSIZE as usize;

/// Returns the cores that the calling thread may run on, in ascending order. Empty if the kernel supports more than 1024 cores.
pub fn usable() -> Vec<usize> {
    // SAFETY: a set of cores is plain bits, for which all zeros are the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the given size to the set, which lives for the call. 0 is the calling thread.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: each number is below the number of the set's bits.
    (0..MOST).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
}

/// Pins the calling thread to a core. Returns false, and changes nothing, if the core is not [`usable`].
pub fn pin(core: usize) -> bool {
    // The kernel itself would allow cores outside of an inherited affinity (`taskset`).
    if !usable().contains(&core) {
        return false;
    }
    // SAFETY: a set of cores is plain bits, for which all zeros are the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number is one of `usable`, so below the number of the set's bits.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the kernel reads the given size of the set, which lives for the call. 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_bound_to_a_core_that_it_may_run_on_and_no_other() {
        // A separate thread, so that other threads keep their cores.
        let bound = std::thread::spawn(|| {
            let before = usable();
            let last = *before.last().unwrap();
            assert!(!pin(MOST) && !pin(usize::MAX) && usable() == before);
            assert!(pin(last) && usable() == [last]);
            assert!(!before.iter().any(|&other| other != last && pin(other)), "it may no longer run there");
        });
        bound.join().unwrap();
    }
}
