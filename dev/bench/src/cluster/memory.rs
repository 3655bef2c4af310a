//! Measures the memory of the process while it follows a large cluster.

use std::time::Duration;

use anyhow::Context;
use serde_json::json;

use super::Bench;
use super::api_server::ApiServer;
use super::node::Node;
use super::objects::{NODE, cluster};
use crate::table::{Goal, Line, digits};
use crate::testbed::proc::{field, resident};
use crate::testbed::programs::until;

/// Time limit for listing all pods.
const PATIENCE: Duration = Duration::from_secs(300);
/// Time for the vswitch to compile the policies after a list.
const SETTLE: Duration = Duration::from_secs(3);
/// Number of namespaces, each with one policy; `NODES` is the number of nodes.
const NAMESPACES: usize = 400;
const NODES: usize = 1_000;

pub(super) fn memory(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let empty = {
        let mut node = Node::with_server(bench, "", |server| server.put_all(cluster(0, 0)))?;
        std::thread::sleep(SETTLE);
        resident(node.id()?)?
    };
    let mut node = Node::with_server(bench, "", |server| fill(server, bench.many_pods))?;
    let id = node.id()?;
    std::thread::sleep(SETTLE);
    let first = resident(id)?;
    // A client whose watch has expired lists everything again and briefly holds both versions.
    let lists = |node: &Node| {
        node.server
            .requests()
            .iter()
            .filter(|path| path.starts_with("/api/v1/pods") && !path.contains("watch="))
            .count()
    };
    let pages = lists(&node);
    node.server.forget();
    until("the vswitch does not list again", PATIENCE, || Ok(lists(&node) >= 2 * pages))?;
    std::thread::sleep(SETTLE);
    let (again, peak) = (resident(id)?, field(&format!("/proc/{id}/status"), "VmHWM")?.cast_signed());
    let buffers = i64::try_from(node.buffers).context("buffers")?;
    #[expect(clippy::cast_precision_loss, reason = "mebibytes are shown with three digits")]
    let mebibytes = |kibibytes: i64| digits(kibibytes as f64 / 1024.0);
    let note = format!(
        "process {} without {} of packet buffers, after all was listed twice; {} after the first list, {} at most; {} without pods",
        mebibytes(again),
        mebibytes(buffers),
        mebibytes(first),
        mebibytes(peak),
        mebibytes(empty)
    );
    let value = mebibytes(first.max(again) - buffers);
    let what = format!("{} pods: memory of the process without packet buffers", bench.many_pods);
    let line = Line::value("memory", &what, value, "MiB", Goal::AtMost(300.0)).noted(&note);
    let all = json!({"first": mebibytes(first), "again": mebibytes(again), "peak": mebibytes(peak), "empty": mebibytes(empty)});
    Ok(vec![line.with("mebibytes", all)])
}

/// Fills the server: it generates the pods when a client lists them, one in a thousand on this node. Each namespace gets a policy.
fn fill(server: &ApiServer, pods: usize) {
    server.synthesize(pods);
    let mut objects = cluster(0, 0);
    for at in 0..NAMESPACES {
        let name = format!("team-{at}");
        objects.push(
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": name}}}),
        );
        let peer = json!({"namespaceSelector": {"matchLabels": {"team": format!("team-{}", (at + 1) % NAMESPACES)}}});
        let spec = json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [peer]}]});
        objects.push(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "p", "namespace": name}, "spec": spec}));
    }
    for at in 0..NODES {
        let (name, address) = (format!("node-{at}"), format!("172.17.{}.{}", at / 250, at % 250 + 1));
        if name != NODE {
            objects.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
                "status": {"addresses": [{"type": "InternalIP", "address": address}]}}));
        }
    }
    server.put_all(objects);
}
