//! Settings of rules that name domains.

use std::net::IpAddr;
use std::time::Duration;

use bulkhead_answers::run::NameSettings;
use ipnet::IpNet;
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::faults::{Faults, line};

/// The longest value of `names.grace`. Clients that cache addresses for more than a day ignore TTLs altogether.
const MAX_GRACE: Duration = Duration::from_hours(24);

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
        let address = text.value.parse::<IpAddr>().map(IpNet::from);
        match address.or_else(|_| text.value.parse::<IpNet>().map(|block| block.trunc())) {
            Ok(block) => settings.servers.push(block),
            Err(_) => {
                let help = "write the address of a DNS server, or a block such as 10.0.0.0/29";
                faults.add(line(text), "names.servers", format!("`{}` is not an address", text.value), help);
            }
        }
    }
    if let Some(text) = &written.grace {
        match humantime::parse_duration(&text.value) {
            Ok(grace) if grace <= MAX_GRACE => settings.grace = grace,
            _ => {
                let help = "write a number with its unit, up to 24h: 30s";
                faults.add(line(text), "names.grace", format!("`{}` is not a valid duration", text.value), help);
            }
        }
    }
    settings
}
