//! All integration tests in one program, because each program would link the shared code again. `cargo test -p bulkhead-control --test all
//! -- scenarios::` runs the tests of one file.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is how a test fails, and a skipped one says so")]

mod cases;
#[path = "support/neutron.rs"]
mod double;
mod oracle;
mod random;
#[path = "contiv_scenarios/session_table.rs"]
mod session_table;
mod vswitch;

mod audit;
mod bad_input;
mod cluster_policy;
mod contiv_scenarios;
mod foreign;
mod identity;
mod known_answers;
mod neutron;
mod scenarios;
mod semantics;
mod services;
mod session_rules;
