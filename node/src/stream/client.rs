//! One client of the stream: its request, its rate limit, and its count of missed events.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroU64};
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

use super::flow::Told;
use super::select::Selector;
use super::walk::Seen;
use super::wanted::{self, FlowFilter};
use super::{StreamCounts, Watch, walk, words};
use crate::hubble::{Observe, Observed};
use crate::observer::Observer;
use bulkhead_observe::admin::{Failure, Trace, Watching};
use bulkhead_observe::hubble::flow::{Flow, LostEventSource};

/// Default rate in lines a second: more than a person reads, and some 5 % of a core.
const RATE: NonZeroU32 = NonZeroU32::new(10_000).unwrap();

/// Interval of reporting missed events to the client.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// How long to wait for the policy thread. A trace by pod name cannot start without its answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long to wait for the policy thread's answer if events can be sent without it.
const SOON: Duration = Duration::from_millis(20);

/// The events that the client requested: verdicts for `monitor`, verdicts for Hubble, or traced packets.
pub(super) enum Wanted {
    Flows(FlowFilter),
    /// Verdicts as Hubble flows: a `GetFlows` request of a client of Hubble's API.
    Observed(Box<Observe>),
    Packets(Packets),
}

/// The queue for a client's events: lines of JSON, or Hubble flows.
pub(super) enum Outlet {
    Lines(Sender<String>),
    /// Flows for a client of Hubble's API.
    Flows(Sender<Observed>),
}

impl Outlet {
    fn is_closed(&self) -> bool {
        match self {
            Self::Lines(lines) => lines.is_closed(),
            Self::Flows(flows) => flows.is_closed(),
        }
    }

    fn capacity(&self) -> usize {
        match self {
            Self::Lines(lines) => lines.capacity(),
            Self::Flows(flows) => flows.capacity(),
        }
    }

    /// Enqueues a line without waiting. Fails if the queue is full or closed.
    fn send_line(&self, line: &Value) -> Result<(), TrySendError<()>> {
        match self {
            Self::Lines(lines) => lines.try_send(format!("{line}\n")).map_err(|error| without(&error)),
            // Clients of Hubble get no lines.
            Self::Flows(_) => Ok(()),
        }
    }

    fn send_observed(&self, observed: Observed) -> Result<(), TrySendError<()>> {
        match self {
            Self::Flows(flows) => flows.try_send(observed).map_err(|error| without(&error)),
            Self::Lines(_) => Ok(()),
        }
    }
}

const fn without<T>(error: &TrySendError<T>) -> TrySendError<()> {
    match error {
        TrySendError::Full(_) => TrySendError::Full(()),
        TrySendError::Closed(_) => TrySendError::Closed(()),
    }
}

/// A request to trace packets, with its filter for packets and its selector for pods.
pub(super) struct Packets {
    filter: Filter,
    ends: Selector,
    /// The addresses of the pods that `ends` selects. `None` if it selects all.
    addresses: Option<Arc<HashSet<IpAddr>>>,
    forwarded: Option<bool>,
    snap: u16,
    cached: bool,
}

/// A token bucket that holds the tokens of one second.
struct Bucket {
    rate: f64,
    left: f64,
    filled: Instant,
}

impl Bucket {
    fn new(rate: NonZeroU32, now: Instant) -> Self {
        let rate = f64::from(rate.get());
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

/// A client that receives verdicts or traced packets.
pub(super) struct Client {
    wanted: Wanted,
    outlet: Outlet,
    bucket: Bucket,
    /// Number of further events after which the client is done. `None` for no limit.
    more: Option<u64>,
    /// Whether the client wants only past events.
    is_of_past: bool,
    is_done: bool,
    /// Index of the client's tracepoint in the plan in force. `None` if it does not trace.
    pub(super) point: Option<usize>,
    /// The channel for the first answer, due once workers report what the client wants. `None` after that.
    pub(super) opened: Option<(oneshot::Sender<Result<Watching, Failure>>, Watching)>,
    /// Events lost since the last report to the client: `left_out` by workers, `unsent` because the client's queue or rate limit was full.
    pub(super) left_out: u64,
    unsent: u64,
    told_at: Instant,
    last: usize,
    observer: Observer,
}

impl Client {
    /// Creates a client from its request, and looks up the addresses of the pods to trace. [`open`](Self::open) starts its events.
    ///
    /// # Errors
    /// If the request is invalid, or the policy thread does not look up the pods within [`PATIENCE`].
    pub(super) fn new(watch: Watch, outlet: Outlet, observer: &Observer) -> Result<Self, Failure> {
        let (wanted, count, rate, last, is_of_past) = match watch {
            Watch::Monitor(asked) => {
                (Wanted::Flows(FlowFilter::new(&asked)?), asked.count, asked.rate, asked.last, asked.is_over)
            }
            Watch::Trace(asked) => {
                let (count, rate) = (asked.count, asked.rate);
                (Wanted::Packets(Packets::new(&asked, observer)?), count, rate, 0, false)
            }
            Watch::Observe(asked) => {
                let is_of_past = !asked.follows();
                (Wanted::Observed(asked), None, None, 0, is_of_past)
            }
        };
        let now = Instant::now();
        Ok(Self {
            wanted,
            outlet,
            bucket: Bucket::new(rate.unwrap_or(RATE), now),
            more: count.map(NonZeroU64::get),
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

    /// Returns the client's filters that select no pod or node of the state. Empty if the policy thread does not answer soon: the client gets its
    /// events in any case.
    pub(super) fn nobody(&self) -> Vec<String> {
        let ends = match &self.wanted {
            Wanted::Flows(filter) => filter.ends(),
            Wanted::Packets(packets) => &packets.ends,
            Wanted::Observed(_) => return Vec::new(),
        };
        if ends.is_everything() {
            return Vec::new();
        }
        self.observer.selecting_nobody(ends.clone(), SOON).unwrap_or_default()
    }

    pub(super) const fn is_tracing(&self) -> bool {
        matches!(self.wanted, Wanted::Packets(_))
    }

    /// Whether the client gets no more events.
    pub(super) fn is_over(&self) -> bool {
        let ends = |asked: &Observe| asked.follows() && asked.is_over_at(crate::clock::now());
        // Past events are sent first.
        let is_late = self.opened.is_none() && matches!(&self.wanted, Wanted::Observed(asked) if ends(asked));
        self.is_done || self.outlet.is_closed() || is_late
    }

    /// Returns the filter by which workers select packets for the client. `None` if it does not trace.
    pub(super) fn tracepoint(&self) -> Option<Tracepoint> {
        let Wanted::Packets(packets) = &self.wanted else { return None };
        let filter = match &packets.addresses {
            Some(addresses) => packets.filter.clone().with_an_end_in(Arc::clone(addresses)),
            None => packets.filter.clone(),
        };
        let Packets { forwarded, snap, cached, .. } = *packets;
        Some(Tracepoint { filter, forwarded, snap, keeps_from_cache: cached })
    }

    /// Looks up the addresses of traced pods. Returns whether they changed.
    pub(super) fn look_up(&mut self) -> bool {
        let Wanted::Packets(packets) = &mut self.wanted else { return false };
        packets.look_up(&self.observer, SOON).unwrap_or_default()
    }

    /// Answers the client, now that workers report what it wants, and sends the selected part of `past`.
    pub(super) fn open(&mut self, past: &VecDeque<Told>) {
        let Some((opened, watching)) = self.opened.take() else { return };
        // The client may be gone. Its queue is then closed.
        let _ = opened.send(Ok(watching));
        self.tell_past(past);
        self.is_done |= self.is_of_past;
    }

    fn tell_past(&mut self, past: &VecDeque<Told>) {
        match &self.wanted {
            Wanted::Flows(filter) => {
                let mut selected: Vec<_> =
                    past.iter().rev().filter(|told| filter.selects(told)).take(self.last).collect();
                selected.reverse();
                selected.into_iter().for_each(|told| self.tell_flow(told, &mut None));
            }
            Wanted::Observed(asked) => {
                let message = |told: &Told| Arc::new(told.message(self.observer.node(), self.observer.origins()));
                for flow in asked.past(past.iter().map(message)) {
                    self.tell_observed(flow, 1);
                }
            }
            Wanted::Packets(_) => {}
        }
    }

    /// Sends a verdict if the client wants it. `message` is shared by clients of Hubble; the first one that needs it creates it.
    pub(super) fn tell_flow(&mut self, told: &Told, message: &mut Option<Arc<Flow>>) {
        match &self.wanted {
            Wanted::Flows(filter) => {
                if filter.selects(told) && self.may_tell(told.event.count) {
                    self.send(&told.json(self.observer.node(), self.observer.origins()), told.event.count);
                }
            }
            Wanted::Observed(asked) => {
                let made = || Arc::new(told.message(self.observer.node(), self.observer.origins()));
                let flow = message.get_or_insert_with(made);
                if asked.selects(flow) {
                    self.tell_observed(Arc::clone(flow), told.event.count);
                }
            }
            Wanted::Packets(_) => {}
        }
    }

    fn tell_observed(&mut self, flow: Arc<Flow>, weight: u64) {
        if self.may_tell(weight) {
            let sent = self.outlet.send_observed(Observed::Flow(flow));
            self.account(&sent, weight);
        }
    }

    pub(super) fn tell_packet(&mut self, snapshot: &Snapshot, seen: &Seen<'_>) {
        let Wanted::Packets(Packets { snap, .. }) = &self.wanted else { return };
        let bytes = &seen.bytes[..seen.bytes.len().min((*snap).into())];
        if self.may_tell(1) {
            self.send(&walk::json(&self.observer, snapshot, &Seen { bytes, ..*seen }), 1);
        }
    }

    /// Whether the client may get another line. If not, `weight` is added to the missed events.
    fn may_tell(&mut self, weight: u64) -> bool {
        if self.is_done {
            return false;
        }
        let may = self.outlet.capacity() > 1 && self.bucket.take(Instant::now());
        self.unsent += if may { 0 } else { weight };
        may
    }

    fn send(&mut self, line: &Value, weight: u64) {
        let sent = self.outlet.send_line(line);
        self.account(&sent, weight);
    }

    fn account(&mut self, sent: &Result<(), TrySendError<()>>, weight: u64) {
        match sent {
            Ok(()) => {
                self.more = self.more.map(|more| more.saturating_sub(1));
                self.is_done |= self.more == Some(0);
            }
            Err(TrySendError::Full(())) => self.unsent += weight,
            Err(TrySendError::Closed(())) => self.is_done = true,
        }
    }

    /// Reports missed events to the client, at most once per [`TOLD_EVERY`].
    pub(super) fn tell_lost(&mut self, now: Instant, counts: &StreamCounts) {
        if self.left_out + self.unsent == 0 || now.duration_since(self.told_at) < TOLD_EVERY {
            return;
        }
        self.told_at = now;
        use LostEventSource::{ObserverEventsQueue, PerfEventRingBuffer};
        for (source, count) in [(PerfEventRingBuffer, &mut self.left_out), (ObserverEventsQueue, &mut self.unsent)] {
            if *count == 0 {
                continue;
            }
            let sent = match &self.outlet {
                Outlet::Lines(_) => self.outlet.send_line(&lost(source, *count, self.observer.node())),
                Outlet::Flows(_) => self.outlet.send_observed(Observed::Lost(source, *count)),
            };
            if sent.is_ok() {
                if source == ObserverEventsQueue {
                    counts.unsent.fetch_add(*count, Ordering::Relaxed);
                }
                *count = 0;
            }
        }
    }
}

/// Formats a line that reports missed events.
fn lost(source: LostEventSource, count: u64, node: &str) -> Value {
    let source = match source {
        LostEventSource::PerfEventRingBuffer => "PERF_EVENT_RING_BUFFER",
        LostEventSource::ObserverEventsQueue => "OBSERVER_EVENTS_QUEUE",
        LostEventSource::Unknown => "UNKNOWN_LOST_EVENT_SOURCE",
    };
    json!({
        "lost_events": { "source": source, "num_events_lost": count.to_string() },
        "node_name": node,
        "time": words::rfc3339(crate::clock::now()),
    })
}

impl Packets {
    fn new(asked: &Trace, observer: &Observer) -> Result<Self, Failure> {
        let filter = Filter::parse(&asked.filter).map_err(|error| {
            let text = error.to_string();
            let (message, help) = text.split_once("\n  help: ").unwrap_or((&text, ""));
            Failure::new("malformed", message, help)
        })?;
        let verdicts = wanted::verdicts(&asked.verdicts)?;
        if verdicts.contains(&"AUDIT") {
            let help = "write FORWARDED or DROPPED; `bulkhead monitor` shows audited connections";
            return Err(Failure::new("malformed", "AUDIT is not a verdict of a packet", help));
        }
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

    /// Updates the addresses of the selected ends. Returns whether they changed, or an error if the policy thread does not answer.
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
        let mut bucket = Bucket::new(NonZeroU32::new(10).unwrap(), start);
        let taken = |bucket: &mut Bucket, now| (0..100).filter(|_| bucket.take(now)).count();
        assert_eq!(taken(&mut bucket, start), 10);
        assert_eq!(taken(&mut bucket, start + Duration::from_millis(550)), 5);
        assert_eq!(taken(&mut bucket, start + Duration::from_secs(100)), 10, "what was not used is not saved");
    }
}
