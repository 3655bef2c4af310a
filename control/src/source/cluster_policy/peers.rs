//! Reads peers of cluster policies: pods, and for egress also networks, nodes and domain names.

use bulkhead_classifier::NamePattern;

use super::super::error::{Problem, quoted};
use super::super::labels::selector;
use super::super::path::FieldPath;
use super::super::policy::block_of;
use super::super::raw::{List, Mapping};
use super::raw::RawPeer;
use super::{Reader, pods_of};
use crate::object::{ClusterPolicyKind, IpBlock, Peer, RuleAction};
use crate::origin::Direction;
use crate::selector::Selector;

/// Maximum number of networks, and of domain names, in one peer. The same in both API versions.
const MAX_NAMED: usize = 25;

/// Maximum length of a network, in characters.
const MAX_NETWORK: usize = 43;

impl Reader<'_> {
    /// Returns the valid peers of a rule. The rule may be used only if no problem was found.
    pub(super) fn peers(
        &mut self,
        direction: Direction,
        action: Option<RuleAction>,
        raw: &List<RawPeer>,
        base: &FieldPath,
    ) -> Vec<Peer> {
        let raw = raw.as_deref().unwrap_or_default();
        if raw.is_empty() {
            let help = match direction {
                Direction::Ingress => "write `- namespaces: {}` for every pod",
                Direction::Egress => {
                    "write `- namespaces: {}` for every pod, or `- networks: [0.0.0.0/0, '::/0']` for everybody"
                }
            };
            self.findings.problem(base, "the rule has no peers", help);
        }
        self.at_most(raw.len(), "peers", base);
        let mut peers = Vec::new();
        for (at, Mapping(peer)) in raw.iter().enumerate() {
            peers.extend(self.peer(direction, action, peer, &base.index(at)).into_iter().flatten());
        }
        peers
    }

    fn peer(
        &mut self,
        direction: Direction,
        action: Option<RuleAction>,
        raw: &RawPeer,
        base: &FieldPath,
    ) -> Option<Vec<Peer>> {
        match raw.fields().as_slice() {
            [] => {
                let text = "the peer is empty: an API server of another version may have dropped its field";
                let help = "write `namespaces: {}` if every pod is meant; otherwise restore the peer's field";
                return self.fail(Problem::new(base, text, help));
            }
            [_] => {}
            [first, second, ..] => {
                let text = format!("`{first}` and `{second}` cannot be combined in one peer");
                return self.fail(Problem::new(base, text, "write two peers, each after a `- `"));
            }
        }
        for field in raw.fields() {
            if direction == Direction::Ingress && matches!(field, "networks" | "nodes" | "domainNames") {
                let text = format!("`{field}` is for egress only");
                let help = "select pods here; for other sources, write a NetworkPolicy in the namespace";
                return self.fail(Problem::new(&base.key(field), text, help));
            }
        }
        if let Some(Mapping(namespaces)) = &raw.namespaces {
            let namespaces = selector(namespaces, &base.key("namespaces"), self.findings)?;
            return Some(vec![Peer::Pods(pods_of(namespaces, Selector::everything()))]);
        }
        if let Some(Mapping(pods)) = &raw.pods {
            return Some(vec![Peer::Pods(self.pods(pods, &base.key("pods"))?)]);
        }
        if let Some(Mapping(nodes)) = &raw.nodes {
            return Some(vec![Peer::Nodes(selector(nodes, &base.key("nodes"), self.findings)?)]);
        }
        if let Some(networks) = &raw.networks {
            return Some(self.networks(networks, &base.key("networks")));
        }
        let names = raw.domain_names.as_deref().unwrap_or_default();
        Some(self.domain_names(action, names, &base.key("domainNames")))
    }

    /// Adds problems if `values` is empty, too long, or contains a value twice.
    fn check_set(&mut self, values: &[String], what: &str, base: &FieldPath) {
        if values.is_empty() {
            self.findings.problem(base, format!("no {what}"), "add at least one, or remove the peer");
        }
        if values.len() > MAX_NAMED {
            let text = format!("{} {what}: the maximum is {MAX_NAMED}", values.len());
            self.findings.problem(base, text, "split them into several peers");
        }
        if let Some(at) = (1..values.len()).find(|&at| values[..at].contains(&values[at])) {
            self.findings.problem(base, format!("{} is listed twice", quoted(&values[at])), "remove one of the two");
        }
    }

    fn networks(&mut self, networks: &[String], base: &FieldPath) -> Vec<Peer> {
        self.check_set(networks, "networks", base);
        let mut peers = Vec::new();
        for (at, text) in networks.iter().enumerate() {
            let path = base.index(at);
            if text.len() > MAX_NETWORK {
                self.findings.problem(
                    &path,
                    format!("invalid block {}", quoted(text)),
                    "write a block such as 10.0.0.0/8",
                );
            } else if let Some(cidr) = block_of(text, &path, self.findings) {
                peers.push(Peer::Block(IpBlock { cidr, except: Vec::new() }));
            }
        }
        peers
    }

    /// Checks a peer's domain names. Returns them as one peer, or nothing if policies of this kind have no domain names.
    fn domain_names(&mut self, action: Option<RuleAction>, domains: &[String], base: &FieldPath) -> Vec<Peer> {
        if self.kind == ClusterPolicyKind::BaselineAdminNetworkPolicy {
            let text = format!("a {} has no `domainNames`", self.kind.name());
            self.findings.problem(base, text, "use an AdminNetworkPolicy, or write networks");
            return Vec::new();
        }
        self.check_set(domains, "domain names", base);
        let is_valid = |name: &String| name.parse::<NamePattern>().is_ok_and(|pattern| !pattern.is_glob());
        for (at, name) in domains.iter().enumerate().filter(|(_, name)| !is_valid(name)) {
            let help = "write a name such as www.example.com, or `*.` and a name for all that end in it";
            self.findings.problem(&base.index(at), format!("invalid domain name {}", quoted(name)), help);
        }
        if let Some(RuleAction::Deny | RuleAction::Pass) = action {
            let help = "use networks for Deny and Pass: an address may have other names, which no pod has looked up";
            self.findings.problem(base, "domain names are allowed only with Accept", help);
        }
        vec![Peer::Names(domains.iter().map(|name| name.as_str().into()).collect())]
    }
}
