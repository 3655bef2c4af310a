//! A burst as columns: what is known of each packet, and what became of it.

use std::num::{NonZeroU8, NonZeroU32};

use crate::packet::{self, Inner, Ip, Parsed, Payload, Plain, TcpFlags, Transport};
use crate::session::{Key, NONE, PlainHit, Rewritten, Slot};
use crate::translations::{Translated, TranslatedError, Translations};
use crate::{
    BodyKind, Decision, DropReason, Flow, Judged, LinkType, Packet, PortConfig, PortId, PortKind, Snapshot, Verdict,
};

use bulkhead_classifier::protocol;

/// What is known of a packet before it is judged: one cache line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meta {
    /// For plain packets; the general ones are in a column of their own.
    pub(super) key: Key,
    pub(super) hash: u64,
    /// Where its session probably is.
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

    /// The packet's position in [`Columns::parsed`]; none for a plain packet, which is whole here.
    #[inline]
    pub(super) fn general(&self) -> Option<usize> {
        (self.general != Self::PLAIN).then_some(usize::from(self.general))
    }

    /// A plain packet as the session table is asked about it.
    #[inline]
    pub(super) const fn plain(&self, epoch: u32) -> PlainHit<'_> {
        PlainHit { key: &self.key, from_low: self.from_low, flags: self.flags, in_port: self.in_port, epoch }
    }

    /// Who talks to whom in a plain packet.
    pub(super) fn flow(&self) -> Flow {
        let [(src, sport), (dst, dport)] = self.key.endpoints(self.from_low);
        Flow { src, dst, protocol: self.key.protocol(), sport, dport, icmp: None }
    }

    /// A plain packet as the general parser would have given it.
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
    /// The only MAC address that may send here.
    mac: Option<[u8; 6]>,
}

impl PortFacts {
    pub(super) fn new(port: &PortConfig) -> Self {
        Self { mac: port.mac.filter(|_| port.kind == PortKind::Pod) }
    }
}

/// The decisions of a burst, as far as they were asked for.
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
        // What is not known is not read, so it need not be cleared.
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

/// The columns. Kept from burst to burst, so that a packet never allocates.
#[derive(Debug, Default)]
pub(super) struct Columns {
    pub(super) metas: Vec<Meta>,
    /// The packets that are not plain.
    pub(super) parsed: Vec<Parsed>,
    pub(super) judged: Vec<Judged>,
    pub(super) decisions: Decisions,
    /// The places of the packets that took longer than a plain hit, in order: who looks for sessions that begin and for drops looks
    /// at these alone.
    pub(super) misses: Vec<usize>,
    /// What is written into packets and into ICMP errors about them, of all bursts since the last
    /// [`Columns::begin`]. A [`Judged`] names the place.
    pub(super) translations: Translations,
    /// The places of the packets that are the first SYN-ACKs of their connections, of the same bursts, and how many packets these
    /// had before this one.
    pub(super) openings: Vec<usize>,
    pub(super) before: usize,
}

impl Columns {
    /// Nothing is known of any packet.
    pub(super) fn begin(&mut self) {
        self.translations.clear();
        self.openings.clear();
        self.before = 0;
    }

    /// Whether there is something to be written.
    pub(super) const fn translates(&self) -> bool {
        !self.translations.is_empty()
    }

    /// Nothing.
    pub(super) fn clear(&mut self) {
        self.metas.clear();
        self.parsed.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.metas.len()
    }

    /// Parses a packet. `hash` gives a key's hash.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        (link, frame, wire_len): (LinkType, &[u8], usize),
        in_port: PortId,
        ports: &[PortFacts],
        hash: impl Fn(&Key) -> u64,
    ) {
        let facts = ports.get(in_port.index());
        // An unknown port, a wrong sender and all that is odd go the general way, which finds the reason.
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

    /// Once for each family, not where they come together: there the key would go through memory.
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

    /// What is written into a packet.
    #[inline]
    pub(super) fn translated(&self, place: Option<NonZeroU32>) -> Option<Translated<'_>> {
        self.translations.get(place)
    }

    /// Who talks to whom, as far as the packet could be parsed.
    pub(super) fn flow(&self, at: usize) -> Option<Flow> {
        let meta = &self.metas[at];
        match meta.general() {
            None => Some(meta.flow()),
            Some(general) => self.parsed[general].flow,
        }
    }

    /// The burst on its way through the stages: every packet begins as a drop.
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

/// The bytes of a burst, for the few packets that are looked at twice.
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

/// A burst on its way through the stages.
pub(super) struct Burst<'a> {
    pub(super) snapshot: &'a Snapshot,
    /// Stands for the snapshot's generation: see [`super::Worker`].
    pub(super) epoch: u32,
    /// The lower half of the epoch of the snapshot's Services.
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

    /// What the packet carries, read anew.
    pub(super) fn payload(&self, at: usize) -> Option<Payload<'_>> {
        match self.frames {
            Frames::Ethernet(frames) => Payload::of(LinkType::Ethernet, frames[at], frames[at].len()),
            Frames::Any(packets) => Payload::of(packets[at].link, packets[at].frame, packets[at].wire_len),
        }
    }

    /// The packet is of this kind.
    pub(super) fn is(&mut self, at: usize, body: BodyKind) {
        self.judged[at].body = body;
    }

    /// The packet is dropped.
    pub(super) fn drop(&mut self, at: usize, reason: DropReason) {
        self.judged[at].verdict = Verdict::Drop(reason);
    }

    /// The packet passes without policy and without a session.
    pub(super) fn forward(&mut self, at: usize, out: PortId) {
        self.judged[at].verdict = Verdict::Forward(out);
    }

    /// The packet is allowed as part of a session.
    pub(super) fn allow(&mut self, at: usize, verdict: Verdict, decision: Decision, session: crate::SessionState) {
        self.judged[at].verdict = verdict;
        self.judged[at].session = Some(session);
        self.decisions.set(at, Some(decision));
    }

    /// Keeps what is to be written into a packet, for when it is allowed.
    pub(super) fn add_translation(&mut self, rewritten: Rewritten) -> Option<NonZeroU32> {
        self.translations.add_packet(|packets| packets.push(rewritten))
    }

    /// The same for an ICMP error.
    pub(super) fn add_translated_error(&mut self, error: TranslatedError) -> Option<NonZeroU32> {
        self.translations.add_error(error)
    }

    /// Says what is written into the packet, or would be if it were not dropped.
    pub(super) fn translate(&mut self, at: usize, translation: Option<NonZeroU32>) {
        self.judged[at].translation = translation;
    }

    /// The packet is the first SYN-ACK of its connection.
    pub(super) fn open(&mut self, at: usize) {
        self.openings.push(self.before + at);
    }

    /// Another worker is to judge the packet.
    pub(super) fn hand_over(&mut self, at: usize, worker: usize) {
        self.judged[at].elsewhere = u8::try_from(worker + 1).ok().and_then(NonZeroU8::new);
    }

    /// The addresses and ports that are written into the packet; none for an ICMP error.
    pub(super) fn rewritten(&self, at: usize) -> Option<Rewritten> {
        match self.translations.get(self.judged[at].translation)? {
            Translated::Packet(rewritten) => Some(*rewritten),
            // What is plain is no fragment, and nobody asks.
            Translated::PlainV4(_) | Translated::Error(_) => None,
        }
    }

    /// Changes who talks to whom, for display.
    pub(super) fn set_transport_ports(&mut self, at: usize, (sport, dport): (u16, u16)) {
        let general = self.metas[at].general();
        if let Some(flow) = general.and_then(|general| self.parsed[general].flow.as_mut()) {
            (flow.sport, flow.dport) = (sport, dport);
        }
    }
}
