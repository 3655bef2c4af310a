//! Real flows, of captures and flow logs, whose verdict changes.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;

use bulkhead_control::object::PodName;
use bulkhead_control::reachability::{Holder, Member, Protocol, Reachability};
use serde::Serialize;

use super::because::{Because, Reasons};
use super::{ALLOW, DENY};
use crate::args::{self, Diff};
use crate::flows::{Observations, ObservedFlow, SeenEnd};
use crate::output;
use crate::replay::logged;

/// Kinds of lines that were not read that are told one by one.
const MAX_TOLD: usize = 10;

/// A flow whose verdict changes. The names are what the JSON promises.
#[derive(Debug, Serialize)]
pub(super) struct FlowChange {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) service: String,
    pub(super) before: &'static str,
    pub(super) after: &'static str,
    pub(super) sessions: u64,
    /// Not every log counts them.
    pub(super) packets: Option<u64>,
    pub(super) bytes: Option<u64>,
    pub(super) because: Because,
}

impl FlowChange {
    pub(super) fn is_cut(&self) -> bool {
        self.after == DENY
    }
}

/// What becomes of the flows.
#[derive(Debug, Default, Serialize)]
pub(super) struct Flows {
    pub(super) changed: Vec<FlowChange>,
    /// Sessions whose verdict stays.
    pub(super) same: u64,
    /// Sessions of which it cannot be told, by the reason.
    pub(super) unknown: BTreeMap<String, u64>,
}

/// The new state's paths, and the captures: `--against` takes all paths that follow it.
pub(super) fn split(args: &Diff) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let (states, captures) = args::without_captures(&args.against);
    (states, captures.into_iter().chain(args.captures.iter().cloned()).collect())
}

/// Reads captures and logs; none where none are named.
///
/// # Errors
/// When one cannot be read.
pub(super) fn read(args: &Diff, captures: &[PathBuf]) -> anyhow::Result<Option<Vec<ObservedFlow>>> {
    if captures.is_empty() && args.flows.is_empty() {
        return Ok(None);
    }
    let mut seen = Observations::default();
    for path in captures {
        logged::read_capture(path, args.tcp_pickup, &mut seen)?;
    }
    for path in &args.flows {
        logged::read_log(path, args.state.lenient, &mut seen)?;
    }
    for (what, count) in seen.unread.iter().take(MAX_TOLD) {
        output::warn(&format!("not read: {count} times: {}", output::printable(what)));
    }
    for (what, count) in seen.remarks.iter().take(MAX_TOLD) {
        output::note(&format!("{count} {}", output::printable(what)));
    }
    Ok(Some(seen.flows()))
}

/// Judges the flows by both states. Their addresses are those of the old one.
pub(super) fn compare(flows: &[ObservedFlow], states: [&Reachability; 2], reasons: &mut [Reasons<'_>; 2]) -> Flows {
    let [before, after] = states;
    let ends = Ends {
        pods: states.map(|state| {
            let pods = state.members().iter().filter(|member| !member.host_network);
            pods.map(|member| (member.address, member)).collect()
        }),
        states,
    };
    let mut all = Flows::default();
    for flow in flows {
        let (seen, sessions) = (&flow.conversation, flow.tally.sessions);
        let known = || -> Result<_, String> {
            if let Some(missing) = seen.missing {
                return Err(missing.to_string());
            }
            let protocol = Protocol::of_number(seen.protocol.ok_or("the protocol is not said")?);
            let port = match protocol {
                Protocol::Other => 0,
                _ => seen.port.ok_or("the destination port is not said")?,
            };
            let (from, to) = (ends.find(&seen.from, &seen.to)?, ends.find(&seen.to, &seen.from)?);
            let nothing = || format!("nothing to ask between {} and {}", from.name, to.name);
            let old = *before.between(from.before, to.before).ok_or_else(nothing)?.at(protocol, port);
            let new = *after.between(from.after, to.after).ok_or_else(nothing)?.at(protocol, port);
            Ok((from.name, to.name, old, new))
        };
        match known() {
            Err(why) => *all.unknown.entry(why).or_default() += sessions,
            Ok((_, _, old, new)) if old.allowed() == new.allowed() => all.same += sessions,
            Ok((from, to, old, new)) => {
                let (before, after) = if new.allowed() { (DENY, ALLOW) } else { (ALLOW, DENY) };
                let because = Because::of(&old, &new, reasons);
                let (packets, bytes) = (flow.tally.packets, flow.tally.bytes);
                let service = seen.service_name();
                all.changed.push(FlowChange { from, to, service, before, after, sessions, packets, bytes, because });
            }
        }
    }
    all
}

/// An end with its address in each state.
struct End {
    name: String,
    before: IpAddr,
    after: IpAddr,
}

struct Ends<'a> {
    states: [&'a Reachability; 2],
    pods: [HashMap<IpAddr, &'a Member>; 2],
}

impl Ends<'_> {
    fn find(&self, seen: &SeenEnd, other: &SeenEnd) -> Result<End, String> {
        let named = seen.pod.clone().or_else(|| Some(self.pods[0].get(&seen.address?)?.pod.clone()));
        let Some(pod) = named else {
            let address = seen.address.ok_or("the address of an end is not said")?;
            return match self.pods[1].get(&address) {
                Some(member) => Err(format!("{address} is {} in the new state only", member.pod)),
                None => Ok(End { name: self.name(address), before: address, after: address }),
            };
        };
        let is_v6 = seen.address.or(other.address).map(|address| address.is_ipv6());
        let address = |state: &Reachability| Self::address(state, &pod, is_v6);
        match self.states.map(address) {
            [Some(before), Some(after)] => Ok(End { name: pod.to_string(), before, after }),
            [None, None] => Err(format!("{pod} is in no state")),
            [before, _] => Err(format!("{pod} is in the {} state only", if before.is_some() { "old" } else { "new" })),
        }
    }

    /// The pod's address of this family, IPv4 before IPv6 where none is asked for.
    fn address(state: &Reachability, pod: &PodName, is_v6: Option<bool>) -> Option<IpAddr> {
        let mut addresses = state.members_of(pod).iter().map(|member| member.address);
        addresses.find(|address| is_v6.is_none_or(|v6| address.is_ipv6() == v6))
    }

    fn name(&self, address: IpAddr) -> String {
        let state = self.states[0];
        match &state.class(state.class_at(address)).holder {
            Holder::Nodes(names) => format!("node {}", names.join(", ")),
            Holder::Pods | Holder::Outside => address.to_string(),
        }
    }
}
