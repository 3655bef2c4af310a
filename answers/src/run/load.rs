//! Reads and compiles states, and prints warnings about them.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, bail};
use bulkhead_control::foreign;
use bulkhead_control::object::{ENFORCEMENT_ANNOTATION, Object, Transport};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::Refusal;
use bulkhead_control::service::Settings;
use bulkhead_control::source::{CustomResource, Loaded, Options, ServiceKinds, SourceErrors, Strictness};

use super::known_names::KnownNames;
use super::warnings;
use crate::args::{Planned, State};
use crate::bundle::Sources;
use crate::{contests, output, progress};

/// The progress step after reading a state.
const COMPILING: &str = "compiling the policies";

/// The arguments that name a state, with its opened inputs.
pub struct Input<'a> {
    /// The arguments.
    pub state: &'a State,
    /// The files and bundles.
    pub sources: Sources,
}

impl<'a> Input<'a> {
    /// Opens the inputs of a state.
    ///
    /// # Errors
    /// See [`Sources::open`].
    pub fn open(state: &'a State) -> anyhow::Result<Self> {
        Ok(Self { state, sources: Sources::open(&state.paths)? })
    }

    /// Returns the settings of Services, see [`Sources::service_settings`].
    ///
    /// # Errors
    /// See [`Sources::service_settings`].
    pub fn service_settings(&self, named: Option<&Path>) -> anyhow::Result<Settings> {
        self.sources.service_settings(named)
    }

    /// Returns the options for reading objects. With `planned`, workloads without pods get simulated ones: only for questions, as forwarding
    /// or writing rules needs real addresses.
    fn options(&self, planned: Option<&Planned>) -> anyhow::Result<Options> {
        let options = self.sources.options(self.state)?;
        Ok(match planned {
            Some(planned) => planned.with(options),
            None => options,
        })
    }
}

/// Reads a state and compiles its rules and address sets. Tables of single nodes are compiled when [`Fabric`](crate::fabric::Fabric) needs
/// them. Prints warnings to standard error.
///
/// # Errors
/// If an input has faults.
pub fn load(input: &Input<'_>, planned: Option<&Planned>) -> anyhow::Result<Pipeline> {
    let options = input.options(planned)?;
    let loaded = input.sources.load(&options)??;
    Ok(compiled(input, Pipeline::without_tables(options.semantics.default_isolation()), loaded)?.0)
}

/// Like [`load`] with templates, and returns the ports that pods and templates declare.
///
/// # Errors
/// See [`load`].
pub fn load_with_ports(input: &Input<'_>, planned: &Planned) -> anyhow::Result<(Pipeline, BTreeSet<(u16, Transport)>)> {
    let options = input.options(Some(planned))?;
    let mut loaded = input.sources.load(&options)??;
    let named = loaded.objects.iter().filter_map(|object| match object {
        Object::Pod(pod) => Some(&pod.ports),
        _ => None,
    });
    // Pods of a bundle have only their named ports.
    let mut ports: BTreeSet<_> = named.flatten().map(|port| (port.port, port.transport)).collect();
    ports.append(&mut loaded.declared_ports);
    let pipeline = Pipeline::without_tables(options.semantics.default_isolation());
    Ok((compiled(input, pipeline, loaded)?.0, ports))
}

/// Like [`load`], with the Services and EndpointSlices of the state. Unless `is_about_services`, a fault of a Service is a warning, and all
/// Services are ignored.
///
/// # Errors
/// See [`load`].
pub fn load_with_services(
    input: &Input<'_>,
    planned: Option<&Planned>,
    is_about_services: bool,
) -> anyhow::Result<(Pipeline, Vec<Object>)> {
    let options = input.options(planned)?;
    let loaded = read_with_services(input, &options, is_about_services)?;
    compiled(input, Pipeline::without_tables(options.semantics.default_isolation()), loaded)
}

/// Like [`load_with_services`], and compiles the tables of a node.
///
/// # Errors
/// See [`load`]. Also if rules exceed a table's limits, unless lenient.
pub fn load_node(input: &Input<'_>, node: &str, is_about_services: bool) -> anyhow::Result<(Pipeline, Vec<Object>)> {
    let options = input.options(None)?;
    let loaded = read_with_services(input, &options, is_about_services)?;
    let isolation = options.semantics.default_isolation();
    compiled(input, Pipeline::with_default_isolation(Scope::Node(node.into()), isolation), loaded)
}

/// A state for questions about its rules, including rules that never decide.
pub struct Whole {
    /// Rules and address sets.
    pub pipeline: Pipeline,
    /// The same state without the rules that never decide, to judge sessions. `None` unless requested.
    pub deciding: Option<Pipeline>,
    /// Services and EndpointSlices.
    pub services: Vec<Object>,
    /// Warnings about rules that `policyTypes` leaves out, as in [`Loaded::idle_rules`].
    pub idle_rules: SourceErrors,
    /// Warnings about empty lists in policies, as in [`Loaded::empty_lists`].
    pub empty_lists: SourceErrors,
    /// Custom resources that may make pods, as in [`Loaded::custom`].
    pub custom: Vec<CustomResource>,
}

/// Reads a state with its Services, and simulated pods for workloads without pods. If a Service has a fault, warns and ignores all
/// Services.
///
/// # Errors
/// See [`load`].
pub fn load_whole(input: &Input<'_>, planned: &Planned, with_deciding: bool) -> anyhow::Result<Whole> {
    let options = input.options(Some(planned))?;
    let isolation = options.semantics.default_isolation();
    let mut loaded = read_with_services(input, &options, false)?;
    progress::step(COMPILING);
    let (idle_rules, empty_lists) = (std::mem::take(&mut loaded.idle_rules), std::mem::take(&mut loaded.empty_lists));
    let custom = std::mem::take(&mut loaded.custom);
    tell_loaded(&loaded, &idle_rules);
    let (services, objects) = divided(input, loaded.objects)?;
    let deciding = if with_deciding {
        let mut deciding = Pipeline::without_tables(isolation);
        deciding.resync(objects.clone()).context("the state does not compile")?;
        Some(deciding)
    } else {
        None
    };
    let mut pipeline = Pipeline::with_every_rule(isolation);
    pipeline.resync(objects).context("the state does not compile")?;
    contests::check(&pipeline, input.state.lenient)?;
    warnings::warn_of_missing_namespaces(&pipeline);
    warnings::warn_of_missing_nodes(&pipeline);
    Ok(Whole { pipeline, deciding, services, idle_rules, empty_lists, custom })
}

fn read_with_services(input: &Input<'_>, options: &Options, is_about_services: bool) -> anyhow::Result<Loaded> {
    let with = Options { services: ServiceKinds::Read, ..options.clone() };
    match input.sources.load(&with)? {
        // Standard input cannot be read twice.
        Err(faults) if !is_about_services && input.state.paths.iter().all(|path| path.as_os_str() != "-") => {
            let without = input.sources.load(options)??;
            let fault = faults.shown().first().map(ToString::to_string).unwrap_or_default();
            output::warn(&format!("Services are ignored because not all could be read: {fault}"));
            Ok(without)
        }
        loaded => Ok(loaded?),
    }
}

/// Prints the reader's warnings, except those in `told`, and lists skipped objects.
fn tell_loaded(loaded: &Loaded, told: &SourceErrors) {
    let untold = loaded.warnings.shown().iter().filter(|warning| !told.shown().contains(warning));
    untold.for_each(output::warn);
    match loaded.warnings.total() - loaded.warnings.shown().len() {
        0 => {}
        more => output::warn(&format!("{more} more warnings of this kind")),
    }
    match loaded.passed_over.len() {
        0 => {}
        count => {
            let names: Vec<&str> = loaded.passed_over.iter().map(|name| &**name).collect();
            let hold = if count == 1 { "file holds" } else { "files hold" };
            output::note(&format!("{count} {hold} no Kubernetes object: {}", output::some_of(&names, 8)));
        }
    }
    let kinds = [
        ("skipped because policy does not depend on them", &loaded.skipped),
        ("ignored by --ignore although they restrict traffic", &loaded.ignored),
    ];
    for (what, kinds) in kinds.into_iter().filter(|(_, kinds)| !kinds.is_empty()) {
        let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
        output::note(&format!("{what}: {}", output::some_of(&kinds, 8)));
    }
}

/// Returns Services and EndpointSlices, and all other objects, with policies of other products resolved. With `--names`, replaces domain names in the others by their addresses.
///
/// # Errors
/// If the file of `--names` cannot be read or parsed.
fn divided(input: &Input<'_>, objects: Vec<Object>) -> anyhow::Result<(Vec<Object>, Vec<Object>)> {
    let is_service = |object: &Object| matches!(object, Object::Service(_) | Object::EndpointSlice(_));
    let (services, objects): (Vec<_>, Vec<_>) = foreign::resolved(objects).into_iter().partition(is_service);
    let Some(path) = &input.state.names else { return Ok((services, objects)) };
    let known = KnownNames::read(path)?;
    Ok((services, objects.into_iter().map(|object| known.resolve(object)).collect()))
}

/// Compiles objects into a pipeline. Returns the Services and EndpointSlices separately.
fn compiled(input: &Input<'_>, pipeline: Pipeline, loaded: Loaded) -> anyhow::Result<(Pipeline, Vec<Object>)> {
    progress::step(COMPILING);
    let mut pipeline = pipeline.auditing(input.sources.enforcement(input.state)?);
    tell_loaded(&loaded, &SourceErrors::default());
    let (services, objects) = divided(input, loaded.objects)?;
    pipeline.resync(objects).context("the state does not compile")?;
    contests::check(&pipeline, input.state.lenient)?;
    check_refusals(&pipeline.refusals(), input.state.strictness())?;
    warnings::warn_of_missing_namespaces(&pipeline);
    warnings::warn_of_missing_nodes(&pipeline);
    for warning in warnings::left_open(&pipeline) {
        output::warn(&warning);
    }
    if let Some(audited) = warnings::audited(&pipeline) {
        output::note(&format!("audited and not enforced: {audited}"));
    }
    Ok((pipeline, services))
}

/// Enforces audited policies, for `who` cannot audit, and prints a warning.
///
/// # Errors
/// If the policies do not compile.
pub fn enforce_all(pipeline: &mut Pipeline, who: &str) -> anyhow::Result<()> {
    let mut audited = pipeline.audited_policies();
    pipeline.enforce(None)?;
    for staged in pipeline.audited_policies() {
        audited.remove(&staged);
    }
    if let Some(audited) = warnings::some_of(audited.iter().map(ToString::to_string)) {
        output::warn(&format!(
            "{who} treats these audited policies as enforced: {audited}\n  \
             help: {ENFORCEMENT_ANNOTATION} has an effect in the vswitch with `enforce: destination` (docs/audit.md)"
        ));
    }
    Ok(())
}

/// Prints warnings about rules that exceed a table's limits.
///
/// # Errors
/// If there are any, unless lenient: answers depend on them.
pub fn check_refusals(refusals: &[Refusal], strictness: Strictness) -> anyhow::Result<()> {
    let refusals = warnings::told_refusals(refusals);
    if strictness == Strictness::Strict && !refusals.is_empty() {
        bail!("{}", refusals.join("\n"));
    }
    refusals.iter().for_each(output::warn);
    Ok(())
}
