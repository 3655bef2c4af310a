//! Reads DNS over TCP (RFC 7766): puts the segments of selected connections in order and finds the messages in them.
//!
//! Segments are copied and forwarded at once. A message is read before the segment that completes it is forwarded, and the receiver cannot
//! read the message earlier. So no segment is held back.

use ahash::AHashMap;

use super::Asker;
use crate::packet::TcpFlags;

/// Maximum number of streams per worker, two per connection. Nothing is learned from further ones.
const STREAMS: usize = 1 << 10;

/// Maximum number of bytes of one direction that wait for their message to be complete: the longest message and its length field. A stream
/// that exceeds it is no longer followed.
const WAITING: usize = 2 + u16::MAX as usize;

/// Maximum number of segments of one direction that wait for earlier segments.
const EARLY: usize = 32;

/// A TCP segment of a DNS conversation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    /// Sequence number of the first byte, or of the SYN.
    pub(crate) seq: u32,
    pub(crate) flags: TcpFlags,
    pub(crate) data: &'a [u8],
    /// Whether `data` is the whole payload. False if the packet is truncated.
    pub(crate) is_whole: bool,
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Stream {
    /// Sequence number of the next byte. `None` if the stream is not followed until its next SYN.
    next: Option<u32>,
    /// Bytes in order, from the length field of the first incomplete message on.
    bytes: Vec<u8>,
    /// Segments after a gap, with their sequence numbers.
    early: Vec<(u32, Vec<u8>)>,
}

/// The streams of DNS connections at one worker: by the connection, and true for the direction from the pod to the server.
#[derive(Debug, Default)]
pub(crate) struct Streams(AHashMap<(Asker, bool), Stream>);

impl Streams {
    /// Adds a segment to its stream, and calls `each` with every message that it completes, without the length field. `is_query` is true
    /// for the direction from the pod to the server. Returns false if the stream is not followed, so that its messages are lost: its SYN
    /// was not seen, a limit is exceeded, or a segment was truncated.
    pub(crate) fn take(
        &mut self,
        asker: &Asker,
        is_query: bool,
        segment: &Segment<'_>,
        mut each: impl FnMut(&[u8]),
    ) -> bool {
        let key = (*asker, is_query);
        if segment.flags.has(TcpFlags::SYN) {
            if self.0.len() >= STREAMS && !self.0.contains_key(&key) {
                return false;
            }
            let next = Some(segment.seq.wrapping_add(1));
            self.0.insert(key, Stream { next, ..Stream::default() });
            return true;
        }
        let Some(stream) = self.0.get_mut(&key) else { return segment.data.is_empty() };
        let is_followed = stream.take(segment, &mut each);
        if !is_followed {
            *stream = Stream::default();
        }
        if segment.flags.has(TcpFlags::RST | TcpFlags::FIN) {
            self.0.remove(&key);
        }
        is_followed
    }

    /// Drops the streams of all holders for which `is_kept` returns false.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(super::Holder) -> bool) {
        self.0.retain(|(asker, _), _| is_kept(asker.holder));
    }
}

impl Stream {
    fn take(&mut self, segment: &Segment<'_>, each: &mut impl FnMut(&[u8])) -> bool {
        let Some(next) = self.next else { return segment.data.is_empty() };
        if segment.data.is_empty() {
            return true;
        }
        match ahead(segment.seq, next) {
            0 => {}
            _ if !segment.is_whole => return false,
            1.. => {
                let waiting: usize = self.early.iter().map(|(_, data)| data.len()).sum();
                if self.early.len() == EARLY || waiting + segment.data.len() > WAITING {
                    return false;
                }
                self.early.push((segment.seq, segment.data.to_vec()));
                return true;
            }
            _ => {}
        }
        self.append(segment.seq, segment.data);
        while let Some(at) = self.early.iter().position(|(seq, _)| self.next.is_some_and(|next| ahead(*seq, next) <= 0))
        {
            let (seq, data) = self.early.swap_remove(at);
            self.append(seq, &data);
        }
        self.read(each);
        segment.is_whole && self.bytes.len() <= WAITING
    }

    /// Appends the bytes of a segment that the stream does not have yet. `seq` is the number of the first one.
    fn append(&mut self, seq: u32, data: &[u8]) {
        let Some(next) = self.next else { return };
        let known = usize::try_from(-i64::from(ahead(seq, next))).unwrap_or(0);
        if let Some(new) = data.get(known..) {
            self.bytes.extend_from_slice(new);
            // A segment is shorter than 2^32 bytes.
            #[expect(clippy::cast_possible_truncation, reason = "see above")]
            let count = new.len() as u32;
            self.next = Some(next.wrapping_add(count));
        }
    }

    fn read(&mut self, each: &mut impl FnMut(&[u8])) {
        let mut at = 0;
        while let Some(head) = self.bytes.get(at..).and_then(<[u8]>::first_chunk::<2>) {
            let len = usize::from(u16::from_be_bytes(*head));
            let Some(message) = self.bytes.get(at + 2..at + 2 + len) else { break };
            each(message);
            at += 2 + len;
        }
        self.bytes.drain(..at);
    }
}

/// Returns the number of bytes by which `seq` is ahead of `of`. Negative if it is behind.
const fn ahead(seq: u32, of: u32) -> i32 {
    seq.wrapping_sub(of).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Holder;

    fn asker() -> Asker {
        let (client, server) = (([10, 0, 0, 1].into(), 4000), ([10, 0, 0, 53].into(), 53));
        Asker { holder: Holder(1), client, server, protocol: 6 }
    }

    /// Sends segments, each with its distance from the SYN. Returns the messages, and whether the stream was followed to the end.
    fn messages(start: u32, segments: &[(u32, &[u8])]) -> (Vec<Vec<u8>>, bool) {
        let (mut streams, mut found) = (Streams::default(), Vec::new());
        let syn = Segment { seq: start, flags: TcpFlags(TcpFlags::SYN), data: &[], is_whole: true };
        assert!(streams.take(&asker(), false, &syn, |_| {}));
        let mut is_followed = true;
        for (distance, data) in segments {
            let seq = start.wrapping_add(1 + distance);
            let segment = Segment { seq, flags: TcpFlags(TcpFlags::ACK), data, is_whole: true };
            is_followed &= streams.take(&asker(), false, &segment, |message| found.push(message.to_vec()));
        }
        (found, is_followed)
    }

    #[test]
    fn messages_are_found_however_they_are_divided_repeated_and_reordered() {
        let bytes = b"\0\x03one\0\x05three\0\x00\0\x02ab";
        let all = vec![b"one".to_vec(), b"three".to_vec(), b"".to_vec(), b"ab".to_vec()];
        for start in [0, u32::MAX - 4] {
            for size in 1..=bytes.len() {
                let mut segments: Vec<(u32, &[u8])> = (0..)
                    .zip(bytes.chunks(size))
                    .map(|(at, chunk)| (at * u32::try_from(size).unwrap(), chunk))
                    .collect();
                assert_eq!(messages(start, &segments), (all.clone(), true), "pieces of {size}");
                // Every segment twice, and the first one last.
                segments.extend(segments.clone());
                segments.rotate_left(1);
                assert_eq!(messages(start, &segments), (all.clone(), true), "pieces of {size}, out of order");
            }
        }
    }

    #[test]
    fn a_message_is_found_with_the_segment_that_fills_the_gap() {
        let (mut streams, mut found) = (Streams::default(), Vec::new());
        let mut take = |seq, flags, data: &[u8]| {
            let segment = Segment { seq, flags: TcpFlags(flags), data, is_whole: true };
            streams.take(&asker(), false, &segment, |message| found.push(message.to_vec()));
            found.len()
        };
        take(9, TcpFlags::SYN, b"");
        assert_eq!(take(13, TcpFlags::ACK, b"ne\0"), 0);
        assert_eq!(take(10, TcpFlags::ACK, b"\0\x03o"), 1);
    }

    #[test]
    fn a_stream_without_its_begin_or_with_a_hole_teaches_nothing() {
        let mut streams = Streams::default();
        let segment = Segment { seq: 10, flags: TcpFlags(TcpFlags::ACK), data: b"\0\x01a", is_whole: true };
        assert!(!streams.take(&asker(), false, &segment, |_| panic!("no SYN was seen")));
        let long = vec![7; WAITING];
        assert_eq!(messages(0, &[(70_000, &long), (200_000, b"x"), (0, b"\0\x01a")]), (Vec::new(), false));
        let syn = Segment { seq: 0, flags: TcpFlags(TcpFlags::SYN), data: &[], is_whole: true };
        streams.take(&asker(), false, &syn, |_| {});
        let cut = Segment { seq: 1, flags: TcpFlags(TcpFlags::ACK), data: b"\0\x09abc", is_whole: false };
        assert!(!streams.take(&asker(), false, &cut, |_| panic!("cut")));
        let rest = Segment { seq: 6, flags: TcpFlags(TcpFlags::ACK), data: b"\0\x01a", is_whole: true };
        assert!(!streams.take(&asker(), false, &rest, |_| panic!("after the cut")));
    }

    #[test]
    fn connections_beyond_the_limit_teach_nothing_and_ends_make_room() {
        let mut streams = Streams::default();
        let of = |port: usize| Asker { client: ([10, 0, 0, 1].into(), u16::try_from(port).unwrap()), ..asker() };
        let segment = |flags| Segment { seq: 0, flags: TcpFlags(flags), data: &[], is_whole: true };
        for port in 0..STREAMS {
            assert!(streams.take(&of(port), true, &segment(TcpFlags::SYN), |_| {}));
        }
        assert!(!streams.take(&of(STREAMS), true, &segment(TcpFlags::SYN), |_| {}));
        streams.take(&of(5), true, &segment(TcpFlags::FIN | TcpFlags::ACK), |_| {});
        assert!(streams.take(&of(STREAMS), true, &segment(TcpFlags::SYN), |_| {}));
    }
}
