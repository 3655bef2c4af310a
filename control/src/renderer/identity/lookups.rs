//! Lookups for diagnosis: the owner of an address, and the traffic that a pod may exchange with it.

use std::net::IpAddr;

use bulkhead_classifier::identity::IpCache;
use bulkhead_classifier::{Action, OriginId, ServiceSet, Verdict};

use super::IdentityRenderer;
use super::parties::{OWN_NODE, REMOTE_NODE, UNKNOWN};
use crate::contract::SetId;
use crate::object::PodName;
use crate::origin::{Direction, Origins};

/// Protocols and ports with the same verdict, and that verdict's action and origin.
pub type Entry = (ServiceSet, Action, OriginId);

impl IdentityRenderer {
    /// Returns the map from addresses to numbers. [`IdentityRenderer::sets_of`] resolves the numbers.
    pub fn cache(&self) -> &IpCache {
        &self.cache
    }

    /// Returns the sets that contain the addresses of an ipcache number, ascending.
    pub fn sets_of(&self, number: u32) -> Vec<SetId> {
        let sets = self.parties.sets_of(self.parties.all()[number as usize].identity);
        sets.iter().filter(|&&tag| tag < REMOTE_NODE).map(|&tag| SetId(tag)).collect()
    }

    /// Returns the identity of an address. Two addresses share one if no rule distinguishes them.
    pub fn identity_of(&self, address: IpAddr) -> u32 {
        self.parties.all()[self.cache.get(address) as usize].identity
    }

    /// Whether the address belongs to this node, and whether it belongs to another node.
    pub fn node_of(&self, address: IpAddr) -> (bool, bool) {
        let sets = self.parties.sets_of(self.identity_of(address));
        (sets.contains(&OWN_NODE), sets.contains(&REMOTE_NODE))
    }

    /// Returns the pod's decisions about traffic with an address. The entries' ports are disjoint. `None` if the pod is unknown.
    pub fn entries(&self, pod: &PodName, direction: Direction, address: IpAddr) -> Option<Vec<Entry>> {
        self.entries_of(pod, direction, self.identity_of(address))
    }

    /// As [`IdentityRenderer::entries`], for any address that is in no set.
    pub fn entries_of_unknown(&self, pod: &PodName, direction: Direction) -> Option<Vec<Entry>> {
        self.entries_of(pod, direction, UNKNOWN)
    }

    fn entries_of(&self, pod: &PodName, direction: Direction, identity: u32) -> Option<Vec<Entry>> {
        let rules = &self.locals.get(pod)?.endpoint.rules;
        let list = match direction {
            Direction::Ingress => rules.ingress.as_ref(),
            Direction::Egress => rules.whole_egress(),
        };
        let Some(list) = list else {
            return Some(vec![(ServiceSet::all(), Action::Allow, Origins::not_isolated(direction))]);
        };
        let row = self.lists.get(&list.id)?.known_row(self.parties.sets_of(identity))?;
        let entry = |(services, verdict): &(ServiceSet, Verdict)| {
            let (action, origin) = self.decisions.get(*verdict)?;
            Some((services.clone(), action, origin))
        };
        row.iter().map(entry).collect()
    }

    /// Whether no policy of this direction applies to the pod, so that its map allows everything. False if the pod is unknown.
    pub fn is_open(&self, pod: &PodName, direction: Direction) -> bool {
        self.locals.get(pod).is_some_and(|local| match direction {
            Direction::Ingress => local.endpoint.rules.ingress.is_none(),
            Direction::Egress => local.endpoint.rules.whole_egress().is_none(),
        })
    }
}
