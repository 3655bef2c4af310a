//! Ends the kernel's flows that a new snapshot, new Services or a closed port may deny, and lets workers confirm the others.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bulkhead_dataplane::io::ForwardedFlow;
use bulkhead_dataplane::vswitch::Vswitch;
use bulkhead_dataplane::{PortId, Snapshot};

use super::Composer;

/// The longest time for which a change waits until the workers have judged the kernel's flows again: half of the 100 ms within which it takes
/// effect. A worker judges 20,000 flows meanwhile.
const JUDGING: Duration = Duration::from_millis(50);

impl Composer {
    /// Ends flows of the previous process, so that their next packets are judged. Call this when the workers have all ports. Until then the
    /// flows continue as that process allowed them.
    pub(crate) fn enter_flows(&self) {
        let mut inner = self.lock();
        if std::mem::take(&mut inner.keeps_flows) {
            let current = self.publisher.current();
            let idle = self.change_flows(&current);
            self.judge_flows(&current, &idle);
        }
    }

    /// Lets these workers judge the kernel's flows again when a change may end them.
    pub(crate) fn judge_flows_by(&self, vswitch: &Arc<Vswitch>) {
        // Has an effect only once.
        let _ = self.vswitch.set(Arc::downgrade(vswitch));
    }

    /// Ends the kernel's flows that the next snapshot may deny, after the workers have confirmed those in use that it allows. Otherwise all
    /// packets of bulk connections would go to the workers for a while at each change. Returns the flows that have ended without a
    /// judgement, because they are not in use.
    pub(super) fn change_flows(&self, next: &Arc<Snapshot>) -> Vec<ForwardedFlow> {
        let Some(cache) = &self.flow_cache else { return Vec::new() };
        cache.expect(next);
        let (mut used, in_use) = cache.ending(next);
        let idle = used.split_off(in_use);
        self.judge_flows(next, &used);
        cache.enter(next);
        idle
    }

    /// Lets the workers confirm those of the flows that the snapshot allows.
    pub(super) fn judge_flows(&self, snapshot: &Arc<Snapshot>, flows: &[ForwardedFlow]) {
        if let Some(vswitch) = self.vswitch.get().and_then(Weak::upgrade) {
            vswitch.judge_again(snapshot, flows, Instant::now() + JUDGING);
        }
    }

    /// Ends all flows from and to a port that is being closed. Takes the lock, as a concurrent publication could keep them.
    pub(crate) fn end_flows(&self, id: PortId) {
        let _inner = self.lock();
        if let Some(cache) = &self.flow_cache {
            cache.leave(id);
        }
    }

    /// Ends the kernel's flows of these ports, which stay open. Their next packets go to a worker, which looks up their sessions.
    pub(crate) fn end_flows_of_sessions(&self, ports: impl IntoIterator<Item = PortId>) {
        let _inner = self.lock();
        if let Some(cache) = &self.flow_cache {
            ports.into_iter().for_each(|port| cache.moved(port));
        }
    }

    /// Ends the kernel's flows of the ports that lead to these stale addresses, as UDP flows would continue. Must follow the publication,
    /// so that workers add only flows of the new Services.
    pub(super) fn end_stale_flows(&self, stale: &BTreeSet<IpAddr>) {
        let Some(cache) = &self.flow_cache else { return };
        let snapshot = self.publisher.current();
        let port = |&address: &IpAddr| snapshot.owner(address).or_else(|| snapshot.routes().lookup(address));
        let ports: BTreeSet<PortId> = stale.iter().filter_map(port).collect();
        ports.into_iter().for_each(|port| cache.moved(port));
    }
}
