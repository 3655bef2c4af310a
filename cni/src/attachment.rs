//! A container's attachment to a network. Interface names and MAC addresses derive from it.
//!
//! `DEL` may run without the network namespace, without `ADD`'s result, and after a reboot. So names derive from what every command is
//! given; nothing is stored.

use sha2::{Digest, Sha256};

use super::mac::Mac;

/// Prefix of the names of all node ends.
const PREFIX: &str = "bh";

/// Letters after the prefix: 13 letters of five bits each fill Linux's limit of 15 bytes.
const LETTERS: usize = 13;

/// An interface of a container on a network.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attachment {
    pub(super) network: String,
    pub(super) container: String,
    pub(super) interface: String,
}

impl Attachment {
    /// Returns the name of the veth's node end. It has 65 bits of a hash, so two attachments do not collide by chance.
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

    /// Returns the MAC addresses of the container's end and of the node's end.
    ///
    /// The plugin sets them itself: systemd-udevd replaces random addresses a moment later. The container's permanent neighbour entry would
    /// then name a MAC address that no longer exists.
    pub(super) fn macs(&self) -> [Mac; 2] {
        [&b"container"[..], b"node"].map(|end| {
            let hash = self.hash(end);
            Mac::local(*hash.as_ref().first_chunk().expect("32 bytes"))
        })
    }

    /// Returns the alias of the node's end. `ip link` shows it, and `GC` finds interfaces by it.
    pub(super) fn alias(&self) -> String {
        format!("{ALIAS} {} {} {}", self.network, self.container, self.interface)
    }

    /// Parses an alias. `None` if this plugin did not write it.
    pub(super) fn of_alias(alias: &str) -> Option<Self> {
        let mut words = alias.strip_prefix(ALIAS)?.strip_prefix(' ')?.split(' ').map(str::to_owned);
        let (network, container, interface) = (words.next()?, words.next()?, words.next()?);
        words.next().is_none().then_some(Self { network, container, interface })
    }

    fn hash(&self, what: &[u8]) -> [u8; 32] {
        let Self { network, container, interface } = self;
        // A zero byte separates the parts, which contain none.
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

    /// A newer version's `DEL` must find the interfaces that an older version's `ADD` created, so names and addresses never change.
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
