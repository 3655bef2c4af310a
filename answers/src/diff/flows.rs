//! Observed flows whose verdict differs between the states.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;

use bulkhead_control::reachability::{Member, Protocol, Reachability, Verdict};
use serde::Serialize;

use super::because::{Because, Reasons};
use super::{ALLOW, DENY};
use crate::args;
use crate::args::Diff;
use crate::fabric::End;
use crate::flows::find::{Connection, Finder, Resolved};
use crate::flows::{Conversation, Observations, ObservedFlow};
use crate::replay::logged;
use crate::translate::Leg;

/// A flow whose verdict differs. The field names are part of the JSON format.
#[derive(Debug, Serialize)]
pub(super) struct FlowChange {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) service: String,
    pub(super) before: &'static str,
    pub(super) after: &'static str,
    pub(super) sessions: u64,
    /// Number of packets in both directions. `None` if the log does not count packets and bytes.
    pub(super) packets: Option<u64>,
    pub(super) bytes: Option<u64>,
    pub(super) because: Because,
}

impl FlowChange {
    pub(super) fn is_cut(&self) -> bool {
        self.after == DENY
    }
}

/// The effect of the new state on observed flows.
#[derive(Debug, Default, Serialize)]
pub(super) struct Flows {
    pub(super) changed: Vec<FlowChange>,
    /// Sessions with the same verdict.
    pub(super) same: u64,
    /// Sessions with an unknown verdict, by reason.
    pub(super) unknown: BTreeMap<String, u64>,
}

/// Splits the paths after `--against` into the new state and captures.
pub(super) fn split(args: &Diff) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let (states, captures) = args::without_captures(&args.against);
    (states, captures.into_iter().chain(args.captures.iter().cloned()).collect())
}

/// Reads captures and logs. `None` if none are given.
///
/// # Errors
/// If one cannot be read.
pub(super) fn read(args: &Diff, captures: &[PathBuf]) -> anyhow::Result<Option<Vec<ObservedFlow>>> {
    if captures.is_empty() && args.flows.is_empty() {
        return Ok(None);
    }
    let mut seen = Observations::new(args.state.lenient);
    logged::read(captures, &args.flows, (args.tcp_pickup, None), &mut seen)?;
    logged::flows_of(&mut seen).map(Some)
}

/// Judges the flows with both states. Addresses and endpoints of Services are those of the old state, in which `finder` searches.
///
/// # Errors
/// Only on internal errors.
pub(super) fn compare(
    flows: &[ObservedFlow],
    finder: &mut Finder<'_>,
    states: [&Reachability; 2],
    reasons: &mut [Reasons<'_>; 2],
) -> anyhow::Result<Flows> {
    let pods = states[1].members().iter().filter(|member| !member.host_network);
    let ends = Ends { states, pods_after: pods.map(|member| (member.address, member)).collect() };
    let mut all = Flows::default();
    for flow in flows {
        let sessions = flow.tally.sessions;
        match ends.change(&flow.conversation, finder)? {
            Err(why) => *all.unknown.entry(why).or_default() += sessions,
            Ok(Seen { change: None, .. }) => all.same += sessions,
            Ok(Seen { from, to, change: Some((old, new)) }) => {
                let (before, after) = if new.allowed() { (DENY, ALLOW) } else { (ALLOW, DENY) };
                let because = Because::of(&old, &new, reasons);
                let (packets, bytes) = (flow.tally.packets, flow.tally.bytes);
                let service = flow.conversation.service_name();
                all.changed.push(FlowChange { from, to, service, before, after, sessions, packets, bytes, because });
            }
        }
    }
    Ok(all)
}

/// A resolved flow, with both verdicts if they differ.
struct Seen {
    from: String,
    to: String,
    change: Option<(Verdict, Verdict)>,
}

/// One connection that vswitches judge on a possible path of a flow.
struct Passage {
    from: End,
    to: End,
    protocol: Protocol,
    /// The destination port, or type and code of ICMP. `None` if the log does not give type and code.
    port: Option<u16>,
    /// Whether only the client's rules apply.
    is_departure: bool,
}

struct Ends<'a> {
    states: [&'a Reachability; 2],
    pods_after: HashMap<IpAddr, &'a Member>,
}

impl Ends<'_> {
    /// Returns the verdicts of both states on a flow. The inner `Err` says why they are unknown.
    fn change(&self, seen: &Conversation, finder: &mut Finder<'_>) -> anyhow::Result<Result<Seen, String>> {
        let resolved = match seen.protocol.map(Protocol::of_number) {
            // Rules without ports apply to these protocols too.
            Some(protocol @ (Protocol::Number(_) | Protocol::Other)) if seen.missing.is_none() => {
                match Self::without_ports(seen, finder) {
                    Ok((from, to)) => {
                        let names = [from.to_string(), to.to_string()];
                        let message = seen.icmp.map(|(kind, code)| u16::from_be_bytes([kind, code]));
                        let port = if protocol.is_icmp() { message } else { Some(0) };
                        (names, vec![vec![Passage { from, to, protocol, port, is_departure: false }]])
                    }
                    Err(why) => return Ok(Err(why)),
                }
            }
            _ => match finder.resolve(seen)? {
                Resolved::Unknown(why) => return Ok(Err(why)),
                Resolved::Direct(Connection { from, to, port }) => {
                    let names = [from.to_string(), to.to_string()];
                    (names, vec![passages(&[Leg::whole(&from, &to, port)])])
                }
                Resolved::Translated(connection, translation) => {
                    let name = translation.told.service.clone().unwrap_or_else(|| connection.to.to_string());
                    if let Some(refusal) = translation.refusal {
                        return Ok(Err(format!("Service {name} refuses it: {}", refusal.replace('_', " "))));
                    }
                    let ways = translation.routes.iter().map(|route| {
                        let legs: Vec<Leg> = translation.before.iter().chain(&route.legs).cloned().collect();
                        passages(&legs)
                    });
                    ([connection.from.to_string(), format!("Service {name}")], ways.collect())
                }
            },
        };
        let ([from, to], ways) = resolved;
        Ok(self.of_ways(&ways, &to).map(|change| Seen { from, to, change }))
    }

    fn without_ports(seen: &Conversation, finder: &mut Finder<'_>) -> Result<(End, End), String> {
        let from = finder.end(&seen.from, seen.to.address)?;
        let to = finder.end(&seen.to, Some(from.address()))?;
        match from.address().is_ipv4() == to.address().is_ipv4() {
            true => Ok((from, to)),
            false => Err(format!("{from} and {to} have no address family in common")),
        }
    }

    /// Returns the common result of all possible paths. The actual path is unknown.
    fn of_ways(&self, ways: &[Vec<Passage>], to: &str) -> Result<Option<(Verdict, Verdict)>, String> {
        /// Whether the flow passes in each state, and the verdicts that differ.
        type Outcome = ([bool; 2], Option<(Verdict, Verdict)>);
        let mut known: Option<Outcome> = None;
        for way in ways {
            let (mut passes, mut change) = ([true; 2], None);
            for passage in way {
                let Some(verdicts) = self.verdicts(passage)? else { continue };
                let allowed = verdicts.map(|of| of.egress.allowed && (passage.is_departure || of.ingress.allowed));
                passes = [passes[0] && allowed[0], passes[1] && allowed[1]];
                if allowed[0] != allowed[1] {
                    change = change.or(Some(verdicts.into()));
                }
            }
            // If both states deny it, at whatever end, nothing changes.
            let change = change.filter(|_| passes[0] != passes[1]);
            match &known {
                Some((known, _)) if *known != passes => {
                    return Err(format!(
                        "policy treats the endpoints of {to} differently, and the log does not name the endpoint"
                    ));
                }
                Some(_) => {}
                None => known = Some((passes, change)),
            }
        }
        match known {
            Some((_, change)) => Ok(change),
            None => Err(format!("{to} has no endpoint")),
        }
    }

    /// Returns both verdicts. `None` if no vswitch judges the passage.
    fn verdicts(&self, passage: &Passage) -> Result<Option<[Verdict; 2]>, String> {
        let (from, to) = (self.addresses(&passage.from)?, self.addresses(&passage.to)?);
        let of = |at: usize| {
            let verdicts = self.states[at].between(from[at], to[at])?;
            let of_protocol = verdicts.of_protocol(passage.protocol);
            let is_known = passage.port.is_some() || of_protocol.len() == 1;
            let verdict = *verdicts.at(passage.protocol, passage.port.unwrap_or_default());
            Some(is_known.then_some(verdict))
        };
        let verdicts = of(0).zip(of(1)).map(|(before, after)| before.zip(after).map(<[Verdict; 2]>::from));
        match verdicts {
            Some(None) => Err("policy depends on the type of ICMP, which the log does not give".into()),
            known => Ok(known.flatten()),
        }
    }

    /// Returns an end's address in each state: that of the same pod, else the same address.
    fn addresses(&self, end: &End) -> Result<[IpAddr; 2], String> {
        let End::Pod { name, address, .. } = end else {
            let address = end.address();
            return match self.pods_after.get(&address) {
                Some(member) => Err(format!("{address} belongs to {} in the new state only", member.pod)),
                None => Ok([address; 2]),
            };
        };
        let mut after = self.states[1].members_of(name).iter().map(|member| member.address);
        let after = after.find(|after| after.is_ipv4() == address.is_ipv4());
        after.map(|after| [*address, after]).ok_or_else(|| format!("{name} is in the old state only"))
    }
}

fn passages(legs: &[Leg]) -> Vec<Passage> {
    let passage = |leg: &Leg| Passage {
        from: leg.from.clone(),
        to: leg.to.clone(),
        protocol: leg.port.protocol,
        port: Some(leg.port.port),
        is_departure: leg.is_departure,
    };
    legs.iter().map(passage).collect()
}
