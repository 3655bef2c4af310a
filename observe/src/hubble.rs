//! Messages of Hubble's API: gRPC services `observer.Observer`, `peer.Peer` and `grpc.health.v1.Health`.
//!
//! **Purpose.** Defines the messages and fields that are used here, and detects others.
//!
//! **Not its purpose.** Serving: `live::hubble` does that.
//!
//! The structs are handwritten: the build needs no protocol buffer compiler, and unused fields are not sent. Field numbers follow the
//! public protocol (cilium/cilium, `api/v1`, as of 1.19; the health service of grpc/grpc-proto). Golden bytes of another implementation
//! verify them.
//!
//! **Invariant.** Unknown fields of a request are detected ([`fields`]) and rejected. A decoder would skip them, and a skipped filter would
//! return more than requested.

pub mod fields;
pub mod flow;
#[cfg(test)]
mod golden;
pub mod health;
pub mod mask;
pub mod observer;
pub mod peer;

/// Nanoseconds per second.
const SECOND: u64 = 1_000_000_000;

/// A point in time, as `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Timestamp {
    /// Seconds since 1970.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds after `seconds`, below 1,000,000,000.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl Timestamp {
    /// Returns the timestamp of nanoseconds since 1970.
    #[must_use]
    pub fn from_nanoseconds(time: u64) -> Self {
        let seconds = i64::try_from(time / SECOND).unwrap_or(i64::MAX);
        Self { seconds, nanos: i32::try_from(time % SECOND).unwrap_or_default() }
    }

    /// Returns nanoseconds since 1970. Clamps times before 1970 and beyond 64 bits.
    #[must_use]
    pub fn nanoseconds(&self) -> u64 {
        let time = i128::from(self.seconds) * i128::from(SECOND) + i128::from(self.nanos);
        u64::try_from(time.max(0)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_the_same_after_a_round_trip_and_never_wraps() {
        for time in [0, 1, SECOND, 1_764_000_000_123_456_789] {
            assert_eq!(Timestamp::from_nanoseconds(time).nanoseconds(), time);
        }
        assert_eq!(Timestamp { seconds: -5, nanos: 0 }.nanoseconds(), 0);
        assert_eq!(Timestamp { seconds: i64::MAX, nanos: i32::MAX }.nanoseconds(), u64::MAX);
        assert_eq!(Timestamp { seconds: i64::MIN, nanos: i32::MIN }.nanoseconds(), 0);
    }
}
