//! The answer of `bulkhead resolve`.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use bulkhead_control::object::TrafficPolicy;
use bulkhead_control::service::{
    Action, Answer, Client, Clients, Decision, List, Owner, Place, Reached, ResolvedPort, Resolver, Settings, Unused,
    Vip, VipKind,
};
use serde::Serialize;

use crate::args::Destination;
use crate::output::{Columns, printable, some_of};

/// Maximum number of ports or Services named in one line.
const MAX_NAMED: usize = 8;

/// What a node does with a connection. The JSON has only the fields that programs need.
#[derive(Debug, Serialize)]
pub struct Told {
    /// What the node does with the first packet: `dnat`, `reject`, `drop` or `pass`.
    pub action: &'static str,
    /// `namespace/name` of the Service. `None` if the destination belongs to no Service.
    pub service: Option<String>,
    /// All possible backends.
    pub backends: Vec<SocketAddr>,
    /// Backends for which the client's address is rewritten too.
    pub rewrite_source: Vec<SocketAddr>,
    /// The reason for `action`.
    pub why: String,
    /// The Service, or the pod with the host port. `None` if the destination belongs to neither.
    #[serde(skip)]
    pub owner: Option<String>,
    #[serde(skip)]
    question: String,
    /// Node of each backend. `None` if unknown.
    #[serde(skip)]
    pub places: Vec<Option<Arc<str>>>,
    #[serde(skip)]
    node: Arc<str>,
    /// Notes, one per line.
    #[serde(skip)]
    pub remarks: Vec<String>,
    /// Endpoints that get no new connections, with the reason.
    #[serde(skip)]
    pub unused: Vec<Unused>,
}

impl Told {
    /// Converts a resolver's decision on one connection to a printable answer.
    pub fn new(
        resolver: &Resolver,
        settings: &Settings,
        clients: &Clients,
        client: Client,
        to: Destination,
        decision: &Decision,
    ) -> Self {
        let choices = match &decision.answer {
            Answer::Backends(choices) => &choices[..],
            _ => &[],
        };
        let socket = |choice: &bulkhead_control::service::Choice| resolver.backend(choice.backend).socket();
        let backends: Vec<SocketAddr> = choices.iter().map(socket).collect();
        let rewritten = choices.iter().filter(|choice| choice.rewrites_source).map(socket).collect();
        let known = decision.reached.map_or(Vec::new(), |reached| resolver.places(reached.port, reached.list));
        let place = |backend: &SocketAddr| known.iter().find(|(socket, _)| socket == backend)?.1.clone();
        let told_from = clients.told(client.address).unwrap_or_else(|| place_name(client.place).to_owned());
        let action = match decision.answer.action() {
            Action::Translate => "dnat",
            Action::Reject => "reject",
            Action::Drop => "drop",
            Action::Pass => "pass",
        };
        Self {
            action,
            owner: match decision.reached.and_then(|reached| resolver.port(reached.port)) {
                Some(port) => Some(port.name.owner.to_string()),
                None => decision.service.as_ref().map(ToString::to_string),
            },
            service: decision.service.as_ref().map(ToString::to_string),
            places: backends.iter().map(place).collect(),
            backends,
            rewrite_source: rewritten,
            why: why(resolver, settings, client, to, decision),
            question: format!("{} ({told_from}) -> {to} at node {}", client.address, resolver.node()),
            node: resolver.node().clone(),
            remarks: decision.reached.map_or(Vec::new(), |reached| remarks(resolver, to, reached)),
            unused: decision.reached.map_or(Vec::new(), |reached| resolver.unused(reached)),
        }
    }

    /// Writes the verdict in one line, the backends, and the reasons for unused endpoints.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let service = self.service.as_ref().map_or(String::new(), |service| format!(", service {service}"));
        writeln!(out, "{}: {}{}", printable(&self.question), self.action.to_uppercase(), printable(&service))?;
        writeln!(out, "because: {}", printable(&self.why))?;
        for remark in &self.remarks {
            writeln!(out, "{}", printable(remark))?;
        }
        if !self.backends.is_empty() {
            writeln!(out)?;
            let mut table = Columns::new(&["BACKEND", "NODE", "SOURCE"]);
            for (backend, place) in self.backends.iter().zip(&self.places) {
                let node = match place {
                    Some(node) if *node == self.node => format!("{node} (this one)"),
                    Some(node) => node.to_string(),
                    None => "-".to_owned(),
                };
                let source = if self.rewrite_source.contains(backend) { "rewritten" } else { "kept" };
                table.row([backend.to_string(), node, source.to_owned()]);
            }
            table.write(out)?;
        }
        if !self.unused.is_empty() {
            writeln!(out)?;
            let mut table = Columns::new(&["NOT USED", "WHY"]);
            for Unused { what, why } in &self.unused {
                table.row([what.clone(), why.clone()]);
            }
            table.write(out)?;
        }
        Ok(())
    }
}

fn place_name(place: Place) -> &'static str {
    match place {
        Place::Pod => "a pod of this node",
        Place::OtherPod => "a pod of another node",
        Place::Host => "this node",
        Place::Outside => "outside the cluster",
    }
}

fn why(resolver: &Resolver, settings: &Settings, client: Client, to: Destination, decision: &Decision) -> String {
    let answer = &decision.answer;
    let Some((reached, port)) = decision.reached.and_then(|reached| Some((reached, resolver.port(reached.port)?)))
    else {
        return match answer {
            Answer::UnknownPort => format!("{answer}{}", its_ports(resolver, to)),
            Answer::NotOurs if settings.service_cidrs.is_empty() => {
                format!(
                    "{answer}; without service_cidrs in --settings it is unknown whether the address belongs to a Service"
                )
            }
            _ => answer.to_string(),
        };
    };
    let (kind, policy) = (reached.kind.name(), policy_of(port, reached));
    if reached.kind == VipKind::HostPort {
        // A host port has no traffic policy.
        return format!("by {kind} {}/{} of {}", port.name.port, port.name.transport, port.name.owner);
    }
    let name = if port.name.port.is_empty() { String::new() } else { format!(", port {}", port.name.port) };
    let list = match (reached.list, policy.1) {
        (List::Cluster, TrafficPolicy::Cluster) => String::new(),
        (List::Local, _) => ", so that only endpoints of this node count".to_owned(),
        (List::Cluster, TrafficPolicy::Local) => {
            format!(", which is for clients outside: from {} all endpoints count", place_name(client.place))
        }
    };
    format!("by its {kind}{name}, {}TrafficPolicy {}{list}; {answer}", policy.0, policy.1.name())
}

fn policy_of(port: &ResolvedPort, reached: Reached) -> (&'static str, TrafficPolicy) {
    match reached.kind {
        VipKind::ClusterIp => ("internal", port.internal_policy),
        _ => ("external", port.external_policy),
    }
}

/// Returns the ports of a cluster IP as text, for a user who named another port: `: it has 80/TCP`. Empty if it has none.
fn its_ports(resolver: &Resolver, to: Destination) -> String {
    let mut vips: Vec<Vip> = resolver.vips().filter(|vip| vip.address == to.address).copied().collect();
    vips.sort_unstable_by_key(|vip| (vip.port, vip.transport));
    let ports: Vec<String> = vips.iter().map(|vip| format!("{}/{}", vip.port, vip.transport)).collect();
    let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
    if ports.is_empty() { String::new() } else { format!(": it has {}", some_of(&ports, MAX_NAMED)) }
}

/// Returns notes on session affinity and on other owners that claim the address.
fn remarks(resolver: &Resolver, to: Destination, reached: Reached) -> Vec<String> {
    let mut remarks = Vec::new();
    let affinity = resolver.port(reached.port).and_then(|port| port.affinity);
    remarks.extend(affinity.map(|seconds| {
        format!(
            "sessionAffinity ClientIP: a client stays with its backend until {seconds} s after its last new connection"
        )
    }));
    if let Some((transport, port)) = to.port {
        let vip = Vip { address: to.address, transport, port };
        let mut others: Vec<&Owner> = resolver.claimants(&vip).skip(1).collect();
        others.dedup();
        let others: Vec<String> = others.iter().map(ToString::to_string).collect();
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        if !others.is_empty() {
            remarks.push(format!(
                "claimed in vain by {}: cluster addresses and node ports come first, then load balancers, then pods' host ports, then \
                 external addresses; of one kind the older Service or pod",
                some_of(&others, MAX_NAMED)
            ));
        }
    }
    remarks
}
