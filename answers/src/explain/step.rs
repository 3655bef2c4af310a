//! The processing of a packet in one vswitch.

use std::borrow::Cow;
use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::Rule;
use bulkhead_control::origin::Origin;
use bulkhead_control::reachability::Protocol;
use bulkhead_dataplane::{DropReason, Outcome, SessionState, Verdict};
use serde::{Deserialize, Serialize};

use crate::compile::{shown_addresses, shown_services};
use crate::destination::{self, DestinationNames};
use crate::output::printable;
use crate::run::{self, Attribution};

/// The processing of a packet in one vswitch, as printed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Node of the vswitch.
    pub node: Arc<str>,
    /// The packet: `first` or `reply`.
    packet: Cow<'static, str>,
    /// Ingress port. `None` if unknown.
    #[serde(rename = "in")]
    in_port: Option<Arc<str>>,
    /// Egress port. `None` if the packet is dropped.
    out: Option<Arc<str>>,
    /// The vswitch's verdict: `forward` or `drop`.
    verdict: Cow<'static, str>,
    /// Drop reason. `None` if the packet is forwarded.
    reason: Option<Cow<'static, str>>,
    /// Notification of the sender of a dropped packet: `tcp_reset`, `icmp_prohibited` or `icmp_unreachable`. `None` if silent.
    answer: Option<Cow<'static, str>>,
    /// Session: `new` if the packet created it, `hit` if it existed. `None` without a session.
    session: Option<Cow<'static, str>>,
    /// Name of the deciding table. `None` if no table decided.
    table: Option<Arc<str>>,
    /// Index of the matching rule, from 0. `None` if no rule matched.
    rule: Option<u32>,
    /// Number of rules in the deciding table. `None` if no table decided.
    rules: Option<usize>,
    /// The matching rule's addresses, protocol and ports, as text. `None` if no rule matched.
    match_text: Option<String>,
    /// The destination's domain names. `None` if they do not matter, and without a running vswitch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    names: Option<DestinationNames>,
    /// The destination that policy judged. `None` without `names`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    destination: Option<IpAddr>,
    #[serde(flatten)]
    attribution: Attribution,
    /// The policy rule that decided, or the policies that isolate the pod. `None` if no policy decided.
    origin: Option<String>,
    /// File positions of these policies. Empty for a running vswitch.
    #[serde(default)]
    at: Vec<String>,
    /// Audited policies that would deny the packet. `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    audited_by: Option<String>,
    /// File positions of the audited policies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    audited_at: Vec<String>,
}

/// What a vswitch did with a packet, with names resolved.
#[derive(Debug)]
pub struct Pass<'a> {
    /// Node of the vswitch.
    pub node: Arc<str>,
    /// Whether the packet is the reply.
    pub is_reply: bool,
    /// The vswitch's decision.
    pub outcome: &'a Outcome,
    /// Name of the ingress port. `None` if unknown.
    pub in_port: Option<Arc<str>>,
    /// Name of the egress port. `None` if the packet is dropped.
    pub out: Option<Arc<str>>,
    /// Name of the deciding table and its number of rules. `None` if no table decided.
    pub table: Option<(Arc<str>, usize)>,
    /// The matching rule. `None` if no rule matched.
    pub decided: Option<Rule>,
    /// The destination's domain names. `None` if they do not matter, or are unknown.
    pub names: Option<DestinationNames>,
    /// The policy rule that decided, or the policies that isolate the pod. `None` if no policy decided.
    pub origin: Option<Origin>,
    /// Audited policies that would deny the packet, with file positions. `None` without one.
    pub audited: Option<(Origin, Vec<String>)>,
    /// Notification of the sender of a dropped packet, as in [`Step`]. `None` if silent.
    pub answer: Option<&'static str>,
    /// File positions of the deciding policies.
    pub at: Vec<String>,
}

impl Step {
    /// Converts a packet's processing to its printed form.
    pub fn new(pass: Pass<'_>) -> Self {
        let Pass { node, is_reply, outcome, in_port, out, table, decided, names, origin, audited, answer, at } = pass;
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
                let by = rule.names.as_ref().map(|names| format!(" by name {names}")).unwrap_or_default();
                format!("{} {src} -> {dst} {}{by}", rule.action, shown_services(&rule.services))
            }),
            destination: destination::judged(outcome).filter(|_| names.is_some()),
            names,
            attribution: run::attribution(origin.as_ref()),
            at,
            audited_by: audited.as_ref().map(|(origin, _)| origin.to_string()),
            audited_at: audited.map(|(_, at)| at).unwrap_or_default(),
            origin: origin.map(|origin| origin.to_string()),
        }
    }

    /// Writes the step for people. `number` is its position in the walk.
    pub fn write(&self, number: usize, out: &mut impl Write) -> io::Result<()> {
        let name = |port: &Option<Arc<str>>| port.as_deref().map_or_else(|| "nowhere".into(), printable);
        let node = if self.node.is_empty() { "unbound pods".into() } else { format!("node {}", printable(&self.node)) };
        let what = if self.packet == "reply" { "the reply" } else { "the first packet" };
        write!(out, "\n{number}. {node}: {what} comes in from {}", name(&self.in_port))?;
        match &self.reason {
            None => writeln!(out, " and leaves to {}", name(&self.out))?,
            Some(reason) => writeln!(out, " and is dropped: {reason}")?,
        }
        if let Some(answer) = &self.answer {
            let what = if answer == "tcp_reset" { "a TCP reset" } else { "an ICMP error" };
            let is_denied = self.reason.as_deref() == Some(DropReason::PolicyDenied.name());
            let why = if is_denied { "bulkhead.dev/denied: refuse" } else { "unreachable: refuse" };
            writeln!(out, "   the sender receives {what} ({why})")?;
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
        if let (Some(names), Some(destination)) = (&self.names, self.destination) {
            writeln!(out, "   {}", names.words(destination, 0))?;
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

    /// Returns the deciding rule, else the drop reason, and audited policies that would deny.
    pub fn because(&self) -> String {
        let audited = self.audited_by.as_ref().map(|origin| format!("{origin} is not enforced"));
        // Policy may allow a packet that is dropped for this reason.
        let is_unreachable = self.reason.as_deref() == Some(DropReason::NoSuchPod.name());
        let origin = self.origin.clone().filter(|_| !is_unreachable);
        let origin = origin.or_else(|| self.reason.as_ref().map(ToString::to_string));
        origin.into_iter().chain(audited).collect::<Vec<_>>().join(", ")
    }

    /// Whether audited policies would deny this packet.
    pub fn is_audited(&self) -> bool {
        self.audited_by.is_some()
    }
}

/// The denials and unreachable addresses whose senders are notified.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// Whether the rule that decided is one whose denials are answered.
    pub refuses: bool,
    /// Whether senders to addresses that no pod has are answered.
    pub tells_unreachable: bool,
}

/// Returns how the sender of a dropped packet is notified. `None` for silent drops: denied packets from the uplink, and all reasons that are
/// not `answered`.
pub fn answer_to(
    outcome: &Outcome,
    in_port: Option<&str>,
    protocol: Protocol,
    answered: Answered,
) -> Option<&'static str> {
    let (is_answered, error) = match outcome.verdict.drop_reason()? {
        DropReason::PolicyDenied => (in_port != Some("uplink") && answered.refuses, "icmp_prohibited"),
        DropReason::NoSuchPod => (answered.tells_unreachable, "icmp_unreachable"),
        _ => (false, ""),
    };
    let how = if protocol == Protocol::Tcp { "tcp_reset" } else { error };
    is_answered.then_some(how)
}
