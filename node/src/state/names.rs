//! The DNS servers whose answers rules about domain names believe.

use std::sync::Arc;

use bulkhead_answers::run::{self, NameSettings};
use bulkhead_answers::services::Adapter;
use bulkhead_classifier::AddressSet;

use super::LiveState;

/// Whose DNS answers teach names, and for how long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NameServers {
    /// Addresses of the trusted servers.
    pub servers: AddressSet,
    pub settings: NameSettings,
}

impl LiveState {
    /// Configures how pods' DNS answers are read.
    pub(crate) fn learn_names(&mut self, settings: NameSettings) {
        self.name_settings = settings;
        self.follow_names();
    }

    /// Finds the DNS servers that are trusted, if rules of any of the node's pods name domains. Returns whether they changed.
    pub(crate) fn follow_names(&mut self) -> bool {
        let names = run::has_names(&self.tables, self.audit.as_deref()).then(|| {
            let (resolver, settings) = (self.services.as_ref().map(Adapter::resolver), &self.name_settings);
            let servers = run::dns_servers(&self.pipeline, resolver, &self.node, settings);
            Arc::new(NameServers { servers, settings: settings.clone() })
        });
        let has_changed = names != self.names;
        self.names = names;
        has_changed
    }
}
