//! Files as people have them: compressed, in folders with others, in several encodings.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::stderr;
use crate::support::{bulkhead, scratch, stdout};

/// Two pods on one node, of which nobody may connect to the second.
const STATE: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n---\n\
    {apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 172.18.0.1}]}}\n---\n\
    {apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {nodeName: n1},\n  \
     status: {phase: Running, podIPs: [{ip: 10.0.0.1}]}}\n---\n\
    {apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {nodeName: n1},\n  \
     status: {phase: Running, podIPs: [{ip: 10.0.0.2}]}}\n---\n\
    {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop},\n  \
     spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}}\n";

fn gzipped(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_compressed_state_is_read_by_name() {
    let plain = scratch("files-plain.yaml", STATE);
    let state = scratch("files-state.yaml.gz", &gzipped(STATE));
    let pair = ["--from", "shop/web", "--to", "shop/db", "--port", "80"];
    for (command, more, code) in [
        ("lint", &[][..], 0),
        ("reach", &["--port", "80"], 0),
        ("explain", &pair, 1),
        ("diff", &["--against", &plain], 0),
        ("diff", &["--against", &state], 0),
    ] {
        let ask = |state: &str| stdout(&bulkhead(&[&[command, "--state", state], more].concat()), code);
        assert_eq!(ask(&state).replace(&state, &plain), ask(&plain), "{command}");
    }
    // What was compressed and is no text of objects is an error about the file, not about a bundle.
    let other = scratch("files-other.yaml.gz", &gzipped("a: b\n"));
    let told = stderr(&["lint", "--state", &other], 2);
    assert!(told.contains(&other) && !told.contains("bundle"), "{told}");
}

#[test]
fn claims_settings_and_flows_are_read_in_the_encodings_of_states() {
    let state = scratch("files-encodings.yaml", STATE);
    let utf_16 = |text: &str| -> Vec<u8> {
        std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect()
    };
    let claims = "claims:\n- name: closed\n  never: {from: shop/web, to: shop/db}\n";
    for (name, bytes) in [("claims.gz", gzipped(claims)), ("claims.yaml", utf_16(claims))] {
        let path = scratch(&format!("files-{name}"), &bytes);
        assert!(stdout(&bulkhead(&["test", "--state", &state, &path]), 0).contains("closed"), "{name}");
    }
    for (name, bytes) in
        [("set.gz", gzipped("cluster_cidrs: [10.0.0.0/8]")), ("set.yaml", utf_16("cluster_cidrs: [10.0.0.0/8]"))]
    {
        let path = scratch(&format!("files-{name}"), &bytes);
        let pair = ["--from", "shop/web", "--to", "10.96.0.1:80"];
        stdout(
            &bulkhead(&[&["resolve", "--state", &state, "--node", "n1", "--settings", &path][..], &pair].concat()),
            0,
        );
    }
    let flow = "{\"flow\": {\"time\": \"2026-11-01T00:00:00Z\", \"verdict\": \"FORWARDED\", \"IP\": {\"source\": \"10.0.0.1\", \
                \"destination\": \"10.0.0.2\", \"ipVersion\": \"IPv4\"}, \"l4\": {\"TCP\": {\"source_port\": 40000, \
                \"destination_port\": 80}}, \"is_reply\": false}}\n";
    let replay = |path: &str| bulkhead(&["replay", "--state", &state, "--flows", path]);
    let [plain, packed, wide] =
        [("log", flow.as_bytes().to_vec()), ("log.gz", gzipped(flow)), ("log.16", utf_16(flow))]
            .map(|(name, bytes)| scratch(&format!("files-{name}"), &bytes));
    let plain = replay(&plain);
    assert!(!plain.stdout.is_empty());
    for other in [packed, wide] {
        let told = replay(&other);
        assert_eq!((&plain.stdout, plain.status), (&told.stdout, told.status), "{other}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_is_no_input() {
    let state = scratch("files-devices.yaml", STATE);
    let zero = "/dev/zero";
    for args in [
        &["lint", "--state", zero][..],
        &["lint", "--state", &state, "--hits", zero],
        &["test", "--state", &state, zero],
        &["replay", "--state", &state, "--flows", zero],
        &[
            "resolve",
            "--state",
            &state,
            "--node",
            "n1",
            "--settings",
            zero,
            "--from",
            "shop/web",
            "--to",
            "10.96.0.1:80",
        ],
    ] {
        let told = stderr(args, 2);
        assert!(told.contains("/dev/zero: a device is no file"), "{args:?}: {told}");
    }
}
