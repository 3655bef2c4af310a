//! Health checks of load balancers: the HTTP answers of a running vswitch at Services' health check ports and at kube-proxy's port.

use crate::require;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::lab::Lab;
use crate::lab::netns::{Netns, eventually};
use bulkhead_dataplane::io::in_namespace;
use serde_json::{Value, json};

/// The port of kube-proxy's health check.
const PROXY: u16 = 10_256;
const PORT: u16 = 32_100;
const PATIENCE: Duration = Duration::from_secs(5);

/// A Service of type LoadBalancer with externalTrafficPolicy Local, and its endpoint, the pod `web`.
fn service(lab: &Lab, conditions: &str) -> String {
    let pod = lab.get("web");
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: default}}\n\
         spec: {{type: LoadBalancer, clusterIP: 10.96.0.20, clusterIPs: [10.96.0.20], externalTrafficPolicy: Local, \
         healthCheckNodePort: {PORT}, ports: [{{port: 80, nodePort: 30080}}]}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: web-1, namespace: default, labels: \
         {{kubernetes.io/service-name: web}}}}\naddressType: IPv4\nports: [{{name: '', port: 8080, protocol: TCP}}]\n\
         endpoints: [{{addresses: [{}], nodeName: node-1, conditions: {{{conditions}}}}}]\n",
        pod.v4
    )
}

/// A lab with a pod, an uplink to the load balancer, and a host port.
fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.pod("web", "{app: web}");
    lab.outside();
    lab.host();
    lab.node.ip("route add 172.18.0.0/16 via 169.254.1.1 dev host0");
    lab.node.ip("-6 route add fd00:18::/64 via fe80::1 dev host0");
    lab
}

fn within<T: Send>(netns: &Netns, act: impl FnOnce() -> T + Send) -> T {
    in_namespace(&Path::new("/run/netns").join(netns.name()), act).unwrap()
}

/// An HTTP answer: status, head in lower case, body.
type Answer = (u16, String, String);

/// Sends an HTTP request as a load balancer does. `None` if there is no answer.
fn ask(from: &Netns, address: &str, port: u16, request: &str) -> Option<Answer> {
    let address = SocketAddr::new(address.parse::<IpAddr>().unwrap(), port);
    let text = within(from, || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "{request} HTTP/1.1\r\nHost: node\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    });
    let text = text.ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, head.to_lowercase(), body.to_owned()))
}

/// The HTTP status at 127.0.0.1. `None` if there is no answer.
fn status(lab: &Lab, port: u16, path: &str) -> Option<u16> {
    ask(&lab.node, "127.0.0.1", port, &format!("GET {path}")).map(|(status, _, _)| status)
}

/// Waits for this status.
fn becomes(lab: &Lab, port: u16, path: &str, expected: Option<u16>) {
    eventually(&format!("port {port}{path} answers {expected:?}"), || status(lab, port, path) == expected);
}

/// Replaces a text in the state file atomically.
fn change_node(lab: &Lab, from: &str, to: &str) {
    let state = std::fs::read_to_string(lab.path("state.yaml")).unwrap();
    assert!(state.contains(from), "{state}");
    std::fs::write(lab.path("state.new"), state.replace(from, to)).unwrap();
    std::fs::rename(lab.path("state.new"), lab.path("state.yaml")).unwrap();
}

#[test]
fn a_balancer_outside_follows_the_endpoints_of_the_node_and_the_port_goes_with_its_service() {
    require!("ip");
    let mut lab = lab();
    lab.start(&service(&lab, "ready: true"));
    becomes(&lab, PORT, "/", Some(200));
    let outside = lab.outside.as_ref().unwrap();
    for address in [lab.node_v4(), lab.node_v6()] {
        // Load balancers may use any method and path.
        for request in ["GET /", "OPTIONS /healthz", "GET /any?thing"] {
            let (status, head, body) = ask(outside, &address, PORT, request).unwrap_or_else(|| panic!("{}", lab.log()));
            let body: Value = serde_json::from_str(&body).unwrap();
            let service = json!({"namespace": "default", "name": "web"});
            let expected = json!({"service": service, "localEndpoints": 1, "serviceProxyHealthy": true});
            assert_eq!((status, body), (200, expected), "{address} {request}");
            for line in ["content-type: application/json", "x-load-balancing-endpoint-weight: 1"] {
                assert!(head.contains(line), "{head}");
            }
        }
    }
    // A terminating endpoint still serves, but load balancers must choose another node.
    lab.apply(&service(&lab, "ready: false, serving: true, terminating: true"));
    becomes(&lab, PORT, "/", Some(503));
    let (_, head, body) = ask(&lab.node, "::1", PORT, "GET /").unwrap();
    assert!(head.contains("x-load-balancing-endpoint-weight: 0") && body.contains("\"localEndpoints\":0"), "{body}");
    lab.apply(&service(&lab, "ready: true"));
    becomes(&lab, PORT, "/", Some(200));
    let (_, told) = lab.ask(&["status"]);
    assert!(
        told.contains("health reported to load balancers: healthy; address [::]:10256, ports 10256, 32100"),
        "{told}"
    );
    lab.apply("");
    becomes(&lab, PORT, "/", None);
    assert_eq!(status(&lab, PROXY, "/healthz"), Some(200), "the node's own goes on");
    lab.apply(&service(&lab, "ready: true"));
    becomes(&lab, PORT, "/", Some(200));
    lab.stop();
    assert_eq!(status(&lab, PORT, "/"), None);
}

#[test]
fn a_node_that_is_being_deleted_is_alive_and_gets_no_new_connections() {
    require!("ip");
    let mut lab = lab();
    lab.start(&service(&lab, "ready: true"));
    becomes(&lab, PROXY, "/healthz", Some(200));
    let body = |path: &str| -> Value {
        let (_, _, body) = ask(&lab.node, "::1", PROXY, &format!("GET {path}")).unwrap();
        serde_json::from_str(&body).unwrap()
    };
    let healthy = body("/healthz");
    assert_eq!(healthy["nodeEligible"], true);
    assert!(healthy["currentTime"].is_string() && healthy["lastUpdated"] == healthy["currentTime"], "{healthy}");
    assert_eq!(status(&lab, PROXY, "/metrics"), Some(404));
    for (from, to) in [
        ("metadata: {name: node-1", "metadata: {deletionTimestamp: '2026-01-01T00:00:00Z', name: node-1"),
        ("spec: {podCIDRs", "spec: {taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}], podCIDRs"),
    ] {
        change_node(&lab, from, to);
        becomes(&lab, PROXY, "/healthz", Some(503));
        assert_eq!(body("/healthz")["nodeEligible"], false);
        assert_eq!(status(&lab, PROXY, "/livez"), Some(200), "a kubelet does not restart it for that");
        assert_eq!(status(&lab, PORT, "/"), Some(200), "connections to its endpoints are others' affair");
        let (_, told) = lab.ask(&["status"]);
        assert!(told.contains("health reported to load balancers: the node is being deleted"), "{told}");
        change_node(&lab, to, from);
        becomes(&lab, PROXY, "/healthz", Some(200));
    }
    lab.stop();
}

#[test]
fn a_vswitch_that_lets_nothing_pass_for_want_of_a_state_is_not_healthy() {
    require!("ip");
    let mut lab = lab();
    lab.state = "{paths: [state.yaml], when_refused: deny}".to_owned();
    lab.start(&service(&lab, "ready: true"));
    becomes(&lab, PROXY, "/livez", Some(200));
    change_node(&lab, "kind: Node", "kind: [");
    for path in ["/healthz", "/livez"] {
        becomes(&lab, PROXY, path, Some(503));
    }
    let (status, _, body) = ask(&lab.node, "::1", PORT, "GET /").unwrap();
    assert!(status == 503 && body.contains("\"serviceProxyHealthy\":false"), "{status} {body}");
    lab.stop();
}

#[test]
fn a_port_that_is_taken_is_told_and_served_as_soon_as_it_is_free() {
    require!("ip");
    let mut lab = lab();
    let of_others: Vec<TcpListener> = within(&lab.node, || {
        [("0.0.0.0", PROXY), ("::", PORT)].map(|address| TcpListener::bind(address).unwrap()).into()
    });
    lab.start(&service(&lab, "ready: true"));
    for port in [PROXY, PORT] {
        eventually("the log says so", || lab.log().contains(&format!("cannot listen at [::]:{port}: ")));
    }
    let (_, told) = lab.ask(&["status"]);
    assert!(told.contains("cannot listen on port 10256: ") && told.contains("cannot listen on port 32100: "), "{told}");
    let (code, told) = lab.try_run("config.yaml", &["--check"]);
    assert!(
        code.is_some()
            && told.contains("warning: the vswitch cannot answer health checks of load balancers at port 32100 of ::"),
        "{told}"
    );
    // Changes of other Services cause no further attempts or log lines.
    for _ in 0..3 {
        lab.apply(&service(&lab, "ready: false"));
        lab.apply(&service(&lab, "ready: true"));
    }
    assert_eq!(lab.count("cannot listen at "), 2, "{}", lab.log());
    drop(of_others);
    for (port, path) in [(PROXY, "/healthz"), (PORT, "/")] {
        becomes(&lab, port, path, Some(200));
        assert_eq!(lab.count(&format!("port {port} is free again")), 1, "{}", lab.log());
    }
    lab.stop();
}

#[test]
fn clients_that_say_nothing_keep_no_balancer_from_its_answer() {
    require!("ip");
    let mut lab = lab();
    lab.start(&service(&lab, "ready: true"));
    becomes(&lab, PORT, "/", Some(200));
    let address = SocketAddr::new("127.0.0.1".parse().unwrap(), PORT);
    let mut silent: Vec<TcpStream> =
        within(&lab.node, || (0..300).map(|_| TcpStream::connect_timeout(&address, PATIENCE).unwrap()).collect());
    for _ in 0..20 {
        assert_eq!(status(&lab, PORT, "/"), Some(200));
        assert_eq!(status(&lab, PROXY, "/healthz"), Some(200));
    }
    let began = Instant::now();
    for stream in &mut silent {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // The connection ends by a close or a reset.
        let mut byte = [0];
        assert!(!matches!(stream.read(&mut byte), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock));
    }
    println!("silent connections were over after {:?}", began.elapsed());
    lab.stop();
}

#[test]
fn where_services_are_off_or_nobody_is_to_be_told_nothing_listens() {
    require!("ip");
    for config in ["services: off\n", "admin: {socket: admin.sock, service_health: none}\n"] {
        let mut lab = lab();
        lab.more_config = config.to_owned();
        lab.start(&service(&lab, "ready: true"));
        assert_eq!((status(&lab, PROXY, "/healthz"), status(&lab, PORT, "/")), (None, None), "{config}");
        lab.stop();
    }
}
