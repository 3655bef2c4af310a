//! Streams verdicts and traced packets: a thread reads the workers' rings and passes events to clients of the admin socket and of Hubble,
//! and to the journal.
//!
//! ```text
//!   workers ==rings==> [ watcher: fold repeats, name the ends, select ] --bounded queue--> a task of the admin thread --> client
//!                           |  |                                                `--full, or over the client's rate: counted
//!                           |  `--verdicts, within a budget--> journal thread
//!                           `--addresses that it does not know--> policy thread
//! ```
//!
//! [`Hub`] is the interface for the rest of the process. The thread is [`watcher`].
//!
//! **Invariant.** No client delays the thread, and the thread delays no worker. What a client misses is counted, and the count is sent to
//! it: packets and sessions sent plus those lost are complete.

mod client;
mod counts;
mod ends;
mod flow;
mod json;
mod rate;
mod reasons;
mod repeats;
mod select;
mod walk;
mod wanted;
mod watcher;
mod words;

use std::io;
use std::thread::JoinHandle;

use crossbeam_channel::Sender;
use tokio::sync::{mpsc, oneshot};

use super::hubble::{Observe, Observed};
use super::journal::Tap;
use super::observer::Observer;
use bulkhead_observe::admin::{Failure, Monitor, Trace, Watching};
use client::Outlet;
pub(super) use counts::StreamCounts;
pub(super) use repeats::Event;
pub(super) use select::Selector;
use watcher::Watcher;

/// Lines queued per client: a tenth of a second at the default rate, and less than a megabyte.
const WAITING: usize = 1024;

/// Number of the newest verdicts that the stream thread keeps for `--last` and Hubble's clients: a few megabytes of memory.
pub(super) const REMEMBERED: usize = 4096;

/// A client's request: `monitor`, `trace`, or Hubble's `GetFlows`.
pub(super) enum Watch {
    Monitor(Monitor),
    Trace(Trace),
    /// A `GetFlows` request of a client of Hubble's API.
    Observe(Box<Observe>),
}

/// A new client's request, with the channels for its events and its first answer.
struct Request {
    watch: Watch,
    outlet: Outlet,
    opened: oneshot::Sender<Result<Watching, Failure>>,
}

/// A handle to the stream thread, which ends when the last clone is dropped.
#[derive(Clone)]
pub(super) struct Hub {
    requests: Sender<Request>,
}

impl Hub {
    /// Starts the thread, which passes verdicts to `journal`, if given. If `keeps` is true, it collects past verdicts even without clients.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(observer: Observer, journal: Option<Tap>, keeps: bool) -> io::Result<(Self, JoinHandle<()>)> {
        let (requests, asked) = crossbeam_channel::unbounded();
        let watcher = Watcher::new(observer, journal, keeps);
        let thread = std::thread::Builder::new().name("stream".into()).spawn(move || watcher.run(&asked))?;
        Ok((Self { requests }, thread))
    }

    /// Starts to watch. Returns the first answer for the client, and the channel of the lines after it.
    ///
    /// # Errors
    /// If the request is invalid or cannot be served.
    pub(super) async fn watch(&self, watch: Watch) -> Result<(Watching, mpsc::Receiver<String>), Failure> {
        // Past verdicts are enqueued at once.
        let past = if let Watch::Monitor(asked) = &watch { asked.last.min(REMEMBERED) } else { 0 };
        let (lines, received) = mpsc::channel(WAITING + past);
        Ok((self.ask(watch, Outlet::Lines(lines)).await?, received))
    }

    /// Like [`Self::watch`], for a client of Hubble.
    ///
    /// # Errors
    /// If the thread has died.
    pub(super) async fn observe(&self, asked: Observe) -> Result<mpsc::Receiver<Observed>, Failure> {
        let (flows, received) = mpsc::channel(WAITING + REMEMBERED);
        self.ask(Watch::Observe(Box::new(asked)), Outlet::Flows(flows)).await?;
        Ok(received)
    }

    async fn ask(&self, watch: Watch, outlet: Outlet) -> Result<Watching, Failure> {
        let (opened, answer) = oneshot::channel();
        // An error means that the thread is dead. Then `answer` fails.
        let _ = self.requests.send(Request { watch, outlet, opened });
        let dead = || Failure::new("internal", "the stream thread has died", "report it");
        answer.await.unwrap_or_else(|_| Err(dead()))
    }
}
