//! Package `grpc.health.v1`: health of services.
#![allow(
    missing_docs,
    reason = "fields and values have the names of the protocol, whose documentation tells what they are"
)]

/// Name of the gRPC service.
pub const NAME: &str = "grpc.health.v1.Health";

/// Name that Hubble's clients use for the observer in health checks. Differs from the service's own name.
pub const OBSERVER: &str = "hubble.server.Observer";

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub service: String,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}
