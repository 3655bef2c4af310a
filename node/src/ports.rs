//! Owns the list of ports: configured ports, and ports that a CNI plugin adds at the admin socket.
//!
//! ```text
//!   main thread --Configured--.                .--Ports------> interfaces thread --Interfaces--.
//!   admin socket --Asked------+--> [ thread ] -+--Attach-----> policy thread ------Policy------+--> [ waiting requests ] --> answers
//!                                  registry    `--file
//! ```
//! One thread ([`thread`]) owns the [`registry`] and the file ([`mod@file`]) that preserves it over a restart. It sends each change with
//! its number to the interfaces thread and the policy thread, and both report when they are done. A request to add a port waits in the
//! thread's list until then, or until its time is up ([`serving`]). Any number of requests can wait; none delays another request or a
//! thread.
//!
//! The alternative was the main thread. It prints summaries and reads files, which would delay pods.
//!
//! **Invariant.** The file is as new as what the other threads know, or newer. A request is answered only when the first packet of the
//! container will be judged by the policies that select its pod.

mod added;
mod file;
mod registry;
mod serving;
pub(super) mod thread;

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_control::attachments::{Attachment, Standing};
use bulkhead_control::object::PodName;
use serde_json::Value;

use super::config::{PortEntry, RouteEntry};
use super::interfaces::PortStatus;
use bulkhead_observe::admin::{AddPort, Failure, PortKey};
pub(super) use file::PortFile;
pub(super) use registry::Registry;

/// The channel for the answer to a client of the admin socket.
pub(super) type Reply = tokio::sync::oneshot::Sender<Result<Value, Failure>>;

/// A request at the admin socket.
#[derive(Debug)]
pub(super) enum Question {
    /// Add a port for a container's interface.
    Add(AddPort),
    Remove(PortKey),
    /// Report whether the port with this key is served.
    Check(PortKey),
    /// Remove all ports added at run time except those with these keys. With a network's name, remove only ports of that network.
    Retain(Vec<PortKey>, Option<String>),
}

/// A message to the ports thread.
#[derive(Debug)]
pub(super) enum Event {
    /// An admin socket client's request, and the channel for its answer.
    Asked(Question, Reply),
    /// The configuration has changed; these are all its ports and routes.
    Configured(Vec<PortEntry>, Vec<RouteEntry>),
    /// The status of each port after the change with this number. The workers have the ports that it reports as open.
    Interfaces(u64, Arc<Vec<PortStatus>>),
    /// Whether policy knows each pod that was attached as of the change with this number. The policy that follows from it is in force.
    Policy(u64, BTreeMap<PodName, Standing>),
    /// Ends the ports thread.
    Stop,
}

/// All attached pods after the change with the number `change`, for the policy thread.
#[derive(Debug)]
pub(super) struct Attach {
    pub(super) change: u64,
    pub(super) pods: BTreeMap<PodName, Attachment>,
}
