//! The internet checksum (RFC 1071) and CRC-32C (RFC 9260 appendix A), for packets that are built, translated, or would change a
//! session's state.

use std::net::IpAddr;

/// Castagnoli's polynomial 0x1EDC6F41, reflected: the highest bit is the coefficient of x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Returns the internet checksum over all parts. Each part except the last must have an even length.
pub(crate) fn internet(parts: &[&[u8]]) -> u16 {
    !fold(parts.iter().map(|part| sum(part)).sum())
}

/// Returns the sum of 16-bit words, not [folded](fold). An odd last byte is the upper half of a word. The loop adds four bytes at a time,
/// whose upper halves [`fold`] adds to the lower ones (RFC 1071 §2).
#[inline]
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (quads, rest) = bytes.as_chunks::<4>();
    let quads: u64 = quads.iter().map(|&quad| u64::from(u32::from_be_bytes(quad))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    quads + u64::from(u32::from_be_bytes(last))
}

/// Reduces a sum to 16 bits by adding the carries.
#[expect(clippy::cast_possible_truncation, reason = "the loop ends when it fits")]
pub(crate) const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns the change of a sum when `new` replaces `old`: ~m + m' of RFC 1624, not [folded](fold). Both must have the same length and begin
/// at an even offset. Changes at several offsets are added.
#[inline]
pub(crate) fn change(old: &[u8], new: &[u8]) -> u64 {
    // 0xffff_ffff is a multiple of 0xffff, so adding it changes nothing. One for each four bytes prevents a negative result.
    let ones = old.len().div_ceil(4) as u64 * u64::from(u32::MAX);
    sum(new) + ones - sum(old)
}

/// Returns the checksum after a [change]: equation 3 of RFC 1624, HC' = ~(~HC + ~m + m'). A wrong checksum stays wrong.
#[inline]
pub(crate) fn updated(checksum: u16, change: u64) -> u16 {
    !fold_at_once(u64::from(!checksum) + change)
}

/// Like [`updated`], for a [folded](fold) change. A change that is the complement of another may be 0 instead of 0xffff, which is equal in
/// ones' complement. Adding 0xffff gives the same checksum for both.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the last step leaves 16 bits")]
pub(crate) const fn updated_by(checksum: u16, change: u16) -> u16 {
    let sum = (!checksum) as u32 + change as u32 + 0xffff;
    // Two steps suffice for the sum of three 16-bit numbers.
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// [`fold`] without a branch, which the CPU would mispredict for every second packet if their sums differ.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the last step leaves 16 bits")]
const fn fold_at_once(sum: u64) -> u16 {
    // The steps leave at most 33, 18, 17 and 16 bits.
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Returns the checksum over pseudo header and segment (RFC 9293 §3.1, RFC 8200 §8.1). 0 if the segment contains its correct checksum.
/// Both addresses must have the same family, and the segment must fit an IP packet.
pub(crate) fn transport(src: IpAddr, dst: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    let [high, low] = u16::try_from(segment.len()).unwrap_or(u16::MAX).to_be_bytes();
    let rest = [0, protocol, high, low];
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => internet(&[&src.octets(), &dst.octets(), &rest, segment]),
        (IpAddr::V6(src), IpAddr::V6(dst)) => internet(&[&src.octets(), &dst.octets(), &rest, segment]),
        _ => 0,
    }
}

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_of(&[bytes])
}

/// Returns the CRC-32C over all parts.
pub(crate) fn crc32c_of(parts: &[&[u8]]) -> u32 {
    /// The CRC's change by each value of a byte.
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

/// Returns the bits of a CRC-32C that flip when four bytes change. `difference` is the old four bytes XOR the new ones. `len` is the number
/// of bytes from the first of the four to the end. The data is not needed, because the CRC is linear.
pub(crate) fn crc32c_change(difference: [u8; 4], len: usize) -> u32 {
    // Computes the difference times x^(8 len) by repeated squaring.
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

/// Returns the product of two polynomials modulo [`POLYNOMIAL`].
const fn multiply(mut one: u32, mut other: u32) -> u32 {
    let mut product = 0;
    while one != 0 {
        // The highest bit is x^0.
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
            // In ones' complement, 0xffff equals 0.
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
