//! `CHECK`: whether an attachment still matches `ADD`'s result. `STATUS`: whether an `ADD` would succeed.

use std::net::IpAddr;

use ipnet::IpNet;

use super::Call;
use super::container::{self, everything, gateway};
use super::daemon::{away, failure};
use super::environment::Command;
use super::error::{Code, Error};
use super::ipam::Ipam;
use super::netlink::Netlink;
use super::result::Outcome;
use super::sandbox::Sandbox;
use bulkhead_observe::admin::{AskError, PortKey};

/// Checks the container's interface, the node's end and the port, and runs the IPAM plugin's `CHECK`.
///
/// # Errors
/// [`Error`] with the first difference.
pub(super) fn check(call: &Call) -> Result<(), Error> {
    let Call { environment, conf, .. } = call;
    let (previous, _) =
        conf.previous()?.ok_or_else(|| Error::configuration("prevResult: missing; CHECK needs the result of ADD"))?;
    let sandbox = Sandbox::open(environment)?;
    sandbox.enter(|| check_container(call, &previous))?;
    if conf.ipam.is_some() {
        check_node_end(call)?;
    }
    check_port(call)?;
    Ipam::find(call)?.map_or(Ok(()), |ipam| ipam.tell(Command::Check))
}

fn check_container(call: &Call, previous: &Outcome) -> Result<(), Error> {
    let name = &call.environment.interface;
    let refused = |error: std::io::Error| Error::kernel(format!("cannot read the state of {name}: {error}"));
    let (place, expected) = previous.container(name).ok_or_else(|| {
        Error::configuration(format!("prevResult.interfaces: the container's interface {name} is missing"))
    })?;
    let link = Netlink::open().and_then(|mut kernel| kernel.link(name)).map_err(refused)?;
    let link = link.ok_or_else(|| Error::different(format!("the container no longer has the interface {name}")))?;
    if !link.is_up {
        return Err(Error::different(format!("{name} is down")));
    }
    let (is, was) = (link.mac.map(|mac| mac.to_string()), expected.mac.as_ref());
    if was.is_some_and(|was| is.as_ref().is_none_or(|is| !is.eq_ignore_ascii_case(was))) {
        return Err(Error::different(format!(
            "{name} has the MAC address {}, not the one that ADD reported",
            is.unwrap_or_default()
        )));
    }
    let addresses = previous.addresses(place);
    let missing = container::missing(&link, &addresses, &own_routes(call, previous)).map_err(refused)?;
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Error::different(format!("{name} lacks {}", missing.join(", ")))),
    }
}

/// Returns the routes of the result that this plugin created. Plugins later in the chain may have added others.
fn own_routes(call: &Call, previous: &Outcome) -> Vec<(IpNet, IpAddr)> {
    let is_ours = |&(to, via): &(IpNet, IpAddr)| to == everything(via) && via == gateway(via);
    let routes = previous.routes.iter().filter_map(|route| Some((route.dst, route.gw?)));
    routes.filter(|_| call.conf.ipam.is_some()).filter(is_ours).collect()
}

fn check_node_end(call: &Call) -> Result<(), Error> {
    let name = call.attachment.node_end();
    let refused = |error: std::io::Error| Error::kernel(format!("cannot read the state of {name}: {error}"));
    match Netlink::open().and_then(|mut kernel| kernel.link(&name)).map_err(refused)? {
        Some(link) if link.is_up => Ok(()),
        Some(_) => Err(Error::different(format!("{name}, the node's end, is down"))),
        None => Err(Error::different(format!("{name}, the node's end, does not exist"))),
    }
}

fn check_port(call: &Call) -> Result<(), Error> {
    let port = call.daemon().check_port(PortKey::from(&call.attachment)).map_err(|error| match &error {
        AskError::Failed(told) if told.code == "unknown_port" => {
            Error::different(format!("the vswitch has no port for the attachment: {}", told.message))
        }
        _ => failure(&error),
    })?;
    match port.state.as_str() {
        "open" => Ok(()),
        state => {
            let why = port.why.map(|why| format!(": {why}")).unwrap_or_default();
            Err(Error::different(format!("the port is {state}{why}")))
        }
    }
}

/// Checks the vswitch, and runs the IPAM plugin's `STATUS`.
///
/// # Errors
/// [`Code::Unavailable`] if an `ADD` would fail. [`Code::UnavailableLimited`] if running pods are affected too: without a vswitch only
/// established sessions pass, until their leases end; a vswitch without state denies everything.
pub(super) fn status(call: &Call) -> Result<(), Error> {
    let health = call.daemon().health().map_err(|error| {
        let code = if matches!(error, AskError::Failed(_)) { Code::Unavailable } else { Code::UnavailableLimited };
        Error::new(code, "the vswitch does not answer", away(&error))
    })?;
    let not_ready = |code, details: &str| Err(Error::new(code, "the vswitch is not ready", details));
    if health.denying {
        return not_ready(
            Code::UnavailableLimited,
            "the vswitch has no state yet and denies all traffic; `bulkhead status` shows why",
        );
    }
    if !health.ready {
        return not_ready(Code::Unavailable, "`bulkhead status` shows why");
    }
    Ipam::find(call)?.map_or(Ok(()), |ipam| ipam.tell(Command::Status))
}
