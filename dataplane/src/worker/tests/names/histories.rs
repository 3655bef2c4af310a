//! Random histories of questions, answers, time, connections and changes of policy, compared with a small model of the semantics
//! (ClusterNetworkPolicy, NPEP-133).

use std::collections::BTreeMap;

use super::*;

/// Number of steps of a history, enough for a question, an answer, a connection, and the end of the address or of its rule.
const STEPS: usize = 40;

const POOL: [&str; 5] = ["www.example.com", "a.example.org", "b.a.example.org", "example.org", "other.net.test"];
const PATTERNS: [&str; 5] = ["www.example.com", "*.example.org", "*.a.example.org", "example.org", "*.example.com"];

/// Time in nanoseconds after which an answer to an open question is ignored.
const OPEN_FOR: u64 = 10 * SECOND;

/// Sessions that were idle for longer than this may have expired, and are no longer compared.
const IDLE: u64 = 20 * SECOND;

struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(below).unwrap()).unwrap()
    }
}

/// Whether a pattern matches a name, label by label.
fn is_named(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), name.split('.').collect());
    match pattern.split_first() {
        Some((&"*", below)) => name.len() > below.len() && name.ends_with(below),
        _ => pattern == name,
    }
}

/// The model's verdict about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Allowed,
    Denied,
    /// Both verdicts are right: the address has ended, but the table may have lengthened its validity by a quarter.
    Either,
}

/// A connection of the pod, by its source port.
#[derive(Clone, Debug)]
struct Session {
    address: usize,
    /// The name by which it is allowed. `None` while it is cut.
    name: Option<String>,
    /// The generation of the policy that judged the last packet.
    judged: u64,
    /// Time of the last packet in nanoseconds.
    seen: u64,
}

#[derive(Debug, Default)]
struct Model {
    patterns: Vec<&'static str>,
    generation: u64,
    /// By name and address: the time until which the address is surely valid, and the time until which it may be, in nanoseconds.
    learned: BTreeMap<(String, usize), (u64, u64)>,
    /// Open questions by id and name, with the time of the query in nanoseconds.
    open: BTreeMap<(u16, String), u64>,
    sessions: BTreeMap<u16, Session>,
}

impl Model {
    fn names(&self, name: &str) -> bool {
        self.patterns.iter().any(|pattern| is_named(pattern, name))
    }

    fn of_address(&self, address: usize, now: u64) -> Said {
        let named = self.learned.iter().filter(|((name, at), _)| *at == address && self.names(name));
        let ends: Vec<_> = named.map(|(_, ends)| *ends).collect();
        match () {
            () if ends.iter().any(|(surely, _)| now < *surely) => Said::Allowed,
            () if ends.iter().any(|(_, perhaps)| now < *perhaps) => Said::Either,
            () => Said::Denied,
        }
    }

    fn learn(&mut self, name: &str, address: usize, ttl: u32, now: u64) {
        let left = u64::from(ttl) * SECOND + GRACE;
        let full = (now + left).next_multiple_of(SECOND) + SECOND;
        let ends = self.learned.entry((name.to_owned(), address)).or_default();
        *ends = (ends.0.max(now + left), ends.1.max(full.max(now + left + left / 4)));
    }
}

fn address(at: usize) -> String {
    format!("203.0.113.{at}")
}

struct History {
    bed: Bed,
    model: Model,
    random: Random,
    next_port: u16,
    next_id: u16,
}

type Reached = BTreeMap<&'static str, u64>;

impl History {
    fn new(seed: u64) -> Self {
        let bed = Bed::new();
        let (model, random) = (Model { generation: 1, ..Model::default() }, Random(seed * 2 + 0x9e37_79b9_7f4a_7c15));
        let mut history = Self { bed, model, random, next_port: 1, next_id: 0 };
        history.change_policy();
        history
    }

    fn change_policy(&mut self) {
        let model = &mut self.model;
        model.generation += 1;
        model.patterns = PATTERNS.into_iter().filter(|_| self.random.below(2) == 0).collect();
        // Ports have a table as long as any rule names a domain; the test keeps one.
        model.patterns.push("never.example.net");
        self.bed.snapshot = snapshot_naming(model.generation, &model.patterns, RULE);
    }

    /// Asks about a random name, in upper or lower case.
    fn ask(&mut self) {
        let name = POOL[self.random.below(POOL.len())];
        let name = if self.random.below(2) == 0 { name.to_uppercase() } else { name.to_owned() };
        self.next_id += 1;
        let packet = datagram(("10.0.0.1", 4000), (SERVER, 53), &query(self.next_id, &name));
        assert_eq!(self.bed.verdict(A, &packet), Verdict::Forward(UPLINK));
        if self.model.names(&name.to_lowercase()) {
            self.model.open.insert((self.next_id, name), self.bed.now);
        }
    }

    /// Answers a random open question, as the server or with a forged packet.
    fn answer(&mut self, reached: &mut Reached) {
        let open: Vec<_> = self.model.open.keys().cloned().collect();
        let Some((id, name)) = open.get(self.random.below(open.len().max(1))).cloned() else { return };
        let (at, ttl) = (self.random.below(6), u32::try_from(self.random.below(40)).unwrap());
        let (owner, ip) = (name.to_lowercase(), address(at));
        let chained = [(&*owner, ttl, "edge.test"), ("edge.test", ttl, &*ip), ("unasked.test", ttl, "203.0.113.9")];
        let direct = [(&*owner, ttl, &*ip)];
        let records: &[_] = if self.random.below(3) == 0 { &chained } else { &direct };
        let server = (SERVER, 53);
        let (data, from, to_port, is_true) = match self.random.below(8) {
            0 => (answer(id ^ 0x8000, &name, records), server, 4000, false),
            1 => (answer(id, "else.example.com", records), server, 4000, false),
            2 => (answer(id, &name, records), ("192.0.2.53", 53), 4000, false),
            3 => (answer(id, &name, records), server, 4001, false),
            _ => (answer(id, &name, records), server, 4000, true),
        };
        self.bed.verdict(UPLINK, &datagram(from, ("10.0.0.1", to_port), &data));
        if !is_true {
            *reached.entry("forged").or_default() += 1;
        } else if self.model.names(&owner) {
            let asked = self.model.open.remove(&(id, name)).unwrap();
            let is_believed = self.bed.now - asked < OPEN_FOR;
            *reached.entry(if is_believed { "answered" } else { "late" }).or_default() += 1;
            if is_believed {
                self.model.learn(&owner, at, ttl, self.bed.now);
            }
        }
    }

    fn datagram_to(&mut self, port: u16, at: usize) -> bool {
        let packet = datagram(("10.0.0.1", port), (&address(at), 443), b"x");
        self.bed.verdict(A, &packet) == Verdict::Forward(UPLINK)
    }

    /// Opens a connection to a random address, and compares its verdict with the model's.
    fn connect(&mut self, reached: &mut Reached) {
        let at = self.random.below(10);
        self.next_port += 1;
        let (port, now) = (self.next_port, self.bed.now);
        let said = self.model.of_address(at, now);
        let is_allowed = self.datagram_to(port, at);
        compare(said, is_allowed, reached, ["opened", "not opened", "rounded"], &self.model);
        if is_allowed {
            let name = self.valid_name(at);
            self.model.sessions.insert(port, Session { address: at, name, judged: self.model.generation, seen: now });
        }
    }

    /// Returns the first learned name of an address that a rule names, by which the worker has allowed it. `None` if no rule names one.
    fn valid_name(&mut self, at: usize) -> Option<String> {
        let flow_names = |bed: &Bed| {
            let mut names = Vec::new();
            bed.worker.learned().names_of(Holder(7), ip(&address(at)), bed.now, |_, name| names.push(name.to_owned()));
            names
        };
        flow_names(&self.bed).into_iter().find(|name| self.model.names(name))
    }

    /// Sends a packet in a random session, and compares its verdict with the model's.
    fn go_on(&mut self, reached: &mut Reached) {
        let ports: Vec<u16> = self.model.sessions.keys().copied().collect();
        let Some(&port) = ports.get(self.random.below(ports.len().max(1))) else { return };
        let (now, generation) = (self.bed.now, self.model.generation);
        let session = self.model.sessions[&port].clone();
        if now - session.seen > IDLE {
            self.model.sessions.remove(&port);
            return;
        }
        let said = match &session.name {
            Some(_) if session.judged == generation => Said::Allowed,
            Some(name) if self.model.names(name) => Said::Allowed,
            None if session.judged == generation => Said::Denied,
            _ => self.model.of_address(session.address, now),
        };
        let is_allowed = self.datagram_to(port, session.address);
        compare(said, is_allowed, reached, ["went on", "cut", "rounded"], &self.model);
        let is_kept = session.name.as_ref().is_some_and(|name| self.model.names(name));
        let name = match (is_allowed, is_kept || session.judged == generation) {
            (false, _) => None,
            (true, true) => session.name,
            (true, false) => self.valid_name(session.address),
        };
        self.model.sessions.insert(port, Session { name, judged: generation, seen: now, ..session });
    }

    fn step(&mut self, reached: &mut Reached) {
        match self.random.below(20) {
            0..=4 => self.ask(),
            5..=8 => self.answer(reached),
            9..=12 => self.connect(reached),
            13..=16 => self.go_on(reached),
            17 => self.change_policy(),
            _ => self.bed.wait([1, 5, 9, 30][self.random.below(4)]),
        }
    }
}

fn compare(said: Said, is_allowed: bool, reached: &mut Reached, what: [&'static str; 3], model: &Model) {
    let [allowed, denied, either] = what;
    match said {
        Said::Allowed => assert!(is_allowed, "denied\n{model:#?}"),
        Said::Denied => assert!(!is_allowed, "allowed\n{model:#?}"),
        Said::Either => {}
    }
    let case = match said {
        Said::Allowed => allowed,
        Said::Denied => denied,
        Said::Either => either,
    };
    *reached.entry(case).or_default() += 1;
}

/// Plays this number of histories, and requires that they reach each case often enough.
fn play(histories: u64) {
    let mut reached = Reached::new();
    for seed in 1..=histories {
        let mut history = History::new(seed);
        for _ in 0..STEPS {
            history.step(&mut reached);
        }
    }
    println!("{reached:?}");
    for (what, least_of_thousand) in [
        ("answered", 1_000),
        ("late", 300),
        ("forged", 2_000),
        ("opened", 300),
        ("not opened", 5_000),
        ("rounded", 5),
        ("went on", 400),
        ("cut", 40),
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
