//! A packet's pass through one vswitch, as it is told to programs and to people.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;

use bulkhead_classifier::Rule;
use bulkhead_control::object::Transport;
use bulkhead_control::origin::Origin;
use bulkhead_dataplane::{DropReason, Outcome, SessionState, Verdict};
use serde::{Deserialize, Serialize};

use crate::compile::{shown_addresses, shown_services};
use crate::output::printable;
use crate::run::{self, Attribution};

/// One pass through a vswitch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// The vswitch's node.
    pub node: Arc<str>,
    /// `first` or `reply`.
    packet: Cow<'static, str>,
    /// The port where it comes in.
    #[serde(rename = "in")]
    in_port: Option<Arc<str>>,
    /// The port where it leaves.
    out: Option<Arc<str>>,
    /// `forward` or `drop`.
    verdict: Cow<'static, str>,
    /// Why it is dropped.
    reason: Option<Cow<'static, str>>,
    /// What the sender is told when it is dropped: `tcp_reset`, `icmp_prohibited`, or nothing.
    answer: Option<Cow<'static, str>>,
    /// `new` or `hit`.
    session: Option<Cow<'static, str>>,
    /// The table that decided.
    table: Option<Arc<str>>,
    /// Its rule that matched, from 0.
    rule: Option<u32>,
    /// How many it has.
    rules: Option<usize>,
    /// The rule.
    match_text: Option<String>,
    #[serde(flatten)]
    attribution: Attribution,
    /// Whose rule it is.
    origin: Option<String>,
    /// Where the policies stand; of a running vswitch it is not known.
    #[serde(default)]
    at: Vec<String>,
    /// Who would deny it if all policies were enforced, for a connection that passes because some are audited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    audited_by: Option<String>,
    /// Where these policies stand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    audited_at: Vec<String>,
}

/// What a vswitch did with a packet, and the names of what took part in it.
#[derive(Debug)]
pub struct Pass<'a> {
    /// The vswitch's node.
    pub node: Arc<str>,
    /// Whether the packet is the reply.
    pub is_reply: bool,
    /// What was done.
    pub outcome: &'a Outcome,
    /// The port where it came in.
    pub in_port: Option<Arc<str>>,
    /// The port where it leaves.
    pub out: Option<Arc<str>>,
    /// The table that decided, and the number of its rules.
    pub table: Option<(Arc<str>, usize)>,
    /// The rule that matched.
    pub decided: Option<Rule>,
    /// Whose it is.
    pub origin: Option<Origin>,
    /// Who would deny it if all policies were enforced, and where these stand.
    pub audited: Option<(Origin, Vec<String>)>,
    /// What the sender is told.
    pub answer: Option<&'static str>,
    /// Where the policies stand.
    pub at: Vec<String>,
}

impl Step {
    /// Puts one pass through a vswitch into words.
    pub fn new(pass: Pass<'_>) -> Self {
        let Pass { node, is_reply, outcome, in_port, out, table, decided, origin, audited, answer, at } = pass;
        Self {
            node,
            packet: if is_reply { "reply" } else { "first" }.into(),
            in_port,
            out,
            verdict: if matches!(outcome.verdict, Verdict::Forward(_)) { "forward" } else { "drop" }.into(),
            reason: outcome.verdict.drop_reason().map(|reason| reason.name().into()),
            answer: answer.map(Into::into),
            session: outcome.session.map(|session| match session {
                SessionState::New => "new".into(),
                SessionState::Hit => "hit".into(),
            }),
            rule: outcome.decision.and_then(|decision| decision.rule),
            rules: table.as_ref().map(|(_, rules)| *rules),
            table: table.map(|(name, _)| name),
            match_text: decided.map(|rule| {
                let (src, dst) = (shown_addresses(&rule.src), shown_addresses(&rule.dst));
                format!("{} {src} -> {dst} {}", rule.action, shown_services(&rule.services))
            }),
            attribution: run::attribution(origin.as_ref()),
            at,
            audited_by: audited.as_ref().map(|(origin, _)| origin.to_string()),
            audited_at: audited.map(|(_, at)| at).unwrap_or_default(),
            origin: origin.map(|origin| origin.to_string()),
        }
    }

    /// Writes it for people, as the step of this number.
    pub fn write(&self, number: usize, out: &mut impl Write) -> io::Result<()> {
        let name = |port: &Option<Arc<str>>| port.as_deref().map_or_else(|| "nowhere".into(), printable);
        let node = if self.node.is_empty() { "unbound pods".into() } else { format!("node {}", printable(&self.node)) };
        let what = if self.packet == "reply" { "the reply" } else { "the first packet" };
        write!(out, "\n{number}. {node}: {what} comes in from {}", name(&self.in_port))?;
        match &self.reason {
            None => writeln!(out, " and leaves to {}", name(&self.out))?,
            Some(reason) => writeln!(out, " and is dropped: {reason}")?,
        }
        match self.answer.as_deref() {
            None => {}
            Some("tcp_reset") => writeln!(out, "   the sender is told by a TCP reset (bulkhead.dev/denied: refuse)")?,
            Some(_) => writeln!(out, "   the sender is told by an ICMP error (bulkhead.dev/denied: refuse)")?,
        }
        if self.session.as_deref() == Some("hit") {
            return writeln!(out, "   it belongs to the session of the first packet; no table is consulted");
        }
        if let (Some(table), Some(rule), Some(rules)) = (&self.table, self.rule, self.rules) {
            writeln!(out, "   table {}, rule {rule} (counted from 0) of {rules}", printable(table))?;
        }
        if let Some(text) = &self.match_text {
            writeln!(out, "   {text}")?;
        }
        if let Some(origin) = &self.origin {
            writeln!(out, "   because: {}", printable(origin))?;
        }
        self.at.iter().try_for_each(|place| writeln!(out, "     {}", printable(place)))?;
        if let Some(origin) = &self.audited_by {
            writeln!(out, "   not enforced, or it would be denied: {}", printable(origin))?;
        }
        self.audited_at.iter().try_for_each(|place| writeln!(out, "     {}", printable(place)))
    }

    /// Whether the packet is the reply.
    pub fn is_reply(&self) -> bool {
        self.packet == "reply"
    }

    /// Whose rule decided, and why the packet is dropped where that is not policy.
    pub fn because(&self) -> String {
        let audited = self.audited_by.as_ref().map(|origin| format!("{origin} is not enforced"));
        let origin = self.origin.clone().or_else(|| self.reason.as_ref().map(ToString::to_string));
        origin.into_iter().chain(audited).collect::<Vec<_>>().join(", ")
    }

    /// Whether audited policies would deny the packet that passes here.
    pub fn is_audited(&self) -> bool {
        self.audited_by.is_some()
    }
}

/// What the sender of a packet is told of its end, when its rule `refuses`. None for what is dropped in silence: everything that came
/// in from the uplink, and what no rule has denied.
pub fn answer_to(
    outcome: &Outcome,
    in_port: Option<&str>,
    transport: Transport,
    refuses: bool,
) -> Option<&'static str> {
    let is_denied = outcome.verdict.drop_reason() == Some(DropReason::PolicyDenied);
    let how = if transport == Transport::Tcp { "tcp_reset" } else { "icmp_prohibited" };
    (is_denied && in_port != Some("uplink") && refuses).then_some(how)
}
