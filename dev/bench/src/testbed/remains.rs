//! Cleans up after an interruption: namespaces, processes, folders.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::folder::remove_folder;
use super::net::remove_namespaces;

/// Objects that an interrupted benchmark must remove.
pub(crate) struct Remains {
    pub(crate) namespaces: BTreeSet<String>,
    pub(crate) processes: BTreeSet<u32>,
    pub(crate) folders: BTreeSet<PathBuf>,
}

static REMAINS: Mutex<Remains> =
    Mutex::new(Remains { namespaces: BTreeSet::new(), processes: BTreeSet::new(), folders: BTreeSet::new() });

/// Returns the objects to remove, locked. Hold the lock while an object is created, so that an interruption misses nothing.
pub(crate) fn remains() -> MutexGuard<'static, Remains> {
    REMAINS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time for programs to end after an interruption.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Installs a handler for SIGINT and SIGTERM: it ends the benchmark's processes, removes its namespaces and folders, and exits with 130.
///
/// # Errors
/// If the handler cannot be installed.
pub(crate) fn clean_up_on_signals() -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            // Stays locked to the end: nothing may be created meanwhile.
            let remains = remains();
            // SIGTERM first, which `timeout` forwards to its child.
            for signal in [Signal::TERM, Signal::KILL] {
                remains.processes.iter().for_each(|&id| kill(id, signal));
                std::thread::sleep(LAST_WORDS);
            }
            remove_namespaces(remains.namespaces.iter());
            remains.folders.iter().for_each(|folder| remove_folder(folder));
            std::process::exit(130);
        }
    });
    Ok(())
}

/// Sends a signal to a process, if it still exists.
pub(crate) fn kill(id: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        // The process may have ended.
        let _ = kill_process(pid, signal);
    }
}

/// Returns a name unique to this run, since several may run in parallel.
pub(crate) fn prefix() -> String {
    format!("bhb{}-", std::process::id())
}
