//! The open questions of pods. A worker learns only from answers to them.

use std::net::IpAddr;

use ahash::AHashMap;

use super::Holder;

/// Maximum number of a pod's open questions per worker. A resolver asks for two address families and a few search domains at once.
pub(crate) const OPEN: usize = 64;

/// Time in nanoseconds for which a question stays open: 10 seconds, twice the time after which glibc and musl ask again.
pub const PATIENCE: u64 = 10_000_000_000;

/// Maximum length of a question in bytes: a name of 255 bytes, type and class (RFC 1035 §2.3.4, §4.1.2).
const LONGEST: usize = 259;

/// The ends of a DNS conversation of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Asker {
    pub(crate) holder: Holder,
    /// The pod's address and port, as the pod sees them.
    pub(crate) client: (IpAddr, u16),
    /// The server's address and port, as the server sees them.
    pub(crate) server: (IpAddr, u16),
    pub(crate) protocol: u8,
}

/// A query of a pod that was not answered yet.
#[derive(Debug)]
struct Question {
    asker: Asker,
    /// The DNS message's id.
    id: u16,
    /// Time of the last query in nanoseconds since 1970.
    asked: u64,
    /// The question as sent, at most [`LONGEST`] bytes.
    bytes: Box<[u8]>,
}

impl Question {
    fn is(&self, asker: &Asker, id: u16, bytes: &[u8]) -> bool {
        self.id == id && *self.bytes == *bytes && self.asker == *asker
    }
}

/// The open questions of all pods at one worker. Query and answer belong to one session, so the same worker judges both.
#[derive(Debug, Default)]
pub(crate) struct Questions(AHashMap<Holder, Vec<Question>>);

impl Questions {
    /// Opens a question at `now`, in nanoseconds since 1970. `bytes` are the question as sent. A repeated question replaces the earlier one
    /// and so stays open longer. If the pod has [`OPEN`] questions, the oldest is closed. Ignores questions of more than [`LONGEST`] bytes.
    pub(crate) fn ask(&mut self, asker: &Asker, id: u16, bytes: &[u8], now: u64) {
        if bytes.len() > LONGEST {
            return;
        }
        let open = self.0.entry(asker.holder).or_default();
        open.retain(|question| now.saturating_sub(question.asked) < PATIENCE && !question.is(asker, id, bytes));
        if open.len() == OPEN {
            open.remove(0);
        }
        open.push(Question { asker: *asker, id, asked: now, bytes: bytes.into() });
    }

    /// Whether the question that an answer repeats byte for byte is open. False for an unasked, second or late answer, from which nothing may
    /// be learned. `now` is in nanoseconds since 1970.
    pub(crate) fn is_open(&self, asker: &Asker, id: u16, bytes: &[u8], now: u64) -> bool {
        let open =
            self.0.get(&asker.holder).and_then(|open| open.iter().find(|question| question.is(asker, id, bytes)));
        open.is_some_and(|question| now.saturating_sub(question.asked) < PATIENCE)
    }

    /// Closes the question that an answer repeats byte for byte.
    pub(crate) fn close(&mut self, asker: &Asker, id: u16, bytes: &[u8]) {
        if let Some(open) = self.0.get_mut(&asker.holder) {
            open.retain(|question| !question.is(asker, id, bytes));
        }
    }

    /// Drops the questions of all holders for which `is_kept` returns false.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(Holder) -> bool) {
        self.0.retain(|holder, _| is_kept(*holder));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(holder: u32, port: u16) -> Asker {
        let (client, server) = (([10, 0, 0, 1].into(), port), ([10, 0, 0, 53].into(), 53));
        Asker { holder: Holder(holder), client, server, protocol: 17 }
    }

    /// Answers a question. Returns whether it was open.
    fn answered(questions: &mut Questions, asker: &Asker, id: u16, bytes: &[u8], now: u64) -> bool {
        let is_open = questions.is_open(asker, id, bytes, now);
        questions.close(asker, id, bytes);
        is_open
    }

    #[test]
    fn an_answer_closes_the_question_that_it_repeats_byte_for_byte() {
        let mut questions = Questions::default();
        questions.ask(&asker(1, 4000), 7, b"WwW", 0);
        for (other, id, bytes) in [
            (asker(1, 4001), 7, b"WwW"),
            (asker(2, 4000), 7, b"WwW"),
            (asker(1, 4000), 8, b"WwW"),
            (asker(1, 4000), 7, b"www"),
        ] {
            assert!(!answered(&mut questions, &other, id, bytes, 1), "{other:?} {id} {bytes:?}");
        }
        assert!(answered(&mut questions, &asker(1, 4000), 7, b"WwW", 1));
        assert!(!answered(&mut questions, &asker(1, 4000), 7, b"WwW", 1), "a second answer");
    }

    #[test]
    fn a_question_stays_open_for_a_while_and_longer_if_it_is_repeated() {
        let mut questions = Questions::default();
        questions.ask(&asker(1, 1), 1, b"a", 0);
        assert!(!answered(&mut questions, &asker(1, 1), 1, b"a", PATIENCE));
        questions.ask(&asker(1, 1), 1, b"a", 0);
        questions.ask(&asker(1, 1), 1, b"a", PATIENCE - 1);
        assert!(answered(&mut questions, &asker(1, 1), 1, b"a", PATIENCE + 5));
        assert!(!answered(&mut questions, &asker(1, 1), 1, b"a", PATIENCE + 5), "repeated, but one question");
    }

    #[test]
    fn a_pod_displaces_its_own_oldest_question_only() {
        let mut questions = Questions::default();
        questions.ask(&asker(2, 1), 1, b"other", 0);
        for id in 0..=u16::try_from(OPEN).unwrap() {
            questions.ask(&asker(1, 1), id, b"a", u64::from(id));
        }
        assert!(!answered(&mut questions, &asker(1, 1), 0, b"a", 99));
        assert!(
            answered(&mut questions, &asker(1, 1), 1, b"a", 99)
                && answered(&mut questions, &asker(2, 1), 1, b"other", 99)
        );
        questions.retain(|holder| holder == Holder(2));
        assert!(!answered(&mut questions, &asker(1, 1), 2, b"a", 99));
    }
}
