//! The worker: judges bursts of packets.
//!
//! **Purpose.** A worker runs the pipeline's stages over bursts. [`Worker::judge`] serves a live vswitch. [`Worker::process`] also returns
//! flows and decisions. Both use the same engine and may be mixed. A worker owns its sessions and fragments and shares only the snapshot.
//! It does not allocate once its tables have grown. It takes no lock, except for the first packets and the DNS answers of pods with rules that
//! name domains, and these may also allocate (see [`crate::names`]).
//!
//! **Not its purpose.** It does not receive, send or rewrite frames. It has no clock: packets carry the time, which is made monotonic.
//! [`Affinity`] assigns packets to workers.
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
//! The first check after the prefetch is a fast path: it gives the same answer as the full path, without checking addresses again. A
//! session records, for each direction, that a packet passed the address checks on that port in this generation. Later packets of that
//! direction have the same addresses. The source MAC address, the port and the hop limit are checked for every packet.
//!
//! **Invariant.** Every outcome starts as a drop ([`Unjudged`](crate::DropReason::Unjudged)), and only a stage can change it. The counters
//! always satisfy `received == forwarded + drops`. A burst has the same outcomes as its packets one by one. Therefore pending packets are
//! classified early if a later packet may depend on one of them.

mod admission;
mod affinity;
mod audit;
mod caching;
mod claim;
mod column;
mod conversation;
mod denial;
mod errors;
mod evidence;
mod exit;
mod fragments;
mod gone;
mod hairpin;
mod hits;
mod judging;
mod masquerade;
mod names;
mod neighbours;
mod pending;
mod server_names;
mod services;
mod stages;
mod team;
mod witness;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::fragment::FragmentTable;
use crate::service::ClientAffinity;
use crate::session::{
    Budget, EndedSessions, Moment, SessionEnd, SessionPage, SessionSelector, SessionTable, Slot, Survivor,
};
use crate::translations::Translated;
use crate::{
    BURST, Counters, FragmentConfig, Judged, LinkType, Outcome, Packet, Received, Services, SessionConfig, Snapshot,
};

pub use affinity::Affinity;
pub use audit::{AuditTap, Audited};
pub(crate) use caching::Opened;
pub(crate) use denial::denied_by;
pub(crate) use judging::JudgedFlow;
pub(crate) use witness::{Chosen, Judgements, Nobody, Witness};

use audit::Noted;
use column::{Columns, Frames, PortFacts};
use names::Learning;
use pending::Pending;
use stages::Times;

/// Configuration of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Configuration of the session table.
    pub sessions: SessionConfig,
    /// Configuration of the fragment table.
    pub fragments: FragmentConfig,
}

/// The position of a worker in a vswitch with several workers.
#[derive(Clone, Debug)]
struct Team {
    affinity: Affinity,
    id: usize,
    workers: usize,
}

/// The engine of one worker, with its own sessions and counters.
#[derive(Debug)]
pub struct Worker {
    tcp_pickup: bool,
    sessions: SessionTable,
    fragments: FragmentTable,
    counters: Counters,
    /// The latest packet time and the number of packets so far. Packets of a capture may be out of order, but `now` never decreases.
    now: Moment,
    /// The current generation, and the number of generations so far. Sessions store the number, which is half the size and never repeats.
    generation: Option<u64>,
    epoch: u32,
    ports: Vec<PortFacts>,
    columns: Columns,
    /// Epoch of the Services, and the next slot of the review of sessions that a new epoch starts.
    services: u64,
    review_from: Option<Slot>,
    /// The last backend of each client, for Services with session affinity. All workers share it.
    clients: Arc<ClientAffinity>,
    /// The worker's number, and the assignment of packets to workers. `None` if there is only one worker.
    team: Option<Team>,
    /// A buffer for the frames of a burst. Empty between bursts.
    frames: Vec<&'static [u8]>,
    pending: Pending,
    learning: Learning,
    /// The burst's connections that only pass because a policy is audited. Preallocated for a whole burst.
    audits: Vec<Noted>,
    audit_tap: Option<AuditTap>,
    /// The last connections that found no source port, and until when others like them are refused without a search, in nanoseconds. `None` before any.
    exhausted: Option<(services::Exhausted, u64)>,
    /// The other ends of ended sessions whose pods are gone, to be told.
    survivors: VecDeque<Survivor>,
}

impl Worker {
    /// Judges Ethernet frames in order by one snapshot. `judged` is replaced by the results. An empty burst only lets time pass, so that
    /// sessions expire.
    ///
    /// [`Worker::process`] does the same and also returns flows and decisions. Both may be mixed.
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

    /// Like [`Worker::judge`], and calls the witness after each burst.
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

    /// Judges packets in order by one snapshot. `outcomes[i]` is the result for `packets[i]`.
    ///
    /// Sessions are bound to the generation number, so two snapshots with the same number must be equal.
    ///
    /// # Panics
    /// If the slices differ in length.
    pub fn process(&mut self, snapshot: &Snapshot, packets: &[Packet<'_>], outcomes: &mut [Outcome]) {
        self.process_before(snapshot, packets, outcomes, &mut Nobody);
    }

    /// Like [`Worker::process`], and calls the witness after each burst.
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

    /// Returns the judged burst in the form that a witness inspects.
    #[inline]
    fn judgements<'a>(&'a mut self, snapshot: &Snapshot, columns: &'a Columns, frames: Frames<'a>) -> Judgements<'a> {
        let (generation, audits) = (snapshot.generation(), &*self.audits);
        Judgements { generation, columns, frames, sessions: &mut self.sessions, audits }
    }

    /// Starts or stops recording ended sessions and counting their packets.
    pub(crate) fn listen(&mut self, listens: bool) {
        self.sessions.listen(listens);
    }

    /// Calls `each` with the sessions that ended since the last call. Returns the number of lost endings.
    pub(crate) fn take_endings(&mut self, each: impl FnMut(SessionEnd)) -> u64 {
        self.sessions.take_endings(each)
    }

    /// Returns the counters since the worker's creation.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of stored translated connections, including refused ones.
    pub const fn translated_in_use(&self) -> usize {
        self.sessions.translated()
    }

    /// Returns the number of sessions, including expired ones that were not swept yet.
    pub const fn sessions_in_use(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the node's session budget, shared by all workers.
    pub(crate) const fn budget(&self) -> &Arc<Budget> {
        self.sessions.budget()
    }

    /// Memory in bytes: the table for the peak number of sessions, and the whole index.
    pub fn session_memory(&self) -> usize {
        self.sessions.bytes()
    }

    /// Returns one page of the session table: the sessions in the slots from `from` on, and where the next page begins. Begin with 0.
    pub fn session_page(&self, from: u32) -> SessionPage {
        self.sessions.page(from, self.now.time)
    }

    /// Ends the sessions that match `selector` in one page of the session table, which begins at slot `from`. Begin with 0.
    pub fn end_sessions(&mut self, from: u32, selector: &SessionSelector) -> EndedSessions {
        self.sessions.end_selected(from, selector, self.now.time)
    }

    /// Removes all sessions and fragments and resets the time. Counters stay. The cost is proportional to the number of sessions.
    pub fn clear(&mut self) {
        self.sessions.clear();
        self.fragments.clear();
        self.now = Moment::default();
    }

    /// Starts a new generation or Services epoch if the snapshot's differ from those of the last burst.
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

    /// Whether the last call of [`Worker::judge`] translated any packets.
    pub(crate) const fn translates(&self) -> bool {
        self.columns.translates()
    }

    /// Returns the translation of a packet of the last call of [`Worker::judge`]. `None` if the packet is not translated.
    pub(crate) fn translated(&self, judged: &Judged) -> Option<Translated<'_>> {
        self.columns.translated(judged.translation)
    }

    /// Returns the full result for packet `at` of the last call of [`Worker::judge`]. `None` if later bursts of that call overwrote it.
    pub(crate) fn outcome(&self, at: usize) -> Option<Outcome> {
        let first = self.columns.before.checked_sub(self.columns.len())?;
        let at = at.checked_sub(first).filter(|&at| at < self.columns.len())?;
        Some(witness::outcome(&self.columns, &self.sessions, &[], at))
    }

    /// Positions of packets of the last call of [`Worker::judge`] that are repeated SYNs or first SYN-ACKs of their connections, in order.
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
        self.learning.follow(snapshot);
    }
}

/// Empties a vector and keeps its memory for references of another lifetime. The collect of an empty vector reuses the allocation.
fn emptied(mut frames: Vec<&[u8]>) -> Vec<&'static [u8]> {
    frames.clear();
    frames.into_iter().map(|_| -> &[u8] { &[] }).collect()
}

#[cfg(test)]
mod tests;
