//! What makes a node's tables, and which engine suits a state: what `engine: auto` goes by.
//!
//! ```text
//!   most pods that one policy of the node names together
//!        0            FEW             MANY
//!        |--- acl -----|-- as it was --|---- identity ----->
//! ```
//! Measured with `cargo bench -p bulkhead-control --bench engines` on nodes of 250 pods. Where policies name up to a thousand pods each, rule
//! lists answer in about half the time that identities take, also in a cluster of 100,000 pods. Where they name everybody, rule lists get
//! slower and larger with the cluster, and identities do not: in one of 100,000 they take twice as long for a packet, ten times the memory and a
//! hundred times as long for an event. Where policies name 5,000 pods together, both answer a packet in the same time; where they name 10,000,
//! identities are quicker by a sixth, which is why [`MANY`] is that. An event of a pod elsewhere is cheaper with identities in any case, but
//! below a millisecond with rule lists where these are small.
//!
//! The pods of the cluster were no measure: the rules decide how many of them a node's tables know.

/// What makes the node's tables. The verdicts are the same; memory, the cost of an event and that of a lookup differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Engine {
    /// Rule lists, compiled, with the addresses of all sets that they name ([`crate::renderer::acl`]).
    #[default]
    Acl,
    /// An ipcache for the node and a policy map for each pod ([`crate::renderer::identity`]).
    Identity,
}

impl Engine {
    /// As it is written in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acl => "acl",
            Self::Identity => "identity",
        }
    }
}

/// Who says which engine makes the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    /// Somebody has.
    Fixed(Engine),
    /// The state does, with each change ([`suited`]).
    Auto,
}

impl Default for Choice {
    fn default() -> Self {
        Self::Fixed(Engine::default())
    }
}

/// So many pods, named together by one policy, suit identities: see the module for what was measured.
pub const MANY: usize = 10_000;

/// With fewer, rule lists suit again. Half of [`MANY`]: a change of engine compiles everything and has each session judged again, so that
/// a cluster that grows and shrinks by less than half is to cause none.
pub const FEW: usize = MANY / 2;

/// The engine that suits a state whose policies name at most `named` pods each, where `now` makes the tables.
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
