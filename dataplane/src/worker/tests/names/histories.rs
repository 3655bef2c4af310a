//! Random histories of questions, answers, time, connections and changes of policy, compared with a small model of the semantics
//! (ClusterNetworkPolicy, NPEP-133), and replayed in bursts.
//!
//! The model knows the packets and nothing of the worker. It remembers all names by which a session may have been allowed, because the
//! semantics do not say which one counts.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::names::numbers::Numbers;

/// Number of steps of a history, enough for a question, an answer, a connection, and the end of the address or of its rule.
const STEPS: usize = 60;

const POOL: [&str; 5] = ["www.example.com", "a.example.org", "b.a.example.org", "example.org", "other.net.test"];
const PATTERNS: [&str; 5] = ["www.example.com", "*.example.org", "*.a.example.org", "example.org", "*.example.com"];

/// The pods, both with rules that name domains: port, IPv4 and IPv6 address, and holder.
const PODS: [(PortId, &str, &str, u32); 2] = [(A, "10.0.0.1", "fd00::1", 7), (B, "10.0.0.2", "fd00::2", 9)];

/// Time in nanoseconds after which an answer to an open question is ignored.
const OPEN_FOR: u64 = 10 * SECOND;

/// Sessions that were idle for longer than this may have expired, and are no longer compared.
const IDLE: u64 = 20 * SECOND;

/// The port of a pod's questions over UDP.
const ASKS_FROM: u16 = 4000;

/// Whether a pattern matches a name, label by label.
fn is_named(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), name.split('.').collect());
    match pattern.split_first() {
        Some((&"*", below)) => name.len() > below.len() && name.ends_with(below),
        _ => pattern == name,
    }
}

/// The model's verdict about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    Denied,
    /// Both verdicts are right: the address has ended, but the table may have lengthened its validity by a quarter, or it is not known which
    /// of several names allowed the session.
    Either,
    Allowed,
}

/// An address of the pool: its number, and whether it is an IPv6 address.
type Address = (usize, bool);

fn text((number, is_v6): Address) -> String {
    if is_v6 { format!("2001:db8::{number}") } else { format!("203.0.113.{number}") }
}

/// A question that a pod has sent.
#[derive(Clone, Debug)]
struct Question {
    pod: usize,
    /// The connection over which the pod asked. `None` for UDP.
    connection: Option<usize>,
    id: u16,
    name: String,
    kind: u16,
    /// Time of the last query that counts, in nanoseconds. `None` if no rule named the name or the question was answered.
    open: Option<u64>,
}

/// A connection of a pod to the DNS server: the pod, its port, and the number of bytes sent by the pod and by the server.
#[derive(Clone, Copy, Debug)]
struct Connection(usize, u16, [u32; 2]);

/// A connection of a pod to an address, which was allowed at first.
#[derive(Clone, Debug)]
struct Session {
    is_tcp: bool,
    address: Address,
    /// The names of which one has allowed the session.
    names: BTreeSet<String>,
    is_cut: bool,
    /// The generation of the policy that judged the last packet.
    judged: u64,
    /// Time of the last packet in nanoseconds.
    seen: u64,
}

#[derive(Debug, Default)]
struct Model {
    /// By pod.
    patterns: [Vec<&'static str>; 2],
    generation: u64,
    /// By pod, name and address: the time until which the address is surely valid, and the time until which it may be, in nanoseconds.
    learned: BTreeMap<(usize, String, Address), (u64, u64)>,
    questions: Vec<Question>,
    connections: Vec<Connection>,
    /// Refused connections: pod, source port, address, and whether it is TCP.
    refused: Vec<(usize, u16, Address, bool)>,
    /// By pod and source port.
    sessions: BTreeMap<(usize, u16), Session>,
}

impl Model {
    fn names(&self, pod: usize, name: &str) -> bool {
        self.patterns[pod].iter().any(|pattern| is_named(pattern, name))
    }

    /// Returns the names by which a rule of the pod may allow a new connection to the address, each with whether it surely does.
    fn valid(&self, pod: usize, address: Address, now: u64) -> impl Iterator<Item = (&String, bool)> {
        let of_address = self.learned.iter().filter(move |((holder, _, at), _)| *holder == pod && *at == address);
        let valid = of_address.filter(move |(_, (_, perhaps))| now < *perhaps);
        valid
            .map(move |((_, name, _), (surely, _))| (name, now < *surely))
            .filter(move |(name, _)| self.names(pod, name))
    }

    fn about_new(&self, pod: usize, address: Address, now: u64) -> Said {
        let is_sure = |(_, is_sure): (&String, bool)| if is_sure { Said::Allowed } else { Said::Either };
        self.valid(pod, address, now).map(is_sure).max().unwrap_or(Said::Denied)
    }

    /// Returns what the names of a session say while the rules of the pod name all, some or none of them.
    fn about_names(&self, pod: usize, session: &Session) -> Said {
        match session.names.iter().filter(|name| self.names(pod, name)).count() {
            0 => Said::Denied,
            count if count == session.names.len() => Said::Allowed,
            _ => Said::Either,
        }
    }

    /// Returns the session after a packet that the model and the worker have judged again.
    fn judged(&self, pod: usize, session: &Session, is_allowed: bool, now: u64) -> Session {
        let mut names = session.names.clone();
        match (self.about_names(pod, session), is_allowed) {
            (Said::Allowed, true) => {}
            (_, true) => {
                // One of its names, if the rules still name that one, or another name of the address.
                names.retain(|name| self.names(pod, name));
                names.extend(self.valid(pod, session.address, now).map(|(name, _)| name.clone()));
            }
            // It keeps its name, which no rule names.
            (_, false) => names.retain(|name| !self.names(pod, name)),
        }
        Session { names, is_cut: !is_allowed, judged: self.generation, seen: now, ..session.clone() }
    }

    fn learn(&mut self, pod: usize, name: &str, address: Address, ttl: u32, now: u64) {
        let left = u64::from(ttl) * SECOND + GRACE;
        let full = (now + left).next_multiple_of(SECOND) + SECOND;
        let ends = self.learned.entry((pod, name.to_owned(), address)).or_default();
        *ends = (ends.0.max(now + left), ends.1.max(full.max(now + left + left / 4)));
    }
}

struct History {
    bed: Bed,
    model: Model,
    random: Numbers,
    next_port: u16,
    next_id: u16,
    /// The packets since the last change of policy, each with its port, time and verdict, and the worker that replays them.
    sent: Vec<(PortId, Vec<u8>, u64, Verdict)>,
    replaying: Worker,
}

type Reached = BTreeMap<&'static str, u64>;

fn reach(reached: &mut Reached, what: &'static str) {
    *reached.entry(what).or_default() += 1;
}

impl History {
    fn new(seed: u64) -> Self {
        let (bed, replaying) = (Bed::new(), Bed::new().worker);
        let (model, random) = (Model { generation: 1, ..Model::default() }, Numbers(seed));
        let mut history = Self { bed, model, random, next_port: 5000, next_id: 0, sent: Vec::new(), replaying };
        history.change_policy();
        history
    }

    fn send(&mut self, in_port: PortId, packet: Vec<u8>) -> Verdict {
        let verdict = self.bed.verdict(in_port, &packet);
        self.sent.push((in_port, packet, self.bed.now, verdict));
        verdict
    }

    /// Judges the packets since the last change of policy in bursts by another worker.
    fn replay(&mut self) {
        let link = LinkType::Raw;
        let packets: Vec<_> = self
            .sent
            .iter()
            .map(|(in_port, frame, time, _)| Packet {
                frame,
                wire_len: frame.len(),
                link,
                in_port: *in_port,
                time: *time,
            })
            .collect();
        let mut outcomes = vec![Outcome::UNJUDGED; packets.len()];
        self.replaying.process(&self.bed.snapshot, &packets, &mut outcomes);
        for (outcome, (in_port, frame, time, verdict)) in outcomes.iter().zip(&self.sent) {
            assert_eq!(outcome.verdict, *verdict, "{in_port:?} at {time}: {frame:x?}");
        }
        self.sent.clear();
    }

    fn change_policy(&mut self) {
        self.replay();
        let Self { model, random, .. } = self;
        model.generation += 1;
        for patterns in &mut model.patterns {
            *patterns = PATTERNS.into_iter().filter(|_| random.index(2) == 0).collect();
            // Ports have a table as long as any rule names a domain; the test keeps one.
            patterns.push("never.example.net");
        }
        let mut tables = snapshot().tables().to_vec();
        let mut ports = ports();
        ports[B.index()].egress = Some(OPEN);
        let mut holders = vec![None; ports.len()];
        for ((port, _, _, holder), patterns) in PODS.into_iter().zip(&model.patterns) {
            ports[port.index()].named_table = Some(TableId(u32::try_from(tables.len()).unwrap()));
            tables.push(Arc::new(table(patterns, RULE)));
            holders[port.index()] = Some(Holder(holder));
        }
        let names = Names::new([ip(SERVER)].into_iter().collect(), GRACE, holders);
        let routes = routes(&ports);
        let snapshot = Snapshot::new(model.generation, ports, tables, routes).unwrap();
        self.bed.snapshot = snapshot.with_names(Some(Arc::new(names)));
    }

    /// Opens a connection of a pod to the DNS server. Returns its position.
    fn connect_to_server(&mut self, pod: usize) -> usize {
        let (port, client, ..) = PODS[pod];
        self.next_port += 1;
        let sport = self.next_port;
        assert_eq!(self.send(port, tcp(client, SERVER, sport, 53, SYN)), Verdict::Forward(UPLINK));
        assert_eq!(self.send(UPLINK, tcp(SERVER, client, 53, sport, SYN | ACK)), Verdict::Forward(port));
        self.model.connections.push(Connection(pod, sport, [0; 2]));
        self.model.connections.len() - 1
    }

    /// Sends a message over a connection to the server, or back, in one segment or in two, of which the second may come first.
    fn send_over(&mut self, connection: usize, is_query: bool, message: &[u8]) {
        let (data, Connection(pod, sport, sent)) = (framed(message), &mut self.model.connections[connection]);
        let (port, client, ..) = PODS[*pod];
        let (mut ends, in_port, out) = ([(client, *sport), (SERVER, 53)], port, UPLINK);
        let (sent, in_port, out) = if is_query { (&mut sent[0], in_port, out) } else { (&mut sent[1], out, in_port) };
        if !is_query {
            ends.reverse();
        }
        let start = *sent;
        *sent += u32::try_from(data.len()).unwrap();
        let cut = self.random.index(data.len());
        let (first, second) = data.split_at(cut);
        let mut parts = [(start, first), (start + u32::try_from(cut).unwrap(), second)];
        if self.random.index(2) == 0 {
            parts.reverse();
        }
        for (distance, data) in parts.into_iter().filter(|(_, data)| !data.is_empty()) {
            let packet = segment(ends[0], ends[1], distance, data);
            assert_eq!(self.send(in_port, packet), Verdict::Forward(out));
        }
    }

    /// Asks about a random name, in upper or lower case, or repeats a question.
    fn ask(&mut self, reached: &mut Reached) {
        let questions = &mut self.model.questions;
        let at = if !questions.is_empty() && self.random.index(4) == 0 {
            reach(reached, "asked again");
            self.random.index(questions.len())
        } else {
            let name = POOL[self.random.index(POOL.len())];
            let name = if self.random.index(2) == 0 { name.to_uppercase() } else { name.to_owned() };
            let kind = [TYPE_A, TYPE_AAAA][self.random.index(2)];
            self.next_id += 1;
            let pod = self.random.index(2);
            let connection = (self.random.index(4) == 0).then(|| self.connect_to_server(pod));
            let question = Question { pod, connection, id: self.next_id, name, kind, open: None };
            self.model.questions.push(question);
            self.model.questions.len() - 1
        };
        let Question { pod, connection, id, name, kind, .. } = self.model.questions[at].clone();
        let message = query_of(id, &name, kind);
        match connection {
            Some(connection) => self.send_over(connection, true, &message),
            None => {
                let (port, client, ..) = PODS[pod];
                let packet = datagram((client, ASKS_FROM), (SERVER, 53), &message);
                assert_eq!(self.send(port, packet), Verdict::Forward(UPLINK));
            }
        }
        if self.model.names(pod, &name.to_lowercase()) {
            self.model.questions[at].open = Some(self.bed.now);
        }
    }

    /// Answers a random question, answered or not, as the server or with a forged datagram.
    fn answer(&mut self, reached: &mut Reached) {
        let count = self.model.questions.len();
        if count == 0 {
            return;
        }
        let at = self.random.index(count);
        let Question { pod, connection, id, name, kind, open } = self.model.questions[at].clone();
        let owner = name.to_lowercase();
        let is_v6 = kind == TYPE_AAAA;
        let of_kind: Vec<_> = (0..=self.random.index(2)).map(|_| ((self.random.index(6), is_v6), self.ttl())).collect();
        let is_chained = self.random.index(3) == 0;
        let last = if is_chained { "edge.test" } else { &owner };
        let texts: Vec<_> = of_kind.iter().map(|(address, _)| text(*address)).collect();
        let mut records: Vec<_> = of_kind.iter().zip(&texts).map(|((_, ttl), text)| (last, *ttl, &**text)).collect();
        let (unasked, other_kind) = (text((7, is_v6)), text((8, !is_v6)));
        records.extend([("unasked.test", 60, &*unasked), (last, 60, &*other_kind)]);
        if is_chained {
            records.insert(0, (&owner, 0, "edge.test"));
        }
        let message = |id, name: &str| answer_of((id, 0), name, kind, &records);
        if connection.is_none() && self.random.index(2) == 0 {
            let (data, from, to, port) = match self.random.index(5) {
                0 => (message(id ^ 0x8000, &name), SERVER, pod, ASKS_FROM),
                1 => (message(id, "else.example.com"), SERVER, pod, ASKS_FROM),
                2 => (message(id, &name), "192.0.2.53", pod, ASKS_FROM),
                3 => (message(id, &name), SERVER, pod, ASKS_FROM + 1),
                _ => (message(id, &name), SERVER, 1 - pod, ASKS_FROM),
            };
            self.send(UPLINK, datagram((from, 53), (PODS[to].1, port), &data));
            reach(reached, "forged");
            return;
        }
        let message = message(id, &name);
        match connection {
            Some(connection) => self.send_over(connection, false, &message),
            None => _ = self.send(UPLINK, datagram((SERVER, 53), (PODS[pod].1, ASKS_FROM), &message)),
        }
        if !self.model.names(pod, &owner) {
            return;
        }
        match open {
            None => reach(reached, "second or unasked"),
            Some(asked) if self.bed.now - asked >= OPEN_FOR => reach(reached, "late"),
            Some(_) => {
                reach(reached, if connection.is_some() { "answered over TCP" } else { "answered" });
                self.model.questions[at].open = None;
                for (address, ttl) in of_kind {
                    self.model.learn(pod, &owner, address, ttl, self.bed.now);
                }
            }
        }
    }

    fn ttl(&mut self) -> u32 {
        u32::try_from(self.random.index(40)).unwrap()
    }

    /// Sends a datagram or a segment of a connection. Returns whether it was allowed.
    fn send_to(&mut self, (pod, sport): (usize, u16), (address, is_tcp): (Address, bool), flags: u8) -> bool {
        let (port, v4, v6, _) = PODS[pod];
        let (client, dst) = (if address.1 { v6 } else { v4 }, text(address));
        let packet = match is_tcp {
            true => tcp(client, &dst, sport, 443, flags),
            false => datagram((client, sport), (&dst, 443), b"x"),
        };
        let is_allowed = self.send(port, packet) == Verdict::Forward(UPLINK);
        if is_allowed && is_tcp && flags == SYN {
            assert_eq!(self.send(UPLINK, tcp(&dst, client, 443, sport, SYN | ACK)), Verdict::Forward(port));
            assert!(self.send_to((pod, sport), (address, is_tcp), ACK));
        }
        is_allowed
    }

    /// Opens a connection to a random address, often a learned one, and compares its verdict with the model's.
    fn connect(&mut self, reached: &mut Reached) {
        let (pod, is_tcp) = (self.random.index(2), self.random.index(2) == 0);
        let learned: Vec<_> = self.model.learned.keys().filter(|key| key.0 == pod).map(|key| key.2).collect();
        let address = if learned.is_empty() || self.random.index(3) == 0 {
            (self.random.index(9), self.random.index(2) == 0)
        } else {
            learned[self.random.index(learned.len())]
        };
        self.next_port += 1;
        let (sport, now) = (self.next_port, self.bed.now);
        let said = self.model.about_new(pod, address, now);
        let is_allowed = self.send_to((pod, sport), (address, is_tcp), SYN);
        self.compare(said, is_allowed, reached, ["opened", "not opened", "rounded"]);
        let names: BTreeSet<_> = self.model.valid(pod, address, now).map(|(name, _)| name.clone()).collect();
        let judged = self.model.generation;
        if is_allowed {
            let session = Session { is_tcp, address, names, is_cut: false, judged, seen: now };
            self.model.sessions.insert((pod, sport), session);
        } else {
            self.model.refused.push((pod, sport, address, is_tcp));
        }
    }

    /// Repeats the first packet of a refused connection, and compares its verdict with the model's.
    fn retry(&mut self, reached: &mut Reached) {
        let Some(count) = Some(self.model.refused.len()).filter(|count| *count > 0) else { return };
        let (pod, sport, address, is_tcp) = self.model.refused[self.random.index(count)];
        let said = self.model.about_new(pod, address, self.bed.now);
        let is_allowed = self.send_to((pod, sport), (address, is_tcp), SYN);
        self.compare(said, is_allowed, reached, ["opened later", "refused again", "rounded"]);
        self.model.refused.retain(|(_, port, ..)| *port != sport || !is_allowed);
    }

    /// Sends a packet in a random session, and compares its verdict with the model's.
    fn go_on(&mut self, reached: &mut Reached) {
        let ends: Vec<_> = self.model.sessions.keys().copied().collect();
        let Some(&end) = ends.get(self.random.index(ends.len().max(1))) else { return };
        let (pod, now) = (end.0, self.bed.now);
        let session = self.model.sessions[&end].clone();
        if now - session.seen > IDLE {
            self.model.sessions.remove(&end);
            return;
        }
        let is_settled = session.judged == self.model.generation && !session.is_cut;
        let again = self.model.about_names(pod, &session).max(self.model.about_new(pod, session.address, now));
        let said = if is_settled { Said::Allowed } else { again };
        let is_allowed = self.send_to(end, (session.address, session.is_tcp), ACK);
        let allowed = if session.is_cut { "resumed" } else { "went on" };
        self.compare(said, is_allowed, reached, [allowed, "cut", "rounded"]);
        let session = match is_settled {
            true => Session { seen: now, ..session },
            false => self.model.judged(pod, &session, is_allowed, now),
        };
        self.model.sessions.insert(end, session);
    }

    fn step(&mut self, reached: &mut Reached) {
        match self.random.index(20) {
            0..=3 => self.ask(reached),
            4..=7 => self.answer(reached),
            8..=10 => self.connect(reached),
            11 => self.retry(reached),
            12..=16 => self.go_on(reached),
            17 => self.change_policy(),
            _ => self.bed.wait([1, 5, 9, 30][self.random.index(4)]),
        }
    }

    fn compare(&self, said: Said, is_allowed: bool, reached: &mut Reached, what: [&'static str; 3]) {
        let [allowed, denied, either] = what;
        let case = match said {
            Said::Allowed => allowed,
            Said::Denied => denied,
            Said::Either => either,
        };
        assert!(said == Said::Either || is_allowed == (said == Said::Allowed), "{said:?}\n{:#?}", self.model);
        reach(reached, case);
    }
}

/// Plays this number of histories, and requires that they reach each case often enough.
fn play(histories: u64) {
    let mut reached = Reached::new();
    for seed in 1..=histories {
        let mut history = History::new(seed);
        for _ in 0..STEPS {
            history.step(&mut reached);
        }
        history.replay();
    }
    println!("{reached:?}");
    for (what, least_of_thousand) in [
        ("asked again", 1_000),
        ("answered", 600),
        ("answered over TCP", 250),
        ("second or unasked", 600),
        ("late", 300),
        ("forged", 1_000),
        ("opened", 200),
        ("not opened", 2_000),
        ("opened later", 10),
        ("refused again", 500),
        ("rounded", 5),
        ("went on", 300),
        ("cut", 20),
        ("resumed", 1),
    ] {
        let times = reached.get(what).copied().unwrap_or_default();
        assert!(times >= least_of_thousand * histories / 1_000, "{what}: {reached:?}");
    }
}

#[test]
fn random_histories_have_the_verdicts_of_the_model() {
    play(1_000);
}

#[test]
#[ignore = "takes ten times as long; run it after a change of what names permit"]
fn ten_thousand_random_histories_have_the_verdicts_of_the_model() {
    play(10_000);
}
