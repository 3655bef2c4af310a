//! Settings of a bundle, so that commands judge its state like the vswitch did.
//!
//! The command line takes precedence.

use std::path::Path;

use anyhow::{anyhow, bail};
use bulkhead_control::object::{Enforcement, IngressIsolation};
use bulkhead_control::service;
use bulkhead_control::source::{self, Options, Semantics};

use super::{Bundle, Settings, Sources};
use crate::args::{PolicySemantics, State};

/// Maximum size of a settings file in bytes. A larger file is probably not a settings file.
const MAX_SETTINGS_LEN: u64 = 1 << 20;

impl Sources {
    /// Returns the setting on which all bundles agree. `None` if no bundle has the setting.
    fn agreed<T: PartialEq>(&self, of: impl Fn(&Settings) -> Option<T>, option: &str) -> anyhow::Result<Option<T>> {
        let mut agreed: Option<(&Path, T)> = None;
        for Bundle { path, manifest, .. } in &self.bundles {
            let Some(said) = manifest.settings.as_ref().and_then(&of) else { continue };
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
    pub fn options(&self, state: &State) -> anyhow::Result<Options> {
        let mut options = state.options()?;
        if state.namespace_default.is_none() && state.policy_semantics != Some(PolicySemantics::V1) {
            let isolation = self.agreed(|settings| Some(settings.isolation), "--namespace-default")?;
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
    pub fn enforcement(&self, state: &State) -> anyhow::Result<Enforcement> {
        match state.enforcement {
            Some(name) => Ok(name.into()),
            None => Ok(self.agreed(|settings| Some(settings.enforcement), "--enforcement")?.unwrap_or_default()),
        }
    }

    /// Returns the Service settings: from the given file, else from the bundle.
    ///
    /// # Errors
    /// If the file cannot be read or parsed, or bundles contradict each other.
    pub fn service_settings(&self, named: Option<&Path>) -> anyhow::Result<service::Settings> {
        match named {
            Some(path) => read_settings(path),
            None => Ok(self.agreed(|settings| settings.services.clone(), "--settings")?.unwrap_or_default()),
        }
    }
}

fn read_settings(path: &Path) -> anyhow::Result<service::Settings> {
    let file = path.display().to_string();
    if std::fs::metadata(path).is_ok_and(|meta| meta.len() > MAX_SETTINGS_LEN) {
        bail!(
            "{file}: a settings file may have at most {MAX_SETTINGS_LEN} bytes\n  help: pass the settings file; objects go to --state"
        );
    }
    let text = source::text_of_file(path)
        .map_err(|(problem, help)| anyhow!("{file}: {problem}\n  help: {help}, or omit --settings"))?;
    Ok(service::Settings::parse(&file, &text)?)
}
