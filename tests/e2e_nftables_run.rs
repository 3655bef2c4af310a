//! `bulkhead run` with `dataplane: nftables`: real connections between pods on a node whose kernel routes.
//! ```text
//!   [ pod a: eth0 ]--[ p2                        ul0 ]--[ outside: eth0 ]
//!   [ pod b: eth0 ]--[ p3   node: kernel, nft        ]
//!   [ pod c: eth0 ]--[ p4   bulkhead run             ]
//! ```

use crate::require;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::lab::netns::{Netns, eventually, ip};
use crate::lab::{Lab, policy};
use bulkhead_dataplane::io::in_namespace;

/// The time limit for answers: longer than any takes here, and short enough for one that must not come.
const PATIENCE: Duration = Duration::from_millis(300);

/// A lab with three pods and an outside machine, whose node's kernel routes.
fn routed() -> Lab {
    let mut lab = Lab::new();
    for name in ["a", "b", "c"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab.outside();
    lab.more_config = "dataplane: nftables\n".to_owned();
    let node = &lab.node;
    node.sysctl("net.ipv4.ip_forward", "1");
    node.sysctl("net.ipv6.conf.all.forwarding", "1");
    let ends = lab.pods.iter().map(|pod| pod.interface.as_str()).chain(["ul0"]);
    ends.for_each(|end| node.sysctl(&format!("net.ipv6.conf.{end}.disable_ipv6"), "0"));
    for pod in &lab.pods {
        node.ip(&format!("addr add 169.254.1.1/32 dev {}", pod.interface));
        node.ip(&format!("addr add fe80::1/64 dev {} nodad", pod.interface));
        node.ip(&format!("route add {} dev {}", pod.v4, pod.interface));
        node.ip(&format!("-6 route add {} dev {}", pod.v6, pod.interface));
    }
    node.ip("addr add 172.18.0.11/16 dev ul0");
    node.ip("addr add fd00:18::11/64 dev ul0 nodad");
    lab
}

fn within<T: Send>(netns: &Netns, act: impl FnOnce() -> T + Send) -> T {
    in_namespace(&Path::new("/run/netns").join(netns.name()), act).unwrap()
}

fn of<'a>(lab: &'a Lab, name: &str) -> &'a Netns {
    &lab.get(name).netns
}

/// Starts a TCP echo server.
fn serve(netns: &Netns, port: u16) {
    // This address accepts both families.
    let listener = within(netns, || TcpListener::bind(format!("[::]:{port}")).unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok(length @ 1..) = stream.read(&mut bytes) {
                    if stream.write_all(&bytes[..length]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

fn connect(from: &Netns, to: &str) -> Option<TcpStream> {
    let address: SocketAddr = to.parse().unwrap();
    let stream = within(from, || TcpStream::connect_timeout(&address, PATIENCE)).ok()?;
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Some(stream)
}

/// Whether a byte comes back.
fn answers(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut byte).is_ok()
}

/// A policy: `b` accepts only connections from these applications to this port.
fn only(applications: &str, port: u16) -> String {
    policy(
        "b",
        &format!(
            "{{podSelector: {{matchLabels: {{app: b}}}}, ingress: [{{from: [{{podSelector: {{matchExpressions: \
             [{{key: app, operator: In, values: [{applications}]}}]}}}}], ports: [{{port: {port}}}, {{port: {port}, protocol: UDP}}]}}]}}"
        ),
    )
}

fn nft(lab: &Lab, words: &str) -> String {
    lab.node.exec(&format!("nft {words}"))
}

#[test]
fn policy_is_enforced_followed_and_kept_and_nothing_is_left_in_the_end() {
    require!("nft", "ping");
    only_with_tc!();
    let mut lab = routed();
    serve(of(&lab, "b"), 80);
    serve(of(&lab, "b"), 81);
    lab.more_config.push_str("admin: {socket: admin.sock, listen: 127.0.0.1:9965}\n");
    lab.start(&only("a, c", 80));
    let (v4, v6) = (format!("{}:80", lab.get("b").v4), format!("[{}]:80", lab.get("b").v6));
    let mut kept = connect(of(&lab, "a"), &v4).expect("a is allowed");
    let mut ended = connect(of(&lab, "c"), &v4).expect("c is allowed");
    assert!(answers(&mut kept) && answers(&mut ended));
    assert!(connect(of(&lab, "a"), &v6).is_some(), "IPv6 as well");
    assert!(connect(of(&lab, "a"), &v4.replace(":80", ":81")).is_none(), "another port");
    assert!(connect(lab.outside.as_ref().unwrap(), &v4).is_none(), "nobody else");
    assert!(connect(&lab.node, &v4.replace(":80", ":81")).is_some(), "the own node may everything");
    assert!(lab.pings("a", "169.254.1.1") && !lab.pings("c", &lab.get("b").v4));

    // The change must also end packets that a server sends without receiving any.
    let [sender, receiver] = ["b", "c"].map(|name| {
        let address = format!("{}:80", lab.get(name).v4);
        within(of(&lab, name), || UdpSocket::bind(address).unwrap())
    });
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let [to_server, to_client] = ["b", "c"].map(|name| format!("{}:80", lab.get(name).v4));
    receiver.send_to(b"subscribe", &to_server).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let heard = |receiver: &UdpSocket| receiver.recv_from(&mut [0; 64]).is_ok();
    sender.send_to(b"news", &to_client).unwrap();
    assert!(heard(&receiver), "an answer");

    lab.apply(&only("a", 80));
    assert!(answers(&mut kept), "what stays allowed goes on");
    assert!(!answers(&mut ended), "what is allowed no more ends");
    sender.send_to(b"news", &to_client).unwrap();
    assert!(!heard(&receiver), "also what the server sends");
    assert!(connect(of(&lab, "c"), &v4).is_none());

    // Status, policies and metrics.
    let (code, status) = lab.ask(&["status", "-o", "json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!((code, &status["ready"], &status["node"]), (Some(0), &true.into(), &"node-1".into()), "{status:#}");
    let (_, policies) = lab.ask(&["policies"]);
    assert!(
        policies.contains("ingress isolated by default/b") && policies.contains("default/b ingress[0]"),
        "{policies}"
    );
    let (code, top) = lab.ask(&["top", "-n", "1", "-d", "0.3"]);
    for part in ["the node's kernel judges and forwards", "ingress isolated by default/b", "policy_denied", "default/b"]
    {
        assert!(code == Some(0) && top.contains(part), "{part}: {top}");
    }
    assert!(!top.contains("WORKER"), "{top}");
    let mut stream = within(&lab.node, || TcpStream::connect("127.0.0.1:9965")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    for text in [
        "bulkhead_policy_denied_packets_total{kind=\"isolation\"",
        "bulkhead_process_ready 1",
        "bulkhead_forward_dropped_packets_total{reason=\"spoofed_source\"} 0",
    ] {
        assert!(metrics.contains(text), "{text}\n{metrics}");
    }

    // An invalid state changes nothing.
    std::fs::write(lab.path("state.yaml"), "kind: [").unwrap();
    eventually("it is refused", || lab.log().contains("does not load"));
    assert!(answers(&mut kept) && connect(of(&lab, "c"), &v4).is_none());
    lab.apply(&only("a", 80));

    // Another program flushes all tables.
    nft(&lab, "flush ruleset");
    eventually("the table is there again", || nft(&lab, "list tables").contains("inet bulkhead"));
    assert!(connect(of(&lab, "c"), &v4).is_none() && connect(of(&lab, "a"), &v4).is_some());

    // The kernel keeps its rules without the process, and after a restart.
    lab.kill();
    assert!(answers(&mut kept) && connect(of(&lab, "c"), &v4).is_none());
    lab.start(&only("a", 80));
    assert!(answers(&mut kept) && connect(of(&lab, "c"), &v4).is_none() && connect(of(&lab, "a"), &v4).is_some());
    let bulkhead = env!("CARGO_BIN_EXE_bulkhead");
    let refused = lab.node.output(&format!("{bulkhead} cleanup"));
    assert_eq!(refused.status.code(), Some(2), "one that runs is not cleaned up after");
    let stopped = lab.stop_with_output();
    assert!(stopped.status.success());
    assert!(connect(of(&lab, "c"), &v4).is_none(), "a stop opens nothing");
    lab.node.exec(&format!("{bulkhead} cleanup"));
    assert_eq!(nft(&lab, "list tables"), "");
    assert!(connect(of(&lab, "c"), &v4).is_some());
}

#[test]
fn a_restart_without_a_state_keeps_what_an_earlier_process_has_put_into_force() {
    require!("nft", "ping");
    only_with_tc!();
    let mut lab = routed();
    serve(of(&lab, "b"), 80);
    lab.start(&only("a", 80));
    let v4 = format!("{}:80", lab.get("b").v4);
    let mut kept = connect(of(&lab, "a"), &v4).expect("a is allowed");
    assert!(answers(&mut kept));
    let (_, status) = lab.ask(&["status"]);
    assert!(status.contains("judged: by nftables, in the node's kernel"), "{status}");
    lab.kill();
    // The state is missing, as that of an unreachable server would be.
    lab.state = "{paths: [late.yaml], when_missing: deny}".to_owned();
    lab.start("");
    assert!(lab.log().contains("the table of the previous process stays in force"), "{}", lab.log());
    assert!(answers(&mut kept) && connect(of(&lab, "a"), &v4).is_some() && connect(of(&lab, "c"), &v4).is_none());
    let (code, status) = lab.ask(&["status", "-o", "json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!((code, &status["ready"], &status["denying"]), (Some(1), &false.into(), &false.into()), "{status:#}");
    // Without its table and without a state, the vswitch denies everything.
    nft(&lab, "flush ruleset");
    eventually("the table is there again", || nft(&lab, "list tables").contains("inet bulkhead"));
    eventually("nothing passes", || connect(of(&lab, "a"), &v4).is_none());
    lab.write_state(&only("c", 80));
    std::fs::rename(lab.path("state.yaml"), lab.path("late.yaml")).unwrap();
    eventually("there is a state", || connect(of(&lab, "c"), &v4).is_some());
    assert!(connect(of(&lab, "a"), &v4).is_none());
    lab.stop_with_output();
}

#[test]
fn who_is_not_known_or_speaks_for_others_is_dropped() {
    require!("nft", "ping");
    only_with_tc!();
    let mut lab = routed();
    // The vswitch finds pods by the node's routes. The state does not know d.
    lab.pod("d", "{app: d}");
    for name in ["a", "b", "c", "d"] {
        lab.configure(name, false);
    }
    lab.hide("d", true);
    let interface = lab.get("d").interface.clone();
    lab.node.ip(&format!("addr add 169.254.1.1/32 dev {interface}"));
    lab.node.ip(&format!("route add {} dev {interface}", lab.get("d").v4));
    lab.start("");
    assert!(lab.pings("a", &lab.get("b").v4), "{}", lab.log());
    assert!(!lab.pings("d", &lab.get("b").v4) && !lab.pings("a", &lab.get("d").v4), "d is unknown");
    let spoofed = format!("{}/32", lab.get("c").v4);
    of(&lab, "a").ip(&format!("addr add {spoofed} dev eth0"));
    let ping = format!("ping -n -c 1 -W 1 -I {} {}", lab.get("c").v4, lab.get("b").v4);
    assert!(!of(&lab, "a").output(&ping).status.success());
    let (_, status) = lab.ask(&["status", "-o", "json"]);
    for reason in ["spoofed_source", "unknown_interface"] {
        assert!(status.contains(reason), "{reason}: {status}");
    }
    eventually("its interface is logged", || {
        lab.log().contains(&format!("interface {interface} is closed: it belongs to no pod"))
    });
    let (_, ports) = lab.ask(&["ports"]);
    assert!(ports.contains("it belongs to no pod of this node"), "{ports}");
    assert_eq!(lab.log().matches("is closed: it belongs to no pod").count(), 1, "{}", lab.log());
    // The state now has d.
    lab.hide("d", false);
    lab.write_state("");
    eventually("d is known", || lab.pings("d", &lab.get("b").v4));
    eventually("nobody misses it", || !lab.ask(&["ports"]).1.contains("it belongs to no pod of this node"));
    // Deleting the interface also deletes the route that assigned it to the pod.
    lab.unplug("d");
    eventually("the log reports d as closed", || lab.log().contains("pod default/d is closed"));
}

/// Loads rules that translate, as kube-proxy does, a Service at `10.96.0.10:80` to its only endpoint, `b` at port 8080.
fn translated(lab: &Lab, script: &str) {
    let script = script.replace("ENDPOINT", &lab.get("b").v4).replace("VIP", "10.96.0.10");
    lab.node.shell(&script);
}

fn services(lab: &mut Lab, script: &str, what: &str) {
    serve(of(lab, "b"), 8080);
    // A route for the VIP, as a default route would be. The kernel looks up the route again after the translation.
    lab.node.ip("route add 10.96.0.0/16 via 172.18.0.100");
    let egress = policy(
        "c-out",
        "{podSelector: {matchLabels: {app: c}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.96.0.0/16}}]}]}",
    );
    lab.start(&(only("a, c", 8080) + &egress));
    translated(lab, script);
    let mut kept =
        connect(of(lab, "a"), "10.96.0.10:80").unwrap_or_else(|| panic!("{what}: the port of the pod is allowed"));
    assert!(answers(&mut kept), "{what}");
    assert!(
        connect(of(lab, "c"), "10.96.0.10:80").is_none(),
        "{what}: a rule for the Service's address says nothing of the pod behind"
    );
    assert!(connect(of(lab, "a"), &format!("{}:80", lab.get("b").v4)).is_none(), "{what}");
    assert!(connect(&lab.node, "10.96.0.10:80").is_some(), "{what}: the node's own connections");
    let mut hairpin = connect(of(lab, "b"), "10.96.0.10:80").unwrap_or_else(|| panic!("{what}: a pod reaches itself"));
    assert!(answers(&mut hairpin), "{what}");
    // A change of policy applies to translated connections by their real peers.
    lab.apply(&only("a", 8080));
    assert!(answers(&mut kept), "{what}");
    lab.apply(&only("c", 8080));
    assert!(!answers(&mut kept), "{what}: it ends");
    // NetworkPolicy does not cut a pod off from itself. ClusterNetworkPolicy does (network-policy-api #343, #390).
    assert!(answers(&mut hairpin), "{what}");
    let apart = "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: apart}\n\
        spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}\n";
    lab.apply(&format!("{}{apart}", only("c", 8080)));
    assert!(!answers(&mut hairpin), "{what}");
    assert!(connect(of(lab, "b"), "10.96.0.10:80").is_none(), "{what}");
}

#[test]
fn services_are_judged_after_their_translation_by_rules_of_nftables() {
    require!("nft");
    only_with_tc!();
    services(
        &mut routed(),
        "nft -f - <<'END'
table ip kube-proxy {
  chain pre { type nat hook prerouting priority dstnat; ip daddr VIP tcp dport 80 dnat to ENDPOINT:8080; }
  chain out { type nat hook output priority -100; ip daddr VIP tcp dport 80 dnat to ENDPOINT:8080; }
  chain post { type nat hook postrouting priority srcnat; ip saddr ENDPOINT ip daddr ENDPOINT masquerade; }
}
END",
        "nftables",
    );
}

#[test]
fn services_are_judged_after_their_translation_by_rules_of_iptables() {
    require!("nft", "iptables");
    only_with_tc!();
    let mut lab = routed();
    if !lab.node.output("iptables -t nat -L -n").status.success() {
        println!("skipped: this kernel has no iptables");
        return;
    }
    services(
        &mut lab,
        "iptables -t nat -A PREROUTING -d VIP/32 -p tcp --dport 80 -j DNAT --to-destination ENDPOINT:8080
         iptables -t nat -A OUTPUT -d VIP/32 -p tcp --dport 80 -j DNAT --to-destination ENDPOINT:8080
         iptables -t nat -A POSTROUTING -s ENDPOINT/32 -d ENDPOINT/32 -j MASQUERADE",
        "iptables",
    );
}

#[test]
fn services_are_judged_after_their_translation_by_ipvs() {
    require!("nft");
    only_with_tc!();
    let mut lab = routed();
    if !Path::new("/proc/net/ip_vs").exists() || Command::new("ipvsadm").arg("-v").output().is_err() {
        println!("skipped: this kernel has no IPVS, or there is no ipvsadm");
        return;
    }
    ip(&format!("-n {} link add kube-ipvs0 type dummy", lab.node.name()));
    lab.node.ip("addr add 10.96.0.10/32 dev kube-ipvs0");
    lab.node.sysctl("net.ipv4.vs.conntrack", "1");
    services(
        &mut lab,
        "ipvsadm -A -t VIP:80 -s rr; ipvsadm -a -t VIP:80 -r ENDPOINT:8080 -m
         nft add table ip kube-proxy
         nft add chain ip kube-proxy post '{ type nat hook postrouting priority srcnat; }'
         nft add rule ip kube-proxy post ip saddr ENDPOINT ip daddr ENDPOINT masquerade",
        "ipvs",
    );
}

#[test]
fn without_nft_nothing_starts_and_the_remedy_is_told() {
    require!("nft");
    only_with_tc!();
    let lab = routed();
    lab.write_state("");
    lab.write_config();
    let mut command = lab.node.command(
        "env",
        &[
            "PATH=/nowhere",
            env!("CARGO_BIN_EXE_bulkhead"),
            "run",
            "--config",
            lab.path("config.yaml").to_str().unwrap(),
        ],
    );
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("nft is not installed") && errors.contains("apt install nftables"), "{errors}");
}

/// Sends a raw IPv6 packet. Its arguments are source, destination, hop limit, next header, payload, and the checksum's offset in the
/// payload.
const RAW: &str = r#"
import socket, struct, sys
src, dst, hops, kind, payload, at = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), bytearray.fromhex(sys.argv[5]), int(sys.argv[6])
a, b = socket.inet_pton(socket.AF_INET6, src), socket.inet_pton(socket.AF_INET6, dst)
whole = a + b + struct.pack("!II", len(payload), kind) + payload + (b"\0" if len(payload) % 2 else b"")
total = sum(struct.unpack("!%dH" % (len(whole) // 2), whole))
while total > 0xffff: total = (total & 0xffff) + (total >> 16)
struct.pack_into("!H", payload, at, (~total & 0xffff) or 0xffff)
raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW)
raw.sendto(struct.pack("!IHBB", 6 << 28, len(payload), kind, hops) + a + b + payload, (dst, 0))
"#;

#[test]
fn nobody_speaks_for_the_node_or_its_pods_and_discovery_is_no_way_past_policy() {
    require!("nft", "python3");
    only_with_tc!();
    let mut lab = routed();
    lab.start(&only("a", 80));
    let outside = lab.outside.as_ref().unwrap();
    let (a, b) = (lab.get("a").v6.clone(), lab.get("b").v6.clone());
    let send = |from: &Netns, [src, dst]: [&str; 2], hops: &str, kind: &str, payload: &str, sum: &str| {
        let output = from.command("python3", &["-c", RAW, src, dst, hops, kind, payload, sum]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let udp = |from: &Netns, src: &str| send(from, [src, &b], "64", "17", "303900500009000078", "6");
    let receiver = within(of(&lab, "b"), || UdpSocket::bind(format!("[{b}]:80")).unwrap());
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || receiver.recv_from(&mut [0; 64]).is_ok();
    udp(of(&lab, "a"), &a);
    assert!(heard(), "a itself is allowed");
    for src in [&*a, "fd00:18::11"] {
        udp(outside, src);
        assert!(!heard(), "as {src}");
    }

    // Connection tracking ignores neighbour solicitations and multicast listener reports. From a distance they must be dropped.
    let untracked = || {
        let (_, status) = lab.ask(&["status", "-o", "json"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let rows = status["dropped"].as_array().unwrap().iter();
        rows.filter(|row| row["reason"] == "untracked").map(|row| row["packets"].as_u64().unwrap()).sum::<u64>()
    };
    let solicitation = format!("87000000{:08}{}", 0, "00".repeat(16));
    let before = untracked();
    send(outside, ["fd00:18::99", &b], "64", "58", &solicitation, "2");
    send(of(&lab, "b"), [&b, "fd00:18::99"], "64", "58", &solicitation, "2");
    send(outside, ["fd00:18::99", &b], "64", "58", "8f00000000000000", "2");
    eventually("all three are dropped", || untracked() == before + 3);
}
