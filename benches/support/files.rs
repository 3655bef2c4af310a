//! Writes a cluster as files in the form of `kubectl get -o yaml`, with claims and a capture of its traffic, as input for commands. The
//! cluster has the shape described in [`super`]. Each of the ten apps of a namespace is a Deployment.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use super::{APPS, Random, Shape, TEAMS, pod_address};

/// Packets per connection in the capture: handshake, data, end.
const PACKETS_PER_CONNECTION: u32 = 50;

/// Writes `cluster.yaml` and `policies.yaml` to a folder. In a changed state, one tenth of the policies is missing, and one tenth allows
/// another port.
pub(crate) fn write_state(folder: &Path, shape: Shape, is_changed: bool) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut cluster = BufWriter::new(fs::File::create(folder.join("cluster.yaml"))?);
    writeln!(cluster, "apiVersion: v1\nkind: List\nitems:")?;
    for at in 0..shape.namespaces {
        let team = at % TEAMS;
        writeln!(
            cluster,
            "- apiVersion: v1\n  kind: Namespace\n  metadata:\n    labels:\n      kubernetes.io/metadata.name: ns-{at}\n      \
             team: t{team}\n    name: ns-{at}"
        )?;
    }
    for at in 0..shape.pods.div_ceil(shape.pods_per_node) {
        let address = Ipv4Addr::from(0xac10_0000 + at);
        writeln!(
            cluster,
            "- apiVersion: v1\n  kind: Node\n  metadata:\n    name: node-{at}\n  status:\n    addresses:\n    - address: {address}\n      \
             type: InternalIP"
        )?;
    }
    for at in 0..shape.pods {
        write_pod(&mut cluster, shape, at)?;
    }
    cluster.flush()?;
    let mut policies = BufWriter::new(fs::File::create(folder.join("policies.yaml"))?);
    let mut random = Random(0x5eed);
    for at in 0..shape.policies {
        let policy = policy(shape, at, is_changed && at % 10 == 1, &mut random);
        if !is_changed || at % 10 != 0 {
            policies.write_all(policy.as_bytes())?;
        }
    }
    policies.flush()
}

fn write_pod(out: &mut impl Write, shape: Shape, at: u32) -> io::Result<()> {
    let (namespace, app, node) = (at % shape.namespaces, at / shape.namespaces % APPS, at / shape.pods_per_node);
    let (address, host) = (pod_address(at), Ipv4Addr::from(0xac10_0000 + node));
    writeln!(
        out,
        "- apiVersion: v1
  kind: Pod
  metadata:
    creationTimestamp: \"2026-11-01T10:00:00Z\"
    generateName: a{app}-5d4f8c7b9d-
    labels:
      app: a{app}
      pod-template-hash: 5d4f8c7b9d
      release: r{release}
    name: a{app}-5d4f8c7b9d-{at}
    namespace: ns-{namespace}
    ownerReferences:
    - apiVersion: apps/v1
      blockOwnerDeletion: true
      controller: true
      kind: ReplicaSet
      name: a{app}-5d4f8c7b9d
      uid: 1c9e27a3-0000-4000-8000-{namespace:04}{app:08}
    resourceVersion: \"{version}\"
    uid: 2c9e27a3-0000-4000-8000-{at:012}
  spec:
    containers:
    - image: registry.example/a{app}:1.2.3
      imagePullPolicy: IfNotPresent
      name: main
      ports:
      - containerPort: 8080
        name: http
        protocol: TCP
      resources:
        limits:
          cpu: 500m
          memory: 256Mi
      volumeMounts:
      - mountPath: /var/run/secrets/kubernetes.io/serviceaccount
        name: token
        readOnly: true
    nodeName: node-{node}
    restartPolicy: Always
    serviceAccountName: default
  status:
    hostIP: {host}
    phase: Running
    podIP: {address}
    podIPs:
    - ip: {address}
    qosClass: Burstable",
        release = namespace % 3,
        version = 100_000 + at,
    )
}

fn policy(shape: Shape, at: u32, is_wider: bool, random: &mut Random) -> String {
    let (namespace, app) = (at % shape.namespaces, at / shape.namespaces % APPS);
    let [near, far, out, out_far] = [(); 4].map(|()| random.below(APPS));
    let [team, out_team] = [(); 2].map(|()| random.below(TEAMS));
    let has_egress = at.is_multiple_of(3);
    let (types, wider) = (
        if has_egress { "[Ingress, Egress]" } else { "[Ingress]" },
        if is_wider { "\n    - port: 7000\n      endPort: 7010" } else { "" },
    );
    let mut text = format!(
        "---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: policy-{at}
  namespace: ns-{namespace}
spec:
  podSelector:
    matchLabels:
      app: a{app}
  policyTypes: {types}
  ingress:
  - from:
    - podSelector:
        matchLabels:
          app: a{near}
    ports:
    - port: 443
    - port: http{wider}
  - from:
    - namespaceSelector:
        matchLabels:
          team: t{team}
      podSelector:
        matchLabels:
          app: a{far}
    ports:
    - port: 9090
"
    );
    if has_egress {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "  egress:
  - to:
    - podSelector:
        matchLabels:
          app: a{out}
    - namespaceSelector:
        matchLabels:
          team: t{out_team}
      podSelector:
        matchLabels:
          app: a{out_far}
  - to:
    - ipBlock:
        cidr: 192.0.2.0/24
        except:
        - 192.0.2.64/26
    ports:
    - port: 5432
"
        );
    }
    text
}

/// Writes claims of four kinds in turn: no outside access, access from the namespace only, egress, a port for a whole team.
pub(crate) fn write_claims(path: &Path, shape: Shape, count: u32) -> io::Result<()> {
    let mut text = "claims:\n".to_owned();
    for at in 0..count {
        let (namespace, app, team) = (at % shape.namespaces, at % APPS, at % TEAMS);
        let pods = format!("{{namespace: ns-{namespace}, labels: {{app: a{app}}}}}");
        let claim = match at % 4 {
            0 => format!("never: {{from: outside, to: {pods}, ports: [5432]}}"),
            1 => format!("only: {{from: {{namespace: ns-{namespace}}}, to: {pods}, ports: [443, 8080]}}"),
            2 => format!("always: {{from: {pods}, to: outside, ports: [443]}}"),
            _ => format!("never: {{from: anyone, to: {{namespaceLabels: {{team: t{team}}}}}, ports: [22]}}"),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "- name: claim {at}\n  {claim}");
    }
    fs::write(path, text)
}

/// Writes a capture of TCP connections between pods, each of [`PACKETS_PER_CONNECTION`] packets, one packet per microsecond.
///
/// With `is_scattered`, connections are between random pods, so nearly every one connects another pair of workloads.
pub(crate) fn write_capture(path: &Path, shape: Shape, packets: u32, is_scattered: bool) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, fs::File::create(path)?);
    // Source: draft-ietf-opsawg-pcap: little-endian microseconds, version 2.4, Ethernet.
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        out.write_all(&word.to_le_bytes())?;
    }
    let mut random = Random(9);
    for connection in 0..packets / PACKETS_PER_CONNECTION {
        let of_namespace =
            |random: &mut Random, namespace| namespace + shape.namespaces * random.below(shape.pods / shape.namespaces);
        let (client, server) = if is_scattered {
            (random.below(shape.pods), random.below(shape.pods))
        } else {
            let namespace = random.below(shape.namespaces);
            (of_namespace(&mut random, namespace), of_namespace(&mut random, namespace))
        };
        let port = [443, 8_080, 9_090][random.below(3) as usize];
        let client = (pod_address(client), u16::try_from(30_000 + connection % 30_000).unwrap());
        let server = (pod_address(server), port);
        for at in 0..PACKETS_PER_CONNECTION {
            // SYN; SYN and ACK; ACK; at the end FIN and ACK.
            let flags = match at {
                0 => 0x02,
                1 => 0x12,
                _ if at + 2 >= PACKETS_PER_CONNECTION => 0x11,
                _ => 0x10,
            };
            let (from, to) = if at % 2 == 0 { (client, server) } else { (server, client) };
            let packet = tcp(from, to, flags);
            let micros = connection * PACKETS_PER_CONNECTION + at;
            let length = u32::try_from(packet.len()).unwrap();
            for word in [1_795_466_672 + micros / 1_000_000, micros % 1_000_000, length, length] {
                out.write_all(&word.to_le_bytes())?;
            }
            out.write_all(&packet)?;
        }
    }
    out.flush()
}

/// Returns a frame with an empty segment. Its checksum is not set, since no reader verifies it.
fn tcp((src, sport): (IpAddr, u16), (dst, dport): (IpAddr, u16), flags: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];
    frame.extend([0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0]);
    for address in [src, dst] {
        let IpAddr::V4(address) = address else { unreachable!("pods of benches have IPv4 addresses") };
        frame.extend(address.octets());
    }
    let checksum = {
        let words = frame[14..].chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let sum = words.sum::<u32>();
        let folded = (sum & 0xffff) + (sum >> 16);
        !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap()
    };
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(sport.to_be_bytes());
    frame.extend(dport.to_be_bytes());
    frame.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0xfa, 0, 0, 0, 0, 0]);
    frame
}
