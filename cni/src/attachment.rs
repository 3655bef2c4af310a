//! A container on a network, and what follows from that alone: names and MAC addresses.
//!
//! `DEL` may come without the network namespace, without the result of `ADD`, and after a restart of everything. So what it has to
//! find is derived from what it is always told, and not from something that is kept.

use sha2::{Digest, Sha256};

use super::mac::Mac;

/// The start of all names of the node's ends.
const PREFIX: &str = "bh";

/// Letters of a name besides its start: 13 of five bits each fill the 15 that Linux has room for.
const LETTERS: usize = 13;

/// A container's interface on a network.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attachment {
    pub(super) network: String,
    pub(super) container: String,
    pub(super) interface: String,
}

impl Attachment {
    /// The name of the node's end of its veth.
    ///
    /// 65 bits of a hash: names of different attachments do not meet by chance.
    pub(super) fn node_end(&self) -> String {
        /// Base 32 without letters that look alike.
        const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
        let hash = self.hash(b"name");
        let bits = hash.as_ref().iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1));
        let bits: Vec<u8> = bits.take(LETTERS * 5).collect();
        let letter = |bits: &[u8]| bits.iter().fold(0, |number, bit| number << 1 | usize::from(*bit));
        let letters = bits.chunks(5).map(|bits| char::from(ALPHABET[letter(bits)]));
        PREFIX.chars().chain(letters).collect()
    }

    /// The MAC addresses of the container's end and of the node's.
    ///
    /// They are set and not left to the kernel: systemd-udevd gives interfaces with a drawn address another one a moment later, and the
    /// container's permanent neighbour entry would then name nobody.
    pub(super) fn macs(&self) -> [Mac; 2] {
        [&b"container"[..], b"node"].map(|end| {
            let hash = self.hash(end);
            Mac::local(*hash.as_ref().first_chunk().expect("32 bytes"))
        })
    }

    /// What `ip link` shows beside the node's end, and `GC` finds it by.
    pub(super) fn alias(&self) -> String {
        format!("{ALIAS} {} {} {}", self.network, self.container, self.interface)
    }

    /// The attachment that has this alias.
    pub(super) fn of_alias(alias: &str) -> Option<Self> {
        let mut words = alias.strip_prefix(ALIAS)?.strip_prefix(' ')?.split(' ').map(str::to_owned);
        let (network, container, interface) = (words.next()?, words.next()?, words.next()?);
        words.next().is_none().then_some(Self { network, container, interface })
    }

    fn hash(&self, what: &[u8]) -> [u8; 32] {
        let Self { network, container, interface } = self;
        // None of them has a zero byte in it.
        Sha256::digest([what, network.as_bytes(), container.as_bytes(), interface.as_bytes()].join(&0)).into()
    }
}

const ALIAS: &str = "bulkhead-cni";

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(container: &str, interface: &str) -> Attachment {
        Attachment { network: "pods".into(), container: container.into(), interface: interface.into() }
    }

    /// A `DEL` by a newer version has to find what an `ADD` by an older one has made: these never change.
    #[test]
    fn names_and_addresses_are_the_same_in_every_version() {
        let one = attachment("c1", "eth0");
        assert_eq!(one.node_end(), "bh79wp6ky3ed4nj");
        assert_eq!(one.macs().map(|mac| mac.to_string()), ["9e:ea:94:23:f9:5c", "9a:0a:4a:3d:a6:5d"]);
    }

    #[test]
    fn attachments_differ_in_everything_and_fit_linux() {
        let all =
            [attachment("c1", "eth0"), attachment("c1", "eth1"), attachment("c2", "eth0"), attachment("c1e", "th0")];
        let mut seen = std::collections::BTreeSet::new();
        for attachment in &all {
            assert_eq!(attachment.node_end().len(), 15);
            assert!(seen.insert(attachment.node_end()));
            for mac in attachment.macs() {
                assert!(seen.insert(mac.to_string()) && mac.0[0] & 3 == 2);
            }
        }
    }

    #[test]
    fn an_alias_names_its_attachment() {
        let one = attachment("c1", "eth0");
        assert_eq!(one.alias(), "bulkhead-cni pods c1 eth0");
        assert_eq!(Attachment::of_alias(&one.alias()), Some(one));
        for other in ["", "bulkhead-cni", "bulkhead-cni a b", "bulkhead-cni a b c d", "bulkhead-cnix a b c"] {
            assert_eq!(Attachment::of_alias(other), None);
        }
    }
}
