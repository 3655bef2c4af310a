//! The interfaces of a network namespace as rtnetlink reports them. Source: `include/uapi/linux/{rtnetlink,if_link}.h`.

use std::io;

use super::netlink::{all_links, ask, attributes, default_route_interfaces, is_veth_info, number, vxlan_port};

/// Bytes of `struct ifinfomsg`.
const LINK: usize = 16;
/// `IFLA_PROP_LIST`, `IFLA_ALT_IFNAME`.
pub(super) const IFLA_PROP_LIST: u16 = 52;
pub(super) const IFLA_ALT_IFNAME: u16 = 53;
/// `IFLA_LINK_NETNSID`: the interface in `IFLA_LINK` belongs to another namespace.
pub(super) const IFLA_LINK_NETNSID: u16 = 37;

/// The state of one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkStatus {
    /// Interface index in the namespace. A new interface of the same name has another index.
    pub index: u32,
    /// The interface's name, then its alternative names.
    pub names: Vec<String>,
    /// MAC address. Zeros if the interface has no address of six bytes.
    pub mac: [u8; 6],
    /// MTU: maximum bytes of a packet after its Ethernet header.
    pub mtu: u32,
    /// Whether the interface is administratively up.
    pub up: bool,
    /// Whether the interface has a carrier that the kernel has not processed yet. Until then, both ends of a veth drop sent packets,
    /// because they have no queueing discipline (`net/core/link_watch.c`).
    pub settling: bool,
    /// Index of the related interface: a veth's peer, or a VLAN's lower interface. `None` if there is none in this namespace.
    pub related: Option<u32>,
    /// Whether hosts on the interface's link are found by ARP or neighbour discovery. False for tunnels and point-to-point links (WireGuard, PPP).
    pub has_neighbours: bool,
    /// Whether the interface is a veth end without a bridge or bond as master, so that the kernel routes its packets directly.
    pub is_routed_veth: bool,
    /// UDP port of a VXLAN device. `None` for other interfaces.
    pub vxlan_port: Option<u16>,
}

/// A notification from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// An interface appeared or changed; this is its current state.
    Changed(LinkStatus),
    /// The interface with this index was removed or moved to another namespace.
    Removed(u32),
    /// The interface with this index changed its queues or XDP features, or lost a filter or queueing discipline.
    Features(u32),
    /// The kernel dropped notifications. The reader must call [`links`].
    Lost,
}

/// Returns all interfaces of the calling thread's network namespace.
///
/// # Errors
/// If the netlink request fails.
pub fn links() -> io::Result<Vec<LinkStatus>> {
    let mut found = Vec::new();
    ask(libc::RTM_GETLINK, true, &all_links(), |message| found.extend(LinkStatus::of(message)))?;
    Ok(found)
}

/// Returns the smallest MTU in bytes among the interfaces of the default routes in the calling thread's network namespace. `None` if there is no
/// default route.
///
/// # Errors
/// The error of the system if the kernel does not list its routes or its interfaces.
pub fn default_route_mtu() -> io::Result<Option<u32>> {
    let used = default_route_interfaces()?;
    if used.is_empty() {
        return Ok(None);
    }
    Ok(links()?.into_iter().filter(|link| used.contains(&link.index)).map(|link| link.mtu).min())
}

impl LinkStatus {
    /// Parses an rtnetlink message. `None` if the message is incomplete, as those of the wireless extensions are.
    pub(super) fn of(message: &[u8]) -> Option<Self> {
        /// `IFF_UP`, `IFF_POINTOPOINT`, `IFF_NOARP`, `IFF_LOWER_UP`.
        const UP: u32 = 1;
        const POINT_TO_POINT: u32 = 0x10;
        const NO_ARP: u32 = 0x80;
        const CARRIER: u32 = 1 << 16;
        /// `IF_OPER_DORMANT`: lower states mean that the kernel has not processed the carrier. Source: RFC 2863, `include/uapi/linux/if.h`.
        const DORMANT: u8 = 5;
        // Bridges report their ports with the same message type and another family.
        if i32::from(*message.first()?) != libc::AF_UNSPEC {
            return None;
        }
        let (index, flags) = (number(message, 4)?, number(message, 8)?);
        let (mut names, mut mac, mut mtu) = (Vec::new(), [0; 6], None);
        let (mut related, mut is_here, mut state) = (None, true, None);
        let (mut is_veth, mut is_behind, mut vxlan) = (false, false, None);
        let name = |value: &[u8]| {
            let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
            String::from_utf8_lossy(&value[..end]).into_owned()
        };
        for (kind, value) in attributes(message.get(LINK..)?) {
            match kind {
                libc::IFLA_IFNAME => names.insert(0, name(value)),
                IFLA_PROP_LIST => {
                    names.extend(attributes(value).filter(|&(kind, _)| kind == IFLA_ALT_IFNAME).map(|(_, v)| name(v)));
                }
                libc::IFLA_ADDRESS => mac = value.try_into().unwrap_or_default(),
                libc::IFLA_MTU => mtu = number(value, 0),
                libc::IFLA_OPERSTATE => state = value.first().copied(),
                libc::IFLA_LINK => related = number(value, 0),
                IFLA_LINK_NETNSID => is_here = false,
                libc::IFLA_MASTER => is_behind = true,
                libc::IFLA_LINKINFO => {
                    is_veth |= is_veth_info(value);
                    vxlan = vxlan_port(value).map(|(port, _)| port);
                }
                _ => {}
            }
        }
        (!names.is_empty()).then_some(())?;
        let related = related.filter(|&related| is_here && related != 0);
        let settling = flags & CARRIER != 0 && state.is_some_and(|state| state < DORMANT);
        let is_routed_veth = is_veth && !is_behind;
        let (up, has_neighbours) = (flags & UP != 0, flags & (POINT_TO_POINT | NO_ARP) == 0);
        Some(Self {
            index,
            names,
            mac,
            mtu: mtu?,
            up,
            settling,
            related,
            has_neighbours,
            is_routed_veth,
            vxlan_port: vxlan,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_one_of_them() {
        let all = links().unwrap();
        let lo = all.iter().find(|link| link.names[0] == "lo").unwrap();
        assert!(lo.index > 0 && lo.mtu >= 1280 && lo.mac == [0; 6]);
    }
}
