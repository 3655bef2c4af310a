//! All integration tests in one program, because each program would link the shared code again.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is how a test fails")]

mod foreign;
mod planted;
#[path = "../../control/tests/random/rng.rs"]
mod random;
mod translations;
