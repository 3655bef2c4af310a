//! Errors of reading a capture file.

use std::sync::Arc;

/// An error of reading a capture. The reader has returned all packets before the fault.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// A read of the file failed.
    #[error("{file}: reading failed at byte {offset}, after packet {packets}: {source}")]
    Io {
        /// The file's name.
        file: Arc<str>,
        /// The number of packets before the fault.
        packets: u64,
        /// The position in the file, in bytes.
        offset: u64,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file has no bytes.
    #[error("{file}: the file is empty; give a capture that tcpdump or Wireshark has written")]
    Empty {
        /// The file's name.
        file: Arc<str>,
    },
    /// The file begins with no known magic number.
    #[error("{file}: {what}")]
    UnknownFormat {
        /// The file's name.
        file: Arc<str>,
        /// The file's likely format, and the remedy.
        what: &'static str,
    },
    /// The file ends within a record.
    #[error(
        "{file}: the file ends within the record at byte {offset}, after packet {packets}; \
         copy the file again, or keep its complete packets with `editcap {file} whole.pcapng`"
    )]
    Truncated {
        /// The file's name.
        file: Arc<str>,
        /// The number of packets before the fault.
        packets: u64,
        /// Where the record begins in the file, in bytes.
        offset: u64,
    },
    /// A record's fields contradict each other or exceed a limit.
    #[error(
        "{file}: the record at byte {offset}, after packet {packets}, is damaged: {what}; \
         copy the file again, or keep the packets before the record (`editcap -r` with their numbers)"
    )]
    Corrupt {
        /// The file's name.
        file: Arc<str>,
        /// The number of packets before the fault.
        packets: u64,
        /// Where the record begins in the file, in bytes.
        offset: u64,
        /// The fault as a phrase for the error message, for example that the record's two length fields differ.
        what: &'static str,
    },
    /// The packet's link type is not supported.
    #[error(
        "{file}: packet {number} has link type {code}, which is not supported; supported are null (0), Ethernet (1), \
         raw IP (101, 12, 14, 228, 229), loop (108) and Linux cooked (113, 276)"
    )]
    UnsupportedLink {
        /// The file's name.
        file: Arc<str>,
        /// The packet's position in the file, counted from 1.
        number: u64,
        /// The link type's registry number.
        code: u32,
    },
}
