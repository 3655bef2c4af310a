//! Interfaces that appear, move and disappear, and how soon the vswitch attaches to them.

use crate::require;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::lab::netns::{Dialogue, Netns, eventually};
use crate::lab::watched::status;
use crate::lab::{Lab, UNANSWERED, is_attached, is_tc, own_programs};
use bulkhead_dataplane::io::{LinkEvent, LinkWatch, in_namespace};

fn pair() -> Lab {
    let mut lab = Lab::new();
    for name in ["a", "b"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab
}

/// Measures how long the next interface of this name has no program, from the kernel's message on. Must start before the interface appears.
fn unprotected(node: &Netns, name: &str) -> std::thread::JoinHandle<Duration> {
    let (path, name) = (Path::new("/run/netns").join(node.name()), name.to_owned());
    let watch = in_namespace(&path, LinkWatch::new).unwrap().unwrap();
    let is_it = move |event: LinkEvent| match event {
        LinkEvent::Changed(link) if link.names[0] == name => Some(link.index),
        _ => None,
    };
    let measure = move || {
        let index = loop {
            if let Some(index) = watch.wait().unwrap().into_iter().find_map(&is_it) {
                break index;
            }
        };
        let started = Instant::now();
        while own_programs(index) == 0 {
            assert!(started.elapsed() < Duration::from_secs(10), "nothing is attached to it");
            // A query takes the kernel's lock on interfaces, which attaching needs too.
            std::thread::sleep(Duration::from_micros(200));
        }
        started.elapsed()
    };
    std::thread::spawn(move || in_namespace(&path, measure).unwrap())
}

/// The longest time without a program. The vswitch starts to attach within a millisecond of the kernel's message, and the kernel takes 8 to
/// 25 ms for an XDP program on a veth (Linux 6.18). The rest allows for a busy machine with few cores; the test prints the measured time.
const MARGIN: Duration = Duration::from_millis(250);

#[test]
fn a_new_interface_is_attached_to_at_once_though_a_state_is_being_read_and_the_end_does_not_wait_for_it_either() {
    require!("ping", "python3");
    let mut lab = pair();
    lab.unplug("a");
    lab.start("");
    let b = lab.get("b").v4.clone();
    let state = lab.path("state.yaml");
    let mut file = Dialogue::start(&lab.node, UNANSWERED, state.to_str().unwrap());
    assert_eq!(file.hear(), "ready");
    assert_eq!(file.hear(), "waits", "the policy thread opens the state");
    let mut times = Vec::new();
    for round in 1..=5 {
        let measured = unprotected(&lab.node, "p2");
        lab.plug("a");
        times.push(measured.join().unwrap());
        eventually("the port is open", || lab.count("port default/a (p2) is open") == round);
        eventually("the pod reaches the other", || lab.pings("a", &b));
        lab.unplug("a");
        eventually("the port is removed", || lab.count("port default/a (p2) was removed") == round);
    }
    times.sort();
    println!("unprotected from the kernel's message on: {times:?}");
    assert!(times[2] < MARGIN, "{times:?}");
    assert_eq!(lab.count("in force"), 0, "the state is still being read");
    // An orderly stop does not wait for the state file.
    assert_eq!(lab.stop()["port_changes"]["opened"], 6);
}

/// Checks a moved interface. An XDP program stays attached and drops all packets there. A tc program identifies interfaces by index, which
/// differs in another namespace, so the vswitch must detach it.
fn check_elsewhere(elsewhere: &Netns) {
    if is_tc() {
        eventually("it is detached", || !is_attached(elsewhere, "p2"));
    } else {
        assert!(is_attached(elsewhere, "p2"));
    }
}

#[test]
fn an_interface_that_is_moved_to_another_namespace_is_let_go_or_cut_off_there_and_opened_when_it_is_back() {
    require!("ping");
    let mut lab = pair();
    lab.start("");
    let b = lab.get("b").v4.clone();
    assert!(lab.pings("a", &b));
    let elsewhere = Netns::new("elsewhere");
    for round in 1..=2 {
        lab.node.ip(&format!("link set p2 netns {}", elsewhere.name()));
        eventually("the port is removed", || lab.count("port default/a (p2) was removed") == round);
        elsewhere.ip("link set p2 up");
        check_elsewhere(&elsewhere);
        elsewhere.ip(&format!("link set p2 netns {}", lab.node.name()));
        lab.node.ip("link set p2 up");
        eventually("the port is open again", || lab.count("port default/a (p2) is open") == round + 1);
        eventually("the pod reaches the other", || lab.pings("a", &b));
    }
    assert!(!lab.log().contains("host's stack"), "{}", lab.log());
    // The configuration drops the interface while it is in the other namespace.
    lab.node.ip(&format!("link set p2 netns {}", elsewhere.name()));
    eventually("the port is removed", || lab.count("port default/a (p2) was removed") == 3);
    check_elsewhere(&elsewhere);
    lab.configure("a", false);
    lab.write_config();
    eventually("it is given back", || !is_attached(&elsewhere, "p2"));
    lab.stop();
}

#[test]
fn a_port_is_found_by_an_alternative_name_of_its_interface() {
    require!("ping");
    let mut lab = pair();
    lab.node.ip("link property add dev p2 altname pod-a");
    lab.more_config = "# by its alternative name\n".to_owned();
    lab.write_state("");
    lab.start("");
    let config = std::fs::read_to_string(lab.path("config.yaml")).unwrap();
    std::fs::write(lab.path("config.new"), config.replace("interface: p2", "interface: pod-a")).unwrap();
    std::fs::rename(lab.path("config.new"), lab.path("config.yaml")).unwrap();
    eventually("the port is open", || lab.count("port default/a (pod-a) is open") == 1);
    assert!(lab.pings("a", &lab.get("b").v4));
    lab.node.ip("link property del dev p2 altname pod-a");
    eventually("the port is removed", || lab.count("port default/a (pod-a) was removed") == 1);
    lab.stop();
}

#[test]
fn routes_to_pods_past_the_vswitch_and_programs_at_tc_are_told_at_start_with_the_remedy() {
    require!("tc");
    let mut lab = pair();
    lab.host();
    lab.write_state("");
    lab.write_config();
    let check = || lab.try_run("config.yaml", &["--check"]).1;
    let (route, program) = ("reach pods without the vswitch", "other programs are at tc");
    let text = check();
    assert!(!text.contains(route) && !text.contains(program), "{text}");
    let (a, node) = (lab.get("a").v4.clone(), &lab.node);
    node.ip(&format!("route add {a}/32 dev p2"));
    node.exec("tc qdisc add dev p3 clsact");
    node.shell("tc filter add dev p3 egress protocol all bpf da bytecode '1,6 0 0 0'");
    let text = check();
    for part in [route, &format!("ip route del {a}/32 dev p2"), "dev host0", program, "tc qdisc del dev p3 clsact"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    node.ip(&format!("route del {a}/32 dev p2"));
    node.exec("tc qdisc del dev p3 clsact");
    lab.start("");
    assert!(!lab.log().contains(route) && !lab.log().contains(program), "{}", lab.log());
    lab.stop();
    lab.node.ip(&format!("route add {a}/32 dev p2"));
    lab.start("");
    assert_eq!(lab.count(route), 1, "{}", lab.log());
    lab.stop();
}

/// The second publication of an opening was half of its time on a node with 500 ports.
#[test]
fn a_port_whose_interface_can_be_opened_at_once_is_published_once() {
    require!("ping");
    let mut lab = pair();
    lab.more_config.push_str("admin: {socket: admin.sock}\n");
    lab.start("");
    let generation = |lab: &Lab| status(lab)["generation"].as_u64().unwrap();
    lab.configure("a", false);
    lab.write_config();
    eventually("the port is closed", || lab.count("port default/a (p2) was closed") == 1);
    let before = generation(&lab);
    lab.configure("a", true);
    lab.write_config();
    eventually("the port is open again", || lab.count("port default/a (p2) is open") == 2);
    assert!(lab.pings("a", &lab.get("b").v4));
    assert_eq!(generation(&lab), before + 1);
    lab.stop();
}
