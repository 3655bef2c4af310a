//! `big_tcp`: TCP packets longer than an IP header can express.

use crate::require;
use bulkhead_dataplane::io::{TcpLimits, in_namespace};

use crate::lab::lasting::Lasting;
use crate::lab::netns::{Netns, eventually};
use crate::lab::{Lab, Pod, is_tc};

const CONFIG: &str = "big_tcp: 196608\nservices: {service_cidrs: ['fd96::/64']}\n";

/// A Service of the server over IPv6.
fn service(server: &Pod) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: default}}\n\
         spec: {{clusterIP: 'fd96::20', clusterIPs: ['fd96::20'], ipFamilies: [IPv6], ports: [{{port: 80, targetPort: 5201}}]}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: web-0, namespace: default, \
         labels: {{kubernetes.io/service-name: web}}}}\naddressType: IPv6\nports: [{{name: '', port: 5201, protocol: TCP}}]\n\
         endpoints: [{{addresses: ['{}'], nodeName: node-1, conditions: {{ready: true}}}}]\n",
        server.v6
    )
}

/// A node with two pods and an uplink.
fn lab(pods: [&str; 2]) -> Lab {
    let mut lab = Lab::new();
    for pod in pods {
        lab.pod(pod, &format!("{{app: {pod}}}"));
    }
    lab.outside();
    lab
}

/// Regression: packets longer than an IPv4 header can express have a total length of 0. The tc program treated them as malformed and sent
/// their segments to the worker. Connections then had a fifth of their speed and lost the packets above the port's limit. An uplink that
/// does not accept such packets segments them as well. Over IPv6, the kernel inserts a jumbo header before the TCP header, which a Service's
/// translation has to skip.
#[test]
fn tcp_packets_longer_than_an_ip_header_tells_stay_in_the_kernel() {
    require!("iperf3");
    if !is_tc() {
        println!("skipped: with attach: xdp pods send no segments to cut");
        return;
    }
    let mut lab = lab(["client", "server"]);
    lab.more_config.push_str(CONFIG);
    lab.start(&service(lab.get("server")));
    let client = lab.get("client");
    client.netns.exec("sysctl -w net.ipv4.tcp_congestion_control=reno");
    let (server, outside) = (lab.get("server"), lab.outside.as_ref().unwrap());
    let ways = [
        (&server.netns, format!("{} -p 5201", server.v4)),
        (&server.netns, format!("{} -p 5201", server.v6)),
        (&server.netns, "fd96::20 -p 80".to_owned()),
        (outside, "172.18.0.100".to_owned()),
        (outside, "fd00:18::100".to_owned()),
    ];
    let longest = ways.map(|(to, address)| longest_packets(client, to, &address));
    let summary = lab.stop();
    let count = |at: &str| summary.pointer(at).and_then(serde_json::Value::as_u64).unwrap();
    let (to_worker, forwarded) = (count("/workers/0/received"), count("/flow_cache/forwarded"));
    println!("packets of {longest:?} bytes; {forwarded} segments in the kernel, {to_worker} by the worker");
    for longest in longest {
        assert!(!kernel_has_big_tcp() || longest > 65_535, "packets of {longest} bytes");
    }
    assert_eq!(count("/ports/default~1client/limited"), 0, "{summary:#}");
    assert!(to_worker < forwarded / 10, "{summary:#}");
}

/// Average length of a bulk connection's packets, in bytes, in the best of 15 intervals. While the machine is busy, TCP sends shorter
/// packets.
fn longest_packets(client: &Pod, server: &Netns, address: &str) -> u64 {
    let received = || {
        let read = |what| server.exec(&format!("cat /sys/class/net/eth0/statistics/rx_{what}"));
        ["bytes", "packets"].map(|what| read(what).trim().parse::<u64>().unwrap())
    };
    let serving = server.serve("iperf3 -s -1", 5201);
    let sending = client.netns.spawn(&format!("iperf3 -c {address} -t 2"));
    let (mut last, mut longest) = (received(), 0);
    for _ in 0..15 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let now = received();
        longest = longest.max((now[0] - last[0]) / (now[1] - last[1]).max(1));
        last = now;
    }
    assert!(sending.wait().status.success());
    serving.wait();
    longest
}

/// Whether the kernel is at least Linux 6.3.
fn kernel_has_big_tcp() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let version = [numbers.next(), numbers.next()].map(Option::unwrap_or_default);
    version >= [6, 3]
}

/// The limits of an interface in a network namespace.
fn limits(netns: &Netns, interface: &str) -> [u32; 2] {
    let path = std::path::Path::new("/run/netns").join(netns.name());
    let TcpLimits { v4, v6 } = in_namespace(&path, || TcpLimits::read(interface)).unwrap().unwrap();
    [v4, v6]
}

#[test]
fn a_start_without_big_tcp_and_cleanup_restore_the_limits_that_it_changed() {
    require!("mount");
    if !is_tc() || !kernel_has_big_tcp() {
        println!("skipped: needs attach: tc and Linux 6.3");
        return;
    }
    let Lasting { lab, mount } = &mut Lasting::of(lab(["a", "b"]));
    // Somebody has set a limit of the uplink.
    lab.node.ip("link set ul0 gso_max_size 100000");
    let all = |lab: &Lab| {
        let pods = ["a", "b"].map(|pod| lab.get(pod));
        let ends = pods.map(|pod| [limits(&lab.node, &pod.interface), limits(&pod.netns, "eth0")]);
        (limits(&lab.node, "ul0"), ends)
    };
    let before = all(lab);
    assert_eq!(before, ([65_536, 100_000], [[[65_536; 2]; 2]; 2]));
    let is_set = |lab: &Lab| all(lab) == ([196_608; 2], [[[196_608; 2]; 2]; 2]);
    let without = lab.more_config.clone();
    lab.more_config.push_str("big_tcp: 131072\n");
    lab.start("");
    eventually("the limits are raised", || all(lab) == ([131_072; 2], [[[131_072; 2]; 2]; 2]));
    lab.stop();
    // Another limit does not hide the first.
    lab.more_config = format!("{without}big_tcp: 196608\n");
    lab.start("");
    eventually("the limits are raised further", || is_set(lab));
    lab.stop();
    lab.more_config.clone_from(&without);
    lab.start("");
    assert_eq!(all(lab), before, "{}", lab.log());
    assert!(lab.log().contains("earlier maximum TCP packet size"), "{}", lab.log());
    lab.stop();
    lab.more_config.push_str("big_tcp: 196608\n");
    lab.start("");
    eventually("the limits are raised again", || is_set(lab));
    lab.unplug("b");
    lab.stop();
    // Somebody has changed one since.
    lab.get("a").netns.ip("link set eth0 gso_max_size 150000");
    let config = lab.path("config.yaml");
    lab.node.exec(&format!("{} cleanup --config {}", env!("CARGO_BIN_EXE_bulkhead"), config.display()));
    let a = lab.get("a");
    assert_eq!(limits(&lab.node, "ul0"), [65_536, 100_000]);
    assert_eq!((limits(&lab.node, &a.interface), limits(&a.netns, "eth0")), ([65_536; 2], [65_536, 150_000]));
    assert!(!mount.join("bulkhead").exists());
}
