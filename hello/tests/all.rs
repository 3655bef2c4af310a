//! The integration tests, in one program.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod builder;
#[cfg(feature = "quic")]
mod quic;
mod tls;
