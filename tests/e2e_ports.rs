//! Ports that are added and removed, and processes that stop or crash.

use crate::require;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use crate::lab::netns::{Dialogue, Running, eventually, run};
use crate::lab::{Lab, UNANSWERED, is_attached, is_tc};
use bulkhead_dataplane::io::{LinkWatch, in_namespace};

fn three() -> Lab {
    let mut lab = Lab::new();
    for name in ["a", "b", "c"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab
}

/// Checks that a background ping between other pods lost no packet.
fn assert_lost_nothing(lab: &Lab, pod: &str, ping: Running) {
    // Waits for enough packets to detect a loss.
    eventually("the others go on", || lab.node.statistic(&lab.get(pod).interface, 1) > 100);
    let report = String::from_utf8(ping.interrupt().stdout).unwrap();
    let line = report.lines().find(|line| line.contains("packets transmitted")).unwrap();
    let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
    let (sent, answered) = (numbers.next().unwrap(), numbers.next().unwrap());
    // The last request may be in flight when ping ends.
    assert!(sent > 10 && sent - answered <= 1, "the flow between the others: {line}");
}

#[test]
fn a_pod_that_is_deleted_under_traffic_is_removed_and_the_others_go_on() {
    require!("ping");
    let mut lab = three();
    lab.start("");
    let (a, b, c) = (lab.get("a").v4.clone(), lab.get("b").v4.clone(), lab.get("c").v4.clone());
    let flood = lab.get("a").netns.spawn(&format!("ping -n -q -i 0.002 {c}"));
    let background = lab.get("a").netns.spawn(&format!("ping -n -i 0.01 -w 60 {b}"));
    eventually("packets flow", || lab.node.statistic(&lab.get("c").interface, 1) > 50);
    for round in 1..=3 {
        lab.unplug("c");
        eventually("the port is removed", || lab.count("port default/c (p4) was removed") == round);
        assert!(lab.pings("b", &a), "the others go on");
        lab.plug("c");
        eventually("the port is open again", || lab.count("port default/c (p4) is open") == round + 1);
        eventually("the pod is reached again", || lab.pings("b", &c));
    }
    drop(flood);
    assert_lost_nothing(&lab, "b", background);
    let summary = lab.stop();
    assert_eq!((&summary["port_changes"]["removed"], &summary["port_changes"]["opened"]), (&3.into(), &6.into()));
}

#[test]
fn the_kernel_tells_of_an_interface_that_comes() {
    require!();
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.unplug("a");
    lab.start("");
    assert_eq!(lab.stop()["port_changes"]["told"], 0, "nothing changes");
    lab.start("");
    let namespace = Path::new("/run/netns").join(lab.node.name());
    let watch = in_namespace(&namespace, LinkWatch::new).unwrap().unwrap();
    let (tell, told) = mpsc::channel();
    let listener = std::thread::spawn(move || tell.send(watch.wait()));
    lab.plug("a");
    told.recv_timeout(Duration::from_secs(10)).expect("the kernel tells of it").unwrap();
    listener.join().unwrap().unwrap();
    eventually("the port is open", || lab.count("port default/a (p2) is open") == 1);
    let summary = lab.stop();
    assert!(summary["port_changes"]["told"].as_u64() >= Some(1), "{summary:#}");
}

#[test]
fn ports_are_added_and_removed_by_the_configuration() {
    require!("ping");
    let mut lab = three();
    lab.configure("c", false);
    lab.start("");
    let c = lab.get("c").v4.clone();
    assert!(!lab.pings("a", &c) && !is_attached(&lab.node, "p4"));
    lab.configure("c", true);
    lab.write_config();
    eventually("the new port is open", || lab.count("port default/c (p4) is open") == 1);
    eventually("the pod is reached", || lab.pings("a", &c));
    lab.configure("c", false);
    lab.write_config();
    eventually("the port is given back", || !is_attached(&lab.node, "p4"));
    assert!(!lab.pings("a", &c) && lab.pings("a", &lab.get("b").v4));
    std::fs::write(lab.path("config.yaml"), "node: x\nportz: []\n").unwrap();
    eventually("the wrong configuration is logged", || lab.log().contains("unknown field `portz`"));
    assert!(lab.pings("a", &lab.get("b").v4));
    let summary = lab.stop();
    assert_eq!(summary["port_changes"]["removed"], 0, "what the configuration closes is not lost: {summary:#}");
}

#[test]
fn what_a_kill_leaves_forwards_nothing_and_a_new_process_takes_over() {
    require!("ping", "nc", "socat", "ss");
    let mut lab = three();
    lab.start("");
    let b = lab.get("b").v4.clone();
    let interfaces = ["p2", "p3", "p4"];
    assert!(lab.pings("a", &b) && interfaces.iter().all(|name| is_attached(&lab.node, name)));
    lab.kill();
    // Filters at tc stay and drop packets. Links go with the process.
    if !is_tc() {
        eventually("no XDP program remains", || interfaces.iter().all(|name| !is_attached(&lab.node, name)));
    }
    assert!(!lab.pings("a", &b), "nobody forwards");
    lab.start("");
    assert!(lab.pings("a", &b));
    let _server = lab.get("b").netns.serve("socat TCP-LISTEN:80,fork,reuseaddr EXEC:cat", 80);
    assert!(lab.connects("a", &b, 80));
    lab.stop();
    assert!(interfaces.iter().all(|name| !is_attached(&lab.node, name)), "SIGTERM gives the interfaces back");
}

#[test]
fn a_netns_that_is_none_is_told_with_its_line_at_start_and_at_reload_and_keeps_nobody_waiting() {
    require!("mkfifo", "ping");
    only_with_xdp!();
    let mut lab = three();
    let [pipe, folder, file] = ["pipe", "folder", "file"].map(|name| lab.path(name).to_str().unwrap().to_owned());
    run("mkfifo", &[&pipe]);
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(&file, "").unwrap();
    // The first port is on the fifth line of the configuration.
    let told = |lab: &Lab, pod: &str, line: u32, netns: &str| {
        let what = format!("port default/{pod}, line {line} of the configuration: ");
        let is = |text: &str| text.contains(&what) && text.contains(&format!("{netns} is not a network namespace"));
        lab.log().lines().filter(|text| is(text)).count()
    };
    lab.call_netns("a", &pipe);
    lab.start("");
    assert_eq!(told(&lab, "a", 5, &pipe), 1, "{}", lab.log());
    let (a, c) = (lab.get("a").v4.clone(), lab.get("c").v4.clone());
    assert!(lab.pings("b", &c) && lab.pings("b", &a), "the port is open, and so are the others");
    let background = lab.get("b").netns.spawn(&format!("ping -n -i 0.01 -w 60 {c}"));
    // The port opens again for each other namespace.
    for (round, netns) in [&folder, &file, &pipe].into_iter().enumerate() {
        lab.call_netns("a", netns);
        lab.write_config();
        lab.vswitch().signal("HUP");
        eventually("the port is open again", || lab.count("port default/a (p2) is open") == round + 2);
        eventually("the error is logged", || told(&lab, "a", 5, netns) == 1 + usize::from(*netns == pipe));
        eventually("the pod is reached", || lab.pings("b", &a));
    }
    assert_lost_nothing(&lab, "c", background);
    lab.stop();
}

#[test]
fn a_second_sigterm_ends_at_once_what_waits_for_a_file() {
    require!("ping", "python3");
    let mut lab = three();
    lab.start("");
    let b = lab.get("b").v4.clone();
    let config = lab.path("config.yaml");
    let mut file = Dialogue::start(&lab.node, UNANSWERED, config.to_str().unwrap());
    assert_eq!(file.hear(), "ready");
    assert_eq!(file.hear(), "waits", "the control thread opens the configuration");
    assert!(lab.pings("a", &b), "the workers wait for nobody");
    // Filters would stay when the process ends.
    lab.until_linked();
    lab.vswitch().signal("TERM");
    // Within a second, the vswitch treats a second SIGTERM as the same request, passed on by a shell or `timeout`.
    std::thread::sleep(Duration::from_millis(1_100));
    assert_eq!(lab.count("stopping"), 0, "it waits");
    assert!(lab.pings("a", &b));
    assert_eq!(lab.stop_with_output().status.code(), Some(128 + 15), "{}", lab.log());
    assert_eq!(lab.count("stopping"), 0, "it still waited: {}", lab.log());
    eventually("no XDP program remains", || ["p2", "p3", "p4"].iter().all(|name| !is_attached(&lab.node, name)));
}

#[test]
fn a_second_vswitch_does_not_take_what_the_first_has() {
    require!("ping");
    let mut lab = three();
    lab.start("");
    let (code, text) = lab.try_run("config.yaml", &["--check"]);
    assert_eq!(code, Some(1), "{text}");
    let says = if is_tc() { "another vswitch runs" } else { "has an XDP program already" };
    assert!(text.contains(says) && text.contains("help: "), "{text}");
    assert!(lab.pings("a", &lab.get("b").v4), "the first one goes on");
    lab.stop();
}

#[test]
fn the_checks_say_what_is_wrong_and_how_to_mend_it() {
    require!();
    let lab = three();
    lab.write_state("");
    lab.node.ip("link set p3 down");
    lab.node.ip("link del p4");
    lab.node.ip("addr add 192.0.2.1/24 dev p2");
    lab.node.ip("route add default via 192.0.2.2");
    let netns = lab.get("a").netns.name();
    let ports = format!(
        "ports:\n  - {{kind: pod, pod: default/a, interface: p2, netns: {netns}}}\n  \
         - {{kind: pod, pod: default/b, interface: p3}}\n  - {{kind: pod, pod: default/c, interface: p4}}\n"
    );
    let config =
        format!("node: node-1\nattach: xdp\nstate: {{paths: [state.yaml]}}\nworkers: {{cores: [999]}}\n{ports}");
    let check = |more: &[&str]| lab.try_config(&config, more);
    let (code, text) = check(&["--check"]);
    assert_eq!(code, Some(1), "{text}");
    for part in [
        "p2 carries the node's default route",
        "--force",
        "p3 is down",
        "ip link set p3 up",
        "there is no interface p4",
        "core 999",
        &format!("ip netns exec {netns} ethtool -K eth0 tx off"),
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    let (code, text) = check(&[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("nothing was touched") && !is_attached(&lab.node, "p2"), "{text}");
    let (_, text) = check(&["--check", "--force", "-o", "json"]);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(report["ok"] == false && !text.contains("default route"), "{text}");
}

#[test]
fn the_summary_comes_on_demand_and_at_the_end() {
    require!("ping");
    let mut lab = three();
    lab.start("");
    assert!(lab.pings("a", &lab.get("b").v4));
    lab.vswitch().signal("USR1");
    std::thread::sleep(Duration::from_millis(300));
    let output = lab.stop_with_output();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{text}");
    for summary in &lines {
        assert!(summary["ports"]["default/a"]["received"].as_u64() >= Some(1), "{summary:#}");
        assert_eq!(summary["workers"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn a_capture_that_cannot_be_written_is_told_once_and_counted_and_forwarding_goes_on() {
    require!("ping");
    let mut lab = three();
    // /dev/full can be opened, but each write fails.
    lab.start_with("", &["--capture", "/dev/full"]);
    let b = lab.get("b").v4.clone();
    let told = || lab.count("cannot write the capture /dev/full: No space left on device");
    eventually("the full disk is logged", || {
        lab.get("a").netns.exec(&format!("ping -n -q -c 10 -i 0.002 -s 1400 {b}"));
        told() == 1
    });
    lab.get("a").netns.exec(&format!("ping -n -q -c 10 -i 0.002 -s 1400 {b}"));
    assert_eq!(told(), 1, "{}", lab.log());
    let output = lab.stop_with_output();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(2), "the requested capture is incomplete: {}", lab.log());
    let summary: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(summary["capture"]["unwritten"].as_u64() >= Some(20), "{summary:#}");
}

#[test]
fn sessions_that_find_no_memory_end_the_start_with_the_setting_and_a_remedy() {
    require!("prlimit");
    let mut lab = three();
    lab.more_config = "sessions: {capacity: 60000000}\n".to_owned();
    lab.write_state("");
    lab.write_config();
    let config = lab.path("config.yaml");
    let program = env!("CARGO_BIN_EXE_bulkhead");
    let words = ["--as=3000000000", program, "run", "--config", config.to_str().unwrap()];
    let output = lab.node.command("prlimit", &words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("help: lower sessions.capacity") && !text.contains("panicked"), "{text}");
    assert!(!is_attached(&lab.node, "p2"), "nothing was touched");
}

#[test]
fn a_node_that_is_not_on_the_uplinks_link_is_told_once_with_the_route_that_is_missing() {
    require!();
    let mut lab = three();
    lab.outside();
    lab.node.ip("addr add 172.18.0.11/16 dev ul0");
    let node = |name: &str, number: u8, address: &str| {
        format!(
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\nspec: {{podCIDRs: [10.244.{number}.0/24]}}\n\
             status: {{addresses: [{{type: InternalIP, address: {address}}}]}}\n"
        )
    };
    lab.more_state = node("near", 2, "172.18.0.12") + &node("far", 3, "192.0.2.13");
    lab.start("");
    let told = || lab.count("pods of other nodes cannot be reached: far (10.244.3.0/24 through 192.0.2.13)");
    assert_eq!(told(), 1, "{}", lab.log());
    lab.apply("");
    assert_eq!(told(), 1, "not again");
    assert!(!lab.log().contains("near"), "{}", lab.log());
    lab.stop();
}

#[test]
fn the_way_to_the_machine_is_known_by_every_name_route_and_device() {
    require!();
    let lab = three();
    lab.write_state("");
    let node = &lab.node;
    node.ip("addr add 192.0.2.1/24 dev p2");
    node.ip("addr add 198.51.100.1/24 dev p3");
    let guarded = |interface: &str| {
        let port = format!("ports: [{{kind: pod, pod: default/a, interface: {interface}}}]");
        let (code, text) =
            lab.try_config(&format!("node: node-1\nstate: {{paths: [state.yaml]}}\n{port}\n"), &["--check"]);
        assert_eq!(code, Some(i32::from(text.contains("error: "))), "{text}");
        text.contains(&format!("{interface} carries the node's default route"))
    };
    assert!(!guarded("p2") && !guarded("p3"));
    node.ip("link property add dev p2 altname enp1s0");
    node.ip("route add default via 192.0.2.2");
    assert!(guarded("enp1s0") && !guarded("p3"));
    node.ip("route replace default nexthop via 192.0.2.2 dev p2 nexthop via 198.51.100.2 dev p3");
    assert!(guarded("p2") && guarded("p3"));
    node.ip("route del default");
    node.ip("route add 128.0.0.0/1 via 192.0.2.2");
    assert!(guarded("p2") && !guarded("p3"));
    node.ip("route del 128.0.0.0/1");
    node.ip("route add default via 198.51.100.2 table 100");
    assert!(!guarded("p2") && guarded("p3"));
    node.ip("link add br0 type bridge");
    node.ip("link set br0 up");
    node.ip("link set p4 master br0");
    assert!(!guarded("p4"));
    node.ip("route add default dev br0");
    assert!(guarded("p4") && !guarded("lo"));
}

#[test]
fn a_port_for_which_there_are_no_buffers_is_refused_and_not_silently_dead() {
    require!("ping");
    only_with_xdp!();
    let mut lab = three();
    // Enough for two ports with rings of 1,024 frames, and the frames in flight.
    lab.more_config = "workers: {frames: 4096}\n".to_owned();
    lab.start("");
    let refused = "it needs 1024 receive buffers, and 0 of 4096 are free";
    assert!(lab.log().contains(refused) && lab.log().contains("set workers.frames to at least 5120"), "{}", lab.log());
    assert!(lab.pings("a", &lab.get("b").v4) && is_attached(&lab.node, "p4"));
    lab.configure("b", false);
    lab.write_config();
    eventually("what was given back is enough", || lab.count("port default/c (p4) is open") == 1);
    assert!(lab.pings("a", &lab.get("c").v4));
    lab.stop();
}
