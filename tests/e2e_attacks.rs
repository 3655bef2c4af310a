//! Attacks by pods: spoofed addresses, fragments, floods.

use crate::lab::netns::{Dialogue, Netns, Running, eventually};
use crate::lab::{Dump, Lab, policy};
use crate::require;

fn lab_of(pods: &[&str]) -> Lab {
    let mut lab = Lab::new();
    for name in pods {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab
}

/// Captures the packets that arrive at a pod.
fn watch(lab: &Lab, pod: &str, filter: &str) -> Dump {
    Dump::start(lab, pod, &format!("-Q in {filter}"))
}

/// Runs a Python program in a pod. Panics if it fails.
fn python(netns: &Netns, program: &str) {
    let output = netns.command("timeout", &["-k", "1", "60", "python3", "-c", program]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Changes a pod's MAC address and restores the routes that this removes.
fn change_mac(pod: &Netns, mac: &str) {
    pod.ip("link set eth0 down");
    pod.ip(&format!("link set eth0 address {mac}"));
    pod.ip("link set eth0 up");
    pod.ip("route replace 169.254.1.1 dev eth0 scope link");
    pod.ip("route replace default via 169.254.1.1 dev eth0");
}

#[test]
fn a_pod_cannot_speak_for_another_address_or_mac() {
    require!("ping", "tcpdump");
    let mut lab = lab_of(&["good", "bad", "victim"]);
    lab.start("");
    let (good, victim) = (lab.get("good").v4.clone(), lab.get("victim").v4.clone());
    assert!(lab.pings("good", &victim) && lab.pings("bad", &victim));
    let watch = watch(&lab, "victim", "ip or ip6");
    let bad = &lab.get("bad").netns;
    for (address, target) in [(good.as_str(), victim.as_str()), ("192.0.2.66", victim.as_str())] {
        bad.ip(&format!("addr add {address}/32 dev eth0"));
        assert!(!bad.output(&format!("ping -n -c 1 -W 1 -I {address} {target}")).status.success());
    }
    let v6 = lab.get("victim").v6.clone();
    bad.ip("addr add fd00:66::66/128 dev eth0 nodad");
    assert!(!bad.output(&format!("ping -6 -n -c 1 -W 1 -I fd00:66::66 {v6}")).status.success());
    // This MAC address differs from the one that the port has learned.
    let mac = bad.exec("cat /sys/class/net/eth0/address");
    change_mac(bad, "02:66:66:66:66:66");
    assert!(!lab.pings("bad", &victim));
    assert!(lab.pings("good", &victim), "others go on");
    // The allowed packet was captured, so a spoofed one would have been too.
    let seen = watch.seen("");
    assert!(seen.lines().count() == 1 && seen.contains(&format!("{good} > {victim}: ICMP echo request")), "{seen}");
    change_mac(bad, mac.trim());
    eventually("its own MAC is all that it lacked", || lab.pings("bad", &victim));
    let summary = lab.stop();
    assert!(summary["dropped"]["spoofed_source"].as_u64() >= Some(3), "{summary:#}");
}

#[test]
fn a_port_whose_pod_is_not_in_the_state_is_closed() {
    require!("ping", "tcpdump");
    let mut lab = lab_of(&["known", "unknown"]);
    lab.write_state("");
    lab.start("");
    let (known, unknown) = (lab.get("known").v4.clone(), lab.get("unknown").v4.clone());
    assert!(lab.pings("unknown", &known));
    let watch = watch(&lab, "known", "icmp");
    lab.hide("unknown", true);
    lab.apply("");
    assert!(!lab.pings("unknown", &known) && !lab.pings("known", &unknown));
    // The only packets are the vswitch's errors that the unknown pod is unreachable.
    let seen = watch.seen("");
    assert!(seen.contains("unreachable") && !seen.contains(&format!("{unknown} > {known}")), "{seen}");
    lab.hide("unknown", false);
    lab.apply("");
    assert!(lab.pings("unknown", &known));
    lab.stop();
}

#[test]
fn fragments_share_the_fate_of_the_first_one() {
    require!("ping", "tcpdump", "python3");
    let mut lab = lab_of(&["client", "server"]);
    let closed = policy("closed", "{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress]}");
    lab.start("");
    let (v4, v6) = (lab.get("server").v4.clone(), lab.get("server").v6.clone());
    let client = &lab.get("client").netns;
    client.exec(&format!("ping -n -c 1 -W 2 -s 4000 {v4}"));
    client.exec(&format!("ping -6 -n -c 1 -W 2 -s 4000 {v6}"));
    lab.apply(&closed);
    let watch = watch(&lab, "server", "icmp or icmp6 or udp");
    for line in [format!("ping -n -c 1 -W 1 -s 4000 {v4}"), format!("ping -6 -n -c 1 -W 1 -s 4000 {v6}")] {
        assert!(!client.output(&line).status.success());
    }
    // A later fragment without its first one, and a first fragment too short for a UDP header.
    let from = lab.get("client").v4.clone();
    let program = format!(
        "import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
def send(offset, body):
    head = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 20 + len(body), 7, offset, 64, 17, 0,
                       socket.inet_aton('{from}'), socket.inet_aton('{v4}'))
    s.sendto(head + body, ('{v4}', 0))
send(10, b'x' * 64)
send(0x2000, b'xxxxxxxx'[:4])
"
    );
    python(client, &program);
    lab.apply("");
    client.exec(&format!("ping -n -c 1 -W 2 {v4}"));
    // The allowed packet was captured, so the others would have been too.
    let seen = watch.seen("");
    let has_come = |from: &str, to: &str| seen.matches(&format!("{from} > {to}")).count();
    assert_eq!((has_come(&from, &v4), has_come(&lab.get("client").v6, &v6)), (1, 0), "{seen}");
    let summary = lab.stop();
    let dropped = &summary["dropped"];
    assert!(dropped["policy_denied"].as_u64() >= Some(6), "every fragment of two pings: {summary:#}");
    assert!(dropped["fragment_without_first"].as_u64() >= Some(1), "{summary:#}");
}

/// Opens a thousand connections, sends on each when the test asks, and prints whether all were answered.
const CONNECTIONS: &str = "
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
peers = [socket.create_connection((sys.argv[1], 7777), timeout=10) for _ in range(1000)]
print('connected', flush=True)
for line in sys.stdin:
    for peer in peers:
        peer.sendall(b'x')
    print('answered', sum(len(peer.recv(1)) for peer in peers), flush=True)
";

const ECHO: &str = "
import asyncio, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
async def serve(reader, writer):
    while data := await reader.read(100):
        writer.write(data)
async def main():
    server = await asyncio.start_server(serve, '0.0.0.0', 7777, backlog=1024)
    await server.serve_forever()
asyncio.run(main())
";

/// Sends SYNs with all source and destination ports to an address that does not answer.
const FLOOD: &str = "
import os, socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
src, dst = map(socket.inet_aton, sys.argv[1:3])
def total(data):
    value = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while value >> 16:
        value = (value & 0xffff) + (value >> 16)
    return ~value & 0xffff
for number in range(int(sys.argv[3])):
    sport, dport = 1024 + number % 60000, 1 + number // 7 % 60000
    tcp = struct.pack('!HHIIBBHHH', sport, dport, number, 0, 0x50, 2, 1024, 0, 0)
    check = total(src + dst + struct.pack('!HH', 6, len(tcp)) + tcp)
    tcp = tcp[:16] + struct.pack('!H', check) + tcp[18:]
    head = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 40, number & 0xffff, 0, 64, 6, 0, src, dst)
    s.sendto(head + tcp, (sys.argv[2], 0))
";

#[test]
fn a_flood_of_one_pod_does_not_end_the_connections_of_another() {
    require!("python3", "ss", "nc");
    let mut lab = lab_of(&["client", "server", "attacker", "silent"]);
    // Far fewer sessions than the flood tries to create.
    lab.more_config = "sessions: {capacity: 8000}\n".to_owned();
    lab.start("");
    lab.get("silent").netns.shell("ip route add blackhole 10.244.0.0/16 || true; ip route del default");
    let (server, silent) = (lab.get("server").v4.clone(), lab.get("silent").v4.clone());
    let mut command = lab.get("server").netns.command("python3", &["-c", ECHO]);
    let _echo = Running::start(&mut command);
    eventually("the echo server listens", || lab.get("server").netns.exec("ss -Htln").contains(":7777 "));
    let mut connections = Dialogue::start(&lab.get("client").netns, CONNECTIONS, &server);
    assert_eq!(connections.hear(), "connected");
    assert_eq!(connections.say("before"), "answered 1000");
    let attacker = lab.get("attacker");
    let words = ["-c", FLOOD, &attacker.v4, &silent, "50000"];
    let flood = attacker.netns.command("python3", &words).output().unwrap();
    assert!(flood.status.success(), "{}", String::from_utf8_lossy(&flood.stderr));
    assert_eq!(connections.say("after"), "answered 1000", "all connections live on");
    assert!(lab.connects("client", &server, 7777), "and new ones are made");
    drop(connections);
    let summary = lab.stop();
    assert!(summary["workers"][0]["sessions"].as_u64().is_some_and(|count| count <= 8000), "{summary:#}");
    let sessions = &summary["sessions"];
    let turned_away = sessions["recycled"].as_u64().unwrap() + sessions["refused"].as_u64().unwrap();
    assert!(turned_away > 10_000, "the flood was more than the table holds: {summary:#}");
}
