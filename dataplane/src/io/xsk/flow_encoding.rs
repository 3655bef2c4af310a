//! Encodes flows as the flow cache's map stores them.

use std::net::IpAddr;

use bulkhead_classifier::OriginId;

use super::flow_layout::{FlowKey, FlowValue, action, decisions, key, place, put, value};
use super::flow_translation;
use crate::Flow;
use crate::io::{CachedFlow, FlowStart, Initiator, RENEWED_IN_LAST};

/// Number of low bits of an epoch cell, which count [`FlowCache::moved`](crate::io::FlowCache::moved); the rest is the snapshot's epoch.
pub(super) const MOVES: u32 = 16;

/// Returns the value of a port's epoch cell with which its flows are valid.
const fn epoch(snapshot: u64, moves: u16) -> u64 {
    snapshot << MOVES | moves as u64
}

/// Encodes a flow at the coarse time `now`. `None` if the programs cannot forward it.
pub(super) fn encode(flow: &CachedFlow, now: u64) -> Option<(FlowKey, FlowValue)> {
    let CachedFlow { from, to, ports, epochs, moves, flow: who, received, sent, longest, origin, lease, start, .. } =
        flow;
    let mut key = [0; size_of::<FlowKey>()];
    let version = match (who.src, who.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            put(&mut key, key::SOURCE, &src.octets());
            put(&mut key, key::DESTINATION, &dst.octets());
            4
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            put(&mut key, key::SOURCE, &src.octets());
            put(&mut key, key::DESTINATION, &dst.octets());
            6
        }
        _ => return None,
    };
    put(&mut key, key::SLOT, &u32::from(from.0).to_ne_bytes());
    put(&mut key, key::KIND, &(u32::from(who.protocol) | version << 8).to_ne_bytes());
    put(&mut key, key::PORTS, &who.sport.to_be_bytes());
    put(&mut key, key::PORTS + 2, &who.dport.to_be_bytes());
    let mut value = [0; size_of::<FlowValue>()];
    put(&mut value, value::FROM_EPOCH, &epoch(epochs[0], moves[0]).to_ne_bytes());
    put(&mut value, value::TO_EPOCH, &epoch(epochs[1], moves[1]).to_ne_bytes());
    put(&mut value, value::FROM, &ports[0].0.to_ne_bytes());
    put(&mut value, value::TO, &ports[1].0.to_ne_bytes());
    let expires = now.saturating_add(*lease);
    put(&mut value, value::EXPIRES, &expires.to_ne_bytes());
    put(&mut value, value::RENEW, &(expires - lease / RENEWED_IN_LAST).to_ne_bytes());
    put(&mut value, value::IDLE, &flow.timeout.saturating_sub(*lease).to_ne_bytes());
    put(&mut value, value::OUT, &u32::from(to.0).to_ne_bytes());
    let origin = u16::try_from(origin_number(*origin)).unwrap_or(u16::MAX);
    put(&mut value, value::ORIGIN, &origin.to_ne_bytes());
    let mut actions = if flow.is_hop { action::HOP } else { 0 };
    let (number, how) = match *start {
        FlowStart::Latch(latch) => (latch.0, 0),
        FlowStart::Handshake(handshake, Initiator::Source) => (handshake.0, action::HANDSHAKE | action::INITIATOR),
        FlowStart::Handshake(handshake, Initiator::Destination) => (handshake.0, action::HANDSHAKE),
    };
    actions |= how;
    if let Some(translation) = &flow.translation {
        actions |= action::TRANSLATE;
        put(&mut value, value::TRANSLATION, &flow_translation::encode(who, translation)?);
    }
    put(&mut value, value::ACTIONS, &actions.to_ne_bytes());
    put(&mut value, value::RECEIVED, received);
    put(&mut value, value::LONGEST, &longest.to_ne_bytes());
    put(&mut value, value::SENT, sent);
    put(&mut value, value::LATCH, &number.to_ne_bytes());
    Some((key, value))
}

/// Decodes a key into its flow. `None` if its version is unknown.
pub(super) fn decode(key: &FlowKey) -> Option<Flow> {
    let part = |offset: i16| key[place(offset.into())..].first_chunk::<4>().copied();
    let kind = u32::from_ne_bytes(part(key::KIND)?);
    let address = |offset: i16| -> Option<IpAddr> {
        let whole: [u8; 16] = *key[place(offset.into())..].first_chunk()?;
        match kind >> 8 {
            4 => Some(IpAddr::from([whole[0], whole[1], whole[2], whole[3]])),
            6 => Some(IpAddr::from(whole)),
            _ => None,
        }
    };
    let [a, b, c, d] = part(key::PORTS)?;
    Some(Flow {
        src: address(key::SOURCE)?,
        dst: address(key::DESTINATION)?,
        protocol: (kind & 0xff) as u8,
        sport: u16::from_be_bytes([a, b]),
        dport: u16::from_be_bytes([c, d]),
        icmp: None,
    })
}

/// Returns the index of an origin's counter. 0 without origin. Late origins share the last counter.
pub(super) fn origin_number(origin: Option<OriginId>) -> i32 {
    const SHARED: i32 = decisions::ORIGINS - 1;
    let number = |origin: OriginId| i32::try_from(origin.0).unwrap_or(SHARED).saturating_add(1).min(SHARED);
    origin.map_or(0, number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PortId;
    use crate::io::{FlowHandshake, FlowLatch, FlowSlot};

    fn flow() -> CachedFlow {
        let flow = Flow {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            protocol: 17,
            sport: 0x1234,
            dport: 53,
            icmp: None,
        };
        CachedFlow {
            from: FlowSlot(3),
            to: FlowSlot(5),
            flow,
            received: *b"abcdefghijkl",
            sent: *b"ABCDEFGHIJKL",
            is_hop: true,
            translation: None,
            longest: 1514,
            origin: Some(OriginId(7)),
            ports: [PortId(1), PortId(2)],
            epochs: [9, 8],
            moves: [0, 3],
            lease: 100,
            timeout: 1600,
            start: FlowStart::Latch(FlowLatch(0x4321)),
        }
    }

    #[test]
    fn a_flow_is_encoded_as_the_program_reads_it() {
        let (key, value) = encode(&flow(), 1000).unwrap();
        let word = |bytes: &[u8], at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().unwrap());
        assert_eq!((word(&key, 0), word(&key, 4)), (3, 17 | 4 << 8));
        assert_eq!(key[8..12], [0x12, 0x34, 0, 53]);
        assert_eq!(decode(&key), Some(flow().flow));
        assert_eq!((&key[16..20], &key[32..36]), (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));
        assert_eq!(
            (value[..8].to_vec(), value[8..16].to_vec()),
            ((9u64 << 16).to_ne_bytes().into(), 1100u64.to_ne_bytes().into())
        );
        assert_eq!((word(&value, 16), word(&value, 20)), (5, 8 | 1 << 16));
        assert_eq!((&value[24..36], &value[40..52]), (&b"abcdefghijkl"[..], &b"ABCDEFGHIJKL"[..]));
        assert_eq!((&value[36..38], &value[52..54]), (&1514u16.to_ne_bytes()[..], &0x4321u16.to_ne_bytes()[..]));
        assert_eq!((&value[38..40], &value[54..56]), (&1u16.to_ne_bytes()[..], &2u16.to_ne_bytes()[..]));
        assert_eq!(value[56..64], ((8u64 << 16) + 3).to_ne_bytes());
        assert_eq!(value[64..72], (1000u64 + 100 - 100 / 8).to_ne_bytes());
        assert_eq!(value[72..80], 1500u64.to_ne_bytes());
        assert_eq!(value[80..], [0; 48]);
        let start = |start| encode(&CachedFlow { start, ..flow() }, 1000).unwrap().1;
        let number = FlowHandshake(0x1234);
        let [initiator, responder] =
            [Initiator::Source, Initiator::Destination].map(|end| start(FlowStart::Handshake(number, end)));
        assert_eq!([word(&initiator, 20) >> 16, word(&responder, 20) >> 16], [1 | 4 | 8, 1 | 4]);
        assert_eq!([&initiator[52..54], &responder[52..54]], [&0x1234u16.to_ne_bytes()[..]; 2]);
    }

    #[test]
    fn origins_without_a_place_of_their_own_share_the_last_one() {
        let last = u32::try_from(decisions::ORIGINS - 3).unwrap();
        assert_eq!([None, Some(OriginId(0)), Some(OriginId(last))].map(origin_number), [0, 1, decisions::ORIGINS - 2]);
        assert_eq!(
            [last + 1, last + 2, u32::MAX].map(|at| origin_number(Some(OriginId(at)))),
            [decisions::ORIGINS - 1; 3]
        );
    }
}
