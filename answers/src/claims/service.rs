//! Finds the endpoints of a Service that a claim names. Policy sees connections to a Service after the translation of their destination, so the claim
//! is about the endpoints' addresses and ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bulkhead_classifier::{AddressSet, PortRange, Service, ServiceSet};
use bulkhead_control::object::{
    ClusterService, EndpointPort, EndpointSlice, Object, ServiceName, ServicePort, Transport,
};

use crate::args::ServiceTarget;
use crate::translate::port_text;
use crate::{named, output};

/// Maximum number of ports named in one line.
const MAX_NAMED: usize = 8;

/// Returns the addresses of a Service's endpoints, with the ports at which they serve those of the Service that the claim is about: the target's port,
/// and of `ports` those that the Service has. `objects` are the state's Services and `EndpointSlices`. An endpoint counts whether it is ready or not.
///
/// # Errors
/// The reason why there are none, with a similar name if the state has no such Service.
pub(super) fn endpoints(
    target: &ServiceTarget,
    ports: &ServiceSet,
    objects: &[Object],
) -> Result<Vec<(ServiceSet, AddressSet)>, String> {
    let Some(service) = services(objects).find(|service| service.name == target.name) else {
        let known: BTreeSet<ServiceName> = services(objects).map(|service| service.name.clone()).collect();
        return Err(match known.is_empty() {
            true => format!("the state has no Services, and so not {}", target.name),
            false => named::similar(&target.name, &known, "Service"),
        });
    };
    let is_meant = |port: &&ServicePort| {
        target.port.as_ref().is_none_or(|word| word.means(port)) && ports.contains(port.transport.number(), port.port)
    };
    let meant: Vec<&ServicePort> = service.ports.iter().filter(is_meant).collect();
    if meant.is_empty() {
        let its: Vec<String> = service.ports.iter().map(port_text).collect();
        let its: Vec<&str> = its.iter().map(String::as_str).collect();
        let its = output::some_of(&its, MAX_NAMED);
        return Err(format!("Service {} has none of these ports, but {its}", target.name));
    }
    let mut found: BTreeMap<(Transport, u16), Vec<IpAddr>> = BTreeMap::new();
    for slice in slices(objects, &target.name) {
        let is_own = |port: &&EndpointPort| {
            meant.iter().any(|meant| (&meant.name, meant.transport) == (&port.name, port.transport))
        };
        for port in slice.ports.iter().filter(is_own) {
            let addresses = slice.endpoints.iter().map(|endpoint| endpoint.address);
            found.entry((port.transport, port.port)).or_default().extend(addresses);
        }
    }
    found.retain(|_, addresses| !addresses.is_empty());
    if found.is_empty() {
        return Err(format!("Service {} has no endpoints in the state", target.name));
    }
    let at_port = |((transport, port), addresses): ((Transport, u16), Vec<IpAddr>)| {
        let protocol = transport.number();
        let service = Service { protocols: (protocol, protocol), ports: PortRange { first: port, last: port } };
        let addresses = AddressSet::of_ranges(addresses.into_iter().map(|address| (address, address)));
        ([service].into_iter().collect(), addresses)
    };
    Ok(found.into_iter().map(at_port).collect())
}

fn services(objects: &[Object]) -> impl Iterator<Item = &ClusterService> {
    objects.iter().filter_map(|object| match object {
        Object::Service(service) => Some(&**service),
        _ => None,
    })
}

fn slices<'a>(objects: &'a [Object], name: &'a ServiceName) -> impl Iterator<Item = &'a EndpointSlice> {
    objects.iter().filter_map(move |object| match object {
        Object::EndpointSlice(slice) if slice.service_name().as_ref() == Some(name) => Some(&**slice),
        _ => None,
    })
}
