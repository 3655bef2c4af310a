//! Reads DNS over TCP (RFC 7766): puts the segments of selected connections in order and finds the messages in them.
//!
//! Segments are copied and forwarded at once. A message is read before the segment that completes it is forwarded, and the receiver cannot
//! read the message earlier. So no segment is held back.

use ahash::AHashMap;

use super::{Asker, Holder};
use crate::packet::TcpFlags;

/// Maximum number of a pod's connections per worker, of which the least recently used one gives way to the next. Resolvers keep a few. With
/// [`ANSWERS`], one pod can occupy 1.1 MB of a worker's memory.
const CONNECTIONS: usize = 16;

/// Maximum number of bytes of a connection's answers that wait for their message to be complete: the longest message and its length field.
const ANSWERS: usize = 2 + u16::MAX as usize;

/// Maximum number of bytes of a connection's queries that wait. A query has one name and a few EDNS options, so this is several of them.
const QUERIES: usize = 1 << 12;

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
    /// Sequence number of the first byte. `None` before the SYN.
    start: Option<u32>,
    /// Sequence number of the next byte. `None` if the stream is not followed: before its SYN, and after bytes were lost.
    next: Option<u32>,
    /// Sequence number after the last byte. `None` before the FIN.
    end: Option<u32>,
    /// Bytes in order, from the length field of the first incomplete message on.
    bytes: Vec<u8>,
    /// Segments after a gap, with their sequence numbers.
    early: Vec<(u32, Vec<u8>)>,
}

/// A connection of a pod to a server.
#[derive(Debug)]
struct Connection {
    asker: Asker,
    queries: Stream,
    answers: Stream,
}

/// The DNS connections at one worker. Those of a pod are in the order of their last use.
#[derive(Debug, Default)]
pub(crate) struct Streams(AHashMap<Holder, Vec<Connection>>);

impl Streams {
    /// Adds a segment to its stream, and calls `each` with every message that it completes, without the length field. `is_query` is true
    /// for the direction from the pod to the server. Returns false if messages are lost: the SYN was not seen, the pod has more than
    /// [`CONNECTIONS`] connections, too many bytes wait, or a segment was truncated.
    pub(crate) fn take(
        &mut self,
        asker: &Asker,
        is_query: bool,
        segment: &Segment<'_>,
        mut each: impl FnMut(&[u8]),
    ) -> bool {
        let connections = self.0.entry(asker.holder).or_default();
        let known = connections.iter().position(|connection| connection.asker == *asker);
        let known = known.map(|at| connections.remove(at));
        if segment.flags.has(TcpFlags::RST) {
            return true;
        }
        let new = || Connection { asker: *asker, queries: Stream::default(), answers: Stream::default() };
        let Some(mut connection) = known.or_else(|| segment.flags.has(TcpFlags::SYN).then(new)) else {
            return segment.data.is_empty();
        };
        let is_followed = if is_query {
            connection.queries.take(segment, QUERIES, &mut each)
        } else {
            connection.answers.take(segment, ANSWERS, &mut each)
        };
        // A client may close its direction before the answers come.
        if !connection.answers.is_over() {
            if connections.len() == CONNECTIONS {
                connections.remove(0);
            }
            connections.push(connection);
        }
        is_followed
    }

    /// Drops the connections of all holders for which `is_kept` returns false.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(Holder) -> bool) {
        self.0.retain(|holder, _| is_kept(*holder));
    }
}

impl Stream {
    /// Adds a segment. `most` is the maximum number of bytes that wait. Returns false if messages are lost.
    fn take(&mut self, segment: &Segment<'_>, most: usize, each: &mut impl FnMut(&[u8])) -> bool {
        let is_first = segment.flags.has(TcpFlags::SYN);
        // A SYN has a sequence number of its own. Data may follow it (RFC 7413).
        let seq = segment.seq.wrapping_add(is_first.into());
        // A repeated SYN changes nothing.
        if is_first && self.start != Some(seq) {
            *self = Self { start: Some(seq), next: Some(seq), ..Self::default() };
        }
        let is_far = |next| usize::try_from(ahead(seq, next)).is_ok_and(|ahead| ahead > most);
        if self.next.is_some_and(is_far) {
            // No receiver's window is known. A forged segment must not end the stream, and later segments end it if this one is genuine.
            return segment.data.is_empty();
        }
        if segment.flags.has(TcpFlags::FIN) {
            self.end = Some(after(seq, segment.data));
        }
        let is_followed = segment.data.is_empty() || self.add(seq, segment, most, each);
        if !is_followed {
            (self.next, self.bytes, self.early) = (None, Vec::new(), Vec::new());
        }
        is_followed
    }

    /// Whether the FIN and all bytes before it were read, or the FIN of a stream that is not followed was seen.
    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| self.next.is_none_or(|next| ahead(next, end) >= 0))
    }

    /// Adds the bytes of a segment, of which the first has the number `seq`, and reads the messages. Returns false if the stream is not
    /// followed or cannot be followed any longer.
    fn add(&mut self, seq: u32, segment: &Segment<'_>, most: usize, each: &mut impl FnMut(&[u8])) -> bool {
        let Some(next) = self.next else { return false };
        match ahead(seq, next) {
            0 => {}
            _ if !segment.is_whole => return false,
            1.. => {
                let waiting = self.bytes.len() + self.early.iter().map(|(_, data)| data.len()).sum::<usize>();
                if self.early.len() == EARLY || waiting + segment.data.len() > most {
                    return false;
                }
                self.early.push((seq, segment.data.to_vec()));
                return true;
            }
            _ => {}
        }
        self.append(seq, segment.data);
        while let Some(at) = self.early.iter().position(|(seq, _)| self.next.is_some_and(|next| ahead(*seq, next) <= 0))
        {
            let (seq, data) = self.early.swap_remove(at);
            self.append(seq, &data);
        }
        self.read(each);
        segment.is_whole && self.bytes.len() <= most
    }

    /// Appends the bytes of a segment that the stream does not have yet. `seq` is the number of the first one.
    fn append(&mut self, seq: u32, data: &[u8]) {
        let Some(next) = self.next else { return };
        let known = usize::try_from(-i64::from(ahead(seq, next))).unwrap_or(0);
        if let Some(new) = data.get(known..) {
            self.bytes.extend_from_slice(new);
            self.next = Some(after(next, new));
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

/// Returns the sequence number after `data`, whose first byte has the number `seq`.
#[expect(clippy::cast_possible_truncation, reason = "a segment is shorter than 2^32 bytes")]
const fn after(seq: u32, data: &[u8]) -> u32 {
    seq.wrapping_add(data.len() as u32)
}

/// Returns the number of bytes by which `seq` is ahead of `of`. Negative if it is behind.
const fn ahead(seq: u32, of: u32) -> i32 {
    seq.wrapping_sub(of).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let long = vec![7; ANSWERS];
        assert_eq!(messages(0, &[(60_000, &long), (61_000, b"x"), (0, b"\0\x01a")]), (Vec::new(), false));
        let syn = Segment { seq: 0, flags: TcpFlags(TcpFlags::SYN), data: &[], is_whole: true };
        streams.take(&asker(), false, &syn, |_| {});
        let cut = Segment { seq: 1, flags: TcpFlags(TcpFlags::ACK), data: b"\0\x09abc", is_whole: false };
        assert!(!streams.take(&asker(), false, &cut, |_| panic!("cut")));
        let rest = Segment { seq: 6, flags: TcpFlags(TcpFlags::ACK), data: b"\0\x01a", is_whole: true };
        assert!(!streams.take(&asker(), false, &rest, |_| panic!("after the cut")));
    }

    /// Takes an answer's segment, and returns the messages that it completes. Fails if messages are lost.
    fn answer(streams: &mut Streams, asker: &Asker, seq: u32, flags: u8, data: &[u8]) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let segment = Segment { seq, flags: TcpFlags(flags), data, is_whole: true };
        assert!(streams.take(asker, false, &segment, |message| found.push(message.to_vec())));
        found
    }

    fn count(streams: &Streams) -> usize {
        streams.0.values().map(Vec::len).sum()
    }

    #[test]
    fn a_repeated_syn_changes_nothing_and_one_with_data_begins_with_it() {
        let mut streams = Streams::default();
        assert_eq!(answer(&mut streams, &asker(), 9, TcpFlags::SYN, b"\0\x01a\0"), [b"a"]);
        answer(&mut streams, &asker(), 9, TcpFlags::SYN, b"");
        assert_eq!(answer(&mut streams, &asker(), 14, TcpFlags::ACK, b"\x01b"), [b"b"]);
        answer(&mut streams, &asker(), 500, TcpFlags::SYN, b"");
        assert_eq!(answer(&mut streams, &asker(), 501, TcpFlags::ACK, b"\0\x01c"), [b"c"], "a new connection");
        assert_eq!(count(&streams), 1);
    }

    #[test]
    fn a_fin_waits_for_the_bytes_before_it_and_a_rst_does_not() {
        let mut streams = Streams::default();
        answer(&mut streams, &asker(), 9, TcpFlags::SYN, b"");
        assert!(answer(&mut streams, &asker(), 13, TcpFlags::FIN | TcpFlags::ACK, b"").is_empty());
        assert_eq!(count(&streams), 1);
        assert_eq!(answer(&mut streams, &asker(), 10, TcpFlags::ACK, b"\0\x01a"), [b"a"]);
        assert_eq!(count(&streams), 0);
        answer(&mut streams, &asker(), 9, TcpFlags::SYN, b"");
        let query = |flags| Segment { seq: 5, flags: TcpFlags(flags), data: &[], is_whole: true };
        streams.take(&asker(), true, &query(TcpFlags::SYN), |_| {});
        streams.take(&asker(), true, &query(TcpFlags::FIN), |_| {});
        assert_eq!(count(&streams), 1, "the answers may still come");
        streams.take(&asker(), true, &query(TcpFlags::RST), |_| {});
        assert_eq!(count(&streams), 0);
    }

    #[test]
    fn a_segment_beyond_what_can_wait_does_not_end_the_stream() {
        let far = u32::try_from(ANSWERS).unwrap() + 1;
        for distance in [far, 1 << 30, i32::MAX.cast_unsigned()] {
            let (found, is_followed) = messages(7, &[(distance, b"x"), (0, b"\0\x01a")]);
            assert_eq!((found, is_followed), (vec![b"a".to_vec()], false), "{distance}");
        }
    }

    #[test]
    fn queries_that_wait_have_less_room_than_answers() {
        let long = [&[0xff, 0xff], vec![7; QUERIES].as_slice()].concat();
        for (is_query, is_followed) in [(true, false), (false, true)] {
            let mut streams = Streams::default();
            for (seq, flags, data) in [(0, TcpFlags::SYN, b"".as_slice()), (1, TcpFlags::ACK, &long)] {
                let segment = Segment { seq, flags: TcpFlags(flags), data, is_whole: true };
                let is_kept = streams.take(&asker(), is_query, &segment, |_| {});
                assert_eq!(is_kept, is_followed || seq == 0);
            }
        }
    }

    #[test]
    fn a_pod_displaces_its_own_least_recently_used_connection_only() {
        let mut streams = Streams::default();
        let of = |holder, port: usize| Asker {
            holder: Holder(holder),
            client: ([10, 0, 0, 1].into(), u16::try_from(port).unwrap()),
            ..asker()
        };
        answer(&mut streams, &of(2, 0), 0, TcpFlags::SYN, b"");
        for port in 0..CONNECTIONS {
            answer(&mut streams, &of(1, port), 0, TcpFlags::SYN, b"");
        }
        answer(&mut streams, &of(1, 0), 1, TcpFlags::ACK, b"\0");
        answer(&mut streams, &of(1, CONNECTIONS), 0, TcpFlags::SYN, b"");
        assert_eq!(count(&streams), CONNECTIONS + 1);
        let lost = Segment { seq: 1, flags: TcpFlags(TcpFlags::ACK), data: b"\0\x01a", is_whole: true };
        assert!(!streams.take(&of(1, 1), false, &lost, |_| panic!("displaced")));
        assert_eq!(answer(&mut streams, &of(1, 0), 2, TcpFlags::ACK, b"\x01a"), [b"a"]);
        assert_eq!(answer(&mut streams, &of(2, 0), 1, TcpFlags::ACK, b"\0\x01a"), [b"a"]);
        streams.retain(|holder| holder == Holder(2));
        assert_eq!(count(&streams), 1);
    }
}
