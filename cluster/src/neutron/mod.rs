//! # A Neutron server: requests with a token, lists page by page, and plans carried out
//!
//! ```text
//!  plan --apply--> requests --client--> server
//!  listed <---------lists-----'
//! ```
//! **Invariant.** A run can be interrupted and repeated at any point: the next requests follow from what the server lists. The token is
//! sent only to the given endpoint.

mod apply;
mod client;

pub use apply::Apply;
pub use client::Client;
