//! A rule list compiled for both address families.

use std::sync::Arc;

use crate::engine::address::{Address, Fields};
use crate::engine::{
    Block, Choice, Cost, Family, FamilyProjection, FamilyV6, Move, Projection, Protocols, Replacements,
};
use crate::simd::{Scalar, Simd};
use crate::{BuildError, BuildOptions, Key, Rule};

/// A rule list compiled for both address families. Clones share everything.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    protocols: Arc<Protocols>,
    /// Translates addresses to points, if the list refers to very large sets. `None` if the list is compiled for addresses.
    projection: Option<Arc<Projection>>,
    v4: Family<u32>,
    v6: FamilyV6,
}

impl Compiled {
    pub(crate) fn build(rules: &[Rule], options: &BuildOptions<'_>, choice: Choice) -> Result<Self, BuildError> {
        let protocols = Protocols::new(rules);
        let (projection, projected) = Projection::of(rules).unzip();
        let rules = projected.as_deref().unwrap_or(rules);
        let v4 = Family::build(rules, &protocols, options, choice)?;
        let v6 = FamilyV6::build(rules, &protocols, options, choice)?;
        Ok(Self { protocols: Arc::new(protocols), projection: projection.map(Arc::new), v4, v6 })
    }

    /// Returns the translation of addresses to points. `None` if the list is compiled for addresses.
    pub(crate) fn projection(&self) -> Option<&Projection> {
        self.projection.as_deref()
    }

    /// Returns this list with new versions of large sets. `rules` is the changed list. `None` if only a full build can apply the change.
    pub(crate) fn with<'a>(&self, sets: Replacements, rules: impl Iterator<Item = &'a Rule>) -> Option<Self> {
        if sets.is_empty() {
            return Some(self.clone());
        }
        let projection = sets.apply(self.projection.as_deref()?, rules)?;
        Some(Self { projection: Some(Arc::new(projection)), ..self.clone() })
    }

    /// Returns this list after moves of addresses and removals of the rules with these codes. `None` if only a full build can apply them.
    pub(crate) fn changed(&self, moves: &[Move], gone: &[u32]) -> Option<Self> {
        let (v4, v6) = (self.v4.changed(moves, gone)?, self.v6.changed(moves, gone)?);
        Some(Self { protocols: self.protocols.clone(), projection: self.projection.clone(), v4, v6 })
    }

    /// Returns the number of address pieces of both families if addresses can move between classes. `None` if the structure does not
    /// support moves, or if the list is compiled for points.
    pub(crate) fn movable(&self) -> Option<usize> {
        if self.projection.is_some() {
            return None;
        }
        Some(self.v4.movable()? + self.v6.movable()?)
    }

    /// Looks up up to `N` keys. Writes their codes, `u32::MAX` for "no rule" and for mixed families. Returns true if a key had mixed
    /// families.
    #[inline(always)]
    pub(crate) fn decide<S: Simd, const N: usize>(&self, simd: S, keys: &[Key], codes: &mut [u32; N]) -> bool {
        // Most bursts have one family, so determining it takes no loop of its own.
        let is_decided = match keys.first().map(Key::family) {
            Some(Key::V6) => self.decide_v6(simd, keys, codes),
            _ => self.decide_v4(simd, keys, codes),
        };
        !is_decided && self.mixed::<S, N>(simd, keys, codes)
    }

    /// Looks up keys of IPv4. Returns false, without codes, if another family is among them.
    #[inline(always)]
    fn decide_v4<S: Simd, const N: usize>(&self, simd: S, keys: &[Key], codes: &mut [u32; N]) -> bool {
        let mut block = Block::<u32, N>::new();
        let mut others = 0;
        for key in keys {
            others |= key.family() ^ Key::V4;
            block.push(self.fields(simd, self.points_v4(), key));
        }
        if others == 0 {
            self.v4.decide(simd, &block, codes);
        }
        others == 0
    }

    /// Looks up keys of IPv6. Returns false, without codes, if another family is among them.
    #[inline(always)]
    fn decide_v6<S: Simd, const N: usize>(&self, simd: S, keys: &[Key], codes: &mut [u32; N]) -> bool {
        let others = keys.iter().fold(0, |others, key| others | (key.family() ^ Key::V6));
        let points = self.points_v6();
        let packets = keys.iter().map(|key| self.fields(simd, points, key));
        if others == 0 {
            self.v6.decide(simd, packets, codes);
        }
        others == 0
    }

    /// Looks up one key. Returns the code of its verdict, or `u32::MAX` for "no rule" and for a key of mixed families.
    #[inline(always)]
    pub(crate) fn decide_one<S: Simd>(&self, simd: S, key: &Key) -> u32 {
        match key.family() {
            Key::V4 => self.v4.decide_one(simd, &self.fields(simd, self.points_v4(), key)),
            Key::V6 => self.v6.decide_one(simd, &self.fields(simd, self.points_v6(), key)),
            _ => u32::MAX,
        }
    }

    /// Looks up keys of which some are IPv4 and others IPv6. Returns true if a key has addresses of both families.
    #[inline(always)]
    fn mixed<S: Simd, const N: usize>(&self, simd: S, keys: &[Key], codes: &mut [u32; N]) -> bool {
        let of = |family: u8| keys.iter().filter(move |key| key.family() == family);
        let mut block = Block::<u32, N>::new();
        of(Key::V4).for_each(|key| block.push(self.fields(simd, self.points_v4(), key)));
        let (mut v4, mut v6) = ([u32::MAX; N], [u32::MAX; N]);
        self.v4.decide(simd, &block, &mut v4);
        let points = self.points_v6();
        self.v6.decide(simd, of(Key::V6).map(|key| self.fields(simd, points, key)), &mut v6);
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

    /// Whether both share one compiled form. Different versions of large sets are ignored.
    #[cfg(test)]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.protocols, &other.protocols)
    }

    /// Returns the cost of looking up this key, in counted steps.
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

    /// Returns the maximum cost of any lookup.
    pub(crate) fn worst_case(&self) -> Cost {
        self.v4.worst_case().most(self.v6.worst_case()) + self.cost_of_projection()
    }

    pub(crate) fn bytes(&self) -> usize {
        let projection = self.projection.as_ref().map_or(0, |projection| projection.bytes());
        self.v4.bytes() + self.v6.bytes() + projection + size_of::<Protocols>()
    }

    pub(crate) fn describe(&self) -> String {
        let projected = if self.projection.is_some() { "; refers to very large sets" } else { "" };
        format!("IPv4: {}; IPv6: {}{projected}", self.v4.describe(), self.v6.describe())
    }
}
