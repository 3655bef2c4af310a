//! The slow truth: a scan of the list.

use crate::{Key, Rule, Verdict};

/// The verdict of the first rule that matches, by trying one after the other.
///
/// Every engine is held against this one in the tests. Apart from them only tables that are not compiled call it
/// ([`crate::Tables::scanned`]), and a key of two families, which no packet has.
pub fn scan<'a>(rules: impl IntoIterator<Item = &'a Rule>, key: &Key) -> Verdict {
    let first = (0u32..).zip(rules).find(|(_, rule)| rule.matches(key));
    first.map_or(Verdict::NO_MATCH, |(at, rule)| Verdict::by(rule.action, at))
}
