//! The measurement: bursts are made and worked off in turn, each part with its own time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use bulkhead_dataplane::{BURST, SessionState};

use super::traffic::Order;

/// Packets of one sample: under a millisecond, so that most samples fall between two interruptions. The median drops the
/// others.
const SAMPLE: usize = 32 * BURST;

/// Bursts that are checked before the time is taken: each flow of a small table several times.
const CHECKED: usize = 256;

/// What is measured.
pub(super) trait Subject {
    /// The generator's part: makes a burst ready. Returns how many packets it has.
    fn generate(&mut self, order: Order) -> usize;

    /// The part that is measured.
    fn work(&mut self);

    /// The generator's part again: takes away what went on. Returns how many packets that were.
    fn collect(&mut self) -> usize;

    /// The checks are over.
    fn begin(&mut self) {}

    /// Makes a burst of packets that this worker must forward itself, lets it through and looks at every answer.
    fn check(&mut self, order: Order, session: SessionState) -> anyhow::Result<()>;

    /// What was counted so far.
    fn counts(&self) -> Counts;
}

/// What a worker counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) forwarded: u64,
    pub(super) created: u64,
    pub(super) dropped: u64,
    pub(super) sessions: usize,
    pub(super) session_bytes: usize,
}

/// What one worker did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// Nanoseconds per packet without the generator's: the median of the samples.
    pub(super) net: f64,
    /// The same of the fastest sample: what the machine can do when it does nothing else.
    pub(super) fastest: f64,
    pub(super) generator: f64,
    pub(super) packets: u64,
    pub(super) hits: u64,
    pub(super) created: u64,
    pub(super) dropped: u64,
    pub(super) session_bytes: usize,
    pub(super) sessions: usize,
}

/// Makes the sessions, and looks at answers and bytes on the way.
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

/// Takes samples for so long, and then goes on until all `others` have theirs. Each look at the clock ends one part and begins the next, so what the clock costs is counted
/// as well: once per burst.
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
    // The others may still need this one, for packets that come to the wrong worker.
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
