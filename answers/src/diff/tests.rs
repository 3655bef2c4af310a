//! Random pairs of states. The entries must be exactly the connections on which the tables of the two states decide differently.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bulkhead_control::object::{IngressIsolation, Transport};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::reachability::Reachability;
use bulkhead_control::reachability::difference::Difference;
use bulkhead_control::source::{Strictness, load_text};
use ipnet::IpNet;

use super::because::{Because, Reasons, Tellings};
use super::{ALLOW, groups, units};
use crate::args::PortProtocol;
use crate::claims::tests::{OUTSIDE, PORTS, Random, pods, policies};
use crate::fabric::{End, Fabric};
use crate::run::{self, Placeholders};

/// An entry of the difference.
struct Told {
    from: String,
    to: String,
    is_v6: bool,
    protocol: std::borrow::Cow<'static, str>,
    ports: Vec<(u16, u16)>,
    is_allowed: bool,
    because: Because,
}

/// A state, compiled for packets and for sets.
struct State {
    tables: Pipeline,
    sets: Pipeline,
}

impl State {
    fn of(text: &str) -> Self {
        let objects = || load_text("state", text, Strictness::Strict).unwrap().objects;
        let mut tables = Pipeline::new(Scope::Cluster);
        tables.resync(objects()).unwrap();
        let mut sets = Pipeline::without_tables(IngressIsolation::default());
        sets.resync(objects()).unwrap();
        Self { tables, sets }
    }

    fn reachability(&self) -> Reachability {
        Reachability::of(&self.sets, self.sets.mirror().unwrap())
    }

    /// Returns the pods' addresses, by name and by whether the address is IPv6.
    fn pods(&self) -> BTreeMap<(String, bool), IpAddr> {
        let of = |pod: &bulkhead_control::object::Pod| {
            let name = pod.name.to_string();
            pod.addresses.iter().map(move |&at| ((name.clone(), at.is_ipv6()), at)).collect::<Vec<_>>()
        };
        self.tables.cache().pods().flat_map(|(_, pod)| of(pod)).collect()
    }
}

/// Returns all single changes, and the number of grouped ones.
fn told(states: &[State; 2]) -> (Vec<Told>, usize) {
    let difference = Difference::of(&states[0].reachability(), &states[1].reachability());
    let mut reasons = [Reasons::of(&states[0].sets), Reasons::of(&states[1].sets)];
    let tellings = Tellings::of(&difference, &mut reasons);
    let mut all = Vec::new();
    let mut take = |change: &super::Change<'_>| {
        all.push(Told {
            from: change.from.to_owned(),
            to: change.to.to_owned(),
            is_v6: change.family == "IPv6",
            protocol: change.protocol.clone(),
            ports: change.ports.to_vec(),
            is_allowed: change.after == ALLOW,
            because: change.because.clone(),
        });
        Ok(())
    };
    units::each(&difference, &Placeholders::default(), &tellings, &mut take).unwrap();
    let mut grouped = 0;
    let mut count = |_: &super::Change<'_>| {
        grouped += 1;
        Ok(())
    };
    groups::each(&difference, &Placeholders::default(), &tellings, [&states[0].sets, &states[1].sets], &mut count)
        .unwrap();
    assert_eq!(difference.is_empty(), all.is_empty());
    (all, grouped)
}

/// Returns the ends in both states: the name in entries, and the address in each state.
fn ends(states: &[State; 2]) -> Vec<(String, [IpAddr; 2])> {
    let (old, new) = (states[0].pods(), states[1].pods());
    let both = old.iter().filter_map(|(name, &was)| Some((name.0.clone(), [was, *new.get(name)?])));
    let others = OUTSIDE.iter().copied().chain(["172.18.0.1", "172.18.0.2"]);
    both.chain(others.map(|address| (address.to_owned(), [address.parse().unwrap(); 2]))).collect()
}

/// Whether an entry's end is this end: the same name, or a range that contains its address.
fn is_end(entry: &str, end: &str) -> bool {
    match (entry.parse::<IpNet>(), end.parse::<IpAddr>()) {
        (Ok(range), Ok(address)) => range.contains(&address),
        _ => entry == end,
    }
}

/// Whether a connection is allowed. Otherwise also returns the policies that deny it.
fn judged(state: &State, fabric: &mut Fabric, [from, to]: [IpAddr; 2], port: PortProtocol) -> (bool, Option<String>) {
    let [from, to] = [from, to].map(|address| End::at(state.tables.cache(), address));
    let hops = fabric.walk(&from, &to, port).unwrap();
    let is_allowed = fabric.allowed(&from, &to, port).unwrap();
    let denied = hops.last().filter(|_| !is_allowed);
    (is_allowed, denied.and_then(|hop| run::origin(&state.tables, hop.outcome.decision)).map(|of| of.to_string()))
}

fn check(seed: u64, reached: &mut BTreeMap<&'static str, u32>) {
    let mut random = Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut cluster = pods(&mut random).0;
    let old = State::of(&(cluster.clone() + &policies(&mut random)));
    // Some pods have changed their address or are gone.
    if random.below(3) == 0 {
        cluster = pods(&mut random).0;
    }
    let states = [old, State::of(&(cluster + &policies(&mut random)))];
    let (changes, grouped) = told(&states);
    assert_eq!(grouped == 0, changes.is_empty(), "seed {seed}");
    let ends = ends(&states);
    let is_pod = |end: &(String, [IpAddr; 2])| end.0.contains('/');
    let mut fabrics = [0, 1].map(|at: usize| Fabric::new(&states[at].tables, Strictness::Strict));
    let mut add = |what, is: bool| *reached.entry(what).or_default() += u32::from(is);
    let mut met = BTreeSet::new();
    for (from, to) in ends.iter().flat_map(|from| ends.iter().map(move |to| (from, to))) {
        let is_v6 = from.1[0].is_ipv6();
        if from.0 == to.0 || is_v6 != to.1[0].is_ipv6() || (!is_pod(from) && !is_pod(to)) {
            continue;
        }
        if (0..2).any(|at| from.1[at] == to.1[at]) {
            continue;
        }
        for (transport, port) in PORTS {
            let asked = PortProtocol::new(port, transport);
            let [(was, _), (is, why)] =
                [0, 1].map(|at| judged(&states[at], &mut fabrics[at], [from.1[at], to.1[at]], asked));
            let covers = |(_, change): &(usize, &Told)| {
                is_end(&change.from, &from.0)
                    && is_end(&change.to, &to.0)
                    && change.is_v6 == is_v6
                    && change.protocol == transport.name()
                    && change.ports.iter().any(|&(first, last)| first <= port && port <= last)
            };
            let found: Vec<_> = changes.iter().enumerate().filter(covers).collect();
            let context = || format!("seed {seed}: {} -> {} {transport} {port}: {was} {is}", from.0, to.0);
            assert_eq!(found.len(), usize::from(was != is), "{}", context());
            for (at, change) in found {
                assert_eq!(change.is_allowed, is, "{}", context());
                if let Some(why) = &why {
                    let because = &change.because.after;
                    assert!(because.iter().any(|reason| reason.text == *why), "{}: {why}, {because:?}", context());
                }
                met.insert(at);
            }
            add("newly allowed", is && !was);
            add("newly denied", was && !is);
            add("the same", was == is);
            add("IPv6", is != was && is_v6);
            add("from outside", is != was && !is_pod(from));
            add("to outside", is != was && !is_pod(to));
            add("another address", is != was && (from.1[0] != from.1[1] || to.1[0] != to.1[1]));
            add("no port of TCP", is != was && transport != Transport::Tcp);
        }
    }
    add("nothing differs", changes.is_empty());
    // Each entry between pods, at one of the tested ports, must have been confirmed by a packet.
    for (at, change) in changes.iter().enumerate() {
        let is_asked = |ports: &[(u16, u16)]| {
            let of = |&(transport, port): &(Transport, u16)| {
                transport.name() == change.protocol && ports.iter().any(|&(first, last)| first <= port && port <= last)
            };
            PORTS.iter().any(of)
        };
        let are_pods = change.from.contains('/') && change.to.contains('/');
        let is_pair = are_pods && [&change.from, &change.to].iter().all(|end| end.parse::<IpNet>().is_err());
        assert!(met.contains(&at) || !is_pair || !is_asked(&change.ports), "seed {seed}: nobody confirms entry {at}");
    }
}

#[test]
fn entries_are_what_packets_find_between_any_two_ends_and_nothing_else_differs() {
    let mut reached = BTreeMap::new();
    (0..40).for_each(|seed| check(seed, &mut reached));
    for (what, least) in [
        ("newly allowed", 100),
        ("newly denied", 100),
        ("the same", 1_000),
        ("IPv6", 20),
        ("from outside", 20),
        ("to outside", 20),
        ("another address", 5),
        ("no port of TCP", 50),
        ("nothing differs", 1),
    ] {
        assert!(reached.get(what).is_some_and(|&count| count >= least), "{what}: {reached:?}");
    }
}
