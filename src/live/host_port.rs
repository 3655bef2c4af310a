//! The host port where the vswitch makes its interfaces itself (`create`): a veth pair, and the node's routes over it.
//!
//! The pair is made before ports are opened, and stays when the process ends: sessions between the node and its pods go on in the kernel.
//! `bulkhead cleanup` removes it. The networks are the configuration's, or the pod networks of the node's own Node object, as they are
//! when the state changes; until a state tells them the routes of an earlier process stay.

use bulkhead_dataplane::io::HostPair;
use ipnet::IpNet;

use super::config::{Config, CreatedHost};
use super::log;

/// See the module.
#[derive(Debug)]
pub(super) struct HostPort {
    pair: HostPair,
    config: CreatedHost,
    /// What was asked of the kernel, and what it refused of that: neither is done or said twice.
    led: Vec<IpNet>,
    refused: Vec<String>,
}

impl HostPort {
    /// Makes the interfaces, or takes over those of an earlier process. None where the configuration does not say so.
    ///
    /// # Errors
    /// When the kernel refuses, or there are other interfaces of their names.
    pub(super) fn make(config: &Config) -> anyhow::Result<Option<Self>> {
        let Some(config) = config.created_host.clone() else { return Ok(None) };
        let pair = HostPair::ensure(config.names(), config.mtu)?;
        Ok(Some(Self { pair, config, led: Vec::new(), refused: Vec::new() }))
    }

    /// Has the node reach its pods, whose networks are `own` unless the configuration names them.
    pub(super) fn lead(&mut self, own: &[IpNet]) {
        let networks = if self.config.networks.is_empty() { own } else { &self.config.networks };
        // A state that does not tell takes no route away: there may just be none yet.
        if networks.is_empty() || (networks == self.led && self.refused.is_empty()) {
            return;
        }
        let refused = self.pair.lead(networks);
        for text in refused.iter().filter(|text| !self.refused.contains(text)) {
            log::error(&format!(
                "{text}\nhelp: remove the other route (`ip route`), or name the networks in ports[].create.networks"
            ));
        }
        (self.led, self.refused) = (networks.to_vec(), refused);
    }
}

/// Removes the interfaces. Returns whether there were any.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn remove(config: &Config) -> anyhow::Result<bool> {
    Ok(config.created_host.as_ref().map(|created| HostPair::remove(created.names())).transpose()?.unwrap_or_default())
}
