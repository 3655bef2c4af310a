//! # Moving to policies of Kubernetes
//!
//! **Purpose.** Translates policies of other products, and of earlier versions of Kubernetes' API, to NetworkPolicy and ClusterNetworkPolicy,
//! and proves by the exact engine of `diff` what is the same.
//!
//! **Not its purpose.** The meaning of other products' policies: `bulkhead-control` resolves them to ranked policies first.
#![forbid(unsafe_code)]

pub mod args;
pub mod translate;
