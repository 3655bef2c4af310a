//! A node with pods, connected in one of the ways that are compared.
//!
//! ```text
//!   [ client: eth0 ]--[ p2                     ul0 ]--[ second: eth0 ]   another node, 172.18.0.12
//!   [ sink: eth0   ]--[ p3     node: the way    hv ]--[ host0, in the node too ]
//! ```
//!
//! Pods, their addresses and their routes are the same in every way: /32 and a default route by 169.254.1.1, for which the
//! vswitch answers, or the node's kernel. Only a bridge and a cable need the pods to know that they are on one link.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

use super::vswitch::{Known, Port, configure};
use crate::testbed::folder::Folder;
use crate::testbed::net::{Netns, batch};
use crate::testbed::programs::run;
use crate::testbed::vswitch::Vswitch;
use crate::{policy, services};

/// The pod that is isolated by the policy.
pub(super) const SINK: &str = "sink";
/// The pod that talks to it.
pub(super) const CLIENT: &str = "client";
/// This node.
pub(super) const NODE: &str = "172.18.0.11";
/// The second node, behind the uplink.
pub(super) const SECOND: &str = "172.18.0.12";
/// Whom pods send to, whatever the destination.
const GATEWAY: &str = "169.254.1.1";

/// What is between the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Bulkhead with the policy.
    Vswitch,
    /// Another build of it, with the same.
    Before,
    /// The kernel's routing with the policy in nftables and connection tracking.
    Policy,
    /// The same, and Services as kube-proxy has them in nftables.
    Services,
    /// The kernel's routing, nothing else.
    Routing,
    /// A bridge of the kernel, nothing else.
    Bridge,
    /// The two ends of one veth, with no node between them: what the machine could give at best.
    Cable,
}

impl Way {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Vswitch => "vswitch",
            Self::Before => "the other build",
            Self::Policy => "kernel routing with the policy",
            Self::Services => "kernel routing with policy and Services",
            Self::Routing => "kernel routing",
            Self::Bridge => "kernel bridge",
            Self::Cable => "a veth from pod to pod",
        }
    }
}

/// How interfaces are attached to the vswitch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Attach {
    /// Programs at tc; the pods' settings stay as the kernel makes them
    Tc,
    /// AF_XDP sockets on the interfaces; offloads are turned off in the pods
    Xdp,
}

impl Attach {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tc => "tc",
            Self::Xdp => "xdp",
        }
    }
}

/// The program that is measured, and how.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) attach: Attach,
    /// What its configuration may say; older ones refuse what they do not know.
    pub(super) known: Known,
    /// The cores of the workers.
    pub(super) cores: Vec<usize>,
    /// More lines of the configuration.
    pub(super) more: String,
}

/// A pod: its namespace and its address.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) netns: Netns,
    pub(super) name: String,
    /// The node's end of its veth.
    pub(super) interface: String,
    pub(super) address: String,
    /// The MAC addresses of its own end and of the node's.
    macs: [String; 2],
}

/// What a node is made with.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// The pods' names.
    pub(super) pods: Vec<String>,
    /// Whether there is a second node behind an uplink.
    pub(super) second: bool,
    /// Whether the node itself takes part.
    pub(super) host: bool,
    /// Pods that the configuration and the state know and that have no interface yet, behind the others.
    pub(super) later: usize,
    /// Whether pods know the gateway's MAC address from the beginning, so that no question for it is repeated only a second later.
    pub(super) fixed_gateway: bool,
    /// Whether there are Services, one of them with the sink behind it.
    pub(super) services: bool,
}

impl Plan {
    /// A client and a sink.
    pub(super) fn pair() -> Self {
        Self::pods(&[CLIENT, SINK])
    }

    /// Pods of these names.
    pub(super) fn pods(names: &[&str]) -> Self {
        Self { pods: names.iter().map(ToString::to_string).collect(), ..Self::default() }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Node {
    // The program ends before what it holds goes.
    pub(super) vswitch: Option<Vswitch>,
    pub(super) pods: Vec<Pod>,
    pub(super) second: Option<Netns>,
    pub(super) netns: Netns,
    plan: Plan,
    way: Way,
}

impl Node {
    /// Makes it, and starts the vswitch where that is the way. The program must say within `patience` that it forwards.
    ///
    /// # Errors
    /// When something of it fails.
    pub(super) fn new(way: Way, program: &Program, plan: Plan, patience: Duration) -> anyhow::Result<Self> {
        let mut node = Self::unconnected(way, plan)?;
        match way {
            Way::Vswitch | Way::Before => {
                let vswitch = node.configure(program)?;
                node.vswitch.insert(vswitch).start(&node.netns, patience)?;
            }
            Way::Policy | Way::Services => {
                node.route()?;
                let folder = Folder::new()?;
                let sink = node.pods.iter().find(|pod| pod.name == SINK).context("the plan has a sink")?;
                let mut rules = policy::nftables(&sink.interface);
                if way == Way::Services {
                    rules.push_str(&services::nftables(&sink.address));
                }
                let rules = folder.write("rules.nft", &rules)?;
                node.netns.run(&format!("nft -f {}", rules.display()))?;
            }
            Way::Routing => node.route()?,
            Way::Bridge => node.bridge()?,
            Way::Cable => node.on_one_link()?,
        }
        Ok(node)
    }

    /// Makes it for the vswitch, which is configured and not started.
    ///
    /// # Errors
    /// When something of it fails.
    pub(super) fn without_program(program: &Program, plan: Plan) -> anyhow::Result<Self> {
        let mut node = Self::unconnected(Way::Vswitch, plan)?;
        node.vswitch = Some(node.configure(program)?);
        Ok(node)
    }

    /// Starts the vswitch, without waiting.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn launch(&mut self) -> anyhow::Result<()> {
        self.vswitch.as_mut().context("the way is not the vswitch")?.launch(&self.netns)
    }

    /// The vswitch.
    ///
    /// # Errors
    /// When another way was chosen.
    pub(super) fn program(&mut self) -> anyhow::Result<&mut Vswitch> {
        self.vswitch.as_mut().context("the way is not the vswitch")
    }

    /// Namespaces, veths and addresses.
    fn unconnected(way: Way, plan: Plan) -> anyhow::Result<Self> {
        let netns = Netns::new("node")?;
        let names: Vec<String> =
            plan.pods.iter().cloned().chain((0..plan.later).map(|number| format!("later{number}"))).collect();
        let namespaces = Netns::many(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
        let pods: Vec<Pod> = namespaces
            .into_iter()
            .zip(names)
            .zip(0u32..)
            .map(|((netns, name), number)| Pod {
                netns,
                name,
                interface: format!("p{}", number + 2),
                address: format!("10.244.{}.{}", 1 + number / 240, 2 + number % 240),
                macs: [0xaa, 0xbb].map(|end| format!("02:{end:02x}:00:00:{:02x}:{:02x}", number >> 8, number & 0xff)),
            })
            .collect();
        let node = Self { vswitch: None, pods, second: None, netns, plan, way };
        node.connect()?;
        for pod in node.present() {
            pod.netns.ip_lines(&addresses(pod, node.plan.fixed_gateway))?;
        }
        let mut node = node;
        if node.plan.second {
            node.second = Some(node.second_node()?);
        }
        if node.plan.host && way == Way::Vswitch {
            node.netns.ip_lines(&[
                "link add hv type veth peer name host0".to_owned(),
                "link set hv up".to_owned(),
                "link set host0 up".to_owned(),
                format!("addr add {NODE}/32 dev host0"),
                format!("route add {GATEWAY} dev host0 scope link"),
                format!("route add 10.244.0.0/16 via {GATEWAY} dev host0"),
            ])?;
        }
        Ok(node)
    }

    /// The pods that have an interface from the beginning.
    pub(super) fn present(&self) -> &[Pod] {
        &self.pods[..self.pods.len() - self.plan.later]
    }

    /// The pods that get one later.
    pub(super) fn later(&self) -> &[Pod] {
        &self.pods[self.pods.len() - self.plan.later..]
    }

    /// The pod of this name.
    ///
    /// # Panics
    /// When the plan has none.
    pub(super) fn pod(&self, name: &str) -> &Pod {
        self.pods.iter().find(|pod| pod.name == name).expect("a pod of the plan")
    }

    /// Veths from the pods to the node; a cable is one from pod to pod.
    fn connect(&self) -> anyhow::Result<()> {
        if let (Way::Cable, [one, other]) = (self.way, self.present()) {
            let [one, other] =
                [one, other].map(|pod| format!("eth0 address {} netns {}", pod.macs[0], pod.netns.name()));
            return batch(&[format!("link add {one} type veth peer name {other}")]);
        }
        batch(&self.present().iter().map(|pod| self.veth(pod)).collect::<Vec<_>>())?;
        let up = |pod: &Pod| format!("link set {} up", pod.interface);
        self.netns.ip_lines(&self.present().iter().map(up).collect::<Vec<_>>())
    }

    /// The line for `ip` that makes a pod's veth.
    fn veth(&self, pod: &Pod) -> String {
        let (node, far, [own, gateway]) = (self.netns.name(), pod.netns.name(), &pod.macs);
        let interface = &pod.interface;
        format!(
            "link add {interface} address {gateway} netns {node} type veth peer name eth0 address {own} netns {far}"
        )
    }

    /// The same for `ip` in the node.
    pub(super) fn veth_from_inside(&self, pod: &Pod) -> String {
        let (far, [own, gateway]) = (pod.netns.name(), &pod.macs);
        format!("link add {} address {gateway} type veth peer name eth0 address {own} netns {far}", pod.interface)
    }

    /// Another node with its own address on the link of the uplink.
    fn second_node(&self) -> anyhow::Result<Netns> {
        let second = Netns::new("second")?;
        run(
            "ip",
            &format!("link add ul0 netns {} type veth peer name eth0 netns {}", self.netns.name(), second.name()),
        )?;
        self.netns.ip("link set ul0 up")?;
        second.ip_lines(&[
            "link set eth0 up".to_owned(),
            format!("addr add {SECOND}/16 dev eth0"),
            format!("route add 10.244.0.0/16 via {NODE}"),
        ])?;
        Ok(second)
    }

    /// The configuration of the vswitch, and the state that it reads.
    fn configure(&self, program: &Program) -> anyhow::Result<Vswitch> {
        let mut ports: Vec<Port> = self
            .pods
            .iter()
            .map(|pod| Port::Pod {
                name: pod.name.clone(),
                interface: pod.interface.clone(),
                netns: pod.netns.name().to_owned(),
            })
            .collect();
        if let Some(second) = &self.second {
            ports.push(Port::Uplink);
            if program.attach == Attach::Xdp {
                second.run("ethtool -K eth0 tx off")?;
            }
        }
        if self.plan.host {
            ports.push(Port::Host);
        }
        let pods: Vec<(String, String)> = self.pods.iter().map(|pod| (pod.name.clone(), pod.address.clone())).collect();
        configure(program, &ports, &pods, self.plan.services)
    }

    /// The node's kernel as the router.
    fn route(&self) -> anyhow::Result<()> {
        self.netns.sysctl("net/ipv4/ip_forward", "1")?;
        let mut lines =
            vec![format!("addr add {NODE}/{} dev {}", if self.plan.second { 16 } else { 32 }, self.uplink())];
        if !self.plan.second {
            lines.insert(0, "link set lo up".to_owned());
        }
        for pod in self.present() {
            lines.extend(self.kernel_route(pod));
        }
        self.netns.ip_lines(&lines)
    }

    const fn uplink(&self) -> &'static str {
        if self.plan.second { "ul0" } else { "lo" }
    }

    /// The lines for `ip` in the node with which its kernel routes to a pod and answers for the pod's gateway.
    pub(super) fn kernel_route(&self, pod: &Pod) -> Vec<String> {
        let Pod { interface, address, macs, .. } = pod;
        let mut lines = vec![
            format!("addr add {GATEWAY}/32 dev {interface}"),
            format!("route add {address}/32 dev {interface} src {NODE}"),
        ];
        if self.plan.fixed_gateway {
            lines.push(format!("neigh add {address} lladdr {} nud permanent dev {interface}", macs[0]));
        }
        lines
    }

    fn bridge(&self) -> anyhow::Result<()> {
        let mut lines = vec!["link add br0 type bridge".to_owned(), "link set br0 up".to_owned()];
        lines.extend(self.present().iter().map(|pod| format!("link set {} master br0", pod.interface)));
        self.netns.ip_lines(&lines)?;
        self.on_one_link()
    }

    /// Pods ask each other for their MAC addresses.
    fn on_one_link(&self) -> anyhow::Result<()> {
        self.present().iter().try_for_each(|pod| pod.netns.ip("route add 10.244.0.0/16 dev eth0 scope link"))
    }

    /// Which way it is.
    pub(super) const fn way(&self) -> Way {
        self.way
    }
}

/// The lines for `ip` in a pod's namespace that bring its interface up, with address and routes.
pub(super) fn addresses(pod: &Pod, fixed_gateway: bool) -> Vec<String> {
    let mut lines = vec![
        "link set lo up".to_owned(),
        "link set eth0 up".to_owned(),
        format!("addr add {}/32 dev eth0", pod.address),
        format!("route add {GATEWAY} dev eth0 scope link"),
        format!("route add default via {GATEWAY} dev eth0"),
    ];
    if fixed_gateway {
        lines.push(format!("neigh add {GATEWAY} lladdr {} nud permanent dev eth0", pod.macs[1]));
    }
    lines
}
