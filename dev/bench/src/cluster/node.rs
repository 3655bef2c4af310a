//! A node of the cluster: the vswitch, which follows the API server, and the pods that the CNI plugin attaches.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::Bench;
use super::api_server::ApiServer;
use super::objects::{NODE, PodName, cluster};
use super::runtime::{Runtime, Sandbox};
use crate::testbed::folder::Folder;
use crate::testbed::net::Netns;
use crate::testbed::programs::until;
use crate::testbed::vswitch::Vswitch;

/// Time limit for the first state. A debug build reads 100,000 pods in one to two minutes.
const PATIENCE: Duration = Duration::from_secs(300);
/// Time limit for an answer of the admin socket or of `/metrics`.
const ANSWER: Duration = Duration::from_secs(20);
/// The address of the vswitch's metrics, in the node's namespace.
const METRICS: &str = "127.0.0.1:9965";
/// Number of packet buffers of each worker; `BUFFER_KIB` is a buffer's size. The defaults, set because the measurement subtracts them.
const BUFFERS: usize = 16_384;
const BUFFER_KIB: usize = 4;

/// A running vswitch with its API server, in its own network namespace.
pub(super) struct Node {
    // First, so that the program ends before the namespace and the server are dropped.
    vswitch: Vswitch,
    pub(super) server: ApiServer,
    runtime: Runtime,
    pub(super) netns: Netns,
    /// Size of the packet buffers in the process's memory, in KiB.
    pub(super) buffers: usize,
}

impl Node {
    /// Starts a node with the cluster that the command line describes, and waits until its state is in force. `more` is added to the
    /// configuration.
    ///
    /// # Errors
    /// If a part cannot be created or the vswitch does not start.
    pub(super) fn new(bench: &Bench, more: &str) -> anyhow::Result<Self> {
        Self::with_server(bench, more, |server| server.put_all(cluster(bench.pods, bench.policies)))
    }

    /// Starts a node whose API server has the objects that `fill` adds.
    ///
    /// # Errors
    /// As for [`Node::new`].
    pub(super) fn with_server(bench: &Bench, more: &str, fill: impl FnOnce(&ApiServer)) -> anyhow::Result<Self> {
        let netns = Netns::new("node")?;
        netns.ip("link set lo up")?;
        let server = ApiServer::at(netns.inside(|| Ok(TcpListener::bind("127.0.0.1:0")?))?, 1);
        fill(&server);
        let folder = Folder::new()?;
        folder.write("kubeconfig", &server.kubeconfig())?;
        let (pins, sessions) = (folder.mount("bpf")?.join("pins"), folder.mount("tmpfs")?.join("sessions"));
        let (cores, socket) = (&bench.cores, folder.path("admin.sock"));
        let buffers = BUFFERS * cores.len();
        let text = format!(
            "node: {NODE}\nstate: {{kubernetes: {{kubeconfig: kubeconfig}}}}\nworkers: {{cores: {cores:?}, frames: {buffers}}}\n\
             pins: {}\nsessions: {{folder: {}}}\nadmin: {{socket: {}, listen: '{METRICS}'}}\n{more}\nports: []\n",
            pins.display(),
            sessions.display(),
            socket.display()
        );
        folder.write("config.yaml", &text)?;
        let runtime = Runtime::new(&bench.program, &folder.path(""), &socket)?;
        let vswitch = Vswitch::new(bench.program.clone(), folder);
        let mut node = Self { vswitch, server, runtime, netns, buffers: buffers * BUFFER_KIB };
        node.vswitch.start(&node.netns, PATIENCE)?;
        until("the vswitch has no state", PATIENCE, || {
            ensure!(!node.vswitch.running()?.has_ended(), "the vswitch has ended:\n{}", node.vswitch.log_tail());
            let status = node.status()?;
            Ok(status["denying"] == false && status["ready"] == true)
        })?;
        Ok(node)
    }

    /// Returns the vswitch's process id.
    ///
    /// # Errors
    /// If the vswitch is not running.
    pub(super) fn id(&mut self) -> anyhow::Result<u32> {
        Ok(self.vswitch.running()?.id())
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.vswitch.folder().path("admin.sock")
    }

    /// Requests the vswitch's status, which may be up to 100 ms old.
    ///
    /// # Errors
    /// If the vswitch does not answer.
    pub(super) fn status(&self) -> anyhow::Result<Value> {
        let mut stream = UnixStream::connect(self.socket()).context("the admin socket")?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(b"{\"version\":1,\"request\":\"status\"}\n")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        let mut answer: Value = serde_json::from_str(&line).with_context(|| format!("the vswitch says: {line}"))?;
        ensure!(answer["answer"].is_object(), "the vswitch says: {line}");
        Ok(answer["answer"].take())
    }

    /// Returns the number of states that have taken effect since the vswitch started.
    ///
    /// # Errors
    /// If the vswitch does not answer.
    pub(super) fn states_applied(&self) -> anyhow::Result<u64> {
        self.status()?["policy"]["states_applied"].as_u64().context("no states_applied")
    }

    /// Reads a histogram from `/metrics`: each bucket's upper bound in seconds and its cumulative count.
    ///
    /// # Errors
    /// If the vswitch does not answer.
    pub(super) fn histogram(&self, name: &str) -> anyhow::Result<Vec<(f64, u64)>> {
        let mut stream = self.netns.inside(|| Ok(TcpStream::connect(METRICS)?))?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let prefix = format!("{name}_bucket{{le=\"");
        let rows = text.lines().filter_map(|line| line.strip_prefix(&prefix)?.split_once("\"} "));
        rows.map(|(bound, count)| {
            Ok((if bound == "+Inf" { f64::INFINITY } else { bound.parse()? }, count.trim().parse()?))
        })
        .collect()
    }

    /// Creates pods one after another as a kubelet does: declares the pod, creates its sandbox, runs `ADD`, then reports the address.
    ///
    /// # Errors
    /// If a sandbox cannot be created or `ADD` fails.
    pub(super) fn create(&self, pods: &[PodName]) -> anyhow::Result<Vec<Sandbox>> {
        let mut made = self.declare(pods)?;
        for sandbox in &mut made {
            self.add(sandbox)?;
            self.report(sandbox);
        }
        Ok(made)
    }

    /// Creates the pods' objects in the API and their sandboxes.
    ///
    /// # Errors
    /// If a sandbox cannot be created.
    pub(super) fn declare(&self, pods: &[PodName]) -> anyhow::Result<Vec<Sandbox>> {
        self.server.put_all(pods.iter().map(|pod| pod.object(None)).collect());
        Sandbox::many(pods)
    }

    /// Runs `ADD`. Returns its duration.
    ///
    /// # Errors
    /// The plugin's error.
    pub(super) fn add(&self, sandbox: &mut Sandbox) -> anyhow::Result<Duration> {
        self.runtime.add(&self.netns, sandbox)
    }

    /// Reports a pod's address to the API server.
    pub(super) fn report(&self, sandbox: &Sandbox) {
        self.server.put(sandbox.pod.object(Some(&sandbox.address)));
    }

    /// Runs `DEL` and deletes the pod's object.
    ///
    /// # Errors
    /// The plugin's error.
    pub(super) fn delete(&self, sandbox: &Sandbox) -> anyhow::Result<()> {
        self.runtime.del(&self.netns, sandbox)?;
        self.server.delete("Pod", &sandbox.pod.namespace, &sandbox.pod.name);
        Ok(())
    }
}

/// Returns the upper bound of the bucket with this percentile of the values added between two readings; 0 if there were none.
pub(super) fn bucket(before: &[(f64, u64)], after: &[(f64, u64)], percent: f64) -> f64 {
    let new: Vec<(f64, u64)> =
        before.iter().zip(after).map(|((_, before), (bound, after))| (*bound, after - before)).collect();
    let all = new.last().map_or(0, |(_, count)| *count);
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let reached = |count: u64| count as f64 >= all as f64 * percent / 100.0;
    new.iter().find(|(_, count)| *count > 0 && reached(*count)).map_or(0.0, |(bound, _)| *bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_of_a_histogram_is_the_bound_of_its_bucket() {
        let before = [(0.01, 5), (0.02, 5), (f64::INFINITY, 5)];
        let after = [(0.01, 10), (0.02, 14), (f64::INFINITY, 15)];
        let of = |percent| bucket(&before, &after, percent);
        assert_eq!((of(50.0), of(90.0), of(99.0)), (0.01, 0.02, f64::INFINITY));
        assert_eq!(bucket(&after, &after, 99.0).to_bits(), 0.0_f64.to_bits());
    }
}
