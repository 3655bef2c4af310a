//! Drop reasons of hand-made packets on a live node: `monitor`, `trace`, `why`, `status` and the metrics report each by the same name. The
//! dataplane's test of every reason covers the other twelve by stepping workers: internal faults (`unjudged`, `unknown_port`,
//! `link_truncated`, `no_route`, `table_missing`), and full tables, shares, queues or workers.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use bulkhead_dataplane::probe::{Probe, ProbeKind};
use bulkhead_dataplane::wire::{icmpv4, ipv4, ipv6, tcp};
use serde_json::Value;

use crate::e2e_monitor::Watcher;
use crate::lab::Lab;
use crate::lab::lasting::echo;
use crate::lab::netns::eventually;
use crate::lab::station::{Station, mac_of};
use crate::lab::watched::{metrics, only_redis, status_drops};
use crate::require;

const OUTSIDE: &str = "172.18.0.100";
/// A Service without endpoints. `NOBODYS` is an unassigned address of the service CIDR.
const EMPTY: &str = "10.96.0.2";
const NOBODYS: &str = "10.97.0.1";
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// Frames, and the drop reason that they must get.
struct Case {
    reason: &'static str,
    frames: Vec<Vec<u8>>,
    /// The arguments of `why`: from, to, port. The target is pod c if the packet does not name one. `None` if neither end is a pod, which
    /// `why` refuses.
    asked: Option<[String; 3]>,
}

/// A sender of hand-made frames.
struct Sender {
    /// The MAC addresses of the vswitch's port and of the sender.
    link: [u8; 12],
    name: &'static str,
}

impl Sender {
    fn frame(&self, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        [&self.link[..], &ethertype.to_be_bytes(), payload].concat()
    }

    fn ip(&self, packet: &[u8]) -> Vec<u8> {
        self.frame(if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 }, packet)
    }

    fn case(&self, reason: &'static str, frames: Vec<Vec<u8>>) -> Case {
        Case { reason, frames, asked: Some([self.name, "default/c", "80/TCP"].map(str::to_owned)) }
    }

    /// A packet that names its target.
    fn to(&self, reason: &'static str, packet: &[u8], to: &str, port: &str) -> Case {
        Case { reason, frames: vec![self.ip(packet)], asked: Some([self.name, to, port].map(str::to_owned)) }
    }

    fn one(&self, reason: &'static str, packet: &[u8]) -> Case {
        self.case(reason, vec![self.ip(packet)])
    }
}

fn probe(kind: ProbeKind, src: &str, dst: &str, dport: u16) -> Vec<u8> {
    Probe { src: src.parse().unwrap(), dst: dst.parse().unwrap(), kind, sport: 40_000, dport }.request().unwrap()
}

fn udp(src: &str, dst: &str, dport: u16) -> Vec<u8> {
    probe(ProbeKind::Udp, src, dst, dport)
}

fn v4(src: &str, dst: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let [source, destination] = [src, dst].map(|address| address.parse::<Ipv4Addr>().unwrap());
    let mut packet = vec![0; ipv4::MIN_HEADER_LEN + payload.len()];
    let header = ipv4::Repr { source, destination, protocol, hop_limit: 64, tos: 0, payload_len: payload.len() };
    header.emit(&mut packet).copy_from_slice(payload);
    packet
}

/// The packet with another fragment word (RFC 791) and hop limit.
fn changed(mut packet: Vec<u8>, fragment: u16, hop_limit: u8) -> Vec<u8> {
    packet[8] = hop_limit;
    let mut header = ipv4::Packet::new_checked(&mut packet).unwrap();
    header.set_fragment_word(fragment);
    header.fill_checksum();
    packet
}

/// A UDP datagram in fragments of this size.
fn fragments(src: &str, dst: &str, id: u16, len: usize, size: usize) -> Vec<Vec<u8>> {
    let length = u16::try_from(8 + len).unwrap().to_be_bytes();
    let datagram = [&[0x9c, 0x40, 0, 80, length[0], length[1], 0, 0][..], &vec![7; len]].concat();
    let last = datagram.len().div_ceil(size) - 1;
    let part = |(at, part): (usize, &[u8])| {
        let more = if at < last { 0x2000 } else { 0 };
        let mut packet = v4(src, dst, UDP, part);
        packet[4..6].copy_from_slice(&id.to_be_bytes());
        changed(packet, u16::try_from(at * size / 8).unwrap() | more, 64)
    };
    datagram.chunks(size).enumerate().map(part).collect()
}

fn v6(src: &str, dst: &str, next_header: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let [source, destination] = [src, dst].map(|address| address.parse::<Ipv6Addr>().unwrap());
    let mut packet = vec![0; ipv6::HEADER_LEN + payload.len()];
    let header = ipv6::Repr { source, destination, next_header, hop_limit, payload_len: payload.len() };
    header.emit(&mut packet).copy_from_slice(payload);
    packet
}

fn segment(src: &str, dst: &str, flags: u8) -> Vec<u8> {
    let [source, destination] = [src, dst].map(|address| address.parse::<IpAddr>().unwrap());
    let header =
        tcp::Repr { source_port: 40_000, destination_port: 80, sequence: 1, acknowledgement: 2, flags, window: 60_000 };
    let mut bytes = vec![0; tcp::MIN_HEADER_LEN];
    header.emit(source, destination, &mut bytes);
    v4(src, dst, 6, &bytes)
}

/// UDP over IPv6 behind these extension headers of eight bytes each.
fn behind(src: &str, dst: &str, headers: &[u8]) -> Vec<u8> {
    let next = headers.iter().copied().skip(1).chain([UDP]);
    let chain: Vec<u8> = next.flat_map(|next| [next, 0, 0, 0, 1, 2, 0, 0]).collect();
    v6(src, dst, headers[0], 64, &[&chain[..], &[0x9c, 0x40, 0, 80, 0, 8, 0, 0]].concat())
}

fn arp(sender: &Sender, address: &str, target: &str) -> Vec<u8> {
    let octets = |text: &str| text.parse::<Ipv4Addr>().unwrap().octets();
    let own = &sender.link[6..];
    let message = [&[0, 1, 8, 0, 6, 4, 0, 1][..], own, &octets(address), &[0; 6], &octets(target)].concat();
    sender.frame(0x0806, &message)
}

fn solicitation(src: &str, target: &str, hop_limit: u8) -> Vec<u8> {
    let target = target.parse::<Ipv6Addr>().unwrap().octets();
    v6(src, "ff02::1:ff00:2", ICMPV6, hop_limit, &[&[135, 0, 0, 0, 0, 0, 0, 0][..], &target].concat())
}

/// Malformed packets from pod a.
fn malformed(lab: &Lab, a: &Sender) -> Vec<Case> {
    let (own, c) = (&lab.get("a"), &lab.get("c"));
    let (a4, c4, a6, c6) = (&*own.v4, &*c.v4, &*own.v6, &*c.v6);
    let to_c = |packet: Vec<u8>, reason| a.to(reason, &packet, "default/c", "80/UDP");
    let mut jumbogram = behind(a6, c6, &[0]);
    jumbogram[4..6].fill(0);
    let mut contradicting = segment(a4, c4, tcp::flags::SYN);
    contradicting[32] = 0x40;
    let mut damaged = segment(a4, c4, tcp::flags::SYN);
    damaged[37] ^= 1;
    let short_header = [&[0x43][..], &udp(a4, c4, 80)[1..]].concat();
    let overlapping = {
        let parts = fragments(a4, c4, 2, 56, 16);
        vec![a.ip(&parts[0]), a.ip(&changed(parts[1].clone(), 0x2001, 64))]
    };
    vec![
        a.case("vlan_tagged", vec![a.frame(0x8100, &[&[0, 5, 8, 0][..], &udp(a4, c4, 80)].concat())]),
        a.case("unknown_ethertype", vec![a.frame(0x1234, &[0; 46])]),
        a.case("arp_malformed", vec![arp(a, a4, c4)[..41].to_vec()]),
        a.case("arp_spoofed", vec![arp(a, "10.9.9.9", c4)]),
        a.one("nd_malformed", &solicitation(a6, c6, 254)),
        a.one("nd_spoofed", &solicitation(c6, c6, 255)),
        a.one(
            "nd_router_message_from_pod",
            &v6("fe80::a", "ff02::1", ICMPV6, 255, &[134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]),
        ),
        a.one("ipv4_malformed", &short_header),
        a.one("ipv6_malformed", &[0x60; 39]),
        a.one("ipv6_extension_limit", &behind(a6, c6, &[60; 9])),
        a.one("ipv6_jumbogram", &jumbogram),
        a.one("source_routed", &behind(a6, c6, &[43])),
        a.one("l4_truncated", &v4(a4, c4, 6, &[0; 10])),
        a.to("l4_malformed", &contradicting, "default/c", "80/TCP"),
        a.one("fragment_tiny", &changed(v4(a4, c4, 6, &[0; 8]), 0x2000, 64)),
        a.to("bad_checksum", &damaged, "default/c", "80/TCP"),
        a.one("fragment_malformed", &changed(v4(a4, c4, UDP, &[7; 16]), 0x1fff, 64)),
        a.case("fragment_overlap", overlapping),
        to_c(fragments(a4, c4, 3, 32, 16)[1].clone(), "fragment_without_first"),
        a.case("fragment_limit", fragments(a4, c4, 4, 8 * 70, 8).iter().map(|part| a.ip(part)).collect()),
    ]
}

/// Well-formed packets from pod a that must be dropped.
fn unwanted(lab: &Lab, a: &Sender) -> Vec<Case> {
    use ProbeKind::{IcmpEcho, Tcp};
    let v4_of = |pod: &str| lab.get(pod).v4.clone();
    let (a4, b4, c4) = (&*v4_of("a"), &*v4_of("b"), &*v4_of("c"));
    let request = Probe { src: c4.parse().unwrap(), dst: a4.parse().unwrap(), kind: IcmpEcho, sport: 9, dport: 0 };
    let quoted = segment(c4, a4, tcp::flags::ACK);
    let error = |kind, code, rest| {
        let mut message = [&[0; icmpv4::HEADER_LEN][..], &quoted[..28]].concat();
        icmpv4::Repr { kind, code, rest }.emit(&mut message);
        v4(a4, c4, 1, &message)
    };
    let long = v4(a4, c4, UDP, &[&[0x9c, 0x40, 0, 80, 0x05, 0x78, 0, 0][..], &[7; 1392]].concat());
    vec![
        a.to("martian_destination", &udp(a4, "127.0.0.1", 80), "127.0.0.1", "80/UDP"),
        a.to("multicast", &udp(a4, "224.0.0.5", 80), "224.0.0.5", "80/UDP"),
        a.one("spoofed_source", &udp("10.9.9.9", c4, 80)),
        a.one("icmp_redirect", &error(5, 1, 0x0a00_0009)),
        a.one("icmp_error_without_session", &error(3, 4, 1500)),
        a.to("ttl_expired", &changed(udp(a4, c4, 80), 0, 1), "default/c", "80/UDP"),
        a.to("policy_denied", &udp(a4, b4, 81), "default/b", "81/UDP"),
        a.to("tcp_without_session", &segment(a4, c4, tcp::flags::ACK), "default/c", "80/TCP"),
        a.one("reply_without_session", &request.reply().unwrap()),
        a.to("packet_too_big", &changed(long, 0x4000, 64), "default/c", "80/UDP"),
        a.to("no_endpoint", &probe(Tcp, a4, EMPTY, 8080), EMPTY, "8080/TCP"),
        a.to("unknown_service_port", &probe(Tcp, a4, EMPTY, 9), EMPTY, "9/TCP"),
        a.to("unknown_service_address", &probe(Tcp, a4, NOBODYS, 9), NOBODYS, "9/TCP"),
        a.to("no_such_pod", &udp(a4, "10.244.1.99", 80), "10.244.1.99", "80/UDP"),
        a.to("no_neighbour", &udp(a4, "172.18.0.77", 80), "172.18.0.77", "80/UDP"),
        Case {
            frames: vec![a.ip(&udp(a4, "172.18.0.78", 80)); 40],
            ..a.to("neighbour_queue_full", &[0x45], "172.18.0.78", "80/UDP")
        },
        a.case("neighbour_rate", vec![arp(a, a4, c4); 400]),
    ]
}

/// Packets that arrive on the uplink.
fn outside(lab: &Lab, outside: &Sender) -> Vec<Case> {
    let a4 = &*lab.get("a").v4;
    let other = Sender { link: [2, 9, 9, 9, 9, 9, 2, 0, 0, 0, 0, 1], name: OUTSIDE };
    // `why` is asked about the packet's source address.
    let from = |name| Sender { link: outside.link, name };
    vec![
        from("127.0.0.1").to("martian_source", &udp("127.0.0.1", a4, 80), a4, "80/UDP"),
        from("169.254.1.2").to("link_local_source", &udp("169.254.1.2", a4, 80), a4, "80/UDP"),
        Case { asked: None, ..outside.one("back_to_sender", &udp("9.9.9.9", "8.8.8.8", 80)) },
        other.to("other_host", &udp(OUTSIDE, a4, 80), a4, "80/UDP"),
    ]
}

/// The drop reasons that `why` finds in the last three seconds.
fn found(lab: &Lab, [from, to, port]: &[String; 3]) -> BTreeSet<String> {
    let words = ["why", "--from", from, "--to", to, "--port", port, "--at", "now", "--around", "3s", "-o", "json"];
    let (_, text) = lab.ask(&words);
    let told: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{from} {to} {port}: {text}"));
    let rows = ["verdicts", "unclear"].into_iter().flat_map(|list| told["seen"][list].as_array().unwrap());
    rows.filter_map(|row| row["reason"].as_str().map(str::to_owned)).collect()
}

/// Pod a and the machine outside. Their kernels answer no packets.
fn senders(lab: &Lab) -> (Sender, Sender, [Station; 2]) {
    let (a, machine) = (lab.get("a"), lab.outside.as_ref().unwrap());
    let sender = |name, own: [u8; 6], port: &str| {
        let link = [mac_of(&lab.node, port), own].concat().try_into().unwrap();
        Sender { link, name }
    };
    let of_a = sender("default/a", mac_of(&a.netns, "eth0"), &a.interface);
    let of_outside = sender(OUTSIDE, mac_of(machine, "eth0"), "ul0");
    (of_a, of_outside, [&a.netns, machine].map(|netns| Station::open_alone(netns, "eth0")))
}

/// Sends the frames of each case from its station, and checks that every command reports its drop reason.
fn each_is_found(mut lab: Lab, mut stations: [Station; 2], cases: &[(usize, Case)]) {
    let monitor = Watcher::start(&lab, "monitor", &["monitor", "-o", "json"]);
    let trace = Watcher::start(&lab, "trace", &["trace", "--dropped-only", "-o", "json"]);
    for (station, Case { reason, frames, asked }) in cases {
        let (last, first) = frames.split_last().unwrap();
        if !first.is_empty() {
            stations[*station].send(first);
            // Waits until the first frames' answers have passed.
            std::thread::sleep(Duration::from_millis(50));
        }
        stations[*station].send(std::slice::from_ref(last));
        if let Some(asked) = asked {
            eventually(&format!("why finds {reason}"), || found(&lab, asked).contains(*reason));
        }
        // Spaces the cases out: `why` shows only its first twenty rows.
        std::thread::sleep(Duration::from_millis(300));
    }
    let reasons: BTreeSet<&str> = cases.iter().map(|(_, case)| case.reason).collect();
    let status = status_drops(&lab);
    let missing =
        |found: &dyn Fn(&str) -> bool| reasons.iter().copied().filter(|reason| !found(reason)).collect::<Vec<_>>();
    assert_eq!(missing(&|reason| status.contains_key(reason)), [""; 0]);
    eventually("monitor and trace tell all", || {
        let (monitored, traced) = (monitor.lines(&lab), trace.lines(&lab));
        missing(&|reason| monitored.iter().any(|line| line["flow"]["bulkhead"]["reason"] == reason)).is_empty()
            && missing(&|reason| traced.iter().any(|line| line["packet"]["reason"] == reason)).is_empty()
    });
    let metrics = metrics(&lab);
    assert_eq!(missing(&|reason| metrics.contains(&format!("reason=\"{reason}\""))), [""; 0]);
    lab.stop();
}

/// Cases that need Services which refuse, masquerading, or an open session.
fn configured(lab: &Lab, a: &Sender, outside: &Sender) -> Vec<(usize, Case)> {
    let [a4, c4] = ["a", "c"].map(|pod| lab.get(pod).v4.clone());
    let after = |opening: Vec<u8>, case: Case| Case { frames: [vec![a.ip(&opening)], case.frames].concat(), ..case };
    let from_outside = |reason, to| outside.to(reason, &probe(ProbeKind::Tcp, OUTSIDE, to, 80), to, "80/TCP");
    let mut reset = segment(&a4, &c4, tcp::flags::RST);
    // The sequence number is beyond the receiver's window.
    let header = tcp::Repr {
        source_port: 40_000,
        destination_port: 80,
        sequence: 1 << 30,
        acknowledgement: 0,
        flags: tcp::flags::RST,
        window: 0,
    };
    let [source, destination] = [&a4, &c4].map(|address| address.parse().unwrap());
    header.emit(source, destination, &mut reset[ipv4::MIN_HEADER_LEN..]);
    let reset = a.to("tcp_out_of_window", &reset, "default/c", "80/TCP");
    let direct = a.to("session_clash", &probe(ProbeKind::Tcp, &a4, &c4, 81), "default/c", "81/TCP");
    vec![
        (1, from_outside("service_source_range", RANGED)),
        (1, from_outside("no_local_endpoint", ELSEWHERE)),
        // UDP-Lite (RFC 3828) has ports, but masquerading does not support it.
        (0, a.one("not_masqueraded", &v4(&a4, OUTSIDE, 136, &[0; 16]))),
        (0, after(segment(&a4, &c4, tcp::flags::SYN), reset)),
        (0, after(probe(ProbeKind::Tcp, &a4, SERVED, 81), direct)),
    ]
}

/// Services of type LoadBalancer: this one has source ranges, and that of `ELSEWHERE` has its endpoint on another node.
const RANGED: &str = "192.0.2.1";
const ELSEWHERE: &str = "192.0.2.2";
/// The cluster IP of a Service with pod c as its endpoint.
const SERVED: &str = "10.96.0.3";

fn service(name: &str, spec: &str, status: &str, (endpoint, node): (&str, &str)) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\nspec: {{{spec}}}\n\
         status: {{loadBalancer: {{ingress: [{status}]}}}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}-1, namespace: default, \
         labels: {{kubernetes.io/service-name: {name}}}}}\naddressType: IPv4\n\
         ports: [{{name: '', port: 81, protocol: TCP}}]\n\
         endpoints: [{{addresses: [{endpoint}], nodeName: {node}, conditions: {{ready: true}}}}]\n"
    )
}

#[test]
fn a_packet_that_a_service_a_masquerade_or_an_open_session_drops_is_found_in_the_same_word() {
    require!("python3", "curl");
    let mut lab = Lab::new();
    for name in ["a", "b", "c"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab.outside();
    lab.more_config.push_str(
        "admin: {socket: admin.sock, listen: '127.0.0.1:9965'}\nservices: {service_cidrs: [10.96.0.0/12]}\n\
         masquerade: {}\nsessions: {tcp_window: strict}\n",
    );
    let c4 = lab.get("c").v4.clone();
    let balancer = |address: &str, cluster: &str, more: &str| {
        (
            format!("type: LoadBalancer, clusterIP: {cluster}, clusterIPs: [{cluster}], ports: [{{port: 80}}], {more}"),
            format!("{{ip: {address}}}"),
        )
    };
    let (ranged, ranged_status) = balancer(RANGED, "10.96.0.4", "loadBalancerSourceRanges: [9.0.0.0/8]");
    let (elsewhere, elsewhere_status) = balancer(ELSEWHERE, "10.96.0.5", "externalTrafficPolicy: Local");
    let served = format!("clusterIP: {SERVED}, clusterIPs: [{SERVED}], ports: [{{port: 81}}]");
    lab.more_state.push_str(&service("ranged", &ranged, &ranged_status, (&c4, "node-1")));
    lab.more_state.push_str(&service("elsewhere", &elsewhere, &elsewhere_status, ("10.244.2.9", "node-2")));
    lab.more_state.push_str(&service("served", &served, "", (&c4, "node-1")));
    lab.start(&only_redis());
    echo(lab.get("c"), 80);
    echo(lab.get("c"), 81);
    let (of_a, of_outside, stations) = senders(&lab);
    let cases = configured(&lab, &of_a, &of_outside);
    each_is_found(lab, stations, &cases);
}

#[test]
fn a_packet_that_is_dropped_is_found_by_monitor_trace_why_status_and_metrics_in_the_same_word() {
    require!("python3", "curl");
    let mut lab = Lab::new();
    for name in ["a", "b", "c"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab.outside();
    let c = lab.get("c");
    c.netns.ip("link set eth0 mtu 1300");
    lab.node.ip(&format!("link set {} mtu 1300", c.interface));
    lab.more_config.push_str("admin: {socket: admin.sock, listen: '127.0.0.1:9965'}\n");
    lab.more_config.push_str("services: {service_cidrs: [10.96.0.0/12]}\n");
    lab.more_state.push_str(&format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: empty, namespace: default}}\n\
         spec: {{clusterIP: {EMPTY}, clusterIPs: [{EMPTY}], selector: {{app: nobody}}, ports: [{{port: 8080}}]}}\n"
    ));
    lab.start(&only_redis());
    let (of_a, of_outside, stations) = senders(&lab);
    let of_pod = malformed(&lab, &of_a).into_iter().chain(unwanted(&lab, &of_a)).map(|case| (0, case));
    let cases = outside(&lab, &of_outside).into_iter().map(|case| (1, case)).chain(of_pod).collect::<Vec<_>>();
    each_is_found(lab, stations, &cases);
}
