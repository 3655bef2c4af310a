//! Which ports there are: those of the configuration and those that a CNI plugin has added at the admin socket.
//!
//! ```text
//!   main thread --Configured--.                .--Ports------> interfaces thread --Interfaces--.
//!   admin socket --Asked------+--> [ thread ] -+--Attach-----> policy thread ------Policy------+--> [ waiting requests ] --> answers
//!                                  registry    `--file
//! ```
//! One thread ([`thread`]) owns the [`registry`] and the file ([`mod@file`]) that keeps it over a restart. It tells the two threads that make
//! a port work what there is, with the number of the change, and they tell it what has become of that. A request to add a port waits in
//! the thread's list until both have done their part, or its time is up ([`serving`]): so any number of requests wait, and none of them
//! holds back another one or a thread.
//!
//! What lost: to have the main thread do it. It prints summaries and reads files, and a pod would have to wait for that.
//!
//! **Invariant.** What is in the file is what was told to the other threads, or newer. A request is answered only when the first packet
//! of the container will be judged by the policies that select its pod.

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

/// Where an answer goes.
pub(super) type Reply = tokio::sync::oneshot::Sender<Result<Value, Failure>>;

/// What is asked at the admin socket.
#[derive(Debug)]
pub(super) enum Question {
    /// Serve a container's interface.
    Add(AddPort),
    /// Serve it no more.
    Remove(PortKey),
    /// How it is.
    Check(PortKey),
    /// Remove all but these, of one network or whatever their network.
    Retain(Vec<PortKey>, Option<String>),
}

/// What the thread is told.
#[derive(Debug)]
pub(super) enum Event {
    /// Somebody asks.
    Asked(Question, Reply),
    /// The configuration has changed.
    Configured(Vec<PortEntry>, Vec<RouteEntry>),
    /// The ports of this change are so, and the workers know it.
    Interfaces(u64, Arc<Vec<PortStatus>>),
    /// The attached pods of this change are so, and what follows from it is in force.
    Policy(u64, BTreeMap<PodName, Standing>),
    /// End.
    Stop,
}

/// The pods that are attached as of this change: what the policy thread is told.
#[derive(Debug)]
pub(super) struct Attach {
    pub(super) change: u64,
    pub(super) pods: BTreeMap<PodName, Attachment>,
}
