//! `big_tcp`: pods send TCP over IPv4 in packets of more than 64 KiB.
//!
//! Where an interface on the way of such a packet does not take it, the kernel cuts it into segments there by itself, which is several
//! times slower than 64 KiB that the interface cuts. So the node's own interfaces are asked first, and when the uplink refuses, pods
//! keep what they have. An uplink that is not there yet is asked when it comes:
//!
//! ```text
//!   the uplink's or host's port opens: its interface
//!   a pod's port opens: the uplink, once; the node's end; the pod's own end, which is what makes TCP send them
//! ```
//!
//! A port without it is as good, only slower, so that nothing here keeps one closed.

use std::sync::Arc;

use bulkhead_dataplane::PortKind;
use bulkhead_dataplane::io::{XskError, in_namespace, set_longest_tcp_packet};

use crate::config::PortEntry;
use crate::log;
use crate::preflight;

/// See the module.
#[derive(Debug)]
pub(super) struct BigTcp {
    /// The longest packet.
    bytes: u32,
    /// The uplink's interface, while it has not answered.
    unasked: Option<Arc<str>>,
    /// Whether the uplink takes such packets, or there is none.
    is_taken: bool,
}

impl BigTcp {
    /// Packets of up to so many bytes, on a node with this uplink.
    pub(super) const fn new(bytes: u32, uplink: Option<Arc<str>>) -> Self {
        Self { bytes, unasked: uplink, is_taken: true }
    }

    /// A port has been opened.
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
            // It is asked when it comes.
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

    /// The other end of the pod's veth sends them.
    fn lengthen(&self, entry: &PortEntry) -> Result<(), String> {
        let netns = entry.netns.as_ref().ok_or("its network namespace is not known\nhelp: netns on the port")?;
        let set = || set_longest_tcp_packet(&entry.peer, self.bytes);
        let done = in_namespace(&preflight::namespace_path(netns), set).and_then(|done| done);
        done.map_err(|error| error.to_string())
    }
}
