//! Settings of a bundle, so that commands judge its state like the vswitch did.
//!
//! The command line takes precedence. Only manifests are read here, which come first; reading the objects verifies the rest.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use bulkhead_control::attachments::Attachment;
use bulkhead_control::object::{Enforcement, IngressIsolation, PodName};
use bulkhead_control::service;
use bulkhead_control::source::{Options, Semantics};
use flate2::read::GzDecoder;

use super::{Manifest, Settings, damaged, is_bundle, member_name};
use crate::args::{PolicySemantics, State};

/// Maximum size of a manifest in bytes. A manifest has a few hundred bytes per attached pod, and a node a few hundred pods.
const MOST_MANIFEST: u64 = 1 << 24;

/// Maximum size of a settings file in bytes. A larger file is probably not a settings file.
const MAX_SETTINGS_LEN: u64 = 1 << 20;

fn manifests(paths: &[PathBuf]) -> anyhow::Result<Vec<(&Path, Manifest)>> {
    let bundles = paths.iter().filter(|path| is_bundle(path));
    let manifest = |path: &PathBuf| {
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| format!("cannot open the bundle {name}"))?;
        manifest(BufReader::new(file)).with_context(|| format!("cannot use the bundle {name}"))
    };
    bundles.map(|path| Ok((path.as_path(), manifest(path)?))).collect()
}

fn manifest(file: impl Read) -> anyhow::Result<Manifest> {
    let mut archive = tar::Archive::new(GzDecoder::new(file).take(MOST_MANIFEST + (1 << 20)));
    let mut entries = archive.entries().context("the file is not a bundle; `bulkhead bundle` writes one")?.raw(true);
    let entry = entries.next().context("the file has no manifest, so it is not a bundle")?.map_err(damaged)?;
    let is_manifest = member_name(&entry.path_bytes()) == Some(super::MANIFEST);
    ensure!(is_manifest, "the manifest is not the first member");
    ensure!(entry.size() <= MOST_MANIFEST, "the manifest exceeds {MOST_MANIFEST} bytes");
    let mut bytes = Vec::new();
    entry.take(MOST_MANIFEST).read_to_end(&mut bytes).map_err(damaged)?;
    serde_json::from_slice(&bytes).context("cannot parse the manifest")
}

/// Returns the setting on which all bundles agree. `None` if no bundle has the setting.
fn agreed<T: PartialEq>(
    paths: &[PathBuf],
    of: impl Fn(Settings) -> Option<T>,
    option: &str,
) -> anyhow::Result<Option<T>> {
    let mut agreed: Option<(&Path, T)> = None;
    for (path, manifest) in manifests(paths)? {
        let Some(said) = manifest.settings.and_then(&of) else { continue };
        match &agreed {
            Some((first, before)) if *before != said => {
                let (first, path) = (first.display(), path.display());
                bail!(
                    "the bundles {first} and {path} come from nodes with different configurations\n  help: choose one with {option}"
                )
            }
            Some(_) => {}
            None => agreed = Some((path, said)),
        }
    }
    Ok(agreed.map(|(_, said)| said))
}

/// Returns the options for reading objects: from the command line, else from the bundle.
///
/// # Errors
/// If two arguments, or two bundles, contradict each other.
pub fn options(state: &State) -> anyhow::Result<Options> {
    let mut options = state.options()?;
    if state.namespace_default.is_none() && state.policy_semantics != Some(PolicySemantics::V1) {
        let isolation = agreed(&state.paths, |settings| Some(settings.isolation), "--namespace-default")?;
        if isolation == Some(IngressIsolation::DefaultDeny) {
            options.semantics = Semantics::V1beta1 { default: IngressIsolation::DefaultDeny };
        }
    }
    Ok(options)
}

/// Returns the enforcement of policies without an annotation.
///
/// # Errors
/// If bundles contradict each other.
pub fn enforcement(state: &State) -> anyhow::Result<Enforcement> {
    match state.enforcement {
        Some(name) => Ok(name.into()),
        None => Ok(agreed(&state.paths, |settings| Some(settings.enforcement), "--enforcement")?.unwrap_or_default()),
    }
}

/// Returns the Service settings: from the given file, else from the bundle.
///
/// # Errors
/// If the file cannot be read or parsed, or bundles contradict each other.
pub fn service_settings(named: Option<&Path>, paths: &[PathBuf]) -> anyhow::Result<service::Settings> {
    match named {
        Some(path) => read_settings(path),
        None => Ok(agreed(paths, |settings| settings.services, "--settings")?.unwrap_or_default()),
    }
}

fn read_settings(path: &Path) -> anyhow::Result<service::Settings> {
    let file = path.display().to_string();
    if std::fs::metadata(path).is_ok_and(|meta| meta.len() > MAX_SETTINGS_LEN) {
        bail!(
            "{file}: a settings file may have at most {MAX_SETTINGS_LEN} bytes\n  help: pass the settings file; objects go to --state"
        );
    }
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read {file}\n  help: pass a JSON or YAML file, or omit --settings"))?;
    Ok(service::Settings::parse(&file, &text)?)
}

/// Returns the pods that were attached to the bundles' vswitches.
///
/// # Errors
/// If a manifest cannot be read.
pub fn attached(paths: &[PathBuf]) -> anyhow::Result<BTreeMap<PodName, Attachment>> {
    Ok(manifests(paths)?.into_iter().flat_map(|(_, manifest)| manifest.attached).collect())
}
