//! The jump labels of the flow cache's programs.

/// Jump labels of flow cache programs. The comments say what is the case at the label, for the program's packet. Registers that are not named
/// have no defined value there, except those of [`flow_stack`](super::flow_stack).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    /// The packet's EtherType is IPv6.
    V6,
    /// The packet is IPv4. Register 3 has its length in bytes by the IP header, or, of a BIG TCP packet, by the kernel.
    Told,
    /// The packet is IPv6. Register 3 has its payload's length in bytes, and register 4 the next header's number.
    ToldV6,
    /// The packet is UDP. [`AT`](super::flow_stack::AT) has the address of its header, and register 3 the bytes from there on.
    Datagram,
    /// The packet is TCP. Registers are as at [`Datagram`](Self::Datagram).
    Segment,
    /// The segment has ACK or RST. Its acknowledgement number follows.
    HasAck,
    /// The flow's key is complete. In `tc::deliver`: the packet is this host's.
    Known,
    /// The flow has a translation, which is not on the stack yet.
    WithTranslation,
    /// A copy of the flow's value is on the stack.
    Found,
    /// The flow's latch is open, or its handshake has ended.
    Open,
    /// The hop limit of an IPv6 packet is to be decremented.
    HopV6,
    /// The addresses and ports of an IPv6 packet are to be replaced.
    TranslateV6,
    /// The packet has no transport checksum.
    WithoutChecksum,
    /// The kernel's sum over the whole packet, if there is one, matches the new transport checksum.
    Summed,
    /// The packet has a transport checksum. Register 3 has its address, register 4 its value.
    HasChecksum,
    /// Register 4 has the new transport checksum, which may be written.
    Checksum,
    /// The transport checksum matches the new addresses and ports.
    Finished,
    /// Addresses and ports are translated, or the flow has no translation.
    Translated,
    /// The hop limit is right; the MAC addresses are to be replaced.
    Rewrite,
    /// The packet goes to a worker.
    Miss,
    /// The packet goes to a worker, after the program had selected another destination.
    MissAgain,
    /// Register 0 has the program's return code.
    End,
    /// The headers are in the packet's linear part.
    Linear,
    /// Register 1 has the number of packets that the packet has on a wire.
    Segments,
    /// Register 1 has the length in bytes of the frame, or of each of its segments' frames.
    Compare,
    /// The packet goes into a pod. Registers 1 and 2 have the interface and the flags of `bpf_redirect_peer`.
    Peer,
    /// The flow has a latch.
    Latched,
    /// The packet is dropped.
    Drop,
    /// The packet's interface has no open port.
    Closed,
    /// The port has exceeded its slow path limit.
    Limited,
    /// Register 3 has the time in nanoseconds until which the port's slow path limit is used.
    Recent,
    /// The port's slow path limit permits the packet.
    Unlimited,
    /// The packet is counted, or a worker counts it.
    Counted,
    /// Register 2 has the number of bytes to pull into the linear part.
    Pull,
    /// [`Recent`](Self::Recent), for a copy.
    CopyRecent,
    /// [`Unlimited`](Self::Unlimited), for a copy.
    CopyUnlimited,
    /// The packet has no tag of its port.
    WithoutTag,
    /// The program counts the packet, not a worker.
    Uncounted,
    /// The packet is no SYN-ACK.
    NoAnswer,
    /// The packet comes from the initiator of its TCP connection. Register 1 has the address of the handshake's record.
    FromInitiator,
    /// Register 2 has the sender's first sequence number after its SYN, in host order.
    Numbered,
    /// The packet does not end a TCP connection, or its end is recorded.
    Recorded,
    /// Registers 2 and 3 have the bits of `action` to record in the flow and in that of the opposite direction.
    Ending,
    /// The addresses and ports of the opposite direction are in the key of that flow.
    Opposite,
    /// The opposite direction has the flow's translated addresses and ports.
    TranslatedPeer,
    /// The lease is over, the latch is closed, or the packet ends a TCP connection and no worker would learn of it.
    Unleased,
    /// The program forwards the packet.
    Leased,
    /// The flow's TCP connection has ended. Register 2 has the address of its idle timeouts after one FIN and after the end.
    Ended,
    /// Register 1 has the flow's idle timeout in nanoseconds.
    Timed,
    /// The packet goes to a pod of another node.
    ToNodes,
    /// The packet goes to a pod of another node, or to the world, and is IPv6.
    ToNodesV6,
    /// The key of a next hop has the packet's destination address.
    FindHop,
    /// The next hop is a node behind the tunnel. [`AT`](super::flow_stack::AT) has the address of its map entry.
    Tunneled,
    /// The tunnel's device must add the headers.
    Described,
    /// The lowest two bits of register 1 are the inner header's congestion mark.
    HasMark,
    /// Register 1 has the outer header's congestion mark, 0 to 3.
    Marked,
    /// Registers 1 to 4 have the arguments of `bpf_redirect_neigh`.
    Routed,
    /// The tunnel's device knows the headers that it must add.
    HasHeader,
    /// The node's kernel forwards the packet.
    Indirect,
    /// The packet has a known flow. The key of a next hop has its source address.
    FindSource,
    /// The packet has a known flow and is IPv6. The steps here store its source address in the key of a next hop.
    FindSourceV6,
    /// The packet has no flow. The key of a next hop has its source address.
    FindOpening,
    /// The packet has no flow and is IPv6. The steps here store its source address in the key of a next hop.
    FindOpeningV6,
    /// The packet has no flow. The key of a next hop has its destination address.
    FindOwn,
    /// The packet has no flow and is IPv6. The steps here store its destination address in the key of a next hop.
    FindOwnV6,
    /// Register 3 has the number of the packet's IP protocol.
    HasProtocol,
    /// The packet is TCP or UDP.
    Transport,
    /// The packet goes to the world. [`AT`](super::flow_stack::AT) has the address of the map entry of the next hop.
    ToWorld,
    /// The packet goes to the world and is IPv6. The steps here compare its source with the addresses of this node.
    MasqueradedV6,
    /// The packet goes to the world. Its source is an address of this node to which the world answers.
    Masqueraded,
    /// The packet goes to the world. Its source is no address of this node to which the world answers.
    FromVip,
    /// The packet goes to the world and is IPv6. The steps here store its source address in the key of a next hop.
    FindFromV6,
    /// The packet goes to the world. The key of a next hop has its source address.
    FindFrom,
    /// The packet goes to the world. Its source is neither a pod's address nor one for Services. [`AT`](super::flow_stack::AT) has the
    /// address of the map entry of the next hop.
    ToWorldNow,
    /// The packet goes to the world over the interface whose index register 1 has.
    OverLink,
    /// The masqueraded packet is IPv6.
    SentV6,
    /// The masqueraded packet is IPv6, with the protocol in register 3, the source port in register 4, the destination port in register 5, and the
    /// identifier that an echo request has in register 0.
    SentV6Ports,
    /// The masqueraded packet is IPv6 with a fragment header.
    SentFragment,
    /// The masqueraded packet is ICMP or ICMPv6. Register 0 has, in network order, the identifier if it is an echo request.
    SentEcho,
    /// Register 3 has the protocol of the packet's record, register 4 the node's port and register 5 the world's port, both in network
    /// order.
    SentKey,
    /// Register 4 has the packet's source port in host order, which is not in the first range of source ports of masqueraded packets.
    SentSecond,
    /// Register 4 has the packet's source port in host order, which is in neither of the first two ranges of source ports of masqueraded
    /// packets.
    SentThird,
    /// Register 4 has the packet's source port in host order, which is in a range of source ports of masqueraded packets.
    SentSource,
    /// The masqueraded packet has its record, or gets none.
    Remembered,
    /// The packet has a known flow and is IPv6. Register 1 has the address of the cell `WORLD_PORTS`.
    ToNodeV6,
    /// The packet has a known flow. Its destination is an address of this node to which the world answers.
    ToNode,
    /// The vswitch may have to take the packet: its destination port is taken or the tunnel's, or it is no TCP or UDP packet to this node,
    /// or it is a fragment or has IP options.
    Spared,
    /// The packet has a known flow. Its destination is no address of this node to which the world answers.
    NotToNode,
    /// The packet has arrived at a link and is IPv6. Register 1 has the address of the cell `WORLD_PORTS`.
    SpareV6,
    /// The packet is to an address of this node to which the world answers. Register 3 has its protocol number, and register 4 the third
    /// and fourth byte of its transport header: the destination port of TCP and UDP, in network order.
    SparePort,
    /// The packet is TCP or UDP, to an address of this node to which the world answers. Register 4 has its destination port in network
    /// order.
    SpareTransport,
    /// Register 1 has the length in bytes of the frame, or of each of its segments' frames.
    Sized,
    /// A worker gets the packet, as one of the port to other nodes.
    ToWorker,
    /// The node's kernel gets the packet unchanged.
    Pass,
    /// The packet may be the tunnel's, over IPv6.
    OuterV6,
    /// The packet is the tunnel's. Register 4 has the number of bytes before the inner frame.
    Encapsulated,
    /// The packet is not the tunnel's, or its inner frame is found.
    Plain,
    /// The inner headers may not be in the linear part.
    PullInner,
    /// Register 2 has the number of bytes to pull into the linear part.
    PullWhole,
    /// The inner headers are in the linear part.
    InnerFrame,
    /// The packet of a known flow is not the tunnel's.
    Unwrapped,
    /// The outer header is IPv6. Register 3 has the flags of the next hop in register 0.
    SenderV6,
    /// The outer header has the addresses of both ends of the tunnel.
    Sender,
    /// The inner frame is IPv6. Register 4 has the flags of `bpf_skb_adjust_room` for an inner frame of the outer header's IP version.
    InnerV6,
    /// Register 4 has the flags of `bpf_skb_adjust_room`.
    SameFamily,
    /// Register 1 has the inner frame's EtherType.
    AfterV6,
    /// The packet has no outer headers.
    Decapsulated,
    /// The packet opens a TCP connection, or is a datagram without a flow.
    Opens,
    /// The packet has a known flow. Its source belongs to no node and no pod of the cluster.
    FromWorld,
    /// The packet has a known flow, comes from the world, and is IPv6. The steps here store its destination address in the key of a next
    /// hop.
    ToOtherV6,
    /// The packet has a known flow and comes from the world. The key of a next hop has its destination address.
    ToOther,
    /// The packet has no flow and is IPv6.
    ClaimV6,
    /// The packet has no flow and is IPv4. It is no fragment, or the first one of a datagram.
    ClaimV4,
    /// The packet has no flow and is IPv6 with a fragment header.
    ClaimFragment,
    /// The packet is a fragment after the first one. The flow's key has its addresses, protocol and identification.
    ClaimedBefore,
    /// The packet has no flow and is an ICMP error of IPv4.
    ClaimError,
    /// The packet has no flow. The key of a record (`SENT_KEY` of [`flow_stack`](super::flow_stack)) has its protocol, and the world's
    /// address and port; the key of a virtual address (`VIP_KEY`) has the node's address. Register 4 has the node's port, or an echo's
    /// identifier, in network order.
    ClaimPort,
    /// The packet has no flow, has arrived at a link, and is to a virtual address. The key of a next hop has the world's address.
    VipFound,
    /// The packet has no flow, has arrived at a link, and is to no virtual address. The key of a record is complete, and the key of a
    /// virtual address has the node's address.
    NoVip,
    /// Register 4 has the node's port of a packet without a flow, in host order, which is not in the first range of source ports of
    /// masqueraded packets.
    ClaimSecond,
    /// Register 4 has the node's port of a packet without a flow, in host order, which is in neither of the first two ranges of source
    /// ports of masqueraded packets.
    ClaimThird,
    /// The packet has no flow. The node's port is in a range of source ports of masqueraded packets.
    ClaimSource,
    /// The compared address is not the IPv4 address of this node to which the world answers. Register 1 has the address of the cell
    /// `WORLD_PORTS`.
    OwnV6,
    /// The compared address is one of this node's to which the world answers.
    Own,
    /// The packet has no flow. It is to a virtual address, or answers a recorded packet of a masqueraded connection.
    Claimed,
    /// The packet has no flow. It is not to a virtual address, and answers no recorded packet of a masqueraded connection.
    Unclaimed,
    /// The slot of the port from which the worker gets the packet is on the stack.
    Chosen,
    /// The packet has a known flow, and its source may send over this link or the tunnel.
    Checked,
}
