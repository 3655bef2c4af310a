//! Reads an interface's XDP features from the generic netlink family `netdev` (Linux 6.3).
//! Source: `include/uapi/linux/{genetlink,netdev}.h`, `Documentation/netlink/specs/netdev.yaml`.

use std::io;
use std::sync::OnceLock;

use super::generic::{Family, HEADER, request};
use super::netlink::{ask_of, attributes};

/// Whether an interface of the calling thread's network namespace accepts packets redirected by an XDP program in driver mode. A veth does
/// while its peer has generic receive offload on, or an XDP program.
///
/// # Errors
/// If there is no such interface, or the kernel is older than 6.3.
pub fn takes_xdp_frames(interface: u32) -> io::Result<bool> {
    /// `NETDEV_CMD_DEV_GET`, `NETDEV_A_DEV_IFINDEX`, `NETDEV_A_DEV_XDP_FEATURES`.
    const DEV_GET: u8 = 1;
    const IFINDEX: u16 = 1;
    const XDP_FEATURES: u16 = 3;
    /// `NETDEV_XDP_ACT_NDO_XMIT`.
    const TRANSMIT: u32 = 1 << 2;
    let mut features = None;
    ask_of(libc::NETLINK_GENERIC, family()?, false, &request(DEV_GET, IFINDEX, &interface.to_ne_bytes()), |message| {
        let found = attributes(message.get(HEADER..).unwrap_or_default()).find(|&(kind, _)| kind == XDP_FEATURES);
        // A 64-bit mask, of which the kernel uses the lower half.
        features = found.and_then(|(_, value)| Some(u64::from_ne_bytes(*value.first_chunk()?)));
    })?;
    let features = features.ok_or(io::ErrorKind::InvalidData)?;
    Ok(features & u64::from(TRANSMIT) != 0)
}

/// Returns the family's id, which is constant until a reboot.
fn family() -> io::Result<u16> {
    static KNOWN: OnceLock<u16> = OnceLock::new();
    match KNOWN.get() {
        Some(&number) => Ok(number),
        None => Family::ask(b"netdev\0", b"mgmt\0").map(|family| *KNOWN.get_or_init(|| family.id)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_loopback_interface_takes_none_where_the_kernel_tells() {
        // The loopback interface always has number 1.
        assert!(matches!(takes_xdp_frames(1), Ok(false) | Err(_)));
        assert!(takes_xdp_frames(u32::MAX >> 1).is_err());
    }
}
