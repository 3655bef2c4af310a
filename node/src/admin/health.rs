//! Answers HTTP health checks of load balancers, in the same way as kube-proxy: for Services with `externalTrafficPolicy: Local`
//! (`healthCheckNodePort`), whether this node has endpoints; for the node (`/healthz`, `/livez`), whether the vswitch works.
//!
//! ```text
//!   policy thread --NodeHealth--> [ listeners ] opens and closes ports --> a request --> [ answers ]
//!                                      '--> ports served, for `bulkhead status`
//! ```
//! If a port cannot be bound (kube-proxy may still use it), that is logged once, and binding is retried after [`AGAIN`]. All ports share
//! one connection limit, and a connection has one request, so a flood of requests cannot exhaust the vswitch's descriptors.
//!
//! **Invariant.** The policy thread only publishes `NodeHealth`. It never waits for this module.

mod answers;
mod listen;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::Connections;
use super::connections::Limits;
use super::http::{self, Conversation};
use crate::log;
use crate::observer::Observer;
use bulkhead_answers::services::NodeHealth;
use bulkhead_observe::admin::{RefusedPort, ServiceHealth};
pub(crate) use listen::listen;

/// Limits of concurrent connections to all health check ports. A balancer opens a short one at intervals for each Service.
const CONNECTIONS: Limits = Limits { new: 128, asking: 1, changing: 1, watching: 1, answered: 1 };

/// Limits of a connection: one request, whose answer fits the socket's buffer, within ten seconds.
const CONVERSATION: Conversation = Conversation { lasting: Duration::from_secs(10), is_single: true };

/// Interval between attempts to bind a port. Shorter than the several failed probes after which a balancer gives up on a node.
const AGAIN: Duration = Duration::from_secs(5);

/// Maximum number of Service ports served. With the connections, they stay below the default limit of 1024 descriptors per process, and
/// leave some for the vswitch's ports.
const MOST: usize = 512;

/// The data of the health checks of the node and its Services, and the results of binding their ports.
#[derive(Debug)]
pub(super) struct Health {
    /// Address and port of the node's own checks. Services' ports are at the same IP address.
    address: SocketAddr,
    known: watch::Receiver<NodeHealth>,
    served: Mutex<Served>,
    /// The last time the node was found healthy. At first, the time this process started.
    healthy_at: Mutex<SystemTime>,
}

#[derive(Clone, Debug, Default)]
struct Served {
    open: BTreeSet<u16>,
    refused: BTreeMap<u16, String>,
}

impl Health {
    /// Creates the state. [`serve`] opens the ports.
    pub(super) fn new(address: SocketAddr, known: watch::Receiver<NodeHealth>) -> Self {
        Self { address, known, served: Mutex::default(), healthy_at: Mutex::new(SystemTime::now()) }
    }

    /// Returns the served and refused ports and the node's health, for `bulkhead status`.
    pub(super) fn status(&self, observer: &Observer) -> ServiceHealth {
        let Served { open, refused } = self.served.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ServiceHealth {
            listen: self.address.to_string(),
            healthy: self.is_healthy(observer),
            leaving: self.known.borrow().is_leaving,
            ports: open.into_iter().collect(),
            refused: refused.into_iter().map(|(port, why)| RefusedPort { port, why }).collect(),
        }
    }

    /// Whether this node serves traffic that balancers send to Services.
    fn is_healthy(&self, observer: &Observer) -> bool {
        self.known.borrow().is_listed && observer.is_serving()
    }
}

/// Serves health checks until the future is dropped.
pub(super) async fn serve(health: Arc<Health>, observer: Observer) {
    let mut known = health.known.clone();
    let mut listeners = Listeners {
        health,
        observer,
        connections: Connections::new(CONNECTIONS),
        open: BTreeMap::new(),
        refused: BTreeMap::new(),
        again: None,
        has_told_more: false,
    };
    loop {
        let ports = known.borrow_and_update().checks.keys().copied().collect();
        listeners.follow(ports).await;
        let again = listeners.again;
        let retry = async {
            match again {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = known.changed() => if changed.is_err() {
                // The policy thread has ended, and the process is about to end. Keep answering until then.
                return std::future::pending().await;
            },
            () = retry => listeners.again = None,
        }
    }
}

struct Listeners {
    health: Arc<Health>,
    observer: Observer,
    connections: Connections,
    open: BTreeMap<u16, JoinHandle<()>>,
    /// The wanted ports that could not be bound, each with its error.
    refused: BTreeMap<u16, String>,
    /// When to try the refused ports again. `None` if no port was refused, or if a retry is due.
    again: Option<Instant>,
    /// Whether the log already says that there were more Services than [`MOST`].
    has_told_more: bool,
}

impl Listeners {
    /// Opens the node's port and those of these Services, and closes all others.
    async fn follow(&mut self, services: BTreeSet<u16>) {
        let own = self.health.address.port();
        let more = services.len().saturating_sub(MOST);
        if more > 0 && !self.has_told_more {
            log::warn(&format!(
                "{more} health checks of Services are not served: the limit is {MOST}\n\
                 help: reduce the number of LoadBalancer Services with externalTrafficPolicy: Local"
            ));
        }
        self.has_told_more = more > 0;
        let wanted: BTreeSet<u16> = services.into_iter().take(MOST).chain([own]).collect();
        let (kept, gone) = std::mem::take(&mut self.open).into_iter().partition(|(port, _)| wanted.contains(port));
        self.open = kept;
        for (_, task) in gone {
            task.abort();
            // The port must be free before the next change may give it to another Service.
            let _ = task.await;
        }
        self.refused.retain(|port, _| wanted.contains(port));
        let is_time = self.again.is_none();
        for port in wanted {
            if !self.open.contains_key(&port) && (is_time || !self.refused.contains_key(&port)) {
                self.open(port);
            }
        }
        match self.refused.is_empty() {
            true => self.again = None,
            false => self.again = self.again.or_else(|| Some(Instant::now() + AGAIN)),
        }
        let open = self.open.keys().copied().collect();
        *self.health.served.lock().unwrap_or_else(PoisonError::into_inner) =
            Served { open, refused: self.refused.clone() };
    }

    fn open(&mut self, port: u16) {
        let address = SocketAddr::new(self.health.address.ip(), port);
        let listener = listen(address).and_then(tokio::net::TcpListener::from_std);
        match listener {
            Ok(listener) => {
                let (health, observer) = (Arc::clone(&self.health), self.observer.clone());
                let answer = move |request: hyper::Request<_>| {
                    let answer = answers::answer(request.uri().path(), port, &health, &observer);
                    std::future::ready(answer)
                };
                let served = http::serve(listener, self.connections.clone(), CONVERSATION, answer);
                self.open.insert(port, tokio::spawn(served));
                if self.refused.remove(&port).is_some() {
                    log::info(&format!(
                        "port {port} is free again: the vswitch now answers {} there",
                        self.whose(port)
                    ));
                }
            }
            Err(error) => {
                let why = error.to_string();
                if self.refused.get(&port) != Some(&why) {
                    let (whose, again) = (self.whose(port), AGAIN.as_secs());
                    log::warn(&format!(
                        "cannot listen at {address}: {why}; the vswitch does not answer {whose} there and retries every {again} s\n\
                         help: if kube-proxy still runs on this node, stop it, or let it answer: `admin: {{service_health: none}}`"
                    ));
                }
                self.refused.insert(port, why);
            }
        }
    }

    /// Returns the name of the checks that the port serves, for log messages.
    fn whose(&self, port: u16) -> String {
        match self.health.known.borrow().checks.get(&port).filter(|_| port != self.health.address.port()) {
            Some(check) => format!("health checks of Service {}", check.service),
            None => "health checks of the node (/healthz, /livez)".to_owned(),
        }
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        self.open.values().for_each(JoinHandle::abort);
    }
}
