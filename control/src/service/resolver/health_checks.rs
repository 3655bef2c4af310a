//! The ports at which load balancers check this node.

use super::Resolver;
use crate::service::HealthCheck;

impl Resolver {
    /// The health check at this port; none where nothing is to listen there.
    pub fn health_check(&self, port: u16) -> Option<&HealthCheck> {
        let (rank, ()) = self.health_checks.winner(&port)?;
        self.services.get(rank.owner().service()?)?.health_check.as_ref().map(|(_, check)| check)
    }

    /// All ports at which load balancers ask, in no particular order.
    pub fn health_check_ports(&self) -> impl Iterator<Item = u16> {
        self.health_checks.keys().copied()
    }
}
