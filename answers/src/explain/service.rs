//! Explains a connection to a Service: its translation and the walk to each backend.

use std::borrow::Cow;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::end_text;
use crate::args::Destination;
use crate::fabric::End;
use crate::output::{Columns, printable};
use crate::translate::{Extent, Leg, Route, Source, Translation};

/// A judged leg of a connection.
pub trait Judged {
    /// Whether the whole leg is allowed.
    fn is_allowed(&self) -> bool;
}

/// A connection to a Service. `Walk` describes its legs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Translated<Walk> {
    from: String,
    from_address: IpAddr,
    /// Destination that the client uses: `10.96.0.20:80/TCP`.
    to: String,
    /// Node that translates the connection.
    node: Arc<str>,
    service: Option<String>,
    /// `allow` if policy allows all backends, `some`, `deny`, or `unknown` if no leg was judged here.
    verdict: Cow<'static, str>,
    /// What the node does with the first packet: `dnat`, `reject` or `drop`.
    action: Cow<'static, str>,
    /// Why the Service refuses the connection. `None` if it does not.
    refused: Option<Cow<'static, str>>,
    why: String,
    remarks: Vec<String>,
    /// The path to the translating node. `None` if that is the client's node.
    before: Option<Walk>,
    backends: Vec<Backend<Walk>>,
    unused: Vec<Unused>,
}

/// A possible backend.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Backend<Walk> {
    address: SocketAddr,
    node: Option<Arc<str>>,
    /// The pod or node, or the address.
    to: String,
    /// Whether the client's address is `kept` or `rewritten`.
    source: Cow<'static, str>,
    verdict: Cow<'static, str>,
    /// How the client's address is rewritten, and which address policy sees. `None` if the address is kept.
    note: Option<String>,
    /// The walks to this backend. Empty if no leg was judged here.
    walks: Vec<Walk>,
}

/// An endpoint that gets no connections.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Unused {
    what: String,
    why: String,
}

impl<Walk: Judged> Translated<Walk> {
    /// Returns the address of the client.
    pub const fn client(&self) -> IpAddr {
        self.from_address
    }

    /// Returns the Service's address and its backends, with ports.
    pub fn destinations(&self) -> impl Iterator<Item = (IpAddr, u16)> {
        let vip = self.to.parse().ok().and_then(|to: Destination| Some((to.address, to.port?.1)));
        vip.into_iter().chain(self.backends.iter().map(|backend| (backend.address.ip(), backend.address.port())))
    }

    /// Returns the reasons of the verdict in one line. `of_walk` returns the reason of a walk.
    pub fn because(&self, of_walk: impl Fn(&Walk) -> String) -> String {
        let backend = |backend: &Backend<Walk>| {
            let reasons: Vec<String> = backend.walks.iter().map(&of_walk).filter(|reason| !reason.is_empty()).collect();
            format!("{} {} {}", backend.to, backend.verdict, reasons.join(", "))
        };
        let refused = self.refused.as_ref().map(ToString::to_string);
        refused.into_iter().chain(self.backends.iter().map(backend)).collect::<Vec<_>>().join("; ")
    }

    /// Judges each leg. If `judge` returns `None`, the leg is not judged here; a backend without a judged leg is unknown.
    ///
    /// # Errors
    /// Errors of `judge`.
    pub fn new<E>(
        from: &End,
        translation: Translation,
        mut judge: impl FnMut(Leg) -> Result<Option<Walk>, E>,
    ) -> Result<Self, E> {
        let Translation { vip, node, told, refusal, before, routes } = translation;
        let before = before.map_or(Ok(None), &mut judge)?;
        let comes = before.as_ref().is_none_or(Judged::is_allowed);
        let mut backends = Vec::with_capacity(routes.len());
        for route in routes {
            let note = note(from, &node, &route);
            let mut walks = Vec::with_capacity(route.legs.len());
            let is_elsewhere = !route.legs.is_empty() && route.source != Source::Hairpin;
            for leg in route.legs {
                walks.extend(judge(leg)?);
            }
            let verdict = match comes && route.source != Source::Missing && walks.iter().all(Judged::is_allowed) {
                false => "deny",
                true if is_elsewhere && walks.is_empty() => "unknown",
                true => "allow",
            };
            backends.push(Backend {
                address: route.backend,
                node: route.node,
                to: route.to.to_string(),
                source: if route.source == Source::Kept { "kept" } else { "rewritten" }.into(),
                verdict: verdict.into(),
                note,
                walks,
            });
        }
        let is_unknown = !backends.is_empty() && backends.iter().all(|backend| backend.verdict == "unknown");
        let allowed = backends.iter().map(|backend| backend.verdict == "allow");
        let verdict = if is_unknown { "unknown" } else { Extent::of(allowed).name() };
        let unused = told.unused.into_iter().map(|unused| Unused { what: unused.what, why: unused.why });
        Ok(Self {
            from: from.to_string(),
            from_address: from.address(),
            to: vip.to_string(),
            node,
            service: told.service,
            verdict: verdict.into(),
            action: told.action.into(),
            refused: refusal.map(Into::into),
            why: told.why,
            remarks: told.remarks,
            before,
            backends,
            unused: unused.collect(),
        })
    }

    /// Whether policy allows all possible backends.
    pub fn is_allowed(&self) -> bool {
        self.verdict == Extent::All.name()
    }

    /// Writes the verdict, the translation and the backends, then each walk with `write_walk`.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn write<W: Write>(
        &self,
        out: &mut W,
        mut write_walk: impl FnMut(&Walk, &mut W) -> io::Result<()>,
    ) -> io::Result<()> {
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
                table.row([address.to_string(), to.clone(), node, source.to_string(), verdict.to_string()]);
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
            write_walk(walk, out)?;
        }
        for backend in &self.backends {
            writeln!(out, "\nBackend {}: {}", backend.address, backend.verdict.to_uppercase())?;
            if let Some(note) = &backend.note {
                writeln!(out, "{}", printable(note))?;
            }
            backend.walks.iter().try_for_each(|walk| write_walk(walk, out))?;
        }
        Ok(())
    }

    /// Returns the verdict in a few words.
    fn headline(&self) -> String {
        let allowed = self.backends.iter().filter(|backend| backend.verdict == "allow").count();
        match (&self.refused, self.backends.len()) {
            (Some(refused), _) => format!("DENY, by the Service: {}", refused.replace('_', " ")),
            (None, all) => format!("{}, {allowed} of {all} backends", self.verdict.to_uppercase()),
        }
    }
}

/// Returns how the client's address is rewritten, and which address policy sees. `None` if the address is kept.
fn note(from: &End, near: &str, route: &Route) -> Option<String> {
    let by_policy = match route.source {
        Source::Kept => None,
        Source::Hairpin => Some(
            "hairpin: the client is given itself. Its address is rewritten, so that the answer comes back through the vswitch. \
             ClusterNetworkPolicy judges the client's own address at both ends; NetworkPolicy does not apply"
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
