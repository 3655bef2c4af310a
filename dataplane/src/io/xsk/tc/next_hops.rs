//! The next hops to the pods of other nodes, which the programs look up by address.
//!
//! ```text
//!   10.244.1.0/24 -> pods of this node;   10.244.1.1 -> this node
//!   10.244.2.0/24 -> the link with this interface, the neighbor there, the longest frame
//!   10.244.3.0/24 -> the tunnel's interface, the header for the other node, the longest frame
//! ```
//!
//! The map is a trie of addresses; IPv4 ones are in their mapped form (RFC 4291 §2.5.5.2). The value is laid out as the kernel's helpers
//! take it: `struct bpf_redir_neigh` and `struct bpf_tunnel_key` (`include/uapi/linux/bpf.h`).
//!
//! Why not a next hop in each flow: a node's way can change while its flows last. Here one write moves all of them.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;

use super::encapsulation::constant_sum;
use crate::io::xsk::map::{MAP_TRIE, Map, MapKind, NO_PREALLOC};
use crate::io::xsk::netlink::{family, mapped, octets};
use crate::io::xsk::small_size;

/// Maximum number of prefixes. Five thousand nodes with two pod networks each have ten thousand.
const PREFIXES: u32 = 1 << 15;

/// Byte offsets in a next hop. Numbers are in host order.
pub(super) mod hop {
    /// One of [`kind`](super::kind), 4 bytes.
    pub(in crate::io::xsk::tc) const KIND: i16 = 0;
    /// The index of the interface of link or tunnel, 4 bytes.
    pub(in crate::io::xsk::tc) const INTERFACE: i16 = 4;
    /// The length in bytes of the longest frame that the link or the tunnel takes, with the Ethernet header, 4 bytes. For a packet with segments,
    /// each segment is compared.
    pub(in crate::io::xsk::tc) const LONGEST: i16 = 8;
    /// The flags of `bpf_skb_set_tunnel_key`, 4 bytes.
    pub(in crate::io::xsk::tc) const FLAGS: i16 = 12;
    /// `struct bpf_redir_neigh`: the neighbor's address family (4 bytes) and address.
    pub(in crate::io::xsk::tc) const NEIGHBOR: i16 = 16;
    pub(in crate::io::xsk::tc) const NEIGHBOR_LEN: i32 = 20;
    /// The index of the interface over which the programs send outer packets, 4 bytes; 0 if the tunnel's device does. Their next hop is
    /// [`NEIGHBOR`], whose family is 0 if the kernel's route tells it. To the world: the interface for packets from the address of masqueraded ones.
    pub(in crate::io::xsk::tc) const LINK: i16 = 36;
    /// `struct bpf_tunnel_key`. Linux 6.0 and newer take all 44 bytes. Older kernels take the first 28, without the local address.
    pub(in crate::io::xsk::tc) const TUNNEL: i16 = 40;
    /// The other node's address and this node's in it: 4 bytes in host order, or 16 bytes in network order.
    pub(in crate::io::xsk::tc) const REMOTE: i16 = TUNNEL + 4;
    pub(in crate::io::xsk::tc) const LOCAL: i16 = TUNNEL + 28;
    pub(in crate::io::xsk::tc) const TUNNEL_LEN: i32 = 44;
    pub(in crate::io::xsk::tc) const OLD_TUNNEL_LEN: i32 = 28;
    /// The tunnel's UDP port, and the sum of what is constant in the outer IPv4 header, 2 bytes each.
    pub(in crate::io::xsk::tc) const PORT: i16 = 84;
    pub(in crate::io::xsk::tc) const CONSTANT_SUM: i16 = 86;
    pub(in crate::io::xsk::tc) const LEN: usize = 88;
}

/// What a prefix belongs to.
pub(super) mod kind {
    /// Pods of this node.
    pub(in crate::io::xsk::tc) const OWN: u32 = 1;
    /// Pods of a node on a link.
    pub(in crate::io::xsk::tc) const LINK: u32 = 2;
    /// Pods of a node behind the tunnel.
    pub(in crate::io::xsk::tc) const TUNNEL: u32 = 3;
    /// This node, among the addresses of its pods.
    pub(in crate::io::xsk::tc) const NODE: u32 = 4;
    /// The world: what the node's kernel reaches over a link, and is not of the cluster.
    pub(in crate::io::xsk::tc) const WORLD: u32 = 5;
    /// What only the node's kernel can reach.
    pub(in crate::io::xsk::tc) const KERNEL: u32 = 6;
    /// An address of this node from which packets to the world leave over a link of their own.
    pub(in crate::io::xsk::tc) const SOURCE: u32 = 7;
}

/// Bytes of a key: the prefix length in bits as a number, and the address.
const KEY: usize = 20;

/// The way to the pods of another node, or to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeHop {
    /// The node is a neighbor on a link.
    Link {
        /// The index of the link's interface.
        interface: u32,
        /// The node's address there.
        neighbor: IpAddr,
        /// The link's MTU in bytes.
        mtu: u32,
    },
    /// The node is behind the tunnel.
    Tunnel {
        /// This node's end of the tunnel.
        end: TunnelEnd,
        /// The index of the interface over which outer packets leave and arrive.
        link: u32,
        /// Who adds the headers.
        outer: Outer,
        /// The source of the outer header. `None` if the kernel chooses it.
        local: Option<IpAddr>,
        /// The destination of the outer header, of the same family as `local`.
        remote: IpAddr,
        /// The tunnel's MTU in bytes.
        mtu: u32,
    },
    /// The destination is outside the cluster, and the kernel's routes over a link lead there. Only packets from this node's own and virtual
    /// addresses take this way.
    World {
        /// The index of the link's interface.
        interface: u32,
        /// The index of the interface for packets from the address of masqueraded ones. It differs if a routing rule for that address says so.
        masqueraded: u32,
        /// The MTU of these links in bytes, the smaller one.
        mtu: u32,
    },
    /// Only the node's kernel can reach the destination. It refuses masqueraded packets, so that these do not leave by the way of a shorter prefix.
    Kernel,
    /// The network is an address of this node. Packets from it to the [`World`](Self::World) leave over this link instead of the one of their
    /// destination, unless it is the address of masqueraded packets.
    Source {
        /// The index of the link's interface.
        interface: u32,
        /// The link's MTU in bytes.
        mtu: u32,
    },
}

/// This node's end of the tunnel. Port and identifier are the same at all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TunnelEnd {
    /// The index of the tunnel's interface.
    pub interface: u32,
    /// The UDP port at which all nodes receive.
    pub port: u16,
    /// The VXLAN network identifier, 24 bits.
    pub vni: u32,
}

/// Who adds the tunnel's headers to a packet for a node behind the tunnel, and how the outer packet's next hop on the link is found. It counts only
/// for outer headers of IPv4: those of IPv6 are added by the tunnel's device in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outer {
    /// The programs add the headers. The other node is a neighbor on the link, and the next hop.
    ToNeighbor,
    /// The programs add the headers. The kernel looks up the next hop for each packet, among the routes over the link.
    ByRoute,
    /// The tunnel's device adds the headers: the link's MTU is too small for the longest outer packets, and only the device fragments them.
    ByDevice,
    /// The tunnel's device adds the headers: frames on the link have no Ethernet header, so that the programs can neither write nor read them.
    WithoutEthernet,
}

impl NodeHop {
    /// Returns the index of the interface of link or tunnel. `None` for [`Kernel`](Self::Kernel).
    pub(super) const fn interface(&self) -> Option<u32> {
        match *self {
            Self::Link { interface, .. }
            | Self::World { interface, .. }
            | Self::Source { interface, .. }
            | Self::Tunnel { end: TunnelEnd { interface, .. }, .. } => Some(interface),
            Self::Kernel => None,
        }
    }

    /// Returns the index of the interface at which the programs take packets from the other node: the link, or, if they cannot read its frames, the
    /// tunnel. `None` for [`Kernel`](Self::Kernel).
    pub(super) const fn arrival(&self) -> Option<u32> {
        match *self {
            Self::Tunnel { end: TunnelEnd { interface, .. }, outer: Outer::WithoutEthernet, .. } => Some(interface),
            Self::Link { interface: link, .. }
            | Self::World { interface: link, .. }
            | Self::Source { interface: link, .. }
            | Self::Tunnel { link, .. } => Some(link),
            Self::Kernel => None,
        }
    }

    /// Returns the index of the interface over which masqueraded packets leave. `None` unless this is the way to the world.
    pub(super) const fn masqueraded(&self) -> Option<u32> {
        match *self {
            Self::World { masqueraded, .. } => Some(masqueraded),
            Self::Link { .. } | Self::Tunnel { .. } | Self::Kernel | Self::Source { .. } => None,
        }
    }

    fn encode(&self) -> Value {
        const ETHERNET: u32 = 14;
        let mut value = [0; hop::LEN];
        let mut put = |at: i16, bytes: &[u8]| {
            let at = usize::from(at.cast_unsigned());
            value[at..at + bytes.len()].copy_from_slice(bytes);
        };
        let (kind, interface, mtu) = match *self {
            Self::Link { interface, neighbor, mtu } => {
                put(hop::NEIGHBOR, &u32::from(family(neighbor)).to_ne_bytes());
                put(hop::NEIGHBOR + 4, &octets(neighbor));
                (kind::LINK, interface, mtu)
            }
            Self::World { interface, masqueraded, mtu } => {
                put(hop::LINK, &masqueraded.to_ne_bytes());
                (kind::WORLD, interface, mtu)
            }
            Self::Source { interface, mtu } => (kind::SOURCE, interface, mtu),
            Self::Kernel => (kind::KERNEL, 0, 0),
            Self::Tunnel { end: TunnelEnd { interface, port, vni }, link, outer, local, remote, mtu } => {
                /// `BPF_F_TUNINFO_IPV6`. Without `BPF_F_ZERO_CSUM_TX`, the outer header has a checksum, so that the receiver merges packets.
                const V6: u32 = 1;
                put(hop::FLAGS, &if remote.is_ipv6() { V6 } else { 0 }.to_ne_bytes());
                put(hop::TUNNEL, &vni.to_ne_bytes());
                put(hop::REMOTE, &tunnel_octets(remote));
                if let Some(local) = local.filter(|local| local.is_ipv4() == remote.is_ipv4()) {
                    put(hop::LOCAL, &tunnel_octets(local));
                }
                if let (Some(IpAddr::V4(local)), IpAddr::V4(to)) = (local, remote)
                    && matches!(outer, Outer::ToNeighbor | Outer::ByRoute)
                {
                    put(hop::LINK, &link.to_ne_bytes());
                    put(hop::PORT, &port.to_ne_bytes());
                    put(hop::CONSTANT_SUM, &constant_sum(local.into(), to.into()).to_ne_bytes());
                    if outer == Outer::ToNeighbor {
                        put(hop::NEIGHBOR, &u32::from(family(remote)).to_ne_bytes());
                        put(hop::NEIGHBOR + 4, &octets(remote));
                    }
                }
                (kind::TUNNEL, interface, mtu)
            }
        };
        put(hop::KIND, &kind.to_ne_bytes());
        put(hop::INTERFACE, &interface.to_ne_bytes());
        put(hop::LONGEST, &(mtu + ETHERNET).to_ne_bytes());
        value
    }
}

type Value = [u8; hop::LEN];

/// Returns an address as `struct bpf_tunnel_key` has it: IPv4 in host order, IPv6 in network order.
fn tunnel_octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => u32::from(address).to_ne_bytes().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The map of next hops, and the process's copy of it.
#[derive(Debug)]
pub(super) struct NextHops {
    pub(super) map: Map,
    known: BTreeMap<[u8; KEY], Value>,
}

impl NextHops {
    /// Opens the map that is pinned in a folder with its contents, or creates it empty. Without a folder, the map is not pinned.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn new(pins: Option<&Path>) -> io::Result<Self> {
        let wanted = MapKind {
            kind: MAP_TRIE,
            name: "bulkhead_hops",
            key_size: small_size::<[u8; KEY]>(),
            value_size: small_size::<Value>(),
            entries: PREFIXES,
            flags: NO_PREALLOC,
        };
        let map = Map::at(&wanted, pins)?;
        let mut known = BTreeMap::new();
        map.for_each(|key, value| {
            if let (Some(key), Some(value)) = (key.first_chunk(), value.first_chunk()) {
                known.insert(*key, *value);
            }
        })?;
        Ok(Self { map, known })
    }

    /// Whether there is no next hop, as in a new map.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Replaces the next hops. `own` are the networks of this node's pods, except for `node`, the node's addresses in them; `others` are the
    /// networks of other nodes' pods and of the world, with the way to each.
    ///
    /// # Errors
    /// The kernel's error, for example if the trie is full. The method stops at the first one. It removes obsolete next hops before it adds new
    /// ones, so that either some obsolete ones remain or some new ones are missing.
    pub(super) fn replace(
        &mut self,
        own: &[IpNet],
        node: &[IpAddr],
        others: &BTreeMap<IpNet, NodeHop>,
    ) -> io::Result<()> {
        let here = |kind: u32| {
            let mut value = [0; hop::LEN];
            value[..4].copy_from_slice(&kind.to_ne_bytes());
            value
        };
        let mut wanted: BTreeMap<[u8; KEY], Value> =
            own.iter().map(|network| (key(network), here(kind::OWN))).collect();
        wanted.extend(node.iter().map(|&address| (key(&address.into()), here(kind::NODE))));
        wanted.extend(others.iter().map(|(network, hop)| (key(network), hop.encode())));
        let gone = self.known.keys().filter(|key| !wanted.contains_key(*key)).copied().collect::<Vec<_>>();
        for key in gone {
            self.map.remove(&key)?;
            self.known.remove(&key);
        }
        // Those to nodes first, as the kernel may have more routes than the trie holds.
        let is_world = |value: &Value| {
            [kind::WORLD, kind::KERNEL, kind::SOURCE].iter().any(|kind| value[..4] == kind.to_ne_bytes())
        };
        let (world, cluster): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|(_, value)| is_world(value));
        for (key, value) in cluster.into_iter().chain(world) {
            if self.known.get(&key) != Some(&value) {
                self.map.insert(&key, &value)?;
                self.known.insert(key, value);
            }
        }
        Ok(())
    }
}

/// Builds the trie's key of a prefix.
fn key(network: &IpNet) -> [u8; KEY] {
    let before = if network.addr().is_ipv4() { 96 } else { 0 };
    let length: u32 = before + u32::from(network.prefix_len());
    let mut key = [0; KEY];
    key[..4].copy_from_slice(&length.to_ne_bytes());
    key[4..].copy_from_slice(&mapped(network.network()));
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: &Value, at: i16) -> u32 {
        u32::from_ne_bytes(*value[usize::from(at.cast_unsigned())..].first_chunk().unwrap())
    }

    #[test]
    fn a_next_hop_is_encoded_as_the_kernels_helpers_take_it() {
        let link = NodeHop::Link { interface: 7, neighbor: [192, 0, 2, 2].into(), mtu: 1500 }.encode();
        assert_eq!([hop::KIND, hop::INTERFACE, hop::LONGEST].map(|at| number(&link, at)), [2, 7, 1514]);
        assert_eq!((number(&link, 16), &link[20..24]), (2, &[192, 0, 2, 2][..]));
        let [local, remote] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
        let tunnel = NodeHop::Tunnel {
            end: TunnelEnd { interface: 8, port: 4789, vni: 0x12_3456 },
            link: 7,
            outer: Outer::ToNeighbor,
            local: Some(local),
            remote,
            mtu: 1450,
        }
        .encode();
        assert_eq!([hop::KIND, hop::INTERFACE, hop::LONGEST].map(|at| number(&tunnel, at)), [3, 8, 1464]);
        assert_eq!([hop::FLAGS, 40, 44, 68].map(|at| number(&tunnel, at)), [0, 0x12_3456, 0xc000_0202, 0xc000_0201]);
        assert_eq!([hop::LINK, hop::NEIGHBOR].map(|at| number(&tunnel, at)), [7, 2], "the programs send it");
        assert_eq!((&tunnel[20..24], &tunnel[84..86]), (&[192, 0, 2, 2][..], &4789_u16.to_ne_bytes()[..]));
        let remote: IpAddr = "2001:db8::2".parse().unwrap();
        let tunnel = NodeHop::Tunnel {
            end: TunnelEnd { interface: 8, port: 4789, vni: 1 },
            link: 7,
            outer: Outer::ToNeighbor,
            local: Some(local),
            remote,
            mtu: 1430,
        }
        .encode();
        assert_eq!((number(&tunnel, hop::FLAGS), &tunnel[44..48]), (1, &[0x20, 1, 0x0d, 0xb8][..]));
        assert_eq!(tunnel[68..], [0; 20], "no source of the other family");
        assert_eq!(number(&tunnel, hop::LINK), 0, "the device sends it");
        let world = NodeHop::World { interface: 7, masqueraded: 8, mtu: 1500 }.encode();
        assert_eq!([hop::KIND, hop::INTERFACE, hop::LONGEST, hop::LINK].map(|at| number(&world, at)), [5, 7, 1514, 8]);
        let source = NodeHop::Source { interface: 8, mtu: 1400 }.encode();
        assert_eq!([hop::KIND, hop::INTERFACE, hop::LONGEST].map(|at| number(&source, at)), [7, 8, 1414]);
    }

    #[test]
    fn a_prefix_is_a_key_of_its_length_in_mapped_form() {
        let four = key(&"10.1.2.3/24".parse().unwrap());
        assert_eq!((four[..4].to_vec(), &four[14..]), (120_u32.to_ne_bytes().to_vec(), &[0xff, 0xff, 10, 1, 2, 0][..]));
        let six = key(&"fd00:1::/64".parse().unwrap());
        assert_eq!((six[..4].to_vec(), &six[4..8]), (64_u32.to_ne_bytes().to_vec(), &[0xfd, 0, 0, 1][..]));
    }
}
