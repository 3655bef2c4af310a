//! A port at the vswitch: opened and forgotten over the admin socket.

use std::net::IpAddr;

use super::Call;
use super::container;
use super::daemon::failure;
use super::error::Error;
use super::mac::Mac;
use super::sandbox::Sandbox;
use bulkhead_observe::admin::AddPort;

/// A port that is to be opened.
pub(super) struct Port<'a> {
    pub(super) call: &'a Call,
    pub(super) pod: String,
    pub(super) uid: Option<String>,
    pub(super) sandbox: &'a Sandbox<'a>,
}

impl Port<'_> {
    /// Has the vswitch open the port of an interface of the node, and waits for it.
    ///
    /// # Errors
    /// Why it does not.
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

    /// Has the vswitch forget the port, which it may have heard of.
    pub(super) fn forget(&self) {
        // What went wrong first is told.
        let _ = self.call.forget();
    }
}
