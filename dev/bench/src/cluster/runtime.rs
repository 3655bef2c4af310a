//! The part of a container runtime that a CNI plugin sees: it creates sandboxes and runs the plugin as the specification requires.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::objects::{POD_NETWORK, PodName};
use crate::testbed::net::Netns;
use crate::testbed::programs::Running;

/// A pod's sandbox: its network namespace, and the pod's name and address.
#[derive(Debug)]
pub(super) struct Sandbox {
    pub(super) netns: Netns,
    pub(super) pod: PodName,
    /// The pod's address. Empty until `ADD`.
    pub(super) address: String,
}

impl Sandbox {
    /// Creates the pods' sandboxes, without network.
    ///
    /// # Errors
    /// If the network namespaces cannot be created.
    pub(super) fn many(pods: &[PodName]) -> anyhow::Result<Vec<Self>> {
        let names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
        let all = Netns::many(&names)?.into_iter().zip(pods);
        Ok(all.map(|(netns, pod)| Self { netns, pod: pod.clone(), address: String::new() }).collect())
    }
}

/// Runs the CNI plugin as a container runtime does.
#[derive(Debug)]
pub(super) struct Runtime {
    plugin: PathBuf,
    /// The value of `CNI_PATH`: the plugin's folder.
    path: PathBuf,
    conf: String,
}

impl Runtime {
    /// Returns a runtime whose plugin is a symbolic link to `program` and connects to this socket. The plugin keeps the reserved addresses in
    /// `folder`.
    ///
    /// # Errors
    /// If the folder is not writable.
    pub(super) fn new(program: &Path, folder: &Path, socket: &Path) -> anyhow::Result<Self> {
        let plugin = folder.join("bulkhead-cni");
        std::os::unix::fs::symlink(program, &plugin)?;
        let ipam =
            json!({"type": "bulkhead-cni", "dataDir": folder.join("leases"), "ranges": [[{"subnet": POD_NETWORK}]]});
        let conf =
            json!({"cniVersion": "1.0.0", "name": "pods", "type": "bulkhead-cni", "socket": socket, "ipam": ipam});
        Ok(Self { plugin, path: folder.to_owned(), conf: conf.to_string() })
    }

    /// Runs `ADD`. Returns the plugin's duration, from before the process starts until it has ended.
    ///
    /// # Errors
    /// The plugin's error.
    pub(super) fn add(&self, node: &Netns, sandbox: &mut Sandbox) -> anyhow::Result<Duration> {
        let started = Instant::now();
        let result = self.run("ADD", node, sandbox)?;
        let took = started.elapsed();
        let address = result["ips"][0]["address"].as_str().and_then(|address| address.split('/').next());
        address.context("the plugin gives no address")?.clone_into(&mut sandbox.address);
        Ok(took)
    }

    /// Runs `DEL`.
    ///
    /// # Errors
    /// The plugin's error.
    pub(super) fn del(&self, node: &Netns, sandbox: &Sandbox) -> anyhow::Result<()> {
        self.run("DEL", node, sandbox).map(drop)
    }

    fn run(&self, command: &str, node: &Netns, sandbox: &Sandbox) -> anyhow::Result<Value> {
        let (id, PodName { namespace, name, .. }) = (sandbox.netns.name(), &sandbox.pod);
        let mut process = Command::new(&self.plugin);
        process.env("CNI_COMMAND", command).env("CNI_PATH", &self.path).env("CNI_CONTAINERID", id);
        process.env("CNI_IFNAME", "eth0").env("CNI_NETNS", format!("/run/netns/{id}"));
        process.env("CNI_ARGS", format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}"));
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A process starts in its parent thread's namespace.
        let mut running = node.inside(|| Running::start(&mut process))?;
        // The statement's end closes standard input.
        running.0.stdin.take().context("no input")?.write_all(self.conf.as_bytes())?;
        let output = running.wait()?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{command} of {name}: {said}");
        Ok(serde_json::from_slice(&output.stdout).unwrap_or(Value::Null))
    }
}
