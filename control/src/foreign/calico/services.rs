//! Endpoints of Services as peers.

use std::collections::BTreeMap;

use super::Families;
use crate::foreign::Surroundings;
use crate::object::{IpBlock, Peer, PolicyPort, ServiceName, Transport};

/// Returns the endpoints of a Service, whether ready or not, in groups with the same ports. With `with_ports` the ports are the endpoints'
/// among those of the rule, otherwise those of the rule. Source: `felix/serviceindex`.
pub(super) fn endpoints(
    service: &ServiceName,
    with_ports: bool,
    of_rule: &Option<Vec<PolicyPort>>,
    families: Families,
    surroundings: &Surroundings,
) -> Vec<(Vec<Peer>, Option<Vec<PolicyPort>>)> {
    let mut groups: BTreeMap<Option<Vec<(Transport, u16)>>, Vec<Peer>> = BTreeMap::new();
    for slice in surroundings.slices_of(service) {
        let ports = with_ports.then(|| {
            let all = slice.ports.iter().map(|port| (port.transport, port.port));
            let mut ports: Vec<_> = all.filter(|&(transport, port)| permits(of_rule, transport, port)).collect();
            ports.sort_unstable();
            ports.dedup();
            ports
        });
        if ports.as_ref().is_some_and(Vec::is_empty) {
            continue;
        }
        let addresses = slice.endpoints.iter().map(|endpoint| endpoint.address);
        let addresses = addresses.filter(|address| if address.is_ipv4() { families.v4 } else { families.v6 });
        let peers = addresses.map(|address| Peer::Block(IpBlock { cidr: address.into(), except: Vec::new() }));
        groups.entry(ports).or_default().extend(peers);
    }
    groups.retain(|_, peers| !peers.is_empty());
    let range = |(transport, port): (Transport, u16)| PolicyPort::Range { transport, first: port, last: port };
    let group = |(ports, peers): (Option<Vec<(Transport, u16)>>, Vec<Peer>)| match ports {
        Some(ports) => (peers, Some(ports.into_iter().map(range).collect())),
        None => (peers, of_rule.clone()),
    };
    groups.into_iter().map(group).collect()
}

/// Whether a list of ports contains a port. Named ports do not count: a rule with a Service has none.
fn permits(ports: &Option<Vec<PolicyPort>>, transport: Transport, number: u16) -> bool {
    let Some(ports) = ports else { return true };
    ports.iter().any(|port| match port {
        PolicyPort::All(of) => *of == transport,
        PolicyPort::Range { transport: of, first, last } => *of == transport && (*first..=*last).contains(&number),
        PolicyPort::Numbers { protocols, first, last } => {
            (protocols.0..=protocols.1).contains(&transport.number()) && (*first..=*last).contains(&number)
        }
        PolicyPort::Named { .. } => false,
    })
}
