//! Measures a change of 10,000 elements in kernel sets, from composing the change to the kernel's acknowledgement. `cargo bench --bench
//! nft_elements`, as root, with `nft` and `ip`, loads a node's ruleset in a network namespace, which is removed at the end. Goal: at most
//! 20 ms. `tests/e2e_nftables.rs` tests that no packet is judged by half of a change.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints, and may panic")]

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bulkhead_control::object::{Object, PodName};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::renderer::nftables::{Epoch, Suspects};
use bulkhead_control::source::{Strictness, load_text};
use bulkhead_dataplane::io::in_namespace;

/// Elements per change. Half are removed and half are added, as when half of this many pods change their addresses.
const ELEMENTS: u32 = 10_000;

const ROUNDS: u32 = 21;

/// A network namespace, removed on drop.
struct Namespace(String);

impl Namespace {
    fn new() -> Self {
        let name = format!("bulkhead-bench-{}", std::process::id());
        assert!(Command::new("ip").args(["netns", "add", &name]).status().unwrap().success());
        Self(name)
    }

    fn within<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        in_namespace(&PathBuf::from("/run/netns").join(&self.0), act).unwrap()
    }

    fn nft(&self, script: &str) {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, "nft", "-f", "-"]).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// A server that admits these remote clients. They have every other address, so that no two merge into a block.
fn state(clients: std::ops::Range<u32>) -> Vec<Object> {
    let mut text = String::from(
        "{apiVersion: v1, kind: Namespace, metadata: {name: x}}\n---\n\
         {apiVersion: v1, kind: Node, metadata: {name: node-a}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}\n---\n\
         {apiVersion: v1, kind: Pod, metadata: {name: server, namespace: x, labels: {app: server}}, spec: {nodeName: node-a}, \
         status: {podIPs: [{ip: 10.1.0.1}]}}\n---\n\
         {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: x}, spec: {podSelector: \
         {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}}\n",
    );
    for at in clients {
        let address = IpAddr::from(Ipv4Addr::from(0x0a40_0000 + 2 * at));
        text.push_str(&format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: c{at}, namespace: x, labels: {{app: client}}}}, \
             spec: {{nodeName: node-b}}, status: {{podIPs: [{{ip: {address}}}]}}}}\n"
        ));
    }
    load_text("state", &text, Strictness::Strict).unwrap().objects
}

fn main() {
    let namespace = Namespace::new();
    let mut pipeline = Pipeline::in_the_kernel("node-a".into(), Default::default(), Suspects::Veth);
    let renderer = pipeline.kernel().unwrap();
    let server = Some(PodName::new("x", "server"));
    pipeline.renderer_mut(renderer).set_interfaces([("veth0".into(), server)].into());
    let half = ELEMENTS / 2;
    let states = [state(0..half), state(half..ELEMENTS)];
    pipeline.resync(states[0].clone()).unwrap();
    let mut epoch = Epoch::any(1);
    namespace.nft(&pipeline.renderer(renderer).full(epoch, pipeline.origins()));
    pipeline.renderer_mut(renderer).take();
    let (mut made, mut taken, mut by_nft) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        pipeline.resync(states[round as usize % 2].clone()).unwrap();
        epoch = epoch.next();
        let started = Instant::now();
        let change = pipeline.renderer(renderer).change(epoch, pipeline.origins()).unwrap();
        made.push(started.elapsed());
        let sets = change.sets.expect("no rule changes");
        assert_eq!(sets.iter().map(|set| set.gone.len() + set.new.len()).sum::<usize>(), ELEMENTS as usize);
        // Every third change is made by the program `nft`, for comparison.
        if round % 3 == 0 {
            let started = Instant::now();
            namespace.nft(&change.script);
            by_nft.push(started.elapsed());
        } else {
            taken.push(namespace.within(|| {
                let started = Instant::now();
                bulkhead_node::set_elements::change(&sets, epoch).unwrap();
                started.elapsed()
            }));
        }
        pipeline.renderer_mut(renderer).take();
    }
    for (what, times) in [("made", made), ("netlink", taken), ("nft", by_nft)] {
        let (median, worst) = spread(times);
        println!("{what:<8} median {median:>9.2?}, worst {worst:>9.2?}");
    }
}

fn spread(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() - 1])
}
