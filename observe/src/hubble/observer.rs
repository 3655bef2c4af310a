//! Package `observer`: requests to a node and its answers.
#![allow(
    missing_docs,
    reason = "fields and values have the names of the protocol, whose documentation tells what they are"
)]

use super::Timestamp;
use super::flow::{Flow, FlowFilter, LostEvent};

/// Name of the gRPC service.
pub const NAME: &str = "observer.Observer";

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GetFlowsRequest {
    #[prost(uint64, tag = "1")]
    pub number: u64,
    #[prost(bool, tag = "3")]
    pub follow: bool,
    #[prost(message, repeated, tag = "5")]
    pub blacklist: Vec<FlowFilter>,
    #[prost(message, repeated, tag = "6")]
    pub whitelist: Vec<FlowFilter>,
    #[prost(message, optional, tag = "7")]
    pub since: Option<Timestamp>,
    #[prost(message, optional, tag = "8")]
    pub until: Option<Timestamp>,
    #[prost(bool, tag = "9")]
    pub first: bool,
    #[prost(message, optional, tag = "10")]
    pub field_mask: Option<FieldMask>,
}

/// Names of the fields to send, as `google.protobuf.FieldMask`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FieldMask {
    #[prost(string, repeated, tag = "1")]
    pub paths: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct GetFlowsResponse {
    #[prost(oneof = "ResponseType", tags = "1, 3")]
    pub response: Option<ResponseType>,
    #[prost(string, tag = "1000")]
    pub node_name: String,
    #[prost(message, optional, tag = "1001")]
    pub time: Option<Timestamp>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ResponseType {
    #[prost(message, tag = "1")]
    Flow(Box<Flow>),
    #[prost(message, tag = "3")]
    LostEvents(LostEvent),
}

/// A request without fields: `ServerStatusRequest`, `GetNodesRequest`, `GetNamespacesRequest`, `peer.NotifyRequest`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NoFields {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ServerStatusResponse {
    #[prost(uint64, tag = "1")]
    pub num_flows: u64,
    #[prost(uint64, tag = "2")]
    pub max_flows: u64,
    #[prost(uint64, tag = "3")]
    pub seen_flows: u64,
    #[prost(uint64, tag = "4")]
    pub uptime_ns: u64,
    /// Number of connected nodes, as `google.protobuf.UInt32Value`. `None` if not reported.
    #[prost(message, optional, tag = "5")]
    pub num_connected_nodes: Option<u32>,
    /// Number of unavailable nodes, as `google.protobuf.UInt32Value`. `None` if not reported.
    #[prost(message, optional, tag = "6")]
    pub num_unavailable_nodes: Option<u32>,
    #[prost(string, tag = "8")]
    pub version: String,
    #[prost(double, tag = "9")]
    pub flows_rate: f64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GetNodesResponse {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<Node>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Node {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(string, tag = "3")]
    pub address: String,
    #[prost(enumeration = "NodeState", tag = "4")]
    pub state: i32,
    #[prost(message, optional, tag = "5")]
    pub tls: Option<Tls>,
    #[prost(uint64, tag = "6")]
    pub uptime_ns: u64,
    #[prost(uint64, tag = "7")]
    pub num_flows: u64,
    #[prost(uint64, tag = "8")]
    pub max_flows: u64,
    #[prost(uint64, tag = "9")]
    pub seen_flows: u64,
}

/// Connection state of a node, as in `relay.NodeState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum NodeState {
    Unknown = 0,
    Connected = 1,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Tls {
    #[prost(bool, tag = "1")]
    pub enabled: bool,
    #[prost(string, tag = "2")]
    pub server_name: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GetNamespacesResponse {
    #[prost(message, repeated, tag = "1")]
    pub namespaces: Vec<Namespace>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Namespace {
    #[prost(string, tag = "1")]
    pub cluster: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
}
