//! Behind another plugin: its veth and its addresses, our port.
//!
//! The other plugin has left the node's end up, so until this plugin runs the node's kernel has the pod's packets. From then on the
//! interface is down until the vswitch has it.

use std::net::IpAddr;

use serde_json::Value;

use super::Call;
use super::error::Error;
use super::link::Link;
use super::netlink::Netlink;
use super::port::Port;
use super::result::Outcome;
use super::sandbox::Sandbox;

/// Opens a port for the interface of `previous`. Returns the result of the plugin before this one, which is also ours.
///
/// # Errors
/// Why not. The interface is down then: its pod is cut off and not without policy.
pub(super) fn add(port: &Port<'_>, previous: &Outcome, raw: &Value) -> Result<String, Error> {
    let Call { conf, environment, .. } = port.call;
    if conf.ipam.is_some() {
        return Err(Error::configuration("ipam: the plugin before this one has given the addresses; leave it out"));
    }
    let name = &environment.interface;
    let (place, _) = previous.container(name).ok_or_else(|| {
        Error::configuration(format!("prevResult.interfaces: the container's {name} is not among them"))
    })?;
    let addresses: Vec<IpAddr> = previous.addresses(place).iter().map(|net| net.addr()).collect();
    if addresses.is_empty() {
        return Err(Error::configuration(format!("prevResult.ips: {name} has none")));
    }
    let (node, container) = ends(port.sandbox, name)?;
    if !previous.interfaces.iter().any(|interface| interface.is_nodes() && interface.name == node.name) {
        let details = format!("prevResult.interfaces: {}, the node's end of {name}, is not among them", node.name);
        return Err(Error::configuration(details));
    }
    let mac = container.mac.ok_or_else(|| Error::configuration(format!("{name}: it has no MAC address")))?;
    set_down(&node)?;
    port.open(&node.name, mac, &addresses).inspect_err(|_| port.forget())?;
    let mut result = raw.clone();
    result["cniVersion"] = conf.version.name().into();
    Ok(format!("{result:#}"))
}

/// Keeps the pod from sending past the vswitch while the port is closed and its interface is still there.
pub(super) fn cut_off(sandbox: &Sandbox<'_>, name: &str) -> Result<(), Error> {
    ends(sandbox, name).and_then(|(node, _)| set_down(&node))
}

fn set_down(node: &Link) -> Result<(), Error> {
    let set = Netlink::open().and_then(|mut kernel| kernel.set_up(node.index, false));
    set.map_err(|error| Error::kernel(format!("{}: set it down: {error}", node.name)))
}

/// The ends of the veth that is `name` in the container: the node's and the container's.
fn ends(sandbox: &Sandbox<'_>, name: &str) -> Result<(Link, Link), Error> {
    let refused = |error: std::io::Error| Error::kernel(format!("{name}: find it: {error}"));
    let container = sandbox.enter(|| Netlink::open().and_then(|mut kernel| kernel.link(name)).map_err(refused))?;
    let container = container.ok_or_else(|| Error::different(format!("{name}: it is not in the container")))?;
    let peer = container.peer.filter(|_| container.is_veth);
    let node = peer.map(|peer| Netlink::open().and_then(|mut kernel| kernel.link_numbered(peer)).map_err(refused));
    let node = node.transpose()?.flatten();
    // Its number may be another interface's in this namespace.
    let node = node.filter(|node| node.is_veth && node.peer == Some(container.index));
    let node = node.ok_or_else(|| {
        Error::configuration(format!(
            "prevResult.interfaces: {name} is not a veth whose other end is on the node; chain behind a plugin that makes one"
        ))
    })?;
    Ok((node, container))
}
