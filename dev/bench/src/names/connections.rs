//! The row `connections`: a pod connects to an address at once after the DNS answer that has this address. No connection may be denied.
//!
//! Each worker has a thread. A thread takes a conversation of one of its pods, judges query and answer, and hands the SYN to the thread of
//! the worker that owns the pair of pod and address. The thread takes its next conversation when that SYN has been judged. Meanwhile, it
//! judges SYNs from other threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Instant;

use anyhow::ensure;
use bulkhead_dataplane::{Affinity, DropReason, NameCounters, SessionState, Verdict};
use serde_json::json;

use super::node::{ADDRESSES, ANSWERED, NAMES, Node, OFF_PATH, Pod, SERVER, UPLINK, address_of, turned};
use super::packets::{Frame, Question, sport};
use super::{Bench, Judge, STEPS_PER_SWEEP, WORKERS, time_of};
use crate::random::Random;
use crate::table::{Goal, Line, digits, percentile};

/// A SYN to be judged by the thread whose worker owns the pair of pod and address.
struct Syn {
    frame: Frame,
    /// Simulated time in nanoseconds since 1970.
    time: u64,
    /// The number of the thread that judged the DNS answer.
    from: usize,
    /// When that thread had judged the answer.
    handed: Instant,
}

/// The state that all threads share.
struct Shared<'a> {
    node: &'a Node,
    affinity: &'a Affinity,
    /// Number of conversations to run.
    total: u32,
    /// Number of conversations that a thread has taken, and of those whose SYN was judged.
    taken: AtomicU32,
    judged: AtomicU32,
    /// By thread: whether the thread waits for the SYN of its conversation.
    waits: [AtomicBool; WORKERS],
    /// By name: the position of the first address in its next answer, to be taken modulo [`ADDRESSES`].
    turns: Vec<AtomicU32>,
    /// Whether a thread has failed, so that all end.
    has_failed: AtomicBool,
}

/// A guard that sets this flag if its thread panics, so that all threads end.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(thread::panicking(), Ordering::Relaxed);
    }
}

/// The results of one thread.
#[derive(Debug, Default)]
struct Tally {
    /// Number of denied SYNs by reason.
    denied: BTreeMap<DropReason, u32>,
    /// Number of SYNs whose address the pod had not learned from an earlier answer.
    needed: u32,
    /// Microseconds from the judgement of an answer on one thread to that of its SYN on another.
    hand_overs: Vec<f64>,
    counters: NameCounters,
}

/// A thread with its worker.
struct Thread<'a> {
    number: usize,
    shared: &'a Shared<'a>,
    judge: Judge,
    /// The pods whose DNS answers this thread's worker judges.
    pods: Vec<Pod>,
    inboxes: Vec<Sender<Syn>>,
    inbox: Receiver<Syn>,
    random: Random,
    /// Number of conversations that this thread took.
    steps: u32,
    tally: Tally,
}

pub(super) fn connections(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let affinity = Affinity::new();
    let shared = Shared {
        node: &bench.node,
        affinity: &affinity,
        total: bench.connections,
        taken: AtomicU32::new(0),
        judged: AtomicU32::new(0),
        waits: Default::default(),
        turns: (0..NAMES).map(|_| AtomicU32::new(0)).collect(),
        has_failed: AtomicBool::new(false),
    };
    let started = Instant::now();
    let tallies = run(&shared)?;
    let took = started.elapsed().as_secs_f64();
    let counters = tallies.iter().fold(NameCounters::default(), |mut sum, tally| {
        sum.add(&tally.counters);
        sum
    });
    let (total, answered) = (u64::from(bench.connections), u64::from(ANSWERED));
    let learned = (counters.queries, counters.answers, counters.addresses);
    ensure!(learned == (total, total, total * answered), "workers did not learn from all answers: {counters:?}");
    let mut denied: BTreeMap<DropReason, u32> = BTreeMap::new();
    for (reason, count) in tallies.iter().flat_map(|tally| &tally.denied) {
        *denied.entry(*reason).or_default() += count;
    }
    let needed: u32 = tallies.iter().map(|tally| tally.needed).sum();
    let hand_overs: Vec<f64> = tallies.into_iter().flat_map(|tally| tally.hand_overs).collect();
    let reasons: Vec<String> = denied.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let [p50, p99] = [50.0, 99.0].map(|percent| digits(percentile(&hand_overs, percent)));
    let note = format!(
        "{needed} needed their own answer; {} judged on another thread, p50 {p50} us after the answer, p99 {p99} us; {} s",
        hand_overs.len(),
        digits(took)
    );
    let what = format!("denied SYNs of {total}, each at once after its answer, {WORKERS} workers");
    let line = Line::value("connections", &what, f64::from(denied.values().sum::<u32>()), "SYNs", Goal::AtMost(0.0));
    let line = reasons.iter().fold(line, |line, reason| line.noted(reason)).noted(&note);
    Ok(vec![
        line.with("needed_their_answer", json!(needed))
            .with("on_another_thread", json!(hand_overs.len()))
            .with("hand_over_p50_us", json!(p50))
            .with("hand_over_p99_us", json!(p99))
            .with("reasons", json!(reasons)),
    ])
}

/// Runs all conversations. Returns the threads' results.
fn run(shared: &Shared<'_>) -> anyhow::Result<Vec<Tally>> {
    let (inboxes, receivers): (Vec<_>, Vec<_>) = (0..WORKERS).map(|_| mpsc::channel()).unzip();
    let mut frame = Frame::new();
    let mut owner = |pod: Pod| {
        frame.query(&Question { pod, sport: sport(0), id: 0, name: shared.node.name(0) });
        shared.affinity.worker(frame.bytes(), WORKERS)
    };
    let mut pods = vec![Vec::new(); WORKERS];
    Pod::all().for_each(|pod| pods[owner(pod)].push(pod));
    let threads = (0..).zip(Judge::team(WORKERS, shared.affinity, &shared.node.named)?).zip(receivers).zip(pods);
    let threads: Vec<Thread<'_>> = threads
        .map(|(((number, judge), inbox), pods)| Thread {
            number,
            shared,
            judge,
            pods,
            inboxes: inboxes.clone(),
            inbox,
            random: Random(0x9e37_79b9_7f4a_7c15 ^ number as u64),
            steps: 0,
            tally: Tally::default(),
        })
        .collect();
    thread::scope(|scope| {
        let threads: Vec<_> = threads.into_iter().map(|thread| scope.spawn(move || thread.run())).collect();
        threads.into_iter().map(|thread| thread.join().expect("a measurement does not panic")).collect()
    })
}

impl Thread<'_> {
    fn run(mut self) -> anyhow::Result<Tally> {
        let _alarm = Alarm(&self.shared.has_failed);
        let result = self.check_closed().and_then(|()| self.work());
        self.shared.has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
        result?;
        self.tally.counters = *self.judge.worker.name_counters();
        Ok(self.tally)
    }

    /// Checks that this thread's pods may not connect before any answer: otherwise the row would measure nothing.
    ///
    /// # Errors
    /// If a SYN is forwarded, or dropped for another reason than policy.
    fn check_closed(&mut self) -> anyhow::Result<()> {
        let (node, mut frame) = (self.shared.node, Frame::new());
        for &pod in &self.pods {
            for to in [address_of(0, 0), *SERVER.ip(), *OFF_PATH.ip()] {
                frame.syn(pod, sport(0), to);
                let verdict = self.judge.judge(&node.named, time_of(0), &frame).verdict;
                ensure!(
                    verdict == Verdict::Drop(DropReason::PolicyDenied),
                    "{to} was not denied before any answer: {verdict:?}"
                );
            }
        }
        Ok(())
    }

    fn work(&mut self) -> anyhow::Result<()> {
        let shared = self.shared;
        while shared.judged.load(Ordering::Acquire) < shared.total && !shared.has_failed.load(Ordering::Relaxed) {
            if let Ok(syn) = self.inbox.try_recv() {
                self.connect(&syn)?;
            } else if shared.waits[self.number].load(Ordering::Acquire) || !self.converse()? {
                thread::yield_now();
            }
        }
        Ok(())
    }

    /// Takes the next conversation: judges query and answer, and hands the SYN to its worker's thread. Returns false if no conversation is
    /// left or if this thread has no pods.
    ///
    /// # Errors
    /// If query or answer is dropped.
    fn converse(&mut self) -> anyhow::Result<bool> {
        let (shared, node) = (self.shared, self.shared.node);
        let (Some(count), at) = (u32::try_from(self.pods.len()).ok().filter(|&count| count > 0), self.steps) else {
            return Ok(false);
        };
        let step = shared.taken.fetch_add(1, Ordering::Relaxed);
        if step >= shared.total {
            shared.taken.fetch_sub(1, Ordering::Relaxed);
            return Ok(false);
        }
        self.steps += 1;
        let (pod, sport, time) = (self.pods[(at % count) as usize], sport(at / count), time_of(step));
        if step.is_multiple_of(STEPS_PER_SWEEP) {
            self.judge.worker.learned().sweep(time);
        }
        let number = self.random.below_u16(NAMES);
        let first = shared.turns[usize::from(number)].fetch_add(ANSWERED, Ordering::Relaxed) % ADDRESSES;
        let records = turned(number, first, &mut self.random);
        let question = Question { pod, sport, id: self.random.below_u16(u16::MAX), name: node.name(number) };
        let to = records[self.random.below(ANSWERED) as usize].address;
        let mut frame = Frame::new();
        frame.query(&question);
        self.judge.forward(&node.named, time, &frame, "a query")?;
        let mut was_known = false;
        self.judge.worker.learned().names_of(pod.holder(), to.into(), time, |_, _| was_known = true);
        self.tally.needed += u32::from(!was_known);
        // The SYN is built first, so that nothing but the hand-over is between the two judgements.
        let mut syn = Frame::new();
        syn.syn(pod, sport, to);
        let owner = shared.affinity.worker(syn.bytes(), WORKERS);
        shared.waits[self.number].store(true, Ordering::Relaxed);
        frame.answer(&question, &records);
        self.judge.forward(&node.named, time, &frame, "an answer")?;
        let syn = Syn { frame: syn, time, from: self.number, handed: Instant::now() };
        if owner == self.number {
            self.connect(&syn)?;
        } else {
            // A thread that has ended before has failed, and this one ends, too.
            let _ = self.inboxes[owner].send(syn);
        }
        Ok(true)
    }

    /// Judges a SYN. Counts a denied SYN, and the time since the answer if another thread judged that.
    ///
    /// # Errors
    /// If the SYN is forwarded to another port than the uplink, or belongs to an earlier connection.
    fn connect(&mut self, syn: &Syn) -> anyhow::Result<()> {
        let (shared, waited) = (self.shared, syn.handed.elapsed());
        let judged = self.judge.judge(&shared.node.named, syn.time, &syn.frame);
        match judged.verdict {
            Verdict::Forward(UPLINK) => {
                ensure!(judged.session == Some(SessionState::New), "a SYN belongs to an earlier connection");
            }
            Verdict::Forward(port) => anyhow::bail!("a SYN was forwarded to {port:?}"),
            Verdict::Drop(reason) => *self.tally.denied.entry(reason).or_default() += 1,
        }
        if syn.from != self.number {
            self.tally.hand_overs.push(waited.as_secs_f64() * 1e6);
        }
        shared.waits[syn.from].store(false, Ordering::Release);
        shared.judged.fetch_add(1, Ordering::Release);
        Ok(())
    }
}
