//! Names that the server keeps: the tags by which groups are found again.
//!
//! A tag says the same in every process: it is made of the policy's UID, or where an object has none (a file) of its name. What does not
//! fit a tag is hashed, cryptographically: whoever writes a policy must not be able to make its group another policy's.

use std::collections::BTreeMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::PeerUser;
use crate::object::{PolicyIdentity, PolicyName};
use crate::origin::Direction;

/// The longest text that is used as it is, so that with a suffix it fits every server: tags had 60 characters before they had 255.
/// Source: Neutron, `neutron/extensions/tagging.py`, MAX_TAG_LEN, and its former value.
const MAX_TEXT: usize = 40;

/// Bytes of a hash that are kept: 128 bits, which nobody can collide on purpose in practice, in 32 characters.
const HASH_BYTES: usize = 16;

/// What policies are called.
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
    /// The names of these policies, each with its identity where its object tells.
    pub(super) fn new(policies: BTreeMap<PolicyName, Option<Arc<PolicyIdentity>>>) -> Self {
        let mut of_uid: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for identity in policies.values().flatten() {
            *of_uid.entry(identity.uid.clone()).or_default() += 1;
        }
        let named = |(policy, identity): (PolicyName, Option<Arc<PolicyIdentity>>)| {
            let tag = match &identity {
                // A UID that was copied with the file it stood in tells nothing apart.
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

    /// `UID_in` for rule 0, `UID_in_1` for rule 1, `UID_in_1_2` for the third of those that rule 1 became.
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

/// As in the seed of Kuryr.
pub(super) const fn suffix(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "in",
        Direction::Egress => "eg",
    }
}

/// The text, or where it is too long or has other characters its hash. The text has no `_`, which sets off what comes before and after
/// it: so it is never the name of something else.
pub(super) fn plain_or_hashed(text: &str) -> String {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if !text.is_empty() && text.len() <= MAX_TEXT && text.bytes().all(fits) {
        return text.to_owned();
    }
    format!("h_{}", hash(text))
}

/// The first bits of the SHA-256, in hexadecimal.
pub(super) fn hash(text: &str) -> String {
    Sha256::digest(text)[..HASH_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
}
