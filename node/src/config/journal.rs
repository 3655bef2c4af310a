//! Settings of the journal.

use std::path::{Path, PathBuf};

use super::faults::{Faults, line};
use super::file;
use bulkhead_answers::output;

/// Default size in megabytes: about an hour of a busy node, months of a quiet one.
const DEFAULT: u32 = 64;
/// Minimum size in megabytes. Smaller segments could not hold a checkpoint of a small cluster.
const LEAST: u32 = 8;
/// Maximum size in megabytes. `why` reads the whole journal into memory.
const MOST: u32 = 1000;

/// Settings of the flight recorder's journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalConfig {
    /// The journal's path. `None` if off.
    pub path: Option<PathBuf>,
    /// The maximum size of the journal's file, in bytes.
    pub size: usize,
}

/// Checks the settings. `beside` is the sessions' folder, the journal's default folder.
pub(super) fn check(
    written: Option<&file::Journal>,
    node: &str,
    beside: Option<PathBuf>,
    folder: &Path,
    faults: &mut Faults<'_>,
) -> JournalConfig {
    let (named, size) = written.map_or((None, None), |written| (written.folder.as_ref(), written.megabytes.as_ref()));
    let megabytes = size.map_or(DEFAULT, |size| size.value);
    if let Some(size) = size.filter(|size| !(LEAST..=MOST).contains(&size.value)) {
        let help = format!("write {LEAST} to {MOST}, or folder: none for no journal");
        faults.add(line(size), "journal.megabytes", format!("{} megabytes", size.value), help);
    }
    let named = match named {
        None => beside,
        Some(named) => {
            if named.value.is_empty() {
                let help = "name a folder that only root may write to, or none for no journal";
                faults.add(line(named), "journal.folder", "is empty", help);
            }
            (named.value != "none").then(|| folder.join(&named.value))
        }
    };
    let path = named.map(|folder| folder.join(format!("journal-{}", output::file_name(node))));
    JournalConfig { path, size: megabytes.clamp(LEAST, MOST) as usize * 1_000_000 }
}
