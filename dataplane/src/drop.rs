//! Why a packet did not pass: one closed list, one counter each.
//!
//! A packet error is not a `Result` that travels and gets new meanings on the way: it is one value of this enum, given
//! where the packet is lost. The names are an interface (JSON, metric labels, capture comments): they do not change.

use std::fmt;

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:literal $text:literal;)+) => {
        /// The reason for which a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl DropReason {
            /// Every reason, in the order of the counters.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The stable `snake_case` name, as JSON and metric labels carry it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// One sentence for people.
            pub const fn describe(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }
    };
}

drop_reasons! {
    /// No stage has judged the packet yet; every packet starts here, and none may leave with it.
    Unjudged "unjudged" "No stage of the pipeline judged the packet, which is a fault of the program.";
    /// The port that the packet came in on is not in the snapshot.
    UnknownPort "unknown_port" "The packet came in on a port that the snapshot does not know.";
    /// The link header is cut short.
    LinkTruncated "link_truncated" "The link-layer header is cut short.";
    /// IEEE 802.1Q and 802.1ad tags are not unwrapped: policy is on the outer packet only.
    VlanTagged "vlan_tagged" "The frame carries a VLAN tag, which pods' ports do not have.";
    /// Neither IPv4, IPv6 nor ARP.
    UnknownEthertype "unknown_ethertype" "The frame is neither IPv4, IPv6 nor ARP.";
    /// ARP that breaks RFC 826 for Ethernet and IPv4.
    ArpMalformed "arp_malformed" "The ARP message is not well formed.";
    /// ARP in the name of somebody else.
    ArpSpoofed "arp_spoofed" "The ARP message speaks for an address that its sender does not own.";
    /// Neighbour discovery that RFC 4861 tells a receiver to discard.
    NdMalformed "nd_malformed" "The neighbour discovery message fails a check of RFC 4861 (hop limit 255, code 0, length, options).";
    /// Neighbour discovery in the name of somebody else.
    NdSpoofed "nd_spoofed" "The neighbour discovery message speaks for an address that its sender does not own.";
    /// Router advertisement or redirect from a pod (the class of CVE-2020-10749).
    NdFromPod "nd_router_message_from_pod" "A pod sent a router advertisement or a redirect; only routers may.";
    /// IPv4 header that RFC 791 does not allow.
    Ipv4Malformed "ipv4_malformed" "The IPv4 header is cut short or contradicts itself.";
    /// IPv6 header or extension header chain that RFC 8200 does not allow.
    Ipv6Malformed "ipv6_malformed" "The IPv6 header or its extension headers are cut short or contradict themselves.";
    /// More extension headers than are walked.
    Ipv6ExtensionLimit "ipv6_extension_limit" "The packet has more than 8 IPv6 extension headers.";
    /// Jumbograms (RFC 2675) do not occur on Ethernet.
    Ipv6Jumbogram "ipv6_jumbogram" "The packet is an IPv6 jumbogram.";
    /// LSRR, SSRR (RFC 7126), an IPv6 routing header of type 0 (RFC 5095) or one that is not used up.
    SourceRouted "source_routed" "The packet names its own route, so that its destination address is not where it ends.";
    /// The transport header is not all there.
    L4Truncated "l4_truncated" "The transport header is cut short.";
    /// The transport header contradicts itself.
    L4Malformed "l4_malformed" "The transport header contradicts itself.";
    /// First fragment without the whole transport header (RFC 1858, RFC 3128, RFC 7112).
    FragmentTiny "fragment_tiny" "The first fragment does not hold the whole transport header.";
    /// The transport checksum of a packet that would begin, change or end a session.
    BadChecksum "bad_checksum" "The packet would change a session, and its transport checksum is wrong.";
    /// A TCP segment that would end a connection and lies where none of it can be (with `tcp_window: strict`).
    TcpOutOfWindow "tcp_out_of_window" "The TCP segment would end a connection and is not where a segment of it can be.";
    /// Fragment that no datagram can contain.
    FragmentMalformed "fragment_malformed" "The fragment's offset or length is impossible.";
    /// Overlapping fragments (RFC 5722, here for IPv4 too).
    FragmentOverlap "fragment_overlap" "The fragment overlaps another one of its datagram.";
    /// A later fragment whose first fragment was not seen.
    FragmentWithoutFirst "fragment_without_first" "No first fragment of the datagram was seen, so nothing says whether it may pass.";
    /// The fragment memory is full.
    FragmentTableFull "fragment_table_full" "Too many fragmented datagrams are under way.";
    /// The datagram has more fragments than are remembered.
    FragmentLimit "fragment_limit" "The datagram has more than 64 fragments.";
    /// A source that never sends, or that no router may forward.
    MartianSource "martian_source" "The source address is unspecified, loopback or multicast.";
    /// A destination that is never on a wire.
    MartianDestination "martian_destination" "The destination address is unspecified or loopback.";
    /// Multicast and broadcast are not forwarded.
    Multicast "multicast" "The destination is multicast or broadcast, which is not forwarded.";
    /// The source address or source MAC is not the port's own.
    SpoofedSource "spoofed_source" "The source address does not belong to the port that the packet came in on.";
    /// RFC 3927 §7, RFC 4291 §2.5.6: no router forwards from a link-local address.
    LinkLocalSource "link_local_source" "The packet from the uplink has a link-local source, and neither answers a conversation nor is for the node's own link-local address.";
    /// ICMP redirects (and the deprecated source quench, RFC 6633) change routes and speeds of others.
    IcmpRedirect "icmp_redirect" "ICMP redirects and source quenches are not forwarded.";
    /// An ICMP error about nothing that was sent.
    IcmpErrorWithoutSession "icmp_error_without_session" "The packet inside the ICMP error belongs to no session that it could have been sent by.";
    /// No route to the destination.
    NoRoute "no_route" "There is no route to the destination.";
    /// The packet would leave through the port that it came in on.
    BackToSender "back_to_sender" "The packet would leave through the uplink or host port that it came in on.";
    /// TTL or hop limit used up.
    TtlExpired "ttl_expired" "The TTL or hop limit does not allow another hop.";
    /// Neither the port that the packet came in on nor the one that it would leave through has a table for it.
    TableMissing "table_missing" "The port towards the destination has no policy table, so nothing may pass.";
    /// Policy says no.
    PolicyDenied "policy_denied" "Policy does not allow the packet.";
    /// A TCP segment in the middle of nowhere.
    TcpWithoutSession "tcp_without_session" "The TCP segment belongs to no session and may not start one.";
    /// An echo reply, or an SCTP packet that is not the first of an association, in the middle of nowhere.
    ReplyWithoutSession "reply_without_session" "The echo reply or SCTP packet belongs to no session and may not start one.";
    /// A Service without endpoints: its sender is told.
    NoEndpoint "no_endpoint" "The Service has no usable endpoint on any node.";
    /// `externalTrafficPolicy` or `internalTrafficPolicy` is Local, and all usable endpoints are on other nodes.
    NoLocalEndpoint "no_local_endpoint" "The Service has usable endpoints, but none on this node, and its traffic policy is Local.";
    /// `spec.loadBalancerSourceRanges`.
    ServiceSourceRange "service_source_range" "The client is in none of the loadBalancerSourceRanges of the Service.";
    /// The cluster address of a Service, with a port that it has not: its sender is told.
    UnknownServicePort "unknown_service_port" "The Service has no such port.";
    /// An address of the service CIDR that no Service has. It would come back over the default route.
    UnknownServiceAddress "unknown_service_address" "No Service has this address of the service CIDR.";
    /// Every source port towards the backend is in use, or the node has no address to give.
    SourcePortsExhausted "source_ports_exhausted" "The source of the connection has to change, and no source port towards the backend is free.";
    /// With masquerading, what would leave the node with a pod's address.
    NotMasqueraded "not_masqueraded" "The packet would leave the node with a pod's address: the node has no address of its family, or the protocol has no ports.";
    /// A direct connection with the addresses and ports that a translated one has at its backend: their answers could not be told
    /// apart.
    SessionClash "session_clash" "A connection to a Service has the same addresses and ports at its backend.";
    /// All sessions are in use and none may be recycled.
    SessionTableFull "session_table_full" "All sessions are in use.";
    /// The port has used up its share of the sessions and none of its own may be recycled.
    SessionQuota "session_quota" "The port that the packet came in on has used up its share of the sessions.";
    /// A unicast frame on the uplink for another station, as a switch floods them: it is not the node's to forward.
    OtherHost "other_host" "The frame was sent to the MAC address of another machine.";
    /// The port towards the destination has no interface now.
    PortDown "port_down" "The port towards the destination has no interface at the moment.";
    /// Longer than what the next link carries, and not to be cut into fragments.
    PacketTooBig "packet_too_big" "The packet is longer than the MTU of the port that it would leave through, and may not be fragmented.";
    /// Packet memory is used up.
    NoBuffer "no_buffer" "There was no packet buffer left for the fragments of the packet.";
    /// Nobody answered for the next hop's address.
    NoNeighbour "no_neighbour" "Nobody on the link answered for the address of the next hop.";
    /// Packets wait for a neighbour's MAC address in a bounded queue.
    NeighbourQueueFull "neighbour_queue_full" "Too many packets wait for the MAC addresses of neighbours.";
    /// Answering ARP and neighbour discovery has a limit per port.
    NeighbourRate "neighbour_rate" "More ARP requests and neighbour solicitations came in on the port than are answered.";
    /// The interface does not take packets as fast as they come.
    TxFull "tx_full" "The transmit queue of the port is full.";
    /// The packet's sessions or its way out belong to a worker that is too far behind to take it.
    WorkerBusy "worker_busy" "The worker that the packet belongs to is overloaded.";
}

impl DropReason {
    /// How many reasons there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The reason's position in [`DropReason::ALL`].
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
