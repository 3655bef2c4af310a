//! Writes the program's configuration and state, and detects which configuration keys it supports.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::node::{Attach, NODE, Program, SINK};
use crate::testbed::folder::Folder;
use crate::testbed::vswitch::Vswitch;
use crate::{policy, services};

/// A port in the configuration.
#[derive(Clone, Debug)]
pub(super) enum Port {
    Pod { name: String, interface: String, netns: String },
    Uplink,
    Host,
}

/// Writes the vswitch's configuration and state. `pods` has names and addresses. `has_services` adds Services, one with the sink as its
/// backend. Returns the program, not started.
///
/// # Errors
/// If a file cannot be written.
pub(super) fn configure(
    program: &Program,
    ports: &[Port],
    pods: &[(String, String)],
    has_services: bool,
) -> anyhow::Result<Vswitch> {
    let folder = Folder::new()?;
    let mut objects = state(pods);
    if let Some((_, sink)) = pods.iter().find(|(name, _)| has_services && name == SINK) {
        objects.push_str(&services::objects(sink));
    }
    folder.write("state.yaml", &objects)?;
    // Each node has its own sessions and pins, so that nothing of a previous node is adopted.
    let mut own = String::new();
    if program.known.pins && program.attach == Attach::Tc {
        let _ = writeln!(own, "pins: {}", folder.mount("bpf")?.join("pins").display());
    }
    if program.known.session_folder {
        let _ = writeln!(own, "sessions: {{folder: {}}}", folder.mount("tmpfs")?.join("sessions").display());
    }
    folder.write("config.yaml", &configuration(program, &own, ports))?;
    Ok(Vswitch::new(program.path.clone(), folder))
}

/// Returns the cluster's objects: the node, its pods and the sink's policy.
fn state(pods: &[(String, String)]) -> String {
    let mut text = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: x}}\n---\napiVersion: v1\nkind: Node\n\
         metadata: {{name: node-1}}\nspec: {{podCIDRs: [10.244.0.0/16]}}\n\
         status: {{addresses: [{{type: InternalIP, address: {NODE}}}]}}\n"
    );
    for (name, address) in pods {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: x, labels: {{app: {name}}}}}\n\
             spec: {{nodeName: node-1, containers: []}}\n\
             status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}\n"
        );
    }
    if pods.iter().any(|(name, _)| name == SINK) {
        text.push_str(&policy::network_policy());
    }
    text
}

fn configuration(program: &Program, own: &str, ports: &[Port]) -> String {
    let mut text = format!("node: node-1\nstate: {{paths: [state.yaml]}}\nworkers: {{cores: {:?}}}\n", program.cores);
    text.push_str(own);
    if program.known.attach {
        let _ = writeln!(text, "attach: {}", program.attach.name());
    }
    if !program.more.is_empty() {
        let _ = writeln!(text, "{}", program.more);
    }
    text.push_str("ports:\n");
    let xdp = program.attach == Attach::Xdp;
    for port in ports {
        let line = match port {
            Port::Pod { name, interface, netns } => {
                let fix = if xdp { ", fix_offloads: true" } else { "" };
                format!("kind: pod, pod: x/{name}, interface: {interface}, netns: {netns}{fix}")
            }
            Port::Uplink => "kind: uplink, interface: ul0".to_owned(),
            Port::Host if xdp => "kind: host, interface: hv, peer: host0, fix_offloads: true".to_owned(),
            Port::Host => "kind: host, interface: hv".to_owned(),
        };
        let _ = writeln!(text, "  - {{{line}}}");
    }
    text
}

/// Which configuration keys the program supports. Older builds lack some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// Whether it has `attach`, how interfaces are attached. A program without this key attaches AF_XDP sockets only.
    attach: bool,
    /// Whether it has `pins`, the folder of pinned links and maps.
    pins: bool,
    /// Whether it has `sessions.folder`, the folder of sessions that survive a restart.
    session_folder: bool,
}

/// Detects which configuration keys the program supports.
///
/// # Errors
/// If the program cannot be run, or does not support this attachment.
pub(super) fn known(path: &Path, attach: Attach) -> anyhow::Result<Known> {
    let said = complaints(path, &format!("attach: {}", attach.name()))?;
    let refuses = |what: &str| said.contains(what) && said.contains("attach");
    let knows_attach = match (refuses("unknown field"), attach) {
        (true, Attach::Xdp) => false,
        (false, _) if !refuses("unknown variant") => true,
        _ => bail!("{} does not know `attach: {}`; help: --attach xdp", path.display(), attach.name()),
    };
    Ok(Known {
        attach: knows_attach,
        pins: !complaints(path, "pins: none")?.contains("unknown field"),
        session_folder: !complaints(path, "sessions: {folder: none}")?.contains("unknown field"),
    })
}

/// Returns the program's errors about a configuration with this line.
fn complaints(path: &Path, line: &str) -> anyhow::Result<String> {
    let folder = Folder::new()?;
    folder.write("state.yaml", &state(&[]))?;
    let text = format!("node: node-1\n{line}\nstate: {{paths: [state.yaml]}}\nports: []\n");
    let config = folder.write("config.yaml", &text)?;
    let output = Command::new(path)
        .args(["run", "--check", "--config"])
        .arg(&config)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", path.display()))?;
    Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}
