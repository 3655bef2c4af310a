//! What an interface can do with XDP, by the kernel's netdev family of generic netlink (Linux 6.3).
//! Source: `include/uapi/linux/{genetlink,netdev}.h`, `Documentation/netlink/specs/netdev.yaml`.

use std::io;
use std::sync::OnceLock;

use super::netlink::{ask_of, attributes, short};

/// Bytes of `struct genlmsghdr`.
const HEADER: usize = 4;
/// `GENL_ID_CTRL`: where the numbers of families are asked for.
const CONTROL: u16 = 0x10;

/// Whether an interface of the calling thread's network namespace takes packets from an XDP program in driver mode that
/// sends them there. For a veth that is so while its other end has generic receive offload on or an XDP program.
///
/// # Errors
/// When there is no such interface, or the kernel does not tell: it is older than 6.3.
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
        // 64 bits, of which the lower half is in use.
        features = found.and_then(|(_, value)| Some(u64::from_ne_bytes(*value.first_chunk()?)));
    })?;
    let features = features.ok_or(io::ErrorKind::InvalidData)?;
    Ok(features & u64::from(TRANSMIT) != 0)
}

/// The number of the family, which stays the same while the machine runs.
fn family() -> io::Result<u16> {
    static KNOWN: OnceLock<u16> = OnceLock::new();
    match KNOWN.get() {
        Some(&number) => Ok(number),
        None => ask_family().map(|number| *KNOWN.get_or_init(|| number)),
    }
}

fn ask_family() -> io::Result<u16> {
    /// `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_ID`, `CTRL_ATTR_FAMILY_NAME`.
    const GET_FAMILY: u8 = 3;
    const FAMILY_ID: u16 = 1;
    const FAMILY_NAME: u16 = 2;
    let mut id = None;
    ask_of(libc::NETLINK_GENERIC, CONTROL, false, &request(GET_FAMILY, FAMILY_NAME, b"netdev\0"), |message| {
        let found = attributes(message.get(HEADER..).unwrap_or_default()).find(|&(kind, _)| kind == FAMILY_ID);
        id = found.and_then(|(_, value)| short(value, 0));
    })?;
    id.ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// A command with one attribute.
fn request(command: u8, kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(HEADER + value.len()).expect("names and numbers are short");
    // Version 1 of the command; two bytes that are reserved.
    let mut bytes = vec![command, 1, 0, 0];
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::xsk::netlink::number;

    #[test]
    fn a_request_is_a_header_and_an_attribute_of_whole_words() {
        let bytes = request(3, 2, b"netdev\0");
        assert_eq!((number(&bytes, 0), bytes.len()), (Some(u32::from_ne_bytes([3, 1, 0, 0])), 16));
        assert_eq!((short(&bytes, 4), short(&bytes, 6)), (Some(11), Some(2)));
    }

    #[test]
    fn the_loopback_interface_takes_none_where_the_kernel_tells() {
        // Loopback is always number 1.
        assert!(matches!(takes_xdp_frames(1), Ok(false) | Err(_)));
        assert!(takes_xdp_frames(u32::MAX >> 1).is_err());
    }
}
