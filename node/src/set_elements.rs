//! Changes addresses in the sets of `dataplane: nftables` over netlink.
//!
//! ```text
//!   BATCH_BEGIN | DELRULE all of `remember` | DELSETELEM all of `epoch`, NEWSETELEM its new one | DELSETELEM, NEWSETELEM .. | BATCH_END
//! ```
//! The kernel makes one transaction of a batch. All other changes go through nft. In a busy cluster, changes of addresses are the frequent
//! ones, and nft takes longer to parse ten thousand addresses than the kernel to add them to a set.
//!
//! Source: Linux, `include/uapi/linux/netfilter/nfnetlink.h` and `nf_tables.h`.

use std::io;
use std::net::IpAddr;

use bulkhead_control::renderer::nftables::{Epoch, SetChange, TABLE};
use rustix::net::netlink::NETFILTER;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with, sockopt};

/// `NFNL_SUBSYS_NFTABLES`, in the upper half of a message's type.
const NFTABLES: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const DELRULE: u16 = NFTABLES << 8 | 8;
const NEWSETELEM: u16 = NFTABLES << 8 | 12;
const DELSETELEM: u16 = NFTABLES << 8 | 14;
/// `NLM_F_REQUEST`, `NLM_F_ACK` and `NLM_F_CREATE`.
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const CREATE: u16 = 0x400;
/// `NLMSG_ERROR`, also used for acknowledgements.
const ERROR: u16 = 2;
const NESTED: u16 = 0x8000;
const INET: u8 = 1;

/// Elements per message: an attribute has at most 65,535 bytes, and an IPv6 element takes 28.
const ELEMENTS: usize = 2_000;
/// Maximum bytes of a batch: what a socket sends at once with the system's default limits. Source: Linux, `net.core.wmem_default` is
/// 212,992, doubled, of which bookkeeping takes a part.
const BATCH: usize = 400_000;

/// Makes these changes and sets the epoch, in one transaction.
///
/// # Errors
/// The kernel's error, or `ArgumentListTooLong` if the changes exceed one batch. The kernel's sets are then unchanged.
pub fn change(sets: &[SetChange], epoch: Epoch) -> io::Result<()> {
    let batch = batch(sets, epoch);
    if batch.bytes.len() > BATCH {
        return Err(io::ErrorKind::ArgumentListTooLong.into());
    }
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(NETFILTER))?;
    // As much as the system allows: the kernel doubles the requested size.
    let _ = sockopt::set_socket_send_buffer_size(&socket, BATCH);
    send(&socket, &batch.bytes, SendFlags::empty())?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = match recv(&socket, &mut buffer[..], RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => continue,
            received => received?.0,
        };
        if let Some(answer) = answer(&buffer[..length], batch.sequence) {
            return answer;
        }
    }
}

/// Returns the kernel's answer to message number `last`, or to an earlier one that failed. `None` if `part` has neither.
fn answer(mut part: &[u8], last: u32) -> Option<io::Result<()>> {
    while let Some(length) = part.first_chunk().map(|length| u32::from_ne_bytes(*length) as usize) {
        let Some(message) = part.get(..length).filter(|_| length >= 20) else {
            return Some(Err(io::ErrorKind::InvalidData.into()));
        };
        part = part.get(length.next_multiple_of(4)..).unwrap_or_default();
        let number = |at: usize| i32::from_ne_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]]);
        if u16::from_ne_bytes([message[4], message[5]]) != ERROR {
            continue;
        }
        match number(16) {
            0 if number(8).cast_unsigned() == last => return Some(Ok(())),
            0 => {}
            code => return Some(Err(io::Error::from_raw_os_error(-code))),
        }
    }
    None
}

/// A batch of netlink messages, in the order of their sequence numbers.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Number of the last message, or of the acknowledged one once the batch is complete.
    sequence: u32,
}

fn batch(sets: &[SetChange], epoch: Epoch) -> Batch {
    let mut batch = Batch::default();
    let table = TABLE.strip_prefix("inet ").unwrap_or(TABLE);
    batch.message(BATCH_BEGIN, REQUEST, 0, NFTABLES, |_| {});
    // NFTA_RULE_TABLE and NFTA_RULE_CHAIN. Without a handle, this deletes all rules of the chain.
    batch.message(DELRULE, REQUEST, INET, 0, |batch| {
        batch.text(1, table);
        batch.text(2, "remember");
    });
    let mark = epoch.mark().to_ne_bytes();
    let mut messages: Vec<(u16, &str, Vec<Vec<u8>>)> =
        vec![(DELSETELEM, "epoch", Vec::new()), (NEWSETELEM, "epoch", vec![mark.to_vec()])];
    for SetChange { set, gone, new } in sets {
        for (kind, addresses) in [(DELSETELEM, gone), (NEWSETELEM, new)] {
            for some in addresses.chunks(ELEMENTS) {
                messages.push((kind, set, some.iter().map(octets).collect()));
            }
        }
    }
    let last = messages.len() - 1;
    for (at, (kind, set, keys)) in messages.into_iter().enumerate() {
        let create = if kind == NEWSETELEM { CREATE } else { 0 };
        let ack = if at == last { ACK } else { 0 };
        batch.message(kind, REQUEST | create | ack, INET, 0, |batch| {
            // NFTA_SET_ELEM_LIST_TABLE, _SET and _ELEMENTS.
            batch.text(1, table);
            batch.text(2, set);
            // Without elements, this deletes the whole content of the set.
            if !keys.is_empty() {
                batch.nested(3, |batch| keys.iter().for_each(|key| batch.element(key)));
            }
        });
    }
    let acknowledged = batch.sequence;
    batch.message(BATCH_END, REQUEST, 0, NFTABLES, |_| {});
    Batch { sequence: acknowledged, ..batch }
}

fn octets(address: &IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

impl Batch {
    /// Appends `struct nlmsghdr`, `struct nfgenmsg`, and what `fill` appends.
    fn message(&mut self, kind: u16, flags: u16, family: u8, resource: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.sequence += 1;
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend([family, 0]);
        self.bytes.extend(resource.to_be_bytes());
        fill(self);
        let length = u32::try_from(self.bytes.len() - start).expect("bounded by its elements");
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Appends an attribute whose payload `fill` appends.
    fn attribute(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend(kind.to_ne_bytes());
        fill(self);
        let length = u16::try_from(self.bytes.len() - start).expect("bounded by its elements");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.attribute(kind | NESTED, fill);
    }

    fn text(&mut self, kind: u16, text: &str) {
        self.attribute(kind, |batch| {
            batch.bytes.extend(text.as_bytes());
            batch.bytes.push(0);
        });
    }

    /// Appends an element: `NFTA_LIST_ELEM { NFTA_SET_ELEM_KEY { NFTA_DATA_VALUE } }`.
    fn element(&mut self, key: &[u8]) {
        self.nested(1, |batch| batch.nested(1, |batch| batch.attribute(1, |batch| batch.bytes.extend(key))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_aligned_numbered_and_bounded_and_one_asks_for_an_answer() {
        let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from(number));
        let gone: Vec<IpAddr> = (0..4_500).map(address).collect();
        let new = vec!["fd00::1".parse().unwrap()];
        let sets = [SetChange { set: "set-1-hosts4".into(), gone, new }];
        let Batch { bytes, sequence } = batch(&sets, Epoch::any(1));
        let (mut rest, mut kinds, mut asked) = (&bytes[..], Vec::new(), Vec::new());
        while !rest.is_empty() {
            let length = u32::from_ne_bytes(*rest.first_chunk().unwrap()) as usize;
            assert!(length.is_multiple_of(4) && length >= 20, "{length}");
            let word = |at: usize| u16::from_ne_bytes([rest[at], rest[at + 1]]);
            kinds.push(word(4));
            if word(6) & ACK != 0 {
                asked.push(u32::from_ne_bytes([rest[8], rest[9], rest[10], rest[11]]));
            }
            rest = &rest[length..];
        }
        let (del, new) = (DELSETELEM, NEWSETELEM);
        assert_eq!(kinds, [BATCH_BEGIN, DELRULE, del, new, del, del, del, new, BATCH_END]);
        assert_eq!(asked, [sequence]);
    }

    #[test]
    fn an_error_of_any_message_is_the_answer_and_an_acknowledgement_of_the_last() {
        let message = |sequence: u32, code: i32| {
            let mut bytes =
                [36_u32.to_ne_bytes(), [2, 0, 0, 0], sequence.to_ne_bytes(), [0; 4], code.to_ne_bytes()].concat();
            bytes.resize(36, 0);
            bytes
        };
        assert!(answer(&message(3, 0), 4).is_none());
        assert!(answer(&[message(3, 0), message(4, 0)].concat(), 4).unwrap().is_ok());
        assert_eq!(answer(&message(2, -2), 4).unwrap().unwrap_err().raw_os_error(), Some(2));
        assert!(answer(&[255, 0, 0, 0], 4).unwrap().is_err());
    }
}
