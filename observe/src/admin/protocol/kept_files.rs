//! The files of a running vswitch, for commands that read them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Files of a running vswitch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeptFiles {
    /// Name of the node.
    pub node: String,
    /// Path of the configuration.
    pub configuration: PathBuf,
    /// Path of the flight recorder's journal, flushed before the answer. `None` if disabled.
    pub journal: Option<PathBuf>,
}
