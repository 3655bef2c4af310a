//! Which files a vswitch has, for commands that read them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Files of a running vswitch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeptFiles {
    /// The node.
    pub node: String,
    /// Its configuration.
    pub configuration: PathBuf,
    /// The flight recorder's journal, with all that was told to it until now; none where it is off.
    pub journal: Option<PathBuf>,
}
