//! Security groups of the whole cluster, as bodies of Neutron's API.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::bail;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::renderer::neutron::plan::{self, Call, Listed, placeholder};
use bulkhead_control::renderer::neutron::{Desired, NeutronRenderer};
use serde_json::{Value, json};

use super::write_json;
use crate::args::{Compile, Format, State};
use crate::output::{self, Columns, printable};
use crate::run;

/// Returns the tag of a cluster's groups. No other tag of ours contains a colon, except that of a generation.
pub fn owner(cluster: &str) -> String {
    format!("bulkhead:{cluster}")
}

/// Returns the groups and ports that the server should have.
///
/// # Errors
/// If security groups cannot express a policy, unless `lenient`, which denies that traffic.
pub fn desired(pipeline: &mut Pipeline, lenient: bool) -> anyhow::Result<Desired> {
    let renderer = pipeline.register(NeutronRenderer::default());
    pipeline.render_all()?;
    let refusals = run::refusals(pipeline);
    if !lenient && !refusals.is_empty() {
        bail!(
            "{}\n  help: with --lenient, traffic of these pods that Neutron cannot express is denied",
            refusals.join("\n")
        );
    }
    refusals.iter().for_each(output::warn);
    let policies = pipeline.cache().policies();
    let identity = |name: &_| policies.get(name).and_then(|policy| policy.identity.clone());
    Ok(pipeline.renderer(renderer).desired(identity, pipeline.origins()))
}

/// Writes the groups or, with `--before`, the requests that lead from that state to this one.
pub(super) fn write(pipeline: &mut Pipeline, args: &Compile, out: &mut impl Write) -> anyhow::Result<()> {
    let (owner, lenient) = (owner("default"), args.state.lenient);
    let now = desired(pipeline, lenient)?;
    if args.before.is_empty() {
        return match args.output {
            Format::Text => text(&now, out),
            Format::Json => write_json(&document(&now, &owner), out),
        };
    }
    let state = State { paths: args.before.clone(), ..args.state.clone() };
    let mut earlier = run::load(&run::Input::open(&state)?, None)?;
    run::enforce_all(&mut earlier, "--before")?;
    let before = desired(&mut earlier, lenient)?;
    let listed = Listed::with_in_force(&before, &now, &owner);
    let plan = plan::plan(&now, &listed, &owner, &BTreeSet::new());
    let calls = plan.requests.iter().flat_map(|request| request.calls(&now, &owner, placeholder));
    match args.output {
        Format::Text => {
            for call in calls {
                writeln!(out, "{}", printable(&call.to_string()))?;
            }
            Ok(())
        }
        Format::Json => {
            let calls: Vec<Value> = calls.map(|call| call_value(&call)).collect();
            write_json(&json!({ "renderer": "neutron", "requests": calls }), out)
        }
    }
}

fn text(desired: &Desired, out: &mut impl Write) -> anyhow::Result<()> {
    let Desired { groups, ports } = desired;
    let rules: usize = groups.values().map(|group| group.rules.len()).sum();
    writeln!(out, "{} security groups with {rules} rules for {} pods", groups.len(), ports.len())?;
    for (tag, group) in groups {
        let generation = group.generation.map(|number| format!(", generation {number}")).unwrap_or_default();
        writeln!(out, "\ngroup {} ({}{generation})", printable(tag), printable(&group.name))?;
        for rule in &group.rules {
            writeln!(out, "  {rule}")?;
        }
        if let Some(why) = &group.refused {
            writeln!(out, "  none: {}", printable(why))?;
        }
    }
    writeln!(out)?;
    let mut columns = Columns::new(&["POD", "ADDRESSES", "GROUPS"]);
    for (pod, port) in ports {
        let addresses = port.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let groups = port.groups.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        columns.row([pod.to_string(), addresses, groups]);
    }
    Ok(columns.write(out)?)
}

fn document(desired: &Desired, owner: &str) -> Value {
    let groups = desired.groups.iter().map(|(tag, group)| {
        let rules: Vec<Value> = group.rules.iter().map(|rule| rule.body(tag, placeholder)).collect();
        json!({
            "id": placeholder(tag), "tags": plan::tags(owner, tag, group.generation), "body": group.body(owner), "rules": rules,
            "refused": group.refused,
        })
    });
    let ports = desired.ports.iter().map(|(pod, port)| {
        let groups: Vec<String> = port.groups.iter().map(|tag| placeholder(tag)).collect();
        json!({
            "pod": pod.to_string(), "addresses": port.addresses, "body": { "port": { "security_groups": groups } },
        })
    });
    json!({ "renderer": "neutron", "groups": groups.collect::<Vec<_>>(), "ports": ports.collect::<Vec<_>>() })
}

/// Returns a request as JSON.
pub fn call_value(call: &Call) -> Value {
    json!({ "method": call.method, "path": call.path, "body": call.body, "about": call.about })
}
