//! Clients that try to hide a name.

use std::collections::BTreeMap;

use bulkhead_hello::{Reading, tls};
use proptest::prelude::*;

use super::*;
use crate::packet::TcpFlags;

/// A name as long as [`MINE`] that is not allowed.
const EVIL: &str = "bad.example.com";

#[test]
fn the_next_connection_of_the_same_ports_is_checked_again() {
    // The session does not know of the server's end, as if it had timed out or the reset had passed in the kernel.
    for end in [None, Some(TcpFlags::RST), Some(TcpFlags::FIN | ACK)] {
        let mut bed = checking(ServerNameCheck::Drop);
        open(&mut bed);
        sessions::settle(&mut bed);
        if let Some(flags) = end {
            bed.verdict(A, &tcp_at(CLIENT, SITE, flags, (900_000_000, 2)));
        }
        open(&mut bed);
        assert!(!is_cacheable(&bed));
        assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 0, &hello(Some(OTHER)))), dropped(DropReason::ServerName));
    }
}

#[test]
fn urgent_data_is_not_read() {
    let mut bed = checking(ServerNameCheck::Drop);
    open(&mut bed);
    let (first, second) = (hello(Some(MINE))[..60].to_vec(), hello(Some(MINE))[60..].to_vec());
    let mut urgent = segment(CLIENT, SITE, 0, &first);
    urgent[33] |= TcpFlags::URG;
    assert_eq!(bed.verdict(A, &urgent), dropped(DropReason::ServerName));
    assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 60, &second)), dropped(DropReason::ServerName));
}

/// A step of a hostile client and its network.
#[derive(Clone, Debug)]
enum Step {
    /// The client sends a SYN with this initial number.
    Syn(u32),
    /// The client sends a part of a hello, from one cut to another, in the connection with this initial number.
    Data { isn: u32, is_evil: bool, from: usize, count: usize },
    /// The client resets the connection with this initial number.
    Reset(u32),
    /// The server sends its SYN-ACK, once more or for the first time.
    Answer,
    /// The server acknowledges what it has, and answers a complete hello.
    Acknowledge,
    /// The tables are published again.
    Publish,
}

/// A server's only connection.
#[derive(Default)]
struct Server {
    /// The initial numbers of the client and of the server.
    numbers: Option<(u32, u32)>,
    /// Whether the client knows the server's number, without which the server takes no data.
    is_answered: bool,
    bytes: BTreeMap<usize, u8>,
    opened: u32,
}

impl Server {
    fn received(&self) -> Vec<u8> {
        (0..).map_while(|at| self.bytes.get(&at).copied()).collect()
    }
}

fn step() -> impl Strategy<Value = Step> {
    let isn = || prop::sample::select(vec![1_u32, 51, 1000, u32::MAX - 20]);
    let data = (isn(), any::<bool>(), 0_usize..4, 1_usize..5).prop_map(|(isn, is_evil, from, count)| Step::Data {
        isn,
        is_evil,
        from,
        count,
    });
    prop_oneof![
        2 => isn().prop_map(Step::Syn),
        8 => data,
        1 => isn().prop_map(Step::Reset),
        3 => Just(Step::Answer),
        2 => Just(Step::Acknowledge),
        1 => Just(Step::Publish),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_server_has_a_complete_hello_only_with_an_allowed_name(
        script in prop::collection::vec((step(), any::<bool>()), 1..40),
        prefers_last in any::<bool>(),
    ) {
        let hellos = [MINE, EVIL].map(|name| hello(Some(name)));
        let differ = (0..hellos[0].len()).find(|&at| hellos[0][at] != hellos[1][at]).unwrap();
        let cuts = [0, 5, differ, differ + 2, hellos[0].len()];
        let mut bed = checking(ServerNameCheck::Drop);
        let mut server = Server::default();
        // Most scripts begin with a handshake.
        let start = [(Step::Syn(1), true), (Step::Answer, true)];
        for (step, arrives) in start.into_iter().chain(script) {
            match step {
                Step::Syn(isn) => {
                    let is_forwarded = bed.verdict(A, &tcp_at(CLIENT, SITE, SYN, (isn, 0))) == Verdict::Forward(UPLINK);
                    if is_forwarded && arrives && server.numbers.is_none() {
                        let opened = server.opened + 1;
                        server = Server { numbers: Some((isn, 7_000_000 * opened)), opened, ..Server::default() };
                    }
                }
                Step::Answer => {
                    let Some((client, own)) = server.numbers else { continue };
                    let packet = tcp_at(SITE, CLIENT, SYN | ACK, (own, client.wrapping_add(1)));
                    server.is_answered |= bed.verdict(UPLINK, &packet) == Verdict::Forward(A);
                }
                Step::Data { isn, is_evil, from, count } => {
                    let (start, end) = (cuts[from], cuts[(from + count).min(4)]);
                    let data = &hellos[usize::from(is_evil)][start..end];
                    // Numbers of segments count from 2.
                    let at = isn.wrapping_sub(1).wrapping_add(u32::try_from(start).unwrap());
                    let is_forwarded = bed.verdict(A, &segment(CLIENT, SITE, at, data)) == Verdict::Forward(UPLINK);
                    let Some((client, _)) = server.numbers.filter(|_| is_forwarded && arrives && server.is_answered) else {
                        continue;
                    };
                    let first = isn.wrapping_sub(client).wrapping_add(u32::try_from(start).unwrap()).cast_signed();
                    let Ok(first) = usize::try_from(first) else { continue };
                    for (at, byte) in (first..).zip(data) {
                        // A byte that was acknowledged, or may have been, stays.
                        let known = server.bytes.entry(at).or_insert(*byte);
                        *known = if prefers_last { *byte } else { *known };
                    }
                }
                Step::Reset(isn) => {
                    let packet = tcp_at(CLIENT, SITE, TcpFlags::RST, (isn.wrapping_add(1), 0));
                    let is_forwarded = bed.verdict(A, &packet) == Verdict::Forward(UPLINK);
                    if is_forwarded && arrives {
                        server.numbers = None;
                    }
                }
                Step::Acknowledge => {
                    let Some((client, own)) = server.numbers.filter(|_| server.is_answered) else { continue };
                    let received = server.received();
                    let is_complete = matches!(tls::Stream::default().take(0, &received), Reading::Name { .. });
                    let mut packet = segment(SITE, CLIENT, own.wrapping_sub(1), if is_complete { ALERT } else { b"" });
                    let ack = client.wrapping_add(1).wrapping_add(u32::try_from(received.len()).unwrap());
                    packet[28..32].copy_from_slice(&ack.to_be_bytes());
                    bed.verdict(UPLINK, &packet);
                    // The server keeps what it has acknowledged.
                    if is_complete {
                        server.numbers = None;
                    }
                }
                Step::Publish => set(&mut bed, ServerNameCheck::Drop),
            }
            let received = server.received();
            let mut stream = tls::Stream::default();
            let is_allowed = match stream.take(0, &received) {
                Reading::NeedMore | Reading::Malformed => true,
                Reading::Name { name, .. } => **name == *MINE,
                _ => false,
            };
            prop_assert!(is_allowed, "{:?}", stream.reading());
        }
    }
}
