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
