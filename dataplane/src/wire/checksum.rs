//! The internet checksum (RFC 1071) and CRC-32C (RFC 9260 appendix A), for packets that are built here and for those that
//! would change a session.

use std::net::IpAddr;

/// The ones' complement sum of 16-bit words over all parts, complemented. Each part but the last has an even length.
pub(crate) fn internet(parts: &[&[u8]]) -> u16 {
    !fold(parts.iter().map(|part| sum(part)).sum())
}

/// The sum of 16-bit words, not folded yet; a last odd byte is the upper half of a word. Four bytes at a time: their upper
/// halves fold down in the end (RFC 1071 §2).
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
        /// Castagnoli's polynomial 0x1EDC6F41, reflected.
        const POLYNOMIAL: u32 = 0x82f6_3b78;
        let mut table = [0; 256];
        let mut byte = 0u32;
        while byte < 256 {
            let (mut crc, mut bit) = (byte, 0);
            while bit < 8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
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

#[cfg(test)]
mod tests {
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
}
