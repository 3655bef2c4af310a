//! Computes rates between samples.

use std::collections::HashMap;

use super::super::sample::Sample;
use super::{Counted, DenyRates, DropRates, PathRates, Picture, PortRates, SessionRates, Traffic, WorkerRates};
use crate::admin::{PortRow, Status, WorkerRow};

/// Computes pictures from samples. Keeps the previous sample and picture.
#[derive(Debug, Default)]
pub(in crate::top) struct Tracker {
    before: Option<Sample>,
    last: Option<Picture>,
}

/// The interval between two samples.
struct Interval<'a> {
    before: &'a Sample,
    seconds: f64,
}

impl Interval<'_> {
    /// Returns a counter's rate. `None` if it decreased, as for a port that was removed and added again.
    fn rate(&self, now: u64, before: u64) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
        now.checked_sub(before).map(|count| count as f64 / self.seconds)
    }
}

impl Tracker {
    /// Returns the activity since the last sample. A sample with the same reading of the counters returns the same picture.
    pub(in crate::top) fn next(&mut self, sample: Sample) -> Picture {
        let since = self.before.as_ref().map(|before| sample.since(before));
        if let (Some(Some(time)), Some(last)) = (since, &self.last)
            && time.is_zero()
        {
            return last.clone();
        }
        let is_restarted = since == Some(None);
        let (were_silent, silent) = (self.before.as_ref().map(silent), silent(&sample));
        let note = if is_restarted {
            Some("the vswitch restarted: rates resume with the next interval")
        } else if silent.contains(&true) {
            Some("a worker does not respond: its counters are missing")
        } else if were_silent.as_ref().is_some_and(|were| *were != silent) {
            Some("a worker responds again: rates resume with the next interval")
        } else {
            None
        };
        // If the set of responding workers changed, sums would jump.
        let is_comparable = !is_restarted && were_silent.is_some_and(|were| were == silent);
        let interval = match (&self.before, since.flatten()) {
            (Some(before), Some(time)) if is_comparable => Some(Interval { before, seconds: time.as_secs_f64() }),
            _ => None,
        };
        let picture = Picture { note, ..picture(&sample, interval.as_ref()) };
        self.before = Some(sample);
        self.last = Some(picture.clone());
        picture
    }
}

/// Returns which workers do not respond.
fn silent(sample: &Sample) -> Vec<bool> {
    sample.status.workers.iter().map(|worker| worker.silent).collect()
}

fn picture(sample: &Sample, interval: Option<&Interval<'_>>) -> Picture {
    let status = &sample.status;
    let in_kernel = status.judging.as_ref().is_some_and(|judging| judging.place == "kernel");
    let mut dropped = drops(sample, interval);
    dropped.sort_by(|one, other| one.counted.most_first(&other.counted));
    let mut denied = denied(sample, interval);
    denied.sort_by(|one, other| one.counted.most_first(&other.counted));
    Picture {
        node: status.node.clone(),
        condition: status.condition(),
        uptime_seconds: status.uptime_seconds,
        generation: status.generation,
        judged: status.judging.as_ref().map(ToString::to_string),
        in_kernel,
        seconds: interval.map(|interval| interval.seconds),
        note: None,
        total: total(sample, interval, in_kernel),
        sessions: sessions(status, interval),
        path: path(status, interval),
        workers: workers(status, interval),
        dropped,
        denied,
        ports: ports(sample, interval),
    }
}

/// Returns the rate of a counter that every sample has. `None` without an interval, or if the counter decreased.
fn rate(sample: &Sample, interval: Option<&Interval<'_>>, count: impl Fn(&Sample) -> u64) -> Option<f64> {
    interval.and_then(|interval| interval.rate(count(sample), count(interval.before)))
}

fn total(sample: &Sample, interval: Option<&Interval<'_>>, in_kernel: bool) -> Traffic {
    let of = |count: &dyn Fn(&Sample) -> u64| rate(sample, interval, count);
    let ports = |count: fn(&PortRow) -> u64| move |sample: &Sample| sample.ports.iter().map(count).sum::<u64>();
    let cached = |sample: &Sample| sample.status.flow_cache.forwarded;
    let workers = |count: fn(&WorkerRow) -> u64| {
        move |sample: &Sample| sample.status.workers.iter().map(count).sum::<u64>() + cached(sample)
    };
    let dropped = |sample: &Sample| drop_counts(sample).iter().map(|(_, _, packets)| packets).sum::<u64>();
    // Bytes are counted per port only. A removed port takes its count with it, so this rate is missing once.
    let bits = |count: fn(&PortRow) -> u64| of(&ports(count)).map(|bytes| bytes * 8.0);
    let (packets_in, packets_out) = match in_kernel {
        true => (of(&ports(|port| port.received)), of(&ports(|port| port.sent))),
        false => (of(&workers(|worker| worker.received)), of(&workers(|worker| worker.sent))),
    };
    Traffic {
        packets_in,
        packets_out,
        bits_in: bits(|port| port.received_bytes),
        bits_out: bits(|port| port.sent_bytes),
        dropped: of(&dropped),
        dropped_total: dropped(sample),
    }
}

fn sessions(status: &Status, interval: Option<&Interval<'_>>) -> SessionRates {
    let before = interval.map(|interval| (interval, &interval.before.status.sessions));
    let created = before.and_then(|(interval, before)| interval.rate(status.sessions.created?, before.created?));
    SessionRates {
        used: status.sessions.used,
        capacity: status.sessions.capacity,
        created,
        refused: before.and_then(|(interval, before)| interval.rate(status.sessions.refused, before.refused)),
    }
}

fn path(status: &Status, interval: Option<&Interval<'_>>) -> PathRates {
    let slow = |status: &Status| status.workers.iter().map(|worker| worker.received).sum::<u64>();
    let of = |count: &dyn Fn(&Status) -> u64| {
        interval.and_then(|interval| interval.rate(count(status), count(&interval.before.status)))
    };
    let (slow, cached) = (of(&slow), of(&|status| status.flow_cache.forwarded));
    let share = |(slow, cached): (f64, f64)| (slow + cached > 0.0).then(|| cached / (slow + cached));
    PathRates { slow, cached, cached_share: slow.zip(cached).and_then(share) }
}

fn workers(status: &Status, interval: Option<&Interval<'_>>) -> Vec<WorkerRates> {
    let each = |(at, now): (usize, &WorkerRow)| {
        let base = WorkerRates { sessions: now.sessions, restarts: now.restarts, ..WorkerRates::default() };
        let Some((interval, before)) = interval
            .filter(|_| !now.silent)
            .and_then(|interval| Some((interval, interval.before.status.workers.get(at)?)))
        else {
            return base;
        };
        let received = interval.rate(now.received, before.received);
        let judged = now.judged.zip(before.judged).and_then(|(now, before)| interval.rate(now, before));
        let busy = now.busy_ns.zip(before.busy_ns).and_then(|(now, before)| interval.rate(now, before));
        let packets = received.unwrap_or(0.0).max(judged.unwrap_or(0.0));
        WorkerRates {
            received,
            judged,
            dropped: interval.rate(now.dropped, before.dropped),
            ns_per_packet: busy.filter(|_| packets > 0.0).map(|busy| busy / packets),
            // The clocks are not read at the same time.
            busy: busy.map(|busy| (busy / 1e9).min(1.0)),
            ..base
        }
    };
    status.workers.iter().enumerate().map(each).collect()
}

/// Returns the rate of a row. A row is listed from its first packet on, so a missing earlier row counts as zero.
fn counted(interval: Option<&Interval<'_>>, now: u64, before: Option<&u64>) -> Counted {
    let rate = interval.and_then(|interval| interval.rate(now, before.copied().unwrap_or_default()));
    Counted { packets: rate, packets_total: now }
}

/// Returns drops by reason, including those of the kernel's program before a worker sees the packet.
fn drop_counts(sample: &Sample) -> Vec<(&str, &str, u64)> {
    let reasons = sample.status.dropped.iter().map(|row| (&*row.reason, &*row.means, row.packets));
    let sum = |count: fn(&PortRow) -> u64| sample.ports.iter().map(count).sum::<u64>();
    let below = [
        ("limited", "They exceeded the limits of slow_path.", sum(|port| port.limited)),
        ("bypassed", "The node's kernel sent them past the vswitch.", sum(|port| port.bypassed)),
    ];
    reasons.chain(below.into_iter().filter(|(_, _, packets)| *packets > 0)).collect()
}

fn drops(sample: &Sample, interval: Option<&Interval<'_>>) -> Vec<DropRates> {
    let before: HashMap<&str, u64> = interval
        .map(|interval| {
            drop_counts(interval.before).into_iter().map(|(reason, _, packets)| (reason, packets)).collect()
        })
        .unwrap_or_default();
    let each = |(reason, means, packets): (&str, &str, u64)| DropRates {
        reason: reason.to_owned(),
        means: means.to_owned(),
        counted: counted(interval, packets, before.get(reason)),
    };
    drop_counts(sample).into_iter().map(each).collect()
}

/// Sums denials by printed origin, which several rules may share.
fn deny_counts(sample: &Sample) -> HashMap<(&str, bool), u64> {
    let mut sums = HashMap::new();
    for row in &sample.policies {
        let count = if row.not_enforced { row.audited } else { row.denied };
        if count > 0 {
            *sums.entry((&*row.origin, row.not_enforced)).or_default() += count;
        }
    }
    sums
}

fn denied(sample: &Sample, interval: Option<&Interval<'_>>) -> Vec<DenyRates> {
    let before = interval.map(|interval| deny_counts(interval.before)).unwrap_or_default();
    let each = |(key, packets): ((&str, bool), u64)| DenyRates {
        origin: key.0.to_owned(),
        counted: counted(interval, packets, before.get(&key)),
        not_enforced: key.1,
    };
    let mut rows: Vec<DenyRates> = deny_counts(sample).into_iter().map(each).collect();
    // The sort by rate is stable, so this keeps equal rows from swapping.
    rows.sort_by(|one, other| one.origin.cmp(&other.origin));
    rows
}

fn ports(sample: &Sample, interval: Option<&Interval<'_>>) -> Vec<PortRates> {
    let before: HashMap<&str, &PortRow> = interval
        .map(|interval| interval.before.ports.iter().map(|port| (&*port.name, port)).collect())
        .unwrap_or_default();
    let each = |port: &PortRow| {
        let earlier = interval.zip(before.get(&*port.name).copied());
        let of = |count: fn(&PortRow) -> u64| {
            earlier.and_then(|(interval, earlier)| interval.rate(count(port), count(earlier)))
        };
        PortRates {
            name: port.name.clone(),
            state: port.state.clone(),
            traffic: Traffic {
                packets_in: of(|port| port.received),
                packets_out: of(|port| port.sent),
                bits_in: of(|port| port.received_bytes).map(|bytes| bytes * 8.0),
                bits_out: of(|port| port.sent_bytes).map(|bytes| bytes * 8.0),
                dropped: port.dropped.and_then(|_| of(dropped)),
                dropped_total: dropped(port),
            },
            sessions: port.sessions_started.zip(port.sessions_reached).map(|(one, other)| one + other),
        }
    };
    sample.ports.iter().map(each).collect()
}

/// Returns the number of packets that were dropped at a port.
fn dropped(port: &PortRow) -> u64 {
    port.dropped.unwrap_or_default() + port.limited + port.bypassed
}
