//! A burst as columns: the known facts about each packet, and its outcome.

use std::num::{NonZeroU8, NonZeroU32};

use crate::packet::{self, Inner, Ip, Parsed, Payload, Plain, TcpFlags, Transport};
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
    /// The probable slot of its session.
    pub(super) guess: Slot,
    pub(super) in_port: PortId,
    /// Position among the general packets, or [`Meta::PLAIN`].
    general: u16,
    pub(super) hop_limit: u8,
    pub(super) flags: TcpFlags,
    pub(super) from_low: bool,
}

impl Meta {
    const PLAIN: u16 = u16::MAX;

    /// The packet's position in [`Columns::parsed`]. `None` for a plain packet, which is complete here.
    #[inline]
    pub(super) fn general(&self) -> Option<usize> {
        (self.general != Self::PLAIN).then_some(usize::from(self.general))
    }

    /// Returns a plain packet as the session table looks it up.
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

/// What the parser needs to know of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortFacts {
    /// The only MAC address that may send on this port. `None` if any may.
    mac: Option<[u8; 6]>,
}

impl PortFacts {
    pub(super) fn new(port: &PortConfig) -> Self {
        Self { mac: port.mac.filter(|_| port.kind == PortKind::Pod) }
    }
}

/// The decisions of a burst. Only recorded ones are valid.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    of: Vec<Decision>,
    known: Vec<bool>,
}

impl Decisions {
    const NONE: Decision = Decision { table: None, rule: None, origin: None };

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

/// The columns of a burst. Reused, so that no packet allocates.
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
    /// Positions of packets that are the first SYN-ACKs of their connections, and the number of packets before this burst, both since the
    /// last [`Columns::begin`].
    pub(super) openings: Vec<usize>,
    pub(super) before: usize,
}

impl Columns {
    /// Clears everything before a call.
    pub(super) fn begin(&mut self) {
        self.translations.clear();
        self.openings.clear();
        self.before = 0;
    }

    /// Whether there are translations.
    pub(super) const fn translates(&self) -> bool {
        !self.translations.is_empty()
    }

    /// Clears the burst.
    pub(super) fn clear(&mut self) {
        self.metas.clear();
        self.parsed.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.metas.len()
    }

    /// Parses a packet. `hash` hashes a key.
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

    /// Instantiated per address family. Merged, the key would go through memory.
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

    /// Returns a packet's translation.
    #[inline]
    pub(super) fn translated(&self, place: Option<NonZeroU32>) -> Option<Translated<'_>> {
        self.translations.get(place)
    }

    /// Returns a packet's flow. `None` if it could not be parsed.
    pub(super) fn flow(&self, at: usize) -> Option<Flow> {
        let meta = &self.metas[at];
        match meta.general() {
            None => Some(meta.flow()),
            Some(general) => self.parsed[general].flow,
        }
    }

    /// Returns the burst for the stages. Every packet begins as a drop.
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

/// The bytes of a burst, for packets that are parsed again.
#[derive(Clone, Copy)]
pub(super) enum Frames<'a> {
    /// Live: the first frame of each packet.
    Ethernet(&'a [&'a [u8]]),
    Any(&'a [Packet<'a>]),
}

impl<'a> Frames<'a> {
    /// The bytes of a packet's first frame.
    pub(super) fn bytes(&self, at: usize) -> &'a [u8] {
        match self {
            Self::Ethernet(frames) => frames[at],
            Self::Any(packets) => packets[at].frame,
        }
    }
}

/// A burst in the pipeline.
pub(super) struct Burst<'a> {
    pub(super) snapshot: &'a Snapshot,
    /// Number that represents the snapshot's generation: see [`super::Worker`].
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

    /// Parses the packet's payload again.
    pub(super) fn payload(&self, at: usize) -> Option<Payload<'_>> {
        match self.frames {
            Frames::Ethernet(frames) => Payload::of(LinkType::Ethernet, frames[at], frames[at].len()),
            Frames::Any(packets) => Payload::of(packets[at].link, packets[at].frame, packets[at].wire_len),
        }
    }

    /// Sets the packet's kind.
    pub(super) fn is(&mut self, at: usize, body: BodyKind) {
        self.judged[at].body = body;
    }

    /// Drops the packet.
    pub(super) fn drop(&mut self, at: usize, reason: DropReason) {
        self.judged[at].verdict = Verdict::Drop(reason);
    }

    /// Forwards the packet without policy and session.
    pub(super) fn forward(&mut self, at: usize, out: PortId) {
        self.judged[at].verdict = Verdict::Forward(out);
    }

    /// Allows the packet as part of a session.
    pub(super) fn allow(&mut self, at: usize, verdict: Verdict, decision: Decision, session: crate::SessionState) {
        self.judged[at].verdict = verdict;
        self.judged[at].session = Some(session);
        self.decisions.set(at, Some(decision));
    }

    /// Stores a packet's translation for the case that it is allowed. Returns its position.
    pub(super) fn add_translation(&mut self, rewritten: Rewritten) -> Option<NonZeroU32> {
        self.translations.add_packet(|packets| packets.push(rewritten))
    }

    /// The same for an ICMP error.
    pub(super) fn add_translated_error(&mut self, error: TranslatedError) -> Option<NonZeroU32> {
        self.translations.add_error(error)
    }

    /// Sets the packet's translation, also for a packet that is dropped.
    pub(super) fn translate(&mut self, at: usize, translation: Option<NonZeroU32>) {
        self.judged[at].translation = translation;
    }

    /// Marks the packet as the first SYN-ACK of its connection.
    pub(super) fn open(&mut self, at: usize) {
        self.openings.push(self.before + at);
    }

    /// Marks the packet for another worker.
    pub(super) fn hand_over(&mut self, at: usize, worker: usize) {
        self.judged[at].elsewhere = u8::try_from(worker + 1).ok().and_then(NonZeroU8::new);
    }

    /// Returns the packet's new addresses and ports. `None` for an ICMP error.
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
