//! Received ARP and neighbour discovery messages: answers requests and learns from answers.
//!
//! The engine has already checked them: senders own the announced addresses, hop limit, lengths and options are valid, and pods send no
//! router messages (CVE-2020-10749). This module checks what matters for answering and learning.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::fields;
use super::icmp::node_address;
use super::message::Message;
use super::neighbour_table::Request;
use super::{Forwarder, MAX_MESSAGES, NeighbourId, Step};
use crate::packet::{self, Arp, Body, Neighbour, Operation, Transport};
use crate::wire::ethernet::{self, Mac};
use crate::wire::icmpv6::{self, ndisc};
use crate::wire::{ipv6, protocol};
use crate::{DropReason, Flow, LinkType, PortId, PortKind, Snapshot};

/// The gateways that pods and the host use by convention: those of the CNI plugin, of `create`, and of the documentation.
const GATEWAYS: (Ipv4Addr, Ipv6Addr) = (Ipv4Addr::new(169, 254, 1, 1), Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));

/// A request for an address's owner: the requesting host, its MAC address and the requested address.
#[derive(Clone, Copy, Debug)]
struct Question {
    asker: IpAddr,
    mac: Mac,
    target: IpAddr,
}

/// A message that announces the MAC address of an address.
#[derive(Clone, Copy, Debug)]
struct Claim {
    address: IpAddr,
    mac: Mac,
    /// Whether the message claims to answer a request.
    is_answer: bool,
}

impl<T> Forwarder<T> {
    /// Handles an ARP or neighbour discovery message. `None` for any other packet.
    pub(super) fn receive(
        &mut self,
        snapshot: &Snapshot,
        frame: &[u8],
        wire_len: usize,
        in_port: PortId,
    ) -> Result<Option<Step>, DropReason> {
        let parsed = packet::parse(LinkType::Ethernet, frame, wire_len);
        match (parsed.body, parsed.source_mac) {
            (Ok(Body::Arp(arp)), Some(source)) => self.receive_arp(snapshot, in_port, frame, source, &arp)?,
            (Ok(Body::Ip(ip)), Some(source)) => match ip.transport {
                Transport::Neighbour(message) => {
                    self.receive_neighbour(snapshot, in_port, frame, source, (message, ip.flow))?;
                }
                _ => return Ok(None),
            },
            _ => return Ok(None),
        }
        Ok(Some(Step::Consumed))
    }

    /// Learns the MAC address behind a pod's or the host's port from a received frame.
    ///
    /// # Errors
    /// [`DropReason::SpoofedSource`] if it is not the pod's MAC address.
    pub(super) fn learn_source(&mut self, in_port: PortId, frame: &[u8]) -> Result<(), DropReason> {
        let side = self.sides.get_mut(in_port.index()).ok_or(DropReason::UnknownPort)?;
        if side.has_sent(frame) {
            return Ok(());
        }
        let mac = fields::source_mac(frame).ok_or(DropReason::LinkTruncated)?;
        if !side.may_send(mac) {
            return Err(DropReason::SpoofedSource);
        }
        if side.learns_from(mac) {
            // The host may change its MAC address. A pod may not.
            let known = self.neighbours.learn_peer(in_port, mac, side.kind == PortKind::Host);
            side.know(known);
            self.counters.learned += 1;
            self.has_news = true;
            if side.kind == PortKind::Pod && known != mac {
                return Err(DropReason::SpoofedSource);
            }
        }
        Ok(())
    }

    pub(super) fn send_request(&mut self, snapshot: &Snapshot, request: Request) {
        let Request { neighbour: NeighbourId { port, address }, to } = request;
        let message = match address {
            IpAddr::V4(target) => {
                let asker =
                    if snapshot.host() == Some(port) { pod_address(snapshot) } else { node_address(snapshot, address) };
                // Without its own address the vswitch sends an ARP probe (RFC 5227 §2.1).
                let sender = match asker {
                    Some(IpAddr::V4(sender)) => sender,
                    _ => Ipv4Addr::UNSPECIFIED,
                };
                Message::ArpRequest { target, sender, to }
            }
            IpAddr::V6(target) => Message::Solicitation { target, to },
        };
        self.counters.requested += 1;
        self.send(port, message);
    }

    /// Announces the conventional gateways on a port in the next [`tick`](Self::tick). A peer that has requested the MAC address of one of
    /// them in vain gets it now, and not with its next request a second later. Other peers ignore the announcement.
    pub fn announce(&mut self, port: PortId) {
        self.unannounced.push_back(port);
    }

    /// Queues the announcements for which the queue of messages has room.
    pub(super) fn announce_gateways(&mut self) {
        let (v4, v6) = GATEWAYS;
        while self.messages.len() + 2 <= MAX_MESSAGES
            && let Some(port) = self.unannounced.pop_front()
        {
            if self.sides.get(port.index()).is_some_and(|side| side.has_link() && side.kind != PortKind::Uplink) {
                self.send(port, Message::ArpReply { about: v4, asker: v4, to: ethernet::BROADCAST });
                self.send(
                    port,
                    Message::Advertisement { about: v6, asker: Ipv6Addr::UNSPECIFIED, to: ethernet::BROADCAST },
                );
            }
        }
    }

    /// Queues an answer, unless the port exceeds its rate limit.
    fn answer(&mut self, port: PortId, message: Message) -> Result<(), DropReason> {
        if !self.limits.allow_answer(port, self.now) {
            return Err(DropReason::NeighbourRate);
        }
        self.counters.answered += 1;
        self.send(port, message);
        Ok(())
    }

    fn send(&mut self, port: PortId, message: Message) {
        let Some(side) = self.sides.get(port.index()).filter(|side| side.has_link()) else { return };
        if self.messages.len() < MAX_MESSAGES {
            self.messages.push_back((port, side.own_mac(), message));
        } else {
            self.counters.messages_lost += 1;
        }
    }

    fn receive_arp(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        frame: &[u8],
        source: Mac,
        arp: &Arp,
    ) -> Result<(), DropReason> {
        let is_uplink = self.is_uplink(in_port)?;
        if !is_uplink {
            if arp.sender_mac != source {
                return Err(DropReason::ArpSpoofed);
            }
            self.learn_source(in_port, frame)?;
        }
        let sender = IpAddr::V4(arp.sender);
        let claim = Claim { address: sender, mac: arp.sender_mac, is_answer: arp.operation == Operation::Reply };
        if is_uplink {
            self.learn_neighbour(snapshot, in_port, claim);
        }
        let question = Question { asker: sender, mac: source, target: arp.target.into() };
        if arp.operation == Operation::Request && self.answers(snapshot, in_port, &question) {
            self.answer(in_port, Message::ArpReply { about: arp.target, asker: arp.sender, to: source })?;
        }
        Ok(())
    }

    fn receive_neighbour(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        frame: &[u8],
        source: Mac,
        (message, flow): (Neighbour, Flow),
    ) -> Result<(), DropReason> {
        let is_uplink = self.is_uplink(in_port)?;
        let bytes = checked_message(frame, &flow)?;
        let named = ndisc::Message::link_layer_option(bytes);
        if !is_uplink {
            if named.is_some_and(|named| named != source) {
                return Err(DropReason::NdSpoofed);
            }
            self.learn_source(in_port, frame)?;
        }
        match (message, flow.src) {
            (Neighbour::Solicitation(target), IpAddr::V6(asker)) => {
                let question = Question { asker: flow.src, mac: source, target: target.into() };
                if self.answers(snapshot, in_port, &question) {
                    self.answer(in_port, Message::Advertisement { about: target, asker, to: named.unwrap_or(source) })?;
                }
            }
            (Neighbour::Advertisement(target), _) if is_uplink => {
                let is_answer = bytes[4] & ndisc::flags::SOLICITED != 0;
                let claim = Claim { address: target.into(), mac: named.unwrap_or(source), is_answer };
                self.learn_neighbour(snapshot, in_port, claim);
            }
            // Router messages: the vswitch neither uses other routers nor announces itself.
            _ => {}
        }
        Ok(())
    }

    /// Learns a neighbour's MAC address if a request was open. Requests it again if an unsolicited claim contradicts the table.
    fn learn_neighbour(&mut self, snapshot: &Snapshot, port: PortId, claim: Claim) {
        let own_mac = self.sides.get(port.index()).map(super::Side::own_mac);
        if !fields::is_routable(claim.address) || !ethernet::is_station(claim.mac) || own_mac == Some(claim.mac) {
            return;
        }
        let neighbour = NeighbourId { port, address: claim.address };
        if claim.is_answer && self.neighbours.confirm(&neighbour, claim.mac, self.now) {
            self.counters.learned += 1;
            return;
        }
        self.counters.unsolicited += u64::from(claim.is_answer);
        let contradicts = self.view.load().get(&neighbour).is_some_and(|known| known.mac != claim.mac);
        if contradicts && let Some(request) = self.neighbours.reverify(neighbour, claim.mac, self.now) {
            self.send_request(snapshot, request);
        }
    }

    /// Whether the vswitch answers a request: on the uplink for addresses of this node, on other ports for every address except the asker's
    /// own. A probe without sender address tests whether an address is free. It is answered only if another owner is known, because a pod's
    /// link-local address is known to the pod alone.
    fn answers(&self, snapshot: &Snapshot, in_port: PortId, question: &Question) -> bool {
        let &Question { asker, mac, target } = question;
        let (Some(side), Some(port)) = (self.sides.get(in_port.index()), snapshot.port(in_port)) else { return false };
        if !fields::is_routable(target) || !ethernet::is_station(mac) || asker == target {
            return false;
        }
        if target == IpAddr::V6(ipv6::link_local(side.own_mac())) {
            return true;
        }
        let owner = snapshot.owner(target);
        match port.kind {
            PortKind::Uplink => owner.is_some() || port.addresses.contains(&target),
            _ if owner == Some(in_port) => false,
            _ => owner.is_some() || !asker.is_unspecified(),
        }
    }

    fn is_uplink(&self, port: PortId) -> Result<bool, DropReason> {
        let side = self.sides.get(port.index()).ok_or(DropReason::UnknownPort)?;
        Ok(side.kind == PortKind::Uplink)
    }
}

/// Returns the neighbour discovery message in a frame. It must directly follow the IPv6 header: extension headers are only used for evasion
/// (RFC 6980 prohibits fragments). Its checksum is verified (RFC 4861 §7.1).
fn checked_message<'a>(frame: &'a [u8], flow: &Flow) -> Result<&'a [u8], DropReason> {
    let (IpAddr::V6(src), IpAddr::V6(dst)) = (flow.src, flow.dst) else { return Err(DropReason::NdMalformed) };
    let bytes = frame.get(ethernet::HEADER_LEN..).ok_or(DropReason::NdMalformed)?;
    let packet = ipv6::Packet::new_checked(bytes).map_err(|_| DropReason::NdMalformed)?;
    let message = bytes.get(ipv6::HEADER_LEN..packet.total_len()).ok_or(DropReason::NdMalformed)?;
    let is_right = packet.next_header() == protocol::ICMPV6
        && icmpv6::Message::new_checked(message).is_ok_and(|message| message.has_right_checksum(src, dst));
    if is_right { Ok(message) } else { Err(DropReason::NdMalformed) }
}

/// Returns a pod's IPv4 address, as the sender of requests to the node. The node ignores requests from its own addresses. It answers probes
/// only for that interface's addresses, not for those of other interfaces such as node-local DNS.
fn pod_address(snapshot: &Snapshot) -> Option<IpAddr> {
    let pods = snapshot.ports().iter().filter(|port| port.kind == PortKind::Pod);
    pods.flat_map(|port| &port.addresses).copied().find(IpAddr::is_ipv4)
}
