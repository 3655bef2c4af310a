//! `ADD`: creates the container's interface and opens its port.
//!
//! ```text
//!   is the vswitch there? -> addresses -> veth, the node's end down -> container's end -> add_port -> result
//!                            IPAM DEL <-- remove_port, veth away <------------------------ one of these fails
//! ```
//!
//! `ADD` creates nothing until the vswitch answers. The node's end stays down until the vswitch has attached to it and sets it up. So no
//! packet of the pod reaches the node's kernel, and policy applies from the first packet.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;

use bulkhead_dataplane::io::default_route_mtu;
use ipnet::IpNet;
use serde_json::Value;

use super::attachment::Attachment;
use super::container::{self, everything, families, gateway};
use super::daemon::failure;
use super::error::Error;
use super::ipam::{Given, Ipam};
use super::link::{Link, Veth};
use super::mac::Mac;
use super::missed;
use super::netconf::MTUS;
use super::netlink::Netlink;
use super::port::Port;
use super::result::{Interface, Ip, Outcome, Route};
use super::sandbox::Sandbox;
use super::{Call, chain, remove};
use bulkhead_observe::admin::PodMtu;

/// MTU of pods' interfaces, in bytes, if the default route's MTU is unknown: Ethernet's.
const MTU: u32 = 1500;

/// Adds the attachment. Returns the result for the runtime, as JSON.
///
/// # Errors
/// [`Error`] with the cause. Everything created before is removed.
pub(super) fn add(call: &Call) -> Result<String, Error> {
    let Call { environment, conf, .. } = call;
    let pod = environment.pod()?;
    let sandbox = Sandbox::open(environment)?;
    let daemon = call.daemon();
    daemon.is_there().and_then(|()| missed::make_up(&call.missed(), daemon)).map_err(|error| failure(&error))?;
    let port = Port { call, pod: format!("{}/{}", pod.namespace, pod.name), uid: pod.uid, sandbox: &sandbox };
    match conf.previous()? {
        Some((previous, raw)) => chain::add(&port, &previous, raw),
        None => port.add_interface(),
    }
}

impl Port<'_> {
    fn add_interface(&self) -> Result<String, Error> {
        let ipam = Ipam::find(self.call)?.ok_or_else(|| {
            Error::configuration(
                "ipam: missing; write {\"type\": \"bulkhead-cni\", \"ranges\": [[{\"subnet\": \"10.244.1.0/24\"}]]}",
            )
        })?;
        self.check_free()?;
        let given = ipam.add()?;
        self.with_addresses(given).inspect_err(|_| {
            // The first error counts; a failed cleanup is not reported.
            let _ = ipam.tell(super::environment::Command::Del);
        })
    }

    /// Checks that the container does not have the interface yet. This comes first: an IPAM `DEL` for this attachment would release the
    /// addresses of the existing interface.
    fn check_free(&self) -> Result<(), Error> {
        let name = &self.call.environment.interface;
        let refused = |error: io::Error| Error::kernel(format!("cannot look for {name} in the container: {error}"));
        match self.sandbox.enter(|| Netlink::open().and_then(|mut kernel| kernel.link(name)).map_err(refused))? {
            Some(_) => Err(Error::environment(format!("CNI_IFNAME: the container already has an interface {name}"))),
            None => Ok(()),
        }
    }

    fn with_addresses(&self, given: Given) -> Result<String, Error> {
        let Call { attachment, conf, .. } = self.call;
        let Given { addresses, dns } = given;
        let [drawn, node_mac] = attachment.macs();
        let mac = conf.mac.unwrap_or(drawn);
        let mtu = conf.mtu.or_else(|| vswitch_mtu(&conf.socket)).unwrap_or_else(default_mtu);
        let kernel_error = |error: io::Error| Error::kernel(format!("{}: {error}", attachment.node_end()));
        let mut kernel = Netlink::open().map_err(kernel_error)?;
        let node_end = self.make_veth(&mut kernel, [node_mac, mac], mtu)?;
        let opened = self
            .set_up(&mut kernel, &node_end, &addresses, node_mac)
            .and_then(|()| self.open(&node_end.name, mac, &addresses));
        opened.inspect_err(|_| {
            let _ = kernel.delete_link(node_end.index);
            self.forget();
        })?;
        let dns = conf.dns.clone().or(dns);
        Ok(self.outcome(&node_end.name, [node_mac, mac], mtu, &addresses, dns).into_json(conf.version))
    }

    /// Creates the veth. Replaces the remains of an interrupted `ADD` of the same attachment.
    fn make_veth(&self, kernel: &mut Netlink, macs: [Mac; 2], mtu: u32) -> Result<Link, Error> {
        let Call { attachment, environment, .. } = self.call;
        let (name, interface) = (attachment.node_end(), &environment.interface);
        let refused = |error: io::Error| {
            Error::kernel(format!("cannot create the veth {name} (node) to {interface} (container): {error}"))
        };
        let veth = Veth { names: [&name, interface], macs, mtu, netns: self.sandbox.as_fd() };
        match kernel.make_veth(&veth) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                remove::node_end(kernel, attachment)?;
                kernel.make_veth(&veth).map_err(refused)?;
            }
            made => made.map_err(refused)?,
        }
        let made = kernel.link(&name).map_err(refused)?;
        made.ok_or_else(|| {
            Error::kernel(format!("{name}: another program removed the interface right after it was created"))
        })
    }

    fn set_up(&self, kernel: &mut Netlink, node: &Link, addresses: &[IpAddr], node_mac: Mac) -> Result<(), Error> {
        let Call { attachment, environment, .. } = self.call;
        kernel
            .set_alias(node.index, &attachment.alias())
            .map_err(|error| Error::kernel(format!("cannot set the alias of {}: {error}", node.name)))?;
        // The node's end must not send packets with its own address. Without IPv6 in the kernel this file does not exist.
        let _ = container::set(&node.name, "disable_ipv6", "1");
        self.sandbox.enter(|| container::set_up(&environment.interface, addresses, node_mac))
    }

    fn outcome(&self, node_end: &str, macs: [Mac; 2], mtu: u32, addresses: &[IpAddr], dns: Option<Value>) -> Outcome {
        let sandbox = self.sandbox.path.to_string_lossy().into_owned();
        let interface = |name: &str, mac: Mac, sandbox| Interface {
            name: name.to_owned(),
            mac: Some(mac.to_string()),
            mtu: Some(mtu),
            sandbox,
        };
        let ip = |address: &IpAddr| Ip {
            version: None,
            address: IpNet::from(*address),
            gateway: Some(gateway(*address)),
            interface: Some(1),
        };
        let route = |family| Route { dst: everything(family), gw: Some(gateway(family)) };
        let Attachment { interface: inside, .. } = &self.call.attachment;
        Outcome {
            version: String::new(),
            interfaces: vec![interface(node_end, macs[0], None), interface(inside, macs[1], Some(sandbox))],
            ips: addresses.iter().map(ip).collect(),
            routes: families(addresses).map(route).collect(),
            dns,
        }
    }
}

/// Returns the MTU that the vswitch with this socket has computed for new pods, in bytes. `None` if it has computed none, as with an uplink
/// port, or if a damaged file has another number.
fn vswitch_mtu(socket: &Path) -> Option<u32> {
    PodMtu::of(socket).read().filter(|mtu| MTUS.contains(mtu))
}

/// Returns the MTU of the default route's interface, in bytes: the largest packet that leaves the node unfragmented.
fn default_mtu() -> u32 {
    default_route_mtu().ok().flatten().unwrap_or(MTU)
}
