//! Renderers: whoever turns pods' rules into the form that a network stack enforces.
//!
//! Several may be registered side by side; each gets every transaction of the [contract](crate::contract). What a renderer enforces
//! must mean the same as the last rules and sets that it was told.

pub mod acl;
pub mod contiv;
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

/// Rules that a renderer cannot turn into the form of its stack. Everything else goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What the rules are for: `default/web, default/db`, `the exit of node n1`.
    pub subject: String,
    /// What is in force there instead.
    pub instead: Instead,
    /// Why they are refused.
    pub why: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, instead, why } = self;
        write!(f, "{subject}: {instead}, because the rules do not fit: {why}")
    }
}

/// What is in force where rules are refused. Neither lets through what no rules did that were in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Instead {
    /// The last rules that fitted.
    LastGood,
    /// Nothing passes: there were no rules before.
    Closed,
}

impl fmt::Display for Instead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LastGood => "the last rules that fitted stay in force",
            Self::Closed => "nothing passes",
        })
    }
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

    /// As [`Renderer::render`], with what the origins of the rules mean: for a renderer that tells its stack about policies. This is
    /// what a pipeline calls.
    ///
    /// # Errors
    /// As for [`Renderer::render`].
    fn render_with(&mut self, transaction: &Transaction, _origins: &Origins) -> Result<(), BoxError> {
        self.render(transaction)
    }

    /// The rules that are refused now, and with them what they were to replace.
    fn refusals(&self) -> Vec<Refusal> {
        Vec::new()
    }

    /// The origins of the rules that are in force here, also of those that a later transaction has taken out and could not
    /// replace.
    fn origins(&self) -> HashSet<OriginId> {
        HashSet::new()
    }
}
