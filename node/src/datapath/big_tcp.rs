//! Applies `big_tcp`: lets pods send TCP in packets longer than 64 KiB.
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
//! Errors never keep a port closed, as it works without long packets too. With pins, the earlier limits are recorded ([`EarlierLimits`]):
//! a process without `big_tcp`, and `bulkhead cleanup`, restore them.

mod earlier;

use std::sync::Arc;

use bulkhead_dataplane::PortKind;
use bulkhead_dataplane::io::{TcpLimits, XskError};

use crate::config::PortEntry;
use crate::log;

pub(crate) use earlier::EarlierLimits;
use earlier::End;

/// Sets the maximum TCP packet size at the interfaces of ports.
#[derive(Debug)]
pub(super) struct BigTcp {
    /// The maximum size of TCP packets, in bytes.
    bytes: u32,
    /// The uplink's interface, until its size is set or refused.
    unasked: Option<Arc<str>>,
    /// Whether the uplink accepts such packets. True if there is no uplink.
    is_taken: bool,
    /// Where the earlier limits are recorded. `None` without pins.
    earlier: Option<EarlierLimits>,
}

impl BigTcp {
    /// Sets a maximum of `bytes`, on a node with this uplink.
    pub(super) fn new(bytes: u32, uplink: Option<Arc<str>>, earlier: Option<EarlierLimits>) -> Self {
        earlier.iter().for_each(EarlierLimits::forget_missing);
        Self { bytes, unasked: uplink, is_taken: true, earlier }
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
        if let Err(why) = self.lengthen(entry) {
            log::warn(&format!("port {entry}: cannot apply big_tcp; the largest TCP packets keep their size: {why}"));
        }
    }

    /// Removes what is recorded for a port whose interface is gone.
    pub(super) fn end(&self, entry: &PortEntry) {
        self.earlier.iter().for_each(|earlier| earlier.forget(&entry.interface));
    }

    /// Sets the size at the uplink, unless it has accepted or refused it already. Logs a refusal.
    fn ask_uplink(&mut self) {
        let Some(uplink) = &self.unasked else { return };
        match End::read(uplink, None).and_then(|end| self.raise(uplink, &[end])) {
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

    /// Sets the size at the port's interface and at the pod's end of a veth, whose TCP packets it limits.
    fn lengthen(&self, entry: &PortEntry) -> Result<(), String> {
        let told = |error: XskError| error.to_string();
        let mut ends = vec![End::read(&entry.interface, None).map_err(told)?];
        if entry.kind == PortKind::Pod {
            let netns = entry.netns.as_deref();
            netns.ok_or("its network namespace is not known\nhelp: set netns on the port")?;
            ends.push(End::read(&entry.peer, netns).map_err(told)?);
        }
        self.raise(&entry.interface, &ends).map_err(told)
    }

    /// Records the ends' limits and sets those that differ.
    fn raise(&self, port: &str, ends: &[End]) -> Result<(), XskError> {
        let is_set = |end: &End| (end.v4, end.v6) == (self.bytes, self.bytes);
        if ends.iter().all(is_set) {
            return Ok(());
        }
        if let Some(Err(error)) = self.earlier.as_ref().map(|earlier| earlier.keep(port, self.bytes, ends.to_vec())) {
            log::warn(&format!("{port}: `bulkhead cleanup` will not undo big_tcp: {error}"));
        }
        ends.iter().try_for_each(|end| end.set(TcpLimits { v4: self.bytes, v6: self.bytes }))
    }
}
