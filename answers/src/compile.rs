//! `bulkhead compile`: prints a renderer's output for a node's policies.

mod acl;
mod contiv;
mod identity;
pub mod neutron;
mod nftables;
mod session_rules;

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use anyhow::bail;
use bulkhead_classifier::OriginId;
use bulkhead_control::pipeline::Pipeline;
use serde_json::Value;

pub use self::acl::{shown_addresses, shown_services};
use crate::args::{Compile, RendererName};
use crate::output::{self, printable};
use crate::run::{self, Input};
use crate::translate::{Services, blocks};

/// Prints a renderer's output for a node's policies.
///
/// # Errors
/// If the state cannot be read or lacks the node, or the renderer cannot express a policy exactly.
pub fn run(args: &Compile) -> anyhow::Result<ExitCode> {
    if args.renderer != RendererName::Acl {
        let options = [("--stats", args.stats), ("--six-tuples", args.six_tuples)];
        if let Some((option, _)) = options.into_iter().find(|(_, given)| *given) {
            bail!("{option} works only with --renderer acl\n  help: remove {option}, or use --renderer acl");
        }
    }
    let is_about_all = args.renderer == RendererName::Neutron;
    match (&*args.node, is_about_all) {
        ("", false) => bail!("--node is missing\n  help: pass the node whose tables to print"),
        ("", true) | (_, false) => {}
        (_, true) => bail!("--renderer neutron covers all nodes\n  help: omit --node"),
    }
    if !args.before.is_empty() && !is_about_all {
        bail!("--before works only with --renderer neutron\n  help: remove --before, or use --renderer neutron");
    }
    if args.renderer != RendererName::Nftables && args.interfaces.is_some() {
        bail!(
            "--interfaces works only with --renderer nftables\n  help: remove --interfaces, or use --renderer nftables"
        );
    }
    let input = Input::open(&args.state)?;
    let settings = input.service_settings(args.settings.as_deref())?;
    let (mut pipeline, services) = match is_about_all {
        true => run::load_with_services(&input, None, false)?,
        false => run::load_node(&input, &args.node, false)?,
    };
    if !matches!(args.renderer, RendererName::Acl | RendererName::Identity) {
        run::enforce_all(&mut pipeline, "--renderer")?;
    }
    if args.renderer != RendererName::Acl {
        run::unlearned(&pipeline, "this renderer's target").iter().for_each(output::warn);
    }
    if !is_about_all {
        run::check_node(&pipeline, &args.node)?;
    }
    let services = Services::new(&pipeline, services, settings);
    blocks::warnings(&pipeline, &services).iter().for_each(output::warn);
    let mut out = BufWriter::new(output::stdout());
    match args.renderer {
        RendererName::Acl => acl::write(&pipeline, args, &mut out)?,
        RendererName::Contiv => contiv::write(&mut pipeline, args, &mut out)?,
        RendererName::Identity => identity::write(&mut pipeline, args, &mut out)?,
        RendererName::Neutron => neutron::write(&mut pipeline, args, &mut out)?,
        RendererName::Nftables => nftables::write(&mut pipeline, args, &mut out)?,
        RendererName::SessionRules => session_rules::write(&mut pipeline, args, &mut out)?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn write_json(document: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(&mut *out, document)?;
    writeln!(out)?;
    Ok(())
}

/// Returns the policy rules that a compiled rule comes from, as text.
fn named(pipeline: &Pipeline, origins: &[OriginId]) -> String {
    let known = origins.iter().filter_map(|&origin| pipeline.origins().get(origin));
    known.map(|origin| printable(&origin.to_string())).collect::<Vec<_>>().join("; ")
}

/// Returns the policy rules that a compiled rule comes from, as JSON.
fn attributions(pipeline: &Pipeline, origins: &[OriginId]) -> Value {
    let known = origins.iter().filter_map(|&origin| pipeline.origins().get(origin));
    known.map(|origin| serde_json::json!(run::attribution(Some(origin)))).collect()
}
