//! Generic netlink families: lookup of their ids, and notifications of `ethtool` and `netdev` about interfaces.
//! Source: `include/uapi/linux/{genetlink,ethtool_netlink,netdev}.h`, `Documentation/netlink/specs/{ethtool,netdev}.yaml`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::link_status::LinkEvent;
use super::netlink::{ask_of, attributes, number, short, socket};
use super::small_size;

/// Bytes of `struct genlmsghdr`.
pub(super) const HEADER: usize = 4;
/// `GENL_ID_CTRL`: the family that resolves the ids of families.
const CONTROL: u16 = 0x10;

/// The ids of a family and of one of its multicast groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Family {
    /// The family's id, which is the type of its messages.
    pub(super) id: u16,
    /// The group's id. `None` if the family has no group of that name.
    pub(super) group: Option<u32>,
}

impl Family {
    /// Resolves a family and a group by name. Both names end with a zero byte.
    pub(super) fn ask(name: &[u8], group: &[u8]) -> io::Result<Self> {
        /// `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_ID`, `CTRL_ATTR_FAMILY_NAME`.
        const GET_FAMILY: u8 = 3;
        const FAMILY_ID: u16 = 1;
        const FAMILY_NAME: u16 = 2;
        let mut family = None;
        ask_of(libc::NETLINK_GENERIC, CONTROL, false, &request(GET_FAMILY, FAMILY_NAME, name), |message| {
            let body = message.get(HEADER..).unwrap_or_default();
            let id = attributes(body).find(|&(kind, _)| kind == FAMILY_ID).and_then(|(_, value)| short(value, 0));
            family = id.map(|id| Self { id, group: group_of(body, group) });
        })?;
        family.ok_or_else(|| io::ErrorKind::Unsupported.into())
    }
}

fn group_of(body: &[u8], wanted: &[u8]) -> Option<u32> {
    /// `CTRL_ATTR_MCAST_GROUPS`, `CTRL_ATTR_MCAST_GRP_NAME`, `CTRL_ATTR_MCAST_GRP_ID`.
    const GROUPS: u16 = 7;
    const NAME: u16 = 1;
    const ID: u16 = 2;
    let (_, groups) = attributes(body).find(|&(kind, _)| kind == GROUPS)?;
    let has_name = |group: &[u8]| attributes(group).any(|(kind, value)| kind == NAME && value == wanted);
    let (_, group) = attributes(groups).find(|(_, group)| has_name(group))?;
    attributes(group).find(|&(kind, _)| kind == ID).and_then(|(_, value)| number(value, 0))
}

/// Builds a generic netlink command with one attribute of type `kind`.
pub(super) fn request(command: u8, kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(HEADER + value.len()).expect("names and numbers are short");
    // Version 1; two reserved bytes.
    let mut bytes = vec![command, 1, 0, 0];
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Receives notifications of `ethtool` and `netdev` about interfaces.
#[derive(Debug)]
pub(super) struct Monitor {
    socket: OwnedFd,
    /// The families' ids. `None` if the kernel lacks the family.
    ethtool: Option<u16>,
    netdev: Option<u16>,
}

impl Monitor {
    /// Opens a socket in the calling thread's network namespace and joins the groups of both families.
    pub(super) fn new() -> io::Result<Self> {
        let socket = socket(libc::NETLINK_GENERIC)?;
        let join = |name: &[u8], group: &[u8]| {
            let family = Family::ask(name, group).ok()?;
            let number = family.group?.cast_signed();
            let (option, value) = (libc::NETLINK_ADD_MEMBERSHIP, (&raw const number).cast());
            // SAFETY: the kernel reads a number of that size.
            let joined =
                unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_NETLINK, option, value, small_size::<i32>()) };
            (joined == 0).then_some(family.id)
        };
        // Linux 5.6 and 6.3.
        let (ethtool, netdev) = (join(b"ethtool\0", b"monitor\0"), join(b"netdev\0", b"mgmt\0"));
        Ok(Self { socket, ethtool, netdev })
    }

    pub(super) const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Parses a message of this type. `None` if it is not about an interface's features.
    pub(super) fn event(&self, kind: u16, body: &[u8]) -> Option<LinkEvent> {
        /// `ETHTOOL_A_HEADER_DEV_INDEX`, the interface index in the header that starts all notifications of `ethtool`.
        const HEADER_INDEX: u16 = 1;
        let (_, first) = attributes(body.get(HEADER..)?).find(|&(kind, _)| kind == 1)?;
        let index = if Some(kind) == self.ethtool {
            attributes(first).find(|&(kind, _)| kind == HEADER_INDEX).and_then(|(_, value)| number(value, 0))
        } else if Some(kind) == self.netdev {
            // `NETDEV_A_DEV_IFINDEX`. The family's messages about queues and pools start with another attribute.
            number(first, 0)
        } else {
            None
        };
        index.filter(|&index| index != 0).map(LinkEvent::Features)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_header_and_an_attribute_of_whole_words() {
        let bytes = request(3, 2, b"netdev\0");
        assert_eq!((number(&bytes, 0), bytes.len()), (Some(u32::from_ne_bytes([3, 1, 0, 0])), 16));
        assert_eq!((short(&bytes, 4), short(&bytes, 6)), (Some(11), Some(2)));
    }

    #[test]
    fn the_number_of_an_interface_is_found_in_both_families_messages() {
        let monitor = Monitor { socket: socket(libc::NETLINK_GENERIC).unwrap(), ethtool: Some(20), netdev: Some(30) };
        let header = request(19, 1, &7u32.to_ne_bytes());
        let mut ethtool = request(19, 1, &header[HEADER..]);
        assert_eq!(monitor.event(20, &ethtool), Some(LinkEvent::Features(7)));
        assert_eq!(monitor.event(30, &request(4, 1, &8u32.to_ne_bytes())), Some(LinkEvent::Features(8)));
        assert_eq!(monitor.event(40, &ethtool), None);
        ethtool.truncate(HEADER + 6);
        assert_eq!(monitor.event(20, &ethtool), None);
    }

    #[test]
    fn a_family_that_there_is_has_a_number_and_another_one_has_none() {
        // The family `nlctrl` exists in every kernel with generic netlink.
        assert_eq!(Family::ask(b"nlctrl\0", b"notify\0").unwrap().id, CONTROL);
        assert!(Family::ask(b"no-such-family\0", b"\0").is_err());
    }
}
