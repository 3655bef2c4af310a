//! What enforces policy: the renderer that every pipeline begins with, and what it has made.

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

/// The renderer whose tables the dataplane enforces.
#[derive(Clone, Copy, Debug)]
pub(super) enum Enforcing {
    /// At the destination, by rule lists.
    Acl(RendererHandle<AclRenderer>),
    /// The same, by identities.
    Identities(RendererHandle<IdentityRenderer>),
    /// At the source.
    Sessions(RendererHandle<SourceRenderer>),
    /// The node's kernel, by nftables: there are no tables.
    Kernel(RendererHandle<NftRenderer>),
    /// Nothing: the rules are kept to be asked about.
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
    /// What makes the tables.
    pub fn engine(&self) -> Engine {
        self.enforcing.engine()
    }

    /// Who says what makes the tables.
    pub const fn choice(&self) -> Choice {
        self.choice
    }

    /// The most pods that one policy of the scope's pods names together, by which [`Choice::Auto`] goes.
    pub fn most_named(&self) -> usize {
        self.processor.most_named()
    }

    /// Has this engine make the tables from now on, or the one that suits the state as it is and will be. Where policy is not enforced by
    /// tables at the destination there is one form of them only, and nothing changes.
    ///
    /// # Errors
    /// As for [`Pipeline::resync`].
    pub fn choose(&mut self, choice: Choice) -> Result<(), RenderError> {
        self.choice = choice;
        if self.suit() { self.render_all() } else { Ok(()) }
    }

    /// Puts the engine that is chosen in the place of another one, without tables. Returns whether it was another one.
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
        // It is of the engine's kind.
        self.shadow = None;
        true
    }

    /// The latest tables of a node, none when the node is not in the scope or nothing is known of it.
    pub fn node_tables(&self, node: &str) -> Option<Arc<NodeTables>> {
        match self.enforcing {
            Enforcing::Acl(acl) => self.renderer(acl).node_tables(node).cloned(),
            Enforcing::Identities(_) | Enforcing::Sessions(_) | Enforcing::Kernel(_) | Enforcing::Nothing(_) => {
                self.all_node_tables().into_iter().find(|tables| *tables.node == *node)
            }
        }
    }

    /// The latest tables of all nodes of the scope, by name.
    pub fn all_node_tables(&self) -> Vec<Arc<NodeTables>> {
        match self.enforcing {
            Enforcing::Acl(acl) => self.renderer(acl).all_node_tables().cloned().collect(),
            Enforcing::Identities(identities) => self.renderer(identities).node_tables().cloned().into_iter().collect(),
            Enforcing::Sessions(sessions) => self.renderer(sessions).node_tables().cloned().into_iter().collect(),
            Enforcing::Kernel(_) | Enforcing::Nothing(_) => Vec::new(),
        }
    }

    /// The rules and sets, of a pipeline that makes no tables.
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

    /// The identities, where these are the engine.
    pub fn identities(&self) -> Option<&IdentityRenderer> {
        match self.enforcing {
            Enforcing::Identities(identities) => Some(self.renderer(identities)),
            Enforcing::Acl(_) | Enforcing::Sessions(_) | Enforcing::Kernel(_) | Enforcing::Nothing(_) => None,
        }
    }

    /// The renderer of the kernel's ruleset, where the kernel enforces.
    pub fn kernel(&self) -> Option<RendererHandle<NftRenderer>> {
        match self.enforcing {
            Enforcing::Kernel(kernel) => Some(kernel),
            Enforcing::Acl(_) | Enforcing::Identities(_) | Enforcing::Sessions(_) | Enforcing::Nothing(_) => None,
        }
    }

    /// The work that finding and compiling the affected policies and writing their sets took so far.
    pub fn work(&self) -> Work {
        let intervals = match self.enforcing {
            Enforcing::Acl(acl) => self.renderer(acl).written(),
            Enforcing::Identities(_) | Enforcing::Kernel(_) | Enforcing::Nothing(_) => 0,
            Enforcing::Sessions(sessions) => self.renderer(sessions).written(),
        };
        Work { intervals, ..self.processor.work() }
    }

    /// The work that large tables of all nodes took so far; nothing where policy is enforced at the source.
    pub fn table_work(&self) -> TableWork {
        self.acl().map(AclRenderer::work).unwrap_or_default()
    }

    /// The session table, where policy is enforced at the source.
    pub fn session_table(&self) -> Option<&SessionTable> {
        match self.enforcing {
            Enforcing::Acl(_) | Enforcing::Identities(_) | Enforcing::Kernel(_) | Enforcing::Nothing(_) => None,
            Enforcing::Sessions(sessions) => Some(self.renderer(sessions).table()),
        }
    }

    /// Waits for the tables that are compiled beside, so that the next event goes on from them.
    #[cfg(test)]
    pub(super) fn finish_builds(&mut self) {
        let Enforcing::Acl(handle) = self.enforcing else { return };
        self.renderer_mut(handle).finish_builds();
    }
}

/// The renderer that makes the tables of a scope, and what it is.
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
