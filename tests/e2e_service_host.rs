//! The node's own processes as clients of Services. The node's card stays with its kernel, without kube-proxy and without an uplink port.
//! ```text
//!   [ pod client ]--[ vswitch  bh-host ]~~[ bh-node   node's kernel   card ]--[ another node, with a pod's address ]
//!   [ pod web    ]--[                  ]    10.96.0.0/12 via 169.254.1.1 dev bh-node src 172.18.0.11
//! ```

use crate::require;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;

use crate::lab::lasting::{Lasting, PATIENCE, settle};
use crate::lab::netns::{Netns, eventually};
use crate::lab::{Lab, policy, veth};
use bulkhead_dataplane::io::in_namespace;

/// The addresses of the node's card.
const NODE: [&str; 2] = ["172.18.0.11", "fd00:18::11"];
/// The source of translated connections whose source must change: the first addresses of the node's podCIDRs.
const SOURCE: [&str; 2] = ["10.244.1.1", "fd00:244:1::1"];
/// The addresses of a pod on the other node.
const FAR: [&str; 2] = ["10.244.2.2", "fd00:244:2::2"];
/// The API server's Service, whose endpoint is on the node's own network. `LOCAL` has an endpoint on this node, `REMOTE` one on the other.
const API: [&str; 2] = ["10.96.0.1", "fd96::1"];
const LOCAL: [&str; 2] = ["10.96.0.20", "fd96::20"];
const REMOTE: [&str; 2] = ["10.96.0.30", "fd96::30"];
/// The servers' port, and the port of their Services.
const PORTS: [u16; 2] = [8080, 80];
/// The echo servers' port, and the port of their Services.
const ECHO: [u16; 2] = [7000, 7];

const BLOCKS: &str = "services: {service_cidrs: [10.96.0.0/12, 'fd96::/64']}\n";

fn within<T: Send>(netns: &Netns, act: impl FnOnce() -> T + Send) -> T {
    in_namespace(&Path::new("/run/netns").join(netns.name()), act).unwrap()
}

fn socket(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// A node with a client, a server and a card, and behind the card a machine with a pod's address.
fn node() -> (Lasting, Netns) {
    let mut lab = Lab::new();
    for name in ["client", "web"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    let (node, other) = (&lab.node, Netns::new("other"));
    veth(&other, "eth0", node, "card", 1500);
    other.sysctl("net.ipv6.conf.eth0.disable_ipv6", "0");
    for (netns, device, addresses) in
        [(&other, "eth0", ["172.18.0.12/16", "fd00:18::12/64"]), (node, "card", ["172.18.0.11/16", "fd00:18::11/64"])]
    {
        addresses.iter().for_each(|address| drop(netns.ip(&format!("addr add {address} dev {device} nodad"))));
    }
    other.ip(&format!("addr add {}/32 dev lo", FAR[0]));
    other.ip(&format!("addr add {}/128 dev lo nodad", FAR[1]));
    for (netns, number, via) in [(&other, 1, 11), (node, 2, 12)] {
        netns.ip(&format!("route add 10.244.{number}.0/24 via 172.18.0.{via}"));
        netns.ip(&format!("-6 route add fd00:244:{number}::/64 via fd00:18::{via}"));
    }
    node.sysctl("net.ipv4.ip_forward", "1");
    node.sysctl("net.ipv6.conf.all.forwarding", "1");
    // Strict reverse path filtering: the kernel drops a packet unless its answer would leave by the same interface.
    node.sysctl("net.ipv4.conf.all.rp_filter", "1");
    lab.more_state = "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-2}\n\
        spec: {podCIDRs: [10.244.2.0/24, 'fd00:244:2::/64']}\n\
        status: {addresses: [{type: InternalIP, address: 172.18.0.12}, {type: InternalIP, address: 'fd00:18::12'}]}\n"
        .to_owned();
    lab.more_ports = "  - {kind: host, interface: bh-host, peer: bh-node, create: {mtu: 1400}}\n".to_owned();
    lab.more_config.push_str("routes: [{prefix: 0.0.0.0/0, port: host}, {prefix: '::/0', port: host}]\n");
    (Lasting::of(lab), other)
}

/// A dual-stack Service with two ports over TCP and UDP, and one endpoint.
fn service(name: &str, addresses: [&str; 2], endpoint: [&str; 2], node: &str) -> String {
    let [v4, v6] = addresses;
    let (mut ports, mut targets) = (Vec::new(), Vec::new());
    for (what, [target, port]) in [("own", PORTS), ("echo", ECHO)] {
        for protocol in ["TCP", "UDP"] {
            let called = format!("name: {what}-{}", protocol.to_lowercase());
            ports.push(format!("{{{called}, port: {port}, protocol: {protocol}}}"));
            targets.push(format!("{{{called}, port: {target}, protocol: {protocol}}}"));
        }
    }
    let mut text = format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\nspec: {{clusterIP: {v4}, \
         clusterIPs: [{v4}, '{v6}'], ipFamilies: [IPv4, IPv6], ports: [{}]}}\n",
        ports.join(", ")
    );
    for (family, address) in ["IPv4", "IPv6"].into_iter().zip(endpoint) {
        text.push_str(&format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}-{}, namespace: default, \
             labels: {{kubernetes.io/service-name: {name}}}}}\naddressType: {family}\nports: [{}]\n\
             endpoints: [{{addresses: ['{address}'], nodeName: {node}, conditions: {{ready: true}}}}]\n",
            family.to_lowercase(),
            targets.join(", ")
        ));
    }
    text
}

fn services(lab: &Lab) -> String {
    let web = lab.get("web");
    let all = [
        service("api", API, NODE, "node-1"),
        service("local", LOCAL, [&web.v4, &web.v6], "node-1"),
        service("remote", REMOTE, FAR, "node-2"),
    ];
    all.concat()
}

/// At each endpoint, starts servers over TCP and UDP that send the client's address, and an echo server.
fn serve(lab: &Lab, other: &Netns) {
    let web = lab.get("web");
    for (netns, addresses) in [(&web.netns, [&*web.v4, &*web.v6]), (&lab.node, NODE), (other, FAR)] {
        for address in addresses {
            let (own, echo) = (socket(address, PORTS[0]), socket(address, ECHO[0]));
            let bind =
                || (TcpListener::bind(own).unwrap(), UdpSocket::bind(own).unwrap(), TcpListener::bind(echo).unwrap());
            let (tcp, udp, echo) = within(netns, bind);
            std::thread::spawn(move || {
                for mut stream in tcp.incoming().map_while(Result::ok) {
                    let peer = stream.peer_addr().unwrap().ip().to_string();
                    let _ = std::io::Write::write_all(&mut stream, peer.as_bytes());
                }
            });
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok((_, peer)) = udp.recv_from(&mut bytes) {
                    let _ = udp.send_to(peer.ip().to_string().as_bytes(), peer);
                }
            });
            std::thread::spawn(move || {
                for mut stream in echo.incoming().map_while(Result::ok) {
                    std::thread::spawn(move || {
                        let mut from = stream.try_clone().unwrap();
                        let _ = std::io::copy(&mut from, &mut stream);
                    });
                }
            });
        }
    }
}

fn connect(netns: &Netns, to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = within(netns, || TcpStream::connect_timeout(&to, PATIENCE))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// The client address that the server sees over TCP. `None` if it does not answer.
fn seen_by_tcp(netns: &Netns, address: &str) -> Option<IpAddr> {
    let mut text = String::new();
    connect(netns, socket(address, PORTS[1])).ok()?.read_to_string(&mut text).ok()?;
    text.parse().ok()
}

/// The client address that the server sees over UDP. `None` if it does not answer.
fn seen_by_udp(netns: &Netns, address: &str) -> Option<IpAddr> {
    let to = socket(address, PORTS[1]);
    let any = if to.is_ipv4() { "0.0.0.0" } else { "::" };
    let client = within(netns, || UdpSocket::bind(socket(any, 0))).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    // A connected socket accepts answers only from the Service's address.
    client.connect(to).ok()?;
    client.send(b"who am I").ok()?;
    let mut bytes = [0; 64];
    let length = client.recv(&mut bytes).ok()?;
    std::str::from_utf8(&bytes[..length]).ok()?.parse().ok()
}

#[track_caller]
fn assert_seen(lab: &Lab, netns: &Netns, address: &str, source: &str) {
    let expected = Some(source.parse::<IpAddr>().unwrap());
    assert_eq!(seen_by_tcp(netns, address), expected, "TCP to {address}\n{}", lab.log());
    assert_eq!(seen_by_udp(netns, address), expected, "UDP to {address}\n{}", lab.log());
}

/// The vswitch's routes by the host port, in both families.
fn routes(lab: &Lab) -> String {
    ["-4", "-6"].map(|family| lab.node.ip(&format!("{family} route show proto 98"))).concat()
}

#[test]
fn processes_of_the_node_reach_services_with_endpoints_here_there_and_on_the_node_itself() {
    require!("ip");
    only_with_tc!();
    let (mut lasting, other) = node();
    let lab = &mut lasting.lab;
    lab.more_config.push_str(BLOCKS);
    let all = services(lab);
    lab.start(&all);
    serve(lab, &other);
    let client = lab.get("client");
    for family in [0, 1] {
        assert_seen(lab, &lab.node, LOCAL[family], NODE[family]);
        // The kernel would drop a packet that returns to the node with the node's own source address.
        assert_seen(lab, &lab.node, REMOTE[family], SOURCE[family]);
        assert_seen(lab, &lab.node, API[family], SOURCE[family]);
        let own = [&client.v4, &client.v6][family];
        for address in [LOCAL, REMOTE, API] {
            assert_seen(lab, &client.netns, address[family], own);
        }
    }
    // Established connections continue. The kernel forwards them unless they leave by the port where they arrived.
    let forwarded = |lab: &mut Lab| lab.summary()["flow_cache"]["forwarded"].as_u64().unwrap();
    for (is_pod, addresses) in
        [(true, LOCAL), (true, REMOTE), (true, API), (false, LOCAL), (false, REMOTE), (false, API)]
    {
        for address in addresses {
            let before = forwarded(lab);
            let from = if is_pod { &lab.get("client").netns } else { &lab.node };
            settle(&mut connect(from, socket(address, ECHO[1])).unwrap());
            let count = forwarded(lab) - before;
            assert!(
                count > 100 || !(is_pod || addresses == LOCAL),
                "{count} of hundred rounds to {address}, pod: {is_pod}"
            );
        }
    }
    lab.stop();
}

#[test]
fn policy_lets_the_node_reach_its_own_pods_through_a_service_and_holds_for_everybody_else() {
    require!("ip");
    only_with_tc!();
    let (mut lasting, other) = node();
    let lab = &mut lasting.lab;
    lab.more_config.push_str(BLOCKS);
    let closed = policy("closed", "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}");
    let only = "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: \
                10.96.0.0/12}}, {ipBlock: {cidr: 172.18.0.11/32}}]}]}";
    lab.start(&format!("{}{closed}{}", services(lab), policy("only", only)));
    serve(lab, &other);
    let client = &lab.get("client").netns;
    for family in [0, 1] {
        assert_seen(lab, &lab.node, LOCAL[family], NODE[family]);
        assert_eq!(seen_by_tcp(client, LOCAL[family]), None);
        // NetworkPolicy does not apply to a pod's own node, which is the endpoint here.
        assert_eq!(seen_by_tcp(client, API[family]).map(|seen| seen.to_string()).as_deref(), {
            let client = lab.get("client");
            Some(if family == 0 { &*client.v4 } else { &*client.v6 })
        });
        assert_eq!(seen_by_tcp(client, REMOTE[family]), None, "no rule knows a virtual address");
    }
    // A packet from another machine with the node's own translated source address must be dropped.
    other.ip(&format!("addr add {}/32 dev lo", SOURCE[0]));
    lab.node.sysctl("net.ipv4.conf.all.rp_filter", "0");
    lab.node.sysctl("net.ipv4.conf.card.rp_filter", "0");
    let forged = within(&other, || UdpSocket::bind(socket(SOURCE[0], 0))).unwrap();
    forged.send_to(b"let me in", socket(&lab.get("web").v4, PORTS[0])).unwrap();
    let spoofed = |lab: &mut Lab| lab.summary().pointer("/dropped/spoofed_source").and_then(serde_json::Value::as_u64);
    eventually("the packet is refused as spoofed", || spoofed(lab) > Some(0));
    lab.stop();
}

#[test]
fn routes_to_services_follow_the_state_and_the_settings_and_leave_those_of_others_alone() {
    require!("ip");
    only_with_tc!();
    let (mut lasting, other) = node();
    let lab = &mut lasting.lab;
    lab.node.ip("route add 10.96.0.30/32 via 172.18.0.12");
    lab.node.ip("route add 10.96.7.0/24 via 172.18.0.12");
    let all = services(lab);
    lab.start(&all);
    serve(lab, &other);
    // Without service CIDRs, each cluster IP gets its own route, unless another route to it exists.
    let told = routes(lab);
    for [v4, v6] in [API, LOCAL] {
        assert!(told.contains(&format!("{v4} via 169.254.1.1 dev bh-node src {}", NODE[0])), "{told}");
        assert!(told.contains(&format!("{v6} via fe80::1 dev bh-node src {}", NODE[1])), "{told}");
    }
    assert!(!told.contains("10.96.0.30") && told.contains("fd96::30"), "{told}");
    assert!(lab.log().contains("10.96.0.30/32 over bh-node: the kernel has another route to it"), "{}", lab.log());
    assert_seen(lab, &lab.node, LOCAL[0], NODE[0]);
    // The vswitch retries a refused route. Routes are removed and added with their Services.
    lab.node.ip("route del 10.96.0.30/32");
    eventually("what was in the way is gone", || routes(lab).contains("10.96.0.30"));
    let web = lab.get("web");
    let moved = service("moved", ["10.96.0.21", "fd96::21"], [&web.v4, &web.v6], "node-1");
    lab.write_state(&format!("{moved}{}", service("remote", REMOTE, FAR, "node-2")));
    eventually("the routes have changed", || {
        let told = routes(lab);
        ["10.96.0.21", "10.96.0.30", "fd96::21"].iter().all(|address| told.contains(address))
            && !told.contains("fd96::20")
    });
    assert_seen(lab, &lab.node, "10.96.0.21", NODE[0]);
    lab.stop();
    // With service CIDRs, there is one route per CIDR.
    lab.more_config.push_str(BLOCKS);
    lab.start(&all);
    eventually("there are routes to the blocks", || routes(lab).contains("10.96.0.0/12 via"));
    let told = routes(lab);
    assert!(
        told.contains("fd96::/64 via fe80::1") && !told.contains("10.96.0.2") && !told.contains("fd96::2"),
        "{told}"
    );
    lab.stop();
    lab.more_config = lab.more_config.replace(BLOCKS, "services: off\n");
    lab.start(&all);
    let told = routes(lab);
    assert!(!told.contains("10.96.") && !told.contains("fd96:") && told.contains("10.244.1.0/24"), "{told}");
    lab.stop();
    lab.more_config = lab.more_config.replace("services: off\n", BLOCKS);
    lab.start(&all);
    eventually("they are there again", || routes(lab).contains("10.96.0.0/12 via"));
    lab.stop();
    let config = lab.path("config.yaml");
    let words = ["cleanup", "--config", config.to_str().unwrap()];
    let cleanup = lab.node.command(env!("CARGO_BIN_EXE_bulkhead"), &words).output().unwrap();
    assert!(cleanup.status.success());
    assert_eq!(routes(lab), "");
    assert!(lab.node.ip("route").contains("10.96.7.0/24 via 172.18.0.12"), "somebody else's stays");
}

#[test]
fn a_kube_proxy_beside_us_is_seen_by_what_it_has_in_the_kernel_and_told() {
    require!("ip", "nft");
    only_with_tc!();
    let (mut lasting, _other) = node();
    let lab = &mut lasting.lab;
    lab.write_state("");
    let check = |lab: &Lab| {
        lab.write_config();
        lab.try_run("config.yaml", &["--check"]).1
    };
    let text = check(lab);
    assert!(!text.contains("kube-proxy runs") && !text.contains("rules of kube-proxy"), "{text}");
    lab.node.shell("nft add table ip6 nat; nft add chain ip6 nat KUBE-SERVICES");
    let text = check(lab);
    assert!(
        text.contains("rules of kube-proxy are in this node's kernel (the iptables chain KUBE-SERVICES)"),
        "{text}"
    );
    lab.node.shell("nft delete table ip6 nat; nft add table ip kube-proxy");
    let text = check(lab);
    assert!(text.contains("(the nftables table kube-proxy)") && text.contains("kube-proxy --cleanup"), "{text}");
    // A process named kube-proxy in another network namespace does not count; one in the node's namespace does.
    let program = lab.path("kube-proxy");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let elsewhere = lab.get("web").netns.spawn(&format!("{} 60", program.display()));
    assert!(!check(lab).contains("kube-proxy runs"));
    let here = lab.node.spawn(&format!("{} 60", program.display()));
    eventually("it is seen", || {
        check(lab).contains("kube-proxy runs on this node (a process of that name, the nftables table")
    });
    lab.more_config.push_str("services: off\n");
    assert!(check(lab).contains("Services are off; kube-proxy runs"));
    drop((elsewhere, here));
    lab.node.shell("nft delete table ip kube-proxy");
    assert!(check(lab).contains("Services are off, and no kube-proxy is seen on this node"));
    // The log at the start has the same warning.
    lab.node.shell("nft add table ip kube-proxy");
    lab.start("");
    assert!(lab.log().contains("warning: Services are off; rules of kube-proxy"), "{}", lab.log());
    lab.stop();
}
