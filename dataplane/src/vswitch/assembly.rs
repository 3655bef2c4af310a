//! Makes the parts of each worker, and starts its thread.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::Sender;

use super::bell::Bell;
use super::clock::Clock;
use super::config::MAX_WORKERS;
use super::lane::{self, Incoming, Outgoing};
use super::stage::Surroundings;
use super::worker_loop::{Parts, WorkerLoop};
use super::{Handle, Vswitch, VswitchConfig, VswitchError, VswitchEvent, WorkerCounters};
use crate::forward::{Forwarder, Neighbours};
use crate::io::{FramePool, Umem, Waker};
use crate::{Publisher, SessionStore, Worker};

impl Vswitch {
    /// Creates the packet memory and the components of each worker.
    pub(super) fn assemble(
        config: &VswitchConfig,
        publisher: &Publisher,
        mut store: Option<SessionStore>,
    ) -> Result<(Self, Vec<Parts>), VswitchError> {
        let count = config.cores.len();
        if !(1..=MAX_WORKERS).contains(&count) {
            return Err(VswitchError::Workers { workers: count });
        }
        let (umem, frames) = Umem::new(config.frames)?;
        let pool = FramePool::new(umem, frames);
        let (tell, events) = crossbeam_channel::unbounded();
        let neighbours = Neighbours::new();
        if let Some(cache) = config.flow_cache.clone() {
            neighbours.report_moves_to(cache);
        }
        let (bells, affinity) = (bells(count)?, config.affinity.clone());
        let engines = match &mut store {
            None => Worker::team(config.engine, count, &affinity)?,
            Some(store) => {
                let snapshot = publisher.current();
                Worker::team_in(store, config.engine, count, &affinity, &snapshot, Clock::new().now())?
            }
        };
        let mut vswitch = Self {
            workers: Vec::with_capacity(count),
            neighbours: Arc::clone(&neighbours),
            pool,
            events,
            budget: Arc::clone(engines[0].budget()),
            learned: Arc::clone(engines[0].learned()),
            kept_names: engines[0].kept_names().cloned(),
            store,
        };
        let mut all = Vec::with_capacity(count);
        for (id, ((outgoing, incoming), engine)) in lanes(count).into_iter().zip(engines).enumerate() {
            let (send, commands) = crossbeam_channel::unbounded();
            let surroundings = Surroundings {
                id,
                outgoing,
                incoming,
                bells: bells.clone(),
                affinity: affinity.clone(),
                events: tell.clone(),
                tap: config.tap.clone(),
                flow_cache: config.flow_cache.clone().filter(|_| config.tap.is_none()),
                lease: config.lease,
            };
            all.push(Parts {
                engine,
                forwarder: Forwarder::new(Arc::clone(&neighbours)),
                pool: vswitch.pool.sibling(),
                surroundings,
                reader: publisher.reader(),
                commands,
                poll: config.poll,
            });
            vswitch.workers.push(Handle { commands: send, bell: Arc::clone(&bells[id]), thread: None });
        }
        Ok((vswitch, all))
    }
}

fn bells(count: usize) -> Result<Vec<Arc<Bell>>, VswitchError> {
    let bell = |worker| {
        let waker = Waker::new().map_err(|source| VswitchError::Start { worker, source })?;
        Ok(Arc::new(Bell::new(waker)))
    };
    (0..count).map(bell).collect()
}

/// Creates lanes between all workers. Returns for each worker its sending ends, with `None` for itself, and its receiving ends.
fn lanes(count: usize) -> Vec<(Vec<Option<Outgoing>>, Vec<Incoming>)> {
    let mut ends: Vec<(Vec<Option<Outgoing>>, Vec<Incoming>)> = Vec::new();
    ends.resize_with(count, Default::default);
    for from in 0..count {
        for to in 0..count {
            let mut outgoing = None;
            if from != to {
                let (out, into) = lane::lane();
                outgoing = Some(out);
                ends[to].1.push(into);
            }
            ends[from].0.push(outgoing);
        }
    }
    ends
}

/// Reports that a worker's thread ends by a panic.
struct End {
    worker: usize,
    events: Sender<VswitchEvent>,
}

impl Drop for End {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Fails only while the vswitch ends.
            let _ = self.events.send(VswitchEvent::WorkerEnded { worker: self.worker });
        }
    }
}

pub(super) fn spawn(id: usize, core: Option<usize>, parts: Parts) -> Result<JoinHandle<WorkerCounters>, VswitchError> {
    let (pinned, is_pinned) = crossbeam_channel::bounded(1);
    let end = End { worker: id, events: parts.surroundings.events.clone() };
    let thread = std::thread::Builder::new().name(format!("worker-{id}")).spawn(move || {
        let _end = end;
        let done = core.is_none_or(crate::io::cores::pin);
        // Nobody waits any more when starting failed elsewhere; the loop ends by its closed command channel.
        let _ = pinned.send(done);
        if done { WorkerLoop::new(parts).run() } else { WorkerCounters::default() }
    });
    let thread = thread.map_err(|source| VswitchError::Start { worker: id, source })?;
    match (is_pinned.recv(), core) {
        (Ok(false), Some(core)) => Err(VswitchError::Core { worker: id, core }),
        _ => Ok(thread),
    }
}
