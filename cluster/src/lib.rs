//! # Servers: an API server and OpenStack, as sources and as sinks
//!
//! **Purpose.** Follows the objects of an API server ([`kubernetes`]), and brings the security groups of a Neutron server up to date
//! ([`neutron`]). It alone opens TLS connections to others.
//!
//! **Not its purpose.** It decides nothing about traffic and reads no object itself: `bulkhead-control` does. It serves nobody.
//!
//! ```text
//!  API server --list, watch--> kubernetes --batches of events--> the vswitch of a node
//!  groups and ports of policies --neutron--> requests --> Neutron server
//! ```
//!
//! **Invariant.** A token goes to the server that it is for and to nobody else, and is written nowhere.
#![forbid(unsafe_code)]

mod client;
mod errors;
pub mod kubernetes;
pub mod neutron;
