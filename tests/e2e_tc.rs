//! Guarantees of `attach: tc`: pods keep their offloads, established connections survive the process, no packet bypasses it.

use crate::require;
use std::time::{Duration, Instant};

use crate::lab::lasting::{Lasting, PATIENCE, answers, connect, echo, settle};
use crate::lab::netns::eventually;
use crate::lab::{Lab, is_attached, policy};
use serde_json::Value;

fn count(summary: &Value, path: &str) -> u64 {
    summary.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path} in {summary:#}"))
}

#[test]
fn pods_keep_their_offloads_and_segments_stay_whole_from_pod_to_pod() {
    require!("ethtool", "iperf3", "tcpdump");
    only_with_tc!();
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.pod("b", "{app: b}");
    let offloads = |lab: &Lab| ["a", "b"].map(|pod| lab.get(pod).netns.exec("ethtool -k eth0"));
    let before = offloads(&lab);
    lab.start("");
    let (a, b) = (lab.get("a"), lab.get("b"));
    let server = b.netns.serve("iperf3 -s -1", 5201);
    let dump = crate::lab::Dump::start(&lab, "b", "tcp dst port 5201 and greater 20000");
    a.netns.exec(&format!("iperf3 -c {} -t 1", b.v4));
    let large = dump.seen("-c 5").lines().count();
    drop(server);
    assert!(large >= 5, "packets of more than 20,000 bytes arrive whole: {large}");
    assert_eq!(offloads(&lab), before, "nothing in a pod was changed");
    let wrong = b.netns.exec("cat /proc/net/snmp");
    let errors = |name: &str| {
        let mut lines = wrong.lines().filter(|line| line.starts_with("Tcp:")).map(str::split_whitespace);
        let at = lines.next().unwrap().position(|known| known == name).unwrap();
        lines.next().unwrap().nth(at).unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(errors("InCsumErrors"), 0);
    lab.stop();
}

#[test]
fn a_connection_survives_a_kill_and_a_restart_and_nothing_new_passes_between_them() {
    require!("mount");
    only_with_tc!();
    let mut lasting = Lasting::new();
    let lab = &mut lasting.lab;
    lab.start("");
    echo(lab.get("b"), 7000);
    let mut old = connect(lab.get("a"), lab.get("b"), 7000, PATIENCE).unwrap();
    settle(&mut old);
    lab.kill();
    assert!(is_attached(&lab.node, "p2"), "the programs stay");
    assert!((0..50).all(|_| answers(&mut old)), "what is established goes on");
    assert!(connect(lab.get("a"), lab.get("b"), 7000, PATIENCE).is_err(), "nothing is opened");
    assert!(!lab.pings("a", &lab.get("c").v4));
    let began = Instant::now();
    lab.start("");
    assert!(lab.log().contains("taking over 3 ports"), "{}", lab.log());
    assert!((0..50).all(|_| answers(&mut old)), "and after the restart: {}", lab.log());
    println!("restarted and answered after {:?}", began.elapsed());
    let mut new = connect(lab.get("c"), lab.get("b"), 7000, PATIENCE).unwrap();
    assert!(answers(&mut new));
    // The tables in force also judge adopted sessions.
    lab.apply(&policy("b", "{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress]}"));
    assert!(!answers(&mut old) && !answers(&mut new), "{}", lab.log());
    lab.stop();
    // SIGTERM leaves the same programs as a kill. `cleanup` removes all of them.
    assert!(is_attached(&lab.node, "p2"));
    let config = lab.path("config.yaml");
    let cleanup =
        || lab.node.output(&format!("{} cleanup --config {}", env!("CARGO_BIN_EXE_bulkhead"), config.display()));
    assert_eq!(cleanup().status.code(), Some(0));
    assert!(!is_attached(&lab.node, "p2") && !lab.node.output("ip link show bh0").status.success());
    assert_eq!(cleanup().status.code(), Some(0), "nothing is there");
}

#[test]
fn cleanup_removes_the_folder_of_the_pins_unless_another_network_namespace_has_some_there() {
    require!("mount");
    only_with_tc!();
    let mut lasting = Lasting::new();
    let (pins, lab) = (lasting.mount.join("bulkhead"), &mut lasting.lab);
    let config = lab.path("config.yaml");
    let other = pins.join("v2-1");
    for has_other in [true, false] {
        lab.start("");
        lab.stop();
        if has_other {
            std::fs::create_dir(&other).unwrap();
        }
        lab.node.exec(&format!("{} cleanup --config {}", env!("CARGO_BIN_EXE_bulkhead"), config.display()));
        assert_eq!(pins.exists(), has_other);
        if has_other {
            assert_eq!(std::fs::read_dir(&pins).unwrap().count(), 1, "nothing of its own");
            std::fs::remove_dir(&other).unwrap();
        }
    }
}

#[test]
fn while_a_vswitch_runs_there_is_no_second_one_and_no_cleanup() {
    require!("ping");
    only_with_tc!();
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.pod("b", "{app: b}");
    lab.start("");
    let (code, text) = lab.try_run("config.yaml", &[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("another vswitch runs") && text.contains("help: "), "{text}");
    let output = lab.node.output(&format!("{} cleanup", env!("CARGO_BIN_EXE_bulkhead")));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(lab.pings("a", &lab.get("b").v4), "the first one goes on");
    lab.stop();
}

#[test]
fn what_the_nodes_kernel_sends_to_a_pod_past_the_vswitch_is_dropped_and_counted() {
    require!("ping");
    only_with_tc!();
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.start("");
    let (v4, interface) = (lab.get("a").v4.clone(), lab.get("a").interface.clone());
    let mac = lab.get("a").netns.exec("cat /sys/class/net/eth0/address");
    lab.node.ip("addr add 192.0.2.1/32 dev lo");
    lab.node.ip(&format!("route add {v4}/32 dev {interface} src 192.0.2.1"));
    lab.node.ip(&format!("neigh replace {v4} lladdr {} dev {interface} nud permanent", mac.trim()));
    assert!(!lab.node.output(&format!("ping -n -c 2 -i 0.01 -W 1 {v4}")).status.success());
    let summary = lab.stop();
    assert!(count(&summary, "/ports/default~1a/bypassed") >= 2, "{summary:#}");
}

#[test]
fn a_flood_that_no_session_covers_is_limited_and_others_connect_meanwhile() {
    require!("ping");
    only_with_tc!();
    let mut lab = Lab::new();
    for name in ["a", "b", "c"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab.more_config.push_str("slow_path: {packets_per_second: 2000, burst: 200}\n");
    lab.start("");
    echo(lab.get("b"), 7001);
    let flood = lab.get("a").netns.spawn(&format!("ping -n -q -f -s 8 {}", lab.get("b").v4));
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let began = Instant::now();
        // TCP retransmits a lost SYN after one second, and again after three.
        let mut stream = connect(lab.get("c"), lab.get("b"), 7001, Duration::from_secs(5)).unwrap();
        assert!(answers(&mut stream));
        slowest = slowest.max(began.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("the slowest of 20 connections: {slowest:?}");
    drop(flood);
    // This burst exceeds the limit, whatever rate the flood reached.
    lab.get("a").netns.output(&format!("ping -n -q -c 1000 -l 1000 -W 1 {}", lab.get("b").v4));
    let summary = lab.stop();
    assert!(count(&summary, "/ports/default~1a/limited") > 0, "{summary:#}");
    assert_eq!(count(&summary, "/ports/default~1c/limited"), 0, "{summary:#}");
}

#[test]
fn a_change_of_one_pods_rules_leaves_the_connections_of_others_in_the_kernel() {
    require!();
    only_with_tc!();
    let mut lab = Lab::new();
    for name in ["a", "b", "c"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab.start("");
    echo(lab.get("b"), 7002);
    let mut stream = connect(lab.get("a"), lab.get("b"), 7002, PATIENCE).unwrap();
    settle(&mut stream);
    let changes = 10;
    for round in 0..changes {
        let port = 8000 + round;
        let spec = format!(
            "{{podSelector: {{matchLabels: {{app: c}}}}, policyTypes: [Ingress], ingress: [{{ports: [{{port: {port}}}]}}]}}"
        );
        lab.apply(&policy("c", &spec));
        assert!((0..100).all(|_| answers(&mut stream)));
    }
    let summary = lab.stop();
    let through_workers = count(&summary, "/workers/0/received");
    // The worker gets packets until the kernel has the connection. An epoch per node would return it to the worker at each change.
    println!("{through_workers} packets came to the worker");
    assert!(count(&summary, "/flow_cache/added") <= 6, "{summary:#}");
    assert!(count(&summary, "/flow_cache/forwarded") > 1_000, "{summary:#}");
}

#[test]
fn an_interface_that_is_moved_to_another_namespace_takes_no_program_along() {
    require!("ping");
    only_with_tc!();
    let mut lab = Lab::new();
    for name in ["a", "b", "c"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab.start("");
    let elsewhere = crate::lab::netns::Netns::new("elsewhere");
    lab.node.ip(&format!("link set p2 netns {}", elsewhere.name()));
    elsewhere.ip("link set p2 up");
    eventually("the port is removed", || lab.count("port default/a (p2) was removed") == 1);
    eventually("the program is detached", || !is_attached(&elsewhere, "p2"));
    assert!(lab.pings("b", &lab.get("c").v4), "the others go on");
    elsewhere.ip(&format!("link set p2 netns {}", lab.node.name()));
    lab.node.ip("link set p2 up");
    eventually("the port is open again", || lab.count("port default/a (p2) is open") == 2);
    eventually("the pod is reached", || lab.pings("b", &lab.get("a").v4));
    lab.stop();
}
