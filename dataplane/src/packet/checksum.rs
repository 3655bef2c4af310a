//! The internet checksum (RFC 1071) and CRC-32C (RFC 9260 appendix A), for packets that are built here.

/// The ones' complement sum of 16-bit words over all parts, complemented. Each part but the last has an even length.
pub(crate) fn internet(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded to 16 bits")
}

/// CRC-32C, bit by bit: it is for probes of a few bytes.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    /// Castagnoli's polynomial 0x1EDC6F41, reflected.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
        }
    }
    !crc
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
