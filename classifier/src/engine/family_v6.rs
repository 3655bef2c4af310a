//! The compiled list of IPv6: compiled for 32-bit numbers of addresses where that is possible, else for addresses.
//!
//! On long lists, looking up numbers takes a seventh to two fifths less time than looking up addresses (see [`Narrowing`]). Short lists are
//! compiled for addresses, because finding a number takes as long as searching them ([`NARROW`](super::choice::NARROW)).

use std::sync::Arc;

use super::address::Fields;
use super::choice::Choice;
use super::family::Family;
use super::moves::Move;
use super::narrow::Narrowing;
use super::rules::{LiveRules, Protocols};
use super::{Block, Cost};
use crate::simd::Simd;
use crate::{BuildError, BuildOptions, Rule};

/// The compiled form of the rules that IPv6 packets can match. A clone shares the compiled form, and has its own record of removed rules.
#[derive(Clone, Debug)]
pub(crate) struct FamilyV6 {
    /// The list compiled for numbers. `None` if the list is short, if its addresses need more than 32 bits, or if `wide` leaves too little
    /// memory for it.
    narrow: Option<(Arc<Narrowing>, Family<u32>)>,
    /// The list compiled for addresses. `None` if each address has a number.
    wide: Option<Family<u128>>,
}

impl FamilyV6 {
    pub(crate) fn build(
        rules: &[Rule],
        protocols: &Protocols,
        options: &BuildOptions<'_>,
        choice: Choice,
    ) -> Result<Self, BuildError> {
        let (narrow, needs_wide) = match Narrowing::of(rules, choice.narrow) {
            Some((narrowing, [srcs, dsts])) => {
                let live =
                    LiveRules::new(rules, protocols, |addresses| srcs.of(addresses), |addresses| dsts.of(addresses));
                let needs_wide = narrowing.is_partial();
                (Some((Arc::new(narrowing), Family::of(&live, options, choice)?)), needs_wide)
            }
            None => (None, true),
        };
        let wide = needs_wide.then(|| Family::build(rules, protocols, options, choice)).transpose()?;
        let built = Self { narrow, wide };
        // The list for addresses can look up every packet.
        let is_too_large = built.wide.is_some() && built.bytes() > options.max_bytes;
        Ok(if is_too_large { Self { narrow: None, ..built } } else { built })
    }

    /// Returns the list without the rules of these codes, after these moves. `None` if only a full build can apply the changes.
    pub(crate) fn changed(&self, moves: &[Move], gone: &[u32]) -> Option<Self> {
        let mut changed = self.clone();
        if let Some((narrowing, list)) = &mut changed.narrow {
            let moves = moves.iter().map(|moved| narrowing.of_move(moved)).collect::<Option<Vec<_>>>()?;
            *list = list.changed(&moves, gone)?;
        }
        if let Some(wide) = &mut changed.wide {
            *wide = wide.changed(moves, gone)?;
        }
        Some(changed)
    }

    /// Returns the number of address pieces if addresses can move between classes. `None` if the structure does not support moves.
    pub(crate) fn movable(&self) -> Option<usize> {
        let narrow = self.narrow.as_ref().map_or(Some(0), |(_, list)| list.movable())?;
        Some(narrow + self.wide.as_ref().map_or(Some(0), Family::movable)?)
    }

    /// Looks up at most `N` packets. Writes the code of each packet's first matching rule to the first elements of `codes`.
    #[inline(always)]
    pub(crate) fn decide<S: Simd, const N: usize>(
        &self,
        simd: S,
        packets: impl Iterator<Item = Fields<u128>> + Clone,
        codes: &mut [u32; N],
    ) {
        if let Some((narrowing, list)) = &self.narrow {
            let mut block = Block::<u32, N>::new();
            if narrowing.block(packets.clone(), &mut block).is_some() {
                return list.decide(simd, &block, codes);
            }
        }
        let mut block = Block::new();
        packets.for_each(|packet| block.push(packet));
        self.wide().decide(simd, &block, codes);
    }

    /// Looks up one packet. Returns the code of its first matching rule.
    #[inline(always)]
    pub(crate) fn decide_one<S: Simd>(&self, simd: S, packet: &Fields<u128>) -> u32 {
        if let Some((narrowing, list)) = &self.narrow
            && let Some(narrow) = narrowing.packet(packet)
        {
            return list.decide_one(simd, &narrow);
        }
        self.wide().decide_one(simd, packet)
    }

    pub(crate) fn cost<S: Simd>(&self, simd: S, packet: &Fields<u128>) -> Cost {
        if let Some((narrowing, list)) = &self.narrow
            && let Some(narrow) = narrowing.packet(packet)
        {
            return list.cost(simd, &narrow);
        }
        self.wide().cost(simd, packet)
    }

    #[inline(always)]
    fn wide(&self) -> &Family<u128> {
        self.wide.as_ref().expect("built unless each address has a number")
    }

    /// Returns the maximum cost of any lookup.
    pub(crate) fn worst_case(&self) -> Cost {
        let narrow = self.narrow.as_ref().map(|(_, list)| list.worst_case()).unwrap_or_default();
        narrow.most(self.wide.as_ref().map(Family::worst_case).unwrap_or_default())
    }

    /// Returns the memory of both compiled forms, in bytes, without the record of removed rules.
    pub(crate) fn bytes(&self) -> usize {
        let narrow = self.narrow.as_ref().map_or(0, |(_, list)| list.bytes());
        narrow + self.wide.as_ref().map_or(0, Family::bytes)
    }

    pub(crate) fn describe(&self) -> String {
        let narrow = self.narrow.as_ref().map(|(_, list)| format!("{}, for 32-bit numbers", list.describe()));
        let wide = self.wide.as_ref().map(Family::describe);
        narrow.into_iter().chain(wide).collect::<Vec<_>>().join("; beside it ")
    }
}
