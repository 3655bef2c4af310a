//! What the flow cache of a running vswitch has forwarded.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_classifier::OriginId;
use bulkhead_dataplane::io::{CachedTraffic, FlowSlot, KernelFlows};

/// What the cache has forwarded, for the summary.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cached {
    /// By port.
    pub ports: BTreeMap<Arc<str>, CachedTraffic>,
    /// How often a flow was added or renewed.
    pub added: u64,
    /// How often the kernel refused one.
    pub refused: u64,
    /// Who knows what policies have let through.
    pub cache: Option<Arc<dyn KernelFlows>>,
}

impl Cached {
    /// Packets that a policy's rule has let through there.
    pub(crate) fn allowed_by(&self, origin: OriginId) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.allowed_by(origin))
    }

    /// What was forwarded from and to a port.
    pub(crate) fn port(&self, name: &str) -> CachedTraffic {
        self.ports.get(name).copied().unwrap_or_default()
    }

    /// Packets that were forwarded.
    pub(crate) fn forwarded(&self) -> u64 {
        self.ports.values().map(|traffic| traffic.received).sum()
    }
}

/// An open port's place in the cache, and what the cache had forwarded there when the port was opened: the place may have been
/// another port's before, of the same interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    slot: FlowSlot,
    before: CachedTraffic,
}

/// Names that are remembered: as many as ports have numbers when they come and go (see `ids`).
const NAMES: usize = 4_096;

/// What stands for the ports that are long gone. No port is called so.
const GONE: &str = "gone";

/// What was forwarded by open ports and by those that were closed.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    pub(super) cache: Option<Arc<dyn KernelFlows>>,
    /// From and to ports that were closed, by name; of those that are long gone together, as [`GONE`].
    ended: BTreeMap<Arc<str>, CachedTraffic>,
}

impl Accounts {
    pub(super) const fn new(cache: Option<Arc<dyn KernelFlows>>) -> Self {
        Self { cache, ended: BTreeMap::new() }
    }

    /// Counts from now on what is forwarded from and to a port.
    pub(super) fn begin(&self, slot: Option<FlowSlot>) -> Option<Account> {
        let (cache, slot) = self.cache.as_ref().zip(slot)?;
        Some(Account { slot, before: cache.traffic(slot) })
    }

    /// The port is closed: what was forwarded stays counted.
    pub(super) fn end(&mut self, name: &Arc<str>, account: &Account) {
        let Some(cache) = &self.cache else { return };
        if self.ended.len() >= NAMES && !self.ended.contains_key(name) {
            let all = std::mem::take(&mut self.ended).into_values();
            let sum = all.fold(CachedTraffic::default(), |sum, traffic| sum.plus(&traffic));
            self.ended.insert(GONE.into(), sum);
        }
        add(&mut self.ended, &**cache, name, account);
    }

    /// All of it, with these open ports.
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
