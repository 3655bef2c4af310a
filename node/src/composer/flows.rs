//! Ends the kernel's flows that a new snapshot, new Services or a closed port may deny, and lets workers confirm the others.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bulkhead_dataplane::io::ForwardedFlow;
use bulkhead_dataplane::vswitch::Vswitch;
use bulkhead_dataplane::{PortId, Snapshot};

use super::{Composer, Inner};
use crate::clock;

/// The longest time for which a change waits until the workers have judged the kernel's flows again: half of the 100 ms within which it takes
/// effect. A worker judges 20,000 flows meanwhile.
const JUDGING: Duration = Duration::from_millis(50);

impl Composer {
    /// Ends the flows that the previous process left in the kernel, except those in use that a worker confirms by the policy in force. Call
    /// this once the workers have all ports: until then, these flows continue as that process allowed them. Does nothing if no process left
    /// flows, and from the second call on.
    pub(crate) fn enter_flows(&self) {
        let mut inner = self.lock();
        if std::mem::take(&mut inner.keeps_flows) {
            let current = self.publisher.current();
            let idle = self.change_flows(&current);
            self.judge_flows(&current, &idle);
        }
    }

    /// Sets the vswitch, and restores in it what pods have learned in an earlier process. From now on, the vswitch's workers judge the
    /// kernel's flows again before a change ends them; before, changes end flows unjudged. Only the first call sets the vswitch.
    pub(crate) fn judge_flows_by(&self, vswitch: &Arc<Vswitch>) {
        // Has an effect only once.
        let _ = self.vswitch.set(Arc::downgrade(vswitch));
        self.give_back_names(&mut self.lock());
    }

    /// Restores what pods that are new to this process have learned in an earlier process. Call this before publishing a snapshot with
    /// these pods, so that no connection is denied in between. Does nothing before [`judge_flows_by`](Self::judge_flows_by).
    pub(super) fn give_back_names(&self, inner: &mut Inner) {
        let Some(vswitch) = self.vswitch.get().and_then(Weak::upgrade) else { return };
        vswitch.give_back_names(&inner.holders.fresh(), clock::now());
    }

    /// Ends the kernel's flows that the snapshot `next` may deny. The workers first confirm those in use that it allows: otherwise, all
    /// packets of bulk connections would go to the workers for a while at each change. Waits for them at most [`JUDGING`]. Returns the
    /// flows that ended without being judged, because they were not in use. Empty without a flow cache.
    pub(super) fn change_flows(&self, next: &Arc<Snapshot>) -> Vec<ForwardedFlow> {
        let Some(cache) = &self.flow_cache else { return Vec::new() };
        cache.expect(next);
        let (mut used, in_use) = cache.ending(next);
        let idle = used.split_off(in_use);
        self.judge_flows(next, &used);
        cache.enter(next);
        idle
    }

    /// Lets the workers confirm those of the kernel's flows `flows` that the snapshot allows, in this order. Returns when they are done, or
    /// after [`JUDGING`]. Does nothing before [`judge_flows_by`](Self::judge_flows_by).
    pub(super) fn judge_flows(&self, snapshot: &Arc<Snapshot>, flows: &[ForwardedFlow]) {
        if let Some(vswitch) = self.vswitch.get().and_then(Weak::upgrade) {
            vswitch.judge_again(snapshot, flows, Instant::now() + JUDGING);
        }
    }

    /// Ends all of the kernel's flows from and to a port that is being closed. Takes the composer's lock, as a publication at the same time
    /// could keep them.
    pub(crate) fn end_flows(&self, id: PortId) {
        let _inner = self.lock();
        if let Some(cache) = &self.flow_cache {
            cache.leave(id);
        }
    }

    /// Ends the kernel's flows from and to these ports, which stay open. A worker gets the next packet of each flow and looks up its
    /// session.
    pub(crate) fn end_flows_of_sessions(&self, ports: impl IntoIterator<Item = PortId>) {
        let _inner = self.lock();
        if let Some(cache) = &self.flow_cache {
            ports.into_iter().for_each(|port| cache.moved(port));
        }
    }

    /// Ends the kernel's flows of the ports by which packets leave for the addresses `stale`, those of removed backends and of new virtual
    /// addresses: UDP flows would continue to their old destination. Call this after the new Services are published: workers then add flows
    /// of the new Services only. Does nothing without a flow cache.
    pub(super) fn end_stale_flows(&self, stale: &BTreeSet<IpAddr>) {
        let Some(cache) = &self.flow_cache else { return };
        let snapshot = self.publisher.current();
        let port = |&address: &IpAddr| snapshot.owner(address).or_else(|| snapshot.routes().lookup(address));
        let ports: BTreeSet<PortId> = stale.iter().filter_map(port).collect();
        ports.into_iter().for_each(|port| cache.moved(port));
    }
}
