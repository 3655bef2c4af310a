//! A node with pods, connected by one of the compared paths.
//! ```text
//!   [ client: eth0 ]--[ p2                     ul0 ]--[ second: eth0 ]   another node, 172.18.0.12
//!   [ sink: eth0   ]--[ p3     node: the way    hv ]--[ host0, in the node too ]
//! ```
//!
//! Pods have the same addresses and routes in every case: a /32 and a default route by 169.254.1.1, for which the vswitch or the node's
//! kernel answers. With a bridge or a cable, pods also have a route to each other on the link.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

use super::vswitch::{Known, Port, configure};
use crate::testbed::folder::Folder;
use crate::testbed::net::{Netns, batch};
use crate::testbed::programs::run;
use crate::testbed::vswitch::{SETTLING, Vswitch};
use crate::{policy, services};

/// The pod that the policy isolates.
pub(super) const SINK: &str = "sink";
/// The pod that sends to the sink.
pub(super) const CLIENT: &str = "client";
/// This node's address.
pub(super) const NODE: &str = "172.18.0.11";
/// The address of the second node, behind the uplink.
pub(super) const SECOND: &str = "172.18.0.12";
/// The pods' gateway for all destinations.
const GATEWAY: &str = "169.254.1.1";

/// One of the compared paths between the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Bulkhead with the policy.
    Vswitch,
    /// Another build of Bulkhead with the policy.
    Before,
    /// The kernel's routing with the policy in nftables and connection tracking.
    Policy,
    /// As `Policy`, with Services in nftables like kube-proxy's.
    Services,
    /// The kernel's routing only.
    Routing,
    /// A kernel bridge only.
    Bridge,
    /// One veth between the pods, without a node: the machine's upper bound.
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

/// How the vswitch attaches to interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Attach {
    /// Programs at tc; the pods' interface settings are the kernel's defaults
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

/// The measured program and its settings.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) attach: Attach,
    /// The configuration keys that the program supports. Older versions reject unknown keys.
    pub(super) known: Known,
    /// Numbers of the cores on which the program's workers run.
    pub(super) cores: Vec<usize>,
    /// Additional lines of the configuration.
    pub(super) more: String,
}

/// A pod with its namespace and address.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) netns: Netns,
    pub(super) name: String,
    /// The interface at the node's end of the pod's veth.
    pub(super) interface: String,
    pub(super) address: String,
    /// The MAC addresses of the veth's ends, the pod's first.
    macs: [String; 2],
}

/// The parts of a node to create.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// The pods' names.
    pub(super) pods: Vec<String>,
    /// Whether a second node exists behind the uplink.
    pub(super) second: bool,
    /// Whether the node itself sends or receives traffic.
    pub(super) host: bool,
    /// Number of pods, the last of the list, that are in configuration and state but have no interface yet.
    pub(super) later: usize,
    /// Whether pods have a static neighbour entry for the gateway, so that no lost ARP request costs a second.
    pub(super) fixed_gateway: bool,
    /// Whether Services exist, one of them with the sink as backend.
    pub(super) services: bool,
}

impl Plan {
    /// Returns the plan of a node with a client and a sink.
    pub(super) fn pair() -> Self {
        Self::pods(&[CLIENT, SINK])
    }

    /// Returns the plan of a node with pods of these names.
    pub(super) fn pods(names: &[&str]) -> Self {
        Self { pods: names.iter().map(ToString::to_string).collect(), ..Self::default() }
    }
}

/// A node, and its vswitch if the path has one.
#[derive(Debug)]
pub(super) struct Node {
    // First, so that the program ends before the namespaces are dropped.
    pub(super) vswitch: Option<Vswitch>,
    pub(super) pods: Vec<Pod>,
    pub(super) second: Option<Netns>,
    pub(super) netns: Netns,
    plan: Plan,
    way: Way,
}

impl Node {
    /// Creates the node. For the vswitch, starts the program and waits at most `patience` until it reports that it forwards.
    ///
    /// # Errors
    /// If a part cannot be created, or the program does not forward in time.
    pub(super) fn new(way: Way, program: &Program, plan: Plan, patience: Duration) -> anyhow::Result<Self> {
        let mut node = Self::unconnected(way, plan)?;
        match way {
            Way::Vswitch | Way::Before => {
                let vswitch = node.configure(program)?;
                let vswitch = node.vswitch.insert(vswitch);
                vswitch.start(&node.netns, patience)?;
                if program.attach == Attach::Tc {
                    vswitch.wait_for_links(SETTLING);
                }
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

    /// Creates the node for the vswitch. The program is configured but not started.
    ///
    /// # Errors
    /// If a part cannot be created.
    pub(super) fn without_program(program: &Program, plan: Plan) -> anyhow::Result<Self> {
        let mut node = Self::unconnected(Way::Vswitch, plan)?;
        node.vswitch = Some(node.configure(program)?);
        Ok(node)
    }

    /// Starts the vswitch without waiting until it forwards.
    ///
    /// # Errors
    /// If the vswitch cannot be started.
    pub(super) fn launch(&mut self) -> anyhow::Result<()> {
        self.vswitch.as_mut().context("the way is not the vswitch")?.launch(&self.netns)
    }

    /// Returns the vswitch.
    ///
    /// # Errors
    /// If the node's path is another one.
    pub(super) fn program(&mut self) -> anyhow::Result<&mut Vswitch> {
        self.vswitch.as_mut().context("the way is not the vswitch")
    }

    /// Creates namespaces and addresses, and the veths.
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

    /// Returns the pods that have had an interface since the start.
    pub(super) fn present(&self) -> &[Pod] {
        &self.pods[..self.pods.len() - self.plan.later]
    }

    /// Returns the pods whose interfaces are created later.
    pub(super) fn later(&self) -> &[Pod] {
        &self.pods[self.pods.len() - self.plan.later..]
    }

    /// Returns the pod with this name.
    ///
    /// # Panics
    /// If the plan has no such pod.
    pub(super) fn pod(&self, name: &str) -> &Pod {
        self.pods.iter().find(|pod| pod.name == name).expect("a pod of the plan")
    }

    /// Creates the veths between pods and node, or between the two pods for a cable.
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

    /// Returns the `ip` command that creates a pod's veth.
    fn veth(&self, pod: &Pod) -> String {
        let (node, far, [own, gateway]) = (self.netns.name(), pod.netns.name(), &pod.macs);
        let interface = &pod.interface;
        format!(
            "link add {interface} address {gateway} netns {node} type veth peer name eth0 address {own} netns {far}"
        )
    }

    /// Returns the same command for `ip` in the node's namespace.
    pub(super) fn veth_from_inside(&self, pod: &Pod) -> String {
        let (far, [own, gateway]) = (pod.netns.name(), &pod.macs);
        format!("link add {} address {gateway} type veth peer name eth0 address {own} netns {far}", pod.interface)
    }

    /// Creates a second node, with its address, on the uplink.
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

    /// Writes the vswitch's configuration and state.
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

    /// Makes the node's kernel the router.
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

    /// Returns the `ip` commands by which the node's kernel routes to a pod and answers for the pod's gateway.
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

    /// Gives pods a route on the link, so that they resolve each other's MAC addresses.
    fn on_one_link(&self) -> anyhow::Result<()> {
        self.present().iter().try_for_each(|pod| pod.netns.ip("route add 10.244.0.0/16 dev eth0 scope link"))
    }

    pub(super) const fn way(&self) -> Way {
        self.way
    }
}

/// Returns the `ip` commands that bring a pod's interface up, with its address and routes.
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
