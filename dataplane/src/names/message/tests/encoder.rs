//! Writes DNS messages, with and without compression.

use std::collections::HashMap;
use std::net::IpAddr;

/// A message in the making. Starts with the header and one question.
#[derive(Clone)]
pub(crate) struct Encoder {
    pub(crate) bytes: Vec<u8>,
    /// Offsets of names that a pointer can reach. `None` to write all names in full.
    offsets: Option<HashMap<String, u16>>,
}

pub(super) const A: u16 = 1;
pub(super) const CNAME: u16 = 5;
pub(super) const AAAA: u16 = 28;
pub(super) const ANY: u16 = 255;
pub(super) const IN: u16 = 1;

/// Returns a compressed response without records.
pub(super) fn response(name: &str, kind: u16) -> Encoder {
    Encoder::new(name, kind, IN, true)
}

/// Returns a name in wire format without compression, with the root's byte. "" is the root.
pub(super) fn wire(name: &str) -> Vec<u8> {
    let mut bytes = labels(name);
    bytes.push(0);
    bytes
}

/// Returns a name in wire format without the root's byte.
pub(super) fn labels(name: &str) -> Vec<u8> {
    let labels = name.split('.').filter(|label| !label.is_empty());
    labels.flat_map(|label| [&[u8::try_from(label.len()).unwrap()], label.as_bytes()].concat()).collect()
}

pub(super) fn pointer(offset: usize) -> [u8; 2] {
    (u16::try_from(offset).unwrap() | 0xc000).to_be_bytes()
}

impl Encoder {
    pub(crate) fn new(name: &str, kind: u16, class: u16, compress: bool) -> Self {
        let mut encoder =
            Self { bytes: vec![0x12, 0x34, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0], offsets: compress.then(HashMap::new) };
        encoder.name(name);
        encoder.word(kind);
        encoder.word(class);
        encoder
    }

    pub(super) fn a(self, owner: &str, ttl: u32, address: &str) -> Self {
        self.address(owner, ttl, address.parse().unwrap())
    }

    pub(crate) fn address(self, owner: &str, ttl: u32, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.record(owner, A, IN, ttl, &address.octets()),
            IpAddr::V6(address) => self.record(owner, AAAA, IN, ttl, &address.octets()),
        }
    }

    pub(crate) fn cname(mut self, owner: &str, target: &str) -> Self {
        self.name(owner);
        self.alias(IN, target)
    }

    /// Writes the rest of a CNAME record, whose owner is already written.
    pub(super) fn alias(mut self, class: u16, target: &str) -> Self {
        self.fields(CNAME, class, 300, 0);
        let start = self.bytes.len();
        self.name(target);
        let len = u16::try_from(self.bytes.len() - start).unwrap();
        self.bytes[start - 2..start].copy_from_slice(&len.to_be_bytes());
        self
    }

    pub(super) fn record(mut self, owner: &str, kind: u16, class: u16, ttl: u32, data: &[u8]) -> Self {
        self.name(owner);
        self.rest(kind, class, ttl, data)
    }

    /// Writes a record of class IN, with the bytes `owner` as its owner's name.
    pub(super) fn raw(mut self, owner: &[u8], kind: u16, data: &[u8]) -> Self {
        self.bytes.extend(owner);
        self.rest(kind, IN, 300, data)
    }

    fn rest(mut self, kind: u16, class: u16, ttl: u32, data: &[u8]) -> Self {
        self.fields(kind, class, ttl, data.len());
        self.bytes.extend(data);
        self
    }

    /// Writes the fields between a record's owner and its RDATA, and counts the record as an answer.
    fn fields(&mut self, kind: u16, class: u16, ttl: u32, len: usize) {
        self.word(kind);
        self.word(class);
        self.bytes.extend(ttl.to_be_bytes());
        self.word(u16::try_from(len).unwrap());
        let count = u16::from_be_bytes([self.bytes[6], self.bytes[7]]) + 1;
        self.bytes[6..8].copy_from_slice(&count.to_be_bytes());
    }

    /// Moves the last `count` answers to another section. `section` is the offset of that section's count: 8 for authority, 10 for
    /// additional.
    pub(super) fn moved(mut self, section: usize, count: u8) -> Self {
        self.bytes[7] -= count;
        self.bytes[section + 1] += count;
        self
    }

    /// Sets the TC bit.
    pub(super) fn truncated(mut self) -> Self {
        self.bytes[2] |= 0x02;
        self
    }

    /// Removes the last `count` bytes.
    pub(super) fn without(mut self, count: usize) -> Self {
        self.bytes.truncate(self.bytes.len() - count);
        self
    }

    pub(super) fn word(&mut self, word: u16) {
        self.bytes.extend(word.to_be_bytes());
    }

    /// Writes a name. Replaces its longest written suffix by a pointer.
    pub(super) fn name(&mut self, name: &str) {
        let mut rest = name;
        let mut fresh = Vec::new();
        while !rest.is_empty() {
            if let Some(offset) = self.offsets.as_ref().and_then(|offsets| offsets.get(rest)) {
                self.bytes.extend(pointer((*offset).into()));
                return self.remember(fresh);
            }
            if let Ok(offset @ ..0x4000) = u16::try_from(self.bytes.len()) {
                fresh.push((rest.to_owned(), offset));
            }
            let (label, after) = rest.split_once('.').unwrap_or((rest, ""));
            self.bytes.extend(labels(label));
            rest = after;
        }
        self.bytes.push(0);
        self.remember(fresh);
    }

    fn remember(&mut self, names: Vec<(String, u16)>) {
        if let Some(offsets) = &mut self.offsets {
            offsets.extend(names);
        }
    }
}
