//! Numbers the pods that learn names.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_dataplane::{Holder, PortConfig};

/// The holders of learned names. A pod keeps its number while it exists. A later pod never gets it, even one with the same name.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// By port name: the holder, and the port's addresses.
    known: BTreeMap<Arc<str>, (Holder, Vec<IpAddr>)>,
    /// Holders of ports that are being numbered.
    next: BTreeMap<Arc<str>, (Holder, Vec<IpAddr>)>,
    given: u32,
    /// New holders with their addresses, since the last [`Holders::fresh`].
    fresh: Vec<(Holder, Vec<IpAddr>)>,
}

impl Holders {
    /// Returns the holder of a port. A port whose addresses are all new is that of another pod.
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

    /// Returns the new holders with their pods' addresses, each once.
    pub(super) fn fresh(&mut self) -> Vec<(Holder, Vec<IpAddr>)> {
        std::mem::take(&mut self.fresh)
    }

    /// Ends the numbering of a snapshot's ports. Returns the holders that are gone.
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
