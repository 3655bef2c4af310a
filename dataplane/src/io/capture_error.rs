//! What can be wrong with a capture file.

use std::sync::Arc;

/// Why a capture could not be read, or not to its end. Packets before the fault were delivered.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file could not be read.
    #[error("{file}: cannot be read at byte {offset}, after packet {packets}: {source}")]
    Io {
        /// The file's name.
        file: Arc<str>,
        /// How many packets were delivered before.
        packets: u64,
        /// Where in the file.
        offset: u64,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file has no bytes.
    #[error("{file}: the file is empty; a capture has at least a header")]
    Empty {
        /// The file's name.
        file: Arc<str>,
    },
    /// The file does not begin like a capture.
    #[error("{file}: {what}")]
    UnknownFormat {
        /// The file's name.
        file: Arc<str>,
        /// What it is and what to do.
        what: &'static str,
    },
    /// The file ends in the middle of something.
    #[error(
        "{file}: ends in the middle of a record that begins at byte {offset}, after packet {packets}; \
         copy the file again, or keep its whole packets with `editcap {file} whole.pcapng`"
    )]
    Truncated {
        /// The file's name.
        file: Arc<str>,
        /// How many packets were delivered before.
        packets: u64,
        /// Where the record begins.
        offset: u64,
    },
    /// The file contradicts itself.
    #[error(
        "{file}: the record at byte {offset}, after packet {packets}, is damaged: {what}; \
         copy the file again, or go on with the packets before it (`editcap -r` with their numbers)"
    )]
    Corrupt {
        /// The file's name.
        file: Arc<str>,
        /// How many packets were delivered before.
        packets: u64,
        /// Where the record begins.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Frames that begin in a way that is not understood.
    #[error(
        "{file}: packet {number} has link type {code}, which is not understood; understood are null (0), Ethernet (1), \
         raw IP (101, 12, 14, 228, 229), loop (108) and Linux cooked (113, 276)"
    )]
    UnsupportedLink {
        /// The file's name.
        file: Arc<str>,
        /// The packet's number.
        number: u64,
        /// The link type's registry number.
        code: u32,
    },
}
