//! What is watched: the thread that reads the workers' stream and tells it to whoever asks at the admin socket.
//!
//! ```text
//!   workers ==rings==> [ watcher: fold repeats, name the ends, select ] --bounded queue--> a task of the admin thread --> client
//!                           |  |                                                `--full, or over the client's rate: counted
//!                           |  `--verdicts, within a budget--> journal thread
//!                           `--addresses that it does not know--> policy thread
//! ```
//!
//! Here is what the rest of the process sees: [`Hub`] takes questions to the thread, which is [`watcher`].
//!
//! **Invariant.** No client keeps the thread waiting, and the thread keeps no worker waiting. What a client does not get is told to it as a
//! number: packets and sessions seen and lost are together what has happened.

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

/// Lines that wait for a client: at the usual rate a tenth of a second, and less than a megabyte.
const WAITING: usize = 1024;

/// Verdicts that are remembered for `--last` and for Hubble's clients: some megabytes.
pub(super) const REMEMBERED: usize = 4096;

/// What somebody wants to watch.
pub(super) enum Watch {
    Monitor(Monitor),
    Trace(Trace),
    /// A client of Hubble.
    Observe(Box<Observe>),
}

/// Somebody who watches.
struct Request {
    watch: Watch,
    outlet: Outlet,
    opened: oneshot::Sender<Result<Watching, Failure>>,
}

/// The thread, for those who ask it. It ends when nobody has this any more.
#[derive(Clone)]
pub(super) struct Hub {
    requests: Sender<Request>,
}

impl Hub {
    /// Starts the thread, which tells the journal where there is one. It watches also while no client does if it `keeps` the past for
    /// those that come.
    ///
    /// # Errors
    /// When the system refuses one.
    pub(super) fn start(observer: Observer, journal: Option<Tap>, keeps: bool) -> io::Result<(Self, JoinHandle<()>)> {
        let (requests, asked) = crossbeam_channel::unbounded();
        let watcher = Watcher::new(observer, journal, keeps);
        let thread = std::thread::Builder::new().name("stream".into()).spawn(move || watcher.run(&asked))?;
        Ok((Self { requests }, thread))
    }

    /// Begins to watch. Returns what comes before the lines, and where they come.
    ///
    /// # Errors
    /// What is wrong with the question.
    pub(super) async fn watch(&self, watch: Watch) -> Result<(Watching, mpsc::Receiver<String>), Failure> {
        // The past comes all at once.
        let past = if let Watch::Monitor(asked) = &watch { asked.last.min(REMEMBERED) } else { 0 };
        let (lines, received) = mpsc::channel(WAITING + past);
        Ok((self.ask(watch, Outlet::Lines(lines)).await?, received))
    }

    /// The same for a client of Hubble.
    ///
    /// # Errors
    /// When the thread has died.
    pub(super) async fn observe(&self, asked: Observe) -> Result<mpsc::Receiver<Observed>, Failure> {
        let (flows, received) = mpsc::channel(WAITING + REMEMBERED);
        self.ask(Watch::Observe(Box::new(asked)), Outlet::Flows(flows)).await?;
        Ok(received)
    }

    async fn ask(&self, watch: Watch, outlet: Outlet) -> Result<Watching, Failure> {
        let (opened, answer) = oneshot::channel();
        // An error means that the thread is dead; then nobody answers.
        let _ = self.requests.send(Request { watch, outlet, opened });
        let dead = || Failure::new("internal", "the thread that watches has died", "report it");
        answer.await.unwrap_or_else(|_| Err(dead()))
    }
}
