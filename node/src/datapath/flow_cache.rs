//! Counts the packets that the flow cache forwarded.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_classifier::OriginId;
use bulkhead_dataplane::io::{CachedTraffic, FlowSlot, KernelFlows};

/// Traffic that the flow cache forwarded, for the summary.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cached {
    /// Traffic by port name, since the process started.
    pub ports: BTreeMap<Arc<str>, CachedTraffic>,
    /// Number of times that workers added or renewed a flow.
    pub added: u64,
    /// Number of flows that could not be added, because the kernel refused them.
    pub refused: u64,
    /// The cache in the kernel, which counts packets per rule. `None` if the flow cache is off, so that workers forward all packets.
    pub cache: Option<Arc<dyn KernelFlows>>,
}

impl Cached {
    /// Returns the number of packets that the cache forwarded because this rule allowed them.
    pub(crate) fn allowed_by(&self, origin: OriginId) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.allowed_by(origin))
    }

    /// Returns the forwarded traffic from and to the port. Zero for an unknown name.
    pub(crate) fn port(&self, name: &str) -> CachedTraffic {
        self.ports.get(name).copied().unwrap_or_default()
    }

    pub(crate) fn forwarded(&self) -> u64 {
        self.ports.values().map(|traffic| traffic.received).sum()
    }
}

/// An open port's slot in the cache, and the slot's counts when the port was opened. An earlier port of the same interface may have used
/// the slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    slot: FlowSlot,
    before: CachedTraffic,
}

/// Maximum number of closed ports with separate counts; `ids` remembers as many port numbers.
const NAMES: usize = 4_096;

/// The name for the sum of all earlier closed ports. No port has this name.
const GONE: &str = "gone";

/// Sums the flow cache's traffic by port, including closed ports.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    pub(super) cache: Option<Arc<dyn KernelFlows>>,
    /// Traffic of closed ports, by name. If there are more than [`NAMES`], they are summed as [`GONE`].
    ended: BTreeMap<Arc<str>, CachedTraffic>,
}

impl Accounts {
    pub(super) const fn new(cache: Option<Arc<dyn KernelFlows>>) -> Self {
        Self { cache, ended: BTreeMap::new() }
    }

    /// Starts counting a port's traffic. `None` without a cache or slot.
    pub(super) fn begin(&self, slot: Option<FlowSlot>) -> Option<Account> {
        let (cache, slot) = self.cache.as_ref().zip(slot)?;
        Some(Account { slot, before: cache.traffic(slot) })
    }

    /// Adds the traffic of a closed port to the totals.
    pub(super) fn end(&mut self, name: &Arc<str>, account: &Account) {
        let Some(cache) = &self.cache else { return };
        if self.ended.len() >= NAMES && !self.ended.contains_key(name) {
            let all = std::mem::take(&mut self.ended).into_values();
            let sum = all.fold(CachedTraffic::default(), |sum, traffic| sum.plus(&traffic));
            self.ended.insert(GONE.into(), sum);
        }
        add(&mut self.ended, &**cache, name, account);
    }

    /// Returns the traffic of closed ports and of the ports in `open`. All zero without a cache.
    pub(super) fn cached<'a>(&self, open: impl Iterator<Item = (&'a Arc<str>, &'a Account)>) -> Cached {
        let Some(cache) = &self.cache else { return Cached::default() };
        let mut ports = self.ended.clone();
        for (name, account) in open {
            add(&mut ports, &**cache, name, account);
        }
        Cached { ports, added: cache.added(), refused: cache.failed(), cache: Some(Arc::clone(cache)) }
    }
}

fn add(
    ports: &mut BTreeMap<Arc<str>, CachedTraffic>,
    cache: &dyn KernelFlows,
    name: &Arc<str>,
    Account { slot, before }: &Account,
) {
    let sum = ports.entry(name.clone()).or_default();
    *sum = sum.plus(&cache.traffic(*slot).since(before));
}
