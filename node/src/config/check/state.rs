//! Checks the policy source (`state`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_cluster::kubernetes::Access;
use bulkhead_control::renderer::acl::EnforcedAt;
use bulkhead_control::source::{KindName, Options, Semantics, ServiceKinds, Strictness};
use serde_saphyr::Spanned;

use super::super::faults::{Faults, line};
use super::super::file::{Kubernetes, State};
use super::super::{Dataplane, ForeignPolicies, KubernetesConfig, StateConfig, node_ranges};
use super::judging;
use bulkhead_answers::args;

/// Default folder of the last good state. It survives a reboot.
const FOLDER: &str = "/var/lib/bulkhead";
/// Default maximum age of the state. An API server is unavailable for a minute or two during an upgrade.
const STALE: Duration = Duration::from_secs(300);
/// Minimum of that age: twice the time for which an idle server may be silent.
const LEAST_STALE: Duration = Duration::from_secs(60);

/// Checks the source. `place` is where policy is enforced.
pub(super) fn state(
    written: &Spanned<State>,
    has_services: bool,
    place: (Dataplane, EnforcedAt),
    folder: &Path,
    faults: &mut Faults<'_>,
) -> StateConfig {
    let state = &written.value;
    match (&state.paths, &state.kubernetes) {
        (Some(paths), None) => check_paths(paths, faults),
        (None, Some(_)) => refuse_what_files_have(state, faults),
        (Some(_), Some(kubernetes)) => {
            let help = "keep one of the two: files, or the API server";
            faults.add(line(kubernetes), "state.kubernetes", "is set together with state.paths", help);
        }
        (None, None) => {
            let help = "write `paths: [FILE]`, or `kubernetes: {}` to follow the API server of the cluster";
            faults.add(line(written), "state", "names neither paths nor kubernetes", help);
        }
    }
    let paths = state.paths.iter().flat_map(|paths| &paths.value);
    StateConfig {
        paths: paths.map(|path| folder.join(PathBuf::from(path))).collect(),
        kubernetes: state.kubernetes.as_ref().map(|written| kubernetes(&written.value, folder, faults)),
        options: Options {
            services: if has_services { ServiceKinds::Read } else { ServiceKinds::Skip },
            foreign: foreign_policies(state, place, faults).kinds(),
            ..options(state, faults)
        },
        when_missing: state.when_missing.as_ref().map(|when| when.value).unwrap_or_default(),
        when_refused: state.when_refused.as_ref().map(|when| when.value).unwrap_or_default(),
        node_ranges: node_ranges::check(&state.node_ranges, faults),
    }
}

fn foreign_policies(state: &State, place: (Dataplane, EnforcedAt), faults: &mut Faults<'_>) -> ForeignPolicies {
    let Some(written) = &state.foreign_policies else { return ForeignPolicies::default() };
    if let (ForeignPolicies::Audit, Some(instead)) = (written.value, judging::without_audit(place)) {
        let problem = format!("`audit` cannot be combined with `{instead}`: policy would be enforced and not audited");
        faults.add(line(written), "state.foreign_policies", problem, "remove one of the two (docs/audit.md)");
    }
    written.value
}

fn check_paths(paths: &Spanned<Vec<String>>, faults: &mut Faults<'_>) {
    if paths.value.is_empty() {
        faults.add(line(paths), "state.paths", "is empty", "name the files or folders with the Kubernetes objects");
    }
    if paths.value.iter().any(|path| path == "-") {
        let help = "name a file: standard input cannot be watched for changes";
        faults.add(line(paths), "state.paths", "names standard input", help);
    }
}

/// Reports settings of files that have no effect with an API server.
fn refuse_what_files_have(state: &State, faults: &mut Faults<'_>) {
    let unreachable = "remove it; state.kubernetes.when_unreachable sets what happens without a server";
    let written = [
        (
            "lenient",
            state.lenient.as_ref().and_then(line),
            "remove it; only traffic of an object that cannot be parsed is denied",
        ),
        (
            "policy_semantics",
            state.policy_semantics.as_ref().and_then(line),
            "remove it; API servers no longer support v1beta1 policies",
        ),
        (
            "namespace_default",
            state.namespace_default.as_ref().and_then(line),
            "remove it; API servers no longer support v1beta1 policies",
        ),
        ("when_missing", state.when_missing.as_ref().and_then(line), unreachable),
        ("when_refused", state.when_refused.as_ref().and_then(line), "remove it; the last good state stays in force"),
    ];
    for (field, line, help) in written.into_iter().filter(|(_, line, _)| line.is_some()) {
        faults.add(line, format!("state.{field}"), "applies to files and has no effect with state.kubernetes", help);
    }
}

fn kubernetes(written: &Kubernetes, folder: &Path, faults: &mut Faults<'_>) -> KubernetesConfig {
    let access = match (&written.kubeconfig, &written.context) {
        (Some(path), context) => {
            if path.value.is_empty() {
                faults.add(line(path), "state.kubernetes.kubeconfig", "is empty", "name a kubeconfig file");
            }
            let context = context.as_ref().map(|context| context.value.clone());
            Access::Kubeconfig { path: folder.join(&path.value), context }
        }
        (None, Some(context)) => {
            let help = "set state.kubernetes.kubeconfig to the file with this context";
            faults.add(line(context), "state.kubernetes.context", "is set without state.kubernetes.kubeconfig", help);
            Access::InCluster
        }
        (None, None) => Access::InCluster,
    };
    if let Some(named) = written.folder.as_ref().filter(|named| named.value.is_empty()) {
        faults.add(line(named), "state.kubernetes.folder", "is empty", format!("name a folder, such as {FOLDER}"));
    }
    let stale_after = written.stale_after.as_ref().map_or(STALE, |text| match humantime::parse_duration(&text.value) {
        Ok(time) if time >= LEAST_STALE => time,
        _ => {
            let help = "write a number with its unit, at least 1m: an idle API server is heard from every 30 s";
            faults.add(
                line(text),
                "state.kubernetes.stale_after",
                format!("`{}` is not a valid duration", text.value),
                help,
            );
            STALE
        }
    });
    let named = written.folder.as_ref().map(|named| folder.join(&named.value));
    KubernetesConfig {
        access,
        when_unreachable: written.when_unreachable,
        folder: named.unwrap_or_else(|| PathBuf::from(FOLDER)),
        stale_after,
    }
}

/// Returns the settings for parsing objects.
fn options(written: &State, faults: &mut Faults<'_>) -> Options {
    let version = written.policy_semantics.as_ref().map(|version| version.value).unwrap_or_default();
    let default = written.namespace_default.as_ref().map(|default| default.value).unwrap_or_default();
    let semantics = args::semantics(version, default).unwrap_or_else(|| {
        let help = "remove it; namespaces isolate only with policy_semantics: v1beta1";
        faults.add(written.namespace_default.as_ref().and_then(line), "state.namespace_default", "has no effect", help);
        Semantics::default()
    });
    let mut ignored = BTreeSet::new();
    for (at, kind) in written.ignore.iter().enumerate() {
        match kind.value.parse::<KindName>() {
            Ok(kind) => drop(ignored.insert(kind)),
            Err(problem) => {
                let help = "name a kind that restricts traffic and is not enforced: CiliumNetworkPolicy";
                faults.add(line(kind), format!("state.ignore[{at}]"), problem, help);
            }
        }
    }
    let is_lenient = written.lenient.as_ref().is_none_or(|lenient| lenient.value);
    let strictness = if is_lenient { Strictness::Lenient } else { Strictness::Strict };
    Options { strictness, semantics, ignored, ..Options::default() }
}
