//! Renderers turn pods' rules into the form that a network stack enforces.
//!
//! Several renderers can be registered side by side. Each receives every transaction of the [contract](crate::contract), and must enforce
//! the meaning of the latest rules and sets.

pub mod acl;
pub mod contiv;
mod hairpin;
pub mod identity;
pub mod mirror;
pub mod neutron;
pub mod nftables;
pub mod plain;
pub mod session_rules;

use std::any::Any;
use std::collections::HashSet;
use std::error::Error;
use std::fmt;

use bulkhead_classifier::OriginId;

use crate::contract::Transaction;
use crate::origin::Origins;

/// A renderer failed to apply a transaction. Its previous output stays in force. Other renderers have applied the transaction.
#[derive(Debug, thiserror::Error)]
#[error("renderer {renderer} failed to apply a change")]
pub struct RenderError {
    /// The renderer's name.
    pub renderer: String,
    /// The cause.
    pub source: BoxError,
}

/// Rules that a renderer cannot express in its stack. All other rules are enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The affected pods or interface: `default/web, default/db`, `the exit of node n1`.
    pub subject: String,
    /// The replacement in force.
    pub instead: Instead,
    /// The reason for the refusal.
    pub why: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, instead, why } = self;
        write!(f, "{subject}: {instead}, because the new rules do not fit: {why}")
    }
}

/// The replacement for refused rules. It allows nothing that the rules in force before denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Instead {
    /// The last rules that the renderer could express.
    LastGood,
    /// All traffic is denied, because no earlier rules exist.
    Closed,
}

impl fmt::Display for Instead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LastGood => "the last good rules stay in force",
            Self::Closed => "nothing passes",
        })
    }
}

/// The error type of all renderers.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A back end that turns compiled policy into the rules of one network stack.
pub trait Renderer: Any + Send {
    /// Returns a short name for error messages, unique in the pipeline.
    fn name(&self) -> String;

    /// Applies one transaction.
    ///
    /// # Errors
    /// Depends on the renderer. No part of the transaction is then in force. The renderer keeps the transaction and tries again with the
    /// next one.
    fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError>;

    /// As [`Renderer::render`], with the meaning of the rules' origins, for renderers that pass it to their stack. The pipeline calls this
    /// method.
    ///
    /// # Errors
    /// As for [`Renderer::render`].
    fn render_with(&mut self, transaction: &Transaction, _origins: &Origins) -> Result<(), BoxError> {
        self.render(transaction)
    }

    /// Returns the currently refused rules, with their replacement.
    fn refusals(&self) -> Vec<Refusal> {
        Vec::new()
    }

    /// Returns the origins of the rules in force, also of removed rules whose replacement was refused.
    fn origins(&self) -> HashSet<OriginId> {
        HashSet::new()
    }
}
