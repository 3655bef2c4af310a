//! nftables: the node's kernel enforces policy, for a node without AF_XDP or beside another network plugin. The structure is
//! that of Calico's felix; what differs is said with its reason.
//!
//! ```text
//!   hook          priority     chain      asks
//!   prerouting    raw          source     is the interface known, and does a pod speak for its own addresses, and nobody else for them?
//!   input         after IPVS   node       egress of the pod that speaks to this node, or ingress of the one that answers it
//!   postrouting   before SNAT  egress     rules of the pod that has opened the connection    --vmap @from--> from-VETH
//!                              ingress    rules of the pod that it was opened to             --vmap @to----> to-VETH
//!                              remember   writes the epoch into the connection: both ends allow it
//!
//!   to-VETH: established? accept | jump list-N ---> list-N-admin, list-N-policy, list-N-baseline | drop
//! ```
//! * **Postrouting, not forward.** There, destinations are translated whoever does it (DNAT in prerouting or output, IPVS in input, which
//!   sends from output), sources are not yet, and one place sees what pods send each other and what the node sends them. In output the
//!   way out is still that of the address before translation.
//! * **Two base chains, no packet marks.** An `accept` ends one base chain and the next one is asked all the same; so the egress
//!   rules of one pod and the ingress rules of the other need no mark that carries a verdict. A Pass is a `return` from its tier's chain.
//! * **Rules read the connection** (`ct original ip saddr`, `ct reply ip saddr`, `ct reply proto-src`), not the packet. They are
//!   the same for a packet of either direction and whatever has translated the connection.
//! * **Established is what this policy has allowed.** A connection carries the epoch of the policy that has judged it, in
//!   [`MARK_MASK`] of its mark. Each change has a new epoch, and the next packet of a connection, in either direction, is judged
//!   again: what stays allowed goes on, what does not ends. Deleting entries of connection tracking lost: it takes the translation of
//!   a Service with it, a deleted connection that stays allowed is opened anew by whoever speaks first, and which ones to delete is
//!   policy judged a second time, in another place.
//! * **A change comes in two steps.** A packet is not judged by one generation of the kernel's rules alone: it may meet the old sets
//!   and then the new `remember`. So the first step leaves `remember` empty ([`NftRenderer::change`]), and the second, when no packet
//!   of before is on its way any more, fills it ([`remember`]).
//! * **Sets by kind.** Addresses stand in hash sets, of which a change touches nothing else; blocks (`elements`) in interval
//!   sets.
//!
//! **Invariant.** What [`NftRenderer::full`] says is a function of the last rules, sets and interfaces alone. What
//! [`NftRenderer::change`] says turns what was taken before into that, in one transaction.

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

/// The table, which nobody else touches.
pub const TABLE: &str = "inet bulkhead";

/// The bits of a connection's mark that are ours: the rest is left to others (`0x80` is that of the AWS plugin, for one). With 24 bits a
/// connection would have to be silent for 16 million changes to be taken for one that the present policy has judged.
pub const MARK_MASK: u32 = 0xffff_ff00;

/// A policy's number, as connections carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u32);

impl Epoch {
    /// The epoch that this mark carries; none for the mark of a connection that nobody has judged.
    pub fn of_mark(mark: u32) -> Option<Self> {
        (mark & MARK_MASK != 0).then_some(Self(mark & MARK_MASK))
    }

    /// One of all that there are. Where nothing is known of what the node's connections carry, it is one at random.
    pub fn any(random: u64) -> Self {
        let epochs = u64::from(MARK_MASK >> MARK_MASK.trailing_zeros());
        let number = u32::try_from(random % epochs).expect("less than a mark");
        Self((number + 1) << MARK_MASK.trailing_zeros())
    }

    /// The one after this one. Never 0, which a connection has that nobody has judged.
    #[must_use]
    pub fn next(self) -> Self {
        let next = self.0.wrapping_add(1 << MARK_MASK.trailing_zeros());
        Self::of_mark(next).unwrap_or(Self(1 << MARK_MASK.trailing_zeros()))
    }

    /// The mark that carries it.
    pub const fn mark(self) -> u32 {
        self.0
    }
}

/// What becomes of the addresses of one set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetChange {
    /// The set's name.
    pub set: String,
    /// Those that go.
    pub gone: Vec<IpAddr>,
    /// Those that come.
    pub new: Vec<IpAddr>,
}

/// A change of the ruleset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The script for `nft -f`.
    pub script: String,
    /// The same where nothing changes but addresses of sets, and the epoch: for who can tell the kernel that without nft.
    pub sets: Option<Vec<SetChange>>,
}

/// Which interfaces that nobody has named are a pod's all the same: those drop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Suspects {
    /// Every veth.
    #[default]
    Veth,
    /// Those whose names begin with one of these.
    Prefixes(Vec<Arc<str>>),
}

/// See the module.
#[derive(Debug)]
pub struct NftRenderer {
    node: Arc<str>,
    sets: BTreeMap<SetId, Arc<AddressSet>>,
    endpoints: BTreeMap<PodName, Arc<Endpoint>>,
    own: Arc<AddressSet>,
    /// Each interface with the pod behind it; none for the uplink and whatever else is no pod's.
    interfaces: BTreeMap<Arc<str>, Option<PodName>>,
    suspects: Suspects,
    is_closed: bool,
    revision: u64,
    /// What was taken; none where all has to be said.
    taken: Option<State>,
}

impl NftRenderer {
    /// A renderer of this node, which knows no interface.
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

    /// The ruleset of a node of which nothing is known: interfaces that may be a pod's drop.
    pub fn closed(node: Arc<str>, suspects: Suspects, epoch: Epoch) -> String {
        let mut renderer = Self::of_node(node);
        renderer.set_suspects(suspects);
        renderer.full(epoch, &Origins::default())
    }

    /// Makes these all known interfaces, by name, each with the pod behind it, or none. A pod of which the state knows nothing
    /// is closed. Names that nftables would read as something else are left out, and so dropped with the unknown ones.
    pub fn set_interfaces(&mut self, interfaces: BTreeMap<Arc<str>, Option<PodName>>) {
        self.interfaces = interfaces;
        self.interfaces.retain(|name, _| script::is_plain(name));
    }

    /// Which unknown interfaces drop. Prefixes that are no part of an interface's name are left out.
    pub fn set_suspects(&mut self, suspects: Suspects) {
        self.suspects = suspects;
        if let Suspects::Prefixes(prefixes) = &mut self.suspects {
            prefixes.retain(|prefix| script::is_plain(prefix));
        }
        self.taken = None;
    }

    /// Whether no pod may send or be sent anything, because there is no state to judge by.
    pub const fn set_closed(&mut self, is_closed: bool) {
        self.is_closed = is_closed;
    }

    /// Another number with each transaction that changes anything of the rules, sets and addresses.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether it is known what the kernel has.
    pub const fn is_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// The pods of the node that rules are known of, with their addresses.
    pub fn pods(&self) -> impl Iterator<Item = (&PodName, &[IpAddr])> {
        self.endpoints.iter().map(|(name, endpoint)| (name, &*endpoint.addresses))
    }

    /// The ruleset, whole: a script for `nft -f` that puts it in the place of whatever the table has. Connections are not
    /// remembered yet ([`remember`]).
    pub fn full(&self, epoch: Epoch, origins: &Origins) -> String {
        Script::full(&self.node, &self.suspects, &self.state(), epoch, origins)
    }

    /// What turns the ruleset that was taken last into the present one, in one transaction; none where they are the same.
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

    /// The kernel has taken the last script that was made.
    pub fn take(&mut self) {
        self.taken = Some(self.state());
    }

    /// Nobody knows what the kernel has: the next change says all.
    pub fn forget(&mut self) {
        self.taken = None;
    }

    /// The pods behind the interfaces, by interface.
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

/// Has connections that both ends allow remembered: the second step of a change, to be taken when the packets that were on their
/// way at the first one are gone.
pub fn remember(epoch: Epoch) -> String {
    skeleton::remember(epoch)
}

impl Renderer for NftRenderer {
    fn name(&self) -> String {
        "nftables".into()
    }

    /// Never fails: what the kernel says of it is known when it is asked.
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
