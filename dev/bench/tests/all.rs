//! The end-to-end tests of the benchmark program.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

mod e2e_bench;
mod names;
#[allow(dead_code, unreachable_pub, reason = "this uses a part of it")]
#[path = "../../../tests/support/netns.rs"]
mod netns;
mod pipeline;

/// `require!` expects the module under this name.
mod lab {
    pub(crate) use super::netns;
}
