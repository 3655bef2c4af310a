//! A packet with the key of a session, and the session's flow as the tables judge it.

use bulkhead_classifier::{Key as PolicyKey, protocol};

use super::Worker;
use crate::packet::{Ip, TcpFlags, query};
use crate::session::{Direction, Key, Slot};
use crate::translations::TranslatedError;
use crate::{Flow, PortId, PortKind, Snapshot};

/// A packet with the key of a session. It belongs to the session only if it arrives on the session's port.
pub(super) struct Claim {
    pub(super) slot: Slot,
    pub(super) key: Key,
    pub(super) hash: u64,
    /// Hash of the packet's own key. For an ICMP error, hash of the quoted packet's key.
    pub(super) wire_hash: u64,
    pub(super) direction: Direction,
    /// The session's flow in its forward direction.
    pub(super) forward: Flow,
    pub(super) hop_limit: u8,
    pub(super) flags: Option<TcpFlags>,
    /// `None` for a packet that is no ICMP error. For an ICMP error, `Some` of its translation, which is `None` if nothing is translated.
    pub(super) error: Option<Option<TranslatedError>>,
}

impl Worker {
    /// Creates the [`Claim`] of a packet whose key is that of the session in this slot.
    pub(super) fn claim(&self, slot: Slot, direction: Direction, ip: &Ip, wire_hash: u64) -> Claim {
        let entry = self.sessions.entry(slot);
        let forward = self.forward_flow(slot, direction, &ip.flow);
        let (key, flags) = (entry.key(), ip.transport.flags());
        let hash = if entry.is_translated() { self.sessions.hash(&key) } else { wire_hash };
        Claim { slot, key, hash, wire_hash, direction, forward, hop_limit: ip.hop_limit, flags, error: None }
    }

    /// Returns the flow that the tables judge for a session: the forward direction of the packet `flow`, which has this direction, with the
    /// client and the backend of a translated session, and the first message of an ICMP session.
    pub(super) fn forward_flow(&self, slot: Slot, direction: Direction, flow: &Flow) -> Flow {
        let forward = match (self.sessions.true_ends(slot), direction) {
            (Some([(src, sport), (dst, dport)]), _) => Flow { src, dst, sport, dport, ..*flow },
            (None, Direction::Forward) => *flow,
            (None, Direction::Reply) => turned(flow),
        };
        Flow { icmp: self.sessions.message(slot), ..forward }
    }

    /// Whether an ICMP message is not what the session in this slot consists of, so that the tables must judge the message itself: its code
    /// differs from that of the session's first message, or it is a request against the session's direction. False for other protocols.
    pub(super) fn is_other_message(&self, slot: Slot, direction: Direction, flow: &Flow) -> bool {
        flow.icmp.is_some_and(|(kind, code)| match direction {
            Direction::Forward => self.sessions.message(slot) != Some((kind, code)),
            Direction::Reply => query::is_request(flow.protocol, kind),
        })
    }

    /// Returns the port that receives the session's forward direction in this snapshot, and its kind. Port ids may have changed, but not
    /// the kind, so a session of the uplink never becomes one of the node. `None` if the port no longer exists.
    pub(super) fn forward_in_port(
        &self,
        snapshot: &Snapshot,
        slot: Slot,
        forward: &Flow,
    ) -> Option<(PortId, PortKind)> {
        let same_kind = || match self.sessions.entry(slot).in_kind() {
            PortKind::Pod => None,
            PortKind::Uplink => snapshot.uplink(),
            PortKind::Host => snapshot.host(),
        };
        let port = snapshot.owner(forward.src).or_else(same_kind)?;
        Some((port, snapshot.port(port)?.kind))
    }
}

impl Claim {
    /// Whether a packet of the session may arrive on port `arrived`. ICMP errors may also come from the node, a router on the path, and so may
    /// all packets that are expected on an uplink that shares the host port's interface.
    pub(super) fn fits(&self, snapshot: &Snapshot, arrived: PortId, expected: PortId) -> bool {
        let may_pass_node = || self.error.is_some() || snapshot.shared_uplink() == Some(expected);
        arrived == expected || (snapshot.host() == Some(arrived) && may_pass_node())
    }
}

/// Returns the key that the tables judge. The port of an ICMP message is its type and code, as in the tables' rules. An echo identifier must
/// never match a rule's port.
pub(super) fn policy_key(flow: &Flow) -> PolicyKey {
    let dport = flow.icmp.map_or(flow.dport, |(kind, code)| u16::from_be_bytes([kind, code]));
    PolicyKey::new(flow.src, flow.dst, flow.protocol, flow.sport, dport)
}

/// Returns the flow with this key: the reverse of [`policy_key`].
pub(super) fn flow_of(key: &PolicyKey) -> Flow {
    let (src, dst, protocol, port) = (key.src(), key.dst(), key.protocol(), key.dst_port());
    let is_icmp = protocol == if src.is_ipv4() { protocol::ICMP } else { protocol::ICMPV6 };
    let (dport, icmp) = if is_icmp { (0, Some(port.to_be_bytes().into())) } else { (port, None) };
    Flow { src, dst, protocol, sport: key.src_port(), dport, icmp }
}

/// Returns the flow of the opposite direction.
pub(super) fn turned(flow: &Flow) -> Flow {
    Flow { src: flow.dst, dst: flow.src, sport: flow.dport, dport: flow.sport, ..*flow }
}
