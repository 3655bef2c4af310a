//! Checks ports and routes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::object::PodName;
use bulkhead_control::renderer::acl::EnforcedAt;
use bulkhead_dataplane::PortKind;
use ipnet::IpNet;
use serde_saphyr::Spanned;

use super::super::faults::{Faults, line};
use super::super::file::{Create, Kind, Port, Route};
use super::super::{CreatedHost, PortEntry, RouteEntry};

/// Container runtimes' name for a pod's interface.
const DEFAULT_PEER: &str = "eth0";
/// Maximum length of an interface name (IFNAMSIZ without the final zero).
const MAX_INTERFACE_LEN: usize = 15;

pub(super) fn ports(written: &[Spanned<Port>], faults: &mut Faults<'_>) -> Vec<PortEntry> {
    let mut ports: Vec<PortEntry> = Vec::with_capacity(written.len());
    let (mut names, mut labels, mut interfaces) = (HashMap::new(), HashMap::new(), HashMap::new());
    for (at, entry) in written.iter().enumerate() {
        let Some(port) = port(at, entry, faults) else { continue };
        if let Some(other) = names.insert(port.name.clone(), port.line) {
            let problem = format!("is the port {}, which line {other} describes already", port.name);
            faults.add(Some(port.line), format!("ports[{at}]"), problem, "remove one of the two");
        }
        let other = port.label.as_ref().and_then(|label| labels.insert(label.clone(), port.line));
        if let Some(other) = other {
            let problem = format!("is the name of the port on line {other} already");
            faults.add(Some(port.line), format!("ports[{at}].name"), problem, "give each port its own name");
        }
        if let Some(other) = interfaces.insert(port.interface.clone(), port.line) {
            let problem = format!("{} is the interface of the port on line {other} already", port.interface);
            let help = "an interface can be only one port; remove one of the two";
            faults.add(line(&entry.value.interface), format!("ports[{at}].interface"), problem, help);
        }
        ports.push(port);
    }
    ports
}

/// Valid MTUs: the minimum for IPv6 (RFC 8200 §5), up to a veth's maximum.
const MTUS: std::ops::RangeInclusive<u32> = 1280..=65_535;

/// Returns the host port's interfaces. `None` if the vswitch does not create them.
pub(super) fn created_host(written: &[Spanned<Port>], faults: &mut Faults<'_>) -> Option<CreatedHost> {
    let mut created = None;
    for (at, Spanned { value: port, .. }) in written.iter().enumerate() {
        let Some(create) = &port.create else { continue };
        let field = |name: &str| format!("ports[{at}].create{name}");
        if port.kind != Kind::Host {
            let help = "remove it: the CNI plugin creates pods' interfaces, and the uplink exists already";
            faults.add(line(create), field(""), "only a port of kind host can be created", help);
        }
        let Some(peer) = &port.peer else {
            faults.add(line(create), field(""), "is set without a name for the node's end", "add peer: bh-node");
            continue;
        };
        let (Create { mtu, networks: texts }, mut networks) = (&create.value, Vec::new());
        if let Some(named) = mtu.as_ref().filter(|mtu| !MTUS.contains(&mtu.value)) {
            let help = format!(
                "write {} to {}, or remove the field: then it is that of the node's largest link",
                MTUS.start(),
                MTUS.end()
            );
            faults.add(line(named), field(".mtu"), format!("an MTU of {}", named.value), help);
        }
        for text in texts {
            match text.value.parse::<IpNet>() {
                Ok(network) if network.prefix_len() > 0 => networks.push(network.trunc()),
                _ => {
                    let help = "write the prefix of the node's pods: 10.244.1.0/24";
                    faults.add(
                        line(text),
                        field(".networks"),
                        format!("`{}` is not a valid pod network", text.value),
                        help,
                    );
                }
            }
        }
        created = Some(CreatedHost {
            interface: port.interface.value.as_str().into(),
            peer: peer.value.as_str().into(),
            mtu: mtu.as_ref().map(|mtu| mtu.value),
            networks,
        });
    }
    created
}

fn port(at: usize, entry: &Spanned<Port>, faults: &mut Faults<'_>) -> Option<PortEntry> {
    let before = faults.errors.len();
    let field = |name: &str| format!("ports[{at}].{name}");
    let port = &entry.value;
    let pod = pod_of(at, entry, faults);
    if let Err(problem) = check_interface(&port.interface.value) {
        faults.add(line(&port.interface), field("interface"), problem, "write its name as `ip link` shows it");
    }
    let peer = port.peer.as_ref().map_or(DEFAULT_PEER, |peer| &peer.value);
    if let Some(named) = port.peer.as_ref().filter(|peer| check_interface(&peer.value).is_err()) {
        let help = "write the name of the interface inside the pod as `ip link` shows it there";
        faults.add(line(named), field("peer"), format!("`{}` is not a valid interface name", named.value), help);
    }
    let mac = port.mac.as_ref().and_then(|text| {
        let mac = parse_mac(&text.value);
        if mac.is_none() {
            let help = "write six bytes in hex, not a group address: 02:00:0a:f4:01:02";
            faults.add(line(text), field("mac"), format!("`{}` is not a MAC address", text.value), help);
        }
        mac
    });
    let host_peer = port.kind == Kind::Host && port.peer.is_some();
    if port.fix_offloads && port.netns.is_none() && !host_peer {
        let help =
            "add netns: the name below /run/netns, or the path, of the pod's network namespace; a host port needs peer";
        faults.add(
            line(entry),
            field("fix_offloads"),
            "is set, but the other end of the interface is not configured",
            help,
        );
    }
    let kind = match port.kind {
        Kind::Pod => PortKind::Pod,
        Kind::Uplink => PortKind::Uplink,
        Kind::Host => PortKind::Host,
    };
    let name: Arc<str> = match (kind, &pod) {
        (PortKind::Pod, Some(pod)) => pod.to_string().into(),
        (PortKind::Uplink, _) => "uplink".into(),
        (PortKind::Host, _) => "host".into(),
        (PortKind::Pod, None) => return None,
    };
    (faults.errors.len() == before).then(|| PortEntry {
        name,
        label: port.name.as_ref().map(|name| name.value.as_str().into()),
        kind,
        pod,
        interface: port.interface.value.as_str().into(),
        mac,
        netns: port.netns.as_ref().map(|netns| netns.value.as_str().into()),
        peer: peer.into(),
        peer_named: port.peer.is_some(),
        fix_offloads: port.fix_offloads,
        line: entry.referenced.line(),
        added: None,
    })
}

fn pod_of(at: usize, entry: &Spanned<Port>, faults: &mut Faults<'_>) -> Option<PodName> {
    let field = format!("ports[{at}].pod");
    match (entry.value.kind, &entry.value.pod) {
        (Kind::Pod, None) => {
            faults.add(line(entry), field, "is missing", "write the pod behind the port: pod: namespace/name");
            None
        }
        (Kind::Pod, Some(text)) => match text.value.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Some(PodName::new(namespace, name))
            }
            _ => {
                faults.add(line(text), field, format!("`{}` is not namespace/name", text.value), "write default/web");
                None
            }
        },
        (_, Some(text)) => {
            faults.add(line(text), field, "only a port of kind pod has a pod", "remove it, or write kind: pod");
            None
        }
        (_, None) => None,
    }
}

pub(super) fn routes(
    written: &[Route],
    ports: &[PortEntry],
    enforce: EnforcedAt,
    faults: &mut Faults<'_>,
) -> Vec<RouteEntry> {
    let mut routes: Vec<RouteEntry> = Vec::with_capacity(written.len());
    for (at, route) in written.iter().enumerate() {
        let field = |name: &str| format!("routes[{at}].{name}");
        let Ok(prefix) = route.prefix.value.parse::<IpNet>() else {
            let problem = format!("`{}` is not a prefix", route.prefix.value);
            faults.add(line(&route.prefix), field("prefix"), problem, "write address/length: 10.244.0.0/16, ::/0");
            continue;
        };
        let via = route.via.as_ref().and_then(|text| {
            let via = text.value.parse::<IpAddr>().ok();
            if via.is_none_or(|via| via.is_ipv4() != prefix.addr().is_ipv4() || unusable(via)) {
                let problem = format!("`{}` is not a gateway of the prefix's family", text.value);
                faults.add(line(text), field("via"), problem, "write the address of a router on the link of the port");
            }
            via
        });
        let port = route.port.as_ref().map_or("uplink", |port| &port.value);
        let known = ports.iter().find(|known| known.is_called(port));
        if known.is_none() && port != "uplink" {
            let names: Vec<&str> = ports.iter().map(|port| &*port.name).collect();
            let place = route.port.as_ref().and_then(line);
            let help = format!("write one of {}", names.join(", "));
            faults.add(place, field("port"), format!("port `{port}` does not exist"), help);
        }
        if enforce == EnforcedAt::Source && known.is_some_and(|known| known.kind == PortKind::Pod) {
            let place = route.port.as_ref().and_then(line);
            let problem = "leads to a pod's port; with enforce: source no policy applies there to packets to other addresses than the pod's";
            faults.add(place, field("port"), problem, "remove the route, or write enforce: destination");
        }
        if routes.iter().any(|other| other.prefix.trunc() == prefix.trunc()) {
            let problem = format!("a second route for {}", prefix.trunc());
            faults.add(line(&route.prefix), field("prefix"), problem, "keep one of them");
        }
        routes.push(RouteEntry {
            prefix: prefix.trunc(),
            via,
            port: known.map_or_else(|| port.into(), |known| known.name.clone()),
        });
    }
    routes
}

fn unusable(via: IpAddr) -> bool {
    via.is_unspecified() || via.is_loopback() || via.is_multicast()
}

/// Applies the kernel's rule for interface names (`dev_valid_name`).
pub(crate) fn check_interface(name: &str) -> Result<(), String> {
    let bad = name.is_empty() || name.len() > MAX_INTERFACE_LEN || name == "." || name == "..";
    if bad || name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control()) {
        return Err(format!("`{name}` is not a valid interface name"));
    }
    Ok(())
}

/// Parses `02:00:0a:f4:01:02`. Rejects group addresses and all zeros, which are never source addresses.
pub(crate) fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2 && part.bytes().all(|c| c.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    (parts.next().is_none() && mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
}
