//! The vswitch notifies the peers of a pod that is gone at once: those that only read, and those that connect again; by address, by Service
//! and from outside.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bulkhead_dataplane::io::in_namespace;

use crate::lab::netns::{Netns, eventually};
use crate::lab::{Lab, policy};
use crate::require;

const VIP: &str = "10.96.0.20";
const NODE_PORT: u16 = 30080;
const PORT: u16 = 7777;

/// The time limit for hearing of the end, much longer than a busy machine needs. The tests print the measured times.
const SOON: Duration = Duration::from_secs(5);

/// How long to wait where nothing must be heard.
const SILENCE: Duration = Duration::from_secs(1);

fn inside<T: Send>(netns: &Netns, act: impl FnOnce() -> T + Send) -> T {
    in_namespace(&Path::new("/run/netns").join(netns.name()), act).unwrap()
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// An end of a conversation.
enum Talk {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Talk {
    fn exchange(&mut self) {
        let mut byte = [0];
        match self {
            Self::Tcp(stream) => {
                stream.write_all(b"x").unwrap();
                stream.read_exact(&mut byte).unwrap();
            }
            Self::Udp(socket) => {
                socket.send(b"x").unwrap();
                socket.recv(&mut byte).unwrap();
            }
        }
    }

    /// Reads until the conversation ends. Returns how it ended, and when.
    fn wait_for_end(self, patience: Duration) -> JoinHandle<(Result<usize, ErrorKind>, Instant)> {
        let mut bytes = [0; 64];
        std::thread::spawn(move || {
            let read = match self {
                Self::Tcp(mut stream) => {
                    stream.set_read_timeout(Some(patience)).unwrap();
                    stream.read(&mut bytes)
                }
                Self::Udp(socket) => {
                    socket.set_read_timeout(Some(patience)).unwrap();
                    socket.recv(&mut bytes)
                }
            };
            (read.map_err(|error| error.kind()), Instant::now())
        })
    }
}

/// Serves echoes of TCP and UDP to any number of clients.
fn echo(netns: &Netns) {
    let (tcp, udp) =
        inside(netns, || (TcpListener::bind(at("::", PORT)).unwrap(), UdpSocket::bind(at("::", PORT)).unwrap()));
    std::thread::spawn(move || {
        for mut stream in tcp.incoming().flatten() {
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
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        loop {
            if let Ok((length, from)) = udp.recv_from(&mut bytes) {
                let _ = udp.send_to(&bytes[..length], from);
            }
        }
    });
}

fn connect(netns: &Netns, to: SocketAddr, patience: Duration) -> std::io::Result<Talk> {
    inside(netns, || TcpStream::connect_timeout(&to, patience)).map(Talk::Tcp)
}

/// Returns a connected UDP socket.
fn datagrams(netns: &Netns, to: SocketAddr) -> Talk {
    let any = if to.is_ipv4() { at("0.0.0.0", 0) } else { at("::", 0) };
    let socket = inside(netns, || UdpSocket::bind(any).unwrap());
    inside(netns, || socket.connect(to).unwrap());
    Talk::Udp(socket)
}

/// Returns both ends of a connection that the pod `from` opens: the other end, and the pod's.
fn connected_from(from: &Netns, to: &Netns, address: &str) -> (Talk, Talk) {
    let listener = inside(to, || TcpListener::bind(at(address, 0)).unwrap());
    let own = connect(from, listener.local_addr().unwrap(), SOON).unwrap();
    let mut other = listener.accept().unwrap().0;
    let (Talk::Tcp(mut stream), mut byte) = (own, [0]) else { unreachable!() };
    for _ in 0..50 {
        stream.write_all(b"x").unwrap();
        other.read_exact(&mut byte).unwrap();
        other.write_all(b"x").unwrap();
        stream.read_exact(&mut byte).unwrap();
    }
    (Talk::Tcp(other), Talk::Tcp(stream))
}

/// A node with a client, a server, a host port, an uplink and a Service of the server.
fn node() -> Lab {
    let mut lab = Lab::new();
    lab.pod("client", "{app: client}");
    lab.pod("server", "{app: server}");
    lab.outside();
    lab.host();
    let endpoint = lab.get("server").v4.clone();
    let ports = |node_port: &str| {
        format!(
            "[{{name: tcp, port: {PORT}, protocol: TCP, targetPort: {PORT}{node_port}}}, {{name: udp, port: {PORT}, protocol: UDP}}]"
        )
    };
    lab.more_state = format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: echo, namespace: default}}\n\
         spec: {{type: NodePort, clusterIP: {VIP}, clusterIPs: [{VIP}], ports: {}}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: echo-1, namespace: default, \
         labels: {{kubernetes.io/service-name: echo}}}}\naddressType: IPv4\nports: {}\n\
         endpoints: [{{addresses: [{endpoint}], nodeName: node-1, conditions: {{ready: true}}}}]\n",
        ports(&format!(", nodePort: {NODE_PORT}")),
        "[{name: tcp, port: 7777, protocol: TCP}, {name: udp, port: 7777, protocol: UDP}]",
    );
    lab.more_config = "services: {service_cidrs: [10.96.0.0/12]}\n".to_owned();
    lab
}

/// Returns conversations of all kinds with the server, each with its name, after enough of each that the kernel forwards it.
fn conversations(lab: &Lab) -> Vec<(String, Talk)> {
    let (client, server, outside) = (&lab.get("client").netns, lab.get("server"), lab.outside.as_ref().unwrap());
    let mut all = Vec::new();
    for (name, netns, to) in [
        ("pod, IPv4", client, at(&server.v4, PORT)),
        ("pod, IPv6", client, at(&server.v6, PORT)),
        ("pod, Service", client, at(VIP, PORT)),
        ("node", &lab.node, at(&server.v4, PORT)),
        ("outside, IPv4", outside, at(&server.v4, PORT)),
        ("outside, IPv6", outside, at(&server.v6, PORT)),
        ("outside, node port", outside, at(&lab.node_v4(), NODE_PORT)),
    ] {
        let mut talks = vec![(format!("TCP from {name}"), connect(netns, to, SOON).unwrap())];
        if to.port() == PORT {
            talks.push((format!("UDP from {name}"), datagrams(netns, to)));
        }
        for (name, mut talk) in talks {
            (0..50).for_each(|_| talk.exchange());
            all.push((name, talk));
        }
    }
    // Where the pod is the client, the other end's policy knows only replies.
    for (name, netns, address) in [
        ("pod", client, &*lab.get("client").v4),
        ("outside", outside, "172.18.0.100"),
        ("node", &lab.node, &*lab.node_v4()),
    ] {
        let (other, own) = connected_from(&server.netns, netns, address);
        std::mem::forget(own);
        all.push((format!("TCP to {name}"), other));
    }
    all
}

/// Checks that a new connection is refused, and that a new UDP socket hears of it. While the port is only closed, the node says "host
/// unreachable", which UDP sockets do not hear.
fn is_refused_anew(name: &str, netns: &Netns, to: SocketAddr) {
    let started = Instant::now();
    let mut error = Some(ErrorKind::HostUnreachable);
    while error == Some(ErrorKind::HostUnreachable) && started.elapsed() < SOON {
        error = connect(netns, to, SOON).err().map(|error| error.kind());
    }
    assert_eq!(error, Some(ErrorKind::ConnectionRefused), "new TCP {name} {to}");
    let took = started.elapsed();
    let Talk::Udp(socket) = datagrams(netns, to) else { unreachable!() };
    socket.send(b"x").unwrap();
    let (end, at) = Talk::Udp(socket).wait_for_end(SOON).join().unwrap();
    assert_eq!(end, Err(ErrorKind::ConnectionRefused), "new UDP {name} {to}");
    println!("new connection from {name} to {to}: TCP {took:?}, UDP {:?}", at.duration_since(started) - took);
}

#[test]
fn peers_of_a_pod_that_is_gone_are_told_at_once_also_those_that_only_read() {
    require!("ip");
    let mut lab = node();
    lab.start("");
    let server = lab.get("server");
    echo(&server.netns);
    let (v4, v6) = (server.v4.clone(), server.v6.clone());
    let waiting: Vec<_> = conversations(&lab).into_iter().map(|(name, talk)| (name, talk.wait_for_end(SOON))).collect();
    std::thread::sleep(Duration::from_millis(300));
    let ended = Instant::now();
    lab.unplug("server");
    let deleted = Instant::now();
    let mut silent = Vec::new();
    for (name, end) in waiting {
        let (end, at) = end.join().unwrap();
        let expected = if name.starts_with("TCP") { ErrorKind::ConnectionReset } else { ErrorKind::ConnectionRefused };
        let after = at.checked_duration_since(deleted).unwrap_or_default();
        println!("{name}: {end:?} {:?} after `ip link del` began, {after:?} after it ended", at.duration_since(ended));
        if end != Err(expected) {
            silent.push(name);
        }
    }
    assert_eq!(silent, [""; 0], "these were not told");
    // The object exists for a while, and then does not.
    for is_hidden in [false, true] {
        if is_hidden {
            lab.hide("server", true);
            lab.apply("");
        }
        let (client, outside) = (&lab.get("client").netns, lab.outside.as_ref().unwrap());
        for (name, netns) in [("pod", client), ("node", &lab.node), ("outside", outside)] {
            is_refused_anew(name, netns, at(&v4, PORT));
            is_refused_anew(name, netns, at(&v6, PORT));
        }
        is_refused_anew("pod", client, at(VIP, PORT));
        assert_eq!(
            connect(outside, at(&lab.node_v4(), NODE_PORT), SOON).err().map(|error| error.kind()),
            Some(ErrorKind::ConnectionRefused)
        );
    }
    // Another pod with the address answers for itself.
    lab.hide("server", false);
    lab.plug("server");
    lab.apply("");
    eventually("the new pod answers", || connect(&lab.get("client").netns, at(&v4, PORT), SILENCE).is_ok());
    let summary = lab.stop();
    assert!(summary["dropped"]["no_such_pod"].as_u64() > Some(20), "{summary:#}");
    assert!(summary["sessions"]["removed"].as_u64() >= Some(16), "{summary:#}");
}

#[test]
fn a_pod_whose_interface_goes_down_and_comes_back_keeps_its_connections_and_nobody_is_told() {
    require!("ip");
    let mut lab = node();
    lab.start("");
    let server = lab.get("server");
    echo(&server.netns);
    let mut talk = connect(&lab.get("client").netns, at(&server.v4, PORT), SOON).unwrap();
    (0..50).for_each(|_| talk.exchange());
    lab.node.ip(&format!("link set {} down", server.interface));
    eventually("the port is closed", || lab.count("port default/server (p3) was removed") == 1);
    let Talk::Tcp(stream) = &talk else { unreachable!() };
    let reader = Talk::Tcp(stream.try_clone().unwrap());
    let (end, _) = reader.wait_for_end(SILENCE).join().unwrap();
    assert_eq!(end, Err(ErrorKind::WouldBlock), "it is only closed");
    lab.node.ip(&format!("link set {} up", server.interface));
    eventually("the port is open", || lab.count("port default/server (p3) is open") == 2);
    stream.set_read_timeout(Some(SOON)).unwrap();
    talk.exchange();
    assert_eq!(lab.stop()["dropped"]["no_such_pod"], serde_json::Value::Null);
}

#[test]
fn without_answers_a_pod_that_is_gone_is_silent_and_policy_comes_first_in_any_case() {
    require!("ip");
    for (config, is_silent) in [("unreachable: drop\n", true), ("", false)] {
        let mut lab = node();
        lab.more_config.push_str(config);
        // The client may connect to the server only, as long as there is one.
        let server = "{podSelector: {matchLabels: {app: server}}}";
        lab.start(&policy(
            "client",
            &format!(
                "{{podSelector: {{matchLabels: {{app: client}}}}, policyTypes: [Egress], egress: [{{to: [{server}]}}]}}"
            ),
        ));
        echo(&lab.get("server").netns);
        let (client, v4) = (&lab.get("client").netns, lab.get("server").v4.clone());
        let mut talk = connect(client, at(&v4, PORT), SOON).unwrap();
        (0..50).for_each(|_| talk.exchange());
        let reader = talk.wait_for_end(if is_silent { SILENCE } else { SOON });
        lab.unplug("server");
        let (end, _) = reader.join().unwrap();
        let kind = |result: std::io::Result<Talk>| result.err().map(|error| error.kind());
        if is_silent {
            assert_eq!(end, Err(ErrorKind::WouldBlock));
            assert_eq!(kind(connect(client, at(&v4, PORT), SILENCE)), Some(ErrorKind::TimedOut));
            lab.stop();
            continue;
        }
        assert_eq!(end, Err(ErrorKind::ConnectionReset));
        assert_eq!(kind(connect(client, at(&v4, PORT), SOON)), Some(ErrorKind::ConnectionRefused));
        // An address that no pod ever had, in the node's block: the client's policy does not allow it.
        assert_eq!(kind(connect(client, at("10.244.1.200", PORT), SILENCE)), Some(ErrorKind::TimedOut));
        assert_eq!(kind(connect(&lab.node, at("10.244.1.200", PORT), SOON)), Some(ErrorKind::ConnectionRefused));
        let summary = lab.stop();
        assert!(summary["dropped"]["policy_denied"].as_u64() >= Some(1), "{summary:#}");
    }
}
