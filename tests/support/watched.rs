//! A lab with two pods and one policy, for tests that observe allowed and denied traffic.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::Duration;

use serde_json::Value;

use super::lasting::inside;
use super::{Lab, policy};

/// Returns a policy that allows `b` to receive only TCP port 6379 from `a`.
pub fn only_redis() -> String {
    policy(
        "only-redis",
        "{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], \
         ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 6379}]}]}",
    )
}

/// Starts a lab with pods `a` and `b`, this policy, an admin socket and metrics.
pub fn watched(more_config: &str) -> Lab {
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.pod("b", "{app: b}");
    lab.more_config.push_str("admin: {socket: admin.sock, listen: '127.0.0.1:9965'}\n");
    lab.more_config.push_str(more_config);
    lab.start(&only_redis());
    lab
}

pub fn metrics(lab: &Lab) -> String {
    lab.node.exec("curl -s http://127.0.0.1:9965/metrics")
}

/// The vswitch's present status.
pub fn status(lab: &Lab) -> Value {
    // The vswitch may answer from a cache that is up to 100 ms old.
    std::thread::sleep(Duration::from_millis(150));
    serde_json::from_str(&lab.ask(&["status", "-o", "json"]).1).unwrap()
}

/// Packets dropped since the start, by drop reason, as `bulkhead status` reports them.
pub fn status_drops(lab: &Lab) -> BTreeMap<String, u64> {
    let status = status(lab);
    let rows = status["dropped"].as_array().unwrap();
    rows.iter().map(|row| (row["reason"].as_str().unwrap().to_owned(), row["packets"].as_u64().unwrap())).collect()
}

/// Sends `count` UDP datagrams of this length from `a` to `b`, each to another port. Policy denies all of them.
pub fn flood(lab: &Lab, count: u16, length: usize) {
    let to = lab.get("b").v4.clone();
    let from = lab.get("a");
    let own = from.v4.clone();
    inside(from, || {
        let socket = UdpSocket::bind((own.as_str(), 0)).unwrap();
        for port in 0..count {
            let _ = socket.send_to(&vec![b'x'; length], (to.as_str(), 1000 + port));
            if port % 200 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    });
}
