//! What is in force, for people: who has an address, and what it may do with a pod.

use std::net::IpAddr;

use bulkhead_classifier::identity::IpCache;
use bulkhead_classifier::{Action, OriginId, ServiceSet, Verdict};

use super::IdentityRenderer;
use super::parties::{OWN_NODE, REMOTE_NODE, UNKNOWN};
use crate::contract::SetId;
use crate::object::PodName;
use crate::origin::{Direction, Origins};

/// What one kind of traffic with an address meets: services, and the action and origin that they share.
pub type Entry = (ServiceSet, Action, OriginId);

impl IdentityRenderer {
    /// The ipcache. Its numbers are those of [`IdentityRenderer::sets_of`].
    pub fn cache(&self) -> &IpCache {
        &self.cache
    }

    /// The sets that the addresses of a number of the ipcache are in, ascending.
    pub fn sets_of(&self, number: u32) -> Vec<SetId> {
        let sets = self.parties.sets_of(self.parties.all()[number as usize].identity);
        sets.iter().filter(|&&tag| tag < REMOTE_NODE).map(|&tag| SetId(tag)).collect()
    }

    /// The identity of an address: two addresses have the same where no rule tells them apart.
    pub fn identity_of(&self, address: IpAddr) -> u32 {
        self.parties.all()[self.cache.get(address) as usize].identity
    }

    /// Whether the address is the node's own, and whether it is another node's.
    pub fn node_of(&self, address: IpAddr) -> (bool, bool) {
        let sets = self.parties.sets_of(self.identity_of(address));
        (sets.contains(&OWN_NODE), sets.contains(&REMOTE_NODE))
    }

    /// What traffic between a pod of the node and an address meets in the pod's map: every service once. None where the pod is not known.
    pub fn entries(&self, pod: &PodName, direction: Direction, address: IpAddr) -> Option<Vec<Entry>> {
        self.entries_of(pod, direction, self.identity_of(address))
    }

    /// The same of addresses of which nothing is known, whether or not there are any.
    pub fn entries_of_unknown(&self, pod: &PodName, direction: Direction) -> Option<Vec<Entry>> {
        self.entries_of(pod, direction, UNKNOWN)
    }

    fn entries_of(&self, pod: &PodName, direction: Direction, identity: u32) -> Option<Vec<Entry>> {
        let rules = &self.locals.get(pod)?.endpoint.rules;
        let list = match direction {
            Direction::Ingress => &rules.ingress,
            Direction::Egress => &rules.egress,
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

    /// Whether policies of this direction apply to the pod; without any it has the map that allows everything.
    pub fn is_open(&self, pod: &PodName, direction: Direction) -> bool {
        self.locals.get(pod).is_some_and(|local| match direction {
            Direction::Ingress => local.endpoint.rules.ingress.is_none(),
            Direction::Egress => local.endpoint.rules.egress.is_none(),
        })
    }
}
