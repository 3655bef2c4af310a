//! Reassembles copies of fragmented DNS answers (RFC 791, RFC 8200 §4.5).
//!
//! The worker forwards every fragment at once. The receiver cannot read the answer before it has all fragments, and the worker reads its
//! copy before it forwards the last one. The [fragment table](crate::fragment) has refused fragments that overlap or that belong to no
//! judged first fragment, so all fragments here are parts of one datagram.

use ahash::AHashMap;

use super::{Asker, Holder};
use crate::packet::Piece;

/// Maximum number of a pod's incomplete answers per worker, of which the oldest gives way to the next. A resolver waits for two at a time.
const INCOMPLETE: usize = 4;

/// Maximum size of an answer with its UDP header, in bytes: four times the largest EDNS buffer that resolvers use, 4,096. With
/// [`INCOMPLETE`], one pod can occupy 64 KiB of a worker's memory.
const LONGEST: usize = 1 << 14;

/// The fragments of an answer that have arrived so far.
#[derive(Debug)]
struct Datagram {
    asker: Asker,
    /// The identification of the datagram.
    id: u32,
    /// The bytes of the IP payload. Zero where fragments are missing.
    bytes: Vec<u8>,
    /// Number of bytes that have arrived.
    arrived: usize,
    /// Length of the IP payload in bytes. `None` before the last fragment.
    len: Option<usize>,
}

/// The incomplete answers of all pods at one worker. A pod's are in the order of their first fragments.
#[derive(Debug, Default)]
pub(crate) struct Datagrams(AHashMap<Holder, Vec<Datagram>>);

/// What a fragment does to its datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// The fragment completes this IP payload: a UDP header and the message.
    Complete(Vec<u8>),
    /// Other fragments are missing.
    Incomplete,
    /// The answer cannot be read: it is longer than [`LONGEST`] bytes, the fragment is truncated, or an earlier one was lost here.
    Lost,
}

impl Datagrams {
    /// Adds a fragment of an answer to `asker`. Fragments of a datagram come first to last or in another order, but its first byte always
    /// first: the fragment table drops the others.
    pub(crate) fn add(&mut self, asker: &Asker, piece: &Piece<'_>) -> Added {
        let Piece { part, bytes, is_whole } = *piece;
        let incomplete = self.0.entry(asker.holder).or_default();
        let known = incomplete.iter().position(|datagram| datagram.asker == *asker && datagram.id == part.id);
        let (start, end) = (part.start as usize, part.end as usize);
        let known = known.map(|at| incomplete.remove(at)).filter(|_| !part.is_first());
        let new = || Datagram { asker: *asker, id: part.id, bytes: Vec::new(), arrived: 0, len: None };
        let Some(mut datagram) = known.or_else(|| part.is_first().then(new)) else { return Added::Lost };
        if !is_whole || end > LONGEST || bytes.len() != end - start {
            return Added::Lost;
        }
        if datagram.bytes.len() < end {
            datagram.bytes.resize(end, 0);
        }
        datagram.bytes[start..end].copy_from_slice(bytes);
        datagram.arrived += bytes.len();
        datagram.len = if part.more { datagram.len } else { Some(end) };
        if datagram.len == Some(datagram.arrived) {
            return Added::Complete(datagram.bytes);
        }
        if incomplete.len() == INCOMPLETE {
            incomplete.remove(0);
        }
        incomplete.push(datagram);
        Added::Incomplete
    }

    /// Drops the answers to all holders for which `is_kept` returns false.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(Holder) -> bool) {
        self.0.retain(|holder, _| is_kept(*holder));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Fragment;

    fn asker(holder: u32) -> Asker {
        let (client, server) = (([10, 0, 0, 1].into(), 4000), ([10, 0, 0, 53].into(), 53));
        Asker { holder: Holder(holder), client, server, protocol: 17 }
    }

    fn piece(id: u32, start: usize, bytes: &[u8], more: bool) -> Piece<'_> {
        let at = |at: usize| u32::try_from(at).unwrap();
        let part = Fragment { id, start: at(start), end: at(start + bytes.len()), more };
        Piece { part, bytes, is_whole: true }
    }

    #[test]
    fn an_answer_is_complete_with_its_last_missing_fragment_in_any_order_after_the_first() {
        let whole: Vec<u8> = (0..=255).cycle().take(4000).collect();
        let pieces: Vec<_> = (0..4).map(|at| piece(7, at * 1000, &whole[at * 1000..][..1000], at < 3)).collect();
        for order in [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]] {
            let mut datagrams = Datagrams::default();
            let mut added = vec![datagrams.add(&asker(1), &pieces[0])];
            added.extend(order.map(|at| datagrams.add(&asker(1), &pieces[at])));
            let last = added.pop().unwrap();
            assert!(added.iter().all(|added| *added == Added::Incomplete), "{order:?}");
            assert_eq!(last, Added::Complete(whole.clone()), "{order:?}");
            assert!(datagrams.0[&Holder(1)].is_empty(), "{order:?}");
        }
    }

    #[test]
    fn fragments_of_other_pods_conversations_and_datagrams_do_not_complete_an_answer() {
        let mut datagrams = Datagrams::default();
        assert_eq!(datagrams.add(&asker(1), &piece(7, 0, b"12345678", true)), Added::Incomplete);
        let other = Asker { client: ([10, 0, 0, 1].into(), 4001), ..asker(1) };
        for (asker, id) in [(asker(2), 7), (other, 7), (asker(1), 8)] {
            assert_eq!(datagrams.add(&asker, &piece(id, 8, b"9", false)), Added::Lost, "{asker:?} {id}");
        }
        assert_eq!(datagrams.add(&asker(1), &piece(7, 8, b"9", false)), Added::Complete(b"123456789".to_vec()));
    }

    #[test]
    fn a_reused_identification_begins_a_new_answer() {
        let mut datagrams = Datagrams::default();
        datagrams.add(&asker(1), &piece(7, 0, b"old bytes, which", true));
        datagrams.add(&asker(1), &piece(7, 0, b"new byte", true));
        assert_eq!(datagrams.add(&asker(1), &piece(7, 8, b"s", false)), Added::Complete(b"new bytes".to_vec()));
    }

    #[test]
    fn a_pod_displaces_its_own_oldest_answer_only_and_long_or_truncated_answers_are_lost() {
        let mut datagrams = Datagrams::default();
        datagrams.add(&asker(2), &piece(0, 0, b"other", true));
        for id in 0..=u32::try_from(INCOMPLETE).unwrap() {
            datagrams.add(&asker(1), &piece(id, 0, b"12345678", true));
        }
        assert_eq!(datagrams.add(&asker(1), &piece(0, 8, b"9", false)), Added::Lost, "displaced");
        assert!(matches!(datagrams.add(&asker(1), &piece(1, 8, b"9", false)), Added::Complete(_)));
        assert!(matches!(datagrams.add(&asker(2), &piece(0, 5, b"9", false)), Added::Complete(_)));
        let far = Piece {
            part: Fragment { id: 2, start: 16_384, end: 16_392, more: true },
            ..piece(2, 0, b"12345678", true)
        };
        assert_eq!(datagrams.add(&asker(1), &far), Added::Lost);
        assert_eq!(datagrams.add(&asker(1), &piece(2, 8, b"9", false)), Added::Lost, "forgotten");
        let truncated = Piece { is_whole: false, ..piece(3, 8, b"9", false) };
        assert_eq!(datagrams.add(&asker(1), &truncated), Added::Lost);
        datagrams.retain(|holder| holder == Holder(2));
        assert_eq!(datagrams.0.len(), 1);
    }
}
