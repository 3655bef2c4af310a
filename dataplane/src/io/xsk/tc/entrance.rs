//! Where packets of other nodes and of the world arrive, and the maps that the programs there read.

use super::super::map::Map;

/// Where packets of other nodes and of the world arrive. It decides how the program checks a packet's source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entrance {
    /// At a link. The source must belong to a node whose next hop is over this link, or to the world.
    Link,
    /// At the tunnel, behind its guard. The source must belong to any other node, as the guard has compared it with the sender.
    Tunnel,
}

/// The maps that the program reads, besides those of flows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps<'a> {
    /// Next hops ([`next_hops`](super::next_hops)).
    pub(super) hops: &'a Map,
    /// Masqueraded packets that were sent ([`sent`](super::sent)).
    pub(super) sent: &'a Map,
    /// Datagrams and fragments of which later ones may be the vswitch's ([`untranslated`](super::untranslated)).
    pub(super) records: &'a Map,
    /// Virtual addresses ([`vips`](super::vips)).
    pub(super) vips: &'a Map,
}
