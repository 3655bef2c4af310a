//! Implements [`FlowCache`] for both owners of a [`FlowTable`]: the XDP flow cache and the tc data path.

use std::fmt::Debug;

use bulkhead_classifier::OriginId;

use super::flow_table::FlowTable;
use crate::io::{
    CachedFlow, CachedTraffic, FirstNumbers, FlowCache, FlowHandshake, FlowLatch, FlowSlot, FlowSteps, ForwardedFlow,
    KernelFlows,
};
use crate::{PortId, Snapshot};

/// An owner of a [`FlowTable`] whose programs forward the table's flows.
pub(super) trait HasFlows: Debug + Send + Sync {
    /// Whether the programs forward SYN-ACKs.
    const FORWARDS_ANSWERS: bool;

    fn table(&self) -> &FlowTable;

    /// Whether the programs can send out of the port in this slot.
    fn sends_out_of(&self, out: FlowSlot) -> bool;
}

impl<T: HasFlows> FlowCache for T {
    fn reaches(&self, out: FlowSlot) -> bool {
        self.sends_out_of(out)
    }

    fn add(&self, flow: &CachedFlow) {
        self.table().add(flow);
    }

    fn renew(&self, flow: &CachedFlow) -> bool {
        self.table().renew(flow)
    }

    fn confirm(&self, flow: &CachedFlow) {
        self.table().confirm(flow);
    }

    fn forwards_answers(&self) -> bool {
        T::FORWARDS_ANSWERS
    }

    fn await_handshake(&self, handshake: FlowHandshake, numbers: FirstNumbers) {
        self.table().await_handshake(handshake, numbers);
    }

    fn steps(&self, handshake: FlowHandshake) -> FlowSteps {
        self.table().steps(handshake)
    }

    fn passed(&self, latch: FlowLatch) -> u64 {
        self.table().passed(latch)
    }

    fn moves(&self, port: PortId) -> u16 {
        self.table().moves(port)
    }

    fn moved(&self, port: PortId) {
        self.table().moved(port);
    }

    fn endings(&self) -> u64 {
        self.table().endings()
    }

    fn open(&self, latch: FlowLatch, passed: Option<u64>) -> bool {
        self.table().open(latch, passed)
    }
}

impl<T: HasFlows> KernelFlows for T {
    fn expect(&self, snapshot: &Snapshot) {
        self.table().expect(snapshot);
    }

    fn ending(&self, snapshot: &Snapshot) -> (Vec<ForwardedFlow>, usize) {
        self.table().ending(snapshot)
    }

    fn enter(&self, snapshot: &Snapshot) {
        self.table().enter(snapshot);
    }

    fn leave(&self, port: PortId) {
        self.table().leave(port);
    }

    fn traffic(&self, slot: FlowSlot) -> CachedTraffic {
        self.table().traffic_of(slot)
    }

    fn allowed_by(&self, origin: OriginId) -> u64 {
        self.table().allowed_by(origin)
    }

    fn added(&self) -> u64 {
        self.table().added()
    }

    fn failed(&self) -> u64 {
        self.table().failed()
    }
}
