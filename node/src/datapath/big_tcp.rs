//! Applies `big_tcp`: lets pods send TCP over IPv4 in packets longer than 64 KiB.
//!
//! If an interface on the path does not accept such a packet, the kernel segments it in software, which is several times slower than 64 KiB
//! packets that the interface segments. So the uplink is configured first. If it refuses, pods keep their packet size. An absent uplink is
//! configured when it appears:
//!
//! ```text
//!   the uplink's or host's port opens: its interface
//!   a pod's port opens: the uplink, once; the node's end; the pod's end, which determines the size that TCP sends
//! ```
//!
//! Errors never keep a port closed, as it works without long packets too.

use std::sync::Arc;

use bulkhead_dataplane::PortKind;
use bulkhead_dataplane::io::{XskError, in_namespace, set_longest_tcp_packet};

use crate::config::PortEntry;
use crate::log;
use crate::preflight;

/// Sets the maximum TCP packet size at the interfaces of ports.
#[derive(Debug)]
pub(super) struct BigTcp {
    /// The maximum size of TCP packets over IPv4, in bytes.
    bytes: u32,
    /// The uplink's interface, until its size is set or refused.
    unasked: Option<Arc<str>>,
    /// Whether the uplink accepts such packets. True if there is no uplink.
    is_taken: bool,
}

impl BigTcp {
    /// Sets a maximum of `bytes`, on a node with this uplink.
    pub(super) const fn new(bytes: u32, uplink: Option<Arc<str>>) -> Self {
        Self { bytes, unasked: uplink, is_taken: true }
    }

    /// Sets the size for a port that has been opened.
    pub(super) fn open(&mut self, entry: &PortEntry) {
        if entry.kind == PortKind::Uplink {
            self.unasked = Some(entry.interface.clone());
        }
        self.ask_uplink();
        if !self.is_taken || entry.kind == PortKind::Uplink {
            return;
        }
        let own = set_longest_tcp_packet(&entry.interface, self.bytes).map_err(|error| error.to_string());
        let lengthened = own.and_then(|()| if entry.kind == PortKind::Pod { self.lengthen(entry) } else { Ok(()) });
        if let Err(why) = lengthened {
            log::warn(&format!("port {entry}: cannot apply big_tcp; the largest TCP packets keep their size: {why}"));
        }
    }

    fn ask_uplink(&mut self) {
        let Some(uplink) = &self.unasked else { return };
        match set_longest_tcp_packet(uplink, self.bytes) {
            // Retried when the uplink appears.
            Err(XskError::NoInterface { .. }) => return,
            Ok(()) => self.is_taken = true,
            Err(error) => {
                self.is_taken = false;
                log::warn(&format!(
                    "the uplink refuses the packet length of big_tcp: {error}. Ports that open from now on keep the default length. \
                     The kernel segments longer packets of open ports in software, which is slow\n\
                     help: set big_tcp to at most the tso_max_size of `ip -d link show {uplink}` if that is more than 65536; \
                     otherwise remove big_tcp"
                ));
            }
        }
        self.unasked = None;
    }

    /// Sets the size at the pod's end of the veth, whose TCP packets it limits.
    fn lengthen(&self, entry: &PortEntry) -> Result<(), String> {
        let netns = entry.netns.as_ref().ok_or("its network namespace is not known\nhelp: set netns on the port")?;
        let set = || set_longest_tcp_packet(&entry.peer, self.bytes);
        let done = in_namespace(&preflight::namespace_path(netns), set).and_then(|done| done);
        done.map_err(|error| error.to_string())
    }
}
