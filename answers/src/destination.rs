//! The domain names of a packet's destination that explain its verdict.
//!
//! **Purpose.** Everything that shows a verdict (`monitor`, `trace`, Hubble flows, the journal, `why`, `replay`, `explain --live`) shows
//! with it the name by which a rule matched, or the names that the pod knew when policy denied. [`DestinationNames::of`] finds them and
//! [`DestinationNames::words`] formats them for people.
//!
//! **Not its purpose.** It judges nothing: the worker has decided.
//!
//! **Invariant.** At most [`MOST_KNOWN`] names. Nothing is looked up for pods without rules that name domains.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bulkhead_dataplane::{DropReason, Learned, NameId, Outcome, SessionState, Snapshot};
use serde::{Deserialize, Serialize};

use crate::output::printable;

/// Maximum number of names of a denied packet's destination.
pub const MOST_KNOWN: usize = 3;

/// The domain names of a packet's destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DestinationNames {
    /// The name by which a rule matched.
    Matched(KnownName),
    /// Policy denied the packet of a pod with rules that name domains. The first [`MOST_KNOWN`] names by which the pod knew the destination
    /// then; empty if it knew none.
    Known(Vec<KnownName>),
}

/// A name by which a pod knows an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownName {
    /// The name in lower case, without a final dot.
    pub name: Arc<str>,
    /// The time from which on the address is closed to new connections by this name, in nanoseconds since 1970, a full second; in serialized
    /// form in the format of RFC 3339. `None` if it is unknown, or if the packet starts no connection.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "rfc3339")]
    pub until: Option<u64>,
}

impl DestinationNames {
    /// Returns the names that matter for the verdict on a packet. `time` is the packet's, in nanoseconds since 1970. `None` if no rule
    /// matched by name, unless the rules of a pod that name domains denied its packet.
    ///
    /// The names of a denied packet are those in `learned` now that are valid at `time`.
    pub fn of(outcome: &Outcome, snapshot: &Snapshot, learned: &Learned, time: u64) -> Option<Self> {
        let holder = snapshot.names()?.holder(outcome.in_port);
        let decision = outcome.decision?;
        let destination = judged(outcome)?;
        let known = |each: &mut dyn FnMut(NameId, KnownName)| {
            let Some(holder) = holder else { return };
            learned.holdings_of(holder, destination, time, |id, name, until| {
                each(id, KnownName { name: name.into(), until: Some(until) });
            });
        };
        if let Some(by) = decision.name() {
            let mut matched = None;
            // Later packets may go to either end.
            if outcome.session == Some(SessionState::New) {
                known(&mut |id, name| matched = (id == by).then_some(name).or(matched.take()));
            }
            let text = || Some(KnownName { name: learned.text(by)?.into(), until: None });
            return matched.or_else(text).map(Self::Matched);
        }
        let named = snapshot.port(outcome.in_port).and_then(|port| port.named_table);
        let is_denied = outcome.verdict.drop_reason() == Some(DropReason::PolicyDenied);
        if !is_denied || named.is_none() || decision.table() != named {
            return None;
        }
        let mut names = Vec::new();
        known(&mut |_, name| names.push(name));
        names.sort_by(|one, other| one.name.cmp(&other.name));
        names.truncate(MOST_KNOWN);
        Some(Self::Known(names))
    }

    /// Returns all names.
    pub fn names(&self) -> &[KnownName] {
        match self {
            Self::Matched(name) => std::slice::from_ref(name),
            Self::Known(names) => names,
        }
    }

    /// Returns the names as a part of a sentence about the verdict: `by the name api.example.com, open to new connections until 12:00:31`.
    /// `destination` is the packet's. Ends on the day of `time` (nanoseconds since 1970) are times of day, others have the date; all are UTC.
    pub fn words(&self, destination: impl Display, time: u64) -> String {
        let until = |name: &KnownName| name.until.map(|until| clock(until, time));
        match self {
            Self::Matched(name) => {
                let until = until(name).map(|until| format!(", open to new connections until {until}"));
                format!("by the name {}{}", printable(&name.name), until.unwrap_or_default())
            }
            Self::Known(names) if names.is_empty() => {
                format!("the pod had resolved no name of {destination} at that time")
            }
            Self::Known(names) => {
                let word = |name: &KnownName| {
                    let until = until(name).map(|until| format!(" (until {until})")).unwrap_or_default();
                    format!("{}{until}", printable(&name.name))
                };
                let names: Vec<String> = names.iter().map(word).collect();
                format!("the pod had resolved {} to {destination}", names.join(", "))
            }
        }
    }
}

/// Returns the destination that policy judged: behind a Service, the backend. `None` without a flow.
pub fn judged(outcome: &Outcome) -> Option<IpAddr> {
    outcome.translation.map(|sent| sent.dst).or(outcome.flow.map(|flow| flow.dst))
}

/// Formats a time to the second: the time of day if it is on the day of `about`, otherwise as RFC 3339. Both are in nanoseconds since 1970.
fn clock(time: u64, about: u64) -> String {
    const DAY: u64 = 86_400_000_000_000;
    let text = humantime::format_rfc3339_seconds(at(time)).to_string();
    if time / DAY == about / DAY { text.get(11..19).unwrap_or(&text).to_owned() } else { text }
}

fn at(time: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(time)
}

/// The serialized form of an optional time in nanoseconds since 1970.
mod rfc3339 {
    use std::time::UNIX_EPOCH;

    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    #[expect(clippy::ref_option, reason = "serde calls it so")]
    pub(super) fn serialize<S: Serializer>(time: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => to.collect_str(&humantime::format_rfc3339_seconds(super::at(*time))),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Option<u64>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
        let time = humantime::parse_rfc3339(&text).map_err(D::Error::custom)?;
        let since = time.duration_since(UNIX_EPOCH).map_err(D::Error::custom)?;
        u64::try_from(since.as_nanos()).map(Some).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests;
