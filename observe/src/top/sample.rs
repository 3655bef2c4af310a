//! A sample of the vswitch's counters.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::admin::{PolicyRow, PortRow, Request, Status, ask};

/// A sample of the vswitch's counters.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Counters of workers, sessions and drops, and the health.
    pub(super) status: Status,
    pub(super) ports: Vec<PortRow>,
    /// Counters of each policy and rule.
    pub(super) policies: Vec<PolicyRow>,
    /// When the queries were sent, by the clock of this process.
    taken: Instant,
}

impl Sample {
    /// Queries the vswitch. The three answers normally share one reading of the counters, which the vswitch caches for 100 ms. If another
    /// client queried just before, ports and policies may be newer, and their rates slightly too high once.
    ///
    /// # Errors
    /// If the vswitch does not answer.
    pub(super) fn take(socket: &Path) -> anyhow::Result<Self> {
        let taken = Instant::now();
        let status = ask(socket, &Request::Status)?;
        let ports = ask(socket, &Request::Ports)?;
        let policies = ask(socket, &Request::Policies)?;
        Ok(Self { status, ports, policies, taken })
    }

    /// Returns the time since an earlier sample. `None` if the vswitch restarted in between.
    pub(super) fn since(&self, earlier: &Self) -> Option<Duration> {
        let (now, before) = (&self.status, &earlier.status);
        if now.instance != before.instance || now.uptime_seconds < before.uptime_seconds {
            return None;
        }
        match (now.uptime_ms, before.uptime_ms) {
            (Some(now), Some(before)) => now.checked_sub(before).map(Duration::from_millis),
            // The vswitch does not report the time of its counters.
            _ => Some(self.taken.saturating_duration_since(earlier.taken)),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a sample of an idle vswitch.
    pub(in crate::top) fn sample(uptime_ms: u64) -> Sample {
        let status = serde_json::json!({
            "program": "0.1.0", "node": "node-1", "ready": true, "denying": false,
            "judging": {"renderer": "acl", "place": "destination", "automatic": false},
            "uptime_seconds": uptime_ms / 1000, "uptime_ms": uptime_ms, "instance": 1, "generation": 31,
            "policy": {"age_seconds": 1.0, "enforce_seconds": 0.1, "refused": false, "states_applied": 1, "states_refused": 0,
                "faulty_objects": 0, "contested_addresses": 0, "unenforced_kinds": 0, "refused_tables": 0},
            "ports": {"configured": 0, "open": 0}, "late": [], "workers": [],
            "sessions": {"used": 0, "capacity": 500_000, "refused": 0, "created": 0},
            "dropped": [], "flow_cache": {"forwarded": 0, "added": 0, "refused": 0}, "last_error": null,
        });
        let status = serde_json::from_value(status).unwrap();
        Sample { status, ports: Vec::new(), policies: Vec::new(), taken: Instant::now() }
    }

    #[test]
    fn the_time_between_samples_is_the_vswitch_s_own_and_ends_with_the_process() {
        let (early, late) = (sample(1_000), sample(2_500));
        assert_eq!(late.since(&early), Some(Duration::from_millis(1_500)));
        assert_eq!(early.since(&late), None);
        let mut other = sample(9_000);
        other.status.instance = Some(2);
        assert_eq!(other.since(&late), None, "the vswitch restarted and has run longer than the previous one");
        let mut old = [sample(1_000), sample(1_000)];
        old.iter_mut().for_each(|sample| sample.status.uptime_ms = None);
        assert!(old[1].since(&old[0]).is_some());
    }
}
