//! A node of the cluster: the vswitch that follows the API server, and the pods that the plugin wires.

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

/// How long the first state may take: a debug build reads 100,000 pods in a minute or two.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(20);
/// Where the vswitch tells metrics, in the node's namespace.
const METRICS: &str = "127.0.0.1:9965";
/// Packet buffers of each worker, and how many KiB one has: the defaults, said here because they are subtracted.
const BUFFERS: usize = 16_384;
const BUFFER_KIB: usize = 4;

/// See the module.
pub(super) struct Node {
    // The program ends before what it holds goes.
    vswitch: Vswitch,
    pub(super) server: ApiServer,
    runtime: Runtime,
    pub(super) netns: Netns,
    /// KiB of the process's memory that are packet buffers.
    pub(super) buffers: usize,
}

impl Node {
    /// A node of the cluster that the command line describes, with the state in force. `more` is of the configuration.
    ///
    /// # Errors
    /// When something cannot be made or started.
    pub(super) fn new(bench: &Bench, more: &str) -> anyhow::Result<Self> {
        Self::with_server(bench, more, |server| server.put_all(cluster(bench.pods, bench.policies)))
    }

    /// The same with other objects.
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

    /// The process.
    ///
    /// # Errors
    /// When it is not running.
    pub(super) fn id(&mut self) -> anyhow::Result<u32> {
        Ok(self.vswitch.running()?.id())
    }

    /// Where it is asked.
    pub(super) fn socket(&self) -> PathBuf {
        self.vswitch.folder().path("admin.sock")
    }

    /// What it says of itself; up to 100 ms old.
    ///
    /// # Errors
    /// When it does not answer.
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

    /// How many states have taken effect.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn states_applied(&self) -> anyhow::Result<u64> {
        self.status()?["policy"]["states_applied"].as_u64().context("no states_applied")
    }

    /// Counters of a histogram at `/metrics`: the bound of each bucket in seconds, and how many did not exceed it.
    ///
    /// # Errors
    /// When it does not answer.
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

    /// Creates pods one after another, as a kubelet does: each is in the API, its sandbox is made and added, and then the API has its
    /// address.
    ///
    /// # Errors
    /// When a sandbox cannot be made or added.
    pub(super) fn create(&self, pods: &[PodName]) -> anyhow::Result<Vec<Sandbox>> {
        let mut made = self.declare(pods)?;
        for sandbox in &mut made {
            self.add(sandbox)?;
            self.report(sandbox);
        }
        Ok(made)
    }

    /// Has the API know pods, and makes their sandboxes.
    ///
    /// # Errors
    /// When a sandbox cannot be made.
    pub(super) fn declare(&self, pods: &[PodName]) -> anyhow::Result<Vec<Sandbox>> {
        self.server.put_all(pods.iter().map(|pod| pod.object(None)).collect());
        Sandbox::many(pods)
    }

    /// `ADD` alone. Returns how long it took.
    ///
    /// # Errors
    /// What the plugin says.
    pub(super) fn add(&self, sandbox: &mut Sandbox) -> anyhow::Result<Duration> {
        self.runtime.add(&self.netns, sandbox)
    }

    /// The API is told a pod's address.
    pub(super) fn report(&self, sandbox: &Sandbox) {
        self.server.put(sandbox.pod.object(Some(&sandbox.address)));
    }

    /// Ends a pod.
    ///
    /// # Errors
    /// What the plugin says.
    pub(super) fn delete(&self, sandbox: &Sandbox) -> anyhow::Result<()> {
        self.runtime.del(&self.netns, sandbox)?;
        self.server.delete("Pod", &sandbox.pod.namespace, &sandbox.pod.name);
        Ok(())
    }
}

/// The bound of the bucket in which the percentile of what has come between two readings of a histogram lies; 0 where nothing has.
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
