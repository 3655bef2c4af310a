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
    verify_server_name: Option<Spanned<String>>,
}

/// Returns the settings. Adds a fault for each invalid value.
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
    if let Some(text) = &written.verify_server_name {
        match NameSettings::server_name_check(&text.value) {
            Ok(check) => settings.server_names = check,
            Err(help) => {
                let problem = format!("`{}` is no treatment of connections to other servers", text.value);
                faults.add(line(text), "names.verify_server_name", problem, help);
            }
        }
    }
    settings
}
