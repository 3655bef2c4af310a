//! Arguments of the subcommands that query a running vswitch.

use std::path::PathBuf;

use super::Format;

/// Default path of a vswitch's admin socket. `admin.socket` in the configuration overrides it.
pub const DEFAULT_SOCKET: &str = "/run/bulkhead/admin.sock";

/// The vswitch to query and the output format.
#[derive(Debug, clap::Args)]
pub struct Admin {
    /// Admin socket of the vswitch
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Format of the answer on standard output
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}
