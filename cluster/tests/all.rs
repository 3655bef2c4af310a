//! The integration tests of `cluster` in one program.

mod kubernetes;
