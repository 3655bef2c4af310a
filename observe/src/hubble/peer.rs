//! Package `peer`: which nodes there are. Hubble's relay asks a node for them.
#![allow(
    missing_docs,
    reason = "fields and values have the names of the protocol, whose documentation tells what they are"
)]

/// The service's name.
pub const NAME: &str = "peer.Peer";

/// A node, and what has become of it. Without TLS there is no `tls`. What a relay cannot reach has no address.
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

/// How a relay makes sure of a node: the name that its certificate has.
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
