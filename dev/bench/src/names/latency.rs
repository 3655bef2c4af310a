//! The row `latency`: the time that learning adds to a query and its answer, and the number of answers that a worker judges per second.
//!
//! Two workers with the same configuration judge the same packets in turn. The pods of one worker's snapshot have a rule that names
//! domains, those of the other's have no rules. Frames are built outside of the measured time.

use std::time::{Duration, Instant};

use anyhow::ensure;
use bulkhead_dataplane::{Received, Snapshot, Verdict};
use serde_json::{Value, json};

use super::node::{ADDRESSES, ANSWERED, NAMES, Node, PODS, Pod, turned};
use super::packets::{Frame, Question, sport};
use super::{Bench, Judge, STEPS_PER_SWEEP, time_of};
use crate::random::Random;
use crate::table::{Goal, Line, digits, median, percentile};

/// Number of queries in a burst, and of their answers in the next.
const BURST: u32 = 32;
/// Number of answers before the first measured one.
const WARM_UP: u32 = 10_000;

/// The generator of conversations.
struct Asking<'a> {
    node: &'a Node,
    random: Random,
    step: u32,
}

/// The generator, and the two workers that judge its packets.
struct Subjects<'a> {
    asking: Asking<'a>,
    /// Judges by the snapshot whose pods have a rule that names domains.
    named: Judge,
    /// Judges by the snapshot whose pods have no rules.
    plain: Judge,
}

/// The results of a round.
#[derive(Debug, Default)]
struct Round {
    /// Microseconds that learning added to each query with its answer: the difference of `named` and `plain`.
    added: Vec<f64>,
    /// Microseconds for each query with its answer, with the rule.
    named: Vec<f64>,
    /// Microseconds for each query with its answer, without rules.
    plain: Vec<f64>,
    /// Time for all bursts of queries, and for all bursts of answers.
    queries: Duration,
    answers: Duration,
    /// Number of answers in bursts.
    answered: u32,
}

pub(super) fn latency(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let asking = Asking { node: &bench.node, random: Random(0x9e37_79b9_7f4a_7c15), step: 0 };
    let Node { named, plain, .. } = &bench.node;
    let mut subjects = Subjects { asking, named: Judge::alone(named)?, plain: Judge::alone(plain)? };
    subjects.round(WARM_UP.min(bench.answers))?;
    let rounds = (0..bench.rounds).map(|_| subjects.round(bench.answers)).collect::<anyhow::Result<Vec<_>>>()?;
    let counters = subjects.named.worker.name_counters();
    ensure!(counters.queries == counters.answers && counters.full == 0, "not all answers were learned: {counters:?}");
    let each = |of: &dyn Fn(&Round) -> f64| rounds.iter().map(of).collect::<Vec<f64>>();
    let at = |percent: f64, goal: f64| {
        let what = format!("added to a query and its answer of {ANSWERED} addresses, p{percent}");
        let [named, plain] =
            [each(&|round| percentile(&round.named, percent)), each(&|round| percentile(&round.plain, percent))];
        let note = format!("{} us with a rule, {} us without", digits(median(&named)), digits(median(&plain)));
        line(&what, &each(&|round| percentile(&round.added, percent)), "us", Goal::AtMost(goal)).noted(&note)
    };
    let rate = |round: &Round| f64::from(round.answered) / (round.queries + round.answers).as_secs_f64();
    let alone = |round: &Round| f64::from(round.answered) / round.answers.as_secs_f64();
    let what = format!("answers that a worker takes with their queries, bursts of {BURST}");
    let note = format!("{} answers/s without the queries' time", digits(median(&each(&alone))));
    let taken = line(&what, &each(&rate), "answers/s", Goal::AtLeast(100_000.0)).noted(&note);
    Ok(vec![at(50.0, 15.0), at(99.0, 100.0), taken])
}

/// Returns a line with the median of the rounds' values, and with their range as a note.
fn line(what: &str, values: &[f64], unit: &'static str, goal: Goal) -> Line {
    let [least, most] = [0.0, 100.0].map(|percent| digits(percentile(values, percent)));
    let all: Vec<Value> = values.iter().map(|&value| json!(digits(value))).collect();
    Line::value("latency", what, median(values), unit, goal)
        .noted(&format!("{least}-{most}"))
        .with("rounds", all.into())
}

impl Asking<'_> {
    /// Writes the query and the answer of the next conversation to the frames.
    fn next(&mut self, query: &mut Frame, answer: &mut Frame) {
        let (pods, random) = (u32::from(PODS), &mut self.random);
        let pod = u16::try_from(self.step % pods).expect("a remainder of 16 bits");
        let number = random.below_u16(NAMES);
        let question = Question {
            pod: Pod(pod),
            sport: sport(self.step / pods),
            id: random.below_u16(u16::MAX),
            name: self.node.name(number),
        };
        let records = turned(number, random.below(ADDRESSES), random);
        query.query(&question);
        answer.answer(&question, &records);
        self.step += 1;
    }
}

impl Subjects<'_> {
    /// Measures `count` queries with their answers one by one, then at least as many in bursts.
    fn round(&mut self, count: u32) -> anyhow::Result<Round> {
        let mut round = Round::default();
        let node = self.asking.node;
        let (mut query, mut answer) = (Frame::new(), Frame::new());
        for at in 0..count {
            let time = self.sweep(1);
            self.asking.next(&mut query, &mut answer);
            let one = |judge: &mut Judge, snapshot| timed_pair(judge, snapshot, time, (&query, &answer));
            // The order alternates, so that neither is always the one that finds the frames in the cache.
            let (named, plain) = if at % 2 == 0 {
                let named = one(&mut self.named, &node.named)?;
                (named, one(&mut self.plain, &node.plain)?)
            } else {
                let plain = one(&mut self.plain, &node.plain)?;
                (one(&mut self.named, &node.named)?, plain)
            };
            round.added.push(named - plain);
            round.named.push(named);
            round.plain.push(plain);
        }
        let mut frames = vec![(Frame::new(), Frame::new()); BURST as usize];
        while round.answered < count {
            let time = self.sweep(BURST);
            frames.iter_mut().for_each(|(query, answer)| self.asking.next(query, answer));
            round.queries +=
                timed(&mut self.named, &node.named, time, frames.iter().map(|(query, _)| query.received()))?;
            round.answers +=
                timed(&mut self.named, &node.named, time, frames.iter().map(|(_, answer)| answer.received()))?;
            round.answered += BURST;
        }
        Ok(round)
    }

    /// Returns the simulated time of the next conversations in nanoseconds since 1970. Sweeps the learned names once per simulated second.
    fn sweep(&mut self, conversations: u32) -> u64 {
        let (step, time) = (self.asking.step, time_of(self.asking.step));
        if step / STEPS_PER_SWEEP != (step + conversations) / STEPS_PER_SWEEP {
            self.named.worker.learned().sweep(time);
        }
        time
    }
}

/// Judges a query and its answer, each as a burst of its own. Returns how many microseconds that took.
///
/// # Errors
/// If query or answer is dropped.
fn timed_pair(
    judge: &mut Judge,
    snapshot: &Snapshot,
    time: u64,
    (query, answer): (&Frame, &Frame),
) -> anyhow::Result<f64> {
    let started = Instant::now();
    let asked = judge.judge(snapshot, time, query).verdict;
    let answered = judge.judge(snapshot, time, answer).verdict;
    let took = started.elapsed();
    ensure!([asked, answered].iter().all(is_forwarded), "DNS was not forwarded: {asked:?}, {answered:?}");
    Ok(took.as_secs_f64() * 1e6)
}

/// Judges a burst. Returns how long that took.
///
/// # Errors
/// If a packet is dropped.
fn timed<'f>(
    judge: &mut Judge,
    snapshot: &Snapshot,
    time: u64,
    frames: impl Iterator<Item = Received<'f>>,
) -> anyhow::Result<Duration> {
    let started = Instant::now();
    judge.worker.judge(snapshot, time, frames, &mut judge.judged);
    let took = started.elapsed();
    ensure!(judge.judged.iter().all(|judged| is_forwarded(&judged.verdict)), "DNS was not forwarded");
    Ok(took)
}

const fn is_forwarded(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Forward(_))
}
