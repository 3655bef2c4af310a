//! The worker: a burst of packets in, one outcome each out.
//!
//! **Purpose.** A worker runs the stages of the pipeline over bursts: [`Worker::judge`] for a live vswitch,
//! [`Worker::process`] for whoever also wants to know who talks to whom and which rule decided. Both are the same engine
//! and may be called in turn. A worker owns its sessions and fragments; it shares nothing but the snapshot, takes no
//! lock and, once its tables have grown, does not allocate.
//!
//! **Not its purpose.** It does not receive, send or rewrite frames, and it knows no clock: time is what the packets
//! say, made monotonic. Which worker gets a packet is [`Affinity`]'s to say.
//!
//! ```text
//!   frames  ->  parse  ->  [column of metas] (and of general packets: those that are not plain TCP or UDP)
//!   read ahead: all buckets of the burst, then all entries
//!   each in order:
//!     plain, in an open session of this generation, on the right port, addresses checked before -> forward
//!     anything else:
//!     port known? -> MAC -> ARP, neighbour discovery ------------------------------> forward to whom it concerns
//!                        -> martian? multicast? spoofed?
//!                        -> fragment: as the first one, so the others -------> forward or drop
//!                        -> session --hit, same generation-------------------------> forward, remember the time
//!                               |    |`refused, same generation ---------------------> drop
//!                               |    `hit, older generation -> route -\
//!                               `miss -> may it start one? -> route --+-> [pending] -> classify per table
//!                                                                            -> remember -> forward or drop
//! ```
//!
//! The first line after the reading ahead is a short cut, not another judge: it answers only where the long way would
//! give the same answer. It does not check addresses again. A session remembers for each direction that a packet of it
//! passed those checks on that port in this generation, and the next one has the same addresses. The source MAC, the port
//! and the hop limit are checked for every packet.
//!
//! **Invariant.** Every outcome starts as a drop ([`Unjudged`](crate::DropReason::Unjudged)) and every stage must earn the pass; the
//! counters always satisfy `received == forwarded + drops`; and a burst has the outcomes of its packets one by one.
//! For the last one the pending packets are classified early whenever a packet comes that may depend on one of them.

mod admission;
mod affinity;
mod audit;
mod caching;
mod column;
mod conversation;
mod denial;
mod errors;
mod evidence;
mod exit;
mod fragments;
mod hits;
mod masquerade;
mod neighbours;
mod pending;
mod services;
mod stages;
mod team;
mod witness;

use std::sync::Arc;

use crate::fragment::FragmentTable;
use crate::service::ClientAffinity;
use crate::session::{Budget, EndedSessions, Moment, SessionEnd, SessionPage, SessionSelector, SessionTable, Slot};
use crate::translations::Translated;
use crate::{
    BURST, Counters, FragmentConfig, Judged, LinkType, Outcome, Packet, PortId, Received, Services, SessionConfig,
    Snapshot,
};

pub use affinity::Affinity;
pub use audit::{AuditTap, Audited};
pub(crate) use caching::SessionKey;
pub(crate) use denial::denied_by;
pub(crate) use witness::{Chosen, Judgements, Nobody, Witness};

use audit::Noted;
use column::{Columns, Frames, PortFacts};
use pending::Pending;
use stages::Times;

/// How a worker is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerConfig {
    /// How sessions are kept.
    pub sessions: SessionConfig,
    /// How fragmented datagrams are remembered.
    pub fragments: FragmentConfig,
}

/// Which of several workers one is.
#[derive(Clone, Debug)]
struct Team {
    affinity: Affinity,
    id: usize,
    workers: usize,
}

/// One engine with its own sessions and counters.
#[derive(Debug)]
pub struct Worker {
    tcp_pickup: bool,
    sessions: SessionTable,
    fragments: FragmentTable,
    counters: Counters,
    /// The latest time that a packet had, and how many there were. Captures may hold packets out of order; time never
    /// runs backwards.
    now: Moment,
    /// The generation that the worker is in, and how many it has been in. Sessions carry the latter: half the size, and
    /// never the same for two generations.
    generation: Option<u64>,
    epoch: u32,
    ports: Vec<PortFacts>,
    columns: Columns,
    /// The epoch of the Services, and where the review of the sessions goes on that a change of it asks for.
    services: u64,
    review_from: Option<Slot>,
    /// The last backends of clients, of all workers.
    clients: Arc<ClientAffinity>,
    /// None for a worker that is alone.
    team: Option<Team>,
    /// Room for a burst's frames; empty between bursts.
    frames: Vec<&'static [u8]>,
    pending: Pending,
    /// Audited connections of the burst. Room for a burst, so that noting one does not allocate.
    audits: Vec<Noted>,
    audit_tap: Option<AuditTap>,
}

impl Worker {
    /// Judges a live burst of Ethernet frames, in order, by one snapshot. `judged` is emptied and gets what became of each
    /// packet. An empty burst lets time pass: sessions whose time is up are ended.
    ///
    /// This is [`Worker::process`] without what only people want to know; both may be called in turn.
    #[inline]
    pub fn judge<'a>(
        &mut self,
        snapshot: &Snapshot,
        time: u64,
        packets: impl IntoIterator<Item = Received<'a>>,
        judged: &mut Vec<Judged>,
    ) {
        self.judge_before(snapshot, time, packets, judged, &mut Nobody);
    }

    /// The same, and a witness sees what becomes of the packets.
    #[inline]
    pub(crate) fn judge_before<'a>(
        &mut self,
        snapshot: &Snapshot,
        time: u64,
        packets: impl IntoIterator<Item = Received<'a>>,
        judged: &mut Vec<Judged>,
        witness: &mut impl Witness,
    ) {
        judged.clear();
        self.enter(snapshot);
        let mut columns = std::mem::take(&mut self.columns);
        columns.begin();
        let mut frames: Vec<&[u8]> = std::mem::take(&mut self.frames);
        let mut packets = packets.into_iter();
        loop {
            columns.clear();
            frames.clear();
            for packet in packets.by_ref().take(BURST) {
                let frame = (LinkType::Ethernet, packet.frame, packet.wire_len);
                columns.push(frame, packet.in_port, &self.ports, |key| self.sessions.hash(key));
                frames.push(packet.frame);
            }
            let bytes = Frames::Ethernet(&frames);
            self.run::<false>(snapshot, &mut columns, bytes, Times::One(time));
            witness.see(&mut self.judgements(snapshot, &columns, bytes));
            if !self.audits.is_empty() {
                self.tell_audits();
            }
            judged.extend_from_slice(&columns.judged);
            columns.before = judged.len();
            if columns.len() < BURST {
                break;
            }
        }
        self.columns = columns;
        self.frames = emptied(frames);
    }

    /// Judges packets, in order, by one snapshot. `outcomes[i]` is what became of `packets[i]`.
    ///
    /// Sessions are tied to the generation: two snapshots with the same number must be the same.
    ///
    /// # Panics
    /// When the two slices differ in length.
    pub fn process(&mut self, snapshot: &Snapshot, packets: &[Packet<'_>], outcomes: &mut [Outcome]) {
        self.process_before(snapshot, packets, outcomes, &mut Nobody);
    }

    /// The same, and a witness sees what becomes of the packets.
    pub(crate) fn process_before(
        &mut self,
        snapshot: &Snapshot,
        packets: &[Packet<'_>],
        outcomes: &mut [Outcome],
        witness: &mut impl Witness,
    ) {
        assert_eq!(packets.len(), outcomes.len(), "one outcome slot per packet");
        self.enter(snapshot);
        let mut columns = std::mem::take(&mut self.columns);
        columns.begin();
        for (packets, outcomes) in packets.chunks(BURST).zip(outcomes.chunks_mut(BURST)) {
            columns.clear();
            for packet in packets {
                let frame = (packet.link, packet.frame, packet.wire_len);
                columns.push(frame, packet.in_port, &self.ports, |key| self.sessions.hash(key));
            }
            self.run::<true>(snapshot, &mut columns, Frames::Any(packets), Times::Each(packets));
            witness.see(&mut self.judgements(snapshot, &columns, Frames::Any(packets)));
            for (at, outcome) in outcomes.iter_mut().enumerate() {
                let Judged { verdict, session, translation: place, elsewhere, .. } = columns.judged[at];
                let (decision, flow) = (columns.decisions.get(at), columns.flow(at));
                let translation = columns.translated(place).map(|translated| translated.sent());
                let in_port = packets[at].in_port;
                let audited = None;
                *outcome =
                    Outcome { in_port, verdict, decision, audited, session, flow, translation, place, elsewhere };
            }
            if !self.audits.is_empty() {
                for Noted { at, audited } in &self.audits {
                    outcomes[*at].audited = Some(audited.decision);
                }
                self.tell_audits();
            }
        }
        self.columns = columns;
    }

    /// For a witness.
    #[inline]
    fn judgements<'a>(&'a mut self, snapshot: &Snapshot, columns: &'a Columns, frames: Frames<'a>) -> Judgements<'a> {
        let (generation, audits) = (snapshot.generation(), &*self.audits);
        Judgements { generation, columns, frames, sessions: &mut self.sessions, audits }
    }

    /// Has the ends of sessions told, and their packets counted where a witness does, from now on or no more.
    pub(crate) fn listen(&mut self, listens: bool) {
        self.sessions.listen(listens);
    }

    /// Gives sessions that have ended since the last call to `each`, and returns how many more there were.
    pub(crate) fn take_endings(&mut self, each: impl FnMut(SessionEnd)) -> u64 {
        self.sessions.take_endings(each)
    }

    /// What was counted since the worker was made.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many connections to Services are remembered, those that policy denies included.
    pub const fn translated_in_use(&self) -> usize {
        self.sessions.translated()
    }

    /// How many sessions there are, those included whose time is up and that were not swept out yet.
    pub const fn sessions_in_use(&self) -> usize {
        self.sessions.len()
    }

    /// The account of the sessions of the node, which all workers share.
    pub(crate) const fn budget(&self) -> &Arc<Budget> {
        self.sessions.budget()
    }

    /// Bytes of memory that sessions take: those of every session that there ever was room for at one time, and the index.
    pub fn session_memory(&self) -> usize {
        self.sessions.bytes()
    }

    /// The sessions of a part of the table that begins here; 0 is the beginning.
    pub fn session_page(&self, from: u32) -> SessionPage {
        self.sessions.page(from, self.now.time)
    }

    /// Ends the selected sessions of such a part.
    pub fn end_sessions(&mut self, from: u32, selector: &SessionSelector) -> EndedSessions {
        self.sessions.end_selected(from, selector, self.now.time)
    }

    /// A port is no more: its sessions end with the next bursts, some with each, and so does what they count for.
    pub fn remove_port(&mut self, port: PortId) {
        self.sessions.remove_port(port);
    }

    /// A port is new, perhaps with the number of an older one.
    pub fn add_port(&mut self, port: PortId) {
        self.sessions.add_port(port);
    }

    /// Forgets all sessions and fragments, and what time it is; counters stay. Costs what was in use.
    pub fn clear(&mut self) {
        self.sessions.clear();
        self.fragments.clear();
        self.now = Moment::default();
    }

    /// Prepares for the snapshot's generation, when it is another one than before.
    #[inline]
    fn enter(&mut self, snapshot: &Snapshot) {
        if self.generation != Some(snapshot.generation()) {
            self.change_generation(snapshot);
        }
        let services = snapshot.services().map_or(0, Services::epoch);
        if self.services != services {
            (self.services, self.review_from) = (services, Some(0));
        }
    }

    /// Whether anything is written into packets of the last call of [`Worker::judge`].
    pub(crate) const fn translates(&self) -> bool {
        self.columns.translates()
    }

    /// What is written into a packet of the last call of [`Worker::judge`].
    pub(crate) fn translated(&self, judged: &Judged) -> Option<Translated<'_>> {
        self.columns.translated(judged.translation)
    }

    /// Everything that is known of the `at`th packet of the last call of [`Worker::judge`]; none where later bursts of that call have
    /// taken its place.
    pub(crate) fn outcome(&self, at: usize) -> Option<Outcome> {
        let first = self.columns.before.checked_sub(self.columns.len())?;
        let at = at.checked_sub(first).filter(|&at| at < self.columns.len())?;
        Some(witness::outcome(&self.columns, &self.sessions, &[], at))
    }

    /// Which packets of the last call of [`Worker::judge`] are the first SYN-ACKs of their connections, in order.
    pub(crate) fn openings(&self) -> &[usize] {
        &self.columns.openings
    }

    #[cold]
    #[inline(never)]
    fn change_generation(&mut self, snapshot: &Snapshot) {
        self.generation = Some(snapshot.generation());
        self.epoch = self.epoch.wrapping_add(1);
        self.ports.clear();
        self.ports.extend(snapshot.ports().iter().map(PortFacts::new));
        self.counters.know_ports(snapshot.ports().len());
        self.sessions.know_ports(snapshot.ports().iter().map(|port| port.kind));
    }
}

/// The memory of a list, for references of any lifetime. (A list that is empty is collected in its place.)
fn emptied(mut frames: Vec<&[u8]>) -> Vec<&'static [u8]> {
    frames.clear();
    frames.into_iter().map(|_| -> &[u8] { &[] }).collect()
}

#[cfg(test)]
mod tests;
