//! What load balancers are told of a node: whether it has endpoints of a Service whose external policy is Local.

use serde::Serialize;

use crate::object::ServiceName;

/// The health check of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The Service.
    pub service: ServiceName,
    /// The port at which the node is asked.
    pub port: u16,
    /// How many addresses of this node are ready for it, of IPv4.
    pub ipv4: usize,
    /// The same of IPv6. A pod with two addresses is in both.
    pub ipv6: usize,
}

/// The answer over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthAnswer {
    /// 200, or 503 where the balancer is to leave the node. Endpoints that end do not count, and serve until it has.
    pub status: u16,
    /// The value of the header `X-Load-Balancing-Endpoint-Weight`.
    pub weight: usize,
    /// The body, to be written as JSON.
    pub body: HealthBody,
}

/// The body of an answer, as kube-proxy writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthBody {
    /// The Service.
    pub service: ServiceName,
    /// How many endpoints of this node are ready.
    pub local_endpoints: usize,
    /// Whether the node's proxy works.
    pub service_proxy_healthy: bool,
}

impl HealthCheck {
    /// The answer, while the node's proxy is healthy or not.
    pub fn answer(&self, is_proxy_healthy: bool) -> HealthAnswer {
        // The families' endpoints are the same pods; where one lags behind the other has them already.
        let local_endpoints = self.ipv4.max(self.ipv6);
        let status = if local_endpoints > 0 && is_proxy_healthy { 200 } else { 503 };
        let service = self.service.clone();
        let body = HealthBody { service, local_endpoints, service_proxy_healthy: is_proxy_healthy };
        HealthAnswer { status, weight: local_endpoints, body }
    }
}
