//! A connection to a Service as it is told: what its node makes of it, and the walk to each backend.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bulkhead_control::pipeline::Pipeline;
use serde::Serialize;

use super::{Asker, Walk, end_text};
use crate::fabric::End;
use crate::output::{Columns, printable};
use crate::translate::{Extent, Route, Source, Translation};

/// A connection to a Service.
#[derive(Serialize)]
pub(super) struct Translated {
    from: String,
    from_address: IpAddr,
    /// `10.96.0.20:80/TCP`.
    to: String,
    /// The node that translates it.
    node: Arc<str>,
    service: Option<String>,
    /// `allow` where policy lets it go to each backend, `some`, or `deny`.
    verdict: &'static str,
    /// `dnat`, `reject`, `drop`.
    action: &'static str,
    /// Why the Service refuses it.
    refused: Option<&'static str>,
    why: String,
    remarks: Vec<String>,
    /// The way to the node that translates it, where that is not the client's own.
    before: Option<Walk>,
    backends: Vec<Backend>,
    unused: Vec<Unused>,
}

/// A backend that the connection may be given.
#[derive(Serialize)]
struct Backend {
    address: SocketAddr,
    node: Option<Arc<str>>,
    /// The pod, node or address that it is.
    to: String,
    /// `kept` or `rewritten`.
    source: &'static str,
    verdict: &'static str,
    /// What is special about it.
    note: Option<String>,
    /// The walks that its verdict rests on.
    walks: Vec<Walk>,
}

/// An endpoint that it is not given.
#[derive(Serialize)]
struct Unused {
    what: String,
    why: String,
}

impl Translated {
    pub(super) fn new(asker: &mut Asker<'_>, from: &End, translation: Translation) -> anyhow::Result<Self> {
        let Translation { vip, node, told, refusal, before, routes } = translation;
        let before = before.map(|leg| asker.walk(leg)).transpose()?;
        let comes = before.as_ref().is_none_or(Walk::is_allowed);
        let mut backends = Vec::with_capacity(routes.len());
        for route in routes {
            let note = note(from, &node, &route);
            let mut walks = Vec::with_capacity(route.legs.len());
            for leg in route.legs {
                walks.push(asker.walk(leg)?);
            }
            let is_allowed = comes && route.source != Source::Missing && walks.iter().all(Walk::is_allowed);
            backends.push(Backend {
                address: route.backend,
                node: route.node,
                to: route.to.to_string(),
                source: if route.source == Source::Kept { "kept" } else { "rewritten" },
                verdict: if is_allowed { "allow" } else { "deny" },
                note,
                walks,
            });
        }
        let unused = told.unused.into_iter().map(|unused| Unused { what: unused.what, why: unused.why });
        Ok(Self {
            from: from.to_string(),
            from_address: from.address(),
            to: vip.to_string(),
            node,
            service: told.service,
            verdict: Extent::of(backends.iter().map(|backend| backend.verdict == "allow")).name(),
            action: told.action,
            refused: refusal,
            why: told.why,
            remarks: told.remarks,
            before,
            backends,
            unused: unused.collect(),
        })
    }

    /// Whether policy lets it go to every backend that it may be given.
    pub(super) fn is_allowed(&self) -> bool {
        self.verdict == Extent::All.name()
    }

    /// For people: the verdict, the decision, the backends, and then every walk.
    pub(super) fn write(&self, pipeline: &Pipeline, out: &mut impl Write) -> io::Result<()> {
        let from = end_text(&self.from, self.from_address);
        let service = self.service.as_ref().map_or(String::new(), |service| format!(" of Service {service}"));
        let at = if self.node.is_empty() { "no node".to_owned() } else { format!("node {}", self.node) };
        writeln!(out, "{from} -> {}{}: {}", self.to, printable(&service), self.headline())?;
        writeln!(out, "{} at {}: {}", self.action.to_uppercase(), printable(&at), printable(&self.why))?;
        for remark in &self.remarks {
            writeln!(out, "{}", printable(remark))?;
        }
        if !self.backends.is_empty() {
            writeln!(out)?;
            let mut table = Columns::new(&["BACKEND", "IS", "NODE", "SOURCE", "POLICY"]);
            for Backend { address, node, to, source, verdict, .. } in &self.backends {
                let node = node.as_deref().unwrap_or("-").to_owned();
                table.row([address.to_string(), to.clone(), node, (*source).to_owned(), (*verdict).to_owned()]);
            }
            table.write(out)?;
        }
        if !self.unused.is_empty() {
            writeln!(out)?;
            let mut table = Columns::new(&["NOT USED", "WHY"]);
            for Unused { what, why } in &self.unused {
                table.row([what.clone(), why.clone()]);
            }
            table.write(out)?;
        }
        if let Some(walk) = &self.before {
            writeln!(out, "\nOn the way to node {}, which translates it:", printable(&self.node))?;
            walk.write(pipeline, out)?;
        }
        for backend in &self.backends {
            writeln!(out, "\nBackend {}: {}", backend.address, backend.verdict.to_uppercase())?;
            if let Some(note) = &backend.note {
                writeln!(out, "{}", printable(note))?;
            }
            backend.walks.iter().try_for_each(|walk| walk.write(pipeline, out))?;
        }
        Ok(())
    }

    /// The verdict in a few words.
    fn headline(&self) -> String {
        let allowed = self.backends.iter().filter(|backend| backend.verdict == "allow").count();
        match (self.refused, self.backends.len()) {
            (Some(refused), _) => format!("DENY, by the Service: {}", refused.replace('_', " ")),
            (None, all) => format!("{}, {allowed} of {all} backends", self.verdict.to_uppercase()),
        }
    }
}

/// What a reader of the walks has to know of the client's address.
fn note(from: &End, near: &str, route: &Route) -> Option<String> {
    let by_policy = match route.source {
        Source::Kept => None,
        Source::Hairpin => Some(
            "hairpin: the client is given itself. Its address is rewritten, so that the answer comes back through the vswitch; policy is \
             asked about the client's own"
                .to_owned(),
        ),
        Source::RewrittenAfterPolicy => {
            Some("the client's address is rewritten behind the tables: policy is asked about the client's own".to_owned())
        }
        Source::Becomes(address) if from.node().is_none() => Some(format!(
            "outside client, remote backend: the far node judges the source address of this node ({address} of node {near}), an ipBlock on \
             clients needs externalTrafficPolicy: Local"
        )),
        Source::Becomes(address) => Some(format!(
            "the client's address becomes {address} of node {near}: the far node judges that one, and no selector of the client's \
             pod matches it"
        )),
        Source::Missing => Some(format!(
            "the client's address has to be rewritten, and node {near} has none to give: it drops the connection. Its podCIDRs tell one, \
             unless a pod or a node has that, or source_addresses in --settings"
        )),
    };
    let unjudged =
        route.legs.is_empty().then_some("no vswitch judges it: it stays on the node, or outside the cluster");
    by_policy.or_else(|| unjudged.map(str::to_owned))
}
