//! What today's state makes of an observed flow: the vswitches of all nodes are asked, as by `reach` and `explain`.

use std::collections::HashMap;
use std::net::IpAddr;

use bulkhead_control::object::Object;
use bulkhead_control::origin::Origin;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::service::Settings;
use bulkhead_dataplane::DropReason;
use ipnet::IpNet;

use super::{Conversation, SeenEnd};
use crate::args::{Destination, PortProtocol};
use crate::fabric::{End, Fabric, Hop, arrived};
use crate::run;
use crate::translate::{Services, Translation};

/// What becomes of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its first packet and the reply arrive.
    Allow,
    /// One of them does not.
    Deny,
    /// It cannot be told, and why.
    Unknown(String),
}

impl Fate {
    /// As it is printed.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// A verdict, and who gave it.
#[derive(Clone, Debug)]
pub(crate) struct FlowVerdict {
    pub(crate) fate: Fate,
    /// Why it was dropped.
    pub(crate) reason: Option<DropReason>,
    /// What decided.
    pub(crate) origin: Option<Origin>,
    /// What would deny it if all policies were enforced.
    pub(crate) audited_by: Option<Origin>,
    /// The Service that the flow was made to.
    pub(crate) service: Option<String>,
    /// Who its ends are in the state, where that is known.
    pub(crate) from: Option<String>,
    pub(crate) to: Option<String>,
}

impl FlowVerdict {
    fn unknown(why: impl Into<String>) -> Self {
        Self {
            fate: Fate::Unknown(why.into()),
            reason: None,
            origin: None,
            audited_by: None,
            service: None,
            from: None,
            to: None,
        }
    }

    /// Why, in words; empty where nothing had a say.
    pub(crate) fn why(&self) -> String {
        if let (Fate::Allow, Some(origin)) = (&self.fate, &self.audited_by) {
            return format!("allowed, would be denied by {origin}");
        }
        match (&self.fate, self.reason, &self.origin) {
            (Fate::Unknown(why), ..) => why.clone(),
            (_, None | Some(DropReason::PolicyDenied), Some(origin)) => origin.to_string(),
            (_, Some(reason), _) => reason.describe().to_owned(),
            (_, None, None) => String::new(),
        }
    }
}

/// A connection between ends of the state, over a protocol that policies can name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    pub(crate) from: End,
    pub(crate) to: End,
    pub(crate) port: PortProtocol,
}

/// What a flow is in the state.
pub(crate) enum Resolved {
    /// A connection to an end of the state.
    Direct(Connection),
    /// One to a Service, which may be given any of its backends.
    Translated(Connection, Box<Translation>),
    /// It cannot be told, and why.
    Unknown(String),
}

/// Asks about flows.
pub(crate) struct Judge<'a> {
    pipeline: &'a Pipeline,
    fabric: Fabric,
    services: Services,
    /// Blocks of pods: an address of them that no pod has was a pod's.
    blocks: Vec<(IpNet, String)>,
    ends: HashMap<IpAddr, Result<End, String>>,
}

impl<'a> Judge<'a> {
    /// The judge of a state that was compiled for the whole cluster, with its Services.
    ///
    /// # Errors
    /// As for [`Fabric::new`].
    pub(crate) fn new(pipeline: &'a Pipeline, services: Vec<Object>, settings: Settings) -> anyhow::Result<Self> {
        let of_nodes =
            pipeline.cache().nodes().values().flat_map(|node| {
                node.pod_cidrs.iter().map(|&block| (block, format!("the pods of node {}", node.name)))
            });
        let of_cluster = settings.cluster_cidrs.iter().map(|&block| (block, "the cluster's pods".to_owned()));
        let blocks = of_nodes.chain(of_cluster).collect();
        let services = Services::new(pipeline, services, settings);
        Ok(Self { pipeline, fabric: Fabric::new(pipeline)?, services, blocks, ends: HashMap::new() })
    }

    /// Whom the source means.
    fn end(&mut self, seen: &SeenEnd, like: Option<IpAddr>) -> Result<End, String> {
        if let Some(name) = &seen.pod {
            let cache = self.pipeline.cache();
            let pod = cache.pod_key(name).and_then(|key| cache.pod(key)).filter(|pod| !pod.finished);
            let pod = pod.ok_or_else(|| format!("pod {name} is not in the state"))?;
            let wanted = seen.address.or(like);
            let of_family = |end: &End| wanted.is_none_or(|wanted| wanted.is_ipv4() == end.address().is_ipv4());
            let exact = End::of_pod(pod).find(|end| Some(end.address()) == seen.address);
            let end = exact.or_else(|| End::of_pod(pod).find(of_family));
            return end.ok_or_else(|| format!("pod {name} has no address in the state"));
        }
        let Some(address) = seen.address else { return Err("neither address nor pod of an end is said".to_owned()) };
        if let Some(known) = self.ends.get(&address) {
            return known.clone();
        }
        let end = match End::at(self.pipeline, address) {
            End::External(_) => match self.blocks.iter().find(|(block, _)| block.contains(&address)) {
                Some((_, whose)) => Err(format!("{address} is an address of {whose}, and no pod of the state has it")),
                None => Ok(End::External(address)),
            },
            known => Ok(known),
        };
        self.ends.insert(address, end.clone());
        end
    }

    /// What the flow is in the state.
    ///
    /// # Errors
    /// Faults of the program alone.
    pub(crate) fn resolve(&mut self, conversation: &Conversation) -> anyhow::Result<Resolved> {
        if let Some(missing) = conversation.missing {
            return Ok(Resolved::Unknown(missing.to_string()));
        }
        let Some((transport, port)) = conversation.transport().zip(conversation.port) else {
            let why = format!("{}: no rule of a NetworkPolicy can name it", conversation.service_name());
            return Ok(Resolved::Unknown(why));
        };
        let ends = self.end(&conversation.from, conversation.to.address).and_then(|from| {
            let to = self.end(&conversation.to, Some(from.address()))?;
            Ok((from, to))
        });
        let (from, to) = match ends {
            Ok(ends) => ends,
            Err(why) => return Ok(Resolved::Unknown(why)),
        };
        if from.address().is_ipv4() != to.address().is_ipv4() {
            return Ok(Resolved::Unknown(format!("{from} and {to} have no address of one family")));
        }
        let connection = Connection { from, to, port: PortProtocol { port, transport } };
        if matches!(connection.to, End::External(_) | End::Node { .. }) {
            let asked = Destination { address: connection.to.address(), port: Some((transport, port)) };
            if self.services.is_virtual(self.pipeline, asked)? {
                return self.through_service(connection, asked);
            }
        }
        if connection.from.node().is_none() && connection.to.node().is_none() {
            return Ok(Resolved::Unknown("both ends are outside the cluster".to_owned()));
        }
        Ok(Resolved::Direct(connection))
    }

    fn through_service(&mut self, connection: Connection, asked: Destination) -> anyhow::Result<Resolved> {
        let Some(at) = self.services.entry(self.pipeline, &connection.from, asked.address, None)? else {
            let why =
                format!("{asked} is an address of a Service, and it is not said at which node the client came in");
            return Ok(Resolved::Unknown(why));
        };
        let translated = self.services.translate(self.pipeline, &connection.from, asked, &at)?;
        Ok(match translated {
            Some(translation) => Resolved::Translated(connection, Box::new(translation)),
            None => Resolved::Direct(connection),
        })
    }

    /// What becomes of the flow.
    ///
    /// # Errors
    /// Faults of the program alone.
    pub(crate) fn judge(&mut self, conversation: &Conversation) -> anyhow::Result<FlowVerdict> {
        match self.resolve(conversation)? {
            Resolved::Unknown(why) => Ok(FlowVerdict::unknown(why)),
            Resolved::Direct(connection) => Ok(self.direct(&connection)),
            Resolved::Translated(connection, translation) => self.translated(&connection, &translation),
        }
    }

    /// What becomes of a connection that keeps its destination.
    pub(crate) fn direct(&mut self, Connection { from, to, port }: &Connection) -> FlowVerdict {
        let verdict = match self.fabric.walk(from, to, *port) {
            Ok(hops) => self.of_hops(&hops),
            Err(error) => FlowVerdict::unknown(error.to_string()),
        };
        FlowVerdict { from: Some(from.to_string()), to: Some(to.to_string()), ..verdict }
    }

    fn of_hops(&self, hops: &[Hop]) -> FlowVerdict {
        let is_allowed = hops.last().is_some_and(|hop| hop.reply && arrived(hop));
        let dropped = hops.iter().find_map(|hop| Some((hop, hop.outcome.verdict.drop_reason()?)));
        // Of those that let it pass the last one is told: the one at the destination.
        let deciding = match dropped {
            Some((hop, _)) => Some(hop),
            None => hops.iter().rfind(|hop| !hop.reply),
        };
        FlowVerdict {
            fate: if is_allowed { Fate::Allow } else { Fate::Deny },
            reason: dropped.map(|(_, reason)| reason),
            origin: deciding.and_then(|hop| run::origin(self.pipeline, hop.outcome.decision)),
            audited_by: hops.iter().find_map(|hop| run::origin(self.pipeline, hop.outcome.audited)),
            service: None,
            from: None,
            to: None,
        }
    }

    /// What becomes of a connection to a Service. A log that does not say which backend it was given leaves it open where policy
    /// does not treat all alike.
    fn translated(&mut self, connection: &Connection, translation: &Translation) -> anyhow::Result<FlowVerdict> {
        let service = translation.told.service.clone();
        let name = service.clone().unwrap_or_else(|| connection.to.to_string());
        if let Some(refusal) = translation.refusal {
            let why = format!("Service {name} refuses it in this state: {}", refusal.replace('_', " "));
            return Ok(FlowVerdict { service, ..FlowVerdict::unknown(why) });
        }
        let mut verdicts = Vec::with_capacity(translation.routes.len());
        for route in &translation.routes {
            let allowed = route.is_allowed(&mut self.fabric)?;
            let mut verdict = self.direct(&Connection {
                to: route.to.clone(),
                port: PortProtocol { port: route.backend.port(), ..connection.port },
                ..connection.clone()
            });
            verdict.fate = if allowed { Fate::Allow } else { Fate::Deny };
            verdicts.push(verdict);
        }
        let denied = verdicts.iter().filter(|verdict| verdict.fate == Fate::Deny).count();
        if denied > 0 && denied < verdicts.len() {
            let why = format!(
                "policy lets it go to {} of the {} endpoints of Service {name}, and it is not said which it was given",
                verdicts.len() - denied,
                verdicts.len()
            );
            return Ok(FlowVerdict { service, ..FlowVerdict::unknown(why) });
        }
        let verdict = verdicts.pop().unwrap_or_else(|| FlowVerdict::unknown(format!("Service {name} has no endpoint")));
        Ok(FlowVerdict { service, ..verdict })
    }
}
