//! Assigns numbers to the pods that learn addresses of domain names.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_dataplane::{Holder, PortConfig};

/// The holders of all pods that learn. A pod keeps its holder while it exists. No later pod gets the same one, even a pod of the same name.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// For the published snapshot, by port name: the holder, and the port's addresses.
    known: BTreeMap<Arc<str>, (Holder, Vec<IpAddr>)>,
    /// The same for the snapshot that is being composed.
    next: BTreeMap<Arc<str>, (Holder, Vec<IpAddr>)>,
    /// The number of the latest new holder.
    given: u32,
    /// New holders with their addresses, since the last [`Holders::fresh`].
    fresh: Vec<(Holder, Vec<IpAddr>)>,
}

impl Holders {
    /// Returns the holder of a port of the snapshot that is being composed: that of the published port with this name, or a new one. A port
    /// whose addresses are all new belongs to another pod and gets a new holder.
    pub(super) fn of(&mut self, port: &PortConfig) -> Holder {
        let same = self.known.get(&port.name).filter(|(_, addresses)| {
            addresses.is_empty()
                || port.addresses.is_empty()
                || addresses.iter().any(|one| port.addresses.contains(one))
        });
        let holder = same.map_or_else(
            || {
                self.given = self.given.saturating_add(1);
                self.fresh.push((Holder(self.given), port.addresses.clone()));
                Holder(self.given)
            },
            |(holder, _)| *holder,
        );
        self.next.insert(port.name.clone(), (holder, port.addresses.clone()));
        holder
    }

    /// Returns the holders that are new since the last call, each with its pod's addresses.
    pub(super) fn fresh(&mut self) -> Vec<(Holder, Vec<IpAddr>)> {
        std::mem::take(&mut self.fresh)
    }

    /// Ends composing: the composed snapshot is published. Returns the holders that only the snapshot before had.
    pub(super) fn finish(&mut self) -> Vec<Holder> {
        let before = std::mem::replace(&mut self.known, std::mem::take(&mut self.next));
        let stays = |holder: &Holder| self.known.values().any(|(kept, _)| kept == holder);
        before.into_values().map(|(holder, _)| holder).filter(|holder| !stays(holder)).collect()
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_dataplane::PortKind;

    use super::*;

    fn port(name: &str, address: &str) -> PortConfig {
        PortConfig { addresses: vec![address.parse().unwrap()], ..PortConfig::new(name, PortKind::Pod) }
    }

    #[test]
    fn a_pod_keeps_its_number_and_no_other_pod_gets_it() {
        let mut holders = Holders::default();
        let (a, b) = (port("x/a", "10.0.0.1"), port("x/b", "10.0.0.2"));
        let first = [holders.of(&a), holders.of(&b)];
        assert_eq!((holders.finish(), first[0] == first[1]), (vec![], false));
        assert_eq!(holders.of(&a), first[0]);
        assert_eq!(holders.finish(), [first[1]], "b is gone");
        let (again, other) = (holders.of(&b), holders.of(&port("x/a", "10.0.0.9")));
        assert!(!first.contains(&again) && !first.contains(&other), "a pod with the name of an earlier one");
        assert_eq!(holders.finish(), [first[0]]);
    }
}
