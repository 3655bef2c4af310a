//! Selects the verdicts that a client wants.

use bulkhead_classifier::protocol;
use bulkhead_dataplane::Flow;

use super::flow::Told;
use super::select::Selector;
use bulkhead_observe::admin::{Failure, Monitor};

/// A client's filter for verdicts.
#[derive(Clone, Debug, Default)]
pub(super) struct FlowFilter {
    ends: Selector,
    verdicts: Vec<&'static str>,
    ports: Vec<u16>,
    protocols: Vec<u8>,
}

impl FlowFilter {
    /// Validates the filters of a request.
    ///
    /// # Errors
    /// If a verdict or protocol is unknown, or a selector is invalid.
    pub(super) fn new(asked: &Monitor) -> Result<Self, Failure> {
        let protocol = |name: &String| {
            let number = match &*name.to_ascii_uppercase() {
                "TCP" => Some(protocol::TCP),
                "UDP" => Some(protocol::UDP),
                "SCTP" => Some(protocol::SCTP),
                "ICMP" | "ICMPV4" => Some(protocol::ICMP),
                "ICMPV6" => Some(protocol::ICMPV6),
                _ => name.parse().ok(),
            };
            let message = || format!("{} is not a protocol", bulkhead_answers::output::printable(name));
            number.ok_or_else(|| Failure::new("malformed", message(), "use TCP, UDP, SCTP, ICMP, ICMPv6 or a number"))
        };
        Ok(Self {
            ends: Selector::new(&asked.pods, &asked.namespaces, &asked.labels)?,
            verdicts: verdicts(&asked.verdicts)?,
            ports: asked.ports.clone(),
            protocols: asked.protocols.iter().map(protocol).collect::<Result<_, _>>()?,
        })
    }

    /// Returns the selector of the pods at either end.
    pub(super) const fn ends(&self) -> &Selector {
        &self.ends
    }

    pub(super) fn selects(&self, told: &Told) -> bool {
        let flow = told.event.judgement.outcome.flow;
        let has_port = |flow: &Flow| self.ports.contains(&flow.sport) || self.ports.contains(&flow.dport);
        (self.verdicts.is_empty() || self.verdicts.contains(&told.verdict()))
            && (self.ports.is_empty() || flow.as_ref().is_some_and(has_port))
            && (self.protocols.is_empty() || flow.is_some_and(|flow| self.protocols.contains(&flow.protocol)))
            && (self.ends.is_everything() || told.ends().into_iter().any(|end| self.ends.selects_known(end.known())))
    }
}

/// Returns the verdicts of a request, which names them as Hubble does, in upper or lower case: FORWARDED, DROPPED or AUDIT.
///
/// # Errors
/// If a name is none of these.
pub(super) fn verdicts(names: &[String]) -> Result<Vec<&'static str>, Failure> {
    let known = |name: &String| {
        let known = ["FORWARDED", "DROPPED", "AUDIT"].into_iter().find(|known| known.eq_ignore_ascii_case(name));
        let message = || format!("{} is not a verdict", bulkhead_answers::output::printable(name));
        known.ok_or_else(|| Failure::new("malformed", message(), "use FORWARDED, DROPPED or AUDIT"))
    };
    names.iter().map(known).collect()
}
