//! Changes by rtnetlink: veth pairs, interface flags, routes and filters.
//! Source: `include/uapi/linux/{rtnetlink,if_link,veth,pkt_sched}.h`.

use std::ffi::CStr;
use std::io;

use super::netlink::{IFLA_INFO_KIND, aligned, link, request};

/// Creates a veth pair with these names, administratively down, with `queues` queues per direction and end. The first end gets the index
/// `number`; 0 lets the kernel choose.
pub(super) fn make_veth([first, second]: [&str; 2], number: u32, queues: u32, mtu: u32) -> io::Result<()> {
    /// `IFLA_NUM_TX_QUEUES`, `IFLA_NUM_RX_QUEUES`, `IFLA_INFO_DATA`, `VETH_INFO_PEER`.
    const TRANSMIT_QUEUES: u16 = 31;
    const RECEIVE_QUEUES: u16 = 32;
    const INFO_DATA: u16 = 2;
    const INFO_PEER: u16 = 1;
    let end = |name: &str, number: u32| {
        let mut body = link(number).to_vec();
        attribute(&mut body, libc::IFLA_IFNAME, &[name.as_bytes(), b"\0"].concat());
        attribute(&mut body, libc::IFLA_MTU, &mtu.to_ne_bytes());
        attribute(&mut body, TRANSMIT_QUEUES, &queues.to_ne_bytes());
        attribute(&mut body, RECEIVE_QUEUES, &queues.to_ne_bytes());
        body
    };
    let (mut peer, mut info) = (Vec::new(), Vec::new());
    attribute(&mut peer, INFO_PEER, &end(second, 0));
    attribute(&mut info, IFLA_INFO_KIND, b"veth\0");
    attribute(&mut info, INFO_DATA, &peer);
    let mut body = end(first, number);
    attribute(&mut body, libc::IFLA_LINKINFO, &info);
    change(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &body)
}

/// Sets an interface up without neighbour resolution.
pub(super) fn set_up(interface: u32) -> io::Result<()> {
    set_flags(interface, libc::IFF_UP | libc::IFF_NOARP)
}

/// Sets the interface with this index up, in the calling thread's network namespace.
///
/// # Errors
/// If the interface does not exist or the kernel refuses.
pub fn set_link_up(interface: u32) -> io::Result<()> {
    set_flags(interface, libc::IFF_UP)
}

fn set_flags(interface: u32, flags: i32) -> io::Result<()> {
    let mut body = link(interface);
    body[8..12].copy_from_slice(&flags.to_ne_bytes());
    // The mask of the flags to change.
    body[12..16].copy_from_slice(&flags.to_ne_bytes());
    change(libc::RTM_NEWLINK, 0, &body)
}

/// Sets an interface up with neighbour resolution.
pub(super) fn start(interface: u32) -> io::Result<()> {
    let mut body = link(interface);
    body[8..12].copy_from_slice(&libc::IFF_UP.to_ne_bytes());
    body[12..16].copy_from_slice(&libc::IFF_UP.to_ne_bytes());
    change(libc::RTM_NEWLINK, 0, &body)
}

/// Sets an interface's MTU in bytes.
pub(super) fn set_mtu(interface: u32, mtu: u32) -> io::Result<()> {
    set_number(interface, libc::IFLA_MTU, mtu)
}

/// Sets a numeric attribute of an interface.
pub(super) fn set_number(interface: u32, kind: u16, value: u32) -> io::Result<()> {
    set_numbers(interface, &[(kind, value)])
}

/// Sets numeric attributes of an interface, given as type and value.
pub(super) fn set_numbers(interface: u32, values: &[(u16, u32)]) -> io::Result<()> {
    let mut body = link(interface).to_vec();
    for (kind, value) in values {
        attribute(&mut body, *kind, &value.to_ne_bytes());
    }
    change(libc::RTM_NEWLINK, 0, &body)
}

/// Removes an interface, and a veth's peer with it.
pub(super) fn delete_link(interface: u32) -> io::Result<()> {
    change(libc::RTM_DELLINK, 0, &link(interface))
}

pub(super) fn set_root_qdisc(interface: u32, kind: &CStr) -> io::Result<()> {
    /// `1:`, and `TC_H_ROOT`.
    const HANDLE: u32 = 1 << 16;
    const ROOT: u32 = u32::MAX;
    let mut body = traffic_control(interface, HANDLE, ROOT, 0);
    /// `TCA_KIND`.
    const KIND: u16 = 1;
    attribute(&mut body, KIND, kind.to_bytes_with_nul());
    change(libc::RTM_NEWQDISC, libc::NLM_F_CREATE | libc::NLM_F_REPLACE, &body)
}

/// Builds a `struct tcmsg` for a queueing discipline or filter of an interface.
pub(super) fn traffic_control(interface: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    // Family and padding.
    let mut body = vec![0; 4];
    for number in [interface, handle, parent, info] {
        body.extend(number.to_ne_bytes());
    }
    body
}

/// Requests a change and waits for the acknowledgement.
pub(super) fn change(kind: u16, flags: i32, body: &[u8]) -> io::Result<()> {
    request(libc::NETLINK_ROUTE, kind, libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags, body, |_| {})
}

pub(super) fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).expect("names and numbers are short");
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(aligned(bytes.len()), 0);
}

#[cfg(test)]
mod tests {
    use super::super::netlink::attributes;
    use super::*;

    #[test]
    fn attributes_that_are_written_are_read_back() {
        let mut bytes = Vec::new();
        attribute(&mut bytes, 3, b"bh0\0");
        attribute(&mut bytes, 4, &[1, 2, 3]);
        attribute(&mut bytes, 5, &[]);
        let read: Vec<_> = attributes(&bytes).collect();
        assert_eq!(read, [(3, &b"bh0\0"[..]), (4, &[1, 2, 3]), (5, &[])]);
    }
}
