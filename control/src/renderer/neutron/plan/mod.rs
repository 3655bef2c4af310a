//! Computes the ordered requests that change a server to the desired state.
//!
//! ```text
//!  prepare   create missing groups with their rules; no port is in them yet
//!  close     create rules that others cover; ports leave groups; delete rules           each end allows a subset of the old state
//!  open      create rules; ports enter groups                                           each end allows a subset of the new state
//!  tidy      delete rules that others cover and unused groups; record the generation in force
//! ```
//! **Invariant.** After each request, only connections pass that the old or the new state allows. A connection has two ends. If one end
//! opened before the other closed, a connection could pass that neither state allows. So everything closes before anything opens: in
//! between, each end allows only what both states allow.
//!
//! Traffic that both states allow is not interrupted if one rule covers another. A wider rule is created before the narrower one is
//! deleted, and a port moves from `open_in` to its policy's group in one request. Other changes (a group replaced by a block, groups of
//! other owners) interrupt such traffic between two requests.
//!
//! **Rejected alternatives.** Opening first and closing afterwards, as Kuryr does: it never interrupts traffic that both states allow. But
//! while a thousand ports change one by one, the first are open to others that are yet to be closed. Replacing whole groups: it needs twice
//! the quota, and changes all of a policy's ports for one of its rules.

mod call;
mod compared;
mod listed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::call::{Call, placeholder};
use self::compared::{Group, Port};
pub use self::listed::{Listed, ListedGroup, ListedPort, ListedRule};
use super::{Desired, Remote, SecurityRule};
use crate::object::PodName;

/// A security group in a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupRef {
    /// A managed group. Its ID is known once it is created.
    Tag(Arc<str>),
    /// Another owner's group, or a duplicate with a managed tag.
    Id(String),
}

/// A request to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Creates a group without rules and tags it.
    CreateGroup {
        /// The managed tag that identifies the group.
        tag: Arc<str>,
    },
    /// Creates a rule.
    CreateRule {
        /// The managed tag that identifies the group.
        tag: Arc<str>,
        /// The rule, with tags as remote groups.
        rule: SecurityRule,
    },
    /// Deletes a rule.
    DeleteRule {
        /// The rule's ID at the server.
        id: String,
        /// The rule's group.
        group: GroupRef,
        /// The rule to delete. `None` if Bulkhead would never write such a rule.
        rule: Option<SecurityRule>,
    },
    /// Sets the groups of a port.
    SetPort {
        /// The port's ID at the server.
        id: String,
        /// The pod. `None` if the port no longer belongs to a pod.
        pod: Option<PodName>,
        /// All groups of the port after this request.
        groups: BTreeSet<GroupRef>,
    },
    /// Deletes a group.
    DeleteGroup {
        /// The group's ID at the server.
        id: String,
        /// The managed tag that identifies the group. `None` if the group has none.
        tag: Option<Arc<str>>,
    },
    /// Sets the tags of a group. One of them records the generation of the policy that the group's rules now implement.
    SetTags {
        /// The managed tag that identifies the group.
        tag: Arc<str>,
    },
}

/// A difference from the desired state that no request can remove.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// No port has the pod's addresses.
    #[error("pod {0} has no port with its address")]
    NoPort(PodName),
    /// Several ports have the pod's addresses.
    #[error("pod {pod} has the addresses of several ports: {ports}")]
    SeveralPorts {
        /// The pod's namespace and name.
        pod: PodName,
        /// The IDs of these ports at the server, as text.
        ports: String,
    },
    /// The server applies no groups to the port.
    #[error("port {port} of pod {pod} has no port security: no group applies to it, everything passes")]
    Unsecured {
        /// The pod's namespace and name.
        pod: PodName,
        /// The port's ID.
        port: String,
    },
    /// The port has addresses other than the pod's, which a rule that names the port's group would cover.
    #[error(
        "port {port} of pod {pod} has other addresses than the pod ({others}): rules that name the pod do not cover the port"
    )]
    OtherAddresses {
        /// The pod's namespace and name.
        pod: PodName,
        /// The port's ID.
        port: String,
        /// The port's addresses that are not the pod's, as text.
        others: String,
    },
}

impl Problem {
    /// Whether traffic may pass that should not.
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::Unsecured { .. } | Self::SeveralPorts { .. })
    }
}

/// A group at the server belongs to a later generation of its policy than the local state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("group {tag} is of generation {applied} of its policy, the state has {generation}")]
pub struct Older {
    /// The managed tag that identifies the group.
    pub tag: Arc<str>,
    /// The generation in force at the server.
    pub applied: u64,
    /// The generation in the local state.
    pub generation: u64,
}

/// The requests that lead to the desired state, and what remains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The requests, in the order in which they must be sent.
    pub requests: Vec<Request>,
    /// Differences from the desired state that no request can remove.
    pub problems: Vec<Problem>,
    /// Groups of policies whose local state is outdated.
    pub older: Vec<Older>,
}

/// Returns the tag that records a policy's generation. Of all managed tags, only this and the owner's have a colon.
pub fn generation_tag(generation: u64) -> String {
    format!("{GENERATION}{generation}")
}

const GENERATION: &str = "generation:";

/// Returns all tags that a managed group has at the server.
pub fn tags(owner: &str, tag: &str, generation: Option<u64>) -> Vec<String> {
    let generation = generation.map(generation_tag);
    [owner.to_owned(), tag.to_owned()].into_iter().chain(generation).collect()
}

/// Whether `wide` matches everything that `narrow` matches.
fn covers(wide: &SecurityRule, narrow: &SecurityRule) -> bool {
    let ports = || match (wide.ports, narrow.ports) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(wide), Some(narrow)) => wide.first <= narrow.first && narrow.last <= wide.last,
    };
    let remote = || match (&wide.remote, &narrow.remote) {
        (Remote::Any, _) => true,
        (Remote::Prefix(wide), Remote::Prefix(narrow)) => wide.contains(narrow),
        (wide, narrow) => wide == narrow,
    };
    (wide.direction, wide.family) == (narrow.direction, narrow.family)
        && (wide.protocol.is_none() || (wide.protocol == narrow.protocol && ports()))
        && remote()
}

/// The groups and ports of a plan under construction, with its requests so far.
struct Planner<'a> {
    desired: &'a Desired,
    groups: BTreeMap<GroupRef, Group>,
    ports: Vec<Port>,
    plan: Plan,
}

/// Computes the requests that change what is `listed` to what is `desired`. Groups with the tag `owner` are managed. Ports leave other
/// groups, except those in `keep`.
pub fn plan(desired: &Desired, listed: &Listed, owner: &str, keep: &BTreeSet<String>) -> Plan {
    let mut planner = Planner { desired, groups: BTreeMap::new(), ports: Vec::new(), plan: Plan::default() };
    let ours = planner.take_groups(listed, owner);
    planner.take_ports(listed, &ours, keep);
    planner.prepare();
    planner.close();
    planner.open();
    planner.tidy(owner);
    planner.plan
}

impl Planner<'_> {
    fn push(&mut self, request: Request) {
        self.plan.requests.push(request);
    }

    /// Creates missing groups with their rules. No port is in them yet.
    fn prepare(&mut self) {
        let missing =
            self.groups.iter().filter(|(_, group)| group.id.is_none()).map(|(reference, _)| reference.clone());
        for reference in missing.collect::<Vec<_>>() {
            if let GroupRef::Tag(tag) = reference {
                self.push(Request::CreateGroup { tag });
            }
        }
        self.create_rules(|group, _| group.ports == 0);
    }

    /// Creates the missing rules for which `may` returns true.
    fn create_rules(&mut self, may: impl Fn(&Group, &SecurityRule) -> bool) {
        for (reference, group) in &mut self.groups {
            let GroupRef::Tag(tag) = reference else { continue };
            let now: Vec<SecurityRule> = group.missing().filter(|rule| may(group, rule)).cloned().collect();
            for rule in now {
                self.plan.requests.push(Request::CreateRule { tag: tag.clone(), rule: rule.clone() });
                group.now.insert(rule, String::new());
            }
        }
    }

    /// Deletes the unwanted rules for which `may` returns true.
    fn delete_rules(&mut self, may: impl Fn(&Group, &SecurityRule) -> bool) {
        // Rules of a group that is deleted are deleted with the group.
        for (reference, group) in self.groups.iter_mut().filter(|(_, group)| group.wanted.is_some()) {
            let gone: Vec<SecurityRule> =
                group.now.keys().filter(|rule| !group.wants(rule) && may(group, rule)).cloned().collect();
            let odd = std::mem::take(&mut group.odd).into_iter().map(|id| (id, None));
            let gone = gone.into_iter().filter_map(|rule| Some((group.now.remove(&rule)?, Some(rule))));
            for (id, rule) in odd.chain(gone.collect::<Vec<_>>()) {
                self.plan.requests.push(Request::DeleteRule { id, group: reference.clone(), rule });
            }
        }
    }

    fn close(&mut self) {
        self.create_rules(|group, rule| group.now.keys().any(|known| covers(known, rule)));
        let mut ports = std::mem::take(&mut self.ports);
        for port in &mut ports {
            let now = &port.now;
            let is_peer = |group: &GroupRef| matches!(group, GroupRef::Tag(tag) if port.peers.contains(tag));
            let stays = |group: &&GroupRef| port.wanted.contains(*group) || self.may_stay(port, group);
            let comes =
                |group: &&GroupRef| !now.contains(*group) && !is_peer(group) && self.changes_nothing(now, group);
            let next: BTreeSet<GroupRef> =
                now.iter().filter(stays).chain(port.wanted.iter().filter(comes)).cloned().collect();
            if next != port.now {
                let (id, pod) = (port.id.clone(), port.pod.clone());
                self.plan.requests.push(Request::SetPort { id, pod, groups: next.clone() });
                port.now = next;
            }
        }
        self.ports = ports;
        // Rules covered by a wider wanted rule are deleted after that rule exists.
        self.delete_rules(|group, rule| !group.wants_cover_of(rule));
    }

    /// Whether the port may stay in an unwanted group until it has entered the others. They must cover the group's rules, and no rule may
    /// be added to it.
    fn may_stay(&self, port: &Port, group: &GroupRef) -> bool {
        let Some(group) = self.groups.get(group) else { return false };
        let entered = || port.wanted.iter().filter_map(|group| self.groups.get(group));
        // Other rules may name a group without rules.
        let allows = !group.now.is_empty() && group.odd.is_empty();
        allows
            && group.missing().next().is_none()
            && group.now.keys().all(|rule| entered().any(|group| group.wants_cover_of(rule)))
    }

    /// Whether a port in the groups `now` gains no access by entering `group`.
    fn changes_nothing(&self, now: &BTreeSet<GroupRef>, group: &GroupRef) -> bool {
        let Some(group) = self.groups.get(group) else { return false };
        let has = |rule: &SecurityRule| {
            now.iter()
                .filter_map(|group| self.groups.get(group))
                .any(|group| group.now.keys().any(|known| covers(known, rule)))
        };
        group.odd.is_empty() && group.now.keys().all(has)
    }

    fn open(&mut self) {
        self.create_rules(|_, _| true);
        for port in std::mem::take(&mut self.ports) {
            if port.now != port.wanted {
                self.push(Request::SetPort { id: port.id, pod: port.pod, groups: port.wanted });
            }
        }
    }

    fn tidy(&mut self, owner: &str) {
        self.delete_rules(|_, _| true);
        for (reference, group) in std::mem::take(&mut self.groups) {
            let tag = match reference {
                GroupRef::Tag(tag) => Some(tag),
                GroupRef::Id(_) => None,
            };
            match (group.wanted, group.id, tag) {
                (None, Some(id), tag) => self.push(Request::DeleteGroup { id, tag }),
                (Some(_), Some(_), Some(tag)) => {
                    let wanted: BTreeSet<String> = tags(owner, &tag, group.generation).into_iter().collect();
                    if wanted != group.tags.into_iter().collect() {
                        self.push(Request::SetTags { tag });
                    }
                }
                _ => {}
            }
        }
    }
}
