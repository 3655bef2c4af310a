//! The flow cache of a running vswitch: which ports it may send to, and what it has forwarded.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_classifier::OriginId;
use bulkhead_dataplane::io::{
    CachedTraffic, FlowCache, KernelFlowCache, XdpMode, in_namespace, set_generic_receive_offload, takes_xdp_frames,
};
use bulkhead_dataplane::{PortId, PortKind};

use super::{Held, Taken};
use crate::live::config::PortEntry;
use crate::live::log;
use crate::live::preflight;

/// What the cache has forwarded, for the summary.
#[derive(Clone, Debug, Default)]
pub(in crate::live) struct Cached {
    /// By port.
    pub ports: BTreeMap<Arc<str>, CachedTraffic>,
    /// How often a flow was added or renewed.
    pub added: u64,
    /// How often the kernel refused one.
    pub refused: u64,
    /// Who knows what policies have let through.
    pub cache: Option<Arc<KernelFlowCache>>,
}

impl Cached {
    /// Packets that a policy's rule has let through there.
    pub(in crate::live) fn allowed_by(&self, origin: OriginId) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.allowed_by(origin))
    }

    /// What was forwarded from and to a port.
    pub(in crate::live) fn port(&self, name: &str) -> CachedTraffic {
        self.ports.get(name).copied().unwrap_or_default()
    }

    /// Packets that were forwarded.
    pub(in crate::live) fn forwarded(&self) -> u64 {
        self.ports.values().map(|traffic| traffic.received).sum()
    }
}

impl Held {
    /// Nothing yet. With a cache, packets of established sessions between pods are forwarded in the kernel.
    pub(in crate::live) fn new(cache: Option<Arc<KernelFlowCache>>) -> Self {
        Self { cache, ..Self::default() }
    }

    /// Lets the cache send to the pods' ports that are open and whose interfaces take what it sends, and to no others: to
    /// be called with every look at the interfaces, since a pod's other end may change.
    pub(in crate::live) fn reach(&mut self) {
        let Some(cache) = &self.cache else { return };
        // Behind the driver the kernel sends packets of its own, which every interface takes.
        let is_generic = self.interfaces.iter().all(|taken| taken.interface.mode() == XdpMode::Skb);
        for taken in &mut self.interfaces {
            let (Some(slot), Some(port)) = (taken.interface.slot(), &mut taken.port) else { continue };
            let index = taken.index;
            let told = if is_generic { Ok(true) } else { takes_xdp_frames(index) };
            let takes = *told.as_ref().unwrap_or(&false);
            if takes == cache.reaches(slot) && port.is_reached == Some(takes) {
                continue;
            }
            // Refused, it is as if the interface took nothing; the next look tries again.
            let is_reached = takes && cache.reach(slot, Some(index)).is_ok();
            if !is_reached {
                let _ = cache.reach(slot, None);
            }
            if port.is_reached.replace(is_reached) != Some(is_reached) && !is_reached {
                let why = match told {
                    Ok(_) => "its other end has generic receive offload off\n\
                        help: ethtool -K eth0 gro on in the pod, or netns and fix_offloads: true on the port"
                        .to_owned(),
                    Err(error) => format!(
                        "the kernel does not tell whether its interface takes them from the flow cache: {error}\n\
                         help: Linux 6.3 or newer, or mode: skb"
                    ),
                };
                log::info(&format!("port {}: packets to it all go through the workers: {why}", port.name));
            }
        }
    }

    /// What the cache has forwarded until now.
    pub(in crate::live) fn cached(&self) -> Cached {
        let Some(cache) = &self.cache else { return Cached::default() };
        let mut ports = self.ended.clone();
        for taken in &self.interfaces {
            let Some(port) = &taken.port else { continue };
            if let Some(slot) = taken.interface.slot() {
                let sum = ports.entry(port.name.clone()).or_default();
                *sum = sum.plus(&cache.traffic(slot).since(&port.cached_before));
            }
        }
        Cached { ports, added: cache.added(), refused: cache.failed(), cache: Some(Arc::clone(cache)) }
    }

    /// A port is about to be closed: nothing is sent to it any more. Its flows end, as it may be opened again, and be another
    /// pod's, before the workers know of that.
    pub(super) fn leave_port(&self, name: &str, id: Option<PortId>) {
        let Some(cache) = &self.cache else { return };
        if let Some(id) = id {
            cache.leave(id);
        }
        for slot in
            self.interfaces.iter().filter(|taken| taken.has_port(name)).filter_map(|taken| taken.interface.slot())
        {
            // Fails when the interface is gone, and with it the way.
            let _ = cache.reach(slot, None);
        }
    }

    /// The ports of such interfaces are no more: what was forwarded stays counted.
    pub(super) fn end_ports(&mut self, of: impl Fn(&Taken) -> bool) {
        let Self { interfaces, cache, ended, .. } = self;
        for taken in interfaces.iter_mut().filter(|taken| of(taken)) {
            let Some(port) = taken.port.take() else { continue };
            if let (Some(cache), Some(slot)) = (cache.as_ref(), taken.interface.slot()) {
                let sum = ended.entry(port.name).or_default();
                *sum = sum.plus(&cache.traffic(slot).since(&port.cached_before));
            }
        }
    }
}

/// Turns on what the flow cache needs at the other end of a pod's port, where that is wanted. It does without where it
/// cannot.
pub(super) fn settle_receive_offload(entry: &PortEntry) {
    if !entry.fix_offloads || entry.kind != PortKind::Pod {
        return;
    }
    let turn_on = || set_generic_receive_offload(&entry.peer, true);
    let done = match &entry.netns {
        Some(netns) => in_namespace(&preflight::namespace_path(netns), turn_on).and_then(|done| done),
        None => turn_on(),
    };
    if let Err(error) = done {
        log::info(&format!("port {entry}: generic receive offload of {} stays as it is: {error}", entry.peer));
    }
}
