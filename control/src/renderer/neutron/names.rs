//! Names stored at the server: the tags that identify managed groups.
//!
//! A tag is the same in every process. It is derived from the policy's UID, or from its name if the object has no UID (a file). Text that
//! does not fit is replaced by a cryptographic hash, so that the author of a policy cannot take over another policy's group.

use std::collections::BTreeMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::PeerUser;
use crate::object::{PolicyIdentity, PolicyName};
use crate::origin::Direction;

/// Maximum length of text used unchanged. With a suffix it fits every server: the limit of tags was 60 characters before it became 255.
/// Source: Neutron, `neutron/extensions/tagging.py`, MAX_TAG_LEN, and its former value.
const MAX_TEXT: usize = 40;

/// Bytes of a hash that are used: 128 bits in 32 characters, against deliberate collisions.
const HASH_BYTES: usize = 16;

/// The tag and generation of each policy, from which names of groups are derived.
#[derive(Debug, Default)]
pub(super) struct Names {
    by_policy: BTreeMap<PolicyName, Named>,
}

#[derive(Debug)]
struct Named {
    tag: Arc<str>,
    generation: Option<u64>,
}

impl Names {
    /// Derives the tags of these policies. The identity is `None` if the policy's object has no UID.
    pub(super) fn new(policies: BTreeMap<PolicyName, Option<Arc<PolicyIdentity>>>) -> Self {
        let mut of_uid: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for identity in policies.values().flatten() {
            *of_uid.entry(identity.uid.clone()).or_default() += 1;
        }
        let named = |(policy, identity): (PolicyName, Option<Arc<PolicyIdentity>>)| {
            let tag = match &identity {
                // A UID that occurs twice, as in a copied file, identifies nothing.
                Some(identity) if of_uid[&identity.uid] == 1 => plain_or_hashed(&identity.uid),
                Some(identity) => format!("np_{}", hash(&format!("{policy} {}", identity.uid))),
                None => format!("np_{}", hash(&policy.to_string())),
            };
            let generation = identity.map(|identity| identity.generation).filter(|generation| *generation > 0);
            (policy, Named { tag: tag.into(), generation })
        };
        Self { by_policy: policies.into_iter().map(named).collect() }
    }

    pub(super) fn policy(&self, policy: &PolicyName) -> String {
        let known = self.by_policy.get(policy).map(|named| named.tag.to_string());
        known.unwrap_or_else(|| format!("np_{}", hash(&policy.to_string())))
    }

    pub(super) fn generation(&self, policy: &PolicyName) -> Option<u64> {
        self.by_policy.get(policy).and_then(|named| named.generation)
    }

    /// Returns the tag of a peer group: `UID_in` for rule 0, `UID_in_1` for rule 1, `UID_in_1_2` for the third rule derived from rule 1.
    pub(super) fn peer(&self, user: &PeerUser) -> String {
        let PeerUser { policy, direction, rule, nth } = user;
        let name = format!("{}_{}", self.policy(policy), suffix(*direction));
        match (rule, nth) {
            (0, 0) => name,
            (rule, 0) => format!("{name}_{rule}"),
            (rule, nth) => format!("{name}_{rule}_{nth}"),
        }
    }
}

/// Returns the suffixes that Kuryr uses.
pub(super) const fn suffix(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "in",
        Direction::Egress => "eg",
    }
}

/// Returns the text, or its hash if it is too long or contains other characters. The result has no `_`, which separates it from prefix and
/// suffix, so it cannot be confused with another kind of name.
pub(super) fn plain_or_hashed(text: &str) -> String {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if !text.is_empty() && text.len() <= MAX_TEXT && text.bytes().all(fits) {
        return text.to_owned();
    }
    format!("h_{}", hash(text))
}

/// Returns the first 128 bits of the SHA-256, in hexadecimal.
pub(super) fn hash(text: &str) -> String {
    Sha256::digest(text)[..HASH_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
}
