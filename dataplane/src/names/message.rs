//! Parses DNS messages (RFC 1035 section 4): the question, and the addresses that answer the question.
//!
//! A message is at most 65,535 bytes that a stranger wrote. Parsing neither allocates nor panics, and its cost is bounded (see
//! [`Message::addresses`]).

mod chain;
mod labels;
mod name;
mod record;

use std::net::IpAddr;

use chain::Chain;
use labels::Labels;
use record::{CLASS_IN, Records, TYPE_A, TYPE_AAAA, TYPE_ANY};

pub(crate) use name::DomainName;

/// Length of a message's header in bytes (RFC 1035 section 4.1.1).
const HEADER_LEN: usize = 12;
/// Longest message in bytes: the length prefix over TCP has 16 bits (RFC 1035 section 4.2.2).
const MESSAGE_MAX: usize = 65_535;

/// The reason why a message, or a name in a message, is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The message ends before its header, its question or a record of its answer section is complete.
    Truncated,
    /// The opcode is not 0 (QUERY).
    UnusualOpcode,
    /// QDCOUNT is not 1.
    NotOneQuestion,
    /// The name asked is the root, or one of its labels has a byte other than an ASCII letter, a digit, `-` or `_`.
    UnusualName,
    /// A name is longer than 255 bytes, a label's type is unknown (RFC 6891 section 5), or the RDATA of a CNAME record is not one name.
    MalformedName,
    /// A compression pointer does not lead to a name that ends before the pointer's own name starts, or the question's name has a pointer.
    /// Loops and forward pointers have this fault.
    BadPointer,
    /// The answer section has more than 63 CNAME records of class IN, so a chain could have more than 64 names.
    LongChain,
    /// Following and comparing the names of the answer section takes more than 65,536 steps. A step reads a label, a pointer or 8 bytes of
    /// a long label.
    CostlyNames,
}

/// The counts of A and AAAA records of class IN in an answer section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answered {
    /// Records whose address was reported.
    pub(crate) addresses: u16,
    /// Records with an owner that the question does not reach, with a type that was not asked, or with RDATA of a wrong length.
    pub(crate) ignored: u16,
}

/// A DNS query or response with one question. The records after the question are not yet checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    bytes: &'a [u8],
    header: &'a [u8; HEADER_LEN],
    /// The name, type and class asked, as sent.
    question: &'a [u8],
    question_type: u16,
    question_class: u16,
}

impl<'a> Message<'a> {
    /// Parses the header and the question of a message. Bytes after the 65,535th are not read.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Fault> {
        let bytes = bytes.get(..MESSAGE_MAX).unwrap_or(bytes);
        let header = bytes.first_chunk::<HEADER_LEN>().ok_or(Fault::Truncated)?;
        if header[2] & 0x78 != 0 {
            return Err(Fault::UnusualOpcode);
        }
        if header[4..6] != [0, 1] {
            return Err(Fault::NotOneQuestion);
        }
        let mut labels = Labels::at(bytes, HEADER_LEN);
        while labels.next_label()?.is_some() {}
        let name_end = labels.position + 1;
        let fields = bytes.get(name_end..).and_then(<[u8]>::first_chunk::<4>).ok_or(Fault::Truncated)?;
        Ok(Self {
            bytes,
            header,
            question: bytes.get(HEADER_LEN..name_end + fields.len()).ok_or(Fault::Truncated)?,
            question_type: u16::from_be_bytes([fields[0], fields[1]]),
            question_class: u16::from_be_bytes([fields[2], fields[3]]),
        })
    }

    /// Returns the number by which a client matches a response to its query.
    pub(crate) const fn id(&self) -> u16 {
        u16::from_be_bytes([self.header[0], self.header[1]])
    }

    /// Returns the QR bit: false for a query.
    pub(crate) const fn is_response(&self) -> bool {
        self.header[2] & 0x80 != 0
    }

    /// Returns the TC bit: the server left out records that did not fit.
    pub(crate) const fn is_truncated(&self) -> bool {
        self.header[2] & 0x02 != 0
    }

    /// Returns the RCODE, 0 to 15; 0 is success. Without the upper bits of an extended RCODE (RFC 6891 section 6.1.3).
    pub(crate) const fn response_code(&self) -> u8 {
        self.header[3] & 0x0f
    }

    /// Returns the bytes of the question as sent: the name in its original case, the type and the class.
    pub(crate) const fn question(&self) -> &'a [u8] {
        self.question
    }

    /// Returns the name asked. [`Fault::UnusualName`] for the root and for a label that dotted text cannot represent.
    pub(crate) fn name(&self) -> Result<DomainName, Fault> {
        DomainName::collect(Labels::at(self.bytes, HEADER_LEN))
    }

    /// Calls `each` with the address and the TTL in seconds of every record in the answer section that answers the question.
    ///
    /// Such a record has class IN and the type asked. Its owner is the name asked, or a name that CNAME records of the section reach from
    /// there. Records may come in any order. A TTL with the top bit set is reported as 0 (RFC 2181 section 8).
    ///
    /// Calls `each` for no record, and counts none, if the message is a query, or if it asks for another class than IN or for another type
    /// than A, AAAA or ANY. The response code makes no difference.
    ///
    /// If this function returns a fault, `each` was never called. In a message with the TC bit, the section ends before its first
    /// incomplete record, which is then no fault. The names in A, AAAA and CNAME records of class IN are checked to their roots. Other
    /// records are skipped. The authority and additional sections are not read.
    ///
    /// Cost: three walks over at most 5,956 records, and at most 83,000 steps in names. These are the limit of [`Fault::CostlyNames`] and
    /// the two names that exceed the limit. The costliest message known takes 0.5 ms, a usual response 0.3 µs.
    pub(crate) fn addresses(&self, mut each: impl FnMut(IpAddr, u32)) -> Result<Answered, Fault> {
        if !self.is_response() || self.question_class != CLASS_IN || !(self.asks(TYPE_A) || self.asks(TYPE_AAAA)) {
            return Ok(Answered::default());
        }
        let answers = Chain::read(self)?.answers(self)?;
        let mut answered = Answered::default();
        let mut records = self.answers();
        while let Some(record) = records.next_address()? {
            match record.address() {
                Some(address) if answers.has(answered.addresses + answered.ignored) => {
                    each(address, record.ttl);
                    answered.addresses += 1;
                }
                _ => answered.ignored += 1,
            }
        }
        Ok(answered)
    }

    /// Returns whether the question asks for records of type `kind`.
    const fn asks(&self, kind: u16) -> bool {
        self.question_type == kind || self.question_type == TYPE_ANY
    }

    /// Returns the records of the answer section.
    const fn answers(&self) -> Records<'a> {
        Records {
            bytes: self.bytes,
            position: HEADER_LEN + self.question.len(),
            left: u16::from_be_bytes([self.header[6], self.header[7]]),
            may_be_cut: self.is_truncated(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
