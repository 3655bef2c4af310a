//! What is to be taken away when the benchmark is interrupted: namespaces, processes, folders.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::folder::remove_folder;
use super::net::remove_namespaces;

/// What an interrupted benchmark must take away.
pub(crate) struct Remains {
    pub(crate) namespaces: BTreeSet<String>,
    pub(crate) processes: BTreeSet<u32>,
    pub(crate) folders: BTreeSet<PathBuf>,
}

static REMAINS: Mutex<Remains> =
    Mutex::new(Remains { namespaces: BTreeSet::new(), processes: BTreeSet::new(), folders: BTreeSet::new() });

/// What there is now. Whoever makes more holds it meanwhile, so that an interruption misses nothing.
pub(crate) fn remains() -> MutexGuard<'static, Remains> {
    REMAINS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long programs may take to end when the benchmark is interrupted.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// From now on SIGINT and SIGTERM end the processes of the benchmark, remove its namespaces and folders, and end it with 130.
///
/// # Errors
/// When the signals cannot be caught.
pub(crate) fn clean_up_on_signals() -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            // Kept locked to the end: nothing new may be made meanwhile.
            let remains = remains();
            // First SIGTERM, which `timeout` hands on to what it runs.
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

/// Sends a process a signal, if it is still there.
pub(crate) fn kill(id: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        // It may have ended.
        let _ = kill_process(pid, signal);
    }
}

/// What makes the names of one run its own: several may run side by side.
pub(crate) fn prefix() -> String {
    format!("bhb{}-", std::process::id())
}
