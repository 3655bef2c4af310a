//! Watches the interfaces of a network namespace with rtnetlink.
//! Source: `include/uapi/linux/{netlink,rtnetlink,if_link,ethtool_netlink,netdev}.h`, netlink(7).
//!
//! The kernel's messages contain an interface's state, so a reader need not query it. In a storm the kernel drops messages and
//! reports that ([`LinkEvent::Lost`]); the reader then calls [`links`](super::links).
//!
//! rtnetlink does not report changes of queues and XDP features. The generic netlink families `ethtool` and `netdev` do, if the kernel has
//! them ([`LinkEvent::Features`]).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::link_status::{LinkEvent, LinkStatus};
use super::netlink::{self, number, short};
use super::wait::{PollSet, poll};
use super::{generic, small_size};

/// `RTMGRP_LINK` and `RTMGRP_TC`, which `libc` has as `i32`.
const GROUPS: u32 = 1 | 1 << 3;
/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Receive buffer in bytes. A message about an interface with many virtual functions can have tens of KiB.
const BUFFER: usize = 1 << 16;
/// Socket buffer in bytes, for several hundred interfaces that appear at once. The kernel's default holds about 100 messages.
const WAITING: i32 = 4 << 20;
/// Maximum messages per call of [`LinkWatch::wait`], so that the reader can act during a storm.
const MOST: usize = 4096;

/// Receives [`LinkEvent`]s of one network namespace.
#[derive(Debug)]
pub struct LinkWatch {
    links: OwnedFd,
    features: Option<generic::Monitor>,
}

impl LinkWatch {
    /// Starts watching the calling thread's network namespace. Any thread can use the watch.
    ///
    /// # Errors
    /// If the process has too many open descriptors, or the kernel refuses.
    pub fn new() -> io::Result<Self> {
        let socket = listen(GROUPS)?;
        // Old kernels lack the generic netlink families; a reader that polls periodically still sees those changes.
        Ok(Self { links: socket, features: generic::Monitor::new().ok() })
    }

    /// Waits for events and returns all pending ones, in order.
    ///
    /// # Errors
    /// If the socket fails permanently.
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

    /// Returns the pending events without waiting.
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

/// Opens a socket that receives rtnetlink's multicast groups of the calling thread's network namespace.
pub(super) fn listen(groups: u32) -> io::Result<OwnedFd> {
    let socket = netlink::socket(libc::NETLINK_ROUTE)?;
    let size = WAITING;
    // SAFETY: the kernel reads a number of that size. Without CAP_NET_ADMIN it keeps its default size.
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

/// Discards all pending messages of a socket. Returns their number.
pub(super) fn drain(socket: &OwnedFd) -> io::Result<usize> {
    let (mut events, mut buffer, mut told) = (Vec::new(), vec![0; BUFFER], 0);
    while told < MOST && take(socket, &mut buffer, &mut events, |_, _| None)? {
        told += 1;
    }
    Ok(told)
}

/// Receives one datagram, or the report that the kernel dropped some. Returns false if nothing is pending.
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
            // With `MSG_TRUNC` the length exceeds the buffer if the datagram did not fit.
            None => events.push(LinkEvent::Lost),
        }
        return Ok(true);
    }
}

/// Iterates over the types and bodies of a datagram's messages.
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
        // A bridge reports a released port with the same type and another family.
        libc::RTM_DELLINK if body.first().is_some_and(|&family| i32::from(family) == libc::AF_UNSPEC) => {
            number(body, 4).map(LinkEvent::Removed)
        }
        libc::RTM_DELTFILTER | libc::RTM_DELQDISC => number(body, 4).map(LinkEvent::Features),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::link_status::{IFLA_ALT_IFNAME, IFLA_LINK_NETNSID, IFLA_PROP_LIST};
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
            has_neighbours: true,
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
    fn watching_needs_no_privileges_and_asking_does_not_wait() {
        let watch = LinkWatch::new().unwrap();
        // The number of events depends on the machine.
        watch.poll().unwrap();
    }
}
