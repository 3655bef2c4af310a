//! The sequences of the known answers on Services, packet by packet through a worker whose Services change between steps. The resolver's
//! own tests cover which sessions survive a change of state (10 to 12). An end-to-end test covers the restart (20).
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

#[path = "../control/tests/services/asked.rs"]
#[allow(dead_code, reason = "a part is used")]
mod asked;
#[path = "../control/tests/services/cases.rs"]
#[allow(dead_code, reason = "a part is used")]
mod cases;

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};

use bulkhead_answers::run;
use bulkhead_answers::services::Adapter;
use bulkhead_control::inventory::Inventory;
use bulkhead_control::object::Object;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::service::Settings;
use bulkhead_control::source::{Options, ServiceKinds, load_text};
use bulkhead_dataplane::wire::{icmpv4, ipv4, tcp, udp};
use bulkhead_dataplane::{LinkType, Outcome, Packet, PortId, Snapshot, Verdict, Worker, WorkerConfig};
use serde_json::{Value, json};

const NODE: &str = "node1";
const SYN: u8 = tcp::flags::SYN;
const ACK: u8 = tcp::flags::ACK;
const FIN: u8 = tcp::flags::FIN;

/// The source and destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    from: SocketAddr,
    to: SocketAddr,
}

/// A worker of the node, and the state of its cluster.
struct Bed {
    adapter: Adapter,
    inventory: Inventory,
    objects: Vec<Object>,
    pipeline: Pipeline,
    snapshot: Snapshot,
    worker: Worker,
    seconds: u64,
}

impl Bed {
    fn new(settings: Settings, objects: Vec<Object>) -> Self {
        let mut pipeline = Pipeline::new(Scope::Node(NODE.into()));
        pipeline.resync(objects.clone()).unwrap();
        let mut adapter = Adapter::new(NODE.into(), settings);
        adapter.listed();
        let snapshot = run::snapshot(&pipeline.node_tables(NODE).unwrap()).unwrap();
        let worker = Worker::new(WorkerConfig::default());
        let inventory = Inventory::default();
        let mut bed = Self { adapter, inventory, objects: Vec::new(), pipeline, snapshot, worker, seconds: 0 };
        bed.become_cluster(objects);
        bed
    }

    fn become_cluster(&mut self, objects: Vec<Object>) {
        self.adapter.apply(self.inventory.replace(objects.clone()));
        self.objects = objects;
        if let Some(update) = self.adapter.take() {
            let snapshot = run::snapshot(&self.pipeline.node_tables(NODE).unwrap()).unwrap();
            self.snapshot = snapshot.with_services(Some(update.services));
        }
    }

    /// The port on which packets from an address arrive.
    fn port_of(&self, address: IpAddr) -> PortId {
        let outside = self.snapshot.ports().iter().position(|port| &*port.name == "uplink").unwrap();
        self.snapshot.owner(address).unwrap_or_else(|| PortId(u16::try_from(outside).unwrap()))
    }

    fn send(&mut self, from: IpAddr, packet: &[u8]) -> Outcome {
        let (time, in_port) = ((1_700_000_000 + self.seconds) * 1_000_000_000, self.port_of(from));
        let packet = Packet { frame: packet, wire_len: packet.len(), link: LinkType::Raw, in_port, time };
        let mut outcomes = [Outcome::default()];
        self.worker.process(&self.snapshot, &[packet], &mut outcomes);
        outcomes[0]
    }

    /// Sends a packet through the worker. Returns its source and destination when it leaves, or the outcome if it is dropped.
    fn sent(&mut self, ends: Ends, protocol: &str, flags: u8) -> Result<Ends, Box<Outcome>> {
        let outcome = self.send(ends.from.ip(), &packet(ends, protocol, flags));
        if !matches!(outcome.verdict, Verdict::Forward(_)) {
            return Err(outcome.into());
        }
        Ok(outcome.translation.map_or(ends, |sent| Ends {
            from: SocketAddr::new(sent.src, sent.sport),
            to: SocketAddr::new(sent.dst, sent.dport),
        }))
    }

    /// Sends the backend's answer to a packet. Returns as [`Self::sent`] does.
    fn answer(&mut self, sent: Ends, protocol: &str, flags: u8) -> Result<Ends, Box<Outcome>> {
        self.sent(Ends { from: sent.to, to: sent.from }, protocol, flags)
    }
}

fn packet(Ends { from, to }: Ends, protocol: &str, flags: u8) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) else { panic!("IPv4 alone") };
    let (source_port, destination_port) = (from.port(), to.port());
    let (protocol, payload) = if protocol == "UDP" {
        let mut datagram = vec![0; udp::HEADER_LEN];
        udp::Repr { source_port, destination_port }.emit(from.ip(), to.ip(), &mut datagram);
        (17, datagram)
    } else {
        let mut segment = vec![0; tcp::MIN_HEADER_LEN];
        let (sequence, acknowledgement, window) = (7, u32::from(flags != SYN) * 8, 1000);
        let header = tcp::Repr { source_port, destination_port, sequence, acknowledgement, flags, window };
        header.emit(from.ip(), to.ip(), &mut segment);
        (6, segment)
    };
    let payload_len = payload.len();
    let mut packet = vec![0; ipv4::MIN_HEADER_LEN + payload_len];
    let header = ipv4::Repr { source, destination, protocol, hop_limit: 64, tos: 0, payload_len };
    header.emit(&mut packet).copy_from_slice(&payload);
    packet
}

/// An ICMP "packet too big" error about a packet.
fn too_big(about: Ends) -> Vec<u8> {
    let quoted = packet(about, "TCP", ACK);
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (about.to.ip(), about.from.ip()) else { panic!("IPv4 alone") };
    let mut message = [&[0; icmpv4::HEADER_LEN][..], &quoted].concat();
    icmpv4::Repr { kind: icmpv4::kind::UNREACHABLE, code: 4, rest: 1280 }.emit(&mut message);
    let payload_len = message.len();
    let mut packet = vec![0; ipv4::MIN_HEADER_LEN + payload_len];
    let header = ipv4::Repr { source, destination, protocol: 1, hop_limit: 64, tos: 0, payload_len };
    header.emit(&mut packet).copy_from_slice(&message);
    packet
}

/// One run of a sequence.
struct Story {
    bed: Bed,
    /// The packets so far: as sent, and as they left.
    sent: Vec<(Ends, Ends)>,
    protocol: String,
    /// The next port for packets whose port is `*`.
    next_port: u16,
}

impl Story {
    /// The ends of a step's packet. `10.244.1.2:*` gets a new port each time, `10.244.1.*:40001` a new address.
    fn ends(&mut self, packet: &Value) -> Ends {
        self.next_port += 1;
        let (port, host) = (self.next_port.to_string(), (self.next_port % 200 + 20).to_string());
        let from = packet["src"].as_str().unwrap().replace(":*", &format!(":{port}"));
        let from = from.replace(".*:", &format!(".{host}:"));
        Ends { from: from.parse().unwrap(), to: packet["dst"].as_str().unwrap().parse().unwrap() }
    }

    fn step(&mut self, step: &Value) {
        self.bed.seconds = self.bed.seconds.max(step["t"].as_u64().unwrap());
        if let Some(change) = step.get("change") {
            let first = self.sent.first().map(|(_, left)| left.to.to_string());
            let objects = cases::changed(&self.bed.objects, change, first.as_deref());
            return self.bed.become_cluster(objects);
        }
        if step.get("event").is_some() {
            return self.finish();
        }
        if let Some(from) = step.get("reply_from") {
            return self.reply(from.as_str().unwrap().parse().unwrap(), step["expect"].as_str().unwrap());
        }
        if step.get("icmp_error").is_some() {
            return self.error();
        }
        self.packets(step);
    }

    /// Closes the last connection from both sides.
    fn finish(&mut self) {
        let (ends, left) = *self.sent.last().unwrap();
        self.bed.sent(ends, "TCP", ACK).unwrap();
        self.bed.sent(ends, "TCP", FIN | ACK).unwrap();
        self.bed.answer(left, "TCP", FIN | ACK).unwrap();
        self.bed.sent(ends, "TCP", ACK).unwrap();
    }

    fn reply(&mut self, from: SocketAddr, expect: &str) {
        // The answered connection: the last one if the step expects an unchanged source, and otherwise the first.
        let is_plain = expect.starts_with("source stays");
        let (ends, left) = if is_plain { *self.sent.last().unwrap() } else { self.sent[0] };
        assert_eq!(left.to, from);
        let seen = self.bed.answer(left, "TCP", SYN | ACK).unwrap();
        let source: SocketAddr = expect.rsplit(' ').next().unwrap().parse().unwrap();
        assert_eq!((seen.from, seen.to), (source, ends.from), "{expect}");
    }

    fn error(&mut self) {
        let (ends, left) = self.sent[0];
        let outcome = self.bed.send(left.to.ip(), &too_big(left));
        assert_eq!(outcome.verdict, Verdict::Forward(self.bed.port_of(ends.from.ip())));
        let quoted = outcome.translation.unwrap();
        let (from, to) = (SocketAddr::new(quoted.src, quoted.sport), SocketAddr::new(quoted.dst, quoted.dport));
        assert_eq!(Ends { from, to }, ends, "the quoted packet is the one that the client has sent");
    }

    fn packets(&mut self, step: &Value) {
        let (packet, expect) = (&step["packet"], step["expect"].as_str().unwrap());
        self.protocol = packet["protocol"].as_str().unwrap().to_owned();
        let mut found = BTreeSet::new();
        for _ in 0..step["repeat"].as_u64().unwrap_or(1) {
            let ends = self.ends(packet);
            let flags = if step["established"] == true { ACK } else { SYN };
            let (protocol, before) = (self.protocol.clone(), self.sent.clone());
            let left = self.bed.sent(ends, &protocol, flags);
            let Ok(left) = left else {
                let is_right = expect == "reject" || expect.ends_with("or refused");
                assert!(is_right, "{step}: {left:?}");
                continue;
            };
            if flags == SYN && protocol == "TCP" {
                self.bed.answer(left, "TCP", SYN | ACK).unwrap();
            }
            let backend = |which: Option<&(Ends, Ends)>| which.unwrap().1.to.ip();
            match expect {
                "same_backend_as_first" => assert_eq!(left.to.ip(), backend(before.first()), "{step}"),
                "same_backend_as_previous" => assert_eq!(left.to.ip(), backend(before.last()), "{step}"),
                "any_eligible" => assert_ne!(left.to.ip(), backend(before.first()), "{step}"),
                "any" | "more_than_one_backend" | "independent_of_other_port" => assert_ne!(left.to, ends.to),
                "pass" => assert_eq!(left, ends, "{step}"),
                "reject" => panic!("{step}: {left:?}"),
                only => assert_eq!(left.to.to_string(), only.split(' ').next().unwrap(), "{step}"),
            }
            found.insert(left.to);
            // Two connections that share a backend must differ there by the client's port.
            let is_mixed_up = before.iter().any(|(other, seen)| *seen == left && *other != ends);
            assert!(!is_mixed_up || expect == "pass", "{step}: {left:?}");
            self.sent.push((ends, left));
            self.bed.seconds += step["advance_each"].as_u64().unwrap_or(0);
        }
        if matches!(expect, "more_than_one_backend" | "independent_of_other_port") {
            assert!(found.len() > 1, "{step}: {found:?}");
        }
    }
}

#[test]
fn packets_of_the_sequences_are_given_to_the_right_backends_while_clusters_change() {
    let Some(folder) = crate::support::cases() else { return };
    let known: Value = serde_json::from_str(&fs::read_to_string(folder.join("service_cases.json")).unwrap()).unwrap();
    let mut told = BTreeSet::new();
    for sequence in known["sequences"].as_array().unwrap() {
        let id = sequence["id"].as_u64().unwrap();
        let Some(steps) = sequence["steps"].as_array().filter(|_| id != 20) else { continue };
        assert_eq!(sequence["node"], NODE);
        let settings = Settings::parse("settings", &known["defaults"].to_string()).unwrap();
        let lists = known["objects"][sequence["objects"].as_str().unwrap()].as_object().unwrap().values();
        let items: Vec<&Value> = lists.flat_map(|list| list.as_array().unwrap()).collect();
        let text = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
        let options = Options { services: ServiceKinds::Read, ..Options::default() };
        let objects = load_text("case.json", &text, options).unwrap_or_else(|errors| panic!("{errors}")).objects;
        println!("{id}: {}", sequence["title"]);
        let mut story =
            Story { bed: Bed::new(settings, objects), sent: Vec::new(), protocol: String::new(), next_port: 10_000 };
        steps.iter().for_each(|step| story.step(step));
        told.insert(id);
    }
    assert_eq!(told, (1..=9).chain(13..=19).collect());
}
