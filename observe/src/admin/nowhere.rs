//! The side that asks, where no vswitch can be asked because this is not Linux.

use std::path::Path;

use anyhow::bail;
use serde::de::DeserializeOwned;

use super::protocol::Request;

/// Asks nobody.
///
/// # Errors
/// Always.
pub fn ask<T: DeserializeOwned>(socket: &Path, _request: &Request) -> anyhow::Result<T> {
    bail!(
        "cannot query a vswitch at {}\n  help: vswitches run only on Linux; pass a state with --state instead",
        socket.display()
    )
}
