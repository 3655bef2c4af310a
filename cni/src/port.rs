//! Opens and removes a container's port at the vswitch's admin socket.

use std::net::IpAddr;

use super::Call;
use super::container;
use super::daemon::failure;
use super::error::Error;
use super::mac::Mac;
use super::sandbox::Sandbox;
use bulkhead_observe::admin::AddPort;

/// A port that the plugin opens for a container.
pub(super) struct Port<'a> {
    pub(super) call: &'a Call,
    pub(super) pod: String,
    pub(super) uid: Option<String>,
    pub(super) sandbox: &'a Sandbox<'a>,
}

impl Port<'_> {
    /// Opens the port of a node interface, and waits until policy is enforced there and the container's end can send.
    ///
    /// # Errors
    /// [`Error`] if the vswitch refuses the port or does not open it in time, or if the container's end cannot send.
    pub(super) fn open(&self, interface: &str, mac: Mac, addresses: &[IpAddr]) -> Result<(), Error> {
        let Call { attachment, conf, .. } = self.call;
        let port = AddPort {
            container: attachment.container.clone(),
            container_interface: attachment.interface.clone(),
            network: Some(attachment.network.clone()),
            pod: self.pod.clone(),
            pod_uid: self.uid.clone(),
            interface: interface.to_owned(),
            netns: Some(self.sandbox.path.to_string_lossy().into_owned()),
            mac: Some(mac.to_string()),
            addresses: addresses.to_vec(),
            timeout_seconds: conf.patience.as_secs(),
        };
        self.call.daemon().add_port(port).map_err(|error| failure(&error))?;
        self.sandbox.enter(|| container::wait_until_running(&attachment.interface))
    }

    /// Removes the port, which the vswitch may have or not.
    pub(super) fn forget(&self) {
        // The error that led here counts; a failed cleanup is not reported.
        let _ = self.call.forget();
    }
}
