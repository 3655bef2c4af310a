//! One packet record of a capture file, in the form that both formats share.

use super::Direction;

/// Maximum length of one packet in bytes, Wireshark's limit (`WTAP_MAX_PACKET_SIZE_STANDARD`). A larger length field means
/// damage; trusting it would allocate gigabytes.
pub(super) const MAX_PACKET_LEN: usize = 256 * 1024;

/// The metadata of a packet whose bytes are in the reader's buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Nanoseconds since 1970.
    pub(super) time: u64,
    pub(super) link_code: u32,
    /// Index of the capturing interface; 0 in the classic format.
    pub(super) interface: usize,
    pub(super) direction: Option<Direction>,
    /// Offset of the packet's bytes in the buffer.
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) original_len: u32,
}
