//! `bulkhead bench`: how fast it is on this machine, without interfaces. With them it is `wire`.

pub(crate) mod pipeline;
