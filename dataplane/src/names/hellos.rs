//! Reads the server names that clients send, for connections that were allowed by name.
//!
//! Names share addresses: a pod that may reach `api.example.com` also reaches all other sites at its addresses. A TLS client names the site
//! in its first message, and so does a QUIC client ([`bulkhead_hello`]). [`Hellos`] holds the readers of connections whose name was not
//! compared with the policy yet.
//!
//! A TCP connection is settled when the server has acknowledged the compared message, because the client cannot replace it any more.
//! Sequence numbers count from those in the server's SYN-ACK: a client may send several SYNs, of which the server has seen one.
//!
//! A QUIC flow is never settled: over the same addresses and ports, its client may open another connection with another name at any time.
//! Its reader stays as long as its session, because the server may hold the first part of a hello whose rest alone says nothing.

use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::protocol;
#[cfg(feature = "quic")]
use bulkhead_hello::quic::Flow as QuicFlow;
use bulkhead_hello::{Reading, tls};

use super::Holder;
use crate::Flow;
use crate::packet::{Data, TcpFlags};

/// Maximum number of a pod's connections per worker whose names are being read. Beyond it the one that was idle for the longest time is
/// forgotten, and a later message of it is [`Hello::Mismatch`]. A crawler begins hundreds of connections in a round trip.
const READERS: usize = 1024;

/// Maximum memory in bytes of a pod's readers per worker: [`READERS`] hellos of 2 KiB, the longest usual length.
const MEMORY: usize = READERS << 11;

/// Maximum number of datagrams per pod, worker and second from which QUIC packets are decrypted. Each takes about 10 µs, so a pod takes at most a tenth of a
/// worker's time.
const DATAGRAMS: u32 = 10_000;

/// Nanoseconds after a client's last packet for which a new session of its flow continues with the old reader: 60 s. Servers give up an
/// incomplete hello within this time. Without it, the session could end while the server holds the first part.
const SERVERS_PATIENCE: u64 = 60_000_000_000;

/// What a packet shows about its connection's server name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    /// Nothing that needs a reaction: further packets have to be read.
    Reading,
    /// The name is allowed, and the client cannot replace it.
    Settled,
    /// The policy does not allow this name. `None` if the connection has no name or cannot be read.
    Mismatch(Option<Arc<str>>),
    /// This packet must not reach the server. It says nothing about the connection.
    Unreadable,
}

/// A packet of the client or of the server, without its headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent<'a> {
    pub(crate) data: Data<'a>,
    /// The acknowledgement number. `None` for UDP and without ACK.
    pub(crate) ack: Option<u32>,
    pub(crate) is_client: bool,
    /// Whether the packet has created its session.
    pub(crate) is_first: bool,
    /// Nanoseconds since 1970.
    pub(crate) now: u64,
}

/// The reader of QUIC in builds without cryptography. It reads no datagram.
#[cfg(not(feature = "quic"))]
#[derive(Debug, Default)]
struct QuicFlow {}

#[cfg(not(feature = "quic"))]
impl QuicFlow {
    const fn take(&mut self, _: &[u8]) -> Reading {
        Reading::NotTls
    }

    const fn memory(&self) -> usize {
        0
    }
}

/// The reader of a connection.
#[derive(Debug)]
enum Reader {
    Tls(Box<TlsReader>),
    Quic {
        flow: QuicFlow,
        /// Whether an allowed name was read.
        is_named: bool,
        /// Whether another name was read.
        is_mismatched: bool,
    },
}

#[derive(Debug, Default)]
struct TlsReader {
    stream: tls::Stream,
    /// Sequence numbers of the client's and of the server's first byte. `None` before the server's SYN-ACK.
    first: Option<[u32; 2]>,
    /// Whether the session has got its SYN-ACK. An earlier session of the flow may have left `first`.
    is_answered: bool,
    /// Whether the stream's name is allowed.
    is_named: bool,
}

#[derive(Debug)]
struct Entry {
    /// The time of the last packet, in nanoseconds since 1970.
    seen: u64,
    reader: Reader,
}

/// The readers of a pod's connections, by the flow from the client to the server.
#[derive(Debug, Default)]
struct OfPod {
    entries: AHashMap<Flow, Entry>,
    memory: usize,
    /// The current second since 1970, and the number of its datagrams from which QUIC packets were decrypted.
    datagrams: (u64, u32),
}

/// The readers of all pods' connections at one worker.
#[derive(Debug, Default)]
pub(crate) struct Hellos(AHashMap<Holder, OfPod>);

impl Hellos {
    /// Reads a packet of the connection `flow`, which goes from the pod to the server. `is_allowed` returns whether the policy allows the
    /// connection under a server name.
    pub(crate) fn read(
        &mut self,
        holder: Holder,
        flow: &Flow,
        sent: &Sent<'_>,
        is_allowed: impl Fn(&str) -> bool,
    ) -> Hello {
        let pod = self.0.entry(holder).or_default();
        if sent.is_client && sent.is_first {
            pod.begin(flow, sent);
        }
        let Some(entry) = pod.entries.get_mut(flow) else {
            // The session is one of an earlier process, or its reader was displaced.
            let is_lost = sent.is_client && !sent.data.bytes.is_empty() && !continues_quic(sent);
            return if is_lost { Hello::Mismatch(None) } else { Hello::Reading };
        };
        entry.seen = sent.now;
        let before = entry.reader.memory();
        let hello = match &mut entry.reader {
            Reader::Tls(reader) => reader.read(sent, is_allowed),
            Reader::Quic { flow, is_named, is_mismatched } => {
                read_quic(flow, [is_named, is_mismatched], sent, &mut pod.datagrams, is_allowed)
            }
        };
        pod.memory = pod.memory + entry.reader.memory() - before;
        if hello == Hello::Settled {
            pod.end(flow);
        }
        while pod.memory > MEMORY {
            pod.end_oldest();
        }
        hello
    }

    /// Drops the readers of all holders for which `is_kept` returns false.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(Holder) -> bool) {
        self.0.retain(|holder, _| is_kept(*holder));
    }
}

impl OfPod {
    fn begin(&mut self, flow: &Flow, sent: &Sent<'_>) {
        match self.entries.get_mut(flow).filter(|entry| sent.now.saturating_sub(entry.seen) <= SERVERS_PATIENCE) {
            // The SYN-ACK will show whether the server has begun another connection.
            Some(Entry { reader: Reader::Tls(reader), .. }) => {
                reader.is_answered = false;
                return;
            }
            Some(_) => return,
            None => self.end(flow),
        }
        let reader = match sent.data.segment {
            Some((_, flags)) if flags.opens() => Reader::Tls(Box::default()),
            Some(_) => return,
            None => Reader::Quic { flow: QuicFlow::default(), is_named: false, is_mismatched: false },
        };
        if self.entries.len() == READERS {
            self.end_oldest();
        }
        self.memory += reader.memory();
        self.entries.insert(*flow, Entry { seen: sent.now, reader });
    }

    fn end(&mut self, flow: &Flow) {
        if let Some(entry) = self.entries.remove(flow) {
            self.memory -= entry.reader.memory();
        }
    }

    fn end_oldest(&mut self) {
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.seen).map(|(flow, _)| *flow);
        oldest.iter().for_each(|flow| self.end(flow));
    }
}

impl Reader {
    fn memory(&self) -> usize {
        match self {
            Self::Tls(reader) => size_of::<TlsReader>() + reader.stream.memory(),
            Self::Quic { flow, .. } => flow.memory(),
        }
    }
}

impl TlsReader {
    fn read(&mut self, sent: &Sent<'_>, is_allowed: impl Fn(&str) -> bool) -> Hello {
        let Data { bytes, is_whole, segment } = sent.data;
        let Some((seq, flags)) = segment else { return Hello::Reading };
        if sent.is_client && flags.has(TcpFlags::URG) {
            // Servers take a byte of urgent data out of the stream (RFC 6093), so they would read another hello.
            return Hello::Mismatch(None);
        }
        if let Some(ack) = sent.ack.filter(|_| !sent.is_client && flags.has(TcpFlags::SYN)) {
            let first = Some([ack, seq.wrapping_add(1)]);
            if self.first != first {
                // A connection has one SYN-ACK, which may be repeated.
                if self.is_answered {
                    return Hello::Mismatch(None);
                }
                *self = Self { first, ..Self::default() };
            }
            self.is_answered = true;
        }
        let Some([client, server]) = self.first.filter(|_| self.is_answered) else {
            // A client of TCP Fast Open (RFC 7413) sends its data again after the SYN-ACK.
            return if sent.is_client && !bytes.is_empty() { Hello::Unreadable } else { Hello::Reading };
        };
        if sent.is_client && !bytes.is_empty() {
            let at = seq.wrapping_add(flags.has(TcpFlags::SYN).into());
            self.stream.take(at.wrapping_sub(client), bytes);
        } else if !bytes.is_empty() {
            self.stream.answer(seq.wrapping_sub(server), bytes);
        }
        match self.stream.reading() {
            // The part of the packet that was not received may complete the hello.
            Reading::NeedMore if sent.is_client && !is_whole => return Hello::Mismatch(None),
            Reading::NeedMore => return Hello::Reading,
            Reading::Name { name, .. } if self.is_named || is_allowed(name) => self.is_named = true,
            Reading::Name { name, .. } => return Hello::Mismatch(Some(Arc::clone(name))),
            _ => return Hello::Mismatch(None),
        }
        let acknowledged = sent.ack.filter(|_| !sent.is_client).map(|ack| ack.wrapping_sub(client));
        let is_settled = acknowledged.zip(self.stream.end()).is_some_and(|(acknowledged, end)| {
            // Acknowledgements from before the connection are far ahead.
            acknowledged.cast_signed() > 0 && acknowledged as usize >= end
        });
        if is_settled { Hello::Settled } else { Hello::Reading }
    }
}

/// Reads a packet of a QUIC flow. `is_named` and `is_mismatched` tell whether earlier datagrams have named an allowed server and another one. `datagrams` are
/// those of [`OfPod`].
fn read_quic(
    flow: &mut QuicFlow,
    [is_named, is_mismatched]: [&mut bool; 2],
    sent: &Sent<'_>,
    datagrams: &mut (u64, u32),
    is_allowed: impl Fn(&str) -> bool,
) -> Hello {
    /// The bit of a packet's first byte that marks a long header, which all packets have that open a connection (RFC 8999 §5.1).
    const LONG: u8 = 0x80;
    let Data { bytes, is_whole, .. } = sent.data;
    if !sent.is_client || (*is_named && bytes.first().is_none_or(|first| first & LONG == 0)) {
        return Hello::Reading;
    }
    let second = sent.now / 1_000_000_000;
    if datagrams.0 != second {
        *datagrams = (second, 0);
    }
    if datagrams.1 == DATAGRAMS || !is_whole {
        return Hello::Unreadable;
    }
    datagrams.1 += 1;
    let name = match flow.take(bytes) {
        Reading::NeedMore => return Hello::Reading,
        Reading::Name { name, .. } if is_allowed(&name) => {
            *is_named = true;
            return Hello::Reading;
        }
        Reading::Name { name, .. } => Some(name),
        Reading::NoName | Reading::TooLong | Reading::NotTls | Reading::Malformed => None,
        // The server may offer another version.
        Reading::UnknownVersion(_) => return Hello::Unreadable,
    };
    // Once per flow.
    if std::mem::replace(is_mismatched, true) { Hello::Unreadable } else { Hello::Mismatch(name) }
}

/// Whether a packet is a datagram of an open QUIC connection: one with a short header (RFC 9000 §17.3), which no server reads as a hello.
fn continues_quic(sent: &Sent<'_>) -> bool {
    const FORM_AND_FIXED_BIT: u8 = 0xc0;
    const SHORT: u8 = 0x40;
    sent.data.segment.is_none() && sent.data.bytes.first().is_some_and(|first| first & FORM_AND_FIXED_BIT == SHORT)
}

/// Whether a connection of this protocol to this port names its server: TLS over TCP and QUIC at the port of HTTPS (RFC 9110 §4.2.2).
pub(crate) const fn names_its_server(number: u8, port: u16) -> bool {
    const HTTPS: u16 = 443;
    matches!(number, protocol::TCP | protocol::UDP) && port == HTTPS
}
