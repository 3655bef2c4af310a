//! The CNI plugin in real network namespaces, with its own allocator, `host-local` and `ptp`: the interfaces and reserved addresses that it
//! creates and removes, for any answer of the vswitch.

use crate::{require, require_plugins};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cni::{Runtime, Sandbox};
use crate::fake_vswitch::{FakeVswitch, content};
use crate::lab::netns::{Netns, ip};
use serde_json::{Value, json};

/// A node with a fake vswitch, which sets the interface up and reports the port as open.
struct Node {
    netns: Netns,
    folder: PathBuf,
    runtime: Runtime,
}

impl Node {
    fn new(name: &str) -> Self {
        let netns = Netns::new("node");
        let folder = std::env::temp_dir().join(format!("bulkhead-cni-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let runtime = Runtime::new(&netns, &folder, &folder.join("admin.sock"));
        Self { netns, folder, runtime }
    }

    fn vswitch(&self) -> FakeVswitch {
        let node = self.netns.name().to_owned();
        self.answering(move |request| {
            if request["request"] == "add_port" {
                let interface = request["arguments"]["interface"].as_str().unwrap();
                let before = ip(&format!("-n {node} link show dev {interface}"));
                assert!(!before.contains(",UP"), "it is down until it is held: {before}");
                ip(&format!("-n {node} link set {interface} up"));
            }
            json!({"answer": content(request)})
        })
    }

    fn answering(&self, answer: impl Fn(&Value) -> Value + Send + Sync + 'static) -> FakeVswitch {
        FakeVswitch::start(&self.folder.join("admin.sock"), answer)
    }

    /// The names of the node's interfaces except `lo`.
    fn interfaces(&self) -> BTreeSet<String> {
        interfaces(&self.netns)
    }

    /// The number of reserved addresses.
    fn leases(&self) -> usize {
        let Ok(entries) = std::fs::read_dir(self.folder.join("leases/pods")) else { return 0 };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("10.") || name.starts_with("fd00")).count()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn interfaces(netns: &Netns) -> BTreeSet<String> {
    let links: Value = serde_json::from_str(&netns.ip("-j link show")).unwrap();
    let names = links.as_array().unwrap().iter().map(|link| link["ifname"].as_str().unwrap().to_owned());
    names.filter(|name| name != "lo").collect()
}

#[test]
fn a_pod_gets_addresses_routes_and_a_gateway_that_nobody_has_to_ask_for() {
    require!();
    let node = Node::new("add");
    let vswitch = node.vswitch();
    let mut pod = Sandbox::new("db");
    // Some runtimes create namespaces with IPv6 disabled.
    pod.netns.sysctl("net.ipv6.conf.default.disable_ipv6", "1");
    println!("ADD took {:?}", node.runtime.add(&mut pod));
    let (v4, v6, node_end) = (pod.v4(), pod.v6(), pod.node_end());
    assert!(v4.starts_with("10.244.1.") && v6.starts_with("fd00:244:1::"), "{v4} {v6}");

    let asked = vswitch.asked();
    assert_eq!(asked.len(), 1);
    let arguments = &asked[0]["arguments"];
    assert_eq!((&asked[0]["request"], &arguments["interface"]), (&json!("add_port"), &json!(node_end)));
    assert_eq!(arguments["network"], "pods");
    assert_eq!((&arguments["pod"], &arguments["container"]), (&json!("default/db"), &json!(pod.id)));
    assert_eq!((&arguments["addresses"], &arguments["container_interface"]), (&json!([v4, v6]), &json!("eth0")));
    assert_eq!((&arguments["netns"], &arguments["timeout_seconds"]), (&json!(pod.path()), &json!(20)));

    let link: Value = serde_json::from_str(&pod.netns.ip("-j link show dev eth0")).unwrap();
    assert_eq!((&link[0]["mtu"], &link[0]["address"]), (&json!(1500), &arguments["mac"]));
    // Without duplicate address detection, the kernel still takes a moment to finish an address. Detection takes a second.
    let (added, mut addresses) = (Instant::now(), pod.netns.ip("addr show dev eth0"));
    while addresses.contains("tentative") && added.elapsed() < Duration::from_millis(500) {
        addresses = pod.netns.ip("addr show dev eth0");
    }
    for expected in [format!("inet {v4}/32 scope global"), format!("inet6 {v6}/128 scope global")] {
        assert!(addresses.contains(&expected), "{addresses}");
    }
    assert!(!addresses.contains("tentative"), "no address waits for anything: {addresses}");
    let routes = pod.netns.ip("route") + &pod.netns.ip("-6 route");
    for expected in ["default via 169.254.1.1 dev eth0", "169.254.1.1 dev eth0", "default via fe80::1 dev eth0"] {
        assert!(routes.contains(expected), "{routes}");
    }
    let at: Value = serde_json::from_str(&node.netns.ip(&format!("-j link show dev {node_end}"))).unwrap();
    let neighbours = pod.netns.ip("neigh");
    for gateway in ["169.254.1.1", "fe80::1"] {
        let expected = format!("{gateway} dev eth0 lladdr {} PERMANENT", at[0]["address"].as_str().unwrap());
        assert!(neighbours.contains(&expected), "{neighbours}");
    }
    assert_eq!(at[0]["ifalias"], format!("bulkhead-cni pods {} eth0", pod.id));
    let own = node.netns.ip(&format!("addr show dev {node_end}"));
    assert!(!own.contains("inet"), "the node's end has no address: {own}");
    assert_eq!(pod.netns.exec("cat /proc/sys/net/ipv6/conf/eth0/accept_ra").trim(), "0");

    assert_eq!(node.runtime.check(&pod), Ok(()));
    let again = node.runtime.run("ADD", &pod, &node.runtime.plugins[0]).unwrap_err();
    assert_eq!((&again["code"], node.leases()), (&json!(4), 2), "{again}");
    assert_eq!(node.runtime.check(&pod), Ok(()), "what is there is not touched by an ADD that is refused");

    for _ in 0..2 {
        node.runtime.del(&pod);
        assert!(node.interfaces().is_empty() && interfaces(&pod.netns).is_empty());
        assert_eq!(node.leases(), 0);
    }
    let removed = vswitch.asked();
    assert!(removed.iter().any(|asked| asked["request"] == "remove_port" && asked["arguments"]["container"] == pod.id));
}

/// Whether neither the node nor the container has an interface of the attachment, and the node has no address lease.
fn nothing_is_left(node: &Node, pod: &Sandbox) -> bool {
    node.interfaces().is_empty() && interfaces(&pod.netns).is_empty() && node.leases() == 0
}

#[test]
fn an_add_that_fails_leaves_nothing_behind() {
    require!();
    let node = Node::new("undo");
    let mut pod = Sandbox::new("db");
    for (code, expected) in [("timeout", 11), ("not_ready", 11), ("refused", 100)] {
        let vswitch = node.answering(move |request| match request["request"].as_str() {
            Some("add_port") => {
                json!({"failure": {"code": code, "message": "the pod's object is not known yet", "help": ""}})
            }
            _ => json!({"answer": content(request)}),
        });
        let error = node.runtime.try_add(&mut pod).unwrap_err();
        assert_eq!(
            (&error["code"], &error["details"]),
            (&json!(expected), &json!("the pod's object is not known yet"))
        );
        assert!(nothing_is_left(&node, &pod));
        let asked: Vec<Value> = vswitch.asked().into_iter().map(|mut asked| asked["request"].take()).collect();
        assert_eq!(asked, ["add_port", "remove_port"], "it may have kept the port");
    }
    // A vswitch that closes the connection without an answer.
    let vswitch = node.answering(|request| match request["request"].as_str() {
        Some("add_port") => Value::Null,
        _ => json!({"answer": content(request)}),
    });
    let error = node.runtime.try_add(&mut pod).unwrap_err();
    assert_eq!(error["code"], 11, "{error}");
    assert!(nothing_is_left(&node, &pod));
    let asked = vswitch.asked();
    assert_eq!(asked.iter().filter(|asked| asked["request"] == "add_port").count(), 3, "it is tried again");
    drop(vswitch);
    // CNI_NETNS is not a network namespace.
    let _vswitch = node.vswitch();
    let conf = &node.runtime.plugins[0];
    let broken = node.runtime.run_with("ADD", &pod, conf, &[("CNI_NETNS", Path::new("/dev/null"))]).unwrap_err();
    assert_eq!((&broken["code"], node.leases()), (&json!(4), 0), "{broken}");
}

#[test]
fn an_ipam_plugin_that_fails_or_talks_nonsense_is_told_to_take_back_what_it_gave() {
    require!();
    let mut node = Node::new("ipam");
    let vswitch = node.vswitch();
    let pod = Sandbox::new("db");
    let path = node.folder.join("cni/fake-ipam");
    node.runtime.plugins[0]["ipam"] = json!({"type": "fake-ipam"});
    for (script, code, says) in [
        ("echo '{\"code\": 105, \"msg\": \"none left\", \"details\": \"10.1.0.0/30\"}'; exit 1", 105, "10.1.0.0/30"),
        ("echo oops; exit 3", 103, "fake-ipam: exit status: 3: oops"),
        ("echo '{\"ips\": []}'", 103, "it assigned no address"),
        ("echo '{\"ips\": [{\"address\": \"10.1\"}]}'", 103, "ips[0].address"),
        // The kernel refuses to add the same address twice.
        (
            "echo '{\"ips\": [{\"address\": \"10.1.0.7/24\"}, {\"address\": \"10.1.0.7/16\"}]}'",
            101,
            "add the address 10.1.0.7",
        ),
    ] {
        let calls = node.folder.join("calls");
        let _ = std::fs::remove_file(&calls);
        std::fs::write(&path, format!("#!/bin/sh\necho $CNI_COMMAND >> {}\n{script}\n", calls.display())).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let error = node.runtime.run("ADD", &pod, &node.runtime.plugins[0]).unwrap_err();
        assert!(error["code"] == code && error["details"].as_str().unwrap().contains(says), "{error}");
        assert_eq!(std::fs::read_to_string(&calls).unwrap(), "ADD\nDEL\n", "{script}");
        assert!(nothing_is_left(&node, &pod));
    }
    assert!(
        vswitch.asked().iter().all(|asked| asked["request"] == "remove_port"),
        "without an address there is no port"
    );
}

#[test]
fn what_an_add_has_left_that_was_cut_short_is_replaced() {
    require!();
    let node = Node::new("again");
    let _vswitch = node.vswitch();
    let mut pod = Sandbox::new("db");
    node.runtime.add(&mut pod);
    let node_end = pod.node_end();
    node.runtime.del(&pod);
    node.netns.ip(&format!("link add {node_end} type veth peer name other"));
    node.runtime.add(&mut pod);
    assert_eq!(node.interfaces(), [node_end].into(), "the same name again, and the other end of the old one is gone");
    assert_eq!(node.runtime.check(&pod), Ok(()));
}

#[test]
fn an_attachment_is_removed_by_its_name_alone() {
    require!();
    let node = Node::new("blind");
    let _vswitch = node.vswitch();
    let mut pod = Sandbox::new("db");
    node.runtime.add(&mut pod);
    let conf = &node.runtime.plugins[0];
    // DEL without CNI_NETNS, prevResult and CNI_ARGS.
    let unsaid = [("CNI_NETNS", Path::new("")), ("CNI_ARGS", Path::new(""))];
    for _ in 0..2 {
        assert_eq!(node.runtime.run_with("DEL", &pod, conf, &unsaid), Ok(Value::Null));
        assert!(nothing_is_left(&node, &pod));
    }
}

#[test]
fn the_mtu_is_that_of_the_way_out_and_mtu_and_mac_may_be_said() {
    require!();
    let mut node = Node::new("mtu");
    let _vswitch = node.vswitch();
    node.netns.ip("link add up0 mtu 1420 type veth peer name up1");
    node.netns.ip("link set up0 up");
    node.netns.ip("addr add 172.18.0.11/24 dev up0");
    node.netns.ip("route add default via 172.18.0.1");
    let link = |pod: &Sandbox| -> Value { serde_json::from_str(&pod.netns.ip("-j link show dev eth0")).unwrap() };
    let mut pod = Sandbox::new("a");
    node.runtime.add(&mut pod);
    assert_eq!(link(&pod)[0]["mtu"], 1420);
    node.runtime.plugins[0]["mtu"] = 9000.into();
    node.runtime.plugins[0]["runtimeConfig"] = json!({"mac": "02:00:00:00:00:07"});
    let mut pod = Sandbox::new("b");
    node.runtime.add(&mut pod);
    let link = link(&pod);
    assert_eq!((&link[0]["mtu"], &link[0]["address"]), (&json!(9000), &json!("02:00:00:00:00:07")));
}

#[test]
fn a_pod_of_one_family_has_nothing_of_the_other_one() {
    require!();
    let mut node = Node::new("family");
    let _vswitch = node.vswitch();
    for (subnet, gateway, other) in
        [("10.244.1.0/24", "169.254.1.1", "fe80::1"), ("fd00:244:1::/64", "fe80::1", "169.254.1.1")]
    {
        node.runtime.plugins[0]["ipam"]["ranges"] = json!([[{"subnet": subnet}]]);
        let mut pod = Sandbox::new("a");
        node.runtime.add(&mut pod);
        assert_eq!(pod.addresses().len(), 1);
        let neighbours = pod.netns.ip("neigh");
        assert!(neighbours.contains(gateway) && !neighbours.contains(other), "{neighbours}");
        assert_eq!(node.runtime.check(&pod), Ok(()));
        node.runtime.del(&pod);
    }
}

#[test]
fn a_check_tells_what_is_not_as_it_was_added() {
    require!();
    let node = Node::new("check");
    let vswitch = node.vswitch();
    let mut pod = Sandbox::new("db");
    node.runtime.add(&mut pod);
    let (v4, node_end) = (pod.v4(), pod.node_end());
    let inside = |line: &str| drop(pod.netns.ip(line));
    let outside = |line: &str| drop(node.netns.ip(line));
    let says = |expected: &str| {
        let said = node.runtime.check(&pod).unwrap_err();
        assert!(said.contains(expected), "{said} does not say {expected}");
    };
    assert_eq!(node.runtime.check(&pod), Ok(()));
    inside("route del default");
    says("eth0 lacks the route to 0.0.0.0/0 via 169.254.1.1");
    inside("route add default via 169.254.1.1 dev eth0");
    inside(&format!("addr add {v4}0/32 dev eth0"));
    assert_eq!(node.runtime.check(&pod), Ok(()), "what others add is theirs");
    inside(&format!("addr del {v4}/32 dev eth0"));
    says(&format!("lacks the address {v4}"));
    inside(&format!("addr add {v4}/32 dev eth0"));
    inside("link set eth0 address 02:00:00:00:00:99");
    says("eth0 has the MAC address 02:00:00:00:00:99");
    outside(&format!("link set {node_end} down"));
    let mac = pod.result["interfaces"][1]["mac"].as_str().unwrap().to_owned();
    inside(&format!("link set eth0 address {mac}"));
    says("the node's end, is down");
    outside(&format!("link set {node_end} up"));
    assert_eq!(node.runtime.check(&pod), Ok(()));
    drop(vswitch);
    says("start the vswitch");
    {
        let _vswitch =
            node.answering(|_| json!({"answer": {"port": "p", "interface": "i", "addresses": [], "state": "closed", "why": "it has no table"}}));
        says("the port is closed: it has no table");
    }
    {
        let unknown = json!({"failure": {"code": "unknown_port", "message": "there is no such port"}});
        let _vswitch = node.answering(move |_| unknown.clone());
        says("the vswitch has no port for the attachment: there is no such port");
    }
    inside("link del eth0");
    says("the container no longer has the interface eth0");
}

#[test]
fn garbage_is_what_the_runtime_does_not_know_on_this_network() {
    require!();
    let mut node = Node::new("gc");
    let vswitch = node.vswitch();
    let [mut kept, mut stale, mut other] = ["kept", "stale", "other"].map(Sandbox::new);
    node.runtime.add(&mut kept);
    node.runtime.add(&mut stale);
    node.runtime.network = "others".to_owned();
    node.runtime.add(&mut other);
    node.runtime.network = "pods".to_owned();
    node.netns.ip("link add bhaaaaaaaaaaaaa type veth peer name else");
    vswitch.asked();
    assert_eq!(node.leases(), 4);
    let mut conf = node.runtime.plugins[0].clone();
    conf["cniVersion"] = "1.1.0".into();
    conf["cni.dev/valid-attachments"] = json!([{"containerID": kept.id, "ifname": "eth0"}]);
    assert_eq!(node.runtime.run("GC", &kept, &conf), Ok(Value::Null));
    assert_eq!(node.leases(), 2);
    let expected = [kept.node_end(), other.node_end(), "bhaaaaaaaaaaaaa".into(), "else".into()].into();
    assert_eq!(node.interfaces(), expected);
    let asked = vswitch.asked();
    let keep: BTreeSet<&str> = asked[0]["arguments"]["keep"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| key["container"].as_str().unwrap())
        .collect();
    assert_eq!((&asked[0]["request"], keep), (&json!("retain_ports"), [&*kept.id].into()));
    assert_eq!(asked[0]["arguments"]["network"], "pods", "ports of other networks are not meant");
}

#[test]
fn behind_another_plugin_the_interface_and_the_addresses_are_that_plugins() {
    require!();
    require_plugins!();
    let mut node = Node::new("chain");
    let vswitch = node.vswitch();
    let mut ours = node.runtime.plugins.remove(0);
    let mut ipam = ours.as_object_mut().unwrap().shift_remove("ipam").unwrap();
    ipam["type"] = "host-local".into();
    node.runtime.plugins = vec![json!({"type": "ptp", "mtu": 1400, "ipam": ipam}), ours.clone()];
    let mut pod = Sandbox::new("db");
    node.runtime.add(&mut pod);
    let node_end = node.interfaces().pop_first().unwrap();
    assert!(!node_end.starts_with("bh") && node.interfaces().len() == 1, "ptp has made it: {node_end}");
    let asked = vswitch.asked();
    let arguments = &asked[0]["arguments"];
    assert_eq!((&arguments["interface"], &arguments["addresses"]), (&json!(node_end), &json!([pod.v4(), pod.v6()])));
    let link: Value = serde_json::from_str(&pod.netns.ip("-j link show dev eth0")).unwrap();
    assert_eq!((&link[0]["mtu"], &link[0]["address"]), (&json!(1400), &arguments["mac"]));
    assert!(pod.result["dns"].is_object() && pod.result["cniVersion"] == "1.0.0", "{:#}", pod.result);
    assert_eq!(node.runtime.check(&pod), Ok(()));
    drop(vswitch);

    // While its port closes, the interface still exists but is down, so the pod has no connectivity.
    let (name, expected) = (node.netns.name().to_owned(), node_end);
    let vswitch = node.answering(move |request| {
        let link = ip(&format!("-n {name} link show dev {expected}"));
        assert!(request["request"] == "remove_port" && !link.contains(",UP"), "{link}");
        json!({"answer": {"removed": true}})
    });
    node.runtime.del(&pod);
    assert_eq!(vswitch.asked().len(), 1);
    assert!(nothing_is_left(&node, &pod));
    drop(vswitch);

    // Invalid chains: with an own IPAM section, with an interface missing in the result, with an interface that is not a veth.
    let _vswitch = node.vswitch();
    node.runtime.plugins[1]["ipam"] = ipam;
    let error = node.runtime.try_add(&mut pod).unwrap_err();
    assert!(error["details"].as_str().unwrap().starts_with("ipam: remove it"), "{error}");
    let mut conf = ours;
    let interfaces = json!([{"name": "veth0"}, {"name": "eth0", "sandbox": pod.path()}]);
    conf["prevResult"] = json!({"interfaces": interfaces, "ips": [{"address": "10.244.1.9/24", "interface": 1}]});
    let error = node.runtime.run("ADD", &pod, &conf).unwrap_err();
    let says = error["details"].as_str().unwrap();
    assert!(
        says.starts_with("prevResult.interfaces: ") && says.contains("the node's end of eth0, is missing"),
        "{says}"
    );
    pod.netns.ip("link del eth0");
    pod.netns.ip("link add eth0 type veth peer name other");
    let error = node.runtime.run("ADD", &pod, &conf).unwrap_err();
    assert!(error["details"].as_str().unwrap().contains("eth0 is not a veth"), "{error}");
}

#[test]
fn pods_keep_their_addresses_when_the_configuration_changes_between_host_local_and_the_own_allocator() {
    require!();
    require_plugins!();
    let mut node = Node::new("upgrade");
    let _vswitch = node.vswitch();
    let [mut first, mut second, mut third, mut fourth] = ["first", "second", "third", "fourth"].map(Sandbox::new);
    node.runtime.plugins[0]["ipam"]["type"] = "host-local".into();
    node.runtime.add(&mut first);
    node.runtime.add(&mut second);
    assert_eq!((first.v4(), second.v6()), ("10.244.1.2".to_owned(), "fd00:244:1::3".to_owned()));
    node.runtime.plugins[0]["ipam"]["type"] = "bulkhead-cni".into();
    node.runtime.add(&mut third);
    assert_eq!((third.v4(), third.v6()), ("10.244.1.4".to_owned(), "fd00:244:1::4".to_owned()));
    assert_eq!(node.runtime.check(&first), Ok(()));
    node.runtime.del(&first);
    assert_eq!(node.leases(), 4);
    let mut conf = node.runtime.plugins[0].clone();
    conf["cniVersion"] = "1.1.0".into();
    conf["cni.dev/valid-attachments"] = json!([{"containerID": third.id, "ifname": "eth0"}]);
    assert_eq!(node.runtime.run("GC", &third, &conf), Ok(Value::Null));
    assert_eq!(node.leases(), 2, "the second is no longer valid");
    node.runtime.plugins[0]["ipam"]["type"] = "host-local".into();
    node.runtime.add(&mut fourth);
    assert_eq!((fourth.v4(), fourth.v6()), ("10.244.1.5".to_owned(), "fd00:244:1::5".to_owned()));
    node.runtime.del(&third);
    node.runtime.del(&fourth);
    assert_eq!(node.leases(), 0);
}

/// Adds this number of pods at once, and deletes them one after another. Returns the time until the last one was added.
fn at_once(node: &Node, pods: &mut [Sandbox]) -> Duration {
    let start = Instant::now();
    std::thread::scope(|scope| pods.iter_mut().for_each(|pod| drop(scope.spawn(|| node.runtime.add(pod)))));
    let took = start.elapsed();
    let addresses: BTreeSet<String> = pods.iter().flat_map(Sandbox::addresses).collect();
    assert_eq!((addresses.len(), node.leases()), (2 * pods.len(), 2 * pods.len()));
    pods.iter().for_each(|pod| node.runtime.del(pod));
    assert_eq!(node.leases(), 0);
    took
}

#[test]
fn a_hundred_and_ten_pods_are_added_at_once() {
    require!();
    let mut node = Node::new("at-once");
    let _vswitch = node.vswitch();
    let mut pods: Vec<Sandbox> = (0..110).map(|number| Sandbox::new(&format!("p{number}"))).collect();
    println!("the own allocator took {:?}", at_once(&node, &mut pods));
    if crate::cni::plugins().is_some() {
        node.runtime.plugins[0]["ipam"]["type"] = "host-local".into();
        println!("host-local took {:?}", at_once(&node, &mut pods));
    }
}

#[test]
fn a_plugin_that_is_killed_at_any_time_loses_no_address() {
    require!();
    let mut node = Node::new("killed");
    let name = node.netns.name().to_owned();
    let _vswitch = node.answering(move |request| {
        if let Some(interface) = request["arguments"]["interface"].as_str() {
            // DEL may have removed the interface of a killed ADD.
            let words = ["-n", &name, "link", "set", interface, "up"];
            let _ = std::process::Command::new("ip").args(words).stderr(std::process::Stdio::null()).status();
        }
        json!({"answer": content(request)})
    });
    node.runtime.plugins[0]["ipam"]["ranges"] =
        json!([[{"subnet": "10.244.1.0/29"}], [{"subnet": "fd00:244:1::/125"}]]);
    let mut pod = Sandbox::new("db");
    let mut with_address = 0;
    for round in 0..40_u64 {
        node.runtime.kill_add(&pod, Duration::from_micros(250 * round));
        with_address += usize::from(node.leases() > 0);
        // Of a runtime that repeats the ADD, and of one that begins again.
        if round % 2 == 0 && node.interfaces().is_empty() && interfaces(&pod.netns).is_empty() {
            node.runtime.add(&mut pod);
        }
        node.runtime.del(&pod);
        assert!(nothing_is_left(&node, &pod), "round {round}");
    }
    println!("{with_address} of 40 killed processes had reserved an address");
    let mut all: Vec<Sandbox> = (0..5).map(|number| Sandbox::new(&format!("p{number}"))).collect();
    for one in &mut all {
        node.runtime.add(one);
    }
    let error = node.runtime.try_add(&mut pod).unwrap_err();
    assert_eq!((&error["code"], &error["msg"]), (&json!(11), &json!("no address is left")), "{error}");
    let mut conf = node.runtime.plugins[0].clone();
    conf["cniVersion"] = "1.1.0".into();
    assert!(error["details"].as_str().unwrap().contains("all addresses of 10.244.1.2 to 10.244.1.6"), "{error}");
    // The kubelet would evict the pods of a node whose STATUS fails.
    assert_eq!(node.runtime.run("STATUS", &pod, &conf), Ok(Value::Null));
    node.runtime.del(&all[0]);
    node.runtime.add(&mut pod);
}
