//! One probed way: the probes under way, what is known from their answers, and the fault that follows.
//!
//! A round sends a small packet and one that fills the MTU. Until the first is answered again, rounds of a tunneled way also send a probe
//! outside of the tunnel, which tells a filtered tunnel from a node that is down. If only long packets are lost, rounds search the greatest
//! length that arrives.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_dataplane::io::Undelivered;

use super::fault::{EXACT, Fault};
use super::message::SMALL;

/// Number of successive rounds without an answer that make a fault.
const MISSES: u32 = 3;

/// Addresses and settings of a way's probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::remote_nodes) struct Aim {
    /// The destination.
    pub(in crate::remote_nodes) to: IpAddr,
    /// The source address. `None` if the node's own address of the family is not known.
    pub(in crate::remote_nodes) source: Option<IpAddr>,
    /// The index of the tunnel's interface. 0 for a way by a route.
    pub(in crate::remote_nodes) interface: u32,
    /// The length of the longest packets in bytes.
    pub(in crate::remote_nodes) mtu: u32,
    /// The destination and source of probes outside of the tunnel. `None` for a way by a route.
    pub(in crate::remote_nodes) outer: Option<(IpAddr, Option<IpAddr>)>,
}

/// What a probe tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// Whether packets arrive.
    Small,
    /// Whether packets that fill the MTU arrive.
    Large,
    /// Whether packets of a length in between arrive.
    Middle,
    /// Whether the node answers outside of the tunnel.
    Outer,
}

/// A probe to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probe {
    /// What an answer shows.
    pub(super) test: Test,
    /// The destination.
    pub(super) to: IpAddr,
    /// The source address. `None` if the kernel chooses it.
    pub(super) source: Option<IpAddr>,
    /// The index of the interface over which the probe leaves. 0 if the kernel chooses it.
    pub(super) interface: u32,
    /// The datagram's length in bytes, without headers.
    pub(super) len: usize,
}

/// The last answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Proof {
    /// When it arrived.
    pub(super) at: Instant,
    /// Time from the probe to it.
    pub(super) round_trip: Duration,
}

/// The search for the greatest length that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Search {
    /// Length in bytes of the longest packet that arrived.
    arrives: u32,
    /// Length in bytes of the shortest packet that was lost.
    lost: u32,
}

impl Search {
    /// Returns the length in bytes of the packet to send next. `None` if the greatest length is known closely enough.
    fn middle(self) -> Option<u32> {
        (self.lost.saturating_sub(self.arrives) > EXACT).then(|| self.arrives.midpoint(self.lost))
    }
}

/// The answers of the present round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// Whether the small packet was answered.
    small: bool,
    /// Whether the packet that fills the MTU was answered.
    large: bool,
    /// The length in bytes of the packet in between, and whether it was answered. `None` if the round sent none.
    middle: Option<(u32, bool)>,
    /// Whether the probe outside of the tunnel was answered. False if the round sent none.
    outer: bool,
}

/// The state of one way's probes.
#[derive(Debug)]
pub(super) struct Path {
    aim: Aim,
    /// The ports of probes and of the tunnel.
    ports: [u16; 2],
    /// Whether a round has begun.
    is_begun: bool,
    /// The answers of the present round, or of the last one between two rounds.
    round: Round,
    /// Successive rounds without any answer, and successive rounds in which only the large packet was not answered.
    missed: u32,
    missed_large: u32,
    /// The search for the longest packet that arrives. `None` while long packets arrive.
    search: Option<Search>,
    /// The MTU in bytes that was reported for a long packet, with the reporter. `None` without a report.
    reported: Option<(u32, IpAddr)>,
    /// The last report since the last answer: the probe's destination, the reporter (`None`: this node), and the cause. `None` without a report.
    refusal: Option<(IpAddr, Option<IpAddr>, Undelivered)>,
    /// The kernel's error when it did not send the small probe. `None` if it has sent it, or an answer came since.
    unsent: Option<String>,
    /// The address at which another node answered, and that node's name. `None` if none has since the last proof.
    stranger: Option<(IpAddr, Arc<str>)>,
    /// The last answer. `None` before the first.
    proof: Option<Proof>,
    /// The way's fault. `None` while packets arrive, and before [`MISSES`] rounds have passed.
    fault: Option<Fault>,
}

impl Path {
    /// Returns a path without answers. `ports` are those of probes and of the tunnel.
    pub(super) fn new(aim: Aim, ports: [u16; 2]) -> Self {
        Self {
            aim,
            ports,
            is_begun: false,
            round: Round::default(),
            missed: 0,
            missed_large: 0,
            search: None,
            reported: None,
            refusal: None,
            unsent: None,
            stranger: None,
            proof: None,
            fault: None,
        }
    }

    /// Returns the addresses and settings of the probes.
    pub(super) const fn aim(&self) -> &Aim {
        &self.aim
    }

    /// The last answer that came this way. `None` before the first.
    pub(super) const fn proof(&self) -> Option<Proof> {
        self.proof
    }

    /// `None` while packets arrive, and before [`MISSES`] rounds have passed.
    pub(super) const fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Ends the present round, judges, and begins the next. Returns the probes to send.
    pub(super) fn next_round(&mut self) -> Vec<Probe> {
        self.settle();
        (self.is_begun, self.round) = (true, Round::default());
        let Aim { to, source, interface, mtu, outer } = self.aim;
        let header = self.header();
        let probe = |test, packet: u32| {
            let len = usize::try_from(packet.saturating_sub(header)).unwrap_or(SMALL).max(SMALL);
            Probe { test, to, source, interface, len }
        };
        let mut probes = vec![probe(Test::Small, 0), probe(Test::Large, mtu)];
        if let Some(length) = self.search.and_then(Search::middle) {
            self.round.middle = Some((length, false));
            probes.push(probe(Test::Middle, length));
        }
        if let Some((to, source)) = outer.filter(|_| self.missed > 0) {
            probes.push(Probe { test: Test::Outer, to, source, interface: 0, len: SMALL });
        }
        probes
    }

    /// Counts what the round that ends has missed, and judges.
    fn settle(&mut self) {
        let round = self.round;
        if !self.is_begun {
            return;
        }
        if !round.small {
            self.missed = self.missed.saturating_add(1);
        } else if !round.large {
            self.missed_large = self.missed_large.saturating_add(1);
            if self.missed_large == MISSES {
                self.search = Some(Search { arrives: self.shortest(), lost: self.aim.mtu });
            }
            if let (Some(search), Some((length, false))) = (&mut self.search, round.middle) {
                search.lost = length;
            }
        }
        self.fault = self.judge();
    }

    /// Returns the length of a small probe's packet in bytes.
    fn shortest(&self) -> u32 {
        u32::try_from(SMALL).unwrap_or(u32::MAX) + self.header()
    }

    /// Returns the length of a probe's headers in bytes: UDP after IPv4 without options, or after IPv6.
    const fn header(&self) -> u32 {
        if self.aim.to.is_ipv4() { 20 + 8 } else { 40 + 8 }
    }

    /// Returns the fault that follows from the rounds so far. `None` if there is none, or not yet.
    fn judge(&self) -> Option<Fault> {
        let [port, tunnel] = self.ports;
        if self.missed >= MISSES {
            if let Some((to, other)) = &self.stranger {
                return Some(Fault::WrongAddress(*to, Arc::clone(other)));
            }
            if let Some((to, by, cause)) = self.refusal {
                return Some(Fault::Refused { to, by, cause, port });
            }
            if let Some(error) = &self.unsent {
                return Some(Fault::Unsent(self.aim.to, error.clone()));
            }
            let to = self.aim.outer.map_or(self.aim.to, |(outer, _)| outer);
            return Some(if self.round.outer { Fault::Filtered { to, port, tunnel } } else { Fault::Silent(to, port) });
        }
        let search = self.search.filter(|_| self.missed_large >= MISSES)?;
        Some(Fault::TooLong { arrives: search.arrives, lost: search.lost, reported: self.reported })
    }

    /// Notes an answer. `from` is the name of the node that sent it, `round_trip` the time since the probe was sent.
    pub(super) fn hear(&mut self, test: Test, from: &str, expected: &str, round_trip: Duration, now: Instant) {
        if from != expected {
            let at = self.aim.outer.filter(|_| test == Test::Outer).map_or(self.aim.to, |(outer, _)| outer);
            self.stranger = Some((at, from.into()));
            return;
        }
        if test == Test::Outer {
            self.round.outer = true;
            return;
        }
        self.round.small = true;
        self.missed = 0;
        (self.refusal, self.unsent, self.stranger) = (None, None, None);
        // The large packet needs more time on a slow link, so the round trip is that of the small one.
        let round_trip = match self.proof {
            Some(before) if test != Test::Small => before.round_trip,
            _ => round_trip,
        };
        self.proof = Some(Proof { at: now, round_trip });
        match (test, &mut self.round.middle, &mut self.search) {
            (Test::Large, ..) => {
                self.round.large = true;
                self.missed_large = 0;
                (self.search, self.reported) = (None, None);
            }
            (Test::Middle, Some((length, arrived)), Some(search)) => {
                *arrived = true;
                search.arrives = *length;
            }
            _ => {}
        }
        self.fault = self.judge();
    }

    /// Notes that a probe to this address was not delivered, as `by` reports.
    pub(super) fn refuse(&mut self, to: IpAddr, by: Option<IpAddr>, cause: Undelivered) {
        let by = by.filter(|&by| Some(by) != self.aim.source);
        match (cause, by) {
            (Undelivered::TooBig(mtu), Some(by)) => self.reported = Some((mtu, by)),
            (Undelivered::TooBig(_), None) => {}
            _ => self.refusal = Some((to, by, cause)),
        }
    }

    /// Notes that the kernel did not send the small probe.
    pub(super) fn fail(&mut self, error: String) {
        self.unsent = Some(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TUNNEL: u32 = 9;

    fn path(is_tunneled: bool) -> Path {
        let [to, source, outer] = ["10.0.0.3", "10.0.0.1", "192.0.2.3"].map(|text| text.parse().unwrap());
        let aim = if is_tunneled {
            Aim { to, source: Some(source), interface: TUNNEL, mtu: 1450, outer: Some((outer, None)) }
        } else {
            Aim { to, source: Some(source), interface: 0, mtu: 1500, outer: None }
        };
        Path::new(aim, [4792, 4789])
    }

    /// Runs rounds in which probes that `arrives` accepts are answered by this node. Returns the tests of the last round.
    fn rounds(path: &mut Path, count: usize, by: &str, arrives: impl Fn(&Probe) -> bool) -> Vec<Test> {
        let mut tests = Vec::new();
        for _ in 0..count {
            let probes = path.next_round();
            for probe in probes.iter().filter(|probe| arrives(probe)) {
                path.hear(probe.test, by, "three", Duration::from_millis(1), Instant::now());
            }
            tests = probes.iter().map(|probe| probe.test).collect();
        }
        tests
    }

    fn code(path: &Path) -> Option<&'static str> {
        path.fault().map(Fault::code)
    }

    #[test]
    fn a_way_is_proven_by_the_first_answer_and_broken_after_three_missed_rounds() {
        let mut path = path(false);
        assert_eq!(rounds(&mut path, 1, "three", |_| true), [Test::Small, Test::Large]);
        assert!(path.proof().is_some() && path.fault().is_none());
        rounds(&mut path, 3, "three", |_| false);
        assert_eq!(code(&path), None, "the third round is not over");
        rounds(&mut path, 1, "three", |_| false);
        assert_eq!(code(&path), Some("no_answer"));
        // One answer ends it at once.
        rounds(&mut path, 1, "three", |_| true);
        assert_eq!(code(&path), None);
    }

    #[test]
    fn a_filtered_tunnel_is_told_from_a_node_that_is_down() {
        let mut path = path(true);
        let first = path.next_round();
        assert!(first.iter().all(|probe| probe.interface == TUNNEL && probe.to == path.aim.to), "{first:?}");
        rounds(&mut path, 4, "three", |probe| probe.test == Test::Outer);
        assert_eq!(code(&path), Some("filtered_port"));
        assert!(path.fault().unwrap().to_string().contains("192.0.2.3 answers at UDP port 4792"));
        let tests = rounds(&mut path, 2, "three", |_| false);
        assert_eq!(code(&path), Some("no_answer"));
        assert_eq!(tests, [Test::Small, Test::Large, Test::Outer]);
        assert_eq!(rounds(&mut path, 2, "three", |_| true), [Test::Small, Test::Large], "healthy again");
    }

    #[test]
    fn the_greatest_length_that_arrives_is_found() {
        let mut path = path(false);
        let arrives = |probe: &Probe| probe.len + 28 <= 1400;
        rounds(&mut path, 4, "three", arrives);
        assert_eq!(code(&path), Some("mtu"));
        assert!(path.proof().is_some());
        let text = path.fault().unwrap().to_string();
        assert!(text.starts_with("MTU: packets of 1500 bytes do not arrive, those of 1025 bytes do"), "{text}");
        rounds(&mut path, 12, "three", arrives);
        let Some(&Fault::TooLong { arrives: found, lost, .. }) = path.fault() else { panic!("{:?}", path.fault()) };
        assert!((1396..=1400).contains(&found) && (1401..=1404).contains(&lost), "{found} {lost}");
        let text = path.fault().unwrap().to_string();
        assert!(
            text.starts_with(&format!("MTU: packets longer than {found} bytes do not arrive, and no router")),
            "{text}"
        );
        // A router that reports the MTU is believed at once.
        path.refuse(path.aim.to, Some("192.0.2.9".parse().unwrap()), Undelivered::TooBig(1400));
        rounds(&mut path, 1, "three", arrives);
        let text = path.fault().unwrap().to_string();
        assert!(text.contains("longer than 1400 bytes do not arrive, as 192.0.2.9 reports"), "{text}");
        rounds(&mut path, 1, "three", |_| true);
        assert_eq!(code(&path), None);
    }

    #[test]
    fn an_outage_is_no_fault_of_the_mtu() {
        let mut path = path(false);
        rounds(&mut path, 1, "three", |_| true);
        rounds(&mut path, 10, "three", |_| false);
        rounds(&mut path, 2, "three", |probe| probe.test == Test::Small);
        assert_eq!(code(&path), None);
    }

    #[test]
    fn another_node_at_the_address_proves_nothing_and_is_named() {
        let mut path = path(false);
        rounds(&mut path, 4, "four", |_| true);
        assert!(path.proof().is_none());
        assert_eq!(
            path.fault().unwrap().to_string(),
            "wrong address: node four answers at 10.0.0.3; correct the Node objects"
        );
    }

    #[test]
    fn what_the_network_reports_is_the_cause_until_an_answer_comes() {
        for (cause, expected) in [
            (Undelivered::NoListener, "refused"),
            (Undelivered::Prohibited, "filtered_port"),
            (Undelivered::Unreachable, "unreachable"),
        ] {
            let mut path = path(true);
            path.refuse(path.aim.to, None, cause);
            rounds(&mut path, 4, "three", |_| false);
            assert_eq!(code(&path), Some(expected));
            rounds(&mut path, 1, "three", |_| true);
            rounds(&mut path, 4, "three", |_| false);
            assert_eq!(code(&path), Some("no_answer"), "the report is from before the answer");
        }
        let mut path = path(false);
        path.fail("Network is unreachable".into());
        rounds(&mut path, 4, "three", |_| false);
        assert_eq!(code(&path), Some("not_sent"));
    }
}
