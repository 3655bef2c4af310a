//! The enforcing renderer, which is the first of every pipeline, and its output.

use std::sync::Arc;

use super::{Pipeline, RendererHandle};
use crate::engine::{Choice, Engine, suited};
use crate::processor::Scope;
use crate::renderer::acl::{AclRenderer, NodeTables, TableWork};
use crate::renderer::identity::IdentityRenderer;
use crate::renderer::mirror::Mirror;
use crate::renderer::nftables::NftRenderer;
use crate::renderer::session_rules::{SessionTable, SourceRenderer};
use crate::renderer::{RenderError, Renderer};
use crate::work::Work;

/// The renderer that enforces policy, with the place of enforcement.
#[derive(Clone, Copy, Debug)]
pub(super) enum Enforcing {
    /// At the destination, with compiled rule lists.
    Acl(RendererHandle<AclRenderer>),
    /// At the destination, with identities.
    Identities(RendererHandle<IdentityRenderer>),
    /// At the source, with session rules.
    Sessions(RendererHandle<SourceRenderer>),
    /// In the node's kernel, by nftables. No tables.
    Kernel(RendererHandle<NftRenderer>),
    /// No enforcement: the rules are kept for questions about them. No tables.
    Nothing(RendererHandle<Mirror>),
}

impl Enforcing {
    pub(super) const fn engine(self) -> Engine {
        match self {
            Self::Identities(_) => Engine::Identity,
            Self::Acl(_) | Self::Sessions(_) | Self::Kernel(_) | Self::Nothing(_) => Engine::Acl,
        }
    }
}

impl Pipeline {
    /// Returns the engine that makes the tables. [`Engine::Acl`] if tables at the destination are not used.
    pub fn engine(&self) -> Engine {
        self.enforcing.engine()
    }

    /// Returns how the engine is chosen: by the configuration, or by the state.
    pub const fn choice(&self) -> Choice {
        self.choice
    }

    /// Returns the largest number of pods that one policy of the scope's pods names. [`Choice::Auto`] depends on this number.
    pub fn most_named(&self) -> usize {
        self.processor.most_named()
    }

    /// Sets how the engine is chosen, and changes the engine if necessary. Has no effect unless tables at the destination enforce policy.
    ///
    /// # Errors
    /// As for [`Pipeline::resync`].
    pub fn choose(&mut self, choice: Choice) -> Result<(), RenderError> {
        self.choice = choice;
        if self.suit() { self.render_all() } else { Ok(()) }
    }

    /// Replaces the enforcing renderer by an empty one if the choice requires another engine. Returns whether it did.
    pub(super) fn suit(&mut self) -> bool {
        let has_engines = matches!(self.enforcing, Enforcing::Acl(_) | Enforcing::Identities(_));
        if !has_engines || *self.processor.scope() == Scope::Cluster {
            return false;
        }
        let engine = match self.choice {
            Choice::Fixed(engine) => engine,
            Choice::Auto => suited(self.engine(), self.most_named()),
        };
        if engine == self.engine() {
            return false;
        }
        let generation = self.all_node_tables().iter().map(|tables| tables.generation).max().unwrap_or_default();
        (self.enforcing, self.renderers[0]) = at_destination(self.processor.scope(), engine, generation);
        // The shadow's renderer is of the old engine's kind.
        self.shadow = None;
        true
    }

    /// Returns the latest tables of a node. `None` if the node is unknown or outside the scope, or if the pipeline makes no tables.
    pub fn node_tables(&self, node: &str) -> Option<Arc<NodeTables>> {
        self.apart.tables(node).cloned()
    }

    /// Returns the latest tables of all nodes of the scope, sorted by name.
    pub fn all_node_tables(&self) -> Vec<Arc<NodeTables>> {
        self.apart.all_tables().cloned().collect()
    }

    /// Whether the enforcing renderer makes tables.
    pub(super) const fn makes_tables(&self) -> bool {
        !matches!(self.enforcing, Enforcing::Kernel(_) | Enforcing::Nothing(_))
    }

    /// Returns the enforcing renderer's tables of all nodes, without egress tables. Empty if the renderer makes no tables.
    pub(super) fn tables_of_renderer(&self) -> Vec<Arc<NodeTables>> {
        match self.enforcing {
            Enforcing::Acl(acl) => self.renderer(acl).all_node_tables().cloned().collect(),
            Enforcing::Identities(identities) => self.renderer(identities).node_tables().cloned().into_iter().collect(),
            Enforcing::Sessions(sessions) => self.renderer(sessions).node_tables().cloned().into_iter().collect(),
            Enforcing::Kernel(_) | Enforcing::Nothing(_) => Vec::new(),
        }
    }

    /// Returns the rules and sets. `None` unless the pipeline makes no tables ([`Pipeline::without_tables`]).
    pub fn mirror(&self) -> Option<&Mirror> {
        match self.enforcing {
            Enforcing::Nothing(mirror) => Some(self.renderer(mirror)),
            Enforcing::Acl(_) | Enforcing::Identities(_) | Enforcing::Sessions(_) | Enforcing::Kernel(_) => None,
        }
    }

    pub(super) fn acl(&self) -> Option<&AclRenderer> {
        match self.enforcing {
            Enforcing::Acl(acl) => Some(self.renderer(acl)),
            Enforcing::Identities(_) | Enforcing::Sessions(_) | Enforcing::Kernel(_) | Enforcing::Nothing(_) => None,
        }
    }

    /// Returns the identity renderer. `None` if another engine makes the tables.
    pub fn identities(&self) -> Option<&IdentityRenderer> {
        match self.enforcing {
            Enforcing::Identities(identities) => Some(self.renderer(identities)),
            Enforcing::Acl(_) | Enforcing::Sessions(_) | Enforcing::Kernel(_) | Enforcing::Nothing(_) => None,
        }
    }

    /// Returns the renderer of the kernel's ruleset. `None` unless the kernel enforces policy.
    pub fn kernel(&self) -> Option<RendererHandle<NftRenderer>> {
        match self.enforcing {
            Enforcing::Kernel(kernel) => Some(kernel),
            Enforcing::Acl(_) | Enforcing::Identities(_) | Enforcing::Sessions(_) | Enforcing::Nothing(_) => None,
        }
    }

    /// Returns counts since the pipeline was created: pods examined, policies compiled, address intervals written.
    pub fn work(&self) -> Work {
        let intervals = match self.enforcing {
            Enforcing::Acl(acl) => self.renderer(acl).written(),
            Enforcing::Identities(_) | Enforcing::Kernel(_) | Enforcing::Nothing(_) => 0,
            Enforcing::Sessions(sessions) => self.renderer(sessions).written(),
        };
        Work { intervals, ..self.processor.work() }
    }

    /// Returns the work on large tables of all nodes since the pipeline was made. Zero unless [`Engine::Acl`] makes the tables.
    pub fn table_work(&self) -> TableWork {
        self.acl().map(AclRenderer::work).unwrap_or_default()
    }

    /// Returns the session table. `None` unless policy is enforced at the source.
    pub fn session_table(&self) -> Option<&SessionTable> {
        match self.enforcing {
            Enforcing::Acl(_) | Enforcing::Identities(_) | Enforcing::Kernel(_) | Enforcing::Nothing(_) => None,
            Enforcing::Sessions(sessions) => Some(self.renderer(sessions).table()),
        }
    }

    /// Waits for tables that are being compiled in the background, so that the next event updates them.
    #[cfg(test)]
    pub(super) fn finish_builds(&mut self) {
        let Enforcing::Acl(handle) = self.enforcing else { return };
        self.renderer_mut(handle).finish_builds();
    }
}

/// Creates the renderer that makes the tables of a scope, and names its kind.
pub(super) fn at_destination(scope: &Scope, engine: Engine, generation: u64) -> (Enforcing, Box<dyn Renderer>) {
    match (scope, engine) {
        (Scope::Node(node), Engine::Identity) => {
            let renderer = IdentityRenderer::of_node(node.clone(), generation);
            (Enforcing::Identities(RendererHandle::FIRST), Box::new(renderer))
        }
        (Scope::Node(node), Engine::Acl) => {
            (Enforcing::Acl(RendererHandle::FIRST), Box::new(AclRenderer::of_node(node.clone())))
        }
        (Scope::Cluster, _) => (Enforcing::Acl(RendererHandle::FIRST), Box::new(AclRenderer::of_all_nodes())),
    }
}
