//! The internet checksum (RFC 1071) and CRC-32C (RFC 9260 appendix A), for packets that are built here, for those that would
//! change a session, and for those whose addresses and ports are translated.

use std::net::IpAddr;

/// Castagnoli's polynomial 0x1EDC6F41, reflected: the highest bit is the coefficient of x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The ones' complement sum of 16-bit words over all parts, complemented. Each part but the last has an even length.
pub(crate) fn internet(parts: &[&[u8]]) -> u16 {
    !fold(parts.iter().map(|part| sum(part)).sum())
}

/// The sum of 16-bit words, not folded yet; a last odd byte is the upper half of a word. Four bytes at a time: their upper
/// halves fold down in the end (RFC 1071 §2).
#[inline]
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (quads, rest) = bytes.as_chunks::<4>();
    let quads: u64 = quads.iter().map(|&quad| u64::from(u32::from_be_bytes(quad))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    quads + u64::from(u32::from_be_bytes(last))
}

/// The 16 bits that a sum comes to.
#[expect(clippy::cast_possible_truncation, reason = "the loop ends when it fits")]
pub(crate) const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// By how much the sum over some bytes changes when `old` among them becomes `new`: ~m + m' of RFC 1624, not folded yet. Both
/// have the same length and begin at an even place. Changes of several places add up.
#[inline]
pub(crate) fn change(old: &[u8], new: &[u8]) -> u64 {
    // 0xffff_ffff is a multiple of 0xffff, so it does not count; with one for each four bytes, nothing is below zero.
    let ones = old.len().div_ceil(4) as u64 * u64::from(u32::MAX);
    sum(new) + ones - sum(old)
}

/// The checksum when what it is over has [changed](change): equation 3 of RFC 1624, HC' = ~(~HC + ~m + m'). A wrong one
/// stays wrong.
#[inline]
pub(crate) fn updated(checksum: u16, change: u64) -> u16 {
    !fold_at_once(u64::from(!checksum) + change)
}

/// The same for a change that is [folded](fold). One that is the complement of another one may be 0 where it should be 0xffff, its other
/// name in ones' complement; so it is added with one more of those.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the last step leaves 16 bits")]
pub(crate) const fn updated_by(checksum: u16, change: u16) -> u16 {
    let sum = (!checksum) as u32 + change as u32 + 0xffff;
    // Three numbers of 16 bits: two steps do.
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// [`fold`] without a branch, which would be foretold wrongly every second time where each packet has a sum of its own.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the last step leaves 16 bits")]
const fn fold_at_once(sum: u64) -> u16 {
    // At most 33 bits; 18; 17; 16.
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The checksum over pseudo-header and segment (RFC 9293 §3.1, RFC 8200 §8.1). 0 for a segment that has its right checksum
/// in it. Both addresses are of one family, and the segment fits an IP packet.
pub(crate) fn transport(src: IpAddr, dst: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    let [high, low] = u16::try_from(segment.len()).unwrap_or(u16::MAX).to_be_bytes();
    let rest = [0, protocol, high, low];
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => internet(&[&src.octets(), &dst.octets(), &rest, segment]),
        (IpAddr::V6(src), IpAddr::V6(dst)) => internet(&[&src.octets(), &dst.octets(), &rest, segment]),
        _ => 0,
    }
}

/// CRC-32C of one part.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_of(&[bytes])
}

/// CRC-32C over all parts, a byte at a time.
pub(crate) fn crc32c_of(parts: &[&[u8]]) -> u32 {
    /// What a byte does to the sum.
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0u32;
        while byte < 256 {
            let (mut crc, mut bit) = (byte, 0);
            while bit < 8 {
                crc = times_x(crc);
                bit += 1;
            }
            table[byte as usize] = crc;
            byte += 1;
        }
        table
    };
    let bytes = parts.iter().flat_map(|part| part.iter());
    !bytes.fold(u32::MAX, |crc, &byte| crc >> 8 ^ TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)])
}

/// By which bits the CRC-32C of some bytes changes when four of them do. `difference` is the old four exclusive-or the new
/// ones, `len` how many bytes there are from the first of the four on. None of the bytes is needed: the CRC is linear.
pub(crate) fn crc32c_change(difference: [u8; 4], len: usize) -> u32 {
    // The difference times x^(8 len), by squaring.
    let (mut change, mut power, mut left) = (u32::from_le_bytes(difference), 1 << (31 - 8), len);
    while left > 0 {
        if left % 2 == 1 {
            change = multiply(change, power);
        }
        power = multiply(power, power);
        left /= 2;
    }
    change
}

/// The product of two polynomials modulo [`POLYNOMIAL`].
const fn multiply(mut one: u32, mut other: u32) -> u32 {
    let mut product = 0;
    while one != 0 {
        // From x^0 on, which is the highest bit.
        if one >> 31 == 1 {
            product ^= other;
        }
        one <<= 1;
        other = times_x(other);
    }
    product
}

const fn times_x(polynomial: u32) -> u32 {
    if polynomial & 1 == 1 { polynomial >> 1 ^ POLYNOMIAL } else { polynomial >> 1 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_internet_checksum_of_the_rfc_example() {
        // RFC 1071 §3: the sum of these words is ddf2.
        assert_eq!(internet(&[&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]]), !0xddf2);
        assert_eq!(internet(&[&[0x00, 0x01], &[0xf2, 0x03, 0xf4, 0xf5], &[0xf6, 0xf7]]), !0xddf2);
        assert_eq!(internet(&[&[0x12]]), !0x1200);
    }

    #[test]
    fn crc32c_of_the_check_string() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn rfc_1624_a_changed_checksum_is_as_far_from_the_right_one_as_it_was(
            bytes in proptest::collection::vec(any::<u8>(), 8..60), at in 0usize..4, new in any::<[u8; 8]>(), len in 0usize..=4,
            found in any::<u16>(),
        ) {
            let mut bytes = bytes;
            let part = at * 2..(at + len).min(4) * 2;
            let new = &new[part.clone()];
            let change = change(&bytes[part.clone()], new);
            let right = internet(&[&bytes]);
            bytes[part].copy_from_slice(new);
            // As ones' complement sums, in which 0xffff is 0.
            let distance = |one: u16, other: u16| (u32::from(one) + u32::from(!other)) % 0xffff;
            prop_assert_eq!(distance(updated(found, change), internet(&[&bytes])), distance(found, right));
            prop_assert_eq!(distance(updated(right, change), internet(&[&bytes])), 0);
        }

        #[test]
        fn a_changed_crc_is_the_one_that_is_computed_anew(
            bytes in proptest::collection::vec(any::<u8>(), 4..2000), at in 0usize..2000, new in any::<[u8; 4]>(),
        ) {
            let mut bytes = bytes;
            let at = at % (bytes.len() - 3);
            let before = crc32c(&bytes);
            let old = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            bytes[at..at + 4].copy_from_slice(&new);
            let difference = (old ^ u32::from_be_bytes(new)).to_be_bytes();
            prop_assert_eq!(before ^ crc32c_change(difference, bytes.len() - at), crc32c(&bytes));
        }
    }
}
