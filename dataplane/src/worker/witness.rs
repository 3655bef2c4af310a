//! Witnesses inspect bursts after they were judged.
//!
//! [`Worker::judge`](crate::Worker::judge) is compiled for each kind of witness. With [`Nobody`] the inspection compiles to nothing.

use std::net::IpAddr;
use std::ops::Range;

use super::audit::Noted;
use super::column::{Columns, Frames, Meta};
use crate::filter::{Filter, Pair, Subject, Test};
use crate::packet::{Body, Ends, TcpFlags};
use crate::session::{Key, NONE, SessionTable};
use crate::translations::Translated;
use crate::{BURST, BodyKind, Flow, Judged, Outcome, SessionState};

/// Code that inspects each burst after it was judged.
pub(crate) trait Witness {
    /// Inspects a judged burst.
    fn see(&mut self, burst: &mut Judgements<'_>);
}

/// A witness that does nothing.
pub(crate) struct Nobody;

impl Witness for Nobody {
    #[inline(always)]
    fn see(&mut self, _: &mut Judgements<'_>) {}
}

/// A set of packets of a burst: one bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen([u64; BURST / 64]);

impl Chosen {
    /// The empty set.
    pub(crate) const NONE: Self = Self([0; BURST / 64]);

    pub(crate) fn add(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own |= other);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Calls `each` with the positions in ascending order.
    pub(crate) fn each(&self, mut each: impl FnMut(usize)) {
        for (number, mut word) in self.0.into_iter().enumerate() {
            while word != 0 {
                each(64 * number + word.trailing_zeros() as usize);
                word &= word - 1;
            }
        }
    }
}

/// Packets tested together. If none passes, the group costs one branch.
const GROUP: usize = 8;

/// A judged burst, as a witness sees it.
pub(crate) struct Judgements<'a> {
    pub(super) generation: u64,
    pub(super) columns: &'a Columns,
    pub(super) frames: Frames<'a>,
    pub(super) sessions: &'a mut SessionTable,
    pub(super) audits: &'a [Noted],
}

impl Judgements<'_> {
    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Results of the packets.
    pub(crate) fn judged(&self) -> &[Judged] {
        &self.columns.judged
    }

    /// Positions of packets that missed the fast path, in order. They include all dropped packets and all that start sessions.
    pub(crate) fn misses(&self) -> &[usize] {
        &self.columns.misses
    }

    /// Returns the bytes of the first frame of packet `at`.
    pub(crate) fn frame(&self, at: usize) -> &[u8] {
        self.frames.bytes(at)
    }

    /// Returns the full result for packet `at`.
    pub(crate) fn outcome(&self, at: usize) -> Outcome {
        outcome(self.columns, self.sessions, self.audits, at)
    }

    /// Returns the TCP control bits of packet `at`. `None` for other protocols.
    pub(crate) fn tcp_flags(&self, at: usize) -> Option<u8> {
        let meta = &self.columns.metas[at];
        let flags = match meta.general() {
            None => (meta.key.protocol() == bulkhead_classifier::protocol::TCP).then_some(meta.flags),
            Some(general) => self.columns.parsed[general].tcp_flags(),
        };
        flags.map(|TcpFlags(bits)| bits)
    }

    /// Returns the packets that a filter selects before or after translation, as [`is_selected`](Self::is_selected) does.
    pub(crate) fn select(&self, filter: &Filter) -> Chosen {
        let mut chosen = Chosen::NONE;
        let sieve = filter.sieve();
        // One loop per kind of test, without a branch per packet.
        match sieve.first() {
            None => self.look_closely(0..self.columns.metas.len(), filter, &mut chosen),
            Some(Test::Kinds(test)) => self.scan(filter, &mut chosen, |metas| some(metas, |pair| test.passes(pair))),
            Some(Test::Ports(test)) => self.scan(filter, &mut chosen, |metas| some(metas, |pair| test.passes(pair))),
            Some(Test::V4(test)) => self.scan(filter, &mut chosen, |metas| test.passes_some(pairs(metas))),
            Some(Test::V6(test)) => self.scan(filter, &mut chosen, |metas| some(metas, |pair| test.passes(pair))),
            Some(Test::Hosts(test)) => self.scan(filter, &mut chosen, |metas| some(metas, |pair| test.passes(pair))),
        }
        if self.columns.translates() {
            self.select_sent(filter, &mut chosen);
        }
        chosen
    }

    pub(crate) fn select_dropped(&self, filter: &Filter) -> Chosen {
        let mut chosen = Chosen::NONE;
        for &at in self.misses() {
            let judged = &self.columns.judged[at];
            if judged.verdict.out_port().is_none() && self.is_selected(at, filter) {
                chosen.add(at);
            }
        }
        chosen
    }

    /// Evaluates the filter only for groups in which a packet passes the test. The loop has no branch per packet.
    #[inline(always)]
    fn scan(&self, filter: &Filter, chosen: &mut Chosen, passes: impl Fn(&[Meta]) -> bool) {
        let has_general = !self.columns.parsed.is_empty();
        let (groups, rest) = self.columns.metas.as_chunks::<GROUP>();
        let mut look = |first: usize, metas: &[Meta], passes: bool| {
            // General packets have no key.
            if passes || (has_general && metas.iter().any(|meta| meta.key.is_unused())) {
                self.look_closely(first..first + metas.len(), filter, chosen);
            }
        };
        for (number, metas) in groups.iter().enumerate() {
            look(number * GROUP, metas, passes(metas));
        }
        look(groups.len() * GROUP, rest, passes(rest));
    }

    /// Evaluates the filter for each packet in `range`, before translation, and adds the selected ones.
    #[inline(never)]
    fn look_closely(&self, range: Range<usize>, filter: &Filter, chosen: &mut Chosen) {
        for at in range {
            let meta = &self.columns.metas[at];
            let may_be = meta.general().is_some() || filter.sieve().passes(meta.key.pair());
            if may_be && self.is_selected_as_received(at, filter) {
                chosen.add(at);
            }
        }
    }

    /// Adds the translated packets that the filter selects by their new addresses and ports.
    #[inline(never)]
    fn select_sent(&self, filter: &Filter, chosen: &mut Chosen) {
        for (at, judged) in self.columns.judged.iter().enumerate() {
            let Some(translated) = self.columns.translated(judged.translation) else { continue };
            let meta = &self.columns.metas[at];
            let passes = |ends: Ends| filter.sieve().passes(ends.pair(meta.key.protocol()));
            let may_be = match translated {
                _ if meta.general().is_some() => true,
                Translated::PlainV4(packet) => passes(packet.sent()),
                Translated::Packet(packet) => passes(packet.sent()),
                Translated::Error(_) => true,
            };
            if may_be && self.is_selected_as_sent(at, filter) {
                chosen.add(at);
            }
        }
    }

    /// Whether a filter selects a packet before or after translation.
    pub(crate) fn is_selected(&self, at: usize, filter: &Filter) -> bool {
        self.is_selected_as_received(at, filter)
            || (self.columns.judged[at].translation.is_some() && self.is_selected_as_sent(at, filter))
    }

    fn is_selected_as_received(&self, at: usize, filter: &Filter) -> bool {
        let meta = &self.columns.metas[at];
        match meta.general() {
            None => filter.selects(&PlainPacket { key: &meta.key, from_low: meta.from_low }),
            Some(_) => match self.columns.flow(at) {
                Some(flow) => filter.selects(&flow),
                None => filter.is_everything(),
            },
        }
    }

    fn is_selected_as_sent(&self, at: usize, filter: &Filter) -> bool {
        let sent = self.columns.translated(self.columns.judged[at].translation).map(|translated| translated.sent());
        let flow = self.columns.flow(at).zip(sent);
        flow.is_some_and(|(flow, sent)| {
            filter.selects(&Flow { src: sent.src, dst: sent.dst, sport: sent.sport, dport: sent.dport, ..flow })
        })
    }

    /// Counts a forwarded packet and its bytes for its session.
    pub(crate) fn tally(&mut self, at: usize, bytes: u64) {
        let (meta, judged) = (&self.columns.metas[at], &self.columns.judged[at]);
        let is_of_session = judged.session.is_some() && judged.verdict.out_port().is_some();
        if !is_of_session || judged.body != BodyKind::Ip {
            return;
        }
        match meta.general() {
            None => self.sessions.tally(meta.guess, meta.hash, &meta.key, bytes),
            Some(general) => {
                // ICMP errors and later fragments have no key of their own.
                let Ok(Body::Ip(ip)) = &self.columns.parsed[general].body else { return };
                let (key, _) = Key::of(ip.flow.src, ip.flow.dst, ip.flow.protocol, ip.transport.ports(&ip.flow));
                let hash = self.sessions.hash(&key);
                self.sessions.tally(NONE, hash, &key, bytes);
            }
        }
    }
}

/// Returns the endpoints of each packet in the form that filters test.
#[inline(always)]
fn pairs(metas: &[Meta]) -> impl Iterator<Item = Pair<'_>> {
    metas.iter().map(|meta| meta.key.pair())
}

/// Whether any packet passes a test. Has no branch per packet.
#[inline(always)]
fn some(metas: &[Meta], passes: impl Fn(Pair<'_>) -> bool) -> bool {
    pairs(metas).fold(false, |some, pair| some | passes(pair))
}

/// Returns the full result for a packet of the last burst.
pub(super) fn outcome(columns: &Columns, sessions: &SessionTable, audits: &[Noted], at: usize) -> Outcome {
    let Judged { verdict, session, translation: place, elsewhere, .. } = columns.judged[at];
    let meta = &columns.metas[at];
    // The fast path does not read the decision. Another session may have reused the slot since.
    let remembered = || {
        let is_hit = session == Some(SessionState::Hit) && meta.guess != NONE && meta.general().is_none();
        let is_there = is_hit && sessions.has_key(meta.guess, &meta.key);
        is_there.then(|| sessions.decision(meta.guess))
    };
    let noted = audits.iter().find(|noted| noted.at == at);
    Outcome {
        in_port: meta.in_port,
        verdict,
        decision: columns.decisions.get(at).or_else(remembered),
        audited: noted.map(|noted| noted.audited.decision),
        session,
        flow: columns.flow(at),
        translation: columns.translated(place).map(|translated| translated.sent()),
        place,
        elsewhere,
    }
}

/// A plain packet. Filters mostly ask for its protocol or one port.
struct PlainPacket<'a> {
    key: &'a Key,
    from_low: bool,
}

impl Subject for PlainPacket<'_> {
    #[inline]
    fn protocol(&self) -> u8 {
        self.key.protocol()
    }

    #[inline]
    fn is_v6(&self) -> bool {
        self.key.is_v6()
    }

    fn addresses(&self) -> [IpAddr; 2] {
        self.key.endpoints(self.from_low).map(|(address, _)| address)
    }

    #[inline]
    fn ports(&self) -> [u16; 2] {
        self.key.ports(self.from_low)
    }
}
