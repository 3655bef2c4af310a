//! The engines that make a node's tables, and the choice between them for `engine: auto`.
//!
//! ```text
//!   most pods that one policy of the node names
//!        0            FEW             MANY
//!        |--- acl -----|-- no change --|---- identity ----->
//! ```
//! Measured with `cargo bench -p bulkhead-control --bench engines` on nodes of 250 pods, in clusters of up to 100,000 pods:
//!
//! * Policies name up to 1,000 pods each: rule lists need about half of identities' time per packet.
//! * Policies name 5,000 pods: both need the same time per packet. With 10,000 pods, identities need a sixth less, hence [`MANY`].
//! * Policies name all 100,000 pods: rule lists need twice the time per packet, ten times the memory and a hundred times the time per
//!   event.
//!
//! An event of a remote pod always costs less with identities, but with small rule lists it takes less than a millisecond. The cluster's
//! size is not the criterion, because the rules decide how many of its pods a node's tables contain.

/// The form of a node's tables. The verdicts are the same; memory and the cost of events and lookups differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Engine {
    /// Compiled rule lists that contain the addresses of all sets ([`crate::renderer::acl`]).
    #[default]
    Acl,
    /// One ipcache per node and one policy map per pod ([`crate::renderer::identity`]).
    Identity,
}

impl Engine {
    /// Returns the engine's name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acl => "acl",
            Self::Identity => "identity",
        }
    }
}

/// How the engine is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    /// The configuration names the engine.
    Fixed(Engine),
    /// Each change of the state may choose another engine ([`suited`]).
    Auto,
}

impl Default for Choice {
    fn default() -> Self {
        Self::Fixed(Engine::default())
    }
}

/// From this number of pods named by one policy, identities are faster. The module has the measurements.
pub const MANY: usize = 10_000;

/// Below this number of pods named by one policy, rule lists are chosen again. Half of [`MANY`], because a change of engine compiles
/// everything and judges all sessions again: a cluster that grows and shrinks by less than half causes none.
pub const FEW: usize = MANY / 2;

/// Returns the engine for a state whose policies name at most `named` pods each. `now` is the present engine.
pub const fn suited(now: Engine, named: usize) -> Engine {
    match now {
        Engine::Acl if named >= MANY => Engine::Identity,
        Engine::Identity if named < FEW => Engine::Acl,
        Engine::Acl | Engine::Identity => now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_stays_until_the_state_is_clearly_the_other_ones() {
        let sizes = [0, FEW, MANY - 1, MANY, FEW, MANY, FEW + 1, FEW - 1, MANY - 1];
        let mut engine = Engine::Acl;
        let chosen = sizes.map(|named| {
            engine = suited(engine, named);
            engine.name()
        });
        assert_eq!(chosen, ["acl", "acl", "acl", "identity", "identity", "identity", "identity", "acl", "acl"]);
    }

    #[test]
    fn a_number_of_pods_that_moves_by_less_than_half_changes_the_engine_once_at_most() {
        for middle in (0..4 * MANY).step_by(617) {
            let (mut engine, mut changes) = (Engine::Acl, 0);
            for step in 0..100 {
                let named = if step % 2 == 0 { middle - middle / 5 } else { middle + middle / 5 };
                let next = suited(engine, named);
                changes += u32::from(next != engine);
                engine = next;
            }
            assert!(changes <= 1, "{changes} changes around {middle}");
        }
    }
}
