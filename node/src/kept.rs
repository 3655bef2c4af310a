//! Adopts the sessions of the previous process and logs the result.

use bulkhead_dataplane::{Adoption, SessionStore};

use super::config::Config;
use super::log;

/// Opens the folder of stored sessions. `None` if the configuration sets none.
pub(super) fn open(config: &Config) -> anyhow::Result<Option<SessionStore>> {
    Ok(config.sessions.folder.as_deref().map(SessionStore::open).transpose()?)
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
