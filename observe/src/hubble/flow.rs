//! Package `flow`: flows and their filters.
#![allow(
    missing_docs,
    reason = "fields and values have the names of the protocol, whose documentation tells what they are"
)]

use super::Timestamp;

/// Verdict on a packet or session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Flow {
    #[prost(message, optional, tag = "1")]
    pub time: Option<Timestamp>,
    #[prost(enumeration = "Verdict", tag = "2")]
    pub verdict: i32,
    /// Number of the drop reason, as in `drop_reason_desc`.
    #[prost(uint32, tag = "3")]
    pub drop_reason: u32,
    #[prost(message, optional, tag = "5")]
    pub ip: Option<Ip>,
    #[prost(message, optional, tag = "6")]
    pub l4: Option<Layer4>,
    #[prost(message, optional, tag = "8")]
    pub source: Option<Endpoint>,
    #[prost(message, optional, tag = "9")]
    pub destination: Option<Endpoint>,
    #[prost(enumeration = "FlowType", tag = "10")]
    pub r#type: i32,
    #[prost(string, tag = "11")]
    pub node_name: String,
    #[prost(string, repeated, tag = "14")]
    pub destination_names: Vec<String>,
    #[prost(message, optional, tag = "19")]
    pub event_type: Option<EventType>,
    #[prost(enumeration = "TrafficDirection", tag = "22")]
    pub traffic_direction: i32,
    /// A number of `flow.DropReason`, which has too many values to repeat here.
    #[prost(int32, tag = "25")]
    pub drop_reason_desc: i32,
    /// Whether the packet is a reply, as `google.protobuf.BoolValue`. `None` if unknown.
    #[prost(message, optional, tag = "26")]
    pub is_reply: Option<bool>,
    #[prost(string, tag = "100000")]
    pub summary: String,
    #[prost(message, repeated, tag = "21001")]
    pub egress_allowed_by: Vec<Policy>,
    #[prost(message, repeated, tag = "21002")]
    pub ingress_allowed_by: Vec<Policy>,
    #[prost(message, repeated, tag = "21004")]
    pub egress_denied_by: Vec<Policy>,
    #[prost(message, repeated, tag = "21005")]
    pub ingress_denied_by: Vec<Policy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Verdict {
    Unknown = 0,
    Forwarded = 1,
    Dropped = 2,
    Audit = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum FlowType {
    Unknown = 0,
    L3L4 = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum TrafficDirection {
    Unknown = 0,
    Ingress = 1,
    Egress = 2,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Ip {
    #[prost(string, tag = "1")]
    pub source: String,
    #[prost(string, tag = "2")]
    pub destination: String,
    #[prost(enumeration = "IpVersion", tag = "3")]
    pub ip_version: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum IpVersion {
    NotUsed = 0,
    V4 = 1,
    V6 = 2,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Layer4 {
    #[prost(oneof = "Protocol", tags = "1, 2, 3, 4, 5")]
    pub protocol: Option<Protocol>,
}

#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Protocol {
    #[prost(message, tag = "1")]
    Tcp(Tcp),
    #[prost(message, tag = "2")]
    Udp(Ports),
    #[prost(message, tag = "3")]
    Icmpv4(Icmp),
    #[prost(message, tag = "4")]
    Icmpv6(Icmp),
    #[prost(message, tag = "5")]
    Sctp(Ports),
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Tcp {
    #[prost(uint32, tag = "1")]
    pub source_port: u32,
    #[prost(uint32, tag = "2")]
    pub destination_port: u32,
    #[prost(message, optional, tag = "3")]
    pub flags: Option<TcpFlags>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct TcpFlags {
    #[prost(bool, tag = "1")]
    pub fin: bool,
    #[prost(bool, tag = "2")]
    pub syn: bool,
    #[prost(bool, tag = "3")]
    pub rst: bool,
    #[prost(bool, tag = "4")]
    pub psh: bool,
    #[prost(bool, tag = "5")]
    pub ack: bool,
    #[prost(bool, tag = "6")]
    pub urg: bool,
    #[prost(bool, tag = "7")]
    pub ece: bool,
    #[prost(bool, tag = "8")]
    pub cwr: bool,
    #[prost(bool, tag = "9")]
    pub ns: bool,
}

impl TcpFlags {
    /// Returns the flags in the order of the TCP header: FIN is bit 0, NS is bit 8.
    #[must_use]
    pub fn bits(self) -> u16 {
        let flags = [self.fin, self.syn, self.rst, self.psh, self.ack, self.urg, self.ece, self.cwr, self.ns];
        flags.into_iter().enumerate().fold(0, |bits, (at, is_set)| bits | u16::from(is_set) << at)
    }

    /// Parses the flags byte of a TCP header.
    #[must_use]
    pub fn of(byte: u8) -> Self {
        let [fin, syn, rst, psh, ack, urg, ece, cwr] = std::array::from_fn(|at| byte >> at & 1 == 1);
        Self { fin, syn, rst, psh, ack, urg, ece, cwr, ns: false }
    }
}

/// Ports of a UDP or SCTP packet.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Ports {
    #[prost(uint32, tag = "1")]
    pub source_port: u32,
    #[prost(uint32, tag = "2")]
    pub destination_port: u32,
}

/// Type and code of an ICMP or ICMPv6 packet.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Icmp {
    #[prost(uint32, tag = "1")]
    pub r#type: u32,
    #[prost(uint32, tag = "2")]
    pub code: u32,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Endpoint {
    #[prost(uint32, tag = "2")]
    pub identity: u32,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(string, repeated, tag = "4")]
    pub labels: Vec<String>,
    #[prost(string, tag = "5")]
    pub pod_name: String,
    #[prost(message, repeated, tag = "6")]
    pub workloads: Vec<Workload>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Workload {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub kind: String,
}

/// Type of the event behind a flow, as in `flow.CiliumEventType`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct EventType {
    #[prost(int32, tag = "1")]
    pub r#type: i32,
    #[prost(int32, tag = "2")]
    pub sub_type: i32,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Policy {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(string, tag = "5")]
    pub kind: String,
}

/// Events that a client did not get.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct LostEvent {
    #[prost(enumeration = "LostEventSource", tag = "1")]
    pub source: i32,
    #[prost(uint64, tag = "2")]
    pub num_events_lost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum LostEventSource {
    Unknown = 0,
    PerfEventRingBuffer = 1,
    ObserverEventsQueue = 2,
}

/// A filter of flows. A flow must match one value of each non-empty field. Other fields are rejected ([`super::fields`]).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FlowFilter {
    #[prost(string, repeated, tag = "1")]
    pub source_ip: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub source_pod: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    pub destination_ip: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub destination_pod: Vec<String>,
    #[prost(int32, repeated, tag = "5")]
    pub verdict: Vec<i32>,
    #[prost(message, repeated, tag = "6")]
    pub event_type: Vec<EventTypeFilter>,
    #[prost(string, repeated, tag = "7")]
    pub source_fqdn: Vec<String>,
    #[prost(string, repeated, tag = "8")]
    pub destination_fqdn: Vec<String>,
    #[prost(string, repeated, tag = "9")]
    pub http_status_code: Vec<String>,
    #[prost(string, repeated, tag = "10")]
    pub source_label: Vec<String>,
    #[prost(string, repeated, tag = "11")]
    pub destination_label: Vec<String>,
    #[prost(string, repeated, tag = "12")]
    pub protocol: Vec<String>,
    #[prost(string, repeated, tag = "13")]
    pub source_port: Vec<String>,
    #[prost(string, repeated, tag = "14")]
    pub destination_port: Vec<String>,
    #[prost(bool, repeated, tag = "15")]
    pub reply: Vec<bool>,
    #[prost(string, repeated, tag = "18")]
    pub dns_query: Vec<String>,
    #[prost(uint32, repeated, tag = "19")]
    pub source_identity: Vec<u32>,
    #[prost(uint32, repeated, tag = "20")]
    pub destination_identity: Vec<u32>,
    #[prost(string, repeated, tag = "21")]
    pub http_method: Vec<String>,
    #[prost(string, repeated, tag = "22")]
    pub http_path: Vec<String>,
    #[prost(message, repeated, tag = "23")]
    pub tcp_flags: Vec<TcpFlags>,
    #[prost(string, repeated, tag = "24")]
    pub node_name: Vec<String>,
    #[prost(int32, repeated, tag = "25")]
    pub ip_version: Vec<i32>,
    #[prost(message, repeated, tag = "26")]
    pub source_workload: Vec<Workload>,
    #[prost(message, repeated, tag = "27")]
    pub destination_workload: Vec<Workload>,
    #[prost(int32, repeated, tag = "30")]
    pub traffic_direction: Vec<i32>,
    #[prost(string, repeated, tag = "31")]
    pub http_url: Vec<String>,
    #[prost(int32, repeated, tag = "33")]
    pub drop_reason_desc: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct EventTypeFilter {
    #[prost(int32, tag = "1")]
    pub r#type: i32,
    /// Whether to compare `sub_type`.
    #[prost(bool, tag = "2")]
    pub match_sub_type: bool,
    #[prost(int32, tag = "3")]
    pub sub_type: i32,
}
