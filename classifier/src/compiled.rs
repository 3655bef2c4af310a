//! A list compiled for both address families.

use std::sync::Arc;

use crate::engine::address::{Address, Fields};
use crate::engine::{Block, Choice, Cost, Family, FamilyProjection, Move, Projection, Protocols, Replacements};
use crate::simd::{Scalar, Simd};
use crate::{BuildError, BuildOptions, Key, Rule};

/// A list compiled for both address families. A copy shares everything.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    protocols: Arc<Protocols>,
    /// What the addresses of packets are turned into; none for themselves.
    projection: Option<Arc<Projection>>,
    v4: Family<u32>,
    v6: Family<u128>,
}

impl Compiled {
    pub(crate) fn build(rules: &[Rule], options: &BuildOptions<'_>, choice: Choice) -> Result<Self, BuildError> {
        let protocols = Protocols::new(rules);
        let (projection, projected) = Projection::of(rules).unzip();
        let rules = projected.as_deref().unwrap_or(rules);
        let v4 = Family::build(rules, &protocols, options, choice)?;
        let v6 = Family::build(rules, &protocols, options, choice)?;
        Ok(Self { protocols: Arc::new(protocols), projection: projection.map(Arc::new), v4, v6 })
    }

    /// What turns addresses into what the list is compiled for; none when that is the addresses themselves.
    pub(crate) fn projection(&self) -> Option<&Projection> {
        self.projection.as_deref()
    }

    /// The same list with other versions of large sets; none when only another build can do that. `rules` are those of the
    /// list as it is then.
    pub(crate) fn with<'a>(&self, sets: Replacements, rules: impl Iterator<Item = &'a Rule>) -> Option<Self> {
        if sets.is_empty() {
            return Some(self.clone());
        }
        let projection = sets.apply(self.projection.as_deref()?, rules)?;
        Some(Self { projection: Some(Arc::new(projection)), ..self.clone() })
    }

    /// The same list without the rules of these codes, and after these moves; none when only another build can do that.
    pub(crate) fn changed(&self, moves: &[Move], gone: &[u32]) -> Option<Self> {
        let (v4, v6) = (self.v4.changed(moves, gone)?, self.v6.changed(moves, gone)?);
        Some(Self { protocols: self.protocols.clone(), projection: self.projection.clone(), v4, v6 })
    }

    /// The pieces of the address axes of both families where addresses can move from class to class; none where they cannot, because
    /// another structure or points were compiled.
    pub(crate) fn movable(&self) -> Option<usize> {
        if self.projection.is_some() {
            return None;
        }
        Some(self.v4.movable()? + self.v6.movable()?)
    }

    /// The codes of up to `N` keys, `u32::MAX` for "no rule" and for keys of two families. Whether there were such.
    #[inline(always)]
    pub(crate) fn decide<S: Simd, const N: usize>(&self, simd: S, keys: &[Key], codes: &mut [u32; N]) -> bool {
        // Bursts of one family are the rule, so which it is needs no loop of its own.
        let decided = match keys.first().map(Key::family) {
            Some(Key::V6) => self.decide_family(simd, &self.v6, self.points_v6(), Key::V6, keys),
            _ => self.decide_family(simd, &self.v4, self.points_v4(), Key::V4, keys),
        };
        match decided {
            Some(decided) => *codes = decided,
            None => return self.mixed::<S, N>(simd, keys, codes),
        }
        false
    }

    /// The codes of keys of one family; none when there are others among them.
    #[inline(always)]
    fn decide_family<A: Address, S: Simd, const N: usize>(
        &self,
        simd: S,
        family: &Family<A>,
        points: Option<FamilyProjection<'_, A>>,
        number: u8,
        keys: &[Key],
    ) -> Option<[u32; N]> {
        let mut block = Block::<A, N>::new();
        let mut others = 0;
        for key in keys {
            others |= key.family() ^ number;
            block.push(self.fields(simd, points, key));
        }
        (others == 0).then(|| family.decide(simd, &block))
    }

    /// The code of one key, `u32::MAX` for "no rule" and for a key of two families.
    #[inline(always)]
    pub(crate) fn decide_one<S: Simd>(&self, simd: S, key: &Key) -> u32 {
        match key.family() {
            Key::V4 => self.v4.decide_one(simd, &self.fields(simd, self.points_v4(), key)),
            Key::V6 => self.v6.decide_one(simd, &self.fields(simd, self.points_v6(), key)),
            _ => u32::MAX,
        }
    }

    /// Keys of both families.
    #[inline(always)]
    fn mixed<S: Simd, const N: usize>(&self, simd: S, keys: &[Key], codes: &mut [u32; N]) -> bool {
        let (mut v4, mut v6) = (Block::<u32, N>::new(), Block::<u128, N>::new());
        for key in keys {
            match key.family() {
                Key::V4 => v4.push(self.fields(simd, self.points_v4(), key)),
                Key::V6 => v6.push(self.fields(simd, self.points_v6(), key)),
                _ => {}
            }
        }
        let (v4, v6) = (self.v4.decide(simd, &v4), self.v6.decide(simd, &v6));
        let (mut v4, mut v6, mut odd) = (v4.iter(), v6.iter(), false);
        for (key, code) in keys.iter().zip(codes) {
            let decided = match key.family() {
                Key::V4 => v4.next(),
                Key::V6 => v6.next(),
                _ => None,
            };
            odd |= decided.is_none();
            *code = decided.copied().unwrap_or(u32::MAX);
        }
        odd
    }

    #[inline(always)]
    fn points_v4(&self) -> Option<FamilyProjection<'_, u32>> {
        self.projection.as_deref().map(Projection::v4)
    }

    #[inline(always)]
    fn points_v6(&self) -> Option<FamilyProjection<'_, u128>> {
        self.projection.as_deref().map(Projection::v6)
    }

    #[inline(always)]
    fn fields<A: Address, S: Simd>(&self, simd: S, points: Option<FamilyProjection<'_, A>>, key: &Key) -> Fields<A> {
        let (src, dst) = key.bits();
        let (mut src, mut dst) = (A::from_halves(src), A::from_halves(dst));
        if let Some(projection) = points {
            (src, dst) = projection.points(simd, src, dst);
        }
        Fields {
            src,
            dst,
            service: self.protocols.point(key.protocol(), key.dst_port()),
            src_port: u32::from(key.src_port()),
        }
    }

    /// Whether both share what was compiled, whichever versions of large sets they refer to.
    #[cfg(test)]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.protocols, &other.protocols)
    }

    /// What the lookup of this key costs.
    pub(crate) fn cost(&self, key: &Key) -> Cost {
        let cost = match key.family() {
            Key::V4 => self.v4.cost(Scalar, &self.fields(Scalar, self.points_v4(), key)),
            _ => self.v6.cost(Scalar, &self.fields(Scalar, self.points_v6(), key)),
        };
        cost + self.cost_of_projection()
    }

    fn cost_of_projection(&self) -> Cost {
        Cost { steps: self.projection.as_ref().map_or(0, |projection| projection.steps()), ..Cost::default() }
    }

    /// The most that the lookup of any key costs.
    pub(crate) fn worst_case(&self) -> Cost {
        let (a, b) = (self.v4.worst_case(), self.v6.worst_case());
        let cost = Cost {
            steps: a.steps.max(b.steps),
            chunks: a.chunks.max(b.chunks),
            probes: a.probes.max(b.probes),
            entries: a.entries.max(b.entries),
        };
        cost + self.cost_of_projection()
    }

    pub(crate) fn bytes(&self) -> usize {
        let projection = self.projection.as_ref().map_or(0, |projection| projection.bytes());
        self.v4.bytes() + self.v6.bytes() + projection + size_of::<Protocols>()
    }

    pub(crate) fn describe(&self) -> String {
        let projected = if self.projection.is_some() { "; very large sets are referred to" } else { "" };
        format!("IPv4: {}; IPv6: {}{projected}", self.v4.describe(), self.v6.describe())
    }
}
