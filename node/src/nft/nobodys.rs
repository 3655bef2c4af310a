//! Finds interfaces that the ruleset closes because they belong to no pod of the node and to no configured port.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead_control::object::PodName;
use bulkhead_control::renderer::nftables::Suspects;
use bulkhead_dataplane::io::LinkStatus;

/// Interfaces that belong to no pod. An interface counts from the second check on, since a newly wired pod may be placed in between.
#[derive(Debug, Default)]
pub(super) struct Nobodys {
    before: BTreeSet<String>,
    pub(super) known: BTreeSet<String>,
}

impl Nobodys {
    /// Checks the node's interfaces. Returns newly found ones.
    pub(super) fn look(
        &mut self,
        links: &[LinkStatus],
        suspects: &Suspects,
        places: &BTreeMap<Arc<str>, Option<PodName>>,
    ) -> Vec<String> {
        let names =
            links.iter().filter(|link| link.up && is_suspect(link, suspects)).filter_map(|link| link.names.first());
        let now: BTreeSet<String> = names.filter(|name| !places.contains_key(name.as_str())).cloned().collect();
        let lasting: BTreeSet<String> = now.intersection(&self.before).cloned().collect();
        let new = lasting.difference(&self.known).cloned().collect();
        (self.before, self.known) = (now, lasting);
        new
    }
}

/// Whether the ruleset assumes that the interface belongs to a pod.
fn is_suspect(link: &LinkStatus, suspects: &Suspects) -> bool {
    match suspects {
        Suspects::Veth => link.is_routed_veth,
        Suspects::Prefixes(prefixes) => {
            prefixes.iter().any(|prefix| link.names.first().is_some_and(|name| name.starts_with(&**prefix)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_told_once_when_it_is_nobodys_at_two_looks() {
        let link = |name: &str, is_routed_veth| LinkStatus {
            names: vec![name.to_owned()],
            up: true,
            is_routed_veth,
            ..LinkStatus::default()
        };
        let links = [link("veth1", true), link("veth2", true), link("eth0", false), link("cali1", false)];
        let places = BTreeMap::from([(Arc::from("veth2"), None)]);
        let mut nobodys = Nobodys::default();
        assert_eq!(nobodys.look(&links, &Suspects::Veth, &places), [""; 0]);
        assert_eq!(nobodys.look(&links, &Suspects::Veth, &places), ["veth1"]);
        assert_eq!(nobodys.look(&links, &Suspects::Veth, &places), [""; 0]);
        assert_eq!(nobodys.known, BTreeSet::from(["veth1".to_owned()]));
        // The interface is removed, and another one with the same name appears.
        nobodys.look(&links[1..], &Suspects::Veth, &places);
        assert!(nobodys.known.is_empty());
        let prefixes = Suspects::Prefixes(vec!["cali".into()]);
        nobodys.look(&links, &prefixes, &places);
        assert_eq!(nobodys.look(&links, &prefixes, &places), ["cali1"]);
    }
}
