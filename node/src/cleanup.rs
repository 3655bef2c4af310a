//! `bulkhead cleanup`: removes everything that a vswitch left in the kernel.

use std::process::ExitCode;

use bulkhead_dataplane::io::remove_tc_datapath;

use super::config::{Config, Pins, TRUNK};
use super::datapath::EarlierLimits;
use super::{host_port, log, nft, remote_nodes};
use crate::args::Cleanup;

/// Removes pinned links and maps, the trunk, the nftables table, and the host port's interfaces if the configuration creates them. Restores
/// the interfaces' limits that `big_tcp` changed, and removes the MTU for the CNI plugin. Returns exit code 0 even if it finds nothing.
///
/// # Errors
/// If a vswitch runs in this network namespace, the configuration is invalid, or the kernel refuses a removal.
pub fn cleanup(args: &Cleanup) -> anyhow::Result<ExitCode> {
    log::start(log::LogConfig::default());
    // The node's name does not matter here. A file for a whole cluster has none.
    let config = args.config.as_deref().map(|path| Config::read(path, Some("any"))).transpose()?;
    let pins = config.as_ref().map_or(Pins::Default, |config| config.pins.clone());
    // First, because it fails if a vswitch runs.
    let mut had = remove_tc_datapath(&TRUNK.map(str::to_owned), pins.path())?;
    had |= pins.path().and_then(EarlierLimits::below).is_some_and(|earlier| earlier.restore());
    had |= nft::cleanup()?;
    config.iter().for_each(remote_nodes::forget_mtu);
    had |= config.as_ref().map(remote_nodes::remove).transpose()?.unwrap_or_default();
    had |= config.as_ref().map(host_port::remove).transpose()?.unwrap_or_default();
    log::info(if had { "removed everything that a vswitch left in the kernel" } else { "found nothing to remove" });
    log::finish();
    Ok(ExitCode::SUCCESS)
}
