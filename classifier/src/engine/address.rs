//! Operations on addresses as numbers: IPv4 as `u32`, IPv6 as `u128`.

use std::fmt::Debug;
use std::hash::Hash;
use std::ops::{BitAnd, BitXor, Not};

use crate::PartedSet;
use crate::address_set::{AddressSet, Point};
use crate::simd::{NODE, Node, Simd};

/// An unsigned integer that holds an address, or another packet field that is searched as a 32-bit number.
pub(crate) trait Address:
    Point
    + From<u32>
    + Hash
    + Debug
    + Send
    + Sync
    + BitAnd<Output = Self>
    + BitXor<Output = Self>
    + Not<Output = Self>
    + 'static
{
    /// The lowest address.
    const ZERO: Self;
    /// The highest address.
    const LAST: Self;
    /// The longest prefix length.
    const BITS: u8;
    /// The interval of all addresses.
    const EVERY: &'static [(Self, Self)];

    /// Makes an address of a key's two halves, high half first.
    fn from_halves(halves: [u64; 2]) -> Self;

    /// Returns the set's members of this family, as ascending intervals.
    fn intervals(set: &AddressSet) -> &[(Self, Self)];

    fn is_in(set: &PartedSet, point: Self) -> bool;

    /// Returns the members among a few addresses, as intervals that neither overlap nor touch.
    fn among(set: &PartedSet, few: &[(Self, Self)]) -> Vec<(Self, Self)>;

    /// Returns the mask of a prefix length, at most [`Address::BITS`].
    fn mask(length: u8) -> Self;

    fn trailing_zeros(self) -> u32;

    /// Hashes two addresses and a number. The high bits have the best quality.
    fn mix(src: Self, dst: Self, more: u32, seed: u64) -> u64;

    /// Makes a search node with these separators.
    fn node(separators: [Self; NODE]) -> Node<Self>;

    /// Returns the separator at index `at` of a node.
    fn separator(node: &Node<Self>, at: usize) -> Self;

    /// Returns how many of the ascending separators are below the point.
    fn rank<S: Simd>(simd: S, node: &Node<Self>, point: Self) -> u32;

    /// Returns the index of a branch's child for the point.
    fn child<S: Simd>(simd: S, node: &Node<Self>, point: Self) -> u32;

    /// Whether the packet's fields are in the four intervals.
    fn within<S: Simd>(simd: S, first: &Fields<Self>, width: &Fields<Self>, packet: &Fields<Self>) -> bool;
}

/// One number per field: the fields of a packet, or one end of a rule's intervals.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields<A> {
    pub(crate) src: A,
    pub(crate) dst: A,
    pub(crate) service: u32,
    pub(crate) src_port: u32,
}

/// Multiplies to 128 bits and folds the halves, so that each input bit affects every output bit. As in wyhash and ahash.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the two halves of the product")]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// Expands to the trait's items that are the same for both families.
macro_rules! alike {
    ($bits:literal, $family:ident, $intervals:ident) => {
        const ZERO: Self = 0;
        const LAST: Self = Self::MAX;
        const BITS: u8 = $bits;
        const EVERY: &'static [(Self, Self)] = &[(0, Self::MAX)];

        fn intervals(set: &AddressSet) -> &[(Self, Self)] {
            set.$intervals()
        }

        #[inline]
        fn is_in(set: &PartedSet, point: Self) -> bool {
            set.$family().contains(point)
        }

        fn among(set: &PartedSet, few: &[(Self, Self)]) -> Vec<(Self, Self)> {
            set.$family().among(few)
        }

        fn mask(length: u8) -> Self {
            Self::MAX.checked_shl($bits - u32::from(length)).unwrap_or(0)
        }

        fn trailing_zeros(self) -> u32 {
            Self::trailing_zeros(self)
        }
    };
}

impl Address for u32 {
    alike!(32, v4, v4_intervals);

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "an IPv4 address sits in the low 32 bits")]
    fn from_halves(halves: [u64; 2]) -> Self {
        halves[1] as Self
    }

    #[inline(always)]
    fn mix(src: Self, dst: Self, more: u32, seed: u64) -> u64 {
        fold((u64::from(src) << 32 | u64::from(dst)) ^ seed, u64::from(more) ^ seed.rotate_left(32) | 1)
    }

    fn node(separators: [Self; NODE]) -> Node<Self> {
        Node::narrow(separators)
    }

    fn separator(node: &Node<Self>, at: usize) -> Self {
        node.number(at)
    }

    #[inline(always)]
    fn rank<S: Simd>(simd: S, node: &Node<Self>, point: Self) -> u32 {
        simd.rank(node, point)
    }

    #[inline(always)]
    fn child<S: Simd>(simd: S, node: &Node<Self>, point: Self) -> u32 {
        simd.child(node, point)
    }

    #[inline(always)]
    fn within<S: Simd>(simd: S, first: &Fields<Self>, width: &Fields<Self>, packet: &Fields<Self>) -> bool {
        let four = |fields: &Fields<Self>| [fields.src, fields.dst, fields.service, fields.src_port];
        simd.within(four(first), four(width), four(packet))
    }
}

impl Address for u128 {
    alike!(128, v6, v6_intervals);

    #[inline(always)]
    fn from_halves([high, low]: [u64; 2]) -> Self {
        Self::from(high) << 64 | Self::from(low)
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "both halves of each address go in")]
    fn mix(src: Self, dst: Self, more: u32, seed: u64) -> u64 {
        let half =
            |address: Self, seed: u64| fold((address >> 64) as u64 ^ seed, address as u64 ^ seed.rotate_left(32));
        fold(half(src, seed) ^ u64::from(more), half(dst, !seed) ^ seed.rotate_left(16))
    }

    fn node(separators: [Self; NODE]) -> Node<Self> {
        Node::wide(separators)
    }

    fn separator(node: &Node<Self>, at: usize) -> Self {
        node.separator(at)
    }

    #[inline(always)]
    fn rank<S: Simd>(simd: S, node: &Node<Self>, point: Self) -> u32 {
        simd.rank_wide(node, point)
    }

    #[inline(always)]
    fn child<S: Simd>(simd: S, node: &Node<Self>, point: Self) -> u32 {
        simd.child_wide(node, point)
    }

    #[inline(always)]
    fn within<S: Simd>(_simd: S, first: &Fields<Self>, width: &Fields<Self>, packet: &Fields<Self>) -> bool {
        (packet.src.wrapping_sub(first.src) <= width.src)
            & (packet.dst.wrapping_sub(first.dst) <= width.dst)
            & (packet.service.wrapping_sub(first.service) <= width.service)
            & (packet.src_port.wrapping_sub(first.src_port) <= width.src_port)
    }
}
