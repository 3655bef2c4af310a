//! Assigns numbers to the pods that learn addresses of domain names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_dataplane::{Holder, Learner, PortConfig};

/// The holders of all pods that learn. A pod keeps its holder while it exists. No later pod gets the same one, even a pod of the same name.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// For the published snapshot, by port name.
    known: BTreeMap<Arc<str>, Learner>,
    /// The same for the snapshot that is being composed, and for those composed before that could not be published.
    next: BTreeMap<Arc<str>, Learner>,
    /// Pods in `next` before others replaced them.
    replaced: Vec<Learner>,
    /// The number of the latest new holder.
    given: u32,
    /// New pods since the last [`Holders::fresh`].
    fresh: Vec<Learner>,
}

impl Holders {
    /// Returns the holder of a port of the snapshot that is being composed: that of the same pod in the published snapshot or in a composed
    /// one that could not be published, or a new one.
    pub(super) fn of(&mut self, port: &PortConfig) -> Holder {
        let holder = self.holder(port).unwrap_or_else(|| {
            self.given = self.given.saturating_add(1);
            let holder = Holder(self.given);
            self.fresh.push(learner(port, holder));
            holder
        });
        self.take_over(port, holder);
        holder
    }

    /// Lets a port of the snapshot that is being composed keep its holder, if the port has one. For snapshots that deny everything, because
    /// no valid policy is known: the next one may have rules that name domains again.
    pub(super) fn keep(&mut self, port: &PortConfig) {
        if let Some(holder) = self.holder(port) {
            self.take_over(port, holder);
        }
    }

    /// Returns the holder of a port. `None` if the port has none, or if all of its addresses are new, so that the port belongs to another
    /// pod.
    fn holder(&self, port: &PortConfig) -> Option<Holder> {
        let is_same = |addresses: &[IpAddr]| {
            addresses.is_empty()
                || port.addresses.is_empty()
                || addresses.iter().any(|one| port.addresses.contains(one))
        };
        let found = [&self.next, &self.known].into_iter().filter_map(|holders| holders.get(&port.name));
        found.filter(|pod| is_same(&pod.addresses)).map(|pod| pod.holder).next()
    }

    fn take_over(&mut self, port: &PortConfig, holder: Holder) {
        let replaced = self.next.insert(port.name.clone(), learner(port, holder));
        self.replaced.extend(replaced.filter(|pod| pod.holder != holder));
    }

    /// Returns the pods that are new since the last call.
    pub(super) fn fresh(&mut self) -> Vec<Learner> {
        std::mem::take(&mut self.fresh)
    }

    /// Ends composing: the composed snapshot is published. Returns the pods that only earlier snapshots had.
    pub(super) fn finish(&mut self) -> Vec<Learner> {
        let before = std::mem::replace(&mut self.known, std::mem::take(&mut self.next));
        let stay: BTreeSet<Holder> = self.known.values().map(|pod| pod.holder).collect();
        before.into_values().chain(self.replaced.drain(..)).filter(|pod| !stay.contains(&pod.holder)).collect()
    }
}

fn learner(port: &PortConfig, holder: Holder) -> Learner {
    Learner { holder, port: port.name.clone(), addresses: port.addresses.clone() }
}

#[cfg(test)]
mod tests {
    use bulkhead_dataplane::PortKind;

    use super::*;

    fn port(name: &str, address: &str) -> PortConfig {
        PortConfig { addresses: vec![address.parse().unwrap()], ..PortConfig::new(name, PortKind::Pod) }
    }

    fn finish(holders: &mut Holders) -> Vec<Holder> {
        holders.finish().into_iter().map(|pod| pod.holder).collect()
    }

    #[test]
    fn a_pod_keeps_its_number_and_no_other_pod_gets_it() {
        let mut holders = Holders::default();
        let (a, b) = (port("x/a", "10.0.0.1"), port("x/b", "10.0.0.2"));
        let first = [holders.of(&a), holders.of(&b)];
        assert_eq!((finish(&mut holders), first[0] == first[1]), (vec![], false));
        assert_eq!(holders.of(&a), first[0]);
        assert_eq!(finish(&mut holders), [first[1]], "b is gone");
        let (again, other) = (holders.of(&b), holders.of(&port("x/a", "10.0.0.9")));
        assert!(!first.contains(&again) && !first.contains(&other), "a pod with the name of an earlier one");
        assert_eq!(finish(&mut holders), [first[0]]);
    }

    #[test]
    fn a_pod_keeps_its_number_if_a_snapshot_could_not_be_published() {
        let mut holders = Holders::default();
        let a = port("x/a", "10.0.0.1");
        let first = holders.of(&a);
        assert_eq!(holders.fresh().len(), 1);
        assert_eq!((holders.of(&a), holders.fresh().len()), (first, 0));
        let other = holders.of(&port("x/a", "10.0.0.9"));
        assert_ne!(other, first);
        assert_eq!(finish(&mut holders), [first], "it was replaced before it was published");
    }

    #[test]
    fn a_snapshot_that_denies_everything_keeps_the_holders_of_its_ports() {
        let mut holders = Holders::default();
        let (a, b) = (port("x/a", "10.0.0.1"), port("x/b", "10.0.0.2"));
        let first = [holders.of(&a), holders.of(&b)];
        assert!(holders.finish().is_empty());
        holders.keep(&a);
        holders.keep(&port("x/c", "10.0.0.3"));
        assert_eq!(finish(&mut holders), [first[1]], "b has no port any more");
        assert_eq!(holders.of(&a), first[0]);
        holders.fresh();
        holders.of(&port("x/c", "10.0.0.3"));
        assert_eq!(holders.fresh().len(), 1, "c had no rules that name domains");
    }
}
