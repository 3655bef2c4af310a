//! The nftables renderer: the node's kernel enforces policy, for a node without AF_XDP or next to another network plugin. The structure is
//! that of Calico's felix, with the following differences and reasons.
//!
//! ```text
//!   hook          priority     chain      checks
//!   prerouting    raw          source     the interface is known; only the pod itself sends from its addresses
//!   input         after IPVS   node       egress of a pod that sends to this node, or ingress of a pod that replies to it
//!   postrouting   before SNAT  egress     rules of the pod that opened the connection    --vmap @from--> from-VETH
//!                              ingress    rules of the pod that accepted it              --vmap @to----> to-VETH
//!                              remember   writes the epoch into the connection's mark: both ends allow it
//!
//!   to-VETH: established? accept | jump list-N ---> list-N-admin, list-N-policy, list-N-baseline | drop
//! ```
//! * **Postrouting, not forward.** In postrouting, destinations are already translated (by DNAT in prerouting or output, or by IPVS in
//!   input, which sends from output), and sources are not. One hook sees traffic between pods and from the node to pods. In output, the
//!   route is still that of the address before translation.
//! * **Two base chains, no packet marks.** An `accept` ends one base chain, and the next is still evaluated. So the egress rules of one pod
//!   and the ingress rules of the other need no mark to pass on a verdict. A Pass is a `return` from its tier's chain.
//! * **Rules match the connection** (`ct original ip saddr`, `ct reply ip saddr`, `ct reply proto-src`), not the packet. They apply to
//!   packets of both directions, under any translation.
//! * **Established means allowed by this policy.** A connection carries the epoch of the policy that judged it, in [`MARK_MASK`] of its
//!   mark. Each change starts a new epoch, and the next packet of a connection, in either direction, is judged again. Deleting conntrack
//!   entries instead would lose a Service's translation, would let either end reopen an allowed connection, and would need a second
//!   implementation of policy to select the entries.
//! * **A change takes two steps.** A packet may see sets of the old ruleset and then the new `remember` chain. So the first step empties
//!   `remember` ([`NftRenderer::change`]). The second fills it when no earlier packet is in transit ([`remember`]).
//! * **Sets by kind.** Single addresses are in hash sets, where a change affects no other element. Blocks (`elements`) are in interval
//!   sets.
//!
//! **Invariant.** [`NftRenderer::full`] is a function of the latest rules, sets and interfaces. [`NftRenderer::change`] turns the ruleset
//! taken before into that one, in one transaction.

mod comment;
mod elements;
mod rules;
mod script;
mod skeleton;
mod state;

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{AddressSet, OriginId};

use self::script::Script;
pub use self::skeleton::REASONS;
use self::state::{State, Workload};
use super::{BoxError, Renderer};
use crate::contract::{Endpoint, SetDelta, SetId, Transaction};
use crate::object::PodName;
use crate::origin::Origins;

/// The name of the table. It belongs to Bulkhead alone.
pub const TABLE: &str = "inet bulkhead";

/// The bits of a connection's mark that Bulkhead uses. Other programs use the rest (the AWS plugin uses `0x80`). The 24 bits wrap after 16
/// million changes: a connection that stays silent for so long could pass as judged by the present policy.
pub const MARK_MASK: u32 = 0xffff_ff00;

/// The number of a policy version, stored in the marks of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u32);

impl Epoch {
    /// Returns the epoch in this mark. `None` if no policy has judged the connection.
    pub fn of_mark(mark: u32) -> Option<Self> {
        (mark & MARK_MASK != 0).then_some(Self(mark & MARK_MASK))
    }

    /// Creates an epoch from a random number, for a start without knowledge of the epochs in existing marks.
    pub fn any(random: u64) -> Self {
        let epochs = u64::from(MARK_MASK >> MARK_MASK.trailing_zeros());
        let number = u32::try_from(random % epochs).expect("less than a mark");
        Self((number + 1) << MARK_MASK.trailing_zeros())
    }

    /// Returns the next epoch. Never 0, which marks connections that no policy has judged.
    #[must_use]
    pub fn next(self) -> Self {
        let next = self.0.wrapping_add(1 << MARK_MASK.trailing_zeros());
        Self::of_mark(next).unwrap_or(Self(1 << MARK_MASK.trailing_zeros()))
    }

    /// Returns the mark with this epoch.
    pub const fn mark(self) -> u32 {
        self.0
    }
}

/// The change of a set's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetChange {
    /// The set's name.
    pub set: String,
    /// The removed addresses.
    pub gone: Vec<IpAddr>,
    /// The added addresses.
    pub new: Vec<IpAddr>,
}

/// A change of the ruleset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The script for `nft -f`.
    pub script: String,
    /// The changes if only addresses of sets and the epoch change, for a caller that talks to the kernel without nft. `None` otherwise.
    pub sets: Option<Vec<SetChange>>,
}

/// Unknown interfaces that may belong to a pod. Their traffic is dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Suspects {
    /// Every veth.
    #[default]
    Veth,
    /// Interfaces whose names begin with one of these prefixes.
    Prefixes(Vec<Arc<str>>),
}

/// The renderer of a node's nftables ruleset.
#[derive(Debug)]
pub struct NftRenderer {
    node: Arc<str>,
    sets: BTreeMap<SetId, Arc<AddressSet>>,
    endpoints: BTreeMap<PodName, Arc<Endpoint>>,
    own: Arc<AddressSet>,
    /// Each interface with its pod. `None` for the uplink and other interfaces without a pod.
    interfaces: BTreeMap<Arc<str>, Option<PodName>>,
    suspects: Suspects,
    is_closed: bool,
    revision: u64,
    /// The state of the kernel's ruleset. `None` if unknown, so that the next change must be complete.
    taken: Option<State>,
}

impl NftRenderer {
    /// Creates a renderer of this node, without interfaces.
    pub fn of_node(node: Arc<str>) -> Self {
        Self {
            node,
            sets: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            own: Arc::default(),
            interfaces: BTreeMap::new(),
            suspects: Suspects::default(),
            is_closed: false,
            revision: 0,
            taken: None,
        }
    }

    /// Returns the ruleset of a node without any state. It drops traffic of interfaces that may belong to a pod.
    pub fn closed(node: Arc<str>, suspects: Suspects, epoch: Epoch) -> String {
        let mut renderer = Self::of_node(node);
        renderer.set_suspects(suspects);
        renderer.full(epoch, &Origins::default())
    }

    /// Sets all known interfaces by name, each with its pod or `None`. Traffic of a pod without state is dropped. Names that are not
    /// literal in nftables are left out, and so treated as unknown.
    pub fn set_interfaces(&mut self, interfaces: BTreeMap<Arc<str>, Option<PodName>>) {
        self.interfaces = interfaces;
        self.interfaces.retain(|name, _| script::is_plain(name));
    }

    /// Sets which unknown interfaces are dropped. Prefixes that cannot occur in an interface name are left out.
    pub fn set_suspects(&mut self, suspects: Suspects) {
        self.suspects = suspects;
        if let Suspects::Prefixes(prefixes) = &mut self.suspects {
            prefixes.retain(|prefix| script::is_plain(prefix));
        }
        self.taken = None;
    }

    /// Sets whether all traffic of pods is dropped, because no state exists to judge it by.
    pub const fn set_closed(&mut self, is_closed: bool) {
        self.is_closed = is_closed;
    }

    /// Returns the number of the current rules, sets and addresses. Changes with each transaction that changes any of them.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether the kernel's ruleset is known, so that the next change need not be complete.
    pub const fn is_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// Returns the node's pods with rules, and their addresses.
    pub fn pods(&self) -> impl Iterator<Item = (&PodName, &[IpAddr])> {
        self.endpoints.iter().map(|(name, endpoint)| (name, &*endpoint.addresses))
    }

    /// Returns the whole ruleset: a script for `nft -f` that replaces the table. Connections are not remembered yet ([`remember`]).
    pub fn full(&self, epoch: Epoch, origins: &Origins) -> String {
        Script::full(&self.node, &self.suspects, &self.state(), epoch, origins)
    }

    /// Returns the change from the ruleset that the kernel last loaded to the current one, in one transaction. `None` if both are equal.
    pub fn change(&self, epoch: Epoch, origins: &Origins) -> Option<Change> {
        let state = self.state();
        match &self.taken {
            None => {
                let script = Script::full(&self.node, &self.suspects, &state, epoch, origins);
                Some(Change { script, sets: None })
            }
            Some(taken) if *taken == state => None,
            Some(taken) => Some(Script::change(taken, &state, epoch, origins)),
        }
    }

    /// Records that the kernel has loaded the latest script.
    pub fn take(&mut self) {
        self.taken = Some(self.state());
    }

    /// Records that the kernel's ruleset is unknown. The next change is then complete.
    pub fn forget(&mut self) {
        self.taken = None;
    }

    /// Returns the interfaces and their pods.
    pub fn interfaces(&self) -> &BTreeMap<Arc<str>, Option<PodName>> {
        &self.interfaces
    }

    fn state(&self) -> State {
        let workload = |pod: &Option<PodName>| match pod {
            None => Workload::NoPod,
            Some(pod) if self.is_closed => Workload::Closed(pod.clone()),
            Some(pod) => match self.endpoints.get(pod) {
                Some(endpoint) => Workload::Pod(endpoint.clone()),
                None => Workload::Closed(pod.clone()),
            },
        };
        let workloads: BTreeMap<_, _> =
            self.interfaces.iter().map(|(name, pod)| (name.clone(), workload(pod))).collect();
        let placed: HashSet<&PodName> = self.interfaces.values().flatten().collect();
        let unplaced = self.endpoints.values().filter(|endpoint| !placed.contains(&endpoint.pod));
        let unplaced = unplaced.flat_map(|endpoint| endpoint.addresses.iter().copied()).collect();
        let local = self.endpoints.values().flat_map(|endpoint| endpoint.addresses.iter().copied()).collect();
        State { workloads, sets: self.sets.clone(), own: self.own.clone(), unplaced, local }
    }
}

/// Returns the second step of a change: a script that makes the kernel remember connections that both ends allow. Must be loaded after the
/// packets in transit at the first step are gone.
pub fn remember(epoch: Epoch) -> String {
    skeleton::remember(epoch)
}

impl Renderer for NftRenderer {
    fn name(&self) -> String {
        "nftables".into()
    }

    /// Applies the transaction. Never fails: the kernel's errors appear when a script is loaded.
    fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError> {
        let mut has_changed = transaction.resync;
        if transaction.resync {
            self.sets.clear();
            self.endpoints.clear();
        }
        for SetDelta { set, added, removed } in &transaction.sets {
            let members = self.sets.entry(*set).or_default();
            let changed = members.subtract(removed).union(added);
            if **members != changed {
                *members = Arc::new(changed);
                has_changed = true;
            }
        }
        for (name, endpoint) in &transaction.endpoints {
            let new = endpoint.as_ref().filter(|endpoint| endpoint.node == self.node);
            let old = match new {
                Some(endpoint) => self.endpoints.insert(name.clone(), endpoint.clone()),
                None => self.endpoints.remove(name),
            };
            has_changed |= old.as_ref() != new;
        }
        if let Some(node) = transaction.node(&self.node) {
            let own: AddressSet = node.map(|node| node.addresses.iter().copied().collect()).unwrap_or_default();
            has_changed |= *self.own != own;
            self.own = Arc::new(own);
        }
        for set in &transaction.dropped {
            has_changed |= self.sets.remove(set).is_some();
        }
        self.revision += u64::from(has_changed);
        Ok(())
    }

    fn origins(&self) -> HashSet<OriginId> {
        let lists = self.endpoints.values().flat_map(|endpoint| endpoint.rules.lists());
        let taken = self.taken.iter().flat_map(|taken| taken.lists().into_values());
        let of = |list: &crate::contract::TieredList| list.rules.iter().map(|rule| rule.origin).collect::<Vec<_>>();
        lists.flat_map(|list| of(list)).chain(taken.flat_map(|(_, list)| of(&list))).collect()
    }
}

#[cfg(test)]
mod tests;
