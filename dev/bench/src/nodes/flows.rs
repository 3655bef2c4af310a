//! Measures new connections, small datagrams and round trips between pods of two nodes.

use super::Bench;
use super::pair::{Offloads, Way};
use crate::rounds::Rounds;
use crate::table::{Goal, Line, digits, median, percentile};
use crate::testbed::load::{IN_FLIGHT, Load};

/// The two ways of the rows that compare what the tunnel costs.
const TUNNEL_AND_ROUTE: [Way; 2] = [Way::Tunnel, Way::Route];

/// Measures new TCP connections with a byte each way. Returns the ratio of the tunnel's rate to that of routes.
pub(super) fn connect(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let rounds = connections(bench, &TUNNEL_AND_ROUTE)?;
    let [p99, failed, repeated] = [1, 2, 3].map(|metric| medians(&rounds, metric));
    let note = format!(
        "p99 of one {} and {} ms; failed {} and {}, segments sent again {} and {}",
        p99[0], p99[1], failed[0], failed[1], repeated[0], repeated[1]
    );
    let what = format!("new TCP connections, {IN_FLIGHT} at a time: {}", against());
    let [ours, other] = TUNNEL_AND_ROUTE.map(|way| rounds.of(way, 0));
    let line = Line::ratio("connect", what, &ours, &other, "thousand/s", Goal::AtLeast(0.85)).noted(&note);
    let line = line.with("p99_ms", p99.to_vec().into()).with("failed", failed.to_vec().into());
    Ok(vec![line.with("sent_again", repeated.to_vec().into())])
}

/// Measures new TCP connections by these ways, after a warm-up. Returns the values of [`Connections`](crate::testbed::load::Connections), in the order
/// of its fields.
///
/// # Errors
/// If a pair of nodes cannot be set up, or a counter cannot be read.
pub(super) fn connections(bench: &Bench, ways: &[Way]) -> anyhow::Result<Rounds<Way>> {
    bench.rounds(ways, |way| {
        let pair = bench.pair(way, Offloads::Kernel)?;
        let connections = |load: Load| load.connections(pair.client(), pair.sink(), &pair.address());
        connections(Load { time: bench.load.warm_up, ..bench.load })?;
        Ok(connections(bench.load)?.values())
    })
}

/// Measures small datagrams. Returns the ratio of those received through the tunnel to those received by routes.
pub(super) fn datagrams(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let rounds = bench.rounds(&TUNNEL_AND_ROUTE, |way| {
        let pair = bench.pair(way, Offloads::Kernel)?;
        Ok(bench.load.datagrams(pair.client(), pair.sink(), &pair.address())?.to_vec())
    })?;
    let [sent, taken] = [1, 2].map(|metric| medians(&rounds, metric));
    let note = format!("of {} and {} sent; the program took {} and {}", sent[0], sent[1], taken[0], taken[1]);
    let what = format!("18-byte UDP, sendmmsg: {}", against());
    let [ours, other] = TUNNEL_AND_ROUTE.map(|way| rounds.of(way, 0));
    let line = Line::ratio("datagrams", what, &ours, &other, "kpps", Goal::AtLeast(0.85)).noted(&note);
    Ok(vec![line.with("sent", sent.to_vec().into()).with("taken", taken.to_vec().into())])
}

/// Measures round trips of one UDP flow. Returns the time that the tunnel adds to routes, and its ratio to the kernel's VXLAN.
pub(super) fn latency(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    #[expect(clippy::cast_precision_loss, reason = "a count is shown with a few digits")]
    let rounds = bench.rounds(&[Way::Tunnel, Way::Route, Way::Flannel], |way| {
        let pair = bench.pair(way, Offloads::Kernel)?;
        let times = bench.load.round_trips(pair.client(), pair.sink(), &pair.address())?;
        Ok(vec![median(&times), percentile(&times, 99.0), times.len() as f64])
    })?;
    let ([p50, p99, count], [ours, route]) =
        ([0, 1, 2].map(|metric| medians(&rounds, metric)), TUNNEL_AND_ROUTE.map(|way| rounds.of(way, 0)));
    let added: Vec<f64> = ours.iter().zip(&route).map(|(ours, route)| ours - route).collect();
    let note = format!(
        "{} to {} us; p99 {} and {} us; {} and {} round trips",
        p50[0], p50[1], p99[0], p99[1], count[0], count[1]
    );
    let rounded: Vec<f64> = added.iter().copied().map(digits).collect();
    let what = format!("UDP round trip, p50: {} minus {}", Way::Tunnel.name(), Way::Route.name());
    let absolute = Line::value("latency", &what, median(&added), "us", Goal::AtMost(5.0)).noted(&note);
    let what = format!("UDP round trip, p50: {} against {}", Way::Tunnel.name(), Way::Flannel.name());
    let beside = Line::ratio("latency", what, &ours, &rounds.of(Way::Flannel, 0), "us", Goal::Unbounded);
    Ok(vec![absolute.with("rounds", rounded.into()).with("p99_us", p99.to_vec().into()), beside])
}

/// Returns the medians of a metric for the tunnel and for routes.
fn medians(rounds: &Rounds<Way>, metric: usize) -> [f64; 2] {
    TUNNEL_AND_ROUTE.map(|way| digits(median(&rounds.of(way, metric))))
}

/// Returns the names of the tunnel and of the routes that it is compared with.
fn against() -> String {
    format!("{} against {}", Way::Tunnel.name(), Way::Route.name())
}
