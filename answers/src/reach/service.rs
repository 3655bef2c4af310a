//! `bulkhead reach --to`: which clients reach a Service, from the Service's translation at the client's node and policy for each backend.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use bulkhead_control::object::ServiceName;
use bulkhead_control::pipeline::Pipeline;
use serde::Serialize;

use super::ends::{NamedEnd, ends, family};
use crate::args::{Destination, EndName, Reach, ReachFormat, Target};
use crate::fabric::{End, Fabric, Reached};
use crate::output::{self, Columns};
use crate::run::{self, Input};
use crate::translate::{Extent, Route, Services, Source, Translation};

/// Maximum number of backends named in one line.
const MAX_NAMED: usize = 4;

/// Verdict on one client and Service address.
#[derive(Serialize)]
struct Line<'a> {
    from: &'a str,
    /// Node that translates the connection.
    node: Arc<str>,
    to: String,
    /// Address of the Service that the client uses.
    address: std::net::IpAddr,
    family: &'static str,
    protocol: &'static str,
    port: u16,
    verdict: &'static str,
    /// Reason why the Service refuses the connection. `None` if it does not.
    refused: Option<&'static str>,
    backends: Vec<Backend>,
}

/// A possible backend of the client.
#[derive(Serialize)]
struct Backend {
    address: SocketAddr,
    to: String,
    /// Whether the client's address is `kept` or `rewritten` on the way to the backend.
    source: &'static str,
    verdict: &'static str,
    /// Whether the backend is allowed only because a policy is audited.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    audited: bool,
    #[serde(skip)]
    is_judged_by_node: bool,
}

/// The destination in question: a port of a Service, or an address.
enum Question {
    Port(ServiceName, bulkhead_control::object::ServicePort),
    Address(Destination),
}

pub(super) fn run(args: &Reach, out: &mut impl Write) -> anyhow::Result<()> {
    let input = Input::open(&args.state)?;
    let settings = input.service_settings(args.settings.as_deref())?;
    let (pipeline, objects) = run::load_with_services(&input, Some(&args.planned), true)?;
    run::unknown_names(&pipeline).iter().for_each(output::warn);
    let mut services = Services::new(&pipeline, objects, settings);
    let questions = questions(&services, args)?;
    if questions.iter().all(|question| matches!(question, Question::Port(..))) {
        let named = questions.iter().filter_map(|question| match question {
            Question::Port(name, _) => Some(name.clone()),
            Question::Address(_) => None,
        });
        services.narrow(&named.collect::<BTreeSet<_>>());
    }
    for question in &questions {
        if let Question::Address(to) = question
            && !services.is_virtual(&pipeline, *to)?
        {
            bail!("no Service has {to}\n  help: write service/NAMESPACE/NAME, or omit --to to list all pods");
        }
    }
    let sources = ends(&pipeline, &args.external)?;
    let fabric = Fabric::new(&pipeline, args.state.strictness());
    let mut asker = Asker { pipeline: &pipeline, services, fabric };
    match args.output {
        ReachFormat::Json => json(&mut asker, &questions, &sources, out),
        _ => text(&mut asker, &questions, &sources, out),
    }
}

fn questions(services: &Services, args: &Reach) -> anyhow::Result<Vec<Question>> {
    let ports = super::distinct(&args.ports);
    let mut questions = Vec::new();
    for target in &args.to {
        match target {
            Target::Service(target) => {
                let its = services.ports(target, &ports)?;
                questions.extend(its.into_iter().map(|port| Question::Port(target.name.clone(), port)));
            }
            Target::End(EndName::Address(address)) if ports.is_empty() => {
                bail!("--to {address} needs a port\n  help: write for example --port 80/TCP")
            }
            Target::End(EndName::Address(address)) => {
                for port in &ports {
                    let Some(transport) = port.protocol.transport() else {
                        bail!(
                            "--to {address} is asked at ports of TCP, UDP and SCTP, not at {port}\n  help: leave --to out"
                        )
                    };
                    questions
                        .push(Question::Address(Destination { address: *address, port: Some((transport, port.port)) }));
                }
            }
            Target::End(end) => bail!(
                "--to {end} is no Service\n  help: leave --to out for the truth table of all pods, or write service/NAMESPACE/NAME"
            ),
        }
    }
    Ok(questions)
}

struct Asker<'a> {
    pipeline: &'a Pipeline,
    services: Services,
    fabric: Fabric<'a>,
}

impl Asker<'_> {
    /// Returns one line per Service address of the client; for an external client, one per node.
    fn lines<'s>(&mut self, question: &Question, source: &'s NamedEnd) -> anyhow::Result<Vec<Line<'s>>> {
        let from = &source.end;
        let is_ipv4 = from.address().is_ipv4();
        let mut lines = Vec::new();
        for node in self.entries(question, from)? {
            let addresses = match question {
                Question::Port(name, port) => {
                    self.services.addresses(name, port, &node, (is_ipv4, from.node().is_none()))?
                }
                Question::Address(to) if to.address.is_ipv4() == is_ipv4 => vec![*to],
                Question::Address(_) => Vec::new(),
            };
            for to in addresses {
                let translation = self.services.translate(self.pipeline, from, to, &node)?;
                let translation = translation.with_context(|| format!("node {node} does not translate {to}"))?;
                let line = self.line(source, translation)?;
                if let Question::Port(name, _) = question
                    && line.to != name.to_string()
                {
                    bail!(
                        "Service {name} claims {to} in vain, {} has it\n  help: give one of them another address",
                        line.to
                    );
                }
                lines.push(line);
            }
        }
        Ok(lines)
    }

    /// Returns the nodes where the client's connections arrive.
    fn entries(&self, question: &Question, from: &End) -> anyhow::Result<Vec<Arc<str>>> {
        let address = match question {
            Question::Port(..) => from.address(),
            Question::Address(to) => to.address,
        };
        Ok(match self.services.entry(self.pipeline, from, address, None)? {
            Some(node) => vec![node],
            None => self.pipeline.cache().nodes().keys().cloned().collect(),
        })
    }

    fn line<'s>(&mut self, source: &'s NamedEnd, translation: Translation) -> anyhow::Result<Line<'s>> {
        let Translation { vip, node, told, refusal, before, routes } = translation;
        let comes = before.map_or(Ok(Reached::Yes), |leg| leg.reached(&mut self.fabric))?;
        let mut backends = Vec::with_capacity(routes.len());
        for route in &routes {
            let reached = comes.min(route.reached(&mut self.fabric)?);
            backends.push(Backend::new(route, reached));
        }
        let (protocol, port) = vip.port.map_or(("ICMP", 0), |(transport, port)| (transport.name(), port));
        Ok(Line {
            from: &source.name,
            node,
            to: told.owner.unwrap_or_default(),
            address: vip.address,
            family: family(vip.address),
            protocol,
            port,
            verdict: Extent::of(backends.iter().map(|backend| backend.verdict == "allow")).name(),
            refused: refusal,
            backends,
        })
    }
}

impl Backend {
    fn new(route: &Route, reached: Reached) -> Self {
        Self {
            address: route.backend,
            to: route.to.to_string(),
            source: if route.source == Source::Kept { "kept" } else { "rewritten" },
            verdict: reached.verdict(),
            audited: reached == Reached::Audited,
            is_judged_by_node: matches!(route.source, Source::Becomes(_)),
        }
    }

    fn text(&self) -> String {
        format!("{} ({})", self.to, self.address)
    }
}

fn json(
    asker: &mut Asker<'_>,
    questions: &[Question],
    sources: &[NamedEnd],
    out: &mut impl Write,
) -> anyhow::Result<()> {
    // Stream the lines, like the matrix of pods.
    write!(out, "{{\"services\":[")?;
    let mut first = true;
    for question in questions {
        for source in sources {
            for line in asker.lines(question, source)? {
                writeln!(out, "{}", if first { "" } else { "," })?;
                serde_json::to_writer(&mut *out, &line)?;
                first = false;
            }
        }
    }
    writeln!(out, "\n]}}")?;
    Ok(())
}

fn text(
    asker: &mut Asker<'_>,
    questions: &[Question],
    sources: &[NamedEnd],
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mut is_judged_by_node = false;
    for (at, question) in questions.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        match question {
            Question::Port(name, port) => writeln!(out, "Service {name}, port {}", crate::translate::port_text(port))?,
            Question::Address(to) => writeln!(out, "{to}")?,
        }
        let mut table = Columns::new(&["FROM", "AT NODE", "TO", "POLICY", "BACKENDS"]);
        for source in sources {
            for line in asker.lines(question, source)? {
                is_judged_by_node |= line.backends.iter().any(|backend| backend.is_judged_by_node);
                let node = if line.node.is_empty() { "-" } else { &line.node };
                let to = SocketAddr::new(line.address, line.port).to_string();
                let told = told(&line);
                table.row([line.from.to_owned(), node.to_owned(), to, line.verdict.to_owned(), told]);
            }
        }
        table.write(out)?;
    }
    if is_judged_by_node {
        writeln!(
            out,
            "\nbackends of other nodes that clients outside are given: their vswitches judge the address of the node in AT NODE; an ipBlock \
             on clients needs externalTrafficPolicy: Local"
        )?;
    }
    Ok(())
}

/// Names the reachable backends, or says why none is.
fn told(line: &Line<'_>) -> String {
    if let Some(refused) = line.refused {
        return format!("none: {}", refused.replace('_', " "));
    }
    let (yes, no): (Vec<&Backend>, Vec<&Backend>) =
        line.backends.iter().partition(|backend| backend.verdict == "allow");
    let names = |backends: &[&Backend]| {
        let names: Vec<String> = backends.iter().map(|backend| backend.text()).collect();
        output::some_of(&names.iter().map(String::as_str).collect::<Vec<_>>(), MAX_NAMED)
    };
    let count = format!("{} of {}", yes.len(), line.backends.len());
    let audited: Vec<&Backend> = yes.iter().copied().filter(|backend| backend.audited).collect();
    let beside =
        if audited.is_empty() { String::new() } else { format!("; audited, not enforced: {}", names(&audited)) };
    match (yes.is_empty(), no.is_empty()) {
        (false, false) => format!("{count}: {}; not {}{beside}", names(&yes), names(&no)),
        _ => format!("{count}{beside}"),
    }
}
