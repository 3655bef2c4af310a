//! What a change of policy does to traffic under way.

use crate::require;
use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::lab::netns::{eventually, seconds};
use crate::lab::{Dump, Lab, Pod, policy};
use bulkhead_dataplane::io::in_namespace;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use serde_json::Value;

/// The server takes what comes from pods with this label.
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

/// A pair of which the client reaches the server, which has this address.
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
    // Far below what is possible, so that nothing but policy could lose a packet.
    let line = format!("iperf3 -J -c {} -b 20M -t {}", lab.get("server").v4, seconds() + 2);
    let flow = lab.get("client").netns.spawn(&line);
    eventually("the flow runs", || lab.node.statistic(&lab.get("client").interface, 1) > 200);
    for number in 0..10 {
        lab.apply(&(from("client") + &unrelated(number)));
    }
    let report: Value = serde_json::from_slice(&flow.wait().stdout).unwrap();
    server.wait();
    let bytes = |side: &str| report["end"][side]["bytes"].as_u64().unwrap();
    // What iperf3 has under way at its end does not count.
    let (sent, received) = (bytes("sum_sent"), bytes("sum_received"));
    assert!(received > 1 << 20 && sent.abs_diff(received) < 1 << 20, "{report:#}");
    let summary = lab.stop();
    let drops: Vec<&String> = summary["dropped"].as_object().unwrap().keys().collect();
    // Pods' multicast (IPv6 reports of groups) goes nowhere.
    assert!(drops.iter().all(|reason| *reason == "multicast"), "{summary:#}");
    assert!(summary["state"]["applied"].as_u64() >= Some(11) && summary["sessions"]["revoked"] == 0, "{summary:#}");
}

/// The promise is 100 ms from the change of the file to the last packet. The margin is for a machine whose few cores run
/// the senders, the receivers and other tests as well; the measured time is printed.
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
    // Longer than what is allowed: packets that go on are seen too late.
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
    // That one is seen, so anything else would have been. The ends of the connections from before belong to nobody any more.
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
    eventually("the fault is told", || lab.log().contains("does not load"));
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
    // Many times what the pipe and the queue hold: nobody reads the pipe before the end.
    for _ in 0..300 {
        lab.vswitch().signal("USR1");
    }
    // It asks to reload, and does not end the vswitch.
    lab.vswitch().signal("HUP");
    eventually("SIGHUP is obeyed", || lab.count("re-reading the configuration and the state") == 1);
    lab.apply(&from("nobody"));
    assert!(!lab.pings("client", &server));
    assert_eq!(lab.stop_with_output().status.code(), Some(0), "{}", lab.log());
    assert!(lab.log().contains("summaries were not printed"), "the pipe was full: {}", lab.log());
}

/// The server takes UDP from the client on this port and on [`ALWAYS`].
fn port(number: u16) -> String {
    let ports = format!("[{{protocol: UDP, port: {number}}}, {{protocol: UDP, port: {ALWAYS}}}]");
    let spec = format!(
        "{{podSelector: {{matchLabels: {{app: server}}}}, policyTypes: [Ingress], ingress: [{{ports: {ports}}}]}}"
    );
    policy("server", &spec)
}

/// Of the first two ports one is allowed, by the policy of the moment; the third always is.
const EITHER: [u16; 2] = [5001, 5002];
const ALWAYS: u16 = 5003;

/// Rounds of packets that may be under way: so few that no queue of the vswitch can be full.
const UNDER_WAY: u32 = 32;

/// Bytes that a socket holds for this test: enough for all packets of a run. Between sessions there is no order: while the
/// worker waits for a processor with the packets of one session, the flow cache may forward those of another, and then the
/// worker delivers at once more than the usual buffer holds.
const RECEIVE_BUFFER: usize = 256 << 20;

/// The client asks as fast as the machine can, and half of its packets are denied by the worker: on a fast machine these are more than
/// the 100,000 per second that a port may send to the workers. The limit is not what these tests are about, and it would drop packets
/// that policy allows.
const NO_LIMIT: &str = "slow_path: {packets_per_second: 0}\n";

/// Rounds of packets that each policy judges at least.
const ROUNDS: u32 = 200;

/// The client's sockets, which take turns: each has its own three sessions.
const FLOWS: u32 = 8;

/// Changes from one policy to the other.
const FLIPS: usize = 12;

/// Traffic while the two policies alternate, and the summary.
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
    // Before there are many, the vswitch finds out where the server is.
    traffic.run(1);
    for flip in 1..=FLIPS {
        traffic.run(ROUNDS);
        let before = lab.count("in force");
        lab.write_state(&port(EITHER[flip % 2]));
        // Packets go on while the change is on its way.
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
    // Which policy judged a packet shows by its fate. Packets are judged in the order in which they were sent. A round of which
    // both packets pass, or neither, so needs a change in its middle, and there are no more changes than were made.
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
    // As above, but between sessions there is no order: one may wait for the worker while the flow cache has the other. So
    // around a change a round may have both policies or neither; most have one.
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
    /// The rounds of which a packet has arrived, by port.
    received: [Vec<u32>; 3],
}

impl Rounds {
    /// Sends so many rounds, and waits until the last packet that must arrive has.
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

    /// Receives what is still on its way: the flow cache may have brought the last packet that every policy allows while the
    /// worker, on a busy machine, has not yet come to those before it.
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

    /// Receives until so many rounds have arrived as far as every policy allows.
    fn wait_for(&mut self, rounds: u32) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            // The last packet of a round first: when it is there, so are those before it.
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
