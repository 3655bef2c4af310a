//! `CHECK`: whether an attachment is as `ADD` has left it. `STATUS`: whether an `ADD` would work.

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

/// Looks at the container's interface, the node's end, the port, and asks the IPAM plugin.
///
/// # Errors
/// The first difference.
pub(super) fn check(call: &Call) -> Result<(), Error> {
    let Call { environment, conf, .. } = call;
    let (previous, _) = conf
        .previous()?
        .ok_or_else(|| Error::configuration("prevResult: it is missing, so it is not known what ADD has made"))?;
    let sandbox = Sandbox::open(environment)?;
    sandbox.enter(|| check_container(call, &previous))?;
    if conf.ipam.is_some() {
        check_node_end(call)?;
    }
    check_port(call)?;
    Ipam::find(conf, environment)?.map_or(Ok(()), |ipam| ipam.tell(Command::Check))
}

fn check_container(call: &Call, previous: &Outcome) -> Result<(), Error> {
    let name = &call.environment.interface;
    let refused = |error: std::io::Error| Error::kernel(format!("{name}: look at it: {error}"));
    let (place, expected) = previous.container(name).ok_or_else(|| {
        Error::configuration(format!("prevResult.interfaces: the container's {name} is not among them"))
    })?;
    let link = Netlink::open().and_then(|mut kernel| kernel.link(name)).map_err(refused)?;
    let link = link.ok_or_else(|| Error::different(format!("{name}: it is not in the container any more")))?;
    if !link.is_up {
        return Err(Error::different(format!("{name}: it is down")));
    }
    let (is, was) = (link.mac.map(|mac| mac.to_string()), expected.mac.as_ref());
    if was.is_some_and(|was| is.as_ref().is_none_or(|is| !is.eq_ignore_ascii_case(was))) {
        return Err(Error::different(format!("{name}: its MAC address is {}", is.unwrap_or_default())));
    }
    let addresses = previous.addresses(place);
    let missing = container::missing(&link, &addresses, &own_routes(call, previous)).map_err(refused)?;
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Error::different(format!("{name}: missing: {}", missing.join(", ")))),
    }
}

/// The routes of the result that are ours: a plugin behind us may have added others.
fn own_routes(call: &Call, previous: &Outcome) -> Vec<(IpNet, IpAddr)> {
    let is_ours = |&(to, via): &(IpNet, IpAddr)| to == everything(via) && via == gateway(via);
    let routes = previous.routes.iter().filter_map(|route| Some((route.dst, route.gw?)));
    routes.filter(|_| call.conf.ipam.is_some()).filter(is_ours).collect()
}

fn check_node_end(call: &Call) -> Result<(), Error> {
    let name = call.attachment.node_end();
    let refused = |error: std::io::Error| Error::kernel(format!("{name}: look at it: {error}"));
    match Netlink::open().and_then(|mut kernel| kernel.link(&name)).map_err(refused)? {
        Some(link) if link.is_up => Ok(()),
        Some(_) => Err(Error::different(format!("{name}, the node's end: it is down"))),
        None => Err(Error::different(format!("{name}, the node's end: it is gone"))),
    }
}

fn check_port(call: &Call) -> Result<(), Error> {
    let port = call.daemon().check_port(PortKey::from(&call.attachment)).map_err(|error| match &error {
        AskError::Failed(told) if told.code == "unknown_port" => {
            Error::different(format!("the vswitch has no port for it: {}", told.message))
        }
        _ => failure(&error),
    })?;
    match port.state.as_str() {
        "open" => Ok(()),
        state => {
            let why = port.why.map(|why| format!(": {why}")).unwrap_or_default();
            Err(Error::different(format!("its port is {state}{why}")))
        }
    }
}

/// Asks the vswitch, and the IPAM plugin.
///
/// # Errors
/// Why an `ADD` would not work, and with which of the two codes: whether pods that run are cut off as well. Without a vswitch nothing
/// passes once the leases of established sessions have ended, and while it denies everything nothing passes at all.
pub(super) fn status(call: &Call) -> Result<(), Error> {
    let health = call.daemon().health().map_err(|error| {
        let code = if matches!(error, AskError::Failed(_)) { Code::Unavailable } else { Code::UnavailableLimited };
        Error::new(code, "the vswitch does not answer", away(&error))
    })?;
    let not_ready = |code, details: &str| Err(Error::new(code, "the vswitch is not ready", details));
    if health.denying {
        return not_ready(Code::UnavailableLimited, "it has no state yet and denies everything; see `bulkhead status`");
    }
    if !health.ready {
        return not_ready(Code::Unavailable, "`bulkhead status` tells why");
    }
    Ipam::find(&call.conf, &call.environment)?.map_or(Ok(()), |ipam| ipam.tell(Command::Status))
}
