//! Explains how the vswitch would treat a new connection: judges its first packet and the reply against the snapshot in force.
//!
//! A separate worker with the same code and an empty session table judges them, so the real workers are unaffected. Ends are looked up in
//! the snapshot. Only pods of other nodes need the policy thread, which may be compiling and has a time limit to answer.

use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_dataplane::probe::{Probe, ProbeError};
use bulkhead_dataplane::{Learned, PortId, PortKind, Snapshot, Verdict};

use crate::interfaces::{PortState, PortStatus};
use crate::origins::SharedOrigins;
use crate::state::{Asked, AskedFor};
use crate::tables;
use bulkhead_answers::args::{EndName, PortProtocol, Target};
use bulkhead_answers::destination::DestinationNames;
use bulkhead_answers::explain::service::Translated;
use bulkhead_answers::explain::step::{Answered, Pass, Step, answer_to};
use bulkhead_answers::fabric::{self, Judge, probe};
use bulkhead_answers::named::Unknown;
use bulkhead_answers::translate::Translation;
use bulkhead_observe::admin::{Connection, Explanation, Failure, LiveWalk, NotOpen};

/// Looks up pods and Services at the policy thread.
pub(super) trait Names {
    /// Returns the addresses of each pod that a name means, or those of its node, or why the state has none. An error if the lookup takes too
    /// long.
    fn addresses_of(&self, name: &EndName) -> Result<Result<Vec<Vec<IpAddr>>, Unknown>, Failure>;

    /// Returns each client and how Services translate its connection. Empty if the destination address belongs to no Service.
    fn translations(&self, asked: Asked) -> Result<Vec<(fabric::End, Translation)>, Failure>;
}

/// The node's name, snapshot in force and port statuses, by which connections are explained.
pub(crate) struct Node<'a> {
    pub name: Arc<str>,
    pub snapshot: &'a Snapshot,
    pub origins: &'a SharedOrigins,
    pub ports: &'a [PortStatus],
    /// The addresses that pods have learned by name. `None` while the vswitch ends.
    pub learned: Option<Arc<Learned>>,
    /// The time of the packets, in nanoseconds since 1970.
    pub time: u64,
    pub is_denying: bool,
}

/// One address of the connection's source or destination.
struct End {
    /// The requested name, or the name of the port with this address.
    name: String,
    address: IpAddr,
    /// The port that leads to the address.
    port: PortId,
    is_here: bool,
    /// Whether the address is one of several pods with the requested name.
    is_of_many: bool,
}

/// Explains how the vswitch would treat the first packet of a connection and its reply, or what Services do with it.
///
/// # Errors
/// If an end is unknown, or neither end is on this node.
pub(super) fn explain(node: &Node<'_>, asked: &Connection, names: &impl Names) -> Result<Explanation, Failure> {
    let port: Option<PortProtocol> = asked.port.as_deref().map(parsed).transpose()?;
    let to: Target = parsed(&asked.to)?;
    let sources = ends(node.snapshot, &asked.from, names)?;
    let from: Vec<IpAddr> = sources.iter().map(|end| end.address).collect();
    let (name, generation) = (node.name.clone(), node.snapshot.generation());
    let mut told =
        Explanation { node: name, generation, denying: node.is_denying, walks: Vec::new(), services: Vec::new() };
    let destinations = match &to {
        Target::Service(_) => Vec::new(),
        Target::End(_) => ends(node.snapshot, &asked.to, names)?,
    };
    let asked_for: Vec<AskedFor> = match &to {
        Target::Service(target) => vec![AskedFor::Service(target.clone())],
        // A node's addresses may have node ports.
        Target::End(EndName::Address(_) | EndName::Node(_)) => {
            destinations.iter().map(|end| AskedFor::Address(end.address)).collect()
        }
        Target::End(EndName::Pod(_) | EndName::Workload(_) | EndName::Labels(_)) => Vec::new(),
    };
    let mut direct = destinations;
    for to in asked_for {
        let translations = names.translations(Asked { from: from.clone(), to: to.clone(), port })?;
        // An address belongs to a Service for all clients of its family, or for none.
        if let (AskedFor::Address(address), false) = (to, translations.is_empty()) {
            direct.retain(|end| end.address != address);
        }
        for (from, translation) in translations {
            told.services.push(node.translated(&asked.from, &from, translation)?);
        }
    }
    if told.services.is_empty() || !direct.is_empty() {
        let missing = || Failure::new("malformed", "the port is missing", "add a port, for example 80/TCP");
        told.walks = node.walks(&sources, &direct, port.ok_or_else(missing)?)?;
    }
    Ok(told)
}

fn parsed<T: std::str::FromStr<Err = String>>(text: &str) -> Result<T, Failure> {
    text.parse().map_err(|error: String| Failure::new("malformed", error, "docs/admin.md describes the requests"))
}

/// Returns the ends that a name or an address means, one for each address of each of its pods or of its node.
fn ends(snapshot: &Snapshot, name: &str, names: &impl Names) -> Result<Vec<End>, Failure> {
    let addresses = match parsed(name)? {
        EndName::Address(address) => vec![vec![address]],
        named => {
            let own = snapshot.port_named(name).and_then(|id| snapshot.port(id)).map(|port| port.addresses.clone());
            let known = match own {
                Some(addresses) if !addresses.is_empty() => vec![addresses.to_vec()],
                _ => names.addresses_of(&named)?.map_err(|unknown| {
                    let help = match named {
                        EndName::Node(_) => "the API server lists the nodes",
                        _ => {
                            "`bulkhead ports` lists this node's pods; `bulkhead status` shows whether a state is loaded"
                        }
                    };
                    Failure::new("unknown_pod", unknown.problem, unknown.similar.as_deref().unwrap_or(help))
                })?,
            };
            if known.iter().all(Vec::is_empty) {
                let help = "the pod is starting, or another pod has the address in its object; `bulkhead status` counts such pods";
                return Err(Failure::new("unknown_pod", format!("pod {name} has no address"), help));
            }
            known
        }
    };
    let is_of_many = addresses.len() > 1;
    let of_many = |address| Ok(End { is_of_many, ..end(snapshot, name, address)? });
    addresses.into_iter().flatten().map(of_many).collect()
}

/// Maximum number of connections explained at once: what a person reads, and the thread answers without delaying others.
const MAX_WALKS: usize = 64;

/// Returns the end with this address. For an address on another machine, its port is that of the route: the uplink, or the host port.
fn end(snapshot: &Snapshot, name: &str, address: IpAddr) -> Result<End, Failure> {
    let owner = snapshot.owner(address);
    let port = owner.or_else(|| snapshot.routes().lookup(address)).ok_or_else(|| {
        Failure::new("no_port", format!("no route of the node leads to {address}"), "name a pod of this node")
    })?;
    let named = || owner.and_then(|id| snapshot.port(id)).map_or_else(|| name.to_owned(), |port| port.name.to_string());
    let is_full = matches!(name.parse(), Ok(EndName::Pod(_) | EndName::Node(_)));
    let name = if is_full { name.to_owned() } else { named() };
    Ok(End { name, address, port, is_here: owner.is_some(), is_of_many: false })
}

impl Node<'_> {
    /// Judges all pairs of source and destination addresses of the same family. Of several pods with one name, leaves out a pod's
    /// connection to itself and connections between other nodes, unless there are no others.
    fn walks(&self, sources: &[End], destinations: &[End], port: PortProtocol) -> Result<Vec<LiveWalk>, Failure> {
        let mut walks = Vec::new();
        let mut left_out = None;
        for from in sources {
            let is_of_family = |to: &&End| {
                let is_ipv4 = from.address.is_ipv4();
                to.address.is_ipv4() == is_ipv4 && port.is_of_family(is_ipv4)
            };
            for to in destinations.iter().filter(is_of_family) {
                let is_of_many = from.is_of_many || to.is_of_many;
                if from.address == to.address || (from.is_here && to.is_here && from.port == to.port) {
                    let message = match from.address == to.address {
                        true => format!("{} is both source and destination", from.address),
                        false => format!("{} and {} are behind one port of the node", from.address, to.address),
                    };
                    let failure = Failure::new("malformed", message, "such traffic never leaves the pod or node");
                    if !is_of_many {
                        return Err(failure);
                    }
                    left_out.get_or_insert(failure);
                    continue;
                }
                if is_of_many && !from.is_here && !to.is_here {
                    left_out = left_out.or_else(|| self.walk(from, to, port).err());
                    continue;
                }
                if walks.len() == MAX_WALKS {
                    let message = format!("more than {MAX_WALKS} connections are meant");
                    return Err(Failure::new("malformed", message, "name a pod of each workload"));
                }
                walks.push(self.walk(from, to, port)?);
            }
        }
        if let (true, Some(failure)) = (walks.is_empty(), left_out) {
            return Err(failure);
        }
        if walks.is_empty() {
            let help = "give an address of the other end's family";
            return Err(Failure::new("malformed", "the two ends have no address family in common", help));
        }
        Ok(walks)
    }

    /// Explains a connection to a Service. This node judges only the paths that start or end on it.
    fn translated(
        &self,
        name: &str,
        from: &fabric::End,
        translation: Translation,
    ) -> Result<Translated<LiveWalk>, Failure> {
        Translated::new(from, translation, |leg| {
            // An address that the state does not know keeps the requested name.
            let end_of = |of: &fabric::End| {
                let known = if of == from { name.to_owned() } else { of.to_string() };
                end(self.snapshot, &known, of.address())
            };
            let (from, to) = (end_of(&leg.from)?, end_of(&leg.to)?);
            Ok(match from.is_here || to.is_here {
                true if leg.is_hairpin => self.hairpin(&from, leg.port),
                true => Some(self.walk(&from, &to, leg.port)?),
                false => None,
            })
        })
    }

    /// Judges a pod's connection to itself through a Service. `None` if the address belongs to no port.
    fn hairpin(&self, of: &End, service: PortProtocol) -> Option<LiveWalk> {
        let first = self.snapshot.judge_hairpin(fabric::hairpin_flow(of.address, service))?;
        let not_open: Vec<NotOpen> = self.not_open(of.port).into_iter().collect();
        let has_passed = matches!(first.verdict, Verdict::Forward(_));
        let reply = has_passed.then(|| self.step(true, &fabric::reply_of(&first), service));
        Some(LiveWalk {
            from: of.name.clone(),
            from_address: of.address,
            to: of.name.clone(),
            to_address: of.address,
            verdict: if has_passed && not_open.is_empty() { "allow" } else { "deny" }.to_owned(),
            judged_elsewhere: false,
            seen_as: None,
            steps: std::iter::once(self.step(false, &first, service)).chain(reply).collect(),
            not_open,
        })
    }

    fn walk(&self, from: &End, to: &End, service: PortProtocol) -> Result<LiveWalk, Failure> {
        if !from.is_here && !to.is_here {
            let message = format!("neither {} nor {} is on node {}", from.name, to.name, self.name);
            return Err(Failure::new("not_here", message, "ask the vswitch of the node of one of the two"));
        }
        let mut probe = probe(from.address, to.address, service);
        let not_open: Vec<NotOpen> = [from.port, to.port].into_iter().filter_map(|port| self.not_open(port)).collect();
        let judge = |learned: &Arc<Learned>| Judge::with_names(learned, self.time);
        let (mut judge, mut steps) = (self.learned.as_ref().map_or_else(Judge::default, judge), Vec::new());
        let mut pass = |is_reply, port, packet: Result<Vec<u8>, ProbeError>| {
            let packet = packet.map_err(|error| Failure::new("malformed", error.to_string(), ""))?;
            let outcome = judge.judge(self.snapshot, port, &packet);
            steps.push(self.step(is_reply, &outcome, service));
            Ok((matches!(outcome.verdict, Verdict::Forward(_)), outcome.translation))
        };
        let (mut has_passed, translation) = pass(false, from.port, probe.request())?;
        if has_passed {
            // The other end replies to the source that it sees: the node's address if the connection is masqueraded.
            if let Some(seen) = translation {
                probe = Probe { src: seen.src, sport: seen.sport, ..probe };
            }
            (has_passed, _) = pass(true, to.port, probe.reply())?;
        }
        let is_allowed = has_passed && not_open.is_empty();
        Ok(LiveWalk {
            from: from.name.clone(),
            from_address: from.address,
            to: to.name.clone(),
            to_address: to.address,
            verdict: if is_allowed { "allow" } else { "deny" }.to_owned(),
            judged_elsewhere: !from.is_here || !to.is_here,
            seen_as: Some(probe.src).filter(|seen| *seen != from.address),
            steps,
            not_open,
        })
    }

    pub(crate) fn step(&self, is_reply: bool, outcome: &bulkhead_dataplane::Outcome, service: PortProtocol) -> Step {
        let name = |id| self.snapshot.port(id).map(|port| port.name.clone());
        let (in_port, out) = (name(outcome.in_port), outcome.verdict.out_port().and_then(name));
        let id = tables::deciding(self.snapshot, outcome);
        let table = id.and_then(|id| self.snapshot.table(id));
        let table_name = |id| tables::name(self.snapshot, id).unwrap_or_else(|| "of no port".into());
        let rule = outcome.decision.and_then(|decision| decision.rule);
        let origin = outcome.decision.and_then(|decision| decision.origin);
        let names = |learned: &Arc<Learned>| DestinationNames::of(outcome, self.snapshot, learned, self.time);
        Step::new(Pass {
            node: self.name.clone(),
            is_reply,
            outcome,
            answer: answer_to(
                outcome,
                in_port.as_deref(),
                service.protocol,
                Answered {
                    refuses: origin.is_some_and(|origin| self.snapshot.refuses(origin)),
                    tells_unreachable: self.snapshot.tells_unreachable(),
                },
            ),
            in_port,
            out,
            table: id.zip(table).map(|(id, table)| (table_name(id), table.rules().len())),
            decided: table.zip(rule).and_then(|(table, rule)| table.rules().get(rule as usize)).cloned(),
            names: self.learned.as_ref().and_then(names),
            origin: origin.and_then(|origin| self.origins.get(origin)),
            audited: outcome
                .audited
                .and_then(|decision| self.origins.get(decision.origin?))
                .map(|origin| (origin, Vec::new())),
            at: Vec::new(),
        })
    }

    /// Returns why the port does not forward. `None` if it is open or unknown.
    fn not_open(&self, id: PortId) -> Option<NotOpen> {
        let port = self.snapshot.port(id)?;
        let Some(status) = self.ports.iter().find(|status| status.name == port.name) else {
            let why = match port.kind {
                PortKind::Pod => "the configuration has no port for this pod, and none was added at the admin socket",
                PortKind::Uplink | PortKind::Host => "the configuration has no such port",
            };
            return Some(NotOpen { port: port.name.clone(), state: "none".to_owned(), why: Some(why.to_owned()) });
        };
        let is_open = status.state == PortState::Open;
        (!is_open).then(|| NotOpen {
            port: port.name.clone(),
            state: status.state.name().to_owned(),
            why: status.why.clone(),
        })
    }
}
