//! From what a server has to what it should have: which requests, in which order.
//!
//! ```text
//!  prepare   groups that are missing, with their rules: nothing is attached to them
//!  close     rules that change nothing, for others cover them; ports leave groups; rules go           every end: within the old state
//!  open      rules come; ports enter groups                                                            every end: within the new state
//!  tidy      rules that others cover, groups that nobody needs, and which generation is in force now
//! ```
//! **Invariant.** After each request, no connection passes that neither the old nor the new state lets through. A connection has two ends,
//! and what opens one end while the other has not closed yet would let through what neither state does. So everything closes before
//! anything opens: in between each end allows no more than both states do.
//!
//! What both states allow goes on wherever one rule covers another: a wider rule that takes a narrower one's place comes before that
//! goes, a port that leaves `open_in` for its policy's group does so in one request. What is told apart in no such way (a block in
//! the place of a group, groups of somebody else) is closed between two requests.
//!
//! **What lost.** To open first and close afterwards, as Kuryr does: nothing that both states allow is ever interrupted, but while a
//! thousand ports are changed, one after the other, the first of them is open to others that are to be closed.
//! To swap whole groups, a new one for each change: twice the quota, and all of a policy's ports change for one of its rules.

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

/// A security group in a request: one of ours by its tag, any by its ID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupRef {
    /// Ours; its ID is known when it has been created.
    Tag(Arc<str>),
    /// Somebody else's, or a second one with a tag of ours.
    Id(String),
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Creates a group, without rules, and tags it.
    CreateGroup {
        /// Its tag.
        tag: Arc<str>,
    },
    /// Creates a rule.
    CreateRule {
        /// The group's tag.
        tag: Arc<str>,
        /// The rule, with the tags of groups.
        rule: SecurityRule,
    },
    /// Deletes a rule.
    DeleteRule {
        /// Its ID.
        id: String,
        /// The group.
        group: GroupRef,
        /// What it says, where that is understood.
        rule: Option<SecurityRule>,
    },
    /// Puts a port into these groups and no others.
    SetPort {
        /// Its ID.
        id: String,
        /// Its pod; none where the port is no pod's any more.
        pod: Option<PodName>,
        /// The groups.
        groups: BTreeSet<GroupRef>,
    },
    /// Deletes a group.
    DeleteGroup {
        /// Its ID.
        id: String,
        /// Its tag, where it has one.
        tag: Option<Arc<str>>,
    },
    /// Gives a group its tags, with the generation that is in force.
    SetTags {
        /// The group's tag.
        tag: Arc<str>,
    },
}

/// What cannot be as it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The server knows no port of the pod.
    #[error("pod {0} has no port with its address")]
    NoPort(PodName),
    /// It knows several.
    #[error("pod {pod} has the addresses of several ports: {ports}")]
    SeveralPorts {
        /// The pod.
        pod: PodName,
        /// The ports' IDs.
        ports: String,
    },
    /// It applies no groups to the port.
    #[error("port {port} of pod {pod} has no port security: no group applies to it, everything passes")]
    Unsecured {
        /// The pod.
        pod: PodName,
        /// The port's ID.
        port: String,
    },
    /// A rule that names the port's group would mean these as well.
    #[error(
        "port {port} of pod {pod} has other addresses than the pod ({others}): rules that name the pod do not mean it"
    )]
    OtherAddresses {
        /// The pod.
        pod: PodName,
        /// The port's ID.
        port: String,
        /// The other addresses.
        others: String,
    },
}

impl Problem {
    /// Whether something passes that should not.
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::Unsecured { .. } | Self::SeveralPorts { .. })
    }
}

/// A group at the server is of a later generation of its policy than the state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("group {tag} is of generation {applied} of its policy, the state has {generation}")]
pub struct Older {
    /// The group's tag.
    pub tag: Arc<str>,
    /// What is in force.
    pub applied: u64,
    /// What the state has.
    pub generation: u64,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In this order.
    pub requests: Vec<Request>,
    /// What is left.
    pub problems: Vec<Problem>,
    /// Groups of policies that the state is behind of.
    pub older: Vec<Older>,
}

/// The tag of a generation. No other tag of ours has a colon but the owner's.
pub fn generation_tag(generation: u64) -> String {
    format!("{GENERATION}{generation}")
}

const GENERATION: &str = "generation:";

/// All tags that a group of ours has.
pub fn tags(owner: &str, tag: &str, generation: Option<u64>) -> Vec<String> {
    let generation = generation.map(generation_tag);
    [owner.to_owned(), tag.to_owned()].into_iter().chain(generation).collect()
}

/// Whether everything that `narrow` matches is matched by `wide`.
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

/// See the module.
struct Planner<'a> {
    desired: &'a Desired,
    groups: BTreeMap<GroupRef, Group>,
    ports: Vec<Port>,
    plan: Plan,
}

/// The requests that lead from what is `listed` to what is `desired`. Groups with the tag `owner` are ours, ports in groups of others leave
/// these unless they are in `keep`.
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

    /// Makes what nothing is attached to.
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

    /// Creates the rules that are missing and may come now.
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

    /// Deletes rules that are not wanted and may go now.
    fn delete_rules(&mut self, may: impl Fn(&Group, &SecurityRule) -> bool) {
        // Those of a group that is to go, go with it.
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
        // What wider rules take the place of goes when they are there.
        self.delete_rules(|group, rule| !group.wants_cover_of(rule));
    }

    /// Whether the port may stay in a group that it is to leave until it has entered the others: they cover all that the group's
    /// rules allow, and no rule will come to it.
    fn may_stay(&self, port: &Port, group: &GroupRef) -> bool {
        let Some(group) = self.groups.get(group) else { return false };
        let entered = || port.wanted.iter().filter_map(|group| self.groups.get(group));
        // Who is in a group without rules may be named by others.
        let allows = !group.now.is_empty() && group.odd.is_empty();
        allows
            && group.missing().next().is_none()
            && group.now.keys().all(|rule| entered().any(|group| group.wants_cover_of(rule)))
    }

    /// Whether a port in the groups `now` may do no more when it enters another.
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
