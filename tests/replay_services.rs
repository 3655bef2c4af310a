//! `bulkhead replay` against the known answers on Services. Each case's first packets are in a capture of the port where they arrive.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, SocketAddr};

use crate::support::{bulkhead, cases, scratch, stdout};
use bulkhead_dataplane::io::{CaptureWriter, CapturedPacket};
use bulkhead_dataplane::probe::{Probe, ProbeKind};
use bulkhead_dataplane::{DropReason, LinkType, PortConfig, PortId, PortKind, Verdict};
use serde_json::{Value, json};

/// Connections per case: enough to reach each of a handful of backends.
const TRIES: u16 = 64;

/// Writes a capture of packets received on one port, with the vswitch's name of the port. Returns its path.
fn capture(name: &str, port: &str, packets: &[Vec<u8>]) -> String {
    let path = scratch(name, "");
    let ports = [PortConfig::new(port.to_owned(), PortKind::Pod)];
    let mut writer = CaptureWriter::new(fs::File::create(&path).unwrap(), &ports).unwrap();
    for (number, data) in (1..).zip(packets) {
        let time = 1_700_000_000_000_000_000 + number * 1_000_000;
        let (link, original_len) = (LinkType::Raw, data.len());
        let packet = CapturedPacket { number, time, link, interface: None, direction: None, data, original_len };
        writer.write(&packet, PortId(0), Verdict::Drop(DropReason::UnknownPort), "").unwrap();
    }
    writer.finish().unwrap();
    path
}

/// The program's JSON lines, one per packet.
fn replayed(state: &Value, settings: &Value, node: &str, capture: &str) -> Vec<Value> {
    let state = scratch("replay-services-state.json", &state.to_string());
    let settings = scratch("replay-services-settings.json", &settings.to_string());
    let words = ["replay", "-o", "json", "--state", &state, "--node", node, "--settings", &settings, capture];
    let text = stdout(&bulkhead(&words), 0);
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line.get("packet").is_some()).collect()
}

fn socket(value: &Value) -> Option<SocketAddr> {
    value.as_str().map(|text| text.parse().unwrap())
}

/// The name of the port on which a client's packets arrive.
fn port(case: &Value, objects: &Value) -> String {
    let address = &case["client"]["ip"];
    let is_clients = |pod: &&Value| {
        let addresses = pod["status"]["podIPs"].as_array();
        addresses.is_some_and(|all| all.iter().any(|one| one["ip"] == *address))
            && pod["spec"]["nodeName"] == case["node"]
    };
    match case["client"]["kind"].as_str().unwrap() {
        "node" => "host".to_owned(),
        "pod" => {
            let pod = objects["pods"].as_array().unwrap().iter().find(is_clients);
            let text = |pod: &Value, key: &str| pod["metadata"][key].as_str().unwrap().to_owned();
            pod.map_or_else(|| "uplink".to_owned(), |pod| format!("{}/{}", text(pod, "namespace"), text(pod, "name")))
        }
        _ => "uplink".to_owned(),
    }
}

fn check(case: &Value, lines: &[Value]) -> Result<(), String> {
    let sockets =
        |value: &Value| -> BTreeSet<SocketAddr> { value.as_array().into_iter().flatten().filter_map(socket).collect() };
    let expect = &case["expect"];
    let reasons: BTreeSet<&str> = lines.iter().filter_map(|line| line["reason"].as_str()).collect();
    let is_refused = |known: &[&str]| {
        let is_known = reasons.len() == 1 && reasons.iter().all(|reason| known.contains(reason));
        is_known && lines.iter().all(|line| line["translated"]["backend"].is_null())
    };
    let is_right = match expect["action"].as_str().unwrap() {
        "dnat" => {
            let given: BTreeSet<SocketAddr> =
                lines.iter().filter_map(|line| socket(&line["translated"]["backend"])).collect();
            let rewritten: BTreeSet<SocketAddr> = lines
                .iter()
                .filter(|line| !line["translated"]["source"].is_null())
                .filter_map(|line| socket(&line["translated"]["backend"]))
                .collect();
            let is_forwarded = lines.iter().all(|line| line["verdict"] == "forward");
            let has_name = lines.iter().all(|line| line["translated"]["service"].is_string());
            let snat = &expect["snat"];
            let is_kept = snat["must_not"] != true || rewritten.is_empty();
            let is_given = given == sockets(&expect["backends"]) && sockets(&snat["must"]).is_subset(&rewritten);
            is_forwarded && has_name && is_given && is_kept
        }
        "reject" => is_refused(&["no_endpoint", "unknown_service_port"]),
        "drop" => is_refused(&["no_local_endpoint", "service_source_range", "unknown_service_address"]),
        // The address may be unassigned. Only the lack of a translation counts.
        _ => lines.iter().all(|line| line["translated"].is_null()),
    };
    let shown = || lines.iter().take(3).map(Value::to_string).collect::<Vec<_>>().join("\n    ");
    if is_right { Ok(()) } else { Err(format!("case {} ({}): {expect}\n    {}", case["id"], case["objects"], shown())) }
}

/// Whether node ports must answer at an address that is not in the Node object. `replay` knows the node's addresses only from there.
fn is_unknown_address(case: &Value, objects: &Value, to: IpAddr) -> bool {
    let addresses = |node: &Value| -> Vec<IpAddr> {
        let all = node["status"]["addresses"].as_array().into_iter().flatten();
        all.map(|one| one["address"].as_str().unwrap().parse().unwrap()).collect()
    };
    let is_told = objects["nodes"].as_array().unwrap().iter().any(|node| addresses(node).contains(&to));
    let is_external = case["client"]["kind"] == "external" && case["expect"]["action"] == "dnat";
    is_external && !is_told && case["settings"]["node_port_addresses"].is_array()
}

#[test]
fn every_packet_of_the_known_answers_is_replayed_as_expected() {
    let Some(folder) = cases() else { return };
    let known: Value = serde_json::from_str(&fs::read_to_string(folder.join("service_cases.json")).unwrap()).unwrap();
    let (mut wrong, mut actions, mut unknown) = (Vec::new(), BTreeMap::new(), 0);
    for case in known["cases"].as_array().unwrap() {
        let objects = &known["objects"][case["objects"].as_str().unwrap()];
        let mut settings = known["defaults"].clone();
        for (key, value) in case["settings"].as_object().into_iter().flatten() {
            settings[key] = value.clone();
        }
        let items: Vec<&Value> =
            objects.as_object().unwrap().values().flat_map(|list| list.as_array().unwrap()).collect();
        let state = json!({"apiVersion": "v1", "kind": "List", "items": items});
        let kind = match case["dst"]["protocol"].as_str().unwrap() {
            "TCP" => ProbeKind::Tcp,
            "UDP" => ProbeKind::Udp,
            "SCTP" => ProbeKind::Sctp,
            _ => ProbeKind::IcmpEcho,
        };
        let ip = |value: &Value| -> IpAddr { value["ip"].as_str().unwrap().parse().unwrap() };
        let (src, dst) = (ip(&case["client"]), ip(&case["dst"]));
        let dport = u16::try_from(case["dst"]["port"].as_u64().unwrap()).unwrap();
        let packets: Vec<_> =
            (0..TRIES).map(|at| Probe { src, dst, kind, sport: 40_000 + at, dport }.request().unwrap()).collect();
        let capture = capture("replay-services.pcapng", &port(case, objects), &packets);
        let lines = replayed(&state, &settings, case["node"].as_str().unwrap(), &capture);
        assert_eq!(lines.len(), usize::from(TRIES));
        if is_unknown_address(case, objects, dst) {
            assert!(lines.iter().all(|line| line["translated"].is_null()), "{}", case["id"]);
            unknown += 1;
            continue;
        }
        wrong.extend(check(case, &lines).err());
        *actions.entry(case["expect"]["action"].as_str().unwrap()).or_insert(0) += 1;
    }
    assert!(wrong.is_empty(), "{} are wrong\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!((actions.values().sum::<i32>(), unknown), (172, 2), "{actions:?}");
}

/// The program's table at `node-1` for connections of an example pod to its Service. The capture has an answer of web-1 to each connection.
fn table(policy: &str) -> String {
    const CART: &str = "10.244.1.2";
    let [src, vip, dst]: [IpAddr; 3] = [CART, "10.96.0.20", "10.244.1.20"].map(|text| text.parse().unwrap());
    let connection = |sport: u16| {
        let asked = Probe { src, dst: vip, kind: ProbeKind::Tcp, sport, dport: 80 }.request().unwrap();
        [(0, asked), (1, Probe { src, dst, kind: ProbeKind::Tcp, sport, dport: 8080 }.reply().unwrap())]
    };
    let ports = ["shop/cart", "shop/web-1"].map(|name| PortConfig::new(name.to_owned(), PortKind::Pod));
    let path = scratch(&format!("replay-services-{}.pcapng", policy.len()), "");
    let mut writer = CaptureWriter::new(fs::File::create(&path).unwrap(), &ports).unwrap();
    for (number, (port, data)) in (1..).zip((40_000..40_016).flat_map(connection)) {
        let (time, link, original_len) = (number * 1_000_000, LinkType::Raw, data.len());
        let packet = CapturedPacket { number, time, link, interface: None, direction: None, data: &data, original_len };
        writer.write(&packet, PortId(port), Verdict::Drop(DropReason::UnknownPort), "").unwrap();
    }
    writer.finish().unwrap();
    let example = fs::read_to_string("examples/service-policy.yaml").unwrap();
    let is_kept = |document: &&str| policy.is_empty() || !document.contains("kind: NetworkPolicy");
    let documents: Vec<&str> = example.split("---\n").filter(is_kept).chain([policy]).collect();
    let policies = scratch(&format!("replay-services-{}.yaml", policy.len()), &documents.join("---\n"));
    let state = ["--state", "examples/services.yaml", &policies];
    stdout(&bulkhead(&[&["replay", "--node", "node-1", &path], &state[..]].concat()), 0)
}

/// The packet count of the row with this backend, and the row's other cells.
fn row(table: &str, backend: &str) -> (u32, String) {
    let line = table.lines().find(|line| line.contains(backend)).unwrap_or_else(|| panic!("{backend}: {table}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    (words[0].parse().unwrap(), words[1..].join(" "))
}

#[test]
fn the_table_has_both_directions_in_one_row_with_service_and_backend() {
    let table = table("");
    let (near, words) = row(&table, "shop/web-1 8080");
    assert!(words.starts_with("shop/cart shop/web (10.96.0.20) TCP 80 shop/web-1 8080 forward"), "{table}");
    let (far, words) = row(&table, "10.244.2.20 8080");
    assert!(words.starts_with("shop/cart shop/web (10.96.0.20) TCP 80 10.244.2.20 8080 forward"), "{table}");
    // For connections to web-2, the capture has no answers of their session: web-1's do not match it.
    assert!(near >= 4 && far >= 2 && near / 2 + far == 16, "{table}");
}

#[test]
fn a_connection_that_policy_denies_is_told_with_the_backend_that_it_was_judged_for() {
    let table = table(
        "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: closed, namespace: shop}, \
         spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}}\n",
    );
    // The capture also has answers of web-1 to the denied connections.
    let (refused, words) = row(&table, "shop/web-1 8080");
    assert!(words.starts_with("shop/cart shop/web (10.96.0.20) TCP 80 shop/web-1 8080 drop"), "{table}");
    assert!(refused >= 4 && words.contains("shop/closed"), "{table}");
}
