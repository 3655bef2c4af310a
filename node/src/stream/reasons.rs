//! Maps drop reasons to those of Hubble (`flow.DropReason` of Cilium's API, as of 1.18).
//!
//! Bulkhead's reasons are finer. A reason without an equivalent maps to the nearest one that says nothing wrong.

use bulkhead_dataplane::DropReason;

/// Returns the number and name of the nearest reason in Hubble's enum.
pub(super) const fn hubble(reason: DropReason) -> (u32, &'static str) {
    use DropReason::*;
    match reason {
        PolicyDenied | ServerName => (133, "POLICY_DENIED"),
        SpoofedSource | MartianSource | ArpSpoofed | NdSpoofed | LinkLocalSource => (132, "INVALID_SOURCE_IP"),
        OtherHost => (131, "INVALID_DESTINATION_MAC"),
        LinkTruncated | ArpMalformed | NdMalformed | Ipv4Malformed | Ipv6Malformed | Ipv6Jumbogram | SourceRouted
        | MartianDestination | Multicast | BackToSender | PacketTooBig => (134, "INVALID_PACKET_DROPPED"),
        L4Truncated | L4Malformed | FragmentTiny | FragmentMalformed | FragmentOverlap | FragmentLimit
        | BadChecksum => (135, "CT_TRUNCATED_OR_INVALID_HEADER"),
        TcpWithoutSession | TcpOutOfWindow => (136, "CT_MISSING_TCP_ACK_FLAG"),
        ReplyWithoutSession | IcmpErrorWithoutSession | SessionClash => (138, "CT_CANNOT_CREATE_ENTRY_FROM_PACKET"),
        UnknownEthertype => (139, "UNSUPPORTED_L3_PROTOCOL"),
        IcmpRedirect => (144, "UNKNOWN_ICMPV4_TYPE"),
        NdFromPod => (176, "FORBIDDEN_ICMPV6_MESSAGE"),
        NoNeighbour | NeighbourQueueFull => (150, "UNKNOWN_L3_TARGET_ADDRESS"),
        UnknownServiceAddress => (151, "STALE_OR_UNROUTABLE_IP"),
        PortDown | UnknownPort | NoSuchPod => (152, "NO_MATCHING_LOCAL_CONTAINER_FOUND"),
        SessionTableFull | SessionQuota | FragmentTableFull => (155, "CT_MAP_INSERTION_FAILED"),
        Ipv6ExtensionLimit => (156, "INVALID_IPV6_EXTENSION_HEADER"),
        NoEndpoint | NoLocalEndpoint | UnknownServicePort => (158, "SERVICE_BACKEND_NOT_FOUND"),
        TableMissing => (165, "NO_CONFIGURATION_AVAILABLE_TO_PERFORM_POLICY_DECISION"),
        SourcePortsExhausted | SourcePortsQuota => (167, "NO_MAPPING_FOR_NAT_MASQUERADE"),
        NotMasqueraded => (168, "UNSUPPORTED_PROTOCOL_FOR_NAT_MASQUERADE"),
        NoRoute => (169, "FIB_LOOKUP_FAILED"),
        FragmentWithoutFirst => (175, "FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND"),
        ServiceSourceRange => (177, "DENIED_BY_LB_SRC_RANGE_CHECK"),
        VlanTagged => (182, "VLAN_FILTERED"),
        TtlExpired => (196, "TTL_EXCEEDED"),
        TunnelPort | Unjudged | NoBuffer | NeighbourRate | TxFull | WorkerBusy => (0, "DROP_REASON_UNKNOWN"),
    }
}
