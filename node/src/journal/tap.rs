//! Sends verdicts from the stream thread to the journal, within the journal's budget.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bulkhead_dataplane::Snapshot;

use super::{Journal, Message};
use crate::clock::now;
use crate::stream::Event;
use bulkhead_observe::journal::LeftOut;

/// Interval of the records that report left-out verdicts.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// Minimum time that the journal reaches back, in seconds: verdicts may fill its size once in this time.
const SECONDS: usize = 4096;

/// A burst of verdicts may use this fraction (1/64) of the journal's size.
const AT_ONCE: usize = 64;

/// Maximum size of a verdict without its names, in bytes: for IPv4 and for IPv6. A translation adds half.
const BYTES: [f64; 2] = [48.0, 72.0];

/// Returns the maximum size of a domain name in the journal, in bytes. Unlike other names, pods choose as many of them as they like.
#[expect(clippy::cast_precision_loss, reason = "a name has at most 253 bytes")]
const fn weight(name: &str) -> f64 {
    64.0 + name.len() as f64
}

/// A token bucket in bytes: gains `rate` bytes per second, and holds at most `most`.
#[derive(Debug)]
struct Budget {
    /// Gain in bytes per second.
    rate: f64,
    most: f64,
    left: f64,
    filled: Instant,
}

impl Budget {
    #[expect(clippy::cast_precision_loss, reason = "a size in bytes is well below 2^52")]
    fn new(size: usize, now: Instant) -> Self {
        // Sessions and dropped packets have half each, so that a flood of one does not displace the other.
        let (rate, most) = ((size / SECONDS) as f64 / 2.0, (size / AT_ONCE) as f64 / 2.0);
        Self { rate, most, left: most, filled: now }
    }

    fn take(&mut self, bytes: f64, now: Instant) -> bool {
        let gained = now.duration_since(self.filled).as_secs_f64() * self.rate;
        (self.left, self.filled) = ((self.left + gained).min(self.most), now);
        let has_room = self.left >= bytes;
        self.left -= if has_room { bytes } else { 0.0 };
        has_room
    }
}

/// A rate-limited sender of verdicts to the journal.
pub(crate) struct Tap {
    journal: Journal,
    sessions: Budget,
    dropped: Budget,
    left_out: LeftOut,
    told: Instant,
}

impl Tap {
    pub(super) fn new(journal: Journal, at: Instant) -> Self {
        let [sessions, dropped] = [(); 2].map(|()| Budget::new(journal.size, at));
        Self { journal, sessions, dropped, left_out: LeftOut::default(), told: at }
    }

    /// Whether opening the journal's file failed, so that nothing is recorded.
    pub(crate) fn has_failed(&self) -> bool {
        self.journal.has_failed()
    }

    /// Sends the verdicts that the budget allows, and counts the others. Never waits.
    pub(crate) fn tell(&mut self, events: &[Event], snapshot: &Arc<Snapshot>, at: Instant) {
        let mut taken = Vec::new();
        for event in events {
            let outcome = &event.judgement.outcome;
            let bytes = BYTES[usize::from(outcome.flow.is_some_and(|flow| flow.src.is_ipv6()))];
            let bytes = if outcome.translation.is_some() { bytes * 1.5 } else { bytes };
            let bytes =
                bytes + event.names.iter().flat_map(|names| names.names()).map(|name| weight(&name.name)).sum::<f64>();
            let is_session = event.is_session();
            let budget = if is_session { &mut self.sessions } else { &mut self.dropped };
            if budget.take(bytes, at) {
                taken.push(event.clone());
            } else if is_session {
                self.left_out.sessions += event.count;
            } else {
                self.left_out.dropped += event.count;
            }
        }
        if taken.is_empty() {
            return;
        }
        let count: u64 = taken.iter().map(|event| event.count).sum();
        let message = Message::Verdicts { events: taken, snapshot: Arc::clone(snapshot) };
        if self.journal.messages.try_send(message).is_err() {
            self.left_out.unheard += count;
        }
    }

    /// Counts sessions and dropped packets that were lost because the workers' buffers were full.
    pub(crate) const fn unheard(&mut self, count: u64) {
        self.left_out.unheard += count;
    }

    /// Whether counts of left-out verdicts are not sent yet.
    pub(crate) const fn has_left_out(&self) -> bool {
        self.left_out.total() > 0
    }

    /// Sends the counts of left-out verdicts, if [`TOLD_EVERY`] has passed since the last time.
    pub(crate) fn tell_left_out(&mut self, at: Instant) {
        if at.duration_since(self.told) < TOLD_EVERY {
            return;
        }
        if self.left_out.total() == 0 {
            self.told = at;
            self.left_out.since = now();
            return;
        }
        // If the channel is full, the counts stay for the next attempt.
        if self.journal.messages.try_send(Message::LeftOut(self.left_out)).is_ok() {
            self.journal.counts.left_out.fetch_add(self.left_out.total(), Ordering::Relaxed);
            (self.left_out, self.told) = (LeftOut { since: now(), ..LeftOut::default() }, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_a_burst_and_a_rate() {
        let start = Instant::now();
        let mut budget = Budget::new(64 << 20, start);
        let mut at_once = 0;
        while budget.take(BYTES[0], start) {
            at_once += 1;
        }
        assert!((10_000..12_000).contains(&at_once), "{at_once}");
        let later = start + Duration::from_secs(10);
        let mut in_ten_seconds = 0;
        while budget.take(BYTES[0], later) {
            in_ten_seconds += 1;
        }
        assert!((1600..1800).contains(&in_ten_seconds), "{in_ten_seconds}");
    }
}
