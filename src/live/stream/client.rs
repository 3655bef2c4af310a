//! One who watches: what it wants, what it may get, and what it did not get.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bulkhead_dataplane::Snapshot;
use bulkhead_dataplane::filter::Filter;
use bulkhead_dataplane::vswitch::stream::{LONGEST_SNAP, Tracepoint};
use serde_json::{Value, json};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;

use super::flow::{self, FlowFilter, Told};
use super::select::Selector;
use super::walk::Seen;
use super::{StreamCounts, Watch, walk};
use crate::admin::{Failure, Trace, Watching};
use crate::live::observer::Observer;

/// Lines a second unless a client wants another rate: more than anybody reads, and some 5 % of a core.
const RATE: u32 = 10_000;

/// How often it is told what it did not get.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// How long the policy thread is waited for, as a trace by name cannot begin without it.
const PATIENCE: Duration = Duration::from_secs(3);

/// What it wants.
pub(super) enum Wanted {
    Flows(FlowFilter),
    Packets(Packets),
}

/// A trace.
pub(super) struct Packets {
    filter: Filter,
    ends: Selector,
    /// The addresses of these ends; none where all are.
    addresses: Option<Arc<HashSet<IpAddr>>>,
    forwarded: Option<bool>,
    snap: u16,
    cached: bool,
}

/// What there may be in a time: so many a second, and as many at once.
struct Bucket {
    rate: f64,
    left: f64,
    filled: Instant,
}

impl Bucket {
    fn new(rate: u32, now: Instant) -> Self {
        let rate = f64::from(rate.max(1));
        Self { rate, left: rate, filled: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        let gained = now.duration_since(self.filled).as_secs_f64() * self.rate;
        (self.left, self.filled) = ((self.left + gained).min(self.rate), now);
        let has_one = self.left >= 1.0;
        self.left -= f64::from(u8::from(has_one));
        has_one
    }
}

/// See the module.
pub(super) struct Client {
    pub(super) wanted: Wanted,
    lines: Sender<String>,
    bucket: Bucket,
    /// How many more it wants; none for all.
    more: Option<u64>,
    /// What comes before everything else: of the past.
    before: Vec<Told>,
    /// Whether it wants nothing but that.
    is_of_past: bool,
    is_done: bool,
    /// The place of its tracepoint in the plan in force.
    pub(super) point: Option<usize>,
    /// Told when the workers tell what it wants.
    pub(super) opened: Option<(oneshot::Sender<Result<Watching, Failure>>, Watching)>,
    /// What workers left out, and what it did not get, since it was told.
    pub(super) left_out: u64,
    unsent: u64,
    told_at: Instant,
    last: usize,
    observer: Observer,
}

impl Client {
    /// Reads what it wants.
    ///
    /// # Errors
    /// What is wrong with that.
    pub(super) fn new(watch: Watch, lines: Sender<String>, observer: &Observer) -> Result<Self, Failure> {
        let (wanted, count, rate, last, is_of_past) = match watch {
            Watch::Monitor(asked) => {
                (Wanted::Flows(FlowFilter::new(&asked)?), asked.count, asked.rate, asked.last, asked.is_over)
            }
            Watch::Trace(asked) => {
                let (count, rate) = (asked.count, asked.rate);
                (Wanted::Packets(Packets::new(&asked, observer)?), count, rate, 0, false)
            }
        };
        let now = Instant::now();
        Ok(Self {
            wanted,
            lines,
            bucket: Bucket::new(rate.unwrap_or(RATE), now),
            more: count,
            before: Vec::new(),
            is_of_past,
            is_done: false,
            point: None,
            opened: None,
            left_out: 0,
            unsent: 0,
            told_at: now,
            last,
            observer: observer.clone(),
        })
    }

    pub(super) const fn is_tracing(&self) -> bool {
        matches!(self.wanted, Wanted::Packets(_))
    }

    /// Whether nothing more is to be told to it.
    pub(super) fn is_over(&self) -> bool {
        self.is_done || self.lines.is_closed()
    }

    /// What workers are to select for it.
    pub(super) fn tracepoint(&self) -> Option<Tracepoint> {
        let Wanted::Packets(packets) = &self.wanted else { return None };
        let filter = match &packets.addresses {
            Some(addresses) => packets.filter.clone().with_an_end_in(Arc::clone(addresses)),
            None => packets.filter.clone(),
        };
        let Packets { forwarded, snap, cached, .. } = *packets;
        Some(Tracepoint { filter, forwarded, snap, keeps_from_cache: cached })
    }

    /// Looks up whom a trace by name is about. Whether that is somebody else than before.
    pub(super) fn look_up(&mut self, observer: &Observer) -> bool {
        let Wanted::Packets(packets) = &mut self.wanted else { return false };
        packets.look_up(observer, Duration::from_millis(20)).unwrap_or_default()
    }

    /// Has some of the past told before all else.
    pub(super) fn remember(&mut self, past: &VecDeque<Told>) {
        let Wanted::Flows(filter) = &self.wanted else { return };
        let selected = past.iter().rev().filter(|told| filter.selects(told)).take(self.last);
        self.before = selected.cloned().collect();
        self.before.reverse();
    }

    /// Workers tell what it wants from now on.
    pub(super) fn open(&mut self) {
        if let Some((opened, watching)) = self.opened.take() {
            // Whoever has asked may be gone; then the queue is closed.
            let _ = opened.send(Ok(watching));
        }
        let observer = self.observer.clone();
        for told in std::mem::take(&mut self.before) {
            self.tell_flow(&told, &observer);
        }
        self.is_done |= self.is_of_past;
    }

    pub(super) fn tell_flow(&mut self, told: &Told, observer: &Observer) {
        if self.may_tell(told.event.count) {
            self.send(&told.json(observer.node(), observer.origins()), told.event.count);
        }
    }

    pub(super) fn tell_packet(&mut self, observer: &Observer, snapshot: &Snapshot, seen: &Seen<'_>) {
        let Wanted::Packets(Packets { snap, .. }) = &self.wanted else { return };
        let bytes = &seen.bytes[..seen.bytes.len().min((*snap).into())];
        if self.may_tell(1) {
            self.send(&walk::json(observer, snapshot, &Seen { bytes, ..*seen }), 1);
        }
    }

    /// Whether it may have another line. What it may not have is counted.
    fn may_tell(&mut self, weight: u64) -> bool {
        if self.is_done {
            return false;
        }
        let may = self.lines.capacity() > 1 && self.bucket.take(Instant::now());
        self.unsent += if may { 0 } else { weight };
        may
    }

    fn send(&mut self, line: &Value, weight: u64) {
        match self.lines.try_send(format!("{line}\n")) {
            Ok(()) => {
                self.more = self.more.map(|more| more.saturating_sub(1));
                self.is_done |= self.more == Some(0);
            }
            Err(TrySendError::Full(_)) => self.unsent += weight,
            Err(TrySendError::Closed(_)) => self.is_done = true,
        }
    }

    /// Tells what it did not get, now and then.
    pub(super) fn tell_lost(&mut self, now: Instant, counts: &StreamCounts) {
        if self.left_out + self.unsent == 0 || now.duration_since(self.told_at) < TOLD_EVERY {
            return;
        }
        self.told_at = now;
        let sources = [("PERF_EVENT_RING_BUFFER", &mut self.left_out), ("OBSERVER_EVENTS_QUEUE", &mut self.unsent)];
        for (source, count) in sources {
            if *count == 0 {
                continue;
            }
            let line = json!({
                "lost_events": { "source": source, "num_events_lost": count.to_string() },
                "node_name": self.observer.node(),
                "time": flow::rfc3339(crate::live::stream::now()),
            });
            if self.lines.try_send(format!("{line}\n")).is_ok() {
                if source == "OBSERVER_EVENTS_QUEUE" {
                    counts.unsent.fetch_add(*count, Ordering::Relaxed);
                }
                *count = 0;
            }
        }
    }
}

impl Packets {
    fn new(asked: &Trace, observer: &Observer) -> Result<Self, Failure> {
        let filter = Filter::parse(&asked.filter).map_err(|error| {
            let text = error.to_string();
            let (message, help) = text.split_once("\n  help: ").unwrap_or((&text, ""));
            Failure::new("malformed", message, help)
        })?;
        let verdicts = flow::verdicts(&asked.verdicts)?;
        let forwarded = match (verdicts.contains(&"FORWARDED"), verdicts.contains(&"DROPPED")) {
            (true, false) => Some(true),
            (false, true) => Some(false),
            _ => None,
        };
        let ends = Selector::new(&asked.pods, &asked.namespaces, &asked.labels)?;
        let snap = asked.snap.min(LONGEST_SNAP);
        let mut packets = Self { filter, ends, addresses: None, forwarded, snap, cached: asked.cached };
        packets.look_up(observer, PATIENCE).map_err(|()| {
            let help = "a new state is being compiled: ask again, or name the pods' addresses in the filter";
            Failure::new("no_answer", "cannot look up the pods", help)
        })?;
        Ok(packets)
    }

    /// Whether the addresses of its ends are others than before; an error when nobody answers.
    fn look_up(&mut self, observer: &Observer, patience: Duration) -> Result<bool, ()> {
        if self.ends.is_everything() {
            return Ok(false);
        }
        let addresses = observer.addresses_of_selected(self.ends.clone(), patience).map_err(|_| ())?;
        let is_other = self.addresses.as_deref() != Some(&addresses);
        if is_other {
            self.addresses = Some(Arc::new(addresses));
        }
        Ok(is_other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_its_rate_and_no_more_at_once() {
        let start = Instant::now();
        let mut bucket = Bucket::new(10, start);
        let taken = |bucket: &mut Bucket, now| (0..100).filter(|_| bucket.take(now)).count();
        assert_eq!(taken(&mut bucket, start), 10);
        assert_eq!(taken(&mut bucket, start + Duration::from_millis(550)), 5);
        assert_eq!(taken(&mut bucket, start + Duration::from_secs(100)), 10, "what was not used is not saved");
    }
}
