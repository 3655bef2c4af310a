//! Flows while no worker is alive.

use std::collections::BTreeSet;
use std::ops::Range;
use std::thread::sleep;

use bulkhead_dataplane::io::{Absence, FlowChange, FlowChangeKind};
use etherparse::PacketBuilder;

use super::*;

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

/// Shorter than the pauses of these tests.
const LEASE: u64 = 100_000_000;
/// Twice as long as a pause in which a flow must not end, so that a busy machine does not matter.
const TIMEOUT: u64 = 4_000_000_000;
const PAUSE: Duration = Duration::from_nanos(TIMEOUT / 2 + TIMEOUT / 8);

/// Both directions of a TCP connection between two pods' interfaces.
pub(super) struct Connection {
    pub(super) lab: Lab,
    ports: [TcAttachment; 2],
    /// The interfaces' indices.
    pub(super) indices: [u32; 2],
    pub(super) flows: [CachedFlow; 2],
}

impl Connection {
    pub(super) fn new(net: Net, pins: Option<PathBuf>) -> Self {
        let lab = Lab::on(net, 1, pins);
        let mut ports = ["va", "vb"].map(|name| lab.attach(name));
        lab.net.inside("sw", || ports.iter_mut().for_each(|port| port.open().unwrap()));
        lab.datapath.enter(&two_ports());
        let slots = [ports[0].slot(), ports[1].slot()];
        let flow = |at: usize| {
            let flow = Flow {
                src: [10, 77, 0, 1 + at as u8].into(),
                dst: [10, 77, 0, 2 - at as u8].into(),
                protocol: TCP,
                sport: 5000 + at as u16,
                dport: 5001 - at as u16,
                icmp: None,
            };
            CachedFlow {
                ports: [PortId(at as u16), PortId(1 - at as u16)],
                lease: LEASE,
                timeout: TIMEOUT,
                start: FlowStart::Latch(FlowLatch(7 + at as u16)),
                ..cached([slots[at], slots[1 - at]], flow)
            }
        };
        let indices = lab.net.inside("sw", || ports.each_ref().map(|port| port.index().unwrap()));
        Self { lab, ports, indices, flows: [flow(0), flow(1)] }
    }

    fn add(self) -> Self {
        self.flows.iter().for_each(|flow| self.lab.datapath.add(flow));
        self
    }

    /// Begins as a vswitch does that is running, and ends it without a worker's knowledge.
    fn vanish(&self) {
        self.lab.datapath.start_beating(|_| {}).unwrap();
        self.lab.datapath.stop_beating();
        sleep(Duration::from_millis(20));
    }

    /// Like [`forwards`], for one side.
    fn forwards(&self, at: usize, flags: u8) -> bool {
        let (datapath, port, flow) = (&*self.lab.datapath, self.indices[at], &self.flows[at]);
        self.lab.net.inside("sw", || forwards(datapath, port, flow, flags))
    }

    /// Whether both directions' segments are forwarded.
    fn is_open(&self) -> [bool; 2] {
        [0, 1].map(|at| self.forwards(at, ACK))
    }
}

/// Runs the program on a segment of a flow that arrives on this interface. Returns whether it is forwarded; otherwise it goes to the worker
/// unchanged. Call it in the interface's namespace.
fn forwards(datapath: &TcDatapath, port: u32, flow: &CachedFlow, flags: u8) -> bool {
    forwards_numbered(datapath, port, flow, flags, [1000, 77])
}

/// Like [`forwards`], with this sequence and acknowledgement number.
pub(super) fn forwards_numbered(
    datapath: &TcDatapath,
    port: u32,
    flow: &CachedFlow,
    flags: u8,
    [sequence, acknowledgement]: [u32; 2],
) -> bool {
    let Flow { src, dst, sport, dport, .. } = flow.flow;
    let octets = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V4(address) => address.octets(),
        std::net::IpAddr::V6(_) => unreachable!("the flows are IPv4"),
    };
    let mut builder = PacketBuilder::ethernet2(*b"ghijkl", *b"abcdef")
        .ipv4(octets(src), octets(dst), 64)
        .tcp(sport, dport, sequence, 512);
    for (flag, set) in [(FIN, 0), (SYN, 1), (RST, 2), (ACK, 3)] {
        builder = match (flags & flag != 0, set) {
            (false, _) => builder,
            (true, 0) => builder.fin(),
            (true, 1) => builder.syn(),
            (true, 2) => builder.rst(),
            (true, _) => builder.ack(acknowledgement),
        };
    }
    let mut bytes = Vec::new();
    builder.write(&mut bytes, b"hello").unwrap();
    let sent = datapath.run(port, &bytes, false).unwrap();
    assert!(sent[..12] == flow.sent || sent[..12] == bytes[..12], "{sent:?}");
    sent[..12] == flow.sent
}

#[test]
fn without_workers_a_flow_goes_on_behind_its_latch_and_after_its_lease_until_it_is_idle() {
    let Some(net) = Net::new(1, 1500) else { return };
    let connection = Connection::new(net, None).add();
    connection.lab.datapath.start_beating(|_| {}).unwrap();
    assert_eq!(connection.is_open(), [false; 2], "workers open the latches");
    connection.vanish();
    assert_eq!(connection.is_open(), [true; 2]);
    assert!(!connection.forwards(0, SYN), "a new connection waits for the workers");
    sleep(PAUSE);
    assert_eq!(connection.is_open(), [true; 2], "its lease is over");
    sleep(PAUSE);
    assert_eq!(connection.is_open(), [true; 2], "it was in use");
    connection.lab.datapath.moved(PortId(1));
    assert_eq!(connection.is_open(), [false; 2], "what was over before stays over");
    connection.lab.datapath.add(&CachedFlow { moves: [0, 1], ..connection.flows[0] });
    connection.lab.datapath.add(&CachedFlow { moves: [1, 0], ..connection.flows[1] });
    assert_eq!(connection.is_open(), [true; 2]);
    sleep(Duration::from_nanos(TIMEOUT + LEASE));
    assert_eq!(connection.is_open(), [false; 2], "it was idle for its session's timeout");
}

#[test]
fn without_workers_a_flow_ends_with_the_grace() {
    let Some(net) = Net::new(1, 1500) else { return };
    let connection = Connection::new(net, None).add();
    assert_eq!(connection.is_open(), [false; 2], "no process has begun");
    connection.vanish();
    assert_eq!(connection.is_open(), [true; 2]);
    sleep(AWAY.grace);
    assert_eq!(connection.is_open(), [false; 2]);
}

#[test]
fn without_workers_a_connection_ends_by_its_states_timeouts() {
    let Some(net) = Net::new(1, 1500) else { return };
    let connection = Connection::new(net, None).add();
    connection.vanish();
    assert!(connection.forwards(0, FIN | ACK));
    assert_eq!(connection.is_open(), [true; 2], "the other side may send more");
    sleep(AWAY.half_closed + AWAY.half_closed / 8);
    assert_eq!(connection.is_open(), [false; 2]);
    connection.flows.iter().for_each(|flow| connection.lab.datapath.add(flow));
    assert!(connection.forwards(0, FIN | ACK) && connection.forwards(1, FIN | ACK) && connection.forwards(0, ACK));
    sleep(AWAY.closed + AWAY.closed / 4);
    assert_eq!(connection.is_open(), [false; 2]);
    connection.flows.iter().for_each(|flow| connection.lab.datapath.add(flow));
    assert!(connection.forwards(1, RST), "a reset needs no ACK");
    sleep(AWAY.closed + AWAY.closed / 4);
    assert_eq!(connection.is_open(), [false; 2]);
}

#[test]
fn a_worker_that_renews_a_flow_does_not_believe_in_its_end() {
    let Some(net) = Net::new(1, 1500) else { return };
    let connection = Connection::new(net, None);
    let long = connection.flows.map(|flow| CachedFlow { lease: 60_000_000_000, timeout: 60_000_000_000, ..flow });
    long.iter().for_each(|flow| connection.lab.datapath.add(flow));
    connection.lab.datapath.start_beating(|_| {}).unwrap();
    assert!(!connection.forwards(0, RST) && !connection.forwards(0, FIN | ACK), "the workers see the end");
    for flow in connection.flows {
        let renewed = CachedFlow { timeout: TIMEOUT, ..flow };
        assert!(connection.lab.datapath.renew(&renewed));
    }
    connection.vanish();
    sleep(AWAY.half_closed + AWAY.half_closed / 2 + Duration::from_nanos(LEASE));
    assert_eq!(connection.is_open(), [true; 2]);
}

#[test]
fn the_next_process_learns_which_connections_ended_and_which_began() {
    let Some(net) = Net::new(1, 1500) else { return };
    let bpf = BpfFileSystem::mount("bulkhead-away");
    let connection = Connection::new(net, Some(bpf.0.clone()));
    let (handshake, [client, server]) = (FlowHandshake(3), connection.flows);
    connection.lab.datapath.await_handshake(handshake, FirstNumbers { initiator: 9, responder: Some(77) });
    let starts = [Initiator::Source, Initiator::Destination].map(|end| FlowStart::Handshake(handshake, end));
    connection.lab.datapath.add(&CachedFlow { start: starts[0], ..client });
    connection.lab.datapath.add(&CachedFlow { start: starts[1], ..server });
    connection.vanish();
    assert!(!connection.forwards(1, ACK), "the client has not proven its address");
    assert_eq!(connection.is_open(), [true; 2], "nobody has told a worker of the handshake's end");
    assert!(connection.forwards(1, FIN | ACK));
    let Connection { lab, ports, .. } = connection;
    lab.datapath.stay();
    drop(ports);
    let next = Connection::new(lab.end(), Some(bpf.0.clone()));
    assert!(!next.lab.datapath.away().is_zero());
    let began = FlowChange { flow: client.flow, kind: FlowChangeKind::Established(77) };
    assert_eq!(next.lab.datapath.take_begun(), [began]);
    let (tell, told) = std::sync::mpsc::channel();
    next.lab.datapath.start_beating(move |absence| tell.send(absence).unwrap()).unwrap();
    let Absence { lasted, ended } = told.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(lasted >= Duration::from_millis(20), "{lasted:?}");
    assert_eq!(ended, [FlowChange { flow: server.flow, kind: FlowChangeKind::Closed }]);
    assert_eq!(next.lab.datapath.away(), Duration::ZERO);
    let Lab { net, datapath, .. } = &next.lab;
    net.inside("sw", || datapath.close_left());
}

#[test]
fn of_a_hundred_thousand_flows_those_that_ended_without_workers_make_room() {
    const CONNECTIONS: u16 = 50_000;
    const LASTING: u16 = 5_000;
    let Some(net) = Net::new(1, 1500) else { return };
    let bpf = BpfFileSystem::mount("bulkhead-away-many");
    let connection = Connection::new(net, Some(bpf.0.clone()));
    // Longer than the test on a slow machine.
    let timeout = 600_000_000_000;
    let of = |connection: &Connection, number: u16| {
        let [mut client, mut server] = connection.flows.map(|flow| CachedFlow { timeout, ..flow });
        (client.flow.sport, server.flow.dport) = (10_000 + number, 10_000 + number);
        [client, server]
    };
    for number in 0..CONNECTIONS {
        of(&connection, number).iter().for_each(|flow| connection.lab.datapath.add(flow));
    }
    connection.vanish();
    // In one visit of the namespace, which takes longer than a segment.
    let forwards_both = |connection: &Connection, numbers: Range<u16>, flags: u8| {
        let (datapath, ports) = (&*connection.lab.datapath, connection.indices);
        let flows: Vec<[CachedFlow; 2]> = numbers.map(|number| of(connection, number)).collect();
        connection.lab.net.inside("sw", || {
            let each = flows.iter().map(|flows| [0, 1].map(|at| forwards(datapath, ports[at], &flows[at], flags)));
            each.collect::<BTreeSet<_>>()
        })
    };
    let both = |are: bool| BTreeSet::from([[are; 2]]);
    assert_eq!(forwards_both(&connection, LASTING..CONNECTIONS, FIN | ACK), both(true));
    let Connection { lab, ports, .. } = connection;
    lab.datapath.stay();
    drop(ports);
    let next = Connection::new(lab.end(), Some(bpf.0.clone()));
    let (tell, told) = std::sync::mpsc::channel();
    next.lab.datapath.start_beating(move |absence| tell.send(absence).unwrap()).unwrap();
    let Absence { ended, .. } = told.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(ended.len(), 2 * usize::from(CONNECTIONS - LASTING), "both directions of each");
    next.vanish();
    assert_eq!(forwards_both(&next, 0..LASTING, ACK), both(true), "a lasting one is gone");
    // The program limits packets to the workers.
    assert_eq!(forwards_both(&next, CONNECTIONS - 10..CONNECTIONS, ACK), both(false), "an ended one has stayed");
    let Lab { net, datapath, .. } = &next.lab;
    net.inside("sw", || datapath.close_left());
}
