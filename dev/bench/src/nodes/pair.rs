//! Two nodes with a pod each, joined by one veth as the wire, and connected by one of the compared ways.
//! ```text
//!   [ client: eth0 ]--[ veth0   first: the way   card ]--[ card   second: the way   veth0 ]--[ eth0: sink ]
//!     10.244.1.2                         172.18.0.11        172.18.0.12                        10.244.2.2
//! ```

use std::path::Path;

use anyhow::ensure;

use super::{kernel, vswitch};
use crate::testbed::net::{Netns, batch};
use crate::testbed::traffic::reach;
use crate::testbed::vswitch::{SETTLING, Vswitch};

/// One of the compared ways between pods of two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The kernel's routing only.
    Routing,
    /// A kernel bridge, VXLAN and nftables, as Flannel sets them up.
    Flannel,
    /// Bulkhead with routes between nodes on one link (`encapsulation: auto`).
    Route,
    /// Bulkhead with the tunnel between all nodes (`encapsulation: always`).
    Tunnel,
    /// From a pod to a machine outside that sees the node's address: the kernel's routing with a masquerade rule of nftables.
    KernelMasquerade,
    /// From a pod to a machine outside that sees the node's address: Bulkhead with `masquerade: true`.
    Masquerade,
    /// From a machine outside to a pod through a node port: the kernel's routing with rules of nftables like kube-proxy's.
    KernelNodePort,
    /// From a machine outside to a pod through a node port: Bulkhead.
    NodePort,
    /// From a machine outside to a node without Bulkhead.
    Alone,
    /// From a machine outside to the node itself on which Bulkhead serves node ports.
    Beside,
}

/// The end of the wire that is no node, but a machine outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outside {
    /// The client's.
    Client,
    /// The sink's.
    Sink,
}

impl Way {
    /// Returns the name in the table.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Routing => "kernel routing",
            Self::Flannel => "kernel VXLAN as Flannel's",
            Self::Route => "the vswitch's routes",
            Self::Tunnel => "the vswitch's tunnel",
            Self::KernelMasquerade => "masquerading by nftables",
            Self::Masquerade => "the vswitch's masquerading",
            Self::KernelNodePort => "kube-proxy's rules",
            Self::NodePort => "the vswitch's node port",
            Self::Alone => "a node without vswitch",
            Self::Beside => "a node with a vswitch",
        }
    }

    /// Returns which end is a machine outside. `None` if both are nodes.
    const fn outside(self) -> Option<Outside> {
        match self {
            Self::KernelMasquerade | Self::Masquerade => Some(Outside::Sink),
            Self::KernelNodePort | Self::NodePort | Self::Alone | Self::Beside => Some(Outside::Client),
            Self::Routing | Self::Flannel | Self::Route | Self::Tunnel => None,
        }
    }

    /// Whether the vswitch masquerades.
    pub(super) const fn masquerades(self) -> bool {
        matches!(self, Self::Masquerade | Self::NodePort | Self::Beside)
    }

    /// Returns the MTU of the pods in bytes. A tunnel's outer headers take 50 bytes.
    pub(super) const fn mtu(self) -> u16 {
        match self {
            Self::Flannel | Self::Tunnel => 1_450,
            _ => 1_500,
        }
    }
}

/// The offloads of the wire's two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offloads {
    /// The kernel's defaults: long segments cross the wire, as between network cards with segmentation offload.
    Kernel,
    /// Segmentation offload is off, also that of tunnels: every packet on the wire has at most its MTU.
    Off,
}

impl Offloads {
    /// Returns the name in the table.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "the kernel's offloads",
            Self::Off => "offloads off",
        }
    }
}

/// The features that [`Offloads::Off`] turns off. Receive offload is off by default for a veth.
const FEATURES: [&str; 4] = ["tso", "gso", "tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation"];

/// A node with its pod.
#[derive(Debug)]
pub(super) struct Node {
    /// The program on the node. `None` if the kernel connects the pods. The first field, so that the program ends before the namespaces are dropped.
    vswitch: Option<Vswitch>,
    /// The node's namespace.
    pub(super) netns: Netns,
    /// The pod's namespace.
    pub(super) pod: Netns,
    /// 1 for the first node and 2 for the second.
    pub(super) number: u8,
}

impl Node {
    /// Returns the number of the other node.
    pub(super) const fn other(&self) -> u8 {
        3 - self.number
    }

    /// Connects the pod to the node by a veth with the way's MTU, and gives the node its address on the wire.
    ///
    /// # Errors
    /// If a command fails.
    fn connect(&self, way: Way) -> anyhow::Result<()> {
        let mtu = way.mtu();
        self.netns.sysctl("net/ipv4/ip_forward", "1")?;
        self.netns.ip_lines(&[
            "link set lo up".to_owned(),
            format!("addr add {}/24 dev card", node_address(self.number)),
            "link set card up".to_owned(),
            format!("link add veth0 mtu {mtu} type veth peer name eth0 mtu {mtu} netns {}", self.pod.name()),
            "link set veth0 up".to_owned(),
        ])?;
        self.pod.ip_lines(&["link set lo up".to_owned(), "link set eth0 up".to_owned()])
    }

    /// Turns [`FEATURES`] of the node's end of the wire off.
    ///
    /// # Errors
    /// If segmentation offload of TCP stays on.
    fn turn_offloads_off(&self) -> anyhow::Result<()> {
        for feature in FEATURES {
            // A kernel may lack a feature. The check below finds a missing `ethtool`.
            let _ = self.netns.run(&format!("ethtool -K card {feature} off"));
        }
        let state = self.netns.run("ethtool -k card")?;
        ensure!(state.contains("tcp-segmentation-offload: off"), "`ethtool` cannot turn the offloads of a veth off");
        Ok(())
    }
}

/// The address of the machine outside.
const WORLD: &str = "203.0.113.2";

/// Two connected nodes: the first has the client, the second the sink.
#[derive(Debug)]
pub(super) struct Pair {
    /// The client's node, and the sink's node or the machine outside.
    nodes: [Node; 2],
    /// How they are connected.
    way: Way,
}

impl Pair {
    /// Creates both nodes, and waits until the client reaches the sink. `cores` are those of each vswitch's workers.
    ///
    /// # Errors
    /// If a part cannot be created, a program does not forward in time, or the sink is not reached.
    pub(super) fn new(way: Way, offloads: Offloads, program: &Path, cores: &[usize]) -> anyhow::Result<Self> {
        let node = |number: u8| -> anyhow::Result<Node> {
            let (netns, pod) = (Netns::new(&format!("node{number}"))?, Netns::new(&format!("pod{number}"))?);
            Ok(Node { vswitch: None, netns, pod, number })
        };
        let mut pair = Self { nodes: [node(1)?, node(2)?], way };
        let [first, second] = pair.nodes.each_ref().map(|node| node.netns.name());
        batch(&[format!("link add card netns {first} type veth peer name card netns {second}")])?;
        for node in &pair.nodes {
            node.connect(way)?;
            if offloads == Offloads::Off {
                node.turn_offloads_off()?;
            }
        }
        for node in &mut pair.nodes {
            match way {
                Way::Routing => kernel::route(node)?,
                Way::Flannel => kernel::flannel(node)?,
                _ if way.outside() == Some(Outside::Client) && node.number == 1 => {}
                _ if way.outside() == Some(Outside::Sink) && node.number == 2 => {
                    node.netns.ip_lines(&[format!("addr add {WORLD}/32 dev card")])?;
                }
                Way::KernelMasquerade => kernel::masquerade(node)?,
                Way::KernelNodePort => kernel::node_port(node)?,
                Way::Alone => {}
                Way::Route | Way::Tunnel | Way::Masquerade | Way::NodePort | Way::Beside => {
                    node.vswitch = Some(vswitch::launch(node, way, program, cores)?);
                }
            }
        }
        if way.outside() == Some(Outside::Sink) {
            pair.nodes[0].netns.ip_lines(&[format!("route add {WORLD} dev card")])?;
        }
        for vswitch in pair.nodes.iter_mut().filter_map(|node| node.vswitch.as_mut()) {
            vswitch.wait_until_ready(vswitch::PATIENCE)?;
            vswitch.wait_for_links(SETTLING);
        }
        reach(pair.client(), &pair.address())?;
        Ok(pair)
    }

    /// Returns the client's namespace: that of the first pod, or of the machine outside.
    pub(super) fn client(&self) -> &Netns {
        let [first, _] = &self.nodes;
        if self.way.outside() == Some(Outside::Client) { &first.netns } else { &first.pod }
    }

    /// Returns the sink's namespace: that of the second pod, of the machine outside, or of the second node.
    pub(super) fn sink(&self) -> &Netns {
        let [_, second] = &self.nodes;
        let is_pod = self.way.outside() != Some(Outside::Sink) && !matches!(self.way, Way::Alone | Way::Beside);
        if is_pod { &second.pod } else { &second.netns }
    }

    /// Returns the address to which the client connects.
    pub(super) fn address(&self) -> String {
        match self.way.outside() {
            Some(Outside::Sink) => WORLD.to_owned(),
            Some(Outside::Client) => node_address(self.nodes[1].number),
            None => pod_address(self.nodes[1].number),
        }
    }
}

/// Returns a node's address on the wire.
pub(super) fn node_address(number: u8) -> String {
    format!("172.18.0.1{number}")
}

/// Returns the address of a node's pod.
pub(super) fn pod_address(number: u8) -> String {
    format!("10.244.{number}.2")
}

/// Returns the block of a node's pods.
pub(super) fn pod_block(number: u8) -> String {
    format!("10.244.{number}.0/24")
}
