//! `DEL` and `GC`: remove attachments.
//!
//! Every step runs even if an earlier one fails; the first error is returned. The interface goes first: after its port is removed, its
//! packets would bypass the vswitch.

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

/// Removes what exists of an attachment.
///
/// # Errors
/// [`Error`] if something can neither be removed nor recorded for later.
pub(super) fn del(call: &Call) -> Result<(), Error> {
    let Call { environment, conf, attachment } = call;
    let interface = Netlink::open()
        .map_err(|error| Error::kernel(format!("cannot open a netlink socket: {error}")))
        .and_then(|mut kernel| node_end(&mut kernel, attachment));
    if conf.ipam.is_none()
        && let Ok(sandbox) = Sandbox::open(environment)
    {
        // Without IPAM the interface belongs to a previous plugin, whose `DEL` comes later. It may be gone already.
        let _ = chain::cut_off(&sandbox, &environment.interface);
    }
    let port = call.forget();
    let addresses = delegate(call, Command::Del);
    interface.and(port).and(addresses)
}

/// Removes all attachments that the runtime does not list as valid.
///
/// # Errors
/// [`Error`] with the first removal that failed.
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

/// Runs the command of the IPAM plugin, if the configuration names one.
fn delegate(call: &Call, command: Command) -> Result<(), Error> {
    match Ipam::find(call)? {
        Some(ipam) => ipam.tell(command),
        None => Ok(()),
    }
}

/// Removes this plugin's veths of a network that belong to no valid attachment.
fn remove_stale(network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let refused = |error: std::io::Error| Error::kernel(format!("cannot remove stale interfaces: {error}"));
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

/// Removes the veth of an attachment if it exists.
///
/// # Errors
/// [`Error`] if the kernel refuses, or if the interface is not a veth.
pub(super) fn node_end(kernel: &mut Netlink, attachment: &Attachment) -> Result<(), Error> {
    let name = attachment.node_end();
    let refused = |error: std::io::Error| Error::kernel(format!("cannot remove {name}: {error}"));
    match kernel.link(&name).map_err(refused)? {
        Some(link) if link.is_veth => kernel.delete_link(link.index).map(drop).map_err(refused),
        Some(_) => {
            Err(Error::kernel(format!("{name} is not a veth, so this plugin did not create it; remove or rename it")))
        }
        None => Ok(()),
    }
}
