//! The integration tests of `dataplane` in one program.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a test may panic and print, and its numbers are small"
)]

mod e2e_flow_program;
mod e2e_tc_programs;
mod e2e_translation;
mod e2e_xsk;
#[path = "support/loom_io.rs"]
mod io;
mod loom_bell;
mod loom_swap;
mod support;
#[path = "support/loom_sync.rs"]
mod sync;
