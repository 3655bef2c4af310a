//! # The control plane: Kubernetes objects in, tables out
//!
//! **Purpose.** Keeps the policy-related state of a cluster, finds which pods a change concerns, translates their
//! policies to rules and the rules to tables for every interface of a node.
//!
//! **Not its purpose.** No packets, sessions or sockets; it does not know the dataplane. It talks to no API server yet.
//!
//! ```text
//!  files --source--> objects --cache--> change --processor--> affected pods + ContivPolicy
//!                                                                 |
//!                                                            configurator --> ContivRules of a pod
//!                                                                 |
//!                        classifier::Tables <--ACL renderer-- renderer cache (shared tables, global table)
//! ```
//!
//! **Invariant.** The tables are a function of the objects alone: the order in which objects came, and whether they came
//! one by one or all at once, changes nothing. What is not understood never widens what is allowed.
//!
//! **Direction words.** In everything a user sees, *ingress* and *egress* are the pod's: ingress is traffic towards the
//! pod. Contiv's documents speak from the vswitch's side; only the names `ContivPolicy` and `ContivRule` are kept.
#![forbid(unsafe_code)]

pub mod cache;
pub mod configurator;
pub mod contiv;
#[cfg(test)]
mod fixtures;
mod group;
pub mod object;
pub mod origin;
mod parts;
pub mod pipeline;
pub mod processor;
pub mod renderer;
pub mod selector;
pub mod source;
