//! Looks up Services by name, and the addresses that clients use.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use bulkhead_control::object::{ClusterService, Object, ServiceName, ServicePort, Transport};
use bulkhead_control::service::{ResolvedPort, Resolver, VipKind};

use super::Services;
use crate::args::{Destination, PortProtocol, ServicePortWord, ServiceTarget};
use crate::fabric::End;
use crate::{named, output};

/// Maximum number of Services or ports named in one line.
const MAX_NAMED: usize = 8;

impl Services {
    /// Returns the Service with this name.
    ///
    /// # Errors
    /// See [`service_named`].
    pub fn named(&self, name: &ServiceName) -> anyhow::Result<&ClusterService> {
        service_named(&self.objects, &self.settings.service_proxy_name, name)
    }

    /// Returns the ports in question: the target's, else those in `asked`, else all.
    ///
    /// # Errors
    /// If the Service has no such port, or target and `asked` both name one.
    pub fn ports(&self, target: &ServiceTarget, asked: &[PortProtocol]) -> anyhow::Result<Vec<ServicePort>> {
        let service = self.named(&target.name)?;
        let missing = |port: String| {
            let its: Vec<String> = service.ports.iter().map(port_text).collect();
            let its: Vec<&str> = its.iter().map(String::as_str).collect();
            anyhow::anyhow!(
                "Service {} has no port {}\n  help: it has {}",
                target.name,
                output::printable(&port),
                output::some_of(&its, MAX_NAMED)
            )
        };
        let Some(word) = &target.port else {
            let find = |asked: &PortProtocol| {
                let mut its = service.ports.iter();
                let found = its.find(|port| PortProtocol::new(port.port, port.transport) == *asked);
                found.cloned().ok_or_else(|| missing(asked.to_string()))
            };
            return match asked {
                [] => Ok(service.ports.clone()),
                asked => asked.iter().map(find).collect(),
            };
        };
        if !asked.is_empty() {
            return Err(told_twice(&target.name, word));
        }
        let found: Vec<ServicePort> = service.ports.iter().filter(|port| word.means(port)).cloned().collect();
        if found.is_empty() { Err(missing(word.to_string())) } else { Ok(found) }
    }

    /// Returns a Service port's addresses of one family: inside the cluster the cluster IP; outside the load balancer's addresses, else the
    /// external IPs, else the node port at `node`, else the cluster IP.
    pub fn addresses(
        &mut self,
        name: &ServiceName,
        port: &ServicePort,
        node: &Arc<str>,
        (is_ipv4, is_outside): (bool, bool),
    ) -> anyhow::Result<Vec<Destination>> {
        let resolver = self.view(node)?.adapter.resolver();
        let is_meant = |other: &bulkhead_control::service::PortName| {
            other.owner.service() == Some(name)
                && other.port == port.name
                && other.transport == port.transport
                && other.ipv4 == is_ipv4
        };
        let known = resolver.ports().find(|(_, port)| is_meant(&port.name));
        Ok(known.map_or(Vec::new(), |(_, port)| reached_at(port, is_outside)))
    }

    /// Discards objects that the resolution of these Services does not need: keeps their endpoints and the Services that share an address
    /// with them. Saves most of the work in a large cluster.
    pub fn narrow(&mut self, names: &BTreeSet<ServiceName>) {
        self.views.clear();
        let named = self.all().filter(|service| names.contains(&service.name));
        let shared: BTreeSet<IpAddr> = named.flat_map(addresses_of).collect();
        self.objects.retain(|object| match object {
            Object::EndpointSlice(slice) => slice.service_name().is_some_and(|name| names.contains(&name)),
            Object::Service(service) => addresses_of(service).any(|address| shared.contains(&address)),
            _ => true,
        });
    }
}

/// Returns the Service with this name. `proxy` is the value of the label service.kubernetes.io/service-proxy-name that Services of this vswitch
/// have, empty for none.
///
/// # Errors
/// If the Service does not exist, with similar names, or has no cluster IP and is not translated.
pub fn service_named<'a>(objects: &'a [Object], proxy: &str, name: &ServiceName) -> anyhow::Result<&'a ClusterService> {
    let all = || {
        objects.iter().filter_map(|object| match object {
            Object::Service(service) => Some(&**service),
            _ => None,
        })
    };
    let service = all().find(|service| service.name == *name).with_context(|| {
        let known: BTreeSet<ServiceName> = all().map(|service| service.name.clone()).collect();
        let help = match known.is_empty() {
            true => "add the output of `kubectl get services,endpointslices -A -o yaml` to --state".to_owned(),
            false => named::similar(name, &known, "Service"),
        };
        format!("no Service {name} in the state\n  help: {help}")
    })?;
    if service.cluster_ips.is_empty() {
        bail!(
            "Service {name} has no cluster address: a headless or ExternalName Service is not translated\n  \
             help: ask about the address that its name resolves to{}",
            endpoints(objects, name)
        );
    }
    if service.proxy.as_deref().unwrap_or_default() != proxy {
        bail!(
            "Service {name} is handled by another proxy (service.kubernetes.io/service-proxy-name)\n  \
             help: set service_proxy_name in --settings to that proxy"
        );
    }
    Ok(service)
}

/// Lists the addresses of a Service's endpoints, for an error's help.
fn endpoints(objects: &[Object], name: &ServiceName) -> String {
    let slices = objects.iter().filter_map(|object| match object {
        Object::EndpointSlice(slice) if slice.service_name().as_ref() == Some(name) => Some(slice),
        _ => None,
    });
    let all: BTreeSet<IpAddr> =
        slices.flat_map(|slice| slice.endpoints.iter().map(|endpoint| endpoint.address)).collect();
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    if all.is_empty() { String::new() } else { format!(": {}", output::some_of(&all, MAX_NAMED)) }
}

/// Returns all addresses of a Service except node addresses.
pub(super) fn addresses_of(service: &ClusterService) -> impl Iterator<Item = IpAddr> {
    service.cluster_ips.iter().chain(&service.balancer_ips).chain(&service.external_ips).copied()
}

/// Returns the addresses of a port for [`Services::addresses`].
fn reached_at(port: &ResolvedPort, is_outside: bool) -> Vec<Destination> {
    let kinds: &[VipKind] = if is_outside {
        &[VipKind::LoadBalancer, VipKind::ExternalIp, VipKind::NodePort, VipKind::ClusterIp]
    } else {
        &[VipKind::ClusterIp]
    };
    let of_kind = |kind: &VipKind| -> Vec<Destination> {
        let vips = port.vips().iter().filter(|(_, other)| other == kind);
        vips.map(|(vip, _)| Destination { address: vip.address, port: Some((vip.transport, vip.port)) }).collect()
    };
    kinds.iter().map(of_kind).find(|vips| !vips.is_empty()).unwrap_or_default()
}

/// Returns, for each client, the address of the Service port in question. `asked` is the port if the target names none.
///
/// # Errors
/// If the resolver has no such Service or port, or several ports match.
pub fn resolved(
    resolver: &Resolver,
    target: &ServiceTarget,
    asked: Option<PortProtocol>,
    clients: &[End],
) -> anyhow::Result<Vec<(End, Destination)>> {
    if let (Some(word), Some(_)) = (&target.port, asked) {
        return Err(told_twice(&target.name, word));
    }
    let own: Vec<&ResolvedPort> = resolver
        .ports()
        .map(|(_, port)| port)
        .filter(|port| port.name.owner.service() == Some(&target.name) && !reached_at(port, false).is_empty())
        .collect();
    if own.is_empty() {
        bail!(
            "Service {} is not translated by this vswitch\n  help: it is unknown, headless, an ExternalName, or handled by another proxy; `bulkhead resolve` \
             shows how it is handled in a state",
            target.name
        );
    }
    // Both families have the same ports.
    let ports: BTreeSet<(Transport, u16, Arc<str>)> = own.iter().flat_map(|port| numbered(port)).collect();
    let is_meant = |(transport, number, name): &&(Transport, u16, Arc<str>)| match (&target.port, asked) {
        (Some(ServicePortWord::Name(word)), _) => name == word,
        (Some(ServicePortWord::Number(word, wanted)), _) => {
            number == word && wanted.is_none_or(|wanted| wanted == *transport)
        }
        (None, Some(asked)) => PortProtocol::new(*number, *transport) == asked,
        (None, None) => true,
    };
    let meant: Vec<_> = ports.iter().filter(is_meant).collect();
    let [(transport, number, name)] = &meant[..] else {
        let text = |(transport, number, name): &(Transport, u16, Arc<str>)| named_port(name, *number, *transport);
        let texts: Vec<String> = ports.iter().map(text).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let problem = if meant.is_empty() { "has no such port" } else { "has several matching ports" };
        bail!("Service {} {problem}\n  help: choose one of {}", target.name, output::some_of(&texts, MAX_NAMED));
    };
    let mut found = Vec::new();
    for client in clients {
        let is_of_client = |port: &&&ResolvedPort| {
            port.name.ipv4 == client.address().is_ipv4()
                && numbered(port).any(|own| own == (*transport, *number, name.clone()))
        };
        let of_port = |port: &&ResolvedPort| reached_at(port, client.node().is_none());
        found.extend(own.iter().filter(is_of_client).flat_map(of_port).map(|to| (client.clone(), to)));
    }
    if found.is_empty() {
        bail!(
            "Service {} has no address of the client's family\n  help: use a client address of the other family",
            target.name
        );
    }
    Ok(found)
}

fn told_twice(name: &ServiceName, word: &ServicePortWord) -> anyhow::Error {
    anyhow::anyhow!("the port of Service {name} is given twice\n  help: omit --port, or `:{word}`")
}

/// Returns protocol, port at the cluster IP and port name.
fn numbered(port: &ResolvedPort) -> impl Iterator<Item = (Transport, u16, Arc<str>)> {
    let own = port.vips().iter().filter(|(_, kind)| *kind == VipKind::ClusterIp);
    own.map(|(vip, _)| (vip.transport, vip.port, port.name.port.clone()))
}

/// Returns a Service port as text: `http (80/TCP)`.
pub fn port_text(port: &ServicePort) -> String {
    named_port(&port.name, port.port, port.transport)
}

fn named_port(name: &str, number: u16, transport: Transport) -> String {
    let number = format!("{number}/{transport}");
    if name.is_empty() { number } else { format!("{name} ({number})") }
}
