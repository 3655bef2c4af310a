//! Starts the measured program on a node.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::pair::{Node, Way, node_address, pod_address, pod_block};
use crate::services;
use crate::testbed::folder::Folder;
use crate::testbed::vswitch::Vswitch;

/// Time limit for the program to forward.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// The pod's gateway for all destinations.
const GATEWAY: &str = "169.254.1.1";

/// Gives the pod its address and routes, and starts the program without waiting.
///
/// # Errors
/// If the pod's routes or a file cannot be written, or the program cannot be started.
pub(super) fn launch(node: &Node, way: Way, program: &Path, cores: &[usize]) -> anyhow::Result<Vswitch> {
    node.pod.ip_lines(&[
        format!("addr add {}/32 dev eth0", pod_address(node.number)),
        format!("route add {GATEWAY} dev eth0"),
        format!("route add default via {GATEWAY}"),
    ])?;
    let folder = Folder::new()?;
    let node_ports =
        if way == Way::NodePort { services::node_ports(&pod_address(node.number), node.number) } else { String::new() };
    folder.write("state.yaml", &(state() + &node_ports))?;
    // Each node has its own sessions, and no pins, so that nothing of a previous node is adopted.
    let sessions = folder.mount("tmpfs")?.join("sessions");
    folder.write("config.yaml", &configuration(node.number, way, cores, &sessions))?;
    let mut vswitch = Vswitch::new(program.to_owned(), folder);
    vswitch.launch(&node.netns)?;
    Ok(vswitch)
}

/// Returns the cluster's objects: both nodes with their pods.
fn state() -> String {
    let mut text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n".to_owned();
    for number in [1, 2] {
        let (node, pod, block) = (node_address(number), pod_address(number), pod_block(number));
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: node-{number}}}\nspec: {{podCIDRs: [{block}]}}\n\
             status: {{addresses: [{{type: InternalIP, address: {node}}}]}}\n\
             ---\napiVersion: v1\nkind: Pod\nmetadata: {{name: pod-{number}, namespace: x}}\n\
             spec: {{nodeName: node-{number}, containers: []}}\n\
             status: {{phase: Running, podIP: {pod}, podIPs: [{{ip: {pod}}}]}}\n"
        );
    }
    text
}

/// Returns the configuration of a node whose kernel keeps its network card.
fn configuration(number: u8, way: Way, cores: &[usize], sessions: &Path) -> String {
    let encapsulation = if way == Way::Tunnel { "always" } else { "auto" };
    format!(
        "node: node-{number}\nstate: {{paths: [state.yaml]}}\nworkers: {{cores: {cores:?}}}\n\
         encapsulation: {encapsulation}\nmasquerade: {}\npins: none\nsessions: {{folder: {}}}\nadmin: {{socket: admin.sock}}\n\
         routes: [{{prefix: 0.0.0.0/0, port: host}}]\nports:\n  \
         - {{kind: pod, pod: x/pod-{number}, interface: veth0}}\n  \
         - {{kind: host, interface: bh-host, peer: bh-node, create: {{mtu: {}}}}}\n",
        way.masquerades(),
        sessions.display(),
        way.mtu()
    )
}
