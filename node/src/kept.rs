//! Adopts the sessions of the previous process and logs the result.

use std::time::Duration;

use bulkhead_dataplane::io::Absence;
use bulkhead_dataplane::vswitch::Vswitch;
use bulkhead_dataplane::{Adoption, SessionStore};

use super::config::Config;
use super::log;

/// Opens the folder of stored sessions. `None` if the configuration sets none. The sessions' flows went on in the kernel for `away` while
/// no process saw their packets.
pub(super) fn open(config: &Config, away: Duration) -> anyhow::Result<Option<SessionStore>> {
    let mut store = config.sessions.folder.as_deref().map(SessionStore::open).transpose()?;
    store.iter_mut().for_each(|store| store.pass_over(away));
    Ok(store)
}

/// Tells the workers what happened to their sessions during an absence, and logs it.
pub(super) fn catch_up(vswitch: &Vswitch, absence: &Absence) {
    vswitch.learn(&absence.ended);
    let (lasted, ended) = (humantime::format_duration(rounded(absence.lasted)), absence.ended.len());
    log::info(&format!(
        "no worker ran for {lasted}; the kernel forwarded established flows meanwhile, of which {ended} ended"
    ));
}

/// Rounds to milliseconds.
fn rounded(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Logs how many sessions of the previous process were adopted or dropped, and which files were refused.
pub(super) fn say(adoption: &Adoption) {
    for file in &adoption.refused {
        log::warn(&format!("a file of the previous process is not used: {}: {}", file.path.display(), file.reason));
    }
    if adoption.clients > 0 {
        log::info(&format!(
            "adopted the backends of {} clients of Services with session affinity; each keeps its backend while that backend serves",
            adoption.clients
        ));
    }
    if adoption.adopted + adoption.left_out > 0 {
        let Adoption { adopted, left_out, .. } = adoption;
        log::info(&format!(
            "adopted {adopted} sessions of the previous process ({left_out} dropped: expired or table full)"
        ));
    }
}
