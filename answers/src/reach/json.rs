//! The verdicts on all pairs of ends as JSON.

use std::io::{self, Write};

use super::ends::{NamedEnd, askable, family};
use super::kinds::Kinds;
use crate::args::PortProtocol;
use crate::fabric::Reached;

/// Writes one line per port and pair of ends. Streams the lines: those of a large cluster do not fit in memory.
pub(super) fn write(
    ends: &[NamedEnd],
    kinds: &Kinds<'_>,
    ports: &[PortProtocol],
    out: &mut impl Write,
) -> anyhow::Result<()> {
    // A name is part of as many lines as there are ends.
    let names: Vec<String> = ends.iter().map(|end| serde_json::to_string(&end.name)).collect::<Result<_, _>>()?;
    write!(out, "{{\"probes\":[")?;
    let mut first = true;
    for &port in ports {
        let table = kinds.table(port);
        let is_asked = |from: &NamedEnd, to: &NamedEnd| port.is_of_family(from.is_ipv4()) && askable(from, to);
        for (at, from) in ends.iter().enumerate() {
            for (other, to) in ends.iter().enumerate().filter(|(_, to)| is_asked(from, to)) {
                let reached = table.answer(kinds.of_end(at), kinds.of_end(other)).between(from, to);
                out.write_all(if first { b"\n" } else { b",\n" })?;
                first = false;
                line((&names[at], &names[other]), family(to.end.address()), port, reached, out)?;
            }
        }
    }
    writeln!(out, "\n]}}")?;
    Ok(())
}

/// Writes an object. `from` and `to` are JSON strings.
fn line(
    (from, to): (&str, &str),
    family: &str,
    port: PortProtocol,
    reached: Reached,
    out: &mut impl Write,
) -> io::Result<()> {
    let verdict = reached.verdict();
    // Whether the connection is allowed only because a policy is audited.
    let audited = if reached == Reached::Audited { ",\"audited\":true" } else { "" };
    write!(
        out,
        "{{\"from\":{from},\"to\":{to},\"family\":\"{family}\",\"protocol\":\"{}\",\"port\":{},\"verdict\":\"{verdict}\"{audited}}}",
        port.protocol, port.port
    )
}
