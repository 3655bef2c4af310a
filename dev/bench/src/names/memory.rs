//! The row `memory`: the table of learned addresses, filled by all pods with all addresses of all names within a simulated minute.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bulkhead_dataplane::{Affinity, Holder, Learned, SessionStore, Worker};
use serde_json::json;

use super::node::Node;
use super::{BEGIN, Bench, GRACE, MEMORY, SECOND, config};
use crate::random::Random;
use crate::table::{Goal, Line, digits};
use crate::testbed::folder::Folder;
use crate::testbed::proc::resident;

/// Simulated time within which all answers come, in nanoseconds.
const MINUTE: u64 = 60 * SECOND;
/// The shortest and the longest TTL in seconds.
const TTLS: (u32, u32) = (30, 300);
/// Number of lookups, and of those that are timed together.
const LOOKUPS: u32 = 1_000_000;
const BATCH: u32 = 1_000;
/// The goal for memory in bytes, and the names, pods and addresses of each name for which it is promised.
const GOAL: f64 = 64e6;
const PROMISED: (u32, u32, u32) = (10_000, 500, 10);

/// The numbers of names, pods and addresses. Every pod learns every address of every name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) names: u32,
    pub(super) pods: u32,
    /// Number of addresses of each name.
    pub(super) addresses: u32,
}

impl Size {
    /// Returns an address of a name, by its number below `addresses`.
    fn address(self, name: u32, number: u32) -> Ipv4Addr {
        Ipv4Addr::from(0x0b00_0000 + name * self.addresses + number)
    }
}

/// A random order of the numbers below a bound, computed without a list: a Feistel network over the next power of four, in which numbers
/// that are too large are permuted again.
struct Shuffle {
    bound: u64,
    /// Number of bits of a half.
    bits: u32,
    keys: [u64; 4],
}

impl Shuffle {
    fn new(bound: u64) -> Self {
        let bits = (u64::BITS - bound.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        Self { bound, bits, keys: std::array::from_fn(|_| u64::from(random.below(u32::MAX)) << 1 | 1) }
    }

    /// Returns the number at a position. Both are below the bound.
    fn at(&self, position: u64) -> u64 {
        let mut number = self.permuted(position);
        while number >= self.bound {
            number = self.permuted(number);
        }
        number
    }

    fn permuted(&self, number: u64) -> u64 {
        let mask = (1 << self.bits) - 1;
        let (mut left, mut right) = (number >> self.bits, number & mask);
        for key in self.keys {
            let mixed = (right ^ key).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (left, right) = (right, left ^ ((mixed ^ mixed >> 32) & mask));
        }
        left << self.bits | right
    }
}

pub(super) fn memory(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let size @ Size { names, pods, addresses } = bench.memory;
    let texts: Vec<String> = (0..names).map(|at| format!("service-{at}.namespace-{}.example.com", at % 100)).collect();
    let before = resident(std::process::id())?;
    let learned = Learned::new();
    let learning = fill(&learned, size, &texts)?;
    let grown = resident(std::process::id())? - before;
    let counts = learned.counts();
    let all = u64::from(names) * u64::from(pods) * u64::from(addresses);
    ensure!(u64::try_from(counts.holdings)? == all, "not all {all} addresses were learned: {counts:?}");
    let looking = look_up(&learned, size)?;
    #[expect(clippy::cast_precision_loss, reason = "numbers of bytes and addresses are shown with three digits")]
    let [bytes, grown, all] = [counts.bytes as f64, grown as f64 * 1024.0, all as f64];
    let learned = format!("{names} names x {pods} pods x {addresses} addresses");
    let line = |what: &str, value, unit, goal| Line::value("memory", what, value, unit, goal);
    let goal = if (names, pods, addresses) == PROMISED { Goal::AtMost(GOAL / 1e6) } else { Goal::Unbounded };
    #[expect(clippy::cast_precision_loss, reason = "megabytes are shown with three digits")]
    let kept = kept()? as f64;
    let of_all = line(&format!("{learned}: bytes that the table counts"), bytes / 1e6, "MB", goal)
        .with("bytes", json!(counts.bytes))
        .with("names", json!(counts.names))
        .with("addresses", json!(counts.addresses))
        .with("holdings", json!(counts.holdings))
        .noted(&format!("{} bytes per pod, name and address", digits(bytes / all)));
    Ok(vec![
        of_all,
        line("growth of the process (VmRSS)", grown / 1e6, "MB", goal),
        line("the file that keeps names over restarts, if full", kept / 1e6, "MB", Goal::Unbounded)
            .noted("mapped, on a tmpfs, beside the above"),
        line("a learned address", learning.as_secs_f64() * 1e9 / all, "ns", Goal::Unbounded)
            .noted(&format!("{} s in all", digits(learning.as_secs_f64()))),
        line("the names of an address", looking.as_secs_f64() * 1e9 / f64::from(LOOKUPS), "ns", Goal::Unbounded),
    ])
}

/// Returns the length in bytes of the file in which a vswitch's workers keep names. Its pages take memory once they are written.
fn kept() -> anyhow::Result<u64> {
    let folder = Folder::new_in(Path::new(MEMORY))?;
    let mut store = SessionStore::open(&folder.path("sessions"))?;
    let node = Node::new()?;
    let _team = Worker::team_in(&mut store, config(), 1, &Affinity::new(), &node.named, BEGIN)?;
    let file = folder.path("sessions").join("current/names");
    Ok(file.metadata().with_context(|| format!("cannot find {}", file.display()))?.len())
}

/// Fills the table, answer by answer: each pod resolves each name once, at a random moment of the minute. Returns the time that learning
/// took, without that of the sweeps.
fn fill(learned: &Learned, size: Size, texts: &[String]) -> anyhow::Result<Duration> {
    let answers = u64::from(size.names) * u64::from(size.pods);
    let shuffle = Shuffle::new(answers);
    let mut random = Random(7);
    let (mut took, mut swept) = (Duration::ZERO, BEGIN);
    for at in 0..answers {
        let answer = shuffle.at(at);
        let name = u32::try_from(answer / u64::from(size.pods))?;
        let holder = Holder(u32::try_from(answer % u64::from(size.pods))?);
        let now = BEGIN + u64::try_from(u128::from(MINUTE) * u128::from(at) / u128::from(answers))?;
        if now >= swept + SECOND {
            learned.sweep(now);
            swept = now;
        }
        let ttl = TTLS.0 + random.below(TTLS.1 - TTLS.0 + 1);
        let until = now + u64::from(ttl) * SECOND + GRACE;
        let text = texts.get(name as usize).context("a name has a text")?;
        let started = Instant::now();
        for number in 0..size.addresses {
            if let Err(full) = learned.learn(holder, text, size.address(name, number).into(), now, until) {
                bail!("{text} was not learned: {full:?}");
            }
        }
        took += started.elapsed();
    }
    Ok(took)
}

/// Looks up the names of [`LOOKUPS`] random addresses for random pods. Returns how long that took.
///
/// # Errors
/// If an address does not have one name.
fn look_up(learned: &Learned, size: Size) -> anyhow::Result<Duration> {
    let (mut random, mut took, mut found) = (Random(11), Duration::ZERO, 0);
    for _ in 0..LOOKUPS / BATCH {
        let started = Instant::now();
        for _ in 0..BATCH {
            let (name, number) = (random.below(size.names), random.below(size.addresses));
            let address = size.address(name, number).into();
            learned.names_of(Holder(random.below(size.pods)), address, BEGIN + MINUTE, |_, _| found += 1);
        }
        took += started.elapsed();
    }
    ensure!(found == LOOKUPS, "{found} names were found for {LOOKUPS} addresses");
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_has_each_number_once() {
        for bound in [1, 2, 5, 64, 1000] {
            let shuffle = Shuffle::new(bound);
            let mut all: Vec<u64> = (0..bound).map(|at| shuffle.at(at)).collect();
            assert!(bound < 10 || !all.is_sorted());
            all.sort_unstable();
            assert_eq!(all, (0..bound).collect::<Vec<_>>());
        }
    }
}
