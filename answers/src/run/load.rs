//! Reads and compiles states, and prints warnings about them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use bulkhead_control::foreign;
use bulkhead_control::object::{
    ClusterPolicy, ClusterPolicyKind, ClusterPolicyName, ENFORCEMENT_ANNOTATION, Object, PolicyPort, Transport,
};
use bulkhead_control::pipeline::{AuditedPolicy, Pipeline};
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::Refusal;
use bulkhead_control::service::Settings;
use bulkhead_control::source::{CustomResource, Loaded, Options, ServiceKinds, SourceErrors, Strictness};
use bulkhead_control::ties::{self, Tie};

use super::known_names::KnownNames;
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
    warn_of_missing_namespaces(&pipeline);
    warn_of_missing_nodes(&pipeline);
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
    warn_of_missing_namespaces(&pipeline);
    warn_of_missing_nodes(&pipeline);
    for warning in left_open(&pipeline) {
        output::warn(&warning);
    }
    let audited = audited_names(&pipeline.audited_policies());
    if !audited.is_empty() {
        let names: Vec<&str> = audited.iter().map(String::as_str).collect();
        output::note(&format!("audited and not enforced: {}", output::some_of(&names, MAX_AUDITED)));
    }
    Ok((pipeline, services))
}

/// Maximum number of audited policies named in one line.
const MAX_AUDITED: usize = 8;

fn audited_names(policies: &BTreeSet<AuditedPolicy>) -> Vec<String> {
    policies.iter().map(ToString::to_string).collect()
}

/// Enforces audited policies, for `who` cannot audit, and prints a warning.
///
/// # Errors
/// If the policies do not compile.
pub fn enforce_all(pipeline: &mut Pipeline, who: &str) -> anyhow::Result<()> {
    let audited = audited_names(&pipeline.audited_policies());
    pipeline.enforce(None)?;
    if !audited.is_empty() {
        let names: Vec<&str> = audited.iter().map(String::as_str).collect();
        output::warn(&format!(
            "{who} treats these audited policies as enforced: {}\n  \
             help: {ENFORCEMENT_ANNOTATION} has an effect in the vswitch with `enforce: destination` (docs/audit.md)",
            output::some_of(&names, MAX_AUDITED)
        ));
    }
    Ok(())
}

/// Returns warnings about policies that are enforced despite an audit annotation, because the enforcement point cannot audit. Each has the
/// policy's position and a remedy.
pub fn unaudited(pipeline: &Pipeline) -> Vec<String> {
    let unaudited = pipeline.unaudited_policies();
    let more = unaudited.len().saturating_sub(MAX_REFUSALS);
    let told = unaudited.iter().take(MAX_REFUSALS).map(|(policy, position)| {
        let place = position.as_ref().map(|position| format!("{position}: ")).unwrap_or_default();
        format!(
            "{place}{policy} is enforced, though its {ENFORCEMENT_ANNOTATION}, or its namespace's, says audit: with `enforce: source` and \
             `dataplane: nftables` nothing is audited\n  help: remove the annotation, or use the vswitch with `enforce: destination`"
        )
    });
    told.chain((more > 0).then(|| format!("and {more} more warnings of this kind"))).collect()
}

/// Prints warnings about rules that exceed a table's limits.
///
/// # Errors
/// If there are any, unless lenient: answers depend on them.
pub fn check_refusals(refusals: &[Refusal], strictness: Strictness) -> anyhow::Result<()> {
    let refusals = told_refusals(refusals);
    if strictness == Strictness::Strict && !refusals.is_empty() {
        bail!("{}", refusals.join("\n"));
    }
    refusals.iter().for_each(output::warn);
    Ok(())
}

/// Returns warnings about rules that exceed a table's limits, with what is in force instead, and a remedy.
pub fn refusals(pipeline: &Pipeline) -> Vec<String> {
    told_refusals(&pipeline.refusals())
}

fn told_refusals(refusals: &[Refusal]) -> Vec<String> {
    let more = refusals.len().saturating_sub(MAX_REFUSALS);
    let told = |refusal: &Refusal| {
        format!("{refusal}\n  help: reduce the number of rules, or their overlaps, in the policies of these pods")
    };
    let told = refusals.iter().take(MAX_REFUSALS).map(told);
    told.chain((more > 0).then(|| format!("and {more} more warnings of this kind"))).collect()
}

/// Refusals printed one by one. The rest is only counted.
const MAX_REFUSALS: usize = 10;

/// Returns warnings about orders of cluster policies that the API leaves undefined, and how they are resolved.
pub fn left_open(pipeline: &Pipeline) -> Vec<String> {
    let cache = pipeline.cache();
    let tie = |tie: &Tie| {
        format!(
            "{tie}: the API leaves open which is asked first; here it is the former, by its name\n  \
             help: give one of them another priority"
        )
    };
    let mut told: Vec<String> = ties::ties(cache).iter().take(MAX_TIES).map(tie).collect();
    let is_new = |name: &ClusterPolicyName| name.kind == ClusterPolicyKind::ClusterNetworkPolicy;
    let names = || cache.cluster_policies().keys();
    if names().any(is_new) && !names().all(is_new) {
        let text = "there are policies of policy.networking.k8s.io/v1alpha1 and v1alpha2: all of a tier are asked by priority, a \
                    BaselineAdminNetworkPolicy last\n  help: write them in one version";
        told.push(text.into());
    }
    let names_protocols = |policy: &&Arc<ClusterPolicy>| {
        let rules = policy.ingress.iter().chain(&policy.egress);
        rules.flat_map(|rule| rule.traffic.ports.iter().flatten()).any(divides_other_protocols)
    };
    if let Some(policy) = cache.cluster_policies().values().find(names_protocols) {
        told.push(format!(
            "{}: a rule names ICMP or another protocol: `other` in answers about all protocols means those that no rule names, and \
             `replay` takes each ICMP packet for one of type 0 and code 0\n  \
             help: read in the policy what it says about such protocols",
            policy.rank.name
        ));
    }
    told
}

/// Whether a port is about some protocols without ports and not about the others.
fn divides_other_protocols(port: &PolicyPort) -> bool {
    let PolicyPort::Numbers { protocols: (first, last), .. } = *port else { return false };
    let is_transport = first == last && Transport::ALL.iter().any(|transport| transport.number() == first);
    !is_transport && (first, last) != (0, u8::MAX)
}

/// Returns a warning that lists the policies with domain names in rules, which allow nothing. `target` is what enforces them without
/// reading DNS answers, such as `the node's kernel`. `None` if no policy has such rules.
pub fn unlearned(pipeline: &Pipeline, target: &str) -> Option<String> {
    let policies = policies_with_names(pipeline)?;
    Some(format!(
        "{policies}: rules with domain names allow nothing, because {target} does not read DNS answers\n  \
         help: name networks instead, or enforce with `dataplane: vswitch`"
    ))
}

/// Returns a warning that lists the policies with domain names whose addresses neither the state nor `--names` has. `None` if there are no
/// such policies.
pub fn unknown_names(pipeline: &Pipeline) -> Option<String> {
    let policies = policies_with_names(pipeline)?;
    Some(format!(
        "{policies}: addresses of domain names are unknown, so rules with these names match no address here\n  \
         help: give the addresses of the names with --names FILE (docs/names.md)"
    ))
}

/// Returns the names of the policies with domain names in rules. `None` if no policy has such rules.
fn policies_with_names(pipeline: &Pipeline) -> Option<String> {
    let is_named = |policy: &ClusterPolicy| policy.egress.iter().any(|rule| rule.traffic.has_names());
    let policies = pipeline.cache().cluster_policies().values().filter(|policy| is_named(policy));
    let names: Vec<String> = policies.map(|policy| policy.rank.name.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    (!names.is_empty()).then(|| output::some_of(&names, MAX_AUDITED))
}

/// Maximum number of ties printed.
const MAX_TIES: usize = 10;

/// Warns about namespaces without an object: their pods match only selectors by name or for all namespaces.
fn warn_of_missing_namespaces(pipeline: &Pipeline) {
    let cache = pipeline.cache();
    let used: BTreeSet<_> = cache.pods().map(|(_, pod)| &pod.name.namespace).collect();
    let missing: Vec<&str> =
        used.into_iter().filter(|name| !cache.namespaces().contains_key(*name)).map(|name| &**name).collect();
    let has_policies = !cache.policies().is_empty() || !cache.cluster_policies().is_empty();
    if !missing.is_empty() && has_policies {
        let names = output::some_of(&missing, 5);
        output::warn(&format!(
            "no Namespace object for {names}: a namespaceSelector by label does not match their pods\n  \
             help: add the output of `kubectl get namespaces -o yaml` to --state"
        ));
    }
}

/// Warns about nodes without an object, whose own addresses are unknown.
fn warn_of_missing_nodes(pipeline: &Pipeline) {
    let cache = pipeline.cache();
    let used: BTreeSet<_> = cache.pods().filter_map(|(_, pod)| pod.node.as_ref()).collect();
    let missing: Vec<&str> =
        used.into_iter().filter(|name| !cache.nodes().contains_key(*name)).map(|name| &**name).collect();
    if !missing.is_empty() && !cache.policies().is_empty() {
        let names = output::some_of(&missing, 5);
        output::warn(&format!(
            "no Node object for {names}: traffic between pods and their own node, which is always allowed, is not known as such\n  \
             help: add the output of `kubectl get nodes -o yaml` to --state"
        ));
    }
}
