//! Traffic of real programs through the vswitch: bulk, jumbo frames, datagrams, ICMP errors.

use crate::require;
use std::fs;

use crate::lab::netns::{run, seconds};
use crate::lab::{Dump, Lab, Options};
use serde_json::Value;

fn pair(options: Options) -> Lab {
    let mut lab = Lab::with(options);
    lab.pod("client", "{app: client}");
    lab.pod("server", "{app: server}");
    lab
}

/// A running lab with a pair of pods and no policies.
fn started(options: Options) -> Lab {
    let mut lab = pair(options);
    lab.start("");
    lab
}

/// Runs iperf3 from the client to the server and returns its report.
fn iperf(lab: &Lab, words: &str) -> Value {
    let address = if words.contains("-6") { &lab.get("server").v6 } else { &lab.get("server").v4 };
    let server = lab.get("server").netns.serve("iperf3 -s -1", 5201);
    let line = format!("iperf3 -J -c {address} -t {} {words}", seconds());
    let report: Value = serde_json::from_str(&lab.get("client").netns.exec(&line)).unwrap();
    assert!(report.get("error").is_none(), "{report:#}");
    server.wait();
    report
}

/// The number of packets that the pods' kernels dropped because of wrong checksums.
fn checksum_errors(lab: &Lab) -> u64 {
    let count = |pod: &str| -> u64 {
        let names = ["TcpInCsumErrors", "UdpInCsumErrors", "Udp6InCsumErrors", "IcmpInCsumErrors", "Icmp6InCsumErrors"];
        let table = lab.get(pod).netns.exec(&format!("nstat -az {}", names.join(" ")));
        let of = |name: &str| table.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
        let counts = names.map(|name| of(name).unwrap_or_else(|| panic!("no {name}: {table}")).parse::<u64>().unwrap());
        counts.iter().sum()
    };
    count("client") + count("server")
}

#[test]
fn bulk_tcp_flows_both_ways_and_every_checksum_is_right() {
    require!("iperf3", "nstat", "ss");
    let mut lab = started(Options::default());
    for words in ["", "-R", "-6", "-6 -R"] {
        let report = iperf(&lab, words);
        let bytes = report["end"]["sum_received"]["bytes"].as_u64().unwrap();
        println!("iperf3 {words}: {} Mb/s", report["end"]["sum_received"]["bits_per_second"].as_f64().unwrap() / 1e6);
        assert!(bytes > 1_000_000, "{words}: only {bytes} bytes arrived");
    }
    assert_eq!(checksum_errors(&lab), 0);
    lab.stop();
}

#[test]
fn jumbo_packets_pass_whole() {
    require!("iperf3", "nstat", "ping", "ss");
    let mut lab = started(Options { mtu: 9000, ..Options::default() });
    let server = lab.get("server");
    // Packets of 9,000 bytes including headers, with "don't fragment".
    lab.get("client").netns.exec(&format!("ping -n -c 3 -W 2 -M do -s 8972 {}", server.v4));
    lab.get("client").netns.exec(&format!("ping -6 -n -c 3 -W 2 -M do -s 8952 {}", server.v6));
    for words in ["", "-R"] {
        assert!(iperf(&lab, words)["end"]["sum_received"]["bytes"].as_u64().unwrap() > 1_000_000);
    }
    assert_eq!(checksum_errors(&lab), 0);
    lab.stop();
}

#[test]
fn udp_datagrams_arrive_small_and_fragmented() {
    require!("iperf3", "nstat", "ping", "ss");
    let mut lab = started(Options::default());
    for words in ["-u -b 20M", "-u -b 20M -R", "-u -b 20M -6", "-u -b 5M -l 4000"] {
        let report = iperf(&lab, words);
        let (lost, sent) = (&report["end"]["sum"]["lost_percent"], &report["end"]["sum"]["packets"]);
        // 20 Mb/s is far below the maximum, but a busy machine may lose some packets.
        assert!(lost.as_f64().unwrap() < 5.0 && sent.as_u64().unwrap() > 100, "{words}: {lost} % of {sent}");
    }
    lab.get("client").netns.exec(&format!("ping -n -c 2 -W 2 -s 5000 {}", lab.get("server").v4));
    lab.get("client").netns.exec(&format!("ping -6 -n -c 2 -W 2 -s 5000 {}", lab.get("server").v6));
    assert_eq!(checksum_errors(&lab), 0);
    lab.stop();
}

#[test]
fn sctp_flows_where_the_kernel_has_it() {
    require!("iperf3", "python3", "ss");
    let mut lab = started(Options::default());
    // The kernel may lack SCTP (protocol 132) or its module.
    let probe = "import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132)";
    if !lab.get("client").netns.command("python3", &["-c", probe]).output().unwrap().status.success() {
        println!("skipped: this kernel has no SCTP");
        return;
    }
    assert!(iperf(&lab, "--sctp")["end"]["sum_received"]["bytes"].as_u64().unwrap() > 100_000);
    lab.stop();
}

#[test]
fn a_large_download_arrives_unchanged() {
    require!("python3", "curl", "ss", "sha256sum");
    let mut lab = pair(Options::default());
    let (source, target) = (lab.path("large"), lab.path("copy"));
    // 64 MiB without a short period, in which a lost or repeated packet would go unnoticed.
    let mut state = 1_u64;
    let bytes = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    });
    fs::write(&source, bytes.take(16 << 20).flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    lab.start("");
    let folder = source.parent().unwrap().to_str().unwrap();
    let server = format!("python3 -m http.server 8080 --bind :: --directory {folder}");
    let _server = lab.get("server").netns.serve(&server, 8080);
    let digest = |file: &std::path::Path| {
        run("sha256sum", &[file.to_str().unwrap()]).split_whitespace().next().unwrap().to_owned()
    };
    for host in [lab.get("server").v4.clone(), format!("[{}]", lab.get("server").v6)] {
        let line = format!("curl -g -s -S -f --max-time 50 -o {} http://{host}:8080/large", target.display());
        lab.get("client").netns.exec(&line);
        assert_eq!(digest(&source), digest(&target), "from {host}");
    }
    lab.stop();
}

#[test]
fn a_closed_udp_port_is_told_to_who_asks() {
    require!("dig");
    let mut lab = started(Options::default());
    for address in [&lab.get("server").v4, &lab.get("server").v6] {
        let output = lab.get("client").netns.output(&format!("dig +time=5 +tries=1 @{address} example.com"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("connection refused"), "the ICMP error did not come back: {text}");
    }
    lab.stop();
}

#[test]
fn a_packet_that_is_too_big_for_the_next_link_is_answered() {
    require!("ping", "tcpdump");
    let mut lab = pair(Options { mtu: 3000, ..Options::default() });
    lab.node.ip(&format!("link set {} mtu 1500", lab.get("server").interface));
    lab.start("");
    let (v4, v6) = (lab.get("server").v4.clone(), lab.get("server").v6.clone());
    let client = &lab.get("client").netns;
    let told = |line: &str| String::from_utf8_lossy(&client.output(line).stdout).into_owned();
    let v4 = told(&format!("ping -n -c 2 -W 2 -M do -s 2000 {v4}"));
    assert!(v4.contains("mtu = 1500") || v4.contains("mtu=1500"), "{v4}");
    let v6 = told(&format!("ping -6 -n -c 2 -W 2 -M do -s 2000 {v6}"));
    assert!(v6.contains("mtu = 1500") || v6.contains("mtu=1500"), "{v6}");
    let summary = lab.stop();
    assert!(summary["dropped"]["packet_too_big"].as_u64() >= Some(2), "{summary:#}");
}

#[test]
fn a_packet_that_is_too_big_for_the_next_link_and_may_be_cut_arrives_in_fragments() {
    require!("ping", "tcpdump");
    let mut lab = pair(Options { mtu: 9000, ..Options::default() });
    let server = lab.get("server");
    let v4 = server.v4.clone();
    lab.node.ip(&format!("link set {} mtu 1500", server.interface));
    server.netns.ip("link set eth0 mtu 1500");
    lab.start("");
    let dump = Dump::start(&lab, "server", "icmp");
    // One packet in a single buffer, and others in several. ping compares the answers byte by byte. The server's kernel fragments its
    // answers itself.
    for size in [1473, 3000, 8900] {
        let said = lab.get("client").netns.exec(&format!("ping -n -c 3 -W 2 -M dont -s {size} {v4}"));
        assert!(said.contains("3 received") && !said.contains("wrong data"), "{said}");
    }
    let fragments = dump.seen(&format!("-v dst host {v4}"));
    assert!(fragments.contains("offset 1480, flags [none]"), "{fragments}");
    assert!(fragments.contains("offset 7400, flags [+]"), "{fragments}");
    let summary = lab.stop();
    assert_eq!(summary["fragmented"], 9, "{summary:#}");
    assert!(summary["dropped"]["packet_too_big"].is_null(), "{summary:#}");
}

#[test]
fn traceroute_shows_the_vswitch_as_one_hop() {
    require!("traceroute");
    let mut lab = started(Options::default());
    for (address, flag) in [(&lab.get("server").v4, "-4"), (&lab.get("server").v6, "-6")] {
        let text = lab.get("client").netns.exec(&format!("traceroute {flag} -n -w 2 -q 1 -m 4 {address}"));
        let hops: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(hops.len(), 2, "the vswitch, then the pod: {text}");
        assert!(hops[1].contains(address.as_str()), "{text}");
        assert!(!hops[0].contains('*'), "the vswitch says that the time is exceeded: {text}");
    }
    lab.stop();
}

#[test]
fn names_are_resolved_over_udp_and_tcp() {
    require!("dnsmasq", "dig", "ss");
    let mut lab = started(Options::default());
    let line = "dnsmasq --keep-in-foreground --no-resolv --no-hosts --conf-file=/dev/null --pid-file --user=root \
        --address=/db.default.svc.test/192.0.2.7 --port 53";
    let _server = lab.get("server").netns.serve(line, 53);
    for address in [&lab.get("server").v4, &lab.get("server").v6] {
        for words in ["", "+tcp"] {
            let line = format!("dig +short +time=3 +tries=2 {words} @{address} db.default.svc.test");
            assert_eq!(lab.get("client").netns.exec(&line).trim(), "192.0.2.7", "{words} {address}");
        }
    }
    lab.stop();
}

#[test]
fn the_wire_shows_a_router_the_time_to_live_is_one_less_and_the_mac_is_ours() {
    require!("ping", "tcpdump");
    let mut lab = started(Options::default());
    let dump = Dump::start(&lab, "server", "icmp");
    assert!(lab.pings("client", &lab.get("server").v4));
    let seen = dump.seen("-e -v icmp[icmptype]==icmp-echo");
    assert!(seen.contains("ttl 63"), "{seen}");
    let interface = lab.node.exec(&format!("cat /sys/class/net/{}/address", lab.get("server").interface));
    assert!(seen.contains(interface.trim()), "{seen} does not come from {interface}");
    lab.stop();
}
