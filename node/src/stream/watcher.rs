//! The thread that reads the rings, and passes events to the journal and the clients.
//!
//! Workers write no stream if there is neither a client nor a journal and past verdicts are not kept for Hubble's clients
//! ([`crate::hubble`]). Otherwise the thread reads the rings every [`TICK`] while events arrive, so that workers make no system call to
//! wake it. For the journal alone, it reads every [`JOURNAL_TICK`] and does not look up the ends of flows. Without clients, it sleeps after a
//! round without events; then the next event wakes it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bulkhead_dataplane::Snapshot;
use bulkhead_dataplane::vswitch::Vswitch;
use bulkhead_dataplane::vswitch::stream::{LeftOut, MOST_TRACEPOINTS, Record, StreamPlan, StreamReader};
use crossbeam_channel::{Receiver, RecvTimeoutError, after, never, select};

use super::client::Client;
use super::ends::Ends;
use super::rate::Rate;
use super::repeats::{self, Event, Repeats};
use super::{REMEMBERED, Request, StreamCounts, flow, walk};
use crate::journal::Tap;
use crate::observer::Observer;
use crate::view;
use crate::view::kind_name;
use bulkhead_observe::admin::{Failure, WatchedPort, Watching};

/// Interval of reading the rings while a client watches. They hold 160 ms of events at 100,000 sessions a second.
const TICK: Duration = Duration::from_millis(10);

/// Interval for the journal alone: a fifth of the wake-ups leaves more of the cores to the workers. At 100,000 sessions a second, a ring is
/// then a third full.
const JOURNAL_TICK: Duration = Duration::from_millis(50);

/// Records read from each worker at once. The limit lets the thread serve clients during a flood.
const AT_ONCE: usize = 4096;

/// Interval of looking up the addresses of traced pods again.
const LOOKUP: Duration = Duration::from_secs(1);

/// The stream thread's state: the reader of the workers' rings, and the clients.
pub(super) struct Watcher {
    observer: Observer,
    counts: Arc<StreamCounts>,
    journal: Option<Tap>,
    clients: Vec<Client>,
    reader: Option<StreamReader>,
    /// The plan by which workers write the current stream. Unused without a reader.
    in_force: StreamPlan,
    /// Number of records that workers left out of the current stream, as of the last count.
    left_out: LeftOut,
    repeats: Repeats,
    ends: Ends,
    past: VecDeque<flow::Told>,
    looked_up: Instant,
    /// Whether past verdicts are collected without clients.
    keeps: bool,
    rate: Rate,
    /// Whether the last round read no event, and none waits for a later round.
    is_quiet: bool,
}

impl Watcher {
    /// Creates the state, without clients. See [`Hub::start`](super::Hub::start).
    pub(super) fn new(observer: Observer, journal: Option<Tap>, keeps: bool) -> Self {
        Self {
            counts: Arc::clone(observer.stream()),
            observer,
            journal,
            clients: Vec::new(),
            reader: None,
            in_force: StreamPlan::default(),
            left_out: LeftOut::default(),
            repeats: Repeats::default(),
            ends: Ends::default(),
            past: VecDeque::new(),
            looked_up: Instant::now(),
            keeps,
            rate: Rate::default(),
            is_quiet: false,
        }
    }

    /// Serves clients until the last [`Hub`](super::Hub) is dropped.
    pub(super) fn run(mut self, asked: &Receiver<Request>) {
        if !self.is_idle() {
            self.plan();
        }
        let mut is_behind = false;
        loop {
            let request = match self.patience() {
                None => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(_) if self.is_quiet && self.clients.is_empty() && self.reader.is_some() => self.sleep(asked),
                Some(patience) => asked.recv_timeout(if is_behind { Duration::ZERO } else { patience }),
            };
            match request {
                Ok(request) => {
                    self.admit(request);
                    // Requests that arrive together share a stream.
                    while let Ok(request) = asked.try_recv() {
                        self.admit(request);
                    }
                    self.plan();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.end(),
            }
            is_behind = self.tick();
        }
    }

    /// Whether events have no recipient: no client, no journal, and past verdicts are not kept.
    fn is_idle(&self) -> bool {
        self.clients.is_empty() && self.journal.is_none() && !self.keeps
    }

    /// Returns the interval of reading the rings. `None` if nothing is to be read until a client requests events.
    fn patience(&self) -> Option<Duration> {
        match (self.is_idle(), self.clients.is_empty() && !self.keeps) {
            (true, _) => None,
            (false, true) => Some(JOURNAL_TICK),
            (false, false) => Some(TICK),
        }
    }

    /// Waits for a request, or for an event of the workers ([`RecvTimeoutError::Timeout`]).
    fn sleep(&self, asked: &Receiver<Request>) -> Result<Request, RecvTimeoutError> {
        let Some((reader, rung)) = self.reader.as_ref().and_then(|reader| Some((reader, reader.sleep()?))) else {
            return Err(RecvTimeoutError::Timeout);
        };
        // The rate of events falls while none arrives.
        let until = if self.keeps { after(LOOKUP) } else { never() };
        let request = select! {
            recv(asked) -> request => request.map_err(|_| RecvTimeoutError::Disconnected),
            recv(rung) -> _ => Err(RecvTimeoutError::Timeout),
            recv(until) -> _ => Err(RecvTimeoutError::Timeout),
        };
        reader.awake();
        request
    }

    /// Passes the last events to the journal. Workers still run for a moment; their later events are lost.
    fn end(mut self) {
        self.drain();
        let rest = self.repeats.due(Instant::now() + repeats::WINDOW);
        self.tell(rest);
    }

    /// Adds a client, or sends it the reason for a refusal.
    fn admit(&mut self, request: Request) {
        let Request { watch, outlet, opened } = request;
        let snapshot = self.observer.snapshot();
        match Client::new(watch, outlet, &self.observer) {
            Err(failure) => drop(opened.send(Err(failure))),
            Ok(client) if client.is_tracing() && self.tracers() == MOST_TRACEPOINTS => {
                let message = format!("{MOST_TRACEPOINTS} traces are running, which is the limit");
                // The client may be gone.
                let _ = opened.send(Err(Failure::new("busy", message, "end one of them")));
            }
            Ok(mut client) => {
                let watching = watching(&self.observer, &snapshot, self.past.len(), client.nobody());
                client.opened = Some((opened, watching));
                self.clients.push(client);
            }
        }
    }

    fn tracers(&self) -> usize {
        self.clients.iter().filter(|client| client.is_tracing()).count()
    }

    /// Makes workers report what the clients want, and answers new clients. The stream stays if all clients together want the same as
    /// before, so clients that come or go cost the others nothing.
    fn plan(&mut self) {
        self.clients.retain(|client| !client.is_over());
        self.counts.clients.store(self.clients.len() as u64, Ordering::Relaxed);
        let Some(vswitch) = self.observer.vswitch() else { return };
        if self.is_idle() {
            vswitch.close_stream();
            self.drain();
            self.reader = None;
            return;
        }
        let tracepoints = self.clients.iter().filter_map(Client::tracepoint).collect();
        let plan = StreamPlan {
            verdicts: self.journal.is_some() || self.keeps || self.clients.iter().any(|client| !client.is_tracing()),
            endings: false,
            tracepoints,
        };
        if self.reader.is_some() && plan == self.in_force {
            // The workers already report all of it. A new stream would lose the packets in transit in the old one.
            drop(vswitch);
            self.read();
            self.count_left_out();
        } else {
            self.reopen(vswitch, plan);
        }
        self.open_clients();
    }

    /// Makes the workers write a new stream by this plan, and reads the rest of the old one.
    fn reopen(&mut self, vswitch: Arc<Vswitch>, plan: StreamPlan) {
        let reader = vswitch.open_stream(&plan);
        // Workers answer once they write to the new stream, so later events are reported.
        vswitch.counters();
        drop(vswitch);
        // Records of the old stream refer to the old tracepoints.
        self.drain();
        self.leave_behind();
        if plan.tracepoints.iter().any(|point| point.keeps_from_cache) {
            self.observer.end_all_flows();
        }
        (self.reader, self.in_force, self.left_out) = (Some(reader), plan, LeftOut::default());
    }

    /// Assigns the plan's tracepoints to the clients, and answers new clients.
    fn open_clients(&mut self) {
        let mut point = 0;
        for client in &mut self.clients {
            client.point = client.is_tracing().then(|| {
                point += 1;
                point - 1
            });
        }
        for client in &mut self.clients {
            client.open(&self.past);
        }
    }

    /// Reads the rings until they are empty.
    fn drain(&mut self) {
        while self.read() > 0 {}
        self.count_left_out();
    }

    /// Counts traced packets still in transit when their stream is closed, as left out: their outcome will not be reported.
    fn leave_behind(&mut self) {
        let packets = self.reader.as_ref().map_or(0, StreamReader::under_way);
        self.counts.left_out.fetch_add(packets, Ordering::Relaxed);
        for client in self.clients.iter_mut().filter(|client| client.point.is_some()) {
            client.left_out += packets;
        }
    }

    /// Runs one round: reads the rings and sends what is due. Returns whether more records may be waiting.
    fn tick(&mut self) -> bool {
        let read = self.read();
        self.count_left_out();
        let now = Instant::now();
        let events = self.repeats.due(now);
        self.tell(events);
        let is_all_told = self.repeats.is_empty() && !self.journal.as_ref().is_some_and(Tap::has_left_out);
        self.is_quiet = read == 0 && is_all_told;
        self.clients.iter_mut().for_each(|client| client.tell_lost(now, &self.counts));
        let must_look = now.duration_since(self.looked_up) >= LOOKUP;
        let mut is_other = self.clients.iter().any(Client::is_over);
        if must_look {
            self.looked_up = now;
            is_other |= self.journal.take_if(|journal| journal.has_failed()).is_some();
            let rate = self.rate.after(now, self.counts.seen.load(Ordering::Relaxed));
            self.counts.rate.store(rate.to_bits(), Ordering::Relaxed);
            for client in &mut self.clients {
                is_other |= client.look_up();
            }
        }
        if is_other {
            self.plan();
        }
        read >= AT_ONCE
    }

    /// Reads records from the rings and passes them on. Returns their number.
    fn read(&mut self) -> usize {
        let Some(mut reader) = self.reader.take() else { return 0 };
        let (now, mut events, mut packets) = (Instant::now(), Vec::new(), Vec::new());
        let repeats = &mut self.repeats;
        let count = reader.read(AT_ONCE, |_, record, bytes| match record {
            Record::Session(judgement) => events.push(Event::session(judgement)),
            Record::Dropped(judgement) => events.extend(repeats.fold(judgement, now)),
            Record::Lost { time, reason, packets } => events.push(Event::lost(*time, *reason, *packets)),
            Record::Ended { .. } => {}
            Record::Packet { tracepoints, judgement, meant_for, .. } => {
                packets.push((*tracepoints, *judgement, *meant_for, bytes.to_vec()));
            }
        });
        self.reader = Some(reader);
        self.tell(events);
        let snapshot = self.observer.snapshot();
        for (points, judgement, meant_for, bytes) in packets {
            let seen = walk::Seen { judgement: &judgement, meant_for, bytes: &bytes };
            for client in &mut self.clients {
                let is_selected = client.point.is_some_and(|point| points >> point & 1 == 1);
                if is_selected {
                    client.tell_packet(&snapshot, &seen);
                }
            }
        }
        count
    }

    /// Passes verdicts to the journal and the clients, and remembers them.
    fn tell(&mut self, mut events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let snapshot = self.observer.snapshot();
        let now = Instant::now();
        if snapshot.names().is_some()
            && let Some(learned) = self.observer.learned()
        {
            events.iter_mut().for_each(|event| event.name(&snapshot, &learned));
        }
        if let Some(journal) = &mut self.journal {
            journal.tell(&events, &snapshot, now);
        }
        if self.clients.is_empty() && !self.keeps {
            // Only the journal gets events. It needs no ends, and the past is not kept.
            return;
        }
        self.ends.learn(events.iter().flat_map(Event::addresses), &self.observer, &snapshot, now);
        self.counts.seen.fetch_add(events.len() as u64, Ordering::Relaxed);
        for event in events {
            let told = flow::Told::new(event, &self.ends, &snapshot);
            let mut message = None;
            // Clients that are not open yet get the event as part of the past.
            for client in self.clients.iter_mut().filter(|client| client.opened.is_none()) {
                client.tell_flow(&told, &mut message);
            }
            if self.past.len() == REMEMBERED {
                self.past.pop_front();
            }
            self.past.push_back(told);
        }
        self.counts.remembered.store(self.past.len() as u64, Ordering::Relaxed);
    }

    fn count_left_out(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.tell_left_out(Instant::now());
        }
        let Some(reader) = &self.reader else { return };
        let left_out = reader.left_out();
        let more = left_out.since(self.left_out);
        self.left_out = left_out;
        if more.total() > 0 {
            self.counts.left_out.fetch_add(more.total(), Ordering::Relaxed);
            self.journal.iter_mut().for_each(|journal| journal.unheard(more.sessions + more.dropped));
            for client in self.clients.iter_mut().filter(|client| client.opened.is_none()) {
                client.left_out += if client.is_tracing() { more.packets } else { more.sessions + more.dropped };
            }
        }
    }
}

fn watching(observer: &Observer, snapshot: &Snapshot, remembered: usize, nobody: Vec<String>) -> Watching {
    let ports = snapshot.ports().iter().filter(|port| !view::is_unused(&port.name));
    Watching {
        node: observer.node().to_string(),
        generation: snapshot.generation(),
        ports: ports
            .map(|port| WatchedPort {
                name: port.name.to_string(),
                kind: kind_name(port.kind).to_owned(),
                addresses: port.addresses.clone(),
            })
            .collect(),
        remembered,
        nobody,
    }
}
