//! The thread that answers questions: the admin socket, metrics and probes, and what load balancers ask of the node.
//!
//! ```text
//!   bulkhead status .. --unix socket, JSON lines--> [ socket ]--.
//!   Prometheus, kubelet ------------HTTP---------> [ probes ] --+--> Observations (100 ms old at most) --asks--> workers,
//!   load balancers -----------------HTTP---------> [ health ]                                          interfaces thread
//!   Hubble's clients ---------------gRPC---------> [ super::hubble ] --> stream thread
//! ```
//!
//! All connections are tasks of one thread. What has to wait for the workers' answers does so on a thread of its own, one at a time,
//! and everybody who asks meanwhile gets the same answer: so neither many clients nor slow ones hold anything back, and whoever asks
//! without end costs the workers ten answers a second. Connections, the length of a request and the time that a reader may take are
//! bounded. Requests about added ports are answered by the thread that says which ports there are: they wait there, and here they are
//! no more than a task each.
//!
//! A thread per connection lost: it is as simple, but its bound is in threads, and each slow reader would hold one.
//!
//! **Invariant.** Nothing that enforces waits for anything here.

mod answers;
pub(super) mod connections;
pub(super) mod explain;
pub(super) mod exposition;
pub(super) mod health;
pub(super) mod http;
pub(super) mod metrics;
pub(super) mod policy_labels;
pub(super) mod probes;
mod sessions;
pub(super) mod socket;
pub(super) mod thread;

pub(super) use answers::{instance, milliseconds};

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use serde_json::Value;
use tokio::sync::{Mutex, oneshot, watch};

use super::config::AdminConfig;
use super::hubble;
use super::journal::Journal;
use super::listener::Listener;
use super::notice::Notice;
use super::observer::{Observation, Observer};
use super::ports::{Event, Question};
use super::stream::Hub;
use bulkhead_answers::services::NodeHealth;
use bulkhead_observe::admin::Failure;
use connections::{Connections, Limits};
use health::Health;
use thread::Handle;

/// Connections of the admin socket at a time. A person has one, a program a few. A pod that is being started has one as well, which waits
/// for its port: a node has some hundred pods, and they may all start at once.
const CONNECTIONS: Limits = Limits { new: 256, asking: 32, changing: 512, watching: 16, answered: 32 };

/// How old an observation may be that is told again.
const FRESH: Duration = Duration::from_millis(100);

/// Threads that wait: one for the workers' observations, one for their lists of sessions, one for the disk with the files of TLS.
const BLOCKING: usize = 3;

/// How long the end waits for an observation that is under way: the workers are given two seconds to answer.
pub(super) const ENDING: Duration = Duration::from_secs(5);

/// What all connections share.
struct Shared {
    observer: Observer,
    last: Mutex<Option<(Instant, Arc<Observation>)>>,
    /// Held by whoever has sessions listed.
    listing: Mutex<()>,
    /// To the main thread.
    notices: Sender<Notice>,
    /// To the thread that says which ports there are.
    ports: Sender<Event>,
    /// What watches the workers.
    hub: Hub,
    /// What load balancers are told, where they are told something.
    health: Option<Arc<Health>>,
}

impl Shared {
    /// What is so now, or was a moment ago.
    async fn observe(&self) -> Arc<Observation> {
        // Held while it is asked for: whoever comes meanwhile waits for the same answer.
        let mut last = self.last.lock().await;
        if let Some((at, observation)) = &*last
            && at.elapsed() < FRESH
        {
            return Arc::clone(observation);
        }
        let observer = self.observer.clone();
        let observed = tokio::task::spawn_blocking(move || observer.observe()).await;
        // It does not panic; if it does, this task does as well, and only its client notices.
        let observation = Arc::new(observed.expect("to observe does not panic"));
        *last = Some((Instant::now(), Arc::clone(&observation)));
        observation
    }

    /// Asks the thread that says which ports there are, and waits for its answer, which may take as long as the question says.
    async fn ask_ports(&self, question: Question) -> Result<Value, Failure> {
        let (reply, answer) = oneshot::channel();
        // An error means that the vswitch is about to end.
        let _ = self.ports.send(Event::Asked(question, reply));
        let ended = || Failure::new("not_ready", "the vswitch is being stopped", "ask again when it has started again");
        answer.await.unwrap_or_else(|_| Err(ended()))
    }
}

/// Starts to listen. `hubble` is where Hubble's clients are served, `health` what load balancers are told; none where Services are off.
///
/// # Errors
/// When the address of the metrics cannot be had, or the system refuses a thread. A socket that cannot be had is said only: to ask
/// is not what the vswitch is for.
pub(super) fn start(
    config: &AdminConfig,
    hubble: Option<hubble::Endpoint>,
    observer: Observer,
    notices: Sender<Notice>,
    ports: Sender<Event>,
    health: Option<watch::Receiver<NodeHealth>>,
) -> anyhow::Result<Handle> {
    let socket = config.socket.as_deref().and_then(Listener::bind);
    let metrics = config.listen.map(probes::listen).transpose()?;
    let health = config.service_health.zip(health).map(|(address, known)| Arc::new(Health::new(address, known)));
    // Its clients ask for the past first.
    let hub = Hub::start(observer.clone(), observer.journal().map(Journal::tap), hubble.is_some())?;
    let (hub, watcher) = hub;
    let (last, listing) = (Mutex::new(None), Mutex::new(()));
    let shared = Arc::new(Shared { observer, last, listing, notices, ports, hub, health });
    let begin = move || {
        if let Some(socket) = socket {
            let shared = Arc::clone(&shared);
            let answer = move |request| {
                let shared = Arc::clone(&shared);
                async move { answers::reply(request, &shared).await }
            };
            tokio::spawn(socket::serve(socket, answer));
        }
        if let Some(endpoint) = hubble {
            tokio::spawn(hubble::serve(endpoint, shared.observer.clone(), shared.hub.clone()));
        }
        if let Some(metrics) = metrics {
            tokio::spawn(probes::serve(metrics, Arc::clone(&shared)));
        }
        if let Some(health) = &shared.health {
            tokio::spawn(health::serve(Arc::clone(health), shared.observer.clone()));
        }
    };
    // What is asked of the workers at the end is waited for: nobody else may hold them when they are stopped.
    Ok(Handle::start(BLOCKING, ENDING, begin)?.with(watcher))
}
