//! The integration tests, in one program.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a panic is how a test fails, and a skipped one says so")]

mod adversary;
mod examples;
mod rulesets;
