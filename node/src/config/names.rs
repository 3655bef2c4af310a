//! Settings of rules that name domains.

use bulkhead_answers::run::NameSettings;
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::faults::{Faults, line};

/// The `names` field as parsed.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Written {
    servers: Vec<Spanned<String>>,
    grace: Option<Spanned<String>>,
}

/// Returns the settings. Adds a fault for each server and for a grace that is invalid.
pub(super) fn check(written: &Written, faults: &mut Faults<'_>) -> NameSettings {
    let mut settings = NameSettings::default();
    for text in &written.servers {
        match NameSettings::server(&text.value) {
            Ok(block) => settings.servers.push(block),
            Err(_) => {
                let help = "write the address of a DNS server, or a block such as 10.0.0.0/29";
                faults.add(line(text), "names.servers", format!("`{}` is not an address", text.value), help);
            }
        }
    }
    if let Some(text) = &written.grace {
        match NameSettings::grace(&text.value) {
            Ok(grace) => settings.grace = grace,
            Err(help) => {
                faults.add(line(text), "names.grace", format!("`{}` is not a valid duration", text.value), help);
            }
        }
    }
    settings
}
