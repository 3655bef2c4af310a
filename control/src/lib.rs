//! # The control plane: compiles Kubernetes objects to tables
//!
//! **Purpose.** Keeps the policy-related state of a cluster, finds the pods that a change concerns, compiles their policies to rules, and
//! compiles the rules to tables for each interface of a node.
//!
//! **Not its purpose.** Packets and sessions: this crate does not know the dataplane. Connections: `bulkhead-cluster` watches an API
//! server.
//!
//! ```text
//!  files, API --source--> objects --cache--> changes --processor--> CompiledPolicy --configurator--> rules in tiers of a pod
//!                                                    |                                                |
//!                                              address book --sets: added, removed--> Transaction <--'
//!                                                                                          |
//!                                                       classifier::Tables <--ACL renderer-+- other renderers
//! ```
//! [`service`] resolves Services to backends, separately from the pipeline: only policies of other products depend on Services.
//!
//! Between objects and cache, [`foreign`] resolves policies of other products, [`attachments`] adds the addresses that the node's container runtime gave to pods, and [`claims`] decides
//! which pod has an address that several objects claim.
//!
//! The stages before the transaction know selectors and no tables; the stages after it know tables and no selectors ([`contract`]).
//!
//! **Invariant.** The tables are a function of the objects alone. The order of events and their division into batches make no difference. A
//! faulty object never widens what is allowed.
//!
//! **Direction words.** *Ingress* is traffic towards the pod, *egress* traffic from it, in all output and code except [`renderer::contiv`],
//! which follows Contiv and takes the vswitch's side.
#![forbid(unsafe_code)]

pub mod attachments;
mod book;
pub mod cache;
pub mod claims;
pub mod configurator;
pub mod contract;
mod decision;
pub mod dns;
pub mod engine;
#[cfg(test)]
mod fixtures;
pub mod foreign;
pub mod identity;
pub mod inventory;
mod labels;
pub mod object;
pub mod origin;
pub mod pipeline;
pub mod processor;
pub mod reachability;
pub mod renderer;
pub mod selector;
pub mod service;
pub mod source;
pub mod texts;
pub mod ties;
pub mod work;

pub use object::filter;
