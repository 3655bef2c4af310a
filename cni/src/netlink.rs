//! Synchronous rtnetlink(7) requests.
//!
//! Message types come from `netlink-packet-route`. The `rtnetlink` crate needs an asynchronous runtime, whose start takes longer than all
//! requests of a command.

use std::io;
use std::os::fd::OwnedFd;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// Receive buffer, in bytes. The kernel fills at most 32 KiB.
const BUFFER: usize = 1 << 16;
/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;

/// A netlink socket, bound to the network namespace in which it was opened.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// If the process has too many open files.
    pub(super) fn open() -> io::Result<Self> {
        // Protocol 0 is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; BUFFER] })
    }

    /// Sends a request that changes something, and waits for the acknowledgement.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.request(message, NLM_F_ACK | flags).map(drop)
    }

    /// Requests one object, such as an interface, and returns it.
    ///
    /// # Errors
    /// The kernel's error, such as `ENODEV` if the interface does not exist.
    pub(super) fn get(&mut self, message: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
        // The acknowledgement marks the end of an empty answer.
        self.request(message, NLM_F_ACK)?.pop().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Requests all objects of the message's type, such as all routes, and returns them.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn list(&mut self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.request(message, NLM_F_DUMP)
    }

    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        send(&self.socket, &bytes, SendFlags::empty())?;
        let mut answers = Vec::new();
        loop {
            let (length, _) = match recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => continue,
                received => received?,
            };
            if take(&self.buffer[..length], self.sequence, &mut answers)? {
                return Ok(answers);
            }
        }
    }
}

/// Parses one datagram of an answer into `answers`. Returns true if it ends the answer.
fn take(mut part: &[u8], sequence: u32, answers: &mut Vec<RouteNetlinkMessage>) -> io::Result<bool> {
    while let Some(length) = part.first_chunk().map(|length| u32::from_ne_bytes(*length) as usize) {
        let message = part.get(..length).filter(|_| length >= HEADER).ok_or(io::ErrorKind::InvalidData)?;
        part = part.get(length.next_multiple_of(4)..).unwrap_or_default();
        // Unparsable messages, such as link types of newer kernels, are irrelevant here.
        let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message) else { continue };
        if message.header.sequence_number != sequence {
            continue;
        }
        match message.payload {
            NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::Error(told) if told.code.is_none() => return Ok(true),
            NetlinkPayload::Error(told) => return Err(told.to_io()),
            NetlinkPayload::InnerMessage(answer) => answers.push(answer),
            _ => {}
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::{LinkAttribute, LinkMessage};

    use super::*;

    fn named(name: &str) -> RouteNetlinkMessage {
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::IfName(name.into()));
        RouteNetlinkMessage::GetLink(link)
    }

    #[test]
    fn the_kernel_answers_one_question_after_another() {
        let mut kernel = Netlink::open().unwrap();
        for _ in 0..3 {
            assert!(
                matches!(kernel.get(named("lo")), Ok(RouteNetlinkMessage::NewLink(link)) if link.header.index == 1)
            );
            let error = kernel.get(named("no-such-link")).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NODEV.raw_os_error()));
            assert!(!kernel.list(RouteNetlinkMessage::GetLink(LinkMessage::default())).unwrap().is_empty());
        }
    }

    #[test]
    fn a_part_that_is_cut_off_is_an_error_and_no_answer() {
        let mut answers = Vec::new();
        assert!(take(&64u32.to_ne_bytes(), 1, &mut answers).is_err());
        assert!(take(&[0; 16], 1, &mut answers).is_err());
        assert!(!take(&[], 1, &mut answers).unwrap() && answers.is_empty());
    }
}
