//! The rules of a table, in chunks that consecutive versions share.
//!
//! ```text
//!  one version    [ chunk | chunk | chunk | chunk ]        an event of a set takes some tuples out and puts others in:
//!                     |       |       |       |            the chunks that have them are written, the others are shared
//!  the next one   [ chunk | chunk | other | chunk ]
//! ```
//! A table names each address separately: on a node of 250 pods in a large cluster, the global table has 100,000 tuples. Rewriting all of
//! it for each pod that comes or goes elsewhere took 4 ms.
//!
//! **Invariant.** The tuples, their order, equality and fingerprint depend only on the content. The division into chunks depends on history
//! and is not visible.

use std::collections::HashSet;
use std::sync::Arc;

use bulkhead_classifier::Action;
use ipnet::IpNet;

use super::tuple::SixTuple;

/// Maximum number of tuples per chunk. A chunk takes 11 KB and some microseconds to write. A table of 100,000 tuples has 400 chunks, and
/// sharing those takes about as long.
const CHUNK: usize = 256;

/// Sorted 6-tuples without duplicates.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The tuples in sorted chunks, which versions of a table share. No chunk is empty.
    chunks: Vec<Arc<[SixTuple]>>,
    len: usize,
    fingerprint: u64,
}

impl Rules {
    /// Creates rules from sorted tuples.
    pub(in crate::renderer) fn of_sorted(tuples: &[SixTuple]) -> Self {
        debug_assert!(tuples.is_sorted(), "the first match decides");
        let mut rules = Self::default();
        rules.push(tuples);
        rules.len = tuples.len();
        rules.fingerprint = tuples.iter().map(fingerprint).fold(0, u64::wrapping_add);
        rules
    }

    /// Returns the number of tuples.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the rules are empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a hash of the rules. Different rules rarely share it, so correctness must not depend on that.
    pub const fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Returns the tuples, sorted.
    pub fn iter(&self) -> Iter<'_> {
        self.chunks.iter().flat_map(each)
    }

    /// Returns the last tuple. `None` if the rules are empty.
    pub fn last(&self) -> Option<&SixTuple> {
        self.chunks.last()?.last()
    }

    /// Returns the tuples with exactly this source and destination prefix, sorted.
    pub fn about(&self, src: Option<IpNet>, dst: Option<IpNet>) -> impl Iterator<Item = &SixTuple> {
        let is_before = |tuple: &SixTuple| tuple.cmp_networks(src, dst).is_lt();
        let at = self.chunks.partition_point(|chunk| chunk.last().is_some_and(is_before));
        let skipped = self.chunks.get(at).map_or(0, |chunk| chunk.partition_point(is_before));
        let from = self.chunks[at..].iter().flat_map(each).skip(skipped);
        from.take_while(move |tuple| tuple.cmp_networks(src, dst).is_eq())
    }

    /// Returns the rules without the tuples of `gone` and with those of `new`. Both slices are sorted; `gone` is contained in the rules,
    /// `new` is not.
    pub(super) fn changed(&self, gone: &[SixTuple], new: &[SixTuple]) -> Self {
        let mut changed = Self { len: self.len + new.len() - gone.len(), ..Self::default() };
        let sum = |tuples: &[SixTuple]| tuples.iter().map(fingerprint).fold(0, u64::wrapping_add);
        changed.fingerprint = self.fingerprint.wrapping_sub(sum(gone)).wrapping_add(sum(new));
        changed.chunks.reserve(self.chunks.len() + 2);
        let (mut gone, mut new) = (gone, new);
        for (at, chunk) in self.chunks.iter().enumerate() {
            let end = self.chunks.get(at + 1).and_then(|next| next.first());
            let [out, come] = [&mut gone, &mut new].map(|rest| {
                let count = end.map_or(rest.len(), |end| rest.partition_point(|tuple| tuple < end));
                let (these, others) = rest.split_at(count);
                *rest = others;
                these
            });
            if out.is_empty() && come.is_empty() {
                changed.chunks.push(chunk.clone());
                continue;
            }
            let mut out = out.iter().peekable();
            let stays = |tuple: &&SixTuple| out.next_if_eq(tuple).is_none();
            let mut tuples: Vec<SixTuple> = chunk.iter().filter(stays).cloned().collect();
            debug_assert!(out.next().is_none(), "what goes was there");
            tuples.extend_from_slice(come);
            // The stable sort merges two sorted runs.
            tuples.sort();
            changed.push(&tuples);
        }
        changed.push(new);
        changed
    }

    /// Appends tuples that sort after all present ones, in chunks of bounded size.
    fn push(&mut self, tuples: &[SixTuple]) {
        match self.chunks.last_mut() {
            // A short remainder joins the previous chunk.
            Some(last) if !tuples.is_empty() && last.len() + tuples.len() <= CHUNK => {
                *last = last.iter().chain(tuples).cloned().collect();
            }
            _ if tuples.len() <= 2 * CHUNK => self.chunks.extend((!tuples.is_empty()).then(|| tuples.into())),
            _ => self.chunks.extend(tuples.chunks(CHUNK).map(Arc::from)),
        }
    }

    /// Returns the tuples only in these rules, and those only in `other`. Skips shared chunks.
    pub fn difference<'a>(&'a self, other: &'a Self) -> (Vec<&'a SixTuple>, Vec<&'a SixTuple>) {
        let at = |chunk: &Arc<[SixTuple]>| chunk.as_ptr().addr();
        let own = |one: &'a Self, other: &'a Self| {
            let shared: HashSet<usize, ahash::RandomState> = other.chunks.iter().map(at).collect();
            one.chunks.iter().filter(move |chunk| !shared.contains(&at(chunk))).flat_map(each)
        };
        let (mut ours, mut theirs) = (own(self, other).peekable(), own(other, self).peekable());
        let (mut gone, mut new) = (Vec::new(), Vec::new());
        loop {
            match (ours.peek(), theirs.peek()) {
                (Some(one), Some(two)) if one == two => drop((ours.next(), theirs.next())),
                (Some(one), two) if two.is_none_or(|two| one < two) => gone.extend(ours.next()),
                (_, Some(_)) => new.extend(theirs.next()),
                (_, None) => return (gone, new),
            }
        }
    }
}

/// The iterator of [`Rules::iter`].
pub type Iter<'a> = std::iter::FlatMap<
    std::slice::Iter<'a, Arc<[SixTuple]>>,
    std::slice::Iter<'a, SixTuple>,
    fn(&'a Arc<[SixTuple]>) -> std::slice::Iter<'a, SixTuple>,
>;

fn each(chunk: &Arc<[SixTuple]>) -> std::slice::Iter<'_, SixTuple> {
    chunk.iter()
}

impl<'a> IntoIterator for &'a Rules {
    type Item = &'a SixTuple;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl PartialEq for Rules {
    fn eq(&self, other: &Self) -> bool {
        let is_like = self.len == other.len && self.fingerprint == other.fingerprint;
        is_like
            && (self.chunks.iter().map(|c| c.as_ptr()).eq(other.chunks.iter().map(|c| c.as_ptr()))
                || self.iter().eq(other))
    }
}

impl Eq for Rules {}

/// FNV-1a (Fowler, Noll, Vo; draft-eastlake-fnv) over 64-bit words instead of bytes. The rotation carries high bits into the low bits of
/// the result. The fingerprint of rules is the sum over its tuples, so it can be updated without the unchanged ones. The last steps
/// (MurmurHash3, `fmix64`) prevent equal sums of tuples that differ little.
fn fingerprint(tuple: &SixTuple) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let [src, dst] = [tuple.src, tuple.dst].map(network_words);
    let service = tuple.service.map_or(u64::MAX, |service| {
        let ports = u64::from(service.ports.first) << 16 | u64::from(service.ports.last);
        u64::from(service.protocols.0) << 40 | u64::from(service.protocols.1) << 32 | ports
    });
    let action = u64::from(tuple.action == Action::Allow);
    let words = [src[0], src[1], src[2], dst[0], dst[1], dst[2], service, action];
    let mut hash = words.iter().fold(OFFSET, |hash, word| (hash ^ word).wrapping_mul(PRIME).rotate_left(29));
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

fn network_words(network: Option<IpNet>) -> [u64; 3] {
    match network {
        None => [u64::MAX; 3],
        Some(IpNet::V4(net)) => [u64::from(net.prefix_len()), 4, u32::from(net.addr()).into()],
        Some(IpNet::V6(net)) => {
            let bits = u128::from(net.addr());
            let half = |bits: u128| u64::try_from(bits & u128::from(u64::MAX)).expect("masked to 64 bits");
            [u64::from(net.prefix_len()) | 6 << 32, half(bits >> 64), half(bits)]
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn tuple(at: u32) -> SixTuple {
        let net = |number: u32| Some(IpNet::from(std::net::IpAddr::from(Ipv4Addr::from(0x0a00_0000 + number))));
        SixTuple { src: net(at / 4), dst: if at % 4 == 3 { None } else { net(at % 4) }, ..SixTuple::any(Action::Allow) }
    }

    fn of(all: &BTreeSet<u32>) -> Vec<SixTuple> {
        let mut tuples: Vec<_> = all.iter().map(|&at| tuple(at)).collect();
        tuples.sort();
        tuples
    }

    #[test]
    fn a_change_writes_the_chunks_that_it_concerns_and_shares_the_others() {
        let all: BTreeSet<u32> = (0..100_000).collect();
        let rules = Rules::of_sorted(&of(&all));
        let changed = rules.changed(&of(&[7, 50_000].into()), &of(&[200_000].into()));
        let before: HashSet<_> = rules.chunks.iter().map(|chunk| chunk.as_ptr()).collect();
        assert_eq!(changed.chunks.iter().filter(|chunk| !before.contains(&chunk.as_ptr())).count(), 3);
        let (gone, new) = rules.difference(&changed);
        assert_eq!((gone, new), (vec![&tuple(7), &tuple(50_000)], vec![&tuple(200_000)]));
        assert_eq!(rules.difference(&rules), (vec![], vec![]));
        assert_eq!(changed.changed(&of(&[200_000].into()), &of(&[7, 50_000].into())), rules);
        assert_eq!(rules.about(tuple(4_001).src, tuple(4_001).dst).collect::<Vec<_>>(), [&tuple(4_001)]);
    }

    proptest! {
        #[test]
        fn whatever_came_before_the_rules_are_the_tuples(
            steps in proptest::collection::vec(proptest::collection::vec((0u32..3_000, 1u32..600, any::<bool>()), 0..5), 1..8),
        ) {
            let (mut all, mut rules) = (BTreeSet::new(), Rules::default());
            for step in steps {
                let before = all.clone();
                for (first, count, is_add) in step {
                    for at in first..first + count {
                        if is_add { all.insert(at) } else { all.remove(&at) };
                    }
                }
                let (gone, new): (BTreeSet<u32>, BTreeSet<u32>) = (&before - &all, &all - &before);
                let next = rules.changed(&of(&gone), &of(&new));
                let fresh = Rules::of_sorted(&of(&all));
                prop_assert_eq!((next.len(), next.fingerprint()), (fresh.len(), fresh.fingerprint()));
                prop_assert!(next == fresh && next.iter().eq(&of(&all)) && next.last() == of(&all).last());
                prop_assert_eq!(next == rules, gone.is_empty() && new.is_empty());
                let (out, come) = rules.difference(&next);
                prop_assert!(out.into_iter().eq(&of(&gone)) && come.into_iter().eq(&of(&new)));
                prop_assert!(next.chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= 2 * CHUNK));
                prop_assert!(next.chunks.windows(2).filter(|two| two[0].len() + two[1].len() <= CHUNK / 2).count() <= 1 + next.chunks.len() / 2);
                for at in [0, 1, 2_999, 3_500] {
                    let SixTuple { src, dst, .. } = tuple(at);
                    prop_assert_eq!(next.about(src, dst).count(), usize::from(all.contains(&at)));
                }
                rules = next;
            }
        }
    }
}
