//! The ports at which load balancers check this node.

use super::Resolver;
use crate::service::HealthCheck;

impl Resolver {
    /// Returns the health check that this node answers at `port`. `None` if no Service requests a health check at this port.
    pub fn health_check(&self, port: u16) -> Option<&HealthCheck> {
        let (rank, ()) = self.health_checks.winner(&port)?;
        self.services.get(rank.owner().service()?)?.health_check.as_ref().map(|(_, check)| check)
    }

    /// Returns the ports at which load balancers check this node, in no particular order.
    pub fn health_check_ports(&self) -> impl Iterator<Item = u16> {
        self.health_checks.keys().copied()
    }
}
