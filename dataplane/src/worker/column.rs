//! A burst as columns: the known facts about each packet, and its outcome.

use std::num::{NonZeroU8, NonZeroU32};

use crate::flow::Translation;
use crate::packet::{self, Body, Inner, Ip, Parsed, Payload, Piece, Plain, TcpFlags, Transport};
use crate::session::{Key, NONE, PlainHit, Rewritten, Slot};
use crate::translations::{Translated, TranslatedError, Translations};
use crate::{
    BodyKind, Decision, DropReason, Flow, Judged, LinkType, Packet, PortConfig, PortId, PortKind, Snapshot, Verdict,
};

use bulkhead_classifier::protocol;

/// A packet before it is judged: one cache line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meta {
    /// The key of a plain packet. General packets are in a separate column.
    pub(super) key: Key,
    pub(super) hash: u64,
    /// The slot of its session, as guessed by prefetching. May be wrong.
    pub(super) guess: Slot,
    pub(super) in_port: PortId,
    /// Index in [`Columns::parsed`], or [`Meta::PLAIN`] for a plain packet.
    general: u16,
    pub(super) hop_limit: u8,
    pub(super) flags: TcpFlags,
    pub(super) from_low: bool,
}

impl Meta {
    const PLAIN: u16 = u16::MAX;

    /// Returns the packet's position in [`Columns::parsed`]. `None` for a plain packet, which is complete here.
    #[inline]
    pub(super) fn general(&self) -> Option<usize> {
        (self.general != Self::PLAIN).then_some(usize::from(self.general))
    }

    /// Returns the fields of a plain packet that the session table's fast path compares.
    #[inline]
    pub(super) const fn plain(&self, epoch: u32) -> PlainHit<'_> {
        PlainHit { key: &self.key, from_low: self.from_low, flags: self.flags, in_port: self.in_port, epoch }
    }

    /// Returns a plain packet's flow.
    pub(super) fn flow(&self) -> Flow {
        let [(src, sport), (dst, dport)] = self.key.endpoints(self.from_low);
        Flow { src, dst, protocol: self.key.protocol(), sport, dport, icmp: None }
    }

    /// Returns a plain packet as the general parser would.
    pub(super) fn ip(&self) -> Ip {
        let transport = match self.key.protocol() {
            protocol::TCP => Transport::Tcp(self.flags),
            _ => Transport::Udp,
        };
        Ip { flow: self.flow(), hop_limit: self.hop_limit, fragment: None, transport }
    }
}

/// The properties of a port that the parser checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortFacts {
    /// The only source MAC address accepted on this port. `None` if all are accepted.
    mac: Option<[u8; 6]>,
}

impl PortFacts {
    pub(super) fn new(port: &PortConfig) -> Self {
        Self { mac: port.mac.filter(|_| port.kind == PortKind::Pod) }
    }
}

/// The policy decisions about the packets of a burst. A packet may have none.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    of: Vec<Decision>,
    known: Vec<bool>,
}

impl Decisions {
    const NONE: Decision = Decision { by: None, rule: None, origin: None };

    fn clear(&mut self, len: usize) {
        self.known.clear();
        self.known.resize(len, false);
        // Unknown decisions are not read, so they need not be cleared.
        if self.of.len() < len {
            self.of.resize(len, Self::NONE);
        }
    }

    pub(super) fn set(&mut self, at: usize, decision: Option<Decision>) {
        self.known[at] = decision.is_some();
        self.of[at] = decision.unwrap_or(Self::NONE);
    }

    pub(super) fn get(&self, at: usize) -> Option<Decision> {
        self.known[at].then(|| self.of[at])
    }
}

/// A burst as one vector per property, indexed by packet. Reused for each burst, so that no packet allocates.
#[derive(Debug, Default)]
pub(super) struct Columns {
    pub(super) metas: Vec<Meta>,
    /// Packets that are not plain.
    pub(super) parsed: Vec<Parsed>,
    pub(super) judged: Vec<Judged>,
    pub(super) decisions: Decisions,
    /// Positions of packets that missed the fast path, in order. They include all dropped packets and all that start sessions.
    pub(super) misses: Vec<usize>,
    /// Translations of packets and ICMP errors of all bursts since the last [`Columns::begin`]. A [`Judged`] has their position.
    pub(super) translations: Translations,
    /// Positions of packets that are repeated SYNs or first SYN-ACKs of their connections, and the number of packets before this burst, both
    /// since the last [`Columns::begin`].
    pub(super) openings: Vec<usize>,
    pub(super) before: usize,
}

impl Columns {
    /// Clears the data of the previous call of the worker. Call it before the first burst of a call.
    pub(super) fn begin(&mut self) {
        self.translations.clear();
        self.openings.clear();
        self.before = 0;
    }

    /// Whether any packet since [`Columns::begin`] is translated.
    pub(super) const fn translates(&self) -> bool {
        !self.translations.is_empty()
    }

    /// Clears the data of the previous burst.
    pub(super) fn clear(&mut self) {
        self.metas.clear();
        self.parsed.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.metas.len()
    }

    /// Parses a packet and appends it to the burst. `hash` computes the hash of a key.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        (link, frame, wire_len): (LinkType, &[u8], usize),
        in_port: PortId,
        ports: &[PortFacts],
        hash: impl Fn(&Key) -> u64,
    ) {
        let facts = ports.get(in_port.index());
        // Unknown ports, wrong senders and unusual packets take the general path, which finds the reason.
        let may_send = |mac: Option<[u8; 6]>| match (facts, mac) {
            (Some(PortFacts { mac: Some(own) }), Some(source)) => *own == source,
            (facts, _) => facts.is_some(),
        };
        match packet::open(link, frame, wire_len) {
            Some((Inner::V4(packet), mac)) if may_send(mac) => {
                if let Some(plain) = packet::parse_plain_v4(packet) {
                    let Plain { src, dst, protocol, sport, dport, .. } = plain;
                    return self.push_plain(Key::v4(src, dst, protocol, sport, dport), &plain, in_port, hash);
                }
            }
            Some((Inner::V6(packet), mac)) if may_send(mac) => {
                if let Some(plain) = packet::parse_plain_v6(packet) {
                    let Plain { src, dst, protocol, sport, dport, .. } = plain;
                    return self.push_plain(Key::v6(src, dst, protocol, sport, dport), &plain, in_port, hash);
                }
            }
            _ => {}
        }
        self.push_general(link, frame, wire_len, in_port);
    }

    /// Parses a plain packet. Instantiated per address family: in common code, the key would go through memory.
    #[inline(always)]
    fn push_plain<A>(
        &mut self,
        (key, from_low): (Key, bool),
        plain: &Plain<A>,
        in_port: PortId,
        hash: impl Fn(&Key) -> u64,
    ) {
        let (hash, general) = (hash(&key), Meta::PLAIN);
        let &Plain { flags, hop_limit, .. } = plain;
        self.metas.push(Meta { key, hash, guess: NONE, in_port, general, hop_limit, flags, from_low });
    }

    #[cold]
    #[inline(never)]
    fn push_general(&mut self, link: LinkType, frame: &[u8], wire_len: usize, in_port: PortId) {
        let general = u16::try_from(self.parsed.len()).expect("a burst is shorter");
        self.parsed.push(packet::parse(link, frame, wire_len));
        self.metas.push(Meta {
            key: Key::UNUSED,
            hash: 0,
            guess: NONE,
            in_port,
            general,
            hop_limit: 0,
            flags: TcpFlags(0),
            from_low: false,
        });
    }

    /// Returns the translation at this position. `None` without a position.
    #[inline]
    pub(super) fn translated(&self, place: Option<NonZeroU32>) -> Option<Translated<'_>> {
        self.translations.get(place)
    }

    /// Returns a packet's flow. `None` if it could not be parsed.
    pub(super) fn flow(&self, at: usize) -> Option<Flow> {
        flow(&self.metas[at], &self.parsed)
    }

    /// Returns the burst in the form that the stages use. The initial verdict of every packet is a drop.
    pub(super) fn burst<'a>(&'a mut self, snapshot: &'a Snapshot, epochs: (u32, u32), frames: Frames<'a>) -> Burst<'a> {
        self.judged.clear();
        self.judged.resize(self.metas.len(), Judged::UNJUDGED);
        self.decisions.clear(self.metas.len());
        self.misses.clear();
        let Self { metas, parsed, judged, decisions, misses, translations, openings, before } = self;
        let (epoch, services) = epochs;
        let before = *before;
        Burst {
            snapshot,
            epoch,
            services,
            frames,
            metas,
            parsed,
            judged,
            decisions,
            misses,
            translations,
            openings,
            before,
        }
    }
}

/// Returns a packet's flow. `parsed` are the general packets of its burst. `None` if the packet could not be parsed.
fn flow(meta: &Meta, parsed: &[Parsed]) -> Option<Flow> {
    match meta.general() {
        None => Some(meta.flow()),
        Some(general) => parsed[general].flow,
    }
}

/// The bytes of a burst, for packets that are parsed again.
#[derive(Clone, Copy)]
pub(super) enum Frames<'a> {
    /// A live burst: the first frame of each packet.
    Ethernet(&'a [&'a [u8]]),
    Any(&'a [Packet<'a>]),
}

impl<'a> Frames<'a> {
    /// Returns the bytes of packet `at`, or those of its first frame.
    pub(super) fn bytes(&self, at: usize) -> &'a [u8] {
        match self {
            Self::Ethernet(frames) => frames[at],
            Self::Any(packets) => packets[at].frame,
        }
    }
}

/// A burst and its results, as the stages of the pipeline read and write them.
pub(super) struct Burst<'a> {
    pub(super) snapshot: &'a Snapshot,
    /// The worker's number for the snapshot's generation: see [`super::Worker`].
    pub(super) epoch: u32,
    /// The lower half of the Services' epoch.
    pub(super) services: u32,
    frames: Frames<'a>,
    pub(super) metas: &'a mut [Meta],
    pub(super) parsed: &'a mut [Parsed],
    pub(super) judged: &'a mut [Judged],
    pub(super) decisions: &'a mut Decisions,
    pub(super) misses: &'a mut Vec<usize>,
    pub(super) translations: &'a mut Translations,
    openings: &'a mut Vec<usize>,
    before: usize,
}

impl Burst<'_> {
    pub(super) fn in_port(&self, at: usize) -> PortId {
        self.metas[at].in_port
    }

    /// Parses packet `at` again and returns its payload. `None` for an IPv4 fragment, an invalid header, or a packet that is not IP.
    pub(super) fn payload(&self, at: usize) -> Option<Payload<'_>> {
        match self.frames {
            Frames::Ethernet(frames) => Payload::of(LinkType::Ethernet, frames[at], frames[at].len()),
            Frames::Any(packets) => Payload::of(packets[at].link, packets[at].frame, packets[at].wire_len),
        }
    }

    /// Returns packet `at` as a fragment. `None` if it is a whole datagram.
    pub(super) fn piece(&self, at: usize) -> Option<Piece<'_>> {
        let general = self.metas[at].general()?;
        let Ok(Body::Ip(Ip { fragment: Some(_), .. })) = self.parsed[general].body else { return None };
        match self.frames {
            Frames::Ethernet(frames) => Piece::of(LinkType::Ethernet, frames[at], frames[at].len()),
            Frames::Any(packets) => Piece::of(packets[at].link, packets[at].frame, packets[at].wire_len),
        }
    }

    /// Sets the kind of payload of packet `at`.
    pub(super) fn is(&mut self, at: usize, body: BodyKind) {
        self.judged[at].body = body;
    }

    /// Drops packet `at` for this reason.
    pub(super) fn drop(&mut self, at: usize, reason: DropReason) {
        self.judged[at].verdict = Verdict::Drop(reason);
    }

    /// Forwards packet `at` without policy and session.
    pub(super) fn forward(&mut self, at: usize, out: PortId) {
        self.judged[at].verdict = Verdict::Forward(out);
    }

    /// Forwards the packet as part of a session, with the decision that allowed the session.
    pub(super) fn allow(&mut self, at: usize, verdict: Verdict, decision: Decision, session: crate::SessionState) {
        self.judged[at].verdict = verdict;
        self.judged[at].session = Some(session);
        self.decisions.set(at, Some(decision));
    }

    /// Stores new addresses and ports of a packet, to be [assigned](Self::translate) if the packet is allowed. Returns their position.
    pub(super) fn add_translation(&mut self, rewritten: Rewritten) -> Option<NonZeroU32> {
        self.translations.add_packet(|packets| packets.push(rewritten))
    }

    /// Stores the translation of an ICMP error, to be [assigned](Self::translate) if the error is allowed. Returns its position.
    pub(super) fn add_translated_error(&mut self, error: TranslatedError) -> Option<NonZeroU32> {
        self.translations.add_error(error)
    }

    /// Assigns to packet `at` the translation at this position, also if the packet is dropped.
    pub(super) fn translate(&mut self, at: usize, translation: Option<NonZeroU32>) {
        self.judged[at].translation = translation;
    }

    /// Marks the packet as a repeated SYN or the first SYN-ACK of its connection.
    pub(super) fn open(&mut self, at: usize) {
        self.openings.push(self.before + at);
    }

    /// Records that worker number `worker`, from 0, must judge the packet.
    pub(super) fn hand_over(&mut self, at: usize, worker: usize) {
        self.judged[at].elsewhere = u8::try_from(worker + 1).ok().and_then(NonZeroU8::new);
    }

    /// Returns a packet's flow. `None` if it could not be parsed.
    pub(super) fn flow(&self, at: usize) -> Option<Flow> {
        flow(&self.metas[at], self.parsed)
    }

    /// Returns the addresses and ports after the translation at this position. `None` without a position.
    pub(super) fn sent(&self, translation: Option<NonZeroU32>) -> Option<Translation> {
        self.translations.get(translation).map(|translated| translated.sent())
    }

    /// Returns the packet's new addresses and ports. `None` without translation and for an ICMP error.
    pub(super) fn rewritten(&self, at: usize) -> Option<Rewritten> {
        match self.translations.get(self.judged[at].translation)? {
            Translated::Packet(rewritten) => Some(*rewritten),
            // Plain packets are no fragments, for which this is called.
            Translated::PlainV4(_) | Translated::Error(_) => None,
        }
    }

    /// Sets the ports of the packet's flow, for display.
    pub(super) fn set_transport_ports(&mut self, at: usize, (sport, dport): (u16, u16)) {
        let general = self.metas[at].general();
        if let Some(flow) = general.and_then(|general| self.parsed[general].flow.as_mut()) {
            (flow.sport, flow.dport) = (sport, dport);
        }
    }
}
