//! The reference implementation: a linear scan of the list.

use crate::{Key, Rule, Verdict};

/// Returns the verdict of the first rule that matches.
///
/// Tests compare every engine with this scan. At run time it serves [`crate::Tables::scanned`], and keys of mixed families, which no packet
/// has.
pub fn scan<'a>(rules: impl IntoIterator<Item = &'a Rule>, key: &Key) -> Verdict {
    let first = (0u32..).zip(rules).find(|(_, rule)| rule.matches(key));
    first.map_or(Verdict::NO_MATCH, |(at, rule)| Verdict::by(rule.action, at))
}
