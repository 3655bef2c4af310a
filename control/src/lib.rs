//! # The control plane: Kubernetes objects in, tables out
//!
//! **Purpose.** Keeps the policy-related state of a cluster, finds which pods a change concerns, translates their
//! policies to rules and the rules to tables for every interface of a node.
//!
//! **Not its purpose.** No packets and no sessions; it does not know the dataplane. It opens no connection: `bulkhead-cluster`
//! follows an API server.
//!
//! ```text
//!  files, API --source--> objects --cache--> changes --processor--> CompiledPolicy --configurator--> rules in tiers of a pod
//!                                                    |                                                |
//!                                              address book --sets: added, removed--> Transaction <--'
//!                                                                                          |
//!                                                       classifier::Tables <--ACL renderer-+- other renderers
//! ```
//! Services stand beside the pipeline: [`service`] resolves them to backends, and no policy depends on them.
//!
//! Between objects and cache [`attachments`] adds the addresses that the node's container runtime has given to pods, and [`claims`]
//! decides whose an address is that several say is theirs.
//!
//! What is above the transaction knows selectors and no tables; what is below knows tables and no selectors ([`contract`]).
//!
//! **Invariant.** The tables are a function of the objects alone: the order in which objects came, and whether they came
//! one by one, in batches or all at once, changes nothing. What is not understood never widens what is allowed.
//!
//! **Direction words.** In everything a user sees, *ingress* and *egress* are the pod's: ingress is traffic towards the
//! pod. Contiv's documents speak from the vswitch's side; [`renderer::contiv`] alone does so too.
#![forbid(unsafe_code)]

pub mod attachments;
mod book;
pub mod cache;
pub mod claims;
pub mod configurator;
pub mod contract;
pub mod engine;
#[cfg(test)]
mod fixtures;
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
