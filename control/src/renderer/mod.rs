//! Renderers: whoever turns pods' rules into the form that a network stack enforces.
//!
//! Several may be registered side by side; each gets every transaction. What a renderer enforces must mean the same as
//! the last rules that it got for every pod.

pub mod acl;
pub mod contiv;
pub mod session_rules;

use std::any::Any;
use std::collections::HashSet;
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::OriginId;

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
    /// Whether this is the whole state: pods and nodes that are not in it are gone.
    pub resync: bool,
    /// Pods with their new configuration, none for a pod that is gone.
    pub pods: Vec<(PodName, Option<Arc<PodConfig>>)>,
    /// Nodes with their new state, none for a node that is gone.
    pub nodes: Vec<(Arc<str>, Option<Arc<Node>>)>,
}

impl Transaction {
    /// What the transaction says of a node: none when it says nothing, and none within when the node is gone.
    pub fn node(&self, name: &str) -> Option<Option<&Node>> {
        let said = self.nodes.iter().rev().find(|(named, _)| **named == *name);
        match said {
            Some((_, node)) => Some(node.as_deref()),
            None => self.resync.then_some(None),
        }
    }
}

/// A renderer could not take in a transaction. What it rendered before stays in force, whole; other renderers took the
/// transaction in.
#[derive(Debug, thiserror::Error)]
#[error("renderer {renderer} did not take in a change")]
pub struct RenderError {
    /// The renderer's name.
    pub renderer: String,
    /// What it says.
    pub source: BoxError,
}

/// Any renderer's error.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// One network stack's side of the policy pipeline.
pub trait Renderer: Any + Send {
    /// Its name in errors: short, and different from that of every other renderer of a pipeline.
    fn name(&self) -> String;

    /// Takes in one transaction.
    ///
    /// # Errors
    /// The renderer's own; then nothing of the transaction is in force. The renderer remembers the transaction and tries
    /// again with the next one.
    fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError>;

    /// The origins of the rules that are in force here, also of those that a later transaction has taken out and could not
    /// replace.
    fn origins(&self) -> HashSet<OriginId> {
        HashSet::new()
    }
}
