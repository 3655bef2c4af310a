//! Services by their names, and the addresses at which they are reached.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use bulkhead_control::object::{ClusterService, Object, ServiceName, ServicePort, Transport};
use bulkhead_control::service::{ResolvedPort, Resolver, VipKind};

use super::Services;
use crate::args::{Destination, PortProtocol, ServicePortWord, ServiceTarget};
use crate::fabric::End;
use crate::output;

/// Services and ports that are named in one line.
const MAX_NAMED: usize = 8;

/// Names that differ in so many letters are taken for typos of each other.
const MAX_TYPOS: usize = 3;

impl Services {
    /// The Service of this name, which has an address in the cluster.
    ///
    /// # Errors
    /// When there is none, with the names that are most like it, or when nothing is translated to it.
    pub fn named(&self, name: &ServiceName) -> anyhow::Result<&ClusterService> {
        let service = self.all().find(|service| service.name == *name);
        let service =
            service.with_context(|| format!("no Service {name} in the state\n  help: {}", self.like(name)))?;
        if service.cluster_ips.is_empty() {
            bail!(
                "Service {name} has no cluster address: a headless or ExternalName Service is not translated\n  \
                 help: ask about the address that its name resolves to{}",
                self.endpoints(name)
            );
        }
        if service.proxy.as_deref().unwrap_or_default() != self.settings.service_proxy_name {
            bail!(
                "Service {name} is handled by another proxy (service.kubernetes.io/service-proxy-name)\n  \
                 help: set service_proxy_name in --settings to that proxy"
            );
        }
        Ok(service)
    }

    /// The Services of names like this one.
    fn like(&self, name: &ServiceName) -> String {
        let wanted = name.to_string();
        let distance = |other: &ClusterService| strsim::osa_distance(&other.name.to_string(), &wanted);
        let is_near = |other: &&ClusterService| {
            other.name.namespace == name.namespace || other.name.name == name.name || distance(other) <= MAX_TYPOS
        };
        let mut near: Vec<(usize, String)> =
            self.all().filter(is_near).map(|other| (distance(other), other.name.to_string())).collect();
        near.sort_unstable();
        let names: Vec<&str> = near.iter().map(|(_, name)| name.as_str()).collect();
        match (names.as_slice(), self.all().next()) {
            ([], None) => "add the output of `kubectl get services,endpointslices -A -o yaml` to --state".to_owned(),
            ([], Some(_)) => format!("the state has no Service in namespace {} and no Service named {}", name.namespace, name.name),
            (names, _) => format!("it has {}", output::some_of(names, MAX_NAMED)),
        }
    }

    /// The addresses of a Service's endpoints, for a remedy.
    fn endpoints(&self, name: &ServiceName) -> String {
        let slices = self.objects.iter().filter_map(|object| match object {
            Object::EndpointSlice(slice) if slice.service_name().as_ref() == Some(name) => Some(slice),
            _ => None,
        });
        let all: BTreeSet<IpAddr> =
            slices.flat_map(|slice| slice.endpoints.iter().map(|endpoint| endpoint.address)).collect();
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        if all.is_empty() { String::new() } else { format!(": {}", output::some_of(&all, MAX_NAMED)) }
    }

    /// The ports that are asked about: the one that the target names, those that are `asked`, else all.
    ///
    /// # Errors
    /// When the Service has none of that name or number, with those that it has, and when a port is named in both ways.
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
                let found = its.find(|port| (port.port, port.transport) == (asked.port, asked.transport));
                found.cloned().ok_or_else(|| missing(format!("{}/{}", asked.port, asked.transport)))
            };
            return match asked {
                [] => Ok(service.ports.clone()),
                asked => asked.iter().map(find).collect(),
            };
        };
        if !asked.is_empty() {
            return Err(told_twice(&target.name, word));
        }
        let is_meant = |port: &&ServicePort| match word {
            ServicePortWord::Name(name) => port.name == *name,
            ServicePortWord::Number(number, transport) => {
                port.port == *number && transport.is_none_or(|transport| transport == port.transport)
            }
        };
        let found: Vec<ServicePort> = service.ports.iter().filter(is_meant).cloned().collect();
        if found.is_empty() { Err(missing(word.to_string())) } else { Ok(found) }
    }

    /// The addresses of one family at which a client reaches a port of a Service: inside the cluster its cluster address; outside those of
    /// the load balancer, else external ones, else the node port at `node`, else the cluster address.
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

    /// Keeps what these Services are resolved by, which leaves out most of the work in a large cluster: their endpoints, and the Services
    /// that share an address with them.
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

/// Every address of a Service, but those of nodes.
pub(super) fn addresses_of(service: &ClusterService) -> impl Iterator<Item = IpAddr> {
    service.cluster_ips.iter().chain(&service.balancer_ips).chain(&service.external_ips).copied()
}

/// Where a client reaches a port, see [`Services::addresses`].
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

/// The addresses at which clients reach the one port of a Service that is meant, as a node's resolver knows it: those of each client, which
/// is in the cluster or not. `asked` is the port where the target does not name it.
///
/// # Errors
/// When the resolver knows no such Service or port, or several ports are meant.
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
        (None, Some(asked)) => (*number, *transport) == (asked.port, asked.transport),
        (None, None) => true,
    };
    let meant: Vec<_> = ports.iter().filter(is_meant).collect();
    let [(transport, number, name)] = &meant[..] else {
        let text = |(transport, number, name): &(Transport, u16, Arc<str>)| named_port(name, *number, *transport);
        let texts: Vec<String> = ports.iter().map(text).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let problem = if meant.is_empty() { "has no such port" } else { "has several matching ports" };
        bail!(
            "Service {} {problem}\n  help: choose one of {} with --port, or after a colon",
            target.name,
            output::some_of(&texts, MAX_NAMED)
        );
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

/// A port by its protocol, the number at its cluster address, and its name.
fn numbered(port: &ResolvedPort) -> impl Iterator<Item = (Transport, u16, Arc<str>)> {
    let own = port.vips().iter().filter(|(_, kind)| *kind == VipKind::ClusterIp);
    own.map(|(vip, _)| (vip.transport, vip.port, port.name.port.clone()))
}

/// A port of a Service, for people: `http (80/TCP)`.
pub fn port_text(port: &ServicePort) -> String {
    named_port(&port.name, port.port, port.transport)
}

fn named_port(name: &str, number: u16, transport: Transport) -> String {
    let number = format!("{number}/{transport}");
    if name.is_empty() { number } else { format!("{name} ({number})") }
}
