//! Whoever looks at bursts after they were judged.
//!
//! [`Worker::judge`](crate::Worker::judge) is made for each kind of witness anew: with [`Nobody`] nothing is left of it.

use super::audit::Noted;
use super::column::{Columns, Frames};
use crate::filter::{Filter, Subject};
use crate::packet::{Body, TcpFlags};
use crate::session::{Key, NONE, SessionTable};
use crate::{BodyKind, Flow, Judged, Outcome, SessionState};

use std::net::IpAddr;

/// See the module.
pub(crate) trait Witness {
    /// A packet of this length comes into the burst.
    fn arrive(&mut self, wire_len: usize);

    /// The burst was judged.
    fn see(&mut self, burst: &mut Judgements<'_>);
}

/// Nobody looks.
pub(crate) struct Nobody;

impl Witness for Nobody {
    #[inline(always)]
    fn arrive(&mut self, _: usize) {}

    #[inline(always)]
    fn see(&mut self, _: &mut Judgements<'_>) {}
}

/// A burst that was judged.
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

    /// What became of the packets.
    pub(crate) fn judged(&self) -> &[Judged] {
        &self.columns.judged
    }

    /// The bytes of a packet's first frame.
    pub(crate) fn frame(&self, at: usize) -> &[u8] {
        self.frames.bytes(at)
    }

    /// Everything that the engine knows of a packet's fate.
    pub(crate) fn outcome(&self, at: usize) -> Outcome {
        let columns = self.columns;
        let Judged { verdict, session, translation: place, elsewhere, .. } = columns.judged[at];
        let meta = &columns.metas[at];
        // The quickest way does not look at who has allowed a session. Another one may have its slot by now.
        let remembered = || {
            let is_hit = session == Some(SessionState::Hit) && meta.guess != NONE && meta.general().is_none();
            let is_there = is_hit && self.sessions.has_key(meta.guess, &meta.key);
            is_there.then(|| self.sessions.decision(meta.guess))
        };
        let noted = self.audits.iter().find(|noted| noted.at == at);
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

    /// The control bits of a TCP segment.
    pub(crate) fn tcp_flags(&self, at: usize) -> Option<u8> {
        let meta = &self.columns.metas[at];
        let flags = match meta.general() {
            None => (meta.key.protocol() == bulkhead_classifier::protocol::TCP).then_some(meta.flags),
            Some(general) => match &self.columns.parsed[general].body {
                Ok(Body::Ip(ip)) => {
                    ip.transport.flags().filter(|_| ip.flow.protocol == bulkhead_classifier::protocol::TCP)
                }
                Ok(Body::Arp(_)) | Err(_) => None,
            },
        };
        flags.map(|TcpFlags(bits)| bits)
    }

    /// Whether a filter selects a packet, as it came in or as it leaves.
    #[inline]
    pub(crate) fn is_selected(&self, at: usize, filter: &Filter) -> bool {
        let (meta, judged) = (&self.columns.metas[at], &self.columns.judged[at]);
        let received = match meta.general() {
            None => filter.selects(&PlainPacket { key: &meta.key, from_low: meta.from_low }),
            Some(_) => match self.columns.flow(at) {
                Some(flow) => filter.selects(&flow),
                None => filter.is_everything(),
            },
        };
        received || (judged.translation.is_some() && self.is_selected_as_sent(at, filter))
    }

    #[cold]
    #[inline(never)]
    fn is_selected_as_sent(&self, at: usize, filter: &Filter) -> bool {
        let sent = self.columns.translated(self.columns.judged[at].translation).map(|translated| translated.sent());
        let flow = self.columns.flow(at).zip(sent);
        flow.is_some_and(|(flow, sent)| {
            filter.selects(&Flow { src: sent.src, dst: sent.dst, sport: sent.sport, dport: sent.dport, ..flow })
        })
    }

    /// Counts a packet that was forwarded for its session.
    pub(crate) fn tally(&mut self, at: usize, bytes: u64) {
        let (meta, judged) = (&self.columns.metas[at], &self.columns.judged[at]);
        let is_of_session = judged.session.is_some() && judged.verdict.out_port().is_some();
        if !is_of_session || judged.body != BodyKind::Ip {
            return;
        }
        match meta.general() {
            None => self.sessions.tally(meta.guess, meta.hash, &meta.key, bytes),
            Some(general) => {
                // Errors and later fragments have no key of their own.
                let Ok(Body::Ip(ip)) = &self.columns.parsed[general].body else { return };
                let (key, _) = Key::of(ip.flow.src, ip.flow.dst, ip.flow.protocol, ip.transport.ports(&ip.flow));
                let hash = self.sessions.hash(&key);
                self.sessions.tally(NONE, hash, &key, bytes);
            }
        }
    }
}

/// A plain packet, of which a filter nearly always asks for the protocol or a port alone.
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
