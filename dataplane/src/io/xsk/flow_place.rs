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
    /// The packet is IPv6 and goes to a pod of another node.
    ToNodesV6,
    /// The destination is in the key of a next hop.
    FindHop,
    /// The next hop in [`AT`](super::flow_stack::AT) is a node behind the tunnel.
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
    /// The source of a packet of a known flow is in the key of a next hop.
    FindSource,
    /// The same source is an IPv6 address that is to be stored there.
    FindSourceV6,
    /// The source of a packet without a flow is in the key of a next hop.
    FindOpening,
    /// The same source is an IPv6 address that is to be stored there.
    FindOpeningV6,
    /// The destination of a packet without a flow is in the key of a next hop.
    FindOwn,
    /// The same destination is an IPv6 address that is to be stored there.
    FindOwnV6,
    /// Register 3 has the number of the packet's IP protocol.
    HasProtocol,
    /// The packet is TCP or UDP.
    Transport,
    /// The next hop in [`AT`](super::flow_stack::AT) is the world.
    ToWorld,
    /// The packet is IPv6 and goes to the world.
    MasqueradedV6,
    /// The packet's source is one of this node's to which the world answers.
    Masqueraded,
    /// The packet goes to the world. Its source is no address of this node to which the world answers, as at the next labels.
    FromVip,
    /// The packet is IPv6.
    FindFromV6,
    /// The packet's source is in the key of a next hop.
    FindFrom,
    /// The packet's source is not a pod's. [`AT`](super::flow_stack::AT) has the address of the entry of the next hop that the packet takes.
    ToWorldNow,
    /// The packet goes to the world over the interface in register 1.
    OverLink,
    /// The masqueraded packet is IPv6.
    SentV6,
    /// The masqueraded packet is IPv6, with the protocol in register 3, the source port in register 4, the destination port in register 5, and the
    /// identifier that an echo request has in register 0.
    SentV6Ports,
    /// The masqueraded packet is IPv6 with a fragment header.
    SentFragment,
    /// The masqueraded packet is ICMP or ICMPv6. Register 0 has the identifier that an echo request has.
    SentEcho,
    /// Registers 3 to 5 have the protocol, the node's and the world's port of the packet's record.
    SentKey,
    /// The packet's source port is not in the first range of source ports of masqueraded packets. Register 4 has it in host order, as at the next two
    /// labels.
    SentSecond,
    /// The packet's source port is in neither of the first two ranges.
    SentThird,
    /// The packet's source port is in one of the ranges.
    SentSource,
    /// The masqueraded packet has its record, or gets none.
    Remembered,
    /// The packet is IPv6. Register 1 has the address of the cell `WORLD_PORTS`, as at the next labels.
    ToNodeV6,
    /// The packet's destination is one of this node's to which the world answers.
    ToNode,
    /// The packet's destination port is taken, or the packet is not TCP or UDP to this node without fragments and IP options.
    Spared,
    /// The destination of a packet of a known flow is no address of this node to which the world answers.
    NotToNode,
    /// The packet is IPv6. Register 1 has the address of the cell `WORLD_PORTS`.
    SpareV6,
    /// The packet is to an address of this node to which the world answers. Register 3 has its protocol, and register 4 the 2 bytes in network order that
    /// are the destination port of TCP and UDP.
    SparePort,
    /// The packet is TCP or UDP to such an address. Register 4 has its destination port in network order.
    SpareTransport,
    /// Register 1 has the length in bytes of the frame, or of each of its segments' frames.
    Sized,
    /// The packet is another node's and goes to a worker.
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
    /// The packet has a known flow. Its source is neither a node's nor a pod's, as at the next two labels.
    FromWorld,
    /// The packet is IPv6, and not to an address of this node to which the world answers.
    ToOtherV6,
    /// The packet's destination is in the key of a next hop.
    ToOther,
    /// The packet has no flow, as at the next labels up to [`Unclaimed`](Self::Unclaimed). It is IPv6.
    ClaimV6,
    /// The IPv4 packet is no fragment, or a packet's first one.
    ClaimV4,
    /// The IPv6 packet has a fragment header.
    ClaimFragment,
    /// The packet is a fragment without ports. The key has its addresses, protocol and identification.
    ClaimedBefore,
    /// The packet is an ICMP error about another packet.
    ClaimError,
    /// The key of a record (`SENT_KEY` of [`flow_stack`](super::flow_stack)) has the packet's protocol, and the world's address and port. The key of a
    /// virtual address (`VIP_KEY`) has the node's address. Register 4 has the node's port, or an echo's identifier, in network order.
    ClaimPort,
    /// The packet has arrived at a link and is to a virtual address. The world's address is in the key of a next hop.
    VipFound,
    /// The packet has arrived at a link and is to no virtual address. The key of a record is complete, and the node's address is in that of a virtual
    /// address, as at the next five labels.
    NoVip,
    /// The node's port is not in the first range of source ports of masqueraded packets. Register 4 has it in host order, as at the next two labels.
    ClaimSecond,
    /// The node's port is in neither of the first two ranges.
    ClaimThird,
    /// The node's port is in one of the ranges.
    ClaimSource,
    /// The node's address is not its IPv4 address to which the world answers. Register 1 has the address of the cell `WORLD_PORTS`.
    OwnV6,
    /// The node's address is one to which the world answers.
    Own,
    /// The packet is to a virtual address, or answers a masqueraded one.
    Claimed,
    /// The packet is not to a virtual address, and answers no recorded packet.
    Unclaimed,
    /// The slot of the port from which the worker gets the packet is on the stack.
    Chosen,
    /// The source of a packet of a known flow is another node's.
    Checked,
}
