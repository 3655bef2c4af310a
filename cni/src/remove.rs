//! `DEL` and `GC`: what was added goes.
//!
//! Everything is tried, whatever fails, and what failed first is told. The interface goes first: between the end of its port and its own
//! nobody would judge its packets.

use std::collections::HashSet;

use super::Call;
use super::attachment::Attachment;
use super::chain;
use super::daemon::failure;
use super::environment::Command;
use super::error::Error;
use super::ipam::Ipam;
use super::missed;
use super::netlink::Netlink;
use super::sandbox::Sandbox;
use bulkhead_observe::admin::PortKey;

/// Removes an attachment, or what is there of it.
///
/// # Errors
/// When something could be neither removed nor kept for later.
pub(super) fn del(call: &Call) -> Result<(), Error> {
    let Call { environment, conf, attachment } = call;
    let interface = Netlink::open()
        .map_err(|error| Error::kernel(format!("open a netlink socket: {error}")))
        .and_then(|mut kernel| node_end(&mut kernel, attachment));
    if conf.ipam.is_none()
        && let Ok(sandbox) = Sandbox::open(environment)
    {
        // Without an IPAM plugin it is another plugin's interface, which removes it after us. There may be none any more.
        let _ = chain::cut_off(&sandbox, &environment.interface);
    }
    let port = call.forget();
    let addresses = delegate(call, Command::Del);
    interface.and(port).and(addresses)
}

/// Removes what belongs to no attachment that the runtime knows.
///
/// # Errors
/// What could not be removed.
pub(super) fn gc(call: &Call) -> Result<(), Error> {
    let Call { conf, .. } = call;
    let valid = conf.attachments()?;
    let valid: Vec<Attachment> = valid
        .iter()
        .map(|valid| Attachment {
            network: conf.network.clone(),
            container: valid.container.clone(),
            interface: valid.interface.clone(),
        })
        .collect();
    let interfaces = remove_stale(&conf.network, &valid);
    let (daemon, keep) = (call.daemon(), valid.iter().map(PortKey::from).collect());
    let ports = missed::make_up(&call.missed(), daemon).and_then(|()| daemon.retain_ports(&conf.network, keep));
    let ports = ports.map_err(|error| failure(&error));
    let addresses = delegate(call, Command::Gc);
    interfaces.and(ports).and(addresses)
}

/// Tells the IPAM plugin, if there is one.
fn delegate(call: &Call, command: Command) -> Result<(), Error> {
    match Ipam::find(&call.conf, &call.environment)? {
        Some(ipam) => ipam.tell(command),
        None => Ok(()),
    }
}

/// Removes the veths of a network that the plugin has made and that are none of the valid attachments'.
fn remove_stale(network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let refused = |error: std::io::Error| Error::kernel(format!("find stale interfaces: {error}"));
    let valid: HashSet<&Attachment> = valid.iter().collect();
    let mut outcome = Ok(());
    let mut kernel = Netlink::open().map_err(refused)?;
    for link in kernel.links().map_err(refused)?.into_iter().filter(|link| link.is_veth) {
        let Some(attachment) = link.alias.as_deref().and_then(Attachment::of_alias) else { continue };
        if attachment.network == network && !valid.contains(&attachment) && attachment.node_end() == link.name {
            let removed = kernel.delete_link(link.index);
            outcome = outcome.and(removed.map(drop).map_err(refused));
        }
    }
    outcome
}

/// Removes the node's end of an attachment's veth, and the other end with it, when there is one.
///
/// # Errors
/// When the kernel refuses, or when the interface is somebody else's.
pub(super) fn node_end(kernel: &mut Netlink, attachment: &Attachment) -> Result<(), Error> {
    let name = attachment.node_end();
    let refused = |error: std::io::Error| Error::kernel(format!("{name}: remove it: {error}"));
    match kernel.link(&name).map_err(refused)? {
        Some(link) if link.is_veth => kernel.delete_link(link.index).map(drop).map_err(refused),
        Some(_) => Err(Error::kernel(format!("{name}: it is no veth, so this plugin has not made it"))),
        None => Ok(()),
    }
}
