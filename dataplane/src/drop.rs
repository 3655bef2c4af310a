//! Drop reasons: one closed list, with a counter for each.
//!
//! The place that drops a packet sets its reason, which never changes afterwards. The names are part of the interface (JSON, metric labels,
//! capture comments) and never change.

use std::fmt;

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:literal $text:literal;)+) => {
        /// The reason why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl DropReason {
            /// Every reason, in the order of the counters.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Returns the stable `snake_case` name used in JSON and metric labels.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Returns a sentence that explains the reason to users.
            pub const fn describe(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }
    };
}

// Session files contain positions in this list: new reasons come last.
drop_reasons! {
    /// No stage has judged the packet. The initial value of every packet; no packet should leave the pipeline with it.
    Unjudged "unjudged" "No stage of the pipeline judged the packet, which is a bug.";
    /// The receiving port is not in the snapshot.
    UnknownPort "unknown_port" "The packet came in on a port that the snapshot does not know.";
    /// The link header is cut short.
    LinkTruncated "link_truncated" "The link-layer header is cut short.";
    /// VLAN tags (IEEE 802.1Q, 802.1ad) are not removed, because policy only judges the outer packet.
    VlanTagged "vlan_tagged" "The frame carries a VLAN tag, which pods' ports do not have.";
    /// The frame is neither IPv4, IPv6 nor ARP.
    UnknownEthertype "unknown_ethertype" "The frame is neither IPv4, IPv6 nor ARP.";
    /// An ARP message that breaks RFC 826 for Ethernet and IPv4.
    ArpMalformed "arp_malformed" "The ARP message is not well formed.";
    /// The sender of the ARP message does not own the address that the message announces.
    ArpSpoofed "arp_spoofed" "The ARP message announces an address that its sender does not own.";
    /// A neighbour discovery message that RFC 4861 requires receivers to discard.
    NdMalformed "nd_malformed" "The neighbour discovery message fails a check of RFC 4861 (hop limit 255, code 0, length, options).";
    /// The sender of the neighbour discovery message does not own the address that the message announces.
    NdSpoofed "nd_spoofed" "The neighbour discovery message announces an address that its sender does not own.";
    /// A router advertisement or redirect from a pod (the class of CVE-2020-10749).
    NdFromPod "nd_router_message_from_pod" "A pod sent a router advertisement or a redirect; only routers may.";
    /// An IPv4 header that RFC 791 does not allow.
    Ipv4Malformed "ipv4_malformed" "The IPv4 header is cut short or inconsistent.";
    /// An IPv6 header or extension header chain that RFC 8200 does not allow.
    Ipv6Malformed "ipv6_malformed" "The IPv6 header or its extension headers are cut short or inconsistent.";
    /// The packet has more than 8 IPv6 extension headers, the parser's limit.
    Ipv6ExtensionLimit "ipv6_extension_limit" "The packet has more than 8 IPv6 extension headers.";
    /// The packet is an IPv6 jumbogram (RFC 2675), which does not occur on Ethernet.
    Ipv6Jumbogram "ipv6_jumbogram" "The packet is an IPv6 jumbogram.";
    /// IPv4 options LSRR and SSRR (RFC 7126), and IPv6 routing headers of type 0 (RFC 5095) or with segments left.
    SourceRouted "source_routed" "The packet is source-routed, so its destination address is not its final destination.";
    /// The transport header is incomplete.
    L4Truncated "l4_truncated" "The transport header is cut short.";
    /// The transport header is inconsistent.
    L4Malformed "l4_malformed" "The transport header is inconsistent.";
    /// A first fragment without the whole transport header (RFC 1858, RFC 3128, RFC 7112).
    FragmentTiny "fragment_tiny" "The first fragment does not hold the whole transport header.";
    /// The transport checksum is wrong, in a packet that would begin, change or end a session.
    BadChecksum "bad_checksum" "The packet would change a session, and its transport checksum is wrong.";
    /// A TCP segment that would end a connection but is outside of its sequence window (with `tcp_window: strict`).
    TcpOutOfWindow "tcp_out_of_window" "The TCP segment would end a connection and is outside of its sequence window.";
    /// The fragment's offset or length is impossible.
    FragmentMalformed "fragment_malformed" "The fragment's offset or length is impossible.";
    /// The fragment overlaps another one of its datagram (RFC 5722, here for IPv4 too).
    FragmentOverlap "fragment_overlap" "The fragment overlaps another one of its datagram.";
    /// A later fragment of a datagram whose first fragment was not seen, so that no verdict is known.
    FragmentWithoutFirst "fragment_without_first" "The first fragment of the datagram was not seen, so this one cannot be judged.";
    /// The fragment memory is full.
    FragmentTableFull "fragment_table_full" "The table of fragmented datagrams is full.";
    /// The datagram has more fragments than the table stores.
    FragmentLimit "fragment_limit" "The datagram has more than 64 fragments.";
    /// A source address that no host uses or that routers must not forward.
    MartianSource "martian_source" "The source address is unspecified, loopback or multicast.";
    /// A destination address that must not appear on a link.
    MartianDestination "martian_destination" "The destination address is unspecified or loopback.";
    /// The destination is multicast or broadcast, which is not forwarded.
    Multicast "multicast" "The destination is multicast or broadcast, which is not forwarded.";
    /// The source address or source MAC address does not belong to the receiving port.
    SpoofedSource "spoofed_source" "The source address does not belong to the port that the packet came in on.";
    /// A packet from the uplink with a link-local source. No router forwards those (RFC 3927 §7, RFC 4291 §2.5.6).
    LinkLocalSource "link_local_source" "The packet from the uplink has a link-local source, and neither answers a conversation nor is for the node's own link-local address.";
    /// ICMP redirects, and the deprecated source quench (RFC 6633), would change routes and rates of other hosts.
    IcmpRedirect "icmp_redirect" "ICMP redirects and source quenches are not forwarded.";
    /// The packet quoted in the ICMP error belongs to no session.
    IcmpErrorWithoutSession "icmp_error_without_session" "The packet quoted in the ICMP error belongs to no session.";
    /// No route matches the destination address.
    NoRoute "no_route" "There is no route to the destination.";
    /// The packet would leave through the port that received it.
    BackToSender "back_to_sender" "The packet would leave through the uplink or host port that it came in on.";
    /// The TTL or hop limit is used up.
    TtlExpired "ttl_expired" "The TTL or hop limit does not allow another hop.";
    /// Neither the receiving port nor the output port has a table for the packet.
    TableMissing "table_missing" "The port towards the destination has no policy table, so nothing may pass.";
    /// The policy denies the packet.
    PolicyDenied "policy_denied" "Policy does not allow the packet.";
    /// A TCP segment that belongs to no session and does not open one.
    TcpWithoutSession "tcp_without_session" "The TCP segment belongs to no session and may not start one.";
    /// An echo reply, or an SCTP packet other than INIT, that belongs to no session.
    ReplyWithoutSession "reply_without_session" "The echo reply or SCTP packet belongs to no session and may not start one.";
    /// The Service has no endpoints. The sender is notified.
    NoEndpoint "no_endpoint" "The Service has no usable endpoint on any node.";
    /// `externalTrafficPolicy` or `internalTrafficPolicy` is Local, and all usable endpoints are on other nodes.
    NoLocalEndpoint "no_local_endpoint" "The Service has usable endpoints, but none on this node, and its traffic policy is Local.";
    /// The client is in none of the Service's `spec.loadBalancerSourceRanges`.
    ServiceSourceRange "service_source_range" "The client is in none of the loadBalancerSourceRanges of the Service.";
    /// The destination is a cluster address of a Service with a port that the Service does not have. The sender is notified.
    UnknownServicePort "unknown_service_port" "The Service has no such port.";
    /// The destination is in the service CIDR but belongs to no Service. Forwarding it would loop over the default route.
    UnknownServiceAddress "unknown_service_address" "No Service has this address of the service CIDR.";
    /// All source ports towards the backend are in use, or the node has no source address.
    SourcePortsExhausted "source_ports_exhausted" "The source of the connection must be rewritten, and no source port towards the backend is free.";
    /// The pod holds most of the source ports towards the destination, in a sample of them. The rest is left to other pods.
    SourcePortsQuota "source_ports_quota" "The pod holds most of the source ports towards the destination, and the rest is left to other pods.";
    /// Masquerading is on, but the packet would leave the node with a pod's address, because the node has no address of its family.
    NotMasqueraded "not_masqueraded" "The packet would leave the node with a pod's address: the node has no address of its family, or the protocol has no ports.";
    /// A pod's datagram would leave the node for the UDP port of the tunnel between nodes. If the node masqueraded it, the tunnels of other nodes would
    /// believe it, as it would have a node's address.
    TunnelPort "tunnel_port" "A pod may not send to the UDP port of the tunnel between nodes (vxlan.port).";
    /// A direct connection has the addresses and ports of a translated one at its backend, so their answers would be indistinguishable.
    SessionClash "session_clash" "A connection to a Service has the same addresses and ports at its backend.";
    /// All sessions are in use and none may be ended early.
    SessionTableFull "session_table_full" "All sessions are in use.";
    /// The port has used its share of the sessions and none of its own may be ended early.
    SessionQuota "session_quota" "The port that the packet came in on has used its share of the sessions.";
    /// A unicast frame on the uplink for another host, flooded by a switch.
    OtherHost "other_host" "The frame was sent to the MAC address of another machine.";
    /// The output port has no interface.
    PortDown "port_down" "The port towards the destination has no interface at the moment.";
    /// The packet exceeds the MTU of the next link and must not be fragmented.
    PacketTooBig "packet_too_big" "The packet is longer than the MTU of the port that it would leave through, and may not be fragmented.";
    /// The packet memory is exhausted.
    NoBuffer "no_buffer" "There was no packet buffer left for the fragments of the packet.";
    /// No host answered for the next hop's address.
    NoNeighbour "no_neighbour" "No host on the link answered for the address of the next hop.";
    /// The bounded queue of packets waiting for MAC addresses is full.
    NeighbourQueueFull "neighbour_queue_full" "Too many packets wait for the MAC addresses of neighbours.";
    /// The port exceeded its rate of answers to ARP and neighbour discovery.
    NeighbourRate "neighbour_rate" "The port exceeded the rate limit for answers to ARP requests and neighbour solicitations.";
    /// The interface transmits more slowly than packets arrive.
    TxFull "tx_full" "The transmit queue of the port is full.";
    /// Another worker owns the packet's session or output port, and the queue to it is full.
    WorkerBusy "worker_busy" "The worker that owns the packet's session or output port is overloaded.";
    /// The destination is one of the node's pod addresses, and no pod has it, or its pod's interface is gone. The sender is notified.
    NoSuchPod "no_such_pod" "The destination is an address of this node's pods, and no pod has it.";
    /// A connection was allowed by name, and its client names a server that the policy does not allow, or none.
    ServerName "server_name" "The connection was allowed by name, and the client names another server in its TLS or QUIC hello, or none.";
}

impl DropReason {
    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// Returns the reason's position in [`DropReason::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_reason_is_found_at_its_own_index() {
        for (at, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), at);
        }
    }

    #[test]
    fn names_are_snake_case_and_differ() {
        let names: BTreeSet<_> = DropReason::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), DropReason::COUNT);
        for name in names {
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{name}");
        }
    }

    #[test]
    fn descriptions_are_one_sentence() {
        for reason in DropReason::ALL {
            let text = reason.describe();
            assert!(text.ends_with('.') && text.starts_with(|c: char| c.is_ascii_uppercase()), "{text}");
        }
    }
}
