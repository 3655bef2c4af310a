//! Registers and the stack frame that the flow cache's programs share.

use super::flow_layout::{key, value};

/// Registers: what a call of the kernel leaves alone is 6 to 9.
pub(super) const CONTEXT: u8 = 6;
pub(super) const DATA: u8 = 7;
pub(super) const DATA_END: u8 = 8;
/// The transport header, later the flow's place in the map.
pub(super) const AT: u8 = 9;
/// The same register, when the flow is on the stack: 0 when it has no translation. A register and not a bit of the flow, because the
/// verifier then knows on which of its ways the translation was copied.
pub(super) const IS_TRANSLATED: u8 = AT;
pub(super) const STACK: u8 = 10;

/// The key's place on the stack, which grows downwards.
pub(super) const KEY: i16 = -key::LEN;
/// Bytes from the start of the frame to the end of the transport header, 8 bytes on the stack.
pub(super) const HEADERS: i16 = KEY - 8;
/// The frame's length by the IP header, 8 bytes.
pub(super) const LENGTH: i16 = HEADERS - 8;
/// TCP's acknowledgement number in the network's order, 4 of 8 bytes; else 0.
pub(super) const ACKNOWLEDGEMENT: i16 = LENGTH - 8;
/// A copy of the flow's value, on the stack. Its last part is there only when [`IS_TRANSLATED`].
pub(super) const VALUE: i16 = ACKNOWLEDGEMENT - value::LEN;
/// How many packets the packet counts as, 8 bytes.
pub(super) const PACKETS: i16 = VALUE - 8;
/// Keys of other maps, 8 bytes.
pub(super) const SCRATCH: i16 = PACKETS - 8;
/// When the flow was found, by the coarse time, 8 bytes.
pub(super) const NOW: i16 = SCRATCH - 8;

/// The port's slot, 8 bytes on the stack.
pub(super) const SLOT: i16 = NOW - 8;
/// The way out of a flow: its interface and how, 8 bytes.
pub(super) const WAY: i16 = SLOT - 8;
