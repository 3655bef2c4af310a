//! Services with real programs: the chosen endpoint, the source address that it sees, and which connections survive changes.

use crate::require;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use crate::lab::lasting::{Lasting, PATIENCE, answers, inside, settle};
use crate::lab::netns::{Netns, Running, eventually};
use crate::lab::{Lab, Pod, policy};
use serde_json::Value;

const VIP: &str = "10.96.0.20";
const VIP6: &str = "fd96::20";
const DNS: &str = "10.96.0.10";

/// A dual-stack Service with `spec` as further fields, and one slice per family with these endpoints.
pub(crate) fn service(name: &str, addresses: [&str; 2], spec: &str, port: &str, endpoints: &[Endpoint]) -> String {
    let [v4, v6] = addresses;
    let mut text = format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\n\
         spec: {{clusterIP: {v4}, clusterIPs: [{v4}, '{v6}'], ipFamilies: [IPv4, IPv6], {spec} ports: [{port}]}}\n"
    );
    for (family, of) in [("IPv4", 0), ("IPv6", 1)] {
        let all: Vec<String> = endpoints
            .iter()
            .map(|endpoint| {
                let (address, node) = (&endpoint.addresses[of], &endpoint.node);
                format!("{{addresses: ['{address}'], nodeName: {node}, conditions: {{{}}}}}", endpoint.conditions)
            })
            .collect();
        let (target, protocol) = (endpoints.first().map_or(8080, |endpoint| endpoint.port), protocol_of(port));
        write!(
            text,
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}-{of}, \
             namespace: default, labels: {{kubernetes.io/service-name: {name}}}}}\naddressType: {family}\n\
             ports: [{{name: '', port: {target}, protocol: {protocol}}}]\nendpoints: [{}]\n",
            all.join(", ")
        )
        .unwrap();
    }
    text
}

fn protocol_of(port: &str) -> &'static str {
    if port.contains("UDP") { "UDP" } else { "TCP" }
}

pub(crate) struct Endpoint {
    pub(crate) addresses: [String; 2],
    pub(crate) node: String,
    pub(crate) port: u16,
    pub(crate) conditions: &'static str,
}

impl Endpoint {
    pub(crate) fn of(pod: &Pod, port: u16) -> Self {
        let addresses = [pod.v4.clone(), pod.v6.clone()];
        Self { addresses, node: "node-1".to_owned(), port, conditions: "ready: true" }
    }
}

const CONFIG: &str = "services: {service_cidrs: [10.96.0.0/12, 'fd96::/64']}\n";

/// A lab with a client and two servers.
fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.more_config = CONFIG.to_owned();
    for name in ["client", "web1", "web2"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab
}

/// Starts a server in each of these pods, on port 8080, which sends the pod's name: see [`serve_name`].
fn serve(lab: &Lab, names: &[&str]) -> Vec<Running> {
    names.iter().map(|name| serve_name(&lab.get(name).netns, name, 8080)).collect()
}

/// Starts a server on a TCP port of both address families. It sends each client this name and the client's address, which [`ask`] reads. Returns when the
/// server listens; panics if it does not within 10 seconds.
pub(crate) fn serve_name(netns: &Netns, name: &str, port: u16) -> Running {
    let line =
        format!("exec socat TCP6-LISTEN:{port},fork,reuseaddr,ipv6-v6only=0 SYSTEM:'echo {name} $SOCAT_PEERADDR'");
    let server = Running::start(&mut netns.command("sh", &["-c", &line]));
    eventually("the server listens", || netns.output(&format!("ss -Hltn sport = :{port}")).stdout.len() > 10);
    server
}

/// Connects from this namespace to a server of [`serve_name`]. Returns the server's name and the client address that it saw. `None` if the
/// server does not answer within 2 seconds.
pub(crate) fn ask(netns: &Netns, address: &str, port: u16) -> Option<(String, IpAddr)> {
    let target =
        if address.contains(':') { format!("TCP6:[{address}]:{port}") } else { format!("TCP4:{address}:{port}") };
    let output = netns.output(&format!("socat -u -T 2 {target},connect-timeout=2 -"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (name, peer) = text.trim().split_once(' ')?;
    let peer: IpAddr = peer.trim_matches(['[', ']']).parse().unwrap();
    Some((name.to_owned(), peer.to_canonical()))
}

/// Connects 24 times. Returns the servers' names and the client addresses that they saw. Panics if a connection is not answered.
fn ask_often(netns: &Netns, address: &str, port: u16) -> (BTreeSet<String>, BTreeSet<IpAddr>) {
    let all =
        (0..24).map(|_| ask(netns, address, port).unwrap_or_else(|| panic!("nobody answers at {address}:{port}")));
    all.unzip()
}

fn names<const N: usize>(all: [&str; N]) -> BTreeSet<String> {
    all.into_iter().map(str::to_owned).collect()
}

fn count(summary: &Value, path: &str) -> u64 {
    summary.pointer(path).and_then(Value::as_u64).unwrap_or_default()
}

#[test]
fn a_client_reaches_every_endpoint_and_is_seen_with_its_own_address_unless_it_is_the_endpoint() {
    require!("socat", "ss", "nc");
    let mut lab = lab();
    let all = [Endpoint::of(lab.get("web1"), 8080), Endpoint::of(lab.get("web2"), 8080)];
    let web = |endpoints: &[Endpoint]| service("web", [VIP, VIP6], "", "{port: 80, targetPort: 8080}", endpoints);
    lab.start(&web(&all));
    let _servers = serve(&lab, &["web1", "web2"]);
    let client = lab.get("client");
    for (vip, own) in [(VIP, &client.v4), (VIP6, &client.v6)] {
        let (found, peers) = ask_often(&client.netns, vip, 80);
        assert_eq!((found, peers), (names(["web1", "web2"]), [own.parse().unwrap()].into()), "{vip}\n{}", lab.log());
        // An endpoint that connects to its own Service sometimes reaches itself.
        let (found, peers) = ask_often(&lab.get("web1").netns, vip, 80);
        assert_eq!((found, peers.len()), (names(["web1", "web2"]), 2), "{peers:?}");
    }
    // Policy matches the pod and its own port, not the Service.
    let closed = policy("web1", "{podSelector: {matchLabels: {app: web1}}, policyTypes: [Ingress]}");
    let only = policy(
        "client",
        "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{ports: [{port: 8080}]}]}",
    );
    lab.apply(&format!("{}{closed}{only}", web(&all)));
    let client = &lab.get("client").netns;
    let found: BTreeSet<_> = (0..12).filter_map(|_| ask(client, VIP, 80)).map(|(name, _)| name).collect();
    assert_eq!(found, names(["web2"]));
    // NetworkPolicy does not cut a pod off from itself. ClusterNetworkPolicy does (network-policy-api #343, #390).
    lab.apply(&format!("{}{closed}", web(&all[..1])));
    assert_eq!(ask_often(&lab.get("web1").netns, VIP, 80).0, names(["web1"]));
    let explain = ["explain", "--live", "--from", "default/web1", "--to", VIP, "--port", "80", "-o", "json"];
    assert_eq!(lab.ask(&explain).0, Some(0));
    let apart = "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: apart}\n\
        spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}\n";
    lab.apply(&format!("{}{closed}{apart}", web(&all[..1])));
    assert_eq!(ask(&lab.get("web1").netns, VIP, 80), None);
    let (code, told) = lab.ask(&explain);
    assert!(code == Some(1) && told.contains("hairpin:default/client"), "{told}");
    // The Service has no endpoints. The client gets an error at once, and reaches a new endpoint with its next packet.
    lab.apply(&web(&[]));
    let client = &lab.get("client").netns;
    for vip in [VIP, VIP6] {
        let began = std::time::Instant::now();
        let output = client.output(&format!("nc -n -v -z -w 5 {vip} 80"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("refused") && began.elapsed() < Duration::from_secs(4), "{said}");
    }
    lab.apply(&web(&all[1..]));
    assert_eq!(ask_often(&lab.get("client").netns, VIP, 80).0, names(["web2"]));
    let summary = lab.stop();
    assert!(count(&summary, "/dropped/no_endpoint") >= 2, "{summary:#}");
}

#[test]
fn bulk_goes_on_in_the_kernel_with_its_segments_whole() {
    require!("iperf3", "tcpdump", "ss");
    only_with_tc!();
    let mut lab = lab();
    let server = [Endpoint::of(lab.get("web1"), 5201)];
    lab.start(&service("bulk", [VIP, VIP6], "", "{port: 5000, targetPort: 5201}", &server));
    let _server = lab.get("web1").netns.serve("iperf3 -s", 5201);
    let dump = crate::lab::Dump::start(&lab, "web1", "tcp dst port 5201 and greater 20000");
    for vip in [VIP, VIP6] {
        let said = lab.get("client").netns.exec(&format!("iperf3 -c {vip} -p 5000 -t 1 -J"));
        let said: Value = serde_json::from_str(&said).unwrap();
        assert!(said.pointer("/end/sum_received/bytes").and_then(Value::as_u64) > Some(100_000_000), "{said:#}");
    }
    assert!(dump.so_far("-c 5").lines().count() >= 5, "segments arrive whole");
    for pod in ["client", "web1"] {
        assert_eq!(lab.counter(pod, "Tcp:", "InCsumErrors"), 0);
    }
    let summary = lab.stop();
    let slow = count(&summary, "/workers/0/received");
    assert!(slow > 0 && slow < 100_000, "few packets came to a worker: {summary:#}");
}

#[test]
fn the_clusters_dns_answers_a_pod_that_may_ask_nobody_else() {
    require!("dnsmasq", "dig", "ss");
    let mut lab = lab();
    let server = [Endpoint::of(lab.get("web1"), 53)];
    let only = policy(
        "dns-only",
        "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: \
         {app: web1}}}], ports: [{port: 53, protocol: UDP}]}]}",
    );
    lab.start(&format!("{}{only}", service("dns", [DNS, "fd96::10"], "", "{port: 53, protocol: UDP}", &server)));
    let line = "dnsmasq --keep-in-foreground --no-resolv --no-hosts --conf-file=/dev/null --pid-file --user=root \
        --address=/db.default.svc.test/192.0.2.7";
    let _server = lab.get("web1").netns.serve(line, 53);
    let client = &lab.get("client").netns;
    for vip in [DNS, "fd96::10"] {
        for _ in 0..5 {
            let said = client.exec(&format!("dig +short +time=2 +tries=1 @{vip} db.default.svc.test A"));
            assert_eq!(said.trim(), "192.0.2.7");
        }
    }
    assert!(!client.output(&format!("dig +time=1 +tries=1 @{} x.test", lab.get("web2").v4)).status.success());
    lab.stop();
}

#[test]
fn redis_goes_on_behind_its_address_while_its_endpoint_is_replaced() {
    require!("redis-server", "redis-cli", "ss");
    let mut lab = lab();
    let redis = |pod: &Pod, conditions| {
        let endpoint = Endpoint { conditions, ..Endpoint::of(pod, 6379) };
        service("db", [VIP, VIP6], "", "{port: 6379}", &[endpoint])
    };
    let line = "redis-server --port 6379 --bind 0.0.0.0 :: --protected-mode no --save  --appendonly no";
    let _servers = ["web1", "web2"].map(|name| lab.get(name).netns.serve(line, 6379));
    lab.start(&redis(lab.get("web1"), "ready: true"));
    let cli = |lab: &Lab, words: &str| {
        let output = lab.get("client").netns.output(&format!("timeout 3 redis-cli -h {VIP} {words}"));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(cli(&lab, "set where one"), "OK");
    // This connection stays open while its endpoint terminates.
    let address: std::net::SocketAddr = format!("{VIP}:6379").parse().unwrap();
    let connect = || std::net::TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    let mut open = inside(lab.get("client"), connect);
    let mut get = || {
        use std::io::{Read, Write};
        open.set_read_timeout(Some(PATIENCE)).unwrap();
        open.write_all(b"GET where\r\n").unwrap();
        let mut bytes = [0; 64];
        let length = open.read(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    assert!(get().contains("one"));
    let draining = redis(lab.get("web1"), "ready: false, serving: true, terminating: true");
    let both = draining
        .replace("endpoints: [", &format!("endpoints: [{{addresses: ['{}'], nodeName: node-1}}, ", lab.get("web2").v4));
    // The IPv6 slice must not list the IPv4 address.
    let both = both.replacen(
        &format!("endpoints: [{{addresses: ['{}'], nodeName: node-1}}, {{addresses: ['fd", lab.get("web2").v4),
        "endpoints: [{addresses: ['fd",
        1,
    );
    lab.apply(&both);
    assert_eq!(cli(&lab, "set where two"), "OK");
    assert!(get().contains("one"), "the open connection drains where it is");
    lab.apply(&redis(lab.get("web2"), "ready: true"));
    assert_eq!(cli(&lab, "get where"), "two");
    assert!(get().contains("one"), "and ends by itself");
    lab.stop();
}

#[test]
fn a_udp_sender_moves_on_with_its_next_packet_when_its_endpoint_is_gone() {
    require!("socat");
    let mut lab = lab();
    let udp = |pod: &Pod| service("log", [VIP, VIP6], "", "{port: 514, protocol: UDP}", &[Endpoint::of(pod, 5140)]);
    lab.start(&udp(lab.get("web1")));
    let sockets = ["web1", "web2"].map(|name| {
        let socket = inside(lab.get(name), || UdpSocket::bind("0.0.0.0:5140").unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        socket
    });
    let client = inside(lab.get("client"), || UdpSocket::bind("0.0.0.0:5000").unwrap());
    client.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    let mut bytes = [0; 64];
    let mut reaches = |to: &UdpSocket, word: &str| {
        client.send_to(word.as_bytes(), format!("{VIP}:514")).unwrap();
        let (length, from) = to.recv_from(&mut bytes).unwrap_or_else(|error| panic!("{word}: {error}"));
        assert_eq!(&bytes[..length], word.as_bytes());
        to.send_to(b"heard", from).unwrap();
        let (_, from) = client.recv_from(&mut bytes).unwrap();
        assert_eq!(from.to_string(), format!("{VIP}:514"), "he answers in the name of the Service");
    };
    // Enough packets for the flow cache to get the flow.
    (0..200).for_each(|number| reaches(&sockets[0], &format!("one {number}")));
    lab.apply(&udp(lab.get("web2")));
    (0..50).for_each(|number| reaches(&sockets[1], &format!("two {number}")));
    lab.stop();
}

#[test]
fn node_ports_are_served_from_outside_with_the_clients_address_where_the_policy_keeps_it() {
    require!("socat", "ss", "nc");
    let mut lab = lab();
    lab.outside();
    lab.host();
    let local = Endpoint::of(lab.get("web1"), 8080);
    // An endpoint on another node, which is the outside machine.
    let far = Endpoint {
        addresses: ["172.18.0.100".to_owned(), "fd00:18::100".to_owned()],
        node: "node-2".to_owned(),
        ..Endpoint::of(lab.get("web1"), 8080)
    };
    let node_port = |policy: &str, number: u16, vips, endpoints: &[Endpoint]| {
        let spec = format!("type: NodePort, externalTrafficPolicy: {policy},");
        let port = format!("{{port: 80, targetPort: 8080, nodePort: {number}}}");
        service(&format!("np{number}"), vips, &spec, &port, endpoints)
    };
    let all = [
        node_port("Local", 30001, ["10.96.1.1", "fd96::1:1"], &[local]),
        node_port("Cluster", 30002, ["10.96.1.2", "fd96::1:2"], &[far]),
    ];
    lab.start(&all.concat());
    let _web = serve(&lab, &["web1"]);
    let outside = lab.outside.as_ref().unwrap();
    let _far = serve_name(outside, "far", 8080);
    for (node, client) in [(lab.node_v4(), "172.18.0.100"), (lab.node_v6(), "fd00:18::100")] {
        let (name, peer) = ask(outside, &node, 30001).unwrap_or_else(|| panic!("{}", lab.log()));
        assert_eq!((name.as_str(), peer), ("web1", client.parse().unwrap()), "the client's address is kept");
        // The endpoint is on another node, so it sees an address of this node's pod CIDR.
        let (name, peer) = ask(outside, &node, 30002).unwrap_or_else(|| panic!("{}", lab.log()));
        let source = if client.contains(':') { "fd00:244:1::1" } else { "10.244.1.1" };
        assert_eq!((name.as_str(), peer), ("far", source.parse().unwrap()));
    }
    lab.stop();
}

#[test]
fn translated_connections_outlive_the_process() {
    require!("mount", "socat", "ss");
    only_with_tc!();
    let mut lab = Lab::new();
    for name in ["client", "web1", "web2"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    let mut lasting = Lasting::of(lab);
    let lab = &mut lasting.lab;
    lab.more_config.push_str(CONFIG);
    let to = |pod: &Pod| service("echo", [VIP, VIP6], "", "{port: 7}", &[Endpoint::of(pod, 7000)]);
    let state = to(lab.get("web1"));
    lab.start(&state);
    crate::lab::lasting::echo(lab.get("web1"), 7000);
    let address: std::net::SocketAddr = format!("{VIP}:7").parse().unwrap();
    let connect = |lab: &Lab| {
        let stream = inside(lab.get("client"), || std::net::TcpStream::connect_timeout(&address, PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let mut old = connect(lab);
    settle(&mut old);
    lab.kill();
    assert!((0..50).all(|_| answers(&mut old)), "what is established goes on");
    // The Service's endpoint changes while the vswitch is down.
    let state = to(lab.get("web2"));
    lab.start(&state);
    assert!((0..50).all(|_| answers(&mut old)), "and after the restart: {}", lab.log());
    lab.stop();
}

#[test]
fn clients_with_affinity_find_their_endpoint_again_after_a_stop_and_after_a_kill() {
    require!("socat", "ss", "curl");
    let mut lab = Lab::new();
    lab.more_config = format!("{CONFIG}admin: {{socket: admin.sock, listen: '127.0.0.1:9965'}}\n");
    let all = ["client", "web1", "web2", "web3", "web4"];
    for name in all {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    let web = |lab: &Lab, names: &[&str]| {
        let endpoints: Vec<Endpoint> = names.iter().map(|name| Endpoint::of(lab.get(name), 8080)).collect();
        let affinity = "sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 600}},";
        service("web", [VIP, VIP6], affinity, "{port: 80, targetPort: 8080}", &endpoints)
    };
    let state = web(&lab, &all[1..]);
    lab.start(&state);
    let _servers = serve(&lab, &all[1..]);
    // Five pods with two families each make ten clients. Each of them keeps one of four endpoints.
    let everybodys = |lab: &Lab| -> Vec<BTreeSet<String>> {
        let clients = all.iter().flat_map(|name| [VIP, VIP6].map(|vip| (&lab.get(name).netns, vip)));
        let ask =
            |(netns, vip)| (0..3).map(|_| ask(netns, vip, 80).unwrap_or_else(|| panic!("{}", lab.log())).0).collect();
        clients.map(ask).collect()
    };
    let before = everybodys(&lab);
    assert!(before.iter().all(|names| names.len() == 1), "{before:?}");
    let metrics = |lab: &Lab| lab.node.exec("curl -s http://127.0.0.1:9965/metrics");
    let told = metrics(&lab);
    for line in [
        "bulkhead_services 1",
        "bulkhead_service_listed 1",
        "bulkhead_service_vips 2",
        "bulkhead_service_backends 8",
        "bulkhead_service_connections_total 30",
        "bulkhead_service_affinity_clients 10",
        "bulkhead_service_affinity_capacity_clients 262144",
        "bulkhead_service_affinity_forgotten_clients_total 0",
    ] {
        assert!(told.contains(&format!("{line}\n")), "{line} is not in:\n{told}");
    }
    assert!(!told.contains("bulkhead_service_used_sessions 0\n"), "{told}");
    lab.stop();
    lab.start(&state);
    assert_eq!(everybodys(&lab), before, "{}", lab.log());
    lab.kill();
    lab.start(&state);
    assert!(metrics(&lab).contains("bulkhead_service_affinity_clients 10\n"));
    assert_eq!(everybodys(&lab), before, "{}", lab.log());
    assert_eq!(lab.count("adopted the backends of 10 clients of Services"), 2, "{}", lab.log());
    // A client whose endpoint has been removed gets another one.
    lab.stop();
    let state = web(&lab, &all[2..]);
    lab.start(&state);
    for (before, after) in before.iter().zip(everybodys(&lab)) {
        assert!(after.len() == 1 && (*before == after || before.contains("web1")), "{before:?} -> {after:?}");
    }
    lab.stop();
}

#[test]
fn two_workers_serve_one_service() {
    require!("socat", "ss", "nc");
    let Some(cores) = crate::lab::netns::two_cores() else { return };
    let mut lab = lab();
    lab.more_config.push_str(&format!("workers: {{cores: {cores:?}}}\n"));
    let all = [Endpoint::of(lab.get("web1"), 8080), Endpoint::of(lab.get("web2"), 8080)];
    lab.start(&service("web", [VIP, VIP6], "", "{port: 80, targetPort: 8080}", &all));
    let _servers = serve(&lab, &["web1", "web2"]);
    for vip in [VIP, VIP6] {
        assert_eq!(ask_often(&lab.get("client").netns, vip, 80).0, names(["web1", "web2"]));
        assert_eq!(ask_often(&lab.get("web2").netns, vip, 80).0, names(["web1", "web2"]));
    }
    lab.stop();
}
