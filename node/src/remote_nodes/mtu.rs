//! The MTU of new pods and of the host port, if the configuration leaves them to the vswitch.
//!
//! ```text
//!   pods:      the smallest of: links that lead to nodes by a route | the tunnel, if a node is behind it
//!   host port: the largest of these links
//! ```
//!
//! The default route's link counts where no other node is known. It does not lower the MTU of pods otherwise: the node's kernel answers
//! packets that are too long for it (ICMP), as it does for those of pods that were created with a larger MTU.

use bulkhead_dataplane::io::{HostPair, default_route_mtu};
use bulkhead_observe::admin::PodMtu;

use super::plan::Plan;
use crate::config::{Config, CreatedHost, DEFAULT_MTU, EncapsulationMode};
use crate::log;

/// The MTUs that the vswitch has set.
#[derive(Debug)]
pub(super) struct Mtus {
    /// The file for the CNI plugin. `None` without an admin socket.
    file: Option<PodMtu>,
    /// The MTU of new pods, in bytes. `None` before the first, and after a failure.
    pods: Option<u32>,
}

impl Mtus {
    /// Creates the follower of the MTUs. Writes nothing yet.
    pub(super) fn new(config: &Config) -> Self {
        Self { file: file(config), pods: None }
    }

    /// Writes the MTU of new pods for the CNI plugin, and sets the host port's. Returns a message per failure.
    pub(super) fn follow(&mut self, plan: &Plan, mode: EncapsulationMode, host: &CreatedHost) -> Vec<String> {
        // What cannot be read counts as missing: the next look reads it again.
        let default = default_route_mtu().ok().flatten().unwrap_or(DEFAULT_MTU);
        let mut problems = Vec::new();
        if host.mtu.is_none()
            && let Err(error) = HostPair::resize(host.names(), plan.host_mtu(default))
        {
            problems.push(error.to_string());
        }
        let pods = plan.pod_mtu(mode, default).min(host.mtu.unwrap_or(u32::MAX));
        if let Some(file) = self.file.as_ref().filter(|_| self.pods != Some(pods)) {
            self.pods = match file.write(pods) {
                Ok(()) => {
                    log::info(&format!("the MTU of new pods is {pods}, unless the CNI configuration sets it"));
                    Some(pods)
                }
                Err(error) => {
                    problems.push(format!("cannot write the MTU of new pods for the CNI plugin: {error}"));
                    None
                }
            };
        }
        problems
    }
}

/// Removes the MTU that a vswitch has left for the CNI plugin, and logs a failure. Does nothing without an admin socket, beside which it is.
pub(in super::super) fn forget(config: &Config) {
    if let Some(Err(error)) = file(config).map(|file| file.remove()) {
        log::warn(&format!("cannot remove the MTU of new pods that a previous process has left: {error}"));
    }
}

/// Returns the file for the CNI plugin. `None` without an admin socket.
fn file(config: &Config) -> Option<PodMtu> {
    config.admin.socket.as_deref().map(PodMtu::of)
}
