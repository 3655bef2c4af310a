use bolero::check;

use super::super::sample::Sample;
use super::super::sample::tests::sample;
use super::*;
use crate::admin::{DropRow, PolicyRow, PortRow, WorkerRow};

fn worker(received: u64) -> WorkerRow {
    WorkerRow {
        received,
        sent: received,
        dropped: 0,
        sessions: 3,
        restarts: 0,
        judged: Some(received),
        busy_ns: Some(received * 500),
        silent: false,
    }
}

/// Returns a worker that does not respond.
fn silent() -> WorkerRow {
    WorkerRow { silent: true, ..worker(0) }
}

fn port(name: &str, received: u64) -> PortRow {
    let value = serde_json::json!({
        "name": name, "kind": "pod", "interface": "v", "state": "open", "addresses": [], "received": received,
        "received_bytes": received * 100, "sent": received / 2, "sent_bytes": received * 50, "limited": 0, "bypassed": 0,
        "dropped": received / 10, "sessions_started": 4, "sessions_reached": 3, "epoch": 1,
    });
    serde_json::from_value(value).unwrap()
}

fn policy(origin: &str, denied: u64) -> PolicyRow {
    PolicyRow { origin: origin.into(), allowed: 7, denied, audited: 0, not_enforced: false }
}

/// Returns a sample whose counters are proportional to `count`.
fn busy(uptime_ms: u64, count: u64) -> Sample {
    let mut sample = sample(uptime_ms);
    sample.status.workers = vec![worker(count), worker(count / 2)];
    sample.status.flow_cache.forwarded = count * 3;
    sample.status.sessions.created = Some(count);
    let (reason, means) = ("policy_denied".into(), "Policy does not allow the packet.".into());
    sample.status.dropped = vec![DropRow { reason, means, packets: count / 10 }];
    sample.ports = vec![port("shop/web", count), port("shop/db", 0)];
    sample.policies = vec![policy("ingress isolated by shop/db", count / 10), policy("shop/web, ingress, rule 0", 0)];
    sample
}

#[test]
fn rates_are_differences_by_the_vswitch_s_own_time() {
    let mut tracker = Tracker::default();
    let first = tracker.next(busy(1_000, 1_000));
    assert_eq!((first.seconds, first.total.packets_in, first.note), (None, None, None));
    assert_eq!((first.dropped[0].counted.packets, first.dropped[0].counted.packets_total), (None, 100));
    let next = tracker.next(busy(3_000, 5_000));
    assert_eq!(next.seconds, Some(2.0));
    // In 2 seconds, one worker received 4,000 packets, the other 2,000, and the kernel forwarded 12,000.
    assert_eq!((next.total.packets_in, next.total.dropped), (Some(9_000.0), Some(200.0)));
    assert_eq!((next.path.slow, next.path.cached), (Some(3_000.0), Some(6_000.0)));
    assert_eq!(next.path.cached_share.map(|share| (share * 3.0).round()), Some(2.0));
    assert_eq!((next.sessions.created, next.sessions.refused), (Some(2_000.0), Some(0.0)));
    let worker = next.workers[0];
    assert_eq!((worker.received, worker.ns_per_packet, worker.busy), (Some(2_000.0), Some(500.0), Some(0.001)));
    let port = &next.ports[0];
    assert_eq!(
        (port.traffic.packets_in, port.traffic.bits_in, port.traffic.dropped),
        (Some(2_000.0), Some(1_600_000.0), Some(200.0))
    );
    assert_eq!((port.sessions, next.ports[1].traffic.packets_in), (Some(7), Some(0.0)));
    assert_eq!(next.denied.len(), 1, "{:?}", next.denied);
    assert_eq!((&*next.denied[0].origin, next.denied[0].counted.packets), ("ingress isolated by shop/db", Some(200.0)));
}

#[test]
fn the_same_reading_again_is_the_same_picture() {
    let mut tracker = Tracker::default();
    tracker.next(busy(1_000, 1_000));
    let picture = tracker.next(busy(2_000, 2_000));
    assert_eq!(tracker.next(busy(2_000, 2_000)), picture);
    assert_eq!(tracker.next(busy(3_000, 4_000)).total.dropped, Some(200.0));
}

#[test]
fn a_restart_has_no_rates_and_the_next_interval_has_them() {
    let mut tracker = Tracker::default();
    tracker.next(busy(9_000, 1_000_000));
    let mut again = busy(10_000, 2_000_000);
    again.status.instance = Some(2);
    let picture = tracker.next(again);
    assert!(picture.note.unwrap().contains("restarted"));
    assert_eq!((picture.seconds, picture.total.packets_in, picture.ports[0].traffic.packets_in), (None, None, None));
    let mut later = busy(11_000, 2_000_100);
    later.status.instance = Some(2);
    assert_eq!(tracker.next(later).workers[0].received, Some(100.0));
}

#[test]
fn a_worker_that_falls_silent_and_answers_again_makes_no_leap() {
    let mut tracker = Tracker::default();
    tracker.next(busy(1_000, 1_000_000));
    let mut silent = busy(2_000, 1_000_100);
    silent.status.workers[1] = self::silent();
    let rates = |picture: &Picture| (picture.total.packets_in, picture.path.slow, picture.workers[1].received);
    let picture = tracker.next(silent.clone());
    assert!(picture.note.unwrap().contains("does not respond"));
    assert_eq!(rates(&picture), (None, None, None));
    silent.status.uptime_ms = Some(3_000);
    silent.status.workers[0].received += 50;
    let still = tracker.next(silent);
    assert_eq!((still.path.slow, still.workers[1].received), (Some(50.0), None), "the others are counted");
    let picture = tracker.next(busy(4_000, 1_000_300));
    assert_eq!(rates(&picture), (None, None, None));
    assert!(picture.note.unwrap().contains("responds again"));
    assert_eq!(tracker.next(busy(5_000, 1_000_500)).workers[1].received, Some(100.0));
}

#[test]
fn a_worker_that_is_silent_from_the_first_sample_on_and_answers_later_makes_no_leap() {
    let mut tracker = Tracker::default();
    let mut first = busy(1_000, 1_000_000);
    first.status.workers[1] = silent();
    assert!(tracker.next(first).note.unwrap().contains("does not respond"));
    let picture = tracker.next(busy(2_000, 1_000_100));
    assert!(picture.note.unwrap().contains("responds again"));
    assert_eq!((picture.total.packets_in, picture.path.slow, picture.workers[1].received), (None, None, None));
    assert_eq!(tracker.next(busy(3_000, 1_000_300)).workers[1].received, Some(100.0));
}

#[test]
fn a_port_that_is_new_or_was_added_again_has_no_rate_for_once() {
    let mut tracker = Tracker::default();
    tracker.next(busy(1_000, 1_000));
    let mut changed = busy(2_000, 2_000);
    changed.ports = vec![port("shop/web", 10), port("shop/new", 1_000_000)];
    let picture = tracker.next(changed);
    assert_eq!((picture.ports[0].traffic.packets_in, picture.ports[1].traffic.packets_in), (None, None));
}

#[test]
fn rules_told_alike_are_one_row_and_audited_ones_say_that_they_deny_nothing() {
    let mut tracker = Tracker::default();
    let mut one = sample(1_000);
    one.policies = vec![policy("x", 3), policy("x", 4), policy("y", 2)];
    one.policies.push(PolicyRow { origin: "z".into(), allowed: 0, denied: 0, audited: 9, not_enforced: true });
    let rows = tracker.next(one).denied;
    let told: Vec<_> = rows.iter().map(|row| (&*row.origin, row.counted.packets_total, row.not_enforced)).collect();
    assert_eq!(told, [("z", 9, true), ("x", 7, false), ("y", 2, false)]);
}

#[test]
fn in_the_kernel_the_ports_tell_what_there_is() {
    let mut tracker = Tracker::default();
    let kernel = |uptime_ms, count| {
        let mut sample = busy(uptime_ms, count);
        sample.status.judging.as_mut().unwrap().place = "kernel".into();
        (sample.status.workers, sample.status.sessions.created) = (Vec::new(), None);
        for port in &mut sample.ports {
            (port.dropped, port.sessions_started, port.sessions_reached) = (None, None, None);
        }
        sample
    };
    tracker.next(kernel(1_000, 1_000));
    let picture = tracker.next(kernel(2_000, 2_000));
    assert!(picture.in_kernel);
    assert_eq!((picture.total.packets_in, picture.sessions.created), (Some(1_000.0), None));
    assert_eq!((picture.ports[0].traffic.dropped, picture.ports[0].sessions), (None, None));
}

fn rates(picture: &Picture) -> Vec<f64> {
    let traffic = |traffic: &Traffic| {
        let Traffic { packets_in, packets_out, bits_in, bits_out, dropped, .. } = *traffic;
        [packets_in, packets_out, bits_in, bits_out, dropped]
    };
    let mut all = traffic(&picture.total).to_vec();
    all.extend([picture.sessions.created, picture.sessions.refused]);
    all.extend([picture.path.slow, picture.path.cached, picture.path.cached_share]);
    all.extend(
        picture.workers.iter().flat_map(|row| [row.received, row.judged, row.dropped, row.ns_per_packet, row.busy]),
    );
    all.extend(picture.dropped.iter().map(|row| row.counted.packets));
    all.extend(picture.denied.iter().map(|row| row.counted.packets));
    all.extend(picture.ports.iter().flat_map(|row| traffic(&row.traffic)));
    all.into_iter().flatten().collect()
}

#[test]
fn no_rate_is_ever_negative_infinite_or_more_than_what_was_counted() {
    // Each step: whether the process is new, its duration, the increase of the counters, and which worker is silent.
    check!().with_type::<Vec<(bool, u16, u32, Option<bool>)>>().for_each(|steps| {
        let mut tracker = Tracker::default();
        let (mut instance, mut uptime, mut count) = (0, 0_u64, 0_u64);
        for &(restarts, passed, more, silent) in steps {
            let more = u64::from(more);
            if restarts {
                (instance, uptime, count) = (instance + 1, 0, 0);
            }
            uptime += u64::from(passed);
            count += if passed == 0 { 0 } else { more };
            let mut now = busy(uptime, count);
            now.status.instance = Some(instance);
            if let Some(at) = silent {
                now.status.workers[usize::from(at)] = self::silent();
            }
            let picture = tracker.next(now);
            let rates = rates(&picture);
            assert!(rates.iter().all(|rate| rate.is_finite() && *rate >= 0.0), "{picture:?}");
            if let (Some(seconds), Some(cached)) = (picture.seconds, picture.path.cached) {
                // An interval of zero length is merged with the next one.
                assert!(cached * seconds <= 3.0 * count as f64 + 1.0, "{picture:?}");
            }
        }
    });
}
