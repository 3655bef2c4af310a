//! Judges observed flows with the current state: simulates the vswitches of all nodes, as `reach` and `explain` do.

use bulkhead_control::object::Object;
use bulkhead_control::origin::Origin;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::service::Settings;
use bulkhead_dataplane::DropReason;

use super::Conversation;
use super::find::{Connection, Finder, Resolved};
use bulkhead_control::source::Strictness;

use crate::args::PortProtocol;
use crate::fabric::{Fabric, Hop, Reached, arrived};
use crate::run;
use crate::translate::Translation;

/// The verdict on a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The first packet and its reply arrive.
    Allow,
    /// The first packet or its reply is dropped.
    Deny,
    /// The verdict is unknown, with the reason.
    Unknown(String),
}

impl Fate {
    /// Returns the verdict's name as printed.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// The current state's verdict on a flow, and its origin.
#[derive(Clone, Debug)]
pub struct FlowVerdict {
    /// The current state's verdict on the flow.
    pub fate: Fate,
    /// Drop reason. `None` if the flow is not dropped.
    pub reason: Option<DropReason>,
    /// The deciding rule or policies. `None` if no policy decided.
    pub origin: Option<Origin>,
    /// Audited policies that would deny the flow, at any possible endpoint.
    pub audited_by: Vec<Origin>,
    /// Service that the flow was addressed to. `None` if it was not addressed to a Service.
    pub service: Option<String>,
    /// Client pod or node. `None` if the state does not have the address.
    pub from: Option<String>,
    /// Server pod, node or Service. `None` if the state does not have the address.
    pub to: Option<String>,
}

impl FlowVerdict {
    fn unknown(why: impl Into<String>) -> Self {
        Self {
            fate: Fate::Unknown(why.into()),
            reason: None,
            origin: None,
            audited_by: Vec::new(),
            service: None,
            from: None,
            to: None,
        }
    }

    /// Returns the rule or drop reason behind the verdict, or why the verdict is unknown. Empty if no policy applies.
    pub fn why(&self) -> String {
        if self.fate == Fate::Allow && !self.audited_by.is_empty() {
            let origins: Vec<String> = self.audited_by.iter().map(ToString::to_string).collect();
            return format!("allowed, would be denied by {}", origins.join(", "));
        }
        match (&self.fate, self.reason, &self.origin) {
            (Fate::Unknown(why), ..) => why.clone(),
            (_, None | Some(DropReason::PolicyDenied), Some(origin)) => origin.to_string(),
            (_, Some(reason), _) => reason.describe().to_owned(),
            (_, None, None) => String::new(),
        }
    }
}

/// Judges observed flows with the current state.
pub struct Judge<'a> {
    finder: Finder<'a>,
    fabric: Fabric<'a>,
}

impl<'a> Judge<'a> {
    /// Returns a judge for a state with its Services. `strictness` is that of [`Fabric::new`].
    pub fn new(pipeline: &'a Pipeline, services: Vec<Object>, settings: Settings, strictness: Strictness) -> Self {
        Self { finder: Finder::new(pipeline, services, settings), fabric: Fabric::new(pipeline, strictness) }
    }

    /// Returns what a flow corresponds to in the state.
    ///
    /// # Errors
    /// Only on internal errors.
    pub fn resolve(&mut self, conversation: &Conversation) -> anyhow::Result<Resolved> {
        self.finder.resolve(conversation)
    }

    /// Judges a flow.
    ///
    /// # Errors
    /// Only on internal errors.
    pub fn judge(&mut self, conversation: &Conversation) -> anyhow::Result<FlowVerdict> {
        match self.finder.resolve(conversation)? {
            Resolved::Unknown(why) => Ok(FlowVerdict::unknown(why)),
            Resolved::Direct(connection) => Ok(self.direct(&connection)),
            Resolved::Translated(connection, translation) => self.translated(&connection, &translation),
        }
    }

    /// Judges a connection that is not translated.
    pub fn direct(&mut self, Connection { from, to, port }: &Connection) -> FlowVerdict {
        let verdict = match self.fabric.walk(from, to, *port) {
            Ok(hops) => self.of_hops(&hops),
            Err(error) => FlowVerdict::unknown(error.to_string()),
        };
        FlowVerdict { from: Some(from.to_string()), to: Some(to.to_string()), ..verdict }
    }

    fn of_hops(&self, hops: &[Hop]) -> FlowVerdict {
        let is_allowed = hops.last().is_some_and(|hop| hop.reply && arrived(hop));
        let dropped = hops.iter().find_map(|hop| Some((hop, hop.outcome.verdict.drop_reason()?)));
        // If several hops allow it, report the last one: the destination's.
        let deciding = match dropped {
            Some((hop, _)) => Some(hop),
            None => hops.iter().rfind(|hop| !hop.reply),
        };
        FlowVerdict {
            fate: if is_allowed { Fate::Allow } else { Fate::Deny },
            reason: dropped.map(|(_, reason)| reason),
            origin: deciding.and_then(|hop| run::origin(self.finder.pipeline, hop.outcome.decision)),
            audited_by: distinct(hops.iter().filter_map(|hop| run::origin(self.finder.pipeline, hop.outcome.audited))),
            service: None,
            from: None,
            to: None,
        }
    }

    /// Judges a connection to a Service. If policy treats the backends differently, the verdict is unknown unless the log names the
    /// backend.
    fn translated(&mut self, connection: &Connection, translation: &Translation) -> anyhow::Result<FlowVerdict> {
        let service = translation.told.service.clone();
        let name = service.clone().unwrap_or_else(|| connection.to.to_string());
        if let Some(refusal) = translation.refusal {
            let why = format!("Service {name} refuses it in this state: {}", refusal.replace('_', " "));
            return Ok(FlowVerdict { service, ..FlowVerdict::unknown(why) });
        }
        let mut verdicts = Vec::with_capacity(translation.routes.len());
        for route in &translation.routes {
            let reached = route.reached(&mut self.fabric)?;
            let mut verdict = self.direct(&Connection {
                to: route.to.clone(),
                port: PortProtocol { port: route.backend.port(), ..connection.port },
                ..connection.clone()
            });
            verdict.fate = if reached == Reached::No { Fate::Deny } else { Fate::Allow };
            verdicts.push(verdict);
        }
        let denied = verdicts.iter().filter(|verdict| verdict.fate == Fate::Deny).count();
        if denied > 0 && denied < verdicts.len() {
            let why = format!(
                "policy allows {} of the {} endpoints of Service {name}, and the log does not name the endpoint",
                verdicts.len() - denied,
                verdicts.len()
            );
            return Ok(FlowVerdict { service, ..FlowVerdict::unknown(why) });
        }
        // The backend is unknown, and any of them may be audited.
        let audited_by = distinct(verdicts.iter_mut().flat_map(|verdict| std::mem::take(&mut verdict.audited_by)));
        let verdict = verdicts.pop().unwrap_or_else(|| FlowVerdict::unknown(format!("Service {name} has no endpoint")));
        Ok(FlowVerdict { service, audited_by, ..verdict })
    }
}

/// Removes duplicates, keeping the order.
fn distinct(origins: impl Iterator<Item = Origin>) -> Vec<Origin> {
    let mut distinct = Vec::new();
    for origin in origins {
        if !distinct.contains(&origin) {
            distinct.push(origin);
        }
    }
    distinct
}
