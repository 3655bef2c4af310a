//! Contiv's rules of a node: each pod's rules, and the tables that Contiv's cache builds from them.

use std::io::Write;

use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::renderer::contiv::renderer::{ContivRenderer, PublishedTuples};
use bulkhead_control::renderer::contiv::tuple::SixTuple;
use bulkhead_control::renderer::contiv::{AttributedTuple, Orientation};
use serde_json::{Value, json};

use super::{attributions, named, write_json};
use crate::args::{Compile, Format};
use crate::output::printable;

/// Writes the pods' rules and the tables in egress orientation, as ACLs use them.
pub(super) fn write(pipeline: &mut Pipeline, args: &Compile, out: &mut impl Write) -> anyhow::Result<()> {
    let renderer = ContivRenderer::new(args.node.as_str().into(), Orientation::Egress, PublishedTuples::default());
    let handle = pipeline.register(renderer);
    pipeline.render_all()?;
    let renderer = pipeline.renderer(handle);
    match args.output {
        Format::Text => text(pipeline, renderer, &args.node, out),
        Format::Json => write_json(&document(pipeline, renderer, &args.node), out),
    }
}

fn text(pipeline: &Pipeline, renderer: &ContivRenderer, node: &str, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "node {}, tables judge what leaves the vswitch (egress orientation)", printable(node))?;
    for pod in renderer.pod_rules() {
        let addresses = joined(&pod.addresses);
        writeln!(out, "\npod {} ({addresses})", printable(&pod.pod.to_string()))?;
        for (direction, rules) in [("ingress", &pod.ingress), ("egress", &pod.egress)] {
            writeln!(
                out,
                "  {direction}: {}",
                counted(rules, "the first that matches decides", "everything is allowed")
            )?;
            write_rules(pipeline, rules, out)?;
        }
    }
    for table in renderer.local_tables() {
        let pods = printable(&joined(&table.pods));
        let what = counted(&table.rules, "the first that matches decides", "it is not applied");
        writeln!(out, "\nlocal table {} of {pods}: {what}", table.id)?;
        write_rules(pipeline, &table.rules, out)?;
    }
    let global = renderer.global_table();
    writeln!(out, "\nglobal table: {}", counted(&global, "the first that matches decides", "it is not applied"))?;
    write_rules(pipeline, &global, out)
}

fn joined(names: impl IntoIterator<Item = impl ToString>) -> String {
    names.into_iter().map(|name| name.to_string()).collect::<Vec<_>>().join(", ")
}

/// Returns the number of rules as text, with `some` as its meaning, or `none` if the list is empty.
fn counted(rules: &[AttributedTuple], some: &str, none: &str) -> String {
    match rules.len() {
        0 => format!("no rules, {none}"),
        1 => format!("1 rule, {some}"),
        more => format!("{more} rules, {some}"),
    }
}

fn write_rules(pipeline: &Pipeline, rules: &[AttributedTuple], out: &mut impl Write) -> anyhow::Result<()> {
    for (at, AttributedTuple { tuple, origins }) in rules.iter().enumerate() {
        match &*named(pipeline, origins) {
            "" => writeln!(out, "  {at:>3} {tuple}")?,
            origins => writeln!(out, "  {at:>3} {tuple}  # {origins}")?,
        }
    }
    Ok(())
}

fn document(pipeline: &Pipeline, renderer: &ContivRenderer, node: &str) -> Value {
    let rules = |rules: &[AttributedTuple]| rules.iter().map(|rule| rule_value(pipeline, rule)).collect::<Vec<_>>();
    let pods = renderer.pod_rules().into_iter().map(|pod| {
        json!({
            "pod": pod.pod.to_string(), "addresses": pod.addresses,
            "ingress": rules(&pod.ingress), "egress": rules(&pod.egress),
        })
    });
    let locals = renderer.local_tables().into_iter().map(|table| {
        let pods: Vec<String> = table.pods.iter().map(ToString::to_string).collect();
        json!({ "table": table.id.to_string(), "pods": pods, "rules": rules(&table.rules) })
    });
    json!({
        "node": node,
        "renderer": "contiv",
        "orientation": "egress",
        "pods": pods.collect::<Vec<_>>(),
        "local_tables": locals.collect::<Vec<_>>(),
        "global_table": rules(&renderer.global_table()),
    })
}

fn rule_value(pipeline: &Pipeline, rule: &AttributedTuple) -> Value {
    let SixTuple { src, dst, service, action } = &rule.tuple;
    let ports = service.map(|service| [service.ports.first, service.ports.last]);
    let protocols = service.map(|service| [service.protocols.0, service.protocols.1]);
    json!({
        "action": action.to_string(),
        "src": src.map(|net| net.to_string()),
        "dst": dst.map(|net| net.to_string()),
        "protocols": protocols,
        "ports": ports,
        "text": rule.tuple.to_string(),
        "origins": attributions(pipeline, &rule.origins),
    })
}
