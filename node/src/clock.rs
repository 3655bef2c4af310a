//! The wall clock, as journal, streams and Hubble write it.

/// Returns the time in nanoseconds since 1970-01-01 00:00 UTC. 0 if the clock is set to an earlier time.
pub(crate) fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
