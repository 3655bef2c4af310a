//! Established sessions whose packets the kernel forwards without a worker.

use crate::require;
use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use crate::lab::netns::{Dialogue, Running, eventually};
use crate::lab::{Lab, Pod, policy};
use bulkhead_dataplane::io::in_namespace;
use serde_json::Value;

const PORT: u16 = 5000;

/// Packets per phase of a test. The worker forwards the first ones, until the cache has the flow.
const PACKETS: u32 = 2000;

/// A lab with two pods, of which the server accepts UDP.
fn pair(config: &str) -> Lab {
    let mut lab = Lab::new();
    lab.pod("client", "{app: client}");
    lab.pod("server", "{app: server}");
    lab.more_config.push_str(config);
    lab.start(&allow(PORT));
    lab
}

/// A pair with a flow that has run for one phase.
fn running(config: &str) -> (Lab, Flow) {
    let lab = pair(config);
    let mut flow = Flow::new(&lab);
    // The vswitch first resolves the server's MAC address.
    eventually("the first packet arrives", || flow.passes());
    flow.run();
    (lab, flow)
}

/// A policy: the server accepts only UDP on this port.
fn allow(port: u16) -> String {
    let ports = format!("[{{protocol: UDP, port: {port}}}]");
    let spec = format!(
        "{{podSelector: {{matchLabels: {{app: server}}}}, policyTypes: [Ingress], ingress: [{{ports: {ports}}}]}}"
    );
    policy("server", &spec)
}

/// A flow of numbered datagrams from the client to the server.
struct Flow {
    client: UdpSocket,
    server: UdpSocket,
    sent: u32,
    received: Vec<u32>,
}

impl Flow {
    fn new(lab: &Lab) -> Self {
        let socket = |pod: &str, port: u16| {
            let Pod { netns, v4, .. } = lab.get(pod);
            let path = Path::new("/run/netns").join(netns.name());
            in_namespace(&path, || UdpSocket::bind((v4.as_str(), port)).unwrap()).unwrap()
        };
        let (client, server) = (socket("client", 0), socket("server", PORT));
        client.connect(server.local_addr().unwrap()).unwrap();
        server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        Self { client, server, sent: 0, received: Vec::new() }
    }

    /// Sends one datagram. Returns whether it arrived.
    fn passes(&mut self) -> bool {
        self.client.send(&self.sent.to_be_bytes()).unwrap();
        self.sent += 1;
        let mut bytes = [0; 4];
        let arrived = self.server.recv(&mut bytes).is_ok();
        self.received.extend(arrived.then_some(u32::from_be_bytes(bytes)));
        arrived
    }

    /// Sends datagrams as fast as no queue fills up. Panics if one is lost.
    fn run(&mut self) {
        for at in 0..PACKETS {
            assert!(self.passes(), "packet {at} is lost");
        }
    }
}

fn count(summary: &Value, path: &str) -> u64 {
    summary.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path} in {summary:#}"))
}

#[test]
fn an_established_flow_is_forwarded_in_the_kernel_whole_in_order_and_counted_like_any_other() {
    require!();
    let (mut lab, flow) = running("");
    assert!(flow.received.is_sorted());
    let arrived = flow.received.len() as u64;
    let summary = lab.stop();
    let forwarded = count(&summary, "/flow_cache/forwarded");
    assert!(forwarded > u64::from(PACKETS) / 2 && forwarded < arrived, "{summary:#}");
    assert!(count(&summary, "/ports/default~1client/received") >= arrived, "{summary:#}");
    assert!(count(&summary, "/ports/default~1server/sent") >= arrived, "{summary:#}");
    let policies = summary["policies"].as_array().unwrap();
    let allowed: u64 = policies.iter().map(|policy| policy["allowed"].as_u64().unwrap()).sum();
    assert!(allowed >= arrived, "{summary:#}");
    assert!(count(&summary, "/workers/0/received") < arrived, "{summary:#}");
    assert_eq!(count(&summary, "/flow_cache/refused"), 0);
}

#[test]
fn a_change_of_policy_ends_a_flow_in_the_kernel_and_one_that_is_allowed_again_comes_back() {
    require!();
    let (mut lab, mut flow) = running("");
    lab.apply(&allow(PORT + 1));
    for _ in 0..5 {
        assert!(!flow.passes(), "the flow is forbidden");
    }
    lab.apply(&allow(PORT));
    eventually("a packet arrives again", || flow.passes());
    flow.run();
    let summary = lab.stop();
    assert!(count(&summary, "/flow_cache/forwarded") > u64::from(PACKETS), "{summary:#}");
    assert_eq!(count(&summary, "/dropped/policy_denied"), u64::from(flow.sent) - flow.received.len() as u64);
}

#[test]
fn a_pod_whose_other_end_takes_no_such_packets_is_reached_by_the_worker() {
    require!("ethtool");
    only_with_xdp!();
    let (mut lab, mut flow) = running("");
    // The pod disables GRO under traffic. Only packets until the vswitch's next check may be lost.
    lab.get("server").netns.exec("ethtool -K eth0 gro off");
    eventually("it is seen", || lab.count("turned off generic receive offload there") == 1);
    flow.run();
    let pod = &lab.get("server").netns;
    pod.exec("ethtool -K eth0 gro on");
    flow.run();
    let summary = lab.stop();
    assert_eq!(summary["dropped"].as_object().unwrap().keys().filter(|reason| *reason != "multicast").count(), 0);
    let through_the_worker = count(&summary, "/workers/0/received");
    assert!(through_the_worker >= u64::from(PACKETS), "{summary:#}");
}

#[test]
fn without_a_flow_cache_and_with_a_capture_every_packet_comes_to_a_worker() {
    require!();
    let (mut lab, flow) = running("flow_cache: false\n");
    let arrived = flow.received.len() as u64;
    let summary = lab.stop();
    assert_eq!(count(&summary, "/flow_cache/forwarded"), 0);
    assert!(count(&summary, "/workers/0/received") >= arrived, "{summary:#}");

    let mut lab = Lab::new();
    lab.pod("client", "{app: client}");
    lab.pod("server", "{app: server}");
    let capture = lab.path("capture.pcapng");
    lab.start_with(&allow(PORT), &["--capture", capture.to_str().unwrap()]);
    let mut flow = Flow::new(&lab);
    eventually("the first packet arrives", || flow.passes());
    flow.run();
    let arrived = flow.received.len() as u64;
    let summary = lab.stop();
    assert_eq!(count(&summary, "/flow_cache/forwarded"), 0);
    assert!(count(&summary, "/capture/written") >= arrived, "{summary:#}");
}

/// Opens connections to the argument's address and stays silent longer than a handshake may last. On a line, sends on each connection and
/// reads the answer. On a second line, opens short connections, one after another.
const CLIENT: &str = "
import socket, sys
def connect():
    return socket.create_connection((sys.argv[1], 5000), timeout=10)
silent = [connect() for _ in range(50)]
print('connected', flush=True)
sys.stdin.readline()
for peer in silent:
    peer.sendall(b'x')
print('answered', sum(len(peer.recv(1)) for peer in silent), flush=True)
sys.stdin.readline()
answered = 0
for _ in range(400):
    with connect() as peer:
        peer.sendall(b'x')
        answered += len(peer.recv(1))
print('answered', answered, flush=True)
sys.stdin.readline()
";

const SERVER: &str = "
import asyncio
async def serve(reader, writer):
    while data := await reader.read(100):
        writer.write(data)
    writer.close()
async def main():
    server = await asyncio.start_server(serve, '0.0.0.0', 5000, backlog=1024)
    await server.serve_forever()
asyncio.run(main())
";

#[test]
fn a_connection_goes_on_in_the_kernel_from_its_syn_ack_and_lives_on_when_it_is_silent() {
    require!("python3", "ss");
    let mut lab = Lab::new();
    lab.pod("client", "{app: client}");
    lab.pod("server", "{app: server}");
    lab.more_config.push_str("sessions: {timeouts: {tcp_new: 2s}}\n");
    let ports = format!("[{{protocol: TCP, port: {PORT}}}]");
    let selector = "podSelector: {matchLabels: {app: server}}";
    lab.start(&policy("server", &format!("{{{selector}, policyTypes: [Ingress], ingress: [{{ports: {ports}}}]}}")));
    let _server = Running::start(&mut lab.get("server").netns.command("python3", &["-c", SERVER]));
    eventually("the server listens", || lab.get("server").netns.exec("ss -Htln").contains(":5000 "));
    let mut client = Dialogue::start(&lab.get("client").netns, CLIENT, &lab.get("server").v4);
    assert_eq!(client.hear(), "connected");
    // No worker saw the packet that completes the handshakes. The pause is twice the handshake timeout plus the workers' check interval.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(client.say("all"), "answered 50");
    assert_eq!(client.say("short ones"), "answered 400");
    let summary = lab.stop();
    assert_eq!(count(&summary, "/sessions/created"), 450, "{summary:#}");
    let workers = summary["workers"].as_array().unwrap();
    let seen: u64 = workers.iter().map(|worker| worker["received"].as_u64().unwrap()).sum();
    // Workers see a SYN, a SYN-ACK and two FINs per connection, and the silent connections' first packets after the pause. A connection has
    // ten packets in total.
    assert!(seen < 450 * 6, "{seen}: {summary:#}");
    assert!(count(&summary, "/flow_cache/forwarded") > 400 * 3, "{summary:#}");
}
