//! Fragments: the first one is judged, what became of it becomes of the others.
//!
//! Only the first fragment of a datagram holds the transport header, so only it can be judged; what became of it is
//! remembered under what all fragments of the datagram share. A fragment whose first one was not seen, and one that
//! overlaps another, is dropped: passing it would let a packet through that nobody has judged (RFC 1858, RFC 3128,
//! RFC 5722). Nothing is held back and nothing is put together.
//!
//! Each port has a share of the memory. A port that is over it loses its own oldest datagram, so that whoever sends first
//! fragments and never the rest harms nobody else.
//!
//! Holding later fragments until the first one comes was not taken: senders emit them in order, networks that reorder
//! them within one flow are rare, and a buffer of unjudged packets is memory that a stranger fills.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use ahash::RandomState;

use crate::packet::{Fragment, Ip};
use crate::session::Rewritten;
use crate::{Decision, DropReason, Outcome, Percent, PortId, PortKind, Verdict};

/// How many fragments of one datagram are remembered. 64 fragments of an Ethernet frame each hold a whole 64 KiB
/// datagram with a third to spare; smaller ones are made to hurt.
const MAX_PARTS: usize = 64;

/// How fragmented datagrams are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentConfig {
    /// The most datagrams at a time. A new one beyond that takes the place of the oldest one that was dropped; if none
    /// was, it is dropped itself.
    pub capacity: usize,
    /// Nanoseconds from a datagram's first fragment until it is forgotten.
    pub lifetime: u64,
    /// The share of the capacity for datagrams of one pod. A new one beyond that takes the place of one of that pod's: the oldest
    /// that was dropped, else the oldest.
    pub pod_share: Percent,
    /// The same for the uplink and for the host, each, which speak for many.
    pub outside_share: Percent,
}

impl Default for FragmentConfig {
    /// 4,096 datagrams of at most 0.6 KiB each are 2.5 MiB, more than a node has under way unless it is attacked.
    /// 30 s is Linux's reassembly timeout: after that the receiver cannot use the rest anyway. The shares are those of live
    /// sessions.
    fn default() -> Self {
        Self { capacity: 4096, lifetime: 30_000_000_000, pod_share: Percent(25), outside_share: Percent(75) }
    }
}

impl FragmentConfig {
    /// The most datagrams of a port.
    fn limit(&self, kind: PortKind) -> usize {
        let share = if kind == PortKind::Pod { self.pod_share } else { self.outside_share };
        share.of(self.capacity).min(self.capacity)
    }
}

/// What the fragments of one datagram share. IPv6 has no protocol here: there only the first fragment's counts
/// (RFC 8200 §4.5), and the others may say anything.
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

/// What became of a datagram's first fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstFragment {
    pub(crate) verdict: Verdict,
    pub(crate) decision: Option<Decision>,
    /// A later generation may route and decide otherwise, and may number its ports otherwise.
    pub(crate) generation: u64,
    /// Source and destination port of the transport header, for display.
    pub(crate) transport_ports: (u16, u16),
    /// Other addresses, for a datagram of a connection to a Service.
    pub(crate) translated: Option<Rewritten>,
    /// The worker, from 0, that judges the datagram, where this one does not.
    pub(crate) elsewhere: Option<usize>,
}

#[derive(Clone, Debug)]
struct Datagram {
    first: FirstFragment,
    /// Tells it from an earlier datagram with the same key.
    number: u64,
    /// The parts seen, in order of arrival. They do not overlap.
    parts: Vec<(u32, u32)>,
    /// Where the last fragment ended, once it was seen.
    end: Option<u32>,
    /// Set when an overlap was seen: nothing of the datagram passes any more.
    poisoned: bool,
}

/// When a datagram began.
#[derive(Clone, Copy, Debug)]
struct Begun {
    key: DatagramKey,
    number: u64,
    at: u64,
}

/// The datagrams of one port, or of all.
#[derive(Debug, Default)]
struct Queues {
    /// How many are under way.
    held: usize,
    /// In the order in which they began. May hold some that are complete, which are no longer in `datagrams`.
    begun: VecDeque<Begun>,
    /// Those whose first fragment was dropped, in that order. May hold some that are no longer in `datagrams`.
    dropped: VecDeque<Begun>,
}

type Datagrams = HashMap<DatagramKey, Datagram, RandomState>;

impl Queues {
    /// The datagram to forget first: the oldest that was dropped, whose other fragments are dropped without it too, so that
    /// refused datagrams, however many, do not stand in the way of allowed ones; else the one that began first, whose other
    /// fragments are dropped then. Whole datagrams take milliseconds, so with a few thousand places the oldest one is one
    /// that somebody never means to complete. Refusing the new one instead would let whoever may send a few hundred packets
    /// per second stop all fragments of everybody.
    fn oldest(&mut self, datagrams: &Datagrams) -> Option<DatagramKey> {
        let Self { dropped, begun, .. } = self;
        let mut queued = std::iter::from_fn(|| dropped.pop_front().or_else(|| begun.pop_front()));
        queued.find(|begun| begun.is_in(datagrams)).map(|begun| begun.key)
    }

    /// Leaves out what is no longer there, when it may be the greater part. Each is removed once, so this costs little per
    /// fragment.
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

/// The datagrams that are under way.
#[derive(Debug)]
pub(crate) struct FragmentTable {
    datagrams: Datagrams,
    all: Queues,
    ports: Vec<Queues>,
    next_number: u64,
    /// Emptied lists of parts, for the next datagram.
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

    /// A first fragment has come: remembers the datagram, for now as one that passes nowhere.
    ///
    /// # Errors
    /// The reason to drop it: it overlaps, or the table is full.
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
            // Once for each port.
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

    /// The first fragment was judged.
    pub(crate) fn settle(&mut self, key: &DatagramKey, first: FirstFragment) {
        let Some(datagram) = self.datagrams.get_mut(key) else { return };
        datagram.first = first;
        if first.verdict.drop_reason().is_some() {
            let begun = Begun { key: *key, number: datagram.number, at: 0 };
            self.all.dropped.push_back(begun);
            self.ports[key.in_port.index()].dropped.push_back(begun);
        }
    }

    /// A later fragment has come: what became of the first one.
    ///
    /// # Errors
    /// The reason to drop this one whatever became of the first.
    pub(crate) fn inherit(&mut self, key: &DatagramKey, part: Fragment, now: u64) -> Result<FirstFragment, DropReason> {
        self.forget_old(now);
        let datagram = self.datagrams.get_mut(key).ok_or(DropReason::FragmentWithoutFirst)?;
        datagram.add(part)?;
        let first = datagram.first;
        if datagram.is_complete() {
            // Now, not at the end of its lifetime: IPv4 senders use an identification again after 65,536 packets.
            self.forget(key);
        }
        Ok(first)
    }

    /// Forgets the datagrams whose time is up.
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
    /// Takes a part in, if it neither overlaps nor lies beyond the end.
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

    /// A part overlaps. The same part again is what a network that duplicates packets makes: it is dropped alone
    /// (RFC 8200 §4.5 allows that). Anything else spoils the datagram.
    fn refuse(&mut self, part: Fragment) -> DropReason {
        if !self.parts.contains(&(part.start, part.end)) {
            self.poisoned = true;
        }
        DropReason::FragmentOverlap
    }

    fn is_complete(&self) -> bool {
        // Parts do not overlap, so their lengths add up to the end when none is missing.
        self.end.is_some_and(|end| self.parts.iter().map(|&(start, end)| end - start).sum::<u32>() == end)
    }
}

#[cfg(test)]
mod tests;
