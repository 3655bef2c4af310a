//! The running vswitch: workers on their cores, ports that come and go.
//!
//! **Purpose.** [`Vswitch`] is the control thread's end: it starts workers, gives them ports, collects what they count
//! and stops them. A worker's loop receives, judges, forwards and sends bursts until it is told to stop.
//!
//! **Not its purpose.** It opens no interfaces and reads no configuration: a port is whatever implements
//! [`Port`]. It compiles no policy: workers read the [`Publisher`]'s snapshots.
//!
//! ```text
//!   control thread                     worker 0                                              worker 1
//!   Vswitch --commands--> [ receive -> mine? -> judge -> forward -> send ]     [ receive -> mine? -> ... -> send ]
//!           <--events----           |no                     |out port is worker 1's               ^        ^
//!                                   `------ lane 0->1 ------+------- lane 0->1 -------------------'--------'
//!   Publisher ~~snapshot~~> Reader of each worker, once per round
//! ```
//!
//! Both directions of a connection must find one session, but they come in on different ports and so perhaps on
//! different workers. Every pair of addresses therefore has one worker, by a keyed hash that is the same in both
//! directions, and packets that come in elsewhere change hands over a lane. What that costs, and what one table for all
//! workers would cost instead, was measured: see `lane.rs`. Addresses and not ports decide, so that fragments and ICMP errors
//! come to their session's worker too; the price is that two pods that talk only to each other keep one worker busy, as
//! one queue of a veth pair does anyway.
//!
//! Packets come from ports' own queues, or from the trunk: one queue per worker for all ports, each packet with the tag of its
//! port (`trunk.rs`). There the kernel's program has chosen the worker by the same hash, so that no packet changes hands.
//!
//! With a flow cache ([`VswitchConfig::flow_cache`]) workers tell which flows need them no more, and these packets do not come
//! (`caching.rs`).
//!
//! **Invariant.** A packet that came in is sent, absorbed, held or dropped with a reason, and its frames are back in a
//! pool or at a port ([`VswitchCounters::lost`]). A round sees one snapshot. The packet path takes no lock and does
//! not allocate once its buffers have grown.

mod arrivals;
mod assembly;
mod bell;
mod caching;
mod clock;
mod config;
mod counters;
mod lane;
mod ledger;
mod ports;
mod stage;
mod stepped;
pub mod stream;
mod tap;
mod trunk;
mod worker_loop;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

pub use config::{LEASE, PollMode, VswitchConfig, VswitchError, VswitchEvent};
pub use counters::{PortTraffic, VswitchCounters, WorkerCounters};
pub use stepped::SteppedWorker;
pub use tap::{Captured, Tap};

use crate::forward::Neighbours;
use crate::io::{FlowSlot, FramePool, Port};
use crate::session::Budget;
use crate::{
    Adoption, Affinity, AuditTap, EndedSessions, PortId, Publisher, SessionInfo, SessionPage, SessionSelector,
    SessionStore,
};
use assembly::spawn;
use bell::Bell;
use stream::{StreamPlan, StreamReader, StreamWriter};

/// How long the control thread waits for a worker's answer. A round takes well under a millisecond, a sleep at most
/// 150 ms; a worker that does not answer in this time is stuck or dead.
const ANSWER: Duration = Duration::from_secs(2);

/// What the control thread tells a worker.
pub(crate) enum Command {
    /// A queue of a port is this worker's from now on.
    Add(PortId, u32, Box<dyn Port>),
    /// A port can be reached through another worker.
    Reach(PortId, usize, Option<FlowSlot>),
    /// A queue of the trunk is this worker's from now on.
    AddTrunk(Box<dyn Port>),
    /// A port's packets come and go over the trunk, with this tag.
    Attach(PortId, FlowSlot),
    /// A port is no more.
    Remove(PortId),
    /// Say that the next round reads the snapshot anew.
    Confirm(Sender<()>),
    /// Tell what was counted.
    Report(Sender<WorkerCounters>),
    /// Tell the sessions of a part of the table that begins here.
    Sessions(u32, Sender<SessionPage>),
    /// End those of such a part that are selected.
    EndSessions(u32, SessionSelector, Sender<EndedSessions>),
    /// Write to this stream from now on, or to none.
    Stream(Option<Box<StreamWriter>>),
    /// Tell audited connections there.
    Audit(AuditTap),
    /// Close all ports and say so.
    Halt(Sender<()>),
    /// End.
    Stop,
}

/// The control thread's end of a worker.
struct Handle {
    commands: Sender<Command>,
    bell: Arc<Bell>,
    /// None for a worker that somebody else drives.
    thread: Option<JoinHandle<WorkerCounters>>,
}

/// A running vswitch. Dropping it stops it.
pub struct Vswitch {
    workers: Vec<Handle>,
    neighbours: Arc<Neighbours>,
    pool: FramePool,
    events: Receiver<VswitchEvent>,
    /// How many sessions each port has: read without asking the workers.
    budget: Arc<Budget>,
    /// Holds the folder of the sessions.
    store: Option<SessionStore>,
}

impl Vswitch {
    /// Maps the packet memory and starts the workers. They have no ports yet.
    ///
    /// # Errors
    /// [`VswitchError`]; nothing is left running then.
    pub fn start(config: &VswitchConfig, publisher: &Publisher) -> Result<Self, VswitchError> {
        Self::start_with(config, publisher, None)
    }

    /// The same with sessions that outlive the process, where a store is given: those that an earlier process has left there
    /// go on, as far as the published tables allow.
    ///
    /// # Errors
    /// [`VswitchError`]; nothing is left running then.
    pub fn start_with(
        config: &VswitchConfig,
        publisher: &Publisher,
        store: Option<SessionStore>,
    ) -> Result<Self, VswitchError> {
        let (mut vswitch, parts) = Self::assemble(config, publisher, store)?;
        for (id, parts) in parts.into_iter().enumerate() {
            vswitch.workers[id].thread = Some(spawn(id, config.cores[id], parts)?);
        }
        Ok(vswitch)
    }

    /// A pool of the shared memory, for opening ports.
    pub const fn pool(&mut self) -> &mut FramePool {
        &mut self.pool
    }

    /// Gives one queue of a port to its worker, and tells the others where it is. A port's queues go to different workers
    /// where there are several.
    pub fn add_port(&self, id: PortId, queue: u32, port: Box<dyn Port>) {
        if queue == 0 {
            // Packets that were under way when the port was removed may have taught somebody its old MAC address.
            self.neighbours.forget(id);
        }
        let owner = (id.index() + queue as usize) % self.workers.len();
        let slot = port.slot();
        self.tell(owner, Command::Add(id, queue, port));
        for worker in (0..self.workers.len()).filter(|&worker| worker != owner) {
            self.tell(worker, Command::Reach(id, owner, slot));
        }
    }

    /// Gives the workers their queues of the trunk: to be called once, with one for each worker. Their packets have an 802.1ad tag
    /// with the slot of their port.
    pub fn add_trunk(&self, queues: impl IntoIterator<Item = Box<dyn Port>>) {
        for (worker, queue) in (0..self.workers.len()).zip(queues) {
            self.tell(worker, Command::AddTrunk(queue));
        }
    }

    /// A port's packets come and go over the trunk, with its slot as their tag.
    pub fn attach_port(&self, id: PortId, slot: FlowSlot) {
        // Packets that were under way when the port was removed may have taught somebody its old MAC address.
        self.neighbours.forget(id);
        for worker in 0..self.workers.len() {
            self.tell(worker, Command::Attach(id, slot));
        }
    }

    /// Closes all queues of a port, and forgets what was learned of the other side.
    pub fn remove_port(&self, id: PortId) {
        self.neighbours.forget(id);
        for worker in 0..self.workers.len() {
            self.tell(worker, Command::Remove(id));
        }
    }

    /// What became of the sessions of an earlier process, where there is a store.
    pub fn adoption(&self) -> Option<&Adoption> {
        self.store.as_ref().map(SessionStore::adoption)
    }

    /// Has the workers tell audited connections to this tap. What is judged before they have heard of it is counted and not told.
    pub fn tell_audits_to(&self, tap: &AuditTap) {
        (0..self.workers.len()).for_each(|worker| self.tell(worker, Command::Audit(tap.clone())));
    }

    /// What happened since the last call.
    pub fn events(&self) -> impl Iterator<Item = VswitchEvent> + '_ {
        self.events.try_iter()
    }

    /// Where events come, for whoever waits for them together with others. What is received there is not among
    /// [`events`](Self::events).
    pub fn event_channel(&self) -> Receiver<VswitchEvent> {
        self.events.clone()
    }

    /// How many workers do not run any more though nobody stopped them: they failed again and again, a fault of the program. What
    /// they owned is closed.
    pub fn dead_workers(&self) -> usize {
        let is_dead = |worker: &&Handle| worker.thread.as_ref().is_some_and(JoinHandle::is_finished);
        self.workers.iter().filter(is_dead).count()
    }

    /// What was counted so far. Waits for each worker's answer, a few milliseconds at most when all is well.
    pub fn counters(&self) -> VswitchCounters {
        let asked = (0..self.workers.len()).map(|worker| {
            let (answer, report) = crossbeam_channel::bounded(1);
            self.tell(worker, Command::Report(answer));
            report
        });
        let asked: Vec<_> = asked.collect();
        let workers = asked.into_iter().map(|report| report.recv_timeout(ANSWER).unwrap_or_default());
        VswitchCounters { workers: workers.collect(), port_sessions: self.budget.ports() }
    }

    /// Whether every worker has been between two rounds since the call. A round reads the snapshot once, so from then on each of them judges
    /// by what was published before the call, or by something newer. Waits for their answers, a few milliseconds at most when all is well.
    pub fn confirm(&self) -> bool {
        let (answer, confirmed) = crossbeam_channel::bounded(self.workers.len());
        (0..self.workers.len()).for_each(|worker| self.tell(worker, Command::Confirm(answer.clone())));
        drop(answer);
        let deadline = std::time::Instant::now() + ANSWER;
        self.workers.iter().all(|_| confirmed.recv_deadline(deadline).is_ok())
    }

    /// Tells the sessions of all workers to `each`, until that says to stop. Asks for one part at a time, so that packets wait for some ten
    /// microseconds now and then. False when a worker has not answered.
    pub fn sessions(&self, mut each: impl FnMut(SessionInfo) -> ControlFlow<()>) -> bool {
        for worker in 0..self.workers.len() {
            let mut from = Some(0);
            while let Some(start) = from {
                let (answer, page) = crossbeam_channel::bounded(1);
                self.tell(worker, Command::Sessions(start, answer));
                let Ok(SessionPage { sessions, next }) = page.recv_timeout(ANSWER) else { return false };
                if sessions.into_iter().try_for_each(&mut each).is_break() {
                    return true;
                }
                from = next;
            }
        }
        true
    }

    /// Ends the selected sessions of all workers, and tells them to `each`. Flows in the kernel that go on with them are the caller's to
    /// end. False when a worker has not answered.
    pub fn end_sessions(&self, selector: &SessionSelector, mut each: impl FnMut(SessionInfo)) -> bool {
        for worker in 0..self.workers.len() {
            let mut from = Some(0);
            while let Some(start) = from {
                let (answer, page) = crossbeam_channel::bounded(1);
                self.tell(worker, Command::EndSessions(start, *selector, answer));
                let Ok(EndedSessions { sessions, next }) = page.recv_timeout(ANSWER) else { return false };
                sessions.into_iter().for_each(&mut each);
                from = next;
            }
        }
        true
    }

    /// Has all workers tell what the plan asks for, in place of what an earlier stream has asked for. Each begins when it next looks at
    /// its commands, which is before it answers [`counters`](Self::counters).
    pub fn open_stream(&self, plan: &StreamPlan) -> StreamReader {
        let (writers, reader) = stream::stream(plan, self.workers.len());
        for (worker, writer) in writers.into_iter().enumerate() {
            self.tell(worker, Command::Stream(Some(Box::new(writer))));
        }
        reader
    }

    /// Has the workers tell nothing any more.
    pub fn close_stream(&self) {
        (0..self.workers.len()).for_each(|worker| self.tell(worker, Command::Stream(None)));
    }

    /// Closes all ports, ends the workers and tells what they counted.
    pub fn stop(mut self) -> VswitchCounters {
        VswitchCounters { workers: self.end(), port_sessions: Vec::new() }
    }

    fn tell(&self, worker: usize, command: Command) {
        let worker = &self.workers[worker];
        // An error means that the worker is dead; `dead_workers` tells.
        if worker.commands.send(command).is_ok() {
            worker.bell.ring();
        }
    }

    fn end(&mut self) -> Vec<WorkerCounters> {
        if self.workers.iter().all(|worker| worker.thread.is_none()) {
            return Vec::new();
        }
        // First nobody gives anything to anybody any more, then all empty their lanes: so every packet is counted.
        let (done, halted) = crossbeam_channel::bounded(self.workers.len());
        (0..self.workers.len()).for_each(|worker| self.tell(worker, Command::Halt(done.clone())));
        drop(done);
        let deadline = std::time::Instant::now() + ANSWER;
        while halted.recv_deadline(deadline).is_ok() {}
        (0..self.workers.len()).for_each(|worker| self.tell(worker, Command::Stop));
        let threads = self.workers.drain(..).filter_map(|worker| worker.thread);
        threads.map(|thread| thread.join().unwrap_or_default()).collect()
    }
}

impl Drop for Vswitch {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Vswitch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vswitch").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
