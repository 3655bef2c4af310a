//! Registers and the stack frame that the flow cache's programs share.

use super::flow_layout::{key, value};

/// Registers 6 to 9, which helper calls preserve.
pub(super) const CONTEXT: u8 = 6;
pub(super) const DATA: u8 = 7;
pub(super) const DATA_END: u8 = 8;
/// Address of the transport header, later of the flow's value in the map.
pub(super) const AT: u8 = 9;
/// The same register after the flow is copied to the stack: 0 if the flow has no translation. A register instead of a bit of the flow lets
/// the verifier know on which paths the translation was copied.
pub(super) const IS_TRANSLATED: u8 = AT;
pub(super) const STACK: u8 = 10;

/// Stack offset of the flow's key. The stack grows downwards.
pub(super) const KEY: i16 = -key::LEN;
/// Bytes of the Ethernet, IP and transport headers, 8 bytes on the stack. Without a jumbo header, which the packet's segments do not have.
pub(super) const HEADERS: i16 = KEY - 8;
/// The frame's length by the IP header, 8 bytes.
pub(super) const LENGTH: i16 = HEADERS - 8;
/// TCP's acknowledgement number in host order, 4 bytes; 0 for other protocols.
pub(super) const ACKNOWLEDGEMENT: i16 = LENGTH - 8;
/// tc programs only: TCP's SYN, FIN and RST flags, 4 bytes; 0 for other protocols.
pub(super) const CONTROL: i16 = ACKNOWLEDGEMENT + 4;
/// A copy of the flow's value. Its translation part is valid only if [`IS_TRANSLATED`] is not 0.
pub(super) const VALUE: i16 = ACKNOWLEDGEMENT - value::LEN;
/// The number of packets on the wire that this packet is divided into, 8 bytes.
pub(super) const PACKETS: i16 = VALUE - 8;
/// The key for a lookup in another map, 8 bytes. In `tc::claim`: whether the packet is a fragment.
pub(super) const SCRATCH: i16 = PACKETS - 8;
/// The coarse time of the flow lookup, 8 bytes.
pub(super) const NOW: i16 = SCRATCH - 8;

/// tc programs only: the ingress port's slot, 8 bytes.
pub(super) const SLOT: i16 = NOW - 8;
/// tc programs only: the index of the flow's egress interface, and how to send to it (`tc::how`), 4 bytes each.
pub(super) const WAY: i16 = SLOT - 8;
/// tc programs only: the key of the opposite direction.
pub(super) const PEER_KEY: i16 = WAY - 8 - key::LEN;
/// tc programs only: TCP's sequence number in host order, 8 bytes; 0 for other protocols.
pub(super) const SEQUENCE: i16 = PEER_KEY - 8;
/// The length in bytes of the jumbo header before the packet's transport header: 0 if there is none, as always in XDP programs, else
/// [`JUMBO_HEADER`](super::flow_headers::JUMBO_HEADER). 8 bytes on the stack.
pub(super) const JUMBO: i16 = SEQUENCE - 8;
/// tc programs only: the key of a lookup among next hops to other nodes, 20 bytes. Its address, from the fifth byte on, is aligned to 8 bytes.
pub(super) const HOP_KEY: i16 = JUMBO - 20;
/// tc programs only: 1 if the packet's flow is known, else 0, 8 bytes.
pub(super) const IS_KNOWN: i16 = HOP_KEY - 12;
/// tc programs at links only: the number of bytes before the inner frame of a packet of the tunnel, 8 bytes; 0 if the packet has no outer
/// headers, or no longer has them.
pub(super) const OUTER: i16 = IS_KNOWN - 8;
/// tc programs only: the outer congestion mark, the outer identification and the packet's hash, 4 bytes each.
pub(super) const ENCAPSULATION: i16 = OUTER - 16;
/// tc programs only: the length in bytes of the packet, or of each of its segments, with the Ethernet header, 4 bytes.
pub(super) const FRAME: i16 = ENCAPSULATION + 12;
/// tc programs only: the key of a record of a masqueraded packet (`tc::sent`), 24 bytes. Its last 16 bytes are those of [`HOP_KEY`], an address.
pub(super) const SENT_KEY: i16 = HOP_KEY - 4;
/// tc programs only: the key of a virtual address (`tc::vips`), 24 bytes. It shares its bytes with [`PEER_KEY`]: only packets without a flow use the key
/// of a virtual address, and only packets with a flow use that of the opposite direction.
pub(super) const VIP_KEY: i16 = PEER_KEY;
const _: () = assert!(SENT_KEY >= IS_KNOWN + 8);
const _: () = assert!((HOP_KEY + 4) % 8 == 0 && IS_KNOWN % 8 == 0);
