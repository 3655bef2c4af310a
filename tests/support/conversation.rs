//! Conversations packet by packet, and stray packets outside any conversation. All come from a seed, and each carries a number.
#![allow(unreachable_pub, clippy::unwrap_used, reason = "a part of tests, which may panic")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bulkhead_dataplane::wire::{icmpv4, icmpv6, ipv4, ipv6, tcp, udp};

/// Marks a packet's number, which follows it at the end of the payload.
const MARK: [u8; 4] = *b"#bh#";

/// Returns the number in a frame. `None` if the frame has no [`MARK`].
pub fn number_in(frame: &[u8]) -> Option<usize> {
    let at = frame.windows(MARK.len()).rposition(|bytes| bytes == MARK)? + MARK.len();
    let number = frame.get(at..at + 4)?.first_chunk()?;
    Some(u32::from_be_bytes(*number) as usize)
}

/// A pseudo-random generator (SplitMix64) that repeats its numbers for the same seed.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ mixed >> 31) % end as u64).unwrap()
    }

    /// Returns true once in `of` calls on average.
    pub fn one_of(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A packet that a test sends.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Index of the sending party. `to` is the index of the party with the destination address.
    pub from: usize,
    pub to: usize,
    /// A description for failure messages.
    pub what: String,
    /// The bytes from the IP header on, with the packet's number in the payload.
    pub packet: Vec<u8>,
    /// The packet that this one answers: this one is only sent after that one has arrived.
    pub answers: Option<usize>,
}

/// The kinds of conversations. `Stray` packets come without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tcp,
    Udp,
    Echo,
    Fragments,
    Stray,
}

/// Plans conversations between parties.
#[derive(Debug)]
pub struct Talk {
    /// The addresses of each party.
    parties: Vec<(Ipv4Addr, Ipv6Addr)>,
    pub random: Random,
    pub planned: Vec<Planned>,
    /// The last port or identifier in use. Each conversation takes the next one.
    next_port: u16,
}

/// Two parties with the address family and ports of their conversation.
#[derive(Clone, Copy, Debug)]
struct Pair {
    client: usize,
    server: usize,
    is_v6: bool,
    sport: u16,
    dport: u16,
}

/// Exchanges of data in one established conversation.
const ROUNDS: usize = 5;

/// The servers' ports, among them the ports that policies name.
pub const PORTS: [u16; 5] = [53, 80, 443, 8080, 31_000];

impl Talk {
    pub fn new(parties: Vec<(Ipv4Addr, Ipv6Addr)>, seed: u64) -> Self {
        Self { parties, random: Random(seed), planned: Vec::new(), next_port: 20_000 }
    }

    /// Plans `count` conversations. Returns the packet numbers of each, in order.
    pub fn conversations(&mut self, count: usize) -> Vec<Vec<usize>> {
        (0..count).map(|_| self.conversation()).collect()
    }

    fn conversation(&mut self) -> Vec<usize> {
        let client = self.random.below(self.parties.len());
        let server = (client + 1 + self.random.below(self.parties.len() - 1)) % self.parties.len();
        self.next_port += 1;
        let (is_v6, dport) = (self.random.one_of(2), self.random.pick(&PORTS));
        let pair = Pair { client, server, is_v6, sport: self.next_port, dport };
        let first = self.planned.len();
        match self.random.pick(&[
            Kind::Tcp,
            Kind::Tcp,
            Kind::Tcp,
            Kind::Udp,
            Kind::Udp,
            Kind::Echo,
            Kind::Fragments,
            Kind::Stray,
        ]) {
            Kind::Tcp => self.tcp(pair),
            Kind::Udp => self.udp(pair),
            Kind::Echo => self.echo(pair),
            Kind::Fragments => self.fragments(pair),
            Kind::Stray => self.stray(pair),
        }
        (first..self.planned.len()).collect()
    }

    fn tcp(&mut self, pair: Pair) {
        use tcp::flags::{ACK, FIN, RST, SYN};
        // The next sequence number of the client and of the server.
        let mut next = [1_000_u32, 9_000];
        let mut say = |talk: &mut Self, by_client: bool, flags: u8, answers, what: &str| {
            let (own, other) = if by_client { (0, 1) } else { (1, 0) };
            let acknowledgement = if flags & ACK == 0 { 0 } else { next[other] };
            let (source_port, destination_port) =
                if by_client { (pair.sport, pair.dport) } else { (pair.dport, pair.sport) };
            let header = tcp::Repr {
                source_port,
                destination_port,
                sequence: next[own],
                acknowledgement,
                flags,
                window: 60_000,
            };
            let payload = talk.payload();
            let mut segment = [&[0; tcp::MIN_HEADER_LEN][..], &payload].concat();
            next[own] += u32::try_from(payload.len()).unwrap() + u32::from(flags & (SYN | FIN) != 0);
            let (source, destination) = talk.ends(pair, by_client);
            header.emit(source, destination, &mut segment);
            talk.plan(pair, by_client, 6, &segment, answers, what)
        };
        let opening = say(self, true, SYN, None, "TCP SYN");
        if self.random.one_of(4) {
            say(self, false, RST | ACK, Some(opening), "TCP RST to a SYN");
            return;
        }
        let mut last = say(self, false, SYN | ACK, Some(opening), "TCP SYN ACK");
        for _ in 0..ROUNDS {
            last = say(self, true, ACK, Some(last), "TCP data");
            self.spoil(last);
            last = say(self, false, ACK, Some(last), "TCP data back");
        }
        // These unusual endings are sent whether or not the data before them arrived.
        match self.random.below(5) {
            0 => {
                last = say(self, true, FIN | ACK, Some(last), "TCP FIN");
                last = say(self, false, FIN | ACK, Some(last), "TCP FIN back");
                say(self, true, ACK, Some(last), "TCP ACK of the FIN");
            }
            1 => {
                say(self, false, RST | ACK, Some(last), "TCP RST");
                say(self, true, ACK, Some(last), "TCP data after a RST");
            }
            2 => {
                say(self, true, SYN, Some(last), "TCP SYN in the middle");
                say(self, true, ACK, Some(last), "TCP data after a SYN in the middle");
            }
            3 => {
                let flags = u8::try_from(self.random.below(64)).unwrap();
                say(self, true, flags, Some(last), &format!("TCP with flags {flags:#04x}"));
                say(self, false, ACK, Some(last), &format!("TCP data after flags {flags:#04x}"));
            }
            _ => {}
        }
        if self.random.one_of(3) {
            say(self, true, SYN, None, "TCP SYN once more");
        }
    }

    fn udp(&mut self, pair: Pair) {
        let mut last = None;
        for round in 0..ROUNDS {
            let request = self.datagram(pair, true, last, "UDP");
            self.spoil(request);
            if round == 0 && self.random.one_of(4) {
                self.icmp_error(pair, request);
                return;
            }
            last = Some(self.datagram(pair, false, Some(request), "UDP back"));
        }
    }

    fn datagram(&mut self, pair: Pair, by_client: bool, answers: Option<usize>, what: &str) -> usize {
        let datagram = self.udp_bytes(pair, by_client);
        self.plan(pair, by_client, 17, &datagram, answers, what)
    }

    fn udp_bytes(&self, pair: Pair, by_client: bool) -> Vec<u8> {
        let mut datagram = [&[0; udp::HEADER_LEN][..], &self.payload()].concat();
        let (source_port, destination_port) =
            if by_client { (pair.sport, pair.dport) } else { (pair.dport, pair.sport) };
        let (source, destination) = self.ends(pair, by_client);
        udp::Repr { source_port, destination_port }.emit(source, destination, &mut datagram);
        datagram
    }

    /// Plans the ICMP error of a closed port, which quotes the beginning of packet `about`.
    fn icmp_error(&mut self, pair: Pair, about: usize) {
        let quoted = self.planned[about].packet.len() - self.payload().len();
        let rest = [&self.planned[about].packet[..quoted], &self.payload()].concat();
        self.icmp(pair, false, [(3, 3), (1, 4)], 0, &rest, Some(about), "ICMP port unreachable");
    }

    fn echo(&mut self, pair: Pair) {
        let mut last = None;
        for sequence in 0..2 {
            let (rest, payload) = (u32::from(pair.sport) << 16 | sequence, self.payload());
            let request = self.icmp(pair, true, [(8, 0), (128, 0)], rest, &payload, last, "ICMP echo request");
            self.spoil(request);
            let payload = self.payload();
            last = Some(self.icmp(pair, false, [(0, 0), (129, 0)], rest, &payload, Some(request), "ICMP echo reply"));
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what a message consists of")]
    fn icmp(
        &mut self,
        pair: Pair,
        by_client: bool,
        kinds: [(u8, u8); 2],
        rest: u32,
        payload: &[u8],
        answers: Option<usize>,
        what: &str,
    ) -> usize {
        let mut message = [&[0; icmpv4::HEADER_LEN][..], payload].concat();
        let (kind, code) = kinds[usize::from(pair.is_v6)];
        match self.ends(pair, by_client) {
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                icmpv6::Repr { kind, code, rest }.emit(source, destination, &mut message);
            }
            _ => icmpv4::Repr { kind, code, rest }.emit(&mut message),
        }
        self.plan(pair, by_client, if pair.is_v6 { 58 } else { 1 }, &message, answers, what)
    }

    /// Plans a datagram in two fragments: both, only the first, only the second, or in reverse order.
    fn fragments(&mut self, pair: Pair) {
        let parts: &[bool] = match self.random.below(4) {
            0 => &[true],
            1 => &[false],
            2 => &[false, true],
            _ => &[true, false],
        };
        let datagram = self.udp_bytes(Pair { dport: pair.dport, ..pair }, true);
        for &is_first in parts {
            // The first fragment has 8 bytes of header and 8 of data. Offsets count units of 8 bytes.
            let body = if is_first { [&datagram[..8], &self.payload()].concat() } else { self.payload() };
            let what = if is_first { "first fragment" } else { "second fragment" };
            if pair.is_v6 {
                let offset: u16 = if is_first { 1 } else { 2 << 3 };
                let mut header = vec![17, 0];
                header.extend(offset.to_be_bytes());
                header.extend(u32::from(pair.sport).to_be_bytes());
                self.plan(pair, true, 44, &[header, body].concat(), None, what);
            } else {
                let at = self.plan(pair, true, 17, &body, None, what);
                let packet = &mut self.planned[at].packet;
                packet[4..6].copy_from_slice(&pair.sport.to_be_bytes());
                let word = if is_first { ipv4::fragment::MORE_FRAGMENTS } else { 2 };
                let mut view = ipv4::Packet::new_checked(packet.as_mut_slice()).unwrap();
                view.set_fragment_word(word);
                view.fill_checksum();
            }
        }
    }

    /// Plans a packet that looks like an answer although nobody sent a request.
    fn stray(&mut self, pair: Pair) {
        let payload = self.payload();
        match self.random.below(3) {
            0 => {
                let mut segment = [&[0; tcp::MIN_HEADER_LEN][..], &payload].concat();
                let flags = self.random.pick(&[
                    tcp::flags::ACK,
                    tcp::flags::SYN | tcp::flags::ACK,
                    tcp::flags::FIN | tcp::flags::ACK,
                    tcp::flags::RST,
                    0,
                ]);
                let (source, destination) = self.ends(pair, true);
                let (source_port, destination_port) = (pair.sport, pair.dport);
                tcp::Repr { source_port, destination_port, sequence: 7, acknowledgement: 8, flags, window: 100 }.emit(
                    source,
                    destination,
                    &mut segment,
                );
                self.plan(pair, true, 6, &segment, None, &format!("stray TCP with flags {flags:#04x}"));
            }
            1 => {
                self.icmp(pair, true, [(0, 0), (129, 0)], 77, &payload, None, "stray ICMP echo reply");
            }
            _ => {
                let asked = Pair { client: pair.server, server: pair.client, ..pair };
                let datagram = self.udp_bytes(asked, true);
                let quoted = self.ip(asked, true, 17, &datagram);
                let rest = [&quoted[..quoted.len() - payload.len()], &payload].concat();
                self.icmp(pair, true, [(3, 3), (1, 4)], 0, &rest, None, "stray ICMP port unreachable");
            }
        }
    }

    /// Changes one packet in five so that the kernel program must pass it to a worker.
    fn spoil(&mut self, at: usize) {
        if !self.random.one_of(5) {
            return;
        }
        let choice = self.random.below(5);
        let Planned { packet, what, .. } = &mut self.planned[at];
        if packet[0] >> 4 == 6 {
            match choice {
                0 | 1 => {
                    packet[7] = 1;
                    what.push_str(", its last hop");
                }
                2 => {
                    // Inserts a destination options header of 8 bytes behind the IPv6 header.
                    let next = std::mem::replace(&mut packet[6], 60);
                    packet.splice(40..40, [next, 0, 1, 4, 0, 0, 0, 0]);
                    let length = u16::try_from(packet.len() - 40).unwrap();
                    packet[4..6].copy_from_slice(&length.to_be_bytes());
                    what.push_str(", with destination options");
                }
                3 => {
                    packet[1] |= 0xf;
                    what.push_str(", with a flow label");
                }
                _ => {
                    packet[4..6].copy_from_slice(&2000_u16.to_be_bytes());
                    what.push_str(", said to be longer than it is");
                }
            }
            return;
        }
        match choice {
            0 => {
                packet[8] = 1;
                what.push_str(", its last hop");
            }
            1 => {
                packet[0] = 0x46;
                packet.splice(20..20, [1, 1, 1, 0]);
                let length = u16::try_from(packet.len()).unwrap();
                packet[2..4].copy_from_slice(&length.to_be_bytes());
                what.push_str(", with options");
            }
            2 => {
                packet[1] = 0xb8;
                what.push_str(", expedited");
            }
            3 => {
                packet[2..4].copy_from_slice(&2000_u16.to_be_bytes());
                what.push_str(", said to be longer than it is");
                return;
            }
            _ => {
                packet[10] ^= 0x55;
                what.push_str(", with a wrong header checksum");
                return;
            }
        }
        ipv4::Packet::new_checked(packet.as_mut_slice()).unwrap().fill_checksum();
    }

    /// Returns the next packet's payload: 8 bytes, of which four are its number.
    fn payload(&self) -> Vec<u8> {
        [MARK, u32::try_from(self.planned.len()).unwrap().to_be_bytes()].concat()
    }

    fn ends(&self, pair: Pair, by_client: bool) -> (IpAddr, IpAddr) {
        let of = |party: usize| -> IpAddr {
            let (v4, v6) = self.parties[party];
            if pair.is_v6 { v6.into() } else { v4.into() }
        };
        if by_client { (of(pair.client), of(pair.server)) } else { (of(pair.server), of(pair.client)) }
    }

    fn ip(&self, pair: Pair, by_client: bool, protocol: u8, body: &[u8]) -> Vec<u8> {
        let payload_len = body.len();
        match self.ends(pair, by_client) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut packet = vec![0; ipv4::MIN_HEADER_LEN + payload_len];
                let header = ipv4::Repr { source, destination, protocol, hop_limit: 64, tos: 0, payload_len };
                header.emit(&mut packet).copy_from_slice(body);
                packet
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut packet = vec![0; ipv6::HEADER_LEN + payload_len];
                let header = ipv6::Repr { source, destination, next_header: protocol, hop_limit: 64, payload_len };
                header.emit(&mut packet).copy_from_slice(body);
                packet
            }
            ends => panic!("{ends:?} are of two families"),
        }
    }

    fn plan(
        &mut self,
        pair: Pair,
        by_client: bool,
        protocol: u8,
        body: &[u8],
        answers: Option<usize>,
        what: &str,
    ) -> usize {
        let packet = self.ip(pair, by_client, protocol, body);
        let (from, to) = if by_client { (pair.client, pair.server) } else { (pair.server, pair.client) };
        let (source, destination) = self.ends(pair, by_client);
        let ports = if by_client { (pair.sport, pair.dport) } else { (pair.dport, pair.sport) };
        let what = format!("{source} {} > {destination} {}: {what}", ports.0, ports.1);
        self.planned.push(Planned { from, to, what, packet, answers });
        self.planned.len() - 1
    }
}
