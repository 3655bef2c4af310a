//! Fragments: the first fragment is judged, and the others get the same verdict.
//!
//! Only the first fragment has the transport header, so only it can be judged. Its verdict is stored under the datagram's key. A later
//! fragment without a known first fragment, or one that overlaps another, is dropped, because it could smuggle a packet that was never
//! judged (RFC 1858, RFC 3128, RFC 5722). Fragments are neither held back nor reassembled.
//!
//! Each port has a share of the table. A port over its share evicts its own oldest datagram, so that incomplete datagrams harm only their
//! sender.
//!
//! Holding later fragments until the first one arrives was rejected: senders emit fragments in order, few networks reorder them within a
//! flow, and attackers could fill the buffer.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use ahash::RandomState;

use crate::packet::{Fragment, Ip};
use crate::session::Rewritten;
use crate::{Decision, DropReason, Outcome, Percent, PortId, PortKind, Verdict};

/// Maximum number of fragments stored per datagram. 64 Ethernet frames hold a 64 KiB datagram with a third to spare. Smaller fragments are
/// normally an attack.
const MAX_PARTS: usize = 64;

/// Configuration of the fragment table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentConfig {
    /// Maximum number of datagrams. Beyond it, a new datagram evicts the oldest dropped one, otherwise the oldest one.
    pub capacity: usize,
    /// Lifetime of a datagram since its first fragment, in nanoseconds.
    pub lifetime: u64,
    /// Share of the capacity for one pod. Beyond it, a new datagram evicts the pod's oldest dropped one, otherwise its oldest one.
    pub pod_share: Percent,
    /// Share for the uplink, and likewise for the host. Both serve many senders.
    pub outside_share: Percent,
}

impl Default for FragmentConfig {
    /// 4,096 datagrams of at most 0.6 KiB take 2.5 MiB, more than a node needs unless it is attacked. 30 s is Linux's reassembly timeout.
    /// The shares are those of live sessions.
    fn default() -> Self {
        Self { capacity: 4096, lifetime: 30_000_000_000, pod_share: Percent(25), outside_share: Percent(75) }
    }
}

impl FragmentConfig {
    /// Maximum number of datagrams for a port of this kind.
    fn limit(&self, kind: PortKind) -> usize {
        let share = if kind == PortKind::Pod { self.pod_share } else { self.outside_share };
        share.of(self.capacity).min(self.capacity)
    }
}

/// The key that all fragments of a datagram share. IPv6 keys have no protocol, because only the first fragment's next header counts (RFC
/// 8200 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DatagramKey {
    src: IpAddr,
    dst: IpAddr,
    id: u32,
    protocol: Option<u8>,
    in_port: PortId,
}

impl DatagramKey {
    pub(crate) fn of(ip: &Ip, part: Fragment, in_port: PortId) -> Self {
        let protocol = ip.flow.src.is_ipv4().then_some(ip.flow.protocol);
        Self { src: ip.flow.src, dst: ip.flow.dst, id: part.id, protocol, in_port }
    }
}

/// The engine's result for a datagram's first fragment, which later fragments inherit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstFragment {
    pub(crate) verdict: Verdict,
    pub(crate) decision: Option<Decision>,
    /// The generation that judged it. A later generation may have other routes, policies and port ids.
    pub(crate) generation: u64,
    /// Source and destination port, for display.
    pub(crate) transport_ports: (u16, u16),
    /// New addresses and ports of a translated datagram. `None` without translation.
    pub(crate) translated: Option<Rewritten>,
    /// The worker, from 0, that judges the datagram. `None` if it is this one.
    pub(crate) elsewhere: Option<usize>,
}

#[derive(Clone, Debug)]
struct Datagram {
    first: FirstFragment,
    /// A number that distinguishes the datagram from an earlier one with the same key.
    number: u64,
    /// Byte ranges received so far, in order of arrival. They do not overlap.
    parts: Vec<(u32, u32)>,
    /// Position in bytes after the datagram's last byte. `None` until the last fragment has arrived.
    end: Option<u32>,
    /// Whether fragments have overlapped. Then all further fragments are dropped.
    poisoned: bool,
}

/// A queue entry for a datagram, with the time of its first fragment.
#[derive(Clone, Copy, Debug)]
struct Begun {
    key: DatagramKey,
    number: u64,
    at: u64,
}

/// Datagrams in the order of eviction: those of one port, or of all ports.
#[derive(Debug, Default)]
struct Queues {
    /// Number of stored datagrams.
    held: usize,
    /// Datagrams in the order of their first fragments. May contain datagrams that are no longer stored.
    begun: VecDeque<Begun>,
    /// Datagrams whose first fragment was dropped, in that order. May contain datagrams that are no longer stored.
    dropped: VecDeque<Begun>,
}

type Datagrams = HashMap<DatagramKey, Datagram, RandomState>;

impl Queues {
    /// Chooses the datagram to evict: the oldest dropped one, whose later fragments are dropped without it too, so that refused datagrams
    /// do not displace allowed ones. Otherwise the oldest one. Complete datagrams take milliseconds, so among thousands the oldest will
    /// hardly be completed. Refusing the new datagram instead would let a sender of a few hundred packets a second block all fragments.
    fn oldest(&mut self, datagrams: &Datagrams) -> Option<DatagramKey> {
        let Self { dropped, begun, .. } = self;
        let mut queued = std::iter::from_fn(|| dropped.pop_front().or_else(|| begun.pop_front()));
        queued.find(|begun| begun.is_in(datagrams)).map(|begun| begun.key)
    }

    /// Removes stale queue entries once they may be the majority. The amortised cost per fragment is small.
    fn tidy(&mut self, datagrams: &Datagrams, limit: usize) {
        for queue in [&mut self.begun, &mut self.dropped] {
            if queue.len() > 2 * limit {
                queue.retain(|begun| begun.is_in(datagrams));
            }
        }
    }

    fn clear(&mut self) {
        self.held = 0;
        self.begun.clear();
        self.dropped.clear();
    }
}

/// The table of incomplete datagrams.
#[derive(Debug)]
pub(crate) struct FragmentTable {
    datagrams: Datagrams,
    all: Queues,
    ports: Vec<Queues>,
    next_number: u64,
    /// Empty lists of byte ranges, kept to avoid allocations.
    spare: Vec<Vec<(u32, u32)>>,
    config: FragmentConfig,
}

impl FragmentTable {
    pub(crate) fn new(config: FragmentConfig, hasher: RandomState) -> Self {
        Self {
            datagrams: HashMap::with_hasher(hasher),
            all: Queues::default(),
            ports: Vec::new(),
            next_number: 0,
            spare: Vec::new(),
            config,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.datagrams.clear();
        self.all.clear();
        self.ports.iter_mut().for_each(Queues::clear);
    }

    /// Stores a datagram whose first fragment arrived. It stays unjudged until [`FragmentTable::settle`].
    ///
    /// # Errors
    /// The drop reason if the fragment overlaps or the table is full.
    pub(crate) fn begin(
        &mut self,
        key: DatagramKey,
        kind: PortKind,
        part: Fragment,
        now: u64,
    ) -> Result<(), DropReason> {
        self.forget_old(now);
        if let Some(datagram) = self.datagrams.get_mut(&key) {
            return Err(datagram.refuse(part));
        }
        let port = key.in_port.index();
        if self.ports.len() <= port {
            self.ports.resize_with(port + 1, Queues::default);
        }
        let limit = self.config.limit(kind);
        self.ports[port].tidy(&self.datagrams, limit);
        if self.ports[port].held >= limit {
            let oldest = self.ports[port].oldest(&self.datagrams);
            self.forget(&oldest.ok_or(DropReason::FragmentTableFull)?);
        }
        if self.datagrams.len() >= self.config.capacity {
            let oldest = self.all.oldest(&self.datagrams);
            self.forget(&oldest.ok_or(DropReason::FragmentTableFull)?);
        }
        let mut parts = self.spare.pop().unwrap_or_default();
        parts.push((part.start, part.end));
        let first = FirstFragment {
            verdict: Outcome::UNJUDGED.verdict,
            decision: None,
            generation: 0,
            transport_ports: (0, 0),
            translated: None,
            elsewhere: None,
        };
        let end = (!part.more).then_some(part.end);
        let number = self.next_number;
        self.next_number += 1;
        self.datagrams.insert(key, Datagram { first, number, parts, end, poisoned: false });
        for queues in [&mut self.all, &mut self.ports[port]] {
            queues.begun.push_back(Begun { key, number, at: now });
            queues.held += 1;
        }
        Ok(())
    }

    /// Stores the engine's result for a datagram's first fragment.
    pub(crate) fn settle(&mut self, key: &DatagramKey, first: FirstFragment) {
        let Some(datagram) = self.datagrams.get_mut(key) else { return };
        datagram.first = first;
        if first.verdict.drop_reason().is_some() {
            let begun = Begun { key: *key, number: datagram.number, at: 0 };
            self.all.dropped.push_back(begun);
            self.ports[key.in_port.index()].dropped.push_back(begun);
        }
    }

    /// Returns the first fragment's result for a later fragment.
    ///
    /// # Errors
    /// The drop reason if the fragment itself is invalid or no first fragment is known.
    pub(crate) fn inherit(&mut self, key: &DatagramKey, part: Fragment, now: u64) -> Result<FirstFragment, DropReason> {
        self.forget_old(now);
        let datagram = self.datagrams.get_mut(key).ok_or(DropReason::FragmentWithoutFirst)?;
        datagram.add(part)?;
        let first = datagram.first;
        if datagram.is_complete() {
            // Removed immediately, because IPv4 senders reuse an identification after 65,536 packets.
            self.forget(key);
        }
        Ok(first)
    }

    /// Removes expired datagrams.
    fn forget_old(&mut self, now: u64) {
        self.all.tidy(&self.datagrams, self.config.capacity);
        while let Some(&begun) = self.all.begun.front() {
            if now < begun.at.saturating_add(self.config.lifetime) {
                break;
            }
            self.all.begun.pop_front();
            if begun.is_in(&self.datagrams) {
                self.forget(&begun.key);
            }
        }
    }

    fn forget(&mut self, key: &DatagramKey) {
        if let Some(mut datagram) = self.datagrams.remove(key) {
            datagram.parts.clear();
            self.spare.push(datagram.parts);
            self.all.held -= 1;
            self.ports[key.in_port.index()].held -= 1;
        }
    }
}

impl Begun {
    fn is_in(&self, datagrams: &Datagrams) -> bool {
        datagrams.get(&self.key).is_some_and(|datagram| datagram.number == self.number)
    }
}

impl Datagram {
    /// Adds a range that neither overlaps others nor exceeds the datagram's end.
    fn add(&mut self, part: Fragment) -> Result<(), DropReason> {
        let overlaps = self.parts.iter().any(|&(start, end)| part.start < end && start < part.end);
        if self.poisoned || overlaps {
            return Err(self.refuse(part));
        }
        let last = self.parts.iter().map(|&(_, end)| end).max().unwrap_or(0);
        let beyond = self.end.is_some_and(|end| part.end > end || !part.more);
        if beyond || (!part.more && part.end < last) {
            self.poisoned = true;
            return Err(DropReason::FragmentMalformed);
        }
        if self.parts.len() >= MAX_PARTS {
            self.poisoned = true;
            return Err(DropReason::FragmentLimit);
        }
        self.parts.push((part.start, part.end));
        if !part.more {
            self.end = Some(part.end);
        }
        Ok(())
    }

    /// Handles an overlap. An exact duplicate, as from a network that duplicates packets, is dropped alone (RFC 8200 §4.5). Any other
    /// overlap poisons the datagram.
    fn refuse(&mut self, part: Fragment) -> DropReason {
        if !self.parts.contains(&(part.start, part.end)) {
            self.poisoned = true;
        }
        DropReason::FragmentOverlap
    }

    fn is_complete(&self) -> bool {
        // Ranges do not overlap, so their lengths sum up to the end if none is missing.
        self.end.is_some_and(|end| self.parts.iter().map(|&(start, end)| end - start).sum::<u32>() == end)
    }
}

#[cfg(test)]
mod tests;
