//! Measures connection times while two pods flood the node with packets that no flow cache can hold.

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::net::addr::SocketAddrArg as _;
use rustix::net::{
    AddressFamily, MMsgHdr, Protocol, SendAncillaryBuffer, SendFlags, SocketAddrAny, SocketType, sendmmsg, socket,
};

use super::Bench;
use super::node::{CLIENT, Node, Plan, SINK, Way};
use crate::policy::UDP_PORT;
use crate::table::{Goal, Line, digits, median, milliseconds, percentile};
use crate::testbed::load::TCP_PORT;
use crate::testbed::net::Netns;
use crate::testbed::traffic::{TcpServer, UdpServer, exchange, pin, prepare_client, reach, server};

/// Names of the flooding pods.
const FLOODERS: [&str; 2] = ["flood1", "flood2"];
/// Packets per system call.
const BURST: usize = 32;
/// Pause between connections: a few seconds give some hundreds, enough for a 99th percentile.
const PAUSE: Duration = Duration::from_millis(4);

pub(super) fn flood(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let rounds = bench.rounds(&[Way::Vswitch, Way::Policy], |way| {
        under_flood(bench, &bench.node(way, Plan::pods(&[CLIENT, SINK, FLOODERS[0], FLOODERS[1]]))?)
    })?;
    let of = |way, metric| digits(median(&rounds.of(way, metric)));
    let most = |way, metric| rounds.of(way, metric).into_iter().fold(0.0, f64::max);
    let (ours, other) = (Way::Vswitch, Way::Policy);
    let line = |what: &str, value, unit, goal| {
        Line::value("flood", &format!("connect under a flood of two pods: {what}"), value, unit, goal)
    };
    let times = format!(
        "{} without a flood; {} {} and {}; flood sent at {} and {} kpps",
        of(ours, 3),
        other.name(),
        of(other, 0),
        of(other, 3),
        of(ours, 2),
        of(other, 2)
    );
    Ok(vec![
        line("p99", of(ours, 0), "ms", Goal::AtMost(10.0)).noted(&times),
        line("failed, worst round", most(ours, 1), "connections", Goal::AtMost(0.0)).noted(&format!(
            "of {}; {} {}",
            of(ours, 4),
            other.name(),
            most(other, 1)
        )),
    ])
}

/// Returns, under flood: the 99th percentile of connection times in milliseconds, the number of failed connections, and thousands of
/// packets sent per second. Then the 99th percentile without flood, and the number of connections.
fn under_flood(bench: &Bench, node: &Node) -> anyhow::Result<Vec<f64>> {
    let (client, sink) = (node.pod(CLIENT), node.pod(SINK));
    reach(&client.netns, &sink.address)?;
    prepare_client(&client.netns)?;
    let _datagrams = UdpServer::start(&sink.netns, UDP_PORT, None)?;
    let servers = TcpServer::start(&sink.netns, TCP_PORT, false)?;
    let target: Ipv4Addr = sink.address.parse()?;
    let connect = || connections(&client.netns, &servers, &sink.address, bench.time);
    let (calm, _) = connect()?;
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let sockets: Vec<OwnedFd> =
        FLOODERS.iter().map(|name| raw_socket(&node.pod(name).netns)).collect::<anyhow::Result<_>>()?;
    let started = Instant::now();
    let (times, failed) = std::thread::scope(|scope| {
        for (socket, seed) in sockets.iter().zip(1..) {
            let (stop, sent) = (&stop, &sent);
            scope.spawn(move || {
                pin(bench.cores[0]);
                send_garbage(socket, target, seed, stop, sent);
            });
        }
        let connected = connect();
        stop.store(true, Ordering::Relaxed);
        connected
    })?;
    #[expect(clippy::cast_precision_loss, reason = "counts are shown with three digits")]
    let (rate, count) = (sent.into_inner() as f64 / started.elapsed().as_secs_f64() / 1e3, times.len() as f64 + failed);
    Ok(vec![percentile(&times, 99.0), failed, rate, percentile(&calm, 99.0), count])
}

/// Opens connections one after another for `time`. Returns each one's connection time in milliseconds, and the number of failed ones.
fn connections(from: &Netns, servers: &TcpServer, address: &str, time: Duration) -> anyhow::Result<(Vec<f64>, f64)> {
    let targets = (0..8).map(|number| server(address, servers.port(number))).collect::<Result<Vec<_>, _>>()?;
    from.inside(|| {
        let (mut times, mut failed) = (Vec::new(), 0.0);
        let started = Instant::now();
        for target in targets.iter().cycle() {
            if started.elapsed() >= time {
                break;
            }
            match exchange(*target) {
                Ok(connect) => times.push(milliseconds(connect)),
                Err(_) => failed += 1.0,
            }
            std::thread::sleep(PAUSE);
        }
        Ok((times, failed))
    })
}

/// Opens a socket that sends IPv4 packets with a given header.
fn raw_socket(netns: &Netns) -> anyhow::Result<OwnedFd> {
    /// Protocol number `IPPROTO_RAW`: the sender writes the IP header.
    const RAW: NonZeroU32 = NonZeroU32::new(255).expect("not zero");
    netns.inside(|| {
        socket(AddressFamily::INET, SocketType::RAW, Some(Protocol::from_raw(RAW))).context("cannot open a raw socket")
    })
}

/// Sends UDP packets of new flows, pings, and packets of an unassigned protocol in turns.
fn send_garbage(socket: &OwnedFd, target: Ipv4Addr, seed: u32, stop: &AtomicBool, sent: &AtomicU64) {
    let address = SocketAddrV4::new(target, 0).as_any();
    let mut random = seed.wrapping_mul(0x9e37_79b9);
    while !stop.load(Ordering::Relaxed) {
        let packets: Vec<Vec<u8>> = (0..BURST)
            .map(|number| {
                // A linear congruential generator (Numerical Recipes): the ports only need to differ.
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                garbage(number, random.to_be_bytes(), target)
            })
            .collect();
        sent.fetch_add(send_burst(socket, &address, &packets) as u64, Ordering::Relaxed);
    }
}

fn send_burst(socket: &OwnedFd, address: &SocketAddrAny, packets: &[Vec<u8>]) -> usize {
    let parts: Vec<[IoSlice<'_>; 1]> = packets.iter().map(|packet| [IoSlice::new(packet)]).collect();
    let mut controls: Vec<SendAncillaryBuffer<'_, '_, '_>> =
        packets.iter().map(|_| SendAncillaryBuffer::default()).collect();
    let mut messages: Vec<MMsgHdr<'_>> =
        parts.iter().zip(&mut controls).map(|(part, control)| MMsgHdr::new_with_addr(address, part, control)).collect();
    // Packets that do not fit the kernel's queues are not sent: a flood does not wait.
    sendmmsg(socket, &mut messages, SendFlags::empty()).unwrap_or_default()
}

/// Returns a packet of 46 bytes. The kernel adds source, length and checksum of the header.
fn garbage(number: usize, random: [u8; 4], target: Ipv4Addr) -> Vec<u8> {
    /// The first protocol number that RFC 3692 reserves for experiments.
    const EXPERIMENT: u8 = 253;
    let [udp_high, udp_low] = UDP_PORT.to_be_bytes();
    let (protocol, payload) = match number % 3 {
        // UDP from a port that was not used before, without a checksum.
        0 => (17, [random[0] | 4, random[1], udp_high, udp_low, 0, 26, 0, 0]),
        // An echo request. Its checksum is usually wrong, which no hop on the way checks.
        1 => (1, [8, 0, 0, 0, random[0], random[1], random[2], random[3]]),
        _ => (EXPERIMENT, [random[0], random[1], random[2], random[3], 0, 0, 0, 0]),
    };
    let mut packet = vec![0x45, 0, 0, 46, 0, 0, 0, 0, 64, protocol, 0, 0, 0, 0, 0, 0];
    packet.extend(target.octets());
    packet.extend(payload);
    packet.resize(46, 0);
    packet
}
