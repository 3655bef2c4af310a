//! The numbers of a port name on many pods: one address set per number, updated pod by pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::AddressSet;

use super::pending::{Identities, Pending, SetKey, Sweep, fresh};
use super::port_name::PortName;
use crate::contract::SetId;
use crate::object::{Pod, PolicyName};

/// The pods of a group or of the cluster that declare one port name.
#[derive(Debug, Default)]
pub(crate) struct Named {
    pub(super) users: BTreeSet<PolicyName>,
    within: Option<AddressSet>,
    numbers: BTreeMap<u16, Number>,
}

/// The pods on which the name has one number.
#[derive(Debug)]
struct Number {
    set: SetId,
    /// Number of pods. An entry with 0 pods stays until the batch ends, because the next event may add one.
    pods: usize,
}

impl Named {
    /// Collects the numbers of the name on these pods. `set` returns the identity of a number's set.
    pub(super) fn new<'a>(
        within: Option<AddressSet>,
        name: &PortName,
        pods: impl Iterator<Item = &'a Pod>,
        mut set: impl FnMut(u16) -> SetId,
    ) -> Self {
        let mut numbers: BTreeMap<u16, Number> = BTreeMap::new();
        for pod in pods.filter(|pod| counted(pod, within.as_ref()).next().is_some()) {
            for number in numbers_of(pod, name).collect::<BTreeSet<_>>() {
                numbers.entry(number).or_insert_with(|| Number { set: set(number), pods: 0 }).pods += 1;
            }
        }
        Self { users: BTreeSet::new(), within, numbers }
    }

    /// Replaces a pod's contribution. `others` returns whether another pod has the number at an address.
    #[expect(clippy::too_many_arguments, reason = "the parts of the book that a pod may change, each borrowed alone")]
    pub(super) fn move_pod(
        &mut self,
        name: &PortName,
        old: Option<&Pod>,
        new: Option<&Pod>,
        others: impl Fn(IpAddr, u16) -> bool,
        identities: &mut Identities,
        pending: &mut Pending,
        key: impl Fn(u16) -> SetKey,
    ) {
        let both = old.into_iter().chain(new);
        let numbers: BTreeSet<u16> = both.flat_map(|pod| numbers_of(pod, name)).collect();
        for number in numbers {
            let of = |pod: Option<&Pod>| -> Vec<IpAddr> {
                let declaring = pod.filter(|pod| declares(pod, name, number));
                declaring.map_or_else(Vec::new, |pod| counted(pod, self.within.as_ref()).collect())
            };
            let (before, after) = (of(old), of(new));
            if before.is_empty() && after.is_empty() {
                continue;
            }
            let entry = self.numbers.entry(number).or_insert_with(|| {
                pending.renumbered.extend(self.users.iter().cloned());
                Number { set: fresh(identities, pending, &key(number)), pods: 0 }
            });
            entry.pods += usize::from(!after.is_empty());
            entry.pods -= usize::from(!before.is_empty());
            pending.idle |= entry.pods == 0;
            pending.shift(entry.set, &before, &after, |address| others(address, number));
        }
    }

    /// Drops the sets of numbers that no pod has, or all if no policy uses the name. Returns whether a policy uses it.
    pub(super) fn sweep(&mut self, in_use: bool, sweep: &mut Sweep<'_>) -> bool {
        let in_use = in_use && !self.users.is_empty();
        let users = &self.users;
        self.numbers.retain(|_, number| {
            let stays = in_use && number.pods > 0;
            if !stays {
                sweep.drop_set(number.set);
                sweep.pending.renumbered.extend(users.iter().cloned());
            }
            stays
        });
        in_use
    }

    /// Returns the number of pods that declare the name. A pod counts once per number.
    pub(super) fn pods(&self) -> usize {
        self.numbers.values().map(|number| number.pods).sum()
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = (u16, SetId)> {
        self.numbers.iter().map(|(&number, entry)| (number, entry.set))
    }

    /// Returns the members of the name's sets, for sets in `of` only. `pods` lists the pods that may declare the name.
    pub(super) fn members<'a, P: Iterator<Item = &'a Pod>>(
        &self,
        name: &PortName,
        of: &BTreeSet<SetId>,
        pods: impl Fn() -> P,
    ) -> Vec<(SetId, Arc<AddressSet>)> {
        let wanted = self.numbers().filter(|(_, set)| of.contains(set));
        let members = |number| -> AddressSet {
            let declaring = pods().filter(|pod| declares(pod, name, number));
            declaring.flat_map(|pod| counted(pod, self.within.as_ref())).collect()
        };
        wanted.map(|(number, set)| (set, Arc::new(members(number)))).collect()
    }
}

/// Returns the numbers of a port name on a pod: several if containers declare the same name.
fn numbers_of<'a>(pod: &'a Pod, (transport, name): &'a PortName) -> impl Iterator<Item = u16> + 'a {
    pod.ports.iter().filter(|port| port.transport == *transport && port.name == *name).map(|port| port.port)
}

/// Whether the pod declares the name with this number.
pub(super) fn declares(pod: &Pod, name: &PortName, number: u16) -> bool {
    numbers_of(pod, name).any(|of| of == number)
}

fn counted<'a>(pod: &'a Pod, within: Option<&'a AddressSet>) -> impl Iterator<Item = IpAddr> + 'a {
    pod.addresses.iter().copied().filter(move |&address| within.is_none_or(|within| within.contains(address)))
}
