//! A vswitch that follows an API server, which it reaches through itself: the server is behind the uplink that the vswitch forwards to.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

#[path = "../control/tests/support/api_server.rs"]
mod api_server;
#[path = "support/lab.rs"]
mod lab;
#[path = "support/objects.rs"]
mod objects;

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use api_server::ApiServer;
use bulkhead_dataplane::io::in_namespace;
use lab::Lab;
use objects::{beside_a_server, deny, node, pod};
use serde_json::json;

/// Where the server is.
const SERVER: &str = "172.18.0.100";

/// What a pause between two attempts is at most, several times: that a change takes effect is what is asserted, and not when.
const LONG: Duration = Duration::from_secs(60);

fn within(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    start.elapsed()
}

/// Two pods, and a server outside that knows them.
fn lab() -> (Lab, ApiServer) {
    let mut lab = beside_a_server();
    let namespace = Path::new("/run/netns").join(lab.outside.as_ref().unwrap().name());
    let listener = in_namespace(&namespace, || TcpListener::bind((SERVER, 6443)).unwrap()).unwrap();
    let server = ApiServer::at(listener, 1);
    server.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}));
    server.put(node(&lab));
    for name in ["client", "server"] {
        server.put(pod(&lab, name));
    }
    std::fs::write(lab.path("kubeconfig"), server.kubeconfig()).unwrap();
    lab.state = "{kubernetes: {kubeconfig: kubeconfig}}".to_owned();
    (lab, server)
}

fn reaches_server(lab: &Lab) -> bool {
    lab.node.output(&format!("ping -n -c 1 -W 1 {SERVER}")).status.success()
}

#[test]
fn a_node_reaches_its_server_through_the_vswitch_and_the_servers_policies_take_effect() {
    require!("ping");
    let (mut lab, api) = lab();
    api.go_down();
    lab.start("");
    let server = lab.get("server").v4.clone();
    // Before there is a state the node reaches the world, and no pod anything.
    assert!(lab.count("ready: ") == 1 && lab.count("denying: there is no state") == 1, "{}", lab.log());
    within("the node's own traffic", || reaches_server(&lab));
    assert!(!lab.pings("client", &server) && !lab.pings("client", SERVER) && !lab.pings("client", &lab.node_v4()));
    assert!(!lab.outside.as_ref().unwrap().output(&format!("ping -n -c 1 -W 1 {server}")).status.success());
    let summary = lab.summary();
    assert_eq!((&summary["source"]["connected"], &summary["source"]["synced"]), (&false.into(), &false.into()));

    api.come_back();
    within("the first state", || lab.pings("client", &server));
    assert!(lab.pings("client", SERVER) && reaches_server(&lab));
    let summary = lab.summary();
    assert_eq!((&summary["source"]["synced"], &summary["source"]["objects"]["Pod"]), (&true.into(), &2.into()));

    api.put(deny());
    println!("created, in force after {:?}", within("the policy", || !lab.pings("client", &server)));
    assert!(lab.pings("server", &lab.get("client").v4));
    api.delete("NetworkPolicy", "default", "deny");
    println!("deleted, in force after {:?}", within("the policy's end", || lab.pings("client", &server)));

    // The server away: what was known last stays in force, and what changes meanwhile takes effect afterwards.
    api.go_down();
    within("it is told", || lab.count("the last good state, of ") > 0);
    api.put(deny());
    assert!(lab.pings("client", &server) && lab.pings("client", SERVER));
    let summary = lab.summary();
    assert!(
        summary["source"]["connected"] == false && summary["source"]["age_seconds"].as_f64() > Some(0.0),
        "{summary:#}"
    );
    api.come_back();
    within("the change", || !lab.pings("client", &server));
    lab.stop();
}

#[test]
fn a_start_without_the_server_goes_on_with_the_last_good_state_where_that_is_wanted() {
    require!("ping");
    let (mut lab, api) = lab();
    lab.state = "{kubernetes: {kubeconfig: kubeconfig, when_unreachable: last_good, folder: kept}}".to_owned();
    api.put(deny());
    lab.start("");
    let (client, server) = (lab.get("client").v4.clone(), lab.get("server").v4.clone());
    within("the state", || lab.pings("server", &client));
    let kept = lab.path("kept").join(format!("last-good-{}.gz", lab.node_name()));
    within("it is kept", || kept.exists());
    lab.stop();
    api.go_down();
    api.delete("NetworkPolicy", "default", "deny");

    lab.start("");
    assert_eq!(lab.count("the last good state is in force, 5 objects"), 1, "{}", lab.log());
    within("the last good state", || lab.pings("server", &client));
    assert!(!lab.pings("client", &server), "the policy of then");
    api.come_back();
    within("the server's state", || lab.pings("client", &server));
    lab.stop();

    // A file with any damage is not used at all.
    let mut bytes = std::fs::read(&kept).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&kept, bytes).unwrap();
    api.go_down();
    lab.start("");
    assert_eq!(lab.count("the last good state is not used"), 1, "{}", lab.log());
    assert!(!lab.pings("server", &client));
    lab.stop();
}
