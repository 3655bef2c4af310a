//! The kernel's ways between pods of two nodes.

use super::pair::{Node, Way, node_address, pod_address, pod_block};
use crate::services;
use crate::testbed::folder::Folder;
use crate::testbed::programs::run;

/// The rules that Flannel adds for a cluster's pods: their packets are accepted, and masqueraded if they leave the cluster.
const RULES: &str = "table inet flannel {
  chain forward {
    type filter hook forward priority 0;
    ip saddr 10.244.0.0/16 accept
    ip daddr 10.244.0.0/16 accept
  }
  chain postrouting {
    type nat hook postrouting priority srcnat;
    ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 return
    ip saddr 10.244.0.0/16 masquerade
  }
}
";

/// The rule that hides pods behind their node.
const MASQUERADE: &str = "table ip pods {
  chain postrouting {
    type nat hook postrouting priority srcnat;
    ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade
  }
}
";

/// Makes the node's kernel the router between its pod and the other node.
///
/// # Errors
/// If a command fails.
pub(super) fn route(node: &Node) -> anyhow::Result<()> {
    node.netns.ip_lines(&[
        format!("addr add {}/24 dev veth0", gateway(node.number)),
        format!("route add {} via {}", pod_block(node.other()), node_address(node.other())),
    ])?;
    address(node)
}

/// Makes the node's kernel the router between its pod and the world, which sees the node.
///
/// # Errors
/// If a command fails.
pub(super) fn masquerade(node: &Node) -> anyhow::Result<()> {
    route(node)?;
    load(node, MASQUERADE)
}

/// Makes the node's kernel the router of its pod, and leads node ports to the pod as kube-proxy does.
///
/// # Errors
/// If a command fails.
pub(super) fn node_port(node: &Node) -> anyhow::Result<()> {
    route(node)?;
    load(node, &services::node_port_rules(&node_address(node.number), &pod_address(node.number)))
}

/// Connects the pod as Flannel's VXLAN back end does: a bridge, a VXLAN interface with static neighbours, and nftables rules.
///
/// # Errors
/// If a command fails.
pub(super) fn flannel(node: &Node) -> anyhow::Result<()> {
    let (number, other, mtu) = (node.number, node.other(), Way::Flannel.mtu());
    let (own, remote) = (node_address(number), node_address(other));
    let mac = |number: u8| format!("02:00:00:00:00:0{number}");
    let tunnel_end = |number: u8| format!("10.244.{number}.0");
    node.netns.ip_lines(&[
        "link add cni0 type bridge".to_owned(),
        format!("link set cni0 up mtu {mtu}"),
        "link set veth0 master cni0".to_owned(),
        format!("addr add {}/24 dev cni0", gateway(number)),
        format!(
            "link add flannel.1 address {} type vxlan id 1 dev card local {own} dstport 8472 nolearning",
            mac(number)
        ),
        "link set flannel.1 up".to_owned(),
        format!("addr add {}/32 dev flannel.1", tunnel_end(number)),
        format!("route add {} via {} dev flannel.1 onlink", pod_block(other), tunnel_end(other)),
        format!("neigh add {} lladdr {} dev flannel.1 nud permanent", tunnel_end(other), mac(other)),
    ])?;
    run("bridge", &format!("-n {} fdb append {} dev flannel.1 dst {remote}", node.netns.name(), mac(other)))?;
    load(node, RULES)?;
    address(node)
}

/// Adds these nftables rules to the node.
///
/// # Errors
/// If a command fails.
fn load(node: &Node, rules: &str) -> anyhow::Result<()> {
    let folder = Folder::new()?;
    let rules = folder.write("rules.nft", rules)?;
    node.netns.run(&format!("nft -f {}", rules.display())).map(drop)
}

/// Gives the pod its address and a default route to the node.
fn address(node: &Node) -> anyhow::Result<()> {
    node.pod.ip_lines(&[
        format!("addr add {}/24 dev eth0", pod_address(node.number)),
        format!("route add default via {}", gateway(node.number)),
    ])
}

/// Returns the node's address towards its pod.
fn gateway(number: u8) -> String {
    format!("10.244.{number}.1")
}
