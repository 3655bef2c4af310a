//! Lists and ends sessions for clients of the admin socket.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;

use bulkhead_classifier::protocol;
use bulkhead_dataplane::{PortId, SessionInfo, SessionSelector, Snapshot};

use crate::log;
use crate::observer::Observer;
use bulkhead_observe::admin::{EndedSessions, Failure, SessionFilter, SessionRow, Sessions};

/// Maximum number of sessions in one answer.
const MOST: usize = 10_000;

/// Maximum number of ports in one answer: those with the most matching sessions.
const TOP: usize = 10;

/// Lists the matching sessions of all workers.
pub(super) fn list(observer: &Observer, filter: &SessionFilter) -> Result<Sessions, Failure> {
    let snapshot = observer.snapshot();
    let selector = selector(&snapshot, filter)?;
    let mut listed = Sessions { matching: 0, sessions: Vec::new(), ports: Vec::new() };
    let mut counts: HashMap<PortId, usize> = HashMap::new();
    let answered = observer.sessions(|session| {
        if selector.selects(&session) {
            listed.matching += 1;
            for port in ends(&session) {
                *counts.entry(port).or_default() += 1;
            }
            if listed.sessions.len() < filter.limit.min(MOST) {
                listed.sessions.push(row(&session, &snapshot, observer));
            }
        }
        ControlFlow::Continue(())
    });
    if !answered {
        return Err(no_answer());
    }
    listed.ports = counts.into_iter().map(|(port, count)| (name_of(&snapshot, port), count)).collect();
    listed.ports.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    listed.ports.truncate(TOP);
    Ok(listed)
}

/// Ends all matching sessions, regardless of the filter's limit.
pub(super) fn end(observer: &Observer, filter: &SessionFilter) -> Result<EndedSessions, Failure> {
    let selector = selector(&observer.snapshot(), filter)?;
    let mut ended = 0;
    let answered = observer.end_sessions(&selector, |_| ended += 1);
    if ended > 0 {
        log::info(&format!("ended {ended} sessions, requested at the admin socket"));
    }
    if answered { Ok(EndedSessions { ended }) } else { Err(no_answer()) }
}

fn no_answer() -> Failure {
    Failure::new("no_answer", "a worker does not answer", "`bulkhead status` shows whether the workers answer")
}

/// Converts a filter to a selector for workers. An error if no port has the filter's port name.
fn selector(snapshot: &Snapshot, filter: &SessionFilter) -> Result<SessionSelector, Failure> {
    let named = |name: &str| {
        let help = "`bulkhead ports` lists all ports";
        snapshot.port_named(name).ok_or_else(|| Failure::new("unknown_port", format!("there is no port {name}"), help))
    };
    let port = filter.port.as_deref().map(named).transpose()?;
    Ok(SessionSelector { port, address: filter.address, service: filter.service })
}

/// Returns the session's ingress and egress ports, without duplicates.
fn ends(session: &SessionInfo) -> impl Iterator<Item = PortId> {
    let other = Some(session.out_port).filter(|&port| port != session.in_port);
    std::iter::once(session.in_port).chain(other)
}

fn row(session: &SessionInfo, snapshot: &Snapshot, observer: &Observer) -> SessionRow {
    let is_port = matches!(session.protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
    let end = |(address, port): (IpAddr, u16)| match is_port {
        true => SocketAddr::new(address, port).to_string(),
        false => address.to_string(),
    };
    let origin = session.origin.and_then(|origin| observer.origins().get(origin));
    #[expect(clippy::cast_precision_loss, reason = "seconds with a few digits")]
    let idle_seconds = session.idle as f64 / 1e9;
    SessionRow {
        protocol: protocol_name(session.protocol),
        from: end(session.initiator),
        to: end(session.responder),
        service: session.service.map(end),
        source: session.source.map(end),
        in_port: name_of(snapshot, session.in_port),
        out_port: name_of(snapshot, session.out_port),
        state: session.state.to_owned(),
        idle_seconds,
        origin: origin.map(|origin| origin.to_string()).unwrap_or_default(),
    }
}

fn name_of(snapshot: &Snapshot, port: PortId) -> String {
    // A session of an earlier process has no ports until its next packet.
    snapshot.port(port).map_or_else(|| "unknown".to_owned(), |port| port.name.to_string())
}

fn protocol_name(number: u8) -> String {
    match number {
        protocol::TCP => "TCP".to_owned(),
        protocol::UDP => "UDP".to_owned(),
        protocol::SCTP => "SCTP".to_owned(),
        protocol::ICMP => "ICMP".to_owned(),
        protocol::ICMPV6 => "ICMPv6".to_owned(),
        other => other.to_string(),
    }
}
