//! A packet record of a capture file, as both formats' readers return it.

use super::Direction;

/// The most bytes that one packet may have: Wireshark's limit (`WTAP_MAX_PACKET_SIZE_STANDARD`). A file that says
/// more is damaged; believing it would let four bytes allocate gigabytes.
pub(super) const MAX_PACKET_LEN: usize = 256 * 1024;

/// What a format's reader tells of a packet whose bytes are in the buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) time: u64,
    pub(super) link_code: u32,
    /// The interface's number, for its name.
    pub(super) interface: usize,
    pub(super) direction: Option<Direction>,
    /// Where in the buffer the packet's bytes are.
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) original_len: u32,
}
