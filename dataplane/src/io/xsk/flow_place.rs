//! The jump labels of the flow cache's programs.

/// Jump labels of flow cache programs. The comments say what is the case at the label.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    V6,
    /// The IPv4 packet's length is in a register.
    Told,
    /// The IPv6 packet's length is in a register.
    ToldV6,
    Datagram,
    Segment,
    HasAck,
    Known,
    WithTranslation,
    /// A copy of the flow's value is on the stack.
    Found,
    /// The flow's latch is open.
    Open,
    HopV6,
    TranslateV6,
    /// The packet has no transport checksum.
    WithoutChecksum,
    /// The sum over the whole packet matches the new transport checksum.
    Summed,
    /// The packet has a transport checksum.
    HasChecksum,
    /// The new checksum is not 0, or may be written as 0.
    Checksum,
    /// The checksum matches the new addresses and ports.
    Finished,
    /// Addresses and ports are translated.
    Translated,
    Rewrite,
    /// The packet goes to a worker.
    Miss,
    /// The packet goes to a worker, after the program had selected another destination.
    MissAgain,
    End,
    /// The headers are in the packet's linear part.
    Linear,
    Segments,
    Compare,
    Peer,
    /// The flow has a latch.
    Latched,
    Drop,
    Closed,
    Limited,
    Recent,
    Unlimited,
    Counted,
    Pull,
    /// [`Recent`](Self::Recent) and [`Unlimited`](Self::Unlimited), for a copy.
    CopyRecent,
    CopyUnlimited,
    /// The packet has no tag of its port.
    WithoutTag,
    /// The program counts the packet, not a worker.
    Uncounted,
    /// The packet is no SYN-ACK.
    NoAnswer,
    /// The packet comes from the initiator of its TCP connection.
    FromInitiator,
    /// The sender's first sequence number is in a register.
    Numbered,
    /// The packet does not end a TCP connection, or its end is recorded.
    Recorded,
    /// The bits to record are in registers.
    Ending,
    /// The addresses and ports of the opposite direction are on the stack.
    Opposite,
    TranslatedPeer,
    /// The lease is over, the latch is closed, or the packet ends a TCP connection and no worker would learn of it.
    Unleased,
    /// The program forwards the packet.
    Leased,
    /// The flow's TCP connection has ended.
    Ended,
    /// The flow's idle timeout is in a register.
    Timed,
    /// The packet goes to a pod of another node.
    ToNodes,
    /// The packet is IPv6 and goes to a pod of another node.
    ToNodesV6,
    /// The destination is in the key of a next hop.
    FindHop,
    /// The next hop is a node behind the tunnel.
    Tunneled,
    /// The tunnel's device adds the headers.
    Described,
    /// The inner congestion mark is in a register.
    HasMark,
    /// The outer congestion mark is in a register.
    Marked,
    /// The next hop of the outer packet is in registers.
    Routed,
    /// The header for the tunnel is set.
    HasHeader,
    /// The node's kernel forwards the packet.
    Indirect,
    /// The source is in the key of a next hop.
    FindSource,
    FindSourceV6,
    /// [`FindSource`](Self::FindSource), for a packet without a flow.
    FindOpening,
    FindOpeningV6,
    /// The destination of a packet without a flow is in the key of a next hop.
    FindOwn,
    FindOwnV6,
    /// The packet is TCP or UDP.
    Transport,
    TransportV6,
    /// The length of the packet, or of each of its segments, is in a register.
    Sized,
    /// The packet is another node's and goes to a worker.
    ToWorker,
    /// The node's kernel gets the packet unchanged.
    Pass,
    /// The packet may be the tunnel's, over IPv6.
    OuterV6,
    /// The packet is the tunnel's; the number of bytes before the inner frame is in a register.
    Encapsulated,
    /// The packet is not the tunnel's.
    Plain,
    /// The inner headers may not be in the linear part.
    PullInner,
    /// The number of bytes to pull is in a register.
    PullWhole,
    /// The inner headers are in the linear part.
    InnerFrame,
    /// The packet of a known flow is not the tunnel's.
    Unwrapped,
    SenderV6,
    /// The packet's outer header has the addresses of both ends of the tunnel.
    Sender,
    InnerV6,
    /// The flags for the inner frame's IP version are in a register.
    SameFamily,
    /// The inner frame's EtherType is in a register.
    AfterV6,
    /// The packet has no outer headers.
    Decapsulated,
    /// The packet opens a connection, or is a datagram.
    Opens,
    /// The port of a packet to a worker is on the stack.
    Chosen,
    /// The packet's way and its source are checked.
    Checked,
}
