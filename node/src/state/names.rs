//! The DNS servers from whose answers pods learn addresses of domain names.

use std::sync::Arc;

use bulkhead_answers::run::{self, NameSettings};
use bulkhead_answers::services::Adapter;
use bulkhead_classifier::AddressSet;

use super::LiveState;

/// The trusted DNS servers, and the settings of rules that name domains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NameServers {
    /// The addresses of all trusted servers, including those in `settings`.
    pub servers: AddressSet,
    pub settings: NameSettings,
}

impl LiveState {
    /// Sets the configured DNS servers and grace time of rules that name domains. They apply from the next [`Self::take_services`] on.
    pub(crate) fn learn_names(&mut self, settings: NameSettings) {
        self.name_settings = settings;
    }

    /// Updates `names` by the tables, Services and pods of the state: finds the trusted DNS servers if rules of any of the node's pods name
    /// domains. Returns whether `names` changed.
    pub(super) fn follow_names(&mut self) -> bool {
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
