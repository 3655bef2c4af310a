//! Everything that is tested from outside, in one program.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

mod e2e_bench;
#[allow(dead_code, unreachable_pub, reason = "this uses a part of it")]
#[path = "../../../tests/support/netns.rs"]
mod netns;
mod pipeline;

/// Where `require!` looks for it.
mod lab {
    pub(crate) use super::netns;
}
