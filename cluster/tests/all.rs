//! Everything that is tested from outside, in one program.

mod kubernetes;
