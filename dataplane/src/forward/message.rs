//! Requests and answers of ARP (RFC 826) and neighbour discovery (RFC 4861), written as whole frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::rewrite;
use super::wire::{self, BROADCAST, ETHERNET_LEN, Mac, ethertype};
use crate::packet::checksum;

/// The longest message, in bytes: neighbour discovery with its one option.
pub const MESSAGE_MAX: usize = ETHERNET_LEN + IPV6_LEN + ND_LEN as usize;

const IPV6_LEN: usize = 40;
/// Type, code, checksum, flags, target, and the option with a link-layer address.
const ND_LEN: u8 = 32;
/// For 6-byte hardware and 4-byte protocol addresses.
const ARP_LEN: usize = 28;
/// Hardware type Ethernet, protocol type IPv4, address lengths.
const ARP_TYPES: [u8; 6] = [0, 1, 8, 0, 6, 4];
/// The shortest frame of IEEE 802.3, checksum not counted. Not every driver pads what it is given.
pub(super) const SHORTEST: usize = 60;
/// No router forwards it (RFC 4861 §3.1).
const ND_HOP_LIMIT: u8 = 255;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// "I am a router, you asked me, believe me": the vswitch is the router, and what it says replaces what its own link
/// said before, such as the MAC address of an interface that is gone.
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// ff02::1, all nodes on the link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// A message to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Who has this address?
    ArpRequest { target: Ipv4Addr, sender: Ipv4Addr, to: Option<Mac> },
    /// The address is here.
    ArpReply { about: Ipv4Addr, asker: Ipv4Addr, to: Mac },
    /// Who has this address?
    Solicitation { target: Ipv6Addr, to: Option<Mac> },
    /// The address is here. The unspecified asker is one that tests whether an address is free.
    Advertisement { about: Ipv6Addr, asker: Ipv6Addr, to: Mac },
}

impl Message {
    /// Writes the frame, from the vswitch's own MAC address. Returns its length; none when `into` is shorter than
    /// [`MESSAGE_MAX`].
    pub(super) fn write(self, own: Mac, into: &mut [u8]) -> Option<usize> {
        let frame = into.first_chunk_mut::<MESSAGE_MAX>()?;
        frame.fill(0);
        Some(match self {
            Self::ArpRequest { target, sender, to } => {
                let to = to.unwrap_or(BROADCAST);
                write_arp(frame, 1, (own, sender), ([0; 6], target), to)
            }
            Self::ArpReply { about, asker, to } => write_arp(frame, 2, (own, about), (to, asker), to),
            Self::Solicitation { target, to } => {
                let group = wire::solicited_node(target);
                let (dst, mac) = to.map_or((group, wire::group_mac(group)), |mac| (target, mac));
                write_nd(frame, own, mac, [SOLICITATION, 0, 1], (wire::link_local(own), dst), target)
            }
            Self::Advertisement { about, asker, to } if asker.is_unspecified() => {
                // RFC 4861 §7.2.4: nobody to answer to, so everybody is told.
                let _ = to;
                let kind = [ADVERTISEMENT, ROUTER | OVERRIDE, 2];
                write_nd(frame, own, wire::group_mac(ALL_NODES), kind, (about, ALL_NODES), about)
            }
            Self::Advertisement { about, asker, to } => {
                write_nd(frame, own, to, [ADVERTISEMENT, ROUTER | SOLICITED | OVERRIDE, 2], (about, asker), about)
            }
        })
    }
}

fn write_ethernet(frame: &mut [u8], destination: Mac, source: Mac, ethertype: u16) {
    frame[..12].copy_from_slice(&rewrite::addresses(destination, source));
    frame[12..ETHERNET_LEN].copy_from_slice(&ethertype.to_be_bytes());
}

fn write_arp(
    frame: &mut [u8; MESSAGE_MAX],
    operation: u8,
    sender: (Mac, Ipv4Addr),
    target: (Mac, Ipv4Addr),
    destination: Mac,
) -> usize {
    write_ethernet(frame, destination, sender.0, ethertype::ARP);
    let message = &mut frame[ETHERNET_LEN..ETHERNET_LEN + ARP_LEN];
    message[..6].copy_from_slice(&ARP_TYPES);
    message[7] = operation;
    message[8..14].copy_from_slice(&sender.0);
    message[14..18].copy_from_slice(&sender.1.octets());
    message[18..24].copy_from_slice(&target.0);
    message[24..28].copy_from_slice(&target.1.octets());
    SHORTEST
}

/// `kind`: the message's type, its flags, and the type of the option that holds the sender's MAC address.
fn write_nd(
    frame: &mut [u8; MESSAGE_MAX],
    own: Mac,
    destination: Mac,
    kind: [u8; 3],
    (src, dst): (Ipv6Addr, Ipv6Addr),
    target: Ipv6Addr,
) -> usize {
    write_ethernet(frame, destination, own, ethertype::IPV6);
    let (ip, message) = frame[ETHERNET_LEN..].split_at_mut(IPV6_LEN);
    let [message_type, flags, option] = kind;
    (message[0], message[4]) = (message_type, flags);
    message[8..24].copy_from_slice(&target.octets());
    // In units of 8 bytes.
    (message[24], message[25]) = (option, 1);
    message[26..32].copy_from_slice(&own);
    (ip[0], ip[6], ip[7]) = (0x60, ICMPV6, ND_HOP_LIMIT);
    ip[5] = ND_LEN;
    ip[8..24].copy_from_slice(&src.octets());
    ip[24..40].copy_from_slice(&dst.octets());
    let sum = icmpv6_checksum(src, dst, message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    MESSAGE_MAX
}

/// The checksum over pseudo-header and segment (RFC 9293 §3.1, RFC 8200 §8.1). 0 for a segment that has its right checksum
/// in it. Both addresses are of one family.
pub(super) fn transport_checksum(src: IpAddr, dst: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    let [high, low] = u16::try_from(segment.len()).unwrap_or(u16::MAX).to_be_bytes();
    let rest = [0, protocol, high, low];
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => checksum::internet(&[&src.octets(), &dst.octets(), &rest, segment]),
        (IpAddr::V6(src), IpAddr::V6(dst)) => checksum::internet(&[&src.octets(), &dst.octets(), &rest, segment]),
        _ => 0,
    }
}

/// The checksum over pseudo-header and message (RFC 8200 §8.1). 0 for a message that has its right checksum in it.
pub(super) fn icmpv6_checksum(src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) -> u16 {
    transport_checksum(src.into(), dst.into(), ICMPV6, message)
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
        assert_eq!((frame.len(), &frame[..6], &frame[6..12]), (60, &BROADCAST[..], &OWN[..]));
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

    /// Source, destination, and the ICMPv6 message; checksums, hop limit and lengths are right.
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
            assert_eq!(src, wire::link_local(OWN));
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
        assert_eq!((dst, &frame[..6]), (ALL_NODES, &[0x33, 0x33, 0, 0, 0, 1][..]));
        assert_eq!(message[4], 0xa0);
    }

    #[test]
    fn a_buffer_that_is_too_short_is_left_alone() {
        let message = Message::Solicitation { target: PEER_IP, to: None };
        assert_eq!(message.write(OWN, &mut [0; MESSAGE_MAX - 1]), None);
    }
}
