//! Arguments about the DNS answers in captures.

use std::time::Duration;

use bulkhead_dataplane::ServerNameCheck;
use ipnet::IpNet;

use crate::run::NameSettings;

/// The DNS servers from whose answers pods learn the addresses of names, and for how long.
#[derive(Clone, Debug, clap::Args)]
pub struct Dns {
    /// Address or block of DNS servers whose answers in captures count, besides those of the state: `names.servers` in the configuration of
    /// `run`. May be repeated
    #[arg(long = "dns-server", value_name = "ADDRESS", value_parser = NameSettings::server)]
    pub dns_servers: Vec<IpNet>,
    /// Time for which an address from such an answer is valid after its TTL: `names.grace` in the configuration of `run`
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = NameSettings::grace)]
    pub dns_grace: Duration,
}

impl Dns {
    /// Returns the settings of rules that name domains.
    pub fn settings(&self, server_names: ServerNameCheck) -> NameSettings {
        NameSettings { servers: self.dns_servers.clone(), grace: self.dns_grace, server_names }
    }
}
