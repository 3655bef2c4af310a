//! The merged connectivity matrix as a graph, for Graphviz and Mermaid.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;

use anyhow::bail;

use super::merged::Merged;
use crate::output::printable;

/// Maximum number of nodes: larger graphs are unreadable.
const MAX_NODES: usize = 50;

/// Maximum number of edges that Mermaid draws (`maxEdges`; pages such as GitHub's cannot change it). Source: mermaid, "Mermaid Config
/// Schema".
const MAX_MERMAID_EDGES: usize = 500;

/// Maximum text size that Mermaid accepts (`maxTextSize`), in characters. Same source.
const MAX_MERMAID_TEXT: usize = 50_000;

const HELP: &str = "help: narrow it with --focus NAMESPACE or --focus NAMESPACE/NAME, or use -o md or csv";

/// An edge of the graph: two ends and the ports that are allowed between them.
struct Edge {
    from: usize,
    to: usize,
    services: String,
    /// Whether the reverse direction has the same ports.
    both: bool,
}

struct Graph<'a> {
    merged: &'a Merged,
    /// Indexes of ends by namespace. Ends without a namespace come first.
    namespaces: BTreeMap<Option<&'a str>, Vec<usize>>,
    edges: Vec<Edge>,
}

impl<'a> Graph<'a> {
    fn of(merged: &'a Merged) -> anyhow::Result<Self> {
        let nodes = merged.ends.len();
        if nodes > MAX_NODES {
            bail!("the graph has {nodes} nodes, more than the readable maximum of {MAX_NODES}\n  {HELP}");
        }
        let mut namespaces: BTreeMap<Option<&str>, Vec<usize>> = BTreeMap::new();
        for (at, end) in merged.ends.iter().enumerate() {
            namespaces.entry(end.namespace.as_deref()).or_default().push(at);
        }
        let mut edges = Vec::new();
        for from in 0..nodes {
            for to in from..nodes {
                let (there, back) = (merged.services(from, to), merged.services(to, from));
                let both = from != to && there == back;
                if !there.is_empty() {
                    edges.push(Edge { from, to, services: there, both });
                }
                if from != to && !both && !back.is_empty() {
                    edges.push(Edge { from: to, to: from, services: back, both: false });
                }
            }
        }
        Ok(Self { merged, namespaces, edges })
    }

    /// Returns the lines of a graph node's label: the end's name, and the number of pods if it has several.
    fn text(&self, at: usize) -> Vec<String> {
        let end = &self.merged.ends[at];
        let lines = [Some(end.name.clone()), end.count()];
        lines.into_iter().flatten().map(|line| printable(&line)).collect()
    }
}

/// Writes Graphviz `dot`.
pub(super) fn dot(merged: &Merged, out: &mut impl Write) -> anyhow::Result<()> {
    let graph = Graph::of(merged)?;
    writeln!(out, "digraph reach {{")?;
    writeln!(out, "  rankdir=LR;\n  label=\"who reaches whom at {}\";", quoted(&merged.ports().join(", ")))?;
    writeln!(out, "  node [shape=box];")?;
    for (number, (namespace, ends)) in graph.namespaces.iter().enumerate() {
        let (indent, shape) = if namespace.is_some() { ("    ", "") } else { ("  ", ", shape=ellipse") };
        if let Some(namespace) = namespace {
            writeln!(out, "  subgraph cluster_{number} {{\n    label=\"{}\";", quoted(&printable(namespace)))?;
        }
        for &at in ends {
            let lines: Vec<String> = graph.text(at).iter().map(|line| quoted(line)).collect();
            writeln!(out, "{indent}n{at} [label=\"{}\"{shape}];", lines.join("\\n"))?;
        }
        if namespace.is_some() {
            writeln!(out, "  }}")?;
        }
    }
    for Edge { from, to, services, both } in &graph.edges {
        let dir = if *both { ", dir=both" } else { "" };
        writeln!(out, "  n{from} -> n{to} [label=\"{}\"{dir}];", quoted(services))?;
    }
    writeln!(out, "}}")?;
    Ok(())
}

/// Escapes a Graphviz label, where a backslash starts an escape and an ampersand an entity.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('&', "&amp;")
}

/// Writes a Mermaid flowchart, without the Markdown fence around it.
pub(super) fn mermaid(merged: &Merged, out: &mut impl Write) -> anyhow::Result<()> {
    let graph = Graph::of(merged)?;
    let mut text = String::new();
    write_mermaid(&graph, &mut text)?;
    let edges = graph.edges.len();
    if edges > MAX_MERMAID_EDGES {
        bail!("the graph has {edges} edges, and Mermaid draws at most {MAX_MERMAID_EDGES}\n  {HELP}");
    }
    if text.len() > MAX_MERMAID_TEXT {
        bail!("the graph has {} characters, and Mermaid reads at most {MAX_MERMAID_TEXT}\n  {HELP}", text.len());
    }
    out.write_all(text.as_bytes())?;
    Ok(())
}

fn write_mermaid(graph: &Graph<'_>, out: &mut String) -> std::fmt::Result {
    writeln!(out, "flowchart LR")?;
    for (number, (namespace, ends)) in graph.namespaces.iter().enumerate() {
        let (indent, [open, close]) = if namespace.is_some() { ("    ", ["[", "]"]) } else { ("  ", ["([", "])"]) };
        if let Some(namespace) = namespace {
            writeln!(out, "  subgraph g{number}[\"{}\"]", entities(&printable(namespace)))?;
        }
        for &at in ends {
            let lines: Vec<String> = graph.text(at).iter().map(|line| entities(line)).collect();
            writeln!(out, "{indent}n{at}{open}\"{}\"{close}", lines.join("<br/>"))?;
        }
        if namespace.is_some() {
            writeln!(out, "  end")?;
        }
    }
    for Edge { from, to, services, both } in &graph.edges {
        let arrow = if *both { "<-->" } else { "-->" };
        writeln!(out, "  n{from} {arrow}|\"{}\"| n{to}", entities(services))?;
    }
    Ok(())
}

/// Escapes Mermaid syntax, HTML and Markdown as Mermaid entities: `#`, a name or number, `;`.
fn entities(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '#' | '&' | '<' | '>' | '`' | '\\' | '*' | '_' | ';' => {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "#{};", u32::from(c));
            }
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests may panic and print")]

    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_mermaid_reads_otherwise_is_an_entity() {
        assert_eq!(entities("a\"b#c<br>`d`;"), "a#34;b#35;c#60;br#62;#96;d#96;#59;");
        assert_eq!(entities("web-1 (2 of 3 pods: a, b)"), "web-1 (2 of 3 pods: a, b)");
    }

    /// Whether Graphviz accepts a text. `None` if Graphviz is not installed.
    fn is_taken(text: &str) -> Option<bool> {
        let started = Command::new("dot").arg("-Tplain").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut child) = started else {
            println!("skipped: graphviz is not installed");
            return None;
        };
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        Some(child.wait_with_output().unwrap().status.success())
    }

    #[test]
    fn graphviz_takes_whatever_names_there_are() {
        let mut text = Vec::new();
        dot(&Merged::of_names(&["a\"b", "c\\", "</b> &amp; \n}", "n0 -> n1; subgraph", ""]), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(r#"label="a\"b""#) && text.contains(r#"label="c\\""#), "{text}");
        assert_ne!(is_taken(&text), Some(false), "{text}");
        assert_ne!(is_taken("digraph { \"a\" [label=\"\\\"] }"), Some(true), "the check can fail");
    }
}
