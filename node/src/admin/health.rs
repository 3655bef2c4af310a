//! What load balancers ask of a node over HTTP: whether it has endpoints of a Service whose external policy is Local
//! (`healthCheckNodePort`), and whether its proxy works and the node stays (`/healthz`, `/livez`). As kube-proxy answers them.
//!
//! ```text
//!   policy thread --NodeHealth--> [ listeners ] opens and closes ports --> a request --> [ answers ]
//!                                      '--> what is served, for `bulkhead status`
//! ```
//! A port that cannot be had, since kube-proxy still runs for one, is said once, and tried again as often as [`AGAIN`] says. All ports
//! share their connections, of which each has one request: a Service that is asked without end takes no descriptors from the vswitch.
//!
//! **Invariant.** The policy thread only leaves word here. It waits for nobody.

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

/// Connections of all ports at a time. A balancer has one now and then for each Service.
const CONNECTIONS: Limits = Limits { new: 128, asking: 1, changing: 1, watching: 1, answered: 1 };

/// One request, and an answer that fits the socket's buffer.
const CONVERSATION: Conversation = Conversation { lasting: Duration::from_secs(10), is_single: true };

/// How long after a port could not be had it is tried again: sooner than a balancer gives a node up, which takes some failed probes.
const AGAIN: Duration = Duration::from_secs(5);

/// Ports of Services that are served. With the connections they stay below the 1024 descriptors that a process has where nobody says
/// otherwise, of which a port of the vswitch needs some.
const MOST: usize = 512;

/// See the module.
#[derive(Debug)]
pub(super) struct Health {
    /// Where the proxy's own port is; those of Services are at the same address.
    address: SocketAddr,
    known: watch::Receiver<NodeHealth>,
    served: Mutex<Served>,
    /// When it was found healthy last, before this process at the earliest.
    healthy_at: Mutex<SystemTime>,
}

#[derive(Clone, Debug, Default)]
struct Served {
    open: BTreeSet<u16>,
    refused: BTreeMap<u16, String>,
}

impl Health {
    /// Nothing is served yet.
    pub(super) fn new(address: SocketAddr, known: watch::Receiver<NodeHealth>) -> Self {
        Self { address, known, served: Mutex::default(), healthy_at: Mutex::new(SystemTime::now()) }
    }

    /// What is served now.
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

    /// Whether what balancers send to Services here is served.
    fn is_healthy(&self, observer: &Observer) -> bool {
        self.known.borrow().is_listed && observer.is_serving()
    }
}

/// Serves until it is dropped.
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
                // The policy thread has ended, and the process ends with it. Until then the answers stay.
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
    /// Why each other one is not.
    refused: BTreeMap<u16, String>,
    /// When those are tried again.
    again: Option<Instant>,
    /// Whether it was said that there are more than are served.
    has_told_more: bool,
}

impl Listeners {
    /// Serves the ports of these Services, the proxy's own, and no others.
    async fn follow(&mut self, services: BTreeSet<u16>) {
        let own = self.health.address.port();
        let more = services.len().saturating_sub(MOST);
        if more > 0 && !self.has_told_more {
            log::warn(&format!(
                "{more} health checks of Services are not served: the limit is {MOST}\nhelp: reduce the number of Services with a healthCheckNodePort"
            ));
        }
        self.has_told_more = more > 0;
        let wanted: BTreeSet<u16> = services.into_iter().take(MOST).chain([own]).collect();
        let (kept, gone) = std::mem::take(&mut self.open).into_iter().partition(|(port, _)| wanted.contains(port));
        self.open = kept;
        for (_, task) in gone {
            task.abort();
            // Afterwards the port is free: it may be another Service's with the next change.
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

    /// Whom the port is for.
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
