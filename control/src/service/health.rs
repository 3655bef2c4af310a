//! Answers to load balancers' health checks: whether this node has ready endpoints of a Service with external traffic policy Local.

use serde::Serialize;

use crate::object::ServiceName;

/// A Service's health check on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The checked Service.
    pub service: ServiceName,
    /// The node's TCP port at which load balancers send the check.
    pub port: u16,
    /// Number of ready IPv4 endpoint addresses on this node.
    pub ipv4: usize,
    /// Number of ready IPv6 endpoint addresses on this node. A dual-stack pod counts in both.
    pub ipv6: usize,
}

/// The HTTP response to a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthAnswer {
    /// 200, or 503 if the load balancer should stop using this node. Terminating endpoints do not count, but still serve.
    pub status: u16,
    /// The value of the header `X-Load-Balancing-Endpoint-Weight`.
    pub weight: usize,
    /// The response body, which is sent as JSON.
    pub body: HealthBody,
}

/// A response body in kube-proxy's format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthBody {
    /// The checked Service.
    pub service: ServiceName,
    /// Number of ready endpoints on this node.
    pub local_endpoints: usize,
    /// Whether this node's service proxy is healthy.
    pub service_proxy_healthy: bool,
}

impl HealthCheck {
    /// Builds the response. An unhealthy proxy always gives status 503.
    pub fn answer(&self, is_proxy_healthy: bool) -> HealthAnswer {
        // A dual-stack pod counts once. The larger number is the more current one if one family's slice lags.
        let local_endpoints = self.ipv4.max(self.ipv6);
        let status = if local_endpoints > 0 && is_proxy_healthy { 200 } else { 503 };
        let service = self.service.clone();
        let body = HealthBody { service, local_endpoints, service_proxy_healthy: is_proxy_healthy };
        HealthAnswer { status, weight: local_endpoints, body }
    }
}
