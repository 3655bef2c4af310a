//! The row `forged`: forged DNS answers to pods, each followed by a SYN to the forged address. No SYN may be allowed.
//!
//! Every forged answer reaches the pod, because policy allows all packets to pods. So only the workers' checks keep the address closed. A
//! worker judges the true answer too, whose address must then be open.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Instant;

use anyhow::ensure;
use bulkhead_dataplane::{Affinity, DropReason, Judged, PATIENCE, SessionState, Verdict};
use serde_json::{Map, json};

use super::node::{FORGER, FORGER_PORT, NAMES, Node, OFF_PATH, PODS, Pod, SERVER, UPLINK, address_of, forged_address};
use super::packets::{Frame, Name, Question, Record, Section, sport};
use super::{Bench, Judge, SECOND, STEPS_PER_SWEEP, WORKERS, time_of};
use crate::random::Random;
use crate::table::{Goal, Line, digits};

/// TTL of all records in seconds.
const TTL: u32 = 300;
/// Maximum time in nanoseconds from the end of a question to its late answer.
const LATE: u64 = 2 * SECOND;

/// A way to forge an answer. [`Kind::name`] describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    OffPath,
    Pod,
    WrongId,
    WrongQuestion,
    Late,
    Second,
    Unasked,
}

impl Kind {
    const ALL: [Self; 7] =
        [Self::OffPath, Self::Pod, Self::WrongId, Self::WrongQuestion, Self::Late, Self::Second, Self::Unasked];

    const fn name(self) -> &'static str {
        match self {
            Self::OffPath => "from an off-path server",
            Self::Pod => "from a pod with source port 53",
            Self::WrongId => "with a wrong id",
            Self::WrongQuestion => "with a wrong question",
            Self::Late => "later than 10 s",
            Self::Second => "after the true answer",
            Self::Unasked => "with a record of another name",
        }
    }

    /// Whether a worker counts the answer as unasked. False for answers from untrusted servers, which no worker reads, and for those with a
    /// record of another name, which have a true record beside it.
    const fn is_unasked(self) -> bool {
        matches!(self, Self::WrongId | Self::WrongQuestion | Self::Late | Self::Second)
    }
}

/// An answer to be sent when its question has expired.
struct Late<'a> {
    /// When to send the answer, in nanoseconds since 1970.
    at: u64,
    question: Question<'a>,
    address: Ipv4Addr,
}

/// The workers, which one thread uses in turn, and the results so far.
struct Forging<'a> {
    node: &'a Node,
    affinity: Affinity,
    team: Vec<Judge>,
    random: Random,
    frame: Frame,
    /// By kind: number of forged answers, and of those after which the SYN was allowed.
    forged: [u32; Kind::ALL.len()],
    opened: [u32; Kind::ALL.len()],
    /// Number of true answers whose address was then open.
    true_answers: u32,
    /// The late answers that are still to be sent, sorted by time.
    late: VecDeque<Late<'a>>,
}

pub(super) fn forged(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let affinity = Affinity::new();
    let mut forging = Forging {
        node: &bench.node,
        team: Judge::team(WORKERS, &affinity, &bench.node.named)?,
        affinity,
        random: Random(0x9e37_79b9_7f4a_7c15),
        frame: Frame::new(),
        forged: Default::default(),
        opened: Default::default(),
        true_answers: 0,
        late: VecDeque::new(),
    };
    let started = Instant::now();
    for (step, kind) in (0..bench.forged).zip(Kind::ALL.into_iter().cycle()) {
        forging.come_late(time_of(step))?;
        forging.forge(step, kind)?;
    }
    forging.come_late(u64::MAX)?;
    let took = started.elapsed().as_secs_f64();
    let sum = |of: &[u32]| of.iter().sum::<u32>();
    ensure!(sum(&forging.forged) == bench.forged, "not all answers were forged");
    let unasked: u64 = forging.team.iter().map(|judge| judge.worker.name_counters().unasked).sum();
    let expected: u32 =
        Kind::ALL.iter().zip(forging.forged).filter(|(kind, _)| kind.is_unasked()).map(|(_, count)| count).sum();
    ensure!(unasked == u64::from(expected), "workers counted {unasked} unasked answers instead of {expected}");
    let what = format!("allowed SYNs after {} forged answers of {} kinds", bench.forged, Kind::ALL.len());
    let mut line = Line::value("forged", &what, f64::from(sum(&forging.opened)), "SYNs", Goal::AtMost(0.0));
    let mut kinds = Map::new();
    for (kind, (forged, opened)) in Kind::ALL.into_iter().zip(forging.forged.into_iter().zip(forging.opened)) {
        kinds.insert(kind.name().to_owned(), json!({"forged": forged, "opened": opened}));
        if opened > 0 {
            line = line.noted(&format!("{opened} of {forged} {}", kind.name()));
        }
    }
    let note =
        format!("all were forwarded; {} true answers opened their address; {} s", forging.true_answers, digits(took));
    Ok(vec![line.noted(&note).with("kinds", kinds.into()).with("true_answers", json!(forging.true_answers))])
}

impl<'a> Forging<'a> {
    /// Judges the frame by the worker that owns its pair of addresses.
    fn judge(&mut self, time: u64) -> Judged {
        let owner = self.affinity.worker(self.frame.bytes(), WORKERS);
        self.team[owner].judge(&self.node.named, time, &self.frame)
    }

    /// Judges the frame, which must be forwarded. `what` is the frame's name in an error.
    fn forward(&mut self, time: u64, what: &str) -> anyhow::Result<()> {
        let verdict = self.judge(time).verdict;
        ensure!(matches!(verdict, Verdict::Forward(_)), "{what} was not forwarded: {verdict:?}");
        Ok(())
    }

    /// Sends a query, a forged answer and a SYN to the forged address, then checks that the true answer's address is open. For
    /// [`Kind::Late`], enqueues the forged answer instead.
    ///
    /// # Errors
    /// If query or answer is dropped, or if the true answer's address is not open.
    fn forge(&mut self, step: u32, kind: Kind) -> anyhow::Result<()> {
        let (node, time) = (self.node, time_of(step));
        if step.is_multiple_of(STEPS_PER_SWEEP) {
            self.team[0].worker.learned().sweep(time);
        }
        // All pods meet all kinds: their numbers have no common divisor.
        let at = u16::try_from(step % u32::from(PODS))?;
        let (pod, number) = (Pod(at), self.random.below_u16(NAMES));
        let question = Question {
            pod,
            sport: sport(step / u32::from(PODS)),
            id: self.random.below_u16(u16::MAX),
            name: node.name(number),
        };
        let other = node.name((number + 1 + self.random.below_u16(NAMES - 1)) % NAMES);
        let (address, truth) = (forged_address(step), address_of(number, self.random.below(u32::MAX)));
        self.frame.query(&question);
        self.forward(time, "a query")?;
        if kind == Kind::Late {
            let at = time + PATIENCE + u64::from(self.random.below(u32::try_from(LATE)?));
            // Answers come in the order of their questions.
            let at = self.late.back().map_or(at, |last| at.max(last.at));
            self.late.push_back(Late { at, question, address });
            return Ok(());
        }
        let has_true_record = matches!(kind, Kind::Second | Kind::Unasked);
        if kind == Kind::Second {
            self.answer(&question, truth);
            self.forward(time, "a true answer")?;
        }
        self.write_forged(kind, &question, other, (address, truth));
        self.forward(time, "a forged answer")?;
        self.connect_in_vain(time, kind, &question, address)?;
        // The forged answer must not have closed the question.
        if !has_true_record {
            self.answer(&question, truth);
            self.forward(time, "a true answer")?;
        }
        self.frame.syn(pod, question.sport, truth);
        let judged = self.judge(time);
        let expected = (Verdict::Forward(UPLINK), Some(SessionState::New));
        ensure!(
            (judged.verdict, judged.session) == expected,
            "the true answer's address was not open beside an answer {}: {judged:?}",
            kind.name()
        );
        self.true_answers += 1;
        Ok(())
    }

    /// Writes the trusted server's answer to the question, with this address, to the frame.
    fn answer(&mut self, question: &Question<'_>, address: Ipv4Addr) {
        self.frame.answer(question, &[Record { owner: None, ttl: TTL, address }]);
    }

    /// Writes the forged answer to the frame. `other` is another name of the pod's rule, `address` the forged address, `truth` a true one.
    fn write_forged(
        &mut self,
        kind: Kind,
        question: &Question<'_>,
        other: &Name,
        (address, truth): (Ipv4Addr, Ipv4Addr),
    ) {
        let from = match kind {
            Kind::OffPath => (UPLINK, OFF_PATH),
            Kind::Pod => (FORGER_PORT, FORGER),
            _ => (UPLINK, SERVER),
        };
        let asked = |address| Record { owner: None, ttl: TTL, address };
        let forged = Record { owner: Some(other), ..asked(address) };
        let frame = &mut self.frame;
        match kind {
            Kind::WrongId => {
                let id = question.id ^ (1 + self.random.below_u16(u16::MAX));
                frame.answer_of(from, &Question { id, ..*question }, &[asked(address)], Section::Answer);
            }
            Kind::WrongQuestion => {
                frame.answer_of(from, &Question { name: other, ..*question }, &[asked(address)], Section::Answer);
            }
            Kind::Unasked => {
                let section = if self.random.below(2) == 0 { Section::Answer } else { Section::Additional };
                frame.answer_of(from, question, &[asked(truth), forged], section);
            }
            Kind::OffPath | Kind::Pod | Kind::Late | Kind::Second => {
                frame.answer_of(from, question, &[asked(address)], Section::Answer);
            }
        }
    }

    /// Sends the late answers that are due at `now`, in nanoseconds since 1970, each followed by a SYN to its address.
    fn come_late(&mut self, now: u64) -> anyhow::Result<()> {
        while let Some(Late { at, question, address }) = self.late.pop_front_if(|late| late.at <= now) {
            self.answer(&question, address);
            self.forward(at, "a late answer")?;
            self.connect_in_vain(at, Kind::Late, &question, address)?;
        }
        Ok(())
    }

    /// Connects to the address of a forged answer. Counts the answer, and the SYN if it is allowed.
    ///
    /// # Errors
    /// If the SYN is dropped for another reason than policy.
    fn connect_in_vain(
        &mut self,
        time: u64,
        kind: Kind,
        question: &Question<'_>,
        address: Ipv4Addr,
    ) -> anyhow::Result<()> {
        self.frame.syn(question.pod, question.sport, address);
        let verdict = self.judge(time).verdict;
        self.forged[kind as usize] += 1;
        match verdict {
            Verdict::Forward(_) => self.opened[kind as usize] += 1,
            Verdict::Drop(DropReason::PolicyDenied) => {}
            Verdict::Drop(reason) => {
                anyhow::bail!("a SYN to a forged address was dropped for another reason: {reason}")
            }
        }
        Ok(())
    }
}
