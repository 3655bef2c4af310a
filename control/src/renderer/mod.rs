//! Renderers: whoever turns pods' rules into the form that a network stack enforces.
//!
//! Several may be registered side by side; each gets every transaction. What a renderer enforces must mean the same as
//! the last rules that it got for every pod.

pub mod acl;
mod cache;
pub mod contiv;
mod interned;
pub mod session_rules;

use std::net::IpAddr;
use std::sync::Arc;

use crate::configurator::PodRules;
use crate::object::{Node, PodName};

/// All that a renderer learns about one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodConfig {
    /// The pod.
    pub pod: PodName,
    /// The node it runs on.
    pub node: Arc<str>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its MAC address where it is known.
    pub mac: Option<[u8; 6]>,
    /// Its rules.
    pub rules: PodRules,
}

/// What one event changed.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// Whether this is the whole state: pods that are not in it are gone.
    pub resync: bool,
    /// Pods with their new configuration, none for a pod that is gone.
    pub pods: Vec<(PodName, Option<Arc<PodConfig>>)>,
    /// Nodes with their new state, none for a node that is gone.
    pub nodes: Vec<(Arc<str>, Option<Arc<Node>>)>,
}

/// Why a transaction could not be rendered. What was rendered before stays in force, whole.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// A table does not fit.
    #[error("table of {interface}: {source}")]
    Table {
        /// The interface that the table is for.
        interface: String,
        /// What the classifier says.
        source: bulkhead_classifier::BuildError,
    },
    /// The rules do not fit into lists of 6-tuples.
    #[error("6-tuples of node {node}: {source}")]
    SixTuples {
        /// The node.
        node: Arc<str>,
        /// What is too large.
        source: contiv::TooManyTuples,
    },
    /// The session rules are not what they should be.
    #[error("session rules of node {node}: {source}")]
    SessionRules {
        /// The node.
        node: Arc<str>,
        /// What is wrong.
        source: session_rules::SessionError,
    },
}

/// One network stack's side of the policy pipeline.
pub trait Renderer {
    /// Takes in one transaction.
    ///
    /// # Errors
    /// [`RenderError`]; then nothing of the transaction is in force.
    fn render(&mut self, transaction: &Transaction) -> Result<(), RenderError>;
}
