//! Which running vswitch answers.

use std::path::PathBuf;

use super::Format;

/// The default path of a vswitch's admin socket; `admin.socket` of its configuration names another one.
pub const DEFAULT_SOCKET: &str = "/run/bulkhead/admin.sock";

/// Which running vswitch is asked, and the form of its answer.
#[derive(Debug, clap::Args)]
pub struct Admin {
    /// The vswitch's admin socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}
