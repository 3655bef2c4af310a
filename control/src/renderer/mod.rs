//! Renderers: whoever turns pods' rules into the form that a network stack enforces.
//!
//! Several may be registered side by side; each gets every transaction of the [contract](crate::contract). What a renderer enforces
//! must mean the same as the last rules and sets that it was told.

pub mod acl;
pub mod contiv;
pub mod mirror;
pub mod plain;
pub mod session_rules;

use std::any::Any;
use std::collections::HashSet;
use std::error::Error;

use bulkhead_classifier::OriginId;

use crate::contract::Transaction;

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
