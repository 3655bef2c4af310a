//! Chained behind another plugin, which creates the veth and assigns addresses: this plugin opens the port.
//!
//! The other plugin leaves the node's end up, so the node's kernel gets the pod's packets until this plugin runs. This plugin sets the
//! node's end down until the vswitch has attached to it.

use std::net::IpAddr;

use serde_json::Value;

use super::Call;
use super::error::Error;
use super::link::Link;
use super::netlink::Netlink;
use super::port::Port;
use super::result::Outcome;
use super::sandbox::Sandbox;

/// Opens a port for the interface of `previous`. Returns the previous plugin's result unchanged, as JSON.
///
/// # Errors
/// [`Error`] with the cause. The interface then stays down: the pod has no network rather than one without policy.
pub(super) fn add(port: &Port<'_>, previous: &Outcome, raw: &Value) -> Result<String, Error> {
    let Call { conf, environment, .. } = port.call;
    if conf.ipam.is_some() {
        return Err(Error::configuration("ipam: remove it; the previous plugin in the chain assigns the addresses"));
    }
    let name = &environment.interface;
    let (place, _) = previous.container(name).ok_or_else(|| {
        Error::configuration(format!("prevResult.interfaces: the container's interface {name} is missing"))
    })?;
    let addresses: Vec<IpAddr> = previous.addresses(place).iter().map(|net| net.addr()).collect();
    if addresses.is_empty() {
        return Err(Error::configuration(format!("prevResult.ips: {name} has no address")));
    }
    let (node, container) = ends(port.sandbox, name)?;
    if !previous.interfaces.iter().any(|interface| interface.is_nodes() && interface.name == node.name) {
        let details = format!("prevResult.interfaces: {}, the node's end of {name}, is missing", node.name);
        return Err(Error::configuration(details));
    }
    let mac = container.mac.ok_or_else(|| Error::configuration(format!("{name} has no MAC address")))?;
    set_down(&node)?;
    port.open(&node.name, mac, &addresses).inspect_err(|_| port.forget())?;
    let mut result = raw.clone();
    result["cniVersion"] = conf.version.name().into();
    Ok(format!("{result:#}"))
}

/// Sets the node's end down, so that the pod cannot bypass the vswitch after its port is removed.
pub(super) fn cut_off(sandbox: &Sandbox<'_>, name: &str) -> Result<(), Error> {
    ends(sandbox, name).and_then(|(node, _)| set_down(&node))
}

fn set_down(node: &Link) -> Result<(), Error> {
    let set = Netlink::open().and_then(|mut kernel| kernel.set_up(node.index, false));
    set.map_err(|error| Error::kernel(format!("cannot set {} down: {error}", node.name)))
}

/// Returns the node's end and the container's end of the veth that is called `name` in the container.
fn ends(sandbox: &Sandbox<'_>, name: &str) -> Result<(Link, Link), Error> {
    let refused = |error: std::io::Error| Error::kernel(format!("cannot find {name}: {error}"));
    let container = sandbox.enter(|| Netlink::open().and_then(|mut kernel| kernel.link(name)).map_err(refused))?;
    let container = container.ok_or_else(|| Error::different(format!("the container has no interface {name}")))?;
    let peer = container.peer.filter(|_| container.is_veth);
    let node = peer.map(|peer| Netlink::open().and_then(|mut kernel| kernel.link_numbered(peer)).map_err(refused));
    let node = node.transpose()?.flatten();
    // In this namespace, the peer's index may belong to an unrelated interface.
    let node = node.filter(|node| node.is_veth && node.peer == Some(container.index));
    let node = node.ok_or_else(|| {
        Error::configuration(format!(
            "prevResult.interfaces: {name} is not a veth whose other end is on the node; chain this plugin behind one that creates a veth"
        ))
    })?;
    Ok((node, container))
}
