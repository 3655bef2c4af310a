//! What packets of the tunnel look like: an outer packet with a frame in it (RFC 7348 §5).
//!
//! ```text
//!   Ethernet 14 | IPv4 20 or IPv6 40 | UDP 8 | VXLAN 8: flags, VNI | inner Ethernet 14 | inner packet
//!               `------------- removed or added, with one of the Ethernet headers ------'
//! ```

use super::super::flow_headers::{ETHERNET, IPV4, IPV6, UDP};

/// The length of the VXLAN header in bytes.
const VXLAN: i32 = 8;
/// Bytes before the inner frame, with an outer IPv4 and IPv6 header. As many are added to a packet that enters the tunnel, since outer and inner
/// Ethernet header have one length.
pub(super) const BEFORE_V4: i32 = ETHERNET + IPV4 + UDP + VXLAN;
pub(super) const BEFORE_V6: i32 = ETHERNET + IPV6 + UDP + VXLAN;
/// The VXLAN header's first word, as a program loads it: the flag that the header has a VNI, and no other.
pub(super) const HAS_VNI: i32 = i32::from_ne_bytes([8, 0, 0, 0]);
/// `BPF_ADJ_ROOM_MAC`: the mode of `bpf_skb_adjust_room` that adds or removes bytes behind the Ethernet header.
pub(super) const BEHIND_ETHERNET: i32 = 1;
