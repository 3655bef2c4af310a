//! # Remote servers: a Kubernetes API server and OpenStack Neutron
//!
//! **Purpose.** Follows the objects of an API server ([`kubernetes`]), and updates the security groups of a Neutron server ([`neutron`]).
//! No other crate opens TLS connections to remote servers.
//!
//! **Not its purpose.** It makes no decision about traffic and interprets no object: `bulkhead-control` does. It accepts no connections.
//!
//! ```text
//!  API server --list, watch--> kubernetes --batches of events--> the vswitch of a node
//!  groups and ports of policies --neutron--> requests --> Neutron server
//! ```
//!
//! **Invariant.** A token is sent only to the server that it is for, and appears in no log, file or error.
#![forbid(unsafe_code)]

mod client;
mod errors;
pub mod kubernetes;
pub mod neutron;
