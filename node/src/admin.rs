//! Serves the admin socket, metrics, probes and load balancers' health checks from one thread.
//!
//! ```text
//!   bulkhead status .. --unix socket, JSON lines--> [ socket ]--.
//!   Prometheus, kubelet ------------HTTP---------> [ probes ] --+--> Observation (100 ms old at most) --queries--> workers,
//!   load balancers -----------------HTTP---------> [ health ]                                          interfaces thread
//!   Hubble's clients ---------------gRPC---------> [ super::hubble ] --> stream thread
//! ```
//!
//! Each connection is a task of this thread. Calls that block run on at most [`BLOCKING`] further threads. Requests within 100 ms share
//! one observation, so requests cost the workers at most ten answers a second. Connections, request length and write time are limited, so
//! a slow client delays no other. The ports thread answers requests about added ports; here each is a waiting task.
//!
//! A thread per connection lost: each slow reader would hold a thread.
//!
//! **Invariant.** No forwarding or policy thread waits for this thread.

mod answers;
pub(super) mod connections;
pub(super) mod explain;
pub(super) mod exposition;
pub(super) mod health;
pub(super) mod http;
pub(super) mod metrics;
mod names;
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

/// Limits of concurrent connections to the admin socket. Each pod that starts holds one until its port works, and all of a node's few
/// hundred pods may start at once.
const CONNECTIONS: Limits = Limits { new: 256, asking: 32, changing: 512, watching: 16, answered: 32 };

/// Maximum age of an observation that answers another request.
const FRESH: Duration = Duration::from_millis(100);

/// Maximum number of threads for blocking calls: observations, session lists, and reading TLS files.
const BLOCKING: usize = 3;

/// At shutdown, how long to wait for an observation in progress. Workers have two seconds to answer.
pub(super) const ENDING: Duration = Duration::from_secs(5);

/// State shared by all connections.
struct Shared {
    observer: Observer,
    last: Mutex<Option<(Instant, Arc<Observation>)>>,
    /// Held while the workers list or end sessions, or answer a policy question.
    listing: Mutex<()>,
    /// Channel to the main thread.
    notices: Sender<Notice>,
    /// Channel to the ports thread.
    ports: Sender<Event>,
    /// Subscribes clients to sessions and packets.
    hub: Hub,
    /// Health checks for load balancers. `None` if they or Services are off.
    health: Option<Arc<Health>>,
}

impl Shared {
    /// Returns the vswitch's state, at most [`FRESH`] old.
    async fn observe(&self) -> Arc<Observation> {
        // Held while observing, so that concurrent requests wait for the same observation.
        let mut last = self.last.lock().await;
        if let Some((at, observation)) = &*last
            && at.elapsed() < FRESH
        {
            return Arc::clone(observation);
        }
        let observer = self.observer.clone();
        let observed = tokio::task::spawn_blocking(move || observer.observe()).await;
        // `observe` does not panic. If it did, only this client's task would end.
        let observation = Arc::new(observed.expect("to observe does not panic"));
        *last = Some((Instant::now(), Arc::clone(&observation)));
        observation
    }

    /// Sends the question to the ports thread and waits for the answer. The question defines how long that may take.
    async fn ask_ports(&self, question: Question) -> Result<Value, Failure> {
        let (reply, answer) = oneshot::channel();
        // An error means that the vswitch is shutting down.
        let _ = self.ports.send(Event::Asked(question, reply));
        let ended = || Failure::new("not_ready", "the vswitch is being stopped", "retry when it has started again");
        answer.await.unwrap_or_else(|_| Err(ended()))
    }
}

/// Starts the thread. `hubble` is the endpoint of Hubble's API. `health` is the source for health checks, `None` if Services are off.
///
/// # Errors
/// If the metrics address cannot be bound, or a thread cannot be started. A failure to bind the admin socket is only logged, as forwarding
/// does not need the socket.
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
    // Hubble clients can request past flows, so the hub keeps them while Hubble is on.
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
    // Shutdown waits for pending worker queries, because the caller must hold the last reference to the workers.
    Ok(Handle::start(BLOCKING, ENDING, begin)?.with(watcher))
}
