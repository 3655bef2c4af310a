//! The interfaces of a network namespace, and being told when one comes, goes or changes: rtnetlink.
//! Source: `include/uapi/linux/{netlink,rtnetlink,if_link,ethtool_netlink,netdev}.h`, netlink(7).
//!
//! The kernel's messages say what an interface is like, so a reader need not ask again. Messages can be lost: when many come
//! at once the kernel leaves some out and says so ([`LinkEvent::Lost`]); then [`links`] tells how things are.
//!
//! Two facts are not in rtnetlink's messages: the number of queues and what an interface takes from XDP programs. The
//! families `ethtool` and `netdev` of generic netlink say when those change, and so they are listened to as well, where the
//! kernel has them ([`LinkEvent::Features`]).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::netlink::{self, all_links, ask, attributes, is_veth_info, number, short};
use super::wait::{PollSet, poll};
use super::{generic, small_size};

/// `RTMGRP_LINK` and `RTMGRP_TC`, which `libc` has as `i32`.
const GROUPS: u32 = 1 | 1 << 3;
/// Bytes of `struct ifinfomsg`.
const LINK: usize = 16;
/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// A message about an interface with many virtual functions can have tens of KiB.
const BUFFER: usize = 1 << 16;
/// Bytes that may wait to be read: some hundred interfaces that come at once. The kernel's default is for about 100 messages.
const WAITING: i32 = 4 << 20;
/// Messages that one call of [`LinkWatch::wait`] takes, so that a storm does not keep the reader from acting.
const MOST: usize = 4096;

/// `IFLA_PROP_LIST`, `IFLA_ALT_IFNAME`.
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;
/// `IFLA_LINK_NETNSID`: what `IFLA_LINK` numbers is in another namespace.
const IFLA_LINK_NETNSID: u16 = 37;
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
    fn of(message: &[u8]) -> Option<Self> {
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

/// See the module.
#[derive(Debug)]
pub struct LinkWatch {
    links: OwnedFd,
    features: Option<generic::Monitor>,
}

impl LinkWatch {
    /// Watches the interfaces of the calling thread's network namespace, from now on and from whichever thread.
    ///
    /// # Errors
    /// When the process has too many descriptors, or the kernel refuses.
    pub fn new() -> io::Result<Self> {
        let socket = listen(GROUPS)?;
        // An older kernel has neither family; a reader that looks from time to time sees what they would tell.
        Ok(Self { links: socket, features: generic::Monitor::new().ok() })
    }

    /// Waits until the kernel tells something, and answers all that it has told until then, in order.
    ///
    /// # Errors
    /// When the kernel refuses, and would do so again.
    pub fn wait(&self) -> io::Result<Vec<LinkEvent>> {
        let mut events = Vec::new();
        while events.is_empty() {
            let mut set = PollSet::new();
            set.add(self.links.as_raw_fd());
            self.features.iter().for_each(|monitor| set.add(monitor.descriptor()));
            poll(&mut set, u32::MAX)?;
            events = self.poll()?;
        }
        Ok(events)
    }

    /// What the kernel has told so far. Does not wait.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn poll(&self) -> io::Result<Vec<LinkEvent>> {
        let (mut events, mut buffer) = (Vec::new(), vec![0; BUFFER]);
        let mut left = MOST;
        while left > 0 && take(&self.links, &mut buffer, &mut events, rtnetlink_event)? {
            left -= 1;
        }
        if let Some(monitor) = &self.features {
            while left > 0 && take(monitor.socket(), &mut buffer, &mut events, |kind, body| monitor.event(kind, body))?
            {
                left -= 1;
            }
        }
        Ok(events)
    }
}

/// A socket to which rtnetlink tells what changes in these groups, in the calling thread's network namespace.
pub(super) fn listen(groups: u32) -> io::Result<OwnedFd> {
    let socket = netlink::socket(libc::NETLINK_ROUTE)?;
    let size = WAITING;
    // SAFETY: the kernel reads a number of that size. Without CAP_NET_ADMIN it refuses, and its default stays.
    unsafe {
        let value = (&raw const size).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, value, small_size::<i32>());
    }
    // SAFETY: a structure of numbers, for which zeros are values. One of its fields cannot be named.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).map_err(io::Error::other)?;
    address.nl_groups = groups;
    let length = small_size::<libc::sockaddr_nl>();
    // SAFETY: the kernel reads as many bytes as the address has.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Takes all that a socket was told so far, unread. Returns how much that was.
pub(super) fn drain(socket: &OwnedFd) -> io::Result<usize> {
    let (mut events, mut buffer, mut told) = (Vec::new(), vec![0; BUFFER], 0);
    while told < MOST && take(socket, &mut buffer, &mut events, |_, _| None)? {
        told += 1;
    }
    Ok(told)
}

/// Takes one datagram, or what stands for those that were left out. Whether there was one.
fn take(
    socket: &OwnedFd,
    buffer: &mut [u8],
    events: &mut Vec<LinkEvent>,
    event: impl Fn(u16, &[u8]) -> Option<LinkEvent>,
) -> io::Result<bool> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    loop {
        // SAFETY: the kernel writes within the buffer.
        let length = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) };
        let Ok(length) = usize::try_from(length) else {
            match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => continue,
                error if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                error if error.raw_os_error() == Some(libc::ENOBUFS) => events.push(LinkEvent::Lost),
                error => return Err(error),
            }
            return Ok(true);
        };
        match buffer.get(..length) {
            Some(datagram) => events.extend(messages(datagram).filter_map(|(kind, body)| event(kind, body))),
            // `MSG_TRUNC` answers the length of a datagram that did not fit.
            None => events.push(LinkEvent::Lost),
        }
        return Ok(true);
    }
}

/// The messages of a datagram: their types and bodies.
fn messages(mut datagram: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (number(datagram, 0)? as usize, short(datagram, 4)?);
        let body = datagram.get(HEADER..length)?;
        datagram = datagram.get(netlink::aligned(length)..).unwrap_or_default();
        Some((kind, body))
    })
}

fn rtnetlink_event(kind: u16, body: &[u8]) -> Option<LinkEvent> {
    match kind {
        libc::RTM_NEWLINK => LinkStatus::of(body).map(LinkEvent::Changed),
        // As above: a bridge that lets a port go is no interface that goes.
        libc::RTM_DELLINK if body.first().is_some_and(|&family| i32::from(family) == libc::AF_UNSPEC) => {
            number(body, 4).map(LinkEvent::Removed)
        }
        libc::RTM_DELTFILTER | libc::RTM_DELQDISC => number(body, 4).map(LinkEvent::Features),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(netlink::aligned(bytes.len()), 0);
        bytes
    }

    fn message(kind: u16, family: u8, index: u32, flags: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![family, 0, 1, 0];
        body.extend(index.to_ne_bytes());
        body.extend(flags.to_ne_bytes());
        body.extend([0; 4]);
        body.extend(attributes.concat());
        let length = u32::try_from(HEADER + body.len()).unwrap();
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], &body].concat()
    }

    fn events(datagram: &[u8]) -> Vec<LinkEvent> {
        messages(datagram).filter_map(|(kind, body)| rtnetlink_event(kind, body)).collect()
    }

    #[test]
    fn an_interface_is_told_whole_with_its_alternative_names() {
        let attributes = [
            attribute(libc::IFLA_IFNAME, b"p2\0"),
            attribute(libc::IFLA_MTU, &1500u32.to_ne_bytes()),
            attribute(libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 7]),
            attribute(libc::IFLA_LINK, &8u32.to_ne_bytes()),
            attribute(IFLA_PROP_LIST | 0x8000, &attribute(IFLA_ALT_IFNAME, b"enp1s0\0")),
        ];
        let datagram = [
            message(libc::RTM_NEWLINK, 0, 7, 1, &attributes),
            message(libc::RTM_NEWLINK, 7, 8, 1, &attributes),
            message(libc::RTM_NEWLINK, 0, 9, 1, &attributes[..1]),
            message(libc::RTM_DELLINK, 0, 7, 0, &attributes),
            message(libc::RTM_DELLINK, 7, 8, 0, &attributes),
            message(libc::RTM_DELTFILTER, 0, 9, 0, &[]),
            message(libc::RTM_NEWTFILTER, 0, 9, 0, &[]),
        ];
        let names = vec!["p2".to_owned(), "enp1s0".to_owned()];
        let status = LinkStatus {
            index: 7,
            names,
            mac: [2, 0, 0, 0, 0, 7],
            mtu: 1500,
            up: true,
            related: Some(8),
            ..LinkStatus::default()
        };
        assert_eq!(
            events(&datagram.concat()),
            [LinkEvent::Changed(status), LinkEvent::Removed(7), LinkEvent::Features(9)],
            "a bridge's message about its port is not one about an interface, and half a message says nothing"
        );
    }

    #[test]
    fn what_an_interface_belongs_to_in_another_namespace_has_no_number_here() {
        let attributes = [
            attribute(libc::IFLA_IFNAME, b"p2\0"),
            attribute(libc::IFLA_MTU, &1500u32.to_ne_bytes()),
            attribute(libc::IFLA_LINK, &8u32.to_ne_bytes()),
            attribute(IFLA_LINK_NETNSID, &1u32.to_ne_bytes()),
        ];
        let told = events(&message(libc::RTM_NEWLINK, 0, 7, 1, &attributes));
        assert!(matches!(&told[..], [LinkEvent::Changed(LinkStatus { related: None, .. })]), "{told:?}");
    }

    #[test]
    fn a_veth_is_routed_unless_it_is_behind_a_bridge() {
        let is_routed = |more: &[Vec<u8>]| {
            let named = [attribute(libc::IFLA_IFNAME, b"p2\0"), attribute(libc::IFLA_MTU, &1500u32.to_ne_bytes())];
            let told = events(&message(libc::RTM_NEWLINK, 0, 7, 1, &[&named[..], more].concat()));
            let [LinkEvent::Changed(link)] = &told[..] else { panic!("{told:?}") };
            link.is_routed_veth
        };
        let kind = |name: &[u8]| attribute(libc::IFLA_LINKINFO, &attribute(netlink::IFLA_INFO_KIND, name));
        assert!(is_routed(&[kind(b"veth\0")]));
        assert!(!is_routed(&[attribute(libc::IFLA_MASTER, &9u32.to_ne_bytes()), kind(b"veth\0")]));
        assert!(!is_routed(&[kind(b"bridge\0")]) && !is_routed(&[]));
    }

    #[test]
    fn what_is_cut_off_is_left_out() {
        let whole = message(libc::RTM_DELLINK, 0, 7, 0, &[]);
        for length in 0..whole.len() {
            assert_eq!(events(&whole[..length]), [], "{length}");
        }
        assert_eq!(events(&whole), [LinkEvent::Removed(7)]);
    }

    #[test]
    fn the_loopback_interface_is_one_of_them() {
        let all = links().unwrap();
        let lo = all.iter().find(|link| link.names[0] == "lo").unwrap();
        assert!(lo.index > 0 && lo.mtu >= 1280 && lo.mac == [0; 6]);
    }

    #[test]
    fn watching_needs_no_privileges_and_asking_does_not_wait() {
        let watch = LinkWatch::new().unwrap();
        // Whether there was something depends on the machine.
        watch.poll().unwrap();
    }
}
