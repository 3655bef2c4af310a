//! The thread: reads the rings, and tells the journal and the clients.
//!
//! It sleeps, and there is no stream, while there is neither a client nor a journal and the past is not kept for Hubble's clients
//! ([`crate::hubble`]). Else it looks at the rings every [`TICK`]: nobody rings for it, so that no worker makes a system call for an
//! observer. Where it has only the journal to tell, that is every [`JOURNAL_TICK`], and nobody is asked whose the addresses are.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bulkhead_dataplane::Snapshot;
use bulkhead_dataplane::vswitch::Vswitch;
use bulkhead_dataplane::vswitch::stream::{LeftOut, MOST_TRACEPOINTS, Record, StreamPlan, StreamReader};
use crossbeam_channel::{Receiver, RecvTimeoutError};

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

/// How often the rings are read while somebody watches. They hold what happens in 160 ms at 100,000 sessions a second.
const TICK: Duration = Duration::from_millis(10);

/// The same while only the journal does: what lies in the rings longer is as true, and a fifth of the wake-ups leaves more to the workers. At
/// 100,000 sessions a second a ring is a third full by then.
const JOURNAL_TICK: Duration = Duration::from_millis(50);

/// Records of each worker that are read at a time, so that a flood does not keep clients from being served.
const AT_ONCE: usize = 4096;

/// How often the addresses of pods that a trace is about are looked up again.
const LOOKUP: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Watcher {
    observer: Observer,
    counts: Arc<StreamCounts>,
    journal: Option<Tap>,
    clients: Vec<Client>,
    reader: Option<StreamReader>,
    /// What the workers have been told to tell, while there is a reader.
    in_force: StreamPlan,
    /// What the reader's workers had left out when that was told last.
    left_out: LeftOut,
    repeats: Repeats,
    ends: Ends,
    past: VecDeque<flow::Told>,
    looked_up: Instant,
    /// Whether the past is kept also of when no client watches.
    keeps: bool,
    rate: Rate,
}

impl Watcher {
    /// Nobody watches yet. See [`Hub::start`](super::Hub::start).
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
        }
    }

    /// Watches until nobody can ask any more.
    pub(super) fn run(mut self, asked: &Receiver<Request>) {
        if !self.is_idle() {
            self.plan();
        }
        let mut is_behind = false;
        loop {
            let request = match self.patience() {
                None => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(patience) => asked.recv_timeout(if is_behind { Duration::ZERO } else { patience }),
            };
            match request {
                Ok(request) => {
                    self.admit(request);
                    // Those that come together share a stream.
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

    /// Whether nobody is to be told anything.
    fn is_idle(&self) -> bool {
        self.clients.is_empty() && self.journal.is_none() && !self.keeps
    }

    /// How long the rings may wait; none for ever.
    fn patience(&self) -> Option<Duration> {
        match (self.is_idle(), self.clients.is_empty() && !self.keeps) {
            (true, _) => None,
            (false, true) => Some(JOURNAL_TICK),
            (false, false) => Some(TICK),
        }
    }

    /// Tells the journal what is left: workers go on for a moment, and what they tell is theirs.
    fn end(mut self) {
        self.drain();
        let rest = self.repeats.due(Instant::now() + repeats::WINDOW);
        self.tell(rest);
    }

    /// Lets somebody watch, or says why not.
    fn admit(&mut self, request: Request) {
        let Request { watch, outlet, opened } = request;
        let snapshot = self.observer.snapshot();
        match Client::new(watch, outlet, &self.observer) {
            Err(failure) => drop(opened.send(Err(failure))),
            Ok(client) if client.is_tracing() && self.tracers() == MOST_TRACEPOINTS => {
                let message = format!("{MOST_TRACEPOINTS} traces are running, which is the limit");
                // Whoever has asked may be gone.
                let _ = opened.send(Err(Failure::new("busy", message, "end one of them")));
            }
            Ok(mut client) => {
                client.opened = Some((opened, watching(&self.observer, &snapshot, self.past.len())));
                self.clients.push(client);
            }
        }
    }

    fn tracers(&self) -> usize {
        self.clients.iter().filter(|client| client.is_tracing()).count()
    }

    /// Has workers tell what the clients want, and tells those that wait for it. The stream stays as it is while all clients together want what
    /// they wanted: so who comes or goes costs the others nothing.
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
            // The workers tell all of it already. A new stream would lose the packets of the old one that are under way.
            drop(vswitch);
            self.read();
            self.count_left_out();
        } else {
            self.reopen(vswitch, plan);
        }
        self.open_clients();
    }

    /// Has the workers tell what this plan asks for.
    fn reopen(&mut self, vswitch: Arc<Vswitch>, plan: StreamPlan) {
        let reader = vswitch.open_stream(&plan);
        // They answer when they write to it: what comes from now on is told.
        vswitch.counters();
        drop(vswitch);
        // By the places of the tracepoints until now.
        self.drain();
        self.leave_behind();
        if plan.tracepoints.iter().any(|point| point.keeps_from_cache) {
            self.observer.end_all_flows();
        }
        (self.reader, self.in_force, self.left_out) = (Some(reader), plan, LeftOut::default());
    }

    /// Gives the clients their places in the plan in force, and tells those that wait for it.
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

    /// Reads all that lies in the rings.
    fn drain(&mut self) {
        while self.read() > 0 {}
        self.count_left_out();
    }

    /// Packets of the stream until now whose end nobody tells any more.
    fn leave_behind(&mut self) {
        let packets = self.reader.as_ref().map_or(0, StreamReader::under_way);
        self.counts.left_out.fetch_add(packets, Ordering::Relaxed);
        for client in self.clients.iter_mut().filter(|client| client.point.is_some()) {
            client.left_out += packets;
        }
    }

    /// Returns whether there may be more to read at once.
    fn tick(&mut self) -> bool {
        let is_behind = self.read() >= AT_ONCE;
        self.count_left_out();
        let now = Instant::now();
        let events = self.repeats.due(now);
        self.tell(events);
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
        is_behind
    }

    /// Reads some of what lies in the rings, and tells it. Returns how many records there were.
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

    /// Tells verdicts, and remembers them.
    fn tell(&mut self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let snapshot = self.observer.snapshot();
        let now = Instant::now();
        if let Some(journal) = &mut self.journal {
            journal.tell(&events, &snapshot, now);
        }
        if self.clients.is_empty() && !self.keeps {
            // Nobody is to be told who they are of, and nothing is remembered.
            return;
        }
        self.ends.learn(events.iter().flat_map(Event::addresses), &self.observer, &snapshot, now);
        self.counts.seen.fetch_add(events.len() as u64, Ordering::Relaxed);
        for event in events {
            let told = flow::Told::new(event, &self.ends, &snapshot);
            let mut message = None;
            // Those that are not open yet get it as part of the past.
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

fn watching(observer: &Observer, snapshot: &Snapshot, remembered: usize) -> Watching {
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
    }
}
