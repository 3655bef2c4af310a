//! The epochs of the ports: which flows in the kernel are valid.
//!
//! ```text
//!   cell of a port:   snapshot's epoch | moves          a flow has a value of the same form for each of its two ports
//!   programs:         cell <= flow's value: valid
//! ```
//!
//! A snapshot that changes a port, and a move of a neighbour, raise the port's cell above the values of all earlier flows. A flow that a
//! worker has confirmed for the next snapshot has that snapshot's epoch, so it is valid before and after the change.

use std::sync::atomic::{AtomicU64, Ordering};

use super::flow_encoding::MOVES;
use super::flow_layout::{FlowValue, cells, part, value};
use super::flow_table::FlowTable;
use crate::{PortId, Snapshot};

/// The epoch of a closed port, which no flow has.
const CLOSED: u64 = u64::MAX;

impl FlowTable {
    /// Ends all flows of all ports.
    pub(super) fn leave_all(&self) {
        self.epochs().for_each(|epoch| epoch.store(CLOSED, Ordering::SeqCst));
    }

    fn epochs(&self) -> impl Iterator<Item = &AtomicU64> {
        (0..cells::EPOCH_COUNT).map(|at| self.cell(cells::EPOCHS + at * 8))
    }

    /// Returns a generation higher than that of every flow in the maps.
    pub(super) fn next_generation(&self) -> u64 {
        let known = self.epochs().map(|epoch| epoch.load(Ordering::SeqCst)).filter(|&epoch| epoch != CLOSED);
        known.map(|epoch| epoch >> MOVES).max().unwrap_or(0) + 1
    }

    /// Prepares for flows that are confirmed for a snapshot before its publication: [`moved`](Self::moved) ends them too.
    pub(super) fn expect(&self, snapshot: &Snapshot) {
        for id in snapshot.ids() {
            self.expected[id.index()].store(snapshot.epoch(id), Ordering::SeqCst);
        }
    }

    /// Ends the flows of older snapshots, of all ports whose epochs the snapshot changes. Must be called before publishing the snapshot, so
    /// that flows added by the old snapshot stay unused. A confirmed flow has the snapshot's epoch and is valid before and after.
    pub(super) fn enter(&self, snapshot: &Snapshot) {
        self.expect(snapshot);
        for id in snapshot.ids() {
            let next = |cell: u64| next_epoch(cell, snapshot.epoch(id));
            let _ = self.epoch_cell(id).fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        }
        self.endings.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends all flows from and to a port until [`enter`](Self::enter) sees another epoch of it.
    pub(super) fn leave(&self, port: PortId) {
        self.epoch_cell(port).store(CLOSED, Ordering::SeqCst);
    }

    /// Calls of [`moved`](Self::moved) for a port since it was last open, modulo 65,536. Must be read before the snapshot and the neighbours.
    pub(super) fn moves(&self, port: PortId) -> u16 {
        (self.epoch_cell(port).load(Ordering::SeqCst) & ((1 << MOVES) - 1)) as u16
    }

    /// Ends all flows from and to a port, and counts that as a call for [`moves`](Self::moves).
    pub(super) fn moved(&self, port: PortId) {
        let expected = self.expected[port.index()].load(Ordering::SeqCst);
        // Flows that are confirmed for the next snapshot end too. If the count overflows, the cell has a later snapshot's epoch, which
        // no flow has yet.
        let next = |epoch: u64| (epoch != CLOSED).then(|| next_epoch(epoch, expected).unwrap_or(epoch) + 1);
        let _ = self.epoch_cell(port).fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        // After the cell, so that a reader of the new number sees the new cell.
        self.endings.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns a counter that increases whenever [`moves`](Self::moves) of any port may have changed.
    pub(super) fn endings(&self) -> u64 {
        self.endings.load(Ordering::SeqCst)
    }

    /// Whether the snapshot changes the epoch of a port with flows.
    pub(super) fn is_changing(&self, snapshot: &Snapshot) -> bool {
        snapshot.ids().any(|id| {
            let cell = self.epoch_cell(id).load(Ordering::SeqCst);
            cell != CLOSED && next_epoch(cell, snapshot.epoch(id)).is_some()
        })
    }

    /// Whether the epochs of both ports of a flow allow it, and whether the snapshot changes one of them.
    pub(super) fn is_ending(&self, flow: &FlowValue, snapshot: &Snapshot) -> bool {
        let ends = [(value::FROM, value::FROM_EPOCH), (value::TO, value::TO_EPOCH)].map(|(port, epoch)| {
            let port = PortId(u16::from_ne_bytes(part(flow, port)));
            let (cell, own) = (self.epoch_cell(port).load(Ordering::SeqCst), u64::from_ne_bytes(part(flow, epoch)));
            let next = snapshot.port(port).map_or(u64::MAX, |_| snapshot.epoch(port));
            (cell <= own, own >> MOVES < next)
        });
        ends.iter().all(|(is_valid, _)| *is_valid) && ends.iter().any(|(_, is_changed)| *is_changed)
    }

    fn epoch_cell(&self, port: PortId) -> &AtomicU64 {
        self.cell(cells::EPOCHS + i32::from(port.0) * 8)
    }
}

/// Returns the value of an epoch cell for a later snapshot: the count of moves stays, so that flows which were judged before a move stay
/// invalid. `None` if the cell has the snapshot's epoch.
const fn next_epoch(cell: u64, epoch: u64) -> Option<u64> {
    match cell {
        CLOSED => Some(epoch << MOVES),
        _ if cell >> MOVES < epoch => Some(epoch << MOVES | cell & ((1 << MOVES) - 1)),
        _ => None,
    }
}
