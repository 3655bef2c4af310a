//! The benchmark's packets, and the vswitch's snapshot with the policy that allows them.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bulkhead_answers::run;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::acl::NodeTables;
use bulkhead_control::source::{Strictness, load_text};
use bulkhead_dataplane::{Link, PortConfig, Routes, Snapshot};
use ipnet::IpNet;

use super::lab::{GENERATOR, SINK};
use crate::policy::{self, UDP_PORT};

/// Number of flows, sent in turn: too many for one of them to matter, too few for the measurement to be about CPU caches.
pub(super) const FLOWS: u16 = 1_000;
/// Number of flows opened at once. `PAUSE` follows each group, so that no queue overflows.
pub(crate) const GROUP: usize = 100;
pub(crate) const PAUSE: Duration = Duration::from_millis(10);
/// An unassigned MAC address. The receiver's kernel counts packets to it and drops them at once, which costs little.
pub(super) const NOBODY: [u8; 6] = [0x02, 0, 0, 0, 0, 0xee];

/// Direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the generator to the sink.
    Forth,
    /// From the sink to the generator.
    Back,
}

/// Returns one UDP packet of 60 bytes per flow, between two MAC addresses.
pub(crate) fn frames(way: Way, from: [u8; 6], to: [u8; 6]) -> Vec<Vec<u8>> {
    (0..FLOWS).map(|flow| frame(way, from, to, 10_000 + flow)).collect()
}

fn frame(way: Way, from: [u8; 6], to: [u8; 6], client: u16) -> Vec<u8> {
    let address = |text: &str| text.parse::<Ipv4Addr>().map_or([0; 4], |address| address.octets());
    let (generator, sink) = (address(GENERATOR), address(SINK));
    let (src, dst, sport, dport) = match way {
        Way::Forth => (generator, sink, client, UDP_PORT),
        Way::Back => (sink, generator, UDP_PORT, client),
    };
    let mut ip = [0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    ip[12..16].copy_from_slice(&src);
    ip[16..20].copy_from_slice(&dst);
    let sum = ip.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(u16::MAX);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = Vec::with_capacity(60);
    for part in [&to[..], &from, &[0x08, 0x00], &ip, &sport.to_be_bytes(), &dport.to_be_bytes()] {
        frame.extend(part);
    }
    // The length, and no checksum, which IPv4 permits.
    frame.extend([0, 26, 0, 0]);
    frame.resize(60, 0);
    frame
}

/// Returns the pods and the policy as YAML.
fn state() -> String {
    let pod = |name: &str, address: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: x, labels: {{app: {name}}}}}\n\
             spec: {{nodeName: node-1}}\nstatus: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}\n"
        )
    };
    let mut text = pod("generator", GENERATOR) + &pod("sink", SINK);
    text.push_str(&policy::network_policy());
    text
}

/// Returns the vswitch's snapshot. Port 0 is the generator's, port 1 the sink's.
///
/// # Errors
/// If the policy does not compile.
pub(super) fn snapshot(links: [Link; 2], macs: [[u8; 6]; 2], with_policy: bool) -> anyhow::Result<Snapshot> {
    let mut pipeline = Pipeline::new(Scope::Node("node-1".into()));
    let text = state();
    let text = if with_policy { &*text } else { text.split("---\napiVersion: networking").next().unwrap_or_default() };
    pipeline.resync(load_text("bench", text, Strictness::Strict)?.objects)?;
    let tables: Arc<NodeTables> = pipeline.node_tables("node-1").context("the state has no node")?;
    let mut ports: Vec<PortConfig> = tables
        .interfaces
        .iter()
        .map(|interface| run::port_config(tables.enforced_at, interface))
        .collect::<anyhow::Result<_>>()?;
    let mut routes: Vec<(IpNet, _)> = Vec::new();
    for (at, port) in (0..).zip(&mut ports) {
        if let (Some(link), Some(mac)) = (links.get(at), macs.get(at)) {
            (port.link, port.mac) = (Some(*link), Some(*mac));
        }
        let id = bulkhead_dataplane::PortId(u16::try_from(at)?);
        routes.extend(port.addresses.iter().map(|&address| (IpNet::from(address), id)));
    }
    let compiled = tables.tables.iter().map(|table| table.tables.clone()).collect();
    Ok(Snapshot::new(1, ports, compiled, Routes::new(routes)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_dataplane::{LinkType, Outcome, Packet, PortId, Verdict, Worker, WorkerConfig};

    #[test]
    fn the_policy_lets_every_flow_of_the_benchmark_through_and_nothing_else() {
        let link = Link { mac: [2, 0, 0, 0, 0, 1], mtu: 1500 };
        let (gen_mac, link_mac) = ([2, 0, 0, 0, 0, 2], link.mac);
        let snapshot = snapshot([link; 2], [gen_mac, NOBODY], true).unwrap();
        let mut worker = Worker::new(WorkerConfig::default());
        let mut judge_from = |in_port, frame: &[u8]| {
            let packet = Packet { frame, wire_len: frame.len(), link: LinkType::Ethernet, in_port, time: 1 };
            let mut outcome = [Outcome::UNJUDGED];
            worker.process(&snapshot, &[packet], &mut outcome);
            outcome[0].verdict
        };
        let frames = frames(Way::Forth, gen_mac, link_mac);
        assert_eq!(frames.len(), usize::from(FLOWS));
        assert!(
            frames.iter().all(|frame| judge_from(PortId(0), frame) == Verdict::Forward(PortId(1)) && frame.len() == 60)
        );
        for reply in super::frames(Way::Back, NOBODY, link_mac) {
            assert_eq!(judge_from(PortId(1), &reply), Verdict::Forward(PortId(0)));
        }
        let mut other = frames[0].clone();
        other[36..38].copy_from_slice(&(UDP_PORT + 1).to_be_bytes());
        assert!(judge_from(PortId(0), &other).drop_reason().is_some());
    }
}
