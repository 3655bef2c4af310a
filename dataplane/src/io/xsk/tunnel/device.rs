//! The VXLAN device.

use std::io;

use ahash::RandomState;

use crate::io::xsk::error::XskError;
use crate::io::xsk::link::LinkInfo;
use crate::io::xsk::netlink::{IFLA_INFO_KIND, LINK, ask, attributes, link, vxlan_port};
use crate::io::xsk::netlink_write::{attribute, change, delete_link, set_mtu};

/// `IFLA_INFO_DATA`.
const INFO_DATA: u16 = 2;
/// `IFLA_VXLAN_LEARNING`, `IFLA_VXLAN_PORT`, `IFLA_VXLAN_COLLECT_METADATA`.
const LEARNING: u16 = 7;
const PORT: u16 = 15;
const EXTERNAL: u16 = 25;

/// Takes over or creates the device, and returns its index. A new device is down. A device with another port is created again.
///
/// # Errors
/// If an interface of another kind has the name, or the kernel refuses.
pub(super) fn ensure(name: &str, port: u16, mtu: u32) -> Result<u32, XskError> {
    let failed = |operation| move |source| XskError::system(name, operation, source);
    let mut found = index(name)?;
    if let Some(left) = found
        && port_of(left).map_err(failed("read the tunnel's settings"))? != Some(port)
    {
        remove(name)?;
        found = None;
    }
    if found.is_none() {
        make(name, port, mtu).map_err(failed("make the tunnel's device"))?;
        found = index(name)?;
    }
    let device = found.ok_or_else(|| XskError::NoInterface { interface: name.to_owned() })?;
    set_mtu(device, mtu).map_err(failed("set the tunnel's MTU"))?;
    check_sources_loosely(device).map_err(failed("set the tunnel's rp_filter"))?;
    add_address(device).map_err(failed("add the tunnel's address"))?;
    Ok(device)
}

/// Returns the index of the interface of this name. `None` if there is none.
pub(super) fn index(name: &str) -> Result<Option<u32>, XskError> {
    match LinkInfo::read(name) {
        Ok(found) => Ok(Some(found.index)),
        Err(XskError::NoInterface { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the device. Returns whether it existed.
///
/// # Errors
/// If an interface of another kind has the name, or the kernel refuses.
pub(super) fn remove(name: &str) -> Result<bool, XskError> {
    let failed = |operation| move |source| XskError::system(name, operation, source);
    let Some(found) = index(name)? else { return Ok(false) };
    if port_of(found).map_err(failed("read the tunnel's settings"))?.is_none() {
        let other = io::Error::other("another interface has this name; rename or delete it");
        return Err(failed("use it for the tunnel")(other));
    }
    delete_link(found).map(|()| true).map_err(failed("remove the tunnel's device"))
}

/// Creates the device, down, with this UDP port and this MTU in bytes. Its MAC address is random: the kernel drops VXLAN packets whose inner
/// source is the receiving device's own address, and the address that udev derives from the machine's id is the same on cloned machines.
fn make(name: &str, port: u16, mtu: u32) -> io::Result<()> {
    let (mut data, mut info) = (Vec::new(), Vec::new());
    attribute(&mut data, EXTERNAL, &[1]);
    attribute(&mut data, LEARNING, &[0]);
    attribute(&mut data, PORT, &port.to_be_bytes());
    attribute(&mut info, IFLA_INFO_KIND, b"vxlan\0");
    attribute(&mut info, INFO_DATA, &data);
    let mut body = link(0).to_vec();
    attribute(&mut body, libc::IFLA_IFNAME, &[name.as_bytes(), b"\0"].concat());
    attribute(&mut body, libc::IFLA_MTU, &mtu.to_ne_bytes());
    attribute(&mut body, libc::IFLA_ADDRESS, &draw_mac());
    attribute(&mut body, libc::IFLA_LINKINFO, &info);
    change(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &body)
}

/// Draws a random MAC address: locally administered, not a group's.
fn draw_mac() -> [u8; 6] {
    let [a, b, c, d, e, ..] = RandomState::new().hash_one(()).to_ne_bytes();
    [2, a, b, c, d, e]
}

/// Sets the device's `rp_filter` to 2 (loose). Packets from another node's own addresses come through the tunnel, while the route back to
/// the node's address leads over the link; a strict check drops them. The guard is stricter than that check. By netlink, as containers
/// cannot write below `/proc/sys`.
fn check_sources_loosely(interface: u32) -> io::Result<()> {
    /// `IFLA_AF_SPEC`, `AF_INET`, `IFLA_INET_CONF`, `IPV4_DEVCONF_RP_FILTER`.
    const AF_SPEC: u16 = 26;
    const INET: u16 = 2;
    const INET_CONF: u16 = 1;
    const RP_FILTER: u16 = 8;
    let (mut value, mut conf, mut spec) = (Vec::new(), Vec::new(), Vec::new());
    attribute(&mut value, RP_FILTER, &2_u32.to_ne_bytes());
    attribute(&mut conf, INET_CONF, &value);
    attribute(&mut spec, INET, &conf);
    let mut body = link(interface).to_vec();
    attribute(&mut body, AF_SPEC, &spec);
    change(libc::RTM_SETLINK, 0, &body)
}

/// Adds an IPv4 address that nobody uses to the device. If an interface has no address, the kernel checks sources strictly even with a loose
/// `rp_filter` (`__fib_validate_source`), and drops what another node sends from its own address to this node's: probes. IPv6 has no such
/// check.
fn add_address(interface: u32) -> io::Result<()> {
    /// `IFA_LOCAL`, `RT_SCOPE_LINK`.
    const LOCAL: u16 = 2;
    const SCOPE_LINK: u8 = 253;
    /// Link-local, next to the pods' gateway 169.254.1.1.
    const ADDRESS: [u8; 4] = [169, 254, 1, 2];
    // `struct ifaddrmsg`: family (`AF_INET`), prefix length, flags, scope, interface.
    let mut body = vec![2, 32, 0, SCOPE_LINK];
    body.extend(interface.to_ne_bytes());
    attribute(&mut body, LOCAL, &ADDRESS);
    change(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_REPLACE, &body)
}

/// Returns the UDP port of a VXLAN device that takes the tunnel header of each packet from its route (`external`). `None` for other
/// interfaces.
fn port_of(interface: u32) -> io::Result<Option<u16>> {
    let mut found = None;
    ask(libc::RTM_GETLINK, false, &link(interface), |message| found = parse_port(message))?;
    Ok(found)
}

/// Parses the kernel's description of an interface, as [`port_of`] does.
fn parse_port(message: &[u8]) -> Option<u16> {
    let (_, info) = attributes(message.get(LINK..)?).find(|&(kind, _)| kind == libc::IFLA_LINKINFO)?;
    vxlan_port(info).filter(|&(_, is_external)| is_external).map(|(port, _)| port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_vxlan_device_that_routes_steer_is_taken_over() {
        let message = |kind: &[u8], external: u8| {
            let (mut data, mut info, mut body) = (Vec::new(), Vec::new(), link(7).to_vec());
            attribute(&mut data, PORT, &4789_u16.to_be_bytes());
            attribute(&mut data, EXTERNAL, &[external]);
            attribute(&mut info, IFLA_INFO_KIND, kind);
            attribute(&mut info, INFO_DATA, &data);
            attribute(&mut body, libc::IFLA_LINKINFO, &info);
            body
        };
        assert_eq!(parse_port(&message(b"vxlan\0", 1)), Some(4789));
        assert_eq!(parse_port(&message(b"vxlan\0", 0)), None, "its routes do not choose the other end");
        assert_eq!(parse_port(&message(b"geneve\0", 1)), None);
        let whole = message(b"vxlan\0", 1);
        assert!((0..whole.len()).all(|length| parse_port(&whole[..length]).is_none()), "truncated");
    }
}
