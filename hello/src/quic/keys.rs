//! The keys of a client's Initial packets (RFC 9001 section 5.2, RFC 9369 section 3.3).

use ring::aead::quic::HeaderProtectionKey;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey, quic};
use ring::hkdf::{HKDF_SHA256, KeyType, Okm, Prk, Salt};

/// A version of QUIC whose Initial packets can be decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V2,
}

impl Version {
    /// Returns the version with a number in packets. `None` if the version is not known.
    pub(super) const fn of(number: u32) -> Option<Self> {
        match number {
            0x0000_0001 => Some(Self::V1),
            0x6b33_43cf => Some(Self::V2),
            _ => None,
        }
    }

    const fn salt(self) -> [u8; 20] {
        match self {
            Self::V1 => *b"\x38\x76\x2c\xf7\xf5\x59\x34\xb3\x4d\x17\x9a\xe6\xa4\xc8\x0c\xad\xcc\xbb\x7f\x0a",
            Self::V2 => *b"\x0d\xed\xe3\xde\xf7\x00\xa6\xdb\x81\x93\x81\xbe\x6e\x26\x9d\xcb\xf9\xbd\x2e\xd9",
        }
    }

    /// Returns the labels of the packets' key, of their IV and of the key for headers.
    const fn labels(self) -> [&'static [u8]; 3] {
        match self {
            Self::V1 => [b"quic key", b"quic iv", b"quic hp"],
            Self::V2 => [b"quicv2 key", b"quicv2 iv", b"quicv2 hp"],
        }
    }
}

/// The keys by which a client protects its Initial packets.
pub(super) struct Keys {
    packet: LessSafeKey,
    iv: [u8; NONCE_LEN],
    header: HeaderProtectionKey,
}

/// The length of an IV, as the key derivation wants it.
struct Iv;

impl KeyType for Iv {
    fn len(&self) -> usize {
        NONCE_LEN
    }
}

impl Keys {
    /// Derives the keys from the destination connection id of a client's first packet. Never `None`: the library's results are for lengths
    /// that do not occur.
    pub(super) fn of_client(version: Version, id: &[u8]) -> Option<Self> {
        let initial = Salt::new(HKDF_SHA256, &version.salt()).extract(id);
        let client = expand(&initial, b"client in", HKDF_SHA256, |okm| Prk::from(okm))?;
        let [key, iv, header] = version.labels();
        let packet = expand(&client, key, &AES_128_GCM, |okm| UnboundKey::from(okm)).map(LessSafeKey::new)?;
        let header = expand(&client, header, &quic::AES_128, |okm| HeaderProtectionKey::from(okm))?;
        let mut bytes = [0; NONCE_LEN];
        expand(&client, iv, Iv, |okm| okm.fill(&mut bytes).ok())??;
        Some(Self { packet, iv: bytes, header })
    }

    /// Returns the mask over a header's first byte and its packet number. `sample` has 16 bytes.
    pub(super) fn mask(&self, sample: &[u8]) -> Option<[u8; 5]> {
        self.header.new_mask(sample).ok()
    }

    /// Decrypts a packet in place and returns its payload. `None` if the packet was protected with other keys, or changed.
    pub(super) fn open<'a>(&self, number: u64, header: &[u8], payload: &'a mut [u8]) -> Option<&'a [u8]> {
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.packet.open_in_place(nonce, Aad::from(header), payload).ok().map(|payload| &*payload)
    }
}

/// HKDF-Expand-Label with an empty context (RFC 8446 section 7.1).
fn expand<L: KeyType, T>(secret: &Prk, label: &[u8], len: L, into: impl FnOnce(Okm<'_, L>) -> T) -> Option<T> {
    const PREFIX: &[u8] = b"tls13 ";
    let bytes = u16::try_from(len.len()).ok()?.to_be_bytes();
    let label_len = [u8::try_from(PREFIX.len() + label.len()).ok()?];
    secret.expand(&[&bytes, &label_len, PREFIX, label, &[0]], len).ok().map(into)
}
