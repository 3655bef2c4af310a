//! Compares the server's state with the desired one, for each group and port.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::{GENERATION, GroupRef, Listed, ListedGroup, ListedPort, ListedRule, Older, Planner, Problem, covers};
use crate::object::PodName;
use crate::renderer::neutron::{Attachment, Remote, SecurityRule};

/// The current and desired state of a group.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// The ID at the server. `None` until the group is created.
    pub(super) id: Option<String>,
    pub(super) tags: Vec<String>,
    pub(super) now: BTreeMap<SecurityRule, String>,
    /// IDs of the group's rules that Bulkhead would not write.
    pub(super) odd: Vec<String>,
    /// The desired rules. `None` if the group is being removed.
    pub(super) wanted: Option<BTreeSet<SecurityRule>>,
    pub(super) generation: Option<u64>,
    /// Number of ports in the group before the plan's first request.
    pub(super) ports: usize,
}

impl Group {
    pub(super) fn missing(&self) -> impl Iterator<Item = &SecurityRule> {
        self.wanted.iter().flatten().filter(|rule| !self.now.contains_key(rule))
    }

    pub(super) fn wants(&self, rule: &SecurityRule) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| wanted.contains(rule))
    }

    pub(super) fn wants_cover_of(&self, rule: &SecurityRule) -> bool {
        self.wanted.iter().flatten().any(|wanted| covers(wanted, rule))
    }
}

/// The current and desired groups of a port.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) id: String,
    pub(super) pod: Option<PodName>,
    pub(super) now: BTreeSet<GroupRef>,
    pub(super) wanted: BTreeSet<GroupRef>,
    /// The tags of the wanted groups that rules name as remote groups.
    pub(super) peers: BTreeSet<Arc<str>>,
}

impl Planner<'_> {
    /// Reads the listed groups. Returns each group's reference by its ID.
    pub(super) fn take_groups(&mut self, listed: &Listed, owner: &str) -> BTreeMap<String, GroupRef> {
        let mut ours: BTreeMap<String, GroupRef> = BTreeMap::new();
        let mut by_id: Vec<&ListedGroup> = listed.groups.iter().collect();
        by_id.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        let mut taken = BTreeSet::new();
        for group in &by_id {
            let is_ours = group.tags.iter().any(|tag| tag == owner);
            let mut names = group.tags.iter().filter(|tag| *tag != owner && !tag.starts_with(GENERATION));
            let name = names.next().filter(|_| is_ours);
            // If two groups have one tag, because a server's answer was lost, one of them is kept.
            let reference = match name {
                Some(name) if taken.insert(name.clone()) => GroupRef::Tag(name.as_str().into()),
                _ => GroupRef::Id(group.id.clone()),
            };
            ours.insert(group.id.clone(), reference);
        }
        for group in by_id {
            let reference = ours[&group.id].clone();
            let (mut now, mut odd) = (BTreeMap::new(), Vec::new());
            for ListedRule { id, rule } in &group.rules {
                let rule = rule.clone().map(|rule| SecurityRule { remote: renamed(&rule.remote, &ours), ..rule });
                match rule {
                    Some(rule) if !now.contains_key(&rule) => drop(now.insert(rule, id.clone())),
                    _ => odd.push(id.clone()),
                }
            }
            let (id, tags) = (Some(group.id.clone()), group.tags.clone());
            self.groups.insert(reference, Group { id, tags, now, odd, ..Group::default() });
        }
        for (tag, wanted) in &self.desired.groups {
            let group = self.groups.entry(GroupRef::Tag(tag.clone())).or_default();
            group.wanted = Some(wanted.rules.clone());
            group.generation = wanted.generation;
            let applied = group.tags.iter().find_map(|tag| tag.strip_prefix(GENERATION)?.parse::<u64>().ok());
            if let (Some(applied), Some(generation)) = (applied, wanted.generation)
                && applied > generation
            {
                self.plan.older.push(Older { tag: tag.clone(), applied, generation });
            }
        }
        ours
    }

    pub(super) fn take_ports(&mut self, listed: &Listed, ours: &BTreeMap<String, GroupRef>, keep: &BTreeSet<String>) {
        let mut by_address: BTreeMap<IpAddr, Vec<usize>> = BTreeMap::new();
        for (at, port) in listed.ports.iter().enumerate() {
            port.addresses.iter().for_each(|address| by_address.entry(*address).or_default().push(at));
        }
        let mut pods: BTreeMap<usize, (&PodName, &Attachment)> = BTreeMap::new();
        for (pod, attachment) in &self.desired.ports {
            let of = attachment.addresses.iter().filter_map(|address| by_address.get(address)).flatten();
            let of: BTreeSet<usize> = of.copied().collect();
            match &of.iter().collect::<Vec<_>>()[..] {
                [] => self.plan.problems.push(Problem::NoPort(pod.clone())),
                [at] if !listed.ports[**at].secured => {
                    let port = listed.ports[**at].id.clone();
                    self.plan.problems.push(Problem::Unsecured { pod: pod.clone(), port });
                }
                [at] => drop(pods.insert(**at, (pod, attachment))),
                several => {
                    let ports: Vec<&str> = several.iter().map(|at| &*listed.ports[**at].id).collect();
                    self.plan.problems.push(Problem::SeveralPorts { pod: pod.clone(), ports: ports.join(", ") });
                }
            }
        }
        for (at, port) in listed.ports.iter().enumerate() {
            let refer = |id: &String| ours.get(id).cloned().unwrap_or_else(|| GroupRef::Id(id.clone()));
            let now: BTreeSet<GroupRef> = port.groups.iter().map(refer).collect();
            let foreign = |id: &&String| !ours.contains_key(*id);
            let (pod, wanted, peers) = match pods.get(&at) {
                Some((pod, attachment)) => {
                    let (groups, peers) = self.wanted(pod, attachment, port);
                    let kept = port.groups.iter().filter(foreign).filter(|id| keep.contains(*id));
                    let groups = groups.into_iter().map(GroupRef::Tag);
                    (Some((*pod).clone()), groups.chain(kept.cloned().map(GroupRef::Id)).collect(), peers)
                }
                // A port without a pod leaves managed groups and stays in others.
                None => {
                    let left = port.groups.iter().filter(foreign).cloned().map(GroupRef::Id).collect();
                    (None, left, BTreeSet::new())
                }
            };
            for group in &now {
                if let Some(group) = self.groups.get_mut(group) {
                    group.ports += 1;
                }
            }
            if now != wanted {
                self.ports.push(Port { id: port.id.clone(), pod, now, wanted, peers });
            }
        }
    }

    /// Returns the groups of a pod's port, and those of them that rules name as remote groups.
    fn wanted(
        &mut self,
        pod: &PodName,
        attachment: &Attachment,
        port: &ListedPort,
    ) -> (BTreeSet<Arc<str>>, BTreeSet<Arc<str>>) {
        let own: BTreeSet<String> = attachment.addresses.iter().map(ToString::to_string).collect();
        let all = port.addresses.iter().map(ToString::to_string).chain(port.pairs.iter().cloned());
        let others: Vec<String> = all.filter(|address| !own.contains(address)).collect();
        if others.is_empty() || attachment.peers.is_empty() {
            return (attachment.groups.clone(), attachment.peers.clone());
        }
        let (pod, port, others) = (pod.clone(), port.id.clone(), others.join(", "));
        self.plan.problems.push(Problem::OtherAddresses { pod, port, others });
        (&attachment.groups - &attachment.peers, BTreeSet::new())
    }
}

/// Replaces the ID of a managed remote group with its tag.
fn renamed(remote: &Remote, ours: &BTreeMap<String, GroupRef>) -> Remote {
    match remote {
        Remote::Group(id) => match ours.get(&**id) {
            Some(GroupRef::Tag(tag)) => Remote::Group(tag.clone()),
            _ => Remote::Group(id.clone()),
        },
        other => other.clone(),
    }
}
