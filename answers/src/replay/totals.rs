//! The totals of a replay, as text and as JSON.

use std::io::{self, Write};
use std::time::Duration;

use bulkhead_dataplane::Counters;
use serde_json::{Map, Value, json};

/// Returns the speed as text: `1000000 packets in 0.412 s: 2427184 packets per second`.
pub(super) fn rate(packets: u64, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate is shown with a few digits")]
    let per_second = packets as f64 / seconds.max(1e-9);
    format!("{packets} packets in {seconds:.3} s: {per_second:.0} packets per second")
}

/// Returns the totals as a JSON object.
pub(super) fn summary(counters: &Counters) -> Value {
    let dropped: Map<String, Value> =
        counters.drops().filter(|(_, n)| *n > 0).map(|(reason, n)| (reason.name().to_owned(), n.into())).collect();
    let mut summary = json!({
        "packets": counters.received(),
        "forwarded": counters.forwarded(),
        "dropped": dropped,
        "sessions": counters.sessions().created,
    });
    if audited(counters) > 0 {
        summary["audited"] = audited(counters).into();
    }
    summary
}

/// Returns the number of connections that passed only because a policy is audited.
fn audited(counters: &Counters) -> u64 {
    counters.origins().map(|(_, counters)| counters.audited).sum()
}

/// Writes the totals as lines of text.
///
/// # Errors
/// If the output cannot be written.
pub(super) fn write_totals(counters: &Counters, out: &mut impl Write) -> io::Result<()> {
    let (received, forwarded) = (counters.received(), counters.forwarded());
    writeln!(out, "\n{received} packets: {forwarded} forwarded, {} dropped", received - forwarded)?;
    for (reason, n) in counters.drops().filter(|(_, n)| *n > 0) {
        writeln!(out, "  {n} {}: {}", reason.name(), reason.describe())?;
    }
    writeln!(out, "sessions: {}", counters.sessions().created)?;
    match audited(counters) {
        0 => Ok(()),
        audited => writeln!(out, "audited: {audited} connections would be denied if all policies were enforced"),
    }
}
