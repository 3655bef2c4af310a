//! What Hubble's clients and this vswitch say to each other: gRPC services `observer.Observer`, `peer.Peer` and `grpc.health.v1.Health`.
//!
//! **Purpose.** The messages with the numbers of their fields, as far as they are sent and read here, and what finds the rest.
//!
//! **Not its purpose.** To serve: `live::hubble` does.
//!
//! The structs are written by hand. No compiler for protocol buffers is needed to build, and what a reader does not find here is not told.
//! The numbers are facts of the public protocol (cilium/cilium, `api/v1`, as of 1.19; the health service of grpc/grpc-proto); golden bytes
//! that another implementation has made pin them.
//!
//! **Invariant.** A field of a request that this vswitch does not know is found ([`fields`]) and refused. A decoder skips it, and a filter
//! that is skipped shows more than was asked for.

pub mod fields;
pub mod flow;
#[cfg(test)]
mod golden;
pub mod health;
pub mod mask;
pub mod observer;
pub mod peer;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Timestamp {
    /// Seconds since 1970.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// And nanoseconds.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl Timestamp {
    /// From nanoseconds since 1970.
    #[must_use]
    pub fn from_nanoseconds(time: u64) -> Self {
        let seconds = i64::try_from(time / SECOND).unwrap_or(i64::MAX);
        Self { seconds, nanos: i32::try_from(time % SECOND).unwrap_or_default() }
    }

    /// Nanoseconds since 1970. What lies before is 0, and what is too late the last that there is.
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
