//! Frames with DNS messages and with SYNs.

use std::net::{Ipv4Addr, SocketAddrV4};

use bulkhead_dataplane::wire::{ethernet, ipv4, protocol, tcp, udp};
use bulkhead_dataplane::{PortId, Received};

use super::node::{Pod, SERVER, UPLINK};
use crate::memory_ports::{own_mac, peer_mac};

/// Port of all servers that pods connect to.
const HTTPS: u16 = 443;
/// The first source port of [`sport`], and the number of different ones.
const FIRST_SPORT: u32 = 20_000;
const SPORTS: u32 = 40_000;

/// Length of a frame's Ethernet and IPv4 headers in bytes.
const HEADERS: usize = ethernet::HEADER_LEN + ipv4::MIN_HEADER_LEN;

/// Flags of a query that asks for recursion, and of an answer to it without error (RFC 1035 section 4.1.1).
const QUERY: u16 = 0x0100;
const ANSWER: u16 = 0x8180;
/// Type A and class IN.
const A_IN: [u8; 4] = [0, 1, 0, 1];
/// A compression pointer to the name of the question, at offset 12.
const ASKED: [u8; 2] = [0xc0, 12];

/// A domain name as text, and as DNS messages encode it (RFC 1035 section 3.1).
#[derive(Clone, Debug)]
pub(super) struct Name {
    pub(super) text: String,
    wire: Vec<u8>,
}

impl Name {
    pub(super) fn new(text: &str) -> Self {
        let length = |label: &str| u8::try_from(label.len()).expect("the benchmark's labels are short");
        let mut wire: Vec<u8> =
            text.split('.').flat_map(|label| [&[length(label)], label.as_bytes()].concat()).collect();
        wire.push(0);
        Self { text: text.to_owned(), wire }
    }
}

/// A question of a pod to the trusted server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'a> {
    pub(super) pod: Pod,
    pub(super) sport: u16,
    pub(super) id: u16,
    pub(super) name: &'a Name,
}

/// An A record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    /// The record's name. `None` for the name of the question.
    pub(super) owner: Option<&'a Name>,
    /// Time to live in seconds.
    pub(super) ttl: u32,
    pub(super) address: Ipv4Addr,
}

/// The section of a message that has the records with a name of their own ([`Record::owner`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Answer,
    Additional,
}

/// A frame with the port that receives it.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    bytes: Vec<u8>,
    in_port: PortId,
}

impl Frame {
    pub(super) const fn new() -> Self {
        Self { bytes: Vec::new(), in_port: UPLINK }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn received(&self) -> Received<'_> {
        Received { frame: &self.bytes, wire_len: self.bytes.len(), in_port: self.in_port }
    }

    /// Overwrites the frame with a pod's query.
    pub(super) fn query(&mut self, question: &Question<'_>) {
        let &Question { pod, sport, id, name } = question;
        self.message(id, QUERY, name, &[], Section::Answer);
        self.datagram(pod.port(), SocketAddrV4::new(pod.address(), sport), SERVER);
    }

    /// Overwrites the frame with the trusted server's answer.
    pub(super) fn answer(&mut self, question: &Question<'_>, records: &[Record<'_>]) {
        self.answer_of((UPLINK, SERVER), question, records, Section::Answer);
    }

    /// Overwrites the frame with an answer of this server behind this port. `section` is that of the records with an owner.
    pub(super) fn answer_of(
        &mut self,
        (in_port, server): (PortId, SocketAddrV4),
        question: &Question<'_>,
        records: &[Record<'_>],
        section: Section,
    ) {
        let &Question { pod, sport, id, name } = question;
        self.message(id, ANSWER, name, records, section);
        self.datagram(in_port, server, SocketAddrV4::new(pod.address(), sport));
    }

    /// Overwrites the frame with the first packet of a pod's TCP connection to an address.
    pub(super) fn syn(&mut self, pod: Pod, sport: u16, to: Ipv4Addr) {
        self.bytes.clear();
        self.bytes.resize(HEADERS + tcp::MIN_HEADER_LEN, 0);
        let payload = self.headers(pod.port(), (pod.address(), to), protocol::TCP);
        let header = tcp::Repr {
            source_port: sport,
            destination_port: HTTPS,
            sequence: 1,
            acknowledgement: 0,
            flags: tcp::flags::SYN,
            window: u16::MAX,
        };
        header.emit(pod.address().into(), to.into(), payload);
    }

    /// Overwrites the frame with space for headers and a DNS message. Records with an owner are in `section`, all others are answers.
    fn message(&mut self, id: u16, flags: u16, name: &Name, records: &[Record<'_>], section: Section) {
        let is_answer = |record: &&Record<'_>| record.owner.is_none() || section == Section::Answer;
        let answers = records.iter().filter(is_answer);
        let additional = records.iter().filter(|record| !is_answer(record));
        let count = |records: usize| u16::try_from(records).expect("the benchmark's messages are short");
        let counts = [1, count(answers.clone().count()), 0, count(additional.clone().count())];
        let bytes = &mut self.bytes;
        bytes.clear();
        bytes.resize(HEADERS + udp::HEADER_LEN, 0);
        [id, flags].iter().chain(&counts).for_each(|word| bytes.extend(word.to_be_bytes()));
        bytes.extend(&name.wire);
        bytes.extend(A_IN);
        for &Record { owner, ttl, address } in answers.chain(additional) {
            bytes.extend(owner.map_or(&ASKED[..], |owner| &owner.wire));
            bytes.extend(A_IN);
            bytes.extend(ttl.to_be_bytes());
            bytes.extend(4u16.to_be_bytes());
            bytes.extend(address.octets());
        }
    }

    /// Writes the Ethernet, IPv4 and UDP headers before the message.
    fn datagram(&mut self, in_port: PortId, from: SocketAddrV4, to: SocketAddrV4) {
        let payload = self.headers(in_port, (*from.ip(), *to.ip()), protocol::UDP);
        let header = udp::Repr { source_port: from.port(), destination_port: to.port() };
        header.emit((*from.ip()).into(), (*to.ip()).into(), payload);
    }

    /// Writes the Ethernet and IPv4 headers. Returns the bytes after them.
    fn headers(&mut self, in_port: PortId, (source, destination): (Ipv4Addr, Ipv4Addr), protocol: u8) -> &mut [u8] {
        self.in_port = in_port;
        let payload_len = self.bytes.len() - HEADERS;
        let link = ethernet::Repr {
            destination: own_mac(in_port),
            source: peer_mac(in_port),
            ethertype: ethernet::ethertype::IPV4,
        };
        let header = ipv4::Repr { source, destination, protocol, hop_limit: 64, tos: 0, payload_len };
        header.emit(link.emit(&mut self.bytes))
    }
}

/// Returns the source port of a pod's conversation number `step`. A port is used again after [`SPORTS`] conversations, when its sessions
/// have ended.
pub(super) fn sport(step: u32) -> u16 {
    u16::try_from(FIRST_SPORT + step % SPORTS).expect("the highest port is below 65,536")
}
