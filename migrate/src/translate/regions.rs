//! Regions and nodes as blocks: addresses of this cluster represent conditions that the target does not have.

use std::borrow::Cow;
use std::net::IpAddr;

use bulkhead_classifier::AddressSet;
use bulkhead_control::object::{IpBlock, Peer, Pod, PodPeer, Region};
use bulkhead_control::selector::Selector;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::meet::{is_everyone, meet_pods};
use super::say::Say;
use super::terms::Step;

impl Say<'_> {
    /// Returns the peers of a region.
    pub(super) fn region(&mut self, step: &Step, region: &Region) -> Result<Vec<Peer>, String> {
        if let Some((names, rest)) = region.names() {
            // Cilium's names, after a Pass of pods and nodes.
            if !rest.all.is_empty() || !rest.none.is_empty() {
                return Err("it names domains and another condition at once".into());
            }
            return self.peer(step, &Peer::Names(names.into()));
        }
        let is_pod = |peer: &Peer| matches!(peer, Peer::Pods(_));
        let mut blocks: Vec<&Vec<Peer>> = Vec::new();
        let mut pods: Option<Vec<PodPeer>> = None;
        for union in &region.all {
            match union.iter().all(is_pod) {
                false if union.iter().any(is_pod) => {
                    return Err("it combines blocks with pods or networks at once".into());
                }
                false => blocks.push(union),
                true => {
                    let own: Vec<PodPeer> = union
                        .iter()
                        .filter_map(|peer| match peer {
                            Peer::Pods(pods) => Some(pods.clone()),
                            _ => None,
                        })
                        .collect();
                    pods = Some(match pods {
                        None => own,
                        Some(before) => {
                            before.iter().flat_map(|one| own.iter().filter_map(|other| meet_pods(one, other))).collect()
                        }
                    });
                }
            }
        }
        match pods {
            Some(pods) => self.pods_in(step, region, &pods),
            None => self.blocks_of(step, region, &blocks),
        }
    }

    /// Returns the pods of a region with conditions on addresses, if these make no difference for pods of this cluster.
    fn pods_in(&mut self, step: &Step, region: &Region, pods: &[PodPeer]) -> Result<Vec<Peer>, String> {
        let mut all = Vec::new();
        for peer in pods {
            let selected = self.cluster.cache.pods_of_peer(peer);
            let selected =
                selected.iter().filter_map(|key| self.cluster.cache.pod(*key)).filter(|pod| pod.is_endpoint());
            let mut addresses = selected.flat_map(|pod| pod.addresses.iter().map(move |address| (pod, *address)));
            if let Some((pod, address)) = addresses.find(|(pod, address)| !self.contains(region, pod, *address)) {
                return Err(format!(
                    "it combines pods with blocks, and some of the pods are not in them: {} ({address})",
                    pod.name
                ));
            }
            all.extend(self.pods(step, peer)?.into_iter().map(Peer::Pods));
        }
        self.report.only_here(step, "a pod with these labels and an address outside of the rule's blocks");
        Ok(all)
    }

    /// Whether a pod's address is in the region.
    fn contains(&self, region: &Region, pod: &Pod, address: IpAddr) -> bool {
        let is_in = |peer: &Peer| match peer {
            Peer::Pods(pods) => self.cluster.cache.is_selected(pods, pod),
            Peer::Block(block) => {
                block.cidr.contains(&address) && !block.except.iter().any(|except| except.contains(&address))
            }
            _ => false,
        };
        region.all.iter().all(|union| union.iter().any(is_in)) && !region.none.iter().any(is_in)
    }

    /// Returns the blocks that are in all unions and in no peer of `none`.
    fn blocks_of(&mut self, step: &Step, region: &Region, unions: &[&Vec<Peer>]) -> Result<Vec<Peer>, String> {
        let set = |peers: &[Peer]| -> Result<AddressSet, String> {
            let mut all = AddressSet::default();
            for peer in peers {
                let own = match peer {
                    Peer::Block(IpBlock { cidr, except }) => {
                        let except: AddressSet = except.iter().copied().collect();
                        AddressSet::from_iter([*cidr]).subtract(&except)
                    }
                    Peer::Nodes(selector) => self.nodes(selector).into_owned(),
                    _ => return Err("it combines conditions that the target cannot".into()),
                };
                all = all.union(&own);
            }
            Ok(all)
        };
        let everything = || AddressSet::from_iter([IpNet::from(Ipv4Net::default()), Ipv6Net::default().into()]);
        let mut inside = everything();
        for union in unions {
            inside = inside.intersect(&set(union)?);
        }
        let mut outside = AddressSet::default();
        let mut notes = Vec::new();
        for peer in &region.none {
            match peer {
                Peer::Pods(pods) => {
                    if is_everyone(peer) {
                        outside = outside.union(self.cluster.every_pod());
                        notes.push("a pod with an address in the rule's networks, outside of the nodes' podCIDRs");
                    } else {
                        outside = outside.union(&self.addresses_of(pods));
                        notes.push("a pod that the negated selector selects, and that this cluster does not have");
                    }
                }
                Peer::Nodes(selector) => {
                    outside = outside.union(&self.nodes(selector));
                    notes.push(
                        "a node with an address in the rule's networks, which is not one of this cluster's nodes",
                    );
                }
                other => outside = outside.union(&set(std::slice::from_ref(other))?),
            }
        }
        for note in notes {
            self.report.only_here(step, note);
        }
        Ok(self.with_except(region, &inside, &outside))
    }

    /// Returns the blocks of the one set without those of the other.
    fn with_except(&self, region: &Region, inside: &AddressSet, outside: &AddressSet) -> Vec<Peer> {
        // The blocks as written, if they are one union: their form is the author's.
        let written: Vec<IpNet> = match &region.all[..] {
            [union] if union.iter().all(|peer| matches!(peer, Peer::Block(block) if block.except.is_empty())) => {
                let cidr = |peer: &Peer| match peer {
                    Peer::Block(block) => Some(block.cidr),
                    _ => None,
                };
                union.iter().filter_map(cidr).collect()
            }
            _ => inside.prefixes().collect(),
        };
        let block = |cidr: IpNet| {
            let except: Vec<IpNet> = AddressSet::from_iter([cidr]).intersect(outside).prefixes().collect();
            let is_nothing = except.contains(&cidr);
            (!is_nothing).then_some(Peer::Block(IpBlock { cidr, except }))
        };
        written.into_iter().filter_map(block).collect()
    }

    /// Returns the addresses of the nodes that a selector selects.
    fn nodes(&self, selector: &Selector) -> Cow<'_, AddressSet> {
        if selector.requirements().is_empty() {
            return Cow::Borrowed(self.cluster.every_node());
        }
        let nodes = self.cluster.cache.nodes().values().filter(|node| selector.matches(&node.labels));
        Cow::Owned(nodes.flat_map(|node| node.addresses.iter().copied()).collect())
    }

    /// Returns the addresses of the endpoints that a peer selects.
    fn addresses_of(&self, pods: &PodPeer) -> AddressSet {
        let selected = self.cluster.cache.pods_of_peer(pods);
        let own = selected.iter().filter_map(|key| self.cluster.cache.pod(*key));
        own.flat_map(|pod| pod.addresses.iter().copied()).collect()
    }

    /// Returns addresses of nodes as blocks, for NetworkPolicies.
    pub(super) fn node_blocks(&mut self, step: &Step, selector: &Selector) -> Vec<Peer> {
        self.report.only_here(step, "a node that this cluster does not have");
        let nodes = self.nodes(selector);
        nodes.prefixes().map(|cidr| Peer::Block(IpBlock { cidr, except: Vec::new() })).collect()
    }
}
