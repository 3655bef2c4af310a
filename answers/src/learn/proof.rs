//! The proof: judges the same flows with the learned policies, and prints the result.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_control::object::Transport;

use super::Lesson;
use super::evidence::{EdgeEnd, Evidence};
use super::judge::Rules;
use super::names::NameExcess;
use crate::flows::verdict::Fate;
use crate::output::{printable, some_of};
use crate::replay::rfc3339;

/// Maximum number of rows per list.
const MAX_ROWS: usize = 20;

/// Verdicts of the learned policies on the flows.
#[derive(Debug, Default)]
pub(super) struct Proof {
    pub(super) allowed: u64,
    /// Denied sessions by flow and reason.
    pub(super) denied: BTreeMap<String, u64>,
}

impl Proof {
    pub(super) fn of(evidence: &Evidence, judge: &mut Rules<'_>) -> anyhow::Result<Self> {
        let mut proof = Self::default();
        for flow in &evidence.flows {
            if judge.is(&Fate::Allow, flow)? {
                proof.allowed += flow.tally.sessions;
                continue;
            }
            let verdict = judge.verdict(&flow.conversation)?;
            let (from, to) = (&flow.conversation.from, &flow.conversation.to);
            let from = verdict.from.clone().unwrap_or_else(|| from.to_string());
            let to = verdict.to.clone().unwrap_or_else(|| to.to_string());
            let what = format!("{from} -> {to} {}: {}", flow.conversation.service_name(), verdict.why());
            *proof.denied.entry(what).or_default() += flow.tally.sessions;
        }
        Ok(proof)
    }

    /// Whether all flows are allowed.
    pub(super) fn holds(&self) -> bool {
        self.denied.is_empty()
    }
}

/// Writes up to [`MAX_ROWS`] lines and the number of the rest.
fn list(out: &mut impl Write, lines: &[String]) -> io::Result<()> {
    for line in lines.iter().take(MAX_ROWS) {
        writeln!(out, "  {}", printable(line))?;
    }
    match lines.len().checked_sub(MAX_ROWS) {
        Some(more) if more > 0 => writeln!(out, "  and {more} more"),
        _ => Ok(()),
    }
}

impl Lesson {
    /// Writes which seen sessions the learned policies allow, what they allow beyond, and how complete the evidence is.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let sessions = self.evidence.sessions();
        match self.policies.iter().map(|policy| 1 + usize::from(policy.by_name.is_some())).sum() {
            0 => writeln!(out, "learned: nothing is missing beside the policies of the state")?,
            count => writeln!(out, "learned: {count} policies from {sessions} sessions")?,
        }
        self.write_proof(out, sessions)?;
        self.write_surplus(out)?;
        self.write_maturity(out)?;
        self.write_unseen(out)
    }

    fn write_proof(&self, out: &mut impl Write, sessions: u64) -> io::Result<()> {
        let Self { proof, evidence, .. } = self;
        writeln!(out, "proof: {} of {sessions} sessions are allowed with them", proof.allowed)?;
        let denied: Vec<String> = proof.denied.iter().map(|(what, count)| format!("{count} not: {what}")).collect();
        list(out, &denied)?;
        if evidence.dropped > 0 {
            writeln!(out, "not learned: {} sessions that were logged as dropped", evidence.dropped)?;
        }
        if evidence.refused > 0 {
            let count = evidence.refused;
            writeln!(out, "not learned: {count} sessions that nobody answered and that the state's policies deny")?;
        }
        if !evidence.unknown.is_empty() {
            let count: u64 = evidence.unknown.values().sum();
            writeln!(out, "not learned: {count} sessions that cannot be told; an isolated workload may lose them")?;
            let unknown: Vec<String> = evidence.unknown.iter().map(|(why, count)| format!("{count} {why}")).collect();
            list(out, &unknown)?;
        }
        Ok(())
    }

    fn write_surplus(&self, out: &mut impl Write) -> io::Result<()> {
        type Key<'a> = (&'a str, &'a str, Transport, &'a [(u16, u16)]);
        // Group by ends and ports: one line for a workload with many pods.
        let mut rows: BTreeMap<Key<'_>, u128> = BTreeMap::new();
        for excess in &self.surplus.excess {
            let key = (&*excess.from_title, &*excess.to_title, excess.transport, &*excess.ports);
            let total = rows.entry(key).or_default();
            *total = total.saturating_add(excess.pairs());
        }
        if rows.is_empty() && self.surplus.names.is_empty() {
            return writeln!(out, "surplus: none, they allow nothing that was not seen");
        }
        writeln!(out, "surplus: allowed, and not seen")?;
        let line = |((from, to, transport, ports), pairs): (Key<'_>, u128)| {
            let ports: Vec<String> = ports
                .iter()
                .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
                .collect();
            let pairs = if pairs == 1 { "1 pair".to_owned() } else { format!("{pairs} pairs") };
            format!("{from} -> {to} {transport} {}: {pairs} of addresses", ports.join(","))
        };
        let mut lines: Vec<String> = rows.into_iter().map(line).collect();
        for NameExcess { title, names, pods, unused } in &self.surplus.names {
            let names = if *names == 1 { "1 name".to_owned() } else { format!("{names} names") };
            lines.push(format!("{title} -> {names}: all addresses that the pods will resolve"));
            let line = |((name, (transport, port)), count): (&(Arc<str>, (Transport, u16)), &usize)| {
                format!("{title} -> {name} {transport} {port}: {count} of {pods} pods")
            };
            lines.extend(unused.iter().map(line));
        }
        list(out, &lines)
    }

    fn write_maturity(&self, out: &mut impl Write) -> io::Result<()> {
        let edges = &self.evidence.edges;
        writeln!(out, "evidence: {} edges between workloads and addresses", edges.len())?;
        let first = edges.values().filter_map(|tally| tally.first).min();
        let last = edges.values().filter_map(|tally| tally.last).max();
        let newest = edges.values().filter_map(|tally| tally.first).max();
        if let (Some(first), Some(last), Some(newest)) = (first, last, newest) {
            let spell = |from: u64, to: u64| {
                let span = Duration::from_nanos(to.saturating_sub(from));
                // Show fractions of a second only below one second.
                let shown = if span.as_secs() > 0 { span.as_secs() * 1_000 } else { span.subsec_millis().into() };
                humantime::format_duration(Duration::from_millis(shown)).to_string()
            };
            writeln!(
                out,
                "  seen over {}; the last new edge {} before the end, at {}",
                spell(first, last),
                spell(newest, last),
                rfc3339(newest)
            )?;
        } else {
            writeln!(out, "  the source has no times: how old the last new edge is cannot be told")?;
        }
        let once: Vec<String> = edges
            .iter()
            .filter(|(_, tally)| tally.sessions == 1)
            .map(|((from, to, transport, port), _)| {
                format!("{} -> {} {transport} {port}", self.title(*from), self.title(*to))
            })
            .collect();
        if !once.is_empty() {
            writeln!(out, "  {} of them seen once:", once.len())?;
            list(out, &once)?;
        }
        let silent = edges.values().filter(|tally| tally.answered == 0).count();
        if silent > 0 {
            writeln!(out, "  {silent} of them never answered")?;
        }
        Ok(())
    }

    fn write_unseen(&self, out: &mut impl Write) -> io::Result<()> {
        let (clients, servers) = (&self.evidence.clients, &self.evidence.servers);
        let names = |is_listed: &dyn Fn(usize) -> bool| -> Vec<String> {
            let all = self.workloads.all.iter().enumerate();
            let listed = all.filter(|(at, workload)| self.wanted.covers(workload) && is_listed(*at));
            listed.map(|(_, workload)| workload.title()).collect()
        };
        let learned: BTreeSet<usize> = self.policies.iter().map(|policy| policy.workload).collect();
        let seen = |at: usize| clients.contains(&at) || servers.contains(&at);
        for (what, names) in [
            ("never seen, left as they are", names(&|at| !seen(at))),
            ("never seen as servers, ingress left as it is", names(&|at| seen(at) && !servers.contains(&at))),
            ("never seen as clients, egress left as it is", names(&|at| seen(at) && !clients.contains(&at))),
            ("nothing missing", names(&|at| seen(at) && !learned.contains(&at))),
        ] {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            if !names.is_empty() {
                writeln!(out, "{what}: {}", some_of(&names, MAX_ROWS))?;
            }
        }
        Ok(())
    }

    fn title(&self, end: EdgeEnd) -> String {
        match end {
            EdgeEnd::Workload(at) => self.workloads.all[at].title(),
            EdgeEnd::Address(address) => address.to_string(),
        }
    }
}
