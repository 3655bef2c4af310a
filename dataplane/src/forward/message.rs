//! Writes requests and answers of ARP (RFC 826) and neighbour discovery (RFC 4861) as whole frames.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::wire::ethernet::{self, Mac, ethertype};
use crate::wire::icmpv6::ndisc;
use crate::wire::{arp, ipv6, protocol};

/// Maximum length of a message in bytes: neighbour discovery with one option.
pub const MESSAGE_MAX: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN + ndisc::MESSAGE_LEN;

/// Router and override flags: the vswitch is a router, and its answers replace earlier ones, such as the MAC address of a removed
/// interface.
const FLAGS: u8 = ndisc::flags::ROUTER | ndisc::flags::OVERRIDE;

/// An ARP or neighbour discovery message of the vswitch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Requests the MAC address of `target`. `to` is the MAC address to probe, `None` for a broadcast.
    ArpRequest { target: Ipv4Addr, sender: Ipv4Addr, to: Option<Mac> },
    /// Announces to the asker that `about` is reached at the vswitch's MAC address.
    ArpReply { about: Ipv4Addr, asker: Ipv4Addr, to: Mac },
    /// Requests the MAC address of `target`. `to` is the MAC address to probe, `None` for a multicast.
    Solicitation { target: Ipv6Addr, to: Option<Mac> },
    /// Announces to the asker that `about` is at the vswitch. An unspecified asker is testing whether the address is free.
    Advertisement { about: Ipv6Addr, asker: Ipv6Addr, to: Mac },
}

impl Message {
    /// Writes the frame with the vswitch's own MAC address. Returns its length. `None` if `into` is shorter than [`MESSAGE_MAX`].
    pub(super) fn write(self, own: Mac, into: &mut [u8]) -> Option<usize> {
        let frame = into.first_chunk_mut::<MESSAGE_MAX>()?;
        frame.fill(0);
        Some(match self {
            Self::ArpRequest { target, sender, to } => {
                let operation = arp::Operation::Request;
                let message = arp::Repr { operation, sender_mac: own, sender, target_mac: [0; 6], target };
                write_arp(frame, &message, to.unwrap_or(ethernet::BROADCAST))
            }
            Self::ArpReply { about, asker, to } => {
                let operation = arp::Operation::Reply;
                let message = arp::Repr { operation, sender_mac: own, sender: about, target_mac: to, target: asker };
                write_arp(frame, &message, to)
            }
            Self::Solicitation { target, to } => {
                let group = ipv6::solicited_node(target);
                let (dst, mac) = to.map_or((group, ipv6::group_mac(group)), |mac| (target, mac));
                let message = ndisc::Message::Solicitation { target, source: own };
                write_nd(frame, own, mac, (ipv6::link_local(own), dst), &message)
            }
            Self::Advertisement { about, asker, .. } if asker.is_unspecified() => {
                // RFC 4861 §7.2.4: without an asker the answer goes to all nodes.
                let message = ndisc::Message::Advertisement { flags: FLAGS, target: about, at: own };
                write_nd(frame, own, ipv6::group_mac(ipv6::ALL_NODES), (about, ipv6::ALL_NODES), &message)
            }
            Self::Advertisement { about, asker, to } => {
                let flags = FLAGS | ndisc::flags::SOLICITED;
                let message = ndisc::Message::Advertisement { flags, target: about, at: own };
                write_nd(frame, own, to, (about, asker), &message)
            }
        })
    }
}

fn write_arp(frame: &mut [u8; MESSAGE_MAX], message: &arp::Repr, destination: Mac) -> usize {
    let ethernet = ethernet::Repr { destination, source: message.sender_mac, ethertype: ethertype::ARP };
    message.emit(ethernet.emit(frame));
    ethernet::MIN_FRAME_LEN
}

fn write_nd(
    frame: &mut [u8; MESSAGE_MAX],
    own: Mac,
    to: Mac,
    (source, destination): (Ipv6Addr, Ipv6Addr),
    message: &ndisc::Message,
) -> usize {
    let ethernet = ethernet::Repr { destination: to, source: own, ethertype: ethertype::IPV6 };
    let ip = ipv6::Repr {
        source,
        destination,
        next_header: protocol::ICMPV6,
        hop_limit: ndisc::HOP_LIMIT,
        payload_len: ndisc::MESSAGE_LEN,
    };
    message.emit(source, destination, ip.emit(ethernet.emit(frame)));
    MESSAGE_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{self, Body, Neighbour, Operation, Transport};
    use crate::{DropReason, LinkType};
    use etherparse::{Icmpv6Slice, NetSlice, SlicedPacket, TransportSlice};

    const OWN: Mac = [2, 0, 0, 0, 0, 0xfe];
    const PEER: Mac = [2, 0, 0, 0, 0, 1];
    const PEER_IP: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    const OTHER_IP: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

    fn written(message: Message) -> Vec<u8> {
        let mut frame = vec![0xaa; 100];
        let len = message.write(OWN, &mut frame).unwrap();
        assert!(frame[len.max(MESSAGE_MAX)..].iter().all(|&byte| byte == 0xaa));
        frame.truncate(len);
        frame
    }

    fn parsed(frame: &[u8]) -> Result<Body, DropReason> {
        packet::parse(LinkType::Ethernet, frame, frame.len()).body
    }

    #[test]
    fn rfc_826_request_and_reply_name_who_asks_and_who_is_asked_for() {
        let (target, sender) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(192, 168, 0, 1));
        let frame = written(Message::ArpRequest { target, sender, to: None });
        assert_eq!((frame.len(), &frame[..6], &frame[6..12]), (60, &ethernet::BROADCAST[..], &OWN[..]));
        let Ok(Body::Arp(arp)) = parsed(&frame) else { panic!("ARP") };
        assert_eq!((arp.operation, arp.sender_mac), (Operation::Request, OWN));
        assert_eq!((arp.sender, arp.target), (sender, target));
        let frame = written(Message::ArpReply { about: target, asker: sender, to: PEER });
        assert_eq!((&frame[..6], &frame[32..38]), (&PEER[..], &PEER[..]));
        let Ok(Body::Arp(arp)) = parsed(&frame) else { panic!("ARP") };
        assert_eq!((arp.operation, arp.sender_mac), (Operation::Reply, OWN));
        assert_eq!((arp.sender, arp.target), (target, sender));
        let frame = written(Message::ArpRequest { target, sender, to: Some(PEER) });
        assert_eq!(frame[..6], PEER, "a probe goes to the one who had the address last");
    }

    /// Returns source, destination and ICMPv6 message, after checking checksums, hop limit and lengths.
    fn nd(frame: &[u8]) -> (Ipv6Addr, Ipv6Addr, Vec<u8>) {
        let sliced = SlicedPacket::from_ethernet(frame).unwrap();
        let Some(NetSlice::Ipv6(ip)) = &sliced.net else { panic!("IPv6") };
        let Some(TransportSlice::Icmpv6(icmp)) = &sliced.transport else { panic!("ICMPv6") };
        let header = ip.header();
        assert_eq!((header.hop_limit(), header.next_header().0), (255, 58));
        let message = Icmpv6Slice::from_slice(icmp.slice()).unwrap();
        assert!(message.is_checksum_valid(header.source(), header.destination()));
        (header.source_addr(), header.destination_addr(), icmp.slice().to_vec())
    }

    #[test]
    fn rfc_4861_a_solicitation_goes_to_the_targets_group_or_to_whom_it_probes() {
        for to in [None, Some(PEER)] {
            let frame = written(Message::Solicitation { target: PEER_IP, to });
            let (src, dst, message) = nd(&frame);
            assert_eq!(src, ipv6::link_local(OWN));
            assert_eq!(dst, if to.is_some() { PEER_IP } else { "ff02::1:ff00:1".parse().unwrap() });
            assert_eq!(frame[..6], to.unwrap_or([0x33, 0x33, 0xff, 0, 0, 1]));
            assert_eq!((&message[24..26], &message[26..]), (&[1, 1][..], &OWN[..]));
            let Ok(Body::Ip(ip)) = parsed(&frame) else { panic!("IP") };
            assert_eq!(ip.transport, Transport::Neighbour(Neighbour::Solicitation(PEER_IP)));
        }
    }

    #[test]
    fn rfc_4861_an_advertisement_says_router_solicited_override_and_the_mac() {
        let frame = written(Message::Advertisement { about: OTHER_IP, asker: PEER_IP, to: PEER });
        let (src, dst, message) = nd(&frame);
        assert_eq!((src, dst, &frame[..6]), (OTHER_IP, PEER_IP, &PEER[..]));
        assert_eq!((message[4], &message[24..26], &message[26..]), (0xe0, &[2, 1][..], &OWN[..]));
        let Ok(Body::Ip(ip)) = parsed(&frame) else { panic!("IP") };
        assert_eq!(ip.transport, Transport::Neighbour(Neighbour::Advertisement(OTHER_IP)));
    }

    #[test]
    fn an_address_that_is_taken_is_told_to_everybody_and_not_as_solicited() {
        let frame = written(Message::Advertisement { about: OTHER_IP, asker: Ipv6Addr::UNSPECIFIED, to: PEER });
        let (_, dst, message) = nd(&frame);
        assert_eq!((dst, &frame[..6]), (ipv6::ALL_NODES, &[0x33, 0x33, 0, 0, 0, 1][..]));
        assert_eq!(message[4], 0xa0);
    }

    #[test]
    fn a_buffer_that_is_too_short_is_left_alone() {
        let message = Message::Solicitation { target: PEER_IP, to: None };
        assert_eq!(message.write(OWN, &mut [0; MESSAGE_MAX - 1]), None);
    }
}
