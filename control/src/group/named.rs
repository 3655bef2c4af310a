//! What a port name stands for on each of many pods: number -> addresses, kept up to date pod by pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead_classifier::AddressSet;

use crate::object::{IpBlock, Pod, PolicyName, Transport};
use crate::parts::{Parts, Sets};
use crate::processor::Work;

/// A port by name. The same name of two protocols is two.
pub(crate) type PortName = (Transport, Arc<str>);

/// Among which pods an egress rule's port name is looked up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Anywhere {
    /// Among all endpoints of the cluster.
    Everybody,
    /// Among those with an address in the block.
    Block(IpBlock),
}

/// The pods that declare one port name, of a group or of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Named {
    /// The policies that use it.
    pub(super) users: BTreeSet<PolicyName>,
    /// Addresses outside it do not count; none for no bound.
    within: Option<AddressSet>,
    numbers: BTreeMap<u16, Parts>,
}

impl Named {
    /// What the name stands for on these pods.
    pub(super) fn new<'a>(
        within: Option<AddressSet>,
        name: &PortName,
        pods: impl Iterator<Item = &'a Pod>,
        sets: &mut Sets,
        work: &mut Work,
    ) -> Self {
        let mut addresses: BTreeMap<u16, Vec<_>> = BTreeMap::new();
        for pod in pods {
            work.pods += 1;
            for number in numbers(pod, name) {
                addresses.entry(number).or_default().extend(counted(pod, within.as_ref()));
            }
        }
        addresses.retain(|_, addresses| !addresses.is_empty());
        let numbers = addresses.into_iter().map(|(number, all)| (number, Parts::new(all, sets, work))).collect();
        Self { users: BTreeSet::new(), within, numbers }
    }

    /// Replaces what a pod contributes.
    pub(super) fn move_pod(
        &mut self,
        name: &PortName,
        old: Option<&Pod>,
        new: Option<&Pod>,
        sets: &mut Sets,
        work: &mut Work,
    ) {
        let within = self.within.as_ref();
        // First the new: an address that stays is then only counted.
        if let Some(pod) = new {
            for number in numbers(pod, name) {
                for address in counted(pod, within) {
                    self.numbers.entry(number).or_default().insert(address, sets, work);
                }
            }
        }
        if let Some(pod) = old {
            for number in numbers(pod, name) {
                let Some(parts) = self.numbers.get_mut(&number) else { continue };
                counted(pod, within).for_each(|address| parts.remove(address, sets, work));
                if parts.is_empty() {
                    self.numbers.remove(&number);
                }
            }
        }
    }

    /// The addresses by the number that the name has there.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (u16, &Parts)> {
        self.numbers.iter().map(|(&number, parts)| (number, parts))
    }
}

/// The numbers that a port name has on a pod. More than one where containers declare the same name.
fn numbers<'a>(pod: &'a Pod, (transport, name): &'a PortName) -> impl Iterator<Item = u16> + 'a {
    pod.ports.iter().filter(|port| port.transport == *transport && port.name == *name).map(|port| port.port)
}

fn counted<'a>(pod: &'a Pod, within: Option<&'a AddressSet>) -> impl Iterator<Item = std::net::IpAddr> + 'a {
    pod.addresses.iter().copied().filter(move |&address| within.is_none_or(|within| within.contains(address)))
}
