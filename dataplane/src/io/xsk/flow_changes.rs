//! Walks over all flows in the kernel: those that have begun or ended without a worker, and those that a new snapshot ends.

use super::flow_encoding::decode;
use super::flow_layout::{FlowKey, FlowValue, action, key, part, place, value};
use super::flow_table::{FlowTable, coarse_time};
use crate::io::{FlowChange, FlowChangeKind, FlowHandshake, FlowSlot, FlowSteps, ForwardedFlow};
use crate::{Flow, PortId, Snapshot};

/// Removals between two calls for a pause, which take a millisecond.
const PER_PAUSE: usize = 1 << 10;

/// Time after the end of its lease during which a flow still counts as in use: 1 s, in nanoseconds. A connection that pauses for longer does
/// not notice that its next packet goes to a worker.
const RECENT: u64 = 1_000_000_000;

impl FlowTable {
    /// Returns the connections whose handshakes have ended in the kernel without the worker's knowledge. Call it before workers reuse the
    /// handshakes' numbers.
    pub(super) fn begun(&self) -> Vec<FlowChange> {
        const AWAITED: u16 = action::HANDSHAKE | action::INITIATOR;
        let mut begun = Vec::new();
        self.for_each_flow(|key, flow| {
            let handshake = FlowHandshake(u16::from_ne_bytes(part(flow, value::LATCH)));
            if actions(flow) & (AWAITED | action::BEGUN) == AWAITED
                && let FlowSteps { answered: Some(next), has_ended: true, .. } = self.steps(handshake)
            {
                begun.extend(decode(key).map(|flow| FlowChange { flow, kind: FlowChangeKind::Established(next) }));
            }
        });
        begun
    }

    /// Removes the flows that have ended: idle ones, and those of TCP connections of which the programs have recorded a FIN or reset. Returns
    /// the latter if they were in use at the coarse time `since` or later. Calls `pause` now and then.
    pub(super) fn take_ended(&self, since: u64, mut pause: impl FnMut()) -> Vec<FlowChange> {
        let now = coarse_time();
        let (mut ended, mut keys) = (Vec::new(), Vec::new());
        self.for_each_flow(|key, flow| {
            let [expires, idle] = [value::EXPIRES, value::IDLE].map(|at| u64::from_ne_bytes(part(flow, at)));
            let change = change(key, flow);
            if change.is_some() || now >= expires.saturating_add(idle) {
                keys.push(*key);
            }
            ended.extend(change.filter(|_| expires >= since).map(|(flow, kind)| FlowChange { flow, kind }));
        });
        for keys in keys.chunks(PER_PAUSE) {
            for key in keys {
                // Removing a key of this map does not fail.
                let _ = self.flows.remove(key);
            }
            pause();
        }
        ended
    }

    /// Returns the valid flows that [`enter`](Self::enter) would end, first those in use, and the number of these.
    pub(super) fn ending(&self, snapshot: &Snapshot) -> (Vec<ForwardedFlow>, usize) {
        let now = coarse_time();
        let [mut used, mut idle] = [Vec::new(), Vec::new()];
        if !self.is_changing(snapshot) {
            return (used, 0);
        }
        self.for_each_flow(|key, flow| {
            let [expires, timeout] = [value::EXPIRES, value::IDLE].map(|at| u64::from_ne_bytes(part(flow, at)));
            if now >= expires.saturating_add(timeout) || !self.is_ending(flow, snapshot) {
                return;
            }
            let slot = |bytes: [u8; 4]| u16::try_from(u32::from_ne_bytes(bytes)).map(FlowSlot).ok();
            let from = key[place(key::SLOT.into())..].first_chunk().copied().and_then(slot);
            let forwarded = from.zip(slot(part(flow, value::OUT))).zip(decode(key)).map(|((from, to), tuple)| {
                let port = PortId(u16::from_ne_bytes(part(flow, value::FROM)));
                ForwardedFlow { slots: [from, to], from: port, flow: tuple, received: part(flow, value::RECEIVED) }
            });
            if now < expires.saturating_add(RECENT) { used.extend(forwarded) } else { idle.extend(forwarded) }
        });
        let count = used.len();
        used.append(&mut idle);
        (used, count)
    }

    fn for_each_flow(&self, mut each: impl FnMut(&FlowKey, &FlowValue)) {
        // If the kernel refuses, nothing is known, as if the programs had recorded nothing.
        let _ = self.flows.for_each(|key, value| {
            if let (Ok(key), Ok(value)) = (key.try_into(), value.try_into()) {
                each(key, value);
            }
        });
    }
}

/// Returns what the flow's source has sent to end its TCP connection. `None` if it has sent nothing.
fn change(key: &FlowKey, flow: &FlowValue) -> Option<(Flow, FlowChangeKind)> {
    let kind = match actions(flow) {
        actions if actions & action::RESET != 0 => FlowChangeKind::Reset,
        actions if actions & action::FIN != 0 => FlowChangeKind::Closed,
        _ => return None,
    };
    Some((decode(key)?, kind))
}

fn actions(flow: &FlowValue) -> u16 {
    u16::from_ne_bytes(part(flow, value::ACTIONS))
}
