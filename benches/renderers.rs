//! Compares the renderers: time and memory of each for a cluster of 100,000 pods and 5,000 policies.
//!
//! `cargo bench --bench renderers [-- TEXT...]` measures all, or those whose name contains one of the texts. Each runs in its own process
//! and renders all transactions of the same pipeline. The line `none` shows the memory of the pipeline itself, with its ACL renderer; it is
//! subtracted from the others' memory. Goal: an event that changes one set costs each renderer at most 1 ms.
//!
//! A renderer for a node's stack renders one node of 250 pods; one for the cluster's stack, the whole cluster. Session rules have one rule
//! per address and pod, so 250 of these pods would exceed what a session layer accepts: their node has 10.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints, and may panic")]

mod support;

use std::collections::HashSet;
use std::env;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bulkhead_classifier::OriginId;
use bulkhead_control::cache::Event;
use bulkhead_control::contract::Transaction;
use bulkhead_control::object::PodName;
use bulkhead_control::origin::Origins;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::acl::AclRenderer;
use bulkhead_control::renderer::contiv::Orientation;
use bulkhead_control::renderer::contiv::renderer::{ContivRenderer, PublishedTuples};
use bulkhead_control::renderer::identity::IdentityRenderer;
use bulkhead_control::renderer::mirror::Mirror;
use bulkhead_control::renderer::neutron::NeutronRenderer;
use bulkhead_control::renderer::nftables::{Epoch, NftRenderer};
use bulkhead_control::renderer::session_rules::{
    SessionRenderer, SessionRequest, SessionTarget, SourceRenderer, TaggedRule, TargetError,
};
use bulkhead_control::renderer::{BoxError, Refusal, Renderer};
use support::{Shape, cluster, node_name, pod};

const LARGE: Shape = Shape { pods: 100_000, namespaces: 1_000, policies: 5_000, pods_per_node: 250, broad: 0 };

/// Events of pods on other nodes: enough that the 99th percentile has five above it.
const EVENTS: u32 = 500;

/// The stack that a renderer renders for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stack {
    /// The first node.
    Node,
    /// The first node, with few pods.
    SmallNode,
    Cluster,
}

type Make = fn() -> Box<dyn Renderer>;

/// All renderers: name, stack, and how to create it.
const RENDERERS: &[(&str, Stack, Make)] = &[
    ("none", Stack::Node, || Box::new(Nothing)),
    ("mirror", Stack::Node, || Box::new(Mirror::default())),
    ("acl", Stack::Node, || Box::new(AclRenderer::of_node(node_name(0)))),
    ("contiv", Stack::Node, || {
        Box::new(ContivRenderer::new(node_name(0), Orientation::Egress, PublishedTuples::default()))
    }),
    ("session rules", Stack::SmallNode, || Box::new(SessionRenderer::new(node_name(0), Anything))),
    ("source", Stack::SmallNode, || Box::new(SourceRenderer::new(node_name(0)))),
    ("identity", Stack::Node, || Box::new(IdentityRenderer::of_node(node_name(0), 0))),
    ("nftables", Stack::Node, || Box::new(Scripted::default())),
    ("none, all nodes", Stack::Cluster, || Box::new(Nothing)),
    ("neutron", Stack::Cluster, || Box::new(NeutronRenderer::default())),
];

struct Nothing;

impl Renderer for Nothing {
    fn name(&self) -> String {
        "nothing".into()
    }

    fn render(&mut self, _: &Transaction) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Renders nftables and composes each change's script, as the daemon does. No kernel applies it.
struct Scripted {
    renderer: NftRenderer,
    epoch: Epoch,
}

impl Default for Scripted {
    fn default() -> Self {
        let mut renderer = NftRenderer::of_node(node_name(0));
        let interface = |at: u32| (format!("veth{at}").into(), Some(pod(LARGE, at).name));
        renderer.set_interfaces((0..LARGE.pods_per_node).map(interface).collect());
        Self { renderer, epoch: Epoch::any(0) }
    }
}

impl Renderer for Scripted {
    fn name(&self) -> String {
        "scripted".into()
    }

    fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError> {
        self.render_with(transaction, &Origins::default())
    }

    fn render_with(&mut self, transaction: &Transaction, origins: &Origins) -> Result<(), BoxError> {
        self.renderer.render_with(transaction, origins)?;
        if let Some(change) = self.renderer.change(self.epoch, origins) {
            std::hint::black_box(change);
            self.renderer.take();
            self.epoch = self.epoch.next();
        }
        Ok(())
    }
}

/// A session layer that accepts every request.
struct Anything;

impl SessionTarget for Anything {
    fn dump(&mut self) -> Result<Vec<TaggedRule>, TargetError> {
        Ok(Vec::new())
    }

    fn ping(&mut self) -> Result<(), TargetError> {
        Ok(())
    }

    fn change(&mut self, _: &[SessionRequest]) -> Result<(), TargetError> {
        Ok(())
    }

    fn namespace(&self, pod: &PodName) -> Option<u32> {
        // Pods are named pod-0, pod-1 and so on. The stack's own namespace has number 0.
        Some(1 + pod.name.strip_prefix("pod-")?.parse::<u32>().ok()?)
    }
}

/// A renderer, and the duration of each transaction.
struct Timed {
    inner: Box<dyn Renderer>,
    took: Arc<Mutex<Vec<Duration>>>,
}

impl Renderer for Timed {
    fn name(&self) -> String {
        format!("timed {}", self.inner.name())
    }

    fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError> {
        self.render_with(transaction, &Origins::default())
    }

    fn render_with(&mut self, transaction: &Transaction, origins: &Origins) -> Result<(), BoxError> {
        let started = Instant::now();
        let rendered = self.inner.render_with(transaction, origins);
        self.took.lock().unwrap().push(started.elapsed());
        rendered
    }

    fn refusals(&self) -> Vec<Refusal> {
        self.inner.refusals()
    }

    fn origins(&self) -> HashSet<OriginId> {
        self.inner.origins()
    }
}

fn main() {
    if let Ok(at) = env::var("BULKHEAD_RENDERER") {
        return measure(RENDERERS[at.parse::<usize>().unwrap()]);
    }
    println!(
        "{:<16} {:>12} {:>12} {:>12} {:>12} {:>12}",
        "renderer", "memory", "full", "event", "event p99", "local pod"
    );
    // Ignores the options that cargo adds.
    let wanted: Vec<String> = env::args().skip(1).filter(|text| !text.starts_with("--")).collect();
    let mut empty = 0;
    for (at, (name, ..)) in RENDERERS.iter().enumerate() {
        let is_base = name.starts_with("none");
        if !is_base && !wanted.is_empty() && !wanted.iter().any(|text| name.contains(&**text)) {
            continue;
        }
        let output =
            Command::new(env::current_exe().unwrap()).env("BULKHEAD_RENDERER", at.to_string()).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let (kilobytes, times) = text.trim_end().split_once(' ').unwrap();
        let kilobytes: u64 = kilobytes.parse().unwrap();
        if is_base {
            empty = kilobytes;
        }
        let own = if is_base { kilobytes } else { kilobytes.saturating_sub(empty) };
        println!("{name:<16} {:>12} {times}", format!("{} MiB", own >> 10));
    }
}

/// Prints the process's memory in KiB, and the times of events.
fn measure((name, stack, make): (&str, Stack, Make)) {
    let scope = match stack {
        Stack::Node | Stack::SmallNode => Scope::Node(node_name(0)),
        Stack::Cluster => Scope::Cluster,
    };
    let shape = if stack == Stack::SmallNode { Shape { pods_per_node: 10, ..LARGE } } else { LARGE };
    let took = Arc::new(Mutex::new(Vec::new()));
    let mut pipeline = Pipeline::new(scope);
    pipeline.register(Timed { inner: make(), took: took.clone() });
    pipeline.resync(cluster(shape)).unwrap();
    assert_eq!(pipeline.refusals(), [], "{name}");
    let full = took.lock().unwrap().pop().unwrap();
    let memory = resident();
    let events = |pods: &mut dyn Iterator<Item = u32>, pipeline: &mut Pipeline| {
        took.lock().unwrap().clear();
        for at in pods {
            let pod = pod(shape, at);
            pipeline.apply(Event::DeletePod(pod.name.clone())).unwrap();
            pipeline.apply(Event::Apply(pod.into())).unwrap();
        }
        let mut took = std::mem::take(&mut *took.lock().unwrap());
        assert!(took.len() >= 10, "{name}: the events change something");
        took.sort_unstable();
        took
    };
    // Pods of other nodes, in all namespaces and apps; then some of the first node.
    let remote = events(&mut (0..EVENTS).map(|at| shape.pods - 1 - at * 97), &mut pipeline);
    let local = events(&mut (0..20).map(|at| at * 7 % shape.pods_per_node), &mut pipeline);
    let at = |took: &[Duration], percent: usize| format!("{:.2?}", took[took.len() * percent / 100]);
    let times = [format!("{full:.2?}"), at(&remote, 50), at(&remote, 99), at(&local, 50)];
    println!("{memory} {}", times.map(|time| format!("{time:>12}")).join(" "));
}

/// Resident memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}
