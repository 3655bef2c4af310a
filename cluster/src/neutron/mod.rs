//! # A Neutron server: requests with a token, lists page by page, and plans carried out
//!
//! ```text
//!  plan --apply--> requests --client--> server
//!  listed <---------lists-----'
//! ```
//! **Invariant.** It may be ended and started again at any point: what is sent next follows from what the server lists. The token goes to
//! the endpoint that was given and to nobody else.

mod apply;
mod client;

pub use apply::Apply;
pub use client::Client;
