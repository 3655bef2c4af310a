//! Policy changes while traffic flows.

use crate::require;
use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::lab::netns::{eventually, seconds};
use crate::lab::{Dump, Lab, Pod, policy};
use bulkhead_dataplane::io::in_namespace;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use serde_json::Value;

/// A policy: the server accepts packets only from pods with this label.
fn from(app: &str) -> String {
    let spec = format!(
        "{{podSelector: {{matchLabels: {{app: server}}}}, policyTypes: [Ingress], \
         ingress: [{{from: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}]}}]}}"
    );
    policy("server", &spec)
}

fn unrelated(number: u32) -> String {
    policy(&format!("unrelated-{number}"), "{podSelector: {matchLabels: {app: none}}, policyTypes: [Ingress, Egress]}")
}

fn pair() -> Lab {
    let mut lab = Lab::new();
    lab.pod("client", "{app: client}");
    lab.pod("server", "{app: server}");
    lab
}

/// A pair of pods whose client may reach the server, and the server's address.
fn pinging() -> (Lab, String) {
    let mut lab = pair();
    lab.start(&from("client"));
    let server = lab.get("server").v4.clone();
    assert!(lab.pings("client", &server));
    (lab, server)
}

#[test]
fn a_flow_that_stays_allowed_loses_nothing_to_changes() {
    require!("iperf3", "ss");
    let mut lab = pair();
    lab.start(&from("client"));
    let server = lab.get("server").netns.serve("iperf3 -s -1", 5201);
    // The rate is far below the maximum, so that only policy could drop packets.
    let line = format!("iperf3 -J -c {} -b 20M -t {}", lab.get("server").v4, seconds() + 2);
    let flow = lab.get("client").netns.spawn(&line);
    eventually("the flow runs", || lab.node.statistic(&lab.get("client").interface, 1) > 200);
    for number in 0..10 {
        lab.apply(&(from("client") + &unrelated(number)));
    }
    let report: Value = serde_json::from_slice(&flow.wait().stdout).unwrap();
    server.wait();
    let bytes = |side: &str| report["end"][side]["bytes"].as_u64().unwrap();
    // Packets in flight when iperf3 ends are not counted.
    let (sent, received) = (bytes("sum_sent"), bytes("sum_received"));
    assert!(received > 1 << 20 && sent.abs_diff(received) < 1 << 20, "{report:#}");
    let summary = lab.stop();
    let drops: Vec<&String> = summary["dropped"].as_object().unwrap().keys().collect();
    // Multicast of pods (IPv6 group reports) is always dropped.
    assert!(drops.iter().all(|reason| *reason == "multicast"), "{summary:#}");
    assert!(summary["state"]["applied"].as_u64() >= Some(11) && summary["sessions"]["revoked"] == 0, "{summary:#}");
}

/// The documented maximum from the change of the file to the last packet. The margin allows for a busy machine with few cores; the test
/// prints the measured time.
const PROMISE: Duration = Duration::from_millis(100);
const MARGIN: Duration = Duration::from_millis(900);

#[test]
fn a_flow_that_becomes_forbidden_stops_at_once() {
    require!("iperf3", "ss", "tcpdump");
    let mut lab = pair();
    lab.start(&from("client"));
    let dump = Dump::start(&lab, "server", "-B 16384 -s 100 udp");
    let _server = lab.get("server").netns.serve("iperf3 -s -1", 5201);
    let line = format!("iperf3 -u -b 10M -l 1000 -c {} -t 60", lab.get("server").v4);
    let flow = lab.get("client").netns.spawn(&line);
    eventually("the flow runs", || dump.so_far("-c 100").lines().count() >= 100);

    let changed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    lab.write_state(&from("nobody"));
    eventually("the change is in force", || lab.log().contains("in force"));
    // Longer than the limit, so that packets forwarded too late are captured.
    std::thread::sleep((PROMISE + MARGIN) * 2);
    drop(flow);
    let seen = dump.seen("-tt");
    let last: f64 = seen.lines().last().unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let after = last - changed.as_secs_f64();
    println!("the last packet came {:.1} ms after the change", after * 1e3);
    assert!(after < (PROMISE + MARGIN).as_secs_f64(), "packets came {after} s after the change");
    let summary = lab.stop();
    assert!(summary["sessions"]["revoked"].as_u64() >= Some(1), "{summary:#}");
    assert!(summary["dropped"]["policy_denied"].as_u64() > Some(10), "{summary:#}");
}

#[test]
fn a_new_flow_is_blocked_from_its_first_packet() {
    require!("nc", "tcpdump", "socat", "ss");
    let mut lab = pair();
    lab.start(&from("client"));
    let _server = lab.get("server").netns.serve("socat TCP6-LISTEN:80,fork,reuseaddr EXEC:cat", 80);
    assert!(lab.connects("client", &lab.get("server").v4, 80) && lab.connects("client", &lab.get("server").v6, 80));
    lab.apply(&from("nobody"));
    let dump = Dump::start(&lab, "server", "tcp port 80");
    assert!(!lab.connects("client", &lab.get("server").v4, 80) && !lab.connects("client", &lab.get("server").v6, 80));
    lab.apply(&from("client"));
    assert!(lab.connects("client", &lab.get("server").v4, 80), "allowed again");
    // The allowed SYN was captured, so a denied one would have been too. Segments of earlier connections have no session any more.
    let seen = dump.seen("");
    assert!(seen.lines().next().is_some_and(|first| first.contains("Flags [S],")), "{seen}");
    assert_eq!(seen.matches("Flags [S],").count(), 1, "{seen}");
    lab.stop();
}

#[test]
fn a_state_that_does_not_load_changes_nothing_and_is_told() {
    require!("ping");
    let (mut lab, server) = pinging();
    lab.write_state("---\nkind: NetworkPolicy\napiVersion: networking.k8s.io/v1\nmetadata: {name: x\n");
    eventually("the error is logged", || lab.log().contains("does not load"));
    assert!(lab.log().contains("state.yaml") && lab.log().contains("help:"), "{}", lab.log());
    assert!(lab.pings("client", &server), "the last good state stays");
    std::fs::write(lab.path("state.yaml"), "").unwrap();
    eventually("so is an empty file", || lab.count("does not load") == 2);
    assert!(lab.pings("client", &server));
    lab.apply(&from("nobody"));
    assert!(!lab.pings("client", &server));
    let summary = lab.stop();
    assert_eq!(summary["state"]["refused"], 2, "{summary:#}");
}

#[test]
fn summaries_that_nobody_reads_keep_no_change_waiting() {
    require!("ping");
    let (mut lab, server) = pinging();
    // Many times what the pipe and the queue hold. The test reads the pipe only at the end.
    for _ in 0..300 {
        lab.vswitch().signal("USR1");
    }
    // SIGHUP reloads and does not end the vswitch.
    lab.vswitch().signal("HUP");
    eventually("SIGHUP is obeyed", || lab.count("re-reading the configuration and the state") == 1);
    lab.apply(&from("nobody"));
    assert!(!lab.pings("client", &server));
    assert_eq!(lab.stop_with_output().status.code(), Some(0), "{}", lab.log());
    assert!(lab.log().contains("summaries were not printed"), "the pipe was full: {}", lab.log());
}

/// A policy: the server accepts UDP on this port and on [`ALWAYS`].
fn port(number: u16) -> String {
    let ports = format!("[{{protocol: UDP, port: {number}}}, {{protocol: UDP, port: {ALWAYS}}}]");
    let spec = format!(
        "{{podSelector: {{matchLabels: {{app: server}}}}, policyTypes: [Ingress], ingress: [{{ports: {ports}}}]}}"
    );
    policy("server", &spec)
}

/// The current policy allows one of these two ports. [`ALWAYS`] is always allowed.
const EITHER: [u16; 2] = [5001, 5002];
const ALWAYS: u16 = 5003;

/// Rounds of packets in flight at once: few enough that no queue of the vswitch fills up.
const UNDER_WAY: u32 = 32;

/// The sockets' receive buffers in bytes: enough for all packets of a run. While the worker waits for a CPU with packets of one session,
/// the flow cache may forward another session's. The worker then delivers more packets at once than the default buffer holds.
const RECEIVE_BUFFER: usize = 256 << 20;

/// Disables the slow path limit. On a fast machine the worker denies more than a port's limit of 100,000 packets per second, and the limit
/// would then drop allowed packets.
const NO_LIMIT: &str = "slow_path: {packets_per_second: 0}\n";

/// Rounds of packets per policy, at least.
const ROUNDS: u32 = 200;

/// The client's sockets, used in turn. Each has its own three sessions.
const FLOWS: u32 = 8;

/// Changes from one policy to the other.
const FLIPS: usize = 12;

/// Sends traffic while the two policies alternate. Returns the rounds and the vswitch's summary.
fn alternate(config: &str) -> (Rounds, Value) {
    let mut lab = pair();
    lab.more_config.push_str(NO_LIMIT);
    lab.more_config.push_str(config);
    lab.start(&port(EITHER[0]));
    let socket = |pod: &str, port: u16| {
        let Pod { netns, v4, .. } = lab.get(pod);
        let path = Path::new("/run/netns").join(netns.name());
        let socket = in_namespace(&path, || UdpSocket::bind((v4.as_str(), port)).unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).unwrap();
        socket
    };
    let mut traffic = Rounds {
        senders: (0..FLOWS).map(|_| socket("client", 0)).collect(),
        receivers: [EITHER[0], EITHER[1], ALWAYS].map(|port| socket("server", port)),
        server: lab.get("server").v4.clone(),
        sent: 0,
        received: [vec![], vec![], vec![]],
    };
    // With the first round the vswitch resolves the server's MAC address.
    traffic.run(1);
    for flip in 1..=FLIPS {
        traffic.run(ROUNDS);
        let before = lab.count("in force");
        lab.write_state(&port(EITHER[flip % 2]));
        // Traffic continues while the change is applied.
        let deadline = Instant::now() + Duration::from_secs(10);
        while lab.count("in force") == before {
            assert!(Instant::now() < deadline, "the new state is not in force");
            traffic.run(1);
        }
    }
    traffic.run(ROUNDS);
    traffic.settle();
    let summary = lab.stop();
    assert_eq!(summary["ports"]["default/client"]["limited"], 0, "{summary:#}");
    let [first, second, _] = &traffic.received;
    let dropped = u64::from(traffic.sent) * 2 - (first.len() + second.len()) as u64;
    assert_eq!(summary["dropped"]["policy_denied"], dropped, "{summary:#}");
    let reasons = summary["dropped"].as_object().unwrap().keys();
    assert!(reasons.into_iter().all(|reason| ["policy_denied", "multicast"].contains(&reason.as_str())), "{summary:#}");
    assert!(summary["sessions"]["revoked"].as_u64() >= Some(1), "{summary:#}");
    (traffic, summary)
}

#[test]
fn traffic_sees_one_of_two_disjoint_policies_at_any_time_and_what_both_allow_loses_nothing() {
    require!();
    let (Rounds { sent, received: [first, second, always], .. }, _) = alternate("flow_cache: false\n");
    // A packet's fate shows which policy judged it. Packets are judged in the order in which they were sent. If both packets of a round
    // pass, or neither, the policy changed between them. There must be as many changes as the test made.
    assert!(always == (0..sent).collect::<Vec<u32>>(), "what both policies allow arrives whole and in order");
    let has = |received: &[u32], round| received.binary_search(&round).is_ok();
    let rulers: Vec<bool> = (0..sent).flat_map(|round| [has(&first, round), !has(&second, round)]).collect();
    let changes = rulers.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert_eq!((rulers[0], changes), (true, FLIPS), "each change is seen once and nothing else");
}

#[test]
fn each_session_sees_one_policy_at_a_time_wherever_its_packets_are_forwarded_and_they_stay_in_order() {
    require!();
    let (Rounds { sent, received: [first, second, always], .. }, summary) = alternate("");
    assert!(summary["flow_cache"]["forwarded"].as_u64() > Some(0), "{summary:#}");
    // Between sessions there is no order here: one may wait for the worker while the flow cache forwards the other. So near a change a
    // round may see both policies or neither; most rounds see one.
    let mut mixed = 0;
    for flow in 0..FLOWS {
        let of_flow =
            |received: &[u32]| -> Vec<u32> { received.iter().copied().filter(|round| round % FLOWS == flow).collect() };
        let all = of_flow(&(0..sent).collect::<Vec<u32>>());
        assert!(of_flow(&always) == all, "flow {flow}: what both policies allow arrives whole and in order");
        let passed = [&first, &second].map(|received| {
            let received = of_flow(received);
            assert!(received.is_sorted(), "flow {flow} arrives in order");
            all.iter().map(|round| received.binary_search(round).is_ok()).collect::<Vec<bool>>()
        });
        for (passed, at_first) in passed.iter().zip([true, false]) {
            let changes = passed.windows(2).filter(|pair| pair[0] != pair[1]).count();
            assert_eq!((passed[0], changes), (at_first, FLIPS), "flow {flow}: each change is seen once, nothing else");
        }
        mixed += passed[0].iter().zip(&passed[1]).filter(|(first, second)| first == second).count();
    }
    assert!(mixed < sent as usize / 3, "{mixed} rounds had both policies or neither");
}

/// Rounds of three numbered packets, one to each port of the server.
struct Rounds {
    senders: Vec<UdpSocket>,
    receivers: [UdpSocket; 3],
    server: String,
    sent: u32,
    /// By port, the rounds whose packets have arrived.
    received: [Vec<u32>; 3],
}

impl Rounds {
    /// Sends `count` rounds and waits until the last always-allowed packet has arrived.
    fn run(&mut self, count: u32) {
        for _ in 0..count {
            self.wait_for(self.sent.saturating_sub(UNDER_WAY));
            let sender = &self.senders[self.sent as usize % self.senders.len()];
            for port in [EITHER[0], EITHER[1], ALWAYS] {
                sender.send_to(&self.sent.to_be_bytes(), (self.server.as_str(), port)).unwrap();
            }
            self.sent += 1;
        }
        self.wait_for(self.sent);
    }

    /// Receives the packets still in flight. On a busy machine, the flow cache may forward the last always-allowed packet before the worker
    /// has judged earlier packets.
    fn settle(&mut self) {
        let mut before = usize::MAX;
        while before != self.count() {
            before = self.count();
            std::thread::sleep(Duration::from_millis(200));
            self.wait_for(self.sent);
        }
    }

    fn count(&self) -> usize {
        self.received.iter().map(Vec::len).sum()
    }

    /// Receives until the always-allowed packets of `rounds` rounds have arrived.
    fn wait_for(&mut self, rounds: u32) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            // Reads the last port of a round first: after its packet has arrived, the others have too.
            for (socket, received) in self.receivers.iter().zip(&mut self.received).rev() {
                let mut bytes = [0; 4];
                while socket.recv(&mut bytes).is_ok() {
                    received.push(u32::from_be_bytes(bytes));
                }
            }
            if self.received[2].len() >= rounds as usize {
                return;
            }
            assert!(Instant::now() < deadline, "{} of {} rounds have arrived", self.received[2].len(), self.sent);
            std::thread::yield_now();
        }
    }
}
