//! The running vswitch: workers pinned to cores, and the ports they serve.
//!
//! **Purpose.** [`Vswitch`] is the control thread's end. It starts workers, gives them ports, collects their counters and stops them. A
//! worker's loop receives, judges, forwards and sends bursts.
//!
//! **Not its purpose.** It opens no interfaces and reads no configuration: a port is any implementation of [`Port`]. It compiles no policy:
//! workers read snapshots from the [`Publisher`].
//!
//! ```text
//!   control thread                     worker 0                                              worker 1
//!   Vswitch --commands--> [ receive -> mine? -> judge -> forward -> send ]     [ receive -> mine? -> ... -> send ]
//!           <--events----           |no                     |out port is worker 1's               ^        ^
//!                                   `------ lane 0->1 ------+------- lane 0->1 -------------------'--------'
//!   Publisher ~~snapshot~~> Reader of each worker, once per round
//! ```
//!
//! Both directions of a connection share one session, but their packets arrive on different ports and possibly at different workers.
//! Therefore a keyed hash of the two addresses, equal in both directions, selects the worker that owns the session. Packets that arrive at
//! another worker are passed to the owner over a lane. `lane.rs` has measurements of this design and of one table shared by all workers.
//! The hash ignores ports, so that fragments and ICMP errors reach their session's worker. The drawback: two pods that only talk to each
//! other load one worker, as one queue of a veth pair does.
//!
//! Packets come from the ports' own queues or from the trunk. The trunk has one queue per worker for all ports, and an 802.1ad tag on each
//! packet names its port (`trunk.rs`). The kernel program selects the worker by the same hash, so packets from the trunk do not change
//! workers.
//!
//! With a flow cache ([`VswitchConfig::flow_cache`]), workers add established flows to the cache, which then forwards their packets before
//! they reach a worker (`caching.rs`).
//!
//! **Invariant.** Every received packet is sent, absorbed, held or dropped with a reason, and its frames return to a pool or a port
//! ([`VswitchCounters::lost`]). One round uses one snapshot. The packet path takes no lock, and does not allocate once its buffers have
//! grown.

mod arrivals;
mod assembly;
mod bell;
mod caching;
mod clock;
mod command;
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
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

pub use config::{LEASE, PollMode, VswitchConfig, VswitchError, VswitchEvent};
pub use counters::{PortTraffic, VswitchCounters, WorkerCounters};
pub use stepped::SteppedWorker;
pub use tap::{Captured, Tap};

use crate::forward::Neighbours;
use crate::io::{FlowChange, FlowSlot, ForwardedFlow, FramePool, Port};
use crate::names::KeptNames;
use crate::session::Budget;
use crate::{
    Adoption, Affinity, AuditTap, EndedSessions, Learned, Learner, PortId, Publisher, SessionInfo, SessionPage,
    SessionSelector, SessionStore, Snapshot,
};
use assembly::spawn;
use bell::Bell;
pub(crate) use command::Command;
use stream::{StreamPlan, StreamReader};

/// How long the control thread waits for a worker's answer. A round takes well under a millisecond and a sleep at most 150 ms. A worker
/// that needs longer is stuck or dead.
const ANSWER: Duration = Duration::from_secs(2);

/// The control thread's handle of a worker.
struct Handle {
    commands: Sender<Command>,
    bell: Arc<Bell>,
    /// The worker's thread. `None` for a [`SteppedWorker`], which its owner drives.
    thread: Option<JoinHandle<WorkerCounters>>,
}

/// A running vswitch. Dropping it stops the workers.
pub struct Vswitch {
    workers: Vec<Handle>,
    neighbours: Arc<Neighbours>,
    pool: FramePool,
    events: Receiver<VswitchEvent>,
    /// The session counts of each port, which the control thread reads without asking the workers.
    budget: Arc<Budget>,
    /// The addresses that pods have learned from DNS answers.
    learned: Arc<Learned>,
    /// The file in which learned names outlive the process. `None` if sessions are not kept in files.
    kept_names: Option<Arc<KeptNames>>,
    /// The folder of session files, locked while the vswitch runs. `None` if sessions are not kept in files.
    store: Option<SessionStore>,
}

impl Vswitch {
    /// Maps the packet memory and starts the workers, without ports.
    ///
    /// # Errors
    /// [`VswitchError`]. All workers are stopped then.
    pub fn start(config: &VswitchConfig, publisher: &Publisher) -> Result<Self, VswitchError> {
        Self::start_with(config, publisher, None)
    }

    /// Like [`Vswitch::start`]. With a store, sessions outlive the process, and those that an earlier process left there are adopted if the
    /// published tables allow them.
    ///
    /// # Errors
    /// [`VswitchError`]. All workers are stopped then.
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

    /// Returns a pool of the shared packet memory, for opening ports.
    pub const fn pool(&mut self) -> &mut FramePool {
        &mut self.pool
    }

    /// Gives one queue of a port to a worker and announces it to the others. Several queues of a port go to different workers.
    pub fn add_port(&self, id: PortId, queue: u32, port: Box<dyn Port>) {
        if queue == 0 {
            // Packets in flight when the port was removed may have taught the neighbour table its old MAC address.
            self.neighbours.forget(id);
        }
        let owner = (id.index() + queue as usize) % self.workers.len();
        let slot = port.slot();
        self.tell(owner, Command::Add(id, queue, port));
        for worker in (0..self.workers.len()).filter(|&worker| worker != owner) {
            self.tell(worker, Command::Reach(id, owner, slot));
        }
    }

    /// Gives each worker its queue of the trunk. Call it once, with one queue per worker. Packets on the trunk carry an 802.1ad tag with
    /// their port's slot.
    pub fn add_trunk(&self, queues: impl IntoIterator<Item = Box<dyn Port>>) {
        for (worker, queue) in (0..self.workers.len()).zip(queues) {
            self.tell(worker, Command::AddTrunk(queue));
        }
    }

    /// Connects a port over the trunk, with its slot as the tag.
    pub fn attach_port(&self, id: PortId, slot: FlowSlot) {
        // Packets in flight when the port was removed may have taught the neighbour table its old MAC address.
        self.neighbours.forget(id);
        for worker in 0..self.workers.len() {
            self.tell(worker, Command::Attach(id, slot));
        }
    }

    /// Announces the conventional gateways on a newly added pod's or host's port. The peer may have requested its gateway's MAC address while
    /// the port was closed. Its kernel would repeat the request only after a second, and hold its packets until then.
    pub fn announce(&self, id: PortId) {
        // The worker with the port's first queue, if the port has queues.
        self.tell(id.index() % self.workers.len(), Command::Announce(id));
    }

    /// Closes all queues of a port and forgets its peer's MAC address. Its sessions stay, in case that the port is added again.
    pub fn remove_port(&self, id: PortId) {
        self.neighbours.forget(id);
        for worker in 0..self.workers.len() {
            self.tell(worker, Command::Remove(id));
        }
    }

    /// Ends the sessions of a port whose pod is gone. If the snapshot [tells it](crate::Snapshot::telling_unreachable), the other ends of TCP
    /// and UDP sessions are notified.
    pub fn end_port(&self, id: PortId) {
        (0..self.workers.len()).for_each(|worker| self.tell(worker, Command::End(id)));
    }

    /// Returns the table of addresses that pods have learned from DNS answers.
    pub const fn learned(&self) -> &Arc<Learned> {
        &self.learned
    }

    /// Gives pods the addresses that they had learned in an earlier process. `now` is in nanoseconds since 1970. Does nothing if sessions
    /// are not kept in files.
    pub fn give_back_names(&self, pods: &[Learner], now: u64) {
        if let Some(kept) = &self.kept_names {
            kept.give_back(&self.learned, pods, now);
        }
    }

    /// Forgets the addresses that pods have learned, in this process and for later ones.
    pub fn forget_names(&self, pods: &[Learner]) {
        pods.iter().for_each(|pod| self.learned.forget(pod.holder));
        if let Some(kept) = &self.kept_names {
            kept.forget(pods);
        }
    }

    /// Returns the result of adopting an earlier process's sessions. `None` without a store.
    pub fn adoption(&self) -> Option<&Adoption> {
        self.store.as_ref().map(SessionStore::adoption)
    }

    /// Reports audited connections to this tap. Connections judged before the workers read the command are counted but not reported.
    pub fn tell_audits_to(&self, tap: &AuditTap) {
        (0..self.workers.len()).for_each(|worker| self.tell(worker, Command::Audit(tap.clone())));
    }

    /// Returns the events since the last call.
    pub fn events(&self) -> impl Iterator<Item = VswitchEvent> + '_ {
        self.events.try_iter()
    }

    /// Returns the channel of events, for selecting on several channels. An event received here is not returned by
    /// [`events`](Self::events).
    pub fn event_channel(&self) -> Receiver<VswitchEvent> {
        self.events.clone()
    }

    /// Returns the number of workers that ended although they were not stopped. They failed repeatedly, which is a bug. Their ports are
    /// closed.
    pub fn dead_workers(&self) -> usize {
        let is_dead = |worker: &&Handle| worker.thread.as_ref().is_some_and(JoinHandle::is_finished);
        self.workers.iter().filter(is_dead).count()
    }

    /// Collects the counters. Waits for each worker's answer, normally a few milliseconds at most.
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

    /// Waits until every worker has started a new round, and returns false if one does not answer. A round loads the snapshot once, so all
    /// workers then use the snapshot published before the call, or a newer one. Takes a few milliseconds at most if all workers run.
    pub fn confirm(&self) -> bool {
        let (answer, confirmed) = crossbeam_channel::bounded(self.workers.len());
        (0..self.workers.len()).for_each(|worker| self.tell(worker, Command::Confirm(answer.clone())));
        drop(answer);
        let deadline = Instant::now() + ANSWER;
        self.workers.iter().all(|_| confirmed.recv_deadline(deadline).is_ok())
    }

    /// Calls `each` with the sessions of all workers until it returns `Break`. Workers answer page by page, so packets wait about ten
    /// microseconds per page. Returns false if a worker does not answer.
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

    /// Ends the selected sessions of all workers and calls `each` with them. The caller must end their flows in the kernel's flow cache.
    /// Returns false if a worker does not answer.
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

    /// Lets the workers confirm the flows in the kernel that the next snapshot allows, in the given order, until this time at the latest.
    pub fn judge_again(&self, next: &Arc<Snapshot>, flows: &[ForwardedFlow], deadline: Instant) {
        /// A flow takes about 2 µs, so packets wait at most half a millisecond.
        const PORTION: usize = 1 << 8;
        for portion in flows.chunks(PORTION) {
            let portion: Arc<[ForwardedFlow]> = portion.into();
            let (tell, done) = crossbeam_channel::bounded(self.workers.len());
            for worker in 0..self.workers.len() {
                self.tell(worker, Command::JudgeAgain(Arc::clone(next), Arc::clone(&portion), tell.clone()));
            }
            drop(tell);
            if self.workers.iter().any(|_| done.recv_deadline(deadline).is_err()) {
                return;
            }
        }
    }

    /// Tells the workers what the flow cache saw of TCP connections while no worker was alive, in portions, so that packets wait less than a
    /// millisecond.
    pub fn learn(&self, changes: &[FlowChange]) {
        /// A change takes about 200 ns.
        const PORTION: usize = 1 << 10;
        for portion in changes.chunks(PORTION) {
            let portion: Arc<[FlowChange]> = portion.into();
            (0..self.workers.len()).for_each(|worker| self.tell(worker, Command::Learn(Arc::clone(&portion))));
            self.confirm();
        }
    }

    /// Opens a stream of the records that the plan selects, and replaces the previous stream. A worker begins when it next reads its
    /// commands, which is before it answers [`counters`](Self::counters).
    pub fn open_stream(&self, plan: &StreamPlan) -> StreamReader {
        let (writers, reader) = stream::stream(plan, self.workers.len());
        for (worker, writer) in writers.into_iter().enumerate() {
            self.tell(worker, Command::Stream(Some(Box::new(writer))));
        }
        reader
    }

    /// Detaches the stream from all workers.
    pub fn close_stream(&self) {
        (0..self.workers.len()).for_each(|worker| self.tell(worker, Command::Stream(None)));
    }

    /// Closes all ports, ends the workers and returns their counters.
    pub fn stop(mut self) -> VswitchCounters {
        VswitchCounters { workers: self.end(), port_sessions: Vec::new() }
    }

    fn tell(&self, worker: usize, command: Command) {
        let worker = &self.workers[worker];
        // Sending fails only if the worker is dead, which `dead_workers` reports.
        if worker.commands.send(command).is_ok() {
            worker.bell.ring();
        }
    }

    fn end(&mut self) -> Vec<WorkerCounters> {
        if self.workers.iter().all(|worker| worker.thread.is_none()) {
            return Vec::new();
        }
        // First all workers stop receiving and handing over, then all empty their lanes. So every packet is counted.
        let (done, halted) = crossbeam_channel::bounded(self.workers.len());
        (0..self.workers.len()).for_each(|worker| self.tell(worker, Command::Halt(done.clone())));
        drop(done);
        let deadline = Instant::now() + ANSWER;
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
