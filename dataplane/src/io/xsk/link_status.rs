//! The interfaces of a network namespace, as rtnetlink reports them.
//! Source: `include/uapi/linux/{rtnetlink,if_link}.h`.

use std::io;

use super::netlink::{all_links, ask, attributes, is_veth_info, number};

/// Bytes of `struct ifinfomsg`.
const LINK: usize = 16;
/// `IFLA_PROP_LIST`, `IFLA_ALT_IFNAME`.
pub(super) const IFLA_PROP_LIST: u16 = 52;
pub(super) const IFLA_ALT_IFNAME: u16 = 53;
/// `IFLA_LINK_NETNSID`: what `IFLA_LINK` numbers is in another namespace.
pub(super) const IFLA_LINK_NETNSID: u16 = 37;

/// An interface of a network namespace, as rtnetlink tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkStatus {
    /// Its number in the namespace; a new interface of the same name has another one.
    pub index: u32,
    /// Its name, then its alternative names.
    pub names: Vec<String>,
    /// Its own address; zeros when it has none of six bytes.
    pub mac: [u8; 6],
    /// The most bytes of a packet after its Ethernet header.
    pub mtu: u32,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether it has a carrier on which the kernel has not acted yet. Until it has, either end of a veth loses what is sent there: both
    /// get their queueing discipline then (`net/core/link_watch.c`).
    pub settling: bool,
    /// The number of the interface that it belongs to in this namespace: a veth's other end, or what a VLAN is on.
    pub related: Option<u32>,
    /// Whether it is an end of a veth that is not behind a bridge or a bond: packets that the kernel routes have it as their interface.
    pub is_routed_veth: bool,
}

/// What the kernel tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// An interface came, or is like this now.
    Changed(LinkStatus),
    /// The interface of this number was removed, or moved to another namespace.
    Removed(u32),
    /// The interface of this number has other queues or other XDP features than before, or a filter or a queueing discipline was
    /// removed from it.
    Features(u32),
    /// Messages were left out: [`links`] tells what is so now.
    Lost,
}

/// All interfaces of the calling thread's network namespace.
///
/// # Errors
/// When the kernel does not answer.
pub fn links() -> io::Result<Vec<LinkStatus>> {
    let mut found = Vec::new();
    ask(libc::RTM_GETLINK, true, &all_links(), |message| found.extend(LinkStatus::of(message)))?;
    Ok(found)
}

impl LinkStatus {
    /// None for a message that does not say all of it, such as those of the wireless extensions.
    pub(super) fn of(message: &[u8]) -> Option<Self> {
        /// `IFF_UP`, `IFF_LOWER_UP`.
        const UP: u32 = 1;
        const CARRIER: u32 = 1 << 16;
        /// `IF_OPER_DORMANT`, the least of the states that is not that of before. Source: RFC 2863, `include/uapi/linux/if.h`.
        const DORMANT: u8 = 5;
        // Bridges tell of their ports by messages of the same kind and of their own family.
        if i32::from(*message.first()?) != libc::AF_UNSPEC {
            return None;
        }
        let (index, flags) = (number(message, 4)?, number(message, 8)?);
        let (mut names, mut mac, mut mtu) = (Vec::new(), [0; 6], None);
        let (mut related, mut is_here, mut state) = (None, true, None);
        let (mut is_veth, mut is_behind) = (false, false);
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
                libc::IFLA_LINKINFO => is_veth |= is_veth_info(value),
                _ => {}
            }
        }
        (!names.is_empty()).then_some(())?;
        let related = related.filter(|&related| is_here && related != 0);
        let settling = flags & CARRIER != 0 && state.is_some_and(|state| state < DORMANT);
        let is_routed_veth = is_veth && !is_behind;
        Some(Self { index, names, mac, mtu: mtu?, up: flags & UP != 0, settling, related, is_routed_veth })
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
