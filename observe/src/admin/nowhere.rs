//! Replacement of the admin socket's client on systems other than Linux.

use std::path::Path;

use anyhow::bail;
use serde::de::DeserializeOwned;

use super::protocol::Request;

/// Fails: vswitches run only on Linux.
///
/// # Errors
/// Always.
pub fn ask<T: DeserializeOwned>(socket: &Path, _request: &Request) -> anyhow::Result<T> {
    bail!(
        "cannot query a vswitch at {}\n  help: vswitches run only on Linux; pass a state with --state instead",
        socket.display()
    )
}
