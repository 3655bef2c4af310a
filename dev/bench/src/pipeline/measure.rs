//! Times bursts: generating and processing take turns and are timed separately.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use bulkhead_dataplane::{BURST, SessionState};

use super::traffic::Order;

/// Packets per sample. A sample takes less than a millisecond, so an interruption affects few samples, and the median ignores those.
const SAMPLE: usize = 32 * BURST;

/// Number of bursts checked before timing: each flow of a small table several times.
const CHECKED: usize = 256;

/// What is measured: a generator and the worker that processes its packets.
pub(super) trait Subject {
    /// Generates a burst. Returns its number of packets.
    fn generate(&mut self, order: Order) -> usize;

    /// Processes the burst. Only this part is reported.
    fn work(&mut self);

    /// Removes the forwarded packets, as part of the generator. Returns their number.
    fn collect(&mut self) -> usize;

    /// Prepares for timing. Called once after the checks.
    fn begin(&mut self) {}

    /// Generates and processes a burst of packets that this worker must forward itself, and checks every result.
    fn check(&mut self, order: Order, session: SessionState) -> anyhow::Result<()>;

    /// Returns the counters since the start.
    fn counts(&self) -> Counts;
}

/// A worker's packet counters since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) forwarded: u64,
    pub(super) created: u64,
    pub(super) dropped: u64,
    pub(super) sessions: usize,
    pub(super) session_bytes: usize,
}

/// The results of one worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// Nanoseconds per packet without the generator's time: the median of all samples.
    pub(super) net: f64,
    /// Nanoseconds per packet of the fastest sample, which no other load has disturbed.
    pub(super) fastest: f64,
    pub(super) generator: f64,
    pub(super) packets: u64,
    pub(super) hits: u64,
    pub(super) created: u64,
    pub(super) dropped: u64,
    pub(super) session_bytes: usize,
    pub(super) sessions: usize,
}

/// Creates the sessions and checks results and packet bytes.
pub(super) fn prepare(subject: &mut impl Subject, order: Order, flows: u32) -> anyhow::Result<()> {
    if order == Order::Fresh {
        let bursts = (flows as usize).div_ceil(BURST);
        return (0..bursts + 1).try_for_each(|_| subject.check(order, SessionState::New));
    }
    let mut made = 0;
    loop {
        let count = subject.generate(Order::Each);
        if count == 0 {
            break;
        }
        subject.work();
        let done = subject.collect();
        ensure!(done == count, "{done} packets of {count} were forwarded");
        made += count;
    }
    let sessions = subject.counts().sessions;
    ensure!(sessions == made, "{sessions} sessions of {made} flows");
    (0..CHECKED).try_for_each(|_| subject.check(order, SessionState::Hit))
}

/// Takes samples for `duration`, then continues until all `others` have finished theirs. Each clock reading ends one part and begins the
/// next, so the measured times include one reading per burst.
pub(super) fn time(subject: &mut impl Subject, order: Order, duration: Duration, others: &AtomicUsize) -> Measured {
    subject.begin();
    let before = subject.counts();
    let (mut works, mut generators) = (Vec::new(), Vec::new());
    let mut packets = 0u64;
    let started = Instant::now();
    let mut end = started;
    while end - started < duration || works.len() < 3 {
        let (mut work, mut generator, mut done) = (Duration::ZERO, Duration::ZERO, 0);
        while done < SAMPLE {
            subject.generate(order);
            let begun = Instant::now();
            subject.work();
            generator += begun - end;
            end = Instant::now();
            work += end - begun;
            done += subject.collect();
        }
        packets += done as u64;
        let per_packet = |time: Duration| time.as_secs_f64() * 1e9 / done as f64;
        works.push(per_packet(work));
        generators.push(per_packet(generator));
    }
    let after = subject.counts();
    // Other workers may still need this one for packets that arrive at the wrong worker.
    others.fetch_sub(1, Ordering::Relaxed);
    while others.load(Ordering::Relaxed) > 0 {
        subject.generate(order);
        subject.work();
        subject.collect();
    }
    let created = after.created - before.created;
    works.sort_by(f64::total_cmp);
    generators.sort_by(f64::total_cmp);
    Measured {
        net: works[works.len() / 2],
        fastest: works[0],
        generator: generators[generators.len() / 2],
        packets,
        hits: after.forwarded - before.forwarded - created,
        created,
        dropped: after.dropped - before.dropped,
        session_bytes: after.session_bytes,
        sessions: after.sessions,
    }
}
