//! Network interfaces over rtnetlink: create, find, configure, delete.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};

use super::mac::Mac;
use super::netlink::Netlink;

/// An interface as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) mac: Option<Mac>,
    pub(super) mtu: u32,
    pub(super) is_up: bool,
    /// Whether the kernel sends on the interface: both ends are up, and the kernel has propagated the carrier.
    pub(super) is_running: bool,
    pub(super) alias: Option<String>,
    pub(super) is_veth: bool,
    /// For a veth: the index of its peer in the peer's namespace. `None` for other interfaces.
    pub(super) peer: Option<u32>,
}

impl Link {
    fn of(message: RouteNetlinkMessage) -> Option<Self> {
        let RouteNetlinkMessage::NewLink(message) = message else { return None };
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            mac: None,
            mtu: 0,
            is_up: message.header.flags.contains(LinkFlags::Up),
            is_running: message.header.flags.contains(LinkFlags::Running),
            alias: None,
            is_veth: false,
            peer: None,
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Address(bytes) => link.mac = bytes.try_into().ok().map(Mac),
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::IfAlias(alias) => link.alias = Some(alias),
                LinkAttribute::Link(peer) => link.peer = Some(peer),
                LinkAttribute::LinkInfo(infos) => link.is_veth |= infos.contains(&LinkInfo::Kind(InfoKind::Veth)),
                _ => {}
            }
        }
        Some(link)
    }
}

/// The two ends of a new veth.
#[derive(Debug)]
pub(super) struct Veth<'a> {
    /// Names of the two ends, the node's first.
    pub(super) names: [&'a str; 2],
    /// MAC addresses, in the same order.
    pub(super) macs: [Mac; 2],
    pub(super) mtu: u32,
    /// The container's network namespace.
    pub(super) netns: BorrowedFd<'a>,
}

impl Netlink {
    /// Creates a veth with one end in the socket's namespace and the other in the container's. Both ends are down.
    pub(super) fn make_veth(&mut self, veth: &Veth<'_>) -> io::Result<()> {
        let end = |at: usize| {
            let mut message = LinkMessage::default();
            message.attributes = vec![
                LinkAttribute::IfName(veth.names[at].to_owned()),
                LinkAttribute::Address(veth.macs[at].0.to_vec()),
                LinkAttribute::Mtu(veth.mtu),
            ];
            message
        };
        let [mut node, mut container] = [0, 1].map(end);
        container.attributes.push(LinkAttribute::NetNsFd(veth.netns.as_raw_fd()));
        let peer = InfoData::Veth(InfoVeth::Peer(container));
        node.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(peer)]));
        self.change(RouteNetlinkMessage::NewLink(node), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Returns the interface with this name. `None` if it does not exist.
    pub(super) fn link(&mut self, name: &str) -> io::Result<Option<Link>> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.one_link(message)
    }

    /// Returns the interface with this index. `None` if it does not exist.
    pub(super) fn link_numbered(&mut self, index: u32) -> io::Result<Option<Link>> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.one_link(message)
    }

    fn one_link(&mut self, message: LinkMessage) -> io::Result<Option<Link>> {
        match self.get(RouteNetlinkMessage::GetLink(message)) {
            Ok(answer) => Ok(Link::of(answer)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn links(&mut self) -> io::Result<Vec<Link>> {
        let answers = self.list(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
        Ok(answers.into_iter().filter_map(Link::of).collect())
    }

    pub(super) fn set_alias(&mut self, index: u32, alias: &str) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::IfAlias(alias.to_owned()));
        self.change(RouteNetlinkMessage::SetLink(message), 0)
    }

    pub(super) fn set_up(&mut self, index: u32, up: bool) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
        message.header.change_mask = LinkFlags::Up;
        self.change(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Deletes an interface, and a veth's peer with it. Returns false if it does not exist.
    pub(super) fn delete_link(&mut self, index: u32) -> io::Result<bool> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        match self.change(RouteNetlinkMessage::DelLink(message), 0) {
            Ok(()) => Ok(true),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn is_missing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}
