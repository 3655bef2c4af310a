//! The datagrams of probes.
//!
//! ```text
//!   bytes  0      4         5      6       14
//!          "bhNP" version   kind   nonce   length, name of the sender   length, name of the expected receiver   zeros
//! ```
//!
//! A probe has at least [`SMALL`] bytes, so that an answer is never longer than its probe: a forged source address gains nothing.

/// Bytes of a small probe and of an answer: all fields, with two names of the greatest length. Every link lets it pass.
pub(super) const SMALL: usize = 14 + 2 * (1 + MAX_NAME);

/// The greatest length of a node's name (RFC 1123 subdomain), in bytes.
const MAX_NAME: usize = 253;

const MAGIC: [u8; 4] = *b"bhNP";
const VERSION: u8 = 1;

/// The kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Asks for an answer.
    Probe = 1,
    /// Answers a probe with its nonce.
    Answer = 2,
}

/// The content of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    /// Whether it is a probe or an answer.
    pub(super) kind: Kind,
    /// A random number that the sender of the probe draws.
    pub(super) nonce: u64,
    /// The name of the sending node.
    pub(super) from: &'a str,
    /// The name of the node that the sender expects at the receiver's address.
    pub(super) to: &'a str,
}

impl Message<'_> {
    /// Writes the message to the start of `buffer`, followed by zeros. Returns false if it does not fit or a name is too long.
    pub(super) fn write(&self, buffer: &mut [u8]) -> bool {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            let place = buffer.get_mut(at..at + bytes.len());
            at += bytes.len();
            place.map(|place| place.copy_from_slice(bytes)).is_some()
        };
        let mut fits = put(&MAGIC) && put(&[VERSION, self.kind as u8]) && put(&self.nonce.to_be_bytes());
        for name in [self.from, self.to] {
            let length = u8::try_from(name.len()).ok().filter(|&length| usize::from(length) <= MAX_NAME);
            fits = fits && length.is_some_and(|length| put(&[length])) && put(name.as_bytes());
        }
        if let Some(rest) = buffer.get_mut(at..) {
            rest.fill(0);
        }
        fits
    }
}

/// Parses a datagram. `None` if it is no message of this version, or shorter than [`SMALL`].
pub(super) fn parse(bytes: &[u8]) -> Option<Message<'_>> {
    if bytes.len() < SMALL {
        return None;
    }
    let rest = bytes.strip_prefix(&MAGIC)?.strip_prefix(&[VERSION])?;
    let (&kind, rest) = rest.split_first()?;
    let kind = [Kind::Probe, Kind::Answer].into_iter().find(|known| *known as u8 == kind)?;
    let (nonce, rest) = rest.split_first_chunk()?;
    let (from, rest) = name(rest)?;
    let (to, rest) = name(rest)?;
    let is_padded = rest.iter().all(|&byte| byte == 0);
    is_padded.then(|| Message { kind, nonce: u64::from_be_bytes(*nonce), from, to })
}

/// Splits a name with its length from the bytes that follow. `None` if the name is empty, too long, or has characters that no node's name
/// has: names are logged.
fn name(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (&length, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(length.into())?;
    let is_valid = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
    let name = std::str::from_utf8(name).ok()?;
    ((1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|byte| is_valid(&byte))).then_some((name, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(size: usize) -> Vec<u8> {
        let mut buffer = vec![7; size];
        assert!(
            Message { kind: Kind::Probe, nonce: 0x0102_0304_0506_0708, from: "node-1", to: "b.example" }
                .write(&mut buffer)
        );
        buffer
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        for size in [SMALL, 1472, 65_000] {
            let bytes = written(size);
            let read = parse(&bytes).unwrap();
            let expected = Message { kind: Kind::Probe, nonce: 0x0102_0304_0506_0708, from: "node-1", to: "b.example" };
            assert_eq!(read, expected);
        }
        let long = "n".repeat(MAX_NAME);
        let mut buffer = [0; SMALL];
        let message = Message { kind: Kind::Answer, nonce: 1, from: &long, to: &long };
        assert!(message.write(&mut buffer));
        assert_eq!(parse(&buffer), Some(message));
        let longer = "n".repeat(MAX_NAME + 1);
        assert!(!Message { from: &longer, ..message }.write(&mut [0; 1024]), "no name of a node");
        assert!(!message.write(&mut [0; SMALL - 1]));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let good = written(SMALL);
        assert!((0..SMALL).all(|length| parse(&good[..length]).is_none()), "truncated");
        // Magic, version, kind, length of a name, a name's letter, padding.
        for (at, byte) in
            [(0, b'x'), (4, 2), (5, 0), (5, 3), (14, 0), (14, 254), (15, b'\n'), (15, 0xff), (SMALL - 1, 1)]
        {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(parse(&bad), None, "byte {at} is {byte}");
        }
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_are_what_write_makes() {
        // A linear congruential generator (Knuth, MMIX), so that each run tests the same bytes.
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut bytes = written(SMALL);
            // Few changes, most of them near the start, so that some stay valid.
            for _ in 0..next() % 3 {
                let at = usize::try_from(next()).unwrap() % [40, SMALL][usize::from(next() % 4 == 0)];
                bytes[at] = next().to_le_bytes()[0];
            }
            match parse(&bytes) {
                None => refused += 1,
                Some(message) => {
                    accepted += 1;
                    let mut again = vec![0; bytes.len()];
                    assert!(message.write(&mut again));
                    assert_eq!(again, bytes);
                }
            }
        }
        assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
    }
}
