//! All ways to other nodes: which way is probed next, which probes wait for an answer, and what status and metrics report.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_dataplane::io::Refusal;
use bulkhead_observe::admin::{NodeWayRow, NodeWays, ProbesStatus, WayFault, WayState};
use ipnet::IpNet;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::fault::Fault;
use super::message::Message;
use super::path::{Aim, Path, Probe, Test};
use crate::config::Probing;

/// Answers per second to one address. A node sends at most four probes in an interval for each family, and the shortest interval is 100 ms.
const ANSWERS: u32 = 40;

/// Maximum number of faults in the status.
const SHOWN: usize = 5;

/// The way that packets to a node's pods of one family take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::remote_nodes) enum Via {
    /// A route over a common link, with the node's address and the interface's name.
    Route(IpAddr, String),
    /// The tunnel, with the node's address.
    Tunnel(IpAddr),
    /// The network routes them, as the configuration forbids the tunnel.
    Network,
    /// No way leads to them, for this reason.
    Nowhere(String),
}

/// A way, and where its probes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::remote_nodes) struct Target {
    /// The node's name.
    pub(in crate::remote_nodes) node: Arc<str>,
    /// The networks of its pods, of one family. Empty if the node has none.
    pub(in crate::remote_nodes) networks: Vec<IpNet>,
    /// The way to them.
    pub(in crate::remote_nodes) via: Via,
    /// The length of the longest packets in bytes. `None` without a way.
    pub(in crate::remote_nodes) mtu: Option<u32>,
    /// The probes' addresses. `None` if no probe can take this way.
    pub(in crate::remote_nodes) aim: Option<Aim>,
}

/// A node's name, and whether the way is that of IPv6.
type Key = (Arc<str>, bool);

/// A way with its probes.
#[derive(Debug)]
struct Entry {
    target: Target,
    /// When this process chose the way.
    since: Instant,
    /// Where its probes go, and what earlier ones have proven. `None` if no probe can take the way, or probes are off.
    path: Option<Path>,
    /// The nonces of the present round's probes, answered or not. Empty before the first round.
    nonces: Vec<u64>,
}

/// A probe that was sent in the present round.
#[derive(Debug)]
struct Sent {
    /// The name of the node, and the IP version of the pods' addresses, whose way the probe tests.
    key: Key,
    /// What was sent, and where to.
    probe: Probe,
    /// When it was sent, by this node's clock.
    at: Instant,
}

/// The probes of a round.
#[derive(Debug)]
pub(super) struct NextRound {
    /// The name of the node that should answer.
    pub(super) node: Arc<str>,
    /// The probes to send, each with its nonce: the number by which an answer is assigned to it.
    pub(super) probes: Vec<(u64, Probe)>,
}

/// The account of answers to one address of another node.
#[derive(Debug)]
struct Known {
    /// When the second began in which answers are counted, and their number in it.
    answers: (Instant, u32),
}

/// The ways to all other nodes.
#[derive(Debug)]
pub(in crate::remote_nodes) struct Paths {
    /// Port and interval of probes. `None` if they are off.
    settings: Option<Probing>,
    /// The tunnel's UDP port, for messages about firewalls.
    tunnel_port: u16,
    /// The ways, by node and family.
    entries: BTreeMap<Key, Entry>,
    /// Number of ways that are probed.
    probed: u32,
    /// The addresses of other nodes, whose probes are answered.
    known: BTreeMap<IpAddr, Known>,
    /// The index of the tunnel's interface, and the inner addresses of nodes to which it leads. 0 without a tunnel.
    tunnel: (u32, BTreeSet<IpAddr>),
    /// The way that was probed last. `None` before the first.
    last: Option<Key>,
    /// The probes of each way's present round that are not answered, by nonce.
    sent: HashMap<u64, Sent>,
    /// The secret of the nonces, and the number of nonces drawn.
    nonces: (RandomState, u64),
    /// The round trips of small probes, in seconds.
    round_trips: Histogram,
    /// Log lines about faults that began (true) or ended (false).
    told: Vec<(bool, String)>,
}

impl Paths {
    /// Returns no ways. `settings` is `None` if probes are off.
    pub(in crate::remote_nodes) fn new(settings: Option<Probing>, tunnel_port: u16) -> Self {
        Self {
            settings,
            tunnel_port,
            entries: BTreeMap::new(),
            probed: 0,
            known: BTreeMap::new(),
            tunnel: (0, BTreeSet::new()),
            last: None,
            sent: HashMap::new(),
            nonces: (RandomState::new(), 0),
            // From 0.1 ms to 3.3 s.
            round_trips: Histogram::new(exponential_buckets(1e-4, 2.0, 16)),
            told: Vec::new(),
        }
    }

    /// Replaces the ways, the addresses whose probes are answered, and the index of the tunnel's interface (0 without a tunnel). Ways that
    /// stay keep their age and their answers.
    pub(in crate::remote_nodes) fn update(
        &mut self,
        targets: Vec<Target>,
        known: impl IntoIterator<Item = IpAddr>,
        tunnel: u32,
    ) {
        let now = Instant::now();
        let mut before = std::mem::take(&mut self.entries);
        let tunneled = targets.iter().filter_map(|target| target.aim.as_ref());
        let tunneled = tunneled.filter(|aim| aim.outer.is_some()).map(|aim| aim.to).collect();
        let ports = self.settings.map(|settings| [settings.port, self.tunnel_port]);
        for target in targets {
            let is_v6 = target.networks.first().is_some_and(|network| !network.addr().is_ipv4());
            let key = (Arc::clone(&target.node), is_v6);
            let old = before.remove(&key);
            let aim = target.aim.clone();
            let since = old.as_ref().filter(|old| old.target.via == target.via).map_or(now, |old| old.since);
            let (path, nonces) = match (old, aim.zip(ports)) {
                (Some(Entry { path: Some(path), nonces, .. }), Some((aim, _))) if *path.aim() == aim => {
                    (Some(path), nonces)
                }
                (_, aim) => (aim.map(|(aim, ports)| Path::new(aim, ports)), Vec::new()),
            };
            self.entries.insert(key, Entry { target, since, path, nonces });
        }
        let probed = self.entries.values().filter(|entry| entry.path.is_some()).count();
        self.probed = u32::try_from(probed).unwrap_or(u32::MAX);
        let mut before = std::mem::take(&mut self.known);
        let kept = |address| (address, before.remove(&address).unwrap_or(Known { answers: (now, 0) }));
        self.known = known.into_iter().map(kept).collect();
        self.tunnel = (tunnel, tunneled);
        let entries = &self.entries;
        self.sent.retain(|nonce, sent| entries.get(&sent.key).is_some_and(|entry| entry.nonces.contains(nonce)));
    }

    /// Ends the probes. Status then reports no way as proven.
    pub(in crate::remote_nodes) fn turn_off(&mut self) {
        self.settings = None;
        self.probed = 0;
        self.entries.values_mut().for_each(|entry| entry.path = None);
    }

    /// Returns the time between two rounds, so that each way has one in an interval. `None` if there is no way to probe.
    pub(super) fn pause(&self) -> Option<Duration> {
        (self.probed > 0).then_some(self.settings?.interval / self.probed.max(1))
    }

    /// Begins the next way's round. `None` without a way to probe.
    pub(super) fn next_round(&mut self) -> Option<NextRound> {
        let is_probed = |(_, entry): &(&Key, &Entry)| entry.path.is_some();
        let after = self.last.as_ref().map_or(Unbounded, Excluded);
        let found =
            self.entries.range((after, Unbounded)).find(is_probed).or_else(|| self.entries.iter().find(is_probed));
        let key = found?.0.clone();
        self.last = Some(key.clone());
        let entry = self.entries.get_mut(&key)?;
        for nonce in entry.nonces.drain(..) {
            self.sent.remove(&nonce);
        }
        let mut probes = Vec::new();
        let path = entry.path.as_mut()?;
        let before = path.fault().map(Fault::code);
        for probe in path.next_round() {
            self.nonces.1 += 1;
            let nonce = self.nonces.0.hash_one(self.nonces.1);
            entry.nonces.push(nonce);
            self.sent.insert(nonce, Sent { key: key.clone(), probe, at: Instant::now() });
            probes.push((nonce, probe));
        }
        self.tell(&key, before);
        Some(NextRound { node: key.0, probes })
    }

    /// Notes an answer from this address. Ignores one without a probe of the present round to this address.
    pub(super) fn hear(&mut self, message: &Message<'_>, from: IpAddr) {
        let Some(sent) = self.sent.get(&message.nonce).filter(|sent| sent.probe.to == from) else { return };
        let (test, key, round_trip) = (sent.probe.test, sent.key.clone(), sent.at.elapsed());
        self.sent.remove(&message.nonce);
        let Some(path) = self.entries.get_mut(&key).and_then(|entry| entry.path.as_mut()) else { return };
        let before = path.fault().map(Fault::code);
        path.hear(test, message.from, &key.0, round_trip, Instant::now());
        if test == Test::Small && message.from == &*key.0 {
            self.round_trips.observe(round_trip.as_secs_f64());
        }
        self.tell(&key, before);
    }

    /// Notes that a probe was not delivered.
    pub(super) fn refuse(&mut self, refusal: &Refusal) {
        for path in self.entries.values_mut().filter_map(|entry| entry.path.as_mut()) {
            let Aim { to, outer, .. } = *path.aim();
            if to == refusal.to || outer.is_some_and(|(outer, _)| outer == refusal.to) {
                path.refuse(refusal.to, refusal.by, refusal.cause);
            }
        }
    }

    /// Notes that the kernel did not send a probe.
    pub(super) fn fail(&mut self, nonce: u64, error: &str) {
        let Some(sent) = self.sent.get(&nonce).filter(|sent| sent.probe.test == Test::Small) else { return };
        let path = self.entries.get_mut(&sent.key).and_then(|entry| entry.path.as_mut());
        path.into_iter().for_each(|path| path.fail(error.to_owned()));
    }

    /// Returns the interface over which to answer a probe from this address that arrived over `interface`; 0 for any. `None` if the address is
    /// no node's, or has had [`ANSWERS`] in this second.
    pub(super) fn answer(&mut self, to: IpAddr, interface: u32) -> Option<u32> {
        let known = self.known.get_mut(&to)?;
        if known.answers.0.elapsed() >= Duration::from_secs(1) {
            known.answers = (Instant::now(), 0);
        }
        known.answers.1 += 1;
        let (tunnel, tunneled) = &self.tunnel;
        // A node that this one reaches by a route may send through the tunnel, but has no route back there.
        let is_tunneled = interface == *tunnel && tunneled.contains(&to);
        (known.answers.1 <= ANSWERS).then_some(if is_tunneled { interface } else { 0 })
    }

    /// Notes for the log that a fault has begun, changed its cause, or ended. `before` is its former code.
    fn tell(&mut self, key: &Key, before: Option<&'static str>) {
        let Some(entry) = self.entries.get(key) else { return };
        let fault = entry.path.as_ref().and_then(Path::fault);
        if fault.map(Fault::code) != before {
            let (node, family, way) = (&key.0, family(key.1), &entry.target.via);
            let text = fault.map_or_else(|| "packets arrive again".to_owned(), ToString::to_string);
            self.told.push((fault.is_some(), format!("node {node}, {family} by {way}: {text}")));
        }
    }

    /// Takes the lines for the log, each with whether it is a warning.
    pub(super) fn take_told(&mut self) -> Vec<(bool, String)> {
        std::mem::take(&mut self.told)
    }

    /// Returns the round trips of the small probes, in seconds.
    pub(in crate::remote_nodes) const fn round_trips(&self) -> &Histogram {
        &self.round_trips
    }

    /// Returns all ways with their state, by node and family. `node` is this node's name.
    pub(in crate::remote_nodes) fn rows(&self, node: &str) -> NodeWays {
        let row = |(key, entry): (&Key, &Entry)| row(key, entry);
        NodeWays {
            node: node.to_owned(),
            probe_port: self.settings.map(|settings| settings.port),
            probe_interval_seconds: self.settings.map(|settings| settings.interval.as_secs_f64()),
            ways: self.entries.iter().map(row).collect(),
        }
    }

    /// Returns the numbers of ways by state, and the first faults. `None` if probes are off.
    pub(in crate::remote_nodes) fn summary(&self) -> Option<ProbesStatus> {
        self.settings?;
        let mut status = ProbesStatus::default();
        for (key, entry) in &self.entries {
            match state(entry) {
                WayState::Proven => status.proven += 1,
                WayState::Waiting => status.waiting += 1,
                WayState::NotProbed => status.not_probed += 1,
                WayState::Broken => {
                    status.broken += 1;
                    if let Some(fault) =
                        entry.path.as_ref().and_then(Path::fault).filter(|_| status.faults.len() < SHOWN)
                    {
                        status.faults.push(format!("{} ({}): {fault}", key.0, family(key.1)));
                    }
                }
            }
        }
        Some(status)
    }
}

/// Returns the result of a way's probes.
fn state(entry: &Entry) -> WayState {
    match (&entry.target.via, &entry.path) {
        (Via::Nowhere(_), _) => WayState::Broken,
        (_, None) => WayState::NotProbed,
        (_, Some(path)) if path.fault().is_some() => WayState::Broken,
        (_, Some(path)) if path.proof().is_none() => WayState::Waiting,
        _ => WayState::Proven,
    }
}

/// Returns a way as the admin socket reports it.
fn row((node, is_v6): &Key, entry: &Entry) -> NodeWayRow {
    let Entry { target, since, path, .. } = entry;
    let proof = path.as_ref().and_then(Path::proof);
    let nowhere = match &target.via {
        Via::Nowhere(why) => Some(Fault::NoWay(why.clone())),
        _ => None,
    };
    let fault = nowhere.as_ref().or_else(|| path.as_ref().and_then(Path::fault));
    let (way, to, interface) = match &target.via {
        Via::Route(gateway, interface) => ("route", Some(*gateway), Some(interface.clone())),
        Via::Tunnel(remote) => ("tunnel", Some(*remote), None),
        Via::Network => ("network", None, None),
        Via::Nowhere(_) => ("none", None, None),
    };
    NodeWayRow {
        node: node.to_string(),
        family: family(*is_v6).to_owned(),
        networks: target.networks.clone(),
        way: way.to_owned(),
        to,
        interface,
        since_seconds: since.elapsed().as_secs(),
        mtu: target.mtu,
        state: state(entry),
        proof_age_seconds: proof.map(|proof| proof.at.elapsed().as_secs_f64()),
        round_trip_ms: proof.map(|proof| proof.round_trip.as_secs_f64() * 1e3),
        fault: fault.map(|fault| WayFault { cause: fault.code().to_owned(), text: fault.to_string() }),
    }
}

const fn family(is_v6: bool) -> &'static str {
    if is_v6 { "IPv6" } else { "IPv4" }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Route(gateway, interface) => write!(f, "a route via {gateway} dev {interface}"),
            Self::Tunnel(remote) => write!(f, "the tunnel to {remote}"),
            Self::Network => f.write_str("the network"),
            Self::Nowhere(_) => f.write_str("no way"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Kind;
    use super::*;

    fn target(node: &str, to: &str) -> Target {
        let to: IpAddr = to.parse().unwrap();
        Target {
            node: node.into(),
            networks: vec![IpNet::new(to, 24).unwrap()],
            via: Via::Route(to, "eth0".into()),
            mtu: Some(1500),
            aim: Some(Aim { to, source: None, interface: 0, mtu: 1500, outer: None }),
        }
    }

    fn paths(targets: Vec<Target>) -> Paths {
        let settings = Probing { port: 4792, interval: Duration::from_secs(10) };
        let mut paths = Paths::new(Some(settings), 4789);
        paths.update(targets, [], 0);
        paths
    }

    fn answer(paths: &mut Paths, nonce: u64, node: &str, from: IpAddr) {
        paths.hear(&Message { kind: Kind::Answer, nonce, from: node, to: "one" }, from);
    }

    #[test]
    fn each_way_has_one_round_in_an_interval() {
        let all: Vec<Target> =
            (0..1000).map(|at| target(&format!("n{at:04}"), &format!("10.0.{}.{}", at / 250, at % 250))).collect();
        let mut paths = paths(all);
        assert_eq!(paths.pause(), Some(Duration::from_millis(10)));
        let probed: BTreeSet<_> = (0..1000).map(|_| paths.next_round().unwrap().node).collect();
        assert_eq!(probed.len(), 1000);
        assert_eq!(&*paths.next_round().unwrap().node, "n0000");
        assert_eq!(paths.sent.len(), 2000, "only the last round's probes wait");
        paths.update(Vec::new(), [], 0);
        assert!(paths.sent.is_empty() && paths.pause().is_none() && paths.next_round().is_none());
    }

    #[test]
    fn only_an_answer_to_an_outstanding_probe_from_its_destination_counts() {
        let mut paths = paths(vec![target("two", "10.0.0.2")]);
        let [two, other] = ["10.0.0.2", "10.0.0.3"].map(|text| text.parse().unwrap());
        let old = paths.next_round().unwrap().probes;
        let probes = paths.next_round().unwrap().probes;
        answer(&mut paths, old[0].0, "two", two);
        answer(&mut paths, probes[0].0 ^ 1, "two", two);
        answer(&mut paths, probes[0].0, "two", other);
        assert_eq!(paths.summary().unwrap().waiting, 1);
        answer(&mut paths, probes[0].0, "two", two);
        assert_eq!(paths.summary().unwrap().proven, 1);
    }

    #[test]
    fn a_fault_is_told_when_it_begins_and_when_it_ends() {
        let mut paths = paths(vec![target("two", "10.0.0.2")]);
        let to = "10.0.0.2".parse().unwrap();
        (0..20).for_each(|_| drop(paths.next_round()));
        let told = paths.take_told();
        assert!(
            matches!(&told[..], [(true, text)] if text.starts_with("node two, IPv4 by a route via 10.0.0.2 dev eth0: 10.0.0.2 does not answer")),
            "{told:?}"
        );
        let row = &paths.rows("one").ways[0];
        assert_eq!((row.state, row.fault.as_ref().map(|fault| &*fault.cause)), (WayState::Broken, Some("no_answer")));
        assert_eq!(paths.summary().unwrap().faults.len(), 1);
        let probes = paths.next_round().unwrap().probes;
        answer(&mut paths, probes[0].0, "two", to);
        assert!(matches!(&paths.take_told()[..], [(false, text)] if text.ends_with("packets arrive again")));
        assert_eq!(paths.rows("one").ways[0].state, WayState::Proven);
    }

    #[test]
    fn a_way_that_stays_keeps_its_proof_and_another_way_starts_without() {
        let mut paths = paths(vec![target("two", "10.0.0.2")]);
        let to = "10.0.0.2".parse().unwrap();
        let probes = paths.next_round().unwrap().probes;
        paths.update(vec![target("two", "10.0.0.2"), target("three", "10.0.0.3")], [], 0);
        answer(&mut paths, probes[0].0, "two", to);
        let summary = |paths: &Paths| paths.summary().map(|status| (status.proven, status.waiting));
        assert_eq!(summary(&paths), Some((1, 1)));
        let moved = Target { via: Via::Tunnel(to), ..target("two", "10.0.0.9") };
        paths.update(vec![moved], [], 0);
        assert_eq!(summary(&paths), Some((0, 1)));
        let lost = Target { via: Via::Nowhere("no route".into()), aim: None, ..target("two", "10.0.0.9") };
        paths.update(vec![lost], [], 0);
        let row = &paths.rows("one").ways[0];
        assert_eq!((row.state, row.fault.as_ref().map(|fault| &*fault.cause)), (WayState::Broken, Some("no_route")));
    }

    #[test]
    fn answers_go_to_nodes_alone_and_not_without_limit() {
        let mut paths = paths(Vec::new());
        let [node, other] = ["10.0.0.2", "192.0.2.1"].map(|text| text.parse().unwrap());
        paths.update(Vec::new(), [node], 9);
        assert_eq!(paths.answer(other, 2), None);
        let answered = (0..1000).filter(|_| paths.answer(node, 2).is_some()).count();
        // The test may run across the end of a second.
        assert!((20..=40).contains(&answered), "{answered}");
    }
}
