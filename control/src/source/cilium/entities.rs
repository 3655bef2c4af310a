//! The entities of Cilium's policies: names for groups of addresses.

use std::collections::BTreeSet;

use super::super::error::{Findings, quoted};
use super::super::names;
use super::super::path::FieldPath;
use crate::foreign::cilium::{Who, every_pod, outside};
use crate::object::{IpBlock, Peer};
use crate::origin::Direction;
use crate::selector::Selector;

/// The entities. Source: Cilium, `pkg/policy/api/entity.go`.
const ALL: [&str; 13] = [
    "all",
    "world",
    "world-ipv4",
    "world-ipv6",
    "cluster",
    "host",
    "remote-node",
    "kube-apiserver",
    "init",
    "ingress",
    "unmanaged",
    "health",
    "none",
];

/// The entities of one rule.
#[derive(Default)]
pub(super) struct Entities(BTreeSet<&'static str>);

impl Entities {
    /// Adds an entity. Adds a problem if there is no entity of this name.
    pub(super) fn add(&mut self, name: &str, path: &FieldPath, findings: &mut Findings) {
        if let Some(known) = ALL.into_iter().find(|known| *known == name) {
            self.0.insert(known);
            return;
        }
        let help = match names::nearest(name, ALL) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("write {}", ALL.join(", ")),
        };
        findings.problem(path, format!("unknown entity {}", quoted(name)), help);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the other end of a rule. `Some(None)` for everybody. `None` and a problem if it cannot be told.
    ///
    /// No pod is in `init`, `ingress`, `unmanaged`, `health` and `none`: these are endpoints of the agent, and pods without Cilium.
    pub(super) fn peers(
        &self,
        direction: Direction,
        path: &FieldPath,
        findings: &mut Findings,
    ) -> Option<Option<Vec<Who>>> {
        let has = |name| self.0.contains(name);
        if has("all") {
            return Some(None);
        }
        let mut peers = Vec::new();
        if has("cluster") {
            peers.push(Who::Peer(Peer::Pods(every_pod())));
        }
        // Traffic from the own node is never denied, so that other nodes are as good as all nodes.
        let is_every_node = has("cluster") || has("remote-node") && (has("host") || direction == Direction::Ingress);
        if is_every_node {
            peers.push(Who::Peer(Peer::Nodes(Selector::everything())));
        } else if has("remote-node") {
            let text = "`remote-node` without `host`: rules cannot tell other nodes from the pod's own node";
            findings.problem(
                path,
                text,
                "add `host` if the own node may be meant, too; or name the nodes' addresses in a NetworkPolicy",
            );
            return None;
        } else if has("host") {
            peers.push(Who::Peer(Peer::OwnNode));
        }
        if has("cluster") || has("kube-apiserver") {
            peers.push(Who::ApiServer);
        }
        for (name, block) in [("world", None), ("world-ipv4", Some("0.0.0.0/0")), ("world-ipv6", Some("::/0"))] {
            if !has(name) {
                continue;
            }
            let all = block
                .and_then(|block| block.parse().ok())
                .map(|cidr| vec![Peer::Block(IpBlock { cidr, except: Vec::new() })]);
            peers.push(Who::Peer(outside(all.into_iter().collect())));
        }
        Some(Some(peers))
    }
}
