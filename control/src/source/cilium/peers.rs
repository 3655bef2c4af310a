//! Reads the other end of Cilium's rules.

use std::sync::Arc;

use bulkhead_classifier::NamePattern;
use ipnet::IpNet;

use super::super::address::parse_address;
use super::super::error::{Problem, quoted};
use super::super::labels::selector;
use super::super::path::FieldPath;
use super::super::policy::block_of;
use super::super::raw::{List, Mapping, RawSelector};
use super::Reader;
use super::entities::Entities;
use super::raw::{RawCidrRule, RawEntry, RawName, RawService};
use super::selectors::{Selected, Use};
use crate::foreign::cilium::outside;
use crate::foreign::cilium::{Who, every_pod};
use crate::object::{IpBlock, Peer, Region};
use crate::origin::Direction;

/// The other end of a rule.
pub(super) enum Peers {
    /// No field of peers is set. With ports: everybody; without: nobody.
    Absent,
    /// Everybody.
    Everybody,
    /// These peers. Without any: nobody.
    Listed(Vec<Who>),
}

/// Whether a peer has pods, which may have named ports.
pub(super) fn has_pods(who: &Who) -> bool {
    matches!(who, Who::Peer(Peer::Pods(_)) | Who::Service { .. } | Who::Services { .. })
}

impl Reader<'_> {
    /// Returns the other end of a rule. `None` and a problem if it is invalid.
    pub(super) fn peers(&mut self, direction: Direction, raw: &RawEntry, base: &FieldPath) -> Option<Peers> {
        let word = if direction == Direction::Ingress { "from" } else { "to" };
        let path = |field: &str| base.key(&format!("{word}{field}"));
        self.refuse(raw, &path);
        let lengths = [
            ("Endpoints", raw.endpoints.as_ref().map(Vec::len)),
            ("CIDR", raw.cidr.as_ref().map(Vec::len)),
            ("CIDRSet", raw.cidr_set.as_ref().map(Vec::len)),
            ("Entities", raw.entities.as_ref().map(Vec::len)),
            ("Nodes", raw.nodes.as_ref().map(Vec::len)),
            ("Services", raw.services.as_ref().map(Vec::len)),
            ("FQDNs", raw.names.as_ref().map(Vec::len)),
        ];
        let set: Vec<_> = lengths.into_iter().filter_map(|(field, length)| Some((field, length?))).collect();
        let full: Vec<_> = set.iter().filter(|(_, length)| *length > 0).collect();
        if let [(first, _), (second, _), ..] = &full[..] {
            let text = format!("`{word}{first}` and `{word}{second}` cannot be combined in one element");
            return self.fail(Problem::new(base, text, "write two elements, each after a `- `"));
        }
        if let Some((field, _)) =
            set.iter().find(|(field, length)| *length == 0 && ["Services", "FQDNs"].contains(field))
        {
            let text = format!(
                "`{word}{field}` is empty, which means nobody in some versions of Cilium and everybody in others"
            );
            return self.fail(Problem::new(&path(field), text, "remove it"));
        }
        if set.iter().any(|(_, length)| *length == 0) {
            return Some(Peers::Listed(Vec::new()));
        }
        let Some((field, _)) = full.first() else { return Some(Peers::Absent) };
        let path = path(field);
        match *field {
            "Endpoints" => self.endpoints(direction, &raw.endpoints, &path),
            "CIDR" => Some(Peers::Listed(self.cidrs(raw.cidr.as_deref().unwrap_or_default(), &path))),
            "CIDRSet" => Some(Peers::Listed(self.cidr_set(&raw.cidr_set, &path))),
            "Entities" => {
                let mut entities = Entities::default();
                for (at, name) in raw.entities.iter().flatten().enumerate() {
                    entities.add(name, &path.index(at), self.findings);
                }
                self.entities(direction, &entities, Vec::new(), &path)
            }
            "Services" => Some(Peers::Listed(self.services(&raw.services, &path))),
            "FQDNs" => self.names(&raw.names, &path),
            _ => None,
        }
    }

    /// Adds problems for fields that rules about pods cannot express.
    fn refuse(&mut self, raw: &RawEntry, path: &dyn Fn(&str) -> FieldPath) {
        let requires = "requirements are not supported; Cilium removed them in version 1.19";
        let (groups, nodes) = ("groups of a cloud provider are not supported", "nodes by label are not supported");
        for (field, list, text, help) in [
            ("Requires", &raw.requires, requires, "add the labels to the selectors of the rules"),
            ("Groups", &raw.groups, groups, "write their addresses, in a CiliumCIDRGroup or in the rule"),
            ("Nodes", &raw.nodes, nodes, "write the entities `host` and `remote-node`, or the nodes' addresses"),
        ] {
            if list.as_ref().is_some_and(|list| !list.is_empty()) {
                self.findings.problem(&path(field), text, help);
            }
        }
    }

    fn entities(
        &mut self,
        direction: Direction,
        entities: &Entities,
        mut peers: Vec<Who>,
        path: &FieldPath,
    ) -> Option<Peers> {
        Some(match entities.peers(direction, path, self.findings)? {
            None => Peers::Everybody,
            Some(more) => {
                peers.extend(more);
                Peers::Listed(peers)
            }
        })
    }

    fn endpoints(&mut self, direction: Direction, raw: &List<RawSelector>, base: &FieldPath) -> Option<Peers> {
        let (mut peers, mut entities) = (Vec::new(), Entities::default());
        for (at, Mapping(raw)) in raw.iter().flatten().enumerate() {
            let path = base.index(at);
            match self.selector(raw, Use::Peer, &path) {
                Some(Selected::Pods(pods)) => peers.push(Who::Peer(Peer::Pods(pods))),
                Some(Selected::PodsAndOthers(pods)) => {
                    let others = Region { all: Vec::new(), none: vec![Peer::Pods(every_pod())] };
                    peers.extend([Peer::Pods(pods), Peer::Region(Arc::new(others))].map(Who::Peer));
                }
                Some(Selected::Reserved(name)) => entities.add(&name, &path, self.findings),
                Some(Selected::Nothing) | None => {}
            }
        }
        if entities.is_empty() {
            return Some(Peers::Listed(peers));
        }
        self.entities(direction, &entities, peers, base)
    }

    /// Returns the blocks of a list in which a block may also be written as an address.
    fn cidrs(&mut self, texts: &[String], base: &FieldPath) -> Vec<Who> {
        let mut all = Vec::new();
        for (at, text) in texts.iter().enumerate() {
            let cidr = match parse_address(text) {
                Ok(address) => Some(address.into()),
                Err(_) => block_of(text, &base.index(at), self.findings),
            };
            all.extend(cidr.map(|cidr| Who::Block(IpBlock { cidr, except: Vec::new() })));
        }
        all
    }

    fn cidr_set(&mut self, raw: &List<RawCidrRule>, base: &FieldPath) -> Vec<Who> {
        let mut all = Vec::new();
        for (at, Mapping(raw)) in raw.iter().flatten().enumerate() {
            all.extend(self.cidr_rule(raw, &base.index(at)));
        }
        all
    }

    fn cidr_rule(&mut self, raw: &RawCidrRule, base: &FieldPath) -> Option<Who> {
        let mut except = Vec::new();
        for (at, text) in raw.except.iter().flatten().enumerate() {
            except.push(block_of(text, &base.key("except").index(at), self.findings));
        }
        let except: Vec<IpNet> = except.into_iter().collect::<Option<_>>()?;
        match (&raw.cidr, &raw.cidr_group_ref, &raw.cidr_group_selector) {
            (Some(text), None, None) => {
                let cidr = block_of(text, &base.key("cidr"), self.findings)?;
                for (at, block) in except.iter().enumerate() {
                    if !cidr.contains(block) {
                        let text = format!("{block} is not inside cidr {cidr}");
                        let path = base.key("except").index(at);
                        self.findings.problem(&path, text, "write a block of the cidr, of the same address family");
                    }
                }
                if except.contains(&cidr) {
                    // Nothing is left of the block.
                    return None;
                }
                Some(Who::Block(IpBlock { cidr, except }))
            }
            (None, Some(name), None) => Some(Who::Group { name: name.as_str().into(), except }),
            (None, None, Some(Mapping(raw))) => {
                let selector = selector(raw, &base.key("cidrGroupSelector"), self.findings)?;
                Some(Who::Groups { selector, except })
            }
            _ => {
                let text = "exactly one of `cidr`, `cidrGroupRef` and `cidrGroupSelector` is required";
                self.fail(Problem::new(base, text, "write one of them in each element"))
            }
        }
    }

    fn services(&mut self, raw: &List<RawService>, base: &FieldPath) -> Vec<Who> {
        let mut all = Vec::new();
        for (at, Mapping(raw)) in raw.iter().flatten().enumerate() {
            all.extend(self.service(raw, &base.index(at)));
        }
        all
    }

    fn service(&mut self, raw: &RawService, base: &FieldPath) -> Option<Who> {
        let namespace = |text: &Option<String>| text.as_deref().filter(|text| !text.is_empty()).map(Arc::from);
        match (&raw.k8s_service, &raw.k8s_service_selector) {
            (Some(Mapping(service)), None) => match service.service_name.as_deref().filter(|name| !name.is_empty()) {
                Some(name) => Some(Who::Service { namespace: namespace(&service.namespace), name: name.into() }),
                None => {
                    let path = base.key("k8sService");
                    self.fail(Problem::new(&path, "missing field `serviceName`", "add the Service's name"))
                }
            },
            (None, Some(Mapping(services))) => {
                let path = base.key("k8sServiceSelector").key("selector");
                let Some(Mapping(raw)) = &services.selector else {
                    return self.fail(Problem::new(
                        &path,
                        "missing field `selector`",
                        "write `selector: {}` for every Service",
                    ));
                };
                let selector = selector(raw, &path, self.findings)?;
                Some(Who::Services { namespace: namespace(&services.namespace), selector })
            }
            _ => {
                let text = "exactly one of `k8sService` and `k8sServiceSelector` is required";
                self.fail(Problem::new(base, text, "write one of them in each element"))
            }
        }
    }

    fn names(&mut self, raw: &List<RawName>, base: &FieldPath) -> Option<Peers> {
        let mut all: Vec<Arc<str>> = Vec::new();
        for (at, Mapping(raw)) in raw.iter().flatten().enumerate() {
            let path = base.index(at);
            let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
            let (field, text, stars) = match (text(&raw.match_name), text(&raw.match_pattern)) {
                (Some(name), None) => ("matchName", name, false),
                (None, Some(pattern)) => ("matchPattern", pattern, true),
                _ => {
                    let text = "exactly one of `matchName` and `matchPattern` is required";
                    self.findings.problem(&path, text, "write one of them in each element");
                    continue;
                }
            };
            match NamePattern::glob(text.trim()) {
                Ok(pattern) if stars || !text.contains('*') => {
                    // Most names need no form of their own.
                    let plain = text.trim().parse::<NamePattern>().ok().filter(|_| !text.contains('*'));
                    all.push(plain.map_or_else(|| pattern.to_string(), |plain| plain.to_string()).into());
                }
                _ => {
                    let help = "write a name such as www.example.com; a pattern may also have stars";
                    self.findings.problem(&path.key(field), format!("invalid domain name {}", quoted(&text)), help);
                }
            }
        }
        // An address of a pod or node is never taken for that of a name.
        Some(Peers::Listed(vec![Who::Peer(outside(vec![vec![Peer::Names(all.into())]]))]))
    }
}
