//! Package `peer`: the list of nodes, which Hubble Relay requests.
#![allow(
    missing_docs,
    reason = "fields and values have the names of the protocol, whose documentation tells what they are"
)]

/// Name of the gRPC service.
pub const NAME: &str = "peer.Peer";

/// A node and its change. `tls` is `None` without TLS. `address` is empty if the relay cannot reach the node.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ChangeNotification {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub address: String,
    #[prost(enumeration = "ChangeType", tag = "3")]
    pub r#type: i32,
    #[prost(message, optional, tag = "4")]
    pub tls: Option<Tls>,
}

/// The name in the node's certificate, which the relay verifies.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Tls {
    #[prost(string, tag = "1")]
    pub server_name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum ChangeType {
    Unknown = 0,
    PeerAdded = 1,
    PeerDeleted = 2,
    PeerUpdated = 3,
}
