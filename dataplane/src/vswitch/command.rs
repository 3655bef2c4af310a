//! Commands from the control thread to the workers. Each worker takes its commands between two rounds.

use std::sync::Arc;

use crossbeam_channel::Sender;

use super::WorkerCounters;
use super::stream::StreamWriter;
use crate::io::{FlowChange, FlowSlot, ForwardedFlow, Port};
use crate::{AuditTap, EndedSessions, PortId, SessionPage, SessionSelector, Snapshot};

/// A command from the control thread to a worker.
pub(crate) enum Command {
    /// Adds a queue to this worker: the port's id, the queue's number from 0, and the queue.
    Add(PortId, u32, Box<dyn Port>),
    /// Tells this worker that another one owns the port's queue: the port's id, that worker, and the port's slot in the flow cache.
    Reach(PortId, usize, Option<FlowSlot>),
    /// Adds a queue of the trunk to this worker.
    AddTrunk(Box<dyn Port>),
    /// Connects the port over the trunk, with the slot as the tag of its packets.
    Attach(PortId, FlowSlot),
    /// Announces the conventional gateways on the port, in the next round.
    Announce(PortId),
    /// Closes the port. Its sessions stay.
    Remove(PortId),
    /// Ends the sessions of a port whose pod is gone.
    End(PortId),
    /// Sends a message before the next round, which loads the snapshot again.
    Confirm(Sender<()>),
    /// Sends the worker's counters to the control thread.
    Report(Sender<WorkerCounters>),
    /// Sends one page of sessions, which begins at this slot of the session table.
    Sessions(u32, Sender<SessionPage>),
    /// Ends the sessions that match the selector in one page, which begins at this slot. Sends the ended sessions.
    EndSessions(u32, SessionSelector, Sender<EndedSessions>),
    /// Attaches a stream writer, or detaches the current one with `None`.
    Stream(Option<Box<StreamWriter>>),
    /// Confirms the flows in the kernel that the next snapshot allows. Sends a message when that is done.
    JudgeAgain(Arc<Snapshot>, Arc<[ForwardedFlow]>, Sender<()>),
    /// Brings sessions up to date with these changes of their flows.
    Learn(Arc<[FlowChange]>),
    /// Reports audited connections to this tap.
    Audit(AuditTap),
    /// Closes all ports and sends a message when that is done.
    Halt(Sender<()>),
    /// Ends the worker.
    Stop,
}
